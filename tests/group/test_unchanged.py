"""The outcome of a heartbeat that reports nothing is kept until a record changes the group (``kernel.state``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connectgroup.errors import FencedInstanceId, FencedMemberEpoch, InvalidRequest
from connectgroup.group.connect.group_type import step
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import Outcome
from connectgroup.protocol.messages.common import ConfigEntry
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, TaskStatus
from connectgroup.protocol.records.connect import TargetRecord

SETTINGS = GroupSettings()
STEADY = HeartbeatRequest(group_id="g", member_id="a", member_epoch=1, process_id=7)


def send(group: ConnectGroupState, request: HeartbeatRequest, now_ms: int = 0) -> Outcome[Any]:
    return step(group, request, now_ms, SETTINGS)


@pytest.fixture
def group() -> ConnectGroupState:
    """A group whose only member is at the target epoch."""
    group = ConnectGroupState("g")
    join = replace(STEADY, member_epoch=0, rebalance_timeout_ms=60_000, server_assignor="balanced", owned=())
    settings = GroupSettings(server_assignors={"balanced": lambda prepared: ()})
    step(group, join, 0, settings)
    group.apply(TargetRecord(group_id="g", epoch=group.epoch))
    step(group, join, 0, settings)
    assert group.current("a").epoch == group.epoch
    return group


def fresh(group: ConnectGroupState, request: HeartbeatRequest) -> Outcome[Any]:
    """The outcome that the rules decide, with nothing kept."""
    group.heartbeat_cache.clear()
    return send(group, request)


def test_the_next_heartbeat_that_reports_nothing_has_the_outcome_that_the_rules_would_decide(
    group: ConnectGroupState,
) -> None:
    beat = replace(STEADY, member_epoch=group.epoch)
    first = fresh(group, beat)
    again = send(group, replace(beat, sequence=5, max_wait_ms=3_000, traceparent="t"), now_ms=99)
    assert again is first
    assert again == fresh(group, replace(beat, sequence=5, max_wait_ms=3_000))
    assert again.parks


def test_a_record_ends_the_kept_outcomes(group: ConnectGroupState) -> None:
    beat = replace(STEADY, member_epoch=group.epoch)
    send(group, beat)
    group.apply(replace(group.members["a"], restart_requested=True))
    asked = send(group, beat)
    assert asked.response.restart
    assert not asked.parks


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"process_id": 8}, FencedInstanceId.code),
        ({"member_epoch": 77}, FencedMemberEpoch.code),
        ({"max_wait_ms": -1}, InvalidRequest.code),
        ({"rack": "\n"}, InvalidRequest.code),
        ({"labels": (ConfigEntry(name="", value="x"),)}, InvalidRequest.code),
        ({"statuses": (TaskStatus(connector="c", task=0, owner_epoch=1, state=99),)}, InvalidRequest.code),
    ],
)
def test_a_heartbeat_that_differs_is_decided_by_the_rules(
    group: ConnectGroupState, changed: dict[str, Any], code: int
) -> None:
    beat = replace(STEADY, member_epoch=group.epoch)
    assert send(group, beat).response.error_code == 0
    assert send(group, replace(beat, **changed)).response.error_code == code


def test_a_full_heartbeat_gets_the_assignment(group: ConnectGroupState) -> None:
    beat = replace(STEADY, member_epoch=group.epoch)
    assert send(group, beat).response.assignment is None
    assert send(group, replace(beat, owned=(), rebalance_timeout_ms=60_000)).response.assignment is not None

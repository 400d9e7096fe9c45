"""Fencing, retries and idempotence of consumer heartbeats: HB-01 to HB-19."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connectgroup.errors import (
    FencedMemberEpoch,
    GroupError,
    GroupIdNotFound,
    GroupMaxSizeReached,
    UnknownMemberId,
    UnsupportedVersion,
)
from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.records.base import Kind, Tombstone
from connectgroup.protocol.records.connect import GroupRecord, TargetRecord

from .driver import Driver, beat, full, join, shown


def settled() -> Driver:
    """Member a at epoch 2 with foo-0..2, previous epoch 1."""
    group = Driver(foo=3, bar=1)
    group.ask(join("a"), {"a": {"foo": (0, 1, 2)}})
    group.ask(beat("a", 1, server_assignor="range"))  # parked until the target assignment is there
    assert group.group.current("a").epoch == 2
    return group


def error(group: Driver, request: ConsumerHeartbeatRequest) -> int:
    """The error code of a rejected request, which changes nothing."""
    before = len(group.log)
    response = group.send(request)
    assert response.error_message
    assert len(group.log) == before
    return int(response.error_code)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (beat("a", 200), FencedMemberEpoch),  # HB-01
        (beat("a", 3), FencedMemberEpoch),
        (beat("a", 1, {"foo": (0, 1, 2, 3)}), FencedMemberEpoch),  # not a subset
        (beat("a", 1), FencedMemberEpoch),  # HB-03: owned is null
        (beat("x", 1), UnknownMemberId),  # HB-07
        (beat("x", -1), UnknownMemberId),
    ],
)
def test_invalid_epoch_or_member_is_rejected(request_: ConsumerHeartbeatRequest, expected: type[GroupError]) -> None:
    group = settled()
    assert error(group, request_) == expected.code
    assert "a" in group.group.members


def test_epoch_below_the_previous_one_is_fenced() -> None:
    """HB-02"""
    group = settled()
    group.ask(beat("a", 2, server_assignor="uniform"))
    assert error(group, beat("a", 1, {"foo": (0,)})) == FencedMemberEpoch.code


def test_lost_response_is_repeated() -> None:
    """HB-04: "the previous epoch is accepted if the owned partitions are a subset of the assigned ones"."""
    group = settled()
    assert group.ask(beat("a", 1, {"foo": (0, 1)})) == (2, {"foo": (0, 1, 2)})
    assert group.records == []


def test_repeated_acknowledgement_acknowledges_no_later_revocation() -> None:
    """The response to the acknowledgement assigned foo-2: the member may run it, although the repeat omits it."""
    group = Driver(foo=3)
    group.ask(join("a"), {"a": {"foo": (0, 1, 2)}})
    group.ask(join("b"), {"a": {"foo": (0, 1)}, "b": {"foo": (2,)}})
    group.ask(beat("a", 1))
    group.ask(beat("a", 1, {"foo": (0, 1)}))
    assert group.ask(beat("b", 2)) == (2, {"foo": (2,)})
    group.ask(join("c"), {"a": {"foo": (0, 2)}, "c": {"foo": (1,)}})
    group.ask(beat("a", 2))
    group.ask(beat("b", 2))
    group.ask(beat("b", 2, {}))
    acknowledgement = beat("a", 2, {"foo": (0,)})
    assert group.ask(acknowledgement) == (3, {"foo": (0, 2)})
    group.ask(join("d"), {"a": {"foo": (0,)}, "c": {"foo": (1,)}, "d": {"foo": (2,)}})
    assert group.ask(acknowledgement) == (3, {"foo": (0, 2)})
    assert (group.held("a"), group.records) == ({"foo": (0, 2)}, [])
    assert group.ask(beat("a", 3)) == (3, {"foo": (0,)})
    assert group.pending("a") == {"foo": (2,)}
    assert group.send(acknowledgement).error_code == FencedMemberEpoch.code, "a late copy"
    assert group.pending("a") == {"foo": (2,)}


def test_lost_request_to_revoke_is_repeated() -> None:
    """The member epoch does not change when partitions are to be revoked, so nothing else shows that it was lost."""
    group = Driver(foo=3)
    group.ask(join("a"), {"a": {"foo": (0, 1, 2)}})
    group.ask(join("b"), {"a": {"foo": (0, 1)}, "b": {"foo": (2,)}})
    for _ in range(2):
        assert group.ask(beat("a", 1, {"foo": (0, 1, 2)})) == (1, {"foo": (0, 1)})
    assert group.ask(beat("a", 1, {"foo": (0, 1)})) == (2, None)


@pytest.mark.parametrize("state", ["STABLE", "UNREVOKED", "UNRELEASED"])
def test_member_may_join_again_in_every_state(state: str) -> None:
    """HB-05, KAFKA-19233"""
    group = Driver(foo=3)
    group.ask(join("a"), {"a": {"foo": (0, 1, 2)}})
    if state != "STABLE":
        group.ask(join("b"), {"a": {"foo": (0, 1)}, "b": {"foo": (2,)}})
        group.ask(beat("a", 1))
        assert group.state("a" if state == "UNREVOKED" else "b") == state
    if state == "UNRELEASED":
        assert group.ask(join("b")) == (2, {})
    else:
        expected = (0, 1, 2) if state == "STABLE" else (0, 1)
        assert group.ask(join("a")) == (1 if state == "STABLE" else 2, {"foo": expected})


def test_repeated_acknowledgement_gets_the_same_response_and_writes_no_record() -> None:
    """HB-06"""
    group = Driver(foo=3)
    group.ask(join("a"), {"a": {"foo": (0, 1, 2)}})
    group.ask(join("b"), {"a": {"foo": (0, 1)}, "b": {"foo": (2,)}})
    group.ask(beat("a", 1))
    request = full("a", 1, {"foo": (0, 1)})
    first = group.send(request)
    assert (first.member_epoch, group.state("a"), bool(group.records)) == (2, "STABLE", True)
    assert group.send(request) == first
    assert group.records == []


def test_unknown_group() -> None:
    """HB-08"""
    group = Driver(foo=1)
    assert error(group, beat("a", 1)) == GroupIdNotFound.code
    assert error(group, beat("a", -1)) == GroupIdNotFound.code


def test_partial_heartbeat_has_no_assignment_and_a_full_one_has() -> None:
    """HB-10, HB-11"""
    group = settled()
    assert group.ask(beat("a", 2)) == (2, None)
    assert group.ask(full("a", 2, {"foo": (0, 1, 2)})) == (2, {"foo": (0, 1, 2)})
    assert group.records == []


@pytest.mark.parametrize(
    ("fields", "is_full"),
    [
        ({"subscribed_topic_names": ("foo",)}, True),
        ({"subscribed_topic_regex": ""}, True),
        ({}, False),
        ({"subscribed_topic_names": ("foo",), "rebalance_timeout_ms": -1}, False),
        ({"subscribed_topic_names": ("foo",), "owned": None}, False),
    ],
)
def test_heartbeat_is_full_if_timeout_subscription_and_owned_are_set(fields: dict[str, Any], is_full: bool) -> None:
    """HB-11: "rebalance timeout + subscription + owned all set"."""
    group = settled()
    request = beat("a", 2, {"foo": (0, 1, 2)}, rebalance_timeout_ms=60_000)
    _, assignment = group.ask(replace(request, **fields))
    assert assignment == ({"foo": (0, 1, 2)} if is_full else None)


def test_change_of_the_rack_requires_a_new_assignment_and_null_is_no_change() -> None:
    group = Driver(foo=1)
    group.ask(join("a", rack_id="r1"), {"a": {"foo": (0,)}})
    group.ask(beat("a", 1))
    assert (group.group.epoch, group.group.members["a"].rack_id) == (1, "r1")
    group.ask(beat("a", 1, rack_id="r2"))
    assert (group.group.epoch, group.group.members["a"].rack_id) == (2, "r2")


def test_group_has_a_maximum_size() -> None:
    """HB-12"""
    group = Driver(members=2, foo=1)
    group.ask(join("a"), {"a": {"foo": (0,)}})
    group.ask(join("b"))
    assert error(group, join("c")) == GroupMaxSizeReached.code
    group.ask(join("b"))


def test_group_is_empty_after_the_last_member_leaves() -> None:
    """HB-13, HB-19, KAFKA-20442"""
    group = Driver(foo=1)
    group.ask(join("a"), {"a": {"foo": (0,)}})
    assert group.ask(beat("a", -1)) == (-1, None)
    kinds = [record.key.kind for record in group.records if isinstance(record, Tombstone)]
    assert kinds[:3] == [Kind.CONSUMER_CURRENT, Kind.CONSUMER_TARGET_MEMBER, Kind.CONSUMER_MEMBER]
    assert [record.epoch for record in group.records if isinstance(record, GroupRecord)] == [2]
    assert [(each.epoch, each.at_ms) for each in group.records if isinstance(each, TargetRecord)] == [(2, 0)]
    assert (group.group.state_name, group.group.topics) == ("Empty", {})
    assert not [key for key in group.timers if key.member_id == "a"]


def test_failing_server_side_assignor_keeps_the_old_target() -> None:
    """HB-18: the change is accepted, the failure recorded; the next change computes again."""
    group = Driver(foo=2)
    group.ask(join("a"), {"a": {"foo": (0, 1)}})
    group.plan = None
    assert group.ask(join("b")) == (1, {})
    assert (group.group.state_name, group.group.epoch, group.group.target_epoch) == ("Assigning", 2, 1)
    assert group.group.computation is not None
    assert "a faulty assignor" in group.group.computation.error
    group.plan = {"a": {"foo": (0,)}, "b": {"foo": (1,)}}
    group.expire(TimerKind.COMPUTE)
    assert group.group.target_epoch == 2


@pytest.mark.parametrize(
    "plan",
    [
        {"a": {"foo": (0, 1)}, "b": {"foo": (1,)}},
        {"a": {"foo": (0,)}},
        {"a": {"foo": (0, 1, 2)}},
        {"a": {"foo": (0, 1), "bar": (0,)}},
    ],
    ids=["twice", "not assigned", "does not exist", "not subscribed"],
)
def test_invalid_assignment_of_a_server_side_assignor_is_a_failure(plan: dict[str, dict[str, tuple[int, ...]]]) -> None:
    group = Driver(foo=2, bar=1)
    group.ask(join("a"), {"a": {"foo": (0, 1)}})
    group.plan = plan
    group.send(join("b"))
    assert (group.group.target_epoch, group.group.state_name) == (1, "Assigning")


def test_member_without_an_id_gets_one() -> None:
    """Version 0 of the API: "the coordinator generates the member id"."""
    group = Driver(foo=1)
    group.plan = {"generated": {"foo": (0,)}}
    response = group.send(join(""))
    assert (response.error_code, response.member_id) == (0, "generated")
    assert response.member_epoch == 0
    assert group.ask(join("generated")) == (1, {"foo": (0,)})


def test_without_topics_of_a_cluster_consumers_cannot_join() -> None:
    group = Driver()
    group.group_type.topics = None
    response = group.send(join("a"))
    assert response.error_code == UnsupportedVersion.code
    assert "topics_from=HOST:PORT" in response.error_message
    assert shown(response) is None

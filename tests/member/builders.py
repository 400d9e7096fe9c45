"""Members, responses and requests for the tests of the member state machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from connectgroup.member.actions import Action
from connectgroup.member.settings import MemberSettings
from connectgroup.member.state_machine import Member, Phase
from connectgroup.protocol.messages.common import AssignorInfo, grouped
from connectgroup.protocol.messages.heartbeat import (
    HeartbeatAssignment,
    HeartbeatRequest,
    HeartbeatResponse,
    TaskStatus,
    UnitGrant,
)
from connectgroup.protocol.units import Unit, Units


def units(*numbers: int) -> Units:
    return frozenset(Unit("c", number) for number in numbers)


def member(*assignors: AssignorInfo, **changes: Any) -> Member:
    settings = MemberSettings(**{"group_id": "workers", "member_id": "m", "instance_id": "i", **changes})
    return Member(settings, assignors, first_sequence=100)


def accepted(
    epoch: int, assigned: Iterable[Unit] | None = None, *, owner_epoch: int | None = None, coordinator: int = 1
) -> HeartbeatResponse:
    """A response without error; ``given`` is the whole assignment, or ``None`` if it is unchanged."""
    assignment = None
    if assigned is not None:
        ordered = sorted(assigned)
        assignment = HeartbeatAssignment(
            units=grouped(ordered),
            grants=tuple(
                UnitGrant(connector=u.connector, task=u.task, owner_epoch=owner_epoch or epoch) for u in ordered
            ),
        )
    return HeartbeatResponse(
        member_epoch=epoch,
        heartbeat_interval_ms=3_000,
        session_timeout_ms=10_000,
        assignment=assignment,
        coordinator_epoch=coordinator,
    )


def rejected(code: int, coordinator: int = 1) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code, error_message="no", coordinator_epoch=coordinator)


def request_of(machine: Member, now_ms: int = 0) -> HeartbeatRequest:
    request = machine.next_request(now_ms)
    assert request is not None
    return request


def respond(machine: Member, response: HeartbeatResponse, now_ms: int = 0) -> list[Action]:
    return machine.on_response(request_of(machine, now_ms), response)


def joined(*numbers: int, **changes: Any) -> Member:
    """A stable member at epoch 5 that owns these units and has no unsent changes."""
    machine = member(**changes)
    respond(machine, accepted(5, units(*numbers)))
    respond(machine, accepted(5))
    return machine


def status(task: int, owner_epoch: int, state: int = 1, message: str = "") -> TaskStatus:
    return TaskStatus(connector="c", task=task, owner_epoch=owner_epoch, state=state, message=message)


def idle_member(*, owned: frozenset[Unit] = frozenset()) -> Member:
    """A member at epoch 3 without unsent changes."""
    member = Member(MemberSettings(group_id="g", member_id="m"))
    request = member.next_request(0)
    assert request is not None
    assignment = HeartbeatAssignment(units=grouped(owned))
    member.on_response(request, HeartbeatResponse(member_epoch=3, assignment=assignment, coordinator_epoch=1))
    assert member.phase is Phase.MEMBER
    assert not member.has_unsent_changes
    return member

"""The member state machine: leave, restart and drain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectgroup.errors import (
    FencedMemberEpoch,
    InvalidRequest,
)
from connectgroup.member.actions import Drain, Restart, Revoke
from connectgroup.member.settings import MemberSettings
from connectgroup.member.state_machine import Member, Phase
from connectgroup.protocol.messages.common import AssignorInfo, grouped, units_of
from connectgroup.protocol.messages.heartbeat import (
    HeartbeatAssignment,
    HeartbeatResponse,
)
from connectgroup.protocol.units import Unit

from .builders import accepted, idle_member, joined, member, rejected, request_of, respond, units

# --------------------------------------------------------------------------------------------------
# Leave


def test_leaving_member_revokes_everything_once_and_accepts_nothing() -> None:
    machine = joined(0, 1)
    respond(machine, accepted(5, units(1)))
    assert machine.retire() == [Revoke(units=units(1), epoch=5)], "the revocation of 0 is pending already"
    assert machine.retire() == []
    assert respond(machine, accepted(5, ())) == []
    machine.mark_revoked(units(0, 1))
    assert request_of(machine).owned == ()
    assert respond(machine, accepted(6, units(0, 1, 2))) == [], "the coordinator has not received the leave yet"
    assert not machine.owned


def test_leaving_member_that_is_fenced_does_not_rejoin() -> None:
    machine = joined(0)
    machine.retire()
    assert respond(machine, rejected(FencedMemberEpoch.code)) != []
    machine.mark_lost()
    assert machine.next_request(0) is None
    machine.close()
    assert request_of(machine).member_epoch == -1


def test_member_that_is_losing_its_units_does_not_revoke_them() -> None:
    machine = joined(0)
    respond(machine, rejected(FencedMemberEpoch.code))
    assert machine.retire() == []


def test_leave_is_sent_once_and_last() -> None:
    """KAFKA-16639: also with a heartbeat in flight; KAFKA-20428: whose response is then ignored."""
    machine = joined(0)
    outstanding = request_of(machine)
    machine.close("was stopped")
    assert machine.has_unsent_changes
    leave = request_of(machine)
    assert (leave.member_epoch, leave.cause, leave.owned) == (-1, "was stopped", None)
    assert machine.phase is Phase.GONE
    assert machine.on_response(outstanding, accepted(9, units(0, 1))) == []
    assert machine.on_response(leave, accepted(-1)) == []
    assert machine.next_request(0) is None
    machine.close()
    assert machine.next_request(0) is None
    assert not machine.has_unsent_changes


def test_member_may_leave_before_its_first_response() -> None:
    machine = member()
    request_of(machine)
    machine.close()
    assert request_of(machine).member_epoch == -1


def test_changed_assignors_are_sent_at_once() -> None:
    machine = joined(0)
    machine.set_assignors([])
    assert not machine.has_unsent_changes
    machine.set_assignors([AssignorInfo(name="spread", reason=1)])
    assert machine.has_unsent_changes
    assert request_of(machine).client_assignors == (AssignorInfo(name="spread", reason=1),)


# --------------------------------------------------------------------------------------------------
# Restart


def test_restart_is_an_action_until_the_worker_stops_its_units() -> None:
    machine = joined(1)
    assert respond(machine, replace(accepted(5), restart=True)) == [Restart()]
    assert respond(machine, replace(accepted(5), restart=True)) == [Restart()]
    machine.retire()
    assert respond(machine, replace(accepted(5), restart=True)) == []


def test_drain_is_an_action_until_the_worker_drains_or_stops() -> None:
    machine = joined(1)
    assert respond(machine, replace(accepted(5), drain=True)) == [Drain()]
    machine.drain()
    assert respond(machine, replace(accepted(5), drain=True)) == []
    stopping = joined(1)
    stopping.retire()
    assert respond(stopping, replace(accepted(5), drain=True)) == []


def test_draining_worker_ignores_a_restart() -> None:
    machine = joined(1)
    machine.drain()
    assert respond(machine, replace(accepted(5), restart=True)) == []


@pytest.mark.parametrize(
    ("instance", "stopped", "epoch", "returns"),
    [(None, True, -1, True), ("i", True, -2, False), ("i", False, -1, True)],
    ids=["dynamic", "static", "static with a unit that did not stop"],
)
def test_worker_that_restarts_sends_epoch_minus_two(
    instance: str | None, stopped: bool, epoch: int, returns: bool
) -> None:
    """Epoch -2 only if all units have stopped: the successor may be granted the same tokens (X6)."""
    machine = joined(1, instance_id=instance)
    machine.retire()
    if stopped:
        machine.mark_revoked(units(1))
    machine.close(temporarily=True, returns=True)
    request = request_of(machine)
    assert (request.member_epoch, request.returns) == (epoch, returns)


@pytest.mark.parametrize(
    ("how", "epoch"),
    [
        ("all units stopped", -2),
        ("one stop failed", -1),
        ("all units lost", -1),
        ("leaves for good", -1),
        ("no instance id", -1),
    ],
)
def test_epoch_minus_two_is_sent_only_after_every_unit_has_stopped(how: str, epoch: int) -> None:
    """X6: the successor gets the same units under the same tokens; a unit that still runs could write with them."""
    name = None if how == "no instance id" else "i"
    member = Member(MemberSettings(group_id="g", member_id="m", instance_id=name))
    request = member.next_request(0)
    assert request is not None
    units = frozenset({Unit("c"), Unit("c", 0)})
    member.on_response(
        request,
        HeartbeatResponse(member_epoch=3, assignment=HeartbeatAssignment(units=grouped(units)), coordinator_epoch=1),
    )
    assert member.owned.keys() == units
    if how == "all units lost":
        request = member.next_request(1)
        assert request is not None
        member.on_response(request, HeartbeatResponse(error_code=FencedMemberEpoch.code, coordinator_epoch=1))
        member.mark_lost()
    else:
        member.mark_revoked(units - {Unit("c", 0)} if how == "one stop failed" else units)
    member.close(temporarily=how != "leaves for good")
    leave = member.next_request(2)
    assert leave is not None
    assert leave.member_epoch == epoch


def test_drain_is_sent_at_once_with_all_owned_units_and_only_once() -> None:
    units = frozenset({Unit("c"), Unit("c", 0)})
    member = idle_member(owned=units)
    member.drain()
    assert member.has_unsent_changes
    request = member.next_request(1)
    assert request is not None
    assert request.draining
    assert request.owned is not None
    assert units_of(request.owned) == units
    member.on_response(request, HeartbeatResponse(member_epoch=3, coordinator_epoch=1))
    member.drain()
    assert not member.has_unsent_changes


def test_failure_of_an_abandoned_heartbeat_is_ignored() -> None:
    """Its connection is closed after the next request has been sent; the response to that one is still expected."""
    member = idle_member()
    first, second = member.next_request(1), member.next_request(2)
    assert first is not None
    assert second is not None
    member.on_no_answer(first)
    member.on_response(second, HeartbeatResponse(member_epoch=4, coordinator_epoch=1))
    assert member.epoch == 4
    assert not member.has_unsent_changes


@pytest.mark.parametrize("code", [0, FencedMemberEpoch.code, InvalidRequest.code])
def test_response_to_an_earlier_heartbeat_does_not_keep_a_member_from_its_leave(code: int) -> None:
    """It arrives after all units have stopped: the member sends one leave and does not rejoin."""
    member = idle_member(owned=frozenset({Unit("c", 0)}))
    request = member.next_request(1)
    assert request is not None
    member.mark_revoked([Unit("c", 0)])
    member.close("shut down")
    late = HeartbeatResponse(error_code=code, member_epoch=4, coordinator_epoch=1)
    assert member.on_response(request, late) == []
    leave = member.next_request(2)
    assert leave is not None
    assert (leave.member_epoch, leave.cause) == (-1, "shut down")
    member.close("once more")
    assert member.next_request(3) is None


def test_restart_that_is_refused_is_reported_at_once_and_not_repeated() -> None:
    """A response to an earlier heartbeat repeats the request that has failed; one to the report may have a new one."""
    machine = joined(1)
    earlier = request_of(machine)
    assert machine.on_response(earlier, replace(accepted(5), restart=True)) == [Restart()]
    parked = request_of(machine)
    machine.refuse_restart("no such file")
    assert machine.has_unsent_changes
    assert machine.on_response(parked, replace(accepted(5), restart=True)) == []
    report = request_of(machine)
    assert (report.restart_error, report.max_wait_ms) == ("no such file", 0)
    machine.on_no_answer(report)
    again = request_of(machine)
    assert again.restart_error == "no such file"
    assert machine.on_response(again, replace(accepted(5), restart=True)) == [Restart()]
    assert request_of(machine).restart_error == ""

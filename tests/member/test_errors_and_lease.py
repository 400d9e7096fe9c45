"""The member state machine: errors, losses, the lease and coordinator epochs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connectgroup.errors import (
    ComputeAssignment,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedMemberEpoch,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRequest,
    NotCoordinator,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownServerError,
    UnsupportedAssignor,
)
from connectgroup.member.actions import Assign, ComputeTarget, Fail, Lapse, Lose
from connectgroup.member.state_machine import Phase
from connectgroup.protocol.messages.common import units_of

from .builders import accepted, joined, member, rejected, request_of, respond, status, units

# --------------------------------------------------------------------------------------------------
# Errors


@pytest.mark.parametrize("error", [UnknownMemberId, FencedMemberEpoch, GroupIdNotFound])
def test_unknown_member_loses_everything_before_it_rejoins(error: Any) -> None:
    """KAFKA-16251, KAFKA-16258: no request is sent while any former unit runs."""
    machine = joined(0, 1)
    assert respond(machine, rejected(error.code)) == [Lose(units=units(0, 1), epoch=5, why="no")]
    assert str(machine.phase) == "losing"
    assert machine.next_request(0) is None
    assert not machine.has_unsent_changes
    machine.mark_revoked(units(0))
    assert machine.next_request(0) is None
    machine.mark_lost()
    assert str(machine.phase) == "joining"
    request = request_of(machine)
    assert (request.member_epoch, request.owned) == (0, ())
    assert request.rebalance_timeout_ms == 60_000
    assert not machine.owned
    assert not machine.revoking


@pytest.mark.parametrize(
    "error", [CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator, StaleMemberEpoch]
)
def test_unavailable_coordinator_revokes_nothing(error: Any) -> None:
    machine = joined(0, 1)
    assert respond(machine, rejected(error.code)) == []
    assert (machine.phase, machine.epoch, frozenset(machine.owned)) == (Phase.MEMBER, 5, units(0, 1))


@pytest.mark.parametrize("error", [InvalidRequest, UnsupportedAssignor, GroupMaxSizeReached, UnknownServerError])
def test_rejected_worker_sends_nothing_but_the_leave(error: Any) -> None:
    machine = joined(0, 1)
    (fail,) = respond(machine, rejected(error.code))
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, error)
    assert machine.next_request(0) is None
    machine.mark_lost()
    assert machine.next_request(0) is None, "it does not rejoin"
    machine.close("failed")
    assert request_of(machine).member_epoch == -1


def test_member_that_is_asked_to_compute_computes_and_stays_a_member() -> None:
    machine = joined(0)
    assert respond(machine, rejected(ComputeAssignment.code), now_ms=5_000) == [ComputeTarget(member_epoch=5)]
    assert machine.phase is Phase.MEMBER
    assert machine.lease_ends_ms() == 10_000, "the error is a response: it extends the lease"
    machine = member()
    assert respond(machine, rejected(ComputeAssignment.code)) == [ComputeTarget(member_epoch=0)]
    request = request_of(machine)
    assert (request.member_epoch, request.owned) == (0, ())


def test_loss_is_decided_once() -> None:
    machine = joined(0)
    request = request_of(machine, 0)
    assert machine.check_lease(8_000) != []
    assert machine.check_lease(9_000) == []
    assert machine.on_response(request, accepted(6, units(0, 1))) == [], (
        "KAFKA-16375: that response belongs to the time before the loss"
    )
    assert str(machine.phase) == "losing"


# --------------------------------------------------------------------------------------------------
# Lease and coordinator epoch


def test_lease_is_counted_from_the_sending_of_the_last_answered_heartbeat() -> None:
    """PD-10, KAFKA-9184: not from the response, which may have been parked for three seconds, nor the last send."""
    machine = member()
    request = request_of(machine, 1_000)
    machine.on_response(request, accepted(5, units(0)))
    assert machine.lease_ends_ms() == 6_000
    parked = request_of(machine, 2_000)
    assert machine.lease_ends_ms() == 6_000
    machine.on_response(parked, accepted(5))
    assert machine.lease_ends_ms() == 7_000
    lost = request_of(machine, 3_000)
    machine.on_no_answer(lost)
    request_of(machine, 4_000)
    assert machine.lease_ends_ms() == 7_000
    assert machine.check_lease(6_999) == []
    (lose,) = machine.check_lease(7_000)
    assert lose == Lose(units=units(0), epoch=5, why="no response from the coordinator for 5000 ms")


def test_lease_leaves_the_configured_margin_if_all_units_are_fenced() -> None:
    """``Connector.fenced``: until a unit is reported as fenced, half of the session timeout is left for its stop."""
    machine = joined(0, 1, lease_margin=0.1)
    assert machine.lease_ends_ms() == 5_000
    machine.report(replace(status(0, owner_epoch=5), fenced=True))
    assert machine.lease_ends_ms() == 5_000
    machine.report(replace(status(1, owner_epoch=4), fenced=True))
    assert machine.lease_ends_ms() == 5_000, "an earlier run of the unit"
    machine.report(replace(status(1, owner_epoch=5), fenced=True))
    assert machine.lease_ends_ms() == 9_000
    respond(machine, accepted(6, units(0, 1, 2)))
    assert machine.lease_ends_ms() == 5_000
    machine.mark_revoked(units(2))
    assert machine.lease_ends_ms() == 9_000


def test_lease_ends_only_units_that_are_not_fenced() -> None:
    """PD-10: the worker stays a member at its epoch; the group grants what has stopped again."""
    machine = joined(0, 1, 2)
    machine.report(replace(status(0, owner_epoch=5), fenced=True))
    outstanding = request_of(machine, 0)
    (lapse,) = machine.check_lease(5_000)
    assert lapse == Lapse(
        units=units(1, 2),
        stops=units(1, 2),
        runs_on=units(0),
        epoch=5,
        why="no response from the coordinator for 5000 ms",
    )
    assert (machine.phase, machine.lapsed, machine.epoch) == (Phase.MEMBER, True, 5)
    assert machine.check_lease(1_000_000) == []
    assert machine.lease_ends_ms() is None
    assert machine.on_response(outstanding, accepted(6, units(0, 1, 2, 3))) == [], "it belongs to the time before"
    assert units_of(request_of(machine).owned) == units(0, 1, 2), "every unit that may run, until its stop is complete"
    machine.mark_lapsed(units(1, 2))
    request = request_of(machine)
    assert (request.member_epoch, units_of(request.owned), request.rebalance_timeout_ms) == (5, units(0), 60_000)
    (assign,) = respond(machine, accepted(5, units(0, 1, 2)), now_ms=60_000)
    assert isinstance(assign, Assign)
    assert {grant.unit for grant in assign.grants} == units(1, 2)
    assert not machine.lapsed
    assert machine.lease_ends_ms() == 65_000


def test_nothing_stops_with_the_lease_if_all_units_are_fenced() -> None:
    machine = joined(0, 1)
    for number in (0, 1):
        machine.report(replace(status(number, owner_epoch=5), fenced=True))
    assert machine.check_lease(8_000) == []
    assert machine.lapsed
    assert machine.silent_ms(9_000) == 9_000
    assert respond(machine, rejected(UnknownMemberId.code)) == [Lose(units=units(0, 1), epoch=5, why="no")]
    machine.mark_lost()
    assert not machine.lapsed


def test_unit_that_is_being_revoked_stops_with_the_lease_and_is_acknowledged_as_revoked() -> None:
    machine = joined(0, 1, 2)
    machine.report(replace(status(0, owner_epoch=5), fenced=True))
    respond(machine, accepted(5, units(0, 1)))
    (lapse,) = machine.check_lease(5_000)
    assert isinstance(lapse, Lapse)
    assert (lapse.units, lapse.stops) == (units(1), units(1, 2))


def test_owned_units_are_reported_until_the_units_that_stopped_with_the_lease_are_granted_again() -> None:
    """S16: the group withholds them while the worker has others to revoke."""
    machine = joined(0, 1, 2)
    for number in (0, 2):
        machine.report(replace(status(number, owner_epoch=5), fenced=True))
    machine.check_lease(5_000)
    machine.mark_lapsed(units(1))
    respond(machine, accepted(5, units(0)), now_ms=6_000)
    assert units_of(request_of(machine, 7_000).owned) == units(0, 2)
    machine.mark_revoked(units(2))
    respond(machine, accepted(6, units(0, 1)), now_ms=8_000)
    respond(machine, accepted(6), now_ms=9_000)
    assert request_of(machine, 10_000).owned is None


def test_heartbeats_are_parked_for_less_time_while_the_lease_is_shorter() -> None:
    machine = joined(0)
    assert request_of(machine).max_wait_ms == 1_500
    machine.report(replace(status(0, owner_epoch=5), fenced=True))
    assert request_of(machine).max_wait_ms == 0, "a full heartbeat"
    assert request_of(joined()).max_wait_ms == 2_000


def test_retriable_error_does_not_extend_the_lease() -> None:
    machine = joined(0)
    respond(machine, rejected(CoordinatorNotAvailable.code), now_ms=4_000)
    assert machine.lease_ends_ms() == 5_000


def test_member_without_units_has_nothing_to_lose() -> None:
    machine = joined()
    assert machine.check_lease(1_000_000) == []
    assert machine.phase is Phase.MEMBER
    assert member().check_lease(1_000_000) == []


def test_group_that_the_user_may_not_use_ends_the_worker() -> None:
    """The coordinator's port refuses the request: the response has no coordinator epoch."""
    machine = joined(0)
    respond(machine, accepted(6, coordinator=3))
    (action,) = respond(machine, rejected(GroupAuthorizationFailed.code, coordinator=-1))
    assert isinstance(action, Fail)
    assert isinstance(action.error, GroupAuthorizationFailed)


def test_response_with_a_lower_coordinator_epoch_is_ignored() -> None:
    """D5, F12: it comes from a coordinator that has been replaced and does not know it."""
    machine = joined(0)
    respond(machine, accepted(6, coordinator=3))
    for response in (accepted(9, (), coordinator=2), rejected(FencedMemberEpoch.code, coordinator=2)):
        assert respond(machine, response, now_ms=3_000) == []
    assert (machine.epoch, frozenset(machine.owned), machine.phase) == (6, units(0), Phase.MEMBER)
    assert machine.lease_ends_ms() == 5_000
    assert units_of(request_of(machine).owned) == units(0), "the new coordinator gets a full request"
    respond(machine, accepted(7, coordinator=3))
    assert machine.epoch == 7

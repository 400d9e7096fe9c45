"""The worker's half of the protocol, one answer at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from connectgroup.errors import (
    ComputeAssignment,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRequest,
    NotCoordinator,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownServerError,
    UnsupportedAssignor,
)
from connectgroup.member.actions import Action, Assign, Compute, Fail, Lose, Restart, Revoke, TellAssignor
from connectgroup.member.state_machine import Member, MemberSettings, Phase
from connectgroup.protocol.messages.common import AssignorInfo, ConfigEntry, grouped, units_of
from connectgroup.protocol.messages.heartbeat import (
    ConnectorConfig,
    HeartbeatRequest,
    HeartbeatResponse,
    MemberAssignment,
    TaskStatus,
    UnitGrant,
)
from connectgroup.protocol.units import Unit, Units


def units(*numbers: int) -> Units:
    return frozenset(Unit("c", number) for number in numbers)


def member(*assignors: AssignorInfo, **changes: Any) -> Member:
    settings = MemberSettings(**{"group_id": "workers", "member_id": "m", "instance_id": "i", **changes})
    return Member(settings, assignors, first_sequence=100)


def answer(
    epoch: int, given: Iterable[Unit] | None = None, *, owner_epoch: int | None = None, coordinator: int = 1
) -> HeartbeatResponse:
    """What a coordinator says; with the whole set that the member is to run, where that is said."""
    assignment = None
    if given is not None:
        its = sorted(given)
        assignment = MemberAssignment(
            units=grouped(its),
            grants=tuple(UnitGrant(connector=u.connector, task=u.task, owner_epoch=owner_epoch or epoch) for u in its),
        )
    return HeartbeatResponse(
        member_epoch=epoch,
        heartbeat_interval_ms=3_000,
        session_timeout_ms=10_000,
        assignment=assignment,
        coordinator_epoch=coordinator,
    )


def refused(code: int, coordinator: int = 1) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code, error_message="no", coordinator_epoch=coordinator)


def say(machine: Member, now_ms: int = 0) -> HeartbeatRequest:
    request = machine.next_request(now_ms)
    assert request is not None
    return request


def hear(machine: Member, response: HeartbeatResponse, now_ms: int = 0) -> list[Action]:
    return machine.on_response(say(machine, now_ms), response)


def joined(*numbers: int, **changes: Any) -> Member:
    """A member at epoch 5 that runs these, has heard so, and whose next request says nothing new."""
    machine = member(**changes)
    hear(machine, answer(5, units(*numbers)))
    hear(machine, answer(5))
    return machine


# --------------------------------------------------------------------------------------------------
# Trap 2: null and empty are different words


def test_join_is_a_full_request_with_no_owned_units() -> None:
    """KAFKA-16190: a full request on join; ``()`` is "nothing", null would be "as before"."""
    assignor = AssignorInfo(name="spread")
    request = say(member(assignor))
    assert (request.member_epoch, request.owned) == (0, ())
    assert request.rebalance_timeout_ms == 60_000
    assert request.instance_id == "i"
    assert request.client_assignors == (assignor,)
    assert request.server_assignor is None
    assert request.max_wait_ms == 0, "a full request wants its answer now"


def test_worker_without_assignors_requests_a_server_assignor() -> None:
    assert say(member(server_assignor="even")).server_assignor == "even"
    assert say(member(server_assignor="even")).client_assignors is None


def test_heartbeat_without_changes_is_incremental() -> None:
    request = say(joined(0, 1))
    assert request.owned is None
    assert request.client_assignors is None
    assert request.instance_id is None
    assert request.rebalance_timeout_ms == -1
    assert request.max_wait_ms == MemberSettings(group_id="g", member_id="m").max_wait_ms
    assert request.member_epoch == 5


def test_heartbeat_of_a_worker_without_units_is_incremental_too() -> None:
    assert say(joined()).owned is None


def test_acknowledgement_lists_the_remaining_units_even_if_none() -> None:
    machine = joined(0)
    assert hear(machine, answer(5, ())) == [Revoke(units=units(0), epoch=5)]
    assert say(machine).owned is None, "not stopped yet"
    machine.mark_revoked(units(0))
    machine.on_no_answer(say(machine))
    machine = joined(0, 1)
    hear(machine, answer(5, units(1)))
    machine.mark_revoked(units(0))
    request = say(machine)
    assert units_of(request.owned) == units(1)
    assert request.rebalance_timeout_ms == -1
    machine = joined(0)
    hear(machine, answer(5, ()))
    machine.mark_revoked(units(0))
    assert say(machine).owned == ()


def test_acknowledgement_is_sent_once() -> None:
    """KAFKA-20145."""
    machine = joined(0, 1)
    hear(machine, answer(5, units(1)))
    machine.mark_revoked(units(0))
    assert machine.has_unsent_changes
    hear(machine, answer(6))
    assert not machine.has_unsent_changes
    assert say(machine).owned is None


@pytest.mark.parametrize("how", ["no answer", "given up", "retriable", "compute", "stale"])
def test_request_after_any_failure_is_a_full_one(how: str) -> None:
    machine = joined(0, 1)
    request = say(machine)
    match how:
        case "no answer":
            machine.on_no_answer(request)
        case "given up":
            pass
        case "retriable":
            machine.on_response(request, refused(CoordinatorLoadInProgress.code))
        case "compute":
            machine.on_response(request, refused(ComputeAssignment.code))
        case _:
            machine.on_response(request, refused(StaleMemberEpoch.code))
    full = say(machine)
    assert units_of(full.owned) == units(0, 1)
    assert full.rebalance_timeout_ms == 60_000
    assert full.max_wait_ms == 0
    machine.on_response(full, answer(5, units(0, 1)))
    assert say(machine).owned is None


# --------------------------------------------------------------------------------------------------
# Trap 3: a lost answer


def test_previous_epoch_is_sent_again_after_a_lost_response() -> None:
    machine = joined(0)
    lost = say(machine)
    machine.on_no_answer(lost)
    again = say(machine)
    assert again.member_epoch == lost.member_epoch == 5
    assert units_of(again.owned) == units(0), "a subset of what was given: what it never heard of it does not own"


def test_response_to_an_abandoned_request_is_ignored() -> None:
    machine = joined(0)
    parked = say(machine)
    machine.report(status(0, 5))
    machine.flush_statuses()
    assert machine.has_unsent_changes
    current = say(machine)
    assert units_of(current.owned) == units(0)
    assert machine.on_response(parked, answer(9, units(0, 1, 2))) == []
    assert (machine.epoch, frozenset(machine.owned)) == (5, units(0))
    assert machine.on_response(current, answer(6, units(0, 1))) != []
    assert machine.on_response(current, answer(7, units(0, 2))) == [], "nor does an answer heard twice"


def test_sequence_numbers_are_monotonic() -> None:
    machine = member()
    numbers = [say(machine).sequence for _ in range(3)]
    machine.close()
    numbers.append(say(machine).sequence)
    assert numbers == [101, 102, 103, 104]


# --------------------------------------------------------------------------------------------------
# Trap 1: speaking while stopping


def test_member_sends_heartbeats_while_units_stop_and_still_owns_them() -> None:
    machine = joined(0, 1)
    hear(machine, answer(5, units(1)))
    for now_ms in range(0, 60_000, 3_000):
        request = say(machine, now_ms)
        assert request.owned is None
        assert machine.on_response(request, answer(5)) == []
    assert set(machine.owned) == units(0, 1)
    machine.on_no_answer(say(machine))
    assert units_of(say(machine).owned) == units(0, 1), "a full request acknowledges nothing that still runs"


def test_repeated_revocation_is_performed_once() -> None:
    """S11: the answer comes again after a full request; one stop, one on_revoked."""
    machine = joined(0, 1)
    assert hear(machine, answer(5, units(1))) == [Revoke(units=units(0), epoch=5)]
    assert hear(machine, answer(5, units(1))) == []
    assert hear(machine, answer(5, ())) == [Revoke(units=units(1), epoch=5)]


def test_response_revokes_or_assigns_but_never_both() -> None:
    """PD-02. Whatever is new in an answer that takes something waits for the acknowledgement."""
    machine = joined(0, 1)
    assert hear(machine, answer(5, units(1, 2))) == [Revoke(units=units(0), epoch=5)]
    assert set(machine.owned) == units(0, 1)
    assert hear(machine, answer(5, units(1, 2))) == [], "not while something is being stopped"
    machine.mark_revoked(units(0))
    request = say(machine)
    assert request.rebalance_timeout_ms != -1, "what it did not take it asks for"
    (assign,) = machine.on_response(request, answer(6, units(1, 2)))
    assert isinstance(assign, Assign)
    assert [grant.unit for grant in assign.grants] == [Unit("c", 2)]


def test_grants_of_new_units_are_kept_where_a_response_also_grants_owned_units() -> None:
    """A coordinator may repeat grants; only units that are new to the member are started."""
    machine = joined(0)
    request = say(machine)
    response = answer(6, units(0, 1))
    assert response.assignment is not None
    grants = tuple(
        UnitGrant(connector="c", task=task, owner_epoch=4 + task, config=(ConfigEntry(name="n", value=str(task)),))
        for task in (0, 1)
    )
    assignment = replace(response.assignment, grants=grants)
    (assign,) = machine.on_response(request, replace(response, assignment=assignment))
    assert isinstance(assign, Assign)
    assert [(grant.unit, grant.owner_epoch, grant.config) for grant in assign.grants] == [(Unit("c", 1), 5, {"n": "1"})]
    assert machine.owned[Unit("c", 1)] == 5


# --------------------------------------------------------------------------------------------------
# Delivering target assignments to assignors (PD-12)


INFO_A = AssignorInfo(name="a", minimum_version=0, maximum_version=2)
INFO_B = AssignorInfo(name="b", minimum_version=0, maximum_version=0)


def reached(epoch: int, given: Iterable[Unit], assignor: str = "a", metadata: bytes = b"hint") -> HeartbeatResponse:
    """A response that names the assignor of the target assignment the member has reached."""
    response = answer(epoch, given)
    assert response.assignment is not None
    assignment = replace(response.assignment, error=3, version=2, metadata=metadata, assignor=assignor)
    return replace(response, assignment=assignment)


def test_each_target_assignment_is_delivered_once_and_before_units_start() -> None:
    """Also where the units stay or shrink; a repeated response is not a new target assignment."""
    machine = member(INFO_A, INFO_B)
    tell, assign = hear(machine, reached(5, units(1)))
    assert isinstance(assign, Assign)
    told = TellAssignor(assignor="a", units=units(1), epoch=5, error=3, version=2, metadata=b"hint")
    assert tell == told
    assert hear(machine, reached(5, units(1))) == []
    assert hear(machine, reached(6, units(1))) == [replace(told, epoch=6)]
    (revoke,) = hear(machine, answer(6, units()))
    assert isinstance(revoke, Revoke)
    machine.mark_revoked(revoke.units)
    assert hear(machine, reached(7, units())) == [replace(told, epoch=7, units=units())]


def test_target_of_an_assignor_this_worker_does_not_offer_is_delivered_to_none() -> None:
    machine = member(INFO_A)
    assert hear(machine, reached(5, units(), assignor="other")) == []


def test_member_that_rejoined_gets_the_target_assignment_again() -> None:
    machine = member(INFO_A)
    hear(machine, reached(5, units()))
    hear(machine, refused(FencedMemberEpoch.code))
    machine.mark_lost()
    (tell,) = hear(machine, reached(5, units()))
    assert isinstance(tell, TellAssignor)


def test_server_assignor_is_sent_beside_client_assignors() -> None:
    """The coordinator refuses the combination by name; dropped silently, nobody would notice."""
    machine = member(INFO_A, server_assignor="uniform")
    request = say(machine)
    assert (request.server_assignor, request.client_assignors) == ("uniform", (INFO_A,))


# --------------------------------------------------------------------------------------------------
# Grants


def test_a_grant_carries_its_owner_epoch_and_configurations() -> None:
    machine = member()
    entry = ConfigEntry(name="k", value="v")
    given = MemberAssignment(
        units=grouped([Unit("c"), Unit("c", 0)]),
        grants=(
            UnitGrant(connector="c", task=0, owner_epoch=4, config=(entry,)),
            UnitGrant(connector="c", task=-1, owner_epoch=2),
        ),
        configs=(ConnectorConfig(connector="c", version=1, config=(entry,)),),
    )
    response = HeartbeatResponse(member_epoch=5, assignment=given, coordinator_epoch=1)
    (assign,) = hear(machine, response)
    assert isinstance(assign, Assign)
    assert assign.epoch == 5
    assert [(grant.unit, grant.owner_epoch) for grant in assign.grants] == [(Unit("c"), 2), (Unit("c", 0), 4)]
    assert [dict(grant.config) for grant in assign.grants] == [{}, {"k": "v"}]
    assert [dict(grant.connector_config) for grant in assign.grants] == [{"k": "v"}, {"k": "v"}]
    assert machine.owned == {Unit("c"): 2, Unit("c", 0): 4}


def test_units_are_owned_as_soon_as_they_are_accepted() -> None:
    """Before anything starts: a full request sent in between must not read as letting go."""
    machine = member()
    hear(machine, answer(5, units(0)))
    machine.on_no_answer(say(machine))
    assert units_of(say(machine).owned) == units(0)


def test_null_assignment_changes_nothing() -> None:
    """KAFKA-16198: what an answer does not say is not revoked."""
    machine = joined(0, 1)
    assert hear(machine, answer(6)) == []
    assert (machine.epoch, frozenset(machine.owned)) == (6, units(0, 1))


def test_empty_assignment_revokes_everything() -> None:
    machine = joined(0, 1)
    assert hear(machine, answer(5, ())) == [Revoke(units=units(0, 1), epoch=5)]


def test_unchanged_assignment_is_no_action() -> None:
    """KAFKA-17105."""
    machine = joined(0, 1)
    assert hear(machine, answer(6, units(0, 1), owner_epoch=6)) == []
    assert set(machine.owned.values()) == {5}, "nor a later owner epoch"


# --------------------------------------------------------------------------------------------------
# Errors: the table


@pytest.mark.parametrize("error", [UnknownMemberId, FencedMemberEpoch, GroupIdNotFound])
def test_unknown_member_loses_everything_before_it_rejoins(error: Any) -> None:
    """KAFKA-16251, KAFKA-16258: no word is said while anything of the former life runs."""
    machine = joined(0, 1)
    assert hear(machine, refused(error.code)) == [Lose(units=units(0, 1), epoch=5, why="no")]
    assert str(machine.phase) == "losing"
    assert machine.next_request(0) is None
    assert not machine.has_unsent_changes
    machine.mark_revoked(units(0))
    assert machine.next_request(0) is None
    machine.mark_lost()
    assert str(machine.phase) == "joining"
    request = say(machine)
    assert (request.member_epoch, request.owned) == (0, ())
    assert request.rebalance_timeout_ms == 60_000
    assert not machine.owned
    assert not machine.revoking


@pytest.mark.parametrize(
    "error", [CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator, StaleMemberEpoch]
)
def test_unavailable_coordinator_revokes_nothing(error: Any) -> None:
    machine = joined(0, 1)
    assert hear(machine, refused(error.code)) == []
    assert (machine.phase, machine.epoch, frozenset(machine.owned)) == (Phase.MEMBER, 5, units(0, 1))


@pytest.mark.parametrize("error", [InvalidRequest, UnsupportedAssignor, GroupMaxSizeReached, UnknownServerError])
def test_rejected_worker_sends_nothing_but_the_leave(error: Any) -> None:
    machine = joined(0, 1)
    (fail,) = hear(machine, refused(error.code))
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, error)
    assert machine.next_request(0) is None
    machine.mark_lost()
    assert machine.next_request(0) is None, "it does not join again"
    machine.close("failed")
    assert say(machine).member_epoch == -1


def test_member_that_is_asked_to_compute_computes_and_stays_a_member() -> None:
    machine = joined(0)
    assert hear(machine, refused(ComputeAssignment.code), now_ms=5_000) == [Compute(member_epoch=5)]
    assert machine.phase is Phase.MEMBER
    assert machine.lease_ends_ms() == 13_000, "it was an answer: the lease runs from it"
    machine = member()
    assert hear(machine, refused(ComputeAssignment.code)) == [Compute(member_epoch=0)]
    request = say(machine)
    assert (request.member_epoch, request.owned) == (0, ())


def test_loss_is_decided_once() -> None:
    machine = joined(0)
    request = say(machine, 0)
    assert machine.check_lease(8_000) != []
    assert machine.check_lease(9_000) == []
    assert machine.on_response(request, answer(6, units(0, 1))) == [], (
        "KAFKA-16375: that answer belongs to a former life"
    )
    assert str(machine.phase) == "losing"


# --------------------------------------------------------------------------------------------------
# Lease and coordinator epoch


def test_lease_is_counted_from_the_sending_of_the_last_answered_heartbeat() -> None:
    """PD-10, KAFKA-9184: not from the answer, which may have waited three seconds, nor from the last send."""
    machine = member()
    request = say(machine, 1_000)
    machine.on_response(request, answer(5, units(0)))
    assert machine.lease_ends_ms() == 9_000
    parked = say(machine, 2_000)
    assert machine.lease_ends_ms() == 9_000
    machine.on_response(parked, answer(5))
    assert machine.lease_ends_ms() == 10_000
    lost = say(machine, 6_000)
    machine.on_no_answer(lost)
    say(machine, 7_000)
    assert machine.lease_ends_ms() == 10_000
    assert machine.check_lease(9_999) == []
    (lose,) = machine.check_lease(10_000)
    assert lose == Lose(units=units(0), epoch=5, why="no response from the coordinator for 8000 ms")


def test_lease_leaves_the_configured_margin() -> None:
    machine = joined(0, lease_margin=0.5)
    assert machine.lease_ends_ms() == 5_000


def test_retriable_error_does_not_extend_the_lease() -> None:
    machine = joined(0)
    hear(machine, refused(CoordinatorNotAvailable.code), now_ms=7_000)
    assert machine.lease_ends_ms() == 8_000


def test_member_without_units_has_nothing_to_lose() -> None:
    machine = joined()
    assert machine.check_lease(1_000_000) == []
    assert machine.phase is Phase.MEMBER
    assert member().check_lease(1_000_000) == []


def test_response_with_a_lower_coordinator_epoch_is_ignored() -> None:
    """D5, F12: a coordinator that was replaced and does not know it, whatever it says."""
    machine = joined(0)
    hear(machine, answer(6, coordinator=3))
    for response in (answer(9, (), coordinator=2), refused(FencedMemberEpoch.code, coordinator=2)):
        assert hear(machine, response, now_ms=5_000) == []
    assert (machine.epoch, frozenset(machine.owned), machine.phase) == (6, units(0), Phase.MEMBER)
    assert machine.lease_ends_ms() == 8_000
    assert units_of(say(machine).owned) == units(0), "and the true one is told everything"
    hear(machine, answer(7, coordinator=3))
    assert machine.epoch == 7


# --------------------------------------------------------------------------------------------------
# Statuses


def status(task: int, owner_epoch: int, state: int = 1, message: str = "") -> TaskStatus:
    return TaskStatus(connector="c", task=task, owner_epoch=owner_epoch, state=state, message=message)


def test_statuses_are_sent_in_batches_of_a_thousand() -> None:
    """The coordinator stores the statuses of one request in one batch of its log; the others need not wait for long."""
    machine = joined(*range(2_500))
    for task in range(2_500):
        machine.report(status(task, 5))
    machine.flush_statuses()
    reported: list[TaskStatus] = []
    for count in (1_000, 1_000, 500):
        assert machine.has_unsent_changes
        request = say(machine)
        assert len(request.statuses) == count
        assert (request.max_wait_ms == 0) == (count == 1_000), "parked only when no status is left"
        reported += request.statuses
        machine.on_response(request, answer(5))
    assert not machine.has_unsent_changes
    assert reported == [status(task, 5) for task in range(2_500)]


def test_status_is_sent_until_it_is_acknowledged() -> None:
    machine = joined(0, 1)
    machine.report(status(1, 5))
    machine.report(status(0, 5))
    assert not machine.has_unsent_changes, "it waits for company"
    machine.flush_statuses()
    assert machine.has_unsent_changes
    lost = say(machine)
    assert [s.task for s in lost.statuses] == [0, 1]
    assert not machine.has_unsent_changes
    machine.on_no_answer(lost)
    again = say(machine)
    assert again.statuses == lost.statuses
    machine.on_response(again, answer(5, units(0, 1)))
    assert say(machine).statuses == ()


def test_status_that_changed_in_flight_is_sent_again() -> None:
    machine = joined(0)
    machine.report(status(0, 5))
    request = say(machine)
    machine.report(status(0, 5, state=2, message="down"))
    machine.on_response(request, answer(5))
    assert say(machine).statuses == (status(0, 5, state=2, message="down"),)


def test_status_of_an_earlier_grant_is_not_sent() -> None:
    """KAFKA-12525: nor does it push out the one of the present grant."""
    machine = joined(0, 1)
    machine.report(status(0, 5))
    hear(machine, answer(5, units(1)))
    machine.mark_revoked(units(0))
    machine.report(status(0, 5, state=2))
    assert say(machine).statuses == ()
    hear(machine, answer(7, units(0, 1), owner_epoch=7))
    machine.report(status(0, 7))
    machine.report(status(0, 5, state=2, message="late"))
    assert say(machine).statuses == (status(0, 7),)


def test_statuses_are_dropped_after_a_loss() -> None:
    machine = joined(0)
    machine.report(status(0, 5))
    hear(machine, refused(FencedMemberEpoch.code))
    machine.mark_lost()
    assert say(machine).statuses == ()


# --------------------------------------------------------------------------------------------------
# The end


def test_leaving_member_revokes_everything_once_and_accepts_nothing() -> None:
    machine = joined(0, 1)
    hear(machine, answer(5, units(1)))
    assert machine.retire() == [Revoke(units=units(1), epoch=5)], "0 is being stopped already"
    assert machine.retire() == []
    assert hear(machine, answer(5, ())) == []
    machine.mark_revoked(units(0, 1))
    assert say(machine).owned == ()
    assert hear(machine, answer(6, units(0, 1, 2))) == [], "the coordinator has not heard yet"
    assert not machine.owned


def test_leaving_member_that_is_fenced_does_not_rejoin() -> None:
    machine = joined(0)
    machine.retire()
    assert hear(machine, refused(FencedMemberEpoch.code)) != []
    machine.mark_lost()
    assert machine.next_request(0) is None
    machine.close()
    assert say(machine).member_epoch == -1


def test_member_that_is_losing_its_units_does_not_revoke_them() -> None:
    machine = joined(0)
    hear(machine, refused(FencedMemberEpoch.code))
    assert machine.retire() == []


def test_leave_is_sent_once_and_last() -> None:
    """KAFKA-16639: also with a heartbeat on its way; KAFKA-20428: whose answer then means nothing."""
    machine = joined(0)
    outstanding = say(machine)
    machine.close("was stopped")
    assert machine.has_unsent_changes
    leave = say(machine)
    assert (leave.member_epoch, leave.cause, leave.owned) == (-1, "was stopped", None)
    assert machine.phase is Phase.GONE
    assert machine.on_response(outstanding, answer(9, units(0, 1))) == []
    assert machine.on_response(leave, answer(-1)) == []
    assert machine.next_request(0) is None
    machine.close()
    assert machine.next_request(0) is None
    assert not machine.has_unsent_changes


def test_member_may_leave_before_its_first_response() -> None:
    machine = member()
    say(machine)
    machine.close()
    assert say(machine).member_epoch == -1


def test_changed_assignors_are_sent_at_once() -> None:
    machine = joined(0)
    machine.set_assignors([])
    assert not machine.has_unsent_changes
    machine.set_assignors([AssignorInfo(name="spread", reason=1)])
    assert machine.has_unsent_changes
    assert say(machine).client_assignors == (AssignorInfo(name="spread", reason=1),)


# --------------------------------------------------------------------------------------------------
# Restart


def test_restart_is_an_action_until_the_worker_stops_its_units() -> None:
    machine = joined(1)
    assert hear(machine, replace(answer(5), restart=True)) == [Restart()]
    assert hear(machine, replace(answer(5), restart=True)) == [Restart()]
    machine.retire()
    assert hear(machine, replace(answer(5), restart=True)) == []


def test_draining_worker_ignores_a_restart() -> None:
    machine = joined(1)
    machine.drain()
    assert hear(machine, replace(answer(5), restart=True)) == []


@pytest.mark.parametrize(
    ("instance", "stopped", "epoch", "returns"),
    [(None, True, -1, True), ("i", True, -2, False), ("i", False, -1, True)],
    ids=["dynamic", "static", "static with a unit that did not stop"],
)
def test_worker_that_restarts_sends_epoch_minus_two(
    instance: str | None, stopped: bool, epoch: int, returns: bool
) -> None:
    """Epoch -2 only if everything has stopped: the successor may be given the same tokens (X6)."""
    machine = joined(1, instance_id=instance)
    machine.retire()
    if stopped:
        machine.mark_revoked(units(1))
    machine.close(temporarily=True, returns=True)
    request = say(machine)
    assert (request.member_epoch, request.returns) == (epoch, returns)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("has stopped everything", -2),
        ("one stop failed", -1),
        ("has lost everything", -1),
        ("goes for good", -1),
        ("has no static name", -1),
    ],
)
def test_epoch_minus_two_is_sent_only_after_every_unit_has_stopped(how: str, says: int) -> None:
    """X6: its successor gets the same units under the same tokens, and a unit that still runs could write with them."""
    name = None if how == "has no static name" else "i"
    member = Member(MemberSettings(group_id="g", member_id="m", instance_id=name))
    request = member.next_request(0)
    assert request is not None
    units = frozenset({Unit("c"), Unit("c", 0)})
    member.on_response(
        request,
        HeartbeatResponse(member_epoch=3, assignment=MemberAssignment(units=grouped(units)), coordinator_epoch=1),
    )
    assert member.owned.keys() == units
    if how == "has lost everything":
        request = member.next_request(1)
        assert request is not None
        member.on_response(request, HeartbeatResponse(error_code=FencedMemberEpoch.code, coordinator_epoch=1))
        member.mark_lost()
    else:
        member.mark_revoked(units - {Unit("c", 0)} if how == "one stop failed" else units)
    member.close(temporarily=how != "goes for good")
    leave = member.next_request(2)
    assert leave is not None
    assert leave.member_epoch == says


def in_the_group(*, owned: frozenset[Unit] = frozenset()) -> Member:
    """A member at epoch 3, answered and with nothing to say."""
    member = Member(MemberSettings(group_id="g", member_id="m"))
    request = member.next_request(0)
    assert request is not None
    assignment = MemberAssignment(units=grouped(owned))
    member.on_response(request, HeartbeatResponse(member_epoch=3, assignment=assignment, coordinator_epoch=1))
    assert member.phase is Phase.MEMBER
    assert not member.has_unsent_changes
    return member


def test_drain_is_sent_at_once_with_all_owned_units_and_only_once() -> None:
    units = frozenset({Unit("c"), Unit("c", 0)})
    member = in_the_group(owned=units)
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
    member = in_the_group()
    first, second = member.next_request(1), member.next_request(2)
    assert first is not None
    assert second is not None
    member.on_no_answer(first)
    member.on_response(second, HeartbeatResponse(member_epoch=4, coordinator_epoch=1))
    assert member.epoch == 4
    assert not member.has_unsent_changes


def test_member_fenced_while_it_leaves_sends_one_leave_and_does_not_rejoin() -> None:
    """The response to its last heartbeat arrives after everything has been stopped."""
    member = in_the_group(owned=frozenset({Unit("c", 0)}))
    request = member.next_request(1)
    assert request is not None
    member.mark_revoked([Unit("c", 0)])
    member.close("shut down")
    fenced = HeartbeatResponse(error_code=FencedMemberEpoch.code, coordinator_epoch=1)
    assert [type(action) for action in member.on_response(request, fenced)] == [Lose]
    member.mark_lost()
    leave = member.next_request(2)
    assert leave is not None
    assert (leave.member_epoch, leave.cause) == (-1, "shut down")
    member.close("once more")
    assert member.next_request(3) is None

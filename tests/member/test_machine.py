"""The member state machine: requests, revocations and grants, one response at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from connectgroup.errors import (
    ComputeAssignment,
    ConfigError,
    CoordinatorLoadInProgress,
    FencedMemberEpoch,
    GroupIdNotFound,
    InvalidRequest,
    StaleMemberEpoch,
    UnknownMemberId,
)
from connectgroup.member import state_machine
from connectgroup.member.actions import Action, Assign, Revoke, TellAssignor
from connectgroup.member.settings import MemberSettings
from connectgroup.member.state_machine import Member, Phase
from connectgroup.protocol.messages.common import AssignorInfo, ConfigEntry, grouped, units_of
from connectgroup.protocol.messages.heartbeat import (
    ConnectorConfig,
    HeartbeatAssignment,
    HeartbeatRequest,
    HeartbeatResponse,
    UnitGrant,
)
from connectgroup.protocol.units import Unit
from tests.group.builders import table_of

from .builders import accepted, joined, member, rejected, request_of, respond, status, units

# --------------------------------------------------------------------------------------------------
# Requests: null and empty have different meanings


def test_join_is_a_full_request_with_no_owned_units() -> None:
    """KAFKA-16190: a full request on join; ``()`` is "no units", null would be "unchanged"."""
    assignor = AssignorInfo(name="spread")
    request = request_of(member(assignor))
    assert (request.member_epoch, request.owned) == (0, ())
    assert request.rebalance_timeout_ms == 60_000
    assert request.instance_id == "i"
    assert request.client_assignors == (assignor,)
    assert request.server_assignor is None
    assert request.max_wait_ms == 0, "a full request is not parked"


def test_worker_without_assignors_requests_a_server_assignor() -> None:
    assert request_of(member(server_assignor="even")).server_assignor == "even"
    assert request_of(member(server_assignor="even")).client_assignors is None


def test_heartbeat_without_changes_is_incremental() -> None:
    request = request_of(joined(0, 1))
    assert request.owned is None
    assert request.client_assignors is None
    assert request.instance_id is None
    assert request.rebalance_timeout_ms == -1
    assert request.max_wait_ms > 0
    assert request.member_epoch == 5


def test_heartbeat_of_a_worker_without_units_is_incremental_too() -> None:
    assert request_of(joined()).owned is None


def test_acknowledgement_lists_the_remaining_units_even_if_none() -> None:
    machine = joined(0)
    assert respond(machine, accepted(5, ())) == [Revoke(units=units(0), epoch=5)]
    assert request_of(machine).owned is None, "not stopped yet"
    machine.mark_revoked(units(0))
    machine.on_no_answer(request_of(machine))
    machine = joined(0, 1)
    respond(machine, accepted(5, units(1)))
    machine.mark_revoked(units(0))
    request = request_of(machine)
    assert units_of(request.owned) == units(1)
    assert request.rebalance_timeout_ms == -1
    machine = joined(0)
    respond(machine, accepted(5, ()))
    machine.mark_revoked(units(0))
    assert request_of(machine).owned == ()


def test_acknowledgement_is_sent_once() -> None:
    """KAFKA-20145."""
    machine = joined(0, 1)
    respond(machine, accepted(5, units(1)))
    machine.mark_revoked(units(0))
    assert machine.has_unsent_changes
    respond(machine, accepted(6))
    assert not machine.has_unsent_changes
    assert request_of(machine).owned is None


@pytest.mark.parametrize("how", ["no response", "abandoned", "retriable", "compute", "stale"])
def test_request_after_any_failure_is_a_full_one(how: str) -> None:
    machine = joined(0, 1)
    request = request_of(machine)
    match how:
        case "no response":
            machine.on_no_answer(request)
        case "abandoned":
            pass
        case "retriable":
            machine.on_response(request, rejected(CoordinatorLoadInProgress.code))
        case "compute":
            machine.on_response(request, rejected(ComputeAssignment.code))
        case _:
            machine.on_response(request, rejected(StaleMemberEpoch.code))
    full = request_of(machine)
    assert units_of(full.owned) == units(0, 1)
    assert full.rebalance_timeout_ms == 60_000
    assert full.max_wait_ms == 0
    machine.on_response(full, accepted(5, units(0, 1)))
    assert request_of(machine).owned is None


# --------------------------------------------------------------------------------------------------
# Lost responses


def test_previous_epoch_is_sent_again_after_a_lost_response() -> None:
    machine = joined(0)
    lost = request_of(machine)
    machine.on_no_answer(lost)
    again = request_of(machine)
    assert again.member_epoch == lost.member_epoch == 5
    assert units_of(again.owned) == units(0), "the member does not own units of a lost response"


def test_response_to_an_abandoned_request_is_ignored() -> None:
    machine = joined(0)
    parked = request_of(machine)
    machine.report(status(0, 5))
    machine.flush_statuses()
    assert machine.has_unsent_changes
    current = request_of(machine)
    assert units_of(current.owned) == units(0)
    assert machine.on_response(parked, accepted(9, units(0, 1, 2))) == []
    assert (machine.epoch, frozenset(machine.owned)) == (5, units(0))
    assert machine.on_response(current, accepted(6, units(0, 1))) != []
    assert machine.on_response(current, accepted(7, units(0, 2))) == [], "nor does a duplicated response"


def test_sequence_numbers_are_monotonic() -> None:
    machine = member()
    numbers = [request_of(machine).sequence for _ in range(3)]
    machine.close()
    numbers.append(request_of(machine).sequence)
    assert numbers == [101, 102, 103, 104]


# --------------------------------------------------------------------------------------------------
# Heartbeats during a revocation


def test_member_sends_heartbeats_while_units_stop_and_still_owns_them() -> None:
    machine = joined(0, 1)
    respond(machine, accepted(5, units(1)))
    for now_ms in range(0, 60_000, 3_000):
        request = request_of(machine, now_ms)
        assert request.owned is None
        assert machine.on_response(request, accepted(5)) == []
    assert set(machine.owned) == units(0, 1)
    machine.on_no_answer(request_of(machine))
    assert units_of(request_of(machine).owned) == units(0, 1), "a full request acknowledges no unit that still runs"


def test_repeated_revocation_is_performed_once() -> None:
    """S11: the response is repeated after a full request; one stop, one on_revoked."""
    machine = joined(0, 1)
    assert respond(machine, accepted(5, units(1))) == [Revoke(units=units(0), epoch=5)]
    assert respond(machine, accepted(5, units(1))) == []
    assert respond(machine, accepted(5, ())) == [Revoke(units=units(1), epoch=5)]


def test_response_revokes_or_assigns_but_never_both() -> None:
    """PD-02. New units in a response that revokes wait for the acknowledgement."""
    machine = joined(0, 1)
    assert respond(machine, accepted(5, units(1, 2))) == [Revoke(units=units(0), epoch=5)]
    assert set(machine.owned) == units(0, 1)
    assert respond(machine, accepted(5, units(1, 2))) == [], "not while a unit is stopping"
    machine.mark_revoked(units(0))
    request = request_of(machine)
    assert request.rebalance_timeout_ms != -1, "a full request makes the coordinator repeat the new units"
    (assign,) = machine.on_response(request, accepted(6, units(1, 2)))
    assert isinstance(assign, Assign)
    assert [grant.unit for grant in assign.grants] == [Unit("c", 2)]


def test_grants_of_new_units_are_kept_where_a_response_also_grants_owned_units() -> None:
    """A coordinator may repeat grants; only units that are new to the member are started."""
    machine = joined(0)
    request = request_of(machine)
    response = accepted(6, units(0, 1))
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


def reached(epoch: int, assigned: Iterable[Unit], assignor: str = "a", metadata: bytes = b"hint") -> HeartbeatResponse:
    """A response that names the assignor of the target assignment the member has reached."""
    response = accepted(epoch, assigned)
    assert response.assignment is not None
    assignment = replace(response.assignment, error=3, version=2, metadata=metadata, assignor=assignor)
    return replace(response, assignment=assignment)


def test_each_target_assignment_is_delivered_once_and_before_units_start() -> None:
    """Also if the units stay or shrink; a repeated response is not a new target assignment."""
    machine = member(INFO_A, INFO_B)
    tell, assign = respond(machine, reached(5, units(1)))
    assert isinstance(assign, Assign)
    tell_first = TellAssignor(assignor="a", units=units(1), epoch=5, error=3, version=2, metadata=b"hint")
    assert tell == tell_first
    assert respond(machine, reached(5, units(1))) == []
    assert respond(machine, reached(6, units(1))) == [replace(tell_first, epoch=6)]
    (revoke,) = respond(machine, accepted(6, units()))
    assert isinstance(revoke, Revoke)
    machine.mark_revoked(revoke.units)
    assert respond(machine, reached(7, units())) == [replace(tell_first, epoch=7, units=units())]


def test_target_of_an_assignor_this_worker_does_not_offer_is_delivered_to_none() -> None:
    machine = member(INFO_A)
    assert respond(machine, reached(5, units(), assignor="other")) == []


def test_member_that_rejoined_gets_the_target_assignment_again() -> None:
    machine = member(INFO_A)
    respond(machine, reached(5, units()))
    respond(machine, rejected(FencedMemberEpoch.code))
    machine.mark_lost()
    (tell,) = respond(machine, reached(5, units()))
    assert isinstance(tell, TellAssignor)


def test_server_assignor_is_sent_beside_client_assignors() -> None:
    """The coordinator rejects the combination with an error; dropping it silently would hide the mistake."""
    machine = member(INFO_A, server_assignor="uniform")
    request = request_of(machine)
    assert (request.server_assignor, request.client_assignors) == ("uniform", (INFO_A,))


# --------------------------------------------------------------------------------------------------
# Grants


def test_a_grant_carries_its_owner_epoch_and_configurations() -> None:
    machine = member()
    entry = ConfigEntry(name="k", value="v")
    assigned = HeartbeatAssignment(
        units=grouped([Unit("c"), Unit("c", 0)]),
        grants=(
            UnitGrant(connector="c", task=0, owner_epoch=4, config=(entry,)),
            UnitGrant(connector="c", task=-1, owner_epoch=2),
        ),
        configs=(ConnectorConfig(connector="c", version=1, config=(entry,)),),
    )
    response = HeartbeatResponse(member_epoch=5, assignment=assigned, coordinator_epoch=1)
    (assign,) = respond(machine, response)
    assert isinstance(assign, Assign)
    assert assign.epoch == 5
    assert [(grant.unit, grant.owner_epoch) for grant in assign.grants] == [(Unit("c"), 2), (Unit("c", 0), 4)]
    assert [dict(grant.config) for grant in assign.grants] == [{}, {"k": "v"}]
    assert [dict(grant.connector_config) for grant in assign.grants] == [{"k": "v"}, {"k": "v"}]
    assert machine.owned == {Unit("c"): 2, Unit("c", 0): 4}


def test_units_are_owned_as_soon_as_they_are_accepted() -> None:
    """Before any unit starts: a full request sent in between must not acknowledge a revocation."""
    machine = member()
    respond(machine, accepted(5, units(0)))
    machine.on_no_answer(request_of(machine))
    assert units_of(request_of(machine).owned) == units(0)


def test_null_assignment_changes_nothing() -> None:
    """KAFKA-16198: a unit that a response does not contain is not revoked."""
    machine = joined(0, 1)
    assert respond(machine, accepted(6)) == []
    assert (machine.epoch, frozenset(machine.owned)) == (6, units(0, 1))


def test_empty_assignment_revokes_everything() -> None:
    machine = joined(0, 1)
    assert respond(machine, accepted(5, ())) == [Revoke(units=units(0, 1), epoch=5)]


def test_unchanged_assignment_is_no_action() -> None:
    """KAFKA-17105."""
    machine = joined(0, 1)
    assert respond(machine, accepted(6, units(0, 1), owner_epoch=6)) == []
    assert set(machine.owned.values()) == {5}, "nor a later owner epoch"


# --------------------------------------------------------------------------------------------------
# The table of transitions at the beginning of ``state_machine``


def _with_a_fenced_task(machine: Member) -> None:
    machine.report(replace(status(0, 5), fenced=True))


def _in_phase(phase: Phase) -> tuple[Member, HeartbeatRequest]:
    """A member in this phase, and its last request: still outstanding, unless the phase has dropped it."""
    machine = member() if phase is Phase.JOINING else joined(0, 1)
    request = request_of(machine)
    if phase is Phase.LOSING:
        machine.on_response(request, rejected(UnknownMemberId.code))
    elif phase in (Phase.LEAVING, Phase.GONE):
        machine.close()
    if phase is Phase.GONE:
        request_of(machine)
    assert machine.phase is phase
    return machine, request


Event = Callable[[Member, HeartbeatRequest], list[Action] | None]


def _answers(response: HeartbeatResponse) -> Event:
    return lambda machine, request: machine.on_response(request, response)


def _lease_expires(machine: Member, request: HeartbeatRequest) -> list[Action]:
    return machine.check_lease(1_000_000)


def _lease_expires_with_a_fenced_task(machine: Member, request: HeartbeatRequest) -> list[Action]:
    _with_a_fenced_task(machine)
    return machine.check_lease(1_000_000)


def _sends_the_next_request(machine: Member, request: HeartbeatRequest) -> None:
    machine.next_request(0)


EVENTS: dict[str, tuple[Event, ...]] = {
    "response": (_answers(accepted(6)), _answers(accepted(6, units(0))), _answers(accepted(6, units(0, 1, 2)))),
    "asked to compute": (_answers(rejected(ComputeAssignment.code)),),
    "error: fenced, or unknown": tuple(
        _answers(rejected(error.code)) for error in (FencedMemberEpoch, UnknownMemberId, GroupIdNotFound)
    ),
    "error: may pass": tuple(_answers(rejected(error.code)) for error in (CoordinatorLoadInProgress, StaleMemberEpoch)),
    "error: final": (_answers(rejected(InvalidRequest.code)),),
    "lease expired, a task is fenced": (_lease_expires_with_a_fenced_task,),
    "lease expired, no task is fenced": (_lease_expires,),
    "a unit did not stop with the lease": (lambda machine, request: [*machine.give_up("it hangs")],),
    "all units have stopped": (lambda machine, request: machine.mark_lost(),),
    "close": (lambda machine, request: machine.close(),),
    "the leave is sent": (_sends_the_next_request,),
}


def test_each_event_in_each_phase_does_what_the_table_says() -> None:
    """What the table leaves out changes nothing and has no action."""
    rows = table_of(state_machine)
    assert {row[1] for row in rows} == EVENTS.keys()
    for event, variants in EVENTS.items():
        seen = set()
        for phase, act in itertools.product(Phase, variants):
            after, actions = next(
                (row[2:] for row in rows if row[1] == event and phase.name in row[0].split(", ")), ("same", "none")
            )
            machine, request = _in_phase(phase)
            done = [type(action).__name__ for action in act(machine, request) or []]
            assert machine.phase.name == (phase.name if after == "same" else after), f"{event} in {phase}"
            allowed = actions.replace(" or ", ", ").split(", ")
            assert done == [] if not done else len(done) == 1 and done[0] in allowed, f"{event} in {phase}: {done}"
            assert done or "none" in allowed, f"{event} in {phase}: no action"
            seen |= set(done)
        named = {name for row in rows if row[1] == event for name in row[3].replace(" or ", ", ").split(", ")}
        assert seen == named - {"none"}, event


@pytest.mark.parametrize(
    ("field", "value"),
    [("group_id", ""), ("lease_margin", 0.6), ("traits", "large"), ("group_protocol", "connect")],
)
def test_setting_that_a_member_cannot_have_is_rejected_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        MemberSettings(**{"group_id": "g", "member_id": "m", field: value})  # type: ignore[arg-type]

"""The member state machine: batching and acknowledgement of task statuses."""

from __future__ import annotations

from connectgroup.errors import (
    FencedMemberEpoch,
)
from connectgroup.protocol.messages.heartbeat import (
    TaskStatus,
)

from .builders import accepted, joined, rejected, request_of, respond, status, units


def test_statuses_are_sent_in_batches_of_a_thousand() -> None:
    """The coordinator stores the statuses of one request in one batch of its log."""
    machine = joined(*range(2_500))
    for task in range(2_500):
        machine.report(status(task, 5))
    machine.flush_statuses()
    reported: list[TaskStatus] = []
    for count in (1_000, 1_000, 500):
        assert machine.has_unsent_changes
        request = request_of(machine)
        assert len(request.statuses) == count
        assert (request.max_wait_ms == 0) == (count == 1_000), "parked only if no status is left"
        reported += request.statuses
        machine.on_response(request, accepted(5))
    assert not machine.has_unsent_changes
    assert reported == [status(task, 5) for task in range(2_500)]


def test_status_is_sent_until_it_is_acknowledged() -> None:
    machine = joined(0, 1)
    machine.report(status(1, 5))
    machine.report(status(0, 5))
    assert not machine.has_unsent_changes, "statuses are batched"
    machine.flush_statuses()
    assert machine.has_unsent_changes
    lost = request_of(machine)
    assert [s.task for s in lost.statuses] == [0, 1]
    assert not machine.has_unsent_changes
    machine.on_no_answer(lost)
    again = request_of(machine)
    assert again.statuses == lost.statuses
    machine.on_response(again, accepted(5, units(0, 1)))
    assert request_of(machine).statuses == ()


def test_status_that_changed_in_flight_is_sent_again() -> None:
    machine = joined(0)
    machine.report(status(0, 5))
    request = request_of(machine)
    machine.report(status(0, 5, state=2, message="down"))
    machine.on_response(request, accepted(5))
    assert request_of(machine).statuses == (status(0, 5, state=2, message="down"),)


def test_status_of_an_earlier_grant_is_not_sent() -> None:
    """KAFKA-12525: nor does it replace that of the present grant."""
    machine = joined(0, 1)
    machine.report(status(0, 5))
    respond(machine, accepted(5, units(1)))
    machine.mark_revoked(units(0))
    machine.report(status(0, 5, state=2))
    assert request_of(machine).statuses == ()
    respond(machine, accepted(7, units(0, 1), owner_epoch=7))
    machine.report(status(0, 7))
    machine.report(status(0, 5, state=2, message="late"))
    assert request_of(machine).statuses == (status(0, 7),)


def test_statuses_are_dropped_after_a_loss() -> None:
    machine = joined(0)
    machine.report(status(0, 5))
    respond(machine, rejected(FencedMemberEpoch.code))
    machine.mark_lost()
    assert request_of(machine).statuses == ()

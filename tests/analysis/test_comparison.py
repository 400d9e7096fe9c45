"""What another assignor would have done: with the assignor that was used, the comparison finds what the group did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from connectgroup import (
    ConnectAssignment,
    ConnectAssignor,
    ConnectAssignorInput,
    ConnectMemberAssignment,
    GroupSettings,
    Metadata,
    NoPlan,
    Unit,
    load_assignor,
)
from connectgroup.analysis.replay import GroupHistory, history_of
from connectgroup.assign.placement import WorkerTraits
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.log.sqlite.reader import StoredGroup
from connectgroup.testing import seeds
from connectgroup.wire.record_codec import decode_record

WorkerGroups = Callable[..., Any]


def history(group: Any, assignor: str | ConnectAssignor, max_moves: int = 0) -> GroupHistory:
    """The history of a simulated group, from the batches of its log."""
    batches = tuple(tuple(decode_record(*record) for record in batch) for batch in group.storage.batches)
    other = load_assignor(assignor) if isinstance(assignor, str) else assignor
    return history_of("memory", "test", StoredGroup(snapshot=(), batches=batches), other, max_moves=max_moves)


@pytest.mark.parametrize("assignor", ["balanced", "weighted"])
def test_lost_and_returned_workers_are_compared_like_the_group_treated_them(
    worker_group: WorkerGroups, assignor: str
) -> None:
    """A worker that returns within the scheduled delay gets its tasks back; one that does not return loses them."""
    group = worker_group(
        workers=3,
        connectors={"x": 7, "y": 4},
        assignors=(assignor,),
        settings=GroupSettings(scheduled_delay_ms=20_000),
    )
    group.wait_until_stable()
    group.kill("worker-1")
    group.advance(15)
    group.restart("worker-1")
    group.wait_until_stable()
    group.kill("worker-2")
    group.advance(60)
    group.wait_until_stable()
    group.stop("worker-3")
    group.wait_until_stable()
    found = history(group, assignor)
    assert [step.other for step in found.steps] == [step.actual for step in found.steps], "\n".join(found.lines())
    assert sum(step.actual.moves for step in found.steps) > 0
    assert any(step.actual.unassigned for step in found.steps), "units were delayed"


@seeds(5)
def test_same_assignor_does_the_same_under_random_changes(worker_group: WorkerGroups) -> None:
    group = worker_group(workers=3, connectors={"x": 5, "y": 3}, settings=GroupSettings(scheduled_delay_ms=5_000))
    for _ in range(6):
        change = group.random.choice([group.add_worker, group.kill, group.stop])
        if change == group.add_worker or len(group.workers) < 2:
            group.add_worker()
        else:
            change(group.random.choice(group.workers))
        group.advance(group.random.choice([1, 8, 30]))
    group.wait_until_stable()
    found = history(group, "balanced")
    assert [step.other for step in found.steps] == [step.actual for step in found.steps], "\n".join(found.lines())


class Slots(ConnectAssignor):
    """As many tasks on each worker as its metadata say."""

    name = "slots"
    slots = b""

    def configure(self, traits: WorkerTraits) -> None:
        self.slots = b"%d" % traits.capacity

    def metadata(self) -> Metadata:
        return Metadata(metadata=self.slots)

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        slots = {member.member_id: int(member.metadata) for member in group.members}
        free = [name for name in sorted(slots) for _ in range(slots[name])]
        owners = dict(zip(sorted(group.units), free, strict=False))
        return ConnectAssignment(
            members=[
                ConnectMemberAssignment(member_id=name, units=frozenset(u for u, to in owners.items() if to == name))
                for name in slots
            ],
            delayed=frozenset(sorted(group.units)[len(free) :]),
        )


def test_metadata_of_members_that_list_the_other_assignor_are_used(worker_group: WorkerGroups) -> None:
    workers = {"a": WorkerTraits(capacity=1), "b": WorkerTraits(capacity=3)}
    group = worker_group(workers, assignors=["balanced", Slots])
    group.wait_until_stable()
    group.add_connector("x", 3)
    group.wait_until_stable()
    last = history(group, Slots()).steps[-1]
    assert (last.error, last.other.unassigned) == ("", 0)


def test_metadata_that_no_member_has_are_named(worker_group: WorkerGroups) -> None:
    group = worker_group(1, connectors={"x": 3})
    group.wait_until_stable()
    message = r"^worker worker-1 has no metadata of the assignor slots, because it does not list it; let all workers"
    with pytest.raises(NoPlan, match=message):
        history(group, Slots())


@pytest.mark.parametrize(("assignor", "max_moves"), [("incremental-cooperative", 0), ("balanced", 2), ("weighted", 1)])
def test_rounds_of_the_same_assignor_are_those_of_the_group(
    worker_group: WorkerGroups, assignor: str, max_moves: int
) -> None:
    """Moves deferred by the limit, or until their owner has stopped them (incremental-cooperative)."""
    group = worker_group(
        workers=2, connectors={"x": 12}, assignors=(assignor,), settings=GroupSettings(max_moves=max_moves)
    )
    group.wait_until_stable()
    group.add_worker()
    group.add_worker()
    group.wait_until_stable()
    group.kill("worker-1")
    group.advance(400)
    group.wait_until_stable()
    group.add_worker()
    group.advance(400)
    group.wait_until_stable()
    found = history(group, assignor, max_moves)
    assert [step.other for step in found.steps] == [step.actual for step in found.steps], "\n".join(found.lines())
    assert {step.round for step in found.steps} == {1}
    assert any(step.actual.deferred for step in found.steps)


def test_other_assignor_gets_further_rounds_for_the_moves_that_it_deferred(worker_group: WorkerGroups) -> None:
    group = worker_group(workers=2, connectors={"x": 12})
    group.wait_until_stable()
    group.add_worker()
    group.wait_until_stable()
    for found in (history(group, "incremental-cooperative"), history(group, "balanced", max_moves=1)):
        last = found.steps[-1]
        assert last.round > 1, "\n".join(found.lines())
        assert (last.other.imbalance, last.other.unassigned, last.other.deferred) == (0, 0, 0)
        assert last.actual.moves == 0
        assert any("round 2" in line for line in found.lines())
    limited = history(group, "balanced", max_moves=1)
    assert max(step.other.moves for step in limited.steps) == 1


class Delays(BalancedAssignor):
    """Leaves the first task out until a delay of 30 s has elapsed."""

    name = "delays"

    def configure(self, traits: WorkerTraits) -> None:
        """As on a worker: before any other call."""
        self.has_delayed = False

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        result, late = super().assign(group), frozenset({Unit("x", 0)})
        is_delayed = any(late & work.units for work in group.delayed)
        if late <= frozenset(group.units) and (is_delayed or not self.has_delayed):
            self.has_delayed = True
            members = [replace(each, units=each.units - late) for each in result.members]
            return ConnectAssignment(members=members, delayed=late, delay_ms=30_000)
        return result


def test_delay_that_the_other_assignor_requests_ends_with_the_first_record_after_its_deadline(
    worker_group: WorkerGroups,
) -> None:
    group = worker_group(workers=2, connectors={"x": 3})
    group.wait_until_stable()
    group.advance(20)
    group.add_worker()  # does not extend the deadline
    group.wait_until_stable()
    group.advance(20)
    group.add_connector("y", 1)
    group.wait_until_stable()
    found = history(group, Delays())
    unassigned = [step.other.unassigned for step in found.steps]
    first = next(number for number, step in enumerate(found.steps) if step.other.unassigned)
    assert set(unassigned[first:-1]) == {1}
    assert (unassigned[-1], found.steps[-1].round) == (0, 2)

"""What another assignor would have done: with the assignor that was used, the comparison finds what the group did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from connectgroup import GroupSettings, load_assignor
from connectgroup.analysis.replay import GroupHistory, history_of
from connectgroup.log.sqlite.reader import StoredGroup
from connectgroup.testing import seeds
from connectgroup.wire.record_codec import decode_record

WorkerGroups = Callable[..., Any]


def history(group: Any, assignor: str) -> GroupHistory:
    """The history of a simulated group, from the batches of its log."""
    batches = tuple(tuple(decode_record(*record) for record in batch) for batch in group.storage.batches)
    return history_of("memory", "test", StoredGroup(snapshot=(), batches=batches), load_assignor(assignor))


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

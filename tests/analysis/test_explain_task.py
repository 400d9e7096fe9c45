"""Why a task is where it is, does not run, or is rejected by a worker: one description for each case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connectgroup import DescribedConnector, DescribedGroup, DescribedMember, DescribedUnit, Move, Rebalance, Unit
from connectgroup.analysis.explain import TaskExplanation, explain_task, find_unit, rebalance_lines
from connectgroup.errors import NameNotFound
from connectgroup.protocol.messages.assignment import DelayedUnits
from connectgroup.protocol.messages.common import entries, grouped
from connectgroup.protocol.messages.describe import NOT_STARTED, UNKNOWN

C0, C1, OTHER = Unit("c", 0), Unit("c", 1), Unit("d", 0)


def member(name: str, *target: Unit, pending: tuple[Unit, ...] = (), **more: Any) -> DescribedMember:
    """A member that runs its target assignment."""
    fields: dict[str, Any] = {"state": "STABLE", "assigned": grouped(target), "member_epoch": 5, **more}
    return DescribedMember(member_id=name, target=grouped(target), pending_revocation=grouped(pending), **fields)


def connector(name: str, config: dict[str, str] | None = None, *, tasks: int = 2) -> DescribedConnector:
    units = (DescribedUnit(task=number, state="UNASSIGNED") for number in range(-1, tasks))
    return DescribedConnector(connector=name, target_state="RUNNING", config=entries(config or {}), units=tuple(units))


def group(*members: DescribedMember, connectors: tuple[DescribedConnector, ...] = (), **more: Any) -> DescribedGroup:
    fields: dict[str, Any] = {"state": "Reconciling", "group_epoch": 5, "assignment_epoch": 5, **more}
    return DescribedGroup(
        group_id="g", assignor_name="weighted", members=members, connectors=connectors or (connector("c"),), **fields
    )


def with_unit(described: DescribedGroup, **unit: Any) -> DescribedGroup:
    """The group with this description of task c-0."""
    first = described.connectors[0]
    units = (first.units[0], replace(first.units[1], **unit), *first.units[2:])
    return replace(described, connectors=(replace(first, units=units), *described.connectors[1:]))


def reasons(described: DescribedGroup) -> tuple[str, ...]:
    return explain_task(described, C0).reasons


def rejected(described: DescribedGroup) -> dict[str, tuple[str, ...]]:
    found: TaskExplanation = explain_task(described, C0)
    return found.rejected_by


def test_task_waits_for_the_worker_that_must_stop_it() -> None:
    described = with_unit(
        group(member("a", pending=(C0,)), member("b", C0, assigned=())), state="RUNNING", member_id="a", owner_epoch=4
    )
    assert reasons(described)[-1] == "it is to move: the target assignment gives it to b once a has stopped it"


def test_task_waits_for_its_worker_to_stop_others_first() -> None:
    described = group(member("a", C0, pending=(C1,), assigned=()))
    assert reasons(described) == ("worker a is to run it and must first stop c-1",)


def test_task_waits_for_the_next_heartbeat_of_its_worker() -> None:
    described = group(member("a", C0, assigned=()))
    assert reasons(described)[0].startswith("worker a is to run it and has not fetched its assignment yet")


def test_task_waits_for_the_computation() -> None:
    described = group(member("a"), state="Assigning", computing_member="a", assignor_error="b: raised")
    assert reasons(described) == (
        "the assignment for epoch 5 is being computed by worker a",
        "last assignor error: b: raised",
    )


def test_nothing_is_computed_after_an_assignor_has_kept_the_target_assignment() -> None:
    error = "the target assignment is kept: no worker has a slot"
    assert reasons(group(member("a"), state="Assigning", assignor_error=error)) == (
        f"nothing is being computed for epoch 5: {error}",
        "the assignor runs again after the next change of the group, and from time to time",
    )
    again = group(member("a"), state="Assigning", computing_member="a", assignor_error=error)
    assert reasons(again)[0] == "the assignment for epoch 5 is being computed by worker a"


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("no ink (ValueError)", "does not try again: no ink (ValueError)"),
        ("", "does not try again: no error message"),
        ("RETRYING, attempt 1, next in 1 s: no ink", "retries it: RETRYING, attempt 1, next in 1 s: no ink"),
    ],
)
def test_failed_task_is_retried_or_not(message: str, what: str) -> None:
    described = with_unit(group(member("a", C0)), state="FAILED", member_id="a", owner_epoch=4, message=message)
    assert f"it has failed, its worker {what}" in reasons(described)


def test_task_is_kept_for_a_static_member_that_left() -> None:
    described = with_unit(group(member("a", C0, state="AWAY")), state="WAITING", member_id="a", owner_epoch=4)
    assert reasons(described)[-1].startswith("worker a has left temporarily; the unit is kept for it")
    assert rejected(described) == {"a": ("has left temporarily",)}


def test_task_that_is_delayed_by_the_assignor_has_the_assignors_reason() -> None:
    delayed = DelayedUnits(left_ms=300_000, units=grouped([C0]))
    described = group(member("a"), delayed=(delayed,), assignor_error="c-0: weighs 9")
    assert reasons(described) == ("the assignor weighted left it out and is run again in 300 s: c-0: weighs 9",)


def test_task_older_than_the_known_rebalances_has_no_known_cause() -> None:
    described = with_unit(
        group(member("a", C0), rebalances=(Rebalance(epoch=4, causes=("b joined",)),)),
        state="RUNNING",
        member_id="a",
        owner_epoch=2,
    )
    assert reasons(described) == ("assigned at epoch 2, before the last 1 rebalances: the cause is not known any more",)


def test_cause_of_an_overtaken_rebalance_is_found_in_its_successor() -> None:
    """Causes that arrive before a target assignment is installed are added to the rebalance of the later epoch."""
    moves = (Move(connector="c", task=0, source="b", target="a", handover_ms=7, downtime_ms=9),)
    rebalances = (Rebalance(epoch=2), Rebalance(epoch=4, causes=("a joined", "b left"), moves=moves, finished_ms=1))
    described = with_unit(group(member("a", C0), rebalances=rebalances), state="RUNNING", member_id="a", owner_epoch=3)
    assert reasons(described) == (
        "assigned at epoch 3: a joined; b left",
        "b -> a, downtime 9 ms (handover 7 ms)",
    )


def test_moves_that_did_not_start_are_counted_and_named() -> None:
    moves = (
        Move(connector="c", task=0, source="b", target="a", handover_ms=7, downtime_ms=NOT_STARTED),
        Move(connector="c", task=1, source="b", target="d", handover_ms=5, downtime_ms=6, failed_ms=1),
        Move(connector="c", task=2, source="b", target="d", handover_ms=4),
        Move(connector="c", task=3, source="b", target="d", handover_ms=3, downtime_ms=UNKNOWN),
    )
    rebalance = Rebalance(
        epoch=4,
        causes=("b left",),
        moved=4,
        max_downtime_ms=6,
        max_handover_ms=7,
        moves=moves,
        started_ms=1,
        finished_ms=8,
    )
    line, *details = rebalance_lines([rebalance], moves=True)
    assert "| 4 moved, 1 of them not started, maximum downtime 6 ms, 1 not running again, handover 7 ms |" in line
    assert details == [
        "  c-0: b -> a, handover 7 ms, not started: a released it before it ran",
        "  c-1: b -> d, downtime 6 ms (handover 5 ms, failed 1 ms before)",
        "  c-2: b -> d, handover 4 ms, not reported as running again",
        "  c-3: b -> d, handover 3 ms, downtime not known any more",
    ]


@pytest.mark.parametrize(
    ("config", "worker", "reason"),
    [
        ({"assignment.labels": "gpu=true"}, member("a"), "label gpu=true: missing"),
        (
            {"assignment.task.weight": "3"},
            member("a", C1, capacity=5),
            "capacity 5: 3 in use, c-0 weighs 3",
        ),
        ({"assignment.max.per.worker": "1"}, member("a", C1), "assignment.max.per.worker 1: has 1"),
        ({"assignment.max.per.rack": "1"}, member("a", C1, rack="r"), "assignment.max.per.rack 1: rack r has 1"),
        ({"assignment.exclusive": "port:80"}, member("a", C1), "assignment.exclusive port:80: used by c-1 on a"),
        (
            {"assignment.exclusive": "port:80"},
            member("a", pending=(C1,)),
            "assignment.exclusive port:80: used by c-1 on a, which is stopping",
        ),
        ({"assignment.anti.affinity": "d"}, member("a", OTHER), "assignment.anti.affinity d: has 1 of its tasks"),
        ({}, member("a", state="DRAINING"), "is draining"),
    ],
)
def test_constraint_that_rejects_a_worker(config: dict[str, str], worker: DescribedMember, reason: str) -> None:
    connectors = (connector("c", config), connector("d"))
    assert rejected(group(worker, member("free", labels=entries({"gpu": "true"})), connectors=connectors)) == {
        "a": (reason,)
    }


def test_resource_of_a_host_is_shared_by_its_workers() -> None:
    connectors = (connector("c", {"assignment.exclusive": "port:80"}),)
    described = group(member("a", C1, host="h"), member("b", host="h"), member("c", host="i"), connectors=connectors)
    assert set(rejected(described)) == {"a", "b"}


def test_name_of_a_task_is_resolved_also_if_connectors_contain_dashes() -> None:
    described = group(connectors=(connector("c"), connector("c-d", tasks=1), connector("c-7")))
    assert find_unit(described, "c-1") == C1
    assert find_unit(described, "c-d") == Unit("c-d")
    assert find_unit(described, "c-d-0") == Unit("c-d", 0)
    assert find_unit(described, "c-7-1") == Unit("c-7", 1)
    assert find_unit(described, "c-7") == Unit("c-7")
    with pytest.raises(NameNotFound, match="this group has no connectors"):
        find_unit(DescribedGroup(), "c-0")


def test_rebalance_that_never_ended_is_overtaken() -> None:
    rebalances = (Rebalance(epoch=1, causes=("a joined",)), Rebalance(epoch=2, causes=("b joined",)))
    assert list(rebalance_lines(rebalances, moves=True)) == [
        "epoch 1 | a joined | overtaken by epoch 2",
        "epoch 2 | b joined | under way",
    ]

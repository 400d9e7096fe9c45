"""What a task reports of its batches, for metrics."""

from __future__ import annotations

from connectgroup.dataplane.errors import TaskFenced

from .conftest import Bench, Run


def counts(run: Run) -> list[tuple[int | None, int, int, bool]]:
    """Records read, records after the transforms, dead letters, and whether they were committed."""
    assert all(batch.read_s > 0 and batch.commit_s > 0 for batch in run.batches)
    return [(batch.read, batch.rows, batch.dead_letters, batch.committed) for batch in run.batches]


def test_batches_of_a_task_and_the_rejected_batch_of_a_zombie(table: Bench) -> None:
    table.write("one.csv", range(10))
    zombie = table.start(1, transforms="hide", transforms_hide_type="MaskField", transforms_hide_fields="b")
    zombie.wait(lambda: sum(zombie.rows) == 10)
    assert counts(zombie) == [(10, 10, 0, True)]
    successor = table.start(2)
    table.write("one.csv", range(10, 14), mode="a")
    assert isinstance(zombie.failure(), TaskFenced)
    assert counts(zombie) == [(10, 10, 0, True), (4, 4, 0, False)]
    successor.wait(lambda: sum(successor.rows) == 4)
    assert counts(successor) == [(4, 4, 0, True)]


def test_records_that_a_filter_drops_are_not_counted(table: Bench) -> None:
    table.write("one.csv", range(10))
    run = table.start(
        1,
        transforms="drop",
        transforms_drop_type="Filter",
        transforms_drop_predicate="low",
        predicates="low",
        predicates_low_type="sql",
        predicates_low_condition="a < 4",
    )
    run.wait(lambda: sum(run.rows) == 6)
    assert counts(run) == [(None, 6, 0, True)]


def test_dead_letters_count_as_read(table: Bench) -> None:
    (table.input / "one.csv").write_text("a,b\n1,x\none,y\n3,z\n")
    run = table.start(1, errors_tolerance="all", errors_deadletterqueue_name="dead")
    run.wait(lambda: sum(run.rows) == 2)
    assert counts(run) == [(3, 2, 1, True)]
    (batch,) = run.batches
    place = f"{table.input}/one.csv, line 3 (byte 8)"
    assert batch.last_dead_letter == f"{place}: a is 'one'; allowed: INT or null"

"""The fences that protect the positions of a source: the rules, on any database with transactions.

A *slice* is a piece of a source that is read in order (a file, a topic partition). Its *position* is the part of it
that has been written to the sink, in the unit of the source (bytes, an offset). Data and positions change in one
transaction of one database, together with the check that the writer is still the owner, so neither is ever committed
without the other:

    claim   raise the fences to the owner's epoch, then read the positions; a higher epoch in a fence: ``TaskFenced``
    commit  check the fences; every range must start exactly at the position of its slice; write; advance

Each commit checks three kinds of fence:

- one per *slice*, because slices move from task to task when ``tasks.max`` changes;
- one per *task*, so that a zombie is rejected even if its batch contains only slices that no task has read before;
- one per *layout* (the number of tasks): once any task of a layout of two has claimed, the third task of the previous
  layout of three is rejected, although no later task with its number will ever fence it.

Spark's own checkpoint is temporary: it does not fence (SPARK-26425), and a sink that relied on it would write a
replayed batch twice (paimon#9667). Here a replay of a committed batch is a no-op, and a batch that overlaps committed
data ends the query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from .errors import OffsetConflict, SinkError, TaskFenced
from .ownership import EPOCH_BITS, Owner, Position, Range, metadata_of


class Transaction(ABC):
    """The open transaction of one claim or batch, also for the sink's own statements. It cannot commit.

    Attributes:
        where: the database, for errors.
    """

    where: str

    @abstractmethod
    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Execute one statement and return its rows; ``?`` stands for a value."""

    @abstractmethod
    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Execute one statement for each row of values."""


def claim_task(transaction: Transaction, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
    """Become the owner of a task and of those known slices that belong to it; return their positions.

    Returns:
        Position by slice, for the slices for which ``is_mine`` is true.

    Raises:
        Fenced: a task with a higher owner epoch has claimed the task, the layout or one of the slices.
        SinkError: a connector of this name has read another source.
    """
    _claim_layout(transaction, owner)
    fence = transaction.execute(
        "SELECT epoch FROM connectgroup_fences WHERE connector = ? AND task = ?", owner.connector, owner.task
    )
    if fence and fence[0][0] > owner.fencing_token:
        raise _fenced(owner, f"task-{owner.task}", fence[0][0])
    transaction.execute(
        "INSERT INTO connectgroup_fences (connector, task, epoch) VALUES (?, ?, ?)"
        " ON CONFLICT (connector, task) DO UPDATE SET epoch = excluded.epoch",
        *(owner.connector, owner.task, owner.fencing_token),
    )
    positions: dict[str, int] = {}
    rows = transaction.execute(
        "SELECT slice, position, epoch, metadata FROM connectgroup_offsets WHERE connector = ? ORDER BY slice",
        owner.connector,
    )
    for slice_, position, epoch, metadata in rows:
        if not is_mine(slice_):
            continue
        if epoch > owner.fencing_token:
            raise _fenced(owner, slice_, epoch)
        positions[slice_] = Position(position, metadata)
    transaction.execute_many(
        "UPDATE connectgroup_offsets SET epoch = ? WHERE connector = ? AND slice = ? AND epoch < ?",
        [(owner.fencing_token, owner.connector, slice_, owner.fencing_token) for slice_ in positions],
    )
    return positions


def is_committed(transaction: Transaction, owner: Owner, ranges: Sequence[Range]) -> bool:
    """Check that the owner may commit these ranges, and return whether they are committed already (a replay).

    Raises:
        Fenced: a task with a higher owner epoch has claimed the slice, the task or the layout.
        OffsetConflict: a slice's position is not the start of its range.
    """
    _check_fences(transaction, owner)
    return _is_already_committed(transaction, owner, ranges)


def advance(transaction: Transaction, owner: Owner, ranges: Sequence[Range]) -> None:
    """Set the position of every slice to the end of its range."""
    transaction.execute_many(
        "INSERT INTO connectgroup_offsets (connector, slice, position, epoch, metadata) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (connector, slice) DO UPDATE SET position = excluded.position, epoch = excluded.epoch,"
        " metadata = excluded.metadata",
        [(owner.connector, r.slice, int(r.end), owner.fencing_token, metadata_of(r.end)) for r in ranges],
    )


def alter_positions(
    transaction: Transaction, connector: str, fencing_token: int, positions: Mapping[str, int | None] | None
) -> None:
    """Change the positions of a connector that runs no task.

    The change claims a layout without tasks. Every task granted under a lower token is rejected from then on, also one
    that has not claimed yet; the first task under a higher token starts from the new positions.

    Args:
        connector: the connector's name.
        fencing_token: higher than that of every task granted so far.
        positions: position by slice, ``None`` to forget a slice. ``None``: forget all slices and the source, so that
            the connector may read another source.

    Raises:
        Fenced: a task has claimed under a higher token.
    """
    found = transaction.execute("SELECT source FROM connectgroup_layouts WHERE connector = ?", connector)
    source = found[0][0] if found else ""
    owner = Owner(connector=connector, task=-1, tasks=0, fencing_token=fencing_token, source=source)
    claim_task(transaction, owner, lambda _: True)
    if positions is None:
        transaction.execute("DELETE FROM connectgroup_offsets WHERE connector = ?", connector)
        transaction.execute("UPDATE connectgroup_layouts SET source = '' WHERE connector = ?", connector)
        return
    transaction.execute_many(
        "DELETE FROM connectgroup_offsets WHERE connector = ? AND slice = ?",
        [(connector, name) for name, position in positions.items() if position is None],
    )
    ranges = [Range(slice=name, start=0, end=at) for name, at in positions.items() if at is not None]
    advance(transaction, owner, ranges)


def _claim_layout(transaction: Transaction, owner: Owner) -> None:
    found = transaction.execute(
        "SELECT tasks, floor, highest, source FROM connectgroup_layouts WHERE connector = ?", owner.connector
    )
    if not found:
        tasks, floor, highest = owner.tasks, -1, owner.fencing_token
    else:
        tasks, floor, highest, source = found[0]
        # Empty: no task has claimed since the offsets were reset.
        if source and source != owner.source:
            raise SinkError(
                f"{transaction.where}: connector {owner.connector} has read {source}, not {owner.source};"
                " allowed: the same source, or another connector name"
            )
        if tasks == owner.tasks:
            if owner.fencing_token <= floor:
                raise _fenced(owner, f"layout of {tasks} tasks", floor)
        elif owner.fencing_token <= highest:
            raise _fenced(owner, f"layout of {tasks} tasks", highest)
        else:
            tasks, floor = owner.tasks, highest
        highest = max(highest, owner.fencing_token)
    transaction.execute(
        "INSERT INTO connectgroup_layouts (connector, tasks, floor, highest, source) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (connector) DO UPDATE SET tasks = excluded.tasks, floor = excluded.floor,"
        " highest = excluded.highest, source = excluded.source",
        *(owner.connector, tasks, floor, highest, owner.source),
    )


def _check_fences(transaction: Transaction, owner: Owner) -> None:
    found = transaction.execute(
        "SELECT l.tasks, l.floor, l.highest, f.epoch FROM connectgroup_layouts l JOIN connectgroup_fences f"
        " ON f.connector = l.connector AND f.task = ? WHERE l.connector = ?",
        *(owner.task, owner.connector),
    )
    if not found:
        raise OffsetConflict(f"{transaction.where}: {owner} writes before it has claimed; allowed: claim first")
    tasks, floor, highest, fence = found[0]
    if fence > owner.fencing_token:
        raise _fenced(owner, f"task-{owner.task}", fence)
    # A later layout with another number of tasks has raised its floor to the highest token before it.
    if owner.fencing_token <= floor:
        raise _fenced(owner, f"layout of {tasks} tasks", highest)
    if fence < owner.fencing_token:
        raise OffsetConflict(f"{transaction.where}: {owner} writes before it has claimed; allowed: claim first")


def _is_already_committed(transaction: Transaction, owner: Owner, ranges: Sequence[Range]) -> bool:
    """Whether the batch is already committed: False if the position of every slice is the start of its range, True
    if all positions are the ends.

    Raises:
        Fenced: a task with a higher owner epoch has claimed a slice.
        OffsetConflict: neither is the case.
    """
    is_forward = all(0 <= r.start < r.end or (r.start, r.end) == (0, 0) for r in ranges)
    if len({r.slice for r in ranges}) != len(ranges) or not is_forward:
        raise AssertionError(f"ranges of {owner} are not one forward range a slice: {ranges}")
    at_start = at_end = 0
    violation = ""
    for r in ranges:
        found = transaction.execute(
            "SELECT position, epoch FROM connectgroup_offsets WHERE connector = ? AND slice = ?",
            *(owner.connector, r.slice),
        )
        position, epoch = found[0] if found else (0, owner.fencing_token)
        if epoch > owner.fencing_token:
            raise _fenced(owner, r.slice, epoch)
        at_start += position == r.start
        at_end += position == r.end
        if position != r.start and not violation:
            violation = f"slice {r.slice} stands at {position}, the batch has [{r.start}, {r.end})"
    if at_start == len(ranges):
        return False
    if at_end == len(ranges):
        return True
    raise OffsetConflict(
        f"{transaction.where}: {owner}: {violation}; allowed: a batch that starts where every slice of it stands"
    )


def _fenced(owner: Owner, place: str, theirs: int) -> TaskFenced:
    of_a_later_group = " of a group made later" if theirs > owner.fencing_token | EPOCH_BITS else ""
    return TaskFenced(
        f"{owner.connector}-{owner.task}: {place} belongs to owner epoch {theirs & EPOCH_BITS}{of_a_later_group},"
        f" ours is {owner.owner_epoch}; allowed: only the latest owner writes",
        token=theirs,
    )


ADD_METADATA: Final = "ALTER TABLE connectgroup_offsets ADD COLUMN metadata TEXT NOT NULL DEFAULT ''"
"""For tables from before positions had metadata."""
TABLES: Final = {
    "connectgroup_offsets": (
        "CREATE TABLE IF NOT EXISTS connectgroup_offsets (connector TEXT NOT NULL, slice TEXT NOT NULL,"
        " position BIGINT NOT NULL, epoch BIGINT NOT NULL, metadata TEXT NOT NULL DEFAULT '',"
        " PRIMARY KEY (connector, slice))"
    ),
    "connectgroup_fences": (
        "CREATE TABLE IF NOT EXISTS connectgroup_fences (connector TEXT NOT NULL, task INTEGER NOT NULL,"
        " epoch BIGINT NOT NULL, PRIMARY KEY (connector, task))"
    ),
    # floor: the highest fencing token of earlier layouts; highest: the highest token of any task so far.
    "connectgroup_layouts": (
        "CREATE TABLE IF NOT EXISTS connectgroup_layouts (connector TEXT PRIMARY KEY, tasks INTEGER NOT NULL,"
        " floor BIGINT NOT NULL, highest BIGINT NOT NULL, source TEXT NOT NULL)"
    ),
}

"""The interface for sink authors: one class, found by the entry point ``connectgroup.sinks``.

A commit checks the fencing token, writes the rows and advances the positions atomically. So a reader never sees half a
batch, a batch is never written twice, and a zombie cannot write. ``offset_store.OffsetStore`` implements this for
sinks whose data are stored in a SQLite database or listed in one. How a sink does it depends on where its rows are:

- files: derive from ``spark.sinks.manifest.ManifestSink`` with ``Settings``, ``extension`` and ``encode``. Each batch,
  or each of its parts, is a new file, and Spark's workers may call ``encode`` on a pickled copy. With ``head`` and
  ``join`` small files are compacted. Examples: ``text_files``, ``parquet``.
- a database with transactions: wrap its transaction in a ``fences.Transaction`` and call ``claim_task``,
  ``is_committed`` and ``advance``. Examples: ``postgres_store``, ``offset_store`` (SQLite).
- another system with transactions: the same rules on it. Example: ``spark.sinks.kafka_offsets``.
- a system whose commit can replace one number atomically, and conflicts if the number has changed: an ``OffsetStore``
  file for each state, written before the commit; the number says which one is current. Example:
  ``spark.sinks.delta_offsets``.
- one file to which all tasks append: an ``OffsetStore`` next to it, whose ``commit`` calls a function in its
  transaction. The function reads the committed length from a table of its own, truncates the file to it, appends,
  syncs, and writes the new length. Readers stop at the committed length.
- output that cannot be undone (a terminal): exactly once is not possible. ``spark.sinks.console`` prints before it
  commits the positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from .columns import Columns
from .ownership import Owner, Range
from .settings import PluginSettings

if TYPE_CHECKING:
    import pyarrow as pa


class PositionStore(Protocol):
    """The positions of the connectors that write to a sink, without the sink's rows; for operators."""

    def positions(self, connector: str) -> dict[str, int]:
        """Return the position of each slice of a connector; claims nothing.

        Raises:
            SinkError: the store cannot be read.
        """

    def alter(self, connector: str, fencing_token: int, positions: Mapping[str, int | None] | None) -> None:
        """Change the positions of a connector that runs no task, and fence every task under a lower token.

        Args:
            connector: the connector's name.
            fencing_token: higher than that of every task granted so far.
            positions: position by slice, ``None`` to forget a slice; ``None``: forget all slices and the source.

        Raises:
            Fenced: a task has claimed under a higher token; nothing was changed.
            SinkError: the store cannot be written.
        """

    def close(self) -> None:
        """Release open files and connections. Idempotent."""


@runtime_checkable
class AdvancingStore(PositionStore, Protocol):
    """A store in which a task can also advance its positions without rows, so before it knows any columns."""

    def advance(self, owner: Owner, ranges: Sequence[Range]) -> None:
        """Claim the task and the slices of these ranges, and commit the ranges as a batch without rows.

        Raises:
            Fenced, OffsetConflict, SinkError: as ``Sink.claim`` and ``Sink.commit``.
        """


class Sink(ABC):
    """One task's writer to a sink. The task creates and closes it; one thread uses it at a time.

    Attributes:
        Settings: the settings under ``sink.``; each field's description states the allowed values.
        fenced: whether a former owner of a task can write nothing after ``claim`` of its successor has returned.
        takes_marks: whether rows may have the column ``HAS_VALUE_COLUMN`` of ``dead_letters``.
    """

    Settings: ClassVar[type[PluginSettings]]
    fenced: ClassVar[bool] = True
    takes_marks: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def create(cls, settings: Any, columns: Columns) -> Sink:
        """Open the sink for rows of these columns.

        Args:
            settings: an instance of ``Settings``.

        Raises:
            SinkError: the sink cannot be opened, or does not match the columns.
        """

    @classmethod
    def open_positions(cls, settings: Any) -> PositionStore | None:
        """Open the positions that the sink stores; None if the sink does not offer them to operators.

        Args:
            settings: an instance of ``Settings``.

        Raises:
            SinkError: the store cannot be opened.
        """
        return None

    @classmethod  # noqa: B027 (some sinks reach nothing)
    def check_access(cls, settings: Any) -> None:
        """Try to reach the sink, and to log in; create and change nothing. For ``validate``.

        Raises:
            ConfigError: a setting cannot be used.
            SinkError: the sink cannot be reached, or does not accept the login.
        """

    def topics_of(self, rows: pa.Table) -> Collection[str]:
        """Return the Kafka topics that the sink writes these rows to."""
        return ()

    @abstractmethod
    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        """Fence every earlier owner, then read the positions of the owner's slices.

        Returns:
            Position by slice name.

        Raises:
            Fenced: a higher fencing token has claimed this task or one of its slices.
        """

    @abstractmethod
    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        """Write the rows of ``ranges`` and advance the positions, or change nothing.

        Returns:
            True if the batch was written now, false if it was committed before (a replay).

        Raises:
            Fenced: a higher fencing token has claimed this task or one of its slices.
            OffsetConflict: a range does not start at the position of its slice.
            SinkError: the batch cannot be written.
        """

    def report_failures(self, failed: Callable[[BaseException], None]) -> None:  # noqa: B027 (most have no thread)
        """Receive what a sink that works in a thread of its own calls when that fails: the task ends with the error.

        Called before ``claim``; ``failed`` may wait for a commit, which must fail then.
        """

    def report_waits(self, waits: Callable[[], None]) -> None:  # noqa: B027 (most do not wait)
        """Receive what a sink calls now and then while a commit waits for a system that answers, but takes no rows yet:
        the task does not stall then. Called before ``claim``.
        """

    def interrupt(self) -> None:  # noqa: B027 (to do nothing is the usual case)
        """End a claim or a commit that may wait for a long time: the task is to stop, and waits for it. It fails then.

        Called from another thread, before ``close``; maybe more than once, and before ``claim``.
        """

    def is_leaving_a_call(self) -> bool:
        """Whether a call of foreign code was under way when ``interrupt`` was called, or is: the sink leaves it behind
        if it does not return. Spark, in which other tasks run, is not ended for a stop that waits for it."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Release open files and connections. Idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows of a batch in a file of the sink's. They are not committed yet.

    Attributes:
        name: of the file.
        slice, start, end: the range whose rows it has, or some of them.
        rows: their number.
        bytes: the size of the file.
        row_bytes: the size of the rows in memory.
    """

    name: str
    slice: str
    start: int
    end: int
    rows: int
    bytes: int
    row_bytes: int


PartWriter = Callable[[Range, Iterator["pa.RecordBatch"]], Iterator[Part]]
"""Writes the rows of a range to new files; raises ``SinkError``. Spark's workers call it: it can be pickled."""


class PartSink(Sink):
    """A sink whose rows Spark's workers can write themselves, next to the code that reads them (``spark.writing``)."""

    @abstractmethod
    def part_writer(self, owner: Owner) -> PartWriter | None:
        """Return what writes the parts of the owner's batches; None: all batches are committed with ``commit``."""

    @abstractmethod
    def commit_parts(self, owner: Owner, ranges: Sequence[Range], parts: Sequence[Part]) -> bool:
        """Make the parts of a batch visible, in their order, as ``commit`` does with rows."""

    @abstractmethod
    def discard_parts(self, owner: Owner) -> None:
        """Delete the parts that were written and not given to ``commit_parts``. Called before ``close``."""

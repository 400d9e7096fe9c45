"""The interface for source authors: one class, ``Source``, found by the entry point ``connectgroup.sources``.

It has three roles, each with one user: operators (``OffsetAdmin``), the task's batches (``BatchPlanner``), and Spark's
streaming query (``SparkStream``), which an iterator source does not have (``iterator``).

A source is divided into *slices*: pieces that are read in order (a file, a topic partition, a key range). The position
of a slice is a monotonic number (bytes, a Kafka offset). The name of a slice determines the task that reads it,
identically on every worker. The sink stores the positions, in the transaction that writes the rows.

``CommitQueue`` commits the batches of one task in order, while the next batch is read.
"""

from __future__ import annotations

import importlib
import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..connector import Lag
from ..errors import NO_VALUE, UNKNOWN_SETTING, ConfigError
from ..protocol.units import printable
from .columns import Columns
from .errors import SourceError
from .ownership import Owner, Position, Range, ranges_between
from .settings import PluginSettings, parse_settings
from .sink import AdvancingStore, PositionStore, Sink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class BatchReader(ABC):
    """Plans and reads the batches of one task over Spark Connect, where the worker drives them. Used by one thread."""

    @abstractmethod
    def plan(self, start: Mapping[str, int]) -> Mapping[str, int]:
        """Return the end of the next batch, given its start; equal to ``start`` if there is nothing to read.

        Raises:
            SourceError: the source cannot be read.
        """

    def ranges(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[Range]:
        """Return the ranges of a planned batch; see ``SparkStream.ranges``."""
        return list(ranges_between(start, end))

    @abstractmethod
    def read(self, session: SparkSession, ranges: Sequence[Range]) -> DataFrame:
        """Return the rows of a batch, the same ones each time. Nothing is read until they are collected.

        Args:
            session: the task's session on the server.
            ranges: what ``plan`` has planned.
        """


class PartReader(BatchReader):
    """A reader whose batches are divided into parts that Python code reads.

    Attributes:
        columns: the columns of the rows.
        read_part: yields the rows of a part, the same ones each time. Spark's workers call it: it can be pickled.
    """

    columns: Columns
    read_part: Callable[[Range], Iterator[pa.RecordBatch]]

    @abstractmethod
    def parts(self, ranges: Sequence[Range]) -> list[tuple[str, Range]]:
        """Return the parts of planned ranges, in their order: the name of a part's slice, and what ``read_part`` reads.

        Raises:
            SourceError: the source cannot be read.
        """

    def reads_here(self, ranges: Sequence[Range]) -> bool:
        """Whether the task's own process reads these ranges, into one file of a sink, because that takes less time."""
        return False

    def read_here(self, ranges: Sequence[Range]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of planned ranges, each batch with the name of its slice, in the order of each slice.

        Raises:
            SourceError: the source cannot be read.
        """
        return ((name, rows) for name, part in self.parts(ranges) for rows in self.read_part(part))


class Publisher(ABC):
    """Shows the positions of one task to others, such as the tools of the system that it reads. The sink alone has the
    positions that a task continues at: no error of a publisher ends a task.
    """

    @abstractmethod
    def committed(self, positions: Mapping[str, int]) -> None:
        """Receive the position of slices after the sink has committed them. Must not block and not raise."""

    @abstractmethod
    def close(self) -> None:
        """Publish the last positions, for a few seconds at most. Called once, after the task's last commit."""


class OffsetAdmin:
    """What operators see and alter of a source's offsets. Commands and the REST server open no source for it.

    Attributes:
        slice_form: a regular expression of the names of its slices, and a text of it for people, if they have a form:
            an altered offset of any other slice is rejected, as no task would read it.
    """

    slice_form: ClassVar[tuple[str, str] | None] = None

    @classmethod
    def partition_of(cls, slice_name: str, position: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a slice and its position as JSON objects: ``partition`` and ``offset`` of Kafka Connect's REST API."""
        return {"slice": slice_name}, {"position": position}

    @classmethod
    def slice_of(cls, partition: Mapping[str, Any], offset: Mapping[str, Any] | None) -> tuple[str, int | None]:
        """Return the slice and the position of these JSON objects; the inverse of ``partition_of``.

        Raises:
            ConfigError: they have another form.
        """
        name = str(field_of("partition", partition, "slice", str))
        if cls.slice_form is not None and not re.fullmatch(cls.slice_form[0], name):
            raise ConfigError("partition.slice", name, cls.slice_form[1])
        return name, position_of(offset, "position")

    @classmethod
    def topic_of(cls, slice_name: str) -> str:
        """Return the Kafka topic that a slice is a part of; empty if it is none."""
        return ""


class BatchPlanner(ABC):
    """What one task reads of a source, batch by batch, with any driver of the batches; and what it has not read yet.

    Attributes:
        reads_remotely: whether ``batches`` is defined, or the worker itself polls the source: without it, a worker on
            Spark Connect rejects the source.
    """

    reads_remotely: ClassVar[bool] = False

    @property
    @abstractmethod
    def description(self) -> str:
        """A description of the source for people, equal on all workers (``csv files in /data``).

        A connector is bound to it: positions in one source mean nothing in another, so a sink rejects a connector
        that has read another source.
        """

    @abstractmethod
    def owns(self, slice_name: str) -> bool:
        """Whether a slice belongs to this task. Depends only on the name, ``task`` and ``tasks``."""

    def batches(self, positions: Mapping[str, int]) -> BatchReader:
        """Return what plans and reads the batches after these positions over Spark Connect, instead of ``stream``.

        Raises:
            SourceError: the source has no such batches.
        """
        raise SourceError(
            f"{self.description}: has no batches over Spark Connect; allowed: a worker with its own Spark"
        )

    def part_batches(self, positions: Mapping[str, int]) -> PartReader | None:
        """Return what plans and reads the batches after these positions, part by part, with Python code that a sink of
        files writes the rows next to, instead of ``stream``; ``None``: Spark reads the rows.
        """
        return None

    @classmethod
    def starts_without_spark(cls, settings: Mapping[str, str], *, is_tolerant: bool) -> bool:
        """Whether Python code reads the rows, so that a task reads its first batches while Spark starts.

        Args:
            settings: of the source, by name without prefix; secrets may be references.
            is_tolerant: whether a record that cannot be read is a dead letter.
        """
        return False

    def check_stored(self) -> None:  # noqa: B027 (most sources have only such columns)
        """Check that sinks store the types of all columns. Called if no transforms make others of them.

        Raises:
            ConfigError: they do not.
        """

    def check_read(self, ranges: Sequence[Range]) -> None:  # noqa: B027 (most sources have nothing to check)
        """Check, after the rows of a batch were read and before they are committed, that they are those of the slices.

        Raises:
            SourceError: a slice is not the one that its position belongs to.
        """

    def publisher(self, owner: Owner, positions: Mapping[str, int]) -> Publisher | None:
        """Return what publishes the positions of a task; ``None``: nothing does. Called when the task has claimed them.

        Args:
            owner: the task's grant.
            positions: the position of each known slice of this task, from the sink.
        """
        return None

    def explained(self, error: BaseException, positions: Mapping[str, int]) -> BaseException:
        """Return the error that a user should see when reading after these positions has failed."""
        return error

    def lag(self, positions: Mapping[str, int]) -> Lag | None:
        """Return what this task has not read yet after these positions; ``None`` if that cannot be determined cheaply.

        Called about every 10 s in a thread of its own, on the object that ``create`` returned, while the query of
        ``stream`` runs; never two calls at once. It may block, but must not count without a limit: a task spends at
        most a fiftieth of its time in it.

        Args:
            positions: the committed position of each known slice of this task; a missing slice is at position 0.

        Raises:
            SourceError: the source cannot be read now. The lag is measured again later.
        """
        return None

    def size_of(self, ranges: Sequence[Range]) -> int | None:
        """Return the bytes in these ranges; ``None`` if positions are not bytes."""
        return None


class SparkStream(ABC):
    """What a streaming query of Spark needs of a source: its rows, and the offsets that Spark logs as positions."""

    @abstractmethod
    def stream(self, session: SparkSession, positions: Mapping[str, int]) -> DataFrame:
        """Return the rows after these positions as a streaming DataFrame. Nothing is read until a query starts.

        The offset of the stream, as Spark logs it, must be one that ``positions`` converts.

        Args:
            session: the worker's session.
            positions: the position of each known slice of this task; a missing slice is at position 0.
        """

    def restore(self, checkpoint: Path, positions: Mapping[str, int]) -> None:
        """Prepare the new, empty checkpoint of a query that continues at these positions. Called before ``stream``.

        By default the checkpoint stays empty, and ``stream`` begins at the positions.

        Raises:
            SourceError: the query cannot continue at these positions.
        """
        return

    def logged(self, checkpoint: Path, batch_id: int) -> dict[str, int]:
        """Return the position of each slice at the end of a batch, from the checkpoint of its query.

        By default the offset in Spark's offset log, converted by ``positions``.

        Raises:
            SourceError: the offset has another form.
        """
        # Version, metadata, then one line for each source.
        text = (checkpoint / "offsets" / str(batch_id)).read_text()
        return self.positions(json.loads(text.split("\n")[2]))

    def positions(self, offset: Any) -> dict[str, int]:
        """Return the position of each slice at an offset of the stream, decoded from the JSON that Spark logs.

        By default the offset is a JSON object of slice name to position, or to a list of position and metadata.

        Raises:
            SourceError: the offset has another form.
        """
        if not isinstance(offset, dict):
            raise SourceError(f"offset {offset!r}; allowed: slice names and positions")
        return {name: Position(*at) if isinstance(at, list) else at for name, at in offset.items()}

    def ranges(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[Range]:
        """Return the ranges of a batch between two offsets, sorted by slice; slices without a change are omitted.

        A range of a slice without a position may be [0, 0): the position 0 is committed, and known from then on.
        """
        return list(ranges_between(start, end))


class Division(ABC):
    """How a connector's work is divided among its tasks, if the source decides that while it runs.

    The worker that owns the connector has one; its calls come one at a time.

    Attributes:
        credential_names: see ``Connector.credential_names``; known after the first call of ``task_settings``.
    """

    credential_names: Sequence[str] = ()

    @abstractmethod
    def task_settings(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """Return, for each task, the source's settings that are the task's own, without the prefix ``source.``.

        They replace the settings of the connector that begin with the same word (``config.``). Called every few
        seconds; tasks whose settings have changed are restarted.

        Raises:
            ConfigError: a setting cannot be used.
            SourceError: the source cannot be read.
        """

    def stop(self) -> None:  # noqa: B027 (to do nothing is the usual case)
        """Stop what ``task_settings`` has started. Idempotent."""


class Source(OffsetAdmin, BatchPlanner, SparkStream):
    """The part of a source that one task reads: how it is opened, its columns, and its three roles.

    Attributes:
        Settings: the settings under ``source.``; each field's description states the allowed values.
        columns: names and types of the columns.
        metadata: the columns that are record metadata (``dataplane.transform``); of the class, those that may be.
    """

    Settings: ClassVar[type[PluginSettings]]
    columns: Columns
    metadata: frozenset[str] = frozenset()

    @classmethod
    @abstractmethod
    def create(cls, settings: Any, *, task: int, tasks: int) -> Source:
        """Open the source for one task. Called on the worker that runs the task, each time the task starts.

        Args:
            settings: an instance of ``Settings``.
            task: the task's number, 0 to ``tasks`` - 1.
            tasks: the number of tasks of the connector.

        Raises:
            ConfigError: a setting cannot be used.
            SourceError: the source cannot be read.
        """

    @classmethod
    def task_layout(cls, settings: Any) -> str:
        """Return a text that describes the slices if they are fixed when a task starts; empty if tasks find new slices.

        The worker that owns the connector asks every few seconds, and restarts the tasks when the text changes.

        Raises:
            SourceError: the source cannot be read.
        """
        return ""

    @classmethod
    def divide(cls, settings: Any, committed: CommittedPositions) -> Division | None:
        """Return what divides the work among tasks; ``None``: task *i* of *n* knows its slices by ``owns``.

        Args:
            settings: an instance of ``Settings``.
            committed: the positions of all tasks.
        """
        return None

    @classmethod
    def known_columns(cls, settings: Any, *, reads: bool = False) -> frozenset[str] | None:
        """Return the names of the columns; ``None`` if only reading the source tells them.

        Args:
            settings: an instance of ``Settings``.
            reads: whether the source may be read for it.

        Raises:
            ConfigError: a setting cannot be used.
            SourceError: the source cannot be read.
        """
        if not reads:
            return None
        return frozenset(column.name for column in cls.create(settings, task=0, tasks=1).columns)

    @classmethod
    def check_access(cls, settings: Any, *, tasks: int) -> None:
        """Try to read the source: ``create`` by default. For ``validate``, on the machine of the operator or of REST.

        Raises:
            ConfigError: a setting cannot be used.
            SourceError: the source cannot be read.
        """
        cls.create(settings, task=0, tasks=tasks)

    def with_committed(self, committed: CommittedPositions) -> Source:
        """Return this source so that it may look up what all tasks of its connector have committed. Called once, before
        the columns are used.

        Raises:
            ConfigError: a setting cannot be used.
            SourceError: the source cannot be read.
            SinkError: the positions cannot be read.
        """
        return self

    def tolerant(self) -> Source:
        """Return this source so that a bad record is a row with an error (``dead_letters``), not an error of the batch.

        A source that has no errors of single records, or cannot tell which record is bad, returns itself.
        """
        return self

    def with_places(self) -> Source:
        """Return this tolerant source so that its rows have their places (``dead_letters.PLACE_COLUMN``), for the dead
        letters of transforms and sinks.

        A source that does not know them, or has them anyway, returns itself.
        """
        return self

    def with_marks(self) -> Source:
        """Return this source so that its rows say whether their record has a value (``HAS_VALUE_COLUMN`` of
        ``dead_letters``), for a sink that tells one without fields from none, and for transforms before it.

        A source whose records have fields, or that does not know it, returns itself.
        """
        return self


MAX_POSITION: Final = (1 << 63) - 1


def field_of(where: str, found: Mapping[str, Any], name: str, kind: type[str] | type[int]) -> str | int:
    """Return the only field of a JSON object, or one of several.

    Raises:
        ConfigError: the field is missing or of another type.
    """
    value = found.get(name, NO_VALUE)
    if value is NO_VALUE or not isinstance(value, kind) or isinstance(value, bool) or value == "":
        raise ConfigError(f"{where}.{name}", value, "a text" if kind is str else "a whole number from 0")
    return value


def position_of(offset: Mapping[str, Any] | None, name: str) -> int | None:
    """Return the position in an offset; ``None`` for ``None``.

    Raises:
        ConfigError: the field is missing, has another type or is negative, or there is another field.
    """
    if offset is None:
        return None
    for other in offset:
        if other != name:
            raise ConfigError(f"offset.{printable(other)}", UNKNOWN_SETTING, name)
    value = field_of("offset", offset, name, int)
    if not isinstance(value, int) or not 0 <= value <= MAX_POSITION:
        raise ConfigError(f"offset.{name}", value, f"a whole number from 0 to {MAX_POSITION}")
    return value


class CommitQueue:
    """At most one commit in progress, in a thread of its own. One thread submits."""

    def __init__(self, name: str, failed: Callable[[BaseException], None]) -> None:
        """Store the arguments.

        Args:
            name: of the threads.
            failed: called with the first error of a commit, in the commit's thread.
        """
        self._name, self._failed = name, failed
        self._done = threading.Event()
        self._done.set()
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a commit is in progress."""
        return not self._done.is_set()

    def submit(self, commit: Callable[[], None]) -> None:
        """Wait for the commit in progress, and start the next one.

        Raises:
            BaseException: the error of an earlier commit; no later batch is committed.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        # A daemon: a commit that hangs must not prevent the process from exiting.
        thread = threading.Thread(target=self._run, args=(commit,), name=self._name, daemon=True)
        self._done.clear()
        try:
            thread.start()
        except BaseException:
            self._done.set()  # the system has no thread
            raise

    def wait(self) -> None:
        """Wait until no commit is in progress."""
        self._done.wait()

    def _run(self, commit: Callable[[], None]) -> None:
        try:
            commit()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()
        if self._error is not None:
            # After the end of the commit: ``failed`` may wait for a thread that waits in ``submit``.
            self._failed(self._error)


# --------------------------------------------------------------------------------------------------
# The committed positions of all tasks of a connector, readable in Spark's processes as well.


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPositions:
    """Where the positions of a connector are: its sink's class and settings, as plain values for Spark.

    Attributes:
        connector: the connector's name.
        module, cls: module and name of the sink's class.
        settings: the settings of the sink, without the prefix; may contain a password.
    """

    connector: str
    module: str
    cls: str
    settings: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, connector: str, sink: type[Sink], settings: Mapping[str, str]) -> CommittedPositions:
        """Return the positions that a connector commits to a sink."""
        return cls(connector=connector, module=sink.__module__, cls=sink.__qualname__, settings=dict(settings))

    def read(self) -> dict[str, int]:
        """Return the position of each slice of the connector; none if the sink does not offer them.

        Raises:
            SinkError: the positions cannot be read.
        """
        store = self._store()
        if store is None:
            return {}
        with closing(store):
            return dict(store.positions(self.connector))

    def advance(self, owner: Owner, ranges: Sequence[Range]) -> bool:
        """Commit a batch without rows, before the columns of the sink are known; return whether the sink can.

        Raises:
            Fenced, OffsetConflict, SinkError: as ``Sink.claim`` and ``Sink.commit``.
        """
        store = self._store()
        if store is None:
            return False
        with closing(store):
            if not isinstance(store, AdvancingStore):
                return False
            store.advance(owner, ranges)
        return True

    def _store(self) -> PositionStore | None:
        sink: type[Sink] = getattr(importlib.import_module(self.module), self.cls)
        return sink.open_positions(parse_settings(sink.Settings, self.settings, prefix="sink."))

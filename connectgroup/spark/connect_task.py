"""One task of the source ``connect``: polls a plug-in of Kafka Connect, and commits what it has polled.

The columns are known when the first row is: the sink is opened then, and again when records have further columns. Until
then, the offsets of records without a row are committed alone.
A source partition is claimed in the sink with its first record; if its position is not the one with which the plug-in
was started, another task has committed meanwhile, and this one starts again. The plug-in's ``commitRecord`` and
``commit`` follow the sink's commit.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ..dataplane.columns import Column, Columns
from ..dataplane.dead_letters import ERROR_COLUMN, DeadLetterSink
from ..dataplane.errors import OffsetConflict, SourceError
from ..dataplane.ownership import Owner, Position, Range, ranges_between
from ..dataplane.polling import Triggered
from ..dataplane.transform import listed
from ..protocol.units import counted, printable
from .batches import Batches, Claimed
from .connect_runtime import STOP_BOUND_MS, JavaTask, JavaTransform, Polled, java_ended
from .converters import HEADERS_TYPE
from .errors import SparkError, root_cause
from .query import Pipeline, SparkTask
from .remote import own_session
from .session import session_is_alive, spark_session
from .sources.connect import MAX_METADATA_BYTES, ConnectSource, decoded_offsets, encoded, is_within_snapshot
from .transforms.chain import Chain, columns_after

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from ..connector import TaskContext
    from ..dataplane.sink import Sink

logger = logging.getLogger(__name__)

_STOP_S: Final = STOP_BOUND_MS / 1000
_MAX_WITHOUT_ROW: Final = 100_000
"""Records that Java keeps for the plug-in's ``commitRecord`` while none of them has had a row."""
T = TypeVar("T")


class ConnectTask(SparkTask):
    """Reads a plug-in's records into a sink, exactly once, while this worker owns the task."""

    def __init__(self, context: TaskContext, pipeline: Pipeline, transforms: Sequence[JavaTransform] = ()) -> None:
        """Store the arguments; nothing is opened before ``start``.

        Args:
            transforms: the transformations of plug-ins, before those of the pipeline.
        """
        super().__init__(context, pipeline)
        self._transforms = transforms

    def start(self) -> None:
        source = self._pipeline.source()
        assert isinstance(source, ConnectSource)
        self._context.scratch.mkdir(parents=True, exist_ok=True)
        query = ConnectPolling(self, source, spark_session(), self._transforms)
        query.start()
        self._query = query
        watcher = threading.Thread(target=self._watched, args=(query,), name=f"watch {self._context.unit}", daemon=True)
        watcher.start()
        self._watcher = watcher

    def stop(self) -> None:
        self._stopping.set()
        if self._query is not None:
            self._query.stop()

    def abandon(self) -> None:
        """Do nothing: ``stop`` is bounded, and other tasks run in the same Java process."""

    def _watched(self, query: ConnectPolling) -> None:
        error: BaseException
        try:
            query.awaitTermination()
            error = SourceError(f"{query.name} has ended; allowed: the worker ends it")
        except BaseException as raised:
            error = raised
        if not self._stopping.is_set():
            query.end_plugin()
            self._context.failed(root_cause(error) if session_is_alive() else query.java_ended())


class ConnectPolling(Triggered):
    """The query of such a task: one thread of Python, and one of Java that polls ahead."""

    def __init__(
        self, task: ConnectTask, source: ConnectSource, session: SparkSession, transforms: Sequence[JavaTransform]
    ) -> None:
        """Store the arguments; ``start`` starts."""
        super().__init__(task._name, interval_ms=task._interval_ms())
        self._task, self._source, self._transforms = task, source, transforms
        # A session of its own: the view of an sql step is visible in the whole session.
        self._session = own_session(session)
        self._context, self._pipeline = task._context, task._pipeline
        self._rows_file = self._context.scratch / "rows.arrow"
        unit = self._context.unit
        self._owner = Owner(
            connector=unit.connector,
            task=unit.task,
            tasks=self._pipeline.tasks,
            fencing_token=self._context.fencing_token,
            source=source.description,
        )
        # All of these are changed by the query's thread alone.
        self._java: JavaTask | None = None
        self._in_plugin_since_s: float | None = None
        self._chain: Chain | None = None
        self._sink: Sink | None = None
        self._columns: Sequence[tuple[str, str]] = ()
        self._batches: Batches | None = None
        self._claimed: set[str] = set()
        self._committed: dict[str, int] = {}
        self._read: dict[str, int] = {}
        self._held: list[pa.Table] = []
        self._without_row = 0
        self._is_large_snapshot = False
        # The threads of the plug-in that the log has named; changed by end_plugin.
        self._left: list[str] = []
        self._wake.set()  # the first trigger is due at once

    def stop(self) -> None:
        """End the query. A commit of the sink that is in progress has succeeded or failed on return; a plug-in that
        hangs is left behind: what it returns is not committed any more."""
        self._stopping = True
        self._wake.set()
        self.end_plugin()
        while self._thread.is_alive():
            self._thread.join(0.2)
            since_s = self._in_plugin_since_s
            if since_s is not None and time.monotonic() - since_s > _STOP_S:
                logger.error("%s: a call of the plug-in does not return; its thread is left behind", self.name)
                return

    def end_plugin(self) -> None:
        """Stop the plug-in's task; log where it hangs if it does not end."""
        java = self._java
        if java is None:
            return
        try:
            place = java.stop()
            left = [] if place else java.left_threads()
        except Exception as error:
            if session_is_alive():
                logger.warning("%s: %s", self.name, error)
            return
        if place:
            logger.error("%s: the plug-in does not stop; its thread is left behind at %s", self.name, place)
        if left and left != self._left:
            self._left = left
            count, names = counted(len(left), "thread"), printable(", ".join(left), limit=500)
            logger.warning("%s: the plug-in has stopped, but not ended %s: %s", self.name, count, names)

    def java_ended(self) -> BaseException:
        """Return the error about the Java process that has ended."""
        return SparkError(java_ended(self._source.settings.connector_class))

    def _trigger(self) -> None:
        if self._java is None:
            self._start_plugin()
        java = self._java
        assert java is not None
        while not self._stopping:
            polled = self._call(lambda: java.take(0, self._rows_file))
            if polled is None or self._stopping:
                break
            self._take(java, polled)
            if polled.records < self._source.settings.max_rows_per_batch:
                break
        if text := self._call(java.retried_after):
            logger.warning("%s: polls again after %s", self.name, text)
        if self._call(java.is_started):
            self._context.polled()

    def _start_plugin(self) -> None:
        """Read the committed offsets, and start the plug-in from them."""
        settings = self._source.settings
        self._committed = dict(self._pipeline.committed(self._context.unit.connector).read())
        self._read = dict(self._committed)
        config = {"connector.class": settings.connector_class, **settings.plugin_config}
        offsets = decoded_offsets(self._committed)
        options = settings.row_options(is_tolerant=self._task.tolerates_errors)
        java = self._call(lambda: JavaTask(self.name, config, offsets, self._transforms, options))
        if settings.value_form == "json":
            # The columns are known: what is wrong with the sink shows before there is a record.
            kinds = {"partition": "INT", "timestamp": "TIMESTAMP", "headers": HEADERS_TYPE.format("STRING")}
            self._open([(name, kinds.get(name, "STRING")) for name in (*listed(settings.metadata), "value")])
        self._java = java
        if not self._stopping:
            self._call(java.start)

    def _take(self, java: JavaTask, polled: Polled) -> None:
        """Commit what has been polled, and tell the plug-in."""
        import pyarrow as pa

        for partition, count, offset in polled.offsets:
            # As changes of offsets name it: Java writes some numbers and characters in another way.
            name, text = encoded(json.loads(partition)), encoded(offset)
            if len(text) > MAX_METADATA_BYTES:
                raise SourceError(
                    f"{self._source.description}: source partition {name} has an offset of {len(text)} bytes; allowed:"
                    f" up to {MAX_METADATA_BYTES} bytes"
                )
            self._read[name] = Position(int(self._read.get(name, 0)) + count, text)
        if not polled.columns:
            # No record has had a row, so no columns are known, and the sink cannot be opened.
            if polled.rows:
                self._held.append(self._rows(java))
            elif not self._held and not _is_in_snapshot(polled) and self._advance():
                self._tell(java)
                return
            self._without_row += polled.records
            if self._without_row > _MAX_WITHOUT_ROW:
                if self._held:
                    raise self._only_failures()
                self._call(java.hold)
            return
        rows = self._rows(java)
        if self._is_held(polled, rows):
            self._held.append(rows)
            self._call(java.hold)
            return
        if self._held:
            rows, self._held = pa.concat_tables([*self._held, rows], promote_options="permissive"), []
        if self._batches is None or list(polled.columns) != list(self._columns):
            self._open(polled.columns)
        assert self._batches is not None
        ranges = list(ranges_between(self._committed, self._read))
        self._claim(ranges)
        self._batches.commit_rows(self._session, rows, ranges)
        if self._stopping:
            return
        self._committed.update({each.slice: each.end for each in ranges})
        self._tell(java)

    def _advance(self) -> bool:
        """Commit the offsets of records without rows, such as heartbeats, if the sink can without columns: a database
        keeps its log until the plug-in learns of a commit, and the first row may be long in coming."""
        ranges = list(ranges_between(self._committed, self._read))
        if not ranges or not self._pipeline.committed(self._context.unit.connector).advance(self._owner, ranges):
            return False
        self._committed.update({each.slice: each.end for each in ranges})
        self._without_row = 0
        return True

    def _tell(self, java: JavaTask) -> None:
        if text := self._call(java.committed):
            logger.warning("%s: commit of the plug-in: %s", self.name, text)

    def _only_failures(self) -> SourceError:
        first = next(text for rows in self._held for text in rows[ERROR_COLUMN].to_pylist() if text)
        letter = json.loads(first)
        return SourceError(
            f"{self._source.description}: none of {self._without_row} records is a row, so no columns are known, and"
            f" nothing can be committed; the first one failed: {letter['place']}: {letter['reason']}; allowed:"
            " transforms that accept records, or source.value.form=json"
        )

    def _is_held(self, polled: Polled, rows: pa.Table) -> bool:
        """Whether these rows wait for the end of a snapshot, from whose middle the plug-in cannot continue: it would
        begin it anew, and repeat what has been committed."""
        if not _is_in_snapshot(polled):
            return False
        most = self._source.settings.snapshot_max_bytes
        if self._is_large_snapshot or sum(each.nbytes for each in self._held) + rows.nbytes > most:
            if not self._is_large_snapshot:
                logger.warning(
                    "%s: the snapshot has more than %d bytes (source.snapshot.max.bytes), so it is committed in parts:"
                    " if the task is interrupted before its end, rows are repeated",
                    self.name,
                    most,
                )
            self._is_large_snapshot = True
            return False
        return True

    def _rows(self, java: JavaTask) -> pa.Table:
        import pyarrow as pa

        with pa.OSFile(str(self._rows_file)) as file, pa.ipc.open_stream(file) as stream:
            rows = stream.read_all()
        if ERROR_COLUMN not in rows.column_names:
            return rows
        at, letters = rows.column_names.index(ERROR_COLUMN), rows[ERROR_COLUMN]
        if letters.null_count == len(letters):
            return rows
        masked = [text and java.masked(text) for text in letters.to_pylist()]
        return rows.set_column(at, ERROR_COLUMN, pa.array(masked, pa.string()))

    def _open(self, found: Sequence[tuple[str, str]]) -> None:
        """Open the sink for these columns."""
        if self._sink is not None:
            self._sink.close()
        self._claimed.clear()
        self._columns = found
        columns: Columns = tuple(Column(name, kind) for name, kind in found)
        if self._chain is None:
            self._chain = self._pipeline.chain(self._source)
        metadata = frozenset(listed(self._source.settings.metadata))
        sink = self._sink = self._pipeline.sink(columns_after(self._chain, columns, self._session, metadata))
        if self._pipeline.dead_letters and isinstance(sink, DeadLetterSink):
            sink.open_dead_letters(self._pipeline.dead_letters)
        positions = self._check(sink.claim(self._owner, self._source.owns))
        claimed = Claimed(
            owner=self._owner,
            source=self._source,
            chain=self._chain,
            sink=sink,
            positions=positions,
            checkpoint=Path(self._context.scratch),
        )
        self._claimed.update(positions)
        self._batches = Batches(claimed, self._task)

    def _claim(self, ranges: Sequence[Range]) -> None:
        """Claim the source partitions of which this task has its first records."""
        new = {each.slice for each in ranges if each.start} - self._claimed
        if new:
            assert self._sink is not None
            self._claimed |= new
            self._check(self._sink.claim(self._owner, self._claimed.__contains__))

    def _call(self, call: Callable[[], T]) -> T:
        """Call the plug-in; ``stop`` does not wait for it for ever."""
        self._in_plugin_since_s = time.monotonic()
        try:
            return call()
        finally:
            self._in_plugin_since_s = None

    def _end(self) -> None:
        if self._sink is not None:
            self._sink.close()
        self._rows_file.unlink(missing_ok=True)

    def _check(self, positions: Mapping[str, int]) -> Mapping[str, int]:
        for name, position in positions.items():
            if position != self._committed.get(name, 0):
                raise OffsetConflict(
                    f"{self._owner}: source partition {name} stands at {int(position)}, the plug-in was started at"
                    f" {int(self._committed.get(name, 0))}; allowed: the task starts again from there"
                )
        return positions


def _is_in_snapshot(polled: Polled) -> bool:
    """Whether an offset is one in the middle of a snapshot."""
    return any(is_within_snapshot(offset) for _, _, offset in polled.offsets)

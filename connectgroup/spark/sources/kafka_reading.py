"""Reads ranges of topic partitions with librdkafka: for a sink of files, whose rows need no way through Java.

Records whose values are parsed are read by Spark's Python workers, side by side, which write the sink's files
(``spark.writing``); others, and a small batch, by the task's own process. A range ends with the first record at or
behind its end, or with the end of the partition: compaction and the markers of transactions leave gaps.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...dataplane.columns import Columns, to_arrow
from ...dataplane.errors import SourceError
from ...dataplane.ownership import Range
from ...gc_tuning import no_collections
from ...protocol.units import printable
from .json_values import check_years
from .kafka_records import NOT_UTF8, KafkaValues

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, KafkaError, Message

PATIENCE_S: Final = 120.0
"""How long a range is waited for without any record: as long as Spark's Kafka source waits."""
_MOST: Final = 10_000
"""Records of one call of librdkafka, and rows of one Arrow batch."""
_CALL_S: Final = 0.02
"""How long such a call collects records. It does not return at the end of a partition, but waits for so many."""
_FETCH: Final = {
    # Fetched and not read yet when a range ends: this is discarded.
    "queued.max.messages.kbytes": 8 << 10,
    "queued.min.messages": 20_000,
    # By default librdkafka fetches nothing for a second when it has so many.
    "fetch.queue.backoff.ms": 2,
    "fetch.message.max.bytes": 4 << 20,
    # How long a fetch waits at the end of a topic, which is reported after it.
    "fetch.wait.max.ms": 20,
    "check.crcs": True,
}
_OURS: Final = {
    # librdkafka requires a group. The consumer neither joins it nor commits.
    "group.id": "connectgroup",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "log_level": 0,
}
_FETCHED_AGAIN: Final = frozenset(
    {
        "BROKER_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "FETCH_SESSION_ID_NOT_FOUND",
        "INCONSISTENT_TOPIC_ID",
        "INVALID_FETCH_SESSION_EPOCH",
        "KAFKA_STORAGE_ERROR",
        "LEADER_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "NOT_LEADER_FOR_PARTITION",
        "OFFSET_NOT_AVAILABLE",
        "REPLICA_NOT_AVAILABLE",
        "REQUEST_TIMED_OUT",
        "THROTTLING_QUOTA_EXCEEDED",
        "UNKNOWN",
        "UNKNOWN_LEADER_EPOCH",
        "UNKNOWN_TOPIC_ID",
    }
)
"""Errors of a broker for a partition that pass: librdkafka reports some of them, and fetches again."""
_MAX_IDLE: Final = 4
"""Connected consumers that a process keeps for its next ranges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecords:
    """Yields the rows of a range of a topic partition; ``PartReader.read_part``.

    Attributes:
        servers: of the cluster.
        client: settings of librdkafka's consumer.
        columns: of the rows.
        values: parses the values; ``None``: they are the column ``value``.
    """

    servers: str
    client: Mapping[str, str] = field(repr=False)
    columns: Columns
    values: KafkaValues | None

    def __call__(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range; see ``read``."""
        return (rows for _, rows in self.read((wanted,)))

    def read(self, wanted: Sequence[Range]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of ranges, each batch with its slice, TOPIC-PARTITION; those of a slice are in order. Batches
        have no rows while the cluster does not answer.

        Raises:
            SourceError: the records cannot be read, or one of them is no row.
        """
        import pyarrow as pa

        with _connected(self.servers, self.client) as reader:
            for name, messages in reader.read(wanted):
                if not messages:
                    yield name, pa.RecordBatch.from_pylist([], to_arrow(self.columns))
                    continue
                with no_collections():
                    rows = self._rows(messages)
                yield name, rows

    def _rows(self, messages: Sequence[Message]) -> pa.RecordBatch:
        import pyarrow as pa

        if self.values is None:
            return pa.RecordBatch.from_pydict(
                {column.name: _column(messages, column.name, column.type) for column in self.columns}
            )
        raw = {f"connectgroup_{name}": (name, kind) for name, kind in _RAW.items()}
        is_parsed = bool(self.values.fields) or self.values.value_schemas
        texts = [*([] if is_parsed else self.columns[:1]), *self.values.metadata]
        kept = [column for column in texts if column.name != "key" or not self.values.key_schemas]
        wanted = raw | {column.name: (column.name, column.type) for column in kept}
        arrays = {name: _column(messages, *each) for name, each in wanted.items()}
        return self.values.rows(pa.RecordBatch.from_pydict(arrays))


_RAW: Final = {"value": "BINARY", "key": "BINARY", "topic": "STRING", "partition": "INT", "offset": "BIGINT"}
"""What ``KafkaValues`` reads."""


def _column(messages: Sequence[Message], name: str, kind: str) -> pa.Array:
    """Return one column of records: a part of them, as its type.

    Raises:
        SourceError: a key or a value is no text, or a time is in a year that no sink has.
    """
    import pyarrow as pa

    first = messages[0]
    if name == "topic":
        return pa.repeat(pa.scalar(first.topic(), pa.string()), len(messages))
    if name == "partition":
        return pa.repeat(pa.scalar(first.partition(), pa.int32()), len(messages))
    if name == "offset":
        return pa.array([message.offset() for message in messages], pa.int64())
    if name == "timestamp":
        # -1 ms, or of no kind: the record has none, as those of the oldest format.
        found = (message.timestamp() for message in messages)
        times = pa.array([at if kind and at != -1 else None for kind, at in found], pa.int64())
        return _converted(messages, times, _time, f"the timestamp is {_YEARS}")
    if name == "timestamp_type":
        return pa.array([_TIMESTAMP_TYPES.get(message.timestamp()[0]) for message in messages], pa.string())
    parts = [message.value() for message in messages] if name == "value" else [message.key() for message in messages]
    found = pa.array(parts, pa.binary())
    if kind == "BINARY":
        return found
    return _converted(messages, found, lambda part: part.cast(pa.string()), NOT_UTF8.format(name=name))


_TIMESTAMP_TYPES: Final = {1: "CreateTime", 2: "LogAppendTime"}
"""Kafka's ``message.timestamp.type`` of librdkafka's numbers."""
_YEARS: Final = "outside of the years 1 to 9999; allowed: a number of milliseconds since 1970"


def _time(milliseconds: pa.Array) -> pa.Array:
    import pyarrow as pa

    times = milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
    check_years(times)
    return times


def _converted(messages: Sequence[Message], found: pa.Array, convert: Any, reason: str) -> pa.Array:
    """Return values converted; the error names the first record whose value cannot be."""
    import pyarrow as pa

    faults = (pa.ArrowInvalid, OverflowError)
    try:
        return convert(found)
    except faults:
        for at, message in enumerate(messages):
            try:
                convert(found.slice(at, 1))
            except faults as error:
                place = f"{message.topic()}-{message.partition()}, offset {message.offset()}"
                raise SourceError(f"{place}: {reason}") from error
        raise


# --------------------------------------------------------------------------------------------------
# Consumers: a process keeps those that have read a range to its end, for each has connections and threads.

_lock: Final = threading.Lock()
_idle: Final[list[tuple[str, RangeReader]]] = []
"""Consumers that nothing reads from, the longest unused first, each with its settings. Changed under the lock."""


@contextlib.contextmanager
def _connected(servers: str, client: Mapping[str, str]) -> Iterator[RangeReader]:
    """A consumer for some ranges. One that has failed, or whose ranges were not read to its end, is not used again."""
    key = json.dumps([servers, sorted(client.items())])
    with _lock:
        at = next((at for at, (name, _) in enumerate(_idle) if name == key), None)
        reader = None if at is None else _idle.pop(at)[1]
    reader = reader or RangeReader(servers, client)
    try:
        yield reader
    except BaseException:
        reader.close()
        raise
    with _lock:
        _idle.append((key, reader))
        unused = _idle.pop(0)[1] if len(_idle) > _MAX_IDLE else None
    if unused is not None:
        unused.close()


class RangeReader:
    """A consumer that reads one range after the other."""

    def __init__(self, servers: str, client: Mapping[str, str]) -> None:
        """Connect in the background.

        Raises:
            SourceError: librdkafka does not accept the settings.
        """
        from confluent_kafka import Consumer, KafkaException

        self._where = f"Kafka {servers}"
        # The last problem that librdkafka has reported of the cluster; set by its callback, within calls of ``read``.
        self._problem = ""
        try:
            settings = {**_FETCH, **client, "bootstrap.servers": servers, **_OURS, "error_cb": self._told}
            self._consumer: Consumer = Consumer(settings)
        except KafkaException as error:
            raise SourceError(f"{self._where}: {printable(error.args[0].str())}") from error

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def read(self, wanted: Sequence[Range]) -> Iterator[tuple[str, list[Message]]]:
        """Yield the records of ranges, some of one slice at a time, in their order; the consumer then reads nothing,
        and can be used again. No records are yielded now and then while there are none, so that the caller may end.

        Raises:
            SourceError: a record is not there any more, or the cluster does not answer.
        """
        from confluent_kafka import TopicPartition

        partitions = {each.slice: TopicPartition(*_parted(each.slice), int(each.start)) for each in wanted}
        left = {each.slice: (int(each.start), int(each.end)) for each in wanted if each.end > each.start}
        self._consumer.assign([partitions[name] for name in left])
        give_up = time.monotonic() + PATIENCE_S
        while left:
            # Gaps only make the records fewer: with so many, the ends are reached.
            most = min(_MOST, sum(end - at for at, end in left.values()))
            messages = self._consumer.consume(most, _CALL_S)
            if not messages:
                if time.monotonic() > give_up:
                    raise self._no_answer(left)
                yield next(iter(left)), []
            for name, some in _by_slice(messages):
                if name not in left:
                    self._check(some, "")
                    continue
                before, end = left[name]
                records, at = self._before(end, some, before)
                if at < end:
                    left[name] = at, end
                else:
                    del left[name]
                    if left:
                        self._consumer.incremental_unassign([partitions[name]])
                if records:
                    yield name, records
                if at > before:
                    # What the caller takes to write the records is no time of the cluster.
                    give_up = time.monotonic() + PATIENCE_S
        self._consumer.unassign()

    def _before(self, end: int, messages: list[Message], at: int) -> tuple[list[Message], int]:
        """Return the records of a slice before its end, and the offset that has been reached.

        Args:
            at: the offset that was reached before.
        """
        from confluent_kafka import KafkaError, Message

        last = messages[-1].offset() or 0
        if last < end and not any(map(Message.error, messages)):
            return messages, last + 1
        records = []
        for message in messages:
            error, offset = message.error(), message.offset() or 0
            if error is None:
                at = offset + 1
                if offset < end:
                    records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                at = max(at, offset)
            else:
                self._check((message,), f", offset {at}")
        return records, at

    def _check(self, messages: Sequence[Message], place: str) -> None:
        """Raise the first error of a partition, or one from which librdkafka does not recover; remember others, and
        those after which it fetches again: if no record follows, the error says so."""
        from confluent_kafka import KafkaError

        for message in messages:
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                continue
            self._told(error)
            if error.fatal() or (message.topic() and not error.retriable() and error.name() not in _FETCHED_AGAIN):
                where = f"topic {message.topic()}, partition {message.partition()}{place}"
                raise SourceError(f"{self._where}: {where}: {self._problem}")

    def _no_answer(self, left: Mapping[str, tuple[int, int]]) -> SourceError:
        name, (at, _) = next(iter(left.items()))
        topic, partition = _parted(name)
        problem = f" ({self._problem})" if self._problem else ""
        return SourceError(
            f"{self._where}: topic {topic}, partition {partition}: no record from offset {at} on within"
            f" {PATIENCE_S:g} s{problem}; allowed: a cluster that answers"
        )

    def _told(self, error: KafkaError) -> None:
        self._problem = printable(error.str(), limit=200)


def _parted(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition("-")
    return topic, int(partition)


def _by_slice(messages: list[Message]) -> Iterable[tuple[str, list[Message]]]:
    """Return messages by slice, each slice's in their order; errors of the client itself are of ``None-None``."""
    if not messages:
        return ()
    found: dict[tuple[str | None, int | None], list[Message]] = {}
    for message in messages:
        found.setdefault((message.topic(), message.partition()), []).append(message)
    return [(f"{topic}-{partition}", some) for (topic, partition), some in found.items()]

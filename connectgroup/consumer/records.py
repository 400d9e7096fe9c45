"""Records, and fetched records: those that keep librdkafka's message and read its fields on demand.

Most programs read one or two fields of a record. Copying all of them takes longer than reading the record does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from typing import Any, NamedTuple

from ..protocol.units import TopicPartition
from .errors import with_extra

with with_extra():
    from confluent_kafka import Message


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Record:
    """One record. Records with equal fields are equal.

    Attributes:
        topic: its topic.
        partition: its partition.
        offset: its offset in the partition.
        timestamp_ms: since 1970, -1 if it has none.
        key: ``None`` if it has none.
        value: ``None`` if it is a tombstone.
        headers: in order; names may repeat.
        leader_epoch: of the leader that wrote it, -1 unknown.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    leader_epoch: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def _fields(self) -> tuple[object, ...]:
        return (self.topic, self.partition, self.offset, self.timestamp_ms, self.key, self.value, self.headers)

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, Record) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())


class FetchedRecord(Record):
    """A record whose fields are read from librdkafka's message."""

    __slots__ = ("_message",)

    _message: Any

    def __new__(cls, **fields: Any) -> Record:  # type: ignore[misc]
        # ``dataclasses.replace`` creates an object of this class from fields; they have no message.
        return Record(**fields)

    @property
    def topic(self) -> str:
        return self._message.topic()  # type: ignore[no-any-return]

    @property
    def partition(self) -> int:
        return self._message.partition()  # type: ignore[no-any-return]

    @property
    def offset(self) -> int:
        return self._message.offset()  # type: ignore[no-any-return]

    @property
    def timestamp_ms(self) -> int:
        kind, timestamp_ms = self._message.timestamp()
        return timestamp_ms if kind else -1

    @property
    def key(self) -> bytes | None:
        return self._message.key()  # type: ignore[no-any-return]

    @property
    def value(self) -> bytes | None:
        return self._message.value()  # type: ignore[no-any-return]

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        return tuple(self._message.headers() or ())

    @property
    def leader_epoch(self) -> int:
        epoch = self._message.leader_epoch()
        return -1 if epoch is None else epoch

    def __reduce__(self) -> tuple[Any, ...]:
        # A message of librdkafka cannot be pickled or copied.
        fields = {name: getattr(self, name) for name in Record.__dataclass_fields__}
        return _record, (fields,)


def _record(fields: dict[str, Any]) -> Record:
    return Record(**fields)


class RecordRun(NamedTuple):
    """Consecutive messages of one partition, at least one, in order.

    They become records when they are returned, not before: the garbage collector counts the records that exist.
    """

    partition: TopicPartition
    messages: list[Message]


def runs_of(messages: Sequence[Message]) -> list[RecordRun]:
    """Messages without errors, in runs of one partition. Its loops are built-in functions: they run for each record."""
    runs = []
    # Partition numbers alone nearly always tell runs apart; then one look at the topics confirms it.
    for partition, of_it in groupby(messages, Message.partition):
        run = list(of_it)
        parts = [run] if len(set(map(Message.topic, run))) == 1 else _by_topic(run)
        runs += [RecordRun(TopicPartition(part[0].topic() or "", partition or 0), part) for part in parts]
    return runs


def records_of(messages: Sequence[Message]) -> list[Record]:
    """Create the records of messages, without a function of Python for each."""
    records = list(map(_new, repeat(FetchedRecord, len(messages))))
    deque(map(_keep, records, messages), maxlen=0)
    return records


def record_of(message: Message) -> Record:
    """Create the record of a message."""
    record = _new(FetchedRecord)
    _keep(record, message)
    return record


def _by_topic(messages: list[Message]) -> list[list[Message]]:
    return [list(of_it) for _, of_it in groupby(messages, Message.topic)]


_new: Callable[[type[Record]], Record] = object.__new__
_keep: Callable[[Record, Message], None] = FetchedRecord.__dict__["_message"].__set__

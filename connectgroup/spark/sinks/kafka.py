"""The sink ``kafka``: records in topics; offsets and fencing tokens in a compacted topic, all in one transaction.

A reader with ``isolation.level=read_committed`` sees each batch whole and once. The transactional id of a task contains
the number of tasks and the task's number, so a task fences its predecessor when it initializes its transactions. The
rules are those of ``dataplane.fences``; ``kafka_offsets`` has the state that they are checked against.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from ...connector import LocalPath
from ...dataplane.columns import Columns, as_objects
from ...dataplane.dead_letters import HAS_VALUE_COLUMN, DeadLetter, DeadLetterSink, reject, write_rows
from ...dataplane.errors import DataPlaneError, OffsetConflict, SinkError, TaskFenced
from ...dataplane.ownership import Owner, Range
from ...dataplane.transform import listed
from ...errors import NO_VALUE, ConfigError
from ...protocol.units import printable
from ..converters import ConverterSettings, Form, encoder, headers_of, text_of
from ..kafka_client import admin, client_files, client_settings
from .kafka_offsets import (
    TIMEOUT_S,
    KafkaPositions,
    OffsetsTopic,
    as_sink_error,
    reason,
    slice_records,
    transactional_id,
    transactional_producer,
)
from .tables import without

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import KafkaError, Message, Producer

_HEADERS: Final = re.compile(r"MAP<|ARRAY<STRUCT<(?=.*\bkey:)(?=.*\bvalue:)", re.IGNORECASE)
METADATA: Final = ("key", "topic", "partition", "offset", "timestamp", "timestamp_type", "headers")
"""Columns that may be the record's own and no fields of its value. Partition and offset are those of another topic, and
the type of timestamps is that of a topic."""
MAX_LETTER: Final = 500_000
"""Bytes of a record in the JSON of a dead letter, of each other field a fifth: a record that is too large for its topic
is too large for this one, too."""

_ROW_ERRORS: Final = (
    "MSG_SIZE_TOO_LARGE",
    "INVALID_TIMESTAMP",
    "INVALID_RECORD",
    "TOPIC_EXCEPTION",
    "_INVALID_ARG",
    "_INVALID_DIFFERENT_RECORD",
    "_UNKNOWN_PARTITION",
)
"""Errors of confluent-kafka that are those of a record: its size, its timestamp, no key, the name of its topic, the
number of its partition."""
_FENCED: Final = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE")
"""Errors of confluent-kafka of a producer whose transaction is not its own any more."""
_Headers = list[tuple[str, bytes | str | None]]
_Record = tuple[str, bytes | str | None, bytes | str | None, _Headers, int, int]
"""Topic, key, value, headers, the timestamp in milliseconds (0: the time at which it is written), and the partition
(-1: the client chooses)."""


class KafkaSinkSettings(ConverterSettings):
    """Settings of the sink ``kafka``, each with the prefix ``sink.``."""

    bootstrap_servers: Annotated[str, Field(min_length=1, description="host:port, separated by commas")]
    topic: Annotated[str, Field(description="the topic of rows whose record has none")] = ""
    metadata: Annotated[
        str | None,
        Field(
            description="columns that are the record's own and no fields of its value: key, topic, timestamp, headers"
            " are written; partition (see sink.keep.partitions), offset and timestamp_type are left out. By default"
            " those that the source kafka reads, and those that ValueToKey and RegexRouter make; a column of this name"
            " that another transform makes is one only if it is listed here, or in source.metadata; empty: every column"
            " is a field"
        ),
    ] = None
    keep_partitions: Annotated[
        bool,
        Field(
            description="true, false: whether a record is written to the partition in partition, if that is in"
            " sink.metadata and not null. By default false; with the source connect true, as in Kafka Connect"
        ),
    ] = False
    offsets_topic: Annotated[
        str,
        Field(
            min_length=1, description="a topic with cleanup.policy=compact, of one partition; created if it is missing"
        ),
    ] = "connectgroup-offsets"
    transaction_timeout_ms: Annotated[
        int, Field(ge=1000, le=900_000, description="1000 to 900000; a suspended worker delays readers by as much")
    ] = 15_000
    client: Annotated[
        str,
        LocalPath(within=client_files),
        Field(description="settings of the Kafka client as a JSON object, such as compression.type"),
    ] = ""

    def model_post_init(self, _: Any) -> None:
        """Check the client's settings and the converters.

        Raises:
            ConfigError: one of them is not allowed.
        """
        client_settings("sink.client", self.client)
        self.check_converters("sink.")
        for name in listed(self.metadata or ""):
            if name not in METADATA:
                raise ConfigError("sink.metadata", name, ", ".join(METADATA))


class KafkaSink(DeadLetterSink):
    """Writes each row as a record, in transactions that contain the offsets. The record's value is a JSON object of all
    columns, or a single column ``value`` as it is; the columns of ``sink.metadata`` are the record's key, topic,
    timestamp and headers instead. A row with a key whose fields are all null is a record without a value (a tombstone).
    From the source ``kafka`` with fields of the value (``source.schema``, or Avro) and without ``sql`` or transforms of
    other packages, a record whose fields are all null is a tombstone only if it was one, with or without a key, as in
    Kafka Connect; ``{}`` stays a value. A record from Kafka keeps its timestamp, unless the topic has its own
    (``message.timestamp.type``); of other times, a fraction of a millisecond is cut off. Numbers that JSON does not
    have are the texts NaN, Infinity and -Infinity. A value that its field in an Avro schema would change (2147483648 as
    an int, a fraction of a millisecond, null without a union) is an error or, with ``errors.tolerance=all``, a dead
    letter; so is a timestamp with such a fraction with JsonConverter, which writes its milliseconds. The key chooses
    the partition as in Kafka's Java clients (``partitioner`` in ``sink.client``: another way). A connector that would
    write to a topic that it reads, on the same cluster, is rejected.

    The columns of ``sink.metadata`` are the record's own: a key that is a struct is written as JSON, ``timestamp`` is
    the record's time, ``headers`` is an array of structs of key and value, or a map. If the only other column is
    ``value``, it is the record's value as it is; else the value is a JSON object of all other columns.
    ``key.converter`` and ``value.converter`` write other forms.
    """

    Settings = KafkaSinkSettings
    takes_marks = True

    def __init__(self, settings: KafkaSinkSettings, columns: Columns) -> None:
        """Connect, and create the topic of offsets if it is missing.

        Raises:
            ConfigError: confluent-kafka is not installed, or there is no topic to write to.
            SinkError: the cluster does not answer.
        """
        self._metadata = metadata_of(settings, columns)
        if "topic" not in self._metadata and not settings.topic:
            raise ConfigError("sink.topic", NO_VALUE, "a topic, or topic in sink.metadata and in the rows")
        _check_forms(settings, columns, self._metadata)
        self._settings = settings
        self._keeps_partitions = settings.keep_partitions and "partition" in self._metadata
        self._values = [column.name for column in columns if column.name not in self._metadata]
        self._avro = settings.avro("sink.") if settings.value_form == "avro" else None
        self._client = client_of(settings)
        self._cluster = f"Kafka {settings.bootstrap_servers}"
        self._offsets = OffsetsTopic(settings.offsets_topic, self._client)
        self._producer: Producer | None = None
        self._owner: Owner | None = None
        self._positions: dict[str, int] = {}
        self._dead_letters = ""

    @classmethod
    def create(cls, settings: KafkaSinkSettings, columns: Columns) -> KafkaSink:
        return cls(settings, columns)

    @classmethod
    def open_positions(cls, settings: KafkaSinkSettings) -> KafkaPositions:
        client = client_of(settings)
        return KafkaPositions(OffsetsTopic(settings.offsets_topic, client), client, settings.transaction_timeout_ms)

    def topics_of(self, rows: pa.Table) -> Collection[str]:
        if not rows.num_rows:
            return ()
        named = rows["topic"].unique().to_pylist() if "topic" in self._metadata else [None]
        return {topic or self._settings.topic for topic in named}

    @classmethod
    def check_access(cls, settings: KafkaSinkSettings) -> None:
        with as_sink_error(f"Kafka {settings.bootstrap_servers}"):
            admin(settings.bootstrap_servers, client_of(settings)).list_topics(timeout=10)

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        self._drop_producer()
        with as_sink_error(self._offsets.where):
            # Before anything is fenced: a zombie must not interrupt the task that has its place.
            state = self._offsets.read(owner.connector)
            state.check(owner, self._offsets.where)
            fenced: dict[int, int] = {}
            while True:
                # Tasks of other layouts have other transactional ids; those of the same layout share this one.
                for tasks in state.unfenced_layouts(owner, fenced):
                    for task in range(tasks):
                        self._transactional(transactional_id(owner.connector, tasks, task))
                    fenced[tasks] = state.layouts[tasks]
                if self._producer is None:
                    own_id = transactional_id(owner.connector, owner.tasks, owner.task)
                    self._producer = self._transactional(own_id)
                # Every producer of these slices is fenced, so what is committed now is final.
                state = self._offsets.read(owner.connector)
                state.check(owner, self._offsets.where, is_mine)
                self._producer.begin_transaction()
                for key, value in state.claim_records(owner, fenced, is_mine):
                    self._producer.produce(self._settings.offsets_topic, value, key, partition=0)
                self._producer.commit_transaction(TIMEOUT_S)
                # A task of a layout unknown until now may have claimed in between. The order of the claims in the
                # topic decides: the later of the two sees the other one here.
                state = self._offsets.read(owner.connector)
                state.check(owner, self._offsets.where, is_mine)
                if not state.unfenced_layouts(owner, fenced):
                    break
        self._owner = owner
        self._positions = {name: at for name, (at, _) in state.slices.items() if is_mine(name)}
        return dict(self._positions)

    def open_dead_letters(self, name: str) -> None:
        self._dead_letters = name

    def commit_all(
        self, owner: Owner, ranges: Sequence[Range], rows: pa.Table, dead_letters: Sequence[DeadLetter]
    ) -> bool:
        if self._producer is None or self._owner != owner:
            raise self._refused(owner, f"{owner} writes before it has claimed; allowed: claim first")
        starts = [self._positions.get(r.slice, 0) for r in ranges]
        if starts == [r.end for r in ranges] and self._positions.keys() >= {r.slice for r in ranges}:
            return False
        for at, part in zip(starts, ranges, strict=True):
            if at != part.start:
                raise self._refused(
                    owner,
                    f"{owner}: slice {part.slice} stands at {at}, the batch has [{part.start}, {part.end});"
                    " allowed: a batch that starts where every slice of it stands",
                )
        try:
            self._write(self._producer, owner, ranges, rows, dead_letters)
        except BaseException as error:
            self._drop_producer()
            raise self._explained(owner, error) from error
        self._positions.update({r.slice: r.end for r in ranges})
        return True

    def close(self) -> None:
        self._drop_producer()
        self._offsets.close()

    def _write(
        self,
        producer: Producer,
        owner: Owner,
        ranges: Sequence[Range],
        rows: pa.Table,
        dead_letters: Sequence[DeadLetter],
    ) -> None:
        """Write a batch in one transaction. If a record is rejected, the transaction is aborted, and the others are
        written in another one."""
        try:
            self._transaction(producer, owner, ranges, rows, dead_letters)
            return
        except Exception as error:
            failed = error
            if not _was_aborted(producer, error):
                raise
        # The client knows the partitions of some minutes ago, and does not ask when there is none of a number.
        is_stale = self._refreshed(producer, failed)
        bad: dict[int, Exception] = {}
        write_rows(
            rows.num_rows,
            lambda start, end: self._trial(producer, rows.slice(start, end - start)),
            contextlib.nullcontext,
            (_BadRow,),
            bad.__setitem__,
        )
        if not (bad or is_stale):
            self._check_topics(rows)
            raise failed
        for at, rejection in bad.items():
            reject(dead_letters, self._cluster, rows, at, str(rejection))
        self._transaction(producer, owner, ranges, without(rows, bad), dead_letters)

    def _refreshed(self, producer: Producer, error: Exception) -> bool:
        """Ask for the partitions that there are now, if records are written to those that they name; return whether an
        error was that a topic does not have a partition.

        Raises:
            SinkError: the cluster does not answer.
        """
        from confluent_kafka import KafkaError, KafkaException

        if not self._keeps_partitions:
            return False
        with as_sink_error(self._cluster):
            producer.list_topics(timeout=10)  # What it returns, the producer itself uses from now on.
        return isinstance(error, KafkaException) and error.args[0].code() == KafkaError._UNKNOWN_PARTITION

    def _transaction(
        self,
        producer: Producer,
        owner: Owner,
        ranges: Sequence[Range],
        rows: pa.Table,
        dead_letters: Sequence[DeadLetter],
    ) -> None:
        producer.begin_transaction()
        for record in self._records(rows):
            _produce(producer, record)
        for letter in dead_letters:
            _produce(producer, (self._dead_letters, None, letter_text(letter), [], 0, -1))
        for key, value in slice_records(owner, ranges):
            _produce(producer, (self._settings.offsets_topic, key, value, [], 0, 0))
        producer.commit_transaction(TIMEOUT_S)

    def _trial(self, producer: Producer, rows: pa.Table) -> None:
        """Write rows in a transaction that is aborted.

        Raises:
            _BadRow: a record is rejected.
            SinkError: a topic does not exist, or may not be written.
        """
        from confluent_kafka import KafkaError, KafkaException

        found: list[tuple[str, KafkaError]] = []

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                found.append((message.topic() or "", error))

        producer.begin_transaction()
        try:
            for record in self._records(rows):
                try:
                    _produce(producer, record, on_delivery=report)
                except KafkaException as error:
                    problem: KafkaError = error.args[0]
                    if problem.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                        allowed = (
                            "a record of up to message.max.bytes in sink.client, by default 1000000 bytes before"
                            " compression, that the topic accepts, too (max.message.bytes)"
                        )
                        raise _BadRow(f"topic {record[0]}: {reason(problem)}; allowed: {allowed}") from error
                    found.append((record[0], problem))
                    break
            producer.flush(TIMEOUT_S)
        except SinkError as error:
            raise _BadRow(str(error)) from error
        finally:
            producer.abort_transaction(TIMEOUT_S)
        purged = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE)
        of_a_row = {getattr(KafkaError, name) for name in _ROW_ERRORS}
        for topic, problem in found:
            if problem.code() in of_a_row:
                allowed = (
                    "a record that the topic accepts (max.message.bytes, cleanup.policy, message.timestamp.type), in a"
                    " partition that it has"
                )
                raise _BadRow(f"topic {topic}: {reason(problem)}; allowed: {allowed}")
            if problem.code() not in purged:
                where = f"{self._cluster}, topic {topic}"
                raise SinkError(f"{where}: {reason(problem)}; allowed: a topic that exists and may be written")

    def _check_topics(self, rows: pa.Table) -> None:
        """Check that the topics of a batch exist.

        Raises:
            SinkError: one does not.
        """
        wanted = {*self.topics_of(rows), self._dead_letters} - {""}
        client = {name: value for name, value in self._client.items() if name != "bootstrap.servers"}
        with as_sink_error(self._cluster):
            known = admin(self._settings.bootstrap_servers, client).list_topics(timeout=10).topics
        for topic in sorted(wanted):
            if topic not in known:
                raise SinkError(f"{self._cluster}: topic {topic} does not exist; allowed: a topic")

    def _records(self, rows: pa.Table) -> Iterator[_Record]:
        """Yield the record of each row."""
        count, settings, own = rows.num_rows, self._settings, self._metadata
        topics = rows["topic"].to_pylist() if "topic" in own else repeat(settings.topic, count)
        found: Iterable[Any] = repeat((), count)
        if "headers" in own:
            found = as_objects(rows["headers"].to_pylist(), rows.schema.field("headers").type)
        times = _milliseconds(rows["timestamp"]) if "timestamp" in own else repeat(0, count)
        partitions = rows["partition"].to_pylist() if self._keeps_partitions else repeat(None, count)
        keys = self._encoded(rows, "key", settings.key_form, settings.key_converter_schemas_enable)
        values = self._encoded(rows, "value", settings.value_form, settings.value_converter_schemas_enable)
        for topic, key, value, headers, at, partition in zip(
            topics, keys, values, found, times, partitions, strict=True
        ):
            if topic and "\0" in topic:  # The client raises an error that does not tell of which record.
                raise SinkError(f"topic is {printable(topic)}; allowed: a name of letters, digits, '.', '_' and '-'")
            if not (topic or settings.topic):
                raise SinkError("topic is null; allowed: a topic, or sink.topic for records that have none")
            if partition is not None and not 0 <= partition < 1 << 31:
                raise SinkError(f"partition is {partition}; allowed: a number of a partition, from 0, or null")
            own_headers = headers_of(headers) if headers else []
            yield topic or settings.topic, key, value, own_headers, at, -1 if partition is None else partition

    def _encoded(self, rows: pa.Table, name: str, form: Form, schemas: bool) -> Iterator[Any]:
        """Yield the keys or the values of the records."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if form != "avro" and (name in self._metadata or self._values == [name]):
            kind = rows.schema.field(name).type
            # The key that Kafka Connect's ValueToKey makes is a struct that is not optional.
            optional = name != "key" or not pa.types.is_struct(kind)
            return map(encoder(kind, form, schemas=schemas, optional=optional), rows[name].to_pylist())
        if name == "key":
            return repeat(None, rows.num_rows)
        chosen = rows.select(self._values)
        if form == "avro":
            assert self._avro is not None
            encode: Callable[[Any], Any] = self._avro.encode
        else:
            encode = encoder(pa.struct(chosen.schema), form, schemas=schemas, optional=False)
        # A key with nulls alone is what the source ``kafka`` makes of a tombstone, and of an object without these
        # fields, which has a mark. An object of nulls would be another value of the key, which the topic keeps for
        # ever; a tombstone would delete it.
        has_value: Iterable[bool | None] = repeat(True, rows.num_rows)
        if HAS_VALUE_COLUMN in rows.column_names:
            has_value = rows[HAS_VALUE_COLUMN].to_pylist()
        elif "key" in self._metadata:
            has_value = pc.is_null(rows["key"]).to_pylist()
        return (
            encode(row) if is_value or any(value is not None for value in row.values()) else None
            for is_value, row in zip(has_value, chosen.to_pylist(), strict=True)
        )

    def _transactional(self, transactional_id: str) -> Producer:
        """Return a producer that has fenced every earlier one with its id."""
        return transactional_producer(self._client, transactional_id, self._settings.transaction_timeout_ms)

    def _refused(self, owner: Owner, violation: str) -> DataPlaneError:
        """Return the error for a batch that cannot follow what this task has committed."""
        error = self._explained(owner, OffsetConflict(f"{self._offsets.where}: {violation}"))
        assert isinstance(error, DataPlaneError)
        return error

    def _explained(self, owner: Owner, error: BaseException) -> BaseException:
        """Return the error for a failed transaction: ``TaskFenced`` if a later owner has claimed meanwhile."""
        if not isinstance(error, Exception):
            return error
        try:
            with as_sink_error(self._offsets.where):
                self._offsets.read(owner.connector).check(owner, self._offsets.where)
        except TaskFenced as fenced:
            return fenced
        except SinkError:
            pass
        if isinstance(error, DataPlaneError):
            return error
        allowed = "a cluster that commits transactions"
        problem = getattr(error.args[0] if error.args else None, "name", str)()
        if problem == "MSG_SIZE_TOO_LARGE":
            # A record that is too large alone has been found by now (``_write``).
            allowed = (
                "batch.size in sink.client below max.message.bytes of the topic, which several records exceed together"
            )
        elif problem in _FENCED:
            # No later owner of the task: the cluster says the same of a transaction that was open for too long.
            timeout_ms = self._settings.transaction_timeout_ms
            allowed = (
                f"batches that are written within sink.transaction.timeout.ms ({timeout_ms}): a longer one, or fewer"
                " rows in a batch; and no other program with the task's transactional.id"
            )
        return SinkError(f"{self._cluster}: {reason(error)}; allowed: {allowed}")

    def _drop_producer(self) -> None:
        # Without a timeout: the cluster aborts an open transaction of a producer whose successor initializes.
        self._producer = self._owner = None


def metadata_of(settings: KafkaSinkSettings, columns: Columns) -> frozenset[str]:
    """Return the columns that are the record's own.

    Raises:
        ConfigError: ``sink.metadata`` names a column that does not exist.
    """
    names = [column.name for column in columns]
    if settings.metadata is None:
        return frozenset(column.name for column in columns if column.metadata) & frozenset(METADATA)
    for name in listed(settings.metadata):
        if name not in names:
            raise ConfigError("sink.metadata", name, f"columns {', '.join(names)}")
    return frozenset(listed(settings.metadata))


def _check_forms(settings: KafkaSinkSettings, columns: Columns, metadata: frozenset[str]) -> None:
    """Check that the converters fit the columns.

    Raises:
        ConfigError: a converter of texts or bytes has no column to write, or bytes, headers or timestamp have another
            type.
    """
    types = {column.name: column.type for column in columns}
    values = [name for name in types if name not in metadata]
    own = {"key": "key" in metadata, "value": values == ["value"]}
    for name, form in (("key", settings.key_form), ("value", settings.value_form)):
        if form in ("string", "bytes") and name == "value" and not own[name]:
            allowed = f"JsonConverter, or value alone beside sink.metadata: the columns are {', '.join(values)}"
            raise ConfigError("sink.value.converter", settings.value_converter, allowed)
        if form == "bytes" and own[name] and types[name] != "BINARY":
            allowed = f"another converter: the column {name} is {types[name]}"
            raise ConfigError(f"sink.{name}.converter", "ByteArrayConverter", allowed)
    if settings.value_form == "avro":
        _check_avro(values, settings)
    if settings.keep_partitions and "partition" in metadata and types["partition"] not in ("INT", "BIGINT"):
        raise ConfigError("partition", types["partition"], "a column of type INT, or sink.keep.partitions=false")
    if "timestamp" in metadata and types["timestamp"] not in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        raise ConfigError("timestamp", types["timestamp"], "a column of type TIMESTAMP, or sink.metadata without it")
    if "headers" not in metadata:
        return
    if not _HEADERS.match(types["headers"]):
        raise ConfigError("headers", types["headers"], "an array of structs of key and value, or a map")
    if settings.header_converter:
        has_bytes = re.search(r"(?:\bvalue:\s*|,\s*)BINARY>+$", types["headers"], re.IGNORECASE) is not None
        if has_bytes != (settings.header_type == "BINARY"):
            fitting = "ByteArrayConverter" if has_bytes else "StringConverter"
            allowed = f"{fitting}: the column headers is {types['headers']}"
            raise ConfigError("sink.header.converter", settings.header_converter, allowed)


def _check_avro(names: Sequence[str], settings: KafkaSinkSettings) -> None:
    """Check that each column is a field of the Avro schema; a field without a column is null, or has a default."""
    fields = [column.name for column in settings.avro_columns]
    for name in names:
        if name not in fields:
            allowed = f"a schema with the field {name}, or a transform that removes this column"
            raise ConfigError("sink.value.converter.avro.schema", f"fields {', '.join(fields)}", allowed)


def letter_text(letter: DeadLetter) -> bytes | str | None:
    """Return the value of a dead letter's record: a JSON object, whose fields are cut (``MAX_LETTER``)."""
    whole = {**letter, "record": letter.get("record", "")}
    return text_of({name: cut_text(text, MAX_LETTER // (1 if name == "record" else 5)) for name, text in whole.items()})


def cut_text(text: str, most: int) -> str:
    """Return the start of a text that has at most so many bytes in JSON: a character takes up to 12 there."""
    text = text[:most]
    written = json.dumps(text)[1:-1]
    if len(written) <= most:
        return text
    found = ""
    for end in range(most, most - 6, -1):
        # Not within the six characters of an escape.
        with contextlib.suppress(ValueError):
            found = json.loads(f'"{written[:end]}"')
            break
    return found[:-1] if "\ud800" <= found[-1:] <= "\udbff" else found


class _BadRow(Exception):
    """The cluster, or the client, rejects a record; carries the reason and what is allowed."""


def _was_aborted(producer: Producer, error: Exception) -> bool:
    """Abort the transaction in which an error was raised; return whether the batch may be written in another one."""
    from confluent_kafka import KafkaException

    if isinstance(error, KafkaException):
        of_commit: KafkaError = error.args[0]
        if of_commit.fatal() or of_commit.retriable():
            return False  # fenced, or it may have been committed
    elif not isinstance(error, SinkError):
        return False
    try:
        producer.abort_transaction(TIMEOUT_S)
    except KafkaException:
        return False
    return True


def _milliseconds(times: pa.ChunkedArray) -> Iterator[int]:
    """Yield the timestamps of records. One that Kafka cannot have is an error; -1 ms is a record without a time."""
    import pyarrow as pa

    for at in times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64()).to_pylist():
        if at is None or at // 1000 == -1:
            yield 0
        elif at < 1000:
            raise SinkError(f"timestamp is {at} microseconds; allowed: a time after 1970-01-01T00:00:00Z, or null")
        else:
            yield at // 1000


def _produce(
    producer: Producer,
    record: _Record,
    *,
    on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
) -> None:
    """Add a record to the client's queue; wait while it is full."""
    topic, key, value, headers, at, partition = record
    more: dict[str, Any] = {} if on_delivery is None else {"on_delivery": on_delivery}
    while True:
        try:
            producer.produce(topic, value, key, partition, timestamp=at, headers=headers or None, **more)
            return
        except BufferError:
            producer.poll(0.01)


def client_of(settings: KafkaSinkSettings) -> dict[str, str]:
    """Return the settings of the Kafka client."""
    return {"bootstrap.servers": settings.bootstrap_servers, **client_settings("sink.client", settings.client)}

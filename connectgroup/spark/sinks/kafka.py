"""The sink ``kafka``: records in topics; offsets and fencing tokens in a compacted topic, all in one transaction.

A reader with ``isolation.level=read_committed`` sees each batch whole and once. The transactional id of a task contains
the number of tasks and the task's number, so a task fences its predecessor when it initializes its transactions. The
rules are those of ``dataplane.fences``; ``kafka_offsets`` has the state that they are checked against.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from ...connector import LocalPath
from ...dataplane.columns import Columns
from ...dataplane.dead_letters import DeadLetter, DeadLetterSink
from ...dataplane.errors import DataPlaneError, Fenced, OffsetConflict, SinkError
from ...dataplane.ownership import Owner, Range
from ...errors import NO_VALUE, ConfigError
from ..converters import ConverterSettings, Form, encoder, headers_of, text_of
from ..kafka_client import admin, client_files, client_settings
from .kafka_offsets import OffsetsTopic, reason, slice_records, told_as_sink_error
from .kafka_positions import TIMEOUT_S, KafkaPositions, transactional_id, transactional_producer

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Producer

_HEADERS: Final = re.compile(r"MAP<|ARRAY<STRUCT<(?=.*\bkey:)(?=.*\bvalue:)", re.IGNORECASE)
METADATA: Final = ("key", "topic", "partition", "offset", "timestamp", "headers")
"""Columns that are not part of a value that is written as JSON. ``key`` and ``topic`` are those of the record."""

_Headers = list[tuple[str, bytes | str | None]]
_Record = tuple[str, bytes | str | None, bytes | str | None, _Headers]
"""Topic, key, value, headers."""


class KafkaSinkSettings(ConverterSettings):
    """Settings of the sink ``kafka``, each with the prefix ``sink.``."""

    bootstrap_servers: Annotated[str, Field(min_length=1, description="host:port, separated by commas")]
    topic: Annotated[str, Field(description="the topic of rows that have no column topic")] = ""
    offsets_topic: Annotated[
        str, Field(min_length=1, description="a compacted topic of one partition; created if it is missing")
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


class KafkaSink(DeadLetterSink):
    """Writes each row as a record, in transactions that contain the offsets.

    A column ``value`` is the record's value as it is; without one, the value is a JSON object of the columns. Columns
    ``key`` and ``topic`` are the record's; a key that is a struct is written as JSON. A column ``headers``, an array of
    structs of key and value, or a map, is the record's headers. ``key.converter`` and ``value.converter`` write other
    forms.
    """

    Settings = KafkaSinkSettings

    def __init__(self, settings: KafkaSinkSettings, columns: Columns) -> None:
        """Connect, and create the topic of offsets if it is missing.

        Raises:
            ConfigError: confluent-kafka is not installed, or there is no topic to write to.
            SinkError: the cluster does not answer.
        """
        names = [column.name for column in columns]
        if "topic" not in names and not settings.topic:
            raise ConfigError("sink.topic", NO_VALUE, "a topic, or rows with a column topic")
        _check_forms(settings, columns)
        self._settings = settings
        self._values = [name for name in names if name not in METADATA]
        self._avro = settings.avro("sink.") if settings.value_form == "avro" else None
        self._client = client_of(settings)
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
        named = rows["topic"].unique().to_pylist() if "topic" in rows.column_names else [None]
        return {topic or self._settings.topic for topic in named}

    @classmethod
    def check_access(cls, settings: KafkaSinkSettings) -> None:
        with told_as_sink_error(f"Kafka {settings.bootstrap_servers}"):
            admin(settings.bootstrap_servers, client_of(settings)).list_topics(timeout=10)

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        self._drop_producer()
        with told_as_sink_error(self._offsets.where):
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
        if starts == [r.end for r in ranges]:
            return False
        for at, part in zip(starts, ranges, strict=True):
            if at != part.start:
                raise self._refused(
                    owner,
                    f"{owner}: slice {part.slice} stands at {at}, the batch has [{part.start}, {part.end});"
                    " allowed: a batch that starts where every slice of it stands",
                )
        try:
            letters: Iterator[_Record] = (
                (self._dead_letters, None, text_of(dict(letter)), []) for letter in dead_letters
            )
            self._write(self._producer, owner, ranges, chain(self._records(rows), letters))
        except BaseException as error:
            self._drop_producer()
            raise self._explained(owner, error) from error
        self._positions.update({r.slice: r.end for r in ranges})
        return True

    def close(self) -> None:
        self._drop_producer()
        self._offsets.close()

    def _write(self, producer: Producer, owner: Owner, ranges: Sequence[Range], records: Iterable[_Record]) -> None:
        producer.begin_transaction()
        for topic, key, value, headers in records:
            _produce(producer, topic, key, value, headers=headers)
        for key, value in slice_records(owner, ranges):
            _produce(producer, self._settings.offsets_topic, key, value, partition=0)
        producer.commit_transaction(TIMEOUT_S)

    def _records(self, rows: pa.Table) -> Iterator[_Record]:
        """Yield the record of each row."""
        count, settings = rows.num_rows, self._settings
        topics = rows["topic"].to_pylist() if "topic" in rows.column_names else repeat(settings.topic, count)
        found = rows["headers"].to_pylist() if "headers" in rows.column_names else repeat((), count)
        keys = self._encoded(rows, "key", settings.key_form, settings.key_converter_schemas_enable)
        values = self._encoded(rows, "value", settings.value_form, settings.value_converter_schemas_enable)
        for topic, key, value, headers in zip(topics, keys, values, found, strict=True):
            yield topic or settings.topic, key, value, headers_of(headers) if headers else []

    def _encoded(self, rows: pa.Table, name: str, form: Form, schemas: bool) -> Iterator[Any]:
        """Yield the keys or the values of the records."""
        if form == "avro":
            assert self._avro is not None
            return map(self._avro.encode, rows.select(self._values).to_pylist())
        if name in rows.column_names:
            return map(encoder(rows.schema.field(name).type, form, schemas=schemas), rows[name].to_pylist())
        if name == "key":
            return repeat(None, rows.num_rows)
        import pyarrow as pa

        chosen = rows.select(self._values)
        return map(encoder(pa.struct(chosen.schema), form, schemas=schemas, optional=False), chosen.to_pylist())

    def _transactional(self, transactional_id: str) -> Producer:
        """Return a producer that has fenced every earlier one with its id."""
        return transactional_producer(self._client, transactional_id, self._settings.transaction_timeout_ms)

    def _refused(self, owner: Owner, violation: str) -> DataPlaneError:
        """Return the error for a batch that cannot follow what this task has committed."""
        error = self._explained(owner, OffsetConflict(f"{self._offsets.where}: {violation}"))
        assert isinstance(error, DataPlaneError)
        return error

    def _explained(self, owner: Owner, error: BaseException) -> BaseException:
        """Return the error for a failed transaction: ``Fenced`` if a later owner has claimed meanwhile."""
        if not isinstance(error, Exception):
            return error
        try:
            with told_as_sink_error(self._offsets.where):
                self._offsets.read(owner.connector).check(owner, self._offsets.where)
        except Fenced as fenced:
            return fenced
        except SinkError:
            pass
        if isinstance(error, DataPlaneError):
            return error
        return SinkError(f"{self._offsets.where}: {reason(error)}; allowed: a cluster that commits transactions")

    def _drop_producer(self) -> None:
        # Without a timeout: the cluster aborts an open transaction of a producer whose successor initializes.
        self._producer = self._owner = None


def _check_forms(settings: KafkaSinkSettings, columns: Columns) -> None:
    """Check that the converters fit the columns.

    Raises:
        ConfigError: a converter of texts or bytes has no column to write, or bytes or headers have another type.
    """
    types = {column.name: column.type for column in columns}
    for name, form in (("key", settings.key_form), ("value", settings.value_form)):
        if form in ("string", "bytes") and name == "value" and name not in types:
            raise ConfigError("sink.value.converter", settings.value_converter, "JsonConverter, or a column value")
        if form == "bytes" and types.get(name, "BINARY") != "BINARY":
            allowed = f"another converter: the column {name} is {types[name]}"
            raise ConfigError(f"sink.{name}.converter", "ByteArrayConverter", allowed)
    if settings.value_form == "avro":
        _check_avro([name for name in types if name not in METADATA], settings)
    if not _HEADERS.match(types.get("headers", "MAP<")):
        raise ConfigError("headers", types["headers"], "an array of structs of key and value, or a map")
    if settings.header_converter and "headers" in types:
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


def _produce(
    producer: Producer,
    topic: str,
    key: bytes | str | None,
    value: bytes | str | None,
    *,
    partition: int = -1,
    headers: _Headers | None = None,
) -> None:
    """Add a record to the client's queue; wait while it is full. Partition -1: the client chooses."""
    while True:
        try:
            producer.produce(topic, value, key, partition, headers=headers or None)
            return
        except BufferError:
            producer.poll(0.01)


def client_of(settings: KafkaSinkSettings) -> dict[str, str]:
    """Return the settings of the Kafka client."""
    return {"bootstrap.servers": settings.bootstrap_servers, **client_settings("sink.client", settings.client)}

"""The source ``kafka``: the records of topics, by Spark's own Kafka source, or for a sink of files by librdkafka.

A slice is a topic partition; its position is an offset, with the topic's id. Task *i* of *n* reads the partitions whose
number plus the topic's CRC-32 is *i* modulo *n*. The columns are those of Spark's Kafka source; with a schema, the
record's value is parsed as JSON and its fields are columns. Partitions that are added while a task runs are read from
its next start on; ``task_layout`` restarts the tasks when that happens.

An offset means nothing in another topic of the same name: one that was deleted and made anew has another id, and is an
error. The ids are checked when a task starts, and for each batch between reading and committing it.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from ...connector import Lag, LocalPath
from ...dataplane.columns import Column, Columns, check_names, from_ddl
from ...dataplane.dead_letters import HAS_VALUE_COLUMN
from ...dataplane.errors import SourceError
from ...dataplane.ownership import Owner, Position, Range, metadata_of, ranges_between
from ...dataplane.source import BatchReader, CommittedPositions, PartReader, Publisher, Source, field_of, position_of
from ...dataplane.transform import listed
from ...errors import NO_VALUE, ConfigError
from ...protocol.units import printable
from ...topics import matching_topics, regex_violation
from ..converters import HEADERS_TYPE, ConverterSettings
from ..errors import SparkError
from ..kafka_client import admin, client_files, client_settings, kept_admin
from .file_settings import check_timezone
from .kafka_group import GroupPublisher
from .kafka_reading import ReadRecords
from .kafka_records import rows_of, values_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_METADATA: Final = {
    "key": "STRING",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
}
_HEADERS: Final = "headers"
_TIMESTAMP_TYPE: Final = "timestamp_type"
_INTERNAL: Final = frozenset({"__consumer_offsets", "__share_group_state", "__transaction_state"})
"""Topics of Kafka itself, which an expression does not mean, as for Kafka's consumers. To publish a position writes a
record of the first one."""
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
"""What a broker without ids of topics returns: 16 zero bytes."""

SMALL_RECORDS: Final = 2_000
"""Offsets of a batch whose values the task's own process parses: a job of Spark's would take longer, and write a file
for each partition."""

logger = logging.getLogger(__name__)


class KafkaSourceSettings(ConverterSettings):
    """Settings of the source ``kafka``, each with the prefix ``source.``."""

    bootstrap_servers: Annotated[str, Field(min_length=1, description="host:port, separated by commas")]
    topics: Annotated[str, Field(description="topics, separated by commas")] = ""
    topics_regex: Annotated[
        str,
        Field(
            max_length=1_000,
            description="a regular expression in RE2 syntax for whole topic names; it means no topic of Kafka itself,"
            " such as __consumer_offsets",
        ),
    ] = ""
    starting_offsets: Annotated[
        Literal["earliest", "latest"],
        Field(
            description="earliest, latest: where a topic begins of which a task has no offset. Its first batch commits"
            " one for each partition, also if all are empty; partitions that are added later begin at their start."
            " latest also holds for a topic that source.topics.regex means later: what was written to it before a task"
            " first reads it is not read, as with Kafka's consumers"
        ),
    ] = "earliest"
    schema_: Annotated[
        str | None,
        Field(alias="schema", description="fields of the value, a JSON object, as NAME TYPE, separated by commas"),
    ] = None
    timezone: Annotated[
        str,
        Field(description="with a schema: the zone of timestamps without one, such as Europe/Berlin; by default they"
              " are invalid"),
    ] = ""  # fmt: skip
    metadata: Annotated[
        str | None,
        Field(description=f"columns of the record to read beside the value: {', '.join(_METADATA)} by default, none"
              " with a schema; headers: an array of structs of key and value; timestamp_type: CreateTime or"
              " LogAppendTime"),
    ] = None  # fmt: skip
    isolation_level: Annotated[
        Literal["read_committed", "read_uncommitted"], Field(description="read_committed, read_uncommitted")
    ] = "read_committed"
    max_rows_per_batch: Annotated[int, Field(ge=1, le=10_000_000, description="1 to 10000000")] = 100_000
    publish_offsets: Annotated[
        bool,
        Field(description="true, false: whether Kafka's tools see the positions, in the consumer group connect-NAME"
              " of connector NAME"),
    ] = True  # fmt: skip
    client: Annotated[
        str,
        LocalPath(within=client_files),
        Field(description="settings of the Kafka client as a JSON object, such as security.protocol"),
    ] = ""

    @property
    def json_texts(self) -> frozenset[str]:
        names = {column.name for column in _columns(self)}
        forms = {"key": self.key_form, "value": self.value_form}
        is_text = {"key": "key" in names, "value": self.schema_ is None}
        return frozenset(name for name, form in forms.items() if form == "json" and is_text[name])

    @property
    def has_fields(self) -> bool:
        """Whether the fields of the value are columns, and not the value as a whole."""
        return bool(_fields(self))

    def model_post_init(self, _: Any) -> None:
        """Check the topics, the schema, the converters and the client's settings.

        Raises:
            ConfigError: one of them is not allowed.
        """
        if bool(self.topics) == bool(self.topics_regex):
            raise ConfigError("source.topics", self.topics or NO_VALUE, "either source.topics or source.topics.regex")
        # A process that only checks configurations may lack the package; a worker that reads topics has it.
        if self.topics_regex and find_spec("re2") is not None and (allowed := regex_violation(self.topics_regex)):
            raise ConfigError("source.topics.regex", printable(self.topics_regex), f"a regular expression in {allowed}")
        client_settings("source.client", self.client)
        check_timezone(self.timezone)
        self.check_converters("source.")
        if self.schema_ is not None and self.value_form == "avro":
            raise ConfigError("source.schema", self.schema_, "nothing: the fields of the Avro schema are the columns")
        if self.schema_ is not None and self.value_form not in ("", "json"):
            raise ConfigError("source.value.converter", self.value_converter, "JsonConverter with source.schema")
        _columns(self)


class KafkaSource(Source):
    """The records of topics. A slice is a topic partition; with a schema, the fields of the JSON value are columns, by
    the rules of the source ``files``: a field that is missing is null; a value of another type, a name in other case,
    an empty value, text after the object and bytes that are not UTF-8 are errors; other fields are ignored. A column
    STRING has a number as it is written, an object or an array as JSON; FLOAT and DOUBLE also take the texts NaN,
    Infinity and -Infinity. With JsonConverter's schemas, a decimal may be base64 or a number, and a number for a
    TIMESTAMP or a DATE is an error if the name of its schema says that it counts something else than milliseconds or
    days. A record without a value (a tombstone) is a row whose fields are null: the predicate RecordIsTombstone finds
    it. The timestamp of a record without one is null. With ``errors.tolerance=all``, a record that cannot be read is a
    dead letter. The offsets belong to the topic's id: if a topic was deleted and made anew, or retention has deleted
    records that were not read, the tasks fail with an error that names it, until the connector's offsets are reset or
    altered. The positions are in the sink; after its commit they are also published to the consumer group connect-NAME,
    as Kafka Connect has it, for Kafka's tools and lag exporters: a task never reads that group.
    """

    Settings = KafkaSourceSettings
    reads_remotely = True
    metadata = frozenset({*_METADATA, _HEADERS, _TIMESTAMP_TYPE})

    def __init__(
        self,
        settings: KafkaSourceSettings,
        partitions: Mapping[str, int],
        *,
        task: int,
        tasks: int,
        ids: Mapping[str, str] | None = None,
    ) -> None:
        """Store the arguments.

        Args:
            partitions: the number of partitions of each topic.
            ids: the id of each topic; none from a broker that has none.
        """
        self._settings = settings
        self._ids = dict(ids or {})
        self._task, self._tasks = task, tasks
        self._partitions = partitions
        self._first_ends: dict[str, int] = {}
        # With latest: of each topic, the number of partitions that it had when the first task committed a position.
        self._first_counts: dict[str, int] = {}
        self._is_tolerant = self._has_marks = False
        self.columns = _columns(settings)
        # Other columns are fields of the value, also those with the name of record metadata that transforms make.
        self.metadata = frozenset(_metadata(settings))

    def with_committed(self, committed: CommittedPositions) -> KafkaSource:
        if self._settings.starting_offsets == "latest":
            for name, position in committed.read().items():
                topic, count = self.topic_of(name), metadata_of(position).partition(" ")[2]
                if count:
                    self._first_counts[topic] = min(int(count), self._first_counts.get(topic, int(count)))
        return self

    def tolerant(self) -> KafkaSource:
        """A record that the converters cannot read is a dead letter, like a line of a file."""
        self._is_tolerant = True
        return self

    def with_marks(self) -> KafkaSource:
        self._has_marks = True
        return self

    @classmethod
    def known_columns(cls, settings: KafkaSourceSettings, *, reads: bool = False) -> frozenset[str]:
        return frozenset(column.name for column in _columns(settings))

    @classmethod
    def create(cls, settings: KafkaSourceSettings, *, task: int, tasks: int) -> KafkaSource:
        partitions = partitions_of(settings)
        return cls(settings, partitions, task=task, tasks=tasks, ids=topic_ids(settings, partitions))

    @classmethod
    def task_layout(cls, settings: KafkaSourceSettings) -> str:
        """Return the topics, their numbers of partitions and their ids."""
        partitions = partitions_of(settings)
        ids = topic_ids(settings, partitions)
        return ",".join(f"{topic}:{count}:{ids.get(topic, '')}" for topic, count in sorted(partitions.items()))

    @classmethod
    def partition_of(cls, slice_name: str, position: int) -> tuple[dict[str, Any], dict[str, Any]]:
        topic, _, partition = slice_name.rpartition("-")
        return {"kafka_topic": topic, "kafka_partition": int(partition)}, {"kafka_offset": position}

    @classmethod
    def slice_of(cls, partition: Mapping[str, Any], offset: Mapping[str, Any] | None) -> tuple[str, int | None]:
        topic = field_of("partition", partition, "kafka_topic", str)
        number = field_of("partition", partition, "kafka_partition", int)
        if not 0 <= int(number) < 1 << 31:
            raise ConfigError("partition.kafka_partition", number, "a whole number from 0")
        return f"{topic}-{number}", position_of(offset, "kafka_offset")

    @classmethod
    def topic_of(cls, slice_name: str) -> str:
        return slice_name.rpartition("-")[0]

    @property
    def description(self) -> str:
        return f"topics {self._settings.topics or self._settings.topics_regex} of {self._settings.bootstrap_servers}"

    def owns(self, slice_name: str) -> bool:
        topic, _, partition = slice_name.rpartition("-")
        return (int(partition) + zlib.crc32(topic.encode())) % self._tasks == self._task

    def stream(self, session: SparkSession, positions: Mapping[str, int]) -> DataFrame:
        from ..java import add_kafka

        self.check_positions(positions)
        add_kafka(session)
        mine = {
            topic: [n for n in range(count) if self.owns(f"{topic}-{n}")] for topic, count in self._partitions.items()
        }
        mine = {topic: numbers for topic, numbers in mine.items() if numbers}
        if not mine:
            return session.readStream.format("rate").load().where("false").selectExpr(
                *(f"CAST(NULL AS {column.type}) AS `{column.name}`" for column in self.columns)
            )  # fmt: skip
        starts = {
            topic: {
                str(n): int(positions.get(f"{topic}-{n}", -2 if self.begins_early(topic, n, positions) else -1))
                for n in numbers
            }
            for topic, numbers in mine.items()
        }
        records = (
            session.readStream.format("kafka")
            .options(**self.options)
            .option("assign", json.dumps(mine))
            .option("startingOffsets", json.dumps(starts))
            .option("maxOffsetsPerTrigger", self._settings.max_rows_per_batch)
            .load()
        )
        return self.rows_of(records)

    def batches(self, positions: Mapping[str, int]) -> BatchReader:
        self.check_positions(positions)
        return KafkaBatches(self, self._settings, self._mine())

    @classmethod
    def starts_without_spark(cls, settings: Mapping[str, str], *, is_tolerant: bool) -> bool:
        # As ``part_batches``. With latest, what follows might begin behind records that came while Spark started.
        has_headers = _HEADERS in listed(settings.get("metadata", ""))
        return not is_tolerant and not has_headers and settings.get("starting.offsets", "earliest") == "earliest"

    def part_batches(self, positions: Mapping[str, int]) -> PartReader | None:
        # The client gives no headers whose names are not UTF-8, and errors of single records are columns of Spark's.
        if self._is_tolerant or any(column.name == _HEADERS for column in self.columns):
            return None
        self.check_positions(positions)
        return KafkaBatches(self, self._settings, self._mine())

    @property
    def options(self) -> dict[str, str]:
        """The options of Spark's Kafka source that do not depend on the batch."""
        client = client_settings("source.client", self._settings.client)
        return {
            "kafka.bootstrap.servers": self._settings.bootstrap_servers,
            "kafka.isolation.level": self._settings.isolation_level,
            # Spark polls for each 500 records by default, and waits 500 ms at the end of a topic.
            "kafka.max.poll.records": "10000",
            "kafka.max.partition.fetch.bytes": str(8 << 20),
            "kafka.fetch.max.wait.ms": "20",
            "includeHeaders": str(any(column.name == _HEADERS for column in self.columns)).lower(),
            **{f"kafka.{name}": str(value) for name, value in client.items()},
        }

    def rows_of(self, records: DataFrame) -> DataFrame:
        """Return the columns of the source from what Spark's Kafka source reads."""
        fields, timezone = _fields(self._settings), self._settings.timezone
        metadata = self.columns[len(fields) or 1 :]
        return rows_of(
            records,
            self._settings,
            fields,
            metadata,
            tolerant=self._is_tolerant,
            timezone=timezone,
            marks=self._has_marks,
        )

    def record_reader(self) -> ReadRecords:
        """Return what reads records without Spark: no headers, and a record that is no row is an error."""
        settings = self._settings
        fields, timezone = _fields(settings), settings.timezone
        metadata = self.columns[len(fields) or 1 :]
        values = values_of(settings, fields, metadata, tolerant=False, timezone=timezone, marks=self._has_marks)
        has_marks = values is not None and values.marks
        return ReadRecords(
            servers=settings.bootstrap_servers,
            client={"isolation.level": settings.isolation_level, **client_settings("source.client", settings.client)},
            columns=(*self.columns, Column(HAS_VALUE_COLUMN, "BOOLEAN")) if has_marks else self.columns,
            values=values,
        )

    def positions(self, offset: Any) -> dict[str, int]:
        if not isinstance(offset, dict) or not all(isinstance(inner, dict) for inner in offset.values()):
            return {} if not self._has_partitions() else super().positions(None)
        return {
            f"{topic}-{n}": self.position(topic, position)
            for topic, inner in offset.items()
            for n, position in inner.items()
        }

    def position(self, topic: str, offset: int) -> int:
        """Return an offset as a position: with the id of its topic and, with ``latest``, its number of partitions when
        the connector began."""
        metadata = self._ids.get(topic, "")
        if self._settings.starting_offsets == "latest":
            metadata += f" {self._first_counts.get(topic, self._partitions.get(topic, 0))}"
        return Position(offset, metadata) if metadata else offset

    def check_read(self, ranges: Sequence[Range]) -> None:
        # An id never returns: as the topic has its id now, all that was read until now is from it.
        topics = {self.topic_of(each.slice) for each in ranges} & self._ids.keys()
        found = topic_ids(self._settings, topics)
        for topic in sorted(topics):
            if found.get(topic) != self._ids[topic]:
                raise self._made_anew(topic, self._ids[topic], found.get(topic, ""))

    def check_positions(self, positions: Mapping[str, int]) -> None:
        """Check that reading can continue at these positions.

        Raises:
            SourceError: a topic is not the one that was read, records that were not read are deleted, or a position is
                behind the end; or the cluster does not answer.
        """
        mine = set(self._mine())
        known = [(topic, n) for topic, n in mine if f"{topic}-{n}" in positions]
        ids = topic_ids(self._settings, {topic for topic, _ in known})
        for topic, n in sorted(known):
            read = metadata_of(positions[f"{topic}-{n}"]).partition(" ")[0]
            if read and ids.get(topic) and ids[topic] != read:
                raise self._made_anew(topic, read, ids[topic])
        begins = offsets_of(self._settings, known, latest=False)
        ends = offsets_of(self._settings, known, latest=True)
        where = f"Kafka {self._settings.bootstrap_servers}"
        for topic, n in sorted(known):
            name = f"{topic}-{n}"
            at = int(positions[name])
            if at < begins[name]:
                raise SourceError(
                    f"{where}: topic {topic}, partition {n}: the records from offset {at} to {begins[name] - 1} were"
                    " deleted before they were read (retention.ms, retention.bytes); allowed: the connector's offset"
                    f" of this partition altered to kafka_offset {begins[name]}, to go on without them"
                )
            if at > ends[name]:
                raise SourceError(
                    f"{where}: topic {topic}, partition {n}: was read to offset {at} and ends at {ends[name]}: it has"
                    " lost records, or was made anew; allowed: the connector's offset of this partition altered to"
                    f" {ends[name]} or less, or its offsets reset"
                )

    def publisher(self, owner: Owner, positions: Mapping[str, int]) -> Publisher | None:
        if not self._settings.publish_offsets:
            return None
        return GroupPublisher(self._settings.bootstrap_servers, self._settings.client, owner, positions)

    def explained(self, error: BaseException, positions: Mapping[str, int]) -> BaseException:
        if isinstance(error, SparkError | SourceError):
            try:
                self.check_positions(positions)
            except SourceError as found:
                return found
            except Exception as unknown:
                logger.debug("%s: not looked for the cause: %s", self.description, unknown)
        return error

    def _made_anew(self, topic: str, read: str, found: str) -> SourceError:
        return SourceError(
            f"Kafka {self._settings.bootstrap_servers}: topic {topic} was deleted and made anew: its id is"
            f" {found or 'none'}, and {read} was read; allowed: the connector's offsets reset, to read the new topic"
            " from its beginning, or another name of the connector"
        )

    def ranges(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[Range]:
        found = list(ranges_between(start, end))
        if self._settings.starting_offsets == "latest":
            # Partitions that are empty have a position, too: with none, the next start would begin at their end again.
            found += [Range(slice=name, start=0, end=end[name]) for name in end.keys() - start.keys() if end[name] == 0]
        return sorted(found, key=lambda each: each.slice)

    def lag(self, positions: Mapping[str, int]) -> Lag:
        """Return the records behind the end of the log: the last stable offset with ``read_committed``.

        Offsets are counted, as for the metric ``records-lag`` of Kafka's consumers: markers of transactions and records
        that compaction has removed count, too. Partitions without a position are read from ``starting.offsets`` on.
        """
        mine = self._mine()
        ends = offsets_of(self._settings, mine, latest=True)
        new = [(topic, n) for topic, n in mine if f"{topic}-{n}" not in positions]
        early = [(topic, n) for topic, n in new if self.begins_early(topic, n, positions)]
        for topic, n in new:
            # Spark has noted the end as it was when the query started; this is the first end that was measured since.
            self._first_ends.setdefault(f"{topic}-{n}", ends[f"{topic}-{n}"])
        starts = self._first_ends | offsets_of(self._settings, early, latest=False)
        return Lag(records=sum(max(0, end - positions.get(name, starts.get(name, end))) for name, end in ends.items()))

    def begins_early(self, topic: str, number: int, positions: Mapping[str, int]) -> bool:
        """Whether a partition that has no position begins at its start.

        With ``latest``, it does if others of the task have one: the first batch has committed the end of each
        partition, so the rest was added since. Its records are newer than the connector. Of a task without a position,
        it does if the topic had fewer partitions when the first task committed one: a task that starts beside the
        first ones finds theirs, too.
        """
        if self._settings.starting_offsets == "earliest" or number >= self._first_counts.get(topic, 1 << 31):
            return True
        return any(self.topic_of(name) == topic for name in positions)

    def _has_partitions(self) -> bool:
        return bool(self._mine())

    def _mine(self) -> list[tuple[str, int]]:
        """The partitions of this task."""
        return [
            (topic, n) for topic, count in self._partitions.items() for n in range(count) if self.owns(f"{topic}-{n}")
        ]


class KafkaBatches(PartReader):
    """Batches that are planned in this process. For a sink of files, ``read_part`` reads their records; over Spark
    Connect, Spark's Kafka source does."""

    read_part: ReadRecords

    def __init__(self, source: KafkaSource, settings: KafkaSourceSettings, mine: Sequence[tuple[str, int]]) -> None:
        """Store the arguments; ``mine`` are the partitions of the task."""
        self._source, self._settings, self._mine = source, settings, mine
        self.read_part = source.record_reader()
        self.columns = self.read_part.columns
        self._first: dict[str, int] = {}
        self._is_known = False

    def plan(self, start: Mapping[str, int]) -> Mapping[str, int]:
        ends = offsets_of(self._settings, self._mine, latest=True)
        is_new = [(topic, n) for topic, n in self._mine if f"{topic}-{n}" not in {**start, **self._first}]
        for is_early in (True, False):
            found = [(topic, n) for topic, n in is_new if self._source.begins_early(topic, n, start) == is_early]
            self._first.update(offsets_of(self._settings, found, latest=not is_early))
        firsts = {name: int(start.get(name, self._first.get(name, 0))) for name in ends}
        if any(last < firsts[name] for name, last in ends.items()):
            self._source.check_positions(start)
        waiting = {name: last - firsts[name] for name, last in ends.items() if last > firsts[name]}
        most, total = self._settings.max_rows_per_batch, sum(waiting.values())
        end = dict(start)
        for name, records in waiting.items():
            # Each partition has a share of the batch, as of the records that wait.
            taken = records if total <= most else max(1, records * most // total)
            end[name] = self._source.position(self._source.topic_of(name), firsts[name] + taken)
        for name, first in firsts.items():
            if name not in end and (first or self._settings.starting_offsets == "latest"):
                # The first batch commits where a partition begins, also without records: it begins there once.
                end[name] = self._source.position(self._source.topic_of(name), first)
        return end

    def ranges(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[Range]:
        return self._source.ranges(start, end)

    def parts(self, ranges: Sequence[Range]) -> list[tuple[str, Range]]:
        # A range begins at 0 if nothing of the partition is committed yet.
        return [(each.slice, replace(each, start=max(each.start, self._first.get(each.slice, 0)))) for each in ranges]

    def reads_here(self, ranges: Sequence[Range]) -> bool:
        # Records that are not parsed take less time than to have others read them.
        is_small = sum(part.end - part.start for _, part in self.parts(ranges)) <= SMALL_RECORDS
        return self.read_part.values is None or is_small

    def read_here(self, ranges: Sequence[Range]) -> Iterator[tuple[str, pa.RecordBatch]]:
        return self.read_part.read([part for _, part in self.parts(ranges)])

    def read(self, session: SparkSession, ranges: Sequence[Range]) -> DataFrame:
        from ..java import check_kafka_of_server

        if not self._is_known:
            check_kafka_of_server(session)
            self._is_known = True
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for _, each in self.parts(ranges):
            topic, _, number = each.slice.rpartition("-")
            starts.setdefault(topic, {})[number] = each.start
            ends.setdefault(topic, {})[number] = each.end
        records = (
            session.read.format("kafka")
            .options(**self._source.options)
            .option("assign", json.dumps({topic: [int(n) for n in numbers] for topic, numbers in starts.items()}))
            .option("startingOffsets", json.dumps(starts))
            .option("endingOffsets", json.dumps(ends))
            .load()
        )
        return self._source.rows_of(records)


def partitions_of(settings: KafkaSourceSettings) -> dict[str, int]:
    """Return the number of partitions of each topic to read.

    Raises:
        SourceError: the cluster does not answer, or a topic does not exist.
    """
    from confluent_kafka import KafkaException

    try:
        client = client_settings("source.client", settings.client)
        found = admin(settings.bootstrap_servers, client).list_topics(timeout=10).topics
    except KafkaException as error:
        reason = error.args[0].str() if error.args and hasattr(error.args[0], "str") else str(error)
        raise SourceError(f"Kafka {settings.bootstrap_servers}: {reason}; allowed: a cluster that answers") from error
    wanted = wanted_topics(settings.topics, settings.topics_regex, found)
    for name in wanted:
        if name not in found or not found[name].partitions:
            raise SourceError(f"Kafka {settings.bootstrap_servers}: topic {name} does not exist; allowed: a topic")
    return {name: len(found[name].partitions) for name in wanted}


def wanted_topics(topics: str, expression: str, known: Collection[str]) -> Sequence[str]:
    """Return the topics of a list, or else those of the cluster that a regular expression means."""
    if listed(topics) or not expression:
        return listed(topics)
    # RE2, not Python's engine: its time is linear in the length of a name, whatever the expression.
    matching = matching_topics(expression, tuple(known)) - _INTERNAL
    return [name for name in known if name in matching]


def topic_ids(settings: KafkaSourceSettings, topics: Collection[str]) -> dict[str, str]:
    """Return the id of each topic that exists; none from a broker that has no ids.

    Raises:
        SourceError: the cluster does not answer.
    """
    if not topics:
        return {}
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    client = kept_admin(settings.bootstrap_servers, settings.client)
    ids = {}
    try:
        for name, found in client.describe_topics(TopicCollection(sorted(topics)), request_timeout=10).items():
            try:
                topic_id = str(found.result(15).topic_id)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                ids[name] = "" if topic_id == _NO_ID else topic_id
    except (KafkaException, TimeoutError) as error:
        raise SourceError(f"Kafka {settings.bootstrap_servers}: {error}; allowed: a cluster that answers") from error
    return {name: topic_id for name, topic_id in ids.items() if topic_id}


def offsets_of(settings: KafkaSourceSettings, partitions: Sequence[tuple[str, int]], *, latest: bool) -> dict[str, int]:
    """Return the end (``latest``) or the beginning of each topic partition, by slice name.

    Raises:
        SourceError: the cluster does not answer, or a partition does not exist any more.
    """
    if not partitions:
        return {}
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    level = IsolationLevel[settings.isolation_level.upper()]
    spec: Any = OffsetSpec.latest() if latest else OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    try:
        client = kept_admin(settings.bootstrap_servers, settings.client)
        wanted = {TopicPartition(topic, n): spec for topic, n in partitions}
        found = client.list_offsets(wanted, isolation_level=level, request_timeout=10)
        return {f"{each.topic}-{each.partition}": result.result(15).offset for each, result in found.items()}
    except (KafkaException, TimeoutError) as error:
        raise SourceError(f"Kafka {settings.bootstrap_servers}: {error}; allowed: a cluster that answers") from error


def _fields(settings: KafkaSourceSettings) -> Columns:
    """Return the columns that are fields of the value; none: the value is the column ``value``."""
    return settings.avro_columns if settings.schema_ is None else from_ddl(settings.schema_)


def _metadata(settings: KafkaSourceSettings) -> Sequence[str]:
    """Return the columns beside the value."""
    if settings.metadata is not None:
        return listed(settings.metadata)
    return () if settings.has_fields else tuple(_METADATA)


def _columns(settings: KafkaSourceSettings) -> Columns:
    types = {
        **_METADATA,
        "key": "BINARY" if settings.key_form == "bytes" else "STRING",
        _HEADERS: HEADERS_TYPE.format(settings.header_type),
        _TIMESTAMP_TYPE: "STRING",
    }
    value: Columns = (Column("value", "BINARY" if settings.value_form == "bytes" else "STRING"),)
    value = _fields(settings) or value
    names = _metadata(settings)
    for name in names:
        if name not in types:
            raise ConfigError("source.metadata", name, ", ".join(types))
    return check_names([*value, *(Column(name, types[name]) for name in names)], field="source.schema")

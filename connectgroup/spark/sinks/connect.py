"""The sink ``connect``: a sink connector of Kafka Connect, which runs in the Java process of the worker's Spark.

It gets the records of the source ``kafka`` as Kafka Connect's worker would hand them over, converted by the converters
of its configuration. Its positions are the offsets of the consumer group ``connect-NAME``, as in Kafka Connect, up to
which the plug-in says that its records are durable (``preCommit``). ``put`` carries no fencing token: at least once.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import ConfigDict, Field
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from ...connector import LocalPath
from ...dataplane.columns import Columns
from ...dataplane.dead_letters import DeadLetter, DeadLetters, DeadLetterSink, dead_letter
from ...dataplane.errors import SinkError, TaskFenced
from ...dataplane.java_plugins import MAX_POLL_RECORDS, require_java_class
from ...dataplane.ownership import Owner, Range
from ...dataplane.settings import PluginSettings, settings_below, unknown_setting
from ...errors import ConfigError
from ..kafka_client import admin, client_files, client_settings
from ..remote import remote_address
from ..sources.kafka_group import TRANSIENT, GroupOffsets, group_of
from .kafka import MAX_LETTER, cut_text, letter_text
from .kafka_offsets import as_sink_error, create_topic

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import KafkaError, Message, Producer, TopicPartition

    from ..connect_runtime import JavaSinkTask, JavaTransform

CONFIG: Final = "config."
TOPICS: Final = ("topics", "topics.regex")
"""The plug-in's settings that say which topics it gets; one of them is set."""
IDLE_S: Final = 5.0
"""How often a plug-in that holds records is asked whether they are durable, while there are no others."""
_REQUEST_S: Final = 30.0
_LINE_S: Final = 30.0
"""How often the log says that a plug-in does not take its records."""
_COLUMNS: Final = {"key": "BINARY", "topic": "STRING", "partition": "INT", "offset": "BIGINT", "timestamp": "TIMESTAMP"}
_REPLICATION: Final = "errors.deadletterqueue.topic.replication.factor"
_TOKEN: Final = re.compile(r"connectgroup ([0-9]+)")

T = TypeVar("T")
logger = logging.getLogger(__name__)


class ConnectSinkSettings(PluginSettings):
    """Settings of the sink ``connect``, each with the prefix ``sink.``; the plug-in's own begin with
    ``sink.config.``."""

    # Only the plug-in knows its settings.
    model_config = ConfigDict(extra="allow")

    connector_class: Annotated[
        str, Field(min_length=1, description="the Java class of a sink connector, in a jar on a worker's plug-in path")
    ]
    bootstrap_servers: Annotated[
        str, Field(min_length=1, description="host:port, separated by commas: the cluster of source.bootstrap.servers")
    ]
    client: Annotated[
        str,
        LocalPath(within=client_files),
        Field(description="settings of the Kafka client as a JSON object, such as security.protocol"),
    ] = ""

    def model_post_init(self, _: Any) -> None:
        """Check the names.

        Raises:
            ConfigError: there is no such setting.
        """
        for name in self.model_extra or {}:
            if not name.startswith(CONFIG):
                known = [str(field.alias or name) for name, field in type(self).model_fields.items()]
                raise unknown_setting(f"sink.{name}", [f"sink.{each}" for each in (*known, f"{CONFIG}NAME")])
        client_settings("sink.client", self.client)

    @property
    def plugin_config(self) -> dict[str, str]:
        """The settings of the plug-in."""
        return settings_below({name: str(value) for name, value in (self.model_extra or {}).items()}, CONFIG)


class ConnectSink(DeadLetterSink):
    """A sink connector of Kafka Connect: the plug-in runs unchanged, in the Java process of the worker's Spark, with
    the records of the source `kafka`. In Kafka Connect's own form `connector.class` is the Java class; `topics` and
    `source.bootstrap.servers` say what it reads. It is at least once, as in Kafka Connect: what a task has written and
    not committed when it is interrupted is written again, and a former owner of a task is not fenced. Its offsets are
    those of the consumer group `connect-NAME`. Converters are Java classes (`key.converter`, `value.converter`,
    `header.converter`). With `errors.tolerance=all`, a record that cannot be converted or transformed, or that the
    plug-in reports (`errantRecordReporter`), is a dead letter in a topic of the same cluster, which is created if it is
    missing, with the key and the headers of the record unless they are too large for it; the offset of a record is
    committed after its dead letter.
    """

    Settings = ConnectSinkSettings
    fenced = False

    def __init__(self, settings: ConnectSinkSettings, columns: Columns, transforms: Sequence[JavaTransform]) -> None:
        """Store the arguments; ``claim`` starts the plug-in.

        Raises:
            ConfigError: the rows are not records of Kafka with bytes, or a number is none.
        """
        found = {column.name: column.type for column in columns}
        if any(found.get(name) != kind for name, kind in {**_COLUMNS, "value": "BINARY"}.items()):
            names = "key,topic,partition,offset,timestamp,timestamp_type,headers"
            allowed = f"kafka, with source.metadata {names} and ByteArrayConverter"
            raise ConfigError("source", ", ".join(found), allowed)
        self._settings, self._transforms = settings, transforms
        # A plug-in may write what it gets at once in one request.
        most = settings.plugin_config.get(MAX_POLL_RECORDS, "500")
        if not re.fullmatch("[1-9][0-9]{0,8}", most):
            raise ConfigError(MAX_POLL_RECORDS, most, "1 to 999999999")
        self._most_records = int(most)
        self._group: GroupOffsets | None = None
        self._task: JavaSinkTask | None = None
        self._owner: Owner | None = None
        handle, name = tempfile.mkstemp(prefix="records-", suffix=".arrow")
        os.close(handle)
        self._file = Path(name)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._interrupted = threading.Event()
        self._was_called = False  # whether the plug-in was when the task was to stop; changed by interrupt
        self._report_failure: Callable[[BaseException], None] = lambda error: None
        self._report_wait: Callable[[], None] = lambda: None
        self._report_late: Callable[[Sequence[DeadLetter]], None] = lambda letters: None
        self._next_line_s = 0.0
        # These are changed under the lock. A task that has failed commits nothing any more.
        self._failure: BaseException | None = None
        self._opened: set[str] = set()
        self._committed: dict[str, int] = {}
        # Dead letters that are not durable yet, and those that are and that no batch has counted.
        self._letters: list[LetterRecord] = []
        self._uncounted: list[DeadLetter] = []
        # Changed by open_dead_letters, which is called before the claim, and by close.
        self._dead_letters = ""
        self._producer: Producer | None = None

    @classmethod
    def create(cls, settings: ConnectSinkSettings, columns: Columns) -> ConnectSink:
        require_java_class("sink.connector.class", settings.connector_class, "sink")
        return cls(settings, columns, ())

    @classmethod
    def open_positions(cls, settings: ConnectSinkSettings) -> GroupPositions:
        return GroupPositions(settings)

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        from ..connect_runtime import JavaSinkTask

        settings = self._settings
        if remote_address():
            raise ConfigError("sink", "connect", "a worker with its own Spark, not Spark Connect")
        self._owner = owner
        self._group = GroupOffsets(settings.bootstrap_servers, settings.client, group_of(owner.connector))
        with as_sink_error(f"Kafka {settings.bootstrap_servers}"):
            topics = _topics(self._group, settings)
            positions = _read(self._group, topics, owner.fencing_token, is_mine)
        config = {"name": owner.connector, "connector.class": settings.connector_class, **settings.plugin_config}
        self._task = JavaSinkTask(
            config, self._transforms, is_tolerant=bool(self._dead_letters), interrupted=self._interrupted
        )
        names = [name for name in _partitions(self._group, topics) if is_mine(name)]
        self._opened.update(names)
        if self._interrupted.is_set():  # since before the plug-in was there to be interrupted
            self.interrupt()
        try:
            positions |= self._task.open({name: positions.get(name) for name in names})
        except BaseException as error:
            self._failure = error
            raise
        self._committed = dict(positions)
        threading.Thread(target=self._idle, name=f"idle {owner}", daemon=True).start()
        return positions

    def open_dead_letters(self, name: str) -> None:
        from confluent_kafka import Producer

        settings = self._settings
        client = client_settings("sink.client", settings.client)
        factor = settings.plugin_config.get(_REPLICATION, "-1")
        if not re.fullmatch("-1|[1-9][0-9]{0,4}", factor):
            raise ConfigError(_REPLICATION, factor, "a number from 1, or -1 for the default of the cluster")
        with as_sink_error(f"Kafka {settings.bootstrap_servers}, topic {name}"):
            create_topic(admin(settings.bootstrap_servers, client), name, {}, replication=int(factor))
        # As Kafka Connect: the dead letters of a key are in the partition that Java's clients choose.
        config = {"bootstrap.servers": settings.bootstrap_servers, "partitioner": "murmur2_random", **client}
        self._producer = Producer(config, logger=logger)
        self._dead_letters = name

    def commit_all(
        self, owner: Owner, ranges: Sequence[Range], rows: pa.Table, dead_letters: Sequence[DeadLetter]
    ) -> bool:
        task = self._task
        assert task is not None, "claim first"
        with self._lock:
            if self._failure is not None:
                raise self._failure
            new = {each.slice: int(each.start) for each in ranges if each.slice not in self._opened}
            if new:
                self._opened.update(new)
                if moved := task.open(dict(new)):
                    raise SinkError(
                        f"{self._settings.connector_class}: begins at {moved}; allowed: the task starts again"
                    )
            try:
                if rows.num_rows:
                    _write_records(rows, self._file, self._most_records)
                    task.put(self._file, self._waits)
                # Before it has reached the end: it has not got the rows behind where it wants to go on.
                self._follow(task)
                # Also without a record: partitions that have a position are not taken for new ones.
                task.reach({each.slice: int(each.end) for each in ranges})
                self._letters += map(LetterRecord, dead_letters)
                self._advance(task, is_idle=False)
                if isinstance(dead_letters, DeadLetters):
                    dead_letters.extend(self._uncounted)
                    self._uncounted.clear()
            except BaseException as error:
                self._failure = error
                raise
        return True

    def report_failures(self, failed: Callable[[BaseException], None]) -> None:
        self._report_failure = failed

    def report_waits(self, waits: Callable[[], None]) -> None:
        self._report_wait = waits

    def report_late(self, late: Callable[[Sequence[DeadLetter]], None]) -> None:
        self._report_late = late

    def interrupt(self) -> None:
        self._was_called = self.is_leaving_a_call()
        self._interrupted.set()
        task = self._task
        if task is not None:
            with suppress(Exception):  # of a Java that has ended
                task.interrupt()

    def is_leaving_a_call(self) -> bool:
        task = self._task
        return self._was_called or (task is not None and task.is_called)

    def close(self) -> None:
        self._closing.set()
        task, self._task = self._task, None
        if task is not None:
            if self._lock.acquire(timeout=1):
                try:
                    if self._failure is None:
                        with suppress(Exception):
                            self._advance(task, is_idle=False)
                finally:
                    self._lock.release()
            if not task.stop():
                logger.error("%s: the plug-in does not stop; its thread is left behind", self._owner)
        if self._group is not None:
            self._group.close()
        self._file.unlink(missing_ok=True)

    def _idle(self) -> None:
        """Let a plug-in that holds records write them, also when there are no others.

        If it fails, the task starts again at the committed offsets: the plug-in may have dropped what it held.
        """
        while not self._closing.wait(IDLE_S):
            try:
                with self._lock:
                    if self._task is not None and self._failure is None:
                        self._advance(self._task, is_idle=True)
                        if self._uncounted:
                            self._report_late(tuple(self._uncounted))
                            self._uncounted.clear()
            except Exception as error:
                if self._failure is not None:
                    self._report_failure(error)
                    return
                logger.warning("%s: %s", self._owner, error)

    def _advance(self, task: JavaSinkTask, *, is_idle: bool) -> None:
        """Ask the plug-in up to where its records are durable, write the dead letters, and commit the offsets."""
        try:
            durable = task.commit(self._waits, is_idle=is_idle)
        except SinkError as error:
            self._failure = error
            raise
        if self._producer is not None:
            assert self._owner is not None
            reported = [LetterRecord.of(self._owner, each) for each in task.letters()]
            self._uncounted += [each.letter for each in reported]
            self._letters += reported
            self._write_letters(self._producer)
        self._store(durable)
        self._follow(task)

    def _follow(self, task: JavaSinkTask) -> None:
        """End the task if the plug-in wants to go on elsewhere (``context.offset``): as in Kafka Connect, the group has
        these offsets then, and the plug-in gets the records from there again."""
        if moved := task.rewound():
            self._failure = SinkError(
                f"{self._settings.connector_class}: goes on at {moved}; allowed: the task starts again there"
            )
            self._store(moved)
            raise self._failure

    def _waits(self, error: str) -> None:
        """The plug-in answers, but does not take the records yet: the task has not stalled."""
        self._report_wait()
        if error and time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + _LINE_S
            logger.warning("%s: puts again after %s", self._owner, error)

    def _write_letters(self, producer: Producer) -> None:
        where = f"Kafka {self._settings.bootstrap_servers}, topic {self._dead_letters}"
        with as_sink_error(where):
            write_letters(producer, self._dead_letters, self._letters, where)
        self._letters.clear()

    def _store(self, durable: Mapping[str, int]) -> None:
        """Commit offsets to the group."""
        from confluent_kafka import TopicPartition

        assert self._group is not None
        assert self._owner is not None
        changed = {name: at for name, at in durable.items() if at != self._committed.get(name)}
        if not changed:
            return
        metadata = f"connectgroup {self._owner.fencing_token}"
        offsets = [TopicPartition(*_parted(name), at, metadata) for name, at in changed.items()]
        with as_sink_error(f"Kafka {self._settings.bootstrap_servers}"):
            _read(
                self._group,
                {topic for topic, _ in map(_parted, changed)},
                self._owner.fencing_token,
                changed.__contains__,
            )
            client = self._group.open()
            for each in _answered(lambda: client.commit(offsets=offsets, asynchronous=False)) or ():
                if each.error is not None:
                    raise SinkError(f"consumer group {group_of(self._owner.connector)}: {each.error.str()}")
        self._committed.update(changed)


@dataclass(frozen=True, slots=True)
class LetterRecord:
    """The record of a dead letter: its key and its headers are those of the record that could not be processed.

    Attributes:
        letter: the value; ``key`` and ``headers`` are in it as text, too, if they are long their start.
        key, headers: as bytes.
    """

    letter: DeadLetter
    key: bytes | None = None
    headers: Sequence[tuple[str, str | bytes | None]] = ()

    @classmethod
    def of(cls, owner: Owner, found: Mapping[str, Any]) -> LetterRecord:
        """Return a record that ``Letters`` of ``ConnectBridge.java`` has."""
        error = {name: found[name] for name in ("stage", "place", "reason")}
        error["record"] = _shown(_bytes(found["value"])) or ""
        key = _bytes(found["key"])
        headers = [(str(name), _bytes(value)) for name, value in found["headers"]]
        if key is not None:
            error["key"] = _shown(key) or ""
        if headers:
            error["headers"] = _headers_shown(headers)
        return cls(dead_letter(owner, error), key, headers)

    def smaller(self) -> Iterator[LetterRecord]:
        """Yield the record, and what is written instead if it is too large, the largest first."""
        yield self
        yield LetterRecord(self.letter, self.key)
        yield LetterRecord(self.letter)
        yield LetterRecord({name: cut_text(text, 500) for name, text in self.letter.items() if name != "headers"})


def write_letters(producer: Producer, topic: str, letters: Sequence[LetterRecord], where: str) -> None:
    """Write dead letters, and wait until they are durable. One that is too large is written with less beside its value.

    Raises:
        SinkError: the cluster does not answer, or a letter is too large in any case.
        KafkaException: it rejects one.
    """
    for each in _too_large(producer, topic, letters, where):
        # Alone: a cluster rejects records that are sent together as one.
        if all(_too_large(producer, topic, (smaller,), where) for smaller in each.smaller()):
            raise SinkError(f"{where}: a dead letter is too large; allowed: max.message.bytes of at least 10000")


def _too_large(producer: Producer, topic: str, letters: Iterable[LetterRecord], where: str) -> list[LetterRecord]:
    """Write dead letters; return those that are too large, for the client or for the cluster."""
    from confluent_kafka import KafkaException

    found: list[LetterRecord] = []
    failed: list[KafkaError] = []

    def delivered(each: LetterRecord, error: KafkaError | None) -> None:
        if error is not None and error.name() == "MSG_SIZE_TOO_LARGE":
            found.append(each)
        elif error is not None:
            failed.append(error)

    def told(each: LetterRecord) -> Callable[[KafkaError | None, Message], None]:
        return lambda error, _: delivered(each, error)

    for each in letters:
        value, headers = letter_text(each.letter), list(each.headers)
        while True:
            try:
                producer.produce(topic, value, key=each.key, headers=headers, on_delivery=told(each))
                break
            except BufferError:
                producer.poll(0.01)
            except KafkaException as error:
                delivered(each, error.args[0])
                break
    if producer.flush(_REQUEST_S):
        raise SinkError(f"{where}: no answer within {_REQUEST_S:g} s; allowed: a cluster that answers")
    if failed:
        raise KafkaException(failed[0])
    return found


def _headers_shown(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Return headers as JSON: the first of them, and the start of their names and values, if there are too many bytes
    for a field of a dead letter."""
    shown: list[tuple[str, str | None]] = []
    left = MAX_LETTER // 5
    for name, value in headers:
        # They are JSON within JSON: quotes are escaped twice.
        text = _shown(value)
        pair = cut_text(name, left // 8), None if text is None else cut_text(text, left // 4)
        left -= len(json.dumps(json.dumps(pair, ensure_ascii=False)))
        if left < 0:
            break
        shown.append(pair)
    return json.dumps(shown, ensure_ascii=False)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _shown(value: bytes | None) -> str | None:
    """Bytes as text; those that are not UTF-8 are escaped."""
    return None if value is None else value.decode(errors="backslashreplace")


class GroupPositions:
    """Implements ``dataplane.sink.PositionStore`` on the consumer group."""

    def __init__(self, settings: ConnectSinkSettings) -> None:
        """Store the settings."""
        self._settings = settings

    def positions(self, connector: str) -> dict[str, int]:
        group = self._open(connector)
        try:
            with as_sink_error(f"Kafka {self._settings.bootstrap_servers}"):
                return _read(group, _topics(group, self._settings), None, lambda _: True)
        finally:
            group.close()

    def alter(self, connector: str, fencing_token: int, positions: Mapping[str, int | None] | None) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        settings = self._settings
        group = self._open(connector)
        metadata = f"connectgroup {fencing_token}"
        try:
            with as_sink_error(f"Kafka {settings.bootstrap_servers}"):
                # Fenced, if a later owner has committed.
                _read(group, _topics(group, settings), fencing_token, lambda _: True)
                if positions is None:
                    client = admin(settings.bootstrap_servers, client_settings("sink.client", settings.client))
                    try:
                        client.delete_consumer_groups([group_of(connector)])[group_of(connector)].result(_REQUEST_S)
                    except KafkaException as error:
                        if error.args[0].name() != "GROUP_ID_NOT_FOUND":
                            raise
                    return
                # A consumer cannot delete an offset: one that is forgotten is at the beginning.
                offsets = [TopicPartition(*_parted(name), int(at or 0), metadata) for name, at in positions.items()]
                opened = group.open()
                if offsets:
                    _answered(lambda: opened.commit(offsets=offsets, asynchronous=False))
        finally:
            group.close()

    def close(self) -> None:
        """Do nothing: each call opens a connection."""

    def _open(self, connector: str) -> GroupOffsets:
        return GroupOffsets(self._settings.bootstrap_servers, self._settings.client, group_of(connector))


def _parted(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def _topics(group: GroupOffsets, settings: ConnectSinkSettings) -> Sequence[str]:
    """Return the topics that the plug-in's settings name, as the source reads them."""
    from ..sources.kafka import wanted_topics

    topics, expression = (settings.plugin_config.get(name, "") for name in TOPICS)
    known: Collection[str] = group.open().list_topics(timeout=_REQUEST_S).topics if expression else ()
    return wanted_topics(topics, expression, known)


def _partitions(group: GroupOffsets, topics: Iterable[str]) -> list[str]:
    found = []
    for topic in topics:
        known = group.open().list_topics(topic, timeout=_REQUEST_S).topics[topic]
        found += [f"{topic}-{number}" for number in sorted(known.partitions)]
    return found


def _read(
    group: GroupOffsets, topics: Iterable[str], token: int | None, is_mine: Callable[[str], bool]
) -> dict[str, int]:
    """Return the offsets of a group.

    Raises:
        Fenced: a later owner has committed one of them.
    """
    from confluent_kafka import TopicPartition

    names = [name for name in _partitions(group, topics) if is_mine(name)]
    if not names:
        return {}
    found: list[TopicPartition] = _answered(
        lambda: group.open().committed([TopicPartition(*_parted(name)) for name in names], timeout=_REQUEST_S)
    )
    positions = {}
    for each in found:
        later = _TOKEN.fullmatch(each.metadata or "")
        if token is not None and later is not None and int(later[1]) > token:
            raise TaskFenced(
                f"{each.topic}-{each.partition}: a later owner has committed; allowed: only the latest owner writes",
                token=int(later[1]),
            )
        if each.error is None and each.offset >= 0:
            positions[f"{each.topic}-{each.partition}"] = each.offset
    return positions


def _answered(request: Callable[[], T]) -> T:
    """Send a request to the group's coordinator, again while it moves or loads."""
    from confluent_kafka import KafkaException

    def is_transient(error: BaseException) -> bool:
        return isinstance(error, KafkaException) and error.args[0].name() in TRANSIENT

    again = Retrying(
        retry=retry_if_exception(is_transient),
        wait=wait_random_exponential(0.1, max=2),
        stop=stop_after_delay(_REQUEST_S),
        reraise=True,
    )
    return again(request)


def _write_records(rows: pa.Table, file: Path, most: int) -> None:
    """Write the records for ``SinkRun.put`` of ``ConnectBridge.java``, at most so many for each call of the plug-in."""
    import pyarrow as pa
    import pyarrow.compute as pc

    headers: list[str | None] = [None] * rows.num_rows
    if "headers" in rows.column_names:
        headers = [_headers_text(each) for each in rows["headers"].to_pylist()]
    times = rows["timestamp"].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    is_append_time = pa.array([None] * rows.num_rows, pa.int32())
    if "timestamp_type" in rows.column_names:
        is_append_time = pc.equal(rows["timestamp_type"], "LogAppendTime").cast(pa.int32())
    columns = {
        "topic": rows["topic"].cast(pa.string()),
        "partition": rows["partition"].cast(pa.int32()),
        "offset": rows["offset"].cast(pa.int64()),
        "timestamp": times,
        "is_append_time": is_append_time,
        "key": rows["key"].cast(pa.binary()),
        "value": rows["value"].cast(pa.binary()),
        "header_names": pa.array(headers, pa.string()),
    }
    table = pa.table(columns)
    with pa.OSFile(str(file), "wb") as output, pa.ipc.new_stream(output, table.schema) as stream:
        stream.write_table(table, max_chunksize=most)


def _headers_text(headers: Sequence[Mapping[str, Any]] | None) -> str | None:
    if not headers:
        return None
    return json.dumps(
        [[each["key"], None if each["value"] is None else base64.b64encode(each["value"]).decode()] for each in headers]
    )

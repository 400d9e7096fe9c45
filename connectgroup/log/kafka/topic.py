"""The topic of the log: it is created with safe settings, checked, and read to its end.

All functions block; ``store`` calls them in its thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from ...errors import LogError
from ...masking import without_secrets
from ...protocol.units import printable
from ..base import MAX_BATCH_BYTES
from ..rows import Values
from .records import OwnerState, Standby, UnknownRecordError, decode

if TYPE_CHECKING:
    from confluent_kafka import Message

CALL_S: Final = 4.0
"""How long one call of the client may take."""

_RESULT_S: Final = CALL_S + 1.0
"""The client reports a call that took too long itself, a moment later."""

OPEN_TRANSACTION_S: Final = 2.0
"""How long a successor waits for an open transaction: one of the former owner is aborted at once."""

CREATE_S: Final = 15.0
"""How long a new topic may be without a leader."""

OVERHEAD_BYTES: Final = 512
"""What a record and its batch take in the topic besides key and value: headers, lengths, checksum."""

MAX_MESSAGE_BYTES: Final = MAX_BATCH_BYTES + OVERHEAD_BYTES
"""``max.message.bytes`` of a topic that is created here: the largest batch may be one record."""

_LARGEST_MESSAGE: Final = 1_000_000_000
"""What librdkafka takes at most."""

SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "unclean.leader.election.enable": "false",
    "max.message.bytes": str(MAX_MESSAGE_BYTES),
    # The last segment is not compacted: renewals of the lease are in it until it ends.
    "segment.bytes": str(32 * 1024 * 1024),
    "segment.ms": str(24 * 3_600_000),
    "min.cleanable.dirty.ratio": "0.3",
}

_RIGHTS: Final = (
    "allowed: a user with Read, Write, Describe and DescribeConfigs on the topic (Create for a new one), and Write and "
    "Describe on the transactional id connectgroup-log-TOPIC (and all that begin with it, for several partitions)"
)

logger = logging.getLogger(__name__)

client_logger = logging.getLogger(f"{__name__}.client")
"""What librdkafka would write to standard error: each error that concerns the log is raised, too."""
client_logger.addHandler(logging.NullHandler())
client_logger.propagate = False


def _away() -> set[int]:
    """The codes of errors of a client that reaches no broker."""
    from confluent_kafka import KafkaError

    return {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}


class Topic:
    """One partition of the topic, and an admin client.

    Attributes:
        partitions: the number of partitions of the log; ``check`` and ``settle_partitions`` set it.
        expected_partitions: how many that must be, and the topic is created with; ``None``: as many as it has, or 1.
        found_partitions: the number of partitions of the topic; ``check`` sets it.
        name: cluster and topic, for messages.
        server: the identity of cluster and topic; ``check`` sets it. A topic that is created anew has another one.
        max_record_bytes: maximum size of key and value of one record; ``check`` sets it.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        client: Mapping[str, str],
        *,
        replication: int | None = None,
        partition: int = 0,
    ) -> None:
        """Create the client; nothing is sent.

        Args:
            servers: ``HOST:PORT`` of brokers, separated by commas.
            client: settings of librdkafka.
            replication: the replication factor of a new topic; ``None``: 3, or the number of brokers if fewer.

        Raises:
            ValueError: a setting is invalid.
        """
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import AdminClient

        which = f" partition {partition}" if partition else ""
        self.topic, self.name = topic, printable(f"kafka://{servers}/{topic}{which}")
        self.partitions = self.found_partitions = 1
        self.expected_partitions: int | None = None
        self.partition = TopicPartition(topic, partition)
        # No topic has a colon in its name: the id is that of no other topic.
        self.transactional_id = f"connectgroup-log-{topic}" + (f":{partition}" if partition else "")
        self._replication = replication
        self._client: dict[str, Any] = {
            "client.id": "connectgroup",
            # After an outage a coordinator serves as soon as there is a broker; the default is 10 s.
            "reconnect.backoff.max.ms": 1_000,
            **client,
            "bootstrap.servers": servers,
            "log_level": 0,
        }
        self.server = ""
        self._has_warned = False  # of partitions that were added
        self._in_sync = self._needed = 1  # the replicas in sync, and how many a change needs: ``check`` sets them
        self._refusal = ""  # why a broker refuses connections: ``_on_error``, ``errors``
        self.max_record_bytes = MAX_MESSAGE_BYTES
        # The client is a producer, for which the default is to create a topic that it asks about.
        settings: dict[str, Any] = {**self.client(allow_auto_create_topics=False), "error_cb": self._on_error}
        try:
            self.admin: Any = AdminClient(settings, logger=client_logger)
        except KafkaException as error:
            raise ValueError(self.reason(error)) from error

    def client(self, **more: object) -> dict[str, Any]:
        """Settings of a client; ``_`` in a name stands for ``.``."""
        return {**self._client, **{name.replace("_", "."): value for name, value in more.items()}}

    def reason(self, error: Any) -> str:
        """The text of an error of the Kafka client (an exception or a ``KafkaError``) on one line, no credentials; with
        the rights that the user needs, if it lacks one."""
        from confluent_kafka import KafkaError

        first: Any = error.args[0] if getattr(error, "args", ()) else error
        text = " ".join((first.str() if hasattr(first, "str") else str(first)).split())
        refused = (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        )
        hint = f"; {_RIGHTS}" if hasattr(first, "code") and first.code() in refused else ""
        return printable(without_secrets(text, self._client), limit=300) + hint

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors of the Kafka client."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            code = error.args[0].code() if error.args and hasattr(error.args[0], "code") else None
            self.admin.poll(0)  # calls ``_on_error``
            hint = (self._refusal or "; allowed: the address of a running Kafka broker") if code in _away() else ""
            raise LogError(f"{self.name}: {self.reason(error)}{hint}") from error
        except TimeoutError as error:
            self.admin.poll(0)
            raise LogError(f"{self.name}: did not answer in {_RESULT_S:g} s{self._refusal}") from error
        self._refusal = ""

    def is_away(self, error: LogError) -> bool:
        """Whether the error may be gone in a while: no broker that has the topic can be reached, and none has refused
        the client, or one has not sent all in time."""
        from confluent_kafka import KafkaError

        cause = error.__cause__
        code = cause.args[0].code() if cause and cause.args and hasattr(cause.args[0], "code") else None
        # The first is the client's own: "No leaders found".
        has_no_leader = code in (KafkaError._NOENT, KafkaError.LEADER_NOT_AVAILABLE)
        return not self._refusal and (isinstance(cause, TimeoutError) or code in _away() or has_no_leader)

    def _on_error(self, error: Any) -> None:
        """Note why a broker refuses connections: a call only says that none can be reached."""
        from confluent_kafka import KafkaError

        text = self.reason(error)
        if error.code() == KafkaError._AUTHENTICATION or (error.code() == KafkaError._SSL and "certificate" in text):
            self._refusal = f": {text}"

    # ------------------------------------------------------------------------------------------ checks

    def check(self) -> None:
        """Check the topic; the first time, create it if it is missing.

        Raises:
            LogError: a one-line description of the problem.
        """
        from confluent_kafka import KafkaError, KafkaException

        with self.errors():
            # Not describe_cluster: where no broker is alive yet, such as after a pause of the only one, it aborts the
            # whole process (librdkafka 2.16: "rd_kafka_admin_response_parse: Assertion `rko_result' failed").
            cluster = self.admin.list_topics(self.topic, timeout=CALL_S)
            if not cluster.brokers:
                raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN, "no broker of the cluster is alive"))
            found = self._described()
            if found is None:
                if self.server:
                    raise LogError(
                        f"{self.name}: the topic was deleted, and the state of all groups with it; allowed: the topic "
                        "as it was. To begin with an empty log, restart the coordinators"
                    )
                self._create(len(cluster.brokers))
                found = self._described()
            if found is None:
                raise LogError(f"{self.name}: the topic was deleted as soon as it was created")
            server = f"{cluster.cluster_id}/{found.topic_id}"
            if self.server and server != self.server:
                raise LogError(
                    f"{self.name}: the topic was deleted and created again: its id is {found.topic_id}, it was "
                    f"{self.server.rpartition('/')[2]}; allowed: the topic as it was. To begin with the topic as it "
                    "is, restart the coordinators"
                )
            self.found_partitions = count = len(found.partitions)
            self.partitions = self.expected_partitions or count
            if count < self.partitions:
                raise self._wrong_partitions("the topic has", count, self.partitions)
            used = [each for each in found.partitions if each.id < self.partitions]
            needed = self._check_settings(len(cluster.brokers), min(len(each.replicas) for each in used))
            begins = self._offset("earliest")
            if begins > 0:
                raise LogError(
                    f"{self.name}: begins at offset {begins}: the records before were deleted; allowed: a topic of "
                    "which only compaction removes records, such as a new one"
                )
            own = next(each for each in used if each.id == self.partition.partition)
            self._in_sync, self._needed = len(own.isr), needed
        if self.server:
            self._warn_of_added()
        self.server, self.expected_partitions = server, self.partitions

    def check_in_sync(self) -> None:
        """Raise if the topic, as ``check`` has found it, has fewer replicas in sync than a change needs.

        Raises:
            LogError: as of a broker that is away.
        """
        if self._in_sync < self._needed:
            raise LogError(
                f"{self.name}: {self._in_sync} of the topic's replicas are in sync, min.insync.replicas requires "
                f"{self._needed} for a change; allowed: as many running brokers that have a replica"
            ) from TimeoutError()

    def settle_partitions(self, started: int | None, given: int | None) -> None:
        """Decide how many partitions the log has: the topic may have more, which were added to it later.

        Args:
            started: how many the log was started with; ``None``: it is new.
            given: how many the operator wants; ``None``: as many as there are.

        Raises:
            LogError: the operator wants another number, or the topic has fewer.
        """
        count = started or self.found_partitions
        if given not in (None, count):
            raise self._wrong_partitions("the log was started with" if started else "the topic has", count, given)
        if count > self.found_partitions:
            raise LogError(
                f"{self.name}: the topic has {self.found_partitions} partitions, the log was started with {count}; "
                "allowed: a topic with as many"
            )
        self.partitions = self.expected_partitions = count
        self._warn_of_added()

    def _warn_of_added(self) -> None:
        """Warn, once, of partitions that the log does not use."""
        if self.found_partitions > self.partitions and self.partition.partition == 0 and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: partitions were added to the topic, which has %d now: the log goes on with the first %d, with "
                "which it was started",
                self.name,
                self.found_partitions,
                self.partitions,
            )

    def _wrong_partitions(self, what: str, count: int, wanted: int) -> LogError:
        return LogError(
            f"{self.name}: {what} {count} partition{'s' if count > 1 else ''}, not {wanted}: the number cannot be "
            f"changed; allowed: --partitions {count}, or none"
        )

    def _described(self) -> Any:
        """The description of the topic; ``None`` if there is none."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        (described,) = self.admin.describe_topics(TopicCollection([self.topic]), request_timeout=CALL_S).values()
        try:
            return described.result(_RESULT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return None

    def _create(self, brokers: int) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        replication = self._replication or min(3, brokers)
        config = {**SETTINGS, "min.insync.replicas": str(min(2, replication))}
        try:
            wanted = NewTopic(self.topic, self.expected_partitions or 1, replication, config=config)
            self.admin.create_topics([wanted], request_timeout=CALL_S)[self.topic].result(_RESULT_S)
            logger.warning("%s: created with replication factor %d", self.name, replication)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        give_up = time.monotonic() + CREATE_S
        while True:  # until all parts of the client know its leader
            try:
                self._offset("latest")
                return
            except KafkaException:
                if time.monotonic() > give_up:
                    raise
            time.sleep(0.1)
            self.admin.list_topics(self.topic, timeout=CALL_S)

    def _check_settings(self, brokers: int, replicas: int) -> int:
        """Check the settings of the topic; return how many replicas must be in sync for a change."""
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        found = self.admin.describe_configs([resource], request_timeout=CALL_S)[resource].result(_RESULT_S)
        settings = {name: entry.value for name, entry in found.items()}
        warnings = check_settings(self.name, settings, brokers=brokers, replicas=replicas)
        self.max_record_bytes = min(int(settings["max.message.bytes"]), _LARGEST_MESSAGE) - OVERHEAD_BYTES
        if not self.server:
            for warning in warnings:
                logger.warning("%s", warning)
        return min(int(settings["min.insync.replicas"]), replicas)

    def _offset(self, which: str, *, committed: bool = False) -> int:
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {self.partition: getattr(OffsetSpec, which)()}
        (answer,) = self.admin.list_offsets(asked, isolation_level=level, request_timeout=CALL_S).values()
        return int(answer.result(_RESULT_S).offset)

    def end(self) -> int:
        """The end of what is committed."""
        with self.errors():
            return self._offset("latest", committed=True)

    def end_without_open_transactions(self, limit_s: float = OPEN_TRANSACTION_S) -> int:
        """The end of the topic, once it has no open transaction. The caller has fenced the owner.

        Raises:
            OpenTransactionError: the transaction of another program is open.
        """
        give_up = time.monotonic() + limit_s
        with self.errors():
            while (end := self._offset("latest")) > (committed := self._offset("latest", committed=True)):
                if time.monotonic() > give_up:
                    raise OpenTransactionError(
                        f"{self.name}: a transaction of another program is open since offset {committed}; allowed: no "
                        "producer but the coordinators. It is aborted after the transaction.timeout.ms of its producer"
                    )
                time.sleep(0.05)
        return end


class OpenTransactionError(LogError):
    """The topic has an open transaction, behind which nothing can be read."""


def check_settings(name: str, settings: Mapping[str, str], *, brokers: int, replicas: int) -> list[str]:
    """Check the settings on which the promises of the log depend.

    Args:
        name: the log, for messages.
        settings: of the topic.
        brokers: the number of brokers of the cluster.
        replicas: the replication factor of the topic.

    Returns:
        Warnings about a cluster of one broker: it cannot be better.

    Raises:
        LogError: acknowledged records may be lost.
    """
    policy = ",".join(sorted(each.strip() for each in settings["cleanup.policy"].split(",")))
    if policy != "compact":
        raise LogError(
            f"{name}: the topic has cleanup.policy={policy}, which deletes groups that are in use; allowed: compact"
        )
    in_sync, unclean = settings["min.insync.replicas"], settings["unclean.leader.election.enable"]
    problems = [
        (replicas < 2, f"replication factor {replicas}", "2 or more, 3 recommended"),
        (int(in_sync) < 2, f"min.insync.replicas={in_sync}", "2 or more"),
        (unclean != "false", f"unclean.leader.election.enable={unclean}", "false"),
    ]
    warnings = []
    for is_one, problem, allowed in problems:
        text = f"{name}: the topic has {problem}: acknowledged changes may be lost with a broker"
        if is_one and brokers > 1:
            raise LogError(f"{text}; allowed: {allowed}")
        if is_one:
            warnings.append(f"{text}. The cluster has one broker")
    return warnings


class Tail:
    """A reader of the topic, from its beginning, or without rows from an offset before which all is known.

    Attributes:
        owner: the ownership as read last. ``catch_up`` changes this and all others.
        standbys: the coordinators that stand by, by address.
        rows: the last row of each key, by key, in the order of the topic; ``None`` after ``take_rows``: none is kept.
        last: the highest offset of a row.
        position: the offset in the topic up to which it has been read.
        is_usable: false after an error that a second attempt would not see.
    """

    def __init__(
        self,
        topic: Topic,
        *,
        begins: int = 0,
        owner: OwnerState | None = None,
        standbys: Mapping[str, Standby] | None = None,
    ) -> None:
        """``owner`` and ``standbys``: as known at the offset ``begins``."""
        from confluent_kafka import Consumer, TopicPartition

        self._topic = topic
        self.owner = owner or OwnerState(server=topic.server)
        self.standbys: dict[str, Standby] = dict(standbys or {})
        self.rows: dict[tuple[int, bytes, bytes], Values] | None = None if owner else {}
        self.last, self.position, self._epoch = self.owner.last, begins, 0
        self.is_usable = True
        self._is_paused = False
        with topic.errors():
            self._consumer: Any = Consumer(
                topic.client(
                    group_id=f"connectgroup-{topic.topic}",
                    enable_auto_commit=False,
                    isolation_level="read_committed",
                    enable_partition_eof=True,
                    auto_offset_reset="error",
                    # The end is reported when the broker answers a fetch without records.
                    fetch_wait_max_ms=100,
                    queued_max_messages_kbytes=16 * 1024,
                ),
                logger=client_logger,
            )
            # Not OFFSET_BEGINNING: librdkafka would ask for the offset, and wait 500 ms if it has no connection yet.
            self._consumer.assign([TopicPartition(topic.topic, topic.partition.partition, begins)])

    def catch_up(self, end: int) -> None:
        """Read up to an offset of the topic.

        Raises:
            LogError: it was not reached in time, and the next call continues; or the topic lacks records.
        """
        from confluent_kafka import KafkaError

        topic = self._topic
        if end < 0:
            raise LogError(f"{topic.name}: its end is not known yet: the broker has just started") from TimeoutError()
        if end < self.position:
            raise LogError(f"{topic.name}: ends at offset {end}, but was read up to {self.position}: it was truncated")
        give_up = time.monotonic() + CALL_S
        while self.position < end:
            self.is_usable = False
            with topic.errors():
                # A consume() with a timeout would wait for as many as were asked for.
                first = self._consumer.poll(0.2)
                messages = [] if first is None else [first, *self._consumer.consume(1_000, timeout=0)]
            for message in messages:
                error = message.error()
                if error is None:
                    self._apply(message)
                    self.position = message.offset() + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self.position = max(self.position, message.offset())
                elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    continue  # a consumer must have a group, but this one has nothing to do there
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise LogError(f"{topic.name}: records at offset {self.position} are gone: it was truncated")
                elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                    raise LogError(f"{topic.name}: cannot be read: {topic.reason(error)}")
            self.is_usable = True
            if self.position < end and time.monotonic() > give_up:
                raise LogError(
                    f"{topic.name}: {end - self.position} of {end} offsets are still to be read after {CALL_S:g} s"
                ) from TimeoutError()

    def _apply(self, message: Message) -> None:
        try:
            found = decode(message.key(), message.value(), message.headers() or ())  # type: ignore[arg-type]
        except UnknownRecordError as error:
            raise LogError(
                f"{self._topic.name}: the record at offset {message.offset()} {error}: newer software or another "
                "program wrote it; allowed: a topic that only coordinators write"
            ) from error
        if isinstance(found, OwnerState):
            self.owner = found
            self.last = max(self.last, found.last)
        elif isinstance(found[1], Standby):
            self.standbys[str(found[0])] = found[1]
        else:
            self._apply_row(found, message.offset() or 0)

    def _apply_row(self, values: Values, at: int) -> None:
        offset, _, epoch, kind, group, name, value, crc = values
        is_damaged = crc < 0
        if not is_damaged and epoch < max(self._epoch, self.owner.epoch):
            # D4: impossible as long as the cluster fences producers.
            logger.error("%s: the record at offset %d is of a former owner, it is ignored", self._topic.name, at)
            return
        self._epoch = max(self._epoch, epoch)
        self.last = max(self.last, offset)
        if self.rows is None:
            return
        key = kind, group, name
        self.rows.pop(key, None)
        if value is not None or is_damaged:
            self.rows[key] = values

    def take_rows(self, groups: set[bytes] | None) -> list[Values]:
        """The rows of some or all groups in the order of the log; they are not kept any longer."""
        rows, self.rows = self.rows, None
        assert rows is not None, "each reader gives its rows away once"
        with suppress(Exception):
            self._consumer.pause([self._topic.partition])
            self._is_paused = True
        return [values for (_, group, _), values in rows.items() if groups is None or group in groups]

    def resume(self) -> None:
        """Continue to read after ``take_rows``."""
        if self._is_paused:
            with self._topic.errors():
                self._consumer.resume([self._topic.partition])
            self._is_paused = False

    def close(self) -> None:
        """Close the connections."""
        with suppress(Exception):
            self._consumer.close()

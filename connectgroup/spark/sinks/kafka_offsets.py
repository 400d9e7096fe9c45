"""The offsets and fencing tokens of connectors in a compacted topic of one partition.

Keys are JSON arrays: ``[connector, "slice", name]`` has position and token; ``[connector, "task", number]`` the highest
token of a task; ``[connector, "layout", tasks]`` the highest token of any task of this number of tasks, and the source;
``[connector, "fenced", tasks]`` the token up to which the transactional ids of a layout have been fenced.
``KafkaPositions`` is for operators.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ...dataplane.errors import SinkError, TaskFenced
from ...dataplane.ownership import EPOCH_BITS, Owner, Position, Range, metadata_of
from ...protocol.units import printable
from ..kafka_client import admin

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

TIMEOUT_S: Final = 30.0
"""Seconds for the first request of a transactional producer, and for a commit."""
_READ_TIMEOUT_S: Final = 60.0
_LEADER_TIMEOUT_S: Final = 30.0
Record = tuple[str, str]
"""Key and value, both JSON."""


@dataclass(slots=True)
class State:
    """What the topic has of one connector: tokens by number of tasks, by task, and position and token by slice."""

    layouts: dict[int, int] = field(default_factory=dict)
    fenced: dict[int, int] = field(default_factory=dict)
    tasks: dict[int, int] = field(default_factory=dict)
    slices: dict[str, tuple[int, int]] = field(default_factory=dict)
    source: str | None = None

    def apply(self, kind: str, name: Any, value: Mapping[str, Any]) -> None:
        """Apply one record."""
        if kind == "layout":
            self.layouts[int(name)], self.source = int(value["token"]), value["source"]
        elif kind == "fenced":
            self.fenced[int(name)] = int(value["token"])
        elif kind == "task":
            self.tasks[int(name)] = int(value["token"])
        elif kind == "slice":
            if value["position"] is None:
                self.slices.pop(name, None)
            else:
                at = Position(int(value["position"]), str(value.get("metadata", "")))
                self.slices[str(name)] = at, int(value["token"])

    def check(self, owner: Owner, where: str, is_mine: Callable[[str], bool] | None = None) -> None:
        """Check that no later owner has claimed the task, another layout or one of the slices.

        Raises:
            Fenced: a later owner has.
            SinkError: a connector of this name has read another source.
        """
        # Empty: no task has claimed since the offsets were reset.
        if self.source and self.source != owner.source:
            raise SinkError(
                f"{where}: connector {owner.connector} has read {self.source}, not {owner.source};"
                " allowed: the same source, or another connector name"
            )
        higher = [("task-" + str(owner.task), self.tasks.get(owner.task, -1))]
        higher += [(f"layout of {n} tasks", token) for n, token in self.layouts.items() if n != owner.tasks]
        if is_mine is not None:
            higher += [(name, token) for name, (_, token) in self.slices.items() if is_mine(name)]
        for place, token in higher:
            if token > owner.fencing_token:
                raise TaskFenced(
                    f"{owner.connector}-{owner.task}: {place} belongs to owner epoch {token & EPOCH_BITS},"
                    f" ours is {owner.owner_epoch}; allowed: only the latest owner writes",
                    token=token,
                )

    def unfenced_layouts(self, owner: Owner, fenced: Mapping[int, int]) -> list[int]:
        """Return the other numbers of tasks whose transactional ids may still write."""
        known = {n: max(self.fenced.get(n, -1), fenced.get(n, -1)) for n in self.layouts}
        return [n for n, token in self.layouts.items() if n != owner.tasks and token > known[n]]

    def claim_records(
        self, owner: Owner, fenced: Mapping[int, int], is_mine: Callable[[str], bool]
    ) -> Iterator[Record]:
        """Yield the records of a claim."""
        token = owner.fencing_token
        highest = max(token, self.layouts.get(owner.tasks, -1))
        yield _record(owner, "layout", owner.tasks, token=highest, source=owner.source)
        yield _record(owner, "task", owner.task, token=token)
        for tasks, until in fenced.items():
            yield _record(owner, "fenced", tasks, token=until)
        for name, (position, _) in self.slices.items():
            if is_mine(name):
                yield _slice_record(owner, name, position, token)

    @property
    def claims(self) -> tuple[dict[int, int], dict[int, int]]:
        """The tokens of layouts and tasks; without those of an operator's changes, which are layouts without tasks."""
        return (
            {tasks: token for tasks, token in self.layouts.items() if tasks},
            {task: token for task, token in self.tasks.items() if task >= 0},
        )

    def alter_records(
        self, owner: Owner, fenced: Mapping[int, int], positions: Mapping[str, int | None] | None
    ) -> Iterator[Record]:
        """Yield the records of a change by an operator; see ``PositionStore.alter``."""
        if positions is None:
            owner, positions = replace(owner, source=""), dict.fromkeys(self.slices)
        yield from self.claim_records(owner, fenced, lambda name: name not in positions)
        for name, position in positions.items():
            yield _slice_record(owner, name, position, owner.fencing_token)


class OffsetsTopic:
    """Reads the topic. The sink's producer writes it, in the transactions of its records.

    Attributes:
        name: the topic's name.
        where: cluster and topic, for errors.
    """

    def __init__(self, topic: str, client: Mapping[str, str]) -> None:
        """Create the topic if it is missing.

        Raises:
            ConfigError: confluent-kafka is not installed.
            SinkError: the cluster does not answer, or refuses to create the topic; or the topic is not compacted.
        """
        self.name, self._client = topic, dict(client)
        self.where = f"Kafka {client['bootstrap.servers']}, topic {topic}"
        others = {name: value for name, value in client.items() if name != "bootstrap.servers"}
        self._admin = admin(client["bootstrap.servers"], others)
        with as_sink_error(self.where):
            if not create_topic(self._admin, topic, {"cleanup.policy": "compact"}):
                self._check_policy()

    def _check_policy(self) -> None:
        """Check that the topic keeps the last record of each key: without its offset, a source would be read again.

        Raises:
            SinkError: it deletes records.
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        resource = ConfigResource(ResourceType.TOPIC, self.name)
        try:
            found = self._admin.describe_configs([resource], request_timeout=10)[resource].result(15)
        except KafkaException as error:
            # Who may write a topic need not be allowed to see its settings, as for Kafka Connect; and not every broker
            # knows a topic yet that another task has just created.
            if error.args[0].code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART):
                return
            raise
        policy = str(found["cleanup.policy"].value)
        if policy != "compact":
            raise SinkError(
                f"{self.where}: has cleanup.policy={policy}, which deletes offsets, and what was read before would be"
                " read again; allowed: cleanup.policy=compact, or another topic as sink.offsets.topic"
            )

    def read(self, connector: str) -> State:
        """Return the committed state of a connector, up to the end of the topic at the time of the call.

        Waits for transactions of other tasks that are open before that end.
        """
        from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

        end = self._end()
        latest = Latest(connector)
        if end == 0:
            return latest.state(self.where)
        consumer = Consumer(
            {
                **self._client,
                "group.id": f"connectgroup-{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                # The end is reported when the broker answers a fetch without records: by default after 500 ms.
                "fetch.wait.max.ms": 10,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        try:
            # Not OFFSET_BEGINNING: librdkafka would ask for the offset, and wait 500 ms if it has no connection yet.
            consumer.assign([TopicPartition(self.name, 0, 0)])
            give_up = time.monotonic() + _READ_TIMEOUT_S
            while time.monotonic() < give_up:
                message = consumer.poll(0.5)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    at = message.offset() or 0
                    # While other tasks commit all the time, librdkafka reports no end of the partition.
                    if at >= end:
                        return latest.state(self.where)
                    latest.add(message.key(), message.value(), at)
                    if at == end - 1:
                        return latest.state(self.where)
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                elif (message.offset() or 0) >= end:
                    return latest.state(self.where)
        finally:
            consumer.close()
        raise SinkError(f"{self.where}: not read to its end within {_READ_TIMEOUT_S:g} s; allowed: short transactions")

    def _end(self) -> int:
        """Return the end of the topic, open transactions included. A topic that was just created has no leader yet."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        partition = TopicPartition(self.name, 0)
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        give_up = time.monotonic() + _LEADER_TIMEOUT_S
        while True:
            try:
                return int(self._admin.list_offsets({partition: latest})[partition].result(30).offset)
            except KafkaException:
                if time.monotonic() > give_up:
                    raise
            time.sleep(0.1)
            self._admin.list_topics(self.name, timeout=10)

    def close(self) -> None:
        """Drop the connection."""
        with suppress(AttributeError):
            del self._admin


class Latest:
    """The last record of each key of a connector, in the order of their offsets: what a compacted topic keeps. So a
    later record of its key mends a bad one, before compaction, too. Records of other connectors and programs are none.
    """

    def __init__(self, connector: str) -> None:
        self._connector = connector
        self._records: dict[bytes, tuple[int, Any, Any, bytes]] = {}

    def add(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        """Add the next record of the topic; one without a value removes its key."""
        try:
            parts = json.loads(key or b"[]")
        except (ValueError, RecursionError):
            return
        if not key or not isinstance(parts, list) or len(parts) != 3 or parts[0] != self._connector:
            return
        # Removed first: a dict would keep the place of the earlier one.
        self._records.pop(key, None)
        if value is not None:
            self._records[key] = offset, parts[1], parts[2], value

    def state(self, where: str) -> State:
        """Return the state of the connector.

        Args:
            where: cluster and topic, for the error.

        Raises:
            SinkError: the last record of a key is none that a sink has written.
        """
        state = State()
        for key, (offset, kind, name, value) in self._records.items():
            try:
                state.apply(kind, name, json.loads(value))
            except (ValueError, RecursionError, LookupError, TypeError, AttributeError, OverflowError) as error:
                shown = printable(key.decode(errors="replace"), limit=200)
                raise SinkError(
                    f"{where}, offset {offset}: the value of the key {shown} is none that the sink kafka writes for"
                    f" connector {self._connector}; allowed: a later record for the key, with its value before this;"
                    " or one without a value, as if there were no record: a slice is then read from its start, and its"
                    " rows are written again"
                ) from error
        return state


def slice_records(owner: Owner, ranges: Sequence[Range]) -> Iterator[Record]:
    """Yield the records of a batch's offsets."""
    for r in ranges:
        yield _slice_record(owner, r.slice, r.end, owner.fencing_token)


def create_topic(client: AdminClient, topic: str, config: Mapping[str, str], *, replication: int = -1) -> bool:
    """Create a topic of one partition if it is missing; return whether it was.

    Args:
        replication: of the partition; -1: as the cluster has it by default.

    Raises:
        KafkaException: the cluster does not answer, or refuses to create the topic.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    if topic in client.list_topics(timeout=10).topics:
        return False
    wanted = NewTopic(topic, 1, replication, config=dict(config))
    try:
        client.create_topics([wanted])[topic].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    return True


@contextmanager
def as_sink_error(where: str) -> Iterator[None]:
    """Convert errors of the Kafka client to ``SinkError``, one line."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise SinkError(f"{where}: {reason(error)}; allowed: a cluster that answers") from error


def reason(error: Any) -> str:
    """Return the text of an error of the Kafka client."""
    first = error.args[0] if getattr(error, "args", ()) else error
    return " ".join((first.str() if hasattr(first, "str") else str(first)).split())[:300]


def _slice_record(owner: Owner, name: str, position: int | None, token: int) -> Record:
    metadata = "" if position is None else metadata_of(position)
    return _record(owner, "slice", name, position=position, token=token, **({"metadata": metadata} if metadata else {}))


def _record(owner: Owner, kind: str, name: object, **value: object) -> Record:
    return json.dumps([owner.connector, kind, name]), json.dumps(value)


class KafkaPositions:
    """Implements ``dataplane.sink.PositionStore`` on the topic of offsets."""

    def __init__(self, topic: OffsetsTopic, client: Mapping[str, str], transaction_timeout_ms: int) -> None:
        """Store the arguments; ``client`` are the settings of the Kafka client."""
        self._topic, self._client = topic, dict(client)
        self._transaction_timeout_ms = transaction_timeout_ms

    def positions(self, connector: str) -> dict[str, int]:
        with as_sink_error(self._topic.where):
            return {name: at for name, (at, _) in sorted(self._topic.read(connector).slices.items())}

    def alter(self, connector: str, fencing_token: int, positions: Mapping[str, int | None] | None) -> None:
        """Fence the producers of all known tasks, then write the change in one transaction.

        Like ``fences.alter_positions``, it claims a layout without tasks: a task with a lower token that claims later
        finds this claim and is rejected.
        """
        topic, fenced = self._topic, dict[int, int]()
        claims: tuple[dict[int, int], dict[int, int]] | None = None
        with as_sink_error(topic.where):
            producer = self._producer(transactional_id(connector, 0, 0))
            while True:
                state = topic.read(connector)
                owner = Owner(
                    connector=connector, task=-1, tasks=0, fencing_token=fencing_token, source=state.source or ""
                )
                state.check(owner, topic.where, lambda _: True)
                if state.claims == claims:
                    return
                # The first time, or a task has claimed before the change and after its producer was fenced.
                for tasks in state.unfenced_layouts(owner, fenced) if claims is None else list(state.claims[0]):
                    for task in range(tasks):
                        self._producer(transactional_id(connector, tasks, task))
                    fenced[tasks] = state.layouts[tasks]
                # Every known producer is fenced, so what is committed now is final.
                state = topic.read(connector)
                state.check(owner, topic.where, lambda _: True)
                claims = state.claims
                producer.begin_transaction()
                for key, value in state.alter_records(owner, fenced, positions):
                    producer.produce(topic.name, value, key, partition=0)
                producer.commit_transaction(TIMEOUT_S)

    def close(self) -> None:
        self._topic.close()

    def _producer(self, producer_id: str) -> Producer:
        return transactional_producer(self._client, producer_id, self._transaction_timeout_ms)


def transactional_producer(client: Mapping[str, str], producer_id: str, timeout_ms: int) -> Producer:
    """Return a producer that has fenced every earlier one with its id.

    Args:
        client: the settings of the Kafka client.
        producer_id: the transactional id.
        timeout_ms: when the cluster aborts a transaction of a silent producer, in milliseconds.
    """
    from confluent_kafka import Producer

    producer = Producer(
        {
            # A commit sends what is there at once: a long linger makes full batches, and delays nothing.
            "linger.ms": 50,
            "queue.buffering.max.messages": 1_000_000,
            # With more, records are lost: of the first requests to a partition, some may find no leader yet and a later
            # one be written. A broker takes those that are sent again for copies of what it has, and the client
            # counts them as delivered.
            "max.in.flight.requests.per.connection": 1,
            # As Kafka's Java clients and Kafka Connect: other programs find a key in the partition that they expect,
            # and a key that Kafka Connect has written stays in its partition.
            "partitioner": "murmur2_random",
            **client,
            "transactional.id": producer_id,
            "transaction.timeout.ms": timeout_ms,
            # The commit reports errors; a report of each success would cost a third more processor time.
            "delivery.report.only.error": True,
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def transactional_id(connector: str, tasks: int, task: int) -> str:
    """Return the transactional id of a task; ``tasks`` is the number of tasks of its layout."""
    return f"connectgroup-{connector}-{tasks}-{task}"

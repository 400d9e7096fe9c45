"""Records out of a cluster, through confluent-kafka; the group is none of its business.

librdkafka is told partition by partition what to read from which offset, and is never subscribed. All calls to it are
made in one thread of this consumer's own: they may block, they never overlap, and what is dropped after a read has
begun is dropped after that read has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import ConfigError, ConnectGroupError
from ..protocol.units import Partitions, TopicPartition, printable
from .settings import ConsumerSettings

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition as Theirs
except ImportError as missing:
    raise ConfigError("confluent-kafka", "not installed", "pip install 'connectgroup[kafka]'") from missing

T = TypeVar("T")

ANSWER_TIMEOUT_S = 5.0
"""How long a question to a broker may hold up the reading of what else there is."""

REFUSALS = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError._AUTO_OFFSET_RESET,
)
"""What librdkafka does not get over by itself."""

logger = logging.getLogger(__name__)


class FetchError(ConnectGroupError):
    """Records cannot be read; where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record.

    Attributes:
        topic: its topic.
        partition: its partition.
        offset: its place there.
        timestamp_ms: since 1970, -1 if it has none.
        key: null if it has none.
        value: null if it is a tombstone.
        headers: in order; a name may come more than once.
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


class Fetcher:
    """Reads the partitions it has been told to.

    Raises:
        ConfigError: confluent-kafka is not installed, or refuses one of ``settings.fetch``.
    """

    def __init__(self, settings: ConsumerSettings) -> None:
        self._reset = settings.auto_offset_reset
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"fetching for {settings.group}")
        self._consumer = make_consumer(settings)

    async def where_to_begin(self, partition: TopicPartition) -> int | None:
        """The offset to read from where the group has committed none; null if it cannot be told just now.

        Raises:
            FetchError: ``auto_offset_reset`` is error, or there is no right to read the partition.
        """
        if self._reset == "error":
            raise FetchError(f"{partition}: the group has no offset and auto_offset_reset is error")

        def ask() -> int | None:
            try:
                low, high = self._consumer.get_watermark_offsets(_theirs(partition), timeout=ANSWER_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() in REFUSALS:
                    raise
                # The group may know of a new partition before librdkafka does; being asked makes it look.
                logger.warning("%s: %s; trying again", partition, printable(error.args[0].str(), most=200))
                return None
            return int(low if self._reset == "earliest" else high)

        return await self._call(f"{partition}: its first and last offset", ask)

    async def take(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these too, from these offsets."""
        if offsets:
            listed = [_theirs(partition, offset) for partition, offset in sorted(offsets.items())]
            await self._call("taking partitions", lambda: self._consumer.incremental_assign(listed))

    async def drop(self, partitions: Partitions) -> None:
        """Read these no more; returns when a read that had begun has ended."""
        if partitions:
            listed = [_theirs(partition) for partition in sorted(partitions)]
            await self._call("dropping partitions", lambda: self._consumer.incremental_unassign(listed))

    async def fetch(self, most: int, timeout_s: float) -> list[Record]:
        """Up to ``most`` records, none if there are none within ``timeout_s``; of a partition in order.

        Raises:
            FetchError: the brokers refuse to let a partition be read.
        """

        def read() -> list[Record]:
            first = self._consumer.poll(timeout_s)
            if first is None:
                return []
            # consume() waits until it has as many as it was asked for; what is there already it gives at once.
            return [record for message in (first, *self._consumer.consume(most - 1, 0)) for record in _records(message)]

        return await self._call("reading", read)

    async def close(self) -> None:
        """Let go of the cluster."""
        await self._call("closing", self._consumer.close)
        self._thread.shutdown(wait=False)

    async def _call(self, what: str, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except KafkaException as error:
            raise FetchError(f"{what}: {printable(error.args[0].str(), most=200)}") from error


def make_consumer(settings: ConsumerSettings) -> Consumer:
    """librdkafka's consumer, with everything off that has to do with groups."""
    ours: dict[str, Any] = {
        "bootstrap.servers": settings.bootstrap,
        # It must have one. It is never subscribed, so it neither joins nor commits.
        "group.id": settings.group,
        "client.id": settings.client_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": settings.auto_offset_reset,
        "client.rack": settings.rack or "",
        "log_level": 3,
    }
    # A broker that comes back after a restart is read from again within this time.
    defaults = {"reconnect.backoff.max.ms": 1_000}
    try:
        return Consumer({**defaults, **settings.fetch, **ours}, logger=logger)
    except (KafkaException, TypeError, ValueError) as error:
        said = error.args[0].str() if isinstance(error, KafkaException) else error
        raise ConfigError(
            "fetch", dict(settings.fetch), f"settings of librdkafka; it says: {printable(said)}"
        ) from error


def _theirs(partition: TopicPartition, offset: int | None = None) -> Any:
    return Theirs(*partition) if offset is None else Theirs(*partition, offset)


def _records(message: Message) -> list[Record]:
    """The record, or none where the message is a passing trouble that librdkafka gets over by itself."""
    error = message.error()
    if error is not None:
        where = f"{message.topic()}-{message.partition()}" if message.topic() else "the cluster"
        if error.code() in REFUSALS or error.fatal():
            raise FetchError(f"{where}: {printable(error.str(), most=200)}")
        logger.warning("%s: %s", where, printable(error.str(), most=200))
        return []
    kind, timestamp_ms = message.timestamp()
    epoch = message.leader_epoch()
    headers: Any = message.headers() or ()
    return [
        Record(
            topic=message.topic() or "",
            partition=message.partition() or 0,
            offset=message.offset() or 0,
            timestamp_ms=timestamp_ms if kind else -1,
            key=_bytes(message.key()),
            value=_bytes(message.value()),
            headers=tuple((name, _bytes(value)) for name, value in headers),
            leader_epoch=-1 if epoch is None else epoch,
        )
    ]


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value

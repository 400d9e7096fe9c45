"""Fetch records from a cluster, through confluent-kafka; group membership is not handled here.

librdkafka is assigned partitions and offsets explicitly and never subscribes. All calls to it that may block are made
in a single thread that belongs to this consumer: they never overlap, and a partition that is dropped during a read is
dropped after that read has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from ..errors import ConfigError, ConnectGroupError
from ..protocol.units import Partitions, TopicPartition, printable
from .errors import Problems, with_extra
from .records import RecordRun, runs_of
from .settings import GroupConsumerSettings

with with_extra():
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition as Theirs

T = TypeVar("T")

ANSWER_TIMEOUT_S = 5.0
"""How long one offset query may delay the reading of other partitions."""

CLOSE_TIMEOUT_S = 2.0
"""How long ``close`` waits for a call of librdkafka that is in progress: a broker may not respond."""

REFUSALS = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError._AUTO_OFFSET_RESET,
)
"""Errors from which librdkafka does not recover by itself."""

logger = logging.getLogger(__name__)


class FetchError(ConnectGroupError):
    """Records cannot be read; names the partition and the reason."""


class Fetched(NamedTuple):
    """What one read took from librdkafka, which continues after it: both the records and the error are kept.

    Attributes:
        runs: the records.
        error: the brokers reject reads of a partition; ``None`` if they do not.
    """

    runs: list[RecordRun]
    error: FetchError | None = None


class Fetcher:
    """Reads its assigned partitions.

    Attributes:
        ends: the offset that follows the last record of partitions that were read to their end: above the offset after
            that record if markers of transactions follow it. Set when the end is reached, removed by the reader.

    Raises:
        ConfigError: confluent-kafka is not installed, or rejects one of ``settings.fetch``.
    """

    def __init__(self, settings: GroupConsumerSettings, problems: Problems) -> None:
        self._problems = problems
        self._reset = settings.auto_offset_reset
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"fetching for {settings.group}")
        self._consumer = make_consumer(settings)
        self._calls = 0  # in progress or queued, in the thread
        self._counts: Counter[str] = (
            Counter()
        )  # a topic's partitions that librdkafka knows of, at least; set in the thread
        self.ends: dict[TopicPartition, int] = {}

    async def start_position(self, partition: TopicPartition, *, is_new: bool = False) -> int | None:
        """Return the start offset of a partition without a committed offset; ``None`` if it is not available now.

        Args:
            is_new: the partition was created after the consumer had subscribed to its topic. All its records were
                written since, so it is read from its beginning, also with ``latest``.

        Raises:
            FetchError: ``auto_offset_reset`` is error, or the principal is not authorized to read the partition.
        """
        if self._reset == "error" and not is_new:
            raise FetchError(f"{partition}: the group has no offset and auto_offset_reset is error")

        ends = await self._ends(partition)
        return None if ends is None else ends[self._reset == "latest" and not is_new]

    async def end(self, partition: TopicPartition) -> int | None:
        """Return the end offset of a partition: that of the next record to be written. ``None`` if it is not available.

        Raises:
            FetchError: the principal is not authorized to read the partition.
        """
        ends = await self._ends(partition)
        return None if ends is None else ends[1]

    async def _ends(self, partition: TopicPartition) -> tuple[int, int] | None:
        def ask() -> tuple[int, int] | None:
            try:
                low, high = self._consumer.get_watermark_offsets(_theirs(partition), timeout=ANSWER_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() in REFUSALS:
                    raise
                self._problems.met(f"{partition}", f"{partition}: {_text(error.args[0])}; trying again")
                self._refresh(partition.topic)
                return None
            self._problems.solved(f"{partition}")
            return low, high

        return await self._call(f"{partition}: its first and last offset", ask)

    async def take(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Add these partitions, at these offsets."""
        if not offsets:
            return
        listed = [_theirs(partition, offset) for partition, offset in sorted(offsets.items())]

        def assign() -> None:
            for topic, last in {each.topic: each.partition for each in sorted(offsets)}.items():
                if 0 < self._counts[topic] <= last:
                    self._refresh(topic)
                self._counts[topic] = max(self._counts[topic], last + 1)
            self._consumer.incremental_assign(listed)

        await self._call("taking partitions", assign)

    def _refresh(self, topic: str) -> None:
        """Have librdkafka query a topic now, in this consumer's thread.

        The group may know of a new partition before librdkafka does, which looks for new ones only every 5 minutes.
        """
        with contextlib.suppress(KafkaException):  # reading reports a problem that lasts
            self._consumer.list_topics(topic, timeout=ANSWER_TIMEOUT_S)

    async def drop(self, partitions: Partitions) -> None:
        """Remove these partitions; returns after a read in progress has ended."""
        if partitions:
            listed = [_theirs(partition) for partition in sorted(partitions)]
            await self._call("dropping partitions", lambda: self._consumer.incremental_unassign(listed))

    def fetch(self, limit: int, timeout_s: float) -> asyncio.Future[Fetched]:
        """Start a read of up to ``limit`` records, none if none arrive within ``timeout_s``."""

        def read() -> Fetched:
            try:
                first = self._consumer.poll(timeout_s)
            except KafkaException as error:
                return Fetched([], _fetch_error("reading", error))
            if first is None:
                return Fetched([])
            # consume() blocks until it has as many as requested; with timeout 0 it returns what has arrived.
            return self._arrived(limit - 1, first)

        return self._submit(read)

    def fetched(self, limit: int) -> Fetched:
        """Return up to ``limit`` records that have arrived, without waiting; none while another call is in progress.

        librdkafka fetches in threads of its own, so most records can be taken without a change of threads.
        """
        return Fetched([]) if self._calls else self._arrived(limit)

    def _arrived(self, limit: int, *first: Message) -> Fetched:
        messages, failure = list(first), None
        try:
            messages += self._consumer.consume(limit, 0)
        except KafkaException as error:
            failure = _fetch_error("reading", error)
        records, rejected = self._without_errors(messages)
        return Fetched(runs_of(records), rejected or failure)

    def _without_errors(self, messages: list[Message]) -> tuple[list[Message], FetchError | None]:
        """Return the messages that are records, and the first error from which librdkafka does not recover by itself.

        The other errors are logged once.
        """
        if not any(map(Message.error, messages)):
            return messages, None
        records, rejected = list[Message](), None
        for message in messages:
            if (error := message.error()) is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ends[TopicPartition(message.topic() or "", message.partition() or 0)] = message.offset() or 0
            else:
                rejected = rejected or self._rejection(message, error)
        return records, rejected

    def _rejection(self, message: Message, error: KafkaError) -> FetchError | None:
        """Return an error from which librdkafka does not recover by itself; log any other once."""
        where = f"{message.topic()}-{message.partition()}" if message.topic() else "the cluster"
        if error.code() in REFUSALS or error.fatal():
            return FetchError(f"{where}: {_text(error)}")
        self._problems.met(f"reading {where}", f"{where}: {_text(error)}")
        return None

    async def close(self) -> None:
        """Disconnect from the cluster; a call that is still in progress ends, and the thread with it, on its own."""
        await asyncio.wait({self._submit(self._consumer.close)}, timeout=CLOSE_TIMEOUT_S)
        self._thread.shutdown(wait=False)

    async def _call(self, what: str, call: Callable[[], T]) -> T:
        try:
            return await self._submit(call)
        except KafkaException as error:
            raise _fetch_error(what, error) from error

    def _submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run in the thread of this consumer; starts now, and not only when the caller next waits."""
        self._calls += 1
        running = asyncio.get_running_loop().run_in_executor(self._thread, call)
        running.add_done_callback(self._ended)
        return running

    def _ended(self, _: asyncio.Future[Any]) -> None:
        self._calls -= 1


def _fetch_error(what: str, error: KafkaException) -> FetchError:
    return FetchError(f"{what}: {_text(error.args[0])}")


class _DebugLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs all messages of librdkafka at level DEBUG.

    librdkafka logs each failed connection attempt, several a second, as an error. ``GroupClient`` logs the same failure
    once.
    """

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        super().log(logging.DEBUG, msg, *args, **kwargs)


def make_consumer(settings: GroupConsumerSettings) -> Consumer:
    """Create librdkafka's consumer, with all group features disabled."""
    ours: dict[str, Any] = {
        "bootstrap.servers": settings.bootstrap,
        # Required by librdkafka. The consumer never subscribes, so it neither joins nor commits.
        "group.id": settings.group,
        "client.id": settings.client_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": settings.auto_offset_reset,
        "client.rack": settings.rack or "",
        "log_level": 3,
    }
    # Reading resumes within this time after a broker has restarted.
    defaults = {"reconnect.backoff.max.ms": 1_000}
    try:
        return Consumer({**defaults, **settings.fetch, **ours}, logger=_DebugLogger(logger))
    except (KafkaException, TypeError, ValueError) as error:
        said = error.args[0].str() if isinstance(error, KafkaException) else error
        raise ConfigError(
            "fetch", dict(settings.fetch), f"settings of librdkafka; it says: {printable(said)}"
        ) from error


def _theirs(partition: TopicPartition, offset: int | None = None) -> Any:
    return Theirs(*partition) if offset is None else Theirs(*partition, offset)


def _text(error: KafkaError) -> str:
    return printable(error.str(), limit=200)

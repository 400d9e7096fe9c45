"""The topics of a Kafka cluster, read from a broker at an interval; confluent-kafka is imported when it is created."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import ConfigError
from ..protocol.records.consumer import TopicMetadata
from ..threads import off_loop
from .base import Topics

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0
"""Interval between two reads: how long an added partition may stay unnoticed. Kafka's consumers take 5 minutes."""

TIMEOUT_S = 10.0
"""Time limit of one read."""


class BrokerTopics:
    """A topic source that asks a Kafka broker.

    While the broker cannot be reached, the topics stay those of the last read, and the groups live on.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        interval_s: float = INTERVAL_S,
        read: Callable[[], Topics] | None = None,
        setting: str = "topics_from",
    ) -> None:
        """Create a source; ``start`` reads the topics.

        Args:
            bootstrap: ``host:port`` of a broker.
            interval_s: interval between two reads, in seconds.
            read: reads all topics; called in a thread. By default confluent-kafka's admin client does.
            setting: where the address was set, for errors.

        Raises:
            ConfigError: confluent-kafka is not installed.
        """
        self.bootstrap, self._interval_s = bootstrap, interval_s
        self._setting = setting
        self._read = read or _reader(bootstrap, setting)
        self._topics: Topics | None = None
        self._on_change: Callable[[Topics], None] = lambda topics: None
        self._reading = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None

    async def start(self, on_change: Callable[[Topics], None]) -> None:
        self._on_change = on_change
        try:
            await self.refresh()
        except Exception as error:
            raise ConfigError(self._setting, self.bootstrap, f"a reachable Kafka broker ({error})") from error
        self._watch = asyncio.get_running_loop().create_task(self._run())

    async def refresh(self) -> None:
        # One read at a time: the result of an earlier one must not replace that of a later one.
        async with self._reading:
            topics = await off_loop("topics", self._read)
            if topics != self._topics:
                self._topics = topics
                self._on_change(topics)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch

    async def _run(self) -> None:
        reachable = True
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.refresh()
            except Exception as error:
                if reachable:
                    logger.warning("%s: the topics cannot be read, retrying: %s", self.bootstrap, error)
                reachable = False
                continue
            if not reachable:
                logger.info("%s: the topics can be read again", self.bootstrap)
            reachable = True


def _reader(bootstrap: str, setting: str) -> Callable[[], Topics]:
    try:
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        allowed = "a broker, with the extra 'kafka' installed (pip install 'connectgroup[kafka]')"
        raise ConfigError(setting, bootstrap, allowed) from error
    # librdkafka writes connection errors to stderr itself; they are logged once by the source.
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "client.id": "connectgroup-topics"})
    return partial(read_topics, admin)


def read_topics(admin: Any) -> Topics:
    """All topics of the cluster of an admin client of confluent-kafka.

    Raises:
        Exception: the broker cannot be reached.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    names = sorted(admin.list_topics(timeout=TIMEOUT_S).topics)
    if not names:
        return {}
    topics: dict[str, TopicMetadata] = {}
    described = admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_S)
    for name, future in described.items():
        try:
            found = future.result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue  # it was deleted between the two requests
            raise
        topics[name] = TopicMetadata(
            topic_id=_hexadecimal(found.topic_id), topic_name=name, num_partitions=len(found.partitions)
        )
    return topics


def _hexadecimal(topic_id: Any) -> str:
    """A topic id as text of 32 hexadecimal digits."""
    high, low = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return f"{high & (1 << 64) - 1:016x}{low & (1 << 64) - 1:016x}"

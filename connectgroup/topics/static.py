"""Topics given by the program: for tests, and for embedders without a Kafka cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import md5

from ..protocol.records.consumer import TopicMetadata
from .base import Topics


def topic_id(name: str) -> str:
    """A topic id that depends on the name only."""
    return md5(name.encode(), usedforsecurity=False).hexdigest()


class StaticTopics:
    """A topic source with the topics of its last ``replace``."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        """``partitions``: the number of partitions of each topic."""
        self._topics = _topics(partitions)
        self._on_change: Callable[[Topics], None] | None = None

    async def start(self, on_change: Callable[[Topics], None]) -> None:
        self._on_change = on_change
        on_change(self._topics)

    async def refresh(self) -> None:
        """Nothing to read: ``replace`` reports each change."""

    def expect_change(self, for_s: float) -> None:
        """Nothing to watch."""

    async def close(self) -> None:
        self._on_change = None

    def replace(self, partitions: Mapping[str, int]) -> None:
        """Replace all topics; call it on the coordinator's event loop."""
        self._topics = _topics(partitions)
        if self._on_change is not None:
            self._on_change(self._topics)


def _topics(partitions: Mapping[str, int]) -> Topics:
    return {
        name: TopicMetadata(topic_id=topic_id(name), topic_name=name, num_partitions=count)
        for name, count in partitions.items()
    }

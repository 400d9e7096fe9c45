"""The contract of a topic source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ..protocol.records.consumer import TopicMetadata

Topics = Mapping[str, TopicMetadata]
"""Topics by name. A value is never changed after it has been passed on."""


class TopicSource(Protocol):
    """The topics of a cluster, watched for changes. All calls are made on the coordinator's event loop."""

    async def start(self, on_change: Callable[[Topics], None]) -> None:
        """Call ``on_change`` with all topics before returning, then on the event loop after each change.

        Raises:
            ConfigError: the topics cannot be read: where, what is allowed.
        """

    async def refresh(self) -> None:
        """Read the topics now; if they have changed, ``on_change`` is called before this returns.

        Raises:
            Exception: the topics cannot be read; they stay those of the last read.
        """

    def expect_change(self, for_s: float) -> None:
        """A topic is about to be created or changed, or is waited for: watch the topics closely for so many seconds."""

    async def close(self) -> None:
        """Stop watching. ``on_change`` is not called any more."""

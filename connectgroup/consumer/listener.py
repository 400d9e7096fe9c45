"""What a consumer tells about the partitions it is given and loses.

What is promised, for one consumer:

- Callbacks run inside ``poll`` (or the ``async for``, or ``close``) and never overlap; whatever ``poll`` returned
  before counts as dealt with.
- Given: ``on_assigned`` returns, then records of the partitions come.
- Taken: no more records come, their offsets are committed (unless ``auto_commit_interval_ms`` is null), then
  ``on_revoked`` runs; only then is the group told. ``await consumer.commit(...)`` works in it. Nobody
  else has the partitions before it has returned.
- Lost: no more records come, then ``on_lost`` runs. Another consumer may have had them for a while: commit nothing
  on their behalf.
- Every partition that was named to ``on_assigned`` is named later to exactly one of the other two, unless the process
  dies.

Under the EAGER rebalance protocol everything is revoked before each rebalance and given anew after it; under
COOPERATIVE the calls name only what changes (KIP-429).

Each callback may be a plain method or ``async``; a plain one is called off the event loop and may block. It has until
``max_poll_interval_ms`` is over. What it raises is raised from ``poll`` as one ``PluginError`` line, after the
rebalance has gone on: a rebalance cannot wait for a broken callback.

Source: Kafka's ``ConsumerRebalanceListener``; KIP-429.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from ..protocol.units import Partitions


class ConsumerRebalanceListener(Protocol):
    """Does nothing; derive from it and override what you need."""

    def on_assigned(self, partitions: Partitions, generation: int) -> Awaitable[None] | None:
        """The consumer was given ``partitions``: what is new, not empty; in the group's ``generation``."""
        return None

    def on_revoked(self, partitions: Partitions, generation: int) -> Awaitable[None] | None:
        """The consumer gives ``partitions`` up, and still holds them; not empty."""
        return None

    def on_lost(self, partitions: Partitions, generation: int) -> Awaitable[None] | None:
        """The consumer no longer has ``partitions``, which it last knew to have in ``generation``; not empty."""
        return None

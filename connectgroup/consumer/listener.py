"""Callbacks of a consumer for the partitions it is assigned and loses.

The guarantees for one consumer:

- Callbacks run inside ``poll`` (or the ``async for``, or ``close``) and never overlap; records that ``poll`` returned
  before count as processed.
- Assigned: ``on_assigned`` returns, then records of the partitions arrive.
- Revoked: no more records arrive, their offsets are committed (unless ``auto_commit_interval_ms`` is null), then
  ``on_revoked`` runs; only then is the revocation acknowledged to the group. ``await consumer.commit(...)`` works in
  the callback. No other member owns the partitions before it has returned.
- Lost: no more records arrive, then ``on_lost`` runs. Another consumer may have owned the partitions for a while: do
  not commit their offsets.
- Every partition passed to ``on_assigned`` is later passed to exactly one of the other two, unless the process dies.

Under the EAGER rebalance protocol all partitions are revoked before each rebalance and assigned again after it; under
COOPERATIVE the calls name only the changes (KIP-429).

Each callback may be a plain method or ``async``; a plain one is called off the event loop and may block. It must return
before ``max_poll_interval_ms`` has elapsed. An exception is raised from ``poll`` as one ``PluginError`` line, after the
rebalance has continued: a rebalance cannot wait for a broken callback.

Source: Kafka's ``ConsumerRebalanceListener``; KIP-429.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from ..protocol.units import Partitions


class ConsumerRebalanceListener(Protocol):
    """Default methods do nothing; derive from this class and override as needed."""

    def on_assigned(self, partitions: Partitions, generation: int) -> Awaitable[None] | None:
        """``partitions`` were assigned to the consumer: only new ones, not empty; in the group's ``generation``."""
        return None

    def on_revoked(self, partitions: Partitions, generation: int) -> Awaitable[None] | None:
        """``partitions`` are being revoked; the consumer still owns them. Not empty."""
        return None

    def on_lost(self, partitions: Partitions, generation: int) -> Awaitable[None] | None:
        """The consumer no longer owns ``partitions``, which it last owned in ``generation``. Not empty."""
        return None

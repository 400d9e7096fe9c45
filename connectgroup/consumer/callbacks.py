"""Calls to user code, a consumer's listener and its assignors: off the event loop; exceptions are contained."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

from ..assign.api import PartitionAssignor
from ..assign.members import PartitionMemberAssignment
from ..assign.placement import WorkerTraits
from ..assign.sandbox import configure_assignor, describe, location_of
from ..errors import ConfigError, PluginError
from ..plugins import load_partition_assignor
from ..protocol.units import Partitions, printable
from ..threads import off_loop
from .metrics import ConsumerMetrics

logger = logging.getLogger(__name__)

Event = Literal["on_assigned", "on_revoked", "on_lost"]


async def notify_listener(
    listener: ConsumerRebalanceListener,
    event: Event,
    partitions: Partitions,
    generation: int,
    metrics: ConsumerMetrics,
) -> PluginError | None:
    """Call the listener and measure it. An exception is returned as a ``PluginError`` with a one-line message."""
    began_s = time.monotonic()
    call: Callable[[Partitions, int], Awaitable[None] | None] = getattr(listener, event)
    try:
        result = await off_loop(event, call, partitions, generation)
        if inspect.isawaitable(result):
            await result
    except Exception as error:
        names = ", ".join(map(str, sorted(partitions)[:3]))
        text = printable(f"listener {type(listener).__name__}: {event} of {names} raised {describe(error)}", limit=400)
        failed = PluginError(text, location=location_of(error, listener))
        logger.error("%s", failed.with_location())
        return failed
    finally:
        metrics.on_callback(event, began_s)
    return None


async def notify_plugin_assignor(assignor: PartitionAssignor, share: PartitionMemberAssignment) -> None:
    """Pass the member's assignment to the assignor that was used. An exception is logged; the assignment stands."""
    try:
        await off_loop("on_assignment", assignor.on_assignment, share)
    except Exception as error:
        message = f"assignor {printable(assignor.name)}: on_assignment raised {describe(error)}"
        logger.error("%s", PluginError(message, location=location_of(error, assignor)).with_location())


def loaded(assignors: Sequence[PartitionAssignor | str], rack: str | None = None) -> tuple[PartitionAssignor, ...]:
    """Return the assignors, configured; those given by name are loaded through their entry points.

    Args:
        rack: of this consumer: its only trait.

    Raises:
        ConfigError: the list is empty, contains one twice, or contains something other than names and assignors.
        PluginError: one cannot be loaded or configured.
    """
    if isinstance(assignors, str) or not assignors:
        raise ConfigError("assignors", assignors, "a list of one or more names or PartitionAssignor objects")
    found = []
    for each in assignors:
        if isinstance(each, str):
            found.append(load_partition_assignor(each))
        elif isinstance(each, PartitionAssignor):
            found.append(each)
        else:
            raise ConfigError("assignors", type(each).__name__, "names or PartitionAssignor objects")
    names = [assignor.name for assignor in found]
    if len(set(names)) < len(names):
        raise ConfigError("assignors", ", ".join(names), "each name once")
    for assignor in found:
        configure_assignor(assignor, WorkerTraits(rack=rack or ""))
    return tuple(found)


# --------------------------------------------------------------------------------------------------
# Callbacks of a consumer for the partitions it is assigned and loses.
#
# The guarantees for one consumer:
#
# - Callbacks run inside ``poll`` (or the ``async for``, or ``close``) and never overlap; records that ``poll`` returned
#   before count as processed.
# - Assigned: ``on_assigned`` returns, then records of the partitions arrive.
# - Revoked: no more records arrive, their offsets are committed (unless ``auto_commit_interval_ms`` is ``None``), then
#   ``on_revoked`` runs; only then is the revocation acknowledged to the group. ``await consumer.commit(...)`` works in
#   the callback. No other member owns the partitions before it has returned.
# - Lost: no more records arrive, then ``on_lost`` runs. Another consumer may have owned the partitions for a while: do
#   not commit their offsets.
# - Every partition passed to ``on_assigned`` is later passed to exactly one of the other two, unless the process dies.
#
# Under the EAGER rebalance protocol all partitions are revoked before each rebalance and assigned again after it; under
# COOPERATIVE the calls name only the changes (KIP-429).
#
# Each callback may be a plain method or ``async``; a plain one is called off the event loop and may block. It must
# return before ``max_poll_interval_ms`` has elapsed. An exception is raised from ``poll`` as one ``PluginError`` line,
# after the rebalance has continued: a rebalance cannot wait for a broken callback.
#
# Source: Kafka's ``ConsumerRebalanceListener``; KIP-429.


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

"""The partitions that a consumer owns: adding, revoking and losing them, with the calls of the listener.

Everything here runs in the consumer's group work, between two records. Positions are committed on request, at an
interval, and before each revocation.

User code, a consumer's listener and its assignors, is called off the event loop; its exceptions are contained.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol

from ..assign.api import PartitionAssignor
from ..assign.members import PartitionMemberAssignment
from ..assign.placement import WorkerTraits
from ..assign.sandbox import configure_assignor, describe, location_of
from ..errors import ConfigError, ConnectGroupError, PluginError
from ..plugins import load_partition_assignor
from ..protocol.units import Partitions, TopicPartition, printable
from ..threads import off_loop
from .client import GroupClient
from .membership import Membership
from .metrics import ConsumerMetrics
from .offsets import ReadPosition, commit
from .reading import Reading
from .settings import GroupConsumerSettings

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


NOTHING: Partitions = frozenset()


class PartitionOwnership:
    """What one consumer owns.

    Attributes:
        owned: its partitions.
        applied: the generation or member epoch of the last applied assignment, -1 before the first.
    """

    def __init__(
        self,
        membership: Membership,
        reading: Reading,
        commits: Commits,
        listener: ConsumerRebalanceListener | None,
    ) -> None:
        self._membership, self._reading, self._commits = membership, reading, commits
        self._listener = listener
        self.owned: Partitions = NOTHING
        self.applied = -1

    def is_read(self) -> bool:
        """Whether all owned partitions have a start position."""
        return self.owned == self._reading.positions.keys()

    async def begin_reading(self) -> None:
        """Start reading the owned partitions that are not read yet, and again those whose topic was created again."""
        if self._reading.recreated:
            await self._reading.read_again()
        if (new := self.owned - self._reading.positions.keys()) and await self._reading.begin(new):
            self._commits.hasten()

    def note_recreated(self, topics: set[str]) -> None:
        """These topics were deleted and created again; ``begin_reading`` reads them from their beginning."""
        self._reading.recreated |= topics

    async def hold(self, partitions: Partitions) -> None:
        """Own exactly these partitions from now on; the listener is notified of the new ones."""
        added = partitions - self.owned
        self.owned = partitions
        await self._notify("on_assigned", added)

    async def revoke(self, partitions: Partitions, *, commits: bool = True) -> None:
        """Stop reading, commit, call the listener, and only then release the partitions."""
        if not partitions:
            return
        await self._reading.stop(partitions)
        if commits:
            await self._commits.before_revocation(self.owned)
        await self._notify("on_revoked" if self._membership.in_group else "on_lost", partitions)
        self._release(partitions)

    async def lose(self, partitions: Partitions) -> None:
        """Stop reading partitions that may already belong to another member."""
        if not partitions:
            return
        await self._reading.stop(partitions)
        await self._notify("on_lost", partitions)
        self._release(partitions)

    def share(
        self, *, version: int, metadata: bytes, partitions: Partitions, error: int = 0
    ) -> PartitionMemberAssignment:
        """This member's assignment, for ``on_assignment`` of the assignor that computed it."""
        membership = self._membership
        return PartitionMemberAssignment(
            member_id=membership.member_id,
            version=version,
            metadata=metadata,
            partitions=partitions,
            group_id=membership.settings.group,
            epoch=self.applied,
            error=error,
            instance_id=membership.settings.instance,
        )

    def _release(self, partitions: Partitions) -> None:
        self.owned -= partitions
        self._reading.forget(partitions)

    async def _notify(self, event: Event, partitions: Partitions) -> None:
        """Call the listener; an exception is stored and raised at the end of ``poll``."""
        if self._listener is not None and partitions:
            metrics = self._membership.metrics
            failure = await notify_listener(self._listener, event, partitions, self.applied, metrics)
            self._reading.callback_error = self._reading.callback_error or failure


logger = logging.getLogger(__name__)

ID_TIMEOUT_S = 2.0
"""How long a commit waits for the ids of its topics: it is not held up by brokers that do not respond."""
ID_AGE_S = 1.0
"""The ids of topics are not asked for again within this time."""


class Commits:
    """The commits of one consumer; one at a time."""

    def __init__(
        self, client: GroupClient, settings: GroupConsumerSettings, membership: Membership, reading: Reading
    ) -> None:
        self._client, self._settings = client, settings
        self._membership, self._reading = membership, reading
        self._due = 0.0  # when the next automatic commit is; ``schedule`` sets it
        self._running: asyncio.Task[None] | None = None  # the automatic commit in progress
        self._lock = asyncio.Lock()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The automatic commit in progress, if any."""
        return [self._running] if self._running is not None else []

    async def commit(self, positions: Mapping[TopicPartition, ReadPosition], owned: Partitions) -> None:
        """Commit these positions. Raises as ``GroupConsumer.commit`` does."""
        async with self._lock:  # otherwise an older offset could overwrite a newer one
            taken = await commit(self._client, self._membership, positions)
            self._reading.committed |= {partition: positions[partition] for partition in taken & owned}

    def schedule(self) -> None:
        """The next automatic commit is due in one interval from now."""
        self._due = time.monotonic() + (self._settings.auto_commit_interval_ms or 0) / 1000

    def hasten(self) -> None:
        """An automatic commit is due now, if there are any."""
        self._due = 0.0

    def due_at(self) -> float:
        """When an automatic commit is due, by ``time.monotonic``."""
        return math.inf if self._settings.auto_commit_interval_ms is None else self._due

    def is_due(self) -> bool:
        """Whether an automatic commit should start now.

        With an interval of 0 it also starts during a rebalance, during which records are returned. With a longer one it
        waits for the end of the rebalance, and of the commit before it.
        """
        if self._settings.auto_commit_interval_ms is None:
            return False
        if self._settings.auto_commit_interval_ms == 0:
            return bool(self._reading.uncommitted())
        if self._membership.is_rebalancing or (self._running is not None and not self._running.done()):
            return False
        return time.monotonic() >= self._due

    async def start(self, owned: Partitions) -> None:
        """Commit concurrently with reading: a coordinator that does not respond must not delay reading.

        With an interval of 0 the commit ends first: no record is returned before the ones before it are committed.
        """
        self.schedule()
        if self._settings.auto_commit_interval_ms == 0:
            await self._commit_or_log(owned)
        else:
            self._running = asyncio.create_task(self._commit_or_log(owned), name="commit")

    async def before_revocation(self, owned: Partitions) -> None:
        """Commit if automatic commits are enabled; a failure is logged, and the records are read again."""
        if self._settings.auto_commit_interval_ms is not None:
            await self._commit_or_log(owned, id_age_s=0.0)

    async def _commit_or_log(self, owned: Partitions, id_age_s: float = ID_AGE_S) -> None:
        try:
            # An offset in a topic that was deleted would count in the topic of the same name.
            async with asyncio.timeout(ID_TIMEOUT_S):
                if await self._reading.find_recreated(since_s=id_age_s):
                    self._membership.changed.set()
        except (ConnectGroupError, TimeoutError) as error:
            logger.debug("group %s: ids of topics: %s", self._settings.group, error)
        try:
            positions = self._reading.uncommitted()
            kept = {each: at for each, at in positions.items() if each.topic not in self._reading.recreated}
            await self.commit(kept, owned)
        except ConnectGroupError as error:
            logger.warning("group %s: %s", self._settings.group, error)

"""The group work of a consumer: what it does between two records so that the group's rebalances proceed."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..assign.api import PartitionAssignor
from ..errors import TransportError
from ..protocol.messages.classic import OfferedProtocol
from ..protocol.units import Partitions, TopicPartition
from .classic import ClassicMembership, Round
from .epochs import Assigned, EpochMembership
from .ownership import PartitionOwnership, notify_plugin_assignor
from .rounds import after_sync, before_joining, choose_protocol, join_offers
from .settings import GroupConsumerSettings

logger = logging.getLogger(__name__)


class GroupWork(ABC):
    """The work of one consumer under one protocol."""

    @property
    @abstractmethod
    def is_leader(self) -> bool:
        """Whether this member computed the current assignment."""

    @property
    @abstractmethod
    def assignor(self) -> str | None:
        """The name of the assignor that the group used last, as far as the member knows it."""

    @abstractmethod
    def is_due(self) -> bool:
        """Whether ``step`` has something to do."""

    @abstractmethod
    async def step(self) -> bool:
        """Perform the next step; return whether there was one.

        Raises:
            ConnectGroupError: the consumer cannot continue.
        """

    @abstractmethod
    def has_retry(self) -> bool:
        """Whether ``step`` could not complete, because no broker knew the topics, and is to be called again soon."""

    @abstractmethod
    async def cancel(self) -> None:
        """Abort what runs in the background."""


class ClassicWork(GroupWork):
    """JoinGroup after the necessary revocations, and the assignment that follows."""

    def __init__(
        self,
        settings: GroupConsumerSettings,
        assignors: Sequence[PartitionAssignor],
        membership: ClassicMembership,
        ownership: PartitionOwnership,
    ) -> None:
        self._settings, self._assignors = settings, assignors
        self._membership, self._ownership = membership, ownership
        self._protocol = choose_protocol(assignors)
        self._ended: Round | None = None

    @property
    def is_leader(self) -> bool:
        return self._membership.in_group and self._ended is not None and self._ended.leader

    @property
    def assignor(self) -> str | None:
        return self._ended.assignor.name if self._ended is not None else None

    def is_due(self) -> bool:
        return self._membership.round is None and bool(self._membership.rejoin)

    async def step(self) -> bool:
        membership, ownership = self._membership, self._ownership
        if membership.round is not None and membership.round.done():
            await self._end_round()
        elif membership.round is None and not membership.in_group and ownership.owned:
            logger.warning("group %s: lost: %s", self._settings.group, membership.lost_because)
            await ownership.lose(ownership.owned)
        elif membership.fatal is not None:
            raise membership.fatal
        elif self.is_due():
            return await self._begin_round()
        else:
            return False
        return True

    def has_retry(self) -> bool:
        return self.is_due()  # after ``step``: the topics were not available

    async def cancel(self) -> None:
        await self._membership.cancel_round()

    async def _begin_round(self) -> bool:
        """Revoke the partitions that must be revoked before a JoinGroup, then join concurrently with reading.

        Returns:
            False if the topics are not available: the next ``poll`` retries.
        """
        membership, ownership = self._membership, self._ownership
        try:
            await membership.resolve()
        except TransportError as error:
            logger.debug("group %s: topics: %s", self._settings.group, error)
            return False
        before = before_joining(
            self._protocol, owned=ownership.owned, subscribed=membership.subscribed, in_group=membership.in_group
        )
        await ownership.lose(before.lost)
        await ownership.revoke(before.revoked)
        if ownership.owned and not membership.in_group:
            return True  # membership was lost while a callback ran: the remaining partitions are lost too
        membership.begin_round(self._offers)
        return True

    def _offers(self) -> tuple[OfferedProtocol, ...]:
        return join_offers(
            self._assignors,
            subscribed=self._membership.subscribed,
            owned=self._ownership.owned,
            generation=self._ownership.applied if self._membership.in_group else -1,
            rack=self._settings.rack,
        )

    async def _end_round(self) -> None:
        """Apply the result of a rebalance."""
        membership, ownership = self._membership, self._ownership
        try:
            ended = membership.take_round()
        except Exception:
            membership.request_rejoin("the last rebalance failed")
            raise
        if ended is None or not membership.in_group or membership.generation != ended.generation:
            return
        self._ended, ownership.applied = ended, ended.generation
        owned, assigned = ownership.owned, ended.share.partitions
        if ended.missed:
            # Another member may have read on in those that this one gets again: they begin at the committed offset.
            await ownership.lose(owned)
        step = after_sync(owned=ownership.owned, assigned=assigned, subscribed=membership.subscribed)
        await ownership.revoke(step.revoked)
        if not membership.in_group:
            return
        share = ownership.share(
            version=ended.version if ended.version >= 0 else ended.assignor.maximum_version,
            metadata=ended.share.user_data or b"",
            partitions=step.holds,
            error=ended.error,
        )
        await notify_plugin_assignor(ended.assignor, share)
        await ownership.hold(step.holds)
        if step.rejoin or not owned <= assigned:
            membership.request_rejoin("revoked partitions that other members need")
        if ended.failure is not None:
            # Another member's assignor may succeed. This member must not lead again, so it leaves.
            await ownership.revoke(ownership.owned)
            await membership.leave(str(ended.failure))
            membership.fatal = ended.failure


# --------------------------------------------------------------------------------------------------
# The group work of a consumer in a group of KIP-848: revoking and adding what each assignment says.


RETRY_S = 0.2
"""When the names of topics are queried again: a new topic is known to the coordinator before it is to each broker."""


class EpochWork(GroupWork):
    """Applies assignments, and reports to the coordinator what the member owns."""

    def __init__(
        self, settings: GroupConsumerSettings, membership: EpochMembership, ownership: PartitionOwnership
    ) -> None:
        self._settings, self._membership, self._ownership = settings, membership, ownership
        self._names: dict[str, str] = {}  # of topics, by topic id
        self._assignor: str | None = None
        self._unresolved: Assigned | None = None
        self._retry_at = 0.0

    @property
    def is_leader(self) -> bool:
        return self._membership.in_group and self._membership.computed_epoch == self._membership.generation

    @property
    def assignor(self) -> str | None:
        return self._assignor

    def is_due(self) -> bool:
        membership = self._membership
        return (
            membership.assigned is not None
            or (membership.may_join and bool(membership.rejoin))
            or (self._unresolved is not None and time.monotonic() >= self._retry_at)
        )

    async def step(self) -> bool:
        membership, ownership = self._membership, self._ownership
        if not membership.in_group and ownership.owned:
            logger.warning("group %s: lost: %s", self._settings.group, membership.lost_because)
            await ownership.lose(ownership.owned)
        elif membership.fatal is not None:
            raise membership.fatal
        elif membership.may_join and membership.rejoin:
            self._unresolved = None
            membership.begin_to_join()
        elif membership.in_group and (assigned := membership.take_assigned() or self._overdue()) is not None:
            await self._apply(assigned)
        else:
            if membership.in_group and self._unresolved is None:
                ownership.applied = membership.generation
            return False
        return True

    def has_retry(self) -> bool:
        return self._unresolved is not None

    async def cancel(self) -> None:
        return None

    def _overdue(self) -> Assigned | None:
        return self._unresolved if time.monotonic() >= self._retry_at else None

    async def _apply(self, assigned: Assigned) -> None:
        """Revoke what is no longer assigned, then add what is new, then report both."""
        membership, ownership = self._membership, self._ownership
        topic_ids = {each.topic for each in assigned.partitions}
        self._unresolved = None
        if topic_ids - self._names.keys():
            try:
                named = await membership.names_of(topic_ids - self._names.keys())
                ownership.note_recreated(set(named.values()) & set(self._names.values()))
                self._names = {each: name for each, name in self._names.items() if name not in named.values()} | named
            except TransportError as error:
                logger.debug("group %s: names of topics: %s", self._settings.group, error)
        if topic_ids - self._names.keys():
            self._unresolved, self._retry_at = assigned, time.monotonic() + RETRY_S
        wanted = frozenset(
            TopicPartition(self._names[topic_id], number)
            for topic_id, number in assigned.partitions
            if topic_id in self._names
        )
        ownership.applied = assigned.epoch
        await ownership.revoke(ownership.owned - wanted)
        if not membership.in_group:
            return
        if assigned.assignor is not None:
            self._assignor = assigned.assignor.name
            code, version, metadata = assigned.metadata
            share = ownership.share(version=version, metadata=metadata, partitions=wanted, error=code)
            await notify_plugin_assignor(assigned.assignor, share)
        await ownership.hold(wanted)
        membership.report(self._by_id(wanted))

    def _by_id(self, partitions: Partitions) -> Partitions:
        """Partitions with topic ids in place of names."""
        ids = {name: topic_id for topic_id, name in self._names.items()}
        return frozenset(TopicPartition(ids[name], number) for name, number in partitions)

"""The group work of a consumer in a group of KIP-848: revoking and adding what each assignment says."""

from __future__ import annotations

import logging
import time

from ..errors import TransportError
from ..protocol.units import Partitions, TopicPartition
from .callbacks import notify_plugin_assignor
from .epochs import Assigned, EpochMembership
from .ownership import Ownership
from .settings import ConsumerSettings
from .work import GroupWork

logger = logging.getLogger(__name__)

RETRY_S = 0.2
"""When the names of topics are queried again: a new topic is known to the coordinator before it is to each broker."""


class EpochWork(GroupWork):
    """Applies assignments, and reports to the coordinator what the member owns."""

    def __init__(self, settings: ConsumerSettings, membership: EpochMembership, ownership: Ownership) -> None:
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

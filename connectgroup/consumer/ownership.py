"""The partitions that a consumer owns: adding, revoking and losing them, with the calls of the listener.

Everything here runs in the consumer's group work, between two records.
"""

from __future__ import annotations

from ..assign.members import PartitionMemberAssignment
from ..protocol.units import Partitions
from .callbacks import ConsumerRebalanceListener, Event, notify_listener
from .commits import Commits
from .membership import Membership
from .reading import Reading

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

"""A connect group as it will be once the records written so far in this step are applied (``kernel.draft``).

Also the group of a log that was put back from an older copy.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Final

from ...protocol.messages.common import grouped, units_of
from ...protocol.messages.describe import Rebalance
from ...protocol.messages.heartbeat import TaskStatus
from ...protocol.records.base import Key, Kind, Tombstone
from ...protocol.records.connect import (
    HISTORY,
    CurrentRecord,
    DelayRecord,
    GroupRecord,
    MemberRecord,
    MemberState,
    RebalanceRecord,
    Record,
    TargetMemberRecord,
    TargetRecord,
    held,
)
from ...protocol.units import NO_UNITS, Unit, Units
from ..kernel.draft import GroupDraft, Those
from ..kernel.reconcile import Current
from ..kernel.state import Target
from .state import ConnectGroupState

MAX_RESTART_REQUESTS = 100
"""Restart requests of lost members that a group keeps; the oldest is dropped. Some members never join again."""


class ConnectDraft(GroupDraft[MemberRecord, Unit]):
    """A connect group with the records of the current step applied to it.

    Attributes, besides those of ``GroupDraft``:
        delays: delayed units, by the member they are reserved for.
        silent_ms: for how long the member that this step removes has sent no heartbeat.
    """

    group: ConnectGroupState

    def __init__(self, group: ConnectGroupState, now_ms: int, *, silent_ms: int = 0) -> None:
        super().__init__(group, now_ms)
        self.silent_ms = silent_ms
        self.delays: dict[str, DelayRecord] = dict(group.delays)
        self._rebalance = group.latest_rebalance

    def write(self, record: Record) -> None:
        """Add a record; later reads of the draft include it."""
        super().write(record)
        match record:
            case DelayRecord():
                self.delays[record.member_id] = record
            case Tombstone(key=Key(kind=Kind.DELAY)):
                self.delays.pop(record.key.name, None)
            case _:
                pass

    def _current_record(self, member_id: str, current: Current[Unit]) -> CurrentRecord:
        return CurrentRecord(
            group_id=self.group_id,
            member_id=member_id,
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            state=MemberState(current.state),
            assigned=held(current.assigned),
            pending=held(current.pending),
            at_ms=self.now_ms,
        )

    def _target_record(self, member_id: str, target: Target[Unit]) -> TargetMemberRecord:
        return TargetMemberRecord(
            group_id=self.group_id,
            member_id=member_id,
            units=grouped(target.units),
            error=target.error,
            version=target.version,
            metadata=target.metadata,
        )

    def raise_target(self) -> None:
        """Keep the installed target assignment, with the changes of this step, under the newest group epoch.

        No new computation is done or needed.
        """
        self.write(
            TargetRecord(
                group_id=self.group.group_id,
                epoch=self.epoch,
                assignor=self.group.target_assignor,
                computed_by=self.group.computed_by,
                deferred=self.group.deferred,
                deferred_starts=self.group.deferred_starts,
                at_ms=self.group.target_ms,
            )
        )

    def assignable_members(self) -> list[MemberRecord]:
        """Members that may be assigned units: no draining ones, unless no other member is there to take their units."""
        members = list(self.members())
        return [member for member in members if not member.draining] if self._has_takers() else members

    def _has_takers(self) -> bool:
        """Whether a member that does not drain is there to take units."""
        return self.any_member(lambda member: not member.draining and self._is_present(member))

    def _is_present(self, member: MemberRecord) -> bool:
        return not self.current(member.member_id).temporarily_left

    def metadata_bytes(self, *, without: str) -> int:
        """The size of the metadata of all members' assignors but one's; members of this step do not count."""
        known = self.group.members.get(without)
        return self.group.metadata_bytes - (0 if known is None else sum(len(info.metadata) for info in known.assignors))

    def computing_members(self) -> Container[str]:
        """Members that may compute: present, and not draining unless no other member can take units.

        A member of the classic protocol only if there is no other: it is asked with its next heartbeat, which is not
        parked.
        """
        has_takers = self._has_takers()

        def may_compute(member: MemberRecord) -> bool:
            return self._is_present(member) and not (has_takers and member.draining)

        asks_connect = self.any_member(lambda member: not member.classic and may_compute(member))
        return Those(self, lambda member: may_compute(member) and not (asks_connect and member.classic))

    def placed(self) -> Units:
        """All units that are in a member's target assignment."""
        return NO_UNITS.union(*(self.target(member.member_id).units for member in self.members()))

    def eligible(self, member_id: str) -> Units:
        """The units of a member's target assignment that may be assigned now.

        Excludes units that were deleted since, and units whose configuration is newer than the target assignment
        (reliability S10).
        """
        runnable, newest = self.group.runnable, self.target_epoch
        return frozenset(unit for unit in self.target(member_id).units if runnable.get(unit, newest + 1) <= newest)

    def waiting_member(self, delay: DelayRecord) -> str | None:
        """The member that a delay reserves units for, once it has returned under its member id or its instance id."""
        if self.member(delay.member_id) is not None:
            return delay.member_id
        if delay.instance_id is None:
            return None
        for member in self._members.values():
            if member is not None and member.instance_id == delay.instance_id:
                return member.member_id
        known = self.member(self.group.instances.get(delay.instance_id, ""))
        return known.member_id if known is not None and known.instance_id == delay.instance_id else None

    def is_back(self, delay: DelayRecord, served: Container[str] | None = None) -> bool:
        """Whether the member of a delay has returned, and is in ``served`` if that is given."""
        member_id = self.waiting_member(delay)
        return member_id is not None and (served is None or member_id in served)

    def lost_units(self, served: Container[str] | None = None) -> Units:
        """Units that must not be assigned now: those of lost workers that have not returned (S15).

        Args:
            served: if given, only the return of these members counts.
        """
        if not self.delays:
            return NO_UNITS
        lost = [delay for delay in self.delays.values() if delay.member_id and not self.is_back(delay, served)]
        return NO_UNITS.union(*(self.waiting(delay) for delay in lost))

    def waiting(self, delay: DelayRecord) -> Units:
        """The units of a delay that are still delayed: not those deleted, created again or reconfigured since."""
        runnable, epoch = self.group.runnable, delay.epoch
        return frozenset(unit for unit in units_of(delay.units) if runnable.get(unit, epoch + 1) <= epoch)

    def bump(self, cause: str, *, restart_request: str = "", above: int = 0) -> None:
        """Advance the group epoch: a new assignment is needed (KIP-848, the causes listed under "Group Epoch").

        Several causes in one step share one epoch. Causes that arrive before a target assignment has been installed for
        the last epoch are added to that rebalance, since one computation covers them all.

        Args:
            restart_request: a lost member whose restart an operator has requested; kept until the member joins again.
            above: the new group epoch is higher than this one.
        """
        last = self._rebalance
        unanswered = last is not None and last.epoch > self.target_epoch
        if not self._bumped or above >= self.epoch:
            self._bumped = True
            if last is not None and unanswered:
                self.forget(Kind.REBALANCE, str(last.epoch))
            requests = [each for each in self.group.restart_requests if self.member(each) is None]
            if restart_request:
                requests = [*requests, restart_request][-MAX_RESTART_REQUESTS:]
            self.write(
                GroupRecord(
                    group_id=self.group.group_id,
                    epoch=max(self.epoch, above) + 1,
                    created_ms=self.created_ms,
                    restart_requests=tuple(requests),
                )
            )
            if self.epoch - HISTORY in self.group.rebalances:
                self.forget(Kind.REBALANCE, str(self.epoch - HISTORY))
        causes = (*last.causes, cause) if last is not None and unanswered else (cause,)
        started_ms = last.started_ms if last is not None and unanswered else self.now_ms
        self._rebalance = Rebalance(epoch=self.epoch, causes=causes[-HISTORY:], started_ms=started_ms)
        self.write(RebalanceRecord(group_id=self.group.group_id, rebalance=self._rebalance, silent_ms=self.silent_ms))


# --------------------------------------------------------------------------------------------------
# A group of a log that was put back from an older copy: its fencing tokens are lower than those its sinks have seen.
#
# The owner of a task that its sink rejects reports the sink's token. If it is a token of this group, and higher than
# the one that the group has issued to the owner, the log is an older copy: the group epoch is raised above the token,
# and the connector's tasks are revoked and assigned again. The group epoch may have passed the token by then, because
# of another connector. ``connectgroup groups recover`` does the same for all connectors before any task starts.


EPOCHS_PER_S: Final = 10
"""ConnectGroupState epochs that a group has used in each second since it was created, at most."""
FIRST_EPOCHS: Final = 1_000
"""ConnectGroupState epochs that a group may have used however young it is."""
EPOCH_BITS: Final = 32


def missing_epoch(token: int, *, owner_epoch: int, created_ms: int, now_ms: int) -> int | None:
    """Return the epoch of a fencing token that the group must have issued after the copy of its log was made.

    Args:
        token: the token that a sink has seen (``connector.fencing_token``).
        owner_epoch: that of the owner whose unit the sink has rejected.
        created_ms: when the group was created. A token of another time belongs to another group with this connector.
        now_ms: the wall clock.

    Returns:
        ``None`` if there is no such epoch, or if the group cannot have reached it in its lifetime: members must not be
        able to use up the epochs. At ``EPOCHS_PER_S``, the 31 bits of an epoch last for almost seven years.
    """
    incarnation, theirs = token >> EPOCH_BITS, token & ((1 << EPOCH_BITS) - 1)
    limit = FIRST_EPOCHS + EPOCHS_PER_S * max(0, now_ms - created_ms) // 1_000
    return theirs if incarnation == created_ms // 1_000 and owner_epoch < theirs <= limit else None


def issue_above(draft: ConnectDraft, rejected: Iterable[TaskStatus]) -> None:
    """Assign the tasks of connectors again, at an epoch above those of the tokens that their sinks have seen.

    Args:
        rejected: statuses of the present owners of units, each with the token for which its sink has rejected it.
    """
    group = draft.group
    newest: dict[str, int] = {}
    for status in rejected:
        theirs = missing_epoch(
            status.fenced_by, owner_epoch=status.owner_epoch, created_ms=group.created_ms, now_ms=draft.now_ms
        )
        # A grant before ``since_epoch`` ends anyway: its revocation is pending.
        ends = group.runnable[Unit(status.connector, status.task)] > status.owner_epoch
        if theirs is not None and not ends:
            newest[status.connector] = max(theirs, newest.get(status.connector, theirs))
    for connector, theirs in newest.items():
        draft.bump(f"{connector}: its sink has seen owner epoch {theirs}: the log is an older copy", above=theirs)
        record = group.connectors[connector]
        tasks = tuple(replace(task, since_epoch=draft.epoch) for task in record.tasks)
        draft.write(replace(record, tasks=tasks))

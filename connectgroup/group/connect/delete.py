"""Deletion of a group: a tombstone for every key but one; one small record stays.

That record keeps the creation time of the group. A group created again under the same id has a later creation time, so
its fencing tokens are higher than all tokens that sinks have seen of the deleted group.

Source: Kafka's DeleteGroups (a group with members is not deleted); KAFKA-19163.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import GroupIdNotFound, NonEmptyGroup
from ...protocol.messages.describe import DeletedGroup, DeleteResponse
from ...protocol.records.base import Key, Kind, Tombstone
from ...protocol.records.connect import GroupRecord, Record
from ...protocol.units import printable
from ..kernel.outcome import Outcome
from ..kernel.timers import CancelTimer, TimerKey, TimerKind
from . import timers as timing, validate
from .state import Group


def delete(group: Group) -> Outcome[DeleteResponse]:
    """Delete the group with its connectors.

    Raises:
        InvalidGroupId: the group id is invalid.
        GroupIdNotFound: the group does not exist.
        NonEmptyGroup: the group has members; members that temporarily left count.
    """
    validate.group_id(group.group_id)
    if not group.exists:
        raise GroupIdNotFound(f"GroupId: got {printable(group.group_id)!r}; there is no such group")
    if group.members:
        raise NonEmptyGroup(
            f"group {printable(group.group_id)} has {len(group.members)} members; allowed: a group without members"
        )
    records: list[Record] = [Tombstone(key) for key in _keys(group)]
    # Written last, so that a batch that is only partly read still describes a group.
    records.append(GroupRecord(group_id=group.group_id, epoch=0, created_ms=group.created_ms))
    timers = (
        CancelTimer(TimerKey(TimerKind.COMPUTE, group.group_id)),
        *(timing.cancel_delay(group.group_id, member_id) for member_id in sorted(group.delays)),
    )
    response = DeleteResponse(results=(DeletedGroup(group_id=group.group_id),))
    return Outcome(response=response, records=tuple(records), timers=timers)


def _keys(group: Group) -> Iterable[Key]:
    """Every key of the group except the group's own."""
    group_id = group.group_id
    for kind, names in (
        (Kind.CURRENT, group.currents),
        (Kind.TARGET_MEMBER, group.targets),
        (Kind.CONNECTOR, group.connectors),
        (Kind.DELAY, group.delays),
    ):
        for name in sorted(names):
            yield Key(kind, group_id, name)
    for _, status in sorted(group.statuses.items()):
        yield status.key
    for epoch in group.rebalances:
        yield Key(Kind.REBALANCE, group_id, str(epoch))
    for kind in (Kind.COMPUTATION, Kind.TARGET):
        yield Key(kind, group_id)

"""A group is deleted: every key of it ends, and one small record stays.

That record keeps the time at which the group was made. A group made again under the same name is a later one, so the
tokens of its grants are above all that sinks have seen of the first.

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
    """Forget the group with its connectors.

    Raises:
        InvalidGroupId: no group can have that id.
        GroupIdNotFound: there is none.
        NonEmptyGroup: it has members; those that left for a while count.
    """
    validate.group_id(group.group_id)
    if not group.exists:
        raise GroupIdNotFound(f"GroupId: got {printable(group.group_id)!r}; there is no such group")
    if group.members:
        raise NonEmptyGroup(
            f"group {printable(group.group_id)} has {len(group.members)} members; allowed: a group that all have left"
        )
    records: list[Record] = [Tombstone(key) for key in _keys(group)]
    # Last, so that a batch read half-way would still be a group.
    records.append(GroupRecord(group_id=group.group_id, epoch=0, created_ms=group.created_ms))
    timers = (
        CancelTimer(TimerKey(TimerKind.COMPUTE, group.group_id)),
        *(timing.cancel_delay(group.group_id, member_id) for member_id in sorted(group.delays)),
    )
    response = DeleteResponse(results=(DeletedGroup(group_id=group.group_id),))
    return Outcome(response=response, records=tuple(records), timers=timers)


def _keys(group: Group) -> Iterable[Key]:
    """Every key of the group but its own."""
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

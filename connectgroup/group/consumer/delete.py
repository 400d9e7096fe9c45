"""Deletion of a consumer group without members, with its offsets."""

from __future__ import annotations

from ...errors import GroupIdNotFound, NonEmptyGroup
from ...protocol.messages.describe import DeletedGroup, DeleteResponse
from ...protocol.records.base import Key, Kind, Tombstone
from ...protocol.units import printable
from ..kernel.outcome import Outcome
from .draft import Draft
from .state import ConsumerGroup


def delete(draft: Draft) -> Outcome[DeleteResponse]:
    """Remove every record of the group.

    Raises:
        GroupIdNotFound: there is no such group.
        NonEmptyGroup: it has members.
    """
    group, name = draft.group, printable(draft.group.group_id)
    if not group.exists:
        raise GroupIdNotFound(f"GroupId: got {name!r}; there is no such group")
    if group.members:
        raise NonEmptyGroup(f"group {name} has {len(group.members)} members; allowed: a group without members")
    for tombstone in (*group.offsets.tombstones(), *remains(group), Tombstone(Key(Kind.GROUP, group.group_id))):
        draft.write(tombstone)
    return Outcome(
        response=DeleteResponse(results=(DeletedGroup(group_id=group.group_id),)), records=tuple(draft.records)
    )


def remains(group: ConsumerGroup) -> tuple[Tombstone, ...]:
    """The records that remove what a group without members has besides its offsets and its ``GroupRecord``."""
    names = [
        *((Kind.CONSUMER_REGEX, regex) for regex in sorted(group.regexes)),
        *((Kind.CONSUMER_TARGET_MEMBER, member_id) for member_id in sorted(group.targets)),
        *((kind, "") for kind in (Kind.CONSUMER_TOPICS, Kind.COMPUTATION, Kind.TARGET)),
    ]
    return tuple(Tombstone(Key(kind, group.group_id, name)) for kind, name in names)

"""Deletion of a consumer group without members, with its offsets."""

from __future__ import annotations

from ...errors import GroupIdNotFound, NonEmptyGroup
from ...protocol.messages.describe import DeletedGroup, DeleteResponse
from ...protocol.records.base import Key, Kind
from ...protocol.units import printable
from ..kernel.outcome import Outcome
from .draft import Draft


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
    for tombstone in group.offsets.tombstones():
        draft.write(tombstone)
    for regex in sorted(group.regexes):
        draft.forget(Kind.CONSUMER_REGEX, regex)
    for member_id in sorted(group.targets):
        draft.forget(Kind.CONSUMER_TARGET_MEMBER, member_id)
    for kind in (Kind.CONSUMER_TOPICS, Kind.COMPUTATION, Kind.TARGET, Kind.GROUP):
        draft.forget(kind, Key(kind, group.group_id).name)
    return Outcome(
        response=DeleteResponse(results=(DeletedGroup(group_id=group.group_id),)), records=tuple(draft.records)
    )

"""Commit and fetch of a consumer group's offsets, fenced by the member epoch: OC-01 to OC-07; deletion of a group.

Source: KIP-848, "OffsetCommit API" and "OffsetFetch API"; KIP-1251; Kafka's ``ConsumerGroup.validateOffsetCommit``.
"""

from __future__ import annotations

from ...errors import IllegalGeneration, StaleMemberEpoch, UnknownMemberId, UnsupportedVersion
from ...protocol.messages.describe import DeletedGroup, DeleteResponse
from ...protocol.messages.offsets import (
    CommitInTransaction,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitResponse,
)
from ...protocol.records.base import Key, Kind, Tombstone
from ...protocol.units import TopicPartition, printable
from .. import offsets
from ..kernel.members import check_deletable, check_exists
from ..kernel.outcome import Outcome
from ..offsets import OffsetSettings, Topics
from .state import ConsumerDraft, ConsumerGroupState


def commit(
    group: ConsumerGroupState, request: OffsetCommitRequest, now_ms: int, topics: Topics, settings: OffsetSettings
) -> Outcome[OffsetCommitResponse]:
    """Commit offsets.

    A sender without a member epoch may commit if the group has no members: an operator, or a consumer that assigns
    partitions to itself, whatever member id it sends.

    A member at an earlier epoch than its own may commit the partitions that were assigned to it at that epoch or
    before, and that it has not revoked: it has not seen its new epoch yet (KIP-1251).

    Raises:
        UnknownMemberId: the sender is not a member, and the group has members.
        IllegalGeneration: the generation of a member that uses the classic protocol is later than its epoch.
        StaleMemberEpoch: the member epoch is later than that of the member.
        UnsupportedVersion: the request's version is too old for a member of the consumer protocol.
    """
    if (unknown := offsets.commits_nothing(request, topics)) is not None:
        return Outcome(response=unknown)
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        response, records = offsets.commit(request, _any_partition, now_ms, topics, group.offsets, settings)
        return Outcome(response=response, records=records)
    _check_member(group, request.member_id)
    is_classic = group.members[request.member_id].uses_classic_protocol
    if request.lacks_member_epochs and not is_classic:
        raise UnsupportedVersion(f"{printable(request.member_id)} must commit with OffsetCommit v9 or later")
    check = _check_of(group, request.member_id, epoch, IllegalGeneration if is_classic else StaleMemberEpoch)
    response, records = offsets.commit(request, check, now_ms, topics, group.offsets, settings)
    return Outcome(response=response, records=records)


def commit_in_transaction(
    group: ConsumerGroupState, commit: CommitInTransaction, now_ms: int, topics: Topics, settings: OffsetSettings
) -> Outcome[TxnOffsetCommitResponse]:
    """Commit offsets with a transaction.

    Raises:
        UnknownMemberId: the sender is not a member, and the group has members or the sender names a member epoch.
        IllegalGeneration: the member epoch is later than that of the member.
    """
    request = commit.request
    check: offsets.Check = _any_partition
    if request.generation_id >= 0 or group.members:
        _check_member(group, request.member_id)
        check = _check_of(group, request.member_id, request.generation_id, IllegalGeneration)
    response, records = offsets.commit_in_transaction(commit, check, now_ms, topics, group.offsets, settings)
    return Outcome(response=response, records=records)


def delete(draft: ConsumerDraft, request: OffsetDeleteRequest, topics: Topics) -> Outcome[OffsetDeleteResponse]:
    """Delete offsets of topics that no member is subscribed to.

    Raises:
        GroupIdNotFound: there is no such group.
    """
    group = draft.group
    check_exists(group)
    response, records = offsets.delete(group.offsets, request, topics, offsets.among(draft.subscribed_topics))
    return Outcome(response=response, records=records)


def _any_partition(topic: str, partition: int) -> int:
    return 0


def _check_of(
    group: ConsumerGroupState, member_id: str, epoch: int, stale: type[IllegalGeneration | StaleMemberEpoch]
) -> offsets.Check:
    """Which partitions a member may commit.

    Raises:
        IllegalGeneration, StaleMemberEpoch: the epoch is later than that of the member: ``stale``.
    """
    current = group.current(member_id)
    if epoch > current.epoch:
        raise stale(f"{printable(member_id)} sent epoch {epoch}, the group has it at {current.epoch}")
    held = current.held

    def check(topic: str, partition: int) -> int:
        if epoch == current.epoch:
            return 0
        metadata = group.topics.get(topic)
        assigned = held.get(TopicPartition(metadata.topic_id, partition)) if metadata is not None else None
        if assigned is not None and 0 <= assigned <= epoch:
            return 0
        return stale.code

    return check


def fetch(group: ConsumerGroupState, request: OffsetFetchRequest, topics: Topics) -> Outcome[OffsetFetchResponse]:
    """Fetch offsets; a sender that names itself as a member must be one, at its current epoch.

    Raises:
        UnknownMemberId, StaleMemberEpoch: it is not.
    """
    for asked in request.groups[:1]:
        if asked.member_id is not None or asked.member_epoch >= 0:
            member_id = asked.member_id or ""
            _check_member(group, member_id)
            current = group.current(member_id)
            if asked.member_epoch != current.epoch:
                raise StaleMemberEpoch(
                    f"{printable(member_id)} sent epoch {asked.member_epoch}, the group has it at {current.epoch}"
                )
    return Outcome(response=offsets.fetch(group.offsets, request, topics))


def _check_member(group: ConsumerGroupState, member_id: str) -> None:
    if member_id not in group.members:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; the group has no such member")


# --------------------------------------------------------------------------------------------------
# Deletion of a group without members, with its offsets.


def delete_group(draft: ConsumerDraft) -> Outcome[DeleteResponse]:
    """Remove every record of the group.

    Raises:
        GroupIdNotFound: there is no such group.
        NonEmptyGroup: it has members.
    """
    group = draft.group
    check_deletable(group)
    for tombstone in (*group.offsets.tombstones(), *remains(group), Tombstone(Key(Kind.GROUP, group.group_id))):
        draft.write(tombstone)
    return draft.outcome(DeleteResponse(results=(DeletedGroup(group_id=group.group_id),)))


def remains(group: ConsumerGroupState) -> tuple[Tombstone, ...]:
    """The records that remove what a group without members has besides its offsets and its ``GroupRecord``."""
    names = [
        *((Kind.CONSUMER_REGEX, regex) for regex in sorted(group.regexes)),
        *((Kind.CONSUMER_TARGET_MEMBER, member_id) for member_id in sorted(group.targets)),
        *((kind, "") for kind in (Kind.CONSUMER_TOPICS, Kind.COMPUTATION, Kind.TARGET)),
    ]
    return tuple(Tombstone(Key(kind, group.group_id, name)) for kind, name in names)

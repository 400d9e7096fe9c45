"""Commit and fetch of a consumer group's offsets, fenced by the member epoch: OC-01 to OC-07.

Source: KIP-848, "OffsetCommit API" and "OffsetFetch API"; KIP-1251; Kafka's ``ConsumerGroup.validateOffsetCommit``.
"""

from __future__ import annotations

from ...errors import GroupIdNotFound, IllegalGeneration, StaleMemberEpoch, UnknownMemberId, UnsupportedVersion
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
from ...protocol.units import TopicPartition, printable
from ..kernel.outcome import Outcome
from ..offsets import rules
from ..offsets.settings import OffsetSettings
from ..offsets.state import Topics
from .draft import Draft
from .state import ConsumerGroup


def commit(
    group: ConsumerGroup, request: OffsetCommitRequest, now_ms: int, topics: Topics, settings: OffsetSettings
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
    if (unknown := rules.commits_nothing(request, topics)) is not None:
        return Outcome(response=unknown)
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and not group.members:
        response, records = rules.commit(request, _any_partition, now_ms, topics, group.offsets, settings)
        return Outcome(response=response, records=records)
    _check_member(group, request.member_id)
    is_classic = group.members[request.member_id].uses_classic_protocol
    if request.lacks_member_epochs and not is_classic:
        raise UnsupportedVersion(f"{printable(request.member_id)} must commit with OffsetCommit v9 or later")
    check = _check_of(group, request.member_id, epoch, IllegalGeneration if is_classic else StaleMemberEpoch)
    response, records = rules.commit(request, check, now_ms, topics, group.offsets, settings)
    return Outcome(response=response, records=records)


def commit_in_transaction(
    group: ConsumerGroup, commit: CommitInTransaction, now_ms: int, topics: Topics, settings: OffsetSettings
) -> Outcome[TxnOffsetCommitResponse]:
    """Commit offsets with a transaction.

    Raises:
        UnknownMemberId: the sender is not a member, and the group has members or the sender names a member epoch.
        IllegalGeneration: the member epoch is later than that of the member.
    """
    request = commit.request
    check: rules.Check = _any_partition
    if request.generation_id >= 0 or group.members:
        _check_member(group, request.member_id)
        check = _check_of(group, request.member_id, request.generation_id, IllegalGeneration)
    response, records = rules.commit_in_transaction(commit, check, now_ms, topics, group.offsets, settings)
    return Outcome(response=response, records=records)


def delete(draft: Draft, request: OffsetDeleteRequest, topics: Topics) -> Outcome[OffsetDeleteResponse]:
    """Delete offsets of topics that no member is subscribed to.

    Raises:
        GroupIdNotFound: there is no such group.
    """
    group = draft.group
    if not group.exists:
        raise GroupIdNotFound(f"GroupId: got {printable(group.group_id)!r}; there is no such group")
    response, records = rules.delete(group.offsets, request, topics, draft.is_subscribed)
    return Outcome(response=response, records=records)


def _any_partition(topic: str, partition: int) -> int:
    return 0


def _check_of(
    group: ConsumerGroup, member_id: str, epoch: int, stale: type[IllegalGeneration | StaleMemberEpoch]
) -> rules.Check:
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


def fetch(group: ConsumerGroup, request: OffsetFetchRequest, topics: Topics) -> Outcome[OffsetFetchResponse]:
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
    return Outcome(response=rules.fetch(group.offsets, request, topics))


def _check_member(group: ConsumerGroup, member_id: str) -> None:
    if member_id not in group.members:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; the group has no such member")

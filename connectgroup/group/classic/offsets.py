"""Commit and fetch of a classic group's offsets, fenced by the generation (OC-06, OC-07).

Source: Kafka's ``ClassicGroup.validateOffsetCommit`` and ``validateOffsetFetch``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...errors import (
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    NonEmptyGroup,
    RebalanceInProgress,
    UnknownMemberId,
)
from ...protocol.messages.api import Response
from ...protocol.messages.offsets import (
    CommitInTransaction,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from ...protocol.records.classic import ClassicState
from ...protocol.records.connect import Record
from ...protocol.units import printable
from ..kernel.outcome import Outcome
from ..offsets import rules
from .join import member_error
from .step import Step

CONSUMERS: Final = "consumer"
"""The protocol type of members that read topics."""


def commit(step: Step, request: OffsetCommitRequest) -> Outcome[Response | None]:
    """Commit offsets. A sender without a generation may commit if the group has no members; it creates the group.

    Raises:
        GroupIdNotFound, IllegalGeneration, RebalanceInProgress, UnknownMemberId, FencedInstanceId: nothing is
            committed.
    """
    if (unknown := rules.commits_nothing(request, step.topics)) is not None:
        return step.outcome(unknown)
    group, generation = step.group, request.generation_id_or_member_epoch
    if generation < 0 and not group.members:
        step.create()
    else:
        _check_member(step, request)
        if not group.is_generation_of(request.member_id, generation):
            raise IllegalGeneration(f"generation {generation}; the group is at {group.generation}")
        if group.state is ClassicState.COMPLETING_REBALANCE:
            raise RebalanceInProgress("the leader has not assigned yet")
        step.arm_session(request.member_id)
    response, records = rules.commit(
        request, lambda topic, partition: 0, step.now_ms, step.topics, group.offsets, step.settings.offsets
    )
    for record in records:
        step.write(record)
    return step.outcome(response)


def commit_in_transaction(step: Step, commit: CommitInTransaction) -> Outcome[Response | None]:
    """Commit offsets with a transaction. A sender that does not say which member it is may commit at any time.

    Raises:
        UnknownMemberId, FencedInstanceId, IllegalGeneration: nothing is committed.

    Source: Kafka's ``ClassicGroup.validateOffsetCommit``.
    """
    group, request = step.group, commit.request
    generation = request.generation_id
    if generation < 0 and not group.members:
        step.create()
    elif generation >= 0 or request.member_id or request.group_instance_id is not None:
        if not group.exists:
            raise IllegalGeneration(f"GroupId: got {printable(group.group_id)!r}; there is no such group")
        _check_member(step, request)
        if not group.is_generation_of(request.member_id, generation):
            raise IllegalGeneration(f"generation {generation}; the group is at {group.generation}")
    response, records = rules.commit_in_transaction(
        commit, lambda topic, partition: 0, step.now_ms, step.topics, group.offsets, step.settings.offsets
    )
    for record in records:
        step.write(record)
    return step.outcome(response)


def delete(step: Step, request: OffsetDeleteRequest, is_subscribed: Callable[[str], bool]) -> Outcome[Response | None]:
    """Delete offsets.

    Raises:
        GroupIdNotFound: there is no such group.
        NonEmptyGroup: it has members whose subscriptions are not known.
    """
    group, name = step.group, printable(step.group.group_id)
    if not group.exists:
        raise GroupIdNotFound(f"GroupId: got {name!r}; there is no such group")
    if group.members and group.record.protocol_type != CONSUMERS:
        raise NonEmptyGroup(f"group {name} has {len(group.members)} members; allowed: a group without members")
    response, records = rules.delete(group.offsets, request, step.topics, is_subscribed)
    for record in records:
        step.write(record)
    return step.outcome(response)


def expire(step: Step, is_subscribed: Callable[[str], bool]) -> tuple[Record, ...]:
    """The records that remove offsets after the retention time: from when the last member left, or from the commit.

    The offsets of members that are rebalancing, or whose subscriptions are not known, do not expire.

    Source: Kafka's ``ClassicGroup.offsetExpirationCondition``.
    """
    group = step.group
    empty_ms = group.record.since_ms if group.record.protocol_type and not group.members else 0
    if group.members and (group.record.protocol_type != CONSUMERS or group.state is not ClassicState.STABLE):
        return ()
    before_ms = step.now_ms - step.settings.offsets.retention_ms
    return rules.expired(group.offsets, is_subscribed, lambda record: empty_ms or record.at_ms, before_ms)


def _check_member(step: Step, request: OffsetCommitRequest | TxnOffsetCommitRequest) -> None:
    group, member_id = step.group, request.member_id
    if not group.exists:
        lacks = isinstance(request, OffsetCommitRequest) and request.lacks_member_epochs
        error = IllegalGeneration if lacks else GroupIdNotFound
        raise error(f"GroupId: got {printable(group.group_id)!r}; there is no such group")
    code = member_error(group, member_id, request.group_instance_id)
    if code == FencedInstanceId.code:
        raise FencedInstanceId(f"GroupInstanceId: {printable(request.group_instance_id)!r} is in use")
    if code:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; the group has no such member")


def fetch(step: Step, request: OffsetFetchRequest) -> Outcome[Response | None]:
    """Fetch offsets: of any sender."""
    return step.outcome(rules.fetch(step.group.offsets, request, step.topics))

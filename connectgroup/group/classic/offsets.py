"""Commit and fetch of a classic group's offsets, fenced by the generation (OC-06, OC-07).

Source: Kafka's ``ClassicGroup.validateOffsetCommit`` and ``validateOffsetFetch``.
"""

from __future__ import annotations

from ...errors import FencedInstanceId, GroupIdNotFound, IllegalGeneration, RebalanceInProgress, UnknownMemberId
from ...protocol.messages.api import Response
from ...protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from ...protocol.records.classic import ClassicState
from ...protocol.units import printable
from ..kernel.outcome import Outcome
from ..offsets import rules
from .join import member_error
from .step import Step


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
    response, records = rules.commit(request, lambda topic, partition: 0, step.now_ms, step.topics)
    for record in records:
        step.write(record)
    return step.outcome(response)


def _check_member(step: Step, request: OffsetCommitRequest) -> None:
    group, member_id = step.group, request.member_id
    if not group.exists:
        error = IllegalGeneration if request.lacks_member_epochs else GroupIdNotFound
        raise error(f"GroupId: got {printable(group.group_id)!r}; there is no such group")
    code = member_error(group, member_id, request.group_instance_id)
    if code == FencedInstanceId.code:
        raise FencedInstanceId(f"GroupInstanceId: {printable(request.group_instance_id)!r} is in use")
    if code:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; the group has no such member")


def fetch(step: Step, request: OffsetFetchRequest) -> Outcome[Response | None]:
    """Fetch offsets: of any sender."""
    return step.outcome(rules.fetch(step.group.offsets, request, step.topics))

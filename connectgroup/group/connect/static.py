"""Static members: a name that outlives a process, so that a worker that is bounced finds its work where it left it.

A member that joins with an instance id bears that name. Leaving with epoch -2 it says: everything of mine has
stopped, and I come back. Until its session is over its work waits for it, no epoch changes and nobody computes. Whoever
joins next under that name takes its place, whatever its member id.

Source: KIP-345; KIP-848 as Kafka shipped it (``ConsumerGroup.staticMember``, epoch -2); scenarios ST-01..ST-08, CN-12.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import FencedInstanceId, UnknownMemberId, UnreleasedInstanceId
from ...protocol.messages.heartbeat import HeartbeatRequest
from ...protocol.records.connect import MemberRecord, MemberState
from ...protocol.units import STATIC_LEAVE_EPOCH, printable
from ..kernel.current import Current
from .overlay import Draft
from .state import NO_TARGET, Group


def check_bearer(group: Group, request: HeartbeatRequest) -> None:
    """A member that names an instance must be the one that bears it.

    Raises:
        UnknownMemberId: nobody bears that name (ST-06).
        FencedInstanceId: another member bears it now (ST-05).
    """
    if request.instance_id is None:
        return
    bearer = group.instances.get(request.instance_id)
    if bearer is None:
        raise UnknownMemberId(f"InstanceId: got {printable(request.instance_id)!r}; no member of the group bears it")
    if bearer != request.member_id:
        raise FencedInstanceId(
            f"InstanceId: {printable(request.instance_id)!r} has been taken over by member {printable(bearer)}"
        )


def away_bearer(group: Group, request: HeartbeatRequest) -> MemberRecord | None:
    """The member that left for a while under the name with which this one joins, if it is another one.

    Raises:
        UnreleasedInstanceId: the bearer has not left (ST-04). If it is dead, its session will tell.
    """
    bearer = group.instances.get(request.instance_id) if request.instance_id is not None else None
    if bearer is None or bearer == request.member_id:
        return None
    if not group.current(bearer).away:
        raise UnreleasedInstanceId(
            f"InstanceId: {printable(request.instance_id)!r} is in use: member {printable(bearer)} has not left"
        )
    return group.members[bearer]


def take_place(draft: Draft, former: MemberRecord, member_id: str) -> None:
    """Give a new member the share of the one whose name it bears; that one is no more (ST-02).

    No epoch changes: nothing is assigned otherwise than before. The units come under the target's epoch, so a token
    may be given a second time. That is sound here and nowhere else: -2 is said when everything has stopped.
    """
    share = draft.target(former.member_id)
    draft.forget_member(former.member_id)
    if share != NO_TARGET:
        draft.set_share(member_id, share)


def go_away(draft: Draft, member_id: str) -> None:
    """One record: the member runs nothing, and what it is to keep waits for it (ST-01)."""
    current, share = draft.current(member_id), draft.target(member_id)
    draft.set_current(
        member_id,
        Current(
            epoch=STATIC_LEAVE_EPOCH,
            previous_epoch=STATIC_LEAVE_EPOCH,
            state=MemberState.STABLE,
            assigned={unit: 0 for unit in current.assigned if unit in share.units},
        ),
    )


def release_for_others(draft: Draft, member_id: str) -> None:
    """Free what a new target takes from a member that is away: nothing of it runs, so nobody needs to acknowledge."""
    current, share = draft.current(member_id), draft.target(member_id)
    kept = {unit: epoch for unit, epoch in current.assigned.items() if unit in share.units}
    if current.away and kept != current.assigned:
        draft.set_current(member_id, replace(current, assigned=kept))

"""One step of a classic group: collects records, timers and responses, and applies each record at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ...protocol.messages.api import Response
from ...protocol.messages.classic import JoinedMember, JoinGroupResponse, SyncGroupResponse
from ...protocol.records.base import Key, Kind, Tombstone
from ...protocol.records.connect import GroupRecord, Record
from ...protocol.records.consumer import ClassicMemberRecord, ClassicState
from ..kernel.outcome import CancelTimer, Outcome, SetTimer, Timer, TimerKey, TimerKind
from ..offsets import Topics
from .state import ClassicGroupState, ClassicSettings

GROUP_TYPE = "classic"


@dataclass(slots=True)
class ClassicStep:
    """The step of one input.

    Attributes:
        now_ms: the coordinator's wall clock.
        topics: all topics of the cluster; ``None``: they are not known.
        replies: responses to parked requests, by member id.
    """

    group: ClassicGroupState
    settings: ClassicSettings
    now_ms: int
    topics: Topics = None
    records: list[Record] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    replies: dict[str, Response] = field(default_factory=dict)

    def outcome(self, response: Response | None) -> Outcome[Response | None]:
        """The outcome of an input that is not parked."""
        return Outcome(
            response=response,
            records=tuple(self.records),
            timers=tuple(self.timers),
            parked_responses=dict(self.replies),
        )

    def parked(self, member_id: str) -> Outcome[Response | None]:
        """The outcome of a request of a member that waits for others: its response if the step has one already."""
        response = self.replies.pop(member_id, None)
        return replace(self.outcome(response), parks=response is None, sender=member_id)

    # ---- records

    def write(self, record: Record) -> None:
        """Add a record, and apply it to the group."""
        self.records.append(record)
        self.group.apply(record)

    def write_group(self, **changes: Any) -> None:
        """Change attributes of the ``ClassicGroupRecord``."""
        group = self.group
        if changes.get("state", group.state) is not group.state:
            changes["since_ms"] = self.now_ms
        record = replace(group.record, group_id=group.group_id, **changes)
        if record != group.record:
            self.write(record)

    def write_generation(self, generation: int) -> None:
        """Write the ``GroupRecord``; the first one creates the group."""
        created_ms = self.group.created_ms if self.group.exists else self.now_ms
        record = GroupRecord(
            group_id=self.group.group_id, epoch=generation, group_type=GROUP_TYPE, created_ms=created_ms
        )
        self.write(record)

    def create(self) -> None:
        """Create the group if it does not exist."""
        if not self.group.exists:
            self.write_generation(0)
            self.write_group(state=ClassicState.EMPTY)

    def delete(self) -> None:
        """Remove the group without members from the log; member ids that are pending are forgotten."""
        group = self.group
        for member_id in sorted(group.pending):
            self.cancel_session(member_id)
        group.pending.clear()
        group.initial_left_ms = -1
        self.cancel_rebalance()
        for tombstone in group.offsets.tombstones():
            self.write(tombstone)
        self.write(Tombstone(Key(Kind.CLASSIC_GROUP, group.group_id)))
        self.write(Tombstone(Key(Kind.GROUP, group.group_id)))

    def write_member(self, record: ClassicMemberRecord) -> None:
        """Add or change a member."""
        if self.group.members.get(record.member_id) != record:
            self.write(record)

    def remove(self, member_id: str, reply: Response | None = None) -> None:
        """Remove a member; ``reply`` is the response to its parked request, if it has one."""
        group = self.group
        if reply is not None and (member_id in group.joining or member_id in group.syncing):
            self.replies[member_id] = reply
        for members in (group.joining, group.new, group.syncing, group.synced):
            members.discard(member_id)
        self.cancel_session(member_id)
        self.write(Tombstone(Key(Kind.CLASSIC_MEMBER, group.group_id, member_id)))

    # ---- timers

    def arm_session(self, member_id: str, after_ms: int | None = None) -> None:
        """Arm the session timer of a member; ``after_ms`` is its session timeout by default."""
        after_ms = self.group.members[member_id].session_timeout_ms if after_ms is None else after_ms
        self.timers.append(SetTimer(session_key(self.group, member_id), after_ms))

    def arm_pending(self, member_id: str, after_ms: int) -> None:
        """Arm the timer after which a member id that has not joined is forgotten."""
        self.timers.append(SetTimer(session_key(self.group, member_id), after_ms))

    def cancel_session(self, member_id: str) -> None:
        self.timers.append(CancelTimer(session_key(self.group, member_id)))

    def arm_rebalance(self, after_ms: int) -> None:
        """Arm the timer that ends the current phase of the rebalance."""
        self.timers.append(SetTimer(rebalance_key(self.group), after_ms))

    def cancel_rebalance(self) -> None:
        self.timers.append(CancelTimer(rebalance_key(self.group)))


def session_key(group: ClassicGroupState, member_id: str) -> TimerKey:
    """The session timer of a member, or of a member id that is pending."""
    return TimerKey(TimerKind.SESSION, group.group_id, member_id)


def rebalance_key(group: ClassicGroupState) -> TimerKey:
    """The timer of the current phase: members join, or members sync."""
    phase = 2 * group.generation + (group.state is not ClassicState.PREPARING_REBALANCE)
    return TimerKey(TimerKind.REBALANCE, group.group_id, belongs_to=phase)


def join_response(group: ClassicGroupState, member_id: str, *, lists_members: bool) -> JoinGroupResponse:
    """The current generation, as sent to one member; the leader also receives the list of all members."""
    members = tuple(
        JoinedMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=offer.metadata,
            metadata_version=offer.metadata_version,
            metadata_reason=offer.metadata_reason,
        )
        for member in (group.members.values() if lists_members else ())
        for offer in (group.offer(member),)
    )
    return JoinGroupResponse(
        error_code=0,
        generation_id=group.generation,
        protocol_type=group.record.protocol_type,
        protocol_name=group.record.protocol_name,
        leader=group.record.leader,
        member_id=member_id,
        members=members,
    )


def sync_response(group: ClassicGroupState, member_id: str) -> SyncGroupResponse:
    """The current assignment of a member."""
    return SyncGroupResponse(
        error_code=0,
        protocol_type=group.record.protocol_type,
        protocol_name=group.record.protocol_name,
        assignment=(member := group.members[member_id]).assignment,
        assignment_version=member.assignment_version,
        assignment_error=member.assignment_error,
    )

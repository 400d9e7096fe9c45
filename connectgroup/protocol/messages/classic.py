"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: Kafka's classic group protocol.

The members of a classic group compute the assignment themselves: the leader receives the metadata of all members with
its JoinGroup response and sends their assignments with SyncGroup. The coordinator serves these messages, and
``connectgroup.consumer`` sends them. Error codes are Kafka's numbers.

The data that consumers exchange in them are here, too; ``wire.embedded`` has their bytes.

Source: Kafka's protocol guide; KIP-345 (static members), KIP-394 (member id), KIP-429 (assignor version), KIP-814.
Kafka's ``ConsumerProtocolSubscription`` and ``ConsumerProtocolAssignment``; KIP-792, KIP-881.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..units import Partitions
from .common import LoggerLevel

NO_GENERATION = -1

WORKER_PROTOCOL_TYPE: Final = "connect"
"""The protocol type of Kafka Connect's workers and of ours."""
WORKER_PROTOCOL: Final = "connectgroup"
"""The protocol of our workers; its metadata and assignments are those of ``wire.embedded``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedProtocol:
    """An assignor that a member supports.

    Attributes:
        metadata: the member's metadata for this assignor, opaque to the coordinator.
        assignor_version: *(tagged)* the highest version of the assignor that the member supports, -1 if unknown. Of the
            members with the highest version, the first one leads (KIP-429). A field of ours; from version 6 on.
        metadata_version: *(tagged)* the version of the user data in ``metadata``, -1 if unknown: for the leader's
            assignor (``JoinedMember``). A field of ours; from version 6 on.
        metadata_reason: *(tagged)* the reason that goes with the metadata, 0 if there is none. As ``metadata_version``.
    """

    name: str
    metadata: bytes
    assignor_version: int = -1
    metadata_version: int = -1
    metadata_reason: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest:
    """Join or rejoin the group; the response is sent when all members of the rebalance have joined.

    Attributes:
        member_id: empty the first time.
        group_instance_id: the static member's instance id (KIP-345).
        protocols: in order of preference.
        reason: informational (KIP-800); from version 8 on.
        requires_member_id: whether a new dynamic member must join again with the member id of the response (KIP-394);
            from version 4 on. Not on the wire: the decoder sets it from the version, as the next one.
        skips_assignment: whether the member supports ``JoinGroupResponse.skip_assignment``; from version 9 on.
    """

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str
    protocols: tuple[OfferedProtocol, ...]
    reason: str | None = None
    requires_member_id: bool = False
    skips_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member, as sent to the leader.

    Attributes:
        metadata_version: *(tagged)* as in its ``OfferedProtocol``. A field of ours; from version 6 on.
        metadata_reason: *(tagged)* the same.
    """

    member_id: str
    group_instance_id: str | None = None
    metadata: bytes
    metadata_version: int = -1
    metadata_reason: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    """A new generation of the group.

    Attributes:
        protocol_name: the assignor that all members support and most prefer; empty or null in an error.
        leader: the member with this member id computes the assignment and receives all ``members``.
        skip_assignment: the leader must not assign (KIP-814); from version 9 on.
        member_id: with error 79 (MEMBER_ID_REQUIRED) the id for the retry (KIP-394).
        error_message: *(tagged)* one line, null if there is none. A field of ours; from version 6 on.
        coordinator_epoch: *(tagged)* as in ``HeartbeatResponse``, to workers; -1 for others. A field of ours; from
            version 6 on.
    """

    throttle_time_ms: int = 0
    error_code: int
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = ""
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    error_message: str | None = None
    coordinator_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberShare:
    """The assignment of one member.

    Attributes:
        assignment_version: *(tagged)* the version of the user data in ``assignment``, -1 if unknown. A field of ours;
            from version 4 on.
        assignment_error: *(tagged)* the assignor's own error number for this member, 0 if there is none. As
            ``assignment_version``.
    """

    member_id: str
    assignment: bytes
    assignment_version: int = -1
    assignment_error: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest:
    """From the leader: the assignment of all members. From the others: a request for their own assignment."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[MemberShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    """The receiver's assignment, once the leader has sent it.

    Attributes:
        coordinator_epoch: *(tagged)* as in ``HeartbeatResponse``, to workers; -1 for others. A field of ours; from
            version 4 on.
        assignment_version: *(tagged)* as in the leader's ``MemberShare``. A field of ours; from version 4 on.
        assignment_error: *(tagged)* the same.
    """

    throttle_time_ms: int = 0
    error_code: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""
    coordinator_epoch: int = -1
    assignment_version: int = -1
    assignment_error: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHeartbeatRequest:
    """Keep the membership in this generation alive.

    Attributes:
        logger_stamp: *(tagged)* as in ``HeartbeatRequest``, of workers; 0 for others. A field of ours; from version 4
            on.
    """

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    logger_stamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHeartbeatResponse:
    """Success, or an error: error 27 (REBALANCE_IN_PROGRESS) requests that the member rejoin.

    Attributes:
        coordinator_epoch: *(tagged)* as in ``HeartbeatResponse``, to workers; -1 for others. A field of ours; from
            version 4 on.
        logger_levels: *(tagged)* as in ``HeartbeatResponse``, to workers. A field of ours; from version 4 on.
    """

    throttle_time_ms: int = 0
    error_code: int
    coordinator_epoch: int = -1
    logger_levels: tuple[LoggerLevel, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """A member that leaves.

    Attributes:
        metadata: *(tagged)* of our workers: the last heartbeat, which says how the worker leaves
            (``wire.embedded``). Empty for other clients. A field of ours, from version 4 on.
    """

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest:
    """Remove these members; do not wait for their session timeouts.

    ``member_id`` up to version 2, ``members`` from version 3 on.
    """

    group_id: str
    member_id: str = ""
    members: tuple[LeavingMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftMember:
    """Whether one of the members was removed."""

    member_id: str
    group_instance_id: str | None
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    """The result for each member."""

    throttle_time_ms: int = 0
    error_code: int
    members: tuple[LeftMember, ...] = ()


GroupRequest = JoinGroupRequest | SyncGroupRequest | GroupHeartbeatRequest | LeaveGroupRequest

UNKNOWN_GENERATION: Final = -1
"""Generation of a member without an assignment, or of one too old to send it; older than any other (KIP-792)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The topics a member subscribes to, and the partitions it owns.

    Attributes:
        topics: names of the topics from which it may be assigned partitions.
        user_data: assignor user data; None is null, which differs from empty bytes.
        owned: partitions it owns while it joins; empty if it revoked everything first (EAGER). From version 1.
        generation: of the rebalance that assigned ``owned``. From version 2.
        rack: the member's rack, None if it has none; an empty name is the same as none. From version 3.
    """

    topics: frozenset[str]
    user_data: bytes | None = None
    owned: Partitions = frozenset()
    generation: int = UNKNOWN_GENERATION
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedAssignment:
    """The assignment that the leader sends to a member.

    Attributes:
        partitions: the complete assignment, not a difference.
        user_data: assignor user data; None is null.
    """

    partitions: Partitions = frozenset()
    user_data: bytes | None = None

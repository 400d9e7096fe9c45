"""Members of a connect group that use the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

Connectors are records of the group, whatever protocol its members use. So a group of our workers is of type
``connect`` from its first member or connector on. A worker is upgraded or rolled back by a restart with the other
protocol; the group does not change. The generation of a member of the classic protocol is its member epoch:

- JoinGroup is its heartbeat. Its metadata is a ConnectGroupHeartbeat request, with the units that the member owns.
- SyncGroup returns the response to that heartbeat: the assignment, or the request to compute one. A member that is
  asked to compute leads (``JoinGroupResponse.leader``); it sends Prepare and Install, as any other member.
- Heartbeat changes nothing. It returns REBALANCE_IN_PROGRESS if a heartbeat of the connect protocol would.
- LeaveGroup is its last heartbeat.

So the rules for members of both protocols are those of ``heartbeat`` and ``members``.

Source: "Connect on the new protocol", "Migration To the New Protocol"; KIP-848, "Migration".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from ...errors import (
    ComputeAssignment,
    GroupError,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidRequest,
    RebalanceInProgress,
    UnknownMemberId,
    WireError,
)
from ...protocol.messages.api import Response
from ...protocol.messages.classic import (
    WORKER_PROTOCOL,
    WORKER_PROTOCOL_TYPE,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ...protocol.messages.common import ConnectorTasks
from ...protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ...protocol.records.connect import MemberRecord, Record
from ...protocol.units import JOIN_EPOCH, LEAVE_EPOCH, printable
from ..kernel.computation import under_way
from ..kernel.members import check_sender
from ..kernel.outcome import Effect, Outcome, Timer, session
from ..registry import ClientInfo
from .heartbeat import heartbeat as connect_heartbeat
from .members import check_process, sender_of
from .settings import GroupSettings
from .state import ConnectDraft, ConnectGroupState

DecideHeartbeat = Callable[[HeartbeatRequest, ClientInfo], Outcome[Response | None]]
"""Decides a heartbeat of the connect protocol, and applies its records."""


class WorkerFormat(Protocol):
    """The bytes in JoinGroup, SyncGroup and LeaveGroup of a worker: ``wire.embedded``."""

    def decode_request(self, data: bytes, /) -> HeartbeatRequest: ...
    def encode_response(self, response: HeartbeatResponse, /) -> bytes: ...


class WorkerRules(NamedTuple):
    """What decides the requests: settings, the format of what workers exchange, the step of the connect protocol."""

    settings: GroupSettings
    worker_format: WorkerFormat
    step: DecideHeartbeat


def metadata_of(request: object) -> bytes | None:
    """The metadata of a JoinGroup or LeaveGroup of one of our workers; ``None`` for any other request."""
    match request:
        case JoinGroupRequest(protocol_type=protocol_type) if protocol_type == WORKER_PROTOCOL_TYPE:
            return next((each.metadata for each in request.protocols if each.name == WORKER_PROTOCOL), None)
        case LeaveGroupRequest(members=(LeavingMember(metadata=metadata),)):
            return metadata or None
        case _:
            return None


def heartbeat_of(worker_format: WorkerFormat, request: JoinGroupRequest | LeaveGroupRequest) -> HeartbeatRequest:
    """The heartbeat that a JoinGroup or LeaveGroup of a worker is.

    Raises:
        InconsistentGroupProtocol: the sender is no worker of this project.
        InvalidRequest: its metadata cannot be read, or is not of that request.
    """
    metadata = metadata_of(request)
    if metadata is None:
        raise InconsistentGroupProtocol(
            f"group {printable(request.group_id)} is of type 'connect': its members of the classic protocol have "
            f"protocol type {WORKER_PROTOCOL_TYPE!r} and the protocol {WORKER_PROTOCOL!r}"
        )
    try:
        beat = worker_format.decode_request(metadata)
    except WireError as error:
        raise InvalidRequest(f"Metadata: {error}") from error
    leaves = isinstance(request, LeaveGroupRequest)
    if leaves != (beat.member_epoch < JOIN_EPOCH) or (not leaves and beat.owned is None):
        raise InvalidRequest(
            f"Metadata: got MemberEpoch {beat.member_epoch}; allowed: -1 or -2 in LeaveGroup, 0 or more with "
            "ConnectorsAndTasks in JoinGroup"
        )
    identity = request.members[0] if isinstance(request, LeaveGroupRequest) else request
    return replace(
        beat,
        group_id=request.group_id,
        member_id=identity.member_id or beat.member_id,
        instance_id=identity.group_instance_id,
        classic=True,
    )


def decide(
    group: ConnectGroupState, request: GroupRequest, now_ms: int, client: ClientInfo, rules: WorkerRules
) -> Outcome[Response | None]:
    """Decide a request of the classic protocol, and apply its records.

    Raises:
        GroupError: the request is rejected; no state changes.
    """
    match request:
        case JoinGroupRequest():
            return _join(group, heartbeat_of(rules.worker_format, request), client, rules.step)
        case SyncGroupRequest():
            return _sync(group, request, client, rules)
        case GroupHeartbeatRequest():
            return _heartbeat(group, request, now_ms, client, rules)
        case LeaveGroupRequest():
            return _leave(group, request, client, rules)


def _join(
    group: ConnectGroupState, beat: HeartbeatRequest, client: ClientInfo, step: DecideHeartbeat
) -> Outcome[Response | None]:
    outcome = step(beat, client)
    answer = outcome.response
    assert isinstance(answer, HeartbeatResponse)
    member_id = beat.member_id
    if answer.error_code not in (0, ComputeAssignment.code):
        refused = JoinGroupResponse(
            error_code=answer.error_code, member_id=member_id, error_message=answer.error_message
        )
        return replace(outcome, response=refused)
    group.sync_responses[member_id] = answer
    computing = under_way(group)
    response = JoinGroupResponse(
        error_code=0,
        generation_id=answer.member_epoch,
        protocol_type=WORKER_PROTOCOL_TYPE,
        protocol_name=WORKER_PROTOCOL,
        leader=computing.member_id if computing is not None else group.computed_by,
        member_id=member_id,
    )
    return replace(outcome, response=response)


def _sync(
    group: ConnectGroupState, request: SyncGroupRequest, client: ClientInfo, rules: WorkerRules
) -> Outcome[Response | None]:
    """Return the response to the heartbeat in the member's last JoinGroup.

    It is in memory only: after a failover of the coordinator, or if it is of another generation, the member sends
    JoinGroup again. A rejected SyncGroup may be a late one of a dead process: as in Kafka, it does not prove that the
    member is alive.
    """
    member = _sender(group, request, client)
    answer = group.sync_responses.get(member.member_id)
    if answer is None or answer.member_epoch != request.generation_id:
        return Outcome(response=SyncGroupResponse(error_code=RebalanceInProgress.code))
    response = SyncGroupResponse(
        error_code=0,
        protocol_type=WORKER_PROTOCOL_TYPE,
        protocol_name=WORKER_PROTOCOL,
        assignment=rules.worker_format.encode_response(answer),
    )
    return Outcome(
        response=response, timers=(session(group.group_id, member.member_id, rules.settings.session_timeout_ms),)
    )


def _heartbeat(
    group: ConnectGroupState, request: GroupHeartbeatRequest, now_ms: int, client: ClientInfo, rules: WorkerRules
) -> Outcome[Response | None]:
    """Keep the member in the group; request that it join again if the response to its JoinGroup would be new to it."""
    member = _sender(group, request, client)
    epoch = group.current(member.member_id).epoch
    if request.generation_id != epoch:
        raise IllegalGeneration(f"GenerationId: got {request.generation_id}; the member is at epoch {epoch}")
    beat = HeartbeatRequest(
        group_id=group.group_id,
        member_id=member.member_id,
        member_epoch=epoch,
        process_id=member.process_id,
    )
    joins = epoch == JOIN_EPOCH
    if not joins:
        outcome = connect_heartbeat(
            ConnectDraft(group, now_ms), beat, rules.settings, client
        )  # its records are not applied
        joins = bool(outcome.records) or not outcome.parks
    timers = (session(group.group_id, member.member_id, rules.settings.session_timeout_ms),)
    return Outcome(response=GroupHeartbeatResponse(error_code=RebalanceInProgress.code if joins else 0), timers=timers)


def _leave(
    group: ConnectGroupState, request: LeaveGroupRequest, client: ClientInfo, rules: WorkerRules
) -> Outcome[Response | None]:
    """Remove members: the worker that sends the request, or those that an operator names, of whatever principal."""
    operator = client._replace(principal=None)
    records: list[Record] = []
    timers: list[Timer] = []
    effects: list[Effect] = []
    left: list[LeftMember] = []
    for each in request.members or (LeavingMember(member_id=request.member_id),):
        code = 0
        try:
            if each.metadata:
                outcome = rules.step(heartbeat_of(rules.worker_format, request), client)
            else:
                outcome = rules.step(_removal(group, each), operator)
            assert isinstance(outcome.response, HeartbeatResponse)
            code = outcome.response.error_code
            records += outcome.records
            timers += outcome.timers
            effects += outcome.effects
        except GroupError as error:
            code = error.code
        left.append(LeftMember(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code))
    response = LeaveGroupResponse(error_code=0, members=tuple(left))
    if not request.members:
        response = LeaveGroupResponse(error_code=left[0].error_code)
    return Outcome(
        response=response, records=tuple(records), timers=tuple(timers), effects=tuple(dict.fromkeys(effects))
    )


def _removal(group: ConnectGroupState, leaving: LeavingMember) -> HeartbeatRequest:
    """The leave of a member that an operator removes."""
    member_id = leaving.member_id
    if not member_id and leaving.group_instance_id is not None:
        member_id = group.instances.get(leaving.group_instance_id, "")
    check_sender(group, member_id, leaving.group_instance_id)
    return HeartbeatRequest(
        group_id=group.group_id,
        member_id=member_id,
        member_epoch=LEAVE_EPOCH,
        instance_id=leaving.group_instance_id,
        process_id=group.members[member_id].process_id,
        cause=leaving.reason or "was removed by an operator",
    )


def _sender(
    group: ConnectGroupState, request: SyncGroupRequest | GroupHeartbeatRequest, client: ClientInfo
) -> MemberRecord:
    """The member of the classic protocol that sends a request (MG-12).

    Raises:
        UnknownMemberId: there is no such member, or it uses the connect protocol.
        FencedInstanceId: another member has its instance id now, or the member belongs to another principal.
    """
    check_sender(group, request.member_id, request.group_instance_id)
    member = group.members[request.member_id]
    check_process(group, request.member_id, sender_of(member, client))  # the request itself has no process id
    if not member.classic or group.current(member.member_id).temporarily_left:
        raise UnknownMemberId(
            f"MemberId: got {printable(request.member_id)!r}; it is no member of the classic protocol"
        )
    return member


# --------------------------------------------------------------------------------------------------
# A connect group in the form of a classic group: the metadata and assignments of Kafka Connect's workers.
#
# Source: Kafka's ``IncrementalCooperativeConnectProtocol`` (version 1 of both structures).


PROTOCOL_TYPE: Final = "connect"

_VERSION: Final = 1
_NO_OFFSET: Final = -1
"""There is no topic of configurations, and no offset in it."""

STATES: Final = {"Assigning": "PreparingRebalance", "Reconciling": "CompletingRebalance"}
"""The states of a connect group in terms of a classic one; the others have the same names."""


def metadata(url: str) -> bytes:
    """The metadata of a worker: version, URL, offset of the configurations, no assignment."""
    return struct.pack(">h", _VERSION) + _text(url) + struct.pack(">qi", _NO_OFFSET, -1)


def assignment(assigned: Iterable[ConnectorTasks], revoked: Iterable[ConnectorTasks]) -> bytes:
    """The assignment of a worker: version, error, leader, URL, offset, assigned and revoked units, delay."""
    head = struct.pack(">hh", _VERSION, 0) + _text("") + _text("") + struct.pack(">q", _NO_OFFSET)
    return head + _units(assigned) + _units(revoked) + struct.pack(">i", 0)


def _units(groups: Iterable[ConnectorTasks]) -> bytes:
    parts = []
    for group in groups:
        tasks = [*([-1] if group.owns_connector else []), *group.tasks]
        parts.append(_text(group.connector) + struct.pack(f">i{len(tasks)}i", len(tasks), *tasks))
    return struct.pack(">i", len(parts)) + b"".join(parts)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data

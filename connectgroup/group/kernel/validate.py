"""Request validation that connect and consumer groups have in common; it precedes all other processing.

All functions raise ``InvalidRequest`` with field, value and what is allowed; ``check_group_id``: ``InvalidGroupId``.

Source: the "Request Validation" sections of KIP-848 and of "Connect on the new protocol".
"""

from __future__ import annotations

from ...errors import InvalidGroupId, InvalidRequest
from ...protocol.messages.assignment import InstallRequest, PrepareRequest
from ...protocol.messages.common import AssignorInfo
from ...protocol.messages.consumer import ConsumerHeartbeatRequest, ConsumerInstallRequest, ConsumerPrepareRequest
from ...protocol.messages.heartbeat import HeartbeatRequest
from ...protocol.units import JOIN_EPOCH, STATIC_LEAVE_EPOCH, name_violation, printable


def refuse(field: str, value: object, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: got {printable(value)!r}; allowed: {allowed}")


def name(field: str, value: str) -> None:
    """Reject a value that is not a valid name (``name_violation``)."""
    allowed = name_violation(value)
    if allowed is not None:
        raise refuse(field, value, allowed)


def check_group_id(value: str) -> None:
    """Validate a group id where the error code is INVALID_GROUP_ID, as Kafka shipped it (RV-01).

    Raises:
        InvalidGroupId: the group id is not a valid name.
    """
    try:
        name("GroupId", value)
    except InvalidRequest as error:
        raise InvalidGroupId(str(error)) from error


def heartbeat(request: HeartbeatRequest | ConsumerHeartbeatRequest, max_rebalance_timeout_ms: int) -> None:
    """The heartbeat of either protocol: identity, epoch, timeout, assignors and wait."""
    name("GroupId", request.group_id)
    joins = request.member_epoch == JOIN_EPOCH
    # In version 0 of ConsumerGroupHeartbeat, the coordinator generates the id of a member that joins with an empty one.
    if request.member_id or not joins or isinstance(request, HeartbeatRequest):
        name("MemberId", request.member_id)
    if request.member_epoch < STATIC_LEAVE_EPOCH:
        raise refuse("MemberEpoch", request.member_epoch, ">= -2")
    if request.instance_id is not None:
        name("InstanceId", request.instance_id)
    elif request.member_epoch == STATIC_LEAVE_EPOCH:
        raise refuse("InstanceId", None, "a group instance id if MemberEpoch is -2")
    timeout_ms = request.rebalance_timeout_ms
    if joins and timeout_ms <= 0:
        raise refuse("RebalanceTimeoutMs", timeout_ms, "> 0 in the first heartbeat")
    if timeout_ms != -1 and not 0 < timeout_ms <= max_rebalance_timeout_ms:
        raise refuse("RebalanceTimeoutMs", timeout_ms, f"1 to {max_rebalance_timeout_ms}, or -1 if unchanged")
    if request.server_assignor is not None and request.client_assignors is not None:
        raise refuse("ServerAssignor", request.server_assignor, "ServerAssignor or ClientAssignors, not both")
    if request.server_assignor is not None:
        name("ServerAssignor", request.server_assignor)
    infos = request.client_assignors or ()
    for info in infos:
        _assignor("Assignor" if isinstance(request, HeartbeatRequest) else "ClientAssignors", info)
    if infos and len({info.name for info in infos}) != len(infos):
        raise refuse("ClientAssignors", ", ".join(info.name for info in infos), "each assignor once")
    if request.max_wait_ms < 0:
        raise refuse("MaxWaitMs", request.max_wait_ms, ">= 0")


def _assignor(field: str, info: AssignorInfo) -> None:
    """The four rules for one entry of ClientAssignors."""
    name(f"{field}.Name", info.name)
    if info.minimum_version < -1:
        raise refuse(f"{field}.MinimumVersion", info.minimum_version, ">= -1")
    if info.maximum_version < 0:
        raise refuse(f"{field}.MaximumVersion", info.maximum_version, ">= 0")
    if info.maximum_version < info.minimum_version:
        raise refuse(f"{field}.MaximumVersion", info.maximum_version, f">= MinimumVersion ({info.minimum_version})")
    if not info.minimum_version <= info.version <= info.maximum_version:
        raise refuse(f"{field}.Version", info.version, f"{info.minimum_version} to {info.maximum_version}")


def computation(request: PrepareRequest | InstallRequest | ConsumerPrepareRequest | ConsumerInstallRequest) -> None:
    """Prepare and Install of either protocol: identity and epochs; not the group id."""
    name("MemberId", request.member_id)
    if request.member_epoch < 0:
        raise refuse("MemberEpoch", request.member_epoch, ">= 0")
    if isinstance(request, InstallRequest | ConsumerInstallRequest) and request.group_epoch < 0:
        raise refuse("GroupEpoch", request.group_epoch, ">= 0")

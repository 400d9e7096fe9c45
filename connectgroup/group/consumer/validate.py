"""Request validation that precedes all other processing: one line of code per sentence of the source.

Source: KIP-848, "Request Validation"; Kafka's ``throwIfConsumerGroupHeartbeatRequestIsInvalid`` (RV-01 to RV-13).
"""

from __future__ import annotations

from ...errors import InvalidGroupId, InvalidRegularExpression, InvalidRequest
from ...protocol.messages.common import AssignorInfo
from ...protocol.messages.consumer import (
    ConsumerHeartbeatRequest,
    ConsumerInstallRequest,
    ConsumerPrepareRequest,
    each_partition,
)
from ...protocol.units import JOIN_EPOCH, STATIC_LEAVE_EPOCH, name_violation, printable
from .settings import ConsumerSettings


def refuse(field: str, value: object, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: got {printable(value)!r}; allowed: {allowed}")


def name(field: str, value: str) -> None:
    """Reject a value that is not a valid name."""
    allowed = name_violation(value)
    if allowed is not None:
        raise refuse(field, value, allowed)


def group_id(value: str) -> None:
    """Validate a group id where the error is INVALID_GROUP_ID: Describe, Prepare and Install (RV-01)."""
    try:
        name("GroupId", value)
    except InvalidRequest as error:
        raise InvalidGroupId(str(error)) from error


def prepare(request: ConsumerPrepareRequest | ConsumerInstallRequest) -> None:
    """ConsumerGroupPrepareAssignment, and what ConsumerGroupInstallAssignment has in common with it."""
    group_id(request.group_id)
    name("MemberId", request.member_id)
    if request.member_epoch < 0:
        raise refuse("MemberEpoch", request.member_epoch, ">= 0")


def install(request: ConsumerInstallRequest) -> None:
    """ConsumerGroupInstallAssignment."""
    prepare(request)
    if request.group_epoch < 0:
        raise refuse("GroupEpoch", request.group_epoch, ">= 0")


def heartbeat(request: ConsumerHeartbeatRequest, settings: ConsumerSettings) -> None:
    """ConsumerGroupHeartbeat: all rules that depend on the request alone."""
    name("GroupId", request.group_id)
    joins = request.member_epoch == JOIN_EPOCH
    # In version 0 the coordinator generates the id of a member that joins with an empty one.
    if request.member_id or not joins:
        name("MemberId", request.member_id)
    if request.member_epoch < STATIC_LEAVE_EPOCH:
        raise refuse("MemberEpoch", request.member_epoch, ">= -2")
    if request.instance_id is not None:
        name("InstanceId", request.instance_id)
    elif request.member_epoch == STATIC_LEAVE_EPOCH:
        raise refuse("InstanceId", None, "a group instance id if MemberEpoch is -2")
    if request.rack_id is not None:
        name("RackId", request.rack_id)
    if joins:
        _join(request)
    timeout_ms, limit_ms = request.rebalance_timeout_ms, settings.max_rebalance_timeout_ms
    if timeout_ms != -1 and not 0 < timeout_ms <= limit_ms:
        raise refuse("RebalanceTimeoutMs", timeout_ms, f"1 to {limit_ms}, or -1 if unchanged")
    for topic in request.subscribed_topic_names or ():
        name("SubscribedTopicNames", topic)
    if request.subscribed_topic_regex:
        allowed = settings.regex_violation(request.subscribed_topic_regex)
        if allowed:
            got = printable(request.subscribed_topic_regex)
            raise InvalidRegularExpression(f"SubscribedTopicRegex: got {got!r}; allowed: {allowed}")
    _assignors(request)
    if request.owned is not None:
        owned = each_partition(request.owned)
        if len(set(owned)) != len(owned):
            raise refuse("TopicPartitions", "a partition twice", "each partition once")
    if request.max_wait_ms < 0:
        raise refuse("MaxWaitMs", request.max_wait_ms, ">= 0")


def _join(request: ConsumerHeartbeatRequest) -> None:
    """The fields that the first heartbeat of a member must have."""
    if request.rebalance_timeout_ms == -1:
        raise refuse("RebalanceTimeoutMs", -1, "> 0 in the first heartbeat")
    if request.owned != ():
        raise refuse("TopicPartitions", "null" if request.owned is None else "partitions", "empty if MemberEpoch is 0")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise refuse("SubscribedTopicNames", None, "topic names or a regular expression in the first heartbeat")


def _assignors(request: ConsumerHeartbeatRequest) -> None:
    if request.server_assignor is not None and request.client_assignors is not None:
        raise refuse("ServerAssignor", request.server_assignor, "ServerAssignor or ClientAssignors, not both")
    if request.server_assignor is not None:
        name("ServerAssignor", request.server_assignor)
    infos = request.client_assignors or ()
    for info in infos:
        assignor(info)
    if len({info.name for info in infos}) != len(infos):
        raise refuse("ClientAssignors", ", ".join(info.name for info in infos), "each assignor once")


def assignor(info: AssignorInfo) -> None:
    """One client-side assignor of a member."""
    name("ClientAssignors.Name", info.name)
    if info.minimum_version < -1:
        raise refuse("ClientAssignors.MinimumVersion", info.minimum_version, ">= -1")
    if info.maximum_version < max(0, info.minimum_version):
        raise refuse("ClientAssignors.MaximumVersion", info.maximum_version, ">= 0 and >= MinimumVersion")
    if not info.minimum_version <= info.version <= info.maximum_version:
        raise refuse("ClientAssignors.Version", info.version, f"{info.minimum_version} to {info.maximum_version}")

"""Detects the rare states in durable records and in responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from connectgroup.group.kernel.computation import COORDINATOR
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.assignment import InstallRequest
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.base import Kind, Tombstone
from connectgroup.protocol.records.connect import (
    ComputationRecord,
    CurrentRecord,
    MemberRecord,
    MemberState,
    RebalanceRecord,
    Record,
    TargetRecord,
)

from .invariants.base import COMPUTE

if TYPE_CHECKING:
    from .base import CoordinatorNode
    from .cluster import Cluster
    from .invariants.base import Batch


def see_record(cluster: Cluster, record: Record, batch: Batch) -> None:
    """A record is durable and is about to be applied."""
    reach, durable = cluster.sometimes.reach, cluster.durable
    match record:
        case CurrentRecord():
            if record.state == MemberState.UNRELEASED:
                reach("a unit was not assigned before another member's revocation")
            before_it = durable.current(record.member_id)
            if before_it.pending and not record.pending and record.epoch and durable.epoch > before_it.epoch + 1:
                reach("an acknowledgement crossed a new target")
        case TargetRecord():
            if record.computed_by == COORDINATOR and durable.computation is not None:
                if durable.computation.failures >= cluster.settings.failures_before_fallback:
                    reach("the fallback assignor was used")
                elif any(not member.assignors for member in durable.members.values()):
                    reach("the server-side assignor served members that list none")
        case ComputationRecord():
            before = durable.computation
            if before is not None and before.epoch == record.epoch and before.member_id != record.member_id:
                reach("a computing member was replaced")
        case RebalanceRecord():
            cause = record.rebalance.causes[-1] if record.rebalance.causes else ""
            if record.rebalance.finished_ms >= 0:
                return
            if "was silent" in cause:
                reach("a member was removed at its session timeout")
            elif "did not stop" in cause:
                reach("a member was removed at its rebalance timeout")
            elif "joined again" in cause:
                reach("a member joined again under a later epoch")
        case MemberRecord():
            if not durable.members and durable.epoch > 1:
                reach("a group lost all its members, then members joined")
            if record.instance_id is not None and record.member_id not in durable.members and batch.left:
                reach("a static member returned to its units")
            if any(member.classic != record.classic for member in durable.members.values()):
                reach("a group had workers of both protocols")
        case Tombstone():
            if record.key.kind is Kind.DELAY and not batch.joined:
                reach("a scheduled rebalance delay expired")


def see_response(
    cluster: Cluster, peer: CoordinatorNode, request: Request, response: Any, at_s: float, copy: bool
) -> None:
    """A response is about to be sent."""
    reach, code = cluster.sometimes.reach, getattr(response, "error_code", 0)
    if isinstance(request, HeartbeatRequest):
        if code == COMPUTE and request.classic:
            reach("a worker of the classic protocol was asked to compute")
        if code == 113:
            reach("a late copy of a heartbeat was rejected")
        elif code == 14:
            reach("a group was loaded again after a failed append")
        elif code == 16:
            reach("a coordinator was fenced")
        elif code == 0 and request.member_epoch > 0:
            waited_s = cluster.loop.now - at_s
            if request.max_wait_ms and response.assignment and 0.2 < waited_s < request.max_wait_ms / 1000 - 0.2:
                reach("a parked heartbeat was woken")
            current = cluster.durable.current(request.member_id)
            if request.member_epoch == current.previous_epoch < current.epoch and request.owned is not None:
                before = units_of(request.owned)
                if response.member_epoch == current.epoch and before <= current.held.keys():
                    reach("a heartbeat was accepted at the previous epoch")
    elif isinstance(request, InstallRequest):
        if code == 20482:
            reach("an Install for a passed epoch was rejected")
        elif code == 20481:
            reach("an invalid Install was rejected")
        elif request.error and not code:
            reach("an assignor's failure was installed")
    elif isinstance(request, UpdateConnectorsRequest) and code == 113:
        reach("a task list of a former owner was rejected")

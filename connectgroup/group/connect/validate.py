"""Request validation that precedes all other processing: one line of code per sentence of the source.

Source: the "Request Validation" sections of "Connect on the new protocol"; the sentences are quoted in the
docstrings of the tests. All functions raise ``InvalidRequest`` with field, value and allowed values; some raise
``InvalidGroupId`` for an invalid group id. What consumer groups have in common with these is in ``kernel.validate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...assign.placement import WorkerTraits, check_settings, check_traits
from ...errors import ConfigError, InvalidRequest
from ...protocol.messages.assignment import InstallRequest, PrepareRequest
from ...protocol.messages.common import (
    MAX_METADATA,
    ConfigEntry,
    ConnectorTasks,
    RestartRequest,
    config_of,
    each_unit,
)
from ...protocol.messages.connectors import UpdateConnectorsRequest
from ...protocol.messages.heartbeat import HeartbeatRequest
from ...protocol.records.connect import MemberRecord, TargetState
from ...protocol.units import CONNECTOR, JOIN_EPOCH, Unit, printable
from ..kernel import validate as kernel
from ..kernel.validate import check_group_id, name, refuse
from .settings import GroupSettings

MAX_GROUP_METADATA: Final = 16 << 20
"""Upper bound on the bytes of assignor metadata of all members of a group: a Prepare response has a limit."""

SMALL_METADATA: Final = 4_096
"""Bytes of one member's assignor metadata that are accepted regardless of the other members' metadata."""


def _group_id_to_compute(value: str) -> None:
    """Validate the group id of Prepare and Install: "INVALID_REQUEST ... GroupId must be non-empty".

    Their lists of errors have INVALID_GROUP_ID too; it is used for an id that is not empty but not a valid name.
    """
    if not value:
        name("GroupId", value)
    check_group_id(value)


def heartbeat(request: HeartbeatRequest, settings: GroupSettings) -> None:
    """ConnectGroupHeartbeat: all rules that depend on the request alone."""
    kernel.heartbeat(request, settings.max_rebalance_timeout_ms)
    for info in request.client_assignors or ():
        if len(info.metadata) > MAX_METADATA:
            raise refuse("Assignor.Metadata", f"{len(info.metadata)} bytes", f"at most {MAX_METADATA} bytes")
    # Epoch 0 means that the member runs no units (PD-04; Kafka rejects any other value too: RV-06).
    if request.member_epoch == JOIN_EPOCH and request.owned != ():
        raise refuse(
            "ConnectorsAndTasks", "null" if request.owned is None else "units", "an empty list when MemberEpoch is 0"
        )
    if request.owned is not None:
        distinct("ConnectorsAndTasks", request.owned)
    traits(request)


def traits(request: HeartbeatRequest) -> None:
    """Labels, rack, capacity and host; these are stored in the member record and sent with every Prepare."""
    if not (request.labels or request.rack or request.capacity or request.host):
        return  # as in most heartbeats
    labels = tuple((label.name, label.value) for label in request.labels)
    try:
        check_traits(WorkerTraits(labels=labels, rack=request.rack, capacity=request.capacity, host=request.host))
    except ConfigError as error:
        raise InvalidRequest(str(error)) from error


def all_metadata(member: MemberRecord, others_bytes: int) -> None:
    """Limit the metadata of all members, of which a Prepare response carries one assignor's.

    Args:
        member: a member that joins, or changes.
        others_bytes: the size of the metadata of the other members.
    """
    own_bytes = sum([len(info.metadata) for info in member.assignors])
    if own_bytes <= SMALL_METADATA:
        return  # 1,000 members with metadata of this size fit in any case
    total = own_bytes + others_bytes
    if total > MAX_GROUP_METADATA:
        raise refuse(
            "Assignor.Metadata", f"{total} bytes of all members", f"at most {MAX_GROUP_METADATA} bytes a group"
        )


def distinct(field: str, groups: Sequence[ConnectorTasks]) -> None:
    """Units in a request: valid task numbers, and no duplicates. Any client may send 200,000 units."""
    connectors = dict.fromkeys(group.connector for group in groups)
    for connector in connectors:
        name(f"{field}.Connector", connector)
    for group in groups:
        if group.tasks and min(group.tasks) <= CONNECTOR:
            raise refuse(f"{field}.Tasks", min(group.tasks), "task numbers from 0 up")
    # Mostly, each connector is listed once: its tasks are compared without an object for each unit.
    if len(connectors) < len(groups) or any(
        len(group.tasks) > 1 and len({*group.tasks}) < len(group.tasks) for group in groups
    ):
        seen: set[Unit] = set()
        for unit in each_unit(groups):
            if unit in seen:
                raise refuse(field, unit, "each connector or task once")
            seen.add(unit)


def prepare(request: PrepareRequest | InstallRequest) -> None:
    """ConnectGroupPrepareAssignment, and what ConnectGroupInstallAssignment has in common with it."""
    _group_id_to_compute(request.group_id)
    kernel.computation(request)


def install(request: InstallRequest) -> None:
    """ConnectGroupInstallAssignment: all rules that depend on the request alone."""
    prepare(request)
    if request.delay_ms < 0:
        raise refuse("DelayMs", request.delay_ms, ">= 0")
    if request.delayed and not request.delay_ms:
        raise refuse("Delayed", f"{len(request.delayed)} connectors", "delayed units only with a DelayMs above 0")
    distinct("Delayed", request.delayed)


def restart(request: RestartRequest) -> None:
    """ConnectGroupRestartMember: all rules that depend on the request alone."""
    name("GroupId", request.group_id)
    name("MemberId", request.member_id)


def connector_config(connector: str, config: Sequence[ConfigEntry]) -> None:
    """The settings of a connector that the coordinator and the assignors read: name, ``tasks.max`` and placement."""
    try:
        check_settings(connector, config_of(config))
    except ConfigError as error:
        raise InvalidRequest(f"connector {printable(connector)}: {error}") from error


def update_connectors(request: UpdateConnectorsRequest) -> None:
    """ConnectGroupUpdateConnectors: all rules that depend on the request alone."""
    name("GroupId", request.group_id)
    if request.member_id is not None:
        name("MemberId", request.member_id)
    if not request.changes:
        raise refuse("Changes", "an empty list", "at least one change")
    for change in request.changes:
        name("Changes.Connector", change.connector)
        if change.target_state not in (0, *TargetState):
            raise refuse("Changes.TargetState", change.target_state, "0 as it is, 1 running, 2 paused, 3 stopped")
        if change.expected_version < -1:
            raise refuse("Changes.ExpectedVersion", change.expected_version, ">= -1")
        if change.task_configs is not None and request.member_id is None:
            raise refuse(
                "Changes.TaskConfigs", "a task list from an operator", "task lists come from the connector's owner"
            )
        if change.credential_names is not None and request.member_id is None:
            raise refuse("Changes.CredentialNames", "names from an operator", "names from the connector's owner")
        if change.config is not None:
            connector_config(change.connector, change.config)
        for field in ("config", "task_configs", "config_patch", "credential_names"):
            if change.delete and getattr(change, field) is not None:
                raise refuse("Changes.Delete", True, f"delete, or {field}, not both")
        if change.delete and change.restart:
            raise refuse("Changes.Delete", True, "delete, or restart, not both")
        if change.config is not None and change.config_patch is not None:
            raise refuse("Changes.ConfigPatch", "settings", "Config or ConfigPatch, not both")
    named = [change.connector for change in request.changes]
    if len(set(named)) != len(named):
        raise refuse("Changes", ", ".join(named), "each connector once")

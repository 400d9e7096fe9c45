"""ConnectGroupHeartbeat.

Source: "Connect on the new protocol", ConnectGroupHeartbeatAPI.
"""

from __future__ import annotations

from dataclasses import dataclass

from .common import AssignorInfo, ConfigEntry, ConnectorTasks


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """What became of a unit on the worker that was given it.

    Attributes:
        connector: the connector's name.
        task: the task number, -1 for the connector itself.
        owner_epoch: the grant it speaks of; a status of an older grant is ignored (KAFKA-12525).
        state: one of ``records.RUNNING``, ``records.FAILED``.
        message: one line; empty unless failed.
    """

    connector: str
    task: int
    owner_epoch: int
    state: int
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """Join, stay, acknowledge, leave: the one call a worker lives by (ConnectGroupHeartbeat).

    Attributes:
        group_id: the worker group.
        member_id: made by the worker, kept for the life of its process.
        member_epoch: 0 joins and means "I run nothing"; -1 leaves; -2 leaves for a while (static member);
            otherwise the epoch of the last answer.
        instance_id: the static member's name; null if none, or as before.
        rebalance_timeout_ms: how long the worker may take to stop units; -1 as before.
        server_assignor: null if none, or as before. Not together with ``client_assignors``.
        client_assignors: in order of preference; null if none, or as before.
        owned: every unit the worker may still be running; null as before, () nothing.
        max_wait_ms: *(tagged)* the answer may be held back this long while there is nothing to say.
        sequence: *(tagged)* grows with each heartbeat this member id ever sends; a late copy of an older one
            is answered but changes nothing. -1: not numbered.
        statuses: *(tagged)* what changed since the last answered heartbeat.
        cause: *(tagged)* why the member leaves, in words; shown in the rebalance's explanation.
        traceparent: *(tagged)* W3C trace context of the caller.
        draining: *(tagged)* the member wants nothing new and its work taken over; it leaves when it has none.
            Read from full heartbeats only, those that name assignors and units.
        labels: *(tagged)* the worker's labels, sorted by name. Like the next three, read from full heartbeats only.
        rack: *(tagged)* the worker's rack or zone; empty if not given.
        capacity: *(tagged)* the most weight the worker can carry; 0 if not given.
        host: *(tagged)* the machine the worker runs on, which workers may share; empty if not given.
        returns: *(tagged)* with epoch -1: the worker restarts and joins again under the same member id, so its units
            are delayed for it as for a lost worker (scheduled rebalance delay).
    """

    group_id: str
    member_id: str
    member_epoch: int = -1
    instance_id: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    client_assignors: tuple[AssignorInfo, ...] | None = None
    owned: tuple[ConnectorTasks, ...] | None = None
    max_wait_ms: int = 0
    sequence: int = -1
    statuses: tuple[TaskStatus, ...] = ()
    cause: str = ""
    traceparent: str = ""
    draining: bool = False
    labels: tuple[ConfigEntry, ...] = ()
    rack: str = ""
    capacity: int = 0
    host: str = ""
    returns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitGrant:
    """One unit given to the member that it had not reported.

    Attributes:
        connector: the connector's name.
        task: the task number, -1 for the connector itself.
        owner_epoch: the epoch of the grant: the fencing token.
        config: the task's own configuration; empty for the connector itself.
    """

    connector: str
    task: int
    owner_epoch: int
    config: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """A connector's configuration, sent once for all of its units in ``grants``."""

    connector: str
    version: int
    config: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAssignment:
    """All that a member is to run from now on: the whole set, never a difference.

    Attributes:
        error: the assignor's error for this member, 0 is none.
        units: the whole set.
        version: version of ``metadata``.
        metadata: the assignor's word to its counterpart on the member.
        grants: *(tagged)* token and configuration of each unit the request did not name as owned.
        configs: *(tagged)* the configurations of the connectors in ``grants``.
        incarnation: *(tagged)* grows with each group of this name that is made anew (its log was lost); 0 unknown.
        assignor: *(tagged)* the assignor of the target assignment, once the member has reached the target epoch; then
            ``error``, ``version`` and ``metadata`` are for it. Empty before that, and where the target assignment has
            no entry for the member.
    """

    error: int = 0
    units: tuple[ConnectorTasks, ...] = ()
    version: int = 0
    metadata: bytes = b""
    grants: tuple[UnitGrant, ...] = ()
    configs: tuple[ConnectorConfig, ...] = ()
    incarnation: int = 0
    assignor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """The answer to a heartbeat.

    Attributes:
        throttle_time_ms: how long the request was throttled.
        error_code: 0, or a code of ``errors``; COMPUTE_ASSIGNMENT asks the member to compute a target.
        error_message: one line, null if there is no error.
        member_epoch: the epoch to send from now on.
        heartbeat_interval_ms: how often to ask.
        assignment: null "as before".
        session_timeout_ms: *(tagged)* silence longer than this and the member is removed; 0 unknown.
        coordinator_epoch: *(tagged)* grows with each change of coordinator; a lower one is out of date.
        restart: *(tagged)* an operator has requested that the worker restart (ConnectGroupRestartMember): the worker
            stops its units, leaves with ``returns`` and joins again. Repeated until the member leaves.
    """

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: MemberAssignment | None = None
    session_timeout_ms: int = 0
    coordinator_epoch: int = -1
    restart: bool = False

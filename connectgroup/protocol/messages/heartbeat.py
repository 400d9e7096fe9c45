"""ConnectGroupHeartbeat.

Source: "Connect on the new protocol", ConnectGroupHeartbeatAPI.
"""

from __future__ import annotations

from dataclasses import dataclass

from .common import AssignorInfo, ConfigEntry, ConnectorTasks, LoggerLevel
from .progress import LogLine, TaskProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """The status of a unit on the worker that owns it.

    Attributes:
        connector: the connector's name.
        task: the task number, -1 for the connector itself.
        owner_epoch: the owner epoch that the status belongs to; a status of an older one is ignored (KAFKA-12525).
        state: a ``UnitState``.
        message: one line; empty unless failed.
        fenced: *(tagged)* the unit's sink rejects what a former owner of the unit still writes (``Connector.fenced``).
            For a connector, which writes task lists only, the coordinator does.
        fenced_by: *(tagged)* the fencing token for which the unit's sink has rejected the unit (``Fenced.token``); -1:
            none.
        idle_ms: *(tagged)* for how long a unit that has stalled had completed no poll; 0 if unknown, and for others.
    """

    connector: str
    task: int
    owner_epoch: int
    state: int
    message: str = ""
    fenced: bool = False
    fenced_by: int = -1
    idle_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """Join, keep the membership, acknowledge revocations, leave (ConnectGroupHeartbeat).

    Attributes:
        group_id: the worker group.
        member_id: of the worker: its name, or generated. Kept for the lifetime of its process, and after a restart of
            a worker with a name.
        member_epoch: 0 joins and reports that the member runs no units; -1 leaves; -2 leaves temporarily (static
            member); otherwise the epoch of the last response.
        instance_id: the group instance id of a static member; null if none, or unchanged.
        rebalance_timeout_ms: how long the worker may take to stop units; -1 unchanged.
        server_assignor: null if none, or unchanged. Not together with ``client_assignors``.
        client_assignors: in order of preference; null if none, or unchanged.
        owned: every unit that the worker may still be running; null unchanged, () no units.
        max_wait_ms: *(tagged)* the request may be parked this long while the response would contain nothing new.
        sequence: *(tagged)* grows with each heartbeat that this member id ever sends; a late copy of an older one
            gets a response but changes nothing. -1: not numbered.
        statuses: *(tagged)* statuses that changed since the last heartbeat with a response.
        cause: *(tagged)* why the member leaves, as text; shown in the explanation of the rebalance.
        traceparent: *(tagged)* W3C trace context of the caller.
        draining: *(tagged)* the member requests no new units and that its units be moved; it leaves when it owns none.
            Read from full heartbeats only, those that list assignors and units.
        labels: *(tagged)* the worker's labels, sorted by name. Like the next three, read from full heartbeats only.
        rack: *(tagged)* the worker's rack or zone; empty if not set.
        capacity: *(tagged)* the maximum weight that the worker can carry; 0 if not set.
        host: *(tagged)* the machine that the worker runs on, which workers may share; empty if not set.
        returns: *(tagged)* with epoch -1: the worker restarts and joins again under the same member id, so its units
            are delayed for it as for a lost worker (scheduled rebalance delay).
        process_id: *(tagged)* the process that sends the request: a number drawn at random at its start. A member
            belongs to the process that joined; requests of any other process change nothing (PD-15). -1: none.
        progress: *(tagged)* the numbers of tasks that have changed, at most every few seconds. The coordinator keeps
            them in memory; no rule depends on them.
        os_process: *(tagged)* the name of the operating-system process (``os_process.this_process``): the coordinator
            looks whether it has ended when its connection is lost (PD-13). Empty: the coordinator does not look.
        classic: *(tagged)* the member uses the classic protocol; this is the metadata of its JoinGroup or LeaveGroup.
        logger_stamp: *(tagged)* the stamp of the newest logger level that the worker has set; 0 if none.
        restart_error: *(tagged)* why the restart that an operator requested has not happened: the worker goes on, and
            the request ends. Empty: no error. Read from a member's heartbeats, not from joins.
        log_lines: *(tagged)* what the worker has logged about its units since the last heartbeat with a response, at
            most ``MAX_LINES``. Like the next two, kept in memory only.
        started_ms: *(tagged)* when the worker's process started, milliseconds since 1970; 0: unchanged.
        memory_bytes: *(tagged)* memory of that process and of those that it has started; 0: unchanged.
        allowed_paths: *(tagged)* the files and directories that its connectors may use (``worker.allowed.paths``);
            with ``started_ms`` only. Null: unknown.
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
    process_id: int = -1
    progress: tuple[TaskProgress, ...] = ()
    os_process: str = ""
    classic: bool = False
    logger_stamp: int = 0
    restart_error: str = ""
    log_lines: tuple[LogLine, ...] = ()
    started_ms: int = 0
    memory_bytes: int = 0
    allowed_paths: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitGrant:
    """One assigned unit that the member had not reported as owned.

    Attributes:
        connector: the connector's name.
        task: the task number, -1 for the connector itself.
        owner_epoch: the epoch at which the unit was assigned: the fencing token.
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
class HeartbeatAssignment:
    """All units that a member should run from now on: the complete set, never a difference.

    Attributes:
        error: the assignor's error for this member, 0 is none.
        units: the complete set.
        version: version of ``metadata``.
        metadata: assignor user data for the assignor's instance on the member.
        grants: *(tagged)* token and configuration of each unit that the request did not report as owned.
        configs: *(tagged)* the configurations of the connectors in ``grants``.
        incarnation: *(tagged)* grows each time a group with this id is created again (its log was lost); 0 unknown.
        assignor: *(tagged)* the assignor of the target assignment, once the member has reached the target epoch; then
            ``error``, ``version`` and ``metadata`` are for it. Empty before that, and if the target assignment has no
            entry for the member.
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
    """The response to a heartbeat.

    Attributes:
        throttle_time_ms: how long the request was throttled.
        error_code: 0, or a code of ``errors``; COMPUTE_ASSIGNMENT requests that the member compute a target assignment.
        error_message: one line, null if there is no error.
        member_epoch: the member epoch for the next requests.
        heartbeat_interval_ms: how long after this response to send the next heartbeat.
        assignment: null means "unchanged".
        session_timeout_ms: *(tagged)* a member without a heartbeat for this long is removed; 0 unknown.
        coordinator_epoch: *(tagged)* grows with each change of coordinator; a response with a lower one is stale.
        restart: *(tagged)* an operator has requested that the worker restart (ConnectGroupRestartMember): the worker
            stops its units, leaves with ``returns`` and joins again. Repeated until the member leaves.
        traceparent: *(tagged)* W3C trace context of the group's latest rebalance; empty if the coordinator does not
            trace.
        drain: *(tagged)* an operator has requested that the worker drain (ConnectGroupRestartMember). Repeated until
            the member reports that it is draining.
        logger_levels: *(tagged)* the levels of loggers (ConnectGroupSetLoggerLevel) that are newer than the request's
            ``logger_stamp``, in the order of their stamps.
    """

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: HeartbeatAssignment | None = None
    session_timeout_ms: int = 0
    coordinator_epoch: int = -1
    restart: bool = False
    traceparent: str = ""
    drain: bool = False
    logger_levels: tuple[LoggerLevel, ...] = ()

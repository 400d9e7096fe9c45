"""ConnectGroupDescribe and ConnectGroupDelete; and ListGroups, DescribeGroups and DeleteGroups of Kafka's tools.

Source: Kafka's protocol guide; KIP-518 (states), KIP-848 (types), KIP-1043 (errors of DescribeGroups).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..units import CONNECTOR, Units
from .assignment import DelayedUnits
from .common import AssignorInfo, ConfigEntry, ConnectorTasks, units_of
from .progress import ConnectorHistory, Progress, UnitEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeRequest:
    """Request the descriptions of groups.

    Attributes:
        group_ids: the groups; empty for all groups.
        connectors: *(tagged)* the connectors to describe; null for all. Unknown names are ignored.
        include_task_configs: *(tagged)* whether tasks are described with their configurations.
        connectors_only: *(tagged)* whether to omit members, rebalances and delayed units, which may be large.
        include_assignor_input: *(tagged)* whether to include the rest of what an assignor and the rules of the group
            read: what members list and send, assignor user data, and the settings of moves and delays.
        include_credentials: *(tagged)* whether the configurations of connectors contain credentials, as the workers
            that run them receive them.
        include_classic: *(tagged)* whether to include what Kafka's DescribeGroups has of the members.
        history_points: *(tagged)* include the last hour of each connector in at most so many intervals; 0: not.
        include_events: *(tagged)* whether to include the last events of each connector.
    """

    group_ids: tuple[str, ...] = ()
    connectors: tuple[str, ...] | None = None
    include_task_configs: bool = False
    connectors_only: bool = False
    include_assignor_input: bool = False
    include_credentials: bool = False
    include_classic: bool = False
    history_points: int = 0
    include_events: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """One member: its assigned units, its pending revocations, and its target assignment.

    Attributes:
        instance_id: its group instance id, if it is a static member.
        member_epoch: the epoch that it has reached; -2 for a static member that has left temporarily.
        state: ``STABLE``: it has reached the target assignment of its epoch. ``UNREVOKED``: it still stops units.
            ``UNRELEASED``: it waits for units that other members still stop. ``DRAINING`` and ``RESTARTING``: as
            requested. ``AWAY``: it has left temporarily.
        assigned: the units that it owns.
        pending_revocation: the units that it still has to stop.
        target: the units that it is to own.
        labels: *(tagged)* as in the member's heartbeat; so are the next three.
        rack: *(tagged)* see ``HeartbeatRequest``.
        capacity: *(tagged)* see ``HeartbeatRequest``.
        host: *(tagged)* see ``HeartbeatRequest``.
        client_id: *(tagged)* the client id of the request with which the member joined.
        joined_epoch: *(tagged)* the group epoch at which the member joined; 0 if unknown.
        kept_ms: *(tagged)* for how long the units of a temporarily left member are still kept; -1 if unknown.
        assignors: *(tagged)* the client-side assignors that the member lists, if the request includes assignor input;
            so are the next two.
        server_assignor: *(tagged)* the server-side assignor that the member requests; null if none.
        assignor_state: *(tagged)* the assignor user data in its target assignment.
        classic_metadata: *(tagged)* the metadata in the form of a classic group, if the request includes it; opaque.
        classic_assignment: *(tagged)* the assignment in that form.
        classic: *(tagged)* the member of a connect or consumer group uses the classic protocol.
        restart_error: *(tagged)* why the last restart that was requested has not happened; the worker goes on.
        started_ms: *(tagged)* when its process started, milliseconds since 1970; 0 if unknown.
        memory_bytes: *(tagged)* memory of its process and of the processes that this one has started; 0 if unknown.
        allowed_paths: *(tagged)* the files and directories that its connectors may use; null if unknown.
    """

    member_id: str
    instance_id: str | None = None
    client_host: str = ""
    member_epoch: int = 0
    state: str = ""
    assigned: tuple[ConnectorTasks, ...] = ()
    pending_revocation: tuple[ConnectorTasks, ...] = ()
    target: tuple[ConnectorTasks, ...] = ()
    labels: tuple[ConfigEntry, ...] = ()
    rack: str = ""
    capacity: int = 0
    host: str = ""
    client_id: str = ""
    joined_epoch: int = 0
    kept_ms: int = -1
    assignors: tuple[AssignorInfo, ...] = ()
    server_assignor: str | None = None
    assignor_state: bytes = b""
    classic_metadata: bytes = b""
    classic_assignment: bytes = b""
    classic: bool = False
    restart_error: str = ""
    started_ms: int = 0
    memory_bytes: int = 0
    allowed_paths: tuple[str, ...] | None = None

    @property
    def assigned_units(self) -> Units:
        """``assigned`` as objects."""
        return units_of(self.assigned)

    @property
    def revoked_units(self) -> Units:
        """``pending_revocation`` as objects: the units that the member is to stop."""
        return units_of(self.pending_revocation)

    @property
    def target_units(self) -> Units:
        """``target`` as objects."""
        return units_of(self.target)


RETRYING: Final = "RETRYING"
LAST_ERROR: Final = ", last error: "
"""In the message of a failed unit, between what happens next and why it failed."""
"""The message of a unit that is FAILED or STALLED begins with it while its worker retries."""

KEPT: Final = "the target assignment is kept: "
"""``assignor_error`` begins with it after the assignor has decided so: nothing is being computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedUnit:
    """One unit of a connector: its owner and status. The connector's name is that of the ``DescribedConnector``.

    Attributes:
        task: the number of the task from 0, or -1 for the connector itself (``is_connector``).
        member_id: the member that owns it; empty while no member does.
        owner_epoch: the epoch at which it was assigned to that member; -1 without an owner.
        message: what the owner has reported with the state: the error of a unit that is FAILED or retried.
        state: STARTING, RUNNING, FAILED, STALLED: as its owner has reported; WAITING: its owner has left temporarily.
            Without an owner: UNASSIGNED, or PAUSED or STOPPED as its connector.
        config: *(tagged)* the task's configuration, credentials masked, if the request includes task configurations.
        progress: *(tagged)* its numbers, as far as workers have reported any: none or one.
        fenced: *(tagged)* whether the owner has reported that the sink rejects what a former owner still writes; false
            while the unit starts.
    """

    task: int
    member_id: str = ""
    owner_epoch: int = -1
    state: str = ""
    message: str = ""
    config: tuple[ConfigEntry, ...] = ()
    progress: tuple[Progress, ...] = ()
    fenced: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether it processes nothing for an error: it is FAILED or STALLED. Its worker may try again."""
        return self.state in ("FAILED", "STALLED")

    @property
    def has_failed_for_good(self) -> bool:
        """Whether it is FAILED, and its worker does not try again."""
        return self.state == "FAILED" and not self.message.startswith(RETRYING)

    @property
    def is_connector(self) -> bool:
        """True for the connector itself, false for one of its tasks."""
        return self.task == CONNECTOR

    @property
    def numbers(self) -> Progress | None:
        """Its numbers, as far as workers have reported any."""
        return self.progress[0] if self.progress else None

    @property
    def should_run(self) -> bool:
        """Whether it has an owner or waits for one; false if its connector is paused or stopped and it has ended."""
        return self.state not in ("PAUSED", "STOPPED")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConnector:
    """One connector, with its configuration and its units (the connector itself first).

    Credentials in the configuration are masked, unless the request includes them.

    Attributes:
        connector: its name.
        version: increases with each change of the connector; ``expected_version`` of a change refers to it.
        target_state: the wanted state, the name of a ``TargetState``: RUNNING, PAUSED or STOPPED.
        config: its settings, sorted by name.
        units: the connector itself (task -1), then its tasks by number.
        topics: *(tagged)* the Kafka topics that its tasks have used since the coordinator started, or since they were
            reset (KIP-558), sorted.
        history: *(tagged)* its last hour, if the request includes it and there is one: none or one.
        events: *(tagged)* its last events, oldest first, if the request includes them.
    """

    connector: str
    version: int = 0
    target_state: str = ""
    config: tuple[ConfigEntry, ...] = ()
    units: tuple[DescribedUnit, ...] = ()
    topics: tuple[str, ...] = ()
    history: tuple[ConnectorHistory, ...] = ()
    events: tuple[UnitEvent, ...] = ()


NOT_STARTED: Final = -2
UNKNOWN: Final = -3
"""See ``Move.downtime_ms``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One unit's move from one member to another.

    Attributes:
        connector: the connector's name.
        task: the task number, -1 for the connector itself.
        source: the member that owned the unit before, empty if it ran nowhere.
        target: the member that owns the unit now, empty if none.
        handover_ms: what the protocol took, as measured by the coordinator: from the moment the unit's old owner was
            sent the revocation (of a silent one: from its last heartbeat) to the assignment to the new owner; -1 while
            the move is in progress.
        assigned_ms: *(tagged)* wall clock of that assignment, milliseconds since 1970; 0 if unknown.
        downtime_ms: *(tagged)* in descriptions: for how long the unit processed nothing. From the beginning of the
            handover, or from the failure before it, until the new owner reported the unit as running: a task of Spark
            after its first completed poll. -1 if it has not yet; -2 (``NOT_STARTED``) if the new owner released the
            unit, or left, before it reported it; -3 (``UNKNOWN``) after a restart of the coordinator, for a move before
            the last compaction of its log that is not the latest one of a unit.
        failed_ms: *(tagged)* for how long the unit had been FAILED or STALLED when it was stopped.
    """

    connector: str
    task: int
    source: str = ""
    target: str = ""
    handover_ms: int = -1
    assigned_ms: int = 0
    downtime_ms: int = -1
    failed_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedUntil:
    """Units that were delayed when a rebalance ended.

    Attributes:
        member_id: the lost worker that they are kept for; empty if the assignor left them out.
        until_ms: wall clock of the deadline, milliseconds since 1970.
        count: number of units.
        units: the first of them, at most 100.
    """

    member_id: str = ""
    until_ms: int = 0
    count: int = 0
    units: tuple[ConnectorTasks, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """The causes and the cost of a rebalance.

    Attributes:
        epoch: the group epoch that resulted.
        causes: as text, in order of arrival.
        started_ms: wall clock of the first cause, milliseconds since 1970.
        finished_ms: wall clock of the moment when all members had reached the epoch; -1 while in progress, and for a
            rebalance that a later one has overtaken.
        computed_by: the member that computed the target assignment, or "coordinator".
        moved: number of units that moved to another member.
        started: number of units that were assigned and had run on no member before.
        max_handover_ms: the longest handover of a unit that moved or restarted.
        moves: the moves with the longest handover, at most 100.
        assignor: *(tagged)* the assignor of the target assignment; empty while in progress.
        delayed: *(tagged)* the units that were delayed when the rebalance ended.
        max_downtime_ms: *(tagged)* in descriptions: the longest downtime of the moves whose units run again; -1 if none
            is known.
    """

    epoch: int
    causes: tuple[str, ...] = ()
    started_ms: int = 0
    finished_ms: int = -1
    computed_by: str = ""
    moved: int = 0
    started: int = 0
    max_handover_ms: int = 0
    moves: tuple[Move, ...] = ()
    assignor: str = ""
    delayed: tuple[DelayedUntil, ...] = ()
    max_downtime_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """One group.

    Attributes:
        error_code: 0, or why the coordinator cannot describe the group; ``Admin.describe`` raises it as an error.
        error_message: its text.
        state: ``Empty``: no members. ``Assigning``: a target assignment is being computed. ``Reconciling``: a member
            has not reached it. ``Stable``: all members have.
        group_epoch: increases with each change that needs a new target assignment.
        assignment_epoch: the group epoch of the latest target assignment.
        assignor_name: the assignor that computed the latest target assignment; empty before the first.
        computing_member: the member that is computing a target assignment; empty if none is. Who computed the latest
            one: ``rebalances[-1].computed_by``.
        assignor_error: why the latest computation failed or kept the target, or which units have no worker; or empty.
        members: its members, sorted by member id.
        connectors: its connectors, sorted by name.
        rebalances: the last 100, oldest first.
        delayed: *(tagged)* delayed units that are assigned to no member, with the time left.
        group_type: *(tagged)* the type of the group; empty if there is no such group.
        max_moves: *(tagged)* ``GroupSettings.max_moves``, if the request includes assignor input; so are the next
            three.
        scheduled_delay_ms: *(tagged)* ``GroupSettings.scheduled_delay_ms``.
        server_assignor: *(tagged)* ``GroupSettings.server_assignor``.
        deferred: *(tagged)* number of moves deferred to the next round.
        incarnation: *(tagged)* the group's creation time, as in ``MemberAssignment.incarnation``; 0 if unknown.
        protocol_type: *(tagged)* the type of its members, ``consumer`` or ``connect``.
        classic_state: *(tagged)* the state in the form of a classic group (Kafka's DescribeGroups); empty if the group
            has no such form.
        log_error: *(tagged)* why the coordinator's log takes no writes now, so that changes of the group are rejected;
            empty if it does.
        starting: *(tagged)* the units that are not moved because they are starting, if the request includes assignor
            input.
    """

    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    computing_member: str = ""
    assignor_error: str = ""
    members: tuple[DescribedMember, ...] = ()
    connectors: tuple[DescribedConnector, ...] = ()
    rebalances: tuple[Rebalance, ...] = ()
    delayed: tuple[DelayedUnits, ...] = ()
    group_type: str = ""
    max_moves: int = 0
    scheduled_delay_ms: int = 0
    server_assignor: str = ""
    deferred: int = 0
    incarnation: int = 0
    protocol_type: str = ""
    classic_state: str = ""
    log_error: str = ""
    starting: tuple[ConnectorTasks, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeResponse:
    """One entry per requested group, in the order of the request.

    partition_count: *(tagged)* of a list of all groups: the number of partitions of the log.
    partitions: *(tagged)* of a list of all groups: the partitions whose groups are listed, if the log has several.
    """

    throttle_time_ms: int = 0
    groups: tuple[DescribedGroup, ...] = ()
    coordinator_epoch: int = -1
    partition_count: int = 1
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRequest:
    """Delete groups with their connectors; a group that has members is kept (ConnectGroupDelete)."""

    group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedGroup:
    """The result for one requested group."""

    group_id: str
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResponse:
    """One entry per requested group, in the order of the request."""

    throttle_time_ms: int = 0
    results: tuple[DeletedGroup, ...] = ()
    coordinator_epoch: int = -1


NO_OPERATIONS = -(1 << 31)
"""The value of authorized operations that were not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest:
    """List the groups of a coordinator.

    Attributes:
        states_filter: the states to list, in any case; empty: all. From version 4 on.
        types_filter: the group types to list, in any case; empty: all. From version 5 on.
    """

    states_filter: tuple[str, ...] = ()
    types_filter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """One group.

    Attributes:
        protocol_type: ``consumer`` or ``connect``.
        group_state: its state, from version 4 on.
        group_type: its type, from version 5 on.
    """

    group_id: str
    protocol_type: str = ""
    group_state: str = ""
    group_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    """The groups, sorted by id."""

    throttle_time_ms: int = 0
    error_code: int = 0
    groups: tuple[ListedGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest:
    """Request the descriptions of groups in the form of classic groups.

    Attributes:
        include_authorized_operations: from version 3 on; there is no authorization here.
        expects_not_found: whether a group that does not exist is an error; from version 6 on. Not on the wire.
    """

    groups: tuple[str, ...] = ()
    include_authorized_operations: bool = False
    expects_not_found: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """One member.

    Attributes:
        member_metadata: its metadata for the assignor of the group; opaque.
        member_assignment: its assignment; opaque.
    """

    member_id: str
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedClassicGroup:
    """One group.

    Attributes:
        group_state: ``Dead`` if there is no such group and the request does not expect an error.
        protocol_data: the assignor.
    """

    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[ClassicMember, ...] = ()
    authorized_operations: int = NO_OPERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse:
    """One entry for each requested group."""

    throttle_time_ms: int = 0
    groups: tuple[DescribedClassicGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest:
    """Delete groups that have no members."""

    groups_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedResult:
    """The result for one group."""

    group_id: str
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    """One entry for each requested group."""

    throttle_time_ms: int = 0
    results: tuple[DeletedResult, ...] = ()

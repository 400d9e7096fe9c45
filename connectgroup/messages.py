"""What worker and coordinator say to one another, free of any byte or version.

One frozen class a message, in the field order of the proposal "Connect on the new protocol" (its request and
response schemas); what we add travels as tagged fields and is marked *(tagged)*, with a default that means
"a peer without it". Two changes of shape: connectors and tasks travel grouped by connector
(``ConnectorTasks``), which is a quarter of the bytes of a flat list; and in the question to an assignor, which has
a list of all there is, as places in it (``PreparedMember.places``).

``null`` (``None``) in a heartbeat means "as before"; an empty tuple means "nothing". They are different words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol

from .masking import masked_value
from .names import CONNECTOR, NO_UNITS, Unit, Units

_unit = tuple.__new__
"""A ``Unit`` of its fields without the detour through Python that a named tuple takes, for long loops."""

LARGEST_METADATA: Final = 65_536
"""Bytes of one member's metadata for one assignor: it travels in every Prepare and is a record of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorTasks:
    """Some of one connector's units.

    Attributes:
        connector: the connector's name.
        owns_connector: whether the connector itself is among them.
        tasks: task numbers, ascending.
    """

    connector: str
    owns_connector: bool = False
    tasks: tuple[int, ...] = ()


def grouped(units: Iterable[Unit]) -> tuple[ConnectorTasks, ...]:
    """Units in their wire shape: connectors ascending, tasks ascending, so that equal sets are equal bytes."""
    by_connector: dict[str, list[int]] = {}
    for connector, task in units:
        by_connector.setdefault(connector, []).append(task)
    # Numbers are sorted a connector at a time: eight times as fast as all units in one sort.
    grouped_tasks = [(connector, sorted(by_connector[connector])) for connector in sorted(by_connector)]
    return tuple(
        [
            ConnectorTasks(
                connector=connector,
                owns_connector=tasks[0] == CONNECTOR,
                tasks=tuple(tasks[1:] if tasks[0] == CONNECTOR else tasks),
            )
            for connector, tasks in grouped_tasks
        ]
    )


def each_unit(groups: Iterable[ConnectorTasks]) -> Iterable[Unit]:
    """Every unit named, in the order written, repeats included (the validators look for those)."""
    for group in groups:
        if group.owns_connector:
            yield Unit(group.connector)
        for task in group.tasks:
            yield Unit(group.connector, task)


def units_of(groups: Iterable[ConnectorTasks] | None) -> Units:
    """The set a wire shape stands for; ``None`` is read as nothing, so ask for ``None`` first where it matters."""
    return frozenset(unit_list(groups)) if groups else NO_UNITS


def unit_list(groups: Iterable[ConnectorTasks]) -> list[Unit]:
    """As ``each_unit``, and three times as fast: a full heartbeat names all that its sender has."""
    units: list[Unit] = []
    for group in groups:
        connector = group.connector
        if group.owns_connector:
            units.append(Unit(connector))
        units += [_unit(Unit, (connector, task)) for task in group.tasks]
    return units


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One line of a connector's or a task's configuration. Its ``repr`` shows no credential."""

    name: str
    value: str

    def __repr__(self) -> str:
        return f"ConfigEntry(name={self.name!r}, value={masked_value(self.name, self.value)!r})"


def entries(config: Mapping[str, str]) -> tuple[ConfigEntry, ...]:
    """A configuration in its wire shape, sorted by name."""
    return tuple(ConfigEntry(name=name, value=config[name]) for name in sorted(config))


def masked(lines: Iterable[ConfigEntry]) -> tuple[ConfigEntry, ...]:
    """A configuration as it may be shown: without the values of credentials."""
    return tuple([ConfigEntry(name=line.name, value=masked_value(line.name, line.value)) for line in lines])


def config_of(lines: Iterable[ConfigEntry]) -> dict[str, str]:
    """The configuration a wire shape stands for."""
    return {line.name: line.value for line in lines}


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignorInfo:
    """One client-side assignor that a member can run.

    Attributes:
        name: the assignor's name, the same on every member.
        minimum_version: lowest version of its metadata it can read, >= -1.
        maximum_version: highest version it can read, >= 0.
        reason: why the metadata changed; 0 is none. A change of it asks for a rebalance.
        version: version of ``metadata``, within the two above.
        metadata: opaque to all but the assignor.
    """

    name: str
    minimum_version: int = 0
    maximum_version: int = 0
    reason: int = 0
    version: int = 0
    metadata: bytes = b""


# --------------------------------------------------------------------------------------------------
# ConnectGroupHeartbeat


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


# --------------------------------------------------------------------------------------------------
# ConnectGroupPrepareAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRequest:
    """Asked by the member chosen to compute: what is the group (ConnectGroupPrepareAssignment)?"""

    group_id: str
    member_id: str
    member_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignorMetadata:
    """One member's metadata for the selected assignor."""

    version: int = 0
    reason: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMember:
    """One member as the assignor sees it.

    Attributes:
        places: its share of the current target, ascending: places in ``PrepareResponse.all_units()``, which
            ``PrepareResponse.shares()`` looks up. Numbers, because while there were names the reading of a question
            took longer than its answer.
        told: *(tagged)* what this assignor's answer said to the member with that share (``InstalledMember.metadata``);
            empty where another assignor made it.
        labels: *(tagged)* as the member's heartbeat gave them; so are the next three.
        rack: *(tagged)* see ``HeartbeatRequest``.
        capacity: *(tagged)* see ``HeartbeatRequest``.
        host: *(tagged)* see ``HeartbeatRequest``.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    assignor: AssignorMetadata = AssignorMetadata()
    places: tuple[int, ...] = ()
    told: bytes = b""
    labels: tuple[ConfigEntry, ...] = ()
    rack: str = ""
    capacity: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedConnector:
    """A connector to be placed: the counterpart of KIP-848's ``Topics``.

    Attributes:
        connector: its name.
        num_tasks: its tasks are 0 .. num_tasks - 1.
        weight: *(tagged)* load of the connector itself, 0 by default: it mostly watches.
        task_weights: *(tagged)* load of each task; empty means 1 each.
        placement: *(tagged)* what its configuration says under ``assignment.``.
    """

    connector: str
    num_tasks: int
    weight: int = 0
    task_weights: tuple[int, ...] = ()
    placement: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """Units that nobody is given for now: they wait for a lost worker, or for as long as the assignor asked.

    Attributes:
        member_id: the worker that is waited for; empty where the assignor asked.
        instance_id: its static name, null if it had none.
        left_ms: how much longer.
        units: what waits.
    """

    member_id: str = ""
    instance_id: str | None = None
    left_ms: int = 0
    units: tuple[ConnectorTasks, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareResponse:
    """The group at ``group_epoch``, complete: all that an assignor may look at.

    Attributes:
        held_back: *(tagged)* may be placed or left out, as the assignor likes: the coordinator gives it to nobody yet.
        scheduled_rebalance_max_delay_ms: *(tagged)* the group's setting, in milliseconds; 0 is no delay.
    """

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    group_epoch: int = 0
    assignor_name: str = ""
    members: tuple[PreparedMember, ...] = ()
    connectors: tuple[PreparedConnector, ...] = ()
    coordinator_epoch: int = -1
    held_back: tuple[HeldBack, ...] = ()
    scheduled_rebalance_max_delay_ms: int = 0

    def all_units(self) -> list[Unit]:
        """All there is to place, in the order of ``connectors``: each connector, then its tasks."""
        return [Unit(entry.connector, task) for entry in self.connectors for task in range(CONNECTOR, entry.num_tasks)]

    def starts(self) -> list[int]:
        """Each connector's place in ``all_units()``, with its tasks behind it; last, how many places there are."""
        return list(accumulate((entry.num_tasks + 1 for entry in self.connectors), initial=0))

    def shares(self) -> list[Units]:
        """What each member has, in the order of ``members``; a place that there is not is nobody's."""
        names = [entry.connector for entry in self.connectors]
        *starts, total = self.starts()

        def unit(place: int) -> Unit:
            index = bisect_right(starts, place) - 1
            return Unit(names[index], place - starts[index] + CONNECTOR)

        return [frozenset([unit(place) for place in member.places if 0 <= place < total]) for member in self.members]


# --------------------------------------------------------------------------------------------------
# ConnectGroupInstallAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledMember:
    """One member's share of a computed target."""

    member_id: str
    error: int = 0
    units: tuple[ConnectorTasks, ...] = ()
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRequest:
    """The computed target (ConnectGroupInstallAssignment).

    Attributes:
        group_epoch: the epoch that Prepare named.
        error: 0, or the assignor's error: then nothing is installed.
        members: the whole target; a member left out gets nothing.
        message: *(tagged)* the error in words; without one, what people should know of the answer.
        held_back: *(tagged)* units left out on purpose; needs ``delay_ms``.
        delay_ms: *(tagged)* ask again after this long; 0 is never.
    """

    group_id: str
    member_id: str
    member_epoch: int
    group_epoch: int
    error: int = 0
    members: tuple[InstalledMember, ...] = ()
    message: str = ""
    held_back: tuple[ConnectorTasks, ...] = ()
    delay_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallResponse:
    """Whether the target was taken; it is taken whole or not at all."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    coordinator_epoch: int = -1


# --------------------------------------------------------------------------------------------------
# ConnectGroupUpdateConnectors


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """The configuration of one task."""

    config: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorChange:
    """One change to one connector; what is null stays as it is.

    Attributes:
        connector: its name.
        expected_version: the version it must have; 0 "does not exist yet", -1 any.
        delete: remove it and its tasks.
        config: the new configuration, whole.
        wanted_state: RUNNING 1, PAUSED 2 (no task runs), STOPPED 3 (nothing runs); 0 as it is.
        task_configs: the new task list, from the member that owns the connector.
        owner_epoch: that member's grant of the connector; needed with ``task_configs``.
    """

    connector: str
    expected_version: int = -1
    delete: bool = False
    config: tuple[ConfigEntry, ...] | None = None
    wanted_state: int = 0
    task_configs: tuple[TaskConfig, ...] | None = None
    owner_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConnectorsRequest:
    """Changes to a group's connectors, each with compare-and-set on its version.

    Attributes:
        group_id: the worker group; made if it does not exist.
        member_id: the member that speaks; null for an operator.
        changes: taken all or none, in order.
    """

    group_id: str
    member_id: str | None = None
    changes: tuple[ConnectorChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedConnector:
    """One change's outcome; ``version`` is that of the connector now: its last change's epoch (0: there is none)."""

    connector: str
    error_code: int = 0
    error_message: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConnectorsResponse:
    """The outcome. With a top-level error nothing was changed; ``results`` then names the offender."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    group_epoch: int = 0
    results: tuple[ChangedConnector, ...] = ()
    coordinator_epoch: int = -1


# --------------------------------------------------------------------------------------------------
# ConnectGroupDescribe


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeRequest:
    """What do these groups look like?"""

    group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """One member: what it runs, what it is stopping, what it shall run.

    Attributes:
        labels: *(tagged)* as the member's heartbeat gave them; so are the next three.
        rack: *(tagged)* see ``HeartbeatRequest``.
        capacity: *(tagged)* see ``HeartbeatRequest``.
        host: *(tagged)* see ``HeartbeatRequest``.
        client_id: *(tagged)* the client id of the request that joined.
        joined_epoch: *(tagged)* the group epoch at which the member joined; 0 if unknown.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedUnit:
    """One unit of a connector: where it is and how it fares. ``member_id`` is empty while nobody holds it."""

    task: int
    member_id: str = ""
    owner_epoch: int = -1
    state: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConnector:
    """One connector with its configuration, credentials masked, and its units (the connector itself first)."""

    connector: str
    version: int = 0
    wanted_state: str = ""
    config: tuple[ConfigEntry, ...] = ()
    units: tuple[DescribedUnit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One unit's change of hands.

    Attributes:
        connector: the connector's name.
        task: the task number, -1 for the connector itself.
        source: the member it left, empty if it ran nowhere.
        target: the member it went to, empty if nobody got it.
        standstill_ms: from the moment its old holder was told to stop (or was removed) to its new grant, as
            the coordinator saw it; -1 while it is on its way.
    """

    connector: str
    task: int
    source: str = ""
    target: str = ""
    standstill_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """Why the group changed and what it cost.

    Attributes:
        epoch: the group epoch this led to.
        causes: in words, in the order they came.
        started_ms: wall clock of the first cause, milliseconds since 1970.
        finished_ms: wall clock of the moment all members had reached it; -1 while under way.
        computed_by: the member that computed the target, or "coordinator".
        moved: units that changed hands.
        started: units that were given to a member and had run nowhere before.
        longest_standstill_ms: of all that moved.
        moves: those that stood still longest, at most 100.
    """

    epoch: int
    causes: tuple[str, ...] = ()
    started_ms: int = 0
    finished_ms: int = -1
    computed_by: str = ""
    moved: int = 0
    started: int = 0
    longest_standstill_ms: int = 0
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """One group.

    Attributes:
        rebalances: the last 100, oldest first.
        held_back: *(tagged)* what is given to nobody for now, and for how much longer.
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
    held_back: tuple[HeldBack, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeResponse:
    """One entry a group asked for, in that order."""

    throttle_time_ms: int = 0
    groups: tuple[DescribedGroup, ...] = ()
    coordinator_epoch: int = -1


# --------------------------------------------------------------------------------------------------
# ConnectGroupDelete


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRequest:
    """Forget these groups with their connectors; a group that has members is kept (ConnectGroupDelete)."""

    group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedGroup:
    """What became of one group asked for."""

    group_id: str
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResponse:
    """One entry a group asked for, in that order."""

    throttle_time_ms: int = 0
    results: tuple[DeletedGroup, ...] = ()
    coordinator_epoch: int = -1


# --------------------------------------------------------------------------------------------------
# ConnectGroupRestartMember


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequest:
    """Restart one worker; its units are delayed for it meanwhile (ConnectGroupRestartMember)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartResponse:
    """Whether the restart is requested; the member is notified with its next heartbeat response.

    Attributes:
        already_requested: an earlier request had not been carried out yet; this one changed nothing.
    """

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    already_requested: bool = False
    coordinator_epoch: int = -1


# --------------------------------------------------------------------------------------------------
# ApiVersions, FindCoordinator (Kafka's own messages, fields as Kafka documents them)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    """Which APIs do you serve? The names are sent from version 3 on."""

    client_software_name: str = ""
    client_software_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersion:
    """One API and the versions of it that are served."""

    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse:
    """The APIs served here."""

    error_code: int = 0
    api_keys: tuple[ApiVersion, ...] = ()
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest:
    """Who coordinates this group? ``key`` up to version 3, ``coordinator_keys`` from version 4 on."""

    key: str = ""
    key_type: int = 0
    coordinator_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCoordinator:
    """One group's coordinator."""

    key: str
    node_id: int
    host: str
    port: int
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    """The coordinator: the single fields up to version 3, ``coordinators`` from version 4 on."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1
    coordinators: tuple[FoundCoordinator, ...] = ()


Request = (
    HeartbeatRequest
    | PrepareRequest
    | InstallRequest
    | DescribeRequest
    | UpdateConnectorsRequest
    | DeleteRequest
    | RestartRequest
    | ApiVersionsRequest
    | FindCoordinatorRequest
)
Response = (
    HeartbeatResponse
    | PrepareResponse
    | InstallResponse
    | DescribeResponse
    | UpdateConnectorsResponse
    | DeleteResponse
    | RestartResponse
    | ApiVersionsResponse
    | FindCoordinatorResponse
)


class Handler(Protocol):
    """What a server serves and a client reaches: every transport carries exactly this contract."""

    async def handle(self, request: Request, *, client_host: str, client_id: str = "") -> Response:
        """Answer one request.

        Args:
            request: decoded, version-independent.
            client_host: where it came from, for people to read.
            client_id: the client id in the request header, empty if null; for people to read.

        Returns:
            The response of the request's own type. A refusal is a response with an error code.
        """

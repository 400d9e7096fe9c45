"""The records of a group: the only way its state changes. One frozen class per record kind.

A record's key is ``(kind, group_id, name)``. Of two records with the same key the later one replaces the earlier, so
the log may be compacted at any time. A ``Tombstone`` removes a key; a tombstone for an unknown key is a no-op
(KAFKA-17306).

Source: the "data model" of KIP-848 (ConsumerGroupMetadata, MemberMetadata, TargetAssignmentMetadata,
TargetAssignmentMember, CurrentMemberAssignment), extended by connectors, statuses and rebalances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from ..messages.common import AssignorInfo, ConfigEntry, ConnectorTasks
from ..messages.describe import Rebalance
from ..messages.progress import ConnectorHistory, Progress
from ..units import CONNECTOR, Unit
from .base import Key, Kind, MemberState as MemberState, Tombstone
from .consumer import (
    ClassicGroupRecord,
    ClassicMemberRecord,
    ConsumerCurrentRecord,
    ConsumerMemberRecord,
    ConsumerRegexRecord,
    ConsumerTargetMemberRecord,
    ConsumerTopicsRecord,
    OffsetRecord,
    PendingOffsetRecord,
)

GROUP_TYPE: Final = "connect"


_unit = tuple.__new__
"""As in ``messages``: creates a ``Unit`` from its fields, for long loops."""


MAX_MOVES: Final = 100
"""Number of moves of one rebalance that are kept individually: a record must fit into a batch for any group size."""


class TargetState(IntEnum):
    """The state of a connector that an operator requests."""

    RUNNING = 1
    PAUSED = 2
    STOPPED = 3


class UnitState(IntEnum):
    """The state of a unit that its worker reports.

    STALLED: a task that has completed no poll within ``task.progress.timeout.ms`` and has reported no error.
    STARTING: the first start under this owner epoch takes longer than half a second; the unit is not moved meanwhile
    (``group.connect.assignment.is_starting``). Units that start faster never report it.
    """

    RUNNING = 1
    FAILED = 2
    STALLED = 3
    STARTING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """The group epoch; the first record of this kind creates the group.

    ``created_ms`` is the coordinator's wall clock at that time, the same in all later records: a group whose log was
    lost starts again at epoch 1, and this field distinguishes it from the one before.

    Attributes:
        restart_requests: *(tagged)* ids of lost members that an operator has asked to restart; each request is repeated
            when the member joins again.
    """

    group_id: str
    epoch: int
    group_type: str = GROUP_TYPE
    created_ms: int = 0
    restart_requests: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return Key(Kind.GROUP, self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A member's metadata, as of its join or its latest update.

    Attributes:
        draining: *(tagged)* the member requests no new units and that its units be moved.
        labels: *(tagged)* the worker's labels, sorted by name.
        rack: *(tagged)* the worker's rack or zone; empty if not set.
        capacity: *(tagged)* the maximum weight that the worker can carry; 0 if not set.
        host: *(tagged)* the machine that the worker runs on; empty if not set.
        client_id: *(tagged)* the client id of the request with which the member joined; informational, as is
            ``client_host``.
        joined_epoch: *(tagged)* the group epoch at which the member joined; 0 if unknown (KIP-848,
            ConsumerGroupMemberMetadataValue: GroupEpoch, ClientId).
        restart_requested: *(tagged)* an operator has requested that the worker restart; the member has not left yet.
        drain_requested: *(tagged)* an operator has requested that the worker drain; the member does not drain yet.
        process_id: *(tagged)* the process that joined as the member; -1 if unknown (PD-15).
        principal: *(tagged)* the principal of the connection on which it joined (``Handler.handle``); null if unknown.
        os_process: *(tagged)* its name to the operating system (``HeartbeatRequest.os_process``); empty if unknown.
        classic: *(tagged)* the member uses the classic protocol (``classic_members``).
        restart_error: *(tagged)* why the last requested restart has not happened (``HeartbeatRequest.restart_error``);
            empty once another restart is requested, and if there is no such error.
    """

    group_id: str
    member_id: str
    instance_id: str | None = None
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    server_assignor: str | None = None
    assignors: tuple[AssignorInfo, ...] = ()
    draining: bool = False
    labels: tuple[ConfigEntry, ...] = ()
    rack: str = ""
    capacity: int = 0
    host: str = ""
    client_id: str = ""
    joined_epoch: int = 0
    restart_requested: bool = False
    drain_requested: bool = False
    process_id: int = -1
    principal: str | None = None
    os_process: str = ""
    classic: bool = False
    restart_error: str = ""

    @property
    def has_request(self) -> bool:
        """Whether the member's heartbeat responses carry a request of an operator."""
        return self.restart_requested or self.drain_requested

    @property
    def traits(self) -> tuple[tuple[ConfigEntry, ...], str, int, str]:
        """Labels, rack, capacity and host: a change of them requires a new target assignment."""
        return (self.labels, self.rack, self.capacity, self.host)

    @property
    def key(self) -> Key:
        return Key(Kind.MEMBER, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecord:
    """A target assignment is installed: the last record of its batch, so that a partial one is never current.

    Attributes:
        checksum: *(tagged)* checksum of the Install request, to distinguish a repeated request from another one.
        deferred: *(tagged)* number of moves deferred to the next round (``GroupSettings.max_moves``).
        deferred_starts: *(tagged)* number of moves deferred until the units have started where they are.
        at_ms: *(tagged)* the coordinator's wall clock when an assignor's result was installed; 0: no assignor ran.
    """

    group_id: str
    epoch: int
    assignor: str = ""
    computed_by: str = ""
    checksum: int = 0
    deferred: int = 0
    at_ms: int = 0
    deferred_starts: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.TARGET, self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMemberRecord:
    """One member's target assignment."""

    group_id: str
    member_id: str
    units: tuple[ConnectorTasks, ...] = ()
    error: int = 0
    version: int = 0
    metadata: bytes = b""

    @property
    def key(self) -> Key:
        return Key(Kind.TARGET_MEMBER, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedTasks:
    """Some of one connector's units, with their owner epochs.

    Attributes:
        connector: the connector's name.
        tasks: ascending, -1 for the connector itself.
        owner_epochs: one per task, in the same order.
    """

    connector: str
    tasks: tuple[int, ...]
    owner_epochs: tuple[int, ...]


def held(units: Mapping[Unit, int]) -> tuple[OwnedTasks, ...]:
    """Units and owner epochs in their stored form, sorted."""
    by_connector: dict[str, list[int]] = {}
    for connector, task in sorted(units):
        by_connector.setdefault(connector, []).append(task)
    return tuple(
        OwnedTasks(
            connector=connector,
            tasks=tuple(tasks),
            owner_epochs=tuple(units[Unit(connector, task)] for task in tasks),
        )
        for connector, tasks in by_connector.items()
    )


def epochs_of(groups: Iterable[OwnedTasks]) -> dict[Unit, int]:
    """Units and owner epochs from their stored form."""
    return {
        _unit(Unit, (group.connector, task)): epoch
        for group in groups
        for task, epoch in zip(group.tasks, group.owner_epochs, strict=True)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRecord:
    """A member's current assignment: assigned units (``assigned``) and pending revocations (``pending``).

    ``at_ms`` is the coordinator's wall clock when the record was written; downtime is measured with it.
    """

    group_id: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: MemberState = MemberState.STABLE
    assigned: tuple[OwnedTasks, ...] = ()
    pending: tuple[OwnedTasks, ...] = ()
    at_ms: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.CURRENT, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """One task of a connector.

    Attributes:
        config: its configuration.
        since_epoch: the group epoch of this configuration. An older owner epoch belongs to the configuration before;
            the
            task must be revoked before it is assigned again.
    """

    config: tuple[ConfigEntry, ...] = ()
    since_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorRecord:
    """A connector; ``version`` is the group epoch of the last change of anything in it.

    ``since_epoch`` is for the connector itself what ``TaskEntry.since_epoch`` is for a task.

    Attributes:
        credential_names: *(tagged)* the settings that are credentials whatever their names are, sorted; the last ones
            that an owner of the connector has sent.
    """

    group_id: str
    connector: str
    version: int
    target_state: TargetState = TargetState.RUNNING
    config: tuple[ConfigEntry, ...] = ()
    since_epoch: int = 0
    tasks: tuple[TaskEntry, ...] = ()
    credential_names: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return Key(Kind.CONNECTOR, self.group_id, self.connector)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputationRecord:
    """The computation of the target assignment for ``epoch``: the chosen member and the failures before.

    Attributes:
        epoch: the group epoch to compute for. Once the member has prepared, the group epoch in that response: the group
            epoch may advance while the assignor runs.
        member_id: the chosen member; empty for the coordinator.
        prepared: whether the member has sent Prepare; until then it is asked again.
        failures: computations that failed or timed out since the last target assignment.
        failed_members: members that failed; not chosen again while others can compute.
        error: the last failure as text, kept after the target assignment is installed, for describe.
        assignor: *(tagged)* the assignor in the response to Prepare.
        replaced_members: *(tagged)* members that were chosen before ``member_id`` and replaced because the group epoch
            advanced before they sent Prepare; empty once a member has prepared.
        keeps_target: *(tagged)* the assignor has decided, for ``epoch``, to keep the target assignment as it is.
    """

    group_id: str
    epoch: int
    member_id: str = ""
    prepared: bool = False
    failures: int = 0
    failed_members: tuple[str, ...] = ()
    error: str = ""
    assignor: str = ""
    replaced_members: tuple[str, ...] = ()
    keeps_target: bool = False

    @property
    def key(self) -> Key:
        return Key(Kind.COMPUTATION, self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRecord:
    """The status that the owner of a unit last reported.

    Attributes:
        at_ms: *(tagged)* the coordinator's wall clock when it was reported; 0 if unknown.
        fenced: *(tagged)* see ``TaskStatus.fenced``.
        progress: *(tagged)* the numbers of the task when the record was written, for a later coordinator: those of this
            owner, with all errors of the task, and the totals of the owners before, if there are any; or none. No rule
            depends on them, and the state does not keep them.
        history: *(tagged)* of a connector: its last hour when the record was written, for a later coordinator; none or
            one. The same holds.
        idle_ms: *(tagged)* see ``TaskStatus.idle_ms``.
    """

    group_id: str
    connector: str
    task: int = CONNECTOR
    member_id: str = ""
    owner_epoch: int = -1
    state: UnitState = UnitState.RUNNING
    message: str = ""
    at_ms: int = 0
    fenced: bool = False
    progress: tuple[Progress, ...] = ()
    history: tuple[ConnectorHistory, ...] = ()
    idle_ms: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.STATUS, self.group_id, f"{self.connector}\n{self.task}")

    def without_numbers(self) -> StatusRecord:
        """The status alone, as the state keeps it."""
        return replace(self, progress=(), history=()) if self.progress or self.history else self


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayRecord:
    """Units that are assigned to no member until a deadline: those of a lost worker, or at an assignor's request.

    Attributes:
        member_id: the lost worker; empty if the assignor requested the delay.
        instance_id: that worker's group instance id, if it had one: it may return under another member id.
        units: the delayed units.
        error: with ``version`` and ``metadata`` the rest of the lost worker's target assignment, to be restored
            unchanged.
        delay_ms: the full delay when it started; upper bound on the time left.
        deadline_ms: wall clock, milliseconds since 1970. A coordinator that loads the group continues with it.
        epoch: the group epoch of the loss. While it is the newest, nothing else has changed since. A unit that is newer
            than this (created again, reconfigured) is not delayed.
        said: checksum of the assignors the worker listed, with their metadata and reasons, and of its labels, rack,
            capacity and host: a worker that returns with others needs another target assignment.
    """

    group_id: str
    member_id: str = ""
    instance_id: str | None = None
    units: tuple[ConnectorTasks, ...] = ()
    error: int = 0
    version: int = 0
    metadata: bytes = b""
    delay_ms: int = 0
    deadline_ms: int = 0
    epoch: int = 0
    said: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.DELAY, self.group_id, self.member_id)

    def left_ms(self, now_ms: int) -> int:
        """Time left at ``now_ms``: never below zero, nor above the full delay, even if clocks jump (F14)."""
        return min(max(self.deadline_ms - now_ms, 0), self.delay_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceRecord:
    """One rebalance, written when it starts and again when all members have reached its target assignment.

    Attributes:
        silent_ms: *(tagged)* for how long the member that the same batch removes had sent no heartbeat: the downtime of
            its units is counted from its last sign of life.
    """

    group_id: str
    rebalance: Rebalance
    silent_ms: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.REBALANCE, self.group_id, str(self.rebalance.epoch))


Value = (
    GroupRecord
    | MemberRecord
    | TargetRecord
    | TargetMemberRecord
    | CurrentRecord
    | ConnectorRecord
    | ComputationRecord
    | StatusRecord
    | RebalanceRecord
    | DelayRecord
    | ClassicGroupRecord
    | ClassicMemberRecord
    | ConsumerMemberRecord
    | ConsumerTargetMemberRecord
    | ConsumerCurrentRecord
    | ConsumerTopicsRecord
    | ConsumerRegexRecord
    | OffsetRecord
    | PendingOffsetRecord
)


Record = Value | Tombstone

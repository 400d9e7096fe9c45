"""The only way a group changes: one frozen class a record, keyed so that the newest of each key is enough.

A record's key is ``(kind, group_id, name)``. Two records with the same key: the later one replaces the earlier
(a log may be compacted at any time). A ``Tombstone`` removes a key; one for a key that is not there is a
no-op (KAFKA-17306).

Source: the "data model" of KIP-848 (ConsumerGroupMetadata, MemberMetadata, TargetAssignmentMetadata,
TargetAssignmentMember, CurrentMemberAssignment), widened by connectors, statuses and rebalances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ..messages.common import AssignorInfo, ConfigEntry, ConnectorTasks
from ..messages.describe import Rebalance
from ..units import CONNECTOR, Unit
from .base import Key, Kind, Tombstone

GROUP_TYPE: Final = "connect"


_unit = tuple.__new__
"""As in ``messages``: a ``Unit`` of its fields, for long loops."""


HISTORY: Final = 100
"""Rebalances a group remembers: design 3.12."""


MOST_MOVES: Final = 100
"""Moves of one rebalance that are kept one by one: a record must fit into a batch however large the group is."""


class MemberState(IntEnum):
    """Where a member stands on its way to its target (Kafka's MemberState, same bytes)."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2
    UNKNOWN = 127


class WantedState(IntEnum):
    """What an operator wants of a connector."""

    RUNNING = 1
    PAUSED = 2
    STOPPED = 3


class UnitState(IntEnum):
    """What a worker says of a unit it holds."""

    RUNNING = 1
    FAILED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """The group's epoch; its first one makes the group.

    ``created_ms`` is the coordinator's wall clock when it did, the same in all that follow: a group whose log was lost
    begins again at epoch 1, and this tells it from the one before.
    """

    group_id: str
    epoch: int
    group_type: str = GROUP_TYPE
    created_ms: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.GROUP, self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """What a member said about itself when it joined, or since.

    Attributes:
        draining: *(tagged)* it wants nothing new and its work taken over.
        labels: *(tagged)* the worker's labels, sorted by name.
        rack: *(tagged)* the worker's rack or zone; empty if not given.
        capacity: *(tagged)* the most weight the worker can carry; 0 if not given.
        host: *(tagged)* the machine the worker runs on; empty if not given.
        client_id: *(tagged)* the client id of the request that joined; for people to read, as ``client_host`` is.
        joined_epoch: *(tagged)* the group epoch at which the member joined; 0 if unknown (KIP-848,
            ConsumerGroupMemberMetadataValue: GroupEpoch, ClientId).
        restart_requested: *(tagged)* an operator has requested that the worker restart; the member has not left yet.
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

    @property
    def traits(self) -> tuple[tuple[ConfigEntry, ...], str, int, str]:
        """Labels, rack, capacity and host: a change of them asks for a new target assignment."""
        return (self.labels, self.rack, self.capacity, self.host)

    @property
    def key(self) -> Key:
        return Key(Kind.MEMBER, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecord:
    """A target is installed: the last record of its batch, so that half a target is never current.

    Attributes:
        checksum: *(tagged)* of what was installed, to tell the same install sent twice from another one.
        deferred: *(tagged)* moves that were left for the next round (``GroupSettings.most_moves``).
        at_ms: *(tagged)* the coordinator's wall clock when an assignor's answer was taken; 0: it was never asked.
    """

    group_id: str
    epoch: int
    assignor: str = ""
    computed_by: str = ""
    checksum: int = 0
    deferred: int = 0
    at_ms: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.TARGET, self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMemberRecord:
    """One member's share of the target."""

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
class HeldTasks:
    """Some of one connector's units with the epochs at which they were given.

    Attributes:
        connector: the connector's name.
        tasks: ascending, -1 for the connector itself.
        owner_epochs: one a task, in the same order.
    """

    connector: str
    tasks: tuple[int, ...]
    owner_epochs: tuple[int, ...]


def held(units: Mapping[Unit, int]) -> tuple[HeldTasks, ...]:
    """Units and owner epochs in their stored shape, sorted."""
    by_connector: dict[str, list[int]] = {}
    for connector, task in sorted(units):
        by_connector.setdefault(connector, []).append(task)
    return tuple(
        HeldTasks(
            connector=connector,
            tasks=tuple(tasks),
            owner_epochs=tuple(units[Unit(connector, task)] for task in tasks),
        )
        for connector, tasks in by_connector.items()
    )


def epochs_of(groups: Iterable[HeldTasks]) -> dict[Unit, int]:
    """Units and owner epochs out of their stored shape."""
    return {
        _unit(Unit, (group.connector, task)): epoch
        for group in groups
        for task, epoch in zip(group.tasks, group.owner_epochs, strict=True)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRecord:
    """What a member runs (``assigned``) and what it has been told to stop (``pending``).

    ``at_ms`` is the coordinator's wall clock when it was written: standstill is measured with it.
    """

    group_id: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: MemberState = MemberState.STABLE
    assigned: tuple[HeldTasks, ...] = ()
    pending: tuple[HeldTasks, ...] = ()
    at_ms: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.CURRENT, self.group_id, self.member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """One task of a connector.

    Attributes:
        config: its configuration.
        since_epoch: the group epoch that brought this configuration. A grant older than that is of the
            configuration before, and must be given back before the task is granted anew.
    """

    config: tuple[ConfigEntry, ...] = ()
    since_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorRecord:
    """A connector as the group knows it; ``version`` is the group epoch of the last change of anything in it.

    ``since_epoch`` is to the connector itself what ``TaskEntry.since_epoch`` is to a task.
    """

    group_id: str
    connector: str
    version: int
    wanted_state: WantedState = WantedState.RUNNING
    config: tuple[ConfigEntry, ...] = ()
    since_epoch: int = 0
    tasks: tuple[TaskEntry, ...] = ()

    @property
    def key(self) -> Key:
        return Key(Kind.CONNECTOR, self.group_id, self.connector)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputationRecord:
    """Who was asked to compute the target for ``epoch``, and how often that failed before.

    Attributes:
        epoch: the group epoch to compute for. Once the member has prepared, the group epoch it was given: the group
            epoch may advance while the assignor runs.
        member_id: the member asked.
        prepared: whether it has come for the group's state; until then it is told again.
        failures: computations that failed or stayed silent since the last target assignment.
        failed_members: who failed; not asked again while others can be.
        error: the last failure in words, kept after the target is in, for describe.
        assignor: *(tagged)* the assignor the member was told to run when it prepared.
    """

    group_id: str
    epoch: int
    member_id: str = ""
    prepared: bool = False
    failures: int = 0
    failed_members: tuple[str, ...] = ()
    error: str = ""
    assignor: str = ""

    @property
    def key(self) -> Key:
        return Key(Kind.COMPUTATION, self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRecord:
    """What the holder of a unit last said of it."""

    group_id: str
    connector: str
    task: int = CONNECTOR
    member_id: str = ""
    owner_epoch: int = -1
    state: UnitState = UnitState.RUNNING
    message: str = ""

    @property
    def key(self) -> Key:
        return Key(Kind.STATUS, self.group_id, f"{self.connector}\n{self.task}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayRecord:
    """Work that is given to nobody until its deadline: a lost worker's, or what an assignor wants held back.

    Attributes:
        member_id: the worker that is waited for; empty where the assignor asked for the delay.
        instance_id: that worker's static name, if it had one: it may come back under another member id.
        units: what is held back.
        error: with ``version`` and ``metadata`` the rest of the lost worker's share, to be given back as it was.
        delay_ms: how long it was to last when it began; what is left of it is never taken to be more.
        deadline_ms: wall clock, milliseconds since 1970. A coordinator that loads the group goes on from it.
        epoch: the group epoch that the loss led to. While it is the newest, nothing else has happened since. A unit
            that is newer than this (made anew, reconfigured) does not wait.
        said: checksum of the assignors the worker listed, with their metadata and reasons, and of its labels, rack,
            capacity and host: one that comes back with others wants another target.
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
        """What is left at ``now_ms``: never below zero, nor above the whole, whatever the clocks did (F14)."""
        return min(max(self.deadline_ms - now_ms, 0), self.delay_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceRecord:
    """One rebalance, written when it begins and again when all members have reached its target."""

    group_id: str
    rebalance: Rebalance

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
)


Record = Value | Tombstone

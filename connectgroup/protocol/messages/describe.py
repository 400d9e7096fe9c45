"""ConnectGroupDescribe and ConnectGroupDelete."""

from __future__ import annotations

from dataclasses import dataclass

from .assignment import HeldBack
from .common import ConfigEntry, ConnectorTasks


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

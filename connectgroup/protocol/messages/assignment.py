"""ConnectGroupPrepareAssignment and ConnectGroupInstallAssignment.

Source: "Connect on the new protocol", the two APIs of those names.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from ..units import CONNECTOR, Unit, Units
from .common import ConfigEntry, ConnectorTasks


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

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
    """Sent by the member chosen to compute: request the state of the group (ConnectGroupPrepareAssignment).

    Attributes:
        process_id: *(tagged)* see ``HeartbeatRequest``.
    """

    group_id: str
    member_id: str
    member_epoch: int
    process_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignorMetadata:
    """One member's metadata for the selected assignor."""

    version: int = 0
    reason: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMember:
    """One member in the input of an assignor.

    Attributes:
        unit_indices: the unit indices of its current target assignment, ascending: indices into
            ``PrepareResponse.all_units()``, which ``PrepareResponse.shares()`` resolves. Indices, because with names
            the decoding of the input took longer than the computation of the result.
        assignor_state: *(tagged)* the assignor user data that this assignor's result had for it with that target
            assignment (``InstalledMember.metadata``); empty if another assignor computed it.
        labels: *(tagged)* as in the member's heartbeat; so are the next three.
        rack: *(tagged)* see ``HeartbeatRequest``.
        capacity: *(tagged)* see ``HeartbeatRequest``.
        host: *(tagged)* see ``HeartbeatRequest``.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    assignor: AssignorMetadata = AssignorMetadata()
    unit_indices: tuple[int, ...] = ()
    assignor_state: bytes = b""
    labels: tuple[ConfigEntry, ...] = ()
    rack: str = ""
    capacity: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedConnector:
    """A connector to be assigned: the counterpart of KIP-848's ``Topics``.

    Attributes:
        connector: the connector's name.
        num_tasks: the tasks are 0 .. num_tasks - 1.
        weight: *(tagged)* load of the connector itself, 0 by default: it mostly watches its source.
        task_weights: *(tagged)* load of each task; empty means 1 each.
        placement: *(tagged)* the entries of its configuration with the prefix ``assignment.``.
    """

    connector: str
    num_tasks: int
    weight: int = 0
    task_weights: tuple[int, ...] = ()
    placement: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedUnits:
    """Delayed units: reserved for a lost worker, or delayed at the request of the assignor.

    Attributes:
        member_id: the lost worker; empty if the assignor requested the delay.
        instance_id: the lost worker's group instance id, null if it had none.
        left_ms: time left, in milliseconds.
        units: the delayed units.
    """

    member_id: str = ""
    instance_id: str | None = None
    left_ms: int = 0
    units: tuple[ConnectorTasks, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareResponse:
    """The group at ``group_epoch``, complete: everything that an assignor may use.

    Attributes:
        delayed: *(tagged)* delayed units. The assignor may assign them or leave them out: the coordinator assigns
            them to no member yet.
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
    delayed: tuple[DelayedUnits, ...] = ()
    scheduled_rebalance_max_delay_ms: int = 0

    def all_units(self) -> list[Unit]:
        """All units to assign, in the order of ``connectors``: each connector, then its tasks."""
        return [Unit(entry.connector, task) for entry in self.connectors for task in range(CONNECTOR, entry.num_tasks)]

    def starts(self) -> list[int]:
        """The index of each connector in ``all_units()``, followed by its tasks; last, the number of units."""
        return list(accumulate((entry.num_tasks + 1 for entry in self.connectors), initial=0))

    def shares(self) -> list[Units]:
        """The target assignment of each member, in the order of ``members``; an index out of range is ignored."""
        names = [entry.connector for entry in self.connectors]
        *starts, total = self.starts()

        def unit(place: int) -> Unit:
            index = bisect_right(starts, place) - 1
            return Unit(names[index], place - starts[index] + CONNECTOR)

        return [
            frozenset([unit(place) for place in member.unit_indices if 0 <= place < total]) for member in self.members
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledMember:
    """One member's part of a computed target assignment."""

    member_id: str
    error: int = 0
    units: tuple[ConnectorTasks, ...] = ()
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRequest:
    """The computed target assignment (ConnectGroupInstallAssignment).

    Attributes:
        group_epoch: the epoch in the response to Prepare.
        error: 0, or the assignor's error: then nothing is installed.
        members: the complete target assignment; a member that is not listed is assigned nothing.
        message: *(tagged)* the error as text; without an error, the assignor's remark on its result for operators.
        delayed: *(tagged)* units left out on purpose; needs ``delay_ms``.
        delay_ms: *(tagged)* request another computation after this delay; 0 is never.
        process_id: *(tagged)* see ``HeartbeatRequest``.
        keeps_target: *(tagged)* with an error: the assignor has decided to keep the current target assignment. Without
            it, an error is a failure, and another member is asked.
    """

    group_id: str
    member_id: str
    member_epoch: int
    group_epoch: int
    error: int = 0
    members: tuple[InstalledMember, ...] = ()
    message: str = ""
    delayed: tuple[ConnectorTasks, ...] = ()
    delay_ms: int = 0
    process_id: int = -1
    keeps_target: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallResponse:
    """Whether the target assignment was installed; it is installed atomically."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    coordinator_epoch: int = -1

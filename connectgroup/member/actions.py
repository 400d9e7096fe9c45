"""The actions of a worker, as values: the state machine decides, the worker's loop performs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import GroupError
from ..protocol.units import Unit, Units


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One unit assigned to this worker.

    Attributes:
        unit: the connector or task.
        owner_epoch: the epoch at which it was assigned: with the unit, the token to fence writes with.
        incarnation: the group's incarnation: epochs of a later one count as higher, whatever their values.
        config: the task's configuration; empty for the connector itself.
        connector_config: the connector's configuration. Neither changes while the owner epoch is the same: a new
            configuration comes with a new owner epoch.
    """

    unit: Unit
    owner_epoch: int
    incarnation: int = 0
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    connector_config: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """Stop these units, notify the listeners, then call ``Member.mark_revoked``: that acknowledges the revocation.

    Attributes:
        epoch: the member epoch of the response, for listeners and the trace.
    """

    units: Units
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Notify the listeners, then start these units.

    Attributes:
        epoch: the member epoch of the response, for listeners and the trace.
    """

    grants: tuple[Grant, ...]
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TellAssignor:
    """This member has reached a new target assignment: call ``on_assignment`` of the assignor that computed it.

    Once for each target assignment, and before the units that come with it are started (PD-12).

    Attributes:
        assignor: the name of one of this worker's assignors.
        units: all units of this member as of this epoch. Units that other members are still stopping come later.
        epoch: the target epoch.
        error: the assignor's error for this member, 0 is none.
        version: version of ``metadata``.
        metadata: opaque bytes from the assignor.
    """

    assignor: str
    units: Units
    epoch: int
    error: int = 0
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lose:
    """All units are lost: stop them at once, call ``on_lost`` of the listeners, then call ``Member.mark_lost``.

    Actions returned before this one that have not started must not be started any more (KAFKA-16375).
    """

    units: Units
    epoch: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lapse:
    """The lease has expired: stop the units that no sink fences, at once; the fenced ones run on.

    Then call ``on_lost`` of the listeners, then ``Member.mark_lapsed``: the worker stays a member, and the coordinator
    assigns them again. Assignments returned before this one must not start any unit of ``stops`` any more.

    Attributes:
        units: the units to lose.
        stops: all units that are not fenced: ``units``, and those whose revocation is not complete.
        runs_on: the fenced units, which a successor's claim ends.
    """

    units: Units
    stops: Units
    runs_on: Units
    epoch: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTarget:
    """This member has been chosen to compute the group's target assignment: Prepare, assign, Install."""

    member_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """An operator has requested a restart: stop everything, leave with ``returns``, and start the worker again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An operator has requested a drain: request that other members take all units, then leave for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The coordinator rejects this worker with an error that is not retriable."""

    error: GroupError


Action = Revoke | Assign | TellAssignor | Lose | Lapse | ComputeTarget | Restart | Drain | Fail

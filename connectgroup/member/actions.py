"""What a worker must do, as values: the machine decides, the loop performs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import GroupError
from ..protocol.units import Unit, Units


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One unit given to this worker.

    Attributes:
        unit: the connector or task.
        owner_epoch: when it was given: with the unit, the token to fence writes with.
        incarnation: of the group: epochs of a later one count as higher, whatever they are.
        config: the task's configuration; empty for the connector itself.
        connector_config: the connector's configuration. Neither changes while the grant lasts: a new
            configuration comes with a new grant.
    """

    unit: Unit
    owner_epoch: int
    incarnation: int = 0
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    connector_config: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """Stop these, tell the listeners, then call ``Member.mark_revoked``: that acknowledges."""

    units: Units
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Tell the listeners, then start these."""

    grants: tuple[Grant, ...]
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TellAssignor:
    """This member has reached a new target assignment: call ``on_assignment`` of the assignor that computed it.

    Once for each target assignment, and before the units that come with it are started (design 3.12).

    Attributes:
        assignor: the name of one of this worker's assignors.
        units: all units of this member as of this epoch. Units that other members still stop come later.
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
    """Everything is lost: stop it all at once, tell the listeners ``on_lost``, then call ``Member.mark_lost``.

    Actions given out before this one that have not begun must not be begun any more (KAFKA-16375).
    """

    units: Units
    epoch: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """This member has been chosen to compute the group's target: Prepare, assign, Install."""

    member_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """An operator has requested a restart: stop everything, leave with ``returns``, and start the worker again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The coordinator will not have this worker as it is; trying again would change nothing."""

    error: GroupError


Action = Revoke | Assign | TellAssignor | Lose | Compute | Restart | Fail

"""Reconciliation: one step of one member towards its target assignment, as one pure function.

        keep    = assigned & target          unchanged, with its owner epoch, unless its configuration is newer
        revoke  = assigned - target          revoked first; the member epoch does not advance until it is acknowledged
        gain    = target - keep              assigned once no other member owns it; a pending revocation still owns it

| state              | acknowledges | revokes | gains     | state then | epoch  | what happens                        |
|--------------------|--------------|---------|-----------|------------|--------|-------------------------------------|
| STABLE, UNRELEASED | -            | yes     | -         | UNREVOKED  | same   | revoke; assign nothing              |
| STABLE, UNRELEASED | -            | no      | all       | STABLE     | target | assign what is missing, if anything |
| STABLE, UNRELEASED | -            | no      | some      | UNRELEASED | target | assign what no other member owns    |
| UNREVOKED          | no           | -       | -         | UNREVOKED  | same   | revoke more, if it must not run     |
| UNREVOKED          | yes          | yes     | -         | UNREVOKED  | same   | the pending units are released      |
| UNREVOKED          | yes          | no      | all       | STABLE     | target | the pending units are released      |
| UNREVOKED          | yes          | no      | some      | UNRELEASED | target | the pending units are released      |

- acknowledges: the member reports its owned units, and none of those with a pending revocation.
- revokes: an assigned unit is not in ``keep``, and the member does not report that it has stopped it already (CA-05).
- gains: ``all`` if no other member owns a unit of ``gain`` (also if there is none), ``some`` otherwise.

A response therefore either revokes or assigns units, never both. Units are opaque here. While a revocation is pending,
a newer target assignment waits for the acknowledgement. A unit that must not run any more does not: it joins the
pending revocation at once (CA-19). A member in a state that a newer version has written is fenced if it runs units.

Source: KIP-848 "Reconciliation" and Kafka's ``CurrentAssignmentBuilder``, whose tests are rows CA-01..CA-18 of the
conformance scenarios; "Connect on the new protocol", the three steps under "Reconciliation".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

from ...errors import FencedMemberEpoch
from ...protocol.records.connect import MemberState
from ...protocol.units import STATIC_LEAVE_EPOCH, TopicPartition, Unit

# --------------------------------------------------------------------------------------------------
# The current assignment of one member: units it owns, pending revocations, and its epochs.


U = TypeVar("U", Unit, TopicPartition)
"""What a group assigns: the rules of the kernel depend on equality and order only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Current(Generic[U]):
    """A member's current assignment: assigned units and units with a pending revocation, each with its owner epoch.

    Changed by ``reconcile`` alone: it returns the next one, which a record of the member keeps.

    Attributes:
        epoch: the member epoch.
        previous_epoch: the one before; a repeated request may still have it, as its response may have been lost.
        state: whether revocations or assignments are outstanding.
        assigned: units that the member runs or is to start.
        pending: units that it is to stop and has not acknowledged yet.
    """

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Mapping[U, int] = field(default_factory=dict)
    pending: Mapping[U, int] = field(default_factory=dict)

    @property
    def held(self) -> dict[U, int]:
        """All units the member owns, assigned and pending; they must not be assigned to another member."""
        return {**self.pending, **self.assigned}

    @property
    def temporarily_left(self) -> bool:
        """Whether the member has left temporarily: it runs no units, and its units are kept for it (ST-01)."""
        return self.epoch == STATIC_LEAVE_EPOCH


NOTHING: Final[Current[Any]] = Current()


# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileTarget(Generic[U]):
    """What a member is reconciled with.

    Attributes:
        units: the member's target assignment, without the units that must not be assigned now.
        epoch: the epoch of the target assignment.
        runnable: the units that may run, each with the group epoch of its configuration. A unit with an older owner
            epoch must be revoked even if it stays with the member: it runs an outdated configuration.
    """

    units: frozenset[U]
    epoch: int
    runnable: Mapping[U, int]


def reconcile(
    current: Current[U], target: ReconcileTarget[U], *, owned: frozenset[U] | None, is_free: Callable[[U], bool]
) -> Current[U]:
    """Reconcile a member by one step.

    Args:
        current: the member's current assignment.
        target: the state to reach.
        owned: every unit that the member reports it may be running; ``None`` means "unchanged" and acknowledges
            nothing.
        is_free: whether no other member owns a unit; a pending revocation still owns it.

    Returns:
        The member's new current assignment; the same object if nothing changes.

    Raises:
        FencedMemberEpoch: the stored state was written by a newer version, and the member still runs units.
    """
    match current.state:
        case MemberState.STABLE | MemberState.UNRELEASED:
            return _next(current, target, owned, is_free)
        case MemberState.UNREVOKED:
            # "The group coordinator revokes ... until the worker acknowledges the revocation": a heartbeat without
            # owned units is no acknowledgement, nor is one that still reports one of the units.
            if not acknowledges(current, owned):
                return _stop_too(current, target.runnable)
            return _next(replace(current, pending={}), target, owned, is_free)
        case _:
            if owned is None or owned:
                raise FencedMemberEpoch("the member's state was written by a newer version; the member must join again")
            return _next(replace(current, assigned={}, pending={}), target, owned, is_free)


def _stop_too(current: Current[U], runnable: Mapping[U, int]) -> Current[U]:
    """Add to the pending revocation the units that must not run any more: stopped, paused, deleted, reconfigured
    (CA-19). The rest of the assignment is unchanged until the member acknowledges (CA-07).
    """
    stop = {unit: epoch for unit, epoch in current.assigned.items() if unit not in runnable or epoch < runnable[unit]}
    if not stop:
        return current
    keep = {unit: epoch for unit, epoch in current.assigned.items() if unit not in stop}
    return replace(current, assigned=keep, pending={**current.pending, **stop})


def _next(
    current: Current[U], target: ReconcileTarget[U], owned: frozenset[U] | None, is_free: Callable[[U], bool]
) -> Current[U]:
    keep = {
        unit: epoch
        for unit, epoch in current.assigned.items()
        if unit in target.units and epoch >= target.runnable.get(unit, 0)
    }
    revoke = {unit: epoch for unit, epoch in current.assigned.items() if unit not in keep}

    # A member that reports its owned units without these has revoked them already: no revocation is needed (CA-05).
    if revoke and (owned is None or owned & revoke.keys()):
        return replace(current, state=MemberState.UNREVOKED, assigned=keep, pending=revoke)

    gain = target.units - keep.keys()
    free = {unit: target.epoch for unit in gain if is_free(unit)}
    state = MemberState.STABLE if len(free) == len(gain) else MemberState.UNRELEASED
    if not free and not revoke and not current.pending and (state, target.epoch) == (current.state, current.epoch):
        return current
    # Sorted only where the order leaves the core (records.held); insertion order does not matter here.
    return replace(current, epoch=target.epoch, state=state, assigned={**keep, **free}, pending={})


def acknowledges(current: Current[U], owned: frozenset[U] | None) -> bool:
    """Whether a report at the member's epoch acknowledges its pending revocation: it has none of those units.

    It is processed before the member is asked to compute. Otherwise a member that never sends Prepare would exceed its
    rebalance timeout with no unit left to stop (reliability S14).
    """
    return current.state == MemberState.UNREVOKED and owned is not None and not owned & current.pending.keys()

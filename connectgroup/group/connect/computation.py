"""The computation of a connect group's target assignment: its effects, its timer and the rounds that follow.

The type-neutral rules are in ``kernel.computation``.
"""

from __future__ import annotations

from ...protocol.records.connect import GROUP_TYPE
from ...protocol.units import printable
from ..kernel import computation as rules
from ..kernel.computation import COORDINATOR, under_way
from ..kernel.effects import Compute, Effect, Warn
from ..kernel.outcome import Outcome
from ..kernel.timers import Timer
from .move_limit import starting_units
from .overlay import Overlay
from .settings import GroupSettings, ServerAssignment
from .state import Group
from .target import group_state, install_target


def ensure_computation(overlay: Overlay, settings: GroupSettings, *, waited: bool = False) -> tuple[Timer, ...]:
    """As ``kernel.computation.ensure_computation``; a group without members gets its empty target at once."""
    if overlay.epoch > overlay.target_epoch and not overlay.any_member():
        # A group without members has nothing to assign: its target assignment is always current (KAFKA-20442, HB-13).
        return install_target(overlay, ServerAssignment(), "", COORDINATOR, settings)
    return rules.ensure_computation(overlay, settings, waited=waited)


def effects_of(group: Group, now_ms: int, settings: GroupSettings) -> tuple[Effect, ...]:
    """The effects that the computation of a group requests; none if a member computes, or nothing does.

    Args:
        group: the group after a step, or after it was loaded.
    """
    computation = under_way(group)
    if computation is None or computation.member_id or not group.members:
        return ()
    if not computation.prepared:
        return (Warn(group_id=group.group_id, epoch=group.epoch, message=rules.no_target(group, computation)),)
    request = Compute(
        group_id=group.group_id,
        group_type=GROUP_TYPE,
        epoch=group.epoch,
        assignor=computation.assignor,
        input=group_state(Overlay(group, now_ms), computation.assignor, settings),
    )
    without = sorted(member.member_id for member in group.members.values() if not member.assignors)
    if not without or len(without) == len(group.members):
        return (request,)
    message = (
        f"the coordinator assigns with {computation.assignor!r}: {', '.join(map(printable, without[:5]))} "
        f"list no assignor, so that the assignors of the other members, and their constraints, are not used"
    )
    return (request, Warn(group_id=group.group_id, epoch=group.epoch, message=message))


def request_computation(group: Group, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """Start a computation if the target epoch is behind the group epoch.

    Called after the records of a change of connectors, or of a target assignment, have been applied, because the input
    of an assignor must be the group as it is then.
    """
    overlay = Overlay(group, now_ms)
    timers = ensure_computation(overlay, settings)
    return Outcome(response=None, records=tuple(overlay.records), timers=timers)


def next_round(group: Group, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """Start the next round when all members have reached the target assignment.

    Causes: moves deferred by the limit of the last round, moves of units that were starting and have started, and moves
    off a draining member that were not possible while no other member could take its units.
    """
    overlay = Overlay(group, now_ms)
    timers: tuple[Timer, ...] = ()
    if group.members and not group.behind and group.epoch == group.target_epoch:
        if group.deferred:
            overlay.bump(f"{group.deferred} left to move in this round")
        elif group.deferred_starts and not starting_units(overlay):
            overlay.bump(f"{group.deferred_starts} left to move, which were starting")
        elif leaving := _drainable_member(overlay):
            overlay.bump(f"a member can take the units of {leaving}")
        timers = ensure_computation(overlay, settings)
    return Outcome(response=None, records=tuple(overlay.records), timers=timers)


def _drainable_member(overlay: Overlay) -> str:
    """A draining member that still has a target assignment although other members can take its units; else empty."""
    takers = {member.member_id for member in overlay.assignable_members()}
    for member in overlay.members():
        if member.draining and member.member_id not in takers and overlay.target(member.member_id).units:
            return member.member_id
    return ""

"""Who computes the target assignment, and what happens when a computation fails or is late.

A member that does not respond in time is replaced. A member whose assignor fails is not chosen again while other
members can compute. After a few failures the coordinator runs its own assignor, so that a faulty plug-in cannot block
a group.

Source: "Connect on the new protocol", "Assignment".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...protocol.records.connect import GROUP_TYPE, ComputationRecord
from ...protocol.units import printable
from ..kernel.effects import Compute, Effect, Warn
from ..kernel.outcome import Outcome
from ..kernel.timers import Timer
from .overlay import Overlay
from .selection import assignable_members, members_able_to_compute_now, select_assignor
from .settings import GroupSettings, ServerAssignment
from .state import Group
from .target import COORDINATOR, group_state, install_target
from .timers import compute

MAX_ASKED_MEMBERS = 3
"""Members that may be asked for one computation before the rebalance timeout of the last one decides. Many members that
join at the same moment must not each be asked to compute."""


def ensure_computation(overlay: Overlay, settings: GroupSettings, *, waited: bool = False) -> tuple[Timer, ...]:
    """Ensure that an outdated target assignment is being computed by a capable member or the coordinator.

    Called at the end of every step. Does nothing while the target assignment is current or a computation is in
    progress. A computation continues when the group epoch advances: its assignment may still be valid (``install``),
    and the next computation covers all later causes at once. A chosen member that has not sent Prepare by then is
    replaced, because it may be unresponsive (``_replace_chosen_member``). Within ``assignment_interval_ms`` of the
    previous target assignment the computation is delayed to collect more causes (TO-06).

    Args:
        waited: the interval has elapsed.
    """
    if overlay.epoch <= overlay.target_epoch:
        return ()
    members = list(overlay.members())
    if not members:
        # A group without members has nothing to assign: its target assignment is always current (KAFKA-20442, HB-13).
        return install_target(overlay, ServerAssignment(), "", COORDINATOR, settings)
    running = under_way(overlay)
    if running is None and not waited and (left_ms := _remaining_interval_ms(overlay, settings)):
        return (compute(overlay.group.group_id, overlay, left_ms),)
    assignor = select_assignor(members)
    able = members_able_to_compute_now(overlay, members, assignor) if assignor else []
    if running is not None:
        failed_here = not able or running.failures >= settings.failures_before_fallback
        if running.member_id == "" and (running.prepared or failed_here):
            return ()
        if running.member_id in able:
            return _replace_chosen_member(overlay, able, running)
    return _choose_member(
        overlay, settings, able, running or ComputationRecord(group_id=overlay.group.group_id, epoch=overlay.epoch)
    )


def under_way(group: Overlay | Group) -> ComputationRecord | None:
    """The computation of the next target assignment that is in progress, or ``None``.

    A computation continues when the group epoch advances. A failed attempt of a server-side assignor counts for its
    group epoch only: the next change may be what lets it succeed. ``member_id`` is empty if the coordinator computes;
    ``prepared`` is then true until the attempt has failed.
    """
    computation = group.computation
    if computation is None or not group.target_epoch < computation.epoch <= group.epoch:
        return None
    in_progress = computation.member_id or computation.prepared
    return computation if in_progress or computation.epoch == group.epoch else None


def _remaining_interval_ms(overlay: Overlay, settings: GroupSettings) -> int:
    """Time left of the interval since the previous target assignment; 0 if there was none (TO-08)."""
    passed_ms = overlay.now_ms - overlay.group.target_ms
    # If the clock was set back, the elapsed time is unknown.
    if not overlay.group.target_ms or passed_ms < 0:
        return 0
    return max(0, settings.assignment_interval_ms - passed_ms)


def _choose_member(
    overlay: Overlay, settings: GroupSettings, able: Sequence[str], computation: ComputationRecord
) -> tuple[Timer, ...]:
    """Choose a member that has not failed yet, or the coordinator after too many failures."""
    if computation.failures >= settings.failures_before_fallback or not able:
        return _compute_on_coordinator(overlay, settings, computation)
    not_failed = [member_id for member_id in able if member_id not in computation.failed_members]
    not_asked = [member_id for member_id in not_failed if member_id not in computation.replaced_members]
    return _ask_member(overlay, not_asked or not_failed or able, computation)


def _replace_chosen_member(overlay: Overlay, able: Sequence[str], computation: ComputationRecord) -> tuple[Timer, ...]:
    """Choose another member if the group epoch has advanced before the chosen member sent Prepare.

    A paused process whose session has not expired would otherwise delay the group for its rebalance timeout. The
    replaced member is not fenced and not counted as failed, and its Prepare is accepted until another member has
    prepared (``accepts_prepare``): a group that changes faster than its members respond still computes.
    """
    asked = (*computation.replaced_members, computation.member_id)
    others = [member_id for member_id in able if member_id not in (*asked, *computation.failed_members)]
    # The assignor, not ``prepared``: each heartbeat at epoch 0 clears ``prepared``, and the sender may be computing.
    if computation.assignor or computation.epoch == overlay.epoch or len(asked) >= MAX_ASKED_MEMBERS or not others:
        return ()
    return _ask_member(overlay, others, replace(computation, replaced_members=asked))


def _ask_member(overlay: Overlay, candidates: Sequence[str], computation: ComputationRecord) -> tuple[Timer, ...]:
    """Choose one of the candidates and arm the timer of its computation."""
    # The assignor of the last member that computed is known to work; otherwise the member with the lowest id. The
    # choice is the same on every replay.
    chosen = overlay.group.computed_by if overlay.group.computed_by in candidates else candidates[0]
    replaced = tuple(member_id for member_id in computation.replaced_members if member_id != chosen)
    overlay.write(
        replace(
            computation,
            epoch=overlay.epoch,
            member_id=chosen,
            prepared=False,
            assignor="",
            replaced_members=replaced,
        )
    )
    return (computation_timer(overlay, chosen),)


def computation_timer(overlay: Overlay, member_id: str) -> Timer:
    """The deadline of the computation that the overlay has now, which is the rebalance timeout of its member."""
    member = overlay.member(member_id)
    assert member is not None
    return compute(overlay.group.group_id, overlay, member.rebalance_timeout_ms)


def accepts_prepare(overlay: Overlay, computation: ComputationRecord, member_id: str, assignor: str) -> bool:
    """Whether a Prepare of the member is accepted: it is the chosen one, or was replaced and can still compute."""
    return member_id == computation.member_id or (
        member_id in computation.replaced_members
        and member_id in members_able_to_compute_now(overlay, list(overlay.members()), assignor)
    )


def _compute_on_coordinator(
    overlay: Overlay, settings: GroupSettings, computation: ComputationRecord
) -> tuple[Timer, ...]:
    """Request a server-side assignor: the one that the members request, or ``group.remote.assignor``.

    The record makes ``handle.step`` return the effect. It survives a coordinator failover (``handle.on_load``).
    """
    members = list(overlay.members())
    requested = {member.server_assignor for member in members if member.server_assignor}
    name = requested.pop() if len(requested) == 1 else settings.server_assignor
    if name not in settings.server_assignors:
        allowed = sorted(settings.server_assignors)
        return fail_on_coordinator(
            overlay, settings, computation, f"group.remote.assignor: got {name!r}; allowed: {allowed}"
        )
    overlay.write(
        replace(computation, epoch=overlay.epoch, member_id="", prepared=True, assignor=name, replaced_members=())
    )
    return (compute(overlay.group.group_id, overlay, settings.session_timeout_ms),)


def fail_on_coordinator(
    overlay: Overlay, settings: GroupSettings, computation: ComputationRecord, error: str
) -> tuple[Timer, ...]:
    """Record that the coordinator could not compute.

    The old target assignment stays. The next change or the timer retries: the epoch must not get stuck (HB-18).
    """
    overlay.write(
        replace(
            computation,
            epoch=overlay.epoch,
            member_id="",
            prepared=False,
            assignor="",
            replaced_members=(),
            error=printable(error, limit=500),
        )
    )
    return (compute(overlay.group.group_id, overlay, settings.session_timeout_ms),)


def choose_again(overlay: Overlay, settings: GroupSettings, computation: ComputationRecord) -> tuple[Timer, ...]:
    """Choose who computes for the newest group epoch; failures so far still count."""
    members = list(overlay.members())
    assignor = select_assignor(members)
    able = members_able_to_compute_now(overlay, members, assignor) if assignor else ()
    return _choose_member(overlay, settings, able, computation)


def effects_of(group: Group, now_ms: int, settings: GroupSettings) -> tuple[Effect, ...]:
    """The effects that the computation of a group requests; none if a member computes, or nothing does.

    Args:
        group: the group after a step, or after it was loaded.
    """
    computation = under_way(group)
    if computation is None or computation.member_id or not group.members:
        return ()
    if not computation.prepared:
        message = f"no assignment for epoch {group.epoch}: {computation.error}"
        return (Warn(group_id=group.group_id, epoch=group.epoch, message=message),)
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


def fail_computation(overlay: Overlay, settings: GroupSettings, error: str) -> tuple[Timer, ...]:
    """Record the failure of the chosen member, or its timeout, and choose the next; it is not fenced (CN-06)."""
    computation = overlay.computation
    assert computation is not None
    failed = replace(
        computation,
        failures=computation.failures + 1,
        failed_members=tuple(
            sorted({*computation.failed_members, *computation.replaced_members, computation.member_id} - {""})
        ),
        replaced_members=(),
        error=printable(error, limit=500),
    )
    return choose_again(overlay, settings, failed)


def compute_timed_out(group: Group, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """Handle the timer of a computation: the chosen member is late, or the interval before it has elapsed."""
    overlay = Overlay(group, now_ms)
    computation = under_way(overlay)
    if overlay.epoch <= overlay.target_epoch or not group.members:
        return Outcome(response=None)
    if computation is None:
        timers = ensure_computation(overlay, settings, waited=True)
    elif computation.member_id:
        timers = fail_computation(overlay, settings, f"{computation.member_id} did not install an assignment in time")
    else:
        # A capable member may have joined since.
        timers = choose_again(overlay, settings, computation)
    return Outcome(response=None, records=tuple(overlay.records), timers=timers)


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

    Causes: moves deferred by the limit of the last round, and moves off a draining member that were not possible while
    no other member could take its units.
    """
    overlay = Overlay(group, now_ms)
    timers: tuple[Timer, ...] = ()
    if group.members and not group.behind and group.epoch == group.target_epoch:
        if group.deferred:
            overlay.bump(f"{group.deferred} left to move in this round")
        elif leaving := _drainable_member(overlay):
            overlay.bump(f"a member can take the units of {leaving}")
        timers = ensure_computation(overlay, settings)
    return Outcome(response=None, records=tuple(overlay.records), timers=timers)


def _drainable_member(overlay: Overlay) -> str:
    """A draining member that still has a target assignment although other members can take its units; else empty."""
    takers = {member.member_id for member in assignable_members(overlay)}
    for member in overlay.members():
        if member.draining and member.member_id not in takers and overlay.target(member.member_id).units:
            return member.member_id
    return ""

"""Who computes the target assignment, and what happens when a computation fails or is late.

A member that does not respond in time is replaced. A member whose assignor fails is not chosen again while other
members can compute. After a few failures the coordinator runs its own assignor, so that a faulty plug-in cannot block
a group.

Source: "Connect on the new protocol", "Assignment"; KIP-848, "Assignment Process" with client-side assignors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol
from zlib import crc32

from ...errors import FencedMemberEpoch, UnknownMemberId
from ...masking import masked_text
from ...protocol.messages.describe import KEPT
from ...protocol.records.connect import ComputationRecord
from ...protocol.units import printable
from .members import check_exists
from .outcome import Computed, Outcome, SetTimer, Timer, TimerKey, TimerKind
from .state import Computing, GroupDraft, GroupState, covers_all, members_able_to_compute, select_assignor

COORDINATOR = "coordinator"
"""``computed_by`` of a target assignment that the coordinator computed instead of a member."""

MAX_ASKED_MEMBERS = 3
"""Members that may be asked for one computation before the rebalance timeout of the last one decides. Many members that
join at the same moment must not each be asked to compute."""


class ComputationSettings(Protocol):
    """The settings of a group type that concern computations; see ``connect.settings.GroupSettings``."""

    @property
    def session_timeout_ms(self) -> int: ...
    @property
    def failures_before_fallback(self) -> int: ...
    @property
    def server_assignor(self) -> str: ...
    @property
    def server_assignors(self) -> Mapping[str, Any]: ...
    @property
    def assignment_interval_ms(self) -> int: ...


Draft = GroupDraft[Any, Any]


def computation_id(group: Computing) -> int:
    """A number that identifies the computation of the next target assignment: chosen member and attempt.

    The group epoch cannot identify it: a computation continues when the epoch advances (PD-06).
    """
    asked = group.computation
    if asked is None or asked.epoch <= group.target_epoch:
        return crc32(repr((group.target_epoch, "", 0)).encode())
    return crc32(repr((group.target_epoch, asked.member_id, asked.failures)).encode())


def compute_timer(group: Computing, timeout_ms: int) -> SetTimer:
    """The deadline of a computation: "the worker should finish the assignment within rebalance.timeout.ms"."""
    return SetTimer(TimerKey(TimerKind.COMPUTE, group.group_id, belongs_to=computation_id(group)), timeout_ms)


def timer_after_load(group: GroupState[Any, Any], settings: ComputationSettings) -> tuple[Timer, ...]:
    """The deadline of the computation of a loaded group, if its target assignment is outdated."""
    if group.epoch <= group.target_epoch or not group.members:
        return ()
    computation = under_way(group)
    chosen = group.members.get(computation.member_id) if computation else None
    return (compute_timer(group, chosen.rebalance_timeout_ms if chosen else settings.session_timeout_ms),)


def ensure_computation(draft: Draft, settings: ComputationSettings, *, waited: bool = False) -> tuple[Timer, ...]:
    """Ensure that an outdated target assignment is being computed by a capable member or the coordinator.

    Called at the end of every step. Does nothing while the target assignment is current or a computation is in
    progress. A computation continues when the group epoch advances: its assignment may still be valid (``install``),
    and the next computation covers all later causes at once. A chosen member that has not sent Prepare by then is
    replaced, because it may be unresponsive (``_replace_chosen_member``). Within ``assignment_interval_ms`` of the
    previous target assignment the computation is delayed to collect more causes (TO-06).

    Args:
        draft: a group with members.
        waited: the interval has elapsed.
    """
    if draft.epoch <= draft.target_epoch:
        return ()
    running = under_way(draft)
    if running is None and not waited and (left_ms := _remaining_interval_ms(draft, settings)):
        return (compute_timer(draft, left_ms),)
    if running is not None and (_coordinator_computes(running) or _goes_on(draft, running)):
        return ()
    able = _able(draft)
    if running is not None:
        failed_here = not able or running.failures >= settings.failures_before_fallback
        if running.member_id == "" and (running.keeps_target or failed_here):
            return ()
        if running.member_id in able:
            return _replace_chosen_member(draft, able, running)
    return _choose_member(
        draft, settings, able, running or ComputationRecord(group_id=draft.group_id, epoch=draft.epoch)
    )


def _coordinator_computes(computation: ComputationRecord) -> bool:
    return computation.member_id == "" and computation.prepared


def _goes_on(draft: Draft, computation: ComputationRecord) -> bool:
    """Whether a computation by a member goes on, as far as that can be told without a look at all members."""
    member = draft.member(computation.member_id)
    if member is None or not _keeps_its_member(draft, computation):
        return False
    listings = draft.listings()
    assignor = select_assignor(listings)
    return (
        assignor is not None
        and covers_all(member, assignor, listings)
        and member.member_id in draft.computing_members()
    )


def _able(draft: Draft) -> list[str]:
    """The members that are able to compute now, sorted; none if the group uses a server-side assignor."""
    assignor = select_assignor(draft.listings())
    if assignor is None:
        return []
    return members_able_to_compute(list(draft.members()), assignor, draft.computing_members())


def compute_timed_out(draft: Draft, settings: ComputationSettings, *, is_ready: bool = True) -> Outcome[None]:
    """Handle the timer of a computation: the chosen member is late, or the interval before it has elapsed.

    Args:
        is_ready: whether the input of an assignor is complete. If not, no computation starts.
    """
    if draft.epoch <= draft.target_epoch or not draft.any_member():
        return Outcome(response=None)
    computation = under_way(draft)
    timers: tuple[Timer, ...] = ()
    if computation is None:
        timers = ensure_computation(draft, settings, waited=True) if is_ready else ()
    elif computation.member_id:
        timers = fail_computation(draft, settings, f"{computation.member_id} did not install an assignment in time")
    else:
        # A capable member may have joined since.
        timers = choose_again(draft, settings, computation)
    return draft.outcome(None, timers)


def under_way(group: Computing) -> ComputationRecord | None:
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


def _remaining_interval_ms(draft: Draft, settings: ComputationSettings) -> int:
    """Time left of the interval since the previous target assignment; 0 if there was none (TO-08)."""
    passed_ms = draft.now_ms - draft.group.target_ms
    # If the clock was set back, the elapsed time is unknown.
    if not draft.group.target_ms or passed_ms < 0:
        return 0
    return max(0, settings.assignment_interval_ms - passed_ms)


def _choose_member(
    draft: Draft, settings: ComputationSettings, able: Sequence[str], computation: ComputationRecord
) -> tuple[Timer, ...]:
    """Choose a member that has not failed yet, or the coordinator after too many failures."""
    if computation.keeps_target:
        computation = replace(computation, error="")  # that target may be replaced now
    if computation.failures >= settings.failures_before_fallback or not able:
        return _compute_on_coordinator(draft, settings, computation)
    not_failed = [member_id for member_id in able if member_id not in computation.failed_members]
    not_asked = [member_id for member_id in not_failed if member_id not in computation.replaced_members]
    return _ask_member(draft, not_asked or not_failed or able, computation)


def _replace_chosen_member(draft: Draft, able: Sequence[str], computation: ComputationRecord) -> tuple[Timer, ...]:
    """Choose another member if the group epoch has advanced before the chosen member sent Prepare.

    A paused process whose session has not expired would otherwise delay the group for its rebalance timeout. The
    replaced member is not fenced and not counted as failed, and its Prepare is accepted until another member has
    prepared (``accepts_prepare``): a group that changes faster than its members respond still computes.
    """
    asked = (*computation.replaced_members, computation.member_id)
    others = [member_id for member_id in able if member_id not in (*asked, *computation.failed_members)]
    if _keeps_its_member(draft, computation) or not others:
        return ()
    return _ask_member(draft, others, replace(computation, replaced_members=asked))


def _keeps_its_member(draft: Draft, computation: ComputationRecord) -> bool:
    """Whether a chosen member that is able to compute is not replaced, even if other members could compute."""
    # The assignor, not ``prepared``: each heartbeat at epoch 0 clears ``prepared``, and the sender may be computing.
    asked = len(computation.replaced_members) + 1
    return bool(computation.assignor) or computation.epoch == draft.epoch or asked >= MAX_ASKED_MEMBERS


def _ask_member(draft: Draft, candidates: Sequence[str], computation: ComputationRecord) -> tuple[Timer, ...]:
    """Choose one of the candidates and arm the timer of its computation."""
    # The assignor of the last member that computed is known to work; otherwise the member with the lowest id. The
    # choice is the same on every replay.
    chosen = draft.group.computed_by if draft.group.computed_by in candidates else candidates[0]
    replaced = tuple(member_id for member_id in computation.replaced_members if member_id != chosen)
    draft.write(
        replace(
            computation,
            epoch=draft.epoch,
            member_id=chosen,
            prepared=False,
            assignor="",
            replaced_members=replaced,
            keeps_target=False,
        )
    )
    return (computation_timer(draft, chosen),)


def computation_timer(draft: Draft, member_id: str) -> Timer:
    """The deadline of the computation that the draft has now, which is the rebalance timeout of its member."""
    member = draft.member(member_id)
    assert member is not None
    return compute_timer(draft, member.rebalance_timeout_ms)


def accepts_prepare(draft: Draft, computation: ComputationRecord, member_id: str, assignor: str) -> bool:
    """Whether a Prepare of the member is accepted: it is the chosen one, or was replaced and can still compute."""
    return member_id == computation.member_id or (
        member_id in computation.replaced_members
        and member_id in members_able_to_compute(list(draft.members()), assignor, draft.computing_members())
    )


def _compute_on_coordinator(
    draft: Draft, settings: ComputationSettings, computation: ComputationRecord
) -> tuple[Timer, ...]:
    """Request a server-side assignor: the one that the members request, or ``group.remote.assignor``.

    The record makes the group type's ``step`` return the effect. It survives a coordinator failover (``on_load``).
    """
    members = list(draft.members())
    requested = {member.server_assignor for member in members if member.server_assignor}
    name = requested.pop() if len(requested) == 1 else settings.server_assignor
    if name not in settings.server_assignors:
        allowed = sorted(settings.server_assignors)
        return fail_on_coordinator(
            draft, settings, computation, f"group.remote.assignor: got {name!r}; allowed: {allowed}"
        )
    draft.write(
        replace(
            computation,
            epoch=draft.epoch,
            member_id="",
            prepared=True,
            assignor=name,
            replaced_members=(),
            keeps_target=False,
        )
    )
    return (compute_timer(draft, settings.session_timeout_ms),)


def fail_on_coordinator(
    draft: Draft, settings: ComputationSettings, computation: ComputationRecord, error: str
) -> tuple[Timer, ...]:
    """Record that the coordinator could not compute.

    The old target assignment stays. The next change or the timer retries: the epoch must not get stuck (HB-18).
    """
    return _end_without_target(draft, settings, computation, error, keeps_target=False)


def keep_target(
    draft: Draft, settings: ComputationSettings, computation: ComputationRecord, reason: str
) -> tuple[Timer, ...]:
    """Record that the assignor has decided to keep the target assignment: it set ``error``, and has not failed.

    The old target assignment stays. The assignor runs again after the next change, or when the timer expires. If the
    group has changed since Prepare, the decision is for an earlier group, and the assignor runs again now.

    Source: "Connect on the new protocol", Assignment.error ("if not 0, nothing is installed").
    """
    if computation.epoch < draft.epoch:
        return choose_again(draft, settings, computation)
    return _end_without_target(draft, settings, computation, f"{KEPT}{reason}", keeps_target=True)


def keep_target_of(
    draft: Draft, settings: ComputationSettings, computation: ComputationRecord, computed: Computed
) -> tuple[Timer, ...]:
    """As ``keep_target``, for an assignor that the coordinator has run, on the group at ``computed.epoch``."""
    reason = computed.result.message or f"error {computed.result.error}"
    prepared = replace(computation, epoch=computed.epoch)
    return keep_target(draft, settings, prepared, f"server-side assignor {computed.assignor!r}: {reason}")


def no_target(group: Computing, computation: ComputationRecord) -> str:
    """The warning about a computation that ended without a target assignment."""
    if computation.keeps_target:
        return f"epoch {group.epoch}: {computation.error}"
    return f"no assignment for epoch {group.epoch}: {computation.error}"


def _end_without_target(
    draft: Draft, settings: ComputationSettings, computation: ComputationRecord, error: str, *, keeps_target: bool
) -> tuple[Timer, ...]:
    """End a computation at the group epoch without a new target assignment, and arm the timer of the next attempt."""
    draft.write(
        replace(
            computation,
            epoch=draft.epoch,
            member_id="",
            prepared=False,
            assignor="",
            replaced_members=(),
            keeps_target=keeps_target,
            error=printable(masked_text(error), limit=500),
        )
    )
    return (compute_timer(draft, settings.session_timeout_ms),)


def forget_prepare(draft: Draft, member_id: str) -> None:
    """A member joins again. Its former process may have sent Prepare and be gone: the new one is asked to compute."""
    computation = under_way(draft)
    if computation is not None and computation.member_id == member_id and computation.prepared:
        draft.write(replace(computation, prepared=False))


def choose_again(draft: Draft, settings: ComputationSettings, computation: ComputationRecord) -> tuple[Timer, ...]:
    """Choose who computes for the newest group epoch; failures so far still count."""
    return _choose_member(draft, settings, _able(draft), computation)


def fail_computation(draft: Draft, settings: ComputationSettings, error: str) -> tuple[Timer, ...]:
    """Record the failure of the chosen member, or its timeout, and choose the next; it is not fenced (CN-06)."""
    computation = draft.computation
    assert computation is not None
    failed = replace(
        computation,
        failures=computation.failures + 1,
        failed_members=tuple(
            sorted({*computation.failed_members, *computation.replaced_members, computation.member_id} - {""})
        ),
        replaced_members=(),
        error=printable(masked_text(error), limit=500),
    )
    return choose_again(draft, settings, failed)


# --------------------------------------------------------------------------------------------------
# Prepare and Install.


def check_member(group: GroupState[Any, Any], member_id: str) -> None:
    """The first two checks of both requests, in the order of the source.

    Raises:
        GroupIdNotFound: the group does not exist.
        UnknownMemberId: the group has no such member.
    """
    check_exists(group)
    if member_id not in group.members:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; the group has no such member")


def not_chosen(member_id: str) -> UnknownMemberId:
    """The error for a member that sends Prepare or Install and is not the chosen one."""
    return UnknownMemberId(f"{printable(member_id)} is not the member chosen to compute the assignment")


def prepare(draft: Draft, member_id: str, member_epoch: int) -> tuple[str, tuple[Timer, ...]]:
    """Record that the chosen member computes the assignment for the current group epoch.

    The record stores the group epoch and the assignor of the response. They decide whether the Install is accepted,
    even after the group epoch has advanced and after a coordinator failover.

    Returns:
        The assignor, and the timers to set.

    Raises:
        GroupIdNotFound, UnknownMemberId, FencedMemberEpoch: as listed in the source's request handling. An earlier
            member epoch is accepted: heartbeats use another connection and may advance the epoch several times while
            the request is in flight.
    """
    check_member(draft.group, member_id)
    epoch = draft.group.current(member_id).epoch
    if member_epoch > epoch:
        raise FencedMemberEpoch(f"{printable(member_id)} sent epoch {member_epoch}, the group has it at {epoch}")
    computation, assignor = under_way(draft), select_assignor(draft.listings())
    if computation is None or assignor is None or not accepts_prepare(draft, computation, member_id, assignor):
        raise not_chosen(member_id)
    prepared = replace(
        computation, epoch=draft.epoch, member_id=member_id, prepared=True, assignor=assignor, replaced_members=()
    )
    if prepared != computation:
        draft.write(prepared)
    return assignor, () if member_id == computation.member_id else (computation_timer(draft, member_id),)


def computation_of_result(group: Computing, epoch: int) -> ComputationRecord | None:
    """The server-side computation that a result for a group epoch belongs to; ``None`` if the result is stale.

    A result is stale if no server-side computation is in progress, or if it is for an earlier epoch than the one
    requested. A coordinator that has loaded the group requests the computation again for the newest epoch, so a later
    epoch is accepted.
    """
    computation = under_way(group)
    if computation is None or computation.member_id or not computation.prepared:
        return None
    return computation if computation.epoch <= epoch <= group.epoch else None

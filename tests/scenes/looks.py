"""The lines that only inspect: the group, the timers, the records of the last step, the last rebalance."""

from __future__ import annotations

from collections.abc import Iterable

from connectgroup.group.connect.describe import describe
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.records.connect import MemberState
from connectgroup.protocol.units import Unit

from .forms import line
from .harness import SceneHarness, timer_name
from .words import duration_text, error_name, record_kinds, units_text


@line("group")
def group(harness: SceneHarness) -> Iterable[str]:
    """The group as ``describe`` returns it: what each member owns, with owner epochs."""
    described = describe(harness.group, harness.scene.now_ms)
    if described.error_code:
        yield f"{error_name(described.error_code)}: {described.error_message}"
        return
    computing = f", {described.computing_member} is chosen to compute" if described.computing_member else ""
    yield f"{described.state}, epoch {described.group_epoch}, target epoch {described.assignment_epoch}{computing}"
    if described.assignor_error:
        yield f"the last computation failed: {described.assignor_error}"
    for member in described.members:
        current = harness.group.current(member.member_id)
        name = f"{member.member_id} ({member.instance_id})" if member.instance_id else member.member_id
        if current.temporarily_left:
            yield f"{name} has temporarily left, keeps {units_text(current.assigned.keys())}"
            continue
        state = f" ({member.state})" if member.state != MemberState.STABLE.name else ""
        words = [f"{name} at {member.member_epoch} owns {units_text(current.assigned)}{state}"]
        if current.pending:
            words.append(f"must revoke {units_text(current.pending)}")
        if missing := units_of(member.target) - current.assigned.keys():
            words.append(f"awaits {units_text(missing)}")
        yield ", ".join(words)
    for work in described.delayed:
        whom = f" for {work.member_id}" if work.member_id else ""
        yield f"delayed{whom} for another {duration_text(work.left_ms)}: {units_text(units_of(work.units))}"


@line("timers")
def timers(harness: SceneHarness) -> Iterable[str]:
    """The armed timers, and the time until they fire."""
    now_ms = harness.scene.now_ms
    running = sorted((at_ms, timer_name(key)) for key, at_ms in harness.timers.items())
    return [", ".join(f"{name} {duration_text(at_ms - now_ms)}" for at_ms, name in running) or "none"]


@line("records")
def records(harness: SceneHarness) -> Iterable[str]:
    """The records of the last step, in log order."""
    return [record_kinds(harness.scene.records)]


@line("why")
def why(harness: SceneHarness) -> Iterable[str]:
    """The last rebalance: causes, duration and moves."""
    last = harness.group.latest_rebalance
    if last is None:
        return ["no rebalance yet"]
    moves = ", ".join(
        f"{Unit(move.connector, move.task)} {move.source or 'new'} to {move.target} ({duration_text(move.handover_ms)})"
        for move in last.moves
    )
    took = "in progress" if last.finished_ms < 0 else f"took {duration_text(last.finished_ms - last.started_ms)}"
    return [f"epoch {last.epoch}: {'; '.join(last.causes)}; {took}", *([moves] if moves else [])]

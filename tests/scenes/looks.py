"""The lines that only look: at the group, the timers, what the last step wrote, and why the group changed."""

from __future__ import annotations

from collections.abc import Iterable

from connectgroup.group.connect.describe import describe
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.records.connect import MemberState
from connectgroup.protocol.units import Unit

from .forms import line
from .stage import Stage, timer_name
from .words import error_name, kinds, lasting, said


@line("group")
def group(stage: Stage) -> Iterable[str]:
    """The group as ``describe`` has it: what each member holds, with the epochs at which it was given."""
    described = describe(stage.group, stage.scene.now_ms)
    if described.error_code:
        yield f"{error_name(described.error_code)}: {described.error_message}"
        return
    computing = f", {described.computing_member} is to compute" if described.computing_member else ""
    yield f"{described.state}, epoch {described.group_epoch}, target epoch {described.assignment_epoch}{computing}"
    if described.assignor_error:
        yield f"the last computation failed: {described.assignor_error}"
    for member in described.members:
        current = stage.group.current(member.member_id)
        name = f"{member.member_id} ({member.instance_id})" if member.instance_id else member.member_id
        if current.temporarily_left:
            yield f"{name} is away, {said(current.assigned.keys())} waits for it"
            continue
        state = f" ({member.state})" if member.state != MemberState.STABLE.name else ""
        words = [f"{name} at {member.member_epoch} has {said(current.assigned)}{state}"]
        if current.pending:
            words.append(f"is to stop {said(current.pending)}")
        if missing := units_of(member.target) - current.assigned.keys():
            words.append(f"shall have {said(missing)}")
        yield ", ".join(words)
    for work in described.delayed:
        whom = f" for {work.member_id}" if work.member_id else ""
        yield f"held back{whom} for {lasting(work.left_ms)} more: {said(units_of(work.units))}"


@line("timers")
def timers(stage: Stage) -> Iterable[str]:
    """What the coordinator waits for, and how much longer."""
    now_ms = stage.scene.now_ms
    running = sorted((at_ms, timer_name(key)) for key, at_ms in stage.timers.items())
    return [", ".join(f"{name} {lasting(at_ms - now_ms)}" for at_ms, name in running) or "none"]


@line("records")
def records(stage: Stage) -> Iterable[str]:
    """What the last step wrote to the log, in this order."""
    return [kinds(stage.scene.records)]


@line("why")
def why(stage: Stage) -> Iterable[str]:
    """How the coordinator explains its last rebalance."""
    last = stage.group.latest_rebalance
    if last is None:
        return ["nothing has changed yet"]
    moves = ", ".join(
        f"{Unit(move.connector, move.task)} {move.source or 'new'} to {move.target} ({lasting(move.downtime_ms)})"
        for move in last.moves
    )
    took = "under way" if last.finished_ms < 0 else f"took {lasting(last.finished_ms - last.started_ms)}"
    return [f"epoch {last.epoch}: {'; '.join(last.causes)}; {took}", *([moves] if moves else [])]

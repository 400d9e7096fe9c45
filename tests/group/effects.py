"""Steps whose effects are performed at once, without a shard."""

from __future__ import annotations

from dataclasses import replace

from connectgroup.errors import ConnectGroupError
from connectgroup.group.connect.group_type import ConnectGroupType, GroupInput, step
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import Compute, Computed, Outcome
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.connect import CurrentRecord
from connectgroup.protocol.units import JOIN_EPOCH
from connectgroup.wire import embedded


def computed(effect: Compute, settings: GroupSettings) -> Computed:
    """Run a server-side assignor as the coordinator does, but in this thread and without a time limit."""
    result, error = None, ""
    try:
        result = ConnectGroupType(settings, embedded).run_assignor(effect)
    except (Exception, SystemExit) as raised:
        error = str(raised) if isinstance(raised, ConnectGroupError) else repr(raised)
    return Computed(group_id=effect.group_id, epoch=effect.epoch, assignor=effect.assignor, result=result, error=error)


def step_and_compute(
    group: ConnectGroupState, what: GroupInput, now_ms: int, settings: GroupSettings
) -> Outcome[Response | None]:
    """One step, and the steps of the server-side computations that follow from it.

    If a join, or a heartbeat that changes nothing for its sender, starts a computation, it is decided once more after
    the result, as if it had been parked. The outcome
    """
    outcome = step(group, what, now_ms, settings)
    effects, last, first = list(outcome.effects), outcome, outcome
    while computations := [effect for effect in last.effects if isinstance(effect, Compute)]:
        last = step(group, computed(computations[0], settings), now_ms, settings)
        effects += last.effects
        outcome = _combined(outcome, last)
        if not any(isinstance(effect, Compute) for effect in last.effects) and _parks(what, first):
            last = step(group, what, now_ms, settings)
            effects += last.effects
            outcome = replace(_combined(outcome, last), response=last.response, parks=last.parks)
    return replace(outcome, effects=tuple(effect for effect in effects if not isinstance(effect, Compute)))


def _parks(what: GroupInput, outcome: Outcome[Response | None]) -> bool:
    """Whether the input is a join, or a heartbeat whose response changes nothing for its sender."""
    if not isinstance(what, HeartbeatRequest) or getattr(outcome.response, "error_code", False):
        return False
    changed = {record.member_id for record in outcome.records if isinstance(record, CurrentRecord)}
    return what.member_epoch == JOIN_EPOCH or (what.member_epoch > JOIN_EPOCH and what.member_id not in changed)


def _combined(first: Outcome[Response | None], second: Outcome[Response | None]) -> Outcome[Response | None]:
    return replace(first, records=first.records + second.records, timers=first.timers + second.timers)

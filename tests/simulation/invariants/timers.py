"""Timers run for their full time: S14, TO-01 to TO-03, CN-06."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from connectgroup.group.connect.group_type import GroupInput
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import Outcome, SetTimer, TimerKey, TimerKind
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest

from .base import COMPUTE, Invariant

if TYPE_CHECKING:
    from .watch import Watch


class TimersRunTheirTime(Invariant):
    """S14: an expired timer acts only when its full time has passed since the last decision that set it.

    A decision sets a timer in memory before the timer is armed, so the time counts from the decision. A timer that was
    cancelled and not re-armed does not act at all. Timers of a group that has just been loaded are not known here.
    """

    ids = "S14"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._set: WeakKeyDictionary[ConnectGroupState, dict[TimerKey, tuple[float, float]]] = WeakKeyDictionary()
        self._heard: WeakKeyDictionary[ConnectGroupState, dict[tuple[str, int], HeartbeatRequest]] = WeakKeyDictionary()

    def on_step(
        self, group: ConnectGroupState, what: GroupInput, outcome: Outcome[Response | None], now_ms: int
    ) -> None:
        now_s, timers = self.cluster.loop.now, self._set.setdefault(group, {})
        parked = False
        if isinstance(what, TimerKey) and outcome.records and what.identity in timers:
            set_s, whole_s = timers[what.identity]
            if now_s - set_s < whole_s * (1 - self.cluster.setting.drift) - 0.01:
                member = what.member_id or "the group"
                self.broken(f"the {what.kind} timer of {member} acts {now_s - set_s:.3f} s after it was set")
        elif isinstance(what, HeartbeatRequest):
            # A parked heartbeat that is decided again does not prove again that the member is alive. Two coordinators
            # may each have a copy of the group, and each its own last heartbeat of the member. Another process may try
            # to join as the member meanwhile (PD-15).
            heard, sender = self._heard.setdefault(group, {}), (what.member_id, what.process_id)
            parked = heard.get(sender) == what
            # A rejected heartbeat is not parked; a late copy of a rejected join may be accepted.
            if getattr(outcome.response, "error_code", 0) in (0, COMPUTE):
                heard[sender] = what
        for timer in outcome.timers:
            if not (parked and timer.key.kind is TimerKind.SESSION and isinstance(timer, SetTimer)):
                whole_s = timer.after_ms / 1000 if isinstance(timer, SetTimer) else float("inf")
                timers[timer.key.identity] = now_s, whole_s

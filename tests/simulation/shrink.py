"""A run that breaks a promise, made smaller: fewer faults and moods, better weather, as long as the promise breaks.

Delta debugging (Zeller's ddmin) on the list of faults, after what comes later than the violation has been cut off; then
the rest of the setting, part by part. Each try is a whole run, so it goes on for a bounded time only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields, replace

from .setting import Plan, PlannedFault, Setting, Weather

Fails = Callable[[Plan, bool], float | None]
"""When the promise breaks in a run of that plan, whole or up to the end of its faults, in simulated seconds."""


SPARE_S = 20.0
"""With something left out it may break a little later."""


class Shrinker:
    """``plan`` is the smallest so far. ``tries`` counts the runs."""

    def __init__(self, plan: Plan, at_s: float, fails: Fails, *, max_s: float) -> None:
        self.plan = plan
        self.tries = 0
        self._at_s = at_s
        self._fails = fails
        self._whole = True
        self._ends = time.monotonic() + max_s

    @property
    def time_is_up(self) -> bool:
        """Whether to be content with what there is."""
        return time.monotonic() >= self._ends

    def run(self) -> Plan:
        """Shrink, and return the smallest."""
        if not self._try(self.plan):
            return self.plan  # as it is, it does not fail again: nothing can be said of less
        if self._at_s < self.plan.ends_s:
            early = tuple(fault for fault in self.plan.faults if fault.at_s <= self._at_s)
            self._whole = False
            self._try(replace(self.plan, faults=early, ends_s=self._at_s + SPARE_S))
        plain = Setting()
        for field in fields(Setting):
            self._set(**{field.name: getattr(plain, field.name)})
        self._drop_faults()
        for mood in sorted(self.plan.setting.moods):
            self._set(moods={name: chance for name, chance in self.plan.setting.moods.items() if name != mood})
        for name in ("lose_request", "lose_answer", "copy", "late"):
            self._set(weather=replace(self.plan.setting.weather, **{name: getattr(Weather(), name)}))
        self._drop_faults()
        return self.plan

    def _set(self, **changes: object) -> None:
        setting = replace(self.plan.setting, **changes)  # type: ignore[arg-type]
        if setting != self.plan.setting:
            self._try(replace(self.plan, setting=setting))

    def _drop_faults(self) -> None:
        parts = 2
        while self.plan.faults and not self.time_is_up:
            faults = self.plan.faults
            size = max(1, len(faults) // parts)
            pieces = [faults[start : start + size] for start in range(0, len(faults), size)]
            for piece in pieces:
                left = tuple(fault for fault in self.plan.faults if not _among(fault, piece))
                if self._try(replace(self.plan, faults=left)):
                    break
            else:
                if size == 1:
                    return
                parts = min(2 * parts, len(faults))
                continue
            parts = max(2, parts - 1)

    def _try(self, plan: Plan) -> bool:
        if self.time_is_up:
            return False
        self.tries += 1
        at_s = self._fails(plan, self._whole)
        if at_s is None:
            return False
        self.plan, self._at_s = plan, at_s
        return True


def _among(fault: PlannedFault, piece: tuple[PlannedFault, ...]) -> bool:
    """By identity: two faults may look alike."""
    return any(fault is other for other in piece)

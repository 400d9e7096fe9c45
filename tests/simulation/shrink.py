"""Shrink a run that violates an invariant: fewer faults, as long as the same invariant is violated.

Delta debugging (Zeller's ddmin) on the list of faults, after the faults later than the violation have been cut off;
then the rest of the settings, one by one. Each attempt is a whole run, so the time is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields, replace

from connectgroup.testing.seeded_runs import shrink

from .setting import NetworkFaults, Plan, Setting

Fails = Callable[[Plan, bool], float | None]
"""When a run of that plan, whole or up to the end of its faults, violates the invariant, in simulated seconds."""


SPARE_S = 20.0
"""With faults left out, the violation may come a little later."""


class Shrinker:
    """``plan`` is the smallest plan so far. ``tries`` counts the runs."""

    def __init__(self, plan: Plan, at_s: float, fails: Fails, *, max_s: float) -> None:
        self.plan = plan
        self.tries = 0
        self._at_s = at_s
        self._fails = fails
        self._whole = True
        self._ends = time.monotonic() + max_s

    @property
    def time_is_up(self) -> bool:
        """Whether the time limit has passed."""
        return time.monotonic() >= self._ends

    def run(self) -> Plan:
        """Shrink, and return the smallest plan."""
        if not self._try(self.plan):
            return self.plan  # the failure is not reproducible
        if self._at_s < self.plan.ends_s:
            early = tuple(fault for fault in self.plan.faults if fault.at_s <= self._at_s)
            self._whole = False
            self._try(replace(self.plan, faults=early, ends_s=self._at_s + SPARE_S))
        plain = Setting()
        for field in fields(Setting):
            self._set(**{field.name: getattr(plain, field.name)})
        self._drop_faults()
        for fault in sorted(self.plan.setting.fault_rates):
            self._set(
                fault_rates={name: chance for name, chance in self.plan.setting.fault_rates.items() if name != fault}
            )
        for name in ("lose_request", "lose_response", "copy", "late"):
            self._set(
                network_faults=replace(self.plan.setting.network_faults, **{name: getattr(NetworkFaults(), name)})
            )
        self._drop_faults()
        return self.plan

    def _set(self, **changes: object) -> None:
        setting = replace(self.plan.setting, **changes)  # type: ignore[arg-type]
        if setting != self.plan.setting:
            self._try(replace(self.plan, setting=setting))

    def _drop_faults(self) -> None:
        shrink(self.plan.faults, lambda left: self._try(replace(self.plan, faults=left)), lambda: self.time_is_up)

    def _try(self, plan: Plan) -> bool:
        if self.time_is_up:
            return False
        self.tries += 1
        at_s = self._fails(plan, self._whole)
        if at_s is None:
            return False
        self.plan, self._at_s = plan, at_s
        return True

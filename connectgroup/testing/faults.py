"""The faults of a test with a seed: lost, late and repeated messages, slow stops and appends, rare branches.

The seed decides everything, so a run can be repeated: ``Faults(17)`` draws how often each kind of fault occurs, and
when. Without a seed there are no faults.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

from .. import fault_points
from ..member.actions import Grant
from ..protocol.units import Units
from ..worker.runner import Runner
from .network import Weather

MAX_LATENCY_S, MAX_LOSS, MAX_DUPLICATION = 0.2, 0.1, 0.1
MAX_APPEND_S, MAX_STOP_S = 0.5, 3.0


class Faults:
    """The faults of one run.

    Attributes:
        random: decides about each message.
        weather: the network faults.
        taken: how often each fault point was taken.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.random = Random(f"faults {seed}")
        self.weather = Weather()
        self.taken: Counter[str] = Counter()
        self._append_s = self._stop_s = 0.0
        self._points: dict[str, float] = {}
        if seed is not None:
            draw = self.random
            self.weather = Weather(
                max_latency_s=draw.choice([0.001, draw.uniform(0.001, MAX_LATENCY_S)]),
                loss=draw.choice([0.0, draw.uniform(0, MAX_LOSS)]),
                duplication=draw.choice([0.0, draw.uniform(0, MAX_DUPLICATION)]),
            )
            self._append_s = draw.choice([0.0, draw.uniform(0, MAX_APPEND_S)])
            self._stop_s = draw.choice([0.0, draw.uniform(0, MAX_STOP_S)])
            self._points = {
                point: draw.choice([0.0, draw.uniform(0, limit)]) for point, limit in fault_points.POINTS.items()
            }
        self._drawn = (
            f"latency up to {self.weather.max_latency_s * 1000:.0f} ms, {self.weather.loss:.1%} of the messages lost, "
            f"{self.weather.duplication:.1%} delivered twice, appends up to {self._append_s * 1000:.0f} ms, "
            f"stops up to {self._stop_s:.1f} s"
        )

    def __str__(self) -> str:
        taken = [f"{point} ({times} times)" for point, times in sorted(self.taken.items()) if times]
        return ", ".join([self._drawn, *taken])

    def append_s(self) -> float:
        """The duration of the next append."""
        return self.random.uniform(0, self._append_s) if self._append_s else 0.0

    def slow(self, runner: Runner) -> Runner:
        """The runner, with stops that take time."""
        return SlowRunner(runner, self) if self._stop_s else runner

    def stop_s(self) -> float:
        """The duration of the next stop."""
        return self.random.uniform(0, self._stop_s)

    def end(self) -> None:
        """No more faults: for the end of a test."""
        self.weather, self._append_s, self._stop_s, self._points = Weather(), 0.0, 0.0, {}

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Take the product's fault points within this block."""
        before = fault_points.hook
        fault_points.hook = self._take if self.seed is not None else before
        try:
            yield
        finally:
            fault_points.hook = before

    def _take(self, point: str) -> bool:
        taken = self.random.random() < self._points.get(point, 0.0)
        self.taken[point] += taken
        return taken


class SlowRunner:
    """A runner whose stops take time."""

    def __init__(self, runner: Runner, faults: Faults) -> None:
        self._runner, self._faults = runner, faults

    async def start(self, grants: Sequence[Grant]) -> None:
        """See ``Runner.start``."""
        await self._runner.start(grants)

    async def stop(self, units: Units) -> None:
        """See ``Runner.stop``."""
        await asyncio.sleep(self._faults.stop_s())
        await self._runner.stop(units)

"""The faults of a test with a seed: late, lost and repeated messages, slow stops and appends, rare branches.

The seed decides everything, so a run can be repeated: ``Faults(17)`` draws how often each kind of fault occurs, and
then each single fault by its id. So a run can also be repeated with a part of its faults (``only``): leaving one out
does not change the draws of the others. Without a seed there are no faults.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from urllib.parse import quote

from .. import fault_points
from ..errors import ConfigError
from ..member.actions import Grant
from ..protocol.units import Units
from ..worker.runner import Runner
from .virtual_time import NODE

MIN_LATENCY_S = 0.001
MAX_LATENCY_S, MAX_LOSS, MAX_DUPLICATION = 0.2, 0.1, 0.1
MAX_APPEND_S, MAX_STOP_S = 0.5, 3.0

NO_FAULTS = "none"
"""What ``format_ids`` writes for no faults."""

LATE_MESSAGES, SLOW_APPENDS, SLOW_STOPS = KINDS_OF_A_RUN = ("late-messages", "slow-appends", "slow-stops")
"""Kinds of faults that a run has from its start or not at all; their id is the kind."""

LOST, REPEATED = {False: "lost-request", True: "lost-response"}, "repeated-request"

KINDS = (*LOST.values(), REPEATED, *(point.replace(" ", "-") for point in fault_points.POINTS))
"""Kinds of faults that occur at a time; their id has the worker or coordinator and a number."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that occurred.

    Attributes:
        id: the same in every run of the seed; ``kind`` or ``kind:where:number``.
        at_s: the group's clock in seconds.
        text: the fault in words.
    """

    id: str
    at_s: float
    text: str

    @property
    def kind(self) -> str:
        """The first part of the id."""
        return self.id.partition(":")[0]

    def __str__(self) -> str:
        return f"{self.at_s:10.3f} s  {self.text}"


def format_ids(ids: Collection[str]) -> str:
    """Ids of faults as one word of a command line."""
    return ",".join(ids) or NO_FAULTS


def parse_ids(text: str) -> frozenset[str]:
    """The reverse of ``format_ids``.

    Raises:
        ConfigError: not the id of a fault, whatever the seed.
    """
    if text == NO_FAULTS:
        return frozenset()
    ids = text.split(",")
    for each in ids:
        kind, *place = re.sub(r"^\d+/", "", each).split(":")
        is_known = not place if kind in KINDS_OF_A_RUN else kind in KINDS and len(place) == 2 and place[1].isdecimal()
        if not is_known:
            one_time = ", ".join(f"{kind}:NAME:NUMBER" for kind in KINDS)
            allowed = f"{NO_FAULTS}, or ids as a failure prints them: {', '.join(KINDS_OF_A_RUN)}, {one_time}"
            raise ConfigError("--connectgroup-faults", each, allowed)
    return frozenset(ids)


class Faults:
    """The faults of one run.

    Attributes:
        occurred: the faults so far, in order.
    """

    def __init__(
        self,
        seed: int | None,
        *,
        only: Collection[str] | None = None,
        now: Callable[[], float] = lambda: 0.0,
        prefix: str = "",
    ) -> None:
        """See the module.

        Args:
            only: the ids of the faults that may occur; ``None``: all that the seed draws.
            now: the group's clock.
            prefix: of all ids, for the second group of a test and later ones.
        """
        self.seed = seed
        self.occurred: list[Fault] = []
        self._only, self._now, self._prefix = only, now, prefix
        self._counts: Counter[tuple[str, str]] = Counter()
        self._latency_s, self._append_s, self._stop_s = MIN_LATENCY_S, 0.0, 0.0
        self._loss = self._duplication = 0.0
        self._points: dict[str, float] = {}
        if seed is not None:
            self._draw(self._dice("faults"))

    def _draw(self, dice: Random) -> None:
        latency_s = dice.choice([MIN_LATENCY_S, dice.uniform(MIN_LATENCY_S, MAX_LATENCY_S)])
        self._loss = dice.choice([0.0, dice.uniform(0, MAX_LOSS)])
        self._duplication = dice.choice([0.0, dice.uniform(0, MAX_DUPLICATION)])
        append_s = dice.choice([0.0, dice.uniform(0, MAX_APPEND_S)])
        stop_s = dice.choice([0.0, dice.uniform(0, MAX_STOP_S)])
        self._points = {
            point: dice.choice([0.0, dice.uniform(0, limit)]) for point, limit in fault_points.POINTS.items()
        }
        late = f"each message takes up to {latency_s * 1000:.0f} ms"
        if latency_s > MIN_LATENCY_S and self._occurs(LATE_MESSAGES, late):
            self._latency_s = latency_s
        if append_s and self._occurs(SLOW_APPENDS, f"each append to the log takes up to {append_s * 1000:.0f} ms"):
            self._append_s = append_s
        if stop_s and self._occurs(SLOW_STOPS, f"each stop of tasks takes up to {stop_s:.1f} s"):
            self._stop_s = stop_s

    def _dice(self, *key: object) -> Random:
        """The dice of one decision: others do not change what they show."""
        return Random(" ".join(map(str, (self.seed, *key))))

    def _occurs(self, name: str, text: str) -> bool:
        """Whether a fault that the seed has drawn may occur; if so, it counts as occurred."""
        name = self._prefix + name
        if self._only is not None and name not in self._only:
            return False
        self.occurred.append(Fault(name, self._now(), text))
        return True

    def _number(self, kind: str, where: str) -> int:
        self._counts[kind, where] += 1
        return self._counts[kind, where]

    def message(self, worker: str, request: str) -> MessageFaults:
        """The faults of a worker's next request and of its response; ``request`` names its type."""
        if self.seed is None:
            return MessageFaults(self, worker, 0, request, None)
        number = self._number("message", worker)
        return MessageFaults(self, worker, number, request, self._dice("message", worker, number))

    def append_s(self) -> float:
        """The duration of the next append."""
        if not self._append_s:
            return 0.0
        return self._dice("append", self._number("append", "")).uniform(0, self._append_s)

    def slow(self, runner: Runner) -> Runner:
        """The runner, with stops that take time."""
        return SlowRunner(runner, self) if self._stop_s else runner

    def stop_s(self) -> float:
        """The duration of the next stop of the worker that calls this."""
        where = _process()
        return self._dice("stop", where, self._number("stop", where)).uniform(0, self._stop_s)

    def end(self) -> None:
        """No more faults: for the end of a test."""
        self._latency_s, self._append_s, self._stop_s = MIN_LATENCY_S, 0.0, 0.0
        self._loss = self._duplication = 0.0
        self._points = {}

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
        chance = self._points.get(point, 0.0)
        where = _process()
        number = self._number(point, where)
        if not chance or self._dice(point, where, number).random() >= chance:
            return False
        return self._occurs(f"{point.replace(' ', '-')}:{quote(where)}:{number}", f"{where}: {point}")


def _process() -> str:
    """The name of the simulated process whose code runs."""
    node = NODE.get()
    return "test" if node is None else node.name


class MessageFaults:
    """The network faults of one request and of its response. Call each method once."""

    def __init__(self, faults: Faults, worker: str, number: int, request: str, dice: Random | None) -> None:
        self._faults, self._worker, self._number, self._request = faults, worker, number, request
        # All drawn here, so that one that does not matter does not change the others.
        self._draws = [dice.random() for _ in range(5)] if dice else [0.0, 0.0, 1.0, 1.0, 1.0]

    def latency_s(self, *, response: bool) -> float:
        """How long the request, or its response, travels."""
        return MIN_LATENCY_S + self._draws[response] * (self._faults._latency_s - MIN_LATENCY_S)

    def is_lost(self, *, response: bool) -> bool:
        """Whether the request, or its response, is lost."""
        part = "response" if response else "request"
        return self._draws[2 + response] < self._faults._loss and self._occurs(LOST[response], f"the {part} is lost")

    def is_repeated(self) -> bool:
        """Whether the request arrives twice."""
        return self._draws[4] < self._faults._duplication and self._occurs(REPEATED, "it arrives twice")

    def _occurs(self, kind: str, text: str) -> bool:
        said = f"request {self._number} of {self._worker} ({self._request}): {text}"
        return self._faults._occurs(f"{kind}:{quote(self._worker)}:{self._number}", said)


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

"""What many seeds came to, in words and numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from connectgroup import fault_points as fault_point

from . import faults, sometimes
from .invariants import Violation
from .numbers import NUMBERS
from .run import Result
from .setting import MOODS
from .storm import NETWORK_HITS

KINDS = frozenset({*faults.KINDS, *MOODS, *fault_point.POINTS, *NETWORK_HITS})
"""All that a seed can draw."""

FAULTS_A_SEED = 25
SIMULATED_S = 600 * 0.95
"""Of a seed, on the average: one that finds its last small change settled early ends a little before ten minutes."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A number that is asked for, and what there is of it."""

    name: str
    asked: int
    there: int

    @property
    def holds(self) -> bool:
        """Whether it is enough."""
        return self.there >= self.asked

    def __str__(self) -> str:
        return f"{self.name:60}{self.asked:12,}{self.there:12,}{'' if self.holds else '   NOT REACHED'}"


@dataclass(slots=True)
class Suite:
    """The sum of many results."""

    seeds: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    faults: int = 0
    events: int = 0
    armed: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """One more seed."""
        self.seeds += 1
        self.simulated_s += result.simulated_s
        self.cpu_s += result.cpu_s
        self.faults += result.faults
        self.events += result.events
        self.armed += result.armed
        self.hits += result.hits
        self.reached += result.reached
        self.violations += result.violations[:1]

    @property
    def speed(self) -> float:
        """Simulated seconds a second of one core."""
        return self.simulated_s / self.cpu_s if self.cpu_s else 0.0

    @property
    def unreached(self) -> list[str]:
        """Rare states that no seed has seen, and faults that no seed knew of or that never had an effect."""
        kinds = sorted(KINDS | self.armed.keys())
        return [
            *sometimes.never(self.reached),
            *(kind for kind in kinds if not self.armed[kind] or not self.hits[kind]),
        ]

    @property
    def gates(self) -> list[Gate]:
        """What so many seeds must come to. Speed is told and decides nothing: it is the machine's as well."""
        unreached = {*self.unreached}
        states = len(sometimes.STATES) - len(unreached & {*sometimes.STATES})
        kinds = KINDS | self.armed.keys()
        broken = len(self.violations)
        return [
            Gate("seeds at rest after their faults, every promise kept", self.seeds, self.seeds - broken),
            Gate("minutes simulated", int(self.seeds * SIMULATED_S / 60), int(self.simulated_s / 60)),
            Gate("discrete faults", FAULTS_A_SEED * self.seeds, self.faults),
            Gate("kinds of faults armed and hit", len(kinds), len(kinds - unreached)),
            Gate("rare states reached", len(sometimes.STATES), states),
        ]


def show(violation: Violation, *, lines: int = 40) -> str:
    """A violation, what went before it, and how to see it again."""
    story = "\n".join(f"    {line}" for line in violation.story[-lines:])
    return (
        f"seed {violation.seed}, {violation.at_s:.3f} s: {violation.invariant} does not hold: {violation.what}\n"
        f"{story}\n"
        f"  again: python -m tests.simulation --seed {violation.seed} --seeds 1"
    )


def table(suite: Suite) -> str:
    """The suite in numbers."""
    lines = [
        f"seeds           {suite.seeds}",
        f"cluster-hours   {suite.simulated_s / 3600:.1f}",
        f"events          {suite.events}",
        f"discrete faults {suite.faults}",
        f"speed           {suite.speed:.0f}x real time a core, all invariants on",
        "",
        f"{'fault':54}{'F':>6}{'armed':>8}{'hit':>8}",
    ]
    lines += [
        f"{kind:54}{NUMBERS[kind]:>6}{suite.armed[kind]:8}{suite.hits[kind]:8}"
        for kind in sorted(suite.armed | suite.hits)
    ]
    lines += ["", f"{'sometimes':68}{'seen':>8}"]
    lines += [f"{state:68}{suite.reached[state]:8}" for state in sometimes.STATES]
    return "\n".join(lines)

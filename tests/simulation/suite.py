"""The results of many seeds, as a table and as gates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from connectgroup import fault_points as fault_point

from . import faults, sometimes
from .classic import CLASSIC_KINDS
from .fault_ids import FAULT_IDS
from .invariants import Violation
from .mixed.schedule import MIXED_KINDS
from .run import Result
from .schedule import NETWORK_HITS
from .setting import FAULT_RATES

KINDS = frozenset({*faults.KINDS, *MIXED_KINDS, *CLASSIC_KINDS, *FAULT_RATES, *fault_point.POINTS, *NETWORK_HITS})
"""All kinds of faults that a seed can draw."""

FAULTS_PER_SEED = 25
SIMULATED_S = 600 * 0.95
"""Average per seed: a seed whose last small change settles early ends a little before ten minutes."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A required count, and the actual one."""

    name: str
    required: int
    actual: int

    @property
    def holds(self) -> bool:
        """Whether the requirement is met."""
        return self.actual >= self.required

    def __str__(self) -> str:
        return f"{self.name:60}{self.required:12,}{self.actual:12,}{'' if self.holds else '   NOT REACHED'}"


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
        """Add the result of one seed."""
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
        """Simulated seconds per second of one core."""
        return self.simulated_s / self.cpu_s if self.cpu_s else 0.0

    @property
    def unreached(self) -> list[str]:
        """Rare states that no seed reached, and faults that no seed drew or that never had an effect."""
        kinds = sorted(KINDS | self.armed.keys())
        return [
            *sometimes.never(self.reached),
            *(kind for kind in kinds if not self.armed[kind] or not self.hits[kind]),
        ]

    @property
    def gates(self) -> list[Gate]:
        """The required counts. Speed is reported but not required: it depends on the machine."""
        unreached = {*self.unreached}
        states = len(sometimes.STATES) - len(unreached & {*sometimes.STATES})
        kinds = KINDS | self.armed.keys()
        broken = len(self.violations)
        return [
            Gate("seeds settled after their faults, every invariant kept", self.seeds, self.seeds - broken),
            Gate("minutes simulated", int(self.seeds * SIMULATED_S / 60), int(self.simulated_s / 60)),
            Gate("discrete faults", FAULTS_PER_SEED * self.seeds, self.faults),
            Gate("kinds of faults armed and hit", len(kinds), len(kinds - unreached)),
            Gate("rare states reached", len(sometimes.STATES), states),
        ]


def show(violation: Violation, *, lines: int = 40) -> str:
    """A violation, the events before it, and the command that reproduces it."""
    history = "\n".join(f"    {line}" for line in violation.history[-lines:])
    return (
        f"seed {violation.seed}, {violation.at_s:.3f} s: {violation.invariant} does not hold: {violation.what}\n"
        f"{history}\n"
        f"  reproduce: python -m tests.simulation --seed {violation.seed} --seeds 1"
    )


def table(suite: Suite) -> str:
    """The suite in numbers."""
    lines = [
        f"seeds           {suite.seeds}",
        f"cluster-hours   {suite.simulated_s / 3600:.1f}",
        f"events          {suite.events}",
        f"discrete faults {suite.faults}",
        f"speed           {suite.speed:.0f}x real time per core, all invariants on",
        "",
        f"{'fault':54}{'F':>6}{'armed':>8}{'hit':>8}",
    ]
    lines += [
        f"{kind:54}{FAULT_IDS[kind]:>6}{suite.armed[kind]:8}{suite.hits[kind]:8}"
        for kind in sorted(suite.armed | suite.hits)
    ]
    lines += ["", f"{'sometimes':68}{'seen':>8}"]
    lines += [f"{state:68}{suite.reached[state]:8}" for state in sometimes.STATES]
    return "\n".join(lines)

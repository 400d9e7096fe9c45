"""What many seeds came to, in words and numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from . import sometimes
from .invariants import Violation
from .run import Result


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
        """Rare states that no seed has seen, and faults that were armed and never had an effect."""
        return [*sometimes.never(self.reached), *(kind for kind in sorted(self.armed) if not self.hits[kind])]


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
        f"{'fault':60}{'armed':>8}{'hit':>8}",
    ]
    lines += [f"{kind:60}{suite.armed[kind]:8}{suite.hits[kind]:8}" for kind in sorted(suite.armed | suite.hits)]
    lines += ["", f"{'sometimes':68}{'seen':>8}"]
    lines += [f"{state:68}{suite.reached[state]:8}" for state in sometimes.STATES]
    return "\n".join(lines)

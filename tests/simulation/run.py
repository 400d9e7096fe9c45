"""Play seeds, and say what came of it. One seed is one run: the same seed gives the same events, byte for byte."""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import sometimes
from .cluster import Cluster
from .invariants import Violation
from .loop import SimulatedLoop, simulated
from .storm import Storm


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one seed came to."""

    seed: int
    trace: str
    events: int
    members: int
    simulated_s: float
    cpu_s: float
    armed: Counter[str]
    hits: Counter[str]
    reached: Counter[str]
    faults: int
    violations: tuple[Violation, ...]


def play(seed: int, *, faults: bool = True, members: int | None = None, tasks: int | None = None) -> Result:
    """Run one seed from its beginning to its end."""
    began_s = time.process_time()
    state = random.getstate()
    gc.disable()
    try:
        with simulated():
            random.seed(seed)
            loop = SimulatedLoop()
            try:
                return _play(loop, seed, began_s, faults, members, tasks)
            finally:
                loop.close()
    finally:
        gc.enable()
        random.setstate(state)


def _play(
    loop: SimulatedLoop, seed: int, began_s: float, faults: bool, members: int | None, tasks: int | None
) -> Result:
    cluster = Cluster(seed, loop, members=members, tasks=tasks)
    storm = Storm(cluster, faults=faults)

    def on_error(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        cluster.violated("D8", f"nobody caught it: {context.get('message')}: {error!r}")

    loop.set_exception_handler(on_error)
    try:
        loop.run_until_complete(storm.play())
    except AssertionError as error:
        cluster.violated("a bug", f"{type(error).__name__}: {error}")
    simulated_s = loop.now
    cluster.over = True
    _bury(loop, cluster)
    return Result(
        seed=seed,
        trace=cluster.digest.hexdigest(),
        events=cluster.events,
        members=cluster.members_at_first,
        simulated_s=simulated_s,
        cpu_s=time.process_time() - began_s,
        armed=cluster.armed,
        hits=cluster.hits,
        reached=cluster.sometimes.reached,
        faults=storm.made,
        violations=tuple(cluster.violations),
    )


def _bury(loop: SimulatedLoop, cluster: Cluster) -> None:
    """End everything that is left, also of the dead, so that nothing is torn down half-way later."""
    for node in [*cluster.graves, *cluster.workers.values(), *cluster.coordinators]:
        node.thaw(loop)
    for _ in range(20):
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        if not left:
            return
        for task in left:
            task.cancel()

        async def wait(tasks: Sequence[asyncio.Task[object]] = tuple(left)) -> None:
            await asyncio.wait(tasks, timeout=100)

        loop.run_until_complete(wait())


# --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Suite:
    """What many seeds came to."""

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


def show(violation: Violation, *, lines: int = 40) -> str:
    """A violation, what went before it, and how to see it again."""
    story = "\n".join(f"    {line}" for line in violation.story[-lines:])
    return (
        f"seed {violation.seed}, {violation.at_s:.3f} s: {violation.invariant} does not hold: {violation.what}\n"
        f"{story}\n"
        f"  again: make simulate SEEDS=1 SEED={violation.seed}"
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
        f"{'fault':44}{'armed':>8}{'hit':>8}",
    ]
    lines += [f"{kind:44}{suite.armed[kind]:8}{suite.hits[kind]:8}" for kind in sorted(suite.armed | suite.hits)]
    lines += ["", f"{'sometimes':72}{'seen':>8}"]
    lines += [f"{state:72}{suite.reached[state]:8}" for state in sometimes.STATES]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m tests.simulation``: 1 if anything did not hold, or a rare state was never reached."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--seed", type=int, help="the first of them (default: 1)")
    parser.add_argument("--members", type=int, help="workers at first (default: drawn)")
    parser.add_argument("--tasks", type=int, help="tasks at first (default: drawn)")
    parser.add_argument("--no-faults", action="store_true", help="only the quiet part")
    parser.add_argument("--traces", action="store_true", help="the hash of each seed's events instead of a table")
    options = parser.parse_args(arguments)
    first = 1 if options.seed is None else options.seed
    suite = Suite()
    for seed in range(first, first + options.seeds):
        result = play(seed, faults=not options.no_faults, members=options.members, tasks=options.tasks)
        suite.add(result)
        for violation in result.violations[:1]:
            print(show(violation), flush=True)
        if options.traces:
            print(f"trace {seed} {result.trace} {result.events} events {result.simulated_s:.0f} s", flush=True)
    unreached = sometimes.never(suite.reached)
    if not options.traces:
        print(table(suite))
    whole_suite = options.seed is None and options.seeds >= 100 and not options.no_faults
    if whole_suite and unreached:
        print(f"never reached: {'; '.join(unreached)}")
    print(f"seeds={suite.seeds} violations={len(suite.violations)} speed={suite.speed:.0f}x")
    return 1 if suite.violations or (whole_suite and unreached) else 0

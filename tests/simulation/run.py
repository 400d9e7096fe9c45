"""Play seeds, and say what came of it. One seed is one run: the same seed gives the same events, byte for byte."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from connectgroup import fault_points as fault_point
from connectgroup.coordinator import intake

from .cluster import Cluster
from .invariants import Violation
from .loop import NODE, SimulatedLoop, simulated
from .setting import Plan
from .storm import FaultSchedule


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
    plan: Plan
    violations: tuple[Violation, ...]


def play(
    seed: int,
    *,
    faults: bool = True,
    members: int | None = None,
    tasks: int | None = None,
    plan: Plan | None = None,
    whole: bool = True,
) -> Result:
    """Run one seed from its beginning to its end.

    Args:
        faults: or only the quiet part.
        plan: what this or another run of the seed came to: nothing is drawn then.
        whole: or only up to the end of the faults.
    """
    began_s = time.process_time()
    state = random.getstate()
    gc.disable()
    try:
        with simulated():
            random.seed(seed)
            loop = SimulatedLoop()
            try:
                return _play(loop, seed, began_s, FaultSchedule.of(seed, loop, faults, members, tasks, plan, whole))
            finally:
                loop.close()
    finally:
        gc.enable()
        random.setstate(state)


def _play(loop: SimulatedLoop, seed: int, began_s: float, storm: FaultSchedule) -> Result:
    cluster = storm.cluster

    def on_error(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        cluster.violated("D8", f"nobody caught it: {context.get('message')}: {error!r}")

    def rarely(point: str) -> bool:
        node = NODE.get()
        return node is not None and cluster.mood(point, node)

    loop.set_exception_handler(on_error)
    with (
        cluster.watch.watching_the_rules(),
        _set(fault_point, "hook", rarely),
        _set(intake, "MAX_INPUTS_PER_TURN", cluster.setting.most_a_turn),
    ):
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
        faults=len(storm.done),
        plan=Plan(
            seed=seed,
            members=storm.asked[0],
            tasks=storm.asked[1],
            setting=cluster.setting,
            faults=tuple(storm.done),
            ends_s=storm.ends_s,
        ),
        violations=tuple(cluster.violations),
    )


@contextmanager
def _set(place: Any, name: str, value: object) -> Iterator[None]:
    """``place.name`` is ``value`` meanwhile."""
    kept = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, kept)


def _bury(loop: SimulatedLoop, cluster: Cluster) -> None:
    """End everything that is left, also of the dead, so that nothing is torn down half-way later."""
    for node in [*cluster.graves, *cluster.workers.values(), *cluster.twins.values(), *cluster.coordinators]:
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

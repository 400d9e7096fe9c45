"""Run seeds and return their results. The same seed gives the same events, byte for byte."""

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

from .base import BaseCluster
from .classic import ClassicSchedule
from .invariants import Violation
from .loop import NODE, SimulatedLoop, simulated
from .mixed.schedule import MixedSchedule
from .schedule import FaultSchedule
from .setting import Plan, is_classic, is_mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one seed."""

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


def run_seed(
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
        faults: whether to inject faults, or only run the quiet phases.
        plan: the plan of this or another run of the seed: nothing is drawn.
        whole: run to the end, or only up to the end of the faults.
    """
    began_s = time.process_time()
    state = random.getstate()
    gc.disable()
    try:
        with simulated():
            random.seed(seed)
            loop = SimulatedLoop()
            try:
                kind = MixedSchedule if is_mixed(seed) else ClassicSchedule if is_classic(seed) else FaultSchedule
                return _run_seed(loop, seed, began_s, kind.of(seed, loop, faults, members, tasks, plan, whole))
            finally:
                loop.close()
    finally:
        gc.enable()
        random.setstate(state)


def _run_seed(loop: SimulatedLoop, seed: int, began_s: float, schedule: FaultSchedule) -> Result:
    cluster = schedule.cluster

    def on_error(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        cluster.violated("D8", f"exception not handled: {context.get('message')}: {error!r}")

    def rarely(point: str) -> bool:
        if point not in cluster.fault_rates:
            return False
        node = NODE.get()
        return node is not None and cluster.inject(point, node)

    loop.set_exception_handler(on_error)
    with (
        cluster.watch.watching_the_rules(),
        _set(fault_point, "hook", rarely),
        _set(intake, "MAX_INPUTS_PER_TURN", cluster.setting.max_inputs_per_turn),
    ):
        try:
            loop.run_until_complete(schedule.run_seed())
        except AssertionError as error:
            cluster.violated("a bug", f"{type(error).__name__}: {error}")
        simulated_s = loop.now
        cluster.over = True
        _cancel_all(loop, cluster)
    return Result(
        seed=seed,
        trace=cluster.trace.hexdigest(),
        events=cluster.events,
        members=cluster.members_at_first,
        simulated_s=simulated_s,
        cpu_s=time.process_time() - began_s,
        armed=cluster.armed,
        hits=cluster.hits,
        reached=cluster.sometimes.reached,
        faults=len(schedule.done),
        plan=Plan(
            seed=seed,
            members=schedule.requested_size[0],
            tasks=schedule.requested_size[1],
            setting=cluster.setting,
            faults=tuple(schedule.done),
            ends_s=schedule.ends_s,
        ),
        violations=tuple(cluster.violations),
    )


@contextmanager
def _set(slot: Any, name: str, value: object) -> Iterator[None]:
    """``place.name`` is ``value`` within the context."""
    kept = getattr(slot, name)
    setattr(slot, name, value)
    try:
        yield
    finally:
        setattr(slot, name, kept)


def _cancel_all(loop: SimulatedLoop, cluster: BaseCluster) -> None:
    """Cancel every task that is left, also of dead nodes, so that nothing is torn down half-way later."""
    for node in cluster.nodes:
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

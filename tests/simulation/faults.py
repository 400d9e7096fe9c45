"""The kinds of faults. Each kind first draws plain arguments, and is then injected from these alone.

So the faults of a run are a list (``setting.PlannedFault``) that can be repeated without drawing, and shortened. A
fault whose target does not exist (any more) has no effect and returns false.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.protocol.messages.connectors import ConnectorChange

from . import stalls
from .disk import FAULTS
from .worker_faults import (
    Arguments,
    any_worker,
    bounce,
    crash,
    drain,
    draw_bounce,
    draw_join,
    draw_replace,
    draw_roll,
    join,
    leave,
    node_of,
    pause,
    replace,
    restart,
    roll,
    scale_workers,
    twin,
)

if TYPE_CHECKING:
    from .schedule import FaultSchedule

CONNECTORS = ("files", "orders", "weather")


class Kind(NamedTuple):
    """``draw`` returns arguments, or ``None`` if there is no target; ``do`` returns whether the fault had an effect."""

    draw: Callable[[FaultSchedule], Arguments | None]
    do: Callable[..., bool]
    all_workers: bool = False


# --------------------------------------------------------------------------------------------------
# Network


def part(schedule: FaultSchedule, member: str, cuts: list[str], seconds: float) -> bool:
    """Partition a worker from the coordinator, in one direction or both."""
    node, network = node_of(schedule, member), schedule.cluster.network
    if node is None:
        return False
    ways = [network.cut_out if cut == "out" else network.cut_in for cut in cuts]
    for way in ways:
        way.add(node.name)

    def heal() -> None:
        for way in ways:
            way.discard(node.name)

    schedule.later(seconds, heal)
    return True


def draw_part(*cuts: str) -> Callable[[FaultSchedule], Arguments | None]:
    """Draw a worker and a duration."""
    return lambda schedule: any_worker(
        schedule, cuts=list(cuts), seconds=schedule.random.uniform(1, 4 * schedule.cluster.session_s)
    )


def draw_swizzle(schedule: FaultSchedule) -> Arguments | None:
    """Draw some workers, with a duration each."""
    random = schedule.random
    nodes = [node for node in schedule.cluster.living() if random.random() < 0.5]
    held = {node.slot: random.uniform(0.5, 1.5 * schedule.cluster.session_s) for node in nodes}
    return {"held_s": held} if held else None


def swizzle(schedule: FaultSchedule, held_s: Mapping[str, float]) -> bool:
    """Delay all messages of several workers, then deliver them in a different order."""
    network = schedule.cluster.network
    for member, seconds in held_s.items():
        node = node_of(schedule, member)
        if node is not None and node.name not in network.clogged:
            network.clogged[node.name] = []
            schedule.later(seconds, lambda name=node.name: network.unclog(name))  # type: ignore[misc]
    return True


def reset(schedule: FaultSchedule, member: str) -> bool:
    """Reset a worker's connections."""
    node = node_of(schedule, member)
    for client in node.clients if node is not None else ():
        client.reset("reset by peer")
    return node is not None


# --------------------------------------------------------------------------------------------------
# Coordinators, disk, clock


def kill_coordinator(schedule: FaultSchedule, back_s: float) -> bool:
    """Kill the coordinator; start another after a while."""
    node = schedule.cluster.serving
    if node is None:
        return False
    schedule.cluster.kill_coordinator(node)
    schedule.restart_coordinator(back_s)
    return True


def restart_coordinator(schedule: FaultSchedule, back_s: float) -> bool:
    """Close the coordinator cleanly, and start another."""
    cluster = schedule.cluster
    node = cluster.serving
    if node is None or node.coordinator is None or node.stopped:
        return False
    coordinator = node.coordinator

    async def close() -> None:
        await coordinator.close()
        cluster.kill_coordinator(node)
        schedule.restart_coordinator(back_s)

    cluster.loop.create_task(close(), context=node.context)
    return True


def pause_coordinator(schedule: FaultSchedule, seconds: float) -> bool:
    """Pause the coordinator process."""
    node = schedule.cluster.serving
    if node is None or node.stopped:
        return False
    node.pause()
    schedule.later(seconds, lambda: node.resume(schedule.cluster.loop))
    return True


def take_over(schedule: FaultSchedule, pause_s: float | None) -> bool:
    """Start a second coordinator, mostly while the first is paused; the first then continues for a while."""
    cluster = schedule.cluster
    node = cluster.serving
    if node is None or node.coordinator is None or node.stopped:
        return False
    if pause_s is not None:
        node.pause()
        schedule.later(pause_s, lambda: node.resume(cluster.loop))
    cluster.start_coordinator()
    cluster.sometimes.reach("two coordinators were alive")
    schedule.later(3 * cluster.session_s, lambda: cluster.kill_coordinator(node))
    return True


def queue_disk_fault(schedule: FaultSchedule, fault: str) -> bool:
    """The next append, or load, fails in this way; a coordinator that crashes by it is started again."""
    disk = schedule.cluster.disk
    if fault in disk.faults:
        return False
    disk.faults.append(fault)
    if fault == "load failed":
        disk.faults.appendleft("append lost")
    if fault in ("crash before append", "crash after append", "torn tail"):
        for after_s in (5, 15, 30):
            schedule.restart_coordinator(after_s)
    return True


def slow_disk(schedule: FaultSchedule, factor: float, seconds: float) -> bool:
    """Every append takes ``factor`` times as long."""
    disk = schedule.cluster.disk
    disk.slow = factor
    schedule.later(seconds, lambda: setattr(disk, "slow", 1.0))
    return True


def jump(schedule: FaultSchedule, milliseconds: int) -> bool:
    """Move the wall clock, forwards or backwards."""
    schedule.cluster.clock_ms += milliseconds
    return True


def compact(schedule: FaultSchedule) -> bool:
    """Compact the log."""
    node = schedule.cluster.serving
    if node is None or node.coordinator is None or node.log.epoch != schedule.cluster.disk.storage.epoch:
        return False
    step = node.log.compact()
    try:
        step.send(None)
    except StopIteration:
        return True
    raise AssertionError("a memory log never suspends")


# --------------------------------------------------------------------------------------------------
# Connectors


def fail_task(schedule: FaultSchedule, member: str, which: float) -> bool:
    """One task fails."""
    node = node_of(schedule, member)
    if node is None or not node.running or node.stopped:
        return False
    grants = sorted(node.running)
    task = node.running[grants[int(which * len(grants))]]
    schedule.cluster.loop.call_soon(task.fail, OSError("the source went away"), context=node.context)
    schedule.cluster.sometimes.reach("a task failed and was started again")
    return True


def some_tasks(schedule: FaultSchedule) -> int:
    """Draw a number of tasks for one connector."""
    return schedule.random.randint(1, schedule.random.choice([1, 3, max(1, schedule.cluster.tasks_at_first // 3)]))


def scale(schedule: FaultSchedule, connector: str, tasks: int) -> bool:
    """Change the number of tasks of a connector."""
    schedule.cluster.operator.submit_connector(connector, tasks)
    return True


def config_storm(schedule: FaultSchedule, orders: list[tuple[str, int]]) -> bool:
    """Submit many changes in a row (F31)."""
    for connector, tasks in orders:
        schedule.cluster.operator.submit_connector(connector, tasks)
    return True


def remove(schedule: FaultSchedule, connector: str, again: bool) -> bool:
    """Delete a connector; mostly it is created again."""
    if connector not in schedule.cluster.durable.connectors:
        return False
    schedule.cluster.operator.order(ConnectorChange(connector=connector, delete=True))
    if again:
        schedule.cluster.operator.submit_connector(connector, schedule.cluster.parts_of(connector))
    return True


def switch(schedule: FaultSchedule, connector: str, state: int) -> bool:
    """Pause, stop or resume a connector."""
    schedule.cluster.operator.order(ConnectorChange(connector=connector, target_state=state))
    return True


def grow(schedule: FaultSchedule, connector: str, parts: int) -> bool:
    """Change the number of parts of a source; its connector publishes new task configurations."""
    known = schedule.cluster.durable.connectors.get(connector)
    if known is None or not known.tasks:
        return False
    limit = next((int(entry.value) for entry in known.config if entry.name == "tasks.max"), 1)
    schedule.cluster.parts[connector] = min(parts, limit)
    return True


def _draw_grow(schedule: FaultSchedule) -> Arguments | None:
    return {"connector": schedule.random.choice(CONNECTORS), "parts": some_tasks(schedule)}


def _draw_config_storm(schedule: FaultSchedule) -> Arguments | None:
    number = schedule.random.randint(5, 20)
    return {"orders": [[schedule.random.choice(CONNECTORS), some_tasks(schedule)] for _ in range(number)]}


def _draw_pause(schedule: FaultSchedule) -> Arguments | None:
    return any_worker(schedule, seconds=schedule.cluster.session_s * 10 ** schedule.random.uniform(-1, 0.7))


def _draw_leave(schedule: FaultSchedule) -> Arguments | None:
    back_s = schedule.random.random() * 40 if schedule.random.random() < 0.7 else None
    return any_worker(schedule, back_s=back_s)


def _draw_take_over(schedule: FaultSchedule) -> Arguments | None:
    pauses = schedule.random.random() < 0.7
    return {"pause_s": schedule.random.random() * 2 * schedule.cluster.session_s if pauses else None}


def _disk_fault_kind(fault: str) -> Kind:
    return Kind(lambda schedule: {}, lambda schedule: queue_disk_fault(schedule, fault), all_workers=True)


def _outlast(kind: TimerKind) -> Kind:
    return Kind(stalls.draw, lambda schedule, **drawn: stalls.outlast(schedule, kind, **drawn), all_workers=True)


KINDS: dict[str, Kind] = {
    "worker crashes": Kind(lambda s: any_worker(s, back_s=s.random.random() * 60), crash),
    "worker power-cycles": Kind(
        lambda s: any_worker(s, back_s=s.random.random() * s.random.choice([0.5, 5, 20])), crash
    ),
    "worker crashes, another joins": Kind(draw_replace, replace),
    "worker pauses": Kind(_draw_pause, pause),
    "worker leaves": Kind(_draw_leave, leave),
    "worker restarts": Kind(lambda s: any_worker(s, back_s=s.random.random() * 30), restart),
    "worker drains": Kind(lambda s: any_worker(s, back_s=s.random.random() * 40), drain),
    "worker joins": Kind(draw_join, join),
    "all workers bounce": Kind(draw_bounce, bounce, all_workers=True),
    "rolling bounce": Kind(draw_roll, roll, all_workers=True),
    "workers 1, N, 0, N": Kind(lambda s: {"step_s": s.random.uniform(5, 20)}, scale_workers, all_workers=True),
    "two processes with one id": Kind(
        lambda s: any_worker(s, seconds=s.random.random() * 4 * s.cluster.session_s), twin
    ),
    "partition of requests": Kind(draw_part("out"), part),
    "partition of answers": Kind(draw_part("in"), part),
    "partition": Kind(draw_part("out", "in"), part),
    "swizzle-clog": Kind(draw_swizzle, swizzle, all_workers=True),
    "connection reset": Kind(any_worker, reset),
    "coordinator killed": Kind(
        lambda s: {"back_s": s.random.choice([0.1, 2, 15]) * s.random.random()}, kill_coordinator, all_workers=True
    ),
    "coordinator restarted in good order": Kind(
        lambda s: {"back_s": s.random.random()}, restart_coordinator, all_workers=True
    ),
    "coordinator pauses": Kind(
        lambda s: {"seconds": s.random.random() * 1.5 * s.cluster.session_s}, pause_coordinator, all_workers=True
    ),
    "takeover": Kind(_draw_take_over, take_over, all_workers=True),
    "slow disk": Kind(
        lambda s: {"factor": 10 ** s.random.uniform(1, 3), "seconds": s.random.random() * 20},
        slow_disk,
        all_workers=True,
    ),
    **{f"append outlasts a {kind} timer": _outlast(kind) for kind in stalls.KINDS},
    "wall clock jumps": Kind(lambda s: {"milliseconds": s.random.randint(-3_600_000, 3_600_000)}, jump),
    "compaction": Kind(lambda s: {}, compact),
    "task fails": Kind(lambda s: any_worker(s, which=s.random.random()), fail_task),
    "connector scaled": Kind(lambda s: {"connector": s.random.choice(CONNECTORS), "tasks": some_tasks(s)}, scale),
    "connector storm": Kind(_draw_config_storm, config_storm),
    "connector removed": Kind(
        lambda s: {"connector": s.random.choice(CONNECTORS), "again": s.random.random() < 0.7}, remove
    ),
    "connector switched": Kind(
        lambda s: {"connector": s.random.choice(CONNECTORS), "state": s.random.choice([1, 2, 3])}, switch
    ),
    "source grows": Kind(_draw_grow, grow),
    **{fault: _disk_fault_kind(fault) for fault in FAULTS},
}
"""Every kind by name."""

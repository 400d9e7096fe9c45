"""What may befall a cluster: each kind is drawn first, as plain arguments, and done from them alone.

So a run's faults are a list (``setting.Fault``) that can be done again without drawing, and shortened. A fault whose
object is not there (any more) has no effect, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from connectgroup.group.kernel.timers import TimerKind
from connectgroup.protocol.messages.connectors import ConnectorChange

from . import stalls
from .disk import FAULTS

if TYPE_CHECKING:
    from .cluster import WorkerNode
    from .storm import FaultSchedule

CONNECTORS = ("files", "orders", "weather")
MOST_WORKERS = 10

Arguments = Mapping[str, Any]


class Kind(NamedTuple):
    """``draw`` gives arguments, or ``None`` where there is nobody it could befall; ``do`` says whether it did."""

    draw: Callable[[FaultSchedule], Arguments | None]
    do: Callable[..., bool]
    all_workers: bool = False


# --------------------------------------------------------------------------------------------------
# Workers


def somebody(storm: FaultSchedule, **arguments: Any) -> Arguments | None:
    """Any living worker."""
    nodes = storm.cluster.living()
    return {"member": storm.random.choice(nodes).place, **arguments} if nodes else None


def node_of(storm: FaultSchedule, member: str) -> WorkerNode | None:
    """A living worker, by name."""
    node = storm.cluster.workers.get(member)
    return node if node is not None and not node.dead else None


def crash(storm: FaultSchedule, member: str, back_s: float) -> bool:
    """SIGKILL, and back under its old name after a while."""
    node = node_of(storm, member)
    if node is None:
        return False
    storm.cluster.kill_worker(node)
    storm.later(back_s, lambda: storm.again(member))
    return True


def replace(storm: FaultSchedule, member: str, other: str) -> bool:
    """SIGKILL, and another one takes its place."""
    node = node_of(storm, member)
    if node is None or node_of(storm, other) is not None:
        return False
    storm.cluster.kill_worker(node)
    storm.cluster.start_worker(other)
    return True


def pause(storm: FaultSchedule, member: str, seconds: float) -> bool:
    """SIGSTOP, and SIGCONT."""
    node = node_of(storm, member)
    if node is None or node.stopped:
        return False
    node.pause()
    storm.later(seconds, lambda: node.resume(storm.cluster.loop))
    return True


def leave(storm: FaultSchedule, member: str, back_s: float | None) -> bool:
    """A clean stop."""
    node = node_of(storm, member)
    if node is None or len(storm.cluster.living()) < 2:
        return False
    storm.stop(node)
    if back_s is not None:
        storm.later(back_s, lambda: storm.again(member))
    return True


def restart(storm: FaultSchedule, member: str, back_s: float) -> bool:
    """A worker restarts: it leaves with the announcement that it returns, and is started again."""
    node = node_of(storm, member)
    if node is None or node.worker.member.draining:
        return False
    storm.restart(node)
    storm.later(back_s, lambda: storm.again(member))
    return True


def drain(storm: FaultSchedule, member: str, back_s: float) -> bool:
    """A worker asks for its work to be taken over, and leaves when it has none."""
    node = node_of(storm, member)
    if node is None or node.stopped or len(storm.cluster.living()) < 2:
        return False
    storm.cluster.loop.call_soon(node.worker.drain, context=node.context)
    storm.later(back_s, lambda: storm.again(member))
    return True


def join(storm: FaultSchedule, member: str) -> bool:
    """One more."""
    if node_of(storm, member) is not None:
        return False
    storm.cluster.start_worker(member)
    return True


def _newcomer(storm: FaultSchedule) -> str | None:
    living = {node.place for node in storm.cluster.living()}
    names = [f"w{number}" for number in range(MOST_WORKERS) if f"w{number}" not in living]
    return storm.random.choice(names) if names else None


def draw_join(storm: FaultSchedule) -> Arguments | None:
    """A name that nobody has."""
    name = _newcomer(storm)
    return {"member": name} if name else None


def draw_replace(storm: FaultSchedule) -> Arguments | None:
    """A living worker and a new name."""
    name = _newcomer(storm)
    return somebody(storm, other=name) if name else None


def draw_bounce(storm: FaultSchedule) -> Arguments | None:
    """When each of them comes back; seldom."""
    if storm.random.random() < 0.5:
        return None
    return {"back_s": {node.place: storm.random.random() * 30 for node in storm.cluster.living()}}


def bounce(storm: FaultSchedule, back_s: Mapping[str, float]) -> bool:
    """All of them die within a moment."""
    for member, after_s in back_s.items():
        crash(storm, member, after_s)
    return bool(back_s)


def draw_roll(storm: FaultSchedule) -> Arguments | None:
    """In which order, how fast, and whether they say so."""
    members = [node.place for node in storm.cluster.living()]
    storm.random.shuffle(members)
    random = storm.random
    return {
        "members": members,
        "every_s": random.choice([1.0, 5.0, 15.0]),
        "down_s": random.random() * 5,
        "clean": random.random() < 0.7,
    }


def roll(storm: FaultSchedule, members: list[str], every_s: float, down_s: float, clean: bool) -> bool:
    """A rolling bounce: one after the other is restarted."""

    def restart(member: str) -> None:
        if clean:
            leave(storm, member, down_s)
        else:
            crash(storm, member, down_s)

    for number, member in enumerate(members):
        storm.later(number * every_s, lambda member=member: restart(member), ends=False)  # type: ignore[misc]
    return bool(members)


def scale_workers(storm: FaultSchedule, step_s: float) -> bool:
    """Counts 1, N, 0, N: all but one leave, all come, all die, all come."""
    names = [f"w{number}" for number in range(storm.cluster.members_at_first)]
    first, *rest = [node.place for node in storm.cluster.living()] or [names[0]]
    for member in rest:
        leave(storm, member, None)

    def all_come() -> None:
        for name in names:
            storm.again(name)

    def all_die() -> None:
        storm.cluster.sometimes.reach("all workers were gone at once")
        for node in storm.cluster.living():
            storm.cluster.kill_worker(node)

    storm.later(step_s, all_come)
    storm.later(2 * step_s, all_die, ends=False)
    storm.later(3 * step_s, all_come)
    return bool(first)


def twin(storm: FaultSchedule, member: str, seconds: float) -> bool:
    """A second process under the name of one that lives (F33); the newer one is the one that counts."""
    node, before = node_of(storm, member), storm.cluster.twins.get(member)
    if node is None or (before is not None and not before.dead):
        return False
    other = storm.cluster.start_twin(member)

    def end() -> None:
        if not other.dead:
            storm.cluster.kill_worker(other)

    storm.later(seconds, end)
    if other.member_id == node.member_id:
        storm.cluster.sometimes.reach("two processes had one member id")
    return True


# --------------------------------------------------------------------------------------------------
# Network


def part(storm: FaultSchedule, member: str, cuts: list[str], seconds: float) -> bool:
    """Cut one worker off, in one direction or both."""
    node, network = node_of(storm, member), storm.cluster.network
    if node is None:
        return False
    ways = [network.cut_out if cut == "out" else network.cut_in for cut in cuts]
    for way in ways:
        way.add(node.name)

    def heal() -> None:
        for way in ways:
            way.discard(node.name)

    storm.later(seconds, heal)
    return True


def draw_part(*cuts: str) -> Callable[[FaultSchedule], Arguments | None]:
    """One worker, for some time."""
    return lambda storm: somebody(storm, cuts=list(cuts), seconds=storm.random.uniform(1, 4 * storm.cluster.session_s))


def draw_swizzle(storm: FaultSchedule) -> Arguments | None:
    """Some of them, each for a time of its own."""
    random = storm.random
    nodes = [node for node in storm.cluster.living() if random.random() < 0.5]
    held = {node.place: random.uniform(0.5, 1.5 * storm.cluster.session_s) for node in nodes}
    return {"held_s": held} if held else None


def swizzle(storm: FaultSchedule, held_s: Mapping[str, float]) -> bool:
    """Hold several workers' messages up, and let go in another order."""
    network = storm.cluster.network
    for member, seconds in held_s.items():
        node = node_of(storm, member)
        if node is not None and node.name not in network.clogged:
            network.clogged[node.name] = []
            storm.later(seconds, lambda name=node.name: network.unclog(name))  # type: ignore[misc]
    return True


def reset(storm: FaultSchedule, member: str) -> bool:
    """A worker's connections break."""
    node = node_of(storm, member)
    for client in node.clients if node is not None else ():
        client.reset("reset by peer")
    return node is not None


# --------------------------------------------------------------------------------------------------
# Coordinators, disk, clock


def kill_coordinator(storm: FaultSchedule, back_s: float) -> bool:
    """Gone, and back after a while."""
    node = storm.cluster.serving
    if node is None:
        return False
    storm.cluster.kill_coordinator(node)
    storm.restart_coordinator(back_s)
    return True


def restart_coordinator(storm: FaultSchedule, back_s: float) -> bool:
    """It says so, and comes back."""
    cluster = storm.cluster
    node = cluster.serving
    if node is None or node.coordinator is None or node.stopped:
        return False
    coordinator = node.coordinator

    async def close() -> None:
        await coordinator.close()
        cluster.kill_coordinator(node)
        storm.restart_coordinator(back_s)

    cluster.loop.create_task(close(), context=node.context)
    return True


def pause_coordinator(storm: FaultSchedule, seconds: float) -> bool:
    """It stands still, and goes on as if nothing had been."""
    node = storm.cluster.serving
    if node is None or node.stopped:
        return False
    node.pause()
    storm.later(seconds, lambda: node.resume(storm.cluster.loop))
    return True


def take_over(storm: FaultSchedule, pause_s: float | None) -> bool:
    """It stands still, mostly; another takes its place; then it goes on, for a while."""
    cluster = storm.cluster
    node = cluster.serving
    if node is None or node.coordinator is None or node.stopped:
        return False
    if pause_s is not None:
        node.pause()
        storm.later(pause_s, lambda: node.resume(cluster.loop))
    cluster.start_coordinator()
    cluster.sometimes.reach("two coordinators were alive")
    storm.later(3 * cluster.session_s, lambda: cluster.kill_coordinator(node))
    return True


def spoil(storm: FaultSchedule, fault: str) -> bool:
    """The next append, or load, fails in this way; a process that dies of it comes back."""
    disk = storm.cluster.disk
    if fault in disk.faults:
        return False
    disk.faults.append(fault)
    if fault == "load failed":
        disk.faults.appendleft("append lost")
    if fault in ("crash before append", "crash after append", "torn tail"):
        for after_s in (5, 15, 30):
            storm.restart_coordinator(after_s)
    return True


def slow_disk(storm: FaultSchedule, factor: float, seconds: float) -> bool:
    """Every append takes so many times as long."""
    disk = storm.cluster.disk
    disk.slow = factor
    storm.later(seconds, lambda: setattr(disk, "slow", 1.0))
    return True


def jump(storm: FaultSchedule, milliseconds: int) -> bool:
    """The wall clock, either way."""
    storm.cluster.clock_ms += milliseconds
    return True


def compact(storm: FaultSchedule) -> bool:
    """Drop what later records have replaced."""
    node = storm.cluster.serving
    if node is None or node.coordinator is None or node.log.epoch != storm.cluster.disk.storage.epoch:
        return False
    work = node.log.compact()
    try:
        work.send(None)
    except StopIteration:
        return True
    raise AssertionError("a memory log waits for nothing")


# --------------------------------------------------------------------------------------------------
# Connectors


def fail_task(storm: FaultSchedule, member: str, which: float) -> bool:
    """One task ends by itself."""
    node = node_of(storm, member)
    if node is None or not node.running or node.stopped:
        return False
    grants = sorted(node.running)
    task = node.running[grants[int(which * len(grants))]]
    storm.cluster.loop.call_soon(task.fail, OSError("the source went away"), context=node.context)
    storm.cluster.sometimes.reach("a task failed and was started again")
    return True


def some_tasks(storm: FaultSchedule) -> int:
    """A number of tasks for one connector."""
    return storm.random.randint(1, storm.random.choice([1, 3, max(1, storm.cluster.tasks_at_first // 3)]))


def scale(storm: FaultSchedule, connector: str, tasks: int) -> bool:
    """Another number of tasks."""
    storm.cluster.desk.order_connector(connector, tasks)
    return True


def config_storm(storm: FaultSchedule, orders: list[tuple[str, int]]) -> bool:
    """One change after another, as fast as they are taken (F31)."""
    for connector, tasks in orders:
        storm.cluster.desk.order_connector(connector, tasks)
    return True


def remove(storm: FaultSchedule, connector: str, again: bool) -> bool:
    """Remove a connector; mostly it comes back."""
    if connector not in storm.cluster.durable.connectors:
        return False
    storm.cluster.desk.order(ConnectorChange(connector=connector, delete=True))
    if again:
        storm.cluster.desk.order_connector(connector, storm.cluster.parts_of(connector))
    return True


def switch(storm: FaultSchedule, connector: str, state: int) -> bool:
    """Pause, stop or resume one."""
    storm.cluster.desk.order(ConnectorChange(connector=connector, target_state=state))
    return True


def grow(storm: FaultSchedule, connector: str, parts: int) -> bool:
    """A source asks for another number of tasks; its connector finds out."""
    known = storm.cluster.durable.connectors.get(connector)
    if known is None or not known.tasks:
        return False
    limit = next((int(entry.value) for entry in known.config if entry.name == "tasks.max"), 1)
    storm.cluster.parts[connector] = min(parts, limit)
    return True


def _draw_grow(storm: FaultSchedule) -> Arguments | None:
    return {"connector": storm.random.choice(CONNECTORS), "parts": some_tasks(storm)}


def _draw_config_storm(storm: FaultSchedule) -> Arguments | None:
    number = storm.random.randint(5, 20)
    return {"orders": [[storm.random.choice(CONNECTORS), some_tasks(storm)] for _ in range(number)]}


def _draw_pause(storm: FaultSchedule) -> Arguments | None:
    return somebody(storm, seconds=storm.cluster.session_s * 10 ** storm.random.uniform(-1, 0.7))


def _draw_leave(storm: FaultSchedule) -> Arguments | None:
    back_s = storm.random.random() * 40 if storm.random.random() < 0.7 else None
    return somebody(storm, back_s=back_s)


def _draw_take_over(storm: FaultSchedule) -> Arguments | None:
    pauses = storm.random.random() < 0.7
    return {"pause_s": storm.random.random() * 2 * storm.cluster.session_s if pauses else None}


def _spoil(fault: str) -> Kind:
    return Kind(lambda storm: {}, lambda storm: spoil(storm, fault), all_workers=True)


def _outlast(kind: TimerKind) -> Kind:
    return Kind(stalls.draw, lambda storm, **said: stalls.outlast(storm, kind, **said), all_workers=True)


KINDS: dict[str, Kind] = {
    "worker crashes": Kind(lambda s: somebody(s, back_s=s.random.random() * 60), crash),
    "worker power-cycles": Kind(lambda s: somebody(s, back_s=s.random.random() * s.random.choice([0.5, 5, 20])), crash),
    "worker crashes, another joins": Kind(draw_replace, replace),
    "worker pauses": Kind(_draw_pause, pause),
    "worker leaves": Kind(_draw_leave, leave),
    "worker restarts": Kind(lambda s: somebody(s, back_s=s.random.random() * 30), restart),
    "worker drains": Kind(lambda s: somebody(s, back_s=s.random.random() * 40), drain),
    "worker joins": Kind(draw_join, join),
    "all workers bounce": Kind(draw_bounce, bounce, all_workers=True),
    "rolling bounce": Kind(draw_roll, roll, all_workers=True),
    "workers 1, N, 0, N": Kind(lambda s: {"step_s": s.random.uniform(5, 20)}, scale_workers, all_workers=True),
    "two processes with one id": Kind(lambda s: somebody(s, seconds=s.random.random() * 4 * s.cluster.session_s), twin),
    "partition of requests": Kind(draw_part("out"), part),
    "partition of answers": Kind(draw_part("in"), part),
    "partition": Kind(draw_part("out", "in"), part),
    "swizzle-clog": Kind(draw_swizzle, swizzle, all_workers=True),
    "connection reset": Kind(somebody, reset),
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
    "task fails": Kind(lambda s: somebody(s, which=s.random.random()), fail_task),
    "connector scaled": Kind(lambda s: {"connector": s.random.choice(CONNECTORS), "tasks": some_tasks(s)}, scale),
    "connector storm": Kind(_draw_config_storm, config_storm),
    "connector removed": Kind(
        lambda s: {"connector": s.random.choice(CONNECTORS), "again": s.random.random() < 0.7}, remove
    ),
    "connector switched": Kind(
        lambda s: {"connector": s.random.choice(CONNECTORS), "state": s.random.choice([1, 2, 3])}, switch
    ),
    "source grows": Kind(_draw_grow, grow),
    **{fault: _spoil(fault) for fault in FAULTS},
}
"""Every kind by name."""

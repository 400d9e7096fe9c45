"""Faults of worker processes: crashes, pauses, restarts, rolling bounces and twins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cluster import WorkerNode
    from .schedule import FaultSchedule

MAX_WORKERS = 10

Arguments = Mapping[str, Any]


def any_worker(schedule: FaultSchedule, **arguments: Any) -> Arguments | None:
    """Draw a live worker."""
    nodes = schedule.cluster.living()
    return {"member": schedule.random.choice(nodes).slot, **arguments} if nodes else None


def node_of(schedule: FaultSchedule, member: str) -> WorkerNode | None:
    """A live worker, by name."""
    node = schedule.cluster.workers.get(member)
    return node if node is not None and not node.dead else None


def crash(schedule: FaultSchedule, member: str, back_s: float) -> bool:
    """SIGKILL a worker; start it again under the same name after a while."""
    node = node_of(schedule, member)
    if node is None:
        return False
    schedule.cluster.kill_worker(node)
    schedule.later(back_s, lambda: schedule.again(member))
    return True


def replace(schedule: FaultSchedule, member: str, other: str) -> bool:
    """SIGKILL a worker; another worker joins."""
    node = node_of(schedule, member)
    if node is None or node_of(schedule, other) is not None:
        return False
    schedule.cluster.kill_worker(node)
    schedule.cluster.start_worker(other)
    return True


def pause(schedule: FaultSchedule, member: str, seconds: float) -> bool:
    """SIGSTOP, later SIGCONT."""
    node = node_of(schedule, member)
    if node is None or node.stopped:
        return False
    node.pause()
    schedule.later(seconds, lambda: node.resume(schedule.cluster.loop))
    return True


def leave(schedule: FaultSchedule, member: str, back_s: float | None) -> bool:
    """Stop a worker cleanly."""
    node = node_of(schedule, member)
    if node is None or len(schedule.cluster.living()) < 2:
        return False
    schedule.stop(node)
    if back_s is not None:
        schedule.later(back_s, lambda: schedule.again(member))
    return True


def restart(schedule: FaultSchedule, member: str, back_s: float) -> bool:
    """A worker announces a restart, leaves, and is started again."""
    node = node_of(schedule, member)
    if node is None or node.worker.member.draining:
        return False
    schedule.restart(node)
    schedule.later(back_s, lambda: schedule.again(member))
    return True


def drain(schedule: FaultSchedule, member: str, back_s: float) -> bool:
    """A worker drains its units and leaves when it owns none."""
    node = node_of(schedule, member)
    if node is None or node.stopped or len(schedule.cluster.living()) < 2:
        return False
    schedule.cluster.loop.call_soon(node.worker.drain, context=node.context)
    schedule.later(back_s, lambda: schedule.again(member))
    return True


def join(schedule: FaultSchedule, member: str) -> bool:
    """One more worker."""
    if node_of(schedule, member) is not None:
        return False
    schedule.cluster.start_worker(member)
    return True


def _newcomer(schedule: FaultSchedule) -> str | None:
    living = {node.slot for node in schedule.cluster.living()}
    names = [f"w{number}" for number in range(MAX_WORKERS) if f"w{number}" not in living]
    return schedule.random.choice(names) if names else None


def draw_join(schedule: FaultSchedule) -> Arguments | None:
    """Draw a name that is not in use."""
    name = _newcomer(schedule)
    return {"member": name} if name else None


def draw_replace(schedule: FaultSchedule) -> Arguments | None:
    """Draw a live worker and an unused name."""
    name = _newcomer(schedule)
    return any_worker(schedule, other=name) if name else None


def draw_bounce(schedule: FaultSchedule) -> Arguments | None:
    """Draw when each worker is started again; seldom."""
    if schedule.random.random() < 0.5:
        return None
    return {"back_s": {node.slot: schedule.random.random() * 30 for node in schedule.cluster.living()}}


def bounce(schedule: FaultSchedule, back_s: Mapping[str, float]) -> bool:
    """Kill all workers within a moment."""
    for member, after_s in back_s.items():
        crash(schedule, member, after_s)
    return bool(back_s)


def draw_roll(schedule: FaultSchedule) -> Arguments | None:
    """Draw the order, the pace, and whether the workers leave cleanly."""
    members = [node.slot for node in schedule.cluster.living()]
    schedule.random.shuffle(members)
    random = schedule.random
    return {
        "members": members,
        "every_s": random.choice([1.0, 5.0, 15.0]),
        "down_s": random.random() * 5,
        "clean": random.random() < 0.7,
    }


def roll(schedule: FaultSchedule, members: list[str], every_s: float, down_s: float, clean: bool) -> bool:
    """A rolling bounce: the workers are restarted one by one."""

    def restart(member: str) -> None:
        if clean:
            leave(schedule, member, down_s)
        else:
            crash(schedule, member, down_s)

    for number, member in enumerate(members):
        schedule.later(number * every_s, lambda member=member: restart(member), ends=False)  # type: ignore[misc]
    return bool(members)


def scale_workers(schedule: FaultSchedule, step_s: float) -> bool:
    """Worker counts 1, N, 0, N: all but one leave, all join, all are killed, all join."""
    names = [f"w{number}" for number in range(schedule.cluster.members_at_first)]
    first, *rest = [node.slot for node in schedule.cluster.living()] or [names[0]]
    for member in rest:
        leave(schedule, member, None)

    def all_come() -> None:
        for name in names:
            schedule.again(name)

    def all_die() -> None:
        schedule.cluster.sometimes.reach("all workers were gone at once")
        for node in schedule.cluster.living():
            schedule.cluster.kill_worker(node)

    schedule.later(step_s, all_come)
    schedule.later(2 * step_s, all_die, ends=False)
    schedule.later(3 * step_s, all_come)
    return bool(first)


def twin(schedule: FaultSchedule, member: str, seconds: float) -> bool:
    """A second process with the identity of a live worker (F33): it joins when the first one is gone (PD-15)."""
    node, before = node_of(schedule, member), schedule.cluster.twins.get(member)
    if node is None or (before is not None and not before.dead):
        return False
    other = schedule.cluster.start_twin(member)

    def end() -> None:
        if not other.dead:
            schedule.cluster.kill_worker(other)

    schedule.later(seconds, end)
    if other.member_id == node.member_id:
        schedule.cluster.sometimes.reach("two processes had one member id")
    return True

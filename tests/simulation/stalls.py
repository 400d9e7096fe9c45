"""Appends that outlast a deadline.

The log stalls while a timer expires and the message that ends the timer waits in the queue.
A slow disk alone hits no deadline: a timer has to expire within the few milliseconds of one append, behind a message
that has just arrived. So this fault creates its own deadline. It provokes a timer of one kind (a member dies, a stop or
an assignor is slow), and later stalls the log from shortly before the message until after the deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from connectgroup.group.kernel.outcome import TimerKind

if TYPE_CHECKING:
    from .cluster import WorkerNode
    from .schedule import FaultSchedule

KINDS = (TimerKind.SESSION, TimerKind.REBALANCE, TimerKind.COMPUTE)
MAX_WORKERS = 12
POLL_S = 0.5
POLLS = 10
"""Number of polls for the provoked timer: the members first have to receive the change."""
LEAD_S = 0.6
"""The log stalls this long before the message is sent: time for the operator's change, whose append is the slow one."""
HOLD_S = 0.3
"""The stall ends this long after the deadline."""


def draw(schedule: FaultSchedule) -> Mapping[str, Any]:
    """Draw the member, and the fraction of the timer's time after which the message that ends the timer is sent."""
    return {"which": schedule.random.random(), "part": schedule.random.uniform(0.6, 0.95)}


def outlast(schedule: FaultSchedule, kind: TimerKind, which: float, part: float) -> bool:
    """Provoke a timer of that kind; its message is sent when that fraction of its time has passed."""
    cluster = schedule.cluster
    nodes = [node for node in cluster.living() if not node.stopped and not node.leaving]
    if len(nodes) < 2 or cluster.paces or cluster.disk.stalled is not None:
        return False
    if kind is TimerKind.COMPUTE and cluster.lists_assignors != "all":
        return False
    victim = nodes[int(which * len(nodes))]
    message_s = part * cluster.rebalance_s
    if kind is TimerKind.SESSION:
        message_s = part * cluster.session_s
        cluster.kill_worker(victim)
    elif kind is TimerKind.REBALANCE:
        cluster.paces["stop"] = message_s
        _join(schedule)
    else:
        # The worker abandons an assignor that takes longer.
        cluster.paces["assignor"] = message_s = min(message_s, 5.0)
        _join(schedule)
    schedule.later(POLL_S, lambda: _plan(schedule, kind, victim, message_s, POLLS), ends=False)
    return True


def _plan(schedule: FaultSchedule, kind: TimerKind, victim: WorkerNode, message_s: float, polls: int) -> None:
    """Once the timer is armed: schedule the stall, and the messages that arrive during it."""
    cluster, now_s = schedule.cluster, schedule.cluster.loop.now
    timer = _timer(schedule, kind, victim)
    if timer is None and polls:
        schedule.later(POLL_S, lambda: _plan(schedule, kind, victim, message_s, polls - 1), ends=False)
        return
    cluster.paces.clear()
    if timer is None:
        _again(schedule, victim)
        return
    due_s, whole_s = timer
    begins_s = max(now_s, due_s - whole_s + message_s - LEAD_S)
    if kind is TimerKind.REBALANCE:
        # A newer target takes more units from the member, so its acknowledgement begins another revocation (CA-08).
        _join(schedule)

    def begin() -> None:
        cluster.disk.stall()
        # The append of this change is the slow one. The change takes no unit from any member.
        name = min(cluster.parts)
        cluster.operator.submit_connector(name, cluster.parts_of(name) + 1)

    def follow() -> None:
        if kind is TimerKind.SESSION:
            _again(schedule, victim)
        elif kind is TimerKind.COMPUTE:
            _join(schedule)  # the group epoch rises behind the Install

    schedule.later(begins_s - now_s, begin, ends=False)
    schedule.later(begins_s - now_s + LEAD_S + 0.2, follow, ends=kind is TimerKind.SESSION)
    schedule.later(max(due_s, begins_s) - now_s + HOLD_S, cluster.disk.resume)


def _timer(schedule: FaultSchedule, kind: TimerKind, victim: WorkerNode) -> tuple[float, float] | None:
    """When the provoked timer expires and how long it runs, in seconds; ``None`` if it is not armed."""
    node = schedule.cluster.serving
    if node is None or node.coordinator is None:
        return None
    rate = node.rate if schedule.cluster.loop.drifts else 1.0
    armed = [
        (armed.due_s / rate, armed.timer.after_ms / 1000)
        for key, armed in node.coordinator.shard.timers.armed.items()
        if key.kind is kind and (kind is not TimerKind.SESSION or key.member_id == victim.member_id)
    ]
    # The newest: an earlier one was not set by this fault.
    return max(armed, default=None)


def _again(schedule: FaultSchedule, victim: WorkerNode) -> None:
    """Start the victim again, with its member id, unless its slot is occupied."""
    cluster = schedule.cluster
    if victim.slot not in cluster.workers or cluster.workers[victim.slot].dead:
        cluster.start_worker(victim.slot, victim.member_id)


def _join(schedule: FaultSchedule) -> None:
    """One more worker, unless there are many."""
    living = {node.slot for node in schedule.cluster.living()}
    name = next((name for number in range(MAX_WORKERS) if (name := f"w{number}") not in living), None)
    if name is not None:
        schedule.cluster.start_worker(name)

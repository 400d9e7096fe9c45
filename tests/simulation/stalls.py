"""Appends that outlast a deadline.

The log stalls while a timer expires and the message that ends the timer waits in the queue.
A slow disk alone hits no deadline: a timer has to expire within the few milliseconds of one append, behind a message
that has just come in. So this fault makes its own deadline. It provokes a timer of one kind (a member dies, a stop or
an assignor is slow), and a little later it stalls the log from shortly before the message until after the deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from connectgroup.group.kernel.timers import TimerKind

if TYPE_CHECKING:
    from .cluster import WorkerNode
    from .storm import FaultSchedule

KINDS = (TimerKind.SESSION, TimerKind.REBALANCE, TimerKind.COMPUTE)
MOST_WORKERS = 12
POLL_S = 0.5
POLLS = 10
"""How often to look for the provoked timer: the members have to hear of the change first."""
LEAD_S = 0.6
"""The log stalls so long before the message is sent: time for the operator's change, whose append is the slow one."""
HOLD_S = 0.3
"""The stall ends so long after the deadline."""


def draw(storm: FaultSchedule) -> Mapping[str, Any]:
    """Which member, and after which part of the timer's time the message that ends the timer is sent."""
    return {"which": storm.random.random(), "part": storm.random.uniform(0.6, 0.95)}


def outlast(storm: FaultSchedule, kind: TimerKind, which: float, part: float) -> bool:
    """Provoke a timer of that kind; its message will be sent when that part of its time has passed."""
    cluster = storm.cluster
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
        _join(storm)
    else:
        # An assignor that takes longer is given up by its worker.
        cluster.paces["assignor"] = message_s = min(message_s, 5.0)
        _join(storm)
    storm.later(POLL_S, lambda: _plan(storm, kind, victim, message_s, POLLS), ends=False)
    return True


def _plan(storm: FaultSchedule, kind: TimerKind, victim: WorkerNode, message_s: float, polls: int) -> None:
    """Once the timer is armed: plan the stall, and the messages that come during it."""
    cluster, now_s = storm.cluster, storm.cluster.loop.now
    timer = _timer(storm, kind, victim)
    if timer is None and polls:
        storm.later(POLL_S, lambda: _plan(storm, kind, victim, message_s, polls - 1), ends=False)
        return
    cluster.paces.clear()
    if timer is None:
        _again(storm, victim)
        return
    due_s, whole_s = timer
    begins_s = max(now_s, due_s - whole_s + message_s - LEAD_S)
    if kind is TimerKind.REBALANCE:
        # A newer target takes more units from the member, so its acknowledgement begins another revocation (CA-08).
        _join(storm)

    def begin() -> None:
        cluster.disk.stall()
        # Its append is the one that takes so long. It takes no unit from any member.
        name = min(cluster.parts)
        cluster.desk.order_connector(name, cluster.parts_of(name) + 1)

    def follow() -> None:
        if kind is TimerKind.SESSION:
            _again(storm, victim)
        elif kind is TimerKind.COMPUTE:
            _join(storm)  # the group epoch rises behind the Install

    storm.later(begins_s - now_s, begin, ends=False)
    storm.later(begins_s - now_s + LEAD_S + 0.2, follow, ends=kind is TimerKind.SESSION)
    storm.later(max(due_s, begins_s) - now_s + HOLD_S, cluster.disk.resume)


def _timer(storm: FaultSchedule, kind: TimerKind, victim: WorkerNode) -> tuple[float, float] | None:
    """When the provoked timer expires and how long it runs, in seconds; ``None`` where there is none."""
    node = storm.cluster.serving
    if node is None or node.coordinator is None:
        return None
    rate = node.rate if storm.cluster.loop.drifts else 1.0
    armed = [
        (armed.due_s / rate, armed.timer.after_ms / 1000)
        for key, armed in node.coordinator.shard.timers.armed.items()
        if key.kind is kind and (kind is not TimerKind.SESSION or key.member_id == victim.member_id)
    ]
    # The newest: an earlier one is not of this fault's making.
    return max(armed, default=None)


def _again(storm: FaultSchedule, victim: WorkerNode) -> None:
    """The victim's next process, with its member id, unless there is a process in its place."""
    cluster = storm.cluster
    if victim.place not in cluster.workers or cluster.workers[victim.place].dead:
        cluster.start_worker(victim.place, victim.member_id)


def _join(storm: FaultSchedule) -> None:
    """One more worker, unless there are many."""
    living = {node.place for node in storm.cluster.living()}
    name = next((name for number in range(MOST_WORKERS) if (name := f"w{number}") not in living), None)
    if name is not None:
        storm.cluster.start_worker(name)

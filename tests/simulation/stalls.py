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

from .invariants import place_of

if TYPE_CHECKING:
    from .storm import Storm

MOST_WORKERS = 12
SETTLE_S = 1.5
"""After that the provoked timer is armed, unless something else went wrong."""
LEAD_S = 0.6
"""The log stalls so long before the message is sent: time for a status report, whose append is the slow one."""
HOLD_S = 0.3
"""The stall ends so long after the deadline."""


def draw(storm: Storm) -> Mapping[str, Any]:
    """Which timer, of which member, and after which part of its time the message that ends it is sent."""
    random = storm.random
    kind = random.choice([TimerKind.SESSION, TimerKind.REBALANCE, TimerKind.COMPUTE])
    return {"timer": str(kind), "which": random.random(), "part": random.uniform(0.6, 0.95)}


def outlast(storm: Storm, timer: str, which: float, part: float) -> bool:
    """Provoke a timer of that kind; its message will be sent when that part of its time has passed."""
    cluster, kind = storm.cluster, TimerKind(timer)
    nodes = [node for node in cluster.living() if not node.stopped and not node.leaving]
    if len(nodes) < 2 or cluster.paces or cluster.disk.stalled is not None:
        return False
    victim = nodes[int(which * len(nodes))]
    if kind is TimerKind.SESSION:
        cluster.kill_worker(victim)
    elif kind is TimerKind.REBALANCE:
        cluster.paces["stop"] = part * cluster.rebalance_s
        _join(storm)
    else:
        # An assignor that takes longer is given up by its worker.
        cluster.paces["assignor"] = part * min(cluster.rebalance_s, 5.8)
        _join(storm)
    storm.later(SETTLE_S, lambda: _plan(storm, kind, victim.place, part), ends=False)
    return True


def _plan(storm: Storm, kind: TimerKind, victim: str, part: float) -> None:
    """The timer is armed by now: plan the stall, and the messages that come during it."""
    cluster, now_s = storm.cluster, storm.cluster.loop.now
    sent_s = now_s - SETTLE_S + cluster.paces.get("stop", cluster.paces.get("assignor", 0.0))
    cluster.paces.clear()
    due_s = _due_s(storm, kind, victim)
    if due_s is None:
        storm.again(victim)
        return
    if kind is TimerKind.SESSION:
        sent_s = due_s - (1 - part) * cluster.session_s
    begins_s = max(now_s, sent_s - LEAD_S)
    if kind is TimerKind.REBALANCE:
        # A newer target takes more units from the member, so its acknowledgement begins another revocation (CA-08).
        _join(storm)

    def begin() -> None:
        cluster.disk.stall()
        # A status is a record that raises no epoch: the append of one is the append that takes so long.
        for node in [node for node in cluster.living() if node.running and not node.stopped][:3]:
            task = node.running[min(node.running)]
            cluster.loop.call_soon(task.fail, OSError("the source went away"), context=node.context)

    def follow() -> None:
        if kind is TimerKind.SESSION:
            storm.again(victim)
        elif kind is TimerKind.COMPUTE:
            _join(storm)  # the group epoch rises behind the Install

    storm.later(begins_s - now_s, begin, ends=False)
    storm.later(begins_s - now_s + LEAD_S + 0.2, follow, ends=kind is TimerKind.SESSION)
    storm.later(max(due_s, begins_s) - now_s + HOLD_S, cluster.disk.resume)


def _due_s(storm: Storm, kind: TimerKind, victim: str) -> float | None:
    """When the provoked timer expires, or ``None`` where there is none."""
    node = storm.cluster.serving
    if node is None or node.coordinator is None:
        return None
    rate = node.rate if storm.cluster.loop.drifts else 1.0
    due = [
        armed.due_s / rate
        for key, armed in node.coordinator._timers.items()
        if key.kind is kind and (kind is not TimerKind.SESSION or place_of(key.member_id) == victim)
    ]
    return min(due, default=None)


def _join(storm: Storm) -> None:
    """One more worker, unless there are many."""
    living = {node.place for node in storm.cluster.living()}
    name = next((name for number in range(MOST_WORKERS) if (name := f"w{number}") not in living), None)
    if name is not None:
        storm.cluster.start_worker(name)

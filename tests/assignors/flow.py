"""The best answer there is, by a min-cost flow: slow, plain, and written without a look at any assignor."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from connectgroup.names import Units

MOVE = 10**6
"""A move costs more than any spread could save."""


def best_spread(connectors: Mapping[str, int], held: Mapping[str, Units]) -> tuple[int, int]:
    """Fewest moves of tasks that make their counts even, and the least sum of squared piles with that many.

    Flow: source - connector - member - sink. Each step of a pile is an edge of its own, so that the n-th task
    costs ``n**2 - (n-1)**2``; steps above what the member holds now cost a move. A member's way to the sink
    takes an equal share; one more goes through a node that lets only the remainder pass.
    """
    tasks, members = sum(connectors.values()), len(held)
    share, extra = divmod(tasks, members)
    ends: list[list[int]] = []  # [to, room, cost], each beside its reverse
    out: dict[str, list[int]] = {}
    index: dict[str, int] = {}

    def node(name: str) -> int:
        out.setdefault(name, [])
        return index.setdefault(name, len(index))

    def edge(source: str, target: str, room: int, cost: int) -> None:
        a, b = node(source), node(target)
        out[source].append(len(ends))
        ends.append([b, room, cost])
        out[target].append(len(ends))
        ends.append([a, 0, -cost])

    for name, count in sorted(connectors.items()):
        edge("source", f"c {name}", count, 0)
        for member_id, its in sorted(held.items()):
            pile = sum(unit.connector == name and not unit.is_connector for unit in its)
            for step in range(count):
                edge(f"c {name}", f"m {member_id}", 1, 2 * step + 1 + (0 if step < pile else MOVE))
    for member_id in sorted(held):
        edge(f"m {member_id}", "sink", share, 0)
        edge(f"m {member_id}", "one more", 1, 0)
    edge("one more", "sink", extra, 0)

    leaving = [out[name] for name in index]
    source, sink, total = index["source"], index["sink"], 0
    for _ in range(tasks):
        cost: dict[int, int] = {source: 0}
        by: dict[int, int] = {}
        queue = deque([source])
        while queue:
            here = queue.popleft()
            for number in leaving[here]:
                there, room, price = ends[number]
                if room and (there not in cost or cost[here] + price < cost[there]):
                    cost[there], by[there] = cost[here] + price, number
                    queue.append(there)
        total += cost[sink]
        here = sink
        while here != source:
            number = by[here]
            ends[number][1] -= 1
            ends[number ^ 1][1] += 1
            here = ends[number ^ 1][0]
    return total // MOVE, total % MOVE

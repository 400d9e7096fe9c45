"""Optimal assignments by min-cost flow: slow, simple, and independent of the assignors."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from connectgroup.assign.api import PartitionAssignorInput
from connectgroup.assign.members import claimants
from connectgroup.protocol.units import Units

MOVE = 10**6
"""A move costs more than any spread could gain."""


def best_spread(connectors: Mapping[str, int], held: Mapping[str, Units]) -> tuple[int, int]:
    """The fewest moves of tasks that balance their counts, and the least sum of squared piles with that number of
    moves.

    Flow: source - connector - member - sink. Each step of a pile is a separate edge, so that the n-th task costs
    ``n**2 - (n-1)**2``; steps above what the member owns now cost a move. The edge from a member to the sink has the
    capacity of an equal share; one more unit goes through a node that lets only the remainder pass.
    """
    tasks, members = sum(connectors.values()), len(held)
    share, extra = divmod(tasks, members)
    flow = Flow()
    for name, count in sorted(connectors.items()):
        flow.edge("source", f"c {name}", count, 0)
        for member_id, its in sorted(held.items()):
            pile = sum(unit.connector == name and not unit.is_connector for unit in its)
            for step in range(count):
                flow.edge(f"c {name}", f"m {member_id}", 1, 2 * step + 1 + (0 if step < pile else MOVE))
    for member_id in sorted(held):
        flow.edge(f"m {member_id}", "sink", share, 0)
        flow.edge(f"m {member_id}", "one more", 1, 0)
    flow.edge("one more", "sink", extra, 0)
    total = flow.push(tasks)
    return total // MOVE, total % MOVE


def best_balance(group: PartitionAssignorInput) -> tuple[int, int]:
    """The least sum of squared counts that the subscriptions allow, and the fewest revoked partitions for it.

    Flow: source - topic - member - sink. Partitions that stay cost nothing, all others a move; the n-th partition of a
    member costs more than the one before by the growth of squares.
    """
    subscribed = {member.member_id: member.subscribed for member in group.members}
    owned = Counter(
        (owners[0], partition.topic)
        for partition, owners in claimants(group.members).items()
        if len(owners) == 1 and partition in {*group.partitions} and partition.topic in subscribed[owners[0]]
    )
    flow = Flow()
    size = Counter(partition.topic for partition in group.partitions)
    for topic, count in sorted(size.items()):
        flow.edge("source", f"t {topic}", count, 0)
        for member_id in sorted(subscribed):
            if topic in subscribed[member_id]:
                flow.edge(f"t {topic}", f"m {member_id}", owned[member_id, topic], 0)
                flow.edge(f"t {topic}", f"m {member_id}", count, 1)
    for member_id in sorted(subscribed):
        for step in range(len(group.partitions)):
            flow.edge(f"m {member_id}", "sink", 1, (2 * step + 1) * MOVE)
    total = flow.push(len(group.partitions))
    return total // MOVE, total % MOVE - (len(group.partitions) - owned.total())


class Flow:
    """A network with costs, and the cheapest way to push units from ``source`` to ``sink``, one by one."""

    def __init__(self) -> None:
        self._ends: list[list[int]] = []  # [to, room, cost], each next to its reverse edge
        self._out: dict[str, list[int]] = {}
        self._index: dict[str, int] = {}

    def edge(self, source: str, target: str, room: int, cost: int) -> None:
        """An edge with a capacity of ``room`` units, each at ``cost``."""
        a, b = self._node(source), self._node(target)
        self._out[source].append(len(self._ends))
        self._ends.append([b, room, cost])
        self._out[target].append(len(self._ends))
        self._ends.append([a, 0, -cost])

    def _node(self, name: str) -> int:
        self._out.setdefault(name, [])
        return self._index.setdefault(name, len(self._index))

    def push(self, units: int) -> int:
        """The cost of pushing this number of units."""
        leaving = [self._out[name] for name in self._index]
        total = 0
        for _ in range(units):
            source, sink = self._index["source"], self._index["sink"]
            cost: dict[int, int] = {source: 0}
            by: dict[int, int] = {}
            queue = deque([source])
            while queue:
                here = queue.popleft()
                for number in leaving[here]:
                    there, room, price = self._ends[number]
                    if room and (there not in cost or cost[here] + price < cost[there]):
                        cost[there], by[there] = cost[here] + price, number
                        queue.append(there)
            total += cost[sink]
            here = sink
            while here != source:
                number = by[here]
                self._ends[number][1] -= 1
                self._ends[number ^ 1][1] += 1
                here = self._ends[number ^ 1][0]
        return total

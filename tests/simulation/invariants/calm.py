"""Since when nothing has been in the way: an upper bound on time is a promise for undisturbed times only.

Looked at once a simulated second, so a disturbance that comes and goes between two looks may be missed; whoever asks
leaves a second or two for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectgroup.group.connect.state import Group
from tests.coordinator.builders import served

if TYPE_CHECKING:
    from ..cluster import Cluster, CoordinatorNode


class Calm:
    """Attributes:
    service_s: since when one coordinator has served the group without a break, or ``None`` while none does.
    nodes_s: since when each worker process has run, and been able to speak and hear.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.service_s: float | None = None
        self.nodes_s: dict[str, float] = {}
        self._served: tuple[CoordinatorNode, Group | None] | None = None

    def look(self) -> None:
        """Once a second."""
        cluster = self.cluster
        now_s = cluster.loop.now
        served = self._serves()
        if served is None:
            self.service_s = None
        elif self._served is None or served[0] is not self._served[0] or served[1] is not self._served[1]:
            self.service_s = now_s
        self._served = served
        network = cluster.network
        newest = cluster.disk.storage.epoch
        rough = network.weather.is_rough
        for node in cluster.workers.values():
            name = node.name
            if (
                rough
                or node.stopped
                or name in network.cut_in
                or name in network.cut_out
                or name in network.clogged
                # It talks to a coordinator that has been replaced, and hears so until that one is gone.
                or any(client.peer is not None and client.peer.log.epoch != newest for client in node.clients)
            ):
                self.nodes_s[name] = now_s
            else:
                self.nodes_s.setdefault(name, now_s)

    def undisturbed_s(self, name: str) -> float:
        """How long by now a worker and the service have been left alone."""
        if self.service_s is None:
            return 0.0
        now_s = self.cluster.loop.now
        return now_s - max(self.service_s, self.nodes_s.get(name, now_s))

    def _serves(self) -> tuple[CoordinatorNode, Group | None] | None:
        cluster = self.cluster
        node = cluster.serving
        if (
            node is None
            or node.stopped
            or node.coordinator is None
            or cluster.disk.slow > 1
            or cluster.disk.stalled is not None
            or cluster.disk.faults
            or cluster.disk.doubtful is not None
            or node.coordinator.shard.groups.loading
        ):
            return None
        return node, served(node.coordinator, cluster.durable.group_id)

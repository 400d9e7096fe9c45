"""How long there has been no disturbance: upper bounds on time hold for undisturbed times only.

Sampled once per simulated second, so a disturbance between two samples may be missed; callers add a second or two to
their bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.coordinator.builders import served

if TYPE_CHECKING:
    from ..base import BaseCluster, CoordinatorNode


class Calm:
    """Attributes:
    service_s: since when one coordinator has served the group without interruption, or ``None`` while none does.
    nodes_s: since when each worker process has been running and able to send and receive.
    """

    def __init__(self, cluster: BaseCluster) -> None:
        self.cluster = cluster
        self.service_s: float | None = None
        self.nodes_s: dict[str, float] = {}
        self._served: tuple[CoordinatorNode, object | None] | None = None

    def look(self) -> None:
        """Sample; once a second."""
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
        rough = network.network_faults.is_rough
        for node in cluster.workers.values():
            name = node.name
            if (
                rough
                or node.stopped
                or name in network.cut_in
                or name in network.cut_out
                or name in network.clogged
                # It is connected to a replaced coordinator, which keeps responding until its process ends.
                or any(client.peer is not None and client.peer.log.epoch != newest for client in node.clients)
            ):
                self.nodes_s[name] = now_s
            else:
                self.nodes_s.setdefault(name, now_s)

    def undisturbed_s(self, name: str) -> float:
        """How long a worker and the service have been undisturbed, in seconds."""
        if self.service_s is None:
            return 0.0
        now_s = self.cluster.loop.now
        return now_s - max(self.service_s, self.nodes_s.get(name, now_s))

    def _serves(self) -> tuple[CoordinatorNode, object | None] | None:
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
        return node, served(node.coordinator, cluster.group_id)

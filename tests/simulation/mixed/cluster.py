"""One seed's group of consumers, and the topics that they read."""

from __future__ import annotations

from functools import cache
from random import Random

from connectgroup.coordinator.listing import ConsumerGroups, built_in_assignors
from connectgroup.group.classic.state import ClassicSettings
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.consumer.settings import ConsumerServerAssignor, ConsumerSettings
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.assignment import InstallRequest
from connectgroup.protocol.units import Partitions, TopicPartition
from connectgroup.topics import StaticTopics

from ..base import BaseCluster, CoordinatorNode, WatchedCoordinator
from ..disk import SimulatedLog
from ..loop import Node, SimulatedLoop
from ..setting import Setting
from .client import ConsumerNode
from .watch import MixedWatch

MAX_PARTITIONS = 10
"""Of one topic."""


@cache
def _server_assignors() -> dict[str, ConsumerServerAssignor]:
    return built_in_assignors()


class MixedCluster(BaseCluster):
    """Consumers of both protocols.

    Attributes:
        topics: their numbers of partitions.
        protocols: the protocol with which the next process of a slot starts.
        assignors: of members of the classic protocol; ``client_assignors``: of members of the consumer protocol.
    """

    group_id = "readers"
    workers: dict[str, ConsumerNode]
    watch: MixedWatch

    def __init__(self, seed: int, loop: SimulatedLoop, members: int | None, setting: Setting | None) -> None:
        super().__init__(seed, loop, setting)
        random = Random(f"{seed} mixed")
        self.topics = {"orders": random.choice([3, 6]), "payments": random.choice([1, 2, 4])}
        self.members_at_first = members or random.choice([2, 3, 3, 4])
        first = random.choice(["classic", "classic", "consumer", ""])
        self.protocols = {
            f"w{number}": first or random.choice(["classic", "consumer"]) for number in range(MAX_PARTITIONS)
        }
        self.assignors = random.choice([("cooperative-sticky",), ("range", "cooperative-sticky")])
        self.client_assignors = random.choice([(), (), (), ("range",)])
        self.source_ends_s: float | None = None
        self.settings = GroupSettings()
        self._consumer_settings = ConsumerSettings(
            session_timeout_ms=int(self.session_s * 1000),
            heartbeat_interval_ms=int(self.session_s * 300),
            server_assignor=random.choice(["uniform", "range"]),
            server_assignors=_server_assignors(),
        )
        self._classic = ClassicSettings(initial_rebalance_delay_ms=random.choice([0, 500, 3_000]))
        self._sources: list[tuple[CoordinatorNode | None, StaticTopics]] = []
        self.watch = MixedWatch(self)

    @property
    def group_epoch(self) -> int:
        return self.watch.epoch

    @property
    def partitions(self) -> Partitions:
        """All partitions of all topics."""
        return frozenset(TopicPartition(name, at) for name, count in self.topics.items() for at in range(count))

    def new_coordinator(self, log: SimulatedLog) -> WatchedCoordinator:
        source = StaticTopics(self.topics)
        self._sources.append((next((node for node in self.coordinators if node.log is log), None), source))
        return WatchedCoordinator(
            log,
            self.settings,
            wall_clock_ms=self.wall_clock_ms,
            consumers=ConsumerGroups(source, self._consumer_settings, classic=self._classic),
        )

    def add_partition(self, topic: str) -> bool:
        """Add a partition to a topic; each coordinator learns it."""
        if self.topics[topic] >= MAX_PARTITIONS:
            return False
        self.topics[topic] += 1
        for node, source in self._sources:
            if node is not None and not node.dead:
                node.enter(source.replace, dict(self.topics))
        return True

    def source_end(self) -> int:
        """The current end offset of every partition."""
        return int(self.loop.now if self.source_ends_s is None else self.source_ends_s)

    def start_worker(self, slot: str, member_id: str | None = None) -> ConsumerNode:
        """Start a consumer in a free slot, with the protocol of the slot."""
        self._lives += 1
        self.watch.happened += 1
        before = self.workers.get(slot)
        assert before is None or before.dead
        node = ConsumerNode(self, slot, self._lives, self.protocols.setdefault(slot, "classic"))
        self.workers[slot] = node
        self.say("consumer starts", node.name, node.protocol)
        return node

    def on_request(self, node: Node, request: Request) -> None:
        super().on_request(node, request)
        if isinstance(node, ConsumerNode):
            self.watch.on_request(node, request)

    def on_ended(self, node: ConsumerNode) -> None:
        """A consumer has left, or has been ended by an error."""
        self.say("consumer ends", node.name, node.failed)
        if node.failed:
            self.violated("L4 FencedMemberRejoins", f"{node.name} ended: {node.failed}")
        self.kill_worker(node)

    def spoil_install(self, node: Node, request: InstallRequest) -> InstallRequest:
        return request

"""A consumer process: the shipped consumer on the simulated network, reading a simulated topic."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from connectgroup.assign.members import TopicSpec
from connectgroup.consumer import group_consumer, reading
from connectgroup.consumer.client import GroupClient, Line, Topics, TopicSeen
from connectgroup.consumer.group_consumer import GroupConsumer
from connectgroup.consumer.membership import Membership
from connectgroup.consumer.offsets import ReadPosition
from connectgroup.consumer.ownership import ConsumerRebalanceListener
from connectgroup.consumer.reading import Reading
from connectgroup.consumer.settings import GroupConsumerSettings
from connectgroup.errors import ConnectGroupError, FencedInstanceId, TransportError
from connectgroup.plugins import load_partition_assignor
from connectgroup.protocol.messages.classic import JoinGroupRequest
from connectgroup.protocol.messages.consumer import ConsumerPrepareRequest
from connectgroup.protocol.units import Partitions, TopicPartition
from connectgroup.topics import topic_id

from ..loop import Node
from ..network import SimulatedClient

if TYPE_CHECKING:
    from .cluster import MixedCluster

LINES: tuple[Line, ...] = ("group", "offsets", "assignor")


class ConsumerNode(Node):
    """A consumer process.

    Attributes:
        protocol: ``classic`` or ``consumer``.
        removed: whether its member was removed, or missed a generation, since it was last assigned partitions: other
            members may own them.
        failed: the error that ended the consumer.
    """

    def __init__(self, cluster: MixedCluster, slot: str, life: int, protocol: str) -> None:
        super().__init__(f"{slot}.{life}", cluster.seed_text, drift=cluster.setting.drift)
        self.cluster, self.slot, self.protocol = cluster, slot, protocol
        self.instance_id = f"i-{slot}" if cluster.setting.statics else None
        self.stop_requested_s: float | None = None
        self.for_good = False
        self.removed = False
        self.failed = ""
        self.clients = [
            SimulatedClient(cluster.network, self, label, client_id=slot, is_stream=True) for label in LINES
        ]
        self.consumer: GroupConsumer = self.context.run(self._make)
        self._refused = self._membership.refused
        setattr(self._membership, "refused", self._on_refused)  # noqa: B010
        self.main = cluster.loop.create_task(self._live(), context=self.context)

    def _make(self) -> GroupConsumer:
        cluster = self.cluster
        module: Any = group_consumer
        kept = module.client_of, module.Reading
        module.client_of, module.Reading = partial(_Client, self), _Reading
        try:
            names = cluster.assignors if self.protocol == "classic" else cluster.client_assignors
            return GroupConsumer(
                "simulated:1",
                group=cluster.group_id,
                topics=sorted(cluster.topics),
                group_protocol=self.protocol,  # type: ignore[arg-type]
                assignors=[load_partition_assignor(name) for name in names] or None,
                listener=_Listener(self),
                instance=self.instance_id,
                session_timeout_ms=int(cluster.session_s * 1000),
                heartbeat_interval_ms=int(cluster.session_s * 300),
                max_poll_interval_ms=int(cluster.rebalance_s * 1000),
                auto_offset_reset="earliest",
                auto_commit_interval_ms=2_000,
                metadata_max_age_ms=5_000,
                client_id=self.slot,
            )
        finally:
            module.client_of, module.Reading = kept

    @property
    def leaving(self) -> bool:
        """Whether the consumer has been requested to stop."""
        return self.stop_requested_s is not None

    @property
    def member_id(self) -> str:
        """The member id that the consumer has now."""
        return self.consumer.member_id

    @property
    def owned(self) -> Partitions:
        """The partitions that the consumer owns, in its own view.

        None if it has left, because a record took too long, or if a record of the log has removed its member: it learns
        that before it returns another record.
        """
        if self.dead or self.removed or not self.is_in_group():
            return frozenset()
        return self.consumer.assignment()

    @property
    def _membership(self) -> Membership:
        return self.consumer._membership

    def _on_refused(self, code: int, *arguments: Any, **named: Any) -> None:
        self.cluster.watch.on_fenced(self, code)
        self._refused(code, *arguments, **named)

    def is_in_group(self) -> bool:
        """Whether the consumer takes itself for a member."""
        return self._membership.in_group

    async def _live(self) -> None:
        try:
            while self.stop_requested_s is None:
                records = await self.consumer.poll(1.0)
                if records and self.cluster.inject("a stop overstays", self):
                    # A record takes longer than the consumer may go without a poll.
                    await asyncio.sleep(self.random.uniform(0.5, 2) * self.cluster.rebalance_s)
                await asyncio.sleep(self.random.uniform(0, 0.2))
            await self.consumer.close(leave=True if self.for_good else None)
        except FencedInstanceId:
            self.cluster.say("fenced instance", self.name)
        except ConnectGroupError as error:
            self.failed = str(error)
        self.cluster.on_ended(self)

    def pace(self, name: str) -> tuple[float, float] | None:
        """How long a call off the loop takes: a listener's revocation is slow where that fault is injected."""
        if name == "on_revoked" and self.cluster.inject("a stop is slow", self):
            return self.random.uniform(0, 0.6) * self.cluster.rebalance_s, 0.0
        return 0.0, self.random.uniform(0, 0.02)


class _Listener(ConsumerRebalanceListener):
    def __init__(self, node: ConsumerNode) -> None:
        self._node = node

    def on_assigned(self, partitions: Partitions, generation: int) -> None:
        self._node.cluster.watch.on_assigned(self._node, partitions, generation)


class _Connection:
    """One connection of a consumer; one request at a time, as ``BrokerConnection``."""

    def __init__(self, client: SimulatedClient) -> None:
        self._client = client
        self._turn = asyncio.Lock()

    @property
    def address(self) -> str:
        return self._client.address

    async def call(self, request: Any, *, timeout_s: float) -> Any:
        if isinstance(request, JoinGroupRequest):
            request = replace(request, requires_member_id=True, skips_assignment=True)  # as in version 9
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                return await self._client.call(request, timeout_s=timeout_s)
        except TimeoutError:
            self._client.reset("no response in time")
            raise TransportError("no response in time") from None

    async def serves(self, request_class: type, *, timeout_s: float) -> bool:
        return request_class is ConsumerPrepareRequest

    async def close(self) -> None:
        self._client.reset("closed")


class _Client(GroupClient):
    """Access to the simulated coordinator; the topics are always available."""

    def __init__(self, node: ConsumerNode, settings: GroupConsumerSettings) -> None:
        super().__init__(settings.bootstrap, settings.group, settings.client_id)
        self._node = node
        self._to: dict[str, Any] = {line: _Connection(node.clients[at]) for at, line in enumerate(LINES)}

    async def _line(self, line: Line) -> Any:
        return self._to[line]

    async def topics(self, names: Collection[str]) -> Topics:
        known = self._node.cluster.topics
        there = tuple(TopicSpec(name=name, num_partitions=known[name]) for name in sorted(names) if name in known)
        return Topics(there=there, missing={})

    async def seen(self, names: Collection[str] | None) -> dict[str, TopicSeen]:
        known = self._node.cluster.topics
        return {
            name: TopicSeen(topic_id=topic_id(name), partitions=count)
            for name, count in known.items()
            if names is None or name in names
        }

    async def topic_names(self, topic_ids: Collection[str]) -> dict[str, str]:
        return {topic_id(name): name for name in self._node.cluster.topics if topic_id(name) in topic_ids}

    def forget_coordinator(self) -> None:
        """The next request is sent on a new connection, which leads to the present coordinator."""
        for client in self._node.clients:
            client.reset("the coordinator has moved")

    async def close(self) -> None:
        for connection in self._to.values():
            await connection.close()


class _Fetcher:
    """In place of librdkafka: every partition begins at offset 0."""

    def __init__(self) -> None:
        self.ends: dict[TopicPartition, int] = {}

    async def drop(self, partitions: Partitions) -> None:
        return None

    async def take(self, offsets: Any) -> None:
        return None

    async def start_position(self, partition: TopicPartition, *, is_new: bool = False) -> int:
        return 0

    async def close(self) -> None:
        return None


class _Reading(Reading):
    """The shipped positions; each partition gets one row per second."""

    def __init__(self, settings: GroupConsumerSettings, client: GroupClient) -> None:
        module: Any = reading
        kept, module.Fetcher = module.Fetcher, lambda *_: _Fetcher()
        try:
            super().__init__(settings, client)
        finally:
            module.Fetcher = kept
        assert isinstance(client, _Client)
        self._cluster = client._node.cluster

    def has(self, count: int) -> bool:
        end = self._cluster.source_end()
        return any(at.offset < end for at in self.positions.values())

    def take_records(self, limit: int) -> list[Any]:
        end = self._cluster.source_end()
        behind = [each for each, at in self.positions.items() if at.offset < end]
        for partition in behind:
            self.positions[partition] = ReadPosition(end)
        return behind

    async def wait(self, wake: asyncio.Event, timeout_s: float) -> None:
        waking = asyncio.ensure_future(wake.wait())
        await asyncio.wait([waking], timeout=timeout_s)
        waking.cancel()

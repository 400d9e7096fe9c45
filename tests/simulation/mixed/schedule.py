"""A run of a group of consumers: faults, upgrades and downgrades, then quiet, in which it must converge (L1)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from connectgroup.group.classic.state import ClassicGroupState
from connectgroup.group.consumer.state import ConsumerGroupState
from connectgroup.protocol.records.consumer import ClassicState
from connectgroup.protocol.units import Partitions, TopicPartition
from connectgroup.topics import topic_id
from connectgroup.wire.embedded import decode_assignment

from .. import worker_faults
from ..faults import KINDS, Kind
from ..loop import SimulatedLoop
from ..schedule import WHOLE_S, FaultSchedule
from ..setting import Setting
from ..worker_faults import Arguments, any_worker
from .cluster import MixedCluster

if TYPE_CHECKING:
    from .client import ConsumerNode

CONNECT_ONLY = frozenset(
    {
        "worker restarts",
        "worker drains",
        "two processes with one id",
        "task fails",
        "connector scaled",
        "connector storm",
        "connector removed",
        "connector switched",
        "source grows",
        # Kafka's clients do not know the coordinator epoch: they would believe the first coordinator until its next
        # append. The shipped log has no second owner while the first one lives.
        "takeover",
        *(kind for kind in KINDS if kind.startswith("append outlasts")),
    }
)
CONSUMER, CLASSIC = "rolling upgrade to the consumer protocol", "rolling downgrade to the classic protocol"
MIXED_KINDS = frozenset({CONSUMER, CLASSIC, "consumer changes its protocol", "partition added"})


def migrate(schedule: Any, protocol: str, roll: Arguments) -> bool:
    """Restart the consumers one by one, with this protocol."""
    for member in roll["members"]:
        schedule.cluster.protocols[member] = protocol
    return worker_faults.roll(schedule, **roll)


def change_protocol(schedule: Any, member: str, protocol: str, back_s: float) -> bool:
    """One consumer is restarted with this protocol."""
    schedule.cluster.protocols[member] = protocol
    return worker_faults.crash(schedule, member, back_s)


def add_partition(schedule: Any, topic: str) -> bool:
    """A topic gets one more partition."""
    return bool(schedule.cluster.add_partition(topic))


def _draw_change(schedule: Any) -> Arguments | None:
    random = schedule.random
    return any_worker(schedule, protocol=random.choice(["classic", "consumer"]), back_s=random.random() * 15)


def _draw_topic(schedule: Any) -> Arguments:
    return {"topic": schedule.random.choice(sorted(schedule.cluster.topics))}


def draw_migration(protocol: str) -> Any:
    """Draw the order and the pace of a restart with this protocol."""

    def draw(schedule: Any) -> Arguments:
        return {"protocol": protocol, "roll": worker_faults.draw_roll(schedule)}

    return draw


def _assigned(group: ClassicGroupState | ConsumerGroupState, member_id: str, topics: Iterable[str]) -> Partitions:
    """The assignment of a member of a stable group, by its records."""
    if isinstance(group, ConsumerGroupState):
        names = {topic_id(name): name for name in topics}
        assigned = group.current(member_id).assigned
        return frozenset(TopicPartition(names[partition.topic], partition.partition) for partition in assigned)
    return decode_assignment(group.members[member_id].assignment).partitions


class MixedSchedule(FaultSchedule):
    """See the module."""

    cluster: Any  # MixedCluster
    kinds: ClassVar = {
        **{name: kind for name, kind in KINDS.items() if name not in CONNECT_ONLY},
        CONSUMER: Kind(draw_migration("consumer"), migrate, all_workers=True),
        CLASSIC: Kind(draw_migration("classic"), migrate, all_workers=True),
        "consumer changes its protocol": Kind(_draw_change, change_protocol),
        "partition added": Kind(_draw_topic, add_partition),
    }
    always = MIXED_KINDS

    @classmethod
    def cluster_of(
        cls, seed: int, loop: SimulatedLoop, members: int | None, tasks: int | None, setting: Setting | None
    ) -> MixedCluster:
        return MixedCluster(seed, loop, members, setting)

    def prepare(self) -> None:
        return None

    def restore(self) -> None:
        return None

    @property
    def bound_s(self) -> float:
        """A JoinGroup whose response was lost is repeated after 30 s, and a late one keeps a session alive; both may
        happen twice in a row.
        """
        cluster = self.cluster
        return float(2 * (30 + 3 * cluster.session_s + 3 * cluster.rebalance_s) + 30)

    def not_converged(self, what: str) -> None:
        self.cluster.violated("L1 GroupConverges", what)

    def not_settled(self) -> str:
        if why := self.not_serving():
            return why
        cluster = self.cluster
        if cluster.loop.now <= cluster.network.last_join_s:
            return "joins are on their way"
        if why := self._not_assigned():
            return why
        offsets, end = cluster.watch.group.offsets, cluster.source_end()
        for topic, partition in sorted(cluster.partitions):
            record = offsets.get(topic, partition)
            if record is None or record.offset != end:
                return f"{topic}-{partition} is committed at {record and record.offset}, its end is {end}"
        return ""

    def _not_assigned(self) -> str:
        """Why not every partition has an owner, in the view of the coordinator and of the consumers."""
        cluster, group = self.cluster, self.cluster.watch.group
        living = cluster.living()
        if leaving := [node.name for node in living if node.leaving]:
            return f"leaving: {leaving}"
        ids = {node.member_id for node in living}
        if group is None or group.members.keys() != ids:
            return f"members {sorted(cluster.watch.members)}, alive {sorted(ids)}"
        if outside := [node.name for node in living if not node.is_in_group()]:
            return f"not joined: {outside}"
        protocols = {node.protocol for node in living}
        if ("consumer" in protocols) != isinstance(group, ConsumerGroupState):
            return f"the members have the protocols {sorted(protocols)}, the group is a {type(group).__name__}"
        if isinstance(group, ConsumerGroupState):
            if group.state_name != "Stable":
                return f"the group is {group.state_name}: {sorted(group.behind)} behind, {group.computation}"
        elif group.state is not ClassicState.STABLE:
            return f"the group is {group.state.name}"
        for node in living:
            # A response with another assignment may be on its way, or its revocation in progress: the group of a
            # cooperative member that has to revoke is Stable until that member joins again.
            if odd := node.consumer.assignment() ^ _assigned(group, node.member_id, cluster.topics):
                return f"{node.name} has not applied its assignment: {sorted(map(str, odd))[:3]}"
        owned = [partition for node in living for partition in node.consumer.assignment()]
        if sorted(owned) != sorted(cluster.partitions):
            missing = cluster.partitions.difference(owned)
            return f"{len(owned)} partitions are owned of {len(cluster.partitions)}; not: {sorted(missing)[:3]}"
        return ""

    async def smoke_phase(self) -> None:
        """L1 without faults: a join, a leave, a change of one protocol; each must settle in bounded time."""
        cluster = self.cluster
        random = Random(f"{cluster.seed} drill")
        interval_s = cluster.session_s * 0.3
        while cluster.loop.now < WHOLE_S - 30 and not cluster.violations:
            living = cluster.living()
            what = random.choice(["join", "leave", "change", "change", "add"])
            if what == "join" and len(living) < 6:
                worker_faults.join(self, self.free_name())
            elif what == "leave" and len(living) > 2:
                self.stop(random.choice(living), for_good=True)
            elif what == "add":
                cluster.add_partition(random.choice(sorted(cluster.topics)))
            else:
                await self._change(random.choice(living))
            began_s = cluster.loop.now
            cluster.say("drill", what)
            await asyncio.sleep(1)
            # The leader of a classic group reads the topics every five seconds, and a cooperative member joins twice.
            bound_s = (3 * interval_s + 8.0) * (1 + cluster.setting.drift) + cluster.session_s
            while why := self._not_assigned():
                if cluster.loop.now - began_s > bound_s:
                    self.not_converged(f"{what} has not settled after {bound_s:.1f} s: {why}")
                    return
                await asyncio.sleep(0.5)
            await asyncio.sleep(interval_s)

    async def _change(self, node: ConsumerNode) -> None:
        """Restart a consumer with the other protocol."""
        cluster = self.cluster
        cluster.protocols[node.slot] = "classic" if node.protocol == "consumer" else "consumer"
        self.stop(node)
        await asyncio.wait([node.main])
        self.again(node.slot)

    def stop(self, node: Any, *, for_good: bool = False) -> None:
        """Make a consumer leave; a static one temporarily, unless ``for_good``."""
        node.for_good = node.for_good or for_good
        if node.stop_requested_s is None:
            node.stop_requested_s = self.cluster.loop.now

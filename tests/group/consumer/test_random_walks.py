"""Random groups: no partition is used by two members at a time, and a group that is left alone becomes stable.

Members follow the protocol of a real client. They lose responses, join again, change subscriptions, leave, and fall
silent; topics are created, extended and deleted.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from connectgroup.errors import FencedMemberEpoch, UnknownMemberId
from connectgroup.group.consumer.settings import ConsumerServerAssignment
from connectgroup.group.kernel.timers import TimerKind
from connectgroup.protocol.messages.consumer import (
    ConsumerHeartbeatResponse,
    ConsumerPrepareResponse,
    InstalledConsumer,
    by_topic,
    each_partition,
)
from connectgroup.protocol.units import Partitions, TopicPartition

from .driver import Driver, beat, join

SEEDS = 60
STEPS = 120
TOPICS = ("t0", "t1", "t2")
LOST = (FencedMemberEpoch.code, UnknownMemberId.code)


class Walk(Driver):
    """A group whose server-side assignor assigns at random, and its members."""

    def __init__(self, seed: int) -> None:
        super().__init__(t0=3, t1=2)
        self.random = random.Random(seed)
        self.clients: dict[str, Client] = {}

    def _assign(self, prepared: ConsumerPrepareResponse) -> ConsumerServerAssignment:
        shares: dict[str, list[TopicPartition]] = {member.member_id: [] for member in prepared.members}
        for topic in prepared.topics:
            takers = [each.member_id for each in prepared.members if topic.topic_id in each.subscribed_topic_ids]
            for partition in range(topic.num_partitions):
                shares[self.random.choice(takers)].append(TopicPartition(topic.topic_id, partition))
        return ConsumerServerAssignment(
            members=tuple(
                InstalledConsumer(member_id=member_id, topic_partitions=by_topic(share))
                for member_id, share in shares.items()
            )
        )

    def check(self) -> None:
        """No partition is used by two members."""
        users: dict[TopicPartition, str] = {}
        for client in self.clients.values():
            for partition in client.owned:
                other = users.setdefault(partition, client.member_id)
                assert other == client.member_id, f"{partition} is used by {other} and {client.member_id}"


class Client:
    """A member as a client has it: what it uses, and the last response."""

    def __init__(self, walk: Walk, member_id: str) -> None:
        self.walk, self.member_id = walk, member_id
        self.epoch = 0
        self.owned: Partitions = frozenset()
        self.topics: tuple[str, ...] = ("t0", "t1")
        self.changed = True

    def beat(self, *, lose: bool = False) -> None:
        """Send a heartbeat; ``lose``: the response is lost."""
        names = self.topics if self.changed or self.epoch == 0 else None
        if self.epoch == 0:
            request = join(self.member_id, subscribed_topic_names=self.topics)
        else:
            request = beat(self.member_id, self.epoch, subscribed_topic_names=names)
            request = replace(request, owned=by_topic(self.owned))
        response = self.walk.send(request)
        assert isinstance(response, ConsumerHeartbeatResponse)
        if lose:
            return
        self.changed = False
        if response.error_code in LOST:
            self.epoch, self.owned, self.changed = 0, frozenset(), True
            return
        assert response.error_code == 0, response.error_message
        self.epoch = response.member_epoch
        if response.assignment is not None:
            assignment = frozenset(each_partition(response.assignment.topic_partitions))
            added = assignment - self.owned
            self.owned &= assignment
            self.walk.check()
            self.owned |= added
        self.walk.check()


def step(walk: Walk) -> None:
    """One random event."""
    rng, clients = walk.random, walk.clients
    event = rng.choice(("beat",) * 12 + ("lose", "lose", "join", "leave", "silent", "subscribe", "topics", "again"))
    if event == "join" and len(clients) < 5:
        name = f"m{rng.randrange(9)}"
        if name not in clients:
            clients[name] = Client(walk, name)
            clients[name].beat()
    elif event == "topics":
        counts: Mapping[str, int] = {name: rng.randrange(1, 5) for name in TOPICS if rng.random() < 0.8}
        walk.set_topics(**counts)
    elif clients:
        client = clients[rng.choice(sorted(clients))]
        match event:
            case "leave":
                del clients[client.member_id]
                walk.send(beat(client.member_id, -1))
            case "silent":
                # A client that falls silent stops using its partitions before its session expires.
                client.owned = frozenset()
                if walk.armed(TimerKind.SESSION, client.member_id) is not None:
                    walk.expire(TimerKind.SESSION, client.member_id)
            case "subscribe":
                client.topics = tuple(sorted(rng.sample(TOPICS, rng.randrange(0, 4))))
                client.changed = True
                client.beat()
            case "again":
                client.epoch, client.owned = 0, frozenset()
                client.beat()
            case _:
                client.beat(lose=event == "lose")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_user_of_each_partition_and_convergence(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        step(walk)
    for _ in range(12):
        for client in list(walk.clients.values()):
            client.beat()
    if not walk.clients:
        return
    assert walk.group.state_name == "Stable"
    topics = walk.group_type.topics or {}
    wanted = {
        TopicPartition(topics[name].topic_id, number)
        for client in walk.clients.values()
        for name in client.topics
        if name in topics
        for number in range(topics[name].num_partitions)
    }
    assert {each for client in walk.clients.values() for each in client.owned} == wanted

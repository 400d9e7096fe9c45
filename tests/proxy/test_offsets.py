"""Committed offsets behind the proxy: each test gets the same answers from the broker itself."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connectgroup.log.registry import sqlite_url
from connectgroup.protocol.messages.cluster import FindCoordinatorRequest
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.messages.offsets import (
    GroupToFetch,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    PartitionCommit,
    PartitionToDelete,
    TopicCommit,
    TopicToDelete,
    TopicToFetch,
)
from connectgroup.topics import MetadataReader
from connectgroup.wire.apis import APIS, decode_response, encode_request
from connectgroup.wire.primitives import frame
from tests.integration.processes import wait
from tests.volume import ci_only

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from tests.consumer.broker import Broker


_NUMBERS = itertools.count()
UNKNOWN_TOPIC_ID = "f" * 32


class Cluster:
    """Raw requests to one server, and an admin client of the broker.

    Attributes:
        bootstrap: where requests go: to the broker or to the proxy.
        topic: a topic with two partitions.
    """

    def __init__(self, bootstrap: str, broker: Broker) -> None:
        from confluent_kafka.admin import AdminClient

        self.bootstrap = bootstrap
        self._broker = broker.bootstrap
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self._through = AdminClient({"bootstrap.servers": bootstrap})
        self.topic = f"offsets-{next(_NUMBERS)}"
        self.create(self.topic)
        wait("a coordinator", self._has_coordinators)

    def _has_coordinators(self) -> bool:
        """The first request for a coordinator creates the topic of offsets; each partition of it serves some groups."""
        if self.ask(FindCoordinatorRequest(key="any"), 2).error_code:
            return False
        return all(self.fetch(f"none {number}") == {} for number in range(20))

    def create(self, topic: str, partitions: int = 2) -> None:
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        self._admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(10)
        wait(f"topic {topic}", lambda: self.topic_id(topic) is not None)

    def delete(self, topic: str, *, through: bool = False) -> None:
        """Delete a topic: at the broker, or through the server."""
        (self._through if through else self._admin).delete_topics([topic])[topic].result(10)
        wait(f"topic {topic} to be gone", lambda: self.topic_id(topic) is None)

    def topic_id(self, topic: str) -> str | None:
        async def read() -> str | None:
            reader = MetadataReader(self._broker)
            found = (await reader.read()).get(topic)
            reader.close()
            return found.topic_id if found is not None else None

        return asyncio.run(read())

    def ask(self, request: Any, version: int) -> Any:
        """Send one request on a new connection; return its response."""
        key = next(key for key, api in APIS.items() if api.request_class is type(request))
        data = encode_request(request, version=version, correlation_id=1, client_id="test")
        host, _, port = self.bootstrap.partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection, connection.makefile("rb") as reader:
            connection.sendall(frame(data))
            (size,) = struct.unpack(">i", reader.read(4))
            return decode_response(reader.read(size), api_key=key, version=version)[1]

    def commit(
        self,
        group: str,
        *places: tuple[str, int],
        offset: int = 5,
        version: int = 9,
        metadata: str | None = "",
        leader_epoch: int = -1,
        **sender: Any,
    ) -> dict[tuple[str, int], int]:
        """Commit an offset of each topic (by name, or by id from version 10 on) and partition; return the errors."""
        by = "topic_id" if version >= 10 else "name"
        request = OffsetCommitRequest(
            group_id=group,
            **{"member_id": "", **sender},
            topics=tuple(
                TopicCommit(
                    **{by: topic},
                    partitions=(
                        PartitionCommit(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=leader_epoch,
                            committed_metadata=metadata,
                        ),
                    ),
                )
                for topic, partition in places
            ),
        )
        topics = self.ask(request, version).topics
        return {(getattr(t, by), p.partition_index): p.error_code for t in topics for p in t.partitions}

    def fetch(
        self, group: str, *places: tuple[str, int], version: int = 9, require_stable: bool = False, **sender: Any
    ) -> Any:
        """The error of the group, or offset, leader epoch, metadata and error of each partition; of all without any."""
        by = "topic_id" if version >= 10 else "name"
        asked = tuple(TopicToFetch(**{by: topic}, partition_indexes=(partition,)) for topic, partition in places)
        group_asked = GroupToFetch(group_id=group, topics=asked or None, **sender)
        request = OffsetFetchRequest(groups=(group_asked,), require_stable=require_stable)
        [found] = self.ask(request, version).groups
        if found.error_code:
            return found.error_code
        return {
            (getattr(topic, by), each.partition_index): (
                each.committed_offset,
                each.committed_leader_epoch,
                each.metadata,
                each.error_code,
            )
            for topic in found.topics
            for each in topic.partitions
        }

    def beat(self, group: str, member_id: str, epoch: int, **fields: Any) -> Any:
        """Send a heartbeat of the protocol of KIP-848."""
        request = ConsumerHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch, **fields)
        return self.ask(request, 1)

    def join(self, group: str, member_id: str, **fields: Any) -> Any:
        return self.beat(
            group, member_id, 0, rebalance_timeout_ms=30_000, subscribed_topic_names=(self.topic,), owned=(), **fields
        )


BROKER = pytest.param("broker", marks=ci_only("shows what Kafka does; in a user's run, the proxy does it"))


@pytest.fixture(params=[BROKER, "proxy"])
def cluster(request: pytest.FixtureRequest, broker: Broker) -> Cluster:
    """The broker, and the proxy in front of it."""
    at = broker.bootstrap if request.param == "broker" else request.getfixturevalue("proxy").bootstrap
    return Cluster(at, broker)


def test_commit_to_a_partition_that_does_not_exist_is_rejected(cluster: Cluster) -> None:
    topic, other = cluster.topic, "no-such-topic"
    places = (topic, 0), (topic, 2), (topic, -1), (other, 0)
    assert cluster.commit("unknown", *places) == {(topic, 0): 0, (topic, 2): 3, (topic, -1): 3, (other, 0): 3}
    assert cluster.fetch("unknown", *places) == {
        (topic, 0): (5, -1, "", 0),
        **dict.fromkeys(places[1:], (-1, -1, "", 0)),
    }
    assert cluster.fetch("unknown") == {(topic, 0): (5, -1, "", 0)}
    # A topic that does not exist is found before the group is.
    sender: dict[str, Any] = {"member_id": "x", "generation_id_or_member_epoch": 3}
    assert cluster.commit("no group", (topic, 2), **sender) == {(topic, 2): 3}
    assert cluster.commit("no group", (topic, 0), (topic, 2), **sender) == {(topic, 0): 69, (topic, 2): 3}
    # A topic that was created a moment ago exists.
    new = f"{topic}-new"
    cluster.create(new, 1)
    assert cluster.commit("unknown", (new, 0), (new, 1)) == {(new, 0): 0, (new, 1): 3}


def test_commit_checks_metadata_and_takes_any_offset_and_leader_epoch(cluster: Cluster) -> None:
    topic, at = cluster.topic, (cluster.topic, 0)
    for metadata, code in (("x" * 4_096, 0), ("x" * 4_097, 12), ("é" * 4_096, 0), ("🙂" * 2_049, 12), (None, 0)):
        assert cluster.commit("values", at, metadata=metadata) == {at: code}
    for offset, leader_epoch in ((0, 7), (1 << 62, 0), (5, -7), (-5, -1)):
        assert cluster.commit("values", at, offset=offset, leader_epoch=leader_epoch) == {at: 0}
        assert cluster.fetch("values", at) == {at: (offset, leader_epoch, "", 0)}
    assert cluster.fetch("values", (topic, 1)) == {(topic, 1): (-1, -1, "", 0)}


def test_topics_are_named_by_their_ids_from_version_10_on(cluster: Cluster) -> None:
    topic_id = cluster.topic_id(cluster.topic)
    assert topic_id is not None
    places = (topic_id, 0), (topic_id, 2), (UNKNOWN_TOPIC_ID, 0)
    expected = {(topic_id, 0): 0, (topic_id, 2): 3, (UNKNOWN_TOPIC_ID, 0): 100}
    assert cluster.commit("by id", *places, version=10) == expected
    found = {(topic_id, 0): (5, -1, "", 0), (topic_id, 2): (-1, -1, "", 0), (UNKNOWN_TOPIC_ID, 0): (-1, -1, "", 100)}
    assert cluster.fetch("by id", *places, version=10) == found
    assert cluster.fetch("by id", version=10) == {(topic_id, 0): (5, -1, "", 0)}
    assert cluster.fetch("by id") == {(cluster.topic, 0): (5, -1, "", 0)}


def test_sender_that_is_not_a_member_commits_to_a_group_without_members(cluster: Cluster) -> None:
    """As an operator does, and a consumer that assigns partitions to itself, with a member id of its own."""
    group, at = f"group of {cluster.topic}", (cluster.topic, 0)
    assert cluster.commit(group, at, member_id="x", generation_id_or_member_epoch=3) == {at: 69}
    assert cluster.commit(group, at, member_id="x", generation_id_or_member_epoch=3, version=8) == {at: 22}
    assert cluster.commit(group, at, member_id="x", group_instance_id="i") == {at: 0}
    assert cluster.commit(group, at, member_id="x", generation_id_or_member_epoch=0) == {at: 25}

    epoch = cluster.join(group, "member").member_epoch
    assert cluster.commit(group, at) == {at: 25}
    assert cluster.commit(group, at, member_id="x") == {at: 25}
    assert cluster.commit(group, at, member_id="member", generation_id_or_member_epoch=epoch) == {at: 0}
    assert cluster.commit(group, at, member_id="member", generation_id_or_member_epoch=epoch, version=8) == {at: 35}
    assert cluster.commit(group, at, member_id="member", generation_id_or_member_epoch=epoch + 1) == {at: 113}
    assert cluster.fetch(group, at, member_id="member", member_epoch=epoch + 1) == 113
    assert cluster.fetch(group, at, member_id="x", member_epoch=epoch) == 25

    assert cluster.beat(group, "member", -1).error_code == 0
    for sender in ({}, {"member_id": "x"}, {"member_id": "x", "generation_id_or_member_epoch": -2}):
        assert cluster.commit(group, at, offset=9, **sender) == {at: 0}
    assert cluster.commit(group, at, member_id="x", generation_id_or_member_epoch=0) == {at: 25}
    assert cluster.fetch(group, at) == {at: (9, -1, "", 0)}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("through", [False, True], ids=["deleted at the broker", "deleted through the server"])
def test_offsets_of_a_deleted_topic_are_deleted(cluster: Cluster, protocol: str, through: bool) -> None:
    """Also of a topic that is created again at once: the consumer reads all of its records."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic, group = cluster.topic, f"group of {cluster.topic}"

    def write(count: int) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(count):
            producer.produce(topic, str(number), partition=0)
        producer.flush(10)

    def read(count: int) -> int:
        settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "group.protocol": protocol}
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, **settings})
        consumer.subscribe([topic])
        read = 0

        def reads() -> bool:
            nonlocal read
            read += sum(1 for each in consumer.consume(500, 0.2) if not each.error())
            return read >= count

        wait(f"{count} records", reads, lambda: str(read))
        consumer.commit(asynchronous=False)
        consumer.close()
        return read

    def committed() -> int:
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
        try:
            return consumer.committed([TopicPartition(topic, 0)], timeout=10)[0].offset
        finally:
            consumer.close()

    write(50)
    assert (read(50), committed()) == (50, 50)
    cluster.delete(topic, through=through)
    cluster.create(topic)
    wait("no committed offset", lambda: committed() < 0)
    write(80)
    assert read(80) == 80
    assert set(cluster.fetch(group)) == {(topic, 0)}
    cluster.delete(topic, through=through)
    # The broker deletes them a moment after the topic.
    wait("no offset", lambda: cluster.fetch(group) == {})


def test_offsets_of_a_topic_that_is_deleted_while_the_proxy_is_down_are_deleted(broker: Broker, tmp_path: Path) -> None:
    from .running import running_proxy

    log = "--log", sqlite_url(tmp_path / "log.db")
    with running_proxy(broker, *log) as proxy:
        cluster = Cluster(proxy.bootstrap, broker)
        topic, again, stays = cluster.topic, f"{cluster.topic}-again", f"{cluster.topic}-stays"
        for name in (again, stays):
            cluster.create(name)
        assert set(cluster.commit("down", (topic, 0), (again, 0), (stays, 0)).values()) == {0}
    for name in (topic, again):
        cluster.delete(name)
    cluster.create(again)
    with running_proxy(broker, *log) as proxy:
        cluster.bootstrap = proxy.bootstrap
        assert cluster.fetch("down") == {(stays, 0): (5, -1, "", 0)}


def test_offsets_of_topics_without_subscribers_can_be_deleted(cluster: Cluster) -> None:
    """OffsetDelete (KIP-496)."""
    topic, other, group = cluster.topic, f"{cluster.topic}-other", f"deletes {cluster.topic}"
    cluster.create(other)

    def delete(*places: tuple[str, int]) -> Any:
        topics = tuple(
            TopicToDelete(name=name, partitions=(PartitionToDelete(partition_index=partition),))
            for name, partition in places
        )
        response = cluster.ask(OffsetDeleteRequest(group_id=group, topics=topics), 0)
        return response.error_code or {
            (each.name, partition.partition_index): partition.error_code
            for each in response.topics
            for partition in each.partitions
        }

    assert delete((topic, 0)) == 69
    cluster.commit(group, (topic, 0), (topic, 1), (other, 0))
    assert delete((topic, 0), (topic, 7), ("no-such-topic", 0)) == {
        (topic, 0): 0,
        (topic, 7): 3,
        ("no-such-topic", 0): 3,
    }
    assert set(cluster.fetch(group)) == {(topic, 1), (other, 0)}

    assert cluster.join(group, "member").error_code == 0
    assert delete((topic, 1), (other, 0)) == {(topic, 1): 86, (other, 0): 0}
    assert cluster.beat(group, "member", -1).error_code == 0
    assert delete((topic, 1)) == {(topic, 1): 0}
    assert cluster.fetch(group) == {}

    classic = join_classic(cluster, group)
    assert delete((topic, 1), (other, 0)) == {(topic, 1): 86, (other, 0): 0}
    classic.close()


def join_classic(cluster: Cluster, group: str) -> Consumer:
    """A member of the classic protocol that is subscribed to the topic and has joined."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    consumer.subscribe([cluster.topic])

    def has_joined() -> bool:
        consumer.poll(0.2)
        return bool(consumer.assignment())

    wait("the member to join", has_joined)
    return consumer

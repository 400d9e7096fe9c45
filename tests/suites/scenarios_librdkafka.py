"""Scenarios of librdkafka's tests of groups, own ports with confluent-kafka, for both protocols.

Not run by ``make test``: ``make suites``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.consumer.fixtures import NewGroup
from tests.consumer.members import BrokerGroup, BrokerMember
from tests.integration.processes import PATIENCE_S, wait

PROTOCOLS = ["range", "cooperative-sticky", "KIP-848"]
protocols = pytest.mark.parametrize("protocol", PROTOCOLS)


class Reader:
    """A consumer in this process, and what it has been told."""

    def __init__(self, group: BrokerGroup, protocol: str, **changes: Any) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": group.broker.bootstrap,
            "group.id": group.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
        if protocol == "KIP-848":
            settings["group.protocol"] = "consumer"
        else:
            settings |= {
                "partition.assignment.strategy": protocol,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 300,
            }
        settings |= {key.replace("_", "."): value for key, value in changes.items()}
        self.consumer = Consumer(settings)
        self.told: list[tuple[str, list[tuple[str, int]]]] = []
        self.read: list[tuple[int, int]] = []
        self.errors: list[KafkaError] = []

    def subscribe(self, *topics: str) -> Reader:
        def teller(event: str) -> Callable[..., None]:
            return lambda _, partitions: self.told.append((event, sorted((x.topic, x.partition) for x in partitions)))

        told: dict[str, Any] = {f"on_{event}": teller(event) for event in ("assign", "revoke", "lost")}
        self.consumer.subscribe(list(topics), **told)
        return self

    def poll(self) -> bool:
        """Poll once; whether a record was read."""
        message = self.consumer.poll(0.1)
        if message is None:
            return False
        if (error := message.error()) is not None:
            self.errors.append(error)
            return False
        self.read.append((message.partition() or 0, message.offset() or 0))
        return True

    @property
    def owned(self) -> list[tuple[str, int]]:
        return sorted((each.topic, each.partition) for each in self.consumer.assignment())

    def until(self, holds: Callable[[], object], what: str) -> None:
        wait(what, lambda: (self.poll(), holds())[1], lambda: f"{self.told} {self.errors} {len(self.read)} read")

    def until_read(self, count: int) -> Reader:
        self.until(lambda: len(self.read) >= count, f"{count} records")
        return self


@contextmanager
def reading(group: BrokerGroup, protocol: str, *topics: str, **changes: Any) -> Iterator[Reader]:
    """A consumer that is subscribed to the group's topic, or to others."""
    reader = Reader(group, protocol, **changes).subscribe(*(topics or (group.name,)))
    try:
        yield reader
    finally:
        reader.consumer.close()


def member(group: BrokerGroup, protocol: str, name: str) -> BrokerMember:
    return group.librdkafka(name, *(() if protocol == "KIP-848" else (protocol,)))


@protocols
def test_members_come_and_go_while_records_are_written(new_group: NewGroup, protocol: str) -> None:
    """As franz-go's TestGroupETL: nothing is lost, and nothing is read twice by members that leave properly."""
    with new_group(f"etl {protocol}", partitions=7) as group:
        members: list[BrokerMember] = []
        for number in range(4):
            group.write(200)
            members.append(member(group, protocol, f"m{number}"))
            group.wait_until_balanced(*members)
        for number in range(4, 6):
            group.write(200)
            members.pop(0).stop()
            members.append(member(group, protocol, f"m{number}"))
            group.wait_until_balanced(*members)
        group.write(200)
        group.wait_until_read()
        assert group.read_more_than_once() == []


@protocols
def test_killed_member_is_replaced(new_group: NewGroup, protocol: str) -> None:
    with new_group(f"killed {protocol}", partitions=4) as group:
        group.write(100)
        members = [member(group, protocol, name) for name in ("first", "second")]
        group.wait_until_balanced(*members)
        members[0].kill()
        group.write(100)
        if protocol != "KIP-848":  # its session is 45 s on the broker
            group.wait_until_balanced(members[1])
            group.wait_until_read()


@protocols
def test_commit_in_the_revoke_callback_is_accepted(new_group: NewGroup, protocol: str) -> None:
    """0118_commit_rebalance."""
    with new_group(f"revoked {protocol}", partitions=3) as group:
        group.write(60)
        committed: list[str] = []

        def on_revoke(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            try:
                consumer.commit(asynchronous=False)
                committed.append("committed")
            except KafkaException as error:
                committed.append(error.args[0].name())

        first = Reader(group, protocol)
        first.consumer.subscribe([group.name], on_revoke=on_revoke)
        first.until_read(60)
        with reading(group, protocol) as second:
            second.until(lambda: (first.poll(), second.owned)[1], "a share of the second")
            assert committed == ["committed"]
            first.until(lambda: len(first.owned) + len(second.owned) == 3, "the shares")
        first.consumer.close()
        assert set(committed) <= {"committed", "_NO_OFFSET"}
        with reading(group, protocol) as third:
            group.write(3)
            assert sorted(third.until_read(3).read) == [(number, 20) for number in range(3)]


@protocols
def test_metadata_of_a_commit_is_kept(new_group: NewGroup, protocol: str) -> None:
    """0099_commit_metadata, 0130_store_offsets."""
    with new_group(f"metadata {protocol}", partitions=2) as group:
        group.write(20)
        with reading(group, protocol) as reader:
            reader.until_read(20)
            reader.consumer.commit(offsets=[TopicPartition(group.name, 0, 4, "a note")], asynchronous=False)
            asked = [TopicPartition(group.name, number) for number in range(2)]
            found = [(each.offset, each.metadata) for each in reader.consumer.committed(asked, PATIENCE_S)]
            assert found == [(4, "a note"), (OFFSET_INVALID, None)]


@protocols
def test_pattern_takes_a_new_topic_and_a_deleted_one_goes(new_group: NewGroup, protocol: str) -> None:
    """0033_regex_subscribe, 0045_subscribe_update."""
    with new_group(f"pattern {protocol}", partitions=2) as group:
        group.write(10)
        with reading(group, protocol, f"^{group.name}.*") as reader:
            reader.until_read(10)
            group.add_topic(f"{group.name}-b", 1)
            reader.until(lambda: len(reader.owned) == 3, "the new topic")
            admin = group.admin()
            admin.delete_topics([f"{group.name}-b"])[f"{group.name}-b"].result(PATIENCE_S)
            reader.until(lambda: len(reader.owned) == 2, "the deleted topic to go")


@protocols
def test_topic_that_is_created_after_the_subscription(new_group: NewGroup, protocol: str) -> None:
    """0045_subscribe_update: a topic that does not exist yet; and added partitions."""
    with (
        new_group(f"later {protocol}", partitions=1) as group,
        reading(group, protocol, group.name, f"{group.name}-later") as reader,
    ):
        reader.until(lambda: len(reader.owned) == 1, "the first topic")
        group.add_topic(f"{group.name}-later", 2)
        reader.until(lambda: len(reader.owned) == 3, "the new topic")
        group.add_partitions(2)
        reader.until(lambda: len(reader.owned) == 4, "the new partition")


@protocols
def test_changed_subscription_and_unsubscribe(new_group: NewGroup, protocol: str) -> None:
    """0113_cooperative_rebalance: the subscription changes; 0116_kafkaconsumer_close: closed without one."""
    with new_group(f"changed {protocol}", partitions=2) as group:
        group.add_topic(f"{group.name}-b", 2)
        with reading(group, protocol) as reader:
            reader.until(lambda: len(reader.owned) == 2, "the first topic")
            reader.subscribe(group.name, f"{group.name}-b")
            reader.until(lambda: len(reader.owned) == 4, "both topics")
            reader.subscribe(f"{group.name}-b")
            reader.until(lambda: reader.owned == [(f"{group.name}-b", 0), (f"{group.name}-b", 1)], "the second")
            reader.consumer.unsubscribe()
            reader.until(lambda: not reader.owned, "nothing")
            assert "lost" not in {event for event, _ in reader.told}


@pytest.mark.parametrize("protocol", ["range", "KIP-848"])
def test_static_member_returns_to_its_partitions(new_group: NewGroup, protocol: str) -> None:
    """0102_static_group_rebalance."""
    with (
        new_group(f"static {protocol}", partitions=4) as group,
        reading(group, protocol, group_instance_id="first") as first,
    ):
        second = Reader(group, protocol, group_instance_id="second").subscribe(group.name)
        first.until(lambda: (second.poll(), len(first.owned) == len(second.owned) == 2)[1], "two each")
        owned, told = second.owned, len(first.told)
        second.consumer.close()
        second = Reader(group, protocol, group_instance_id="second").subscribe(group.name)
        first.until(lambda: (second.poll(), second.owned)[1], "its return")
        assert (second.owned, len(first.told)) == (owned, told)
        second.consumer.close()


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
def test_member_that_does_not_poll_loses_its_partitions_and_returns(new_group: NewGroup, protocol: str) -> None:
    """0089_max_poll_interval."""
    with new_group(f"poll {protocol}", partitions=2) as group:
        group.write(20)
        with reading(group, protocol, max_poll_interval_ms=6_000) as reader:
            reader.until_read(20)
            time.sleep(8)  # longer than the interval
            reader.until(lambda: len(reader.owned) == 2 and len(reader.told) >= 3, "its return")
            assert [event for event, _ in reader.told] == ["assign", "lost", "assign"]
            assert [error.name() for error in reader.errors] == ["_MAX_POLL_EXCEEDED"]


@protocols
def test_seek_pause_and_assigned_offsets(new_group: NewGroup, protocol: str) -> None:
    """0029_assign_offset, 0026_consume_pause."""
    with new_group(f"seek {protocol}", partitions=1) as group:
        group.write(30)
        with reading(group, protocol) as reader:
            reader.until_read(30)
            reader.consumer.seek(TopicPartition(group.name, 0, 28))
            assert reader.until_read(32).read[30:] == [(0, 28), (0, 29)]
            reader.consumer.pause([TopicPartition(group.name, 0)])
            group.write(1)
            assert not any(reader.poll() for _ in range(10))
            reader.consumer.resume([TopicPartition(group.name, 0)])
            assert reader.until_read(33).read[-1] == (0, 30)


@protocols
def test_admin_client_sees_and_changes_the_group(new_group: NewGroup, protocol: str) -> None:
    """0081_admin: list, describe, alter, list offsets, delete."""
    with new_group(f"admin {protocol}", partitions=2) as group:
        group.write(20)
        admin: AdminClient = AdminClient({"bootstrap.servers": group.broker.bootstrap})

        def offsets() -> dict[int, int]:
            asked = [ConsumerGroupTopicPartitions(group.name)]
            found = admin.list_consumer_group_offsets(asked)[group.name].result(PATIENCE_S)
            return {each.partition: each.offset for each in found.topic_partitions}

        with reading(group, protocol, client_id="told") as reader:
            reader.until_read(20)
            reader.consumer.commit(asynchronous=False)
            listed = admin.list_consumer_groups().result(PATIENCE_S)
            [one] = [each for each in listed.valid if each.group_id == group.name]
            assert (one.state, one.is_simple_consumer_group) == (ConsumerGroupState.STABLE, False)
            described = admin.describe_consumer_groups([group.name])[group.name].result(PATIENCE_S)
            assert described.state == ConsumerGroupState.STABLE
            [told] = described.members
            assert told.client_id == "told"
            assert sorted(each.partition for each in told.assignment.topic_partitions) == [0, 1]
            with pytest.raises(KafkaException) as refused:
                admin.delete_consumer_groups([group.name])[group.name].result(PATIENCE_S)
            assert refused.value.args[0].name() == "NON_EMPTY_GROUP"
            changed = ConsumerGroupTopicPartitions(group.name, [TopicPartition(group.name, 0, 3)])
            refusal = admin.alter_consumer_group_offsets([changed])[group.name].result(PATIENCE_S)
            assert [each.error and each.error.name() for each in refusal.topic_partitions] == ["UNKNOWN_MEMBER_ID"]
        assert offsets() == {0: 10, 1: 10}
        altered = admin.alter_consumer_group_offsets([changed])[group.name].result(PATIENCE_S)
        assert [each.error for each in altered.topic_partitions] == [None]
        assert offsets() == {0: 3, 1: 10}
        admin.delete_consumer_groups([group.name])[group.name].result(PATIENCE_S)
        with pytest.raises(KafkaException) as gone:
            admin.delete_consumer_groups([group.name])[group.name].result(PATIENCE_S)
        assert gone.value.args[0].name() == "GROUP_ID_NOT_FOUND"

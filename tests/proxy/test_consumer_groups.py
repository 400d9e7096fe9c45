"""Unmodified clients on the KIP-848 protocol, behind the proxy: every record of the topic is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import NewGroup

if TYPE_CHECKING:
    from tests.consumer.members import BrokerGroup, BrokerMember


def member(group: BrokerGroup, client: str, name: str) -> BrokerMember:
    return {"librdkafka": group.librdkafka, "java": group.java}[client](name)


@pytest.mark.parametrize("client", ["librdkafka", "java"])
def test_every_record_is_read_while_a_member_joins_and_one_leaves(quick_group: NewGroup, client: str) -> None:
    with quick_group(f"consumer {client}", partitions=6) as group:
        group.write(600)
        first = member(group, client, "first")
        group.wait_until_balanced(first)
        second = member(group, client, "second")
        group.wait_until_balanced(first, second)
        group.write(600)
        group.wait_until_read()
        first.stop()
        group.wait_until_balanced(second)
        group.write(600)
        group.wait_until_read()
        assert group.read_more_than_once() == []
        group.assert_single_owner()


def test_clients_of_different_implementations_share_a_group(quick_group: NewGroup) -> None:
    with quick_group("consumer mixed", partitions=6) as group:
        group.write(60)
        members = [member(group, client, client) for client in ("java", "librdkafka")]
        group.wait_until_balanced(*members)
        group.write(600)
        group.wait_until_read()
        members[0].kill()
        group.wait_until_balanced(members[1])
        group.write(60)
        group.wait_until_read()


def test_partition_that_is_added_is_read_without_a_change_of_the_members(quick_group: NewGroup) -> None:
    """KIP-848, "Partition Added": the coordinator reads the topics of the broker every few seconds."""
    with quick_group("consumer grows", partitions=2) as group:
        members = [member(group, "librdkafka", name) for name in ("first", "second")]
        group.wait_until_balanced(*members)
        group.add_partitions(4)
        group.wait_until_balanced(*members)
        group.write(40)
        group.wait_until_read()


def test_admin_client_describes_the_group_and_its_offsets(quick_group: NewGroup) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    with quick_group("consumer described", partitions=4) as group:
        reader = member(group, "librdkafka", "reader")
        group.wait_until_balanced(reader)
        group.write(40)
        group.wait_until_read()
        admin = AdminClient({"bootstrap.servers": group.broker.bootstrap})
        described = admin.describe_consumer_groups([group.name])[group.name].result(10)
        [found] = described.members
        assert sorted((each.topic, each.partition) for each in found.assignment.topic_partitions) == [
            (group.name, number) for number in range(4)
        ]
        reader.stop()
        asked = [ConsumerGroupTopicPartitions(group.name)]
        committed = admin.list_consumer_group_offsets(asked)[group.name].result(10)
        assert sorted((each.partition, each.offset) for each in committed.topic_partitions) == [
            (number, 10) for number in range(4)
        ]

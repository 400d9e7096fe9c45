"""Unmodified clients on the KIP-848 protocol, behind the proxy: every record of the topic is counted."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from connectgroup.protocol.records.consumer import TopicMetadata
from connectgroup.topics import MetadataReader
from tests.integration.processes import wait

from .conftest import NewGroup

if TYPE_CHECKING:
    from tests.consumer.broker import Broker
    from tests.consumer.members import BrokerGroup, BrokerMember

    from .running import Proxy


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
    """KIP-848, "Partition Added"."""
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


def test_members_that_start_together_are_not_fenced_and_read_no_record_twice(proxy: Proxy) -> None:
    """``python -m tests.proxy.mass_start`` runs more members, and many rounds."""
    from .mass_start import MassStart

    found = MassStart(proxy.bootstrap, f"mass-{os.getpid()}", members=15, partitions=30, records=600).run()
    assert (found.lost, found.doubled, found.missing) == (0, 0, 0)
    # One for each member, and those of the members that were assigned partitions before the others joined.
    assert found.callbacks <= 2 * 15


def test_consumer_that_is_closed_before_it_has_partitions_leaves_none_unread(broker: Broker) -> None:
    """The response to its join waits for the other member, so the client does not know that it must leave."""
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    from .running import running_proxy

    rare = ("--consumer-heartbeat-interval-ms", "120000", "--consumer-session-timeout-ms", "600000")
    with running_proxy(broker, *rare) as proxy:
        group = f"closed-{os.getpid()}"
        admin = AdminClient({"bootstrap.servers": proxy.bootstrap})
        admin.create_topics([NewTopic(group, 2, 1)])[group].result(30)
        settings = {"bootstrap.servers": proxy.bootstrap, "group.id": group, "group.protocol": "consumer"}
        first, second = Consumer(settings), Consumer(settings)

        def members() -> int:
            return len(admin.describe_consumer_groups([group])[group].result(30).members)

        first.subscribe([group])
        wait("both partitions", lambda: first.poll(0.1) or len(first.assignment()) == 2)
        second.subscribe([group])
        wait("its join", lambda: second.poll(0.1) or members() == 2)
        second.close()
        wait("the end of its membership", lambda: members() == 1)
        first.close()


@pytest.mark.parametrize("through", ["proxy", "broker"])
def test_topic_that_is_created_while_a_member_waits_for_it_is_assigned_at_once(broker: Broker, through: str) -> None:
    """Its parked heartbeat tells the member: the next one would be sent after two minutes."""
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    from .running import running_proxy

    rare = ("--consumer-heartbeat-interval-ms", "120000", "--consumer-session-timeout-ms", "600000")
    with running_proxy(broker, *rare) as proxy:
        topic = f"created-{through}-{os.getpid()}"
        common = {"bootstrap.servers": proxy.bootstrap, "allow.auto.create.topics": False}
        waiting = Consumer({**common, "group.id": topic, "group.protocol": "consumer"})
        waiting.subscribe([topic])
        waiting.poll(0.5)
        admin = AdminClient({"bootstrap.servers": proxy.bootstrap if through == "proxy" else broker.bootstrap})
        admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
        assert waiting.assignment() == []
        until_s = time.monotonic() + 50
        while len(waiting.assignment()) < 3 and time.monotonic() < until_s:
            waiting.poll(0.1)
        assert sorted(each.partition for each in waiting.assignment()) == [0, 1, 2]
        waiting.close()


def test_topics_of_the_broker_are_followed_by_id(broker: Broker) -> None:
    """Also a topic that is deleted and created again with the same number of partitions."""
    from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

    name = f"followed-{os.getpid()}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    reader = MetadataReader(broker.bootstrap)

    async def until(change: Any, there: Callable[[TopicMetadata | None], bool]) -> TopicMetadata | None:
        change[name].result(30)
        async with asyncio.timeout(30):
            while True:
                if there(found := (await reader.read()).get(name)):
                    return found
                await asyncio.sleep(0.05)

    async def follow() -> None:
        first = await until(admin.create_topics([NewTopic(name, 2, 1)]), lambda found: found is not None)
        assert first is not None
        assert first.num_partitions == 2
        unchanged = await reader.read()
        assert await reader.read() is unchanged
        grown = await until(
            admin.create_partitions([NewPartitions(name, 4)]), lambda found: found is not None and found != first
        )
        assert grown == replace(first, num_partitions=4)
        await until(admin.delete_topics([name]), lambda found: found is None)
        again = await until(admin.create_topics([NewTopic(name, 4, 1)]), lambda found: found is not None)
        assert again is not None
        assert again.topic_id != first.topic_id
        reader.close()

    asyncio.run(follow())

"""A ``GroupConsumer`` of KIP-848's protocol on a real Kafka broker, whose server-side assignors assign."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.consumer import GroupConsumer
from connectgroup.errors import ConfigError
from connectgroup.protocol.units import TopicPartition

from .conftest import NewGroup
from .inside import RecordingListener, eventually, member, places, poll_until, read, running


def new_member(group: Any, **settings: Any) -> GroupConsumer:
    return member(group, **{"group_protocol": "consumer", "assignors": None, **settings})


async def test_consumer_reads_everything_and_resumes_from_its_commit(new_group: NewGroup) -> None:
    with new_group("new alone", partitions=4) as group:
        group.write(400)
        listener = RecordingListener()
        async with new_member(group, listener=listener) as consumer:
            first = await read(consumer, 150)
            assert consumer.generation > 0
            assert consumer.assignment() == {TopicPartition(group.name, number) for number in range(4)}
            assert len(consumer.member_id) == 32
        assert listener.names == ["assigned", "revoked"]
        async with new_member(group) as consumer:
            rest = await read(consumer, 250)
        both = places(first + rest)
        assert len(both) == 400
        assert set(both) == group.everything()


async def test_two_members_share_the_partitions_and_commit_before_revocation(new_group: NewGroup) -> None:
    with new_group("new two", partitions=4) as group:
        group.write(400)
        listener = RecordingListener()
        first, second = new_member(group, listener=listener), new_member(group)
        async with first:
            seen = await read(first, 400)
            async with running(second) as of_second:
                await poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first)
                group.write(400)
                seen += await poll_until(lambda: len(of_second) >= 200, first)
                assert listener.names == ["assigned", "revoked"]
            await poll_until(lambda: len(first.assignment()) == 4, first)
            seen += await poll_until(lambda: len(seen) + len(of_second) >= 800, first)
        assert sorted(places(seen + of_second)) == sorted(group.everything())


async def test_members_of_both_kinds_share_a_group_with_java(new_group: NewGroup) -> None:
    with new_group("new java", partitions=4) as group:
        java = group.java("java")
        group.wait_until_balanced(java)
        async with new_member(group) as consumer:
            await poll_until(lambda: len(consumer.assignment()) == 2, consumer)
            await eventually(lambda: len(java.owned) == 2)


async def test_pattern_is_resolved_by_the_broker(new_group: NewGroup) -> None:
    with new_group("new pattern", partitions=2) as group:
        async with new_member(group, topics=[], pattern=f"{group.name}.*") as consumer:
            await poll_until(lambda: len(consumer.assignment()) == 2, consumer)
            group.add_topic(f"{group.name}-more", 3)
            await poll_until(lambda: len(consumer.assignment()) == 5, consumer)


async def test_added_partitions_are_assigned(new_group: NewGroup) -> None:
    with new_group("new grows", partitions=1) as group:
        async with new_member(group) as consumer:
            await poll_until(lambda: len(consumer.assignment()) == 1, consumer)
            group.add_partitions(3)
            await poll_until(lambda: len(consumer.assignment()) == 3, consumer)


async def test_static_member_keeps_its_partitions_while_it_is_away(new_group: NewGroup) -> None:
    with new_group("new static", partitions=4) as group:
        listener = RecordingListener()
        one, two = new_member(group, instance="one"), new_member(group, instance="two", listener=listener)
        async with running(two):
            async with running(one):
                await eventually(lambda: len(one.assignment()) == len(two.assignment()) == 2)
                share = one.assignment()
                before = list(listener.events)
            again = new_member(group, instance="one")
            async with running(again):
                await eventually(lambda: again.assignment() == share)
            assert listener.events == before


async def test_second_process_with_an_instance_in_use_waits_and_the_first_one_goes_on(new_group: NewGroup) -> None:
    with new_group("new fenced", partitions=1) as group:
        one, two = new_member(group, instance="one"), new_member(group, instance="one")
        async with one, two:
            await poll_until(lambda: one.assignment(), one)
            assert await two.poll(1.0) == []
            assert not two.assignment()
            assert len(one.assignment()) == 1


async def test_client_side_assignor_on_a_kafka_broker_is_replaced_and_said_once(
    new_group: NewGroup, caplog: pytest.LogCaptureFixture
) -> None:
    with new_group("new client", partitions=2) as group, caplog.at_level(logging.WARNING, "connectgroup.consumer"):
        async with new_member(group, assignors=["range"], server_assignor="uniform") as consumer:
            await poll_until(lambda: len(consumer.assignment()) == 2, consumer)
        said = [line for line in caplog.messages if "server-side assignors only" in line]
        assert said == [
            f"group {group.name}: the broker has server-side assignors only: uniform assigns, not range",
        ]


async def test_unknown_server_assignor_is_an_error_with_the_brokers_message(new_group: NewGroup) -> None:
    from connectgroup.consumer import BrokerError

    with new_group("new unknown", partitions=1) as group:
        async with new_member(group, server_assignor="fair") as consumer:
            with pytest.raises(BrokerError, match=r"UNSUPPORTED_ASSIGNOR \(112\); the broker says: .*fair"):
                await poll_until(lambda: False, consumer)


async def test_absent_topic_is_said_once(new_group: NewGroup, caplog: pytest.LogCaptureFixture) -> None:
    with new_group("new absent", partitions=1) as group, caplog.at_level(logging.INFO, "connectgroup.consumer"):
        name = f"{group.name}-later"
        async with new_member(group, topics=[name], metadata_max_age_ms=50) as consumer:
            assert await consumer.poll(1.0) == []
            group.add_topic(name, 1)
            await poll_until(lambda: consumer.assignment(), consumer)
            await poll_until(lambda: any("available after" in line for line in caplog.messages), consumer)
        said = [line for line in caplog.messages if name in line]
        assert said[0] == f"group {group.name}: topic {name}: UNKNOWN_TOPIC_OR_PARTITION (3)"
        assert sum("UNKNOWN_TOPIC" in line for line in said) == 1


# --------------------------------------------------------------------------------------------------
# Positions, in both protocols


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_seek_pause_resume_position_and_lag(new_group: NewGroup, protocol: str) -> None:
    with new_group(f"positions {protocol}", partitions=2) as group:
        group.write(20)
        zero, one = (TopicPartition(group.name, number) for number in range(2))
        async with new_member(group, group_protocol=protocol) as consumer:
            assert consumer.position(zero) is None
            with pytest.raises(ConfigError, match="allowed: a partition that this consumer owns and reads"):
                await consumer.seek(zero, 3)
            assert len(await consumer.consume(20, 30.0)) == 20
            assert consumer.position(zero) == 10
            assert await consumer.committed() == {}
            await consumer.commit()
            assert await consumer.committed([zero]) == {zero: 10}
            await consumer.seek(zero, 4)
            assert await consumer.lag() == {zero: 6, one: 0}
            assert places(await consumer.consume(6, 30.0)) == [(0, offset) for offset in range(4, 10)]
            await consumer.pause([zero])
            assert consumer.paused == {zero}
            group.write(20)
            assert places(await consumer.consume(10, 30.0)) == [(1, offset) for offset in range(10, 20)]
            assert await consumer.poll(0.3) == []
            await consumer.seek(zero, 12)
            assert await consumer.poll(0.3) == []
            await consumer.resume([zero])
            assert places(await consumer.consume(8, 30.0)) == [(0, offset) for offset in range(12, 20)]
            assert await consumer.consume(5, 0.2) == []


async def test_interval_of_zero_commits_in_every_poll(new_group: NewGroup) -> None:
    with new_group("every poll", partitions=1) as group:
        group.write(10)
        zero = TopicPartition(group.name, 0)
        async with new_member(group, auto_commit_interval_ms=0) as consumer:
            for count in (3, 4):
                await consumer.consume(count, 30.0)
            assert await consumer.committed() == {zero: 3}
            await consumer.consume(3, 30.0)
            assert await consumer.committed() == {zero: 7}


async def test_pattern_of_a_classic_member(new_group: NewGroup) -> None:
    with new_group("classic pattern", partitions=2) as group:
        async with member(group, topics=[], pattern=f"{group.name}.*", metadata_max_age_ms=200) as consumer:
            await poll_until(lambda: len(consumer.assignment()) == 2, consumer)
            group.add_topic(f"{group.name}-more", 3)
            await poll_until(lambda: len(consumer.assignment()) == 5, consumer)

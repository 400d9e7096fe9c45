"""Scenarios of aiokafka's tests of its consumer, producer and admin client, own ports.

Not run by ``make test``: ``make suites``, which fetches aiokafka.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.consumer.fixtures import NewGroup
from tests.consumer.members import BrokerGroup

aiokafka: Any = pytest.importorskip("aiokafka", reason="aiokafka is fetched by 'make suites'")

PATIENCE_S = 60.0


@asynccontextmanager
async def consumer(group: BrokerGroup, **changes: Any) -> AsyncIterator[Any]:
    """A started consumer of the group, subscribed to its topic."""
    settings = {
        "bootstrap_servers": group.broker.bootstrap,
        "group_id": group.name,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 300,
        "metadata_max_age_ms": 1_000,
        "enable_auto_commit": False,
    }
    topics = changes.pop("topics", (group.name,))
    made = aiokafka.AIOKafkaConsumer(*topics, **{**settings, **changes})
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def until(holds: Callable[[], object], what: str) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - aiokafka has no event to wait for
            await asyncio.sleep(0.05)
    assert holds(), what


async def read(one: Any, count: int) -> list[tuple[int, int]]:
    """Partition and offset of so many records."""
    found: list[tuple[int, int]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            for records in (await one.getmany(timeout_ms=200)).values():
                found += ((each.partition, each.offset) for each in records)
    return found


@pytest.mark.parametrize(
    "assignor", ["RangePartitionAssignor", "RoundRobinPartitionAssignor", "StickyPartitionAssignor"]
)
async def test_two_members_share_a_topic_and_each_record_is_read_once(new_group: NewGroup, assignor: str) -> None:
    import importlib

    modules = {
        "RangePartitionAssignor": "range",
        "RoundRobinPartitionAssignor": "roundrobin",
        "StickyPartitionAssignor": "sticky.sticky_assignor",
    }
    strategy = getattr(importlib.import_module(f"aiokafka.coordinator.assignors.{modules[assignor]}"), assignor)
    with new_group("shared", partitions=4) as group:
        group.write(100)
        found: Counter[tuple[int, int]] = Counter()

        async def consume(one: Any) -> None:
            async for record in one:
                found[record.partition, record.offset] += 1

        async with consumer(group, partition_assignment_strategy=(strategy,), enable_auto_commit=True) as first:
            tasks = [asyncio.create_task(consume(first))]
            await until(lambda: len(found) == 100, "100 records")
            async with consumer(group, partition_assignment_strategy=(strategy,), enable_auto_commit=True) as second:
                tasks.append(asyncio.create_task(consume(second)))
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 2, "two each")
                await asyncio.to_thread(group.write, 100)
                await until(lambda: len(found) == 200, "200 records")
            await until(lambda: len(first.assignment()) == 4, "all four")
            await asyncio.to_thread(group.write, 100)
            await until(lambda: len(found) == 300, "300 records")
        await asyncio.gather(*tasks, return_exceptions=True)
        assert set(found.values()) == {1}


async def test_next_member_starts_at_the_committed_offsets(new_group: NewGroup) -> None:
    with new_group("commits", partitions=2) as group:
        group.write(40)
        partition = aiokafka.TopicPartition(group.name, 0)
        async with consumer(group) as one:
            await read(one, 40)
            assert await one.committed(partition) is None
            await one.commit({partition: aiokafka.OffsetAndMetadata(7, "note")})
            assert await one.committed(partition) == 7
        async with consumer(group) as one:
            found = await read(one, 33)
        assert sorted(found) == [*((0, offset) for offset in range(7, 20)), *((1, offset) for offset in range(20))]


async def test_auto_commit_when_a_member_stops(new_group: NewGroup) -> None:
    with new_group("auto", partitions=1) as group:
        group.write(20)
        async with consumer(group, enable_auto_commit=True, auto_commit_interval_ms=60_000) as one:
            await read(one, 20)
        await asyncio.to_thread(group.write, 5)
        async with consumer(group) as one:
            assert await read(one, 5) == [(0, offset) for offset in range(20, 25)]


async def test_listener_is_called_at_each_rebalance(new_group: NewGroup) -> None:
    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def __init__(self) -> None:
            self.told: list[tuple[str, int]] = []

        async def on_partitions_revoked(self, revoked: Any) -> None:
            self.told.append(("revoked", len(revoked)))

        async def on_partitions_assigned(self, assigned: Any) -> None:
            self.told.append(("assigned", len(assigned)))

    with new_group("listener", partitions=2) as group:
        listener = Listener()
        async with consumer(group, topics=()) as first:
            first.subscribe([group.name], listener=listener)
            await until(lambda: ("assigned", 2) in listener.told, "both")
            async with consumer(group):
                await until(lambda: ("assigned", 1) in listener.told, "one")
            await until(lambda: listener.told.count(("assigned", 2)) == 2, "both again")
        assert listener.told[:5] == [
            ("revoked", 0),
            ("assigned", 2),
            ("revoked", 2),
            ("assigned", 1),
            ("revoked", 1),
        ]


async def test_pattern_and_added_partitions(new_group: NewGroup) -> None:
    with new_group("pattern", partitions=2) as group:
        group.write(20)
        async with consumer(group, topics=()) as one:
            one.subscribe(pattern=f"^{group.name}(-more)?$")
            await read(one, 20)
            await asyncio.to_thread(group.add_topic, f"{group.name}-more", 1)
            await until(lambda: len(one.assignment()) == 3, "the new topic")
            await asyncio.to_thread(group.add_partitions, 3)
            await until(lambda: len(one.assignment()) == 4, "the new partition")


async def test_idle_member_loses_its_partitions_and_its_commits_are_refused(new_group: NewGroup) -> None:
    """``max_poll_interval_ms``: the member leaves the group."""
    from aiokafka.errors import CommitFailedError

    with new_group("idle", partitions=2) as group:
        group.write(20)
        async with consumer(group, max_poll_interval_ms=2_000) as idle:
            await read(idle, 20)
            async with consumer(group) as other:
                await until(lambda: len(other.assignment()) == 2, "both to the other")
                # What it takes for its own: both partitions, or the one that it kept when the other joined.
                partition = min(idle.assignment())
                await other.commit({partition: 5})
                with pytest.raises(CommitFailedError):
                    await idle.commit({partition: 9})
                assert await other.committed(partition) == 5


async def test_seek_position_and_end_offsets(new_group: NewGroup) -> None:
    with new_group("seek", partitions=1) as group:
        group.write(30)
        partition = aiokafka.TopicPartition(group.name, 0)
        async with consumer(group) as one:
            await read(one, 30)
            one.seek(partition, 25)
            assert await read(one, 5) == [(0, offset) for offset in range(25, 30)]
            assert await one.position(partition) == 30
            assert await one.end_offsets([partition]) == {partition: 30}
            await one.seek_to_committed()
            await one.seek_to_beginning()
            assert (await read(one, 30))[0] == (0, 0)


async def test_static_member_keeps_its_partitions(new_group: NewGroup) -> None:
    with new_group("static", partitions=2) as group:
        async with consumer(group, group_instance_id="first") as first:
            await until(lambda: len(first.assignment()) == 2, "both")
            async with consumer(group, group_instance_id="second") as second:
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 1, "one each")
                owned = second.assignment()
            async with consumer(group, group_instance_id="second") as second:
                await until(lambda: second.assignment(), "an assignment")
                assert second.assignment() == owned
                assert len(first.assignment()) == 1


async def committed(group: BrokerGroup, partition: aiokafka.TopicPartition, offset: int) -> None:
    """Wait until this offset is the committed one."""
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(bootstrap_servers=group.broker.bootstrap)
    await admin.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await admin.list_consumer_group_offsets(group.name)
                if partition in found and found[partition].offset == offset:
                    return
                await asyncio.sleep(0.05)
    finally:
        await admin.close()


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "aborted"])
async def test_offsets_of_a_transaction(new_group: NewGroup, commits: bool) -> None:
    with new_group("transaction", partitions=1) as group:
        group.write(20)
        partition = aiokafka.TopicPartition(group.name, 0)
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=group.broker.bootstrap, transactional_id=group.name, enable_idempotence=True
        )
        await producer.start()
        try:
            async with consumer(group, isolation_level="read_committed") as one:
                await read(one, 20)
                await producer.begin_transaction()
                await producer.send_offsets_to_transaction({partition: 12}, group.name)
                await (producer.commit_transaction() if commits else producer.abort_transaction())
            if commits:
                # A broker answers before the end of the transaction is written to the offsets, and aiokafka does not
                # ask for stable offsets only.
                await committed(group, partition, 12)
            async with consumer(group) as one:
                expected = 12 if commits else 0
                assert (await read(one, 1))[0] == (0, expected)
        finally:
            await producer.stop()


async def test_admin_client_lists_and_describes_the_group(new_group: NewGroup) -> None:
    from aiokafka.admin import AIOKafkaAdminClient

    with new_group("admin", partitions=2) as group:
        group.write(20)
        admin = AIOKafkaAdminClient(bootstrap_servers=group.broker.bootstrap)
        await admin.start()
        try:
            async with consumer(group) as one:
                await read(one, 20)
                await one.commit()
                assert (group.name, "consumer") in await admin.list_consumer_groups()
                [described] = await admin.describe_consumer_groups([group.name])
                [(error, name, state, kind, assignor, members)] = [each[:6] for each in described.groups]
                assert (error, name, state, kind, assignor) == (0, group.name, "Stable", "consumer", "roundrobin")
                assert len(members) == 1
            offsets = await admin.list_consumer_group_offsets(group.name)
            assert {each.partition: at.offset for each, at in offsets.items()} == {0: 10, 1: 10}
        finally:
            await admin.close()

"""Records, and records that were fetched."""

from __future__ import annotations

import asyncio
import copy
import time
from dataclasses import replace

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from confluent_kafka import Message

from connectgroup.consumer import Record
from connectgroup.consumer.group_consumer import YIELD_S
from connectgroup.consumer.records import record_of
from connectgroup.protocol.units import TopicPartition

from .conftest import NewGroup
from .inside import member, read


def test_records_with_equal_fields_are_equal() -> None:
    record = Record(topic="t", partition=1, offset=2, timestamp_ms=3, key=None, value=b"v")
    assert record == replace(record)
    assert record != replace(record, offset=3)
    assert len({record, replace(record)}) == 1
    assert record.topic_partition == TopicPartition("t", 1)


def test_fetched_record_is_replaced_by_a_record_with_the_other_fields() -> None:
    fetched = record_of(Message(topic="t", partition=1, offset=2, key=b"k", value=b"v"))
    replaced = replace(fetched, value=b"w")
    assert (replaced.topic, replaced.offset, replaced.key, replaced.value) == ("t", 2, b"k", b"w")
    assert replace(replaced, value=b"v") == fetched
    assert replace(fetched) == fetched


async def test_fetched_record_is_a_record(new_group: NewGroup) -> None:
    with new_group("kinds", partitions=1) as group:
        group.write(1)
        async with member(group) as consumer:
            [fetched] = await read(consumer, 1)
    made = Record(
        topic=group.name,
        partition=0,
        offset=0,
        timestamp_ms=fetched.timestamp_ms,
        key=None,
        value=b"0",
        leader_epoch=fetched.leader_epoch,
    )
    assert isinstance(fetched, Record)
    assert fetched == made
    assert hash(fetched) == hash(made)
    assert copy.deepcopy(fetched) == made
    with pytest.raises(AttributeError):
        fetched.offset = 5  # type: ignore[misc]


async def test_iteration_reads_partitions_in_turn_and_commits_the_processed_records(new_group: NewGroup) -> None:
    with new_group("counted", partitions=3) as group:
        group.write(900)

        async def fail_after(count: int) -> list[Record]:
            seen: list[Record] = []
            async with member(group) as consumer:
                async for record in consumer:
                    if len(seen) == count:
                        raise ZeroDivisionError
                    seen.append(record)
            return seen

        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await fail_after(333)
        async with member(group) as consumer:
            rest = await read(consumer, 900 - 666)
            assert await consumer.poll(0.3) == []
        assert len({(record.partition, record.offset) for record in rest}) == len(rest)


async def test_heartbeats_are_sent_while_an_iteration_never_waits(new_group: NewGroup) -> None:
    with new_group("busy", partitions=1) as group:
        group.write(3_000)
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        async with member(group) as consumer:
            await read(consumer, 1)
            other = asyncio.create_task(count_turns())
            await asyncio.sleep(0)
            seen = 0
            async for _ in consumer:
                seen += 1
                if seen == 10:
                    break
                time.sleep(YIELD_S)  # noqa: ASYNC251 - blocking work
            other.cancel()
        assert turns >= 3

"""Consumers in the test's process: creating them, and waiting for events."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from connectgroup.consumer import ConsumerRebalanceListener, GroupConsumer, Record
from connectgroup.protocol.units import Partitions

if TYPE_CHECKING:
    from .members import BrokerGroup

PATIENCE_S = 180.0
HOUR_MS = 3_600_000


class RecordingListener(ConsumerRebalanceListener):
    """Records a consumer's callbacks: event, partition numbers, generation."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int], int]] = []

    def on_assigned(self, partitions: Partitions, generation: int) -> None:
        self.note("assigned", partitions, generation)

    def on_revoked(self, partitions: Partitions, generation: int) -> None:
        self.note("revoked", partitions, generation)

    async def on_lost(self, partitions: Partitions, generation: int) -> None:
        self.note("lost", partitions, generation)

    def note(self, event: str, partitions: Partitions, generation: int) -> None:
        self.events.append((event, sorted(each.partition for each in partitions), generation))

    @property
    def names(self) -> list[str]:
        return [event for event, _, _ in self.events]


def member(group: BrokerGroup, **settings: Any) -> GroupConsumer:
    """A consumer of the group, with short timeouts by default."""
    quick: dict[str, Any] = {
        "assignors": ["cooperative-sticky"],
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 200,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": HOUR_MS,
    }
    needed = {"bootstrap": group.broker.bootstrap, "group": group.name, "topics": [group.name]}
    return GroupConsumer(**{**needed, **quick, **settings})


def places(records: list[Record]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


async def read(consumer: GroupConsumer, count: int) -> list[Record]:
    """Read exactly this many records."""
    records: list[Record] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(records) < count:
            records += await consumer.poll(1.0, max_records=count - len(records))
    return records


async def poll_until(until: Callable[[], object], *consumers: GroupConsumer) -> list[Record]:
    """Poll the consumers in turn until the condition holds; return the records read."""
    records: list[Record] = []
    async with asyncio.timeout(PATIENCE_S):
        while not until():
            for consumer in consumers:
                records += await consumer.poll(0.05)
    return records


@contextlib.asynccontextmanager
async def running(consumer: GroupConsumer) -> AsyncIterator[list[Record]]:
    """Poll a consumer during the block, then close it; yields the list of records read."""
    records: list[Record] = []
    stopping = False

    async def run() -> None:
        async with consumer:
            while not stopping:
                records.extend(await consumer.poll(0.1))

    task = asyncio.create_task(run())
    try:
        yield records
    finally:
        stopping = True
        await task


async def eventually(until: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.02)

"""Speed of a ``GroupConsumer`` beside confluent-kafka's own consumer, on one topic, in one run.

    python benchmarks/consumer.py [--rows 300000] [--rounds 5] [--bootstrap HOST:PORT]

The consumers take turns in each round; every run reads the whole topic with a new group, and is timed from its first
record on. The table shows medians: rows per second, CPU time of this process, and each as a ratio to ``poll`` of
confluent-kafka. Without ``--bootstrap`` a broker is started, as for the tests. Exit code 1 if a run did not read every
row exactly once; no time affects it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    # Run as a script from any directory: the modules next to this file are imported as benchmarks.NAME.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from connectgroup.consumer import GroupConsumer

ROW = b"x" * 100
PARTITIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One run.

    Attributes:
        rows: the number of records read.
        wall_s: from the first record, or batch, to the last.
        cpu_s: CPU time of this process in that time, of librdkafka's threads too.
    """

    rows: int
    wall_s: float
    cpu_s: float


class Meter:
    """Counts the records of a run; the clock starts with the first ones."""

    def __init__(self, rows: int) -> None:
        self._rows, self._read = rows, 0
        self._wall_s = self._cpu_s = 0.0

    def add(self, count: int) -> bool:
        """Count records; return whether more are to come."""
        if not self._read:
            self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()
        self._read += count
        return self._read < self._rows

    def result(self) -> Reading:
        wall_s, cpu_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s
        return Reading(rows=self._read, wall_s=wall_s, cpu_s=cpu_s)


# --------------------------------------------------------------------------------------------------
# The consumers


def confluent_poll(bootstrap: str, topic: str, rows: int) -> Reading:
    """confluent-kafka, one record in each call."""
    with confluent_consumer(bootstrap, topic) as consumer:
        meter = Meter(rows)
        while True:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                message.value()
                if not meter.add(1):
                    return meter.result()


def confluent_consume(bootstrap: str, topic: str, rows: int) -> Reading:
    """confluent-kafka, up to 500 records in each call."""
    with confluent_consumer(bootstrap, topic) as consumer:
        meter = Meter(rows)
        while True:
            messages = [message for message in consumer.consume(500, 0.1) if message.error() is None]
            for message in messages:
                message.value()
            if messages and not meter.add(len(messages)):
                return meter.result()


def ours_poll(bootstrap: str, topic: str, rows: int) -> Reading:
    """``poll``, up to 500 records in each call."""

    async def run() -> Reading:
        async with group_consumer(bootstrap, topic) as consumer:
            meter = Meter(rows)
            while True:
                records = await consumer.poll(1.0)
                for record in records:
                    _ = record.value
                if records and not meter.add(len(records)):
                    return meter.result()

    return asyncio.run(run())


def ours_iteration(bootstrap: str, topic: str, rows: int) -> Reading:
    """``async for``."""

    async def run() -> Reading:
        async with group_consumer(bootstrap, topic) as consumer:
            meter = Meter(rows)
            async for record in consumer:
                _ = record.value
                if not meter.add(1):
                    break
            return meter.result()

    return asyncio.run(run())


def group_consumer(bootstrap: str, topic: str) -> GroupConsumer:
    return GroupConsumer(
        bootstrap, group=f"bench-{uuid.uuid4()}", topics=[topic], assignors=["range"], auto_offset_reset="earliest"
    )


@contextlib.contextmanager
def confluent_consumer(bootstrap: str, topic: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"bench-{uuid.uuid4()}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


WAYS: dict[str, Callable[[str, str, int], Reading]] = {
    "confluent-kafka poll": confluent_poll,
    "confluent-kafka consume(500)": confluent_consume,
    "GroupConsumer poll": ours_poll,
    "GroupConsumer async for": ours_iteration,
}
BASE = "confluent-kafka poll"


# --------------------------------------------------------------------------------------------------
# Measurement


def written_topic(bootstrap: str, rows: int) -> str:
    """Create a topic with this many rows of 100 bytes; return its name."""
    topic = f"bench-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number in range(rows):
        producer.produce(topic, ROW, partition=number % PARTITIONS)
        if not number % 10_000:
            producer.poll(0)
    if producer.flush(120):
        raise TimeoutError("the rows were not written within 120 s")
    return topic


def measure(bootstrap: str, rows: int, rounds: int) -> dict[str, list[Reading]]:
    """Run each consumer once in each round, in turn."""
    topic = written_topic(bootstrap, rows)
    return_: dict[str, list[Reading]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, run in WAYS.items():
            return_[name].append(run(bootstrap, topic, rows))
    return return_


def table(readings: dict[str, list[Reading]]) -> str:
    """Format the medians, one consumer per line."""
    speed = {name: statistics.median(each.rows / each.wall_s for each in of_it) for name, of_it in readings.items()}
    cpu = {name: statistics.median(each.cpu_s / each.rows * 1e6 for each in of_it) for name, of_it in readings.items()}
    lines = ["| consumer | rows/s | ratio | CPU us per row | ratio |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {speed[name]:,.0f} | {speed[name] / speed[BASE]:.2f}x | {cpu[name]:.2f} "
        f"| {cpu[name] / cpu[BASE]:.2f}x |"
        for name in readings
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Time a GroupConsumer beside confluent-kafka's consumer.")
    parser.add_argument("--rows", type=int, default=300_000, help="of 100 bytes (default 300000)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each consumer (default 5)")
    parser.add_argument("--bootstrap", help="host:port of a broker; without it one is started")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    with contextlib.ExitStack() as stack:
        bootstrap = options.bootstrap
        if bootstrap is None:
            from tests.consumer.broker import running_broker

            bootstrap = stack.enter_context(running_broker()).bootstrap
        readings = measure(bootstrap, options.rows, options.rounds)
    print(f"{options.rows} rows of {len(ROW)} bytes, {PARTITIONS} partitions, {options.rounds} runs each\n")
    print(table(readings))
    wrong = [f"{name}: {each.rows}" for name, of_it in readings.items() for each in of_it if each.rows != options.rows]
    for line in wrong:
        print(f"FAULT: rows read by {line}; expected {options.rows}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

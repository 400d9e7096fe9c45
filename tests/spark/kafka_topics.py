"""Topics of a real broker: created, written, and read as an independent reader."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.processes import pause

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


def topic(place: Path) -> str:
    return re.sub(r"[^\w-]", "_", place.name)


def make_topic(servers: str, name: str, partitions: int = 3, config: dict[str, str] | None = None) -> None:
    """Create a topic, and wait until the broker knows it: the controller answers first."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, partitions, config=config or {})])[name].result(30)
    _wait_for(admin, name, partitions)


def add_partitions(servers: str, name: str, partitions: int) -> None:
    """Give a topic more partitions, and wait until the broker knows them."""
    from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)
    _wait_for(admin, name, partitions)


def _wait_for(admin: AdminClient, name: str, partitions: int) -> None:
    began_s = time.monotonic()
    while (found := admin.list_topics(timeout=10).topics.get(name)) is None or len(found.partitions) != partitions:
        pause(began_s, 0.05)


def delete_topic(servers: str, name: str) -> None:
    """Delete a topic, and wait until no broker knows it."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([name])[name].result(30)
    began_s = time.monotonic()
    while name in admin.list_topics(timeout=10).topics:
        pause(began_s, 0.05)


def delete_records(servers: str, name: str, before: int) -> None:
    """Delete the records of partition 0 before an offset, as retention does."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    for result in admin.delete_records([TopicPartition(name, 0, before)]).values():
        result.result(30)


def produce(servers: str, name: str, records: Sequence[tuple[int, str | None, str | bytes | None]]) -> None:
    """Write records: partition, key, value."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers})
    for partition, key, value in records:
        producer.produce(name, value, key, partition=partition)
    assert producer.flush(30) == 0


def committed(servers: str, name: str) -> list[tuple[str | None, str]]:
    """Key and value of the committed records of a topic; a tombstone's value is an empty text."""
    return [(key, value) for key, value, *_ in _read(servers, name)]


def placed(servers: str, name: str) -> list[tuple[int, str]]:
    """Partition and value of the committed records of a topic."""
    return sorted((partition, value) for _, value, _, partition in _read(servers, name))


def times(servers: str, name: str) -> list[int]:
    """The timestamps of the committed records of a topic, in milliseconds."""
    return [at for _, _, at, _ in _read(servers, name)]


def _read(servers: str, name: str) -> list[tuple[str | None, str, int, int]]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(name, timeout=10).topics[name].partitions
    consumer.assign([TopicPartition(name, n, OFFSET_BEGINNING) for n in partitions])
    found: list[tuple[str | None, str, int, int]] = []
    ended: set[int | None] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            ended.add(message.partition())
            continue
        key, value = message.key(), message.value()
        value = b"" if value is None else value
        assert isinstance(value, bytes)
        text = key.decode(errors="backslashreplace") if isinstance(key, bytes) else None
        found.append((text, value.decode(), message.timestamp()[1], message.partition() or 0))
    consumer.close()
    return found

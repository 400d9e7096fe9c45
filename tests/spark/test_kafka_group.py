"""Positions of the source ``kafka`` in the consumer group ``connect-NAME``, as Kafka's tools see them."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from connectgroup.dataplane.ownership import Owner
from connectgroup.dataplane.source import Publisher
from connectgroup.spark.sources import kafka_group
from connectgroup.spark.sources.kafka import KafkaSource, KafkaSourceSettings

from .conftest import Bench, wait
from .kafka_topics import make_topic, produce

if TYPE_CHECKING:
    from confluent_kafka import Consumer


@pytest.fixture
def name(kafka: str) -> str:
    """A topic of two partitions."""
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 2)
    return name


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_group, "INTERVAL_S", 0.05)
    monkeypatch.setattr(kafka_group, "CHECK_S", 0.2)


def write(servers: str, name: str, numbers: range) -> None:
    produce(servers, name, [(n % 2, None, json.dumps({"a": n})) for n in numbers])


def offsets(servers: str, topic: str, connector: str = "flights") -> dict[int, int]:
    """The offsets of a topic in the connector's group."""
    from confluent_kafka import KafkaException, TopicPartition

    with contextlib.closing(group(servers, connector)) as consumer:
        try:
            found = consumer.committed([TopicPartition(topic, n) for n in range(2)], timeout=60)
        except KafkaException:
            return {}  # the first group of a broker: the topic of offsets is being created
    return {each.partition: each.offset for each in found if each.offset >= 0}


def group(servers: str, connector: str = "flights") -> Consumer:
    """A consumer of the connector's group."""
    from confluent_kafka import Consumer

    return Consumer({"bootstrap.servers": servers, "group.id": f"connect-{connector}", "enable.auto.commit": False})


def settings(servers: str, name: str) -> dict[str, str]:
    return {
        "source": "kafka",
        "source_bootstrap_servers": servers,
        "source_topics": name,
        "source_schema": "a INT",
    }


@contextlib.contextmanager
def publishing(
    servers: str, name: str, epoch: int, positions: dict[str, int], *, connector: str = "flights", task: int = 0
) -> Iterator[Publisher]:
    """What publishes the positions of a task at an owner epoch."""
    source = KafkaSourceSettings.model_validate({"bootstrap.servers": servers, "topics": name})
    owner = Owner(connector=connector, task=task, tasks=1, fencing_token=epoch)
    publisher = KafkaSource(source, {name: 2}, task=0, tasks=1).publisher(owner, positions)
    assert publisher is not None
    try:
        yield publisher
    finally:
        publisher.close()


def test_tools_see_committed_positions_and_the_last_one_at_a_stop(
    kafka: str, name: str, table: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    write(kafka, name, range(10))
    run = table.start(1, **settings(kafka, name))  # type: ignore[arg-type]
    run.wait(lambda: offsets(kafka, name) == {0: 5, 1: 5})
    assert table.seen() == [*range(10)]
    monkeypatch.setattr(kafka_group, "INTERVAL_S", 1_000.0)  # only the stop publishes
    monkeypatch.setattr(kafka_group, "CHECK_S", 1_000.0)
    run.task.stop()
    again = table.start(2, **settings(kafka, name))  # type: ignore[arg-type]
    write(kafka, name, range(10, 15))
    again.wait(lambda: table.seen() == [*range(15)])
    again.task.stop()
    wait(lambda: offsets(kafka, name) == {0: 8, 1: 7})  # a stop waits for it, but not for long
    # As kafka-consumer-groups lists them.
    asked = ConsumerGroupTopicPartitions("connect-flights")
    admin = AdminClient({"bootstrap.servers": kafka})
    found = admin.list_consumer_group_offsets([asked])["connect-flights"].result(30)
    assert {each.partition: each.offset for each in found.topic_partitions if each.topic == name} == {0: 8, 1: 7}


def test_positions_are_not_published_before_the_sink_has_committed(
    kafka: str, name: str, table: Bench, quick: None
) -> None:
    write(kafka, name, range(4))
    run = table.start(1, **settings(kafka, name), sink_busy_timeout_ms="60000")  # type: ignore[arg-type]
    run.wait(lambda: offsets(kafka, name) == {0: 2, 1: 2})
    with contextlib.closing(sqlite3.connect(table.output, isolation_level=None)) as blocking:
        blocking.execute("BEGIN IMMEDIATE")
        write(kafka, name, range(4, 8))
        assert offsets(kafka, name) == {0: 2, 1: 2}
        blocking.execute("ROLLBACK")
    run.wait(lambda: offsets(kafka, name) == {0: 4, 1: 4})


def test_setting_switches_the_group_off(kafka: str, name: str, table: Bench, quick: None) -> None:
    write(kafka, name, range(2))
    run = table.start(1, **settings(kafka, name), source_publish_offsets="false")  # type: ignore[arg-type]
    run.wait(lambda: table.seen() == [0, 1])
    run.task.stop()
    assert offsets(kafka, name) == {}


def test_positions_that_a_killed_owner_did_not_publish_are_published_by_the_next(
    kafka: str, name: str, quick: None
) -> None:
    with publishing(kafka, name, 2, {f"{name}-0": 7}):
        wait(lambda: offsets(kafka, name) == {0: 7})


def test_earlier_owner_does_not_overwrite_a_later_one(kafka: str, name: str, quick: None) -> None:
    """A partition that moved to another task, whose former owner was suspended before it published."""
    with publishing(kafka, name, 1, {f"{name}-0": 3, f"{name}-1": 3}) as earlier:
        wait(lambda: offsets(kafka, name) == {0: 3, 1: 3})
        with publishing(kafka, name, 2, {f"{name}-0": 9}, task=1):
            wait(lambda: offsets(kafka, name)[0] == 9)
        earlier.committed({f"{name}-0": 4, f"{name}-1": 4})
        wait(lambda: offsets(kafka, name)[1] == 4)
    assert offsets(kafka, name) == {0: 9, 1: 4}


def test_later_owner_corrects_what_an_earlier_one_has_overwritten(kafka: str, name: str, quick: None) -> None:
    """Offsets that expired, that a tool has reset, or that a suspended owner has written late."""
    from confluent_kafka import TopicPartition

    with publishing(kafka, name, 2, {f"{name}-0": 9}), contextlib.closing(group(kafka)) as tool:
        wait(lambda: offsets(kafka, name) == {0: 9})
        for metadata in ("connectgroup 1", ""):
            tool.commit(offsets=[TopicPartition(name, 0, 4, metadata)], asynchronous=False)
            wait(lambda: offsets(kafka, name) == {0: 9})


def test_offsets_of_another_client_are_replaced_with_a_line(
    kafka: str, name: str, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as Kafka Connect's, of a sink connector that moved here."""
    from confluent_kafka import TopicPartition

    caplog.set_level(logging.INFO, kafka_group.__name__)
    with contextlib.closing(group(kafka, "moved")) as other:
        other.commit(offsets=[TopicPartition(name, 0, 4)], asynchronous=False)
    with publishing(kafka, name, 2, {f"{name}-0": 9}, connector="moved"):
        wait(lambda: offsets(kafka, name, "moved") == {0: 9})
    assert caplog.text.count("had offsets of another client, which are replaced") == 1


def test_live_members_of_another_are_named_once_and_the_task_goes_on(
    kafka: str, name: str, table: Bench, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    other = group(kafka)
    joined: list[object] = []
    other.subscribe([name], on_assign=lambda *given: joined.append(given[1]))

    def has_joined() -> bool:
        other.poll(0.1)
        return bool(joined)

    wait(has_joined)
    caplog.set_level(logging.INFO, kafka_group.__name__)
    write(kafka, name, range(4))
    run = table.start(1, **settings(kafka, name))  # type: ignore[arg-type]
    run.wait(lambda: "has live members, which are not of this connector" in caplog.text)
    write(kafka, name, range(4, 8))
    run.wait(lambda: table.seen() == [*range(8)])
    assert offsets(kafka, name) == {}
    other.close()
    run.wait(lambda: offsets(kafka, name) == {0: 4, 1: 4})
    run.wait(lambda: "offsets are published again" in caplog.text)
    assert caplog.text.count("has live members") == 1


def test_cluster_that_does_not_answer_is_one_line_and_delays_no_end(
    quick: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
    monkeypatch.setattr(kafka_group, "CLOSE_S", 0.5)
    monkeypatch.setattr(kafka_group, "_REQUEST_S", 0.2)
    with publishing("127.0.0.1:1", "t", 1, {"t-0": 1}) as publisher:
        wait(lambda: "offsets cannot be published" in caplog.text)
        publisher.committed({"t-0": 2})
    lines = [each.getMessage() for each in caplog.records if each.name == kafka_group.__name__]
    assert len(lines) == 1
    assert lines[0].startswith("flights-0: Kafka 127.0.0.1:1: consumer group connect-flights: offsets cannot")
    assert lines[0].endswith("; the task goes on: its positions are in the sink")

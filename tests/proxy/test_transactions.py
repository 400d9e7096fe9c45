"""Offsets that transactions commit, behind the proxy: each test gets the same from the broker itself."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connectgroup.log.registry import sqlite_url
from tests.integration.processes import wait

from .test_offsets import BROKER, Cluster

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

    from tests.consumer.broker import Broker

_NUMBERS = itertools.count()
UNSTABLE = (-1, -1, "", 88)


@pytest.fixture(params=[BROKER, "proxy"])
def cluster(request: pytest.FixtureRequest, broker: Broker) -> Cluster:
    """The broker, and the proxy in front of it."""
    at = broker.bootstrap if request.param == "broker" else request.getfixturevalue("proxy").bootstrap
    return Cluster(at, broker)


def consumer_of(cluster: Cluster, group: str, protocol: str = "classic", **changes: Any) -> Consumer:
    from confluent_kafka import Consumer

    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    return Consumer({**settings, **changes})


def producer_of(cluster: Cluster, transactional_id: str, **changes: Any) -> Producer:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    producer = Producer({**settings, **changes})
    producer.init_transactions(30)
    return producer


def write(cluster: Cluster, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(count):
        producer.produce(topic, str(number), partition=number % 2)
    producer.flush(30)


def read(consumer: Consumer, count: int) -> list[str]:
    """The values of so many records."""
    values: list[str] = []

    def reads() -> bool:
        found = (each.value() for each in consumer.consume(500, 0.2) if not each.error())
        values.extend(value.decode() for value in found if value is not None)
        return len(values) >= count

    wait(f"{count} records", reads, lambda: str(len(values)))
    return values


def rewind(consumer: Consumer) -> list[tuple[int, int]]:
    """Read from the committed offsets again; return them by partition."""
    from confluent_kafka import KafkaException

    # A partition with an error has no offset either: to read it from its beginning is to read it twice.
    committed = consumer.committed(consumer.assignment(), 30)
    while any(each.error for each in committed):
        time.sleep(0.1)
        committed = consumer.committed(consumer.assignment(), 30)
    for each in committed:
        if each.offset < 0:
            # Not OFFSET_BEGINNING: librdkafka asks the broker where that is, and an answer that comes after the next
            # rewind would undo that one.
            each.offset = consumer.get_watermark_offsets(each, 30)[0]
        with suppress(KafkaException):  # it has just been revoked
            consumer.seek(each)
    return [(each.partition, each.offset) for each in committed]


def positions_of(consumer: Consumer) -> list[Any]:
    return [each for each in consumer.position(consumer.assignment()) if each.offset >= 0]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_of_a_transaction_are_committed_with_it(cluster: Cluster, protocol: str) -> None:
    topic, group = cluster.topic, f"transactions of {cluster.topic}"
    places = (topic, 0), (topic, 1)
    write(cluster, topic, 20)
    consumer, producer = consumer_of(cluster, group, protocol), producer_of(cluster, group)
    consumer.subscribe([topic])
    read(consumer, 20)

    def send_offsets() -> None:
        producer.begin_transaction()
        producer.send_offsets_to_transaction(positions_of(consumer), consumer.consumer_group_metadata(), 30)

    send_offsets()
    assert {each[:1] for each in cluster.fetch(group, *places).values()} == {(-1,)}
    assert cluster.fetch(group, *places, require_stable=True) == dict.fromkeys(places, UNSTABLE)
    producer.abort_transaction(30)
    wait("a stable offset", lambda: UNSTABLE not in cluster.fetch(group, *places, require_stable=True).values())
    assert {each[:1] for each in cluster.fetch(group, *places).values()} == {(-1,)}

    send_offsets()
    producer.commit_transaction(30)
    wait("a stable offset", lambda: UNSTABLE not in cluster.fetch(group, *places, require_stable=True).values())
    assert {each[0] for each in cluster.fetch(group, *places, require_stable=True).values()} == {10}

    write(cluster, topic, 10)
    read(consumer, 10)
    send_offsets()
    assert {each[0] for each in cluster.fetch(group, *places).values()} == {10}
    consumer.close()
    producer.commit_transaction(30)
    wait("the offsets", lambda: {each[0] for each in cluster.fetch(group, *places).values()} == {15})


def test_commit_is_fenced_by_the_producer_and_by_the_member(cluster: Cluster) -> None:
    from confluent_kafka import KafkaException

    topic, group = cluster.topic, f"transactions of {cluster.topic}"
    write(cluster, topic, 10)
    consumer, zombie = consumer_of(cluster, group), producer_of(cluster, group)
    consumer.subscribe([topic])
    read(consumer, 10)
    positions, metadata = positions_of(consumer), consumer.consumer_group_metadata()
    zombie.begin_transaction()
    zombie.send_offsets_to_transaction(positions, metadata, 30)
    producer = producer_of(cluster, group)  # aborts the transaction of the zombie
    with pytest.raises(KafkaException):
        zombie.commit_transaction(30)
    assert {each[0] for each in cluster.fetch(group, (topic, 0), (topic, 1)).values()} == {-1}

    consumer.close()
    other = consumer_of(cluster, group)
    other.subscribe([topic])
    read(other, 10)
    producer.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction(positions, metadata, 30)
    assert refused.value.args[0].txn_requires_abort()
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(positions_of(other), other.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    wait("the offsets", lambda: {each[0] for each in cluster.fetch(group, (topic, 0)).values()} == {5})
    other.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_every_record_is_transformed_exactly_once(cluster: Cluster, protocol: str) -> None:
    """Consume, transform, produce: with members that join and leave, and transactions that are aborted.

    The reader has no group: one that were assigned its partitions anew would read from their beginning.
    """
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    topic, out, group = cluster.topic, f"{cluster.topic}-out", f"etl of {cluster.topic}"
    cluster.create(out)
    write(cluster, topic, 400)
    stops = [threading.Event() for _ in range(3)]
    history: list[tuple[object, ...]] = []

    def transform(number: int) -> None:
        from confluent_kafka import KafkaException

        producer = producer_of(cluster, f"{group} {number}")
        consumer, moved = consumer_of(cluster, group, protocol), threading.Event()

        def on_rebalance(event: str) -> Callable[[object, list[TopicPartition]], None]:
            def noted(_: object, partitions: list[TopicPartition]) -> None:
                moved.set()
                history.append((number, event, *(each.partition for each in partitions)))

            return noted

        # With callbacks, partitions move only while the consumer is called.
        consumer.subscribe([topic], **{f"on_{each}": on_rebalance(each) for each in ("assign", "revoke", "lost")})
        for turn in itertools.count():
            if stops[number].is_set():
                break
            moved.clear()
            batch = [each for each in consumer.consume(20, 0.2) if not each.error()]
            if moved.is_set():
                # Some records may be of a partition that is another member's now.
                history.append((number, "rewinds to", *rewind(consumer)))
                continue
            if not batch:
                continue
            try:
                producer.begin_transaction()
                for each in batch:
                    producer.produce(out, each.value())
                # Not the positions: at first, that of a partition that has come back is of its former assignment.
                ends = {each.partition() or 0: (each.offset() or 0) + 1 for each in batch}
                history.append(
                    (
                        number,
                        "read",
                        *((each.partition(), each.offset()) for each in (batch[0], batch[-1])),
                        "sends",
                        *ends.items(),
                    )
                )
                positions = [TopicPartition(topic, partition, offset) for partition, offset in ends.items()]
                producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 30)
                if turn % 4 == 1:
                    raise KafkaException("on purpose")
                producer.commit_transaction(30)
                history.append((number, "committed"))
            except KafkaException as error:
                producer.abort_transaction(30)
                history.append((number, "aborted", str(error), "rewinds to", *rewind(consumer)))
        consumer.close()
        history.append((number, "closed"))

    threads = [threading.Thread(target=transform, args=(number,)) for number in range(3)]
    for thread in threads[:2]:
        thread.start()
    reader = consumer_of(cluster, f"{group} reader")
    reader.assign([TopicPartition(out, partition, OFFSET_BEGINNING) for partition in range(2)])
    values = read(reader, 100)
    threads[2].start()
    stops[0].set()
    values += read(reader, 400 - len(values))
    for stop in stops:
        stop.set()
    for thread in threads:
        thread.join(60)
    write(cluster, out, 2)  # the end of what was written
    values += read(reader, 2)
    reader.close()
    found, expected = Counter(values), Counter([*map(str, range(400)), "0", "1"])
    shown = "\n".join(" ".join(map(str, event)) for event in history)
    assert (found - expected, expected - found) == (Counter(), Counter()), f"twice, missing; what happened:\n{shown}"


def test_kafka_python_transforms_in_transactions(cluster: Cluster) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.structs import OffsetAndMetadata

    topic, group = cluster.topic, f"kafka-python of {cluster.topic}"
    write(cluster, topic, 20)
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        # It may join before it knows the partitions of the topic, and asks again only after this time.
        metadata_max_age_ms=2_000,
    )
    records: list[Any] = []

    def reads() -> bool:
        records.extend(each for batch in consumer.poll(500).values() for each in batch)
        return len(records) >= 20

    wait("20 records", reads)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=group)
    producer.init_transactions()
    producer.begin_transaction()
    offsets = {TopicPartition(topic, partition): OffsetAndMetadata(10, "note", -1) for partition in range(2)}
    producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
    producer.commit_transaction()
    expected = {(topic, partition): (10, -1, "note", 0) for partition in range(2)}
    wait("the offsets", lambda: cluster.fetch(group) == expected, lambda: str(cluster.fetch(group)))
    producer.close()
    consumer.close()


def test_transaction_is_committed_while_the_proxy_restarts(broker: Broker, tmp_path: Path) -> None:
    from .running import running_proxy

    log = "--log", sqlite_url(tmp_path / "log.db")
    with running_proxy(broker, *log) as proxy:
        cluster = Cluster(proxy.bootstrap, broker)
        topic, port = cluster.topic, proxy.bootstrap.rpartition(":")[2]
        write(cluster, topic, 20)
        producers = [producer_of(cluster, f"restart {number}") for number in range(2)]
        consumers = [consumer_of(cluster, f"restart {number}") for number in range(2)]
        for producer, consumer in zip(producers, consumers, strict=True):
            consumer.subscribe([topic])
            read(consumer, 20)
            producer.begin_transaction()
            producer.send_offsets_to_transaction(positions_of(consumer), consumer.consumer_group_metadata(), 30)
    with running_proxy(broker, *log, "--port", port) as proxy:
        places = (topic, 0), (topic, 1)
        for group in "restart 0", "restart 1":
            assert cluster.fetch(group, *places, require_stable=True) == dict.fromkeys(places, UNSTABLE)
        producers[0].commit_transaction(30)
        producers[1].abort_transaction(30)

        def committed(group: str) -> set[int]:
            return {each[0] for each in cluster.fetch(group, *places, require_stable=True).values() if not each[3]}

        wait("the commit", lambda: committed("restart 0") == {10})
        wait("the abort", lambda: cluster.fetch("restart 1", *places, require_stable=True)[places[0]] != UNSTABLE)
        assert committed("restart 1") == {-1}
        for consumer in consumers:
            consumer.close()

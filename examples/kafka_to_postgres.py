"""Changes of customers in a Kafka topic, upserted into a PostgreSQL table: the last change of each customer wins.

A change with ``gone`` deletes its customer. The program produces the changes while two workers read them, and compares
the table with what the changes amount to.

    python examples/kafka_to_postgres.py --bootstrap HOST:PORT --postgres postgresql://USER@HOST/DATABASE

Without these options it starts a broker and a server of its own, as the tests of a source checkout do: that needs
Java, Maven and Debian's package postgresql.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from connectgroup import sync

PARTITIONS = 4
LAST = "last"
"""The item of the last change of each partition's last customer; when all are there, every change has arrived."""
PATIENCE_S = 120.0

Table = dict[int, str]


def main(arguments: Sequence[str] = ()) -> int:
    """Run the pipeline; return 0 if the table is what the changes amount to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", help="a Kafka broker")
    parser.add_argument("--postgres", help="the connection string of a PostgreSQL database")
    parser.add_argument("--changes", type=int, default=20_000)
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as servers:
        bootstrap = options.bootstrap or own_broker(servers)
        postgres = options.postgres or own_postgres(servers)
        return run(bootstrap, postgres, options.changes)


def run(bootstrap: str, postgres: str, changes: int) -> int:
    """Run the pipeline between these servers, with a new topic and a new table."""
    name = f"customers_{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    connector = {
        "connector.class": "pipeline",
        "tasks.max": 2,
        "source": "kafka",
        "source.bootstrap.servers": bootstrap,
        "source.topics": name,
        "source.schema": "id BIGINT, name STRING, gone BOOLEAN",
        "sink": "postgres",
        "sink.url": postgres,
        "sink.table": name,
        "sink.insert.mode": "upsert",
        "sink.pk.fields": "id",
        "sink.delete.field": "gone",
    }
    print("starting two workers and Spark ...")
    with sync.worker_group("example", workers=2, connectors={name: connector}) as group:
        group.wait_stable(timeout_s=PATIENCE_S)
        expected = produce(bootstrap, name, changes)
        give_up_at = time.monotonic() + PATIENCE_S
        while not arrived(read(postgres, name)) and time.monotonic() < give_up_at:
            time.sleep(0.1)
    found = read(postgres, name)
    wrong = {key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)}
    print(f"{changes} changes: {len(expected)} customers expected, {len(found)} in the table")
    print(f"{len(wrong)} wrong: {'FAILED' if wrong else 'OK'}")
    return 1 if wrong else 0


def produce(bootstrap: str, topic: str, changes: int) -> Table:
    """Produce changes of random customers, in order for each customer; return the resulting table."""
    chance = random.Random(1)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    table: Table = {}
    for number in range(changes):
        customer, gone = chance.randrange(1, 1_000), chance.random() < 0.1
        change = {"id": customer, "name": f"name {number}", "gone": gone}
        producer.produce(topic, json.dumps(change).encode(), partition=customer % PARTITIONS)
        producer.poll(0)
        if gone:
            table.pop(customer, None)
        else:
            table[customer] = f"name {number}"
    for partition in range(PARTITIONS):
        last = {"id": -1 - partition, "name": LAST, "gone": False}
        producer.produce(topic, json.dumps(last).encode(), partition=partition)
        table[-1 - partition] = LAST
    if producer.flush(60):
        raise SystemExit("kafka_to_postgres: the broker has not acknowledged every record within 60 s")
    return table


def arrived(table: Table) -> bool:
    """Whether the last change of each partition is in the table."""
    return all(-1 - partition in table for partition in range(PARTITIONS))


def read(postgres: str, table: str) -> Table:
    """The table as another program reads it."""
    with psycopg.connect(postgres) as connection:
        return dict(connection.execute(f"SELECT id, name FROM {table}").fetchall())


def own_broker(servers: contextlib.ExitStack) -> str:
    """Start a broker for this run; return its address."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.consumer.broker import running_broker

    print("starting a Kafka broker ...")
    return servers.enter_context(running_broker()).bootstrap


def own_postgres(servers: contextlib.ExitStack) -> str:
    """Start a PostgreSQL server for this run; return its connection string."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.spark.postgres_server import running_server

    print("starting a PostgreSQL server ...")
    return servers.enter_context(running_server())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

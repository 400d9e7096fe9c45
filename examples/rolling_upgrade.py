"""Upgrade a running consumer group from the classic protocol to KIP-848, member by member, and back.

    pip install 'connectgroup[kafka]'
    python examples/rolling_upgrade.py 127.0.0.1:9092

The argument is a Kafka broker. The program starts ``connectgroup proxy`` in front of it, creates a topic, writes
records to it all the time, and reads them with three unmodified consumers (confluent-kafka). It restarts one consumer
after the other with ``group.protocol=consumer``, then with ``group.protocol=classic`` again, and shows the partitions
of each consumer. In the end it checks that every record was read, and that no partition had two owners at any time.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

PARTITIONS = 6
PATIENCE_S = 60.0
PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
    },
    "consumer": {"group.protocol": "consumer"},
}


class Observer:
    """What all members report: the owner of each partition, and each record that was read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.owners: dict[int, str] = {}
        self.violations: list[str] = []
        self.read: Counter[bytes] = Counter()

    def assign(self, member: str, partitions: list[int]) -> None:
        with self._lock:
            for partition in partitions:
                owner = self.owners.get(partition)
                if owner is not None:
                    self.violations.append(f"partition {partition} is assigned to {member} while {owner} owns it")
                self.owners[partition] = member

    def revoke(self, member: str, partitions: list[int]) -> None:
        with self._lock:
            for partition in partitions:
                if self.owners.get(partition) == member:
                    del self.owners[partition]

    def add(self, value: bytes) -> None:
        with self._lock:
            self.read[value] += 1

    def shares(self) -> dict[str, list[int]]:
        """The partitions of each member."""
        with self._lock:
            return {
                member: sorted(each for each, owner in self.owners.items() if owner == member)
                for member in sorted(set(self.owners.values()))
            }


class Member:
    """An unmodified consumer in a thread of its own."""

    def __init__(self, name: str, protocol: str, bootstrap: str, topic: str, observer: Observer) -> None:
        self.name, self.protocol, self._observer = f"{name} ({protocol})", protocol, observer
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": topic,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
                **PROTOCOLS[protocol],
            }
        )
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def stop(self) -> None:
        """Leave the group, and wait until that has happened."""
        self._stop.set()
        self._thread.join()

    def _on_assign(self, consumer: Consumer, partitions: Any) -> None:
        self._observer.assign(self.name, [each.partition for each in partitions])

    def _on_revoke(self, consumer: Consumer, partitions: Any) -> None:
        self._observer.revoke(self.name, [each.partition for each in partitions])

    def _run(self) -> None:
        with closing(self._consumer):
            while not self._stop.is_set():
                message = self._consumer.poll(0.2)
                value = message.value() if message is not None and message.error() is None else None
                if value is not None:
                    self._observer.add(value)


class Writer:
    """Writes numbered records until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.written = 0
        self._producer, self._topic = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5}), topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(PATIENCE_S)

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._producer.produce(self._topic, str(self.written).encode(), partition=self.written % PARTITIONS)
            self._producer.poll(0)
            self.written += 1


def wait_until_shared(observer: Observer, members: list[Member]) -> None:
    """Wait until each member has its part of the partitions."""
    give_up = time.monotonic() + PATIENCE_S
    names = sorted(member.name for member in members)
    while True:
        shares = observer.shares()
        if sorted(shares) == names and sum(map(len, shares.values())) == PARTITIONS:
            return
        if time.monotonic() > give_up:
            sys.exit(f"the members have not shared the partitions after {PATIENCE_S:g} s: {shares}")
        time.sleep(0.05)


def show(admin: AdminClient, topic: str, observer: Observer) -> None:
    listed = admin.list_consumer_groups().result(10)
    kind = next((each.type.name for each in listed.valid if each.group_id == topic), "?")
    shares = "  ".join(f"{name}: {', '.join(map(str, share))}" for name, share in observer.shares().items())
    print(f"group of type {kind:<8}  {shares}", flush=True)


def upgrade(bootstrap: str) -> None:
    """Run the whole story against a proxy."""
    topic, observer = f"rolling-upgrade-{time.time_ns()}", Observer()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(PATIENCE_S)
    members: list[Member] = []
    writer = Writer(bootstrap, topic)
    try:
        members += [Member(name, "classic", bootstrap, topic, observer) for name in ("ann", "bob", "cat")]
        wait_until_shared(observer, members)
        show(admin, topic, observer)
        for protocol in ("consumer", "classic"):
            for _ in range(3):
                former = members.pop(0)
                former.stop()
                name = former.name.partition(" ")[0]
                members.append(Member(name, protocol, bootstrap, topic, observer))
                wait_until_shared(observer, members)
                show(admin, topic, observer)
        writer.stop()
        give_up = time.monotonic() + PATIENCE_S
        while len(observer.read) < writer.written and time.monotonic() < give_up:
            time.sleep(0.05)
    finally:
        writer.stop()
        for member in members:
            member.stop()
    repeated = sum(count - 1 for count in observer.read.values())
    print(f"{writer.written} records written, {len(observer.read)} read, {repeated} of them more than once")
    if observer.violations or len(observer.read) < writer.written:
        sys.exit("\n".join([*observer.violations, f"{writer.written - len(observer.read)} records are missing"]))
    print("no partition had two owners at any time")


def main(broker: str) -> None:
    command = [sys.executable, "-m", "connectgroup", "proxy", "--broker", broker, "--port", "0", "--log", "memory:"]
    command += ["--initial-rebalance-delay-ms", "500", "--consumer-heartbeat-interval-ms", "500"]
    proxy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert proxy.stdout is not None
        line = proxy.stdout.readline()  # "proxy at HOST:PORT ..."
        if not line.startswith("proxy at "):
            sys.exit("the proxy has not started; its message is above")
        upgrade(line.split()[2])
    finally:
        proxy.terminate()
        proxy.wait(PATIENCE_S)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} HOST:PORT")
    main(sys.argv[1])

"""Many librdkafka consumers join one KIP-848 group at once, in one process; what they lose and read is counted.

``python -m tests.proxy.mass_start --members 50 --rounds 20`` prints one line for each round, through the proxy and,
with ``--broker-too``, on the broker itself; both have Kafka's default heartbeat interval of 5 s. A member learns of a
target assignment with its next heartbeat, unless one of its own is parked: where the joins take longer than the proxy's
interval between two computations, the first members are assigned partitions that they must revoke, and the round takes
one or two heartbeat intervals. On the broker nearly every round does.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

PATIENCE_S = 120.0


@dataclass
class MassStart:
    """One round: a new topic, and a group whose members all join at once.

    Attributes:
        reads: how often each record was read, by partition and offset.
        callbacks: calls of ``on_assign`` and ``on_revoke``.
        lost: calls of ``on_lost``: a member was fenced.
        took_s: until all records were read and each partition had an owner.
    """

    bootstrap: str
    name: str
    members: int
    partitions: int
    records: int
    reads: Counter[tuple[int, int]] = field(default_factory=Counter)
    callbacks: int = 0
    lost: int = 0
    took_s: float = 0.0
    _owned: dict[int, set[int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def doubled(self) -> int:
        """Records that were read more than once."""
        return sum(times > 1 for times in self.reads.values())

    @property
    def missing(self) -> int:
        """Records that no member has read."""
        return self.records - len(self.reads)

    def run(self) -> MassStart:
        """Run the round."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for created in admin.create_topics([NewTopic(self.name, self.partitions, 1)]).values():
            created.result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(self.records):
            producer.produce(self.name, b"%d" % number, partition=number % self.partitions)
        assert producer.flush(PATIENCE_S) == 0
        began_s = time.monotonic()
        stop = threading.Event()
        with ThreadPoolExecutor(self.members) as pool:
            ended = [pool.submit(self._member, number, stop) for number in range(self.members)]
            while not self._is_settled() and time.monotonic() - began_s < PATIENCE_S:
                time.sleep(0.1)
            self.took_s = time.monotonic() - began_s
            stop.set()
            for each in ended:
                each.result(PATIENCE_S)
        return self

    def _is_settled(self) -> bool:
        with self._lock:
            owned = [number for numbers in self._owned.values() for number in numbers]
            even = all(self._owned.get(each) for each in range(min(self.members, self.partitions)))
            return sorted(owned) == list(range(self.partitions)) and even and not self.missing

    def _member(self, number: int, stop: threading.Event) -> None:
        def on_assign(consumer: Consumer, assigned: list[TopicPartition]) -> None:
            with self._lock:
                self.callbacks += 1
                self._owned.setdefault(number, set()).update(each.partition for each in assigned)

        def on_revoke(consumer: Consumer, revoked: list[TopicPartition]) -> None:
            with self._lock:
                self.callbacks += not stop.is_set()
                self._owned[number] -= {each.partition for each in revoked}
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:
                if error.args[0].name() != "_NO_OFFSET":
                    raise

        def on_lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            with self._lock:
                self.lost += 1
                self._owned[number] = set()

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.name,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "client.id": f"m{number}",
            }
        )
        callbacks: dict[str, Any] = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        consumer.subscribe([self.name], **callbacks)
        try:
            while not stop.is_set():
                for message in consumer.consume(100, timeout=0.1):
                    if message.error() is None:
                        partition, offset = message.partition(), message.offset()
                        assert partition is not None
                        assert offset is not None
                        with self._lock:
                            self.reads[partition, offset] += 1
        finally:
            consumer.close()


def main() -> None:
    """Run rounds, and print what they lost."""
    from tests.consumer.broker import running_broker
    from tests.proxy.running import running_proxy

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--records", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--broker-too", action="store_true", help="each round on the broker, too")
    options = parser.parse_args()
    failed = 0
    with running_broker("group.consumer.heartbeat.interval.ms=5000\n") as broker, running_proxy(broker) as proxy:
        places = {"proxy": proxy.bootstrap} | ({"broker": broker.bootstrap} if options.broker_too else {})
        for number in range(1, options.rounds + 1):
            for place, bootstrap in places.items():
                name = f"mass-{place}-{number}"
                found = MassStart(bootstrap, name, options.members, options.partitions, options.records).run()
                failed += place == "proxy" and bool(found.lost or found.doubled or found.missing)
                print(
                    f"round {number} {place}: {found.took_s:.1f} s, {found.callbacks} callbacks, {found.lost} fenced, "
                    f"{found.doubled} doubled, {found.missing} missing",
                    flush=True,
                )
    print(f"{failed} rounds on the proxy lost or repeated something")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()

"""Members of one group, each a separate process, and the events they report.

Events are ordered by the machine's monotonic clock, which every member puts into its lines: a revocation before an
assignment has an earlier time, in whatever order the lines arrive.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from tests.integration.processes import PATIENCE_S, wait

PYTHON = (
    sys.executable,
    "-P",
    str(Path(__file__).with_name("python_members.py")),
)  # not a package of the test run
JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
}
SESSION_MS = 6_000
HEARTBEAT_MS = 200
"""Short: members learn of a rebalance by their heartbeats."""


class Event(NamedTuple):
    """One line from a member."""

    at_ns: int
    event: str
    what: list[Any]
    more: dict[str, Any]


class BrokerMember:
    """A process that is a member of a group; it is killed at the end of the block."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.events: list[Event] = []
        self.log: list[str] = []
        self.killed_ns: int | None = None
        self._shows_stacks = tuple(command[: len(PYTHON)]) == PYTHON
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> BrokerMember:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def owned(self) -> frozenset[int]:
        """Its partitions, as it reported them; none once it has ended."""
        owned: frozenset[int] = frozenset()
        for event in list(self.events):
            if event.event == "assigned":
                owned |= frozenset(event.what)
            elif event.event in ("revoked", "lost"):
                owned -= frozenset(event.what)
        return owned if self._process.poll() is None else frozenset()

    @property
    def read(self) -> list[tuple[int, int]]:
        """Partition and offset of every record it read."""
        return [
            (partition, offset)
            for event in list(self.events)
            if event.event == "read"
            for partition, offset in event.what
        ]

    def last(self, event: str) -> Event | None:
        """Its latest event of this kind."""
        return next((each for each in reversed(self.events) if each.event == event), None)

    def until(self, event: str) -> Event:
        """Wait for an event of this kind."""

        def found() -> Event | None:
            line = self.last(event)
            assert line is not None or self._process.poll() is None, (
                f"{self.name} ended without {event!r}\n{self.output()}"
            )
            return line

        return wait(f"{self.name}: {event}", found, self.output)

    def until_round(self, **expected: object) -> None:
        """Wait until its last rebalance had these properties: leader, assignor, generation."""

        def found() -> bool:
            last = self.last("round")
            return last is not None and expected.items() <= last.more.items()

        wait(f"{self.name} to be in a round with {expected}", found, self.output)

    def stop(self) -> None:
        """Make it close its consumer and exit."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        assert self.last("ended"), f"{self.name} has not exited cleanly\n{self.output()}"

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self.killed_ns = time.monotonic_ns()

    def output(self) -> str:
        """Its changes of the assignment, how much it read between them, and its last log lines."""
        lines = []
        for is_read, events in groupby(self.events, lambda event: event.event == "read"):
            if is_read:
                read = [record for event in events for record in event.what]
                lines.append(f"  {self.name} read {len(read)} records, {read[0]} to {read[-1]}")
            else:
                lines += (
                    f"  {self.name} {event.at_ns / 1e9:.3f} {event.event} {str(event.what)[:100]} {event.more}"
                    for event in events
                )
        logged = self.log[-15:]
        return "\n".join([*lines[-30:], *(f"  {self.name} | {line}" for line in [*logged, *self._stacks()])])

    def _stacks(self) -> list[str]:
        """The stacks of the threads of a member in Python: where it hangs, if it does."""
        if not self._shows_stacks or self._process.poll() is not None:
            return []
        before = len(self.log)
        self._process.send_signal(signal.SIGUSR1)
        give_up = time.monotonic() + 5
        while not any("most recent call first" in line for line in self.log[before:]) and time.monotonic() < give_up:
            time.sleep(0.1)
        time.sleep(0.5)  # all lines of one stack arrive together
        return self.log[before:]

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            line_ = json.loads(line)
            self.events.append(Event(line_.pop("at_ns"), line_.pop("event"), line_.pop("what"), line_))

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line.rstrip("\n"))


class Cluster(Protocol):
    """Where a group runs: a broker, or a proxy in front of one."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def java_member(self) -> list[str]: ...

    def start(self) -> None:
        """Start the broker."""

    def kill(self) -> None:
        """Kill the broker."""


@dataclass
class BrokerGroup:
    """A topic, the group that reads it, and all its members."""

    broker: Cluster
    name: str
    partitions: int
    members: list[BrokerMember]
    written: int = 0

    # ------------------------------------------------------------------------------------------ members

    def ours(self, name: str, *assignors: str) -> BrokerMember:
        """A ``GroupConsumer``."""
        made = {
            "bootstrap": self.broker.bootstrap,
            "group": self.name,
            "assignors": list(assignors),
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 500,
            "client_id": name,
        }
        return self._add(BrokerMember(name, [*PYTHON, "ours", self.name, json.dumps(made)]))

    def java(self, name: str, *assignors: str) -> BrokerMember:
        """Kafka's Java consumer; without an assignor it uses the KIP-848 protocol."""
        classic = {
            "partition.assignment.strategy": ",".join(JAVA_ASSIGNORS.get(each, each) for each in assignors),
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
        made = {
            "bootstrap.servers": self.broker.bootstrap,
            "group.id": self.name,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
            "client.id": name,
            **(classic if assignors else {"group.protocol": "consumer"}),
        }
        return self._add(
            BrokerMember(
                name, [*self.broker.java_member, self.name, *(f"{key}={value}" for key, value in made.items())]
            )
        )

    def librdkafka(self, name: str, *assignors: str) -> BrokerMember:
        """confluent-kafka's consumer; without an assignor it uses the KIP-848 protocol."""
        classic = {
            "partition.assignment.strategy": ",".join(assignors),
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
        made = {
            "bootstrap.servers": self.broker.bootstrap,
            "group.id": self.name,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
            "client.id": name,
            **(classic if assignors else {"group.protocol": "consumer"}),
        }
        return self._add(BrokerMember(name, [*PYTHON, "librdkafka", self.name, json.dumps(made)]))

    def kafka_python(self, name: str) -> BrokerMember:
        """kafka-python's consumer, with the assignor ``range``."""
        made = {
            "bootstrap_servers": self.broker.bootstrap,
            "group_id": self.name,
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 500,
            "client_id": name,
        }
        return self._add(BrokerMember(name, [*PYTHON, "kafka-python", self.name, json.dumps(made)]))

    def _add(self, member: BrokerMember) -> BrokerMember:
        self.members.append(member)
        return member

    # ------------------------------------------------------------------------------------------ records

    def write(self, count: int) -> None:
        """Write records, to all partitions in turn."""
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "linger.ms": 1, "queue.buffering.max.messages": 0}  # no limit
        )
        for number in range(self.written, self.written + count):
            producer.produce(self.name, str(number).encode(), partition=number % self.partitions)
        assert producer.flush(PATIENCE_S) == 0
        self.written += count

    def everything(self) -> set[tuple[int, int]]:
        """Partition and offset of every record written."""
        return {(number % self.partitions, number // self.partitions) for number in range(self.written)}

    def written_offsets(self) -> list[int]:
        """The end offset of each partition: the number of records that the broker has."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": f"{self.name}-ends"})
        ends = [
            consumer.get_watermark_offsets(TopicPartition(self.name, number), PATIENCE_S)[1]
            for number in range(self.partitions)
        ]
        consumer.close()
        return ends

    def wait_until_read(self) -> None:
        """Wait until every record has been read by a member."""

        def missing() -> set[tuple[int, int]]:
            return self.everything() - {record for member in self.members for record in member.read}

        wait(
            "every record to be read",
            lambda: not missing(),
            lambda: f"missing {sorted(missing())[:20]}\n{self.output()}",
        )

    def read_more_than_once(self, *, first_by: str = "") -> list[tuple[int, int, list[str]]]:
        """The records that were read twice: partition, offset, and their readers, in order.

        Args:
            first_by: only those first read by members with this name prefix.
        """
        handed: dict[tuple[int, int], list[tuple[int, str]]] = {}
        for member in self.members:
            for event in member.events:
                for partition, offset in event.what if event.event == "read" else ():
                    handed.setdefault((partition, offset), []).append((event.at_ns, member.name))
        twice = ((record, [name for _, name in sorted(times)]) for record, times in handed.items() if len(times) > 1)
        return sorted((*record, names) for record, names in twice if names[0].startswith(first_by))

    # ------------------------------------------------------------------------------------------ who has what

    def wait_until_balanced(self, *members: BrokerMember) -> None:
        """Wait until these members own each partition once, and about the same number each."""

        def balanced() -> bool:
            shares = [member.owned for member in members]
            sizes = [len(share) for share in shares]
            whole = sorted(each for share in shares for each in share) == list(range(self.partitions))
            return whole and max(sizes) - min(sizes) <= 1

        wait(f"{', '.join(member.name for member in members)} to share the partitions", balanced, self.output)

    def assert_single_owner(self, *, but: Sequence[BrokerMember] = ()) -> None:
        """No partition had two owners at a time, by the members' reports.

        Args:
            but: members whose reports do not count, because they were paused.
        """
        spans: dict[int, list[tuple[int, float, str]]] = {}
        for member in self.members:
            if member in but:
                continue
            begun: dict[int, int] = {}
            for at_ns, event, what, _ in member.events:
                if event == "assigned":
                    begun |= dict.fromkeys(what, at_ns)
                elif event in ("revoked", "lost"):
                    for partition in what:
                        spans.setdefault(partition, []).append((begun.pop(partition), at_ns, member.name))
            for partition, at_ns in begun.items():
                spans.setdefault(partition, []).append((at_ns, member.killed_ns or float("inf"), member.name))
        assert spans
        for partition, of_it in sorted(spans.items()):
            of_it.sort()
            for (_, end, one), (begin, _, other) in pairwise(of_it):
                assert end <= begin, f"partition {partition}: assigned to {other} while owned by {one}\n{self.output()}"

    def wait_until(self, until: Callable[[], object], what: str) -> None:
        """Wait until a condition holds; on failure show the group's output."""
        wait(what, until, self.output)

    def add_partitions(self, total: int) -> None:
        """Add partitions to the topic."""
        admin = self.admin()
        admin.create_partitions([NewPartitions(self.name, total)])[self.name].result(PATIENCE_S)
        self.partitions = total

    def add_topic(self, name: str, partitions: int) -> None:
        """Create a topic without records."""
        admin = self.admin()  # it must live until its response arrives
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(PATIENCE_S)

    def create_again(self, records: int) -> None:
        """Create the topic that was just deleted, and write records to it."""
        admin = self.admin()

        def created() -> bool:
            try:
                admin.create_topics([NewTopic(self.name, self.partitions, 1)])[self.name].result(PATIENCE_S)
            except KafkaException:  # the deletion is not complete
                return False
            return True

        wait(f"topic {self.name} to be created again", created, self.output)
        self.write(records)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.bootstrap})

    def output(self) -> str:
        """The last events of all members."""
        return "\n".join(member.output() for member in self.members)


@contextlib.contextmanager
def group_on(broker: Cluster, name: str, *, partitions: int) -> Iterator[BrokerGroup]:
    """A new topic and group of this name; all its members are killed at the end of the block."""
    group = BrokerGroup(
        broker=broker,
        name=f"{name.replace(' ', '-')}-{os.getpid()}-{time.monotonic_ns()}",
        partitions=partitions,
        members=[],
    )
    group.add_topic(group.name, partitions)
    try:
        yield group
    finally:
        for member in group.members:
            member.kill()

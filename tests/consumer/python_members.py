"""Members of groups as separate programs: ours, librdkafka's, and kafka-python's. Run by ``members``; not a test.

Each reports assignments, revocations and reads on its standard output, one JSON object per line, and ends when its
standard input does; SIGUSR1 makes it print the stacks of its threads. Arguments: the kind of member, the topic, and its
settings as a JSON object.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import logging
import signal
import sys
import threading
import time
from typing import Any

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from connectgroup.assign.members import PartitionMemberAssignment
from connectgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from connectgroup.consumer import ConsumerRebalanceListener, GroupConsumer
from connectgroup.consumer.client import GroupClient
from connectgroup.consumer.offsets import ReadPosition, send_commit
from connectgroup.errors import ConnectGroupError
from connectgroup.protocol.units import Partitions, TopicPartition


def report(event: str, what: object = (), **more: object) -> None:
    """Report one event. The clock is the machine's, so events of several programs can be compared."""
    # In one write: lines of several threads must not mix.
    sys.stdout.write(json.dumps({"event": event, "at_ns": time.monotonic_ns(), "what": what, **more}) + "\n")
    sys.stdout.flush()


class Favouring(PartitionAssignor):
    """An assignor with a name that Java's consumers know: partition 0 goes to the Java member, the rest to ours."""

    name = "range"

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        names = sorted(member.member_id for member in group.members)
        favoured = next((name for name in names if not name.startswith("java")), names[0])
        java = next((name for name in names if name.startswith("java")), favoured)
        shares: dict[str, set[TopicPartition]] = {name: set() for name in names}
        for partition in group.partitions:
            shares[java if partition.partition == 0 else favoured].add(partition)
        return PartitionAssignment(
            members=[
                PartitionMemberAssignment(member_id=name, partitions=frozenset(share)) for name, share in shares.items()
            ]
        )


class FailsAtThree(CooperativeStickyAssignor):
    """Works with up to two members."""

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        if len(group.members) > 2:
            raise ValueError("two is\ncompany")
        return super().assign(group)


class Newer(CooperativeStickyAssignor):
    """A later version of ``cooperative-sticky``."""

    maximum_version = 1


ASSIGNORS: dict[str, type[PartitionAssignor]] = {
    "Favouring": Favouring,
    "FailsAtThree": FailsAtThree,
    "Newer": Newer,
}


class ReportingListener(ConsumerRebalanceListener):
    """Reports the consumer's callbacks; tries to commit the partitions it has lost.

    Attributes:
        member_id: the consumer's id while it is a member.
    """

    def __init__(self, bootstrap: str, group: str) -> None:
        self._bootstrap, self._group = bootstrap, group
        self.member_id = ""

    def on_assigned(self, partitions: Partitions, generation: int) -> None:
        report("assigned", numbers(partitions), generation=generation)

    def on_revoked(self, partitions: Partitions, generation: int) -> None:
        report("revoked", numbers(partitions), generation=generation)

    async def on_lost(self, partitions: Partitions, generation: int) -> None:
        report("lost", numbers(partitions), generation=generation)
        client = GroupClient(self._bootstrap, self._group, "late")
        codes = await send_commit(
            client,
            dict.fromkeys(partitions, ReadPosition(0)),
            group_id=self._group,
            member_id=self.member_id,
            instance_id=None,
            generation=generation,
            timeout_s=30,
        )
        await client.close()
        report("late commit", sorted(set(codes.values())))


def numbers(partitions: Partitions) -> list[int]:
    return sorted(each.partition for each in partitions)


async def ours(topic: str, settings: dict[str, Any]) -> None:
    """A ``GroupConsumer``; its assignors may be those of this file."""
    assignors = [ASSIGNORS[name]() if name in ASSIGNORS else name for name in settings.pop("assignors")]
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_at_end_of_input, args=(loop, stopping), daemon=True).start()
    led = None
    listener = ReportingListener(settings["bootstrap"], settings["group"])
    try:
        async with GroupConsumer(topics=[topic], assignors=assignors, listener=listener, **settings) as consumer:
            report("started")
            while not stopping.is_set():
                records = await consumer.poll(0.2)
                if records:
                    report("read", [(record.partition, record.offset) for record in records])
                if led != (led := (consumer.generation, consumer.is_leader, consumer.assignor)):
                    listener.member_id = consumer.member_id or listener.member_id
                    report("round", [], generation=led[0], leader=led[1], assignor=led[2])
    except ConnectGroupError as error:
        report("failed", [], error=str(error), kind=type(error).__name__)
    report("ended")


def librdkafka(topic: str, settings: dict[str, Any]) -> None:
    """confluent-kafka's consumer, subscribed."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition as Theirs

    stopping = threading.Event()
    threading.Thread(target=_at_end_of_input, args=(None, stopping), daemon=True).start()
    # An offset is stored once its record is reported. librdkafka would store it before it returns the record, and
    # commit it in the background: a member that is killed meanwhile has committed a record that it has not reported.
    consumer = Consumer({"enable.auto.offset.store": False, **settings})

    def reporter(event: str) -> Any:
        def called(_: Consumer, partitions: list[Theirs]) -> None:
            report(event, sorted(each.partition for each in partitions))

        return called

    consumer.subscribe([topic], on_assign=reporter("assigned"), on_revoke=reporter("revoked"), on_lost=reporter("lost"))
    report("started")
    while not stopping.is_set():
        # Not ``consume``: librdkafka stores the offsets of such a batch at its end, behind a revocation within it.
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            report("read", [(message.partition(), message.offset())])
            with contextlib.suppress(KafkaException):  # the partition was lost meanwhile
                consumer.store_offsets(message)
    consumer.close()
    report("ended")


def kafka_python(topic: str, settings: dict[str, Any]) -> None:
    """kafka-python's consumer, subscribed."""
    from kafka import ConsumerRebalanceListener as TheirListener, KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    stopping = threading.Event()
    threading.Thread(target=_at_end_of_input, args=(None, stopping), daemon=True).start()
    consumer = KafkaConsumer(partition_assignment_strategy=[RangePartitionAssignor], **settings)

    class Listener(TheirListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            report("assigned", sorted(each.partition for each in assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            report("revoked", sorted(each.partition for each in revoked))

    consumer.subscribe([topic], listener=Listener())
    # The metadata must be known before the first join. kafka-python 3.0.12 joins again when they change, and a leader
    # forgets that once it has assigned: if poll(200) then ends before the response to its SyncGroup, no later poll
    # reads that response, heartbeats stay off, and the member runs nothing for ever.
    consumer.partitions_for_topic(topic)
    report("started")
    while not stopping.is_set():
        for records in consumer.poll(200).values():
            report("read", [(record.partition, record.offset) for record in records])
    consumer.close()
    report("ended")


def _at_end_of_input(loop: asyncio.AbstractEventLoop | None, stopping: asyncio.Event | threading.Event) -> None:
    sys.stdin.read()
    if loop is None:
        stopping.set()
    else:
        loop.call_soon_threadsafe(stopping.set)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    which, its_topic, its_settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    if which == "ours":
        asyncio.run(ours(its_topic, its_settings))
    else:
        {"librdkafka": librdkafka, "kafka-python": kafka_python}[which](its_topic, its_settings)

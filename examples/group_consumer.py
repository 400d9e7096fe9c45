"""A consumer for a Kafka broker whose group uses the assignor defined here.

    pip install 'connectgroup[kafka]'
    python examples/group_consumer.py 127.0.0.1:9092 GROUP TOPIC [TOPIC ...]

Start it several times and watch partitions move; Ctrl-C commits, revokes all partitions and leaves. The assignor keeps
equal partition numbers of all topics together (``orders-3`` and ``payments-3``), which a join of two topics requires.
With ``cooperative-sticky`` as its second choice this program can also share a group with Java's or librdkafka's
consumers, which do not support the first.
"""

from __future__ import annotations

import asyncio
import sys

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from connectgroup.assign.members import PartitionMemberAssignment
from connectgroup.consumer import ConsumerRebalanceListener, GroupConsumer
from connectgroup.errors import ConnectGroupError
from connectgroup.protocol.units import Partitions, TopicPartition


class SideBySide(PartitionAssignor):
    """Assigns equal partition numbers to the same member, in turn; all members must subscribe to the same topics."""

    name = "side-by-side"

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        names = sorted(member.member_id for member in group.members)
        shares: dict[str, set[TopicPartition]] = {name: set() for name in names}
        for partition in group.partitions:
            shares[names[partition.partition % len(names)]].add(partition)
        return PartitionAssignment(
            members=[
                PartitionMemberAssignment(member_id=name, partitions=frozenset(share)) for name, share in shares.items()
            ]
        )


class Printing(ConsumerRebalanceListener):
    """Prints what moves. A callback may be ``async``, and may commit."""

    def on_assigned(self, partitions: Partitions, generation: int) -> None:
        print(f"assigned in generation {generation}: {', '.join(map(str, sorted(partitions)))}")

    def on_revoked(self, partitions: Partitions, generation: int) -> None:
        print(f"revoked: {', '.join(map(str, sorted(partitions)))}")

    def on_lost(self, partitions: Partitions, generation: int) -> None:
        print(f"lost: {', '.join(map(str, sorted(partitions)))}")


async def main(bootstrap: str, group: str, *topics: str) -> None:
    async with GroupConsumer(
        bootstrap,
        group=group,
        topics=topics,
        assignors=[SideBySide(), "cooperative-sticky"],
        listener=Printing(),
        auto_offset_reset="earliest",
    ) as consumer:
        while True:
            # Records returned before count as processed when poll is called again.
            for record in await consumer.poll(1.0):
                print(f"{record.topic_partition} @ {record.offset}: {record.value!r}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(f"usage: {sys.argv[0]} HOST:PORT GROUP TOPIC [TOPIC ...]")
    try:
        asyncio.run(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        print("left")
    except ConnectGroupError as error:
        sys.exit(str(error))

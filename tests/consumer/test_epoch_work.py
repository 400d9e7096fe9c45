"""The group work of a member of a KIP-848 group."""

from __future__ import annotations

from collections.abc import Collection

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.consumer.client import GroupClient
from connectgroup.consumer.epochs import Assigned, EpochMembership
from connectgroup.consumer.ownership import Commits, PartitionOwnership
from connectgroup.consumer.reading import Reading
from connectgroup.consumer.settings import GroupConsumerSettings
from connectgroup.consumer.work import EpochWork
from connectgroup.protocol.units import TopicPartition


class UnknownTopics(EpochMembership):
    """A membership whose brokers do not know the names of topics yet."""

    async def names_of(self, topic_ids: Collection[str]) -> dict[str, str]:
        return {}


async def test_assignment_of_an_unknown_topic_is_retried() -> None:
    settings = GroupConsumerSettings(bootstrap="127.0.0.1:9", group="g", topics=("t",), group_protocol="consumer")
    client = GroupClient("127.0.0.1:9", "g", "c")
    membership, reading = UnknownTopics(client, settings, ()), Reading(settings, client)
    ownership = PartitionOwnership(membership, reading, Commits(client, settings, membership, reading), None)
    work = EpochWork(settings, membership, ownership)
    assert not work.has_retry()
    membership.in_group, membership.rejoin = True, ""
    membership.assigned = Assigned(
        partitions=frozenset({TopicPartition("id", 0)}), epoch=1, assignor=None, metadata=(0, 0, b"")
    )
    assert await work.step()
    assert work.has_retry()
    await reading.close()

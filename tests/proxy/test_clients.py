"""Unmodified clients behind the proxy: two members, one leaves, every record of the topic is counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import NewGroup

if TYPE_CHECKING:
    from tests.consumer.members import BrokerGroup, BrokerMember


def member(group: BrokerGroup, kind: str, name: str) -> BrokerMember:
    """A member of one kind: client, then assignor."""
    client, _, assignor = kind.partition(" ")
    if client == "kafka-python":
        return group.kafka_python(name)
    start = {"librdkafka": group.librdkafka, "java": group.java, "ours": group.ours}[client]
    return start(name, assignor)


@pytest.mark.parametrize(
    "kind",
    [
        "librdkafka range",
        "librdkafka cooperative-sticky",
        "kafka-python range",
        "java range",
        "java cooperative-sticky",
        "ours cooperative-sticky",
    ],
)
def test_every_record_is_read_once_while_a_member_joins_and_one_leaves(new_group: NewGroup, kind: str) -> None:
    with new_group(f"counted {kind}", partitions=6) as group:
        group.write(600)
        first = member(group, kind, "first")
        group.wait_until_balanced(first)
        second = member(group, kind, "second")
        group.wait_until_balanced(first, second)
        group.write(600)
        group.wait_until_read()
        first.stop()
        group.wait_until_balanced(second)
        group.write(600)
        group.wait_until_read()
        assert group.read_more_than_once() == []
        group.assert_single_owner()


def test_clients_of_different_implementations_share_a_group(new_group: NewGroup) -> None:
    with new_group("mixed", partitions=9) as group:
        group.write(90)
        members = [member(group, kind, kind.split()[0]) for kind in ("java range", "librdkafka range", "kafka-python")]
        group.wait_until_balanced(*members)
        group.write(900)
        group.wait_until_read()
        members[0].stop()
        group.wait_until_balanced(*members[1:])
        group.write(90)
        group.wait_until_read()
        group.assert_single_owner()

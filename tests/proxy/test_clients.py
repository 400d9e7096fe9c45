"""Unmodified clients behind the proxy: two members, one leaves, every record of the topic is counted once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.volume import ci_only

from .conftest import NewGroup

SESSION_MS = 6_000
"""The session timeout of the members (``tests.consumer.members``)."""

if TYPE_CHECKING:
    from tests.consumer.members import BrokerGroup, BrokerMember

    from .running import Proxy


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
        pytest.param(
            "java cooperative-sticky",
            marks=ci_only(
                "two starts of Java; in a user's run, it has this assignor in consumer/test_group_consumer_mixed"
            ),
        ),
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
        assert group.written_offsets() == [300] * 6, "the proxy has forwarded each record once"
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


def test_member_with_the_highest_assignor_version_leads(new_group: NewGroup) -> None:
    """KIP-429: one rolling restart is enough to introduce a new version of an assignor."""
    with new_group("versions", partitions=4) as group:
        first = group.ours("first", "cooperative-sticky")
        group.wait_until_balanced(first)
        newer = group.ours("newer", "Newer")
        third = group.ours("third", "cooperative-sticky")
        group.wait_until_balanced(first, newer, third)
        newer.until_round(leader=True)
        first.until_round(leader=False)


@ci_only("28 s; in a user's run, tests/consumer restarts the broker of a group")
def test_members_keep_their_sessions_while_the_broker_is_lost(new_group: NewGroup, proxy: Proxy) -> None:
    """The broker is away for longer than a session timeout; then the members read on, without a rebalance."""
    with new_group("broker lost", partitions=4) as group:
        group.write(40)
        members = [group.librdkafka(name, "range") for name in ("first", "second")]
        group.wait_until_balanced(*members)
        group.wait_until_read()
        owned = [member.owned for member in members]
        before = [sum(event.event in ("assigned", "revoked") for event in member.events) for member in members]
        group.broker.kill()
        proxy.wait_for_log("groups are served without it")
        time.sleep(1.5 * SESSION_MS / 1000)
        group.broker.start()
        group.write(40)
        group.wait_until_read()
        assert [member.owned for member in members] == owned
        assert [sum(event.event in ("assigned", "revoked") for event in each.events) for each in members] == before
        proxy.wait_for_log("reached again")

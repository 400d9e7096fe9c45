"""Rolling upgrade of unmodified clients from the classic protocol to KIP-848, and back, under load (MG-01, MG-07).

Every record of the topic is counted, and each partition has one owner at a time by the logs of the clients.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.volume import volume

from .conftest import NewGroup

if TYPE_CHECKING:
    from tests.consumer.broker import Broker
    from tests.consumer.members import BrokerGroup, BrokerMember

UPGRADES = (
    ("librdkafka", "cooperative-sticky"),
    ("java", "range"),
    ("java", "cooperative-sticky"),
    ("librdkafka", "range"),
)
"""Clients and their classic assignors; a user's run has the first, which takes less time than Java."""


@contextmanager
def load(group: BrokerGroup) -> Iterator[None]:
    """Records are written until the end of the block."""
    done = threading.Event()

    def write() -> None:
        while not done.wait(0.2):
            group.write(60)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()


def type_of(group: BrokerGroup) -> str:
    """The type of the group, as Kafka's admin client lists it."""
    admin = group.admin()
    listed = admin.list_consumer_groups().result(10)
    types = {each.group_id: str(each.type.name) for each in listed.valid}
    assert group.name in types, f"{types} {listed.errors}"
    return types[group.name]


@pytest.mark.parametrize(("client", "assignor"), UPGRADES[: volume(user=1, ci=4, soak=4)])
def test_members_are_upgraded_one_by_one_and_back(quick_group: NewGroup, client: str, assignor: str) -> None:
    with quick_group(f"migration {client} {assignor}", partitions=6) as group:
        start = {"librdkafka": group.librdkafka, "java": group.java}[client]
        with load(group):
            members: list[BrokerMember] = [start(f"old-{number}", assignor) for number in range(3)]
            group.wait_until_balanced(*members)
            assert type_of(group) == "CLASSIC"
            for round_, assignors, expected in (("new", (), "CONSUMER"), ("back", (assignor,), "CLASSIC")):
                for number in range(3):
                    members.pop(0).stop()
                    members.append(start(f"{round_}-{number}", *assignors))
                    group.wait_until_balanced(*members)
                assert type_of(group) == expected
        group.wait_until_read()
        # Java's cooperative members go on reading during a rebalance, and do not commit that before they revoke.
        is_sloppy = (client, assignor) == ("java", "cooperative-sticky")
        repeated = Counter(tuple(names) for *_, names in group.read_more_than_once(first_by="new" if is_sloppy else ""))
        assert not repeated
        group.assert_single_owner()


def test_killed_member_of_the_new_protocol_converts_the_group_back(quick_group: NewGroup) -> None:
    """Its session expires; the classic members read its partitions."""
    with quick_group("migration killed", partitions=4) as group:
        old = [group.librdkafka("old", "range"), group.java("older", "range"), group.ours("ours", "range")]
        group.wait_until_balanced(*old)
        new = group.librdkafka("new")
        group.wait_until_balanced(*old, new)
        group.write(40)
        group.wait_until_read()
        new.kill()
        group.wait_until_balanced(*old)
        assert type_of(group) == "CLASSIC"
        group.write(40)
        group.wait_until_read()
        group.assert_single_owner()


def test_example_of_a_rolling_upgrade(broker: Broker) -> None:
    example = Path(__file__).parents[2] / "examples" / "rolling_upgrade.py"
    done = subprocess.run(
        [sys.executable, str(example), broker.bootstrap], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    types = re.findall(r"^group of type (\w+)", done.stdout, re.MULTILINE)
    assert types == ["CLASSIC", "CONSUMER", "CONSUMER", "CONSUMER", "CONSUMER", "CONSUMER", "CLASSIC"]
    assert "no partition had two owners at any time" in done.stdout

"""A ``GroupConsumer`` on connectgroup's coordinator: client-side assignors in Python, by Prepare and Install."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionGroup
from connectgroup.assign.members import PartitionMemberAssignment
from connectgroup.consumer import GroupConsumer
from tests.certificates import create_certificates
from tests.consumer.inside import eventually, member, places, poll_until, read, running
from tests.integration.processes import PATIENCE_S

from .conftest import NewGroup

if TYPE_CHECKING:
    from tests.consumer.broker import Broker


QUICK = ("--consumer-heartbeat-interval-ms", "300", "--consumer-session-timeout-ms", "6000")


class FirstTakesAll(PartitionAssignor):
    """All partitions to the member with the first id; its metadata is the number of members."""

    name = "first-takes-all"

    def __init__(self) -> None:
        self.told: list[tuple[bytes, int]] = []

    def assign(self, group: PartitionGroup) -> PartitionAssignment:
        first = min(each.member_id for each in group.members)
        count = str(len(group.members)).encode()
        return PartitionAssignment(
            members=[
                PartitionMemberAssignment(
                    member_id=each.member_id,
                    partitions=frozenset(group.partitions) if each.member_id == first else frozenset(),
                    metadata=count,
                )
                for each in group.members
            ]
        )

    def on_assignment(self, share: PartitionMemberAssignment) -> None:
        self.told.append((share.metadata, len(share.partitions)))


class Fails(FirstTakesAll):
    """Raises in each call."""

    def assign(self, group: PartitionGroup) -> PartitionAssignment:
        raise ValueError("no\nidea")


def new_member(group: Any, **settings: Any) -> GroupConsumer:
    return member(group, **{"group_protocol": "consumer", "assignors": [FirstTakesAll()], **settings})


async def test_members_compute_the_assignment_with_their_assignor(new_group: NewGroup) -> None:
    with new_group("client side", partitions=4) as group:
        group.write(400)
        assignors = [FirstTakesAll(), FirstTakesAll()]
        one, two = (new_member(group, assignors=[each]) for each in assignors)
        async with one:
            seen = await read(one, 100)
            assert one.is_leader
            assert one.assignor == "first-takes-all"
            async with running(two) as of_two:
                seen += await poll_until(lambda: all(each.told and each.told[-1][0] == b"2" for each in assignors), one)
                seen += await poll_until(lambda: {len(one.assignment), len(two.assignment)} == {0, 4}, one)
            seen += await poll_until(lambda: len(one.assignment) == 4, one)
            while set(places(seen + of_two)) != group.everything():
                seen += await one.poll(0.5)


async def test_failing_assignor_does_not_stop_the_group(new_group: NewGroup, caplog: pytest.LogCaptureFixture) -> None:
    with new_group("failing", partitions=4) as group, caplog.at_level(logging.ERROR, "connectgroup.consumer"):
        async with new_member(group, assignors=[Fails()]) as consumer:
            await poll_until(lambda: len(consumer.assignment) == 4, consumer)  # the coordinator assigns
        assert any("first-takes-all" in line and "no\\nidea" in line for line in caplog.messages)


async def test_server_side_assignor_of_the_coordinator(new_group: NewGroup) -> None:
    with new_group("server side", partitions=4) as group:
        one, two = (new_member(group, assignors=None, server_assignor="range") for _ in range(2))
        async with running(one), running(two):
            await eventually(lambda: len(one.assignment) == len(two.assignment) == 2)


@pytest.fixture(scope="module")
def new_group(broker: Broker) -> Iterator[NewGroup]:
    """As the fixture of the folder; consumer groups have a short heartbeat interval."""
    from tests.consumer.members import group_on

    from .running import running_proxy

    with running_proxy(broker, *QUICK) as proxy:
        yield partial(group_on, proxy)


@pytest.fixture(params=["plaintext", "ssl"])
def coordinator(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A coordinator as a process of its own, not a proxy; yields the settings of a consumer that uses it."""
    command = [sys.executable, "-m", "connectgroup", "coordinator", "--log", "memory:", "--port", "0"]
    fetch = {}
    if request.param == "ssl":
        create_certificates(tmp_path, "server")
        command += ["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")]
        fetch = {"ssl.ca.location": str(tmp_path / "server.pem")}
    command += ["--topics-from", broker.bootstrap, *QUICK]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[2]
        yield {"coordinator": f"{request.param}://{address}", "fetch": fetch}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


async def test_coordinator_beside_the_brokers(new_group: NewGroup, coordinator: dict[str, Any]) -> None:
    """The brokers have no TLS."""
    with new_group("beside", partitions=2) as group:
        group.write(20)
        bootstrap = group.broker.broker.bootstrap  # type: ignore[attr-defined]
        for _ in range(2):
            async with new_member(group, bootstrap=bootstrap, **coordinator) as consumer:
                assert len(await read(consumer, 10)) == 10
                assert consumer.is_leader

"""A ``GroupConsumer`` on connectgroup's coordinator: client-side assignors in Python, by Prepare and Install."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from connectgroup.assign.members import Metadata, PartitionMemberAssignment
from connectgroup.consumer import GroupConsumer
from connectgroup.errors import ConnectGroupError
from tests.certificates import create_certificates
from tests.consumer.inside import eventually, member, places, poll_until, read, running
from tests.integration.processes import Program

from .conftest import NewGroup

if TYPE_CHECKING:
    from tests.consumer.broker import Broker


QUICK = ("--consumer-heartbeat-interval-ms", "300", "--consumer-session-timeout-ms", "6000")


class FirstTakesAll(PartitionAssignor):
    """All partitions to the member with the first id; its metadata is the number of members."""

    name = "first-takes-all"

    def __init__(self) -> None:
        self.told: list[tuple[bytes, int]] = []

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
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

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        raise ValueError("no\nidea")


class Reports(FirstTakesAll):
    """Keeps what ``metadata`` of the group's only member has told ``assign``."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.subscribed: frozenset[str] = frozenset()
        self.seen: list[tuple[bytes, frozenset[str]]] = []

    def metadata(self, subscribed: frozenset[str]) -> Metadata:
        self.subscribed = subscribed
        return Metadata(version=self.maximum_version, metadata=self.data)

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        [only] = group.members
        self.seen.append((only.metadata, self.subscribed))
        return super().assign(group)


class Writes(FirstTakesAll):
    """Writes metadata of a version; keeps the versions and reasons that ``assign`` and ``on_assignment`` see."""

    maximum_version = 3

    def __init__(self, version: int, seen: list[set[tuple[int, int]]]) -> None:
        super().__init__()
        self.version, self.seen = version, seen
        self.results: list[tuple[int, int]] = []

    def metadata(self, subscribed: frozenset[str]) -> Metadata:
        return Metadata(version=self.version, reason=self.version * 10, metadata=b"x")

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        self.seen.append({(each.version, each.reason) for each in group.members})
        oldest = min(each.version for each in group.members)
        result = super().assign(group)
        return replace(result, members=[replace(each, version=oldest, error=7) for each in result.members])

    def on_assignment(self, share: PartitionMemberAssignment) -> None:
        self.results.append((share.version, share.error))


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
                seen += await poll_until(lambda: {len(one.assignment()), len(two.assignment())} == {0, 4}, one)
            seen += await poll_until(lambda: len(one.assignment()) == 4, one)
            while set(places(seen + of_two)) != group.everything():
                seen += await one.poll(0.5)


async def test_failing_assignor_does_not_stop_the_group(new_group: NewGroup, caplog: pytest.LogCaptureFixture) -> None:
    with new_group("failing", partitions=4) as group, caplog.at_level(logging.ERROR, "connectgroup.consumer"):
        async with new_member(group, assignors=[Fails()]) as consumer:
            await poll_until(lambda: len(consumer.assignment()) == 4, consumer)  # the coordinator assigns
        assert any("first-takes-all" in line and "no\\nidea" in line for line in caplog.messages)


async def test_server_side_assignor_of_the_coordinator(new_group: NewGroup) -> None:
    with new_group("server side", partitions=4) as group:
        one, two = (new_member(group, assignors=None, server_assignor="range") for _ in range(2))
        async with running(one), running(two):
            await eventually(lambda: len(one.assignment()) == len(two.assignment()) == 2)


async def test_changed_metadata_and_enforce_rebalance_have_the_assignment_computed_again(new_group: NewGroup) -> None:
    """KIP-848, "Group Epoch": a member updates its assignors' reason or metadata."""
    with new_group("metadata", partitions=2) as group:
        assignor = Reports()
        pattern = f"{group.name}.*"
        async with new_member(group, assignors=[assignor], topics=[], pattern=pattern) as consumer:
            await poll_until(lambda: len(consumer.assignment()) == 2, consumer)
            assert assignor.seen[-1] == (b"", frozenset({group.name}))
            # An assignment that is computed again, because the first was late, has the same epoch.
            first = consumer.generation
            assignor.data = b"new"
            await poll_until(lambda: consumer.generation > first, consumer)
            assert assignor.seen[-1][0] == b"new"
            for number, reason in enumerate(("an operator asks", "an operator asks again"), 2):
                consumer.enforce_rebalance(reason)
                await poll_until(lambda number=number: consumer.generation >= first + number, consumer)  # type: ignore[misc]
                assert len(assignor.seen) > number
                await consumer.poll(1.0)
            assert consumer.generation == first + 3, "once for each request"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_assignor_sees_the_version_and_the_reason_of_each_members_metadata(
    new_group: NewGroup, protocol: str
) -> None:
    """KIP-429, "Assignor Version"; KIP-848, "Client Side Assignor". The result has a version and an error as well."""
    seen: list[set[tuple[int, int]]] = []
    with new_group(f"versions {protocol}", partitions=2) as group:
        older, newer = Writes(1, seen), Writes(2, seen)
        one, two = (new_member(group, assignors=[each], group_protocol=protocol) for each in (older, newer))
        async with running(one), running(two):
            await eventually(lambda: seen and seen[-1] == {(1, 10), (2, 20)})
            await eventually(lambda: all(each.results and each.results[-1] == (1, 7) for each in (older, newer)))


async def test_another_assignor_than_ours_is_logged_with_the_reason(
    new_group: NewGroup, caplog: pytest.LogCaptureFixture
) -> None:
    with new_group("other assignor", partitions=2) as group:
        one, two = new_member(group), new_member(group, assignors=["range"], auto_offset_reset="latest")
        async with running(one):
            await eventually(lambda: one.assignment())
            async with two:
                with pytest.raises(ConnectGroupError, match="no assignor is listed by all members"):
                    await poll_until(lambda: two.assignment(), two)
        three = new_member(group, assignors=[FirstTakesAll(), "uniform"])
        four, five = (new_member(group, assignors=["uniform", FirstTakesAll()]) for _ in range(2))
        async with running(three):
            await eventually(lambda: len(three.assignment()) == 2)  # the next assignment takes one of them away
            async with running(four), running(five):
                expected = "the group uses uniform, not first-takes-all, uniform: most of its"
                await eventually(lambda: expected in caplog.text)
        caplog.clear()
        six, seven = new_member(group), new_member(group, assignors=None)
        async with running(six), running(seven):
            await eventually(lambda: "an assignor of the coordinator, not first-takes-all: not every" in caplog.text)


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
    command = ["coordinator", "--log", "memory:", "--port", "0"]
    fetch = {}
    if request.param == "ssl":
        create_certificates(tmp_path, "server")
        command += ["--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key")]
        fetch = {"ssl.ca.location": str(tmp_path / "server.pem")}
    command += ["--topics-from", broker.bootstrap, *QUICK]
    with Program(*command) as program:
        address = program.line_with("coordinator at ").split()[2]
        yield {"coordinator": f"{request.param}://{address}", "fetch": fetch}


async def test_coordinator_beside_the_brokers(new_group: NewGroup, coordinator: dict[str, Any]) -> None:
    """The brokers have no TLS."""
    with new_group("beside", partitions=2) as group:
        group.write(20)
        bootstrap = group.broker.broker.bootstrap  # type: ignore[attr-defined]
        for _ in range(2):
            async with new_member(group, bootstrap=bootstrap, **coordinator) as consumer:
                assert len(await read(consumer, 10)) == 10
                assert consumer.is_leader

"""Kafka's VerifiableConsumer in the scenarios of Kafka's system tests of consumers, own ports.

Not run by ``make test``: ``make suites``.
"""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from tests.consumer.fixtures import NewGroup
from tests.consumer.members import BrokerGroup, BrokerMember, Event
from tests.integration.processes import PATIENCE_S

ASSIGNOR = "org.apache.kafka.clients.consumer.{}Assignor"
PROTOCOLS = ["Range", "RoundRobin", "Sticky", "CooperativeSticky", "uniform", "range"]
"""Classic assignors, then the server's of KIP-848."""

SESSION_MS = 6_000
NAMES = {
    "partitions_assigned": "assigned",
    "partitions_revoked": "revoked",
    "records_consumed": "read",
    "shutdown_complete": "ended",
}


class Verifiable(BrokerMember):
    """A VerifiableConsumer; its events under the names of other members."""

    def stop(self) -> None:
        """SIGTERM: it closes its consumer and exits."""
        self.signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        assert self.last("ended"), f"{self.name} has not exited cleanly\n{self.output()}"

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            told: dict[str, Any] = json.loads(line)
            event, partitions = NAMES.get(told["name"], told["name"]), told.get("partitions", [])
            what: list[Any] = [each["partition"] for each in partitions]
            if event == "read":
                what = [
                    (each["partition"], offset)
                    for each in partitions
                    for offset in range(each["minOffset"], each["maxOffset"] + 1)
                ]
            self.events.append(Event(time.monotonic_ns(), event, what, told))


def start(group: BrokerGroup, name: str, protocol: str, *more: str) -> BrokerMember:
    """A member; ``protocol`` is one of ``PROTOCOLS``."""
    options = ["--bootstrap-server", group.broker.bootstrap, "--topic", group.name, "--group-id", group.name]
    if protocol[0].islower():
        options += ["--group-protocol", "consumer", "--group-remote-assignor", protocol]
    else:
        options += ["--assignment-strategy", ASSIGNOR.format(protocol), "--session-timeout", str(SESSION_MS)]
    java = [*group.broker.java_member[:-1], "org.apache.kafka.tools.VerifiableConsumer"]
    member = Verifiable(name, [*java, *options, *more])
    group.members.append(member)
    return member


def rebalances(member: BrokerMember) -> int:
    return sum(event.event in ("assigned", "revoked") and bool(event.what) for event in list(member.events))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_assignment_is_valid_after_each_join_and_every_record_is_read_once(new_group: NewGroup, protocol: str) -> None:
    with new_group(f"valid {protocol}", partitions=6) as group:
        group.write(300)
        members: list[BrokerMember] = []
        for name in ("first", "second", "third"):
            members.append(start(group, name, protocol))
            group.wait_until_balanced(*members)
            group.write(300)
        group.wait_until_read()
        members.pop(0).stop()
        group.wait_until_balanced(*members)
        group.write(300)
        group.wait_until_read()
        assert group.read_more_than_once() == []


@pytest.mark.parametrize("protocol", ["Range", "CooperativeSticky", "uniform"])
@pytest.mark.parametrize("clean", [True, False], ids=["closes", "is killed"])
def test_partitions_of_a_member_that_ends_move(new_group: NewGroup, protocol: str, clean: bool) -> None:
    with new_group(f"ends {protocol}", partitions=4) as group:
        group.write(400)
        members = [start(group, name, protocol) for name in ("first", "second")]
        group.wait_until_balanced(*members)
        group.wait_until_read()
        if clean:
            members[0].stop()
        else:
            members[0].kill()
        group.wait_until_balanced(members[1])
        group.write(400)
        group.wait_until_read()
        if clean:
            assert group.read_more_than_once() == []


@pytest.mark.parametrize("protocol", ["Range", "CooperativeSticky"])
def test_static_member_that_restarts_causes_no_rebalance(new_group: NewGroup, protocol: str) -> None:
    with new_group(f"static {protocol}", partitions=4) as group:
        group.write(40)
        long = ("--session-timeout", "45000")
        members = [start(group, name, protocol, "--group-instance-id", name, *long) for name in ("first", "second")]
        group.wait_until_balanced(*members)
        group.wait_until_read()
        before, owned = rebalances(members[0]), members[1].owned
        members[1].stop()
        again = start(group, "second again", protocol, "--group-instance-id", "second", *long)
        group.wait_until_balanced(members[0], again)
        group.write(40)
        group.wait_until_read()
        assert rebalances(members[0]) == before
        assert again.owned == owned


@pytest.mark.parametrize("protocol", ["Range", "uniform"])
def test_second_member_with_an_instance_id(new_group: NewGroup, protocol: str) -> None:
    """Classic: the older one is fenced. KIP-848: the newer one is rejected while the older one lives."""
    with new_group(f"fenced {protocol}", partitions=2) as group:
        first = start(group, "first", protocol, "--group-instance-id", "same")
        group.wait_until_balanced(first)
        second = start(group, "second", protocol, "--group-instance-id", "same")
        ended, stays = (second, first) if protocol[0].islower() else (first, second)
        group.wait_until(lambda: ended.last("ended"), f"{ended.name} to end")
        group.wait_until_balanced(stays)


@pytest.mark.parametrize("to", ["CooperativeSticky", "uniform"])
def test_rolling_restart_changes_the_protocol(new_group: NewGroup, to: str) -> None:
    """From ``range`` to KIP-848 in one restart of each; KIP-848 with ``cooperative-sticky`` converts likewise."""
    with new_group(f"upgrade {to}", partitions=4) as group:
        group.write(40)
        begin = "uniform" if to == "CooperativeSticky" else "Range"
        members = [start(group, f"{name} {begin}", begin) for name in ("first", "second")]
        group.wait_until_balanced(*members)
        for number in range(2):
            members[number].stop()
            members[number] = start(group, f"{number} {to}", to)
            group.wait_until_balanced(*members)
            group.write(40)
        group.wait_until_read()
        assert group.read_more_than_once() == []

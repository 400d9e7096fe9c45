"""Random rolling upgrades and downgrades: no partition ever runs twice, and all run in the end (P1, P2, P3)."""

from __future__ import annotations

import random

import pytest

from connectgroup.group.kernel.timers import TimerKey, TimerKind

from .clients import ClassicClient, ConsumerClient
from .driver import GROUP, Driver

PARTITIONS = 5


class Walk:
    """Clients come, go and act in random order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.protocol = self.random.choice(["range", "cooperative-sticky"])
        self.driver = Driver(partitions=PARTITIONS)
        self.clients: list[ClassicClient | ConsumerClient] = []
        self.count = 0

    def step(self) -> None:
        """One random event."""
        match self.random.random():
            case x if x < 0.02 and len(self.clients) < 4:
                self.start(self.random.choice(["classic", "consumer"]))
            case x if x < 0.04 and len(self.clients) > 1:
                self.stop(self.random.choice(self.clients))
            case x if x < 0.05 and len(self.clients) > 1:
                self.kill(self.random.choice(self.clients))
            case x if x < 0.06 and self.driver.log:
                self.driver.restart()
            case x if x < 0.12:
                self.driver.delays_computations = not self.driver.delays_computations
                if not self.driver.delays_computations:
                    self.driver.compute()
            case _ if self.clients:
                self.random.choice(self.clients).act()
            case _:
                pass
        self.check()

    def start(self, kind: str) -> None:
        self.count += 1
        name = f"m{self.count}"
        if kind == "classic":
            self.clients.append(ClassicClient(self.driver, name, self.protocol))
        else:
            self.clients.append(ConsumerClient(self.driver, name))

    def stop(self, client: ClassicClient | ConsumerClient) -> None:
        self.clients.remove(client)
        client.leave()

    def kill(self, client: ClassicClient | ConsumerClient) -> None:
        """The process is gone; later its session expires."""
        self.clients.remove(client)
        client.running.clear()
        if TimerKey(TimerKind.SESSION, GROUP, client.member_id) in self.driver.timers:
            self.driver.expire(TimerKind.SESSION, client.member_id)

    def check(self) -> None:
        owners: dict[int, str] = {}
        for client in self.clients:
            for partition in client.running:
                other = owners.setdefault(partition, client.name)
                assert other == client.name, f"partition {partition} runs on {other} and on {client.name}"

    def settle(self) -> None:
        """No more changes: every client acts until all partitions run."""
        self.driver.delays_computations = False
        self.driver.compute()
        for _ in range(40):
            for client in self.clients:
                client.act()
                self.check()
        expired = [key.member_id for key in self.driver.timers if key.kind is TimerKind.SESSION]
        for member_id in set(expired) - {client.member_id for client in self.clients}:
            self.driver.expire(TimerKind.SESSION, member_id)
        for _ in range(40):
            for client in self.clients:
                client.act()
                self.check()
        assert sorted(partition for client in self.clients for partition in client.running) == list(range(PARTITIONS))
        has_new = any(isinstance(client, ConsumerClient) for client in self.clients)
        assert self.driver.type.name == ("consumer" if has_new else "classic")


@pytest.mark.parametrize("block", range(10))
def test_random_walk(block: int) -> None:
    for seed in range(20 * block, 20 * (block + 1)):
        walk = Walk(seed)
        walk.start("classic")
        for _ in range(250):
            walk.step()
        walk.settle()


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
def test_rolling_upgrade_and_back(protocol: str) -> None:
    """Each member is stopped and started again with the other protocol; the group is converted twice."""
    walk = Walk(0)
    walk.protocol = protocol
    for _ in range(3):
        walk.start("classic")
    walk.settle()
    assert walk.driver.type.name == "classic"
    for kind in ("consumer", "classic"):
        for client in list(walk.clients):
            walk.stop(client)
            walk.start(kind)
            walk.settle()
        assert walk.driver.type.name == kind

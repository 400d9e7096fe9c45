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
        self.has_static = self.random.random() < 0.5
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
            case x if x < 0.06 and any(client.instance for client in self.clients):
                self.replace(self.random.choice([client for client in self.clients if client.instance]))
            case x if x < 0.07 and self.driver.log:
                self.driver.restart()
            case x if x < 0.13:
                self.driver.delays_computations = not self.driver.delays_computations
                if not self.driver.delays_computations:
                    self.driver.compute()
            case _ if self.clients:
                self.random.choice(self.clients).act()
            case _:
                pass
        self.check()

    def start(self, kind: str, instance: str | None = None) -> None:
        self.count += 1
        name = f"m{self.count}"
        if instance is None and self.has_static and self.random.random() < 0.5:
            instance = f"i{self.count}"
        if kind == "classic":
            self.clients.append(ClassicClient(self.driver, name, self.protocol, instance))
        else:
            self.clients.append(ConsumerClient(self.driver, name, instance))

    def replace(self, client: ClassicClient | ConsumerClient) -> None:
        """A static member is stopped, and started again with either protocol."""
        self.stop(client)
        self.start(self.random.choice(["classic", "consumer"]), client.instance)

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
        for _ in range(4):
            for _ in range(30):
                for client in self.clients:
                    client.act()
                    self.check()
            self.expire_stale()
        assert sorted(partition for client in self.clients for partition in client.running) == list(range(PARTITIONS))
        has_new = any(isinstance(client, ConsumerClient) for client in self.clients)
        assert self.driver.type.name == ("consumer" if has_new else "classic")

    def expire_stale(self) -> None:
        """The timeouts of members whose process is gone, and that of a rebalance that waits for them."""
        alive = {client.member_id for client in self.clients}
        for key in sorted(self.driver.timers):
            gone = key.kind is TimerKind.SESSION and key.member_id not in alive
            if key in self.driver.timers and (gone or (key.kind is TimerKind.REBALANCE and not key.member_id)):
                self.driver.expire(key.kind, key.member_id)


@pytest.mark.parametrize("block", range(10))
def test_random_walk(block: int) -> None:
    for seed in range(12 * block, 12 * (block + 1)):
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

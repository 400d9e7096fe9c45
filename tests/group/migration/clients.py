"""Clients of both protocols that run partitions, as Kafka's clients do: they revoke before they report.

A client acts in small steps, so that other clients act between its revocation and its report.
"""

from __future__ import annotations

from typing import Any

from connectgroup.protocol.messages.consumer import each_partition
from connectgroup.wire import embedded

from .driver import Driver, assignment, numbers

UNKNOWN_MEMBER, ILLEGAL_GENERATION, REBALANCES = 25, 22, 27


class ClassicClient:
    """A member of the classic protocol.

    Attributes:
        running: the partitions that it runs now.
    """

    def __init__(self, driver: Driver, name: str, protocol: str, instance: str | None = None) -> None:
        self.driver, self.name, self.protocol, self.instance = driver, name, protocol, instance
        self.cooperative = protocol == "cooperative-sticky"
        self.running: set[int] = set()
        self.member_id, self.generation = "", -1
        self.phase = "join"
        self._shares: dict[str, bytes] = {}
        self._next: set[int] = set()

    def act(self) -> None:
        """Do the next thing of the protocol."""
        match self.phase:
            case "join":
                self._join()
            case "joining" if self.member_id in self.driver.answers:
                self._joined(self.driver.answers.pop(self.member_id))
            case "joining" if self.member_id not in self.driver.parked:
                self.phase = "join"  # the coordinator has restarted
            case "sync":
                self._sync()
            case "syncing" if self.member_id in self.driver.answers:
                self._synced(self.driver.answers.pop(self.member_id))
            case "syncing" if self.member_id not in self.driver.parked:
                self.phase = "sync"
            case "revoking":
                revoked = self.running - self._next
                self.running = set(self._next)
                self.phase = "join" if revoked and self.cooperative else "stable"
            case "stable":
                self._handle(self.driver.heartbeat(self.member_id, self.generation, self.instance))

    def leave(self) -> None:
        """Stop; a static member sends nothing."""
        self.running.clear()
        if self.member_id and self.instance is None:
            self.driver.leave(self.member_id)

    def _join(self) -> None:
        if not self.cooperative:
            self.running.clear()
        if not self.member_id:
            self.running.clear()
            if self.instance is None:
                self.member_id = self.driver.join("", self.protocol, requires_member_id=True).member_id
        self.driver.answers.pop(self.member_id, None)
        response = self.driver.join(self.member_id, self.protocol, owned=self.running, group_instance_id=self.instance)
        self.phase = "joining"
        if response is None:
            self.member_id = self.driver.parked_as
        else:
            self.member_id = response.member_id or self.member_id
            self._joined(response)

    def _joined(self, response: Any) -> None:
        if not self._handle(response.error_code):
            return
        self.generation, self._shares = response.generation_id, {}
        if response.leader == self.member_id:
            self._shares = self._assign(response.members)
        self.phase = "sync"

    def _assign(self, members: Any) -> dict[str, bytes]:
        """Equal shares; partitions that a member still owns are withheld from others (cooperative)."""
        owned = {each.member_id: set(numbers(embedded.decode_subscription(each.metadata).owned)) for each in members}
        ids = sorted(owned)
        topic = next(iter((self.driver.consumer.topics or {}).values()))
        shares: dict[str, list[int]] = {member_id: [] for member_id in ids}
        for number in range(topic.num_partitions):
            member_id = ids[number % len(ids)]
            if not any(number in partitions for other, partitions in owned.items() if other != member_id):
                shares[member_id].append(number)
        return {member_id: assignment(*share) for member_id, share in shares.items()}

    def _sync(self) -> None:
        self.driver.answers.pop(self.member_id, None)
        response = self.driver.sync(self.member_id, self.generation, self._shares, group_instance_id=self.instance)
        self.phase = "syncing"
        if response is not None:
            self._synced(response)

    def _synced(self, response: Any) -> None:
        if not self._handle(response.error_code):
            return
        self._next = set(numbers(embedded.decode_assignment(response.assignment).partitions))
        if self._next >= self.running:
            self.running = set(self._next)
            self.phase = "stable"
        else:
            self.phase = "revoking"

    def _handle(self, code: int) -> bool:
        """Whether the request succeeded; if not, the client begins to join again."""
        if code == 0:
            return True
        assert code in (REBALANCES, UNKNOWN_MEMBER, ILLEGAL_GENERATION), code
        if code != REBALANCES:
            self.running.clear()
        if code == UNKNOWN_MEMBER:
            self.member_id = ""
        self.phase = "join"
        return False


class ConsumerClient:
    """A member of the consumer protocol."""

    def __init__(self, driver: Driver, name: str, instance: str | None = None) -> None:
        self.driver, self.name, self.instance = driver, name, instance
        self.running: set[int] = set()
        self.epoch = 0
        self._next: set[int] | None = None

    @property
    def member_id(self) -> str:
        return self.name

    def act(self) -> None:
        if self._next is not None:
            self.running, self._next = self._next, None
            return
        response = self.driver.beat(self.name, self.epoch, self.running, instance_id=self.instance)
        if response.error_code != 0:
            self.running.clear()
            self.epoch = 0
            return
        self.epoch = response.member_epoch
        if response.assignment is None:
            return
        assigned = set(numbers(each_partition(response.assignment.topic_partitions)))
        if assigned >= self.running:
            self.running = assigned
        else:
            self._next = assigned

    def leave(self) -> None:
        """Leave; a static member leaves temporarily."""
        self.running.clear()
        if self.epoch:
            self.driver.beat(self.name, -1 if self.instance is None else -2, instance_id=self.instance)

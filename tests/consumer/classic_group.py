"""A classic group in one thread and without a clock: a coordinator, and processes that advance step by step.

The coordinator behaves like Kafka's classic one towards its members: it waits until every known member has joined,
picks the assignor that all members list and most prefer, carries bytes it does not read, and removes a member only when
its session has expired. A process does what a consumer does with ``before_joining``, ``after_sync`` and the leader's
``group_input``, ``validate_result`` and ``assignments_to_send``. Between two steps a process may die, pause, miss a
response, change its topics, or return late.

``ClassicGroup.step`` checks single ownership where it can be violated: when a process takes a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count
from random import Random

from connectgroup.assign.api import PartitionAssignor, RebalanceProtocol
from connectgroup.assign.members import TopicSpec
from connectgroup.assign.sandbox import run_assignor
from connectgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from connectgroup.assignors.range import RangeAssignor
from connectgroup.assignors.roundrobin import RoundRobinAssignor
from connectgroup.consumer.rounds import (
    AfterSync,
    Joined,
    after_sync,
    assignments_to_send,
    assignor_named,
    before_joining,
    choose_protocol,
    group_input,
    join_offers,
    validate_result,
)
from connectgroup.protocol.messages.classic import OfferedProtocol
from connectgroup.protocol.units import Partitions
from connectgroup.wire.embedded import HIGHEST_VERSION, decode_assignment, decode_subscription, encode_subscription

from .assignors import Reversed

NOTHING: Partitions = frozenset()
ASSIGNORS: dict[str, Callable[[], PartitionAssignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
    "reversed": Reversed,
}
Offers = tuple[OfferedProtocol, ...]


class UnknownMember(Exception):
    """The member id is not in the group."""


class Rebalancing(Exception):
    """A rebalance is under way: the member must rejoin."""


class Inconsistent(Exception):
    """The joining member lists no assignor that all the others list."""


# --------------------------------------------------------------------------------------------------
# The coordinator


@dataclass(slots=True)
class JoinedMember:
    """The coordinator's state of a member; ``generation``: that of its JoinGroup response."""

    offers: Offers
    version: int
    joined: bool = True
    generation: int | None = None


class Coordinator:
    """One group.

    Attributes:
        members: by member id, in order of joining.
        generation: grows with each rebalance.
        joining: whether the coordinator waits for JoinGroups.
        participants: the members of each generation.
        assignments: those that the leader of this generation has sent; None before.
    """

    def __init__(self) -> None:
        self.members: dict[str, JoinedMember] = {}
        self.generation = 0
        self.joining = False
        self.participants: dict[int, frozenset[str]] = {0: frozenset()}
        self.assignor = self.leader = ""
        self.assignments: dict[str, bytes] | None = None
        self._ids = count(1)

    def join(self, member_id: str | None, offers: Offers, version: int) -> str:
        """Add a member, or let it rejoin; return its id."""
        if member_id is not None and member_id not in self.members:
            raise UnknownMember
        others = [member.offers for other, member in self.members.items() if other != member_id]
        if others and not _common(others) & {each.name for each in offers}:
            raise Inconsistent
        if member_id is None:
            member_id = f"member-{next(self._ids)}"
        elif not self.joining and member_id != self.leader and self.members[member_id].offers == offers:
            self.members[member_id].generation = self.generation
            return member_id  # it missed the response: Kafka sends the same one again
        self.members[member_id] = JoinedMember(offers=offers, version=version)
        self._rebalance(besides=member_id)
        return member_id

    def leave(self, member_id: str) -> None:
        """Remove a member: it left, or its session expired."""
        if self.members.pop(member_id, None) is not None:
            self._rebalance()

    def heartbeat(self, member_id: str) -> None:
        """Return, or raise the reason for rejoining."""
        if member_id not in self.members:
            raise UnknownMember
        if self.joining:
            raise Rebalancing

    def joined(self, member_id: str) -> int | None:
        """The generation of this member's JoinGroup response; None while other members have not joined."""
        if member_id not in self.members:
            raise UnknownMember
        return self.members[member_id].generation

    def joined_members(self) -> list[Joined]:
        """The members, as listed in the leader's JoinGroup response."""
        return [
            Joined(
                member_id=member_id,
                subscription=decode_subscription(offer.metadata),
                version=offer.metadata_version,
                reason=offer.metadata_reason,
            )
            for member_id, member in self.members.items()
            for offer in member.offers
            if offer.name == self.assignor
        ]

    def sync(self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None) -> bytes | None:
        """This member's assignment; None before the leader has sent the assignments."""
        self.heartbeat(member_id)
        if generation != self.generation:
            raise Rebalancing
        if assignments is not None:
            self.assignments = assignments
        return None if self.assignments is None else self.assignments[member_id]

    def _rebalance(self, besides: str = "") -> None:
        if not self.joining:
            self.joining, self.assignments = True, None
            for member_id, member in self.members.items():
                member.joined = member_id == besides
        if self.members and all(member.joined for member in self.members.values()):
            self.joining = False
            self.generation += 1
            self.participants[self.generation] = frozenset(self.members)
            self.assignor = _chosen([member.offers for member in self.members.values()])
            for member in self.members.values():
                member.generation = self.generation
            # KIP-429: of the members with the highest assignor version, the one that joined first.
            self.leader = max(self.members, key=lambda member_id: self.members[member_id].version)


def _common(offers: Iterable[Offers]) -> set[str]:
    return set.intersection(*({offer.name for offer in each} for each in offers))


def _chosen(offers: Sequence[Offers]) -> str:
    common = _common(offers)
    votes = [next(offer.name for offer in each if offer.name in common) for each in offers]
    return max(sorted(common), key=votes.count)


# --------------------------------------------------------------------------------------------------
# A process


class Phase(Enum):
    """The next step of a process."""

    PREPARE = "revokes before it joins"
    JOIN = "sends JoinGroup"
    WAIT = "waits for the response; the leader assigns"
    SYNC = "waits for its assignment"
    REVOKE = "revokes partitions that are no longer assigned"
    TAKE = "takes newly assigned partitions"
    STABLE = "sends a heartbeat"
    REFUSED = "has ended: its assignors are incompatible"


@dataclass(slots=True, eq=False)
class Process:
    """A consumer.

    Attributes:
        configured: names of its assignors, in order of preference.
        holds: the partitions it processes.
        generation: that of its last assignment, sent in its JoinGroup.
        joined_at: the generation of its last JoinGroup response.
        assigned: the assignment of its SyncGroup response.
        after: the resulting steps.
        joined_for: its subscription when it joined.
        saw: the topics it assigned, if it is the leader.
        alive: false: the process has ended.
        frozen: the process is paused, and keeps its partitions.
        stubborn: on an unknown member id it rejoins with its old claim and generation.
        loses: the next SyncGroup response is lost.
        version: the version of its subscriptions; below 2 they have no generation.
    """

    name: str
    configured: tuple[str, ...]
    subscribed: frozenset[str]
    holds: Partitions = NOTHING
    generation: int = -1
    joined_at: int = -1
    member_id: str | None = None
    phase: Phase = Phase.PREPARE
    assigned: Partitions = NOTHING
    after: AfterSync = field(default_factory=AfterSync)
    joined_for: frozenset[str] = frozenset()
    saw: dict[str, int] = field(default_factory=dict)
    alive: bool = True
    frozen: bool = False
    stubborn: bool = False
    loses: bool = False
    version: int = HIGHEST_VERSION
    assignors: list[PartitionAssignor] = field(init=False)
    protocol: RebalanceProtocol = field(init=False)

    def __post_init__(self) -> None:
        self.assignors = [ASSIGNORS[name]() for name in self.configured]
        self.protocol = choose_protocol(self.assignors)

    @property
    def can_step(self) -> bool:
        """Whether the process can make a step."""
        return self.alive and not self.frozen and self.phase is not Phase.REFUSED


class ClassicGroup:
    """The group, its processes and the topics; ``seed`` sets the order in which processes take their steps.

    Attributes:
        history: the events, for failure messages.
        revoked: number of partitions revoked, by process.
    """

    def __init__(self, *, seed: int = 0, **topics: int) -> None:
        self._random = Random(seed)
        self.coordinator = Coordinator()
        self.topics = dict(topics)
        self.processes: list[Process] = []
        self.history: list[str] = []
        self.revoked: dict[str, int] = {}
        self._names = count(1)

    @property
    def running(self) -> list[Process]:
        """Processes that are in the group, or may rejoin."""
        return [each for each in self.processes if each.alive and each.phase is not Phase.REFUSED]

    def start(self, *configured: str, topics: Iterable[str] = ("t", "u"), version: int = HIGHEST_VERSION) -> Process:
        """Start a process."""
        name = f"p{next(self._names)}"
        process = Process(name=name, configured=configured, subscribed=frozenset(topics), version=version)
        self.processes.append(process)
        self._log(process, f"starts with {', '.join(configured)}, version {version}")
        return process

    def stop(self, process: Process) -> None:
        """Stop a process cleanly: it revokes its partitions, then leaves."""
        self._log(process, "leaves")
        process.holds, process.alive = NOTHING, False
        self._forget(process)

    def kill(self, process: Process) -> None:
        """Kill a process; its session has not expired yet."""
        self._log(process, "dies")
        process.holds, process.alive = NOTHING, False

    def expire(self, process: Process) -> None:
        """Remove a process whose session has expired."""
        self._log(process, "has expired")
        self._forget(process)

    def _forget(self, process: Process) -> None:
        if process.member_id is not None:
            self.coordinator.leave(process.member_id)

    def _log(self, process: Process, what: str) -> None:
        self.history.append(f"{process.name} {what}")

    def step(self, process: Process) -> None:
        """One step of one process."""
        if not process.can_step:
            return
        try:
            self._step(process)
        except UnknownMember:
            self._log(process, "gets UNKNOWN_MEMBER_ID" + (", and keeps its claim" if process.stubborn else ""))
            if not process.stubborn:
                process.generation = -1
            process.member_id, process.phase = None, Phase.PREPARE
        except Rebalancing:
            process.phase = Phase.PREPARE
        except Inconsistent:
            self._log(process, "is rejected")
            process.holds, process.phase = NOTHING, Phase.REFUSED

    def _step(self, process: Process) -> None:
        coordinator = self.coordinator
        match process.phase:
            case Phase.PREPARE:
                before = before_joining(
                    process.protocol,
                    owned=process.holds,
                    subscribed=process.subscribed,
                    in_group=process.generation >= 0,
                )
                self._revoke(process, before.lost | before.revoked)
                assert process.holds == before.kept
                process.phase = Phase.JOIN
            case Phase.JOIN:
                offers = join_offers(
                    process.assignors,
                    subscribed=process.subscribed,
                    owned=process.holds,
                    generation=process.generation,
                )
                offers = tuple(
                    replace(each, metadata=encode_subscription(decode_subscription(each.metadata), process.version))
                    for each in offers
                )
                process.joined_for = process.subscribed
                version = max(assignor.maximum_version for assignor in process.assignors)
                process.member_id = coordinator.join(process.member_id, offers, version)
                process.phase = Phase.WAIT
            case Phase.WAIT:
                assert process.member_id is not None
                generation = coordinator.joined(process.member_id)
                if generation is not None:
                    process.joined_at, process.phase = generation, Phase.SYNC
                    coordinator.heartbeat(process.member_id)
                    if process.member_id == coordinator.leader:
                        coordinator.sync(process.member_id, process.joined_at, self._lead(process))
            case Phase.SYNC:
                assert process.member_id is not None
                data = coordinator.sync(process.member_id, process.joined_at)
                if data is None:
                    return
                if process.loses:
                    process.loses, process.phase = False, Phase.PREPARE
                    self._log(process, f"misses its assignment of generation {process.joined_at}")
                    return
                process.assigned, process.phase = decode_assignment(data).partitions, Phase.REVOKE
            case Phase.REVOKE:
                process.after = after_sync(
                    owned=process.holds, assigned=process.assigned, subscribed=process.subscribed
                )
                self._revoke(process, process.after.revoked)
                process.phase = Phase.TAKE
            case Phase.TAKE:
                self._take(process, process.after.added)
                assert process.holds == process.after.holds
                if process.holds == process.assigned:  # not if the assignment was made for an earlier subscription
                    process.generation = process.joined_at
                process.phase = Phase.PREPARE if process.after.rejoin else Phase.STABLE
            case Phase.STABLE:
                assert process.member_id is not None
                coordinator.heartbeat(process.member_id)
                leads = process.member_id == coordinator.leader
                if process.subscribed != process.joined_for or (leads and process.saw != self.topics):
                    process.phase = Phase.PREPARE

    def _lead(self, process: Process) -> dict[str, bytes]:
        assignor = assignor_named(process.assignors, self.coordinator.assignor)
        process.saw = dict(self.topics)
        topics = [TopicSpec(name=name, num_partitions=count) for name, count in self.topics.items()]
        group = group_input(self.coordinator.joined_members(), topics, assignor)
        shares = assignments_to_send(group, validate_result(assignor, group, run_assignor(assignor, group)))
        return {share.member_id: share.assignment for share in shares}

    def _revoke(self, process: Process, partitions: Partitions) -> None:
        if partitions:
            self._log(process, f"revokes {_listed(partitions)}")
            self.revoked[process.name] = self.revoked.get(process.name, 0) + len(partitions)
        process.holds -= partitions

    def _take(self, process: Process, partitions: Partitions) -> None:
        """Single ownership: no participant of this generation still owns a taken partition.

        A process that was removed from the group is excluded, both as an owner and when it takes partitions late: it
        cannot be reached, and its commits are rejected.
        """
        if partitions:
            self._log(process, f"takes {_listed(partitions)} of generation {process.joined_at}")
        known = process.member_id in self.coordinator.members
        party = self.coordinator.participants[process.joined_at] if known else frozenset()
        for other in self.processes:
            if other is not process and other.member_id in party and other.holds & partitions:
                raise AssertionError(self.failure(f"{_listed(other.holds & partitions)} has two owners"))
        process.holds |= partitions

    def settle(self, *, max_rounds: int = 1000) -> int:
        """Run all processes, expire dead ones, until nothing changes; return the number of rebalances."""
        before = self.coordinator.generation
        for process in self.processes:
            process.frozen = process.loses = False
        for _ in range(max_rounds):
            for process in self.processes:
                if not process.alive or process.phase is Phase.REFUSED:
                    self._forget(process)
            seen = self._state()
            self.round()
            busy = self.coordinator.joining or any(each.phase is Phase.REVOKE for each in self.running)
            if seen == self._state() and not busy:
                return self.coordinator.generation - before
        raise AssertionError(self.failure("it never settles"))

    def round(self) -> None:
        """Every process makes a step, in random order; revocations are slow, so that early assignments are detected."""
        for process in self._random.sample(self.processes, len(self.processes)):
            if process.phase is not Phase.REVOKE or self._random.random() < 0.2:
                self.step(process)

    def _state(self) -> object:
        return self.coordinator.generation, [(each.phase, each.holds, each.member_id) for each in self.processes]

    def check_settled(self) -> None:
        """Once settled, every subscribed partition has one owner, which subscribes it."""
        found = [(partition, each) for each in self.running for partition in each.holds]
        if len({partition for partition, _ in found}) < len(found):
            raise AssertionError(self.failure("two owners after settling"))
        for partition, process in found:
            if partition.topic not in process.subscribed or partition.partition >= self.topics[partition.topic]:
                raise AssertionError(self.failure(f"{process.name} holds {partition}, which it does not subscribe"))
        wanted = set[str]().union(*(each.subscribed for each in self.running))
        count = sum(number for name, number in self.topics.items() if name in wanted)
        if len(found) < count:
            raise AssertionError(
                self.failure(f"{count - len(found)} of {count} partitions have no owner after settling")
            )

    def failure(self, what: str) -> str:
        """A failure and the events before it."""
        now = [f"{each.name} {each.protocol.name} {each.phase.name}: {_listed(each.holds)}" for each in self.running]
        return "\n  ".join([what, *self.history, "and now:", *now])


def _listed(partitions: Partitions) -> str:
    return " ".join(map(str, sorted(partitions))) or "nothing"

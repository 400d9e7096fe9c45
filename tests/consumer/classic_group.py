"""A whole classic group in one thread and without time: a coordinator, and processes that take a step when told to.

The coordinator is Kafka's classic one as far as its members can tell: it waits until everybody it knows has joined,
picks the assignor that all list and most put first, carries bytes it does not read, and forgets a member only when it
is told that its session is over. A process is what a consumer does with ``before_joining``, ``after_sync`` and the
leader's ``group_input``, ``validate_result``, ``assignments_to_send``, and nothing else. Between any two steps
anything may happen to it: it may die, stand still, miss a response, subscribe to other topics, or come back late.

``ClassicGroup.step`` checks the one promise at the only place where it can be broken: when somebody takes a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from random import Random

from connectgroup.assign.api import PartitionAssignor, RebalanceProtocol
from connectgroup.assign.members import TopicSpec
from connectgroup.assign.sandbox import run_assignor
from connectgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from connectgroup.assignors.range import RangeAssignor
from connectgroup.assignors.roundrobin import RoundRobinAssignor
from connectgroup.consumer.choice import assignor_named, choose_leader, choose_protocol, join_offers
from connectgroup.consumer.embedded import HIGHEST_VERSION, decode_assignment, decode_subscription, encode_subscription
from connectgroup.consumer.rounds import (
    AfterSync,
    Joined,
    after_sync,
    assignments_to_send,
    before_joining,
    group_input,
    validate_result,
)
from connectgroup.protocol.units import Partitions

from .assignors import Reversed

NOTHING: Partitions = frozenset()
KINDS: dict[str, Callable[[], PartitionAssignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
    "reversed": Reversed,
}
Offers = tuple[tuple[str, bytes], ...]


class UnknownMember(Exception):
    """The coordinator has forgotten who asks."""


class Rebalancing(Exception):
    """Whoever asks is to join again."""


class Inconsistent(Exception):
    """Whoever joins lists no assignor that all the others list."""


# --------------------------------------------------------------------------------------------------
# The coordinator


@dataclass(slots=True)
class Place:
    """What the coordinator keeps of a member; ``answer``: the generation it was told in answer to its JoinGroup."""

    offers: Offers
    version: int
    joined: bool = True
    answer: int | None = None


class Coordinator:
    """One group.

    Attributes:
        members: by member id, in order of joining.
        generation: grows with each rebalance.
        joining: whether it waits for JoinGroups.
        participants: for each generation who was in it.
        shares: what the leader of this generation has sent, None until it has.
    """

    def __init__(self) -> None:
        self.members: dict[str, Place] = {}
        self.generation = 0
        self.joining = False
        self.participants: dict[int, frozenset[str]] = {0: frozenset()}
        self.assignor = self.leader = ""
        self.shares: dict[str, bytes] | None = None
        self._ids = count(1)

    def join(self, member_id: str | None, offers: Offers, version: int) -> str:
        """Take a member in, or in again; its id."""
        if member_id is not None and member_id not in self.members:
            raise UnknownMember
        others = [place.offers for other, place in self.members.items() if other != member_id]
        if others and not _common(others) & {name for name, _ in offers}:
            raise Inconsistent
        if member_id is None:
            member_id = f"member-{next(self._ids)}"
        elif not self.joining and member_id != self.leader and self.members[member_id].offers == offers:
            self.members[member_id].answer = self.generation
            return member_id  # it has only missed the answer: Kafka gives it the same one again
        self.members[member_id] = Place(offers=offers, version=version)
        self._rebalance(besides=member_id)
        return member_id

    def leave(self, member_id: str) -> None:
        """Forget a member: it said so, or its session is over."""
        if self.members.pop(member_id, None) is not None:
            self._rebalance()

    def heartbeat(self, member_id: str) -> None:
        """Nothing, or why to join again."""
        if member_id not in self.members:
            raise UnknownMember
        if self.joining:
            raise Rebalancing

    def joined(self, member_id: str) -> int | None:
        """The answer to this member's JoinGroup: the generation. None while others are waited for."""
        if member_id not in self.members:
            raise UnknownMember
        return self.members[member_id].answer

    def told(self) -> list[Joined]:
        """What the JoinGroup answer tells the leader."""
        return [
            Joined(member_id=member_id, subscription=decode_subscription(dict(place.offers)[self.assignor]))
            for member_id, place in self.members.items()
        ]

    def sync(self, member_id: str, generation: int, shares: dict[str, bytes] | None = None) -> bytes | None:
        """This member's share; None while the leader has not sent them."""
        self.heartbeat(member_id)
        if generation != self.generation:
            raise Rebalancing
        if shares is not None:
            self.shares = shares
        return None if self.shares is None else self.shares[member_id]

    def _rebalance(self, besides: str = "") -> None:
        if not self.joining:
            self.joining, self.shares = True, None
            for member_id, place in self.members.items():
                place.joined = member_id == besides
        if self.members and all(place.joined for place in self.members.values()):
            self.joining = False
            self.generation += 1
            self.participants[self.generation] = frozenset(self.members)
            self.assignor = _chosen([place.offers for place in self.members.values()])
            for place in self.members.values():
                place.answer = self.generation
            self.leader = choose_leader([(member_id, place.version) for member_id, place in self.members.items()])


def _common(offers: Iterable[Offers]) -> set[str]:
    return set.intersection(*({name for name, _ in each} for each in offers))


def _chosen(offers: Sequence[Offers]) -> str:
    common = _common(offers)
    votes = [next(name for name, _ in each if name in common) for each in offers]
    return max(sorted(common), key=votes.count)


# --------------------------------------------------------------------------------------------------
# A process


class Phase(Enum):
    """What a process does in its next step."""

    PREPARE = "gives up what it must before it joins"
    JOIN = "sends JoinGroup"
    WAIT = "waits for the answer, and leads if it is to"
    SYNC = "waits for its share"
    REVOKE = "gives up what is gone from its share"
    TAKE = "takes what is new in its share"
    STABLE = "sends a heartbeat"
    REFUSED = "has ended: it fits in with nobody"


@dataclass(slots=True, eq=False)
class Process:
    """A consumer.

    Attributes:
        configured: names of its assignors, in order of preference.
        holds: what it is working on.
        generation: the one that gave it what it holds: what it says in its JoinGroup.
        joined_at: the generation of its last JoinGroup answer.
        share: the answer to its SyncGroup.
        after: what it does with it.
        joined_for: the topics it wanted when it joined.
        saw: the topics it shared out, if it leads.
        alive: false: nothing of it is left.
        frozen: it stands still; holding on to what it has.
        stubborn: when told that it is unknown it joins again as if nothing had been, with its old claim.
        loses: the next share on its way to it does not arrive.
        speaks: the version of its subscriptions; below 2 it cannot say its generation.
    """

    name: str
    configured: tuple[str, ...]
    subscribed: frozenset[str]
    holds: Partitions = NOTHING
    generation: int = -1
    joined_at: int = -1
    member_id: str | None = None
    phase: Phase = Phase.PREPARE
    share: Partitions = NOTHING
    after: AfterSync = field(default_factory=AfterSync)
    joined_for: frozenset[str] = frozenset()
    saw: dict[str, int] = field(default_factory=dict)
    alive: bool = True
    frozen: bool = False
    stubborn: bool = False
    loses: bool = False
    speaks: int = HIGHEST_VERSION
    assignors: list[PartitionAssignor] = field(init=False)
    protocol: RebalanceProtocol = field(init=False)

    def __post_init__(self) -> None:
        self.assignors = [KINDS[name]() for name in self.configured]
        self.protocol = choose_protocol(self.assignors)

    @property
    def can_step(self) -> bool:
        """Whether anything can come of it."""
        return self.alive and not self.frozen and self.phase is not Phase.REFUSED


class ClassicGroup:
    """The group, its processes and the topics; ``seed`` is of the order in which processes take their steps.

    Attributes:
        story: what happened, for whoever reads a failure.
        revoked: how often each process has given a partition up.
    """

    def __init__(self, *, seed: int = 0, **topics: int) -> None:
        self._random = Random(seed)
        self.coordinator = Coordinator()
        self.topics = dict(topics)
        self.processes: list[Process] = []
        self.story: list[str] = []
        self.revoked: dict[str, int] = {}
        self._names = count(1)

    @property
    def running(self) -> list[Process]:
        """Those that take part, or could again."""
        return [each for each in self.processes if each.alive and each.phase is not Phase.REFUSED]

    def start(self, *configured: str, topics: Iterable[str] = ("t", "u"), speaks: int = HIGHEST_VERSION) -> Process:
        """A new process."""
        name = f"p{next(self._names)}"
        process = Process(name=name, configured=configured, subscribed=frozenset(topics), speaks=speaks)
        self.processes.append(process)
        self._tell(process, f"starts with {', '.join(configured)}, version {speaks}")
        return process

    def stop(self, process: Process) -> None:
        """Ends it in order: it gives up what it has, then leaves."""
        self._tell(process, "leaves")
        process.holds, process.alive = NOTHING, False
        self._forget(process)

    def kill(self, process: Process) -> None:
        """Nothing of it is left; the group does not know yet."""
        self._tell(process, "dies")
        process.holds, process.alive = NOTHING, False

    def session_over(self, process: Process) -> None:
        """The group forgets a process that it has not heard of."""
        self._tell(process, "has been silent for too long")
        self._forget(process)

    def _forget(self, process: Process) -> None:
        if process.member_id is not None:
            self.coordinator.leave(process.member_id)

    def _tell(self, process: Process, what: str) -> None:
        self.story.append(f"{process.name} {what}")

    # ----------------------------------------------------------------------------------------------

    def step(self, process: Process) -> None:
        """One step of one process."""
        if not process.can_step:
            return
        try:
            self._step(process)
        except UnknownMember:
            self._tell(process, "is told that it is unknown" + (", and does not mind" if process.stubborn else ""))
            if not process.stubborn:
                process.generation = -1
            process.member_id, process.phase = None, Phase.PREPARE
        except Rebalancing:
            process.phase = Phase.PREPARE
        except Inconsistent:
            self._tell(process, "is refused")
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
                self._gives_up(process, before.lost | before.revoked)
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
                    (name, encode_subscription(decode_subscription(said), process.speaks)) for name, said in offers
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
                    self._tell(process, f"misses its share of generation {process.joined_at}")
                    return
                process.share, process.phase = decode_assignment(data).partitions, Phase.REVOKE
            case Phase.REVOKE:
                process.after = after_sync(owned=process.holds, assigned=process.share, subscribed=process.subscribed)
                self._gives_up(process, process.after.revoked)
                process.phase = Phase.TAKE
            case Phase.TAKE:
                self._takes(process, process.after.added)
                assert process.holds == process.after.holds
                if process.holds == process.share:  # not where the share was made for an earlier subscription
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
        group = group_input(self.coordinator.told(), topics, assignor)
        return assignments_to_send(group, validate_result(assignor, group, run_assignor(assignor, group)))

    def _gives_up(self, process: Process, partitions: Partitions) -> None:
        if partitions:
            self._tell(process, f"gives up {_listed(partitions)}")
            self.revoked[process.name] = self.revoked.get(process.name, 0) + len(partitions)
        process.holds -= partitions

    def _takes(self, process: Process, partitions: Partitions) -> None:
        """The promise: nobody that was asked in this generation still holds what is taken in it.

        A process that the group has forgotten is no party to it, neither by what it holds nor by what it takes late: it
        cannot be asked, and whatever it commits is refused.
        """
        if partitions:
            self._tell(process, f"takes {_listed(partitions)} of generation {process.joined_at}")
        known = process.member_id in self.coordinator.members
        party = self.coordinator.participants[process.joined_at] if known else frozenset()
        for other in self.processes:
            if other is not process and other.member_id in party and other.holds & partitions:
                raise AssertionError(self.told(f"{_listed(other.holds & partitions)} has two owners"))
        process.holds |= partitions

    # ----------------------------------------------------------------------------------------------

    def settle(self, *, most_rounds: int = 1000) -> int:
        """Everybody goes on, the dead are forgotten, until nothing happens any more; how many rebalances that took."""
        before = self.coordinator.generation
        for process in self.processes:
            process.frozen = process.loses = False
        for _ in range(most_rounds):
            for process in self.processes:
                if not process.alive or process.phase is Phase.REFUSED:
                    self._forget(process)
            seen = self._state()
            self.round()
            busy = self.coordinator.joining or any(each.phase is Phase.REVOKE for each in self.running)
            if seen == self._state() and not busy:
                return self.coordinator.generation - before
        raise AssertionError(self.told("it never comes to rest"))

    def round(self) -> None:
        """Everybody takes a step, in any order; who has something to give up is slow about it.

        Were it as quick as the others it would let go just before somebody else takes, whatever the rules are.
        """
        for process in self._random.sample(self.processes, len(self.processes)):
            if process.phase is not Phase.REVOKE or self._random.random() < 0.2:
                self.step(process)

    def _state(self) -> object:
        return self.coordinator.generation, [(each.phase, each.holds, each.member_id) for each in self.processes]

    def check_rest(self) -> None:
        """At rest every partition that somebody wants has one owner, who wants it."""
        found = [(partition, each) for each in self.running for partition in each.holds]
        if len({partition for partition, _ in found}) < len(found):
            raise AssertionError(self.told("two owners at rest"))
        for partition, process in found:
            if partition.topic not in process.subscribed or partition.partition >= self.topics[partition.topic]:
                raise AssertionError(self.told(f"{process.name} holds {partition}, which it does not want"))
        wanted = set[str]().union(*(each.subscribed for each in self.running))
        count = sum(number for name, number in self.topics.items() if name in wanted)
        if len(found) < count:
            raise AssertionError(self.told(f"{count - len(found)} of {count} partitions have no owner at rest"))

    def told(self, what: str) -> str:
        """A failure and what led to it."""
        now = [f"{each.name} {each.protocol.name} {each.phase.name}: {_listed(each.holds)}" for each in self.running]
        return "\n  ".join([what, *self.story, "and now:", *now])


def _listed(partitions: Partitions) -> str:
    return " ".join(map(str, sorted(partitions))) or "nothing"

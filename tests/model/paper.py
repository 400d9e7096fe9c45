"""A group on paper: what the model holds, and what follows from it by looking at all of it.

Nothing here changes anything; the inputs that do are in ``model``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from connectgroup.protocol.messages.assignment import InstallRequest
from connectgroup.protocol.messages.common import each_unit
from connectgroup.protocol.units import Unit

from .connectors import places, to_run
from .words import (
    COORDINATOR,
    RUNNING,
    STABLE,
    STOPPED,
    UNREVOKED,
    Asked,
    Choice,
    Connector,
    Delay,
    Grants,
    Limits,
    Member,
    Proposal,
    Question,
    Share,
    Timer,
    preferred,
    usable,
)


class Paper:
    """One group: plain dictionaries, and questions to all of it."""

    def __init__(self, limits: Limits) -> None:
        """A group that nobody has made yet."""
        self.limits = limits
        self.now_ms = 0
        self.choice = Choice()
        self.requested = False  # in this step, a server-side assignor
        self.made_ms = 0
        self.epoch = 0
        self.target_epoch = 0
        self.target_ms = 0  # when an assignor answered with it; 0: never
        self.computed_by = ""
        self.assignor = ""
        self.deferred = 0
        self.rebalancing = False  # since the epoch was raised, until all have arrived
        self.members: dict[str, Member] = {}
        self.target: dict[str, Share] = {}
        self.connectors: dict[str, Connector] = {}
        self.asked: Asked | None = None
        self.delays: dict[str, Delay] = {}
        self.statuses: dict[Unit, tuple[str, int, int, str]] = {}
        self._run: tuple[dict[str, Connector] | None, Grants] = None, {}
        self.installed: InstallRequest | None = None  # the last, where it is known

    # ---- who has what

    def to_run(self) -> Grants:
        """What somebody shall run, with the epoch its configuration is of."""
        if self._run[0] is not self.connectors:
            self._run = self.connectors, to_run(self.connectors)  # asked for at every step, and seldom another
        return self._run[1]

    def share(self, who: str) -> Share:
        """A member's part of the target."""
        return self.target.get(who, Share())

    def holder(self, unit: Unit) -> str | None:
        """Who has a unit; a revocation that is not acknowledged counts as held."""
        return next((who for who, member in self.members.items() if unit in member.held), None)

    def named(self, instance: str | None) -> str | None:
        """The member that has a static name."""
        return next((who for who, each in self.members.items() if instance and each.instance == instance), None)

    def arrived(self, who: str) -> bool:
        """Whether a member has all of the target and nothing else; nobody waits for one that is away."""
        member = self.members[who]
        there = member.epoch == self.target_epoch and member.state == STABLE
        return member.temporarily_left or (there and member.assigned.keys() == self.share(who).units)

    def state(self) -> str:
        """The group's state in a word (S8)."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        return "Stable" if all(map(self.arrived, self.members)) else "Reconciling"

    def is_back(self, who: str, served: set[str] | None = None) -> bool:
        """Whether the worker that a delay waits for is here again; and among these, where that is asked."""
        name = self.returned_as(who)
        return name is not None and (served is None or name in served)

    def returned_as(self, who: str) -> str | None:
        """Under which id the worker that a delay waits for is here again: its own, or that of its static name."""
        return who if who in self.members else self.named(self.delays[who].instance)

    def kept(self, who: str) -> frozenset[Unit]:
        """What of a delay has reason to wait: not what is gone, nor what was made anew or reconfigured since."""
        units, delay = self.to_run(), self.delays[who]
        return frozenset(unit for unit in delay.share.units if unit in units and units[unit] <= delay.epoch)

    def lost(self, served: set[str] | None = None) -> set[Unit]:
        """What nobody is given for now, because it waits for a lost worker."""
        return {unit for who in self.delays if who and not self.is_back(who, served) for unit in self.kept(who)}

    def served(self, said: Proposal, epoch: int) -> set[str] | None:
        """Whom a proposal of an earlier epoch can know to be back: those it names. One of the newest knows all."""
        return None if epoch == self.epoch else {share.member_id for share in said.members}

    def broken(self) -> Iterator[str]:
        """Which of the promises does not hold: then the product and the model may agree as they like."""
        held = [unit for member in self.members.values() for unit in member.held]
        if len(set(held)) < len(held):
            yield f"S1: held twice: {sorted(unit for unit in set(held) if held.count(unit) > 1)}"
        for who, member in self.members.items():
            if member.epoch > self.target_epoch or self.target_epoch > self.epoch:
                yield f"S4: {who} is at {member.epoch}, the target at {self.target_epoch}, the group at {self.epoch}"
            if (member.state == UNREVOKED) != bool(member.pending):
                yield f"S7: {who} is {member.state} and stops {sorted(member.pending)}"
        if self.members and self.epoch == self.target_epoch:
            placed = [unit for share in self.target.values() for unit in share.units]
            waits = [unit for who in self.delays for unit in self.kept(who)]
            if sorted(placed + waits) != sorted(self.to_run()):
                yield f"S9: placed {sorted(placed)}, held back {sorted(waits)}, to run {sorted(self.to_run())}"
        elif self.members and self.asked is None and not self.limits.assignment_interval_ms:
            yield "L5: the target is out of date, and nobody is asked"

    def rest_ms(self) -> int:
        """How long the newest target is still to be left alone, whatever the clock did since (TO-06, TO-08, F14)."""
        passed_ms = self.now_ms - self.target_ms
        return max(self.limits.assignment_interval_ms - passed_ms, 0) if self.target_ms and passed_ms >= 0 else 0

    def timers(self) -> dict[Timer, int]:
        """Every timer that must be running, with the time it was set for."""
        waits: dict[Timer, int] = {}
        for who, member in self.members.items():
            waits["session", who] = self.limits.session_timeout_ms
            if member.state == UNREVOKED:
                waits["rebalance", who] = member.timeout_ms
        if self.asked is not None:
            asked = self.members.get(self.asked.who)
            waits["compute", ""] = asked.timeout_ms if asked else self.limits.session_timeout_ms
        elif self.members and self.epoch > self.target_epoch:
            waits["compute", ""] = self.rest_ms()
        return {**waits, **{("delay", who): delay.delay_ms for who, delay in self.delays.items()}}

    def left_ms(self, who: str) -> int:
        """What a delay has left, whatever the clock did since (F14)."""
        delay = self.delays[who]
        return min(max(delay.deadline_ms - self.now_ms, 0), delay.delay_ms)

    # ---- who computes, and what

    def may_compute(self) -> set[str]:
        """Who may be asked (PD-06)."""
        assert self.asked is not None
        if self.asked.failures >= self.limits.failures_before_fallback:
            return {COORDINATOR}
        may = (able - self.asked.failed or able or {COORDINATOR} for able in self.able().values())
        return set().union(*may) or {COORDINATOR}

    def able(self) -> dict[str, set[str]]:
        """By assignor that may be used: who is here and can run it for all (CN-01)."""
        able = {}
        for name in preferred(self.members.values()):
            infos = {who: info for who, each in self.members.items() for info in each.assignors if info.name == name}
            lowest = min(info.minimum_version for info in infos.values())
            highest = max(info.maximum_version for info in infos.values())
            there = {who: infos[who] for who in self.candidates()}
            cover = {
                who for who, info in there.items() if info.minimum_version <= lowest and info.maximum_version >= highest
            }
            able[name] = cover or {
                who
                for who, info in there.items()
                if all(info.minimum_version <= each.version <= info.maximum_version for each in infos.values())
            }
        return able

    def own_assignors(self) -> set[str]:
        """Which of its own the coordinator may run: the one all ask for, else that or what the operator has set."""
        asked = {member.server_assignor for member in self.members.values()}
        wanted = {name for name in asked if name is not None}
        return wanted if len(asked) == len(wanted) == 1 else wanted | {self.limits.server_assignor}

    def candidates(self) -> set[str]:
        """Members that are here and stay."""
        return {who for who in self.asked_for() if not self.members[who].temporarily_left}

    def supported(self, member: Member, others: Iterable[Member]) -> bool:
        """Whether the assignors a member brings are served, and leave the group one that all could use."""
        if member.server_assignor is not None and member.server_assignor not in self.limits.server_assignors:
            return False
        return not member.assignors or bool(usable([member, *(each for each in others if each.assignors)]))

    def question(self, assignor: str) -> Question:
        """The group as an assignor sees it: nothing is to be given to those that are leaving."""
        units = self.to_run().keys()
        said = {
            (who, info.name): (info.version, info.reason, info.metadata)
            for who, member in self.members.items()
            for info in member.assignors
        }
        nothing = 0, 0, b""
        return Question(
            members={
                who: (
                    self.members[who].epoch,
                    self.members[who].instance,
                    (self.share(who).units | self.returned(who)) & units,
                    said.get((who, assignor), nothing),
                    self.share(who).metadata if self.assignor == assignor else b"",
                )
                for who in self.asked_for()
            },
            connectors={
                name: (len(each.tasks) if each.wanted == RUNNING else 0, places(each.config))
                for name, each in self.connectors.items()
                if each.wanted != STOPPED
            },
            delayed=self.waiting(),
        )

    def waiting(self) -> dict[str, frozenset[Unit]]:
        """What is held back, by the worker that is waited for; as it is shown."""
        return {who: self.kept(who) for who in self.delays if not self.is_back(who)}

    def asked_for(self) -> set[str]:
        """Members that may be given work: all but those that drain, unless nobody else is there to take theirs."""
        stay = {who for who, each in self.members.items() if not each.draining}
        return stay if any(not self.members[who].temporarily_left for who in stay) else set(self.members)

    def returned(self, who: str) -> frozenset[Unit]:
        """What waits for a member that is back."""
        return frozenset(unit for name in self.delays_for(who) for unit in self.kept(name))

    def delays_for(self, who: str) -> list[str]:
        """The delays that wait for a member."""
        return [name for name in self.delays if self.returned_as(name) == who]

    def called_for(self, who: str, instance: str | None) -> list[str]:
        """The delays that name a member or its instance, whether or not somebody else is back for them already."""
        return [name for name, delay in self.delays.items() if name == who or delay.instance == instance is not None]

    def legal(self, said: Proposal, epoch: int | None = None) -> bool:
        """Each unit that shall run goes to exactly one member or waits, and nothing else (S9, CN-07).

        What is newer than the epoch of the question may be left out, and a member that drains since may be named.
        """
        epoch = self.epoch if epoch is None else epoch
        lost = self.lost(self.served(said, epoch))
        missing = {unit for unit, since in self.to_run().items() if since <= epoch} - set(self.placed(said))
        return (
            not self.contradictory(said, lost)
            and {share.member_id for share in said.members}
            <= (self.asked_for() if epoch == self.epoch else self.members.keys())
            and set(self.placed(said)) <= self.to_run().keys()
            and missing <= lost
        )

    def contradictory(self, said: Proposal, lost: set[Unit] | None = None) -> bool:
        """Whether a proposal is illegal whatever the group is."""
        names = [share.member_id for share in said.members]
        units = [unit for unit in self.placed(said) if unit not in (lost or ())]
        return said.delay_ms > self.limits.max_delay_ms or len(set(names)) < len(names) or len(set(units)) < len(units)

    def placed(self, said: Proposal) -> list[Unit]:
        """What a proposal names."""
        return [*said.left_out, *(unit for share in said.members for unit in each_unit(share.units))]

    def readable(self, said: Proposal, assignor: str) -> bool:
        """Whether each member can read what the assignor says to it (CN-01)."""
        return all(
            info.minimum_version <= share.version <= info.maximum_version
            for share in said.members
            for info in self.members[share.member_id].assignors
            if info.name == assignor
        )

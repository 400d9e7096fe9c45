"""How the model comes to a new target: who is asked, what it is shown, and when its answer is taken.

Sources: "Connect on the new protocol", sections "Assignment" and "Worker Selection"; PD-06, PD-08; CN-01..CN-08,
TO-06..TO-08, TA-01, TA-02, HB-13, HB-18; connectgroup/ARCHITECTURE.md for rounds, draining and an assignor's own delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from connectgroup.errors import (
    FencedMemberEpoch,
    GroupIdNotFound,
    InvalidAssignment,
    InvalidRequest,
    StaleGroupEpoch,
    UnknownMemberId,
)
from connectgroup.protocol.messages.assignment import InstallRequest, PrepareRequest
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.units import Unit

from .paper import Paper
from .words import COORDINATOR, Answer, Asked, Delay, NotAllowed, Proposal, Share, preferred

MAX_ASKED = 3
"""Members that are asked for one computation at most, before a rebalance timeout decides."""

MIN_DELAY_MS = 1_000
"""An assignor that asks for less is given this: it must not keep the group busy with nothing else (L2)."""


class Computing(Paper):
    """A group whose epoch can be raised, and whose target is computed for it."""

    def bump(self, *, same_target: bool = False) -> None:
        """A new group epoch; a new target is asked for, unless the one there is goes on as it is."""
        if self.epoch == 0:
            made_ms = self.choice.made_ms
            if self.made_ms and made_ms // 1000 <= self.made_ms // 1000:
                # A token is the second in which the group was made above the owner epoch, and tokens grow (X1).
                raise NotAllowed(f"made at {made_ms} ms, the group before it at {self.made_ms} ms")
            self.made_ms = made_ms
        self.epoch += 1
        self.rebalancing = True
        if not self.members:
            self.target_epoch, self.target_ms, self.computed_by, self.assignor = self.epoch, 0, COORDINATOR, ""
            self.asked, self.deferred = None, 0
            self.delays.pop("", None)  # nobody is left to be asked again
        elif same_target:
            self.target_epoch = self.epoch
        elif self.asked is not None and (self.asked.who or self.asked.prepared):
            self.reconsider()  # its answer may still be valid, and the next computation is for all that came since
        else:
            self.asked = None
            self.begin()

    # ---- who is asked

    def begin(self, *, waited: bool = False) -> None:
        """Have the newest target computed, if nobody is at it and the last is old enough (TO-06 to TO-08)."""
        stale = bool(self.members) and self.epoch > self.target_epoch
        if stale and self.asked is None and (waited or not self.rest_ms()):
            self.ask(Asked())

    def reconsider(self) -> None:
        """Somebody went away or is back: whoever was asked may not be the one to ask any more."""
        if self.asked is None:
            return
        by_assignor, who = list(self.able().values()), self.asked.who
        able = set().union(*by_assignor)
        spent = self.asked.failures >= self.limits.failures_before_fallback
        # Able with one of the assignors that may be used, and not with another: the product's choice says with which.
        depends = who in able and not all(who in each for each in by_assignor)
        if not who and self.asked.prepared:
            return  # a server-side assignor computes
        if (who not in able or (depends and self.choice.computer != who)) if who else able and not spent:
            self.ask(self.asked)
        elif who and not self.asked.assignor and self.asked.epoch < self.epoch:
            self.replace_chosen()

    def replace_chosen(self) -> None:
        """The group epoch advanced before the chosen member prepared: another is chosen, of three at most."""
        assert self.asked is not None
        asked = {*self.asked.replaced, self.asked.who}
        others = [able - asked - self.asked.failed for able in self.able().values()]
        stays = self.choice.computer == self.asked.who and not all(others)
        if len(asked) >= MAX_ASKED or not any(others) or stays:
            return
        who = self.chosen("asked instead", self.choice.computer, set().union(*others))
        self.asked.who, self.asked.epoch, self.asked.assignor, self.asked.replaced = who, self.epoch, "", asked

    def ask(self, asked: Asked) -> None:
        """A member is asked for the target, or a server-side assignor is requested."""
        self.asked = asked
        asked.who, asked.prepared, asked.epoch, asked.assignor = "", False, self.epoch, ""
        may, own = self.may_compute(), self.own_assignors()
        name, can = self.choice.server_assignor, bool(own & self.limits.server_assignors)
        if COORDINATOR in may and can and self.choice.computer == "" and name is not None:
            asked.prepared, asked.replaced = True, set()
            asked.assignor = self.chosen("server-side assignor", name, own & self.limits.server_assignors)
            self.requested = True
            return
        cannot = {""} if COORDINATOR in may and own - self.limits.server_assignors else set()
        asked.who = self.chosen("asked to compute", self.choice.computer, may - {COORDINATOR} | cannot)
        asked.replaced = asked.replaced - {asked.who} if asked.who else set()

    def computed(self, epoch: int, assignor: str, proposal: Proposal | None) -> None:
        """The result of a server-side assignor: judged by the group epoch of its input, as an Install is (PD-06).

        ``proposal`` is ``None`` if the assignor failed.
        """
        asked = self.asked
        if asked is None or asked.who or not asked.prepared or not asked.epoch <= epoch <= self.epoch:
            return  # stale
        if proposal is not None and self.legal(proposal, epoch) and self.readable(proposal, assignor):
            self.assignor = assignor
            self.take(proposal, COORDINATOR, epoch)
            self.begin()
        elif epoch < self.epoch and not (proposal is not None and self.contradictory(proposal)):
            self.ask(asked)
        else:
            asked.prepared, asked.assignor, asked.epoch = False, "", self.epoch

    def chosen(self, what: str, choice: str | None, may: set[str]) -> str:
        """The product's choice, which must be one of the allowed; nobody's choice is the first of them."""
        if choice is None and may:
            return min(may)
        if choice is None or choice not in may:
            raise NotAllowed(f"{what}: {choice!r}; allowed: {sorted(may)}")
        return choice

    def failed(self, asked: Asked) -> None:
        """One attempt less."""
        asked.failures += 1
        asked.failed |= {asked.who, *asked.replaced}
        asked.replaced = set()
        self.ask(asked)

    def expire_computation(self) -> None:
        """Nobody has computed in time: another is asked, and the silent one is not fenced (CN-06)."""
        if self.asked is None:
            self.begin(waited=True)
        elif self.asked.who:
            self.failed(self.asked)
        else:
            self.ask(self.asked)  # the coordinator's own failed: it tries again

    def rest(self) -> None:
        """All have arrived: the next round begins, if moves were left for it or somebody who goes still has work."""
        takers = self.asked_for()
        going = any(self.share(who).units for who in self.members if who not in takers)
        if self.state() == "Stable" and (self.deferred or going):
            self.bump()
        self.rebalancing = self.rebalancing and self.state() not in ("Stable", "Empty")

    # ---- what it asks, and answers

    def prepare(self, said: PrepareRequest) -> Answer:
        """ "Returns the group state of the group" to the chosen member only (CN-04).

        A member that was replaced because the group epoch advanced becomes the chosen one again with its Prepare.
        """
        refused = self.not_the_chosen(said)
        if self.asked is not None and refused == UnknownMemberId.code and self.may_return(said.member_id):
            self.asked.who, refused = said.member_id, 0
        if refused or self.asked is None:
            return Answer(code=refused)
        self.asked.prepared, self.asked.epoch, self.asked.replaced = True, self.epoch, set()
        assignor = self.chosen("assignor", self.choice.assignor, preferred(self.members.values()))
        self.asked.assignor = assignor
        return Answer(epoch=self.epoch, question=self.question(assignor))

    def may_return(self, who: str) -> bool:
        """Whether a replaced member may compute after all; where assignors differ, the product's choice decides."""
        able = [who in each for each in self.able().values()]
        replaced = self.asked is not None and who in self.asked.replaced
        return replaced and (all(able) if all(able) or not any(able) else self.choice.computer == who)

    def not_the_chosen(self, said: PrepareRequest | InstallRequest) -> int:
        """The error for whoever may not compute."""
        member = self.members.get(said.member_id)
        if not said.group_id or not said.member_id or said.member_epoch < 0:
            return InvalidRequest.code
        if self.epoch == 0:
            return GroupIdNotFound.code
        if member is None:
            return UnknownMemberId.code
        # An Install is judged by member and prepared epoch alone (PD-06); a Prepare's epoch may be outdated.
        if isinstance(said, PrepareRequest) and said.member_epoch > member.epoch:
            return FencedMemberEpoch.code
        return 0 if self.asked is not None and self.asked.who == said.member_id else UnknownMemberId.code

    def install(self, said: InstallRequest) -> Answer:
        """The target, taken whole or not at all (S13)."""
        refused = self.not_the_chosen(said)
        if said.group_epoch < 0 or said.delay_ms < 0 or (said.delayed and not said.delay_ms):
            return Answer(code=InvalidRequest.code)
        if not refused or (refused == UnknownMemberId.code and said.member_id in self.members):
            if said.group_epoch == self.target_epoch and self.computed_by == said.member_id:
                if self.installed is None:
                    return Answer(code=None)
                if replace(self.installed, member_epoch=said.member_epoch) == said:
                    return Answer()  # the same once more (CN-08)
            prepared: int | None = self.epoch
            if self.asked is not None and not refused:
                # Asked anew for an epoch that has passed, and not come for the question since: nothing is prepared.
                prepared = self.asked.epoch if self.asked.assignor or self.asked.epoch == self.epoch else None
            if said.group_epoch != prepared:
                return Answer(code=StaleGroupEpoch.code)
        if refused or self.asked is None:
            return Answer(code=refused)
        if said.error:
            self.failed(self.asked)
            return Answer()
        proposal = Proposal(members=said.members, left_out=units_of(said.delayed), delay_ms=said.delay_ms)
        may = {self.asked.assignor} if self.asked.assignor else preferred(self.members.values())
        if not self.legal(proposal, said.group_epoch) or not self.readable(proposal, min(may)):
            if said.group_epoch < self.epoch and not self.contradictory(proposal):
                self.ask(self.asked)  # the group has changed: not the member's fault
                return Answer(code=StaleGroupEpoch.code)
            self.failed(self.asked)
            return Answer(code=InvalidAssignment.code)
        self.assignor = self.chosen("assignor", self.choice.assignor, may)
        self.take(proposal, said.member_id, said.group_epoch)
        self.installed = said
        self.begin()
        return Answer()

    def take(self, said: Proposal, by: str, epoch: int | None = None) -> None:
        """The target is installed, whole, but for what waits and what would be one move too many."""
        epoch = self.epoch if epoch is None else epoch
        self.end_delays(said, epoch)
        waits, words = self.lost(self.served(said, epoch)), {share.member_id: share for share in said.members}
        shares = self.one_round({who: units_of(share.units) - waits for who, share in words.items()})
        # What is left out until its holder has let go of it need not wait for longer than that (KIP-415's first round).
        self.deferred += sum(self.holder(unit) is not None for unit in said.left_out - waits)
        # What a member that is in nobody's answer was told before still holds for what it keeps.
        told = {who: words.get(who) or self.share(who) for who in shares}
        self.target = {
            who: Share(units=units, error=told[who].error, version=told[who].version, metadata=told[who].metadata)
            for who, units in shares.items()
        }
        for who, member in self.members.items():
            if member.temporarily_left:
                # Nothing runs there: what it is to give up is free at once.
                member.assigned = {unit: 0 for unit in member.assigned if unit in self.share(who).units}
        # One that named nobody is no reason to let the next change wait.
        self.target_ms = self.now_ms if words else 0
        self.target_epoch, self.computed_by, self.asked = epoch, by, None

    def end_delays(self, said: Proposal, epoch: int) -> None:
        """Who is back is in the new target; and the assignor's own delay is the one it asks for now, if it does.

        "Neither restarted": one that asks again for the same units keeps the deadline it had (S15).
        """
        before, served = self.delays.pop("", None), self.served(said, epoch)
        self.delays = {who: delay for who, delay in self.delays.items() if not self.is_back(who, served)}
        if not said.delay_ms:
            return
        left_out, delay_ms = said.left_out - self.lost(served), max(said.delay_ms, MIN_DELAY_MS)
        deadline_ms = self.now_ms + delay_ms
        if before is not None and left_out and left_out <= before.share.units:
            deadline_ms = min(deadline_ms, before.deadline_ms)
        self.delays[""] = Delay(share=Share(units=left_out), delay_ms=delay_ms, deadline_ms=deadline_ms, epoch=epoch)

    def one_round(self, shares: Mapping[str, frozenset[Unit]]) -> dict[str, frozenset[Unit]]:
        """The moves of one round: what is over stays where it runs until all have arrived (``max_moves``)."""
        moves = {
            unit: holder
            for who, units in shares.items()
            for unit in units
            if (holder := self.holder(unit)) is not None
            and holder != who
            and not self.members[holder].temporarily_left
            and unit in self.share(holder).units  # else it is on its way already
        }
        late = sorted(moves)[self.limits.max_moves or len(moves) :]
        self.deferred = len(late)
        after = {who: units.difference(late) for who, units in shares.items()}
        for unit in late:
            after[moves[unit]] = after.get(moves[unit], frozenset()) | {unit}
        return after

"""How the model computes a new target: who is chosen, what the input is, and when an assignment is installed.

Sources: "Connect on the new protocol", sections "Assignment" and "Worker Selection"; PD-06, PD-08; CN-01..CN-08,
TO-06..TO-08, TA-01, TA-02, HB-13, HB-18; the decisions in ``connectgroup.group.connect`` for
rounds, draining and an assignor's delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from connectgroup.errors import (
    FencedInstanceId,
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

from .state import GroupState
from .words import COORDINATOR, STARTING, Computation, Delay, Expected, MemberTarget, NotAllowed, Proposal, preferred

MAX_ASKED = 3
"""At most this many members are asked for one computation, before a rebalance timeout decides."""

MIN_DELAY_MS = 1_000
"""Minimum delay of an assignor: it must not keep the group busy (L2)."""


class Computing(GroupState):
    """A group with group epochs and computations."""

    def bump(self, *, same_target: bool = False) -> None:
        """A new group epoch; a new target is requested, unless the present one stays."""
        if self.epoch == 0:
            created_ms = self.choice.created_ms
            if self.created_ms and created_ms // 1000 <= self.created_ms // 1000:
                # A fencing token is the creation time in seconds above the owner epoch, and must increase (X1).
                raise NotAllowed(f"created at {created_ms} ms, the former group at {self.created_ms} ms")
            self.created_ms = created_ms
        self.epoch += 1
        self.rebalancing = True
        if not self.members:
            self.target_epoch, self.target_ms, self.computed_by, self.assignor = self.epoch, 0, COORDINATOR, ""
            self.computation, self.deferred, self.deferred_starts = None, 0, 0
            self.delays.pop("", None)  # no member is left to compute
        elif same_target:
            self.target_epoch = self.epoch
        elif self.computation is not None and (self.computation.who or self.computation.prepared):
            self.reconsider()  # its assignment may still be valid, and the next computation covers later changes
        else:
            self.computation = None
            self.start_computation()

    # ---- who computes

    def start_computation(self, *, waited: bool = False) -> None:
        """Start a computation, unless one is in progress or the interval has not passed (TO-06 to TO-08)."""
        stale = bool(self.members) and self.epoch > self.target_epoch
        if stale and self.computation is None and (waited or not self.interval_left_ms()):
            self.request_computation(Computation())

    def reconsider(self) -> None:
        """Members have left or returned: the chosen member may have to be replaced."""
        if self.computation is None:
            return
        by_assignor, who = list(self.able().values()), self.computation.who
        able = set().union(*by_assignor)
        spent = self.computation.failures >= self.limits.failures_before_fallback
        # If the member is able with only some of the usable assignors, the product's choice decides.
        depends = who in able and not all(who in each for each in by_assignor)
        if not who and (self.computation.prepared or self.computation.keeps_target):
            return  # a server-side assignor computes, or the assignor decided that the target stays
        if (who not in able or (depends and self.choice.computer != who)) if who else able and not spent:
            self.request_computation(self.computation)
        elif who and not self.computation.assignor and self.computation.epoch < self.epoch:
            self.replace_chosen()

    def replace_chosen(self) -> None:
        """The group epoch advanced before the chosen member prepared: another is chosen, of three at most."""
        assert self.computation is not None
        asked = {*self.computation.replaced, self.computation.who}
        others = [able - asked - self.computation.failed for able in self.able().values()]
        stays = self.choice.computer == self.computation.who and not all(others)
        if len(asked) >= MAX_ASKED or not any(others) or stays:
            return
        who = self.chosen("chosen instead", self.choice.computer, set().union(*others))
        computation = self.computation
        computation.who, computation.epoch, computation.assignor, computation.replaced = who, self.epoch, "", asked

    def request_computation(self, computation: Computation) -> None:
        """A member is chosen to compute, or a server-side assignor is requested."""
        self.computation, computation.keeps_target = computation, False
        computation.who, computation.prepared, computation.epoch, computation.assignor = "", False, self.epoch, ""
        may, own = self.may_compute(), self.own_assignors()
        name, can = self.choice.server_assignor, bool(own & self.limits.server_assignors)
        if COORDINATOR in may and can and self.choice.computer == "" and name is not None:
            computation.prepared, computation.replaced = True, set()
            computation.assignor = self.chosen("server-side assignor", name, own & self.limits.server_assignors)
            self.requested = True
            return
        cannot = {""} if COORDINATOR in may and own - self.limits.server_assignors else set()
        computation.who = self.chosen("chosen to compute", self.choice.computer, may - {COORDINATOR} | cannot)
        computation.replaced = computation.replaced - {computation.who} if computation.who else set()

    def computed(self, epoch: int, assignor: str, proposal: Proposal | None) -> None:
        """The result of a server-side assignor: validated for the group epoch of its input, as an Install (PD-06).

        ``proposal`` is ``None`` if the assignor failed.
        """
        computation = self.computation
        if computation is None or computation.who or not computation.prepared:
            return  # stale
        if not computation.epoch <= epoch <= self.epoch:
            return  # stale
        if proposal is not None and self.legal(proposal, epoch) and self.readable(proposal, assignor):
            self.assignor = assignor
            self.take(proposal, COORDINATOR, epoch)
            self.start_computation()
        elif epoch < self.epoch and not (proposal is not None and self.contradictory(proposal)):
            self.request_computation(computation)
        else:
            computation.prepared, computation.assignor, computation.epoch = False, "", self.epoch
            self.reconsider()  # members may be able to compute by now

    def chosen(self, what: str, choice: str | None, may: set[str]) -> str:
        """The product's choice, which must be an allowed one; if it is unknown, the first allowed one."""
        if choice is None and may:
            return min(may)
        if choice is None or choice not in may:
            raise NotAllowed(f"{what}: {choice!r}; allowed: {sorted(may)}")
        return choice

    def failed(self, computation: Computation) -> None:
        """One attempt has failed."""
        computation.failures += 1
        computation.failed |= {computation.who, *computation.replaced}
        computation.replaced = set()
        self.request_computation(computation)

    def keep_target(self, computation: Computation) -> None:
        """The assignor decided that the target stays until the next change or the timer; an earlier one counts not."""
        if computation.epoch < self.epoch:
            self.request_computation(computation)
        else:
            computation.who, computation.prepared, computation.assignor = "", False, ""
            computation.replaced, computation.keeps_target = set(), True

    def expire_computation(self) -> None:
        """The compute timer fires: another member is chosen, and the late one is not fenced (CN-06)."""
        if self.computation is None:
            self.start_computation(waited=True)
        elif self.computation.who:
            self.failed(self.computation)
        else:
            self.request_computation(self.computation)  # the server-side assignor failed: it runs again

    def expire_start(self) -> None:
        """Moves have waited for starting units for long enough: these count as not starting."""
        if self.deferred_starts:
            self.statuses = {unit: status for unit, status in self.statuses.items() if status[2] != STARTING}

    def start_next_round(self) -> None:
        """All members have reached the target: the next round starts if moves were deferred or members drain.

        Moves that were deferred for starting units follow when no unit is starting.
        """
        takers = self.assignable()
        going = any(self.share(who).units for who in self.members if who not in takers)
        started = self.deferred_starts and not self.starting()
        if self.state() == "Stable" and (self.deferred or started or going):
            self.bump()
        self.rebalancing = self.rebalancing and self.state() not in ("Stable", "Empty")

    # ---- Prepare and Install

    def prepare(self, request: PrepareRequest) -> Expected:
        """ "Returns the group state of the group" to the chosen member only (CN-04).

        A member that was replaced because the group epoch advanced is chosen again by its Prepare.
        """
        refused = self.not_the_chosen(request)
        if refused != InvalidRequest.code and self.is_of_another_process(request.member_id, request.process_id):
            return Expected(code=FencedInstanceId.code)
        if self.computation is not None and refused == UnknownMemberId.code and self.may_return(request.member_id):
            self.computation.who, refused = request.member_id, 0
        if refused or self.computation is None:
            return Expected(code=refused)
        self.computation.prepared, self.computation.epoch, self.computation.replaced = True, self.epoch, set()
        assignor = self.chosen("assignor", self.choice.assignor, preferred(self.members.values()))
        self.computation.assignor = assignor
        return Expected(epoch=self.epoch, assignor_input=self.assignor_input(assignor))

    def may_return(self, who: str) -> bool:
        """Whether a replaced member may compute after all; if assignors differ, the product's choice decides."""
        able = [who in each for each in self.able().values()]
        replaced = self.computation is not None and who in self.computation.replaced
        return (
            replaced
            and who in self.members
            and (all(able) if all(able) or not any(able) else self.choice.computer == who)
        )

    def not_the_chosen(self, request: PrepareRequest | InstallRequest) -> int:
        """The error for a member that may not compute."""
        member = self.members.get(request.member_id)
        if not request.group_id or not request.member_id or request.member_epoch < 0:
            return InvalidRequest.code
        if self.epoch == 0:
            return GroupIdNotFound.code
        if member is None:
            return UnknownMemberId.code
        # An Install is validated by member and prepared epoch alone (PD-06); the epoch of a Prepare may be outdated.
        if isinstance(request, PrepareRequest) and request.member_epoch > member.epoch:
            return FencedMemberEpoch.code
        return 0 if self.computation is not None and self.computation.who == request.member_id else UnknownMemberId.code

    def install(self, request: InstallRequest) -> Expected:
        """The assignment is installed as a whole or not at all (S13)."""
        refused = self.not_the_chosen(request)
        if request.group_epoch < 0 or request.delay_ms < 0 or (request.delayed and not request.delay_ms):
            return Expected(code=InvalidRequest.code)
        if self.is_of_another_process(request.member_id, request.process_id):
            return Expected(code=FencedInstanceId.code)
        if not refused or (refused == UnknownMemberId.code and request.member_id in self.members):
            if request.group_epoch == self.target_epoch and self.computed_by == request.member_id:
                if self.installed is None:
                    return Expected(code=None)
                if replace(self.installed, member_epoch=request.member_epoch) == request:
                    return Expected()  # a repeated Install (CN-08)
            prepared: int | None = self.epoch
            if self.computation is not None and not refused:
                # The member was asked again and has not prepared since.
                computation = self.computation
                prepared = computation.epoch if computation.assignor or computation.epoch == self.epoch else None
            if request.group_epoch != prepared:
                return Expected(code=StaleGroupEpoch.code)
        if refused or self.computation is None:
            return Expected(code=refused)
        if request.error and request.keeps_target:
            self.keep_target(self.computation)
            return Expected()
        if request.error:
            self.failed(self.computation)
            return Expected()
        proposal = Proposal(members=request.members, left_out=units_of(request.delayed), delay_ms=request.delay_ms)
        may = {self.computation.assignor} if self.computation.assignor else preferred(self.members.values())
        if not self.legal(proposal, request.group_epoch) or not self.readable(proposal, min(may)):
            if request.group_epoch < self.epoch and not self.contradictory(proposal):
                self.request_computation(self.computation)  # the group has changed: not a failure of the member
                return Expected(code=StaleGroupEpoch.code)
            self.failed(self.computation)
            return Expected(code=InvalidAssignment.code)
        self.assignor = self.chosen("assignor", self.choice.assignor, may)
        self.take(proposal, request.member_id, request.group_epoch)
        self.installed = request
        self.start_computation()
        return Expected()

    def take(self, proposal: Proposal, by: str, epoch: int | None = None) -> None:
        """Install the target, except for delayed units, starting units, and moves beyond the limit."""
        epoch = self.epoch if epoch is None else epoch
        starting, words = self.starting(), {share.member_id: share for share in proposal.members}
        stay = {
            unit: who
            for unit, who in starting.items()
            if unit in proposal.left_out
            or any(unit in units_of(share.units) for share in proposal.members if share.member_id != who)
        }
        proposal = replace(proposal, left_out=proposal.left_out - stay.keys())
        self.end_delays(proposal, epoch)
        waits = self.lost(self.served(proposal, epoch))
        wanted = {who: units_of(share.units) - waits - stay.keys() for who, share in words.items()}
        for unit, who in stay.items():
            wanted[who] = wanted.get(who, frozenset()) | {unit}
        shares = self.one_round(wanted)
        self.deferred_starts = len(stay)
        # Units left out until their owner has revoked them need not wait for the whole delay (KIP-415's first round).
        self.deferred += sum(self.holder(unit) is not None for unit in proposal.left_out - waits)
        # A member that the result does not contain keeps its former metadata.
        former = {who: words.get(who) or self.share(who) for who in shares}
        self.target = {
            who: MemberTarget(
                units=units, error=former[who].error, version=former[who].version, metadata=former[who].metadata
            )
            for who, units in shares.items()
        }
        for who, member in self.members.items():
            if member.temporarily_left:
                # Nothing runs there: removed units are released at once.
                member.assigned = {unit: 0 for unit in member.assigned if unit in self.share(who).units}
        # A target without members does not start an interval.
        self.target_ms = self.now_ms if words else 0
        self.target_epoch, self.computed_by, self.computation = epoch, by, None

    def end_delays(self, proposal: Proposal, epoch: int) -> None:
        """Delays of returned workers end; the assignor's delay is the one it requests now, if any.

        "Neither restarted": a delay requested again for the same units keeps its deadline (S15).
        """
        before, served = self.delays.pop("", None), self.served(proposal, epoch)
        self.delays = {who: delay for who, delay in self.delays.items() if not self.has_returned(who, served)}
        if not proposal.delay_ms:
            return
        left_out, delay_ms = proposal.left_out - self.lost(served), max(proposal.delay_ms, MIN_DELAY_MS)
        deadline_ms = self.now_ms + delay_ms
        if before is not None and left_out and left_out <= before.share.units:
            deadline_ms = min(deadline_ms, before.deadline_ms)
        self.delays[""] = Delay(
            share=MemberTarget(units=left_out), delay_ms=delay_ms, deadline_ms=deadline_ms, epoch=epoch
        )

    def one_round(self, shares: Mapping[str, frozenset[Unit]]) -> dict[str, frozenset[Unit]]:
        """The moves of one round: the others stay until all members have reached the target (``max_moves``)."""
        moves = {
            unit: holder
            for who, units in shares.items()
            for unit in units
            if (holder := self.holder(unit)) is not None
            and holder != who
            and not self.members[holder].temporarily_left
            and unit in self.share(holder).units  # else its move is in progress already
        }
        late = sorted(moves)[self.limits.max_moves or len(moves) :]
        self.deferred = len(late)
        after = {who: units.difference(late) for who, units in shares.items()}
        for unit in late:
            after[moves[unit]] = after.get(moves[unit], frozenset()) | {unit}
        return after

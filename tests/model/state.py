"""The state of the model's group, and everything that is derived from it by a scan of the whole state.

Nothing here changes the group; the inputs that do are in ``model``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from connectgroup.protocol.messages.assignment import InstallRequest
from connectgroup.protocol.messages.common import each_unit
from connectgroup.protocol.units import Unit

from .connectors import placement, runnable
from .words import (
    COORDINATOR,
    RUNNING,
    STABLE,
    STARTING,
    STOPPED,
    UNREVOKED,
    AssignorInput,
    Choice,
    Computation,
    Connector,
    Delay,
    Grants,
    Limits,
    Member,
    MemberTarget,
    Proposal,
    Timer,
    preferred,
    usable,
)


class GroupState:
    """One group: plain dictionaries, and queries over all of it."""

    def __init__(self, limits: Limits) -> None:
        """A group that does not exist yet."""
        self.limits = limits
        self.now_ms = 0
        self.choice = Choice()
        self.requested = False  # whether this step requested a server-side assignor
        self.created_ms = 0
        self.epoch = 0
        self.target_epoch = 0
        self.target_ms = 0  # time of the last computed target; 0: never
        self.computed_by = ""
        self.assignor = ""
        self.deferred = 0
        self.deferred_starts = 0
        self.rebalancing = False  # from a new group epoch until all members have reached the target
        self.members: dict[str, Member] = {}
        self.target: dict[str, MemberTarget] = {}
        self.connectors: dict[str, Connector] = {}
        self.computation: Computation | None = None
        self.delays: dict[str, Delay] = {}
        self.statuses: dict[Unit, tuple[str, int, int, str]] = {}
        self._run: tuple[dict[str, Connector] | None, Grants] = None, {}
        self.installed: InstallRequest | None = None  # the last Install, if known

    # ---- ownership

    def runnable(self) -> Grants:
        """The runnable units, with the epochs of their configurations."""
        if self._run[0] is not self.connectors:
            self._run = self.connectors, runnable(self.connectors)  # queried at every step, and seldom changed
        return self._run[1]

    def share(self, who: str) -> MemberTarget:
        """A member's target assignment."""
        return self.target.get(who, MemberTarget())

    def holder(self, unit: Unit) -> str | None:
        """The owner of a unit; pending revocations count."""
        return next((who for who, member in self.members.items() if unit in member.held), None)

    def starting(self) -> dict[Unit, str]:
        """The units that their owners, present and not draining, are starting and keep by the target assignment."""
        units, found = self.runnable(), {}
        for unit, (who, epoch, state, _) in self.statuses.items():
            member = self.members.get(who)
            if state != STARTING or member is None or member.draining or member.temporarily_left:
                continue
            if (
                member.assigned.get(unit) == epoch
                and unit in self.share(who).units
                and units.get(unit, epoch + 1) <= epoch
            ):
                found[unit] = who
        return found

    def with_instance(self, instance: str | None) -> str | None:
        """The member with an instance id."""
        return next((who for who, each in self.members.items() if instance and each.instance == instance), None)

    def is_of_another_process(self, who: str | None, process: int) -> bool:
        """Whether a member belongs to another process than this one (PD-15); -1: unknown, every process may send."""
        return who in self.members and self.members[who].process not in (-1, process)

    def reached_target(self, who: str) -> bool:
        """Whether a member has reached its target; a temporarily left member always has."""
        member = self.members[who]
        there = member.epoch == self.target_epoch and member.state == STABLE
        return member.temporarily_left or (there and member.assigned.keys() == self.share(who).units)

    def state(self) -> str:
        """The group's state (S8)."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        return "Stable" if all(map(self.reached_target, self.members)) else "Reconciling"

    def has_returned(self, who: str, served: set[str] | None = None) -> bool:
        """Whether the worker of a delay has rejoined; as one of ``served``, if set."""
        name = self.returned_as(who)
        return name is not None and (served is None or name in served)

    def returned_as(self, who: str) -> str | None:
        """The member id under which the worker of a delay has rejoined: its own, or that of its instance id."""
        return who if who in self.members else self.with_instance(self.delays[who].instance)

    def kept(self, who: str) -> frozenset[Unit]:
        """The units of a delay that are still delayed: not removed, recreated or reconfigured since."""
        units, delay = self.runnable(), self.delays[who]
        return frozenset(unit for unit in delay.share.units if unit in units and units[unit] <= delay.epoch)

    def lost(self, served: set[str] | None = None) -> set[Unit]:
        """The units that are assigned to no member because they are delayed for a lost worker."""
        return {unit for who in self.delays if who and not self.has_returned(who, served) for unit in self.kept(who)}

    def served(self, proposal: Proposal, epoch: int) -> set[str] | None:
        """The members of an older proposal, which cannot know others to be back; ``None`` for one of this epoch."""
        return None if epoch == self.epoch else {share.member_id for share in proposal.members}

    def violations(self) -> Iterator[str]:
        """The invariants that do not hold, whether or not product and model agree."""
        held = [unit for member in self.members.values() for unit in member.held]
        if len(set(held)) < len(held):
            yield f"S1: owned twice: {sorted(unit for unit in set(held) if held.count(unit) > 1)}"
        for who, member in self.members.items():
            if member.epoch > self.target_epoch or self.target_epoch > self.epoch:
                yield f"S4: {who} is at {member.epoch}, the target at {self.target_epoch}, the group at {self.epoch}"
            if (member.state == UNREVOKED) != bool(member.pending):
                yield f"S7: {who} is {member.state} with pending revocations {sorted(member.pending)}"
        if self.members and self.epoch == self.target_epoch:
            placed = [unit for share in self.target.values() for unit in share.units]
            waits = [unit for who in self.delays for unit in self.kept(who)]
            if sorted(placed + waits) != sorted(self.runnable()):
                yield f"S9: assigned {sorted(placed)}, delayed {sorted(waits)}, runnable {sorted(self.runnable())}"
        elif self.members and self.computation is None and not self.limits.assignment_interval_ms:
            yield "L5: the target is stale, and no computation is in progress"

    def interval_left_ms(self) -> int:
        """Time until the next computation may start, whatever the clock did since (TO-06, TO-08, F14)."""
        passed_ms = self.now_ms - self.target_ms
        return max(self.limits.assignment_interval_ms - passed_ms, 0) if self.target_ms and passed_ms >= 0 else 0

    def timers(self) -> dict[Timer, int]:
        """All timers that must be armed, with their durations."""
        waits: dict[Timer, int] = {}
        for who, member in self.members.items():
            waits["session", who] = self.limits.session_timeout_ms
            if member.state == UNREVOKED:
                waits["rebalance", who] = member.timeout_ms
        if self.computation is not None:
            asked = self.members.get(self.computation.who)
            waits["compute", ""] = asked.timeout_ms if asked else self.limits.session_timeout_ms
        elif self.members and self.epoch > self.target_epoch:
            waits["compute", ""] = self.interval_left_ms()
        if self.deferred_starts:
            waits["start", ""] = self.limits.max_start_ms
        return {**waits, **{("delay", who): delay.delay_ms for who, delay in self.delays.items()}}

    def limits_revocation(self, who: str) -> bool:
        """Whether a pending revocation of a member has a timer of its own."""
        return True

    def left_ms(self, who: str) -> int:
        """Remaining time of a delay, whatever the clock did since (F14)."""
        delay = self.delays[who]
        return min(max(delay.deadline_ms - self.now_ms, 0), delay.delay_ms)

    # ---- computation

    def may_compute(self) -> set[str]:
        """The members that may be chosen to compute (PD-06)."""
        assert self.computation is not None
        if self.computation.failures >= self.limits.failures_before_fallback:
            return {COORDINATOR}
        may = (able - self.computation.failed or able or {COORDINATOR} for able in self.able().values())
        return set().union(*may) or {COORDINATOR}

    def able(self) -> dict[str, set[str]]:
        """For each usable assignor, the present members that can run it for all (CN-01)."""
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
        """The server-side assignors that may run: the one that all members request, else that or the default."""
        asked = {member.server_assignor for member in self.members.values()}
        target_state = {name for name in asked if name is not None}
        return target_state if len(asked) == len(target_state) == 1 else target_state | {self.limits.server_assignor}

    def candidates(self) -> set[str]:
        """Present members that are assignable; those of the classic protocol only if there are no others (CN-18)."""
        there = {who for who in self.assignable() if not self.members[who].temporarily_left}
        return {who for who in there if not self.members[who].classic} or there

    def supported(self, member: Member, others: Iterable[Member]) -> bool:
        """Whether a member's assignors are supported, and the group keeps a common one."""
        if member.server_assignor is not None and member.server_assignor not in self.limits.server_assignors:
            return False
        return not member.assignors or bool(usable([member, *(each for each in others if each.assignors)]))

    def assignor_input(self, assignor: str) -> AssignorInput:
        """The input of an assignor; draining members are left out."""
        units = self.runnable().keys()
        metadata = {
            (who, info.name): (info.version, info.reason, info.metadata)
            for who, member in self.members.items()
            for info in member.assignors
        }
        nothing = 0, 0, b""
        return AssignorInput(
            members={
                who: (
                    self.members[who].epoch,
                    self.members[who].instance,
                    (self.share(who).units | self.returned(who)) & units,
                    metadata.get((who, assignor), nothing),
                    self.share(who).metadata if self.assignor == assignor else b"",
                )
                for who in self.assignable()
            },
            connectors={
                name: (len(each.tasks) if each.target_state == RUNNING else 0, placement(each.config))
                for name, each in self.connectors.items()
                if each.target_state != STOPPED
            },
            delayed=self.waiting(),
        )

    def waiting(self) -> dict[str, frozenset[Unit]]:
        """The delayed units by the worker they are delayed for, as described."""
        return {who: self.kept(who) for who in self.delays if not self.has_returned(who)}

    def assignable(self) -> set[str]:
        """Members that may be assigned units: all but draining ones, unless no other member is present."""
        stay = {who for who, each in self.members.items() if not each.draining}
        return stay if any(not self.members[who].temporarily_left for who in stay) else set(self.members)

    def returned(self, who: str) -> frozenset[Unit]:
        """The units that are delayed for a member that is back."""
        return frozenset(unit for name in self.delays_for(who) for unit in self.kept(name))

    def delays_for(self, who: str) -> list[str]:
        """The delays for a member."""
        return [name for name in self.delays if self.returned_as(name) == who]

    def called_for(self, who: str, instance: str | None) -> list[str]:
        """The delays for a member id or instance id, whether or not another member is back for them already."""
        return [name for name, delay in self.delays.items() if name == who or delay.instance == instance is not None]

    def legal(self, proposal: Proposal, epoch: int | None = None) -> bool:
        """Each runnable unit is assigned to exactly one member or delayed, and no other unit is (S9, CN-07).

        Units newer than the epoch of the input may be missing, and a member that drains since may be named.
        """
        epoch = self.epoch if epoch is None else epoch
        lost = self.lost(self.served(proposal, epoch))
        missing = {unit for unit, since in self.runnable().items() if since <= epoch} - set(self.placed(proposal))
        return (
            not self.contradictory(proposal, lost)
            and {share.member_id for share in proposal.members}
            <= (self.assignable() if epoch == self.epoch else self.members.keys())
            and set(self.placed(proposal)) <= self.runnable().keys()
            and missing <= lost
        )

    def contradictory(self, proposal: Proposal, lost: set[Unit] | None = None) -> bool:
        """Whether a proposal is invalid in any group."""
        names = [share.member_id for share in proposal.members]
        units = [unit for unit in self.placed(proposal) if unit not in (lost or ())]
        return (
            proposal.delay_ms > self.limits.max_delay_ms or len(set(names)) < len(names) or len(set(units)) < len(units)
        )

    def placed(self, proposal: Proposal) -> list[Unit]:
        """All units of a proposal."""
        return [*proposal.left_out, *(unit for share in proposal.members for unit in each_unit(share.units))]

    def readable(self, proposal: Proposal, assignor: str) -> bool:
        """Whether each member can read the metadata of the assignor (CN-01)."""
        return all(
            info.minimum_version <= share.version <= info.maximum_version
            for share in proposal.members
            for info in self.members[share.member_id].assignors
            if info.name == assignor
        )

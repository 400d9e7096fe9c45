"""What a scene is played on: the shipped group rules, the shipped worker's half, a clock and the timers that were set.

Nothing here decides anything. A ``tests.group.builders.Scene`` carries each request to the ``step`` of the group rules
and checks every invariant after it; each worker is a ``connectgroup.member.state_machine.Member``, so it sends the
requests and performs the actions that a real one would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from connectgroup.group.connect import timers as timing
from connectgroup.group.connect.describe import state_name
from connectgroup.group.connect.handle import GroupRequest
from connectgroup.group.connect.state import Group, replay
from connectgroup.group.kernel.outcome import Outcome
from connectgroup.group.kernel.timers import SetTimer, Timer, TimerKey
from connectgroup.member.actions import Action, Assign, Compute, Fail, Lose, Restart, Revoke, TellAssignor
from connectgroup.member.state_machine import Member, MemberSettings, Phase
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.assignment import InstalledMember, InstallRequest, PrepareResponse
from connectgroup.protocol.messages.common import AssignorInfo, grouped, units_of
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse, MemberAssignment, UnitGrant
from connectgroup.protocol.records.connect import TargetRecord
from connectgroup.protocol.units import Unit, Units
from tests.group import invariants
from tests.group.builders import GROUP, FixedAssignor, Scene, round_robin, settings

from .words import SceneError, answered, lasting, said, shared

REBALANCE_TIMEOUT_MS = 10_000
"""What every worker of a scene takes for itself."""


class CoordinatorsAssignor(FixedAssignor):
    """The assignor that runs on the coordinator: gives what the scene says it would, else a sticky round robin."""

    def __call__(self, question: PrepareResponse) -> tuple[InstalledMember, ...]:
        if self.target or self.error:
            return super().__call__(question)
        self.inputs.append(question)
        return round_robin(question)


@dataclass(kw_only=True, eq=False)
class ScriptedWorker:
    """One worker, and what it said and heard last."""

    member: Member
    request: GroupRequest | None = None
    response: Response | None = None
    question: PrepareResponse = field(default_factory=PrepareResponse)

    @property
    def who(self) -> str:
        return self.member.settings.member_id


@dataclass(frozen=True, slots=True)
class Glance:
    """What of a group is worth a word when it changes."""

    epoch: int
    target_epoch: int
    state: str
    members: frozenset[str]
    causes: tuple[str, ...]
    chosen: tuple[int, str, int]
    temporarily_left: frozenset[str]
    delays: Mapping[str, tuple[Units, int]]


@dataclass(kw_only=True)
class Stage:
    """One group, its workers, the time and the timers; set by the first lines of a scene, opened by the first act."""

    epoch: int | None = None
    connectors: dict[str, int] = field(default_factory=dict)
    runs: dict[str, Mapping[Unit, int | None]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    assignor: CoordinatorsAssignor = field(default_factory=CoordinatorsAssignor)
    workers: dict[str, ScriptedWorker] = field(default_factory=dict)
    timers: dict[TimerKey, int] = field(default_factory=dict)
    beaten_ms: dict[str, int] = field(default_factory=dict)
    begun_ms: int = 0
    _scene: Scene | None = None

    # ---- setting it

    @property
    def is_open(self) -> bool:
        """Whether the scene has begun."""
        return self._scene is not None

    @property
    def scene(self) -> Scene:
        """The group in play."""
        assert self._scene is not None
        return self._scene

    @property
    def group(self) -> Group:
        return self.scene.group

    def open(self) -> None:
        """The scene begins, if it has not: the group is there as records have made it, and its timers run."""
        if not self.is_open:
            self._scene = scene = self._set_up()
            self.begun_ms = scene.now_ms
            self.set_timers(timing.on_load(scene.group, scene.now_ms, scene.settings), scene.now_ms)

    def _set_up(self) -> Scene:
        rules = settings(self.assignor, **self.options)
        if self.epoch is None:
            if self.connectors or self.runs:
                raise SceneError("what is there from the start needs a line 'at rest at epoch 10' before it")
            return Scene(settings=rules)
        runs = {
            who: {unit: self.epoch if epoch is None else epoch for unit, epoch in units.items()}
            for who, units in self.runs.items()
        }
        scene = Scene.stable(
            rules,
            epoch=self.epoch,
            connectors=self.connectors,
            members=runs,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        )
        for who in self.runs:
            self._let_run(scene, self.workers[who], runs[who])
        return scene

    def _let_run(self, scene: Scene, worker: ScriptedWorker, units: Mapping[Unit, int]) -> None:
        """Have a worker be where the records say it is: it joined, and was answered, long ago."""
        member = worker.member
        known = scene.group.members[worker.who]
        scene.put(replace(known, instance_id=member.settings.instance_id, assignors=member.assignors))
        request = member.next_request(scene.now_ms)
        assert request is not None
        grants = tuple(
            UnitGrant(connector=unit.connector, task=unit.task, owner_epoch=epoch) for unit, epoch in units.items()
        )
        answer = HeartbeatResponse(
            member_epoch=scene.current(worker.who).epoch,
            assignment=MemberAssignment(units=grouped(units), grants=grants),
            session_timeout_ms=scene.settings.session_timeout_ms,
            heartbeat_interval_ms=scene.settings.heartbeat_interval_ms,
        )
        member.on_response(request, answer)

    # ---- who is on it

    def enter(
        self,
        who: str,
        assignors: tuple[AssignorInfo, ...] = (),
        *,
        instance: str | None = None,
        server: str | None = None,
    ) -> ScriptedWorker:
        """A worker process starts."""
        options = MemberSettings(
            group_id=GROUP,
            member_id=who,
            instance_id=instance,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            server_assignor=server,
        )
        self.workers[who] = ScriptedWorker(member=Member(options, assignors))
        return self.workers[who]

    def anybody(self, who: str) -> ScriptedWorker:
        """A worker, or a stranger who only speaks up."""
        return self.workers.get(who) or self.enter(who)

    def worker(self, who: str) -> ScriptedWorker:
        """A worker that is there."""
        if who not in self.workers:
            raise SceneError(f"there is no worker {who}; allowed: {', '.join(sorted(self.workers)) or 'none yet'}")
        return self.workers[who]

    # ---- what can happen

    def beat(self, worker: ScriptedWorker, *, lost: bool = False, **changes: Any) -> list[str]:
        """A worker's next heartbeat, answered and acted upon.

        Args:
            lost: the answer does not reach it.
            changes: fields of the request that are not what the worker would say.
        """
        request = worker.member.next_request(self.scene.now_ms)
        if request is None:
            raise SceneError(f"{worker.who} may not speak now: it is {worker.member.phase}")
        worker.request = replace(request, **changes)
        self.beaten_ms[worker.who] = self.scene.now_ms
        response, news = self.act(worker.request, lost=lost)
        assert isinstance(response, HeartbeatResponse)
        worker.response = response
        words = answered(response)
        if lost:
            worker.member.on_no_answer(request)
            return [f"{words} (never heard)", *news]
        done = [self._perform(worker, action) for action in worker.member.on_response(request, response)]
        return ["; ".join([words, *filter(None, done)]), *news]

    def _perform(self, worker: ScriptedWorker, action: Action) -> str:
        match action:
            case Assign():
                return f"{worker.who} starts {said({grant.unit: grant.owner_epoch for grant in action.grants})}"
            case Revoke():
                return f"{worker.who} is to stop {said(action.units)}"
            case Lose():
                worker.member.mark_lost()
                return f"{worker.who} stops all it ran, {said(action.units)}" if action.units else ""
            case Fail():
                del self.workers[worker.who]
                ran = f" stops all it ran, {said(worker.member.owned.keys())}, and" if worker.member.owned else ""
                return f"{worker.who}{ran} gives up"
            case Restart():
                return f"{worker.who} is to restart"
            case Compute() | TellAssignor():
                return ""

    def lease(self, worker: ScriptedWorker) -> list[str]:
        """What a worker does about its lease."""
        actions = worker.member.check_lease(self.scene.now_ms)
        ends_ms = worker.member.lease_ends_ms()
        if not actions:
            return ["nothing to lose" if ends_ms is None else f"{lasting(ends_ms - self.scene.now_ms)} left"]
        return [f"{action.why}; {self._perform(worker, action)}" for action in actions if isinstance(action, Lose)]

    def act(
        self, what: GroupRequest | TimerKey, *, lost: bool = False, duplicate: bool = False
    ) -> tuple[Response | None, list[str]]:
        """One step of the rules: the answer, and what changed for all to see."""
        scene = self.scene
        before, calls = self.glance(), self.assignor.calls
        outcome = scene.act(what, lost=lost, duplicate=duplicate)
        self.set_timers(outcome.timers, scene.now_ms)
        asked = isinstance(what, InstallRequest) or self.assignor.calls > calls
        return outcome.response, list(self._news(before, self.glance(), outcome, asked))

    def set_timers(self, timers: Iterable[Timer], now_ms: int) -> None:
        """Do as a runtime would."""
        for timer in timers:
            same = [key for key in self.timers if key.identity == timer.key.identity]
            for key in same:
                del self.timers[key]
            if isinstance(timer, SetTimer):
                self.timers[timer.key] = now_ms + timer.after_ms

    def wait(self, ms: int, beating: Iterable[str] = ()) -> Iterator[str]:
        """Time passes: timers fire when they are due, and some workers go on beating."""
        scene, end_ms = self.scene, self.scene.now_ms + ms
        workers = [self.worker(who) for who in beating]
        interval_ms = scene.settings.heartbeat_interval_ms
        for worker in workers:
            self.beaten_ms.setdefault(worker.who, self.begun_ms)
        while True:
            due: list[tuple[int, int, TimerKey | str]] = [(at_ms, 1, key) for key, at_ms in self.timers.items()]
            due += [(self.beaten_ms[worker.who] + interval_ms, 0, worker.who) for worker in workers]
            # Heartbeats before timers: a worker that beats in time is in time.
            at_ms, _, what = min(due, default=(end_ms + 1, 0, ""))
            if at_ms > end_ms:
                break
            scene.now_ms = max(at_ms, scene.now_ms)
            when = f"at {lasting(scene.now_ms - self.begun_ms)}"
            if isinstance(what, TimerKey):
                del self.timers[what]
                yield from _under(f"{when} {timer_name(what)} is over", self.act(what)[1])
            else:
                told = self._news_of(self.worker(what))
                yield from _under(f"{when} {what} beats: {told[0]}", told[1:]) if told else ()
        scene.now_ms = end_ms

    def settle(self) -> Iterator[str]:
        """All beat in turn, and stop at once what they are to stop, until there is nothing to say."""
        for _ in range(100):
            quiet = True
            for who, worker in sorted(self.workers.items()):
                if worker.member.phase is not Phase.MEMBER:
                    continue
                if worker.member.revoking:
                    worker.member.mark_revoked(worker.member.revoking)
                if told := self._news_of(worker):
                    quiet = False
                    yield from _under(f"{who}: {told[0]}", told[1:])
            if quiet:
                return
        raise SceneError("it does not become quiet")

    def _news_of(self, worker: ScriptedWorker) -> list[str]:
        """A heartbeat, if there was anything new in its answer."""
        before = worker.member.epoch, dict(worker.member.owned), worker.member.revoking
        told = self.beat(worker)
        same = before == (worker.member.epoch, worker.member.owned, worker.member.revoking)
        failed = isinstance(worker.response, HeartbeatResponse) and worker.response.error_code
        return [] if same and not failed and len(told) == 1 else told

    def forget_tokens(self) -> None:
        """Before the group is deleted: one made again begins at epoch 1, told from this one by when it was made."""
        self.scene.ledger = invariants.Ledger()

    def restart(self) -> None:
        """Another coordinator reads the log, compacted as much as it can be."""
        scene = self.scene
        scene.group = replay(GROUP, invariants.compacted(scene.log))
        self.timers.clear()
        self.set_timers(timing.on_load(scene.group, scene.now_ms, scene.settings), scene.now_ms)

    # ---- what came out

    def glance(self) -> Glance:
        """The group now."""
        group = self.group
        last, computation = group.latest_rebalance, group.computation
        return Glance(
            epoch=group.epoch,
            target_epoch=group.target_epoch,
            state=state_name(group),
            members=frozenset(group.members),
            causes=last.causes if last is not None and last.epoch > group.target_epoch else (),
            chosen=(computation.epoch, computation.member_id, computation.failures) if computation else (0, "", 0),
            temporarily_left=frozenset(
                member_id for member_id, current in group.currents.items() if current.temporarily_left
            ),
            delays={who: (units_of(delay.units), delay.deadline_ms) for who, delay in group.delays.items()},
        )

    def _news(self, before: Glance, after: Glance, outcome: Outcome[Response | None], asked: bool) -> Iterator[str]:
        """What a step changed for everybody. ``asked``: an assignor was, so a new target is a new answer."""
        group, computation = self.group, self.group.computation
        # A Prepare after the group has moved on changes the epoch, not who was asked.
        prepared = computation is not None and computation.prepared
        changed = after.chosen[1:] != before.chosen[1:] or (after.chosen[0] != before.chosen[0] and not prepared)
        # An install that is refused has the reason in its answer.
        refused = getattr(outcome.response, "error_code", 0)
        if changed and computation is not None and computation.error and not refused:
            yield f"failed: {computation.error}"
        to_compute = after.chosen[1] if changed and after.epoch > after.target_epoch else ""
        if after.epoch > before.epoch and group.latest_rebalance is not None:
            causes = " and ".join(group.latest_rebalance.causes[len(before.causes) :])
            yield f"group epoch {after.epoch}: {causes}" + (f"; {to_compute} is to compute" if to_compute else "")
        elif to_compute:
            yield f"{to_compute} is to compute"
        if after.epoch == before.epoch and (gone := before.members - after.members):
            yield f"{' and '.join(sorted(gone))} is no member any more"
        for record in outcome.records:
            if isinstance(record, TargetRecord):
                shares = {member_id: group.target(member_id).units for member_id in group.members}
                by = f"by {record.computed_by}" if asked else "without asking anybody"
                later = f"; {record.deferred} moves are left for the next round" if record.deferred else ""
                yield f"target epoch {record.epoch} {by}: {shared(shares)}{later}"
        yield from self._delays(before, after)
        for who in sorted(after.temporarily_left - before.temporarily_left):
            yield f"{who} is away"
        if after.state != before.state and after.state in ("Stable", "Empty"):
            yield f"the group is {after.state}"
        if before.epoch and not after.epoch:
            yield "the group is no more"

    def _delays(self, before: Glance, after: Glance) -> Iterator[str]:
        for who, (units, deadline_ms) in after.delays.items():
            if before.delays.get(who) != (units, deadline_ms):
                yield f"held back{_for(who)} until {lasting(deadline_ms - self.begun_ms)}: {said(units)}"
        for who in sorted(before.delays.keys() - after.delays.keys()):
            yield f"nothing is held back{_for(who)} any more"


def _for(who: str) -> str:
    return f" for {who}" if who else ""


def _under(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    for words in rest:
        yield f"  {words}"


def timer_name(key: TimerKey) -> str:
    """A timer in words."""
    return f"{key.kind} of {key.member_id}" if key.member_id else str(key.kind)

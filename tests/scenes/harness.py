"""The harness of a scene: the shipped group rules, the shipped member state machine, a clock and timers.

It decides nothing. A ``tests.group.builders.Scene`` passes each request to the ``step`` of the group rules and checks
every invariant after it; each worker is a ``connectgroup.member.state_machine.Member``, so it sends the requests and
performs the actions of a real one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from connectgroup.group.connect.group_type import ConnectRequest, on_load
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import Outcome, SetTimer, Timer, TimerKey
from connectgroup.member.actions import (
    Action,
    Assign,
    ComputeTarget,
    Drain,
    Fail,
    Lapse,
    Lose,
    Restart,
    Revoke,
    TellAssignor,
)
from connectgroup.member.settings import MemberSettings
from connectgroup.member.state_machine import Member, Phase
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.assignment import InstalledMember, InstallRequest, PrepareResponse
from connectgroup.protocol.messages.common import AssignorInfo, grouped, units_of
from connectgroup.protocol.messages.heartbeat import HeartbeatAssignment, HeartbeatResponse, UnitGrant
from connectgroup.protocol.records.connect import TargetRecord
from connectgroup.protocol.units import Unit, Units, counted
from tests.group import invariants
from tests.group.builders import GROUP, FixedAssignor, Scene, round_robin, settings

from .words import SceneError, duration_text, response_text, targets_text, units_text

REBALANCE_TIMEOUT_MS = 10_000
"""The rebalance timeout of every worker in a scene."""


class CoordinatorsAssignor(FixedAssignor):
    """The server-side assignor: returns the result that the scene has set, else a sticky round robin."""

    def __call__(self, prepared: PrepareResponse) -> tuple[InstalledMember, ...]:
        if self.target or self.error:
            return super().__call__(prepared)
        self.inputs.append(prepared)
        return round_robin(prepared)


@dataclass(kw_only=True, eq=False)
class ScriptedWorker:
    """One worker, with its last request and response."""

    member: Member
    request: ConnectRequest | None = None
    response: Response | None = None
    prepared: PrepareResponse = field(default_factory=PrepareResponse)

    @property
    def who(self) -> str:
        return self.member.settings.member_id


@dataclass(frozen=True, slots=True)
class GroupView:
    """The parts of a group whose changes a scene shows."""

    epoch: int
    target_epoch: int
    state: str
    members: frozenset[str]
    causes: tuple[str, ...]
    chosen: tuple[int, str, int]
    temporarily_left: frozenset[str]
    delays: Mapping[str, tuple[Units, int]]


@dataclass(kw_only=True)
class SceneHarness:
    """One group, its workers, the clock and the timers. The first lines define the group, the first act creates it."""

    epoch: int | None = None
    connectors: dict[str, int] = field(default_factory=dict)
    runs: dict[str, Mapping[Unit, int | None]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    assignor: CoordinatorsAssignor = field(default_factory=CoordinatorsAssignor)
    workers: dict[str, ScriptedWorker] = field(default_factory=dict)
    timers: dict[TimerKey, int] = field(default_factory=dict)
    heartbeat_ms: dict[str, int] = field(default_factory=dict)
    start_ms: int = 0
    _scene: Scene | None = None

    # ---- setup

    @property
    def is_created(self) -> bool:
        """Whether the group has been created."""
        return self._scene is not None

    @property
    def scene(self) -> Scene:
        """The group under test."""
        assert self._scene is not None
        return self._scene

    @property
    def group(self) -> ConnectGroupState:
        return self.scene.group

    def create(self) -> None:
        """Create the group from records, and arm its timers."""
        if not self.is_created:
            self._scene = scene = self._set_up()
            self.start_ms = scene.now_ms
            self.set_timers(on_load(scene.group, scene.now_ms, scene.settings).timers, scene.now_ms)

    def _set_up(self) -> Scene:
        rules = settings(self.assignor, **self.options)
        if self.epoch is None:
            if self.connectors or self.runs:
                raise SceneError("connectors and members of the initial group need a line 'stable at epoch 10'")
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
            self._restore(scene, self.workers[who], runs[who])
        return scene

    def _restore(self, scene: Scene, worker: ScriptedWorker, units: Mapping[Unit, int]) -> None:
        """Bring a worker into the state that the records describe, as if it had joined long ago."""
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
            assignment=HeartbeatAssignment(units=grouped(units), grants=grants),
            session_timeout_ms=scene.settings.session_timeout_ms,
            heartbeat_interval_ms=scene.settings.heartbeat_interval_ms,
        )
        member.on_response(request, answer)

    # ---- workers

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

    def worker_or_new(self, who: str) -> ScriptedWorker:
        """A worker; an unknown one is started."""
        return self.workers.get(who) or self.enter(who)

    def worker(self, who: str) -> ScriptedWorker:
        """An existing worker."""
        if who not in self.workers:
            raise SceneError(f"there is no worker {who}; allowed: {', '.join(sorted(self.workers)) or 'none yet'}")
        return self.workers[who]

    # ---- events

    def heartbeat(self, worker: ScriptedWorker, *, lost: bool = False, **changes: Any) -> list[str]:
        """Send a worker's next heartbeat, process its response and perform the resulting actions.

        Args:
            lost: the response is lost.
            changes: fields of the request that replace those of the worker.
        """
        request = worker.member.next_request(self.scene.now_ms)
        if request is None:
            raise SceneError(f"{worker.who} may not send a heartbeat now: it is {worker.member.phase}")
        worker.request = replace(request, **changes)
        self.heartbeat_ms[worker.who] = self.scene.now_ms
        response, events = self.act(worker.request, lost=lost)
        assert isinstance(response, HeartbeatResponse)
        worker.response = response
        words = response_text(response)
        if lost:
            worker.member.on_no_answer(request)
            return [f"{words} (response lost)", *events]
        done = [self._perform(worker, action) for action in worker.member.on_response(request, response)]
        return ["; ".join([words, *filter(None, done)]), *events]

    def _perform(self, worker: ScriptedWorker, action: Action) -> str:
        match action:
            case Assign():
                return f"{worker.who} starts {units_text({grant.unit: grant.owner_epoch for grant in action.grants})}"
            case Revoke():
                return f"{worker.who} must revoke {units_text(action.units)}"
            case Lapse():
                worker.member.mark_lapsed(action.units)
                return f"{worker.who} stops {units_text(action.stops)}; {units_text(action.runs_on)} run on"
            case Lose():
                worker.member.mark_lost()
                return f"{worker.who} stops {units_text(action.units)}" if action.units else ""
            case Fail():
                del self.workers[worker.who]
                ran = f" stops {units_text(worker.member.owned.keys())} and" if worker.member.owned else ""
                return f"{worker.who}{ran} fails"
            case Restart():
                return f"{worker.who} must restart"
            case Drain():
                return f"{worker.who} must drain"
            case ComputeTarget() | TellAssignor():
                return ""

    def lease(self, worker: ScriptedWorker) -> list[str]:
        """A worker checks its lease."""
        actions = worker.member.check_lease(self.scene.now_ms)
        ends_ms = worker.member.lease_ends_ms()
        if not actions:
            return ["no lease" if ends_ms is None else f"{duration_text(ends_ms - self.scene.now_ms)} left"]
        return [
            f"{action.why}; {self._perform(worker, action)}" for action in actions if isinstance(action, Lapse | Lose)
        ]

    def act(
        self, what: ConnectRequest | TimerKey, *, lost: bool = False, duplicate: bool = False
    ) -> tuple[Response | None, list[str]]:
        """One step of the rules: the response, and the visible changes of the group."""
        scene = self.scene
        before, calls = self.view(), self.assignor.calls
        outcome = scene.act(what, lost=lost, duplicate=duplicate)
        self.set_timers(outcome.timers, scene.now_ms)
        computed = isinstance(what, InstallRequest) or self.assignor.calls > calls
        return outcome.response, list(self._events(before, self.view(), outcome, computed))

    def set_timers(self, timers: Iterable[Timer], now_ms: int) -> None:
        """Arm and cancel timers as the runtime does."""
        for timer in timers:
            unchanged = [key for key in self.timers if key.identity == timer.key.identity]
            for key in unchanged:
                del self.timers[key]
            if isinstance(timer, SetTimer):
                self.timers[timer.key] = now_ms + timer.after_ms

    def wait(self, ms: int, sending: Iterable[str] = ()) -> Iterator[str]:
        """Time passes: timers fire when they are due, and some workers send heartbeats."""
        scene, end_ms = self.scene, self.scene.now_ms + ms
        workers = [self.worker(who) for who in sending]
        interval_ms = scene.settings.heartbeat_interval_ms
        for worker in workers:
            self.heartbeat_ms.setdefault(worker.who, self.start_ms)
        while True:
            due: list[tuple[int, int, TimerKey | str]] = [(at_ms, 1, key) for key, at_ms in self.timers.items()]
            due += [(self.heartbeat_ms[worker.who] + interval_ms, 0, worker.who) for worker in workers]
            # Heartbeats before timers: a heartbeat at the deadline is in time.
            at_ms, _, what = min(due, default=(end_ms + 1, 0, ""))
            if at_ms > end_ms:
                break
            scene.now_ms = max(at_ms, scene.now_ms)
            when = f"at {duration_text(scene.now_ms - self.start_ms)}"
            if isinstance(what, TimerKey):
                del self.timers[what]
                yield from _under(f"{when} {timer_name(what)} expires", self.act(what)[1])
            else:
                output = self._changes_of(self.worker(what))
                yield from _under(f"{when} {what} heartbeats: {output[0]}", output[1:]) if output else ()
        scene.now_ms = end_ms

    def settle(self) -> Iterator[str]:
        """All workers send heartbeats in turn, and revoke at once, until nothing changes."""
        for _ in range(100):
            idle = True
            for who, worker in sorted(self.workers.items()):
                if worker.member.phase is not Phase.MEMBER:
                    continue
                if worker.member.revoking:
                    worker.member.mark_revoked(worker.member.revoking)
                if output := self._changes_of(worker):
                    idle = False
                    yield from _under(f"{who}: {output[0]}", output[1:])
            if idle:
                return
        raise SceneError("the group does not become idle")

    def _changes_of(self, worker: ScriptedWorker) -> list[str]:
        """A heartbeat; empty if its response changed nothing."""
        before = worker.member.epoch, dict(worker.member.owned), worker.member.revoking
        output = self.heartbeat(worker)
        unchanged = before == (worker.member.epoch, worker.member.owned, worker.member.revoking)
        failed = isinstance(worker.response, HeartbeatResponse) and worker.response.error_code
        return [] if unchanged and not failed and len(output) == 1 else output

    def reset_ledger(self) -> None:
        """Before the group is deleted: a group created again starts at epoch 1, with a later creation time."""
        self.scene.ledger = invariants.Ledger()

    def restart(self) -> None:
        """Another coordinator replays the log, compacted as far as possible."""
        scene = self.scene
        scene.group = ConnectGroupState.replay(GROUP, invariants.compacted(scene.log))
        self.timers.clear()
        self.set_timers(on_load(scene.group, scene.now_ms, scene.settings).timers, scene.now_ms)

    # ---- output

    def view(self) -> GroupView:
        """The group's current state."""
        group = self.group
        last, computation = group.latest_rebalance, group.computation
        return GroupView(
            epoch=group.epoch,
            target_epoch=group.target_epoch,
            state=group.state_name,
            members=frozenset(group.members),
            causes=last.causes if last is not None and last.epoch > group.target_epoch else (),
            chosen=(computation.epoch, computation.member_id, computation.failures) if computation else (0, "", 0),
            temporarily_left=frozenset(
                member_id for member_id, current in group.currents.items() if current.temporarily_left
            ),
            delays={who: (units_of(delay.units), delay.deadline_ms) for who, delay in group.delays.items()},
        )

    def _events(
        self, before: GroupView, after: GroupView, outcome: Outcome[Response | None], computed: bool
    ) -> Iterator[str]:
        """The visible changes of a step. ``computed``: an assignor has run."""
        group, computation = self.group, self.group.computation
        # A Prepare after a change of the group changes the epoch, not the chosen member.
        prepared = computation is not None and computation.prepared
        changed = after.chosen[1:] != before.chosen[1:] or (after.chosen[0] != before.chosen[0] and not prepared)
        # The response of a rejected Install contains the reason.
        refused = getattr(outcome.response, "error_code", 0)
        if changed and computation is not None and computation.error and not refused:
            yield f"failed: {computation.error}"
        to_compute = after.chosen[1] if changed and after.epoch > after.target_epoch else ""
        if after.epoch > before.epoch and group.latest_rebalance is not None:
            causes = " and ".join(group.latest_rebalance.causes[len(before.causes) :])
            yield f"group epoch {after.epoch}: {causes}" + (
                f"; {to_compute} is chosen to compute" if to_compute else ""
            )
        elif to_compute:
            yield f"{to_compute} is chosen to compute"
        if after.epoch == before.epoch and (gone := before.members - after.members):
            yield f"{' and '.join(sorted(gone))} is removed"
        for record in outcome.records:
            if isinstance(record, TargetRecord):
                targets = {member_id: group.target(member_id).units for member_id in group.members}
                by = f"by {record.computed_by}" if computed else "without a computation"
                later = f"; {counted(record.deferred, 'move')} deferred to the next round" if record.deferred else ""
                yield f"target epoch {record.epoch} {by}: {targets_text(targets)}{later}"
        yield from self._delays(before, after)
        for who in sorted(after.temporarily_left - before.temporarily_left):
            yield f"{who} has temporarily left"
        if after.state != before.state and after.state in ("Stable", "Empty"):
            yield f"the group is {after.state}"
        if before.epoch and not after.epoch:
            yield "the group is deleted"

    def _delays(self, before: GroupView, after: GroupView) -> Iterator[str]:
        for who, (units, deadline_ms) in after.delays.items():
            if before.delays.get(who) != (units, deadline_ms):
                yield f"delayed{_for(who)} until {duration_text(deadline_ms - self.start_ms)}: {units_text(units)}"
        for who in sorted(before.delays.keys() - after.delays.keys()):
            yield f"the delay{_for(who)} ends"


def _for(who: str) -> str:
    return f" for {who}" if who else ""


def _under(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    for words in rest:
        yield f"  {words}"


def timer_name(key: TimerKey) -> str:
    """The name of a timer in the output."""
    return f"{key.kind} of {key.member_id}" if key.member_id else str(key.kind)

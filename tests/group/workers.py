"""A seeded group of small workers that stop slowly, lose messages, and crash: what the replay tests are run with.

The workers are as honest as the source asks them to be: a full heartbeat on join and after every error, null where
nothing changed, a report once something has stopped. They are as slow and unlucky as the seed wants them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from connectgroup.errors import (
    ComputeAssignment,
    FencedMemberEpoch,
    GroupIdNotFound,
    PluginError,
    UnknownMemberId,
)
from connectgroup.group.connect.describe import state_name
from connectgroup.group.connect.state import replay
from connectgroup.group.kernel.timers import TimerKind
from connectgroup.protocol.messages.assignment import InstalledMember, InstallRequest, PrepareRequest, PrepareResponse
from connectgroup.protocol.messages.common import AssignorInfo, ConfigEntry, entries, grouped, units_of
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse, TaskStatus
from connectgroup.protocol.records.connect import MemberState, Record
from connectgroup.protocol.units import Unit

from . import invariants
from .builders import GROUP, ROUND_ROBIN, Scene, numbered, round_robin, settings, task_list

CONNECTORS = ("files", "orders", "weather")


@dataclass(kw_only=True)
class SimpleWorker:
    """What a worker knows and does: the member's half of the protocol at its smallest."""

    member_id: str
    assignors: tuple[AssignorInfo, ...] = ()
    epoch: int = 0
    runs: dict[Unit, int] = field(default_factory=dict)
    configs: dict[Unit, tuple[ConfigEntry, ...]] = field(default_factory=dict)
    stops: dict[Unit, int] = field(default_factory=dict)
    full: bool = True
    changed: bool = False
    statuses: tuple[TaskStatus, ...] = ()
    question: PrepareResponse | None = None
    asked: bool = False
    last: tuple[HeartbeatRequest, dict[Unit, int]] | None = None
    joined_twice: bool = False
    instance: str | None = None
    draining: bool = False

    def request(self) -> HeartbeatRequest:
        """The next heartbeat; unless something was lost or has changed, all of it is "as before"."""
        owned = grouped([*self.runs, *self.stops])
        return HeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=10_000 if self.full else -1,
            client_assignors=(self.assignors or None) if self.full else None,
            owned=() if self.epoch == 0 else owned if self.full or self.changed else None,
            statuses=self.statuses,
            instance_id=self.instance if self.full or self.epoch == 0 else None,
            draining=self.draining and self.full,
        )

    def hear(self, response: HeartbeatResponse, random: Random) -> None:
        """Take an answer in: new epoch; what is no longer in the set is stopped, slowly; what is new is started."""
        self.full, self.changed, self.statuses = False, False, ()
        if response.error_code in (FencedMemberEpoch.code, UnknownMemberId.code, GroupIdNotFound.code):
            self.abandon()
            return
        if response.error_code:
            self.full = True
            self.asked = self.asked or response.error_code == ComputeAssignment.code
            return
        self.epoch = response.member_epoch
        if response.assignment is None:
            return
        units = units_of(response.assignment.units)
        tokens = {Unit(grant.connector, grant.task): grant.owner_epoch for grant in response.assignment.grants}
        connectors = {entry.connector: entry.config for entry in response.assignment.configs}
        for grant in response.assignment.grants:
            unit = Unit(grant.connector, grant.task)
            self.configs[unit] = connectors[grant.connector] if unit.is_connector else grant.config
        assert not units & self.stops.keys(), "told to run what it was told to stop and has not stopped"
        for unit in sorted(self.runs.keys() - units):
            del self.runs[unit]
            self.stops[unit] = random.randint(0, 6)
        for unit in sorted(units - self.runs.keys()):
            self.runs[unit] = tokens[unit]
            self.statuses += (TaskStatus(connector=unit.connector, task=unit.task, owner_epoch=tokens[unit], state=1),)

    def abandon(self) -> None:
        """Stop everything and begin again."""
        self.runs, self.stops = {}, {}
        self.epoch, self.full, self.changed, self.statuses = 0, True, False, ()
        self.question, self.asked = None, False

    def turn(self) -> None:
        """Time passes: what was being stopped may have stopped by now."""
        for unit in list(self.stops):
            self.stops[unit] -= 1
            if self.stops[unit] < 0:
                del self.stops[unit]
                self.changed = True


class FlakyAssignor:
    """The coordinator's own round robin, which fails when its seed says so."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.fails = 0.0

    def __call__(self, question: PrepareResponse) -> tuple[InstalledMember, ...]:
        if self.random.random() < self.fails:
            raise PluginError("assignor round-robin: not today")
        return round_robin(question)


class RandomRun:
    """One seed's group, its workers, and all that befalls them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.assignor = FlakyAssignor(self.random)
        self.kind = ("client", "server", "mixed")[seed % 3]
        limits = settings(
            server_assignors={ROUND_ROBIN: self.assignor},
            max_members=6,
            scheduled_delay_ms=(0, 20_000)[seed // 2 % 2],
            max_moves=(0, 0, 2)[seed % 3],
        )
        self.workers: dict[str, SimpleWorker] = {}
        self.made = 0
        if seed % 2:
            self.scene = Scene(settings=limits)
        else:
            # Lopsided: one member has everything, under epochs of long ago, and others nothing.
            everything = {Unit(name, task): 3 + (task % 4) for name in CONNECTORS[:2] for task in range(-1, 5)}
            self.scene = Scene.at_rest(
                limits, epoch=9, connectors=dict.fromkeys(CONNECTORS[:2], 5), members={"w0": everything, "w1": {}}
            )
            for member_id, runs in (("w0", everything), ("w1", {})):
                self.workers[member_id] = SimpleWorker(member_id=member_id, epoch=9, runs=dict(runs), full=False)
            self.made = 2
        self.fenced = 0
        self.crashed: set[str] = set()
        self.bounced: list[SimpleWorker] = []

    # ---- what can happen

    def play(self, turns: int) -> None:
        """So many turns of bad weather."""
        self.assignor.fails = 0.3
        happenings = {
            self.beat: 60, self.arrive: 6, self.copy: 8, self.compute: 12, self.silence: 3, self.crash: 2,
            self.leave: 2, self.late: 2, self.dawdle: 5, self.operate: 6, self.list_tasks: 5,
            self.restart: 2, self.relist: 2, self.go_away: 3, self.come_back: 4, self.wait: 2, self.drain: 1,
        }  # fmt: skip
        for _ in range(turns):
            self.random.choices(list(happenings), list(happenings.values()))[0]()
            self.scene.now_ms += self.random.randint(0, 500)
            for worker in self.workers.values():
                worker.turn()

    def beat(self) -> None:
        """A heartbeat; its request or its answer may be lost."""
        if self.workers:
            self.exchange(self.any_worker(), lose_request=0.1, lose_answer=0.15)

    def any_worker(self) -> SimpleWorker:
        return self.workers[self.random.choice(sorted(self.workers))]

    def exchange(self, worker: SimpleWorker, *, lose_request: float = 0.0, lose_answer: float = 0.0) -> None:
        """One heartbeat and its answer."""
        request = worker.request()
        if self.random.random() < lose_request:
            worker.full = True
            return
        lost = self.random.random() < lose_answer
        was_member = worker.member_id in self.scene.group.members
        response = self.scene.act(request, lost=lost).response
        assert isinstance(response, HeartbeatResponse)
        if response.error_code == FencedMemberEpoch.code:
            assert worker.joined_twice or not was_member, (
                f"S16: honest {worker.member_id} fenced: {response.error_message}"
            )
            self.fenced += 1
        if response.assignment is not None:
            assigned = self.scene.current(worker.member_id).assigned
            assert units_of(response.assignment.units) <= assigned.keys()
            for grant in response.assignment.grants:
                assert assigned[Unit(grant.connector, grant.task)] == grant.owner_epoch
        grants = response.assignment.grants if response.assignment else ()
        worker.last = (request, {Unit(grant.connector, grant.task): grant.owner_epoch for grant in grants})
        worker.joined_twice = False
        if lost:
            worker.full = True
        else:
            worker.hear(response, self.random)

    def copy(self) -> None:
        """The last request of a worker comes in a second time, late; its connection broke, so its next one is full.

        Not where such a copy cannot be told from the truth after a lost answer: where the first one's answer gave units
        at the very epoch it was sent with, or gave units that were deleted or reconfigured since. Only its sequence
        number tells it apart then, and keeping it away is the runtime's part.
        """
        if not self.workers:
            return
        worker = self.any_worker()
        if worker.last is None:
            return
        request, gave = worker.last
        group, epoch = self.scene.group, self.scene.current(request.member_id).epoch
        as_given = all(group.runnable.get(unit, token + 1) <= token for unit, token in gave.items())
        if not gave or (request.member_epoch not in (0, epoch) and as_given):
            self.scene.act(request, copy=True)
            worker.full = True
            worker.joined_twice = request.member_epoch == 0

    def arrive(self) -> None:
        """A new worker, or a new process in the place of a dead one."""
        if len(self.workers) < 5:
            name = f"w{self.made}"
            self.made += 1
            lists = self.kind == "client" or (self.kind == "mixed" and self.random.random() < 0.7)
            low = self.random.randint(0, 1)
            offered = AssignorInfo(name="a", minimum_version=low, maximum_version=self.random.randint(2, 3), version=2)
            instance = f"i{self.made % 4}" if self.random.random() < 0.4 else None
            self.workers[name] = SimpleWorker(member_id=name, assignors=(offered,) if lists else (), instance=instance)

    def compute(self) -> None:
        """Those asked to compute come one step further: prepare, or install, well or badly."""
        for worker in list(self.workers.values()):
            if worker.question is not None:
                self.install(worker)
            elif worker.asked:
                worker.asked = False
                request = PrepareRequest(group_id=GROUP, member_id=worker.member_id, member_epoch=worker.epoch)
                response = self.scene.act(request).response
                assert isinstance(response, PrepareResponse)
                worker.question = response if not response.error_code else None

    def install(self, worker: SimpleWorker, *, honest: bool = False) -> None:
        """The answer to the question the worker was given, however long ago."""
        question, worker.question = worker.question, None
        assert question is not None
        luck = 1.0 if honest else self.random.random()
        request = InstallRequest(
            group_id=GROUP,
            member_id=worker.member_id,
            member_epoch=worker.epoch,
            group_epoch=question.group_epoch,
            error=1 if luck < 0.1 else 0,
            members=round_robin(question)[0 if luck > 0.2 else 1 :],
        )
        if not honest and 0.2 < luck < 0.3 and request.members[0].units:
            # Holds back what it would have given to the first.
            held = request.members[0].units
            request = replace(request, members=request.members[1:], delayed=held, delay_ms=5_000)
        if luck < 0.9 or honest:
            self.scene.act(request)
        if luck > 0.6:
            self.scene.act(request)

    def silence(self) -> None:
        """Somebody's session ends: one that crashed, or one that was only cut off."""
        if self.scene.group.members:
            member_id = self.random.choice(sorted(self.scene.group.members))
            self.scene.expire(TimerKind.SESSION, member_id)

    def late(self) -> None:
        """A rebalance timer fires: somebody took too long to stop something."""
        for member_id in sorted(self.scene.group.members):
            if self.scene.state(member_id) is MemberState.UNREVOKED:
                self.scene.expire(TimerKind.REBALANCE, member_id)
                return

    def dawdle(self) -> None:
        """The compute timer fires: somebody took too long to think, or an assignor failed."""
        self.scene.expire(TimerKind.COMPUTE)

    def crash(self) -> None:
        """A process dies; its session has not ended yet."""
        if self.workers:
            worker = self.any_worker()
            if self.random.random() < 0.5:
                del self.workers[worker.member_id]
                self.crashed.add(worker.member_id)
                if self.random.random() < 0.5:
                    self.bounced.append(worker)
            else:
                worker.abandon()  # comes back as the same member at epoch 0

    def leave(self) -> None:
        """Somebody leaves in good order."""
        if self.workers:
            worker = self.any_worker()
            del self.workers[worker.member_id]
            self.scene.leave(worker.member_id)

    def go_away(self) -> None:
        """A static worker that runs nothing any more leaves for a while; its next process has another member id."""
        worker = self.any_worker() if self.workers else None
        if worker is None or worker.instance is None or not worker.epoch or worker.stops:
            return
        del self.workers[worker.member_id]
        self.scene.may_run[worker.member_id] = set()
        for _ in range(self.random.randint(1, 2)):
            self.scene.heartbeat(worker.member_id, -2, instance=worker.instance)
        self.bounced.append(worker)

    def come_back(self) -> None:
        """One that went away, or that crashed, returns under its name."""
        if self.bounced:
            former = self.bounced.pop(self.random.randrange(len(self.bounced)))
            self.made += 1
            name = former.member_id if self.random.random() < 0.3 else f"w{self.made}"
            self.workers[name] = SimpleWorker(member_id=name, assignors=former.assignors, instance=former.instance)

    def wait(self) -> None:
        """A delay comes to its end."""
        for member_id in list(self.scene.group.delays):
            if self.random.random() < 0.5:
                self.scene.expire(TimerKind.DELAY, member_id)

    def drain(self) -> None:
        """Somebody is to be emptied, or not any more."""
        if self.workers:
            worker = self.any_worker()
            worker.draining, worker.full = not worker.draining, True

    def relist(self) -> None:
        """A worker's assignor has something new to say."""
        for worker in self.workers.values():
            if worker.assignors and self.random.random() < 0.3:
                (info,) = worker.assignors
                worker.assignors = (
                    AssignorInfo(
                        name=info.name,
                        minimum_version=info.minimum_version,
                        maximum_version=info.maximum_version,
                        version=info.version,
                        reason=self.random.randint(0, 3),
                    ),
                )
                worker.full = True

    def operate(self) -> None:
        """An operator changes connectors; some changes are made against versions of yesterday."""
        name = self.random.choice(CONNECTORS)
        version = self.random.choice([-1, -1, 0, 1, 2])
        configured = entries({"name": name, "n": str(self.random.randint(0, 2))})
        changes = [
            ConnectorChange(connector=name, expected_version=version, config=configured),
            ConnectorChange(connector=name, expected_version=version, target_state=self.random.randint(1, 3)),
            ConnectorChange(connector=name, expected_version=version, target_state=1),
            ConnectorChange(connector=name, expected_version=version, delete=True),
        ]
        change = self.random.choices(changes, [4, 3, 3, 1])[0]
        self.scene.act(UpdateConnectorsRequest(group_id=GROUP, changes=(change,)))

    def list_tasks(self) -> None:
        """The worker that runs a connector writes a new task list: more, fewer, or changed."""
        for worker in self.workers.values():
            for unit, epoch in worker.runs.items():
                if unit.is_connector and self.random.random() < 0.5:
                    configs = numbered(self.random.randint(0, 6))
                    for config in configs:
                        config["v"] = str(self.random.choice([0, 0, 0, 1]))
                    request = UpdateConnectorsRequest(
                        group_id=GROUP,
                        member_id=worker.member_id,
                        changes=(task_list(unit.connector, configs, epoch),),
                    )
                    self.scene.act(request)

    def restart(self) -> None:
        """A new coordinator: what it knows is what the log says, compacted up to somewhere (P3, KAFKA-19862)."""
        log = self.scene.log
        cut = self.random.randint(0, len(log))
        kept = self.random.random() < 0.5
        shorter: list[Record] = [*invariants.compacted(log[:cut], tombstones=kept), *log[cut:]]
        live = invariants.picture(self.scene.group)
        group = replay(GROUP, shorter)
        assert invariants.picture(group) == live
        self.scene.group, self.scene.log = group, shorter

    # ---- and in the end

    def calm(self, *, most_rounds: int = 40) -> int:
        """No more faults: timers fire where they are due, messages arrive. Returns the rounds it took."""
        self.assignor.fails = 0.0
        gone = [member_id for member_id in self.scene.group.members if member_id not in self.workers]
        for member_id in gone:
            self.scene.expire(TimerKind.SESSION, member_id)
        named: set[str | None] = {None}
        for name, worker in list(self.workers.items()):
            # Two processes of one name: only one can be a member.
            if worker.instance in named and worker.instance is not None:
                del self.workers[name]
                if name in self.scene.group.members:
                    self.scene.expire(TimerKind.SESSION, name)
            named.add(worker.instance)
        for member_id in list(self.scene.group.delays):
            self.scene.expire(TimerKind.DELAY, member_id)
        for rounds in range(most_rounds):
            for worker in [self.workers[name] for name in sorted(self.workers)]:
                worker.turn()
                self.exchange(worker)
                if worker.epoch == 0 and worker.full and not worker.asked:
                    self.exchange(worker)
            self.answer_questions()
            if self.at_rest():
                return rounds
            if rounds % 6 == 5:
                self.scene.expire(TimerKind.COMPUTE)
        raise AssertionError(f"not at rest after {most_rounds} rounds: {state_name(self.scene.group)}")

    def answer_questions(self) -> None:
        """Whoever is asked computes, and does it well."""
        for worker in self.workers.values():
            if worker.asked:
                worker.asked = False
                request = PrepareRequest(group_id=GROUP, member_id=worker.member_id, member_epoch=worker.epoch)
                response = self.scene.act(request).response
                assert isinstance(response, PrepareResponse)
                if not response.error_code:
                    worker.question = response
            if worker.question is not None:
                self.install(worker, honest=True)

    def at_rest(self) -> bool:
        """Every unit runs once, on the worker it was given to, with the token and the configuration of its grant."""
        group = self.scene.group
        if not self.workers:
            return not group.members
        members = {name for name, worker in self.workers.items() if name in group.members}
        running = {name: worker.runs for name, worker in self.workers.items() if worker.runs}
        assigned = {name: dict(current.assigned) for name, current in group.currents.items() if current.assigned}
        return (
            state_name(group) == "Stable"
            and members == group.members.keys()
            and running == assigned
            and all(self.runs_the_newest(worker) for worker in self.workers.values())
        )

    def runs_the_newest(self, worker: SimpleWorker) -> bool:
        """S10: no unit runs with a configuration that has been replaced (those of the stage's start were not sent)."""
        for unit in worker.runs.keys() & worker.configs.keys():
            connector = self.scene.group.connectors[unit.connector]
            newest = connector.config if unit.is_connector else connector.tasks[unit.task].config
            if worker.configs[unit] != newest:
                return False
        return True

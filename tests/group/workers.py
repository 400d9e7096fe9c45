"""A seeded group of small workers that stop slowly, lose messages and crash: the random runs of the replay tests.

The workers follow the protocol: a full heartbeat on join and after every error, null for what has not changed, an
acknowledgement once a unit has stopped. The seed decides how slow they are and what fails.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from connectgroup.errors import (
    FencedMemberEpoch,
    PluginError,
)
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.timers import TimerKind
from connectgroup.protocol.messages.assignment import InstalledMember, InstallRequest, PrepareRequest, PrepareResponse
from connectgroup.protocol.messages.common import AssignorInfo, entries, units_of
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.records.connect import MemberState, Record
from connectgroup.protocol.units import Unit

from . import invariants
from .builders import GROUP, ROUND_ROBIN, Scene, numbered, round_robin, settings, task_list
from .simple_worker import SimpleWorker

CONNECTORS = ("files", "orders", "weather")


class FlakyAssignor:
    """The server-side round robin, which fails at random."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.fails = 0.0

    def __call__(self, prepared: PrepareResponse) -> tuple[InstalledMember, ...]:
        if self.random.random() < self.fails:
            raise PluginError("assignor round-robin: not today")
        return round_robin(prepared)


class RandomRun:
    """The group of one seed, its workers and the random events."""

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
        self.next_id = 0
        if seed % 2:
            self.scene = Scene(settings=limits)
        else:
            # Unbalanced: one member owns all units, under older owner epochs, and the other owns none.
            everything = {Unit(name, task): 3 + (task % 4) for name in CONNECTORS[:2] for task in range(-1, 5)}
            self.scene = Scene.stable(
                limits, epoch=9, connectors=dict.fromkeys(CONNECTORS[:2], 5), members={"w0": everything, "w1": {}}
            )
            for member_id, runs in (("w0", everything), ("w1", {})):
                self.workers[member_id] = SimpleWorker(member_id=member_id, epoch=9, runs=dict(runs), full=False)
            self.next_id = 2
        self.fenced = 0
        self.crashed: set[str] = set()
        self.restarting: list[SimpleWorker] = []

    # ---- events

    def play(self, turns: int) -> None:
        """Run ``turns`` random events with faults."""
        self.assignor.fails = 0.3
        events = {
            self.beat: 60,
            self.join: 6,
            self.duplicate: 8,
            self.compute: 12,
            self.expire_session: 3,
            self.crash: 2,
            self.leave: 2,
            self.expire_rebalance: 2,
            self.expire_compute: 5,
            self.change_connector: 6,
            self.publish_task_lists: 5,
            self.fail_over: 2,
            self.change_assignors: 2,
            self.leave_temporarily: 3,
            self.rejoin: 4,
            self.expire_delay: 2,
            self.toggle_drain: 1,
        }
        for _ in range(turns):
            self.random.choices(list(events), list(events.values()))[0]()
            self.scene.now_ms += self.random.randint(0, 500)
            for worker in self.workers.values():
                worker.tick()

    def beat(self) -> None:
        """A heartbeat; its request or its response may be lost."""
        if self.workers:
            self.exchange(self.any_worker(), lose_request=0.1, lose_response=0.15)

    def any_worker(self) -> SimpleWorker:
        return self.workers[self.random.choice(sorted(self.workers))]

    def exchange(self, worker: SimpleWorker, *, lose_request: float = 0.0, lose_response: float = 0.0) -> None:
        """One heartbeat and its response."""
        request = worker.request()
        if self.random.random() < lose_request:
            worker.full = True
            return
        lost = self.random.random() < lose_response
        was_member = worker.member_id in self.scene.group.members
        response = self.scene.act(request, lost=lost).response
        assert isinstance(response, HeartbeatResponse)
        if response.error_code == FencedMemberEpoch.code:
            assert worker.join_duplicated or not was_member, (
                f"S16: {worker.member_id} follows the protocol and was fenced: {response.error_message}"
            )
            self.fenced += 1
        if response.assignment is not None:
            assigned = self.scene.current(worker.member_id).assigned
            assert units_of(response.assignment.units) <= assigned.keys()
            for grant in response.assignment.grants:
                assert assigned[Unit(grant.connector, grant.task)] == grant.owner_epoch
        grants = response.assignment.grants if response.assignment else ()
        worker.last = (request, {Unit(grant.connector, grant.task): grant.owner_epoch for grant in grants})
        worker.join_duplicated = False
        if lost:
            worker.full = True
        else:
            worker.on_response(response, self.random)

    def duplicate(self) -> None:
        """A late duplicate of a worker's last request arrives; its connection broke, so its next heartbeat is full.

        Not sent where the group rules cannot tell such a duplicate from a retry after a lost response: where the first
        response granted units at the very epoch of the request, or granted units that were deleted or reconfigured
        since. Only the sequence number differs then, and the runtime drops the duplicate.
        """
        if not self.workers:
            return
        worker = self.any_worker()
        if worker.last is None:
            return
        request, granted = worker.last
        group, epoch = self.scene.group, self.scene.current(request.member_id).epoch
        as_given = all(group.runnable.get(unit, token + 1) <= token for unit, token in granted.items())
        if not granted or (request.member_epoch not in (0, epoch) and as_given):
            self.scene.act(request, duplicate=True)
            worker.full = True
            worker.join_duplicated = request.member_epoch == 0

    def join(self) -> None:
        """A worker starts, possibly with the instance id of a crashed one."""
        if len(self.workers) < 5:
            name = f"w{self.next_id}"
            self.next_id += 1
            lists = self.kind == "client" or (self.kind == "mixed" and self.random.random() < 0.7)
            low = self.random.randint(0, 1)
            offered = AssignorInfo(name="a", minimum_version=low, maximum_version=self.random.randint(2, 3), version=2)
            instance = f"i{self.next_id % 4}" if self.random.random() < 0.4 else None
            self.workers[name] = SimpleWorker(member_id=name, assignors=(offered,) if lists else (), instance=instance)

    def compute(self) -> None:
        """Each member that was asked to compute advances: it sends Prepare or Install, with a valid result or not."""
        for worker in list(self.workers.values()):
            if worker.prepared is not None:
                self.install(worker)
            elif worker.compute_requested:
                worker.compute_requested = False
                request = PrepareRequest(group_id=GROUP, member_id=worker.member_id, member_epoch=worker.epoch)
                response = self.scene.act(request).response
                assert isinstance(response, PrepareResponse)
                worker.prepared = response if not response.error_code else None

    def install(self, worker: SimpleWorker, *, valid: bool = False) -> None:
        """Send Install with the input of the last Prepare, however old it is."""
        prepared, worker.prepared = worker.prepared, None
        assert prepared is not None
        draw = 1.0 if valid else self.random.random()
        request = InstallRequest(
            group_id=GROUP,
            member_id=worker.member_id,
            member_epoch=worker.epoch,
            group_epoch=prepared.group_epoch,
            error=1 if draw < 0.1 else 0,
            members=round_robin(prepared)[0 if draw > 0.2 else 1 :],
        )
        if not valid and 0.2 < draw < 0.3 and request.members[0].units:
            # Delays the units of the first member.
            held = request.members[0].units
            request = replace(request, members=request.members[1:], delayed=held, delay_ms=5_000)
        if draw < 0.9 or valid:
            self.scene.act(request)
        if draw > 0.6:
            self.scene.act(request)

    def expire_session(self) -> None:
        """The session of a member expires; its worker has crashed or is only cut off."""
        if self.scene.group.members:
            member_id = self.random.choice(sorted(self.scene.group.members))
            self.scene.expire(TimerKind.SESSION, member_id)

    def expire_rebalance(self) -> None:
        """A rebalance timer fires: a member has not acknowledged its revocation in time."""
        for member_id in sorted(self.scene.group.members):
            if self.scene.state(member_id) is MemberState.UNREVOKED:
                self.scene.expire(TimerKind.REBALANCE, member_id)
                return

    def expire_compute(self) -> None:
        """The compute timer fires: a member has not installed in time, or an assignor failed."""
        self.scene.expire(TimerKind.COMPUTE)

    def crash(self) -> None:
        """A process crashes; its session has not expired yet."""
        if self.workers:
            worker = self.any_worker()
            if self.random.random() < 0.5:
                del self.workers[worker.member_id]
                self.crashed.add(worker.member_id)
                if self.random.random() < 0.5:
                    self.restarting.append(worker)
            else:
                worker.abandon()  # rejoins as the same member at epoch 0

    def leave(self) -> None:
        """A member leaves."""
        if self.workers:
            worker = self.any_worker()
            del self.workers[worker.member_id]
            self.scene.leave(worker.member_id)

    def leave_temporarily(self) -> None:
        """A static worker without stopping units leaves temporarily; its next process has another member id."""
        worker = self.any_worker() if self.workers else None
        if worker is None or worker.instance is None or not worker.epoch or worker.stops:
            return
        del self.workers[worker.member_id]
        self.scene.may_run[worker.member_id] = set()
        for _ in range(self.random.randint(1, 2)):
            self.scene.heartbeat(worker.member_id, -2, instance=worker.instance)
        self.restarting.append(worker)

    def rejoin(self) -> None:
        """A static worker that left temporarily or crashed rejoins with its instance id."""
        if self.restarting:
            former = self.restarting.pop(self.random.randrange(len(self.restarting)))
            self.next_id += 1
            name = former.member_id if self.random.random() < 0.3 else f"w{self.next_id}"
            self.workers[name] = SimpleWorker(member_id=name, assignors=former.assignors, instance=former.instance)

    def expire_delay(self) -> None:
        """Some delays end."""
        for member_id in list(self.scene.group.delays):
            if self.random.random() < 0.5:
                self.scene.expire(TimerKind.DELAY, member_id)

    def toggle_drain(self) -> None:
        """A worker starts or cancels its drain."""
        if self.workers:
            worker = self.any_worker()
            worker.draining, worker.full = not worker.draining, True

    def change_assignors(self) -> None:
        """A worker's assignor has another reason for a rebalance."""
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

    def change_connector(self) -> None:
        """An operator changes a connector; some changes name an outdated version."""
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

    def publish_task_lists(self) -> None:
        """The owner of a connector publishes a task list: more, fewer, or changed tasks."""
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

    def fail_over(self) -> None:
        """Coordinator failover: replay of the log, compacted up to a random offset (P3, KAFKA-19862)."""
        log = self.scene.log
        cut = self.random.randint(0, len(log))
        kept = self.random.random() < 0.5
        shorter: list[Record] = [*invariants.compacted(log[:cut], tombstones=kept), *log[cut:]]
        live = invariants.group_state(self.scene.group)
        group = ConnectGroupState.replay(GROUP, shorter)
        assert invariants.group_state(group) == live
        self.scene.group, self.scene.log = group, shorter

    # ---- the end of a run

    def settle(self, *, max_rounds: int = 40) -> int:
        """Stop the faults: fire the timers that are due, deliver all messages. Returns the number of rounds needed."""
        self.assignor.fails = 0.0
        gone = [member_id for member_id in self.scene.group.members if member_id not in self.workers]
        for member_id in gone:
            self.scene.expire(TimerKind.SESSION, member_id)
        instances: set[str | None] = {None}
        for name, worker in list(self.workers.items()):
            # Of two processes with one instance id only one can be a member.
            if worker.instance in instances and worker.instance is not None:
                del self.workers[name]
                if name in self.scene.group.members:
                    self.scene.expire(TimerKind.SESSION, name)
            instances.add(worker.instance)
        for member_id in list(self.scene.group.delays):
            self.scene.expire(TimerKind.DELAY, member_id)
        for rounds in range(max_rounds):
            for worker in [self.workers[name] for name in sorted(self.workers)]:
                worker.tick()
                self.exchange(worker)
                if worker.epoch == 0 and worker.full and not worker.compute_requested:
                    self.exchange(worker)
            self.compute_all()
            if self.is_stable():
                return rounds
            if rounds % 6 == 5:
                self.scene.expire(TimerKind.COMPUTE)
        raise AssertionError(f"not at rest after {max_rounds} rounds: {self.scene.group.state_name}")

    def compute_all(self) -> None:
        """Each member that was asked to compute installs a valid result."""
        for worker in self.workers.values():
            if worker.compute_requested:
                worker.compute_requested = False
                request = PrepareRequest(group_id=GROUP, member_id=worker.member_id, member_epoch=worker.epoch)
                response = self.scene.act(request).response
                assert isinstance(response, PrepareResponse)
                if not response.error_code:
                    worker.prepared = response
            if worker.prepared is not None:
                self.install(worker, valid=True)

    def is_stable(self) -> bool:
        """Every unit runs once, on the worker that owns it, with the owner epoch and configuration of its grant."""
        group = self.scene.group
        if not self.workers:
            return not group.members
        members = {name for name, worker in self.workers.items() if name in group.members}
        running = {name: worker.runs for name, worker in self.workers.items() if worker.runs}
        assigned = {name: dict(current.assigned) for name, current in group.currents.items() if current.assigned}
        return (
            group.state_name == "Stable"
            and members == group.members.keys()
            and running == assigned
            and all(self.runs_the_newest(worker) for worker in self.workers.values())
        )

    def runs_the_newest(self, worker: SimpleWorker) -> bool:
        """S10: no unit runs with a replaced configuration (units of the initial state have none here)."""
        for unit in worker.runs.keys() & worker.configs.keys():
            connector = self.scene.group.connectors[unit.connector]
            newest = connector.config if unit.is_connector else connector.tasks[unit.task].config
            if worker.configs[unit] != newest:
                return False
        return True

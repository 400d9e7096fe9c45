"""A run: some minutes of faults, then quiet, in which everything must converge (L1), then small changes.

Swarm testing: each seed draws which faults it has at all and how often they come. A run with every fault at once makes
no progress, and one mild fault would never be seen alone. The drawn faults are kept, so that the same run can be
repeated from a ``Plan``, in which nothing is drawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from random import Random
from typing import Any, ClassVar

from connectgroup.protocol.units import show

from . import worker_faults
from .cluster import Cluster, WorkerNode
from .disk import FAULTS
from .faults import CONNECTORS, KINDS, Kind
from .invariants import GroupConverges, NoRebalanceStorm
from .loop import NOWHERE, SimulatedLoop
from .setting import Plan, PlannedFault, Setting

STORM_S = 480.0
WHOLE_S = 600.0
TAIL_S = 30.0

NETWORK_HITS = ("request lost", "response lost", "message copied", "message delayed", "clog", "partition")


class FaultSchedule:
    """One run's faults. ``done`` are those that had an effect; ``ends_s`` is when they ended.

    Attributes:
        kinds: the kinds of faults that are drawn; ``always``: those of them that every seed has.
        small_changes: in the smoke phase.
    """

    kinds: ClassVar[Mapping[str, Kind]] = KINDS
    always: ClassVar[frozenset[str]] = frozenset()
    small_changes: ClassVar[tuple[str, ...]] = ("join", "leave", "scale", "lose")

    def __init__(self, cluster: Cluster, *, faults: bool, plan: Plan | None, whole: bool) -> None:
        self.cluster: Cluster = cluster
        self.random: Random = Random(f"{cluster.seed} storm")
        self.plan = plan
        self.rages, self.whole = faults, whole
        # The requested numbers of workers and tasks; ``None``: drawn by the seed.
        self.requested_size: tuple[int | None, int | None] = (None, None)
        self.done: list[PlannedFault] = []
        self.ends_s = 0.0
        self.pending: dict[asyncio.Handle, Callable[[], object]] = {}

    @classmethod
    def of(
        cls,
        seed: int,
        loop: SimulatedLoop,
        faults: bool,
        members: int | None,
        tasks: int | None,
        plan: Plan | None,
        whole: bool,
    ) -> FaultSchedule:
        """A new cluster and its schedule; see ``run.run_seed``."""
        if plan is not None:
            members, tasks = plan.members, plan.tasks
        setting = plan.setting if plan is not None else None if faults else Setting()
        cluster = cls.cluster_of(seed, loop, members, tasks, setting)
        schedule = cls(cluster, faults=faults, plan=plan, whole=whole)
        schedule.requested_size = members, tasks
        return schedule

    @classmethod
    def cluster_of(
        cls, seed: int, loop: SimulatedLoop, members: int | None, tasks: int | None, setting: Setting | None
    ) -> Any:
        """A new cluster."""
        return Cluster(seed, loop, members=members, tasks=tasks, setting=setting)

    # ---- phases

    async def run_seed(self) -> None:
        """Start, inject faults, converge, smoke phase; returns early when an invariant is violated."""
        cluster = self.cluster
        cluster.watch.start()
        cluster.start_coordinator()
        self.prepare()
        for number in range(cluster.members_at_first):
            cluster.start_worker(f"w{number}")
        await asyncio.sleep(2)
        if self.rages:
            await self.inject_faults()
        self.ends_s = cluster.loop.now
        if not self.whole:
            return
        await self.rest()
        if not cluster.violations:
            await self.smoke_phase()

    def prepare(self) -> None:
        """Start what the group needs before its members."""
        cluster = self.cluster
        self._operator = asyncio.create_task(cluster.operate())
        each = max(1, cluster.tasks_at_first // len(CONNECTORS))
        for name in CONNECTORS:
            cluster.operator.submit_connector(name, each)

    async def inject_faults(self) -> None:
        """Inject faults, one after another, under constant network faults."""
        cluster, setting = self.cluster, self.cluster.setting
        cluster.fault_rates = dict(setting.fault_rates)
        cluster.network.network_faults = setting.network_faults
        for kind in (*setting.fault_rates, *NETWORK_HITS):
            cluster.armed[kind] += 1
        if setting.drift:
            cluster.armed["clocks drift"] += 1
            cluster.hit("clocks drift")
        if self.plan is None:
            await self._draw()
        else:
            for fault in self.plan.faults:
                await self._until(fault.at_s)
                if cluster.violations:
                    return
                self._do(fault)
            await self._until(self.plan.ends_s)

    async def _draw(self) -> None:
        cluster, random = self.cluster, self.random
        mean_wait_s = random.choice([4.0, 8.0, 16.0])
        known = [kind for kind in self.kinds if random.random() < 0.5 or kind in self.always]
        weights = [random.choice([1, 2, 5]) for _ in known]
        while known and cluster.loop.now < STORM_S and not cluster.violations:
            await self._until(cluster.loop.now + random.expovariate(1 / mean_wait_s))
            kind = random.choices(known, weights)[0]
            cluster.armed[kind] += 1
            arguments = self.kinds[kind].draw(self)
            if arguments is not None:
                self._do(PlannedFault(cluster.loop.now, kind, arguments))

    async def _until(self, at_s: float) -> None:
        """Sleep until exactly this time: a sum of waits would accumulate rounding errors."""
        if at_s > self.cluster.loop.now:
            there: asyncio.Future[None] = self.cluster.loop.create_future()
            self.cluster.loop.call_at(at_s, there.set_result, None)
            await there

    def _do(self, fault: PlannedFault) -> None:
        kind, cluster = self.kinds[fault.kind], self.cluster
        cluster.watch.happened += 2 * len(cluster.living()) if kind.all_workers else 1
        if kind.do(self, **fault.arguments):
            self.done.append(fault)
            cluster.say("fault", fault.kind)
            if fault.kind not in FAULTS:
                cluster.hit(fault.kind)

    async def rest(self) -> None:
        """No more faults; then L1, S2, X2 in their final form, and L2: the group makes no further changes."""
        cluster = self.cluster
        cluster.say("quiet")
        pending, self.pending = self.pending, {}
        for handle, end in pending.items():
            handle.cancel()
            end()
        cluster.fault_rates = {}
        cluster.network.calm()
        cluster.disk.faults.clear()
        cluster.disk.slow = 1.0
        cluster.paces.clear()
        cluster.source_ends_s = cluster.loop.now
        for worker in cluster.living():
            worker.resume(cluster.loop)
        for coordinator in cluster.coordinators:
            coordinator.resume(cluster.loop)
        while sum(not node.leaving for node in cluster.living()) < 2:
            worker_faults.join(self, self.free_name())
        self.restore()
        cluster.watch.on_quiet()
        gives_up_s = cluster.loop.now + self.bound_s
        while why := self.not_settled():
            if cluster.violations:
                return
            if cluster.serving is None:
                cluster.start_coordinator()
            if all(node.leaving for node in cluster.living()):
                # All joins were rejected because of the versions of a dead member that has not expired yet. A worker
                # that drains and is alone waits for another.
                worker_faults.join(self, self.free_name())
            if cluster.loop.now > gives_up_s:
                self.not_converged(f"not settled after {gives_up_s - self.ends_s:.0f} s: {why}")
                return
            await asyncio.sleep(1)
        cluster.say("at rest")
        cluster.watch.on_rest()
        await asyncio.sleep(TAIL_S)
        why = self.not_settled()
        if why:
            self.not_converged(f"settled, then not: {why}")
        cluster.watch.on_over()

    def restore(self) -> None:
        """Undo what operators have changed."""
        self.cluster.restore_connectors()

    @property
    def bound_s(self) -> float:
        """How long the group may take to converge."""
        converges: GroupConverges = self.cluster.watch.the(GroupConverges)
        return converges.bound_s

    def not_converged(self, what: str) -> None:
        """The group has not converged in time."""
        self.cluster.watch.the(GroupConverges).broken(what)

    def not_settled(self) -> str:
        """What has not converged after the faults; empty if everything has."""
        cluster = self.cluster
        durable = cluster.durable
        if why := self.not_serving():
            return why
        if cluster.operator.changes:
            return f"not yet submitted: {cluster.operator.changes[0]}"
        living = {node.member_id: node for node in cluster.living()}
        if durable.members.keys() != living.keys():
            return f"members {sorted(durable.members)}, alive {sorted(living)}"
        if leaving := [node.name for node in living.values() if node.leaving]:
            return f"leaving: {leaving}"
        # A join that arrives late, or its copy, makes a member of a dead worker, for one session.
        if cluster.loop.now <= cluster.network.last_join_s:
            return "joins are on their way"
        if durable.delays:
            return f"units are delayed for {sorted(durable.delays)}"
        if durable.deferred_starts:
            return f"{durable.deferred_starts} moves wait for {show(durable.starting)} to start"
        if durable.state_name != "Stable":
            return f"the group is {durable.state_name}: {sorted(durable.behind)} behind, {durable.computation}"
        # The group may still take a dead twin for the live member, which waits for that session to expire.
        if strangers := [node.name for node in living.values() if node.worker.member.epoch != durable.epoch]:
            return f"not joined yet: {strangers}"
        for name in CONNECTORS:
            tasks = durable.connectors[name].tasks if name in durable.connectors else ()
            if len(tasks) != cluster.parts_of(name):
                return f"{name} has {len(tasks)} tasks of {cluster.parts_of(name)}"
        runs = {
            (unit, epoch): node.member_id
            for node in living.values()
            for unit, epoch in node.running
            if (unit, epoch) not in cluster.watch.void
        }
        shall = {(unit, epoch): member for unit, (member, epoch) in durable.holders.items() if not unit.is_connector}
        if runs != shall:
            odd = runs.items() ^ shall.items()
            return f"running units differ from assigned units: {show(unit for (unit, _), _ in odd)} ({sorted(odd)[:3]})"
        end = cluster.source_end()
        for name in CONNECTORS:
            for number in range(cluster.sink.slices):
                there = cluster.sink.visible.get((name, number), 0)
                if there != end:
                    return f"slice {number} of {name} is at offset {there} of {end}"
        return ""

    def not_serving(self) -> str:
        """Why no coordinator serves; empty if one does."""
        serving = self.cluster.serving
        if serving is None or serving.coordinator is None or serving.log.epoch != self.cluster.disk.storage.epoch:
            return "no coordinator serves"
        return ""

    async def smoke_phase(self) -> None:
        """L1 without faults: a join, a leave, a change; each must settle within three heartbeat intervals and the
        stops.
        """
        cluster = self.cluster
        random = Random(f"{cluster.seed} drill")
        interval_s = cluster.settings.heartbeat_interval_ms / 1000
        while cluster.loop.now < WHOLE_S - 3 * interval_s and not cluster.violations:
            living = cluster.living()
            what = random.choice(self.small_changes)
            epoch, dead = cluster.durable.epoch, len(cluster.dead_workers)
            if what == "join" and len(living) < worker_faults.MAX_WORKERS and len(cluster.setting.versions) == 1:
                worker_faults.join(self, self.free_name())
            elif what == "lose" and cluster.setting.delay_s and len(living) > 2:
                await self._lose(random.choice(living))
                epoch = cluster.durable.epoch - 1
            elif what == "leave" and len(living) > 2:
                self.stop(random.choice(living), for_good=True)
            elif what == "change" and living:
                await self.change_protocol(random.choice(living))
                epoch = cluster.durable.epoch - 1
            else:
                what = "scale"
                name = random.choice(CONNECTORS)
                cluster.operator.submit_connector(name, cluster.parts_of(name) % 6 + 1)
            began_s = cluster.loop.now
            cluster.say("drill", what)
            # Stops take up to 0.35 s without fault rates, callbacks 0.2 s; a source is polled every five seconds.
            bound_s = (3 * interval_s + 2.0) * (1 + cluster.setting.drift) + (1.2 if what == "scale" else 0)
            # With max_moves each round is an epoch with its own heartbeat intervals.
            limit = cluster.setting.max_moves
            max_epochs = 2 + (len(cluster.durable.runnable) // limit if limit else 0)
            # Moves that wait until units have started, since before this change or by it, are an epoch of their own.
            has_deferred = cluster.durable.deferred_starts > 0
            while cluster.durable.epoch == epoch or self._unsettled():
                has_deferred |= cluster.durable.deferred_starts > 0
                rounds = max(1, min(cluster.durable.epoch - epoch, max_epochs)) if limit else 1
                limit_s = bound_s * rounds
                if cluster.setting.statics and any(node.refused for node in cluster.dead_workers[dead:]):
                    # Its former process has left temporarily; the successor that was rejected does not take its place.
                    limit_s += cluster.session_s * (1 + cluster.setting.drift)
                if cluster.loop.now - began_s > limit_s:
                    why = self._unsettled() or "the epoch did not change"
                    self.not_converged(f"{what} has not settled after {limit_s:.1f} s: {why}")
                    return
                await asyncio.sleep(0.25)
            moved = cluster.durable.epoch - epoch
            if moved > max_epochs + has_deferred:
                cluster.watch.the(NoRebalanceStorm).broken(f"{what} raised the epoch by {moved}")
            await asyncio.sleep(interval_s)

    async def change_protocol(self, node: WorkerNode) -> None:
        """Restart a worker with another protocol."""
        raise NotImplementedError

    async def _lose(self, node: WorkerNode) -> None:
        """A worker dies, expires, and rejoins before its scheduled rebalance delay ends (L8)."""
        self.cluster.say("drill", "lose", node.name)
        self.cluster.kill_worker(node)
        # The last heartbeat may have been an interval earlier; a delay of five seconds must not expire before the
        # rejoin.
        await asyncio.sleep(self.cluster.session_s * (1 + self.cluster.setting.drift) + 0.5)
        self.cluster.start_worker(node.slot)

    def _unsettled(self) -> str:
        durable = self.cluster.durable
        living = {node.member_id for node in self.cluster.living()}
        if durable.members.keys() != living:
            return f"members {sorted(durable.members)}, alive {sorted(living)}"
        return "" if durable.state_name == "Stable" else f"{sorted(durable.behind)} behind, {durable.computation}"

    # ---- helpers of faults

    def later(self, after_s: float, call: Callable[[], object], *, ends: bool = True) -> None:
        """Schedule the end of a fault, at the latest when all faults end; with ``ends=False`` a further step of it."""

        def end() -> None:
            del self.pending[handle]
            call()

        # Of no process: a coordinator that closes itself is dead when its successor is to start.
        handle = self.cluster.loop.call_later(after_s, end, context=NOWHERE)
        self.pending[handle] = call if ends else int

    def free_name(self) -> str:
        names = (f"w{number}" for number in count())
        return next(name for name in names if worker_faults.node_of(self, name) is None)

    def again(self, member_id: str) -> None:
        """Start a worker unless it is alive."""
        if worker_faults.node_of(self, member_id) is None:
            self.cluster.start_worker(member_id)

    def stop(self, node: WorkerNode, *, for_good: bool = False) -> None:
        """Make a worker leave; a static one temporarily, unless ``for_good``."""
        self._ask_to_leave(node, partial(node.worker.stop, for_good=for_good))

    def restart(self, node: WorkerNode) -> None:
        """Make a worker leave with the announcement of a restart."""
        self._ask_to_leave(node, node.worker.restart)

    def _ask_to_leave(self, node: WorkerNode, leave: Callable[[], None]) -> None:
        if not node.stopped and node.stop_requested_s is None:
            node.stop_requested_s = self.cluster.loop.now
        self.cluster.loop.call_soon(leave, context=node.context)

    def restart_coordinator(self, after_s: float) -> None:
        """Start a coordinator after a while, unless one is alive."""

        def start() -> None:
            if self.cluster.serving is None:
                self.cluster.start_coordinator()

        self.later(after_s, start)

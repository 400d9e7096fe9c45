"""What befalls a cluster: bad weather for some minutes, then quiet, in which everything must come to rest (L1).

Each seed draws which faults it knows at all and how often they come (a swarm): a run in which everything happens all
the time never gets anywhere, and one mild fault would never be seen alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from connectgroup.group.describe import state_name
from connectgroup.messages import ConnectorChange
from connectgroup.names import show

from .cluster import Cluster, WorkerNode
from .disk import FAULTS
from .network import Weather

STORM_S = 420.0
TO_REST_S = 240.0
TAIL_S = 30.0
CONNECTORS = ("files", "orders", "weather")

MOODS: dict[str, float] = {
    "a stop is slow": 0.5,
    "a stop overstays": 0.05,
    "a listener raises": 0.05,
    "a listener hangs": 0.03,
    "an assignor raises": 0.3,
    "an assignor reports an error": 0.2,
    "an assignor hangs": 0.2,
    "an assignor's answer is not legal": 0.4,
    "an install is not legal": 0.4,
    "a task's start fails": 0.1,
    "the sink fails before a write": 0.1,
    "the sink fails after a write": 0.1,
    "a write is late": 0.1,
}
"""How often somebody misbehaves, at most, where a seed knows of it at all."""

NETWORK_HITS = ("request lost", "answer lost", "message copied", "message delayed", "clog", "partition")


class Storm:
    """One seed's faults."""

    def __init__(self, cluster: Cluster, *, faults: bool = True) -> None:
        self.cluster, self.faults = cluster, faults
        self.random = Random(f"{cluster.seed} storm")
        self.mean_wait_s = self.random.choice([4.0, 8.0, 16.0])
        self.made = 0
        self.pending: dict[asyncio.Handle, Callable[[], object]] = {}
        self.kinds: dict[str, Callable[[], bool]] = {
            "worker crashes": self.crash,
            "worker power-cycles": self.power_cycle,
            "worker crashes, another joins": self.replace,
            "worker pauses": self.pause,
            "worker leaves": self.leave,
            "worker joins": self.join,
            "all workers bounce": self.bounce,
            "partition of requests": lambda: self.part(cut_out=True),
            "partition of answers": lambda: self.part(cut_in=True),
            "partition": lambda: self.part(cut_out=True, cut_in=True),
            "swizzle-clog": self.swizzle,
            "connection reset": self.reset,
            "coordinator killed": self.kill_coordinator,
            "coordinator restarted in good order": self.restart_coordinator,
            "coordinator pauses": self.pause_coordinator,
            "takeover": self.take_over,
            "slow disk": self.slow_disk,
            "wall clock jumps": self.jump,
            "compaction": self.compact,
            "task fails": self.fail_task,
            "connector scaled": self.scale,
            "connector removed": self.remove,
            "connector switched": self.switch,
            "source grows": self.grow,
        }
        for fault in FAULTS:
            self.kinds[fault] = lambda fault=fault: self.spoil(fault)  # type: ignore[misc]

    # ---- phases

    async def play(self) -> None:
        """Begin, storm, quiet; returns early when an invariant has not held."""
        cluster = self.cluster
        cluster.start_coordinator()
        operator = asyncio.create_task(cluster.operate())
        each = max(1, cluster.tasks_at_first // len(CONNECTORS))
        for name in CONNECTORS:
            cluster.order_connector(name, each)
        for _ in range(cluster.members_at_first):
            self.join()
        await asyncio.sleep(2)
        if self.faults:
            await self.rage()
        await self.rest()
        operator.cancel()

    async def rage(self) -> None:
        """Faults, one after another, over weather that stays."""
        cluster, random = self.cluster, self.random
        known = [kind for kind in self.kinds if random.random() < 0.5]
        weights = [random.choice([1, 2, 5]) for _ in known]
        cluster.moods = {mood: most * random.random() for mood, most in MOODS.items() if random.random() < 0.5}
        if random.random() < 0.8:
            cluster.network.weather = Weather(
                lose_request=random.choice([0, 0.02, 0.1, 0.3]) * random.random(),
                lose_answer=random.choice([0, 0.02, 0.1, 0.3]) * random.random(),
                copy=random.choice([0, 0.1, 0.5]) * random.random(),
                late=random.choice([0, 0.05, 0.2]) * random.random(),
                latest_s=random.choice([0.5, 1, 2]) * cluster.session_s,
                usual_s=random.choice([0.002, 0.02, 0.1]),
            )
        for kind in cluster.moods:
            cluster.armed[kind] += 1
        for kind in NETWORK_HITS:
            cluster.armed[kind] += 1
        while known and cluster.loop.now < STORM_S and not cluster.violations:
            await asyncio.sleep(random.expovariate(1 / self.mean_wait_s))
            kind = random.choices(known, weights)[0]
            cluster.armed[kind] += 1
            if self.kinds[kind]():
                self.made += 1
                cluster.say("fault", kind)
                if kind not in FAULTS:
                    cluster.hit(kind)

    async def rest(self) -> None:
        """No more faults; then L1, S2, X2 for good, and L2: nothing moves any more."""
        cluster = self.cluster
        cluster.say("quiet")
        pending, self.pending = self.pending, {}
        for handle, end in pending.items():
            handle.cancel()
            end()
        cluster.moods = {}
        cluster.network.calm()
        cluster.disk.faults.clear()
        cluster.disk.slow = 1.0
        cluster.source_ends_s = cluster.loop.now
        for worker in cluster.living():
            worker.resume(cluster.loop)
        for coordinator in cluster.coordinators:
            coordinator.resume(cluster.loop)
        while len(cluster.living()) < 2:
            self.join()
        for name in CONNECTORS:
            cluster.order_connector(name, cluster.parts_of(name))
            cluster.order(ConnectorChange(connector=name, wanted_state=1))
        gives_up_s = cluster.loop.now + TO_REST_S
        while why := self.restless():
            if cluster.violations:
                return
            if cluster.serving is None:
                cluster.start_coordinator()
            if cluster.loop.now > gives_up_s:
                cluster.violated("L1", f"not at rest after {TO_REST_S:.0f} s: {why}")
                return
            await asyncio.sleep(1)
        cluster.watch.whole()
        beats = dict(cluster.watch.beats)
        epoch, at_s = cluster.durable.epoch, cluster.loop.now
        cluster.say("at rest")
        await asyncio.sleep(TAIL_S)
        why = self.restless()
        cluster.watch.require(not why, "L1", f"at rest, then not: {why}")
        cluster.watch.require(cluster.durable.epoch == epoch, "L2", f"epoch {epoch} became {cluster.durable.epoch}")
        interval_s = cluster.settings.heartbeat_interval_ms / 1000
        if cluster.max_wait_ms:
            interval_s = min(interval_s, cluster.max_wait_ms / 1000)
        most = 2 * (cluster.loop.now - at_s) / interval_s + 2
        for node in cluster.living():
            beaten = cluster.watch.beats.get(node.name, 0) - beats.get(node.name, 0)
            cluster.watch.require(beaten <= most, "L2", f"{node.name} beat {beaten} times in {TAIL_S:.0f} s of rest")
        for arrival in cluster.handling.values():
            waited_s = cluster.loop.now - arrival.at_s
            late = waited_s > cluster.session_s and not arrival.peer.dead
            cluster.watch.require(not late, "L7", f"{arrival.request} is not answered after {waited_s:.1f} s")

    def restless(self) -> str:
        """What is not as it should be once everything is quiet; empty if all is."""
        cluster = self.cluster
        durable, serving = cluster.durable, cluster.serving
        if serving is None or serving.coordinator is None or serving.log.epoch != cluster.disk.storage.epoch:
            return "no coordinator serves"
        if cluster.orders:
            return f"not yet ordered: {cluster.orders[0]}"
        living = {node.member_id: node for node in cluster.living()}
        if durable.members.keys() != living.keys():
            return f"members {sorted(durable.members)}, alive {sorted(living)}"
        if state_name(durable) != "Stable":
            return f"the group is {state_name(durable)}: {sorted(durable.behind)} behind, {durable.computation}"
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
            return f"runs is not shall: {show(unit for (unit, _), _ in odd)} ({sorted(odd)[:3]})"
        end = cluster.source_end()
        for name in CONNECTORS:
            for number in range(cluster.sink.slices):
                there = cluster.sink.visible.get((name, number), 0)
                if there != end:
                    return f"slice {number} of {name} stands at {there} of {end}"
        return ""

    # ---- workers

    def _any(self) -> WorkerNode | None:
        nodes = self.cluster.living()
        return self.random.choice(nodes) if nodes else None

    def _later(self, after_s: float, call: Callable[[], object]) -> None:
        """The end of a fault; at the latest when all faults end."""

        def end() -> None:
            del self.pending[handle]
            call()

        handle = self.cluster.loop.call_later(after_s, end)
        self.pending[handle] = call

    def _again(self, member_id: str) -> None:
        node = self.cluster.workers.get(member_id)
        if node is None or node.dead:
            self.cluster.start_worker(member_id)

    def crash(self) -> bool:
        """A worker dies and stays dead for a while."""
        node = self._any()
        if node is None:
            return False
        self.cluster.kill_worker(node)
        self._later(self.random.random() * 60, lambda: self._again(node.member_id))
        return True

    def power_cycle(self) -> bool:
        """It comes back at once under its old name."""
        node = self._any()
        if node is None:
            return False
        self.cluster.kill_worker(node)
        self._later(self.random.random() * self.random.choice([0.5, 5, 20]), lambda: self._again(node.member_id))
        return True

    def replace(self) -> bool:
        """A new one under a new name takes its place."""
        node = self._any()
        if node is None:
            return False
        self.cluster.kill_worker(node)
        return self.join()

    def pause(self) -> bool:
        """SIGSTOP for a tenth of a session to several."""
        node = self._any()
        if node is None or node.stopped:
            return False
        node.pause()
        seconds = self.cluster.session_s * 10 ** self.random.uniform(-1, 0.7)
        self._later(seconds, lambda: node.resume(self.cluster.loop))
        return True

    def leave(self) -> bool:
        """A clean stop."""
        node = self._any()
        if node is None or len(self.cluster.living()) < 2:
            return False
        if not node.stopped:
            node.stop_asked_s = self.cluster.loop.now
        self.cluster.loop.call_soon(node.worker.stop, context=node.context)
        if self.random.random() < 0.7:
            self._later(self.random.random() * 40, lambda: self._again(node.member_id))
        return True

    def join(self) -> bool:
        """One more."""
        living = {node.member_id for node in self.cluster.living()}
        names = [f"w{number}" for number in range(10) if f"w{number}" not in living]
        if not names:
            return False
        self.cluster.start_worker(self.random.choice(names))
        return True

    def bounce(self) -> bool:
        """All of them, within a moment."""
        if self.random.random() < 0.5:
            return False
        for node in self.cluster.living():
            self.cluster.kill_worker(node)
            self._later(self.random.random() * 30, lambda name=node.member_id: self._again(name))  # type: ignore[misc]
        return True

    # ---- network

    def part(self, *, cut_in: bool = False, cut_out: bool = False) -> bool:
        """Cut one worker off, in one direction or both."""
        node = self._any()
        if node is None:
            return False
        network = self.cluster.network
        cuts = [cut for cut, wanted in ((network.cut_out, cut_out), (network.cut_in, cut_in)) if wanted]
        for cut in cuts:
            cut.add(node.name)

        def heal() -> None:
            for cut in cuts:
                cut.discard(node.name)

        self._later(self.random.uniform(1, 4 * self.cluster.session_s), heal)
        return True

    def swizzle(self) -> bool:
        """Hold several workers' messages up, one after the other, and let go in another order."""
        network, random = self.cluster.network, self.random
        for node in self.cluster.living():
            if random.random() < 0.5 and node.name not in network.clogged:
                network.clogged[node.name] = []
                seconds = random.uniform(0.5, 1.5 * self.cluster.session_s)
                self._later(seconds, lambda name=node.name: network.unclog(name))  # type: ignore[misc]
        return True

    def reset(self) -> bool:
        """One worker's connections break."""
        node = self._any()
        if node is None:
            return False
        for client in node.clients:
            client.reset("reset by peer")
        return True

    # ---- coordinators

    def _restart(self, after_s: float) -> None:
        def start() -> None:
            if self.cluster.serving is None:
                self.cluster.start_coordinator()

        self._later(after_s, start)

    def kill_coordinator(self) -> bool:
        """Gone, and back after a while."""
        node = self.cluster.serving
        if node is None:
            return False
        self.cluster.kill_coordinator(node)
        self._restart(self.random.choice([0.1, 2, 15]) * self.random.random())
        return True

    def restart_coordinator(self) -> bool:
        """It says so, and comes back."""
        node = self.cluster.serving
        if node is None or node.coordinator is None or node.stopped:
            return False
        coordinator = node.coordinator

        async def close() -> None:
            await coordinator.close()
            self.cluster.kill_coordinator(node)
            self._restart(self.random.random())

        self.cluster.loop.create_task(close(), context=node.context)
        return True

    def pause_coordinator(self) -> bool:
        """Stands still, and goes on as if nothing had been."""
        node = self.cluster.serving
        if node is None or node.stopped:
            return False
        node.pause()
        self._later(self.random.random() * 1.5 * self.cluster.session_s, lambda: node.resume(self.cluster.loop))
        return True

    def take_over(self) -> bool:
        """Stands still; another takes its place; then it goes on."""
        node = self.cluster.serving
        if node is None or node.coordinator is None or node.stopped:
            return False
        if self.random.random() < 0.7:
            node.pause()
            self._later(self.random.random() * 2 * self.cluster.session_s, lambda: node.resume(self.cluster.loop))
        self.cluster.start_coordinator()
        self.cluster.sometimes.reach("two coordinators were alive")
        self._later(3 * self.cluster.session_s, lambda: self.cluster.kill_coordinator(node))
        return True

    # ---- disk and clock

    def spoil(self, fault: str) -> bool:
        """The next append, or load, fails in this way; a process that dies of it comes back."""
        if fault in self.cluster.disk.faults:
            return False
        self.cluster.disk.faults.append(fault)
        if fault == "load failed":
            self.cluster.disk.faults.appendleft("append lost")
        if fault in ("crash before append", "crash after append", "torn tail"):
            for after_s in (5, 15, 30):
                self._restart(after_s)
        return True

    def slow_disk(self) -> bool:
        """Every append takes up to a thousand times as long."""
        disk = self.cluster.disk
        disk.slow = 10 ** self.random.uniform(1, 3)
        self._later(self.random.random() * 20, lambda: setattr(disk, "slow", 1.0))
        return True

    def jump(self) -> bool:
        """The wall clock, by up to an hour, either way."""
        self.cluster.clock_ms += self.random.randint(-3_600_000, 3_600_000)
        return True

    def compact(self) -> bool:
        """Drop what later records have replaced."""
        node = self.cluster.serving
        if node is None or node.coordinator is None or node.log.epoch != self.cluster.disk.storage.epoch:
            return False
        work = node.log.compact()
        try:
            work.send(None)
        except StopIteration:
            return True
        raise AssertionError("a memory log waits for nothing")

    # ---- connectors

    def fail_task(self) -> bool:
        """One task ends by itself."""
        node = self._any()
        if node is None or not node.running or node.stopped:
            return False
        task = node.running[self.random.choice(sorted(node.running))]
        self.cluster.loop.call_soon(task.fail, OSError("the source went away"), context=node.context)
        self.cluster.sometimes.reach("a task failed and was started again")
        return True

    def scale(self) -> bool:
        """Another number of tasks."""
        most = self.random.choice([1, 3, max(1, self.cluster.tasks_at_first // 3)])
        self.cluster.order_connector(self.random.choice(CONNECTORS), self.random.randint(1, most))
        return True

    def remove(self) -> bool:
        """Remove a connector; mostly it comes back."""
        name = self.random.choice(CONNECTORS)
        if name not in self.cluster.durable.connectors:
            return False
        self.cluster.order(ConnectorChange(connector=name, delete=True))
        if self.random.random() < 0.7:
            self.cluster.order_connector(name, self.cluster.parts_of(name))
        return True

    def switch(self) -> bool:
        """Pause, stop or resume one."""
        name = self.random.choice(CONNECTORS)
        self.cluster.order(ConnectorChange(connector=name, wanted_state=self.random.choice([1, 2, 3])))
        return True

    def grow(self) -> bool:
        """A source asks for another number of tasks; its connector finds out."""
        name = self.random.choice(CONNECTORS)
        connector = self.cluster.durable.connectors.get(name)
        if connector is None or not connector.tasks:
            return False
        most = next((int(entry.value) for entry in connector.config if entry.name == "tasks.max"), 1)
        self.cluster.parts[name] = self.random.randint(1, most)
        return True

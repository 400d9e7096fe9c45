"""A whole group on one event loop: a coordinator, workers, connectors that write down what happens to them.

The ``World`` keeps a journal of all that user code was told, in order, and checks after every test that no unit ran on
two workers at once. A ``hook`` makes user code misbehave at a named point: ``world.hook["start c-0"] = gate.wait``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectGroup
from connectgroup.assign.members import ConnectMemberAssignment
from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import ConfigError, TransportError
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.log.base import Log
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.member.state_machine import MemberSettings
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.assignment import InstalledMember, PrepareResponse
from connectgroup.protocol.messages.common import entries, grouped, units_of
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest, UpdateConnectorsResponse
from connectgroup.protocol.messages.describe import DescribedGroup, DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.records.connect import TargetState
from connectgroup.protocol.units import Unit, Units, show
from connectgroup.transport.base import Client
from connectgroup.transport.local import LocalClient
from connectgroup.worker.loop import Worker
from connectgroup.worker.runner import RunnerSettings, TaskRunner
from connectgroup.worker.settings import Connections, WorkerSettings

from .virtual_time import Gate

GROUP = "workers"


def share_out(members: Sequence[tuple[str, Units]], units: Sequence[Unit]) -> dict[str, Units]:
    """Everybody keeps what is theirs up to an even share; the rest goes to whoever has least."""
    limit = -(-len(units) // len(members))
    left = set(units)
    shares: dict[str, set[Unit]] = {}
    for member_id, owned in sorted(members):
        shares[member_id] = set(sorted(owned & left)[:limit])
        left -= shares[member_id]
    for unit in sorted(left):
        shares[min(shares, key=lambda member_id: (len(shares[member_id]), member_id))].add(unit)
    return {member_id: frozenset(its) for member_id, its in shares.items()}


def server_spread(question: PrepareResponse) -> tuple[InstalledMember, ...]:
    """The coordinator's own assignor."""
    members = [(member.member_id, share) for member, share in zip(question.members, question.shares(), strict=True)]
    versions = {member.member_id: member.assignor.version for member in question.members}
    return tuple(
        InstalledMember(member_id=member_id, units=grouped(its), version=versions[member_id])
        for member_id, its in share_out(members, question.all_units()).items()
    )


class Spread(ConnectAssignor):
    """The same on a worker; ``before`` runs first and may raise, block, or answer in its place."""

    name = "spread"

    def __init__(self) -> None:
        self.before: Callable[[ConnectGroup], Any] = lambda group: None
        self.calls = 0
        self.told: list[ConnectMemberAssignment] = []

    def assign(self, group: ConnectGroup) -> ConnectAssignment:
        self.calls += 1
        instead = self.before(group)
        if instead is not None:
            return instead  # type: ignore[no-any-return]
        shares = share_out([(member.member_id, member.owned) for member in group.members], group.units)
        return ConnectAssignment(
            members=[ConnectMemberAssignment(member_id=member_id, units=units) for member_id, units in shares.items()]
        )

    def on_assignment(self, assignment: ConnectMemberAssignment) -> None:
        self.told.append(assignment)


def settings(**changes: Any) -> GroupSettings:
    """Connect's times (session 10 s, heartbeat 3 s) and the coordinator's own assignor."""
    return GroupSettings(**{"server_assignor": "even", "server_assignors": {"even": server_spread}, **changes})


class Link(Client):
    """A worker's connection that a test can cut, and that counts what goes over it.

    Attributes:
        cut: what was asked is not answered, what is asked does not arrive.
        requests: every request that was called with, with the loop's time.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._client: Client | None = None
        self._server: Coordinator | None = None
        self._cut = asyncio.Event()
        self.requests: list[tuple[float, Request]] = []
        self.instead: Callable[[Request], Awaitable[Response | None]] | None = None

    @property
    def address(self) -> str:
        return "the coordinator"

    @property
    def heartbeats(self) -> int:
        """How many heartbeats were sent."""
        return sum(isinstance(request, HeartbeatRequest) for _, request in self.requests)

    def cut(self) -> None:
        """From here on nothing gets through."""
        self._cut.set()

    def heal(self) -> None:
        """The next call gets through again."""
        self._cut.clear()

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        now = self._world.now
        self.requests.append((now, request))
        # A worker that spins stops virtual time, and the test with it: better to say so.
        assert len(self.requests) < 50 or self.requests[-50][0] < now, f"50 calls at once, the last {request}"
        if self.instead is not None and (answer := await self.instead(request)) is not None:
            return answer
        server = self._world.coordinator
        if self._client is None or self._server is not server:
            self._client, self._server = LocalClient(server), server
        if self._cut.is_set():
            await asyncio.sleep(timeout_s)
            raise TransportError("no answer")
        call = asyncio.create_task(self._client.call(request, timeout_s=timeout_s))
        cut = asyncio.create_task(self._cut.wait())
        try:
            await asyncio.wait({call, cut}, return_when=asyncio.FIRST_COMPLETED)
            if cut.done():
                self._client = None
                await asyncio.sleep(now + timeout_s - self._world.now)
                raise TransportError("no answer")
            return call.result()
        finally:
            for task in (call, cut):
                task.cancel()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


@dataclass(eq=False)
class Actor:
    """One worker on stage."""

    worker: Worker
    runner: TaskRunner
    heartbeats: Link
    control: Link
    task: asyncio.Task[None] | None = None

    @property
    def units(self) -> Units:
        """What it runs."""
        return self.runner.running

    def cut(self) -> None:
        """Cut it off."""
        self.heartbeats.cut()
        self.control.cut()

    def heal(self) -> None:
        """Let it back."""
        self.heartbeats.heal()
        self.control.heal()


@dataclass
class World:
    """The stage. ``async with`` it; after the test it is cleared whatever state it is in."""

    scratch: Path
    group: GroupSettings = field(default_factory=settings)
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    log: Callable[[MemoryStorage], Log] = MemoryLog
    journal: list[str] = field(default_factory=list)
    hook: dict[str, Callable[[], Any]] = field(default_factory=dict)
    actors: dict[str, Actor] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)
    zombies: set[str] = field(default_factory=set)
    contexts: dict[Unit, TaskContext] = field(default_factory=dict)
    _running: dict[Unit, set[str]] = field(default_factory=dict)
    _offences: list[str] = field(default_factory=list)

    async def __aenter__(self) -> World:
        self.coordinator = Coordinator(self.log(self.storage), self.group, wall_clock_ms=lambda: int(self.now * 1000))
        await self.coordinator.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for gate in self.gates:
            gate.open()
        tasks = [actor.task for actor in self.actors.values() if actor.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.coordinator.close()
        assert not self._offences, "; ".join(self._offences)

    @property
    def now(self) -> float:
        """The loop's time, in seconds."""
        return asyncio.get_running_loop().time()

    def gate(self) -> Gate:
        """A gate that is opened when the test ends at the latest."""
        gate = Gate()
        self.gates.append(gate)
        return gate

    def slow(self, seconds: float) -> Callable[[], None]:
        """A hook that takes so long, each time."""
        loop = asyncio.get_running_loop()

        def wait() -> None:
            gate = self.gate()
            loop.call_soon_threadsafe(loop.call_later, seconds, gate.open)
            gate.wait()

        return wait

    # ---- coordinator

    async def restart(self) -> None:
        """Another coordinator on the same storage."""
        await self.coordinator.close()
        await self.__aenter__()

    async def update(self, *changes: ConnectorChange) -> UpdateConnectorsResponse:
        """An operator's change; must succeed."""
        request = UpdateConnectorsRequest(group_id=GROUP, changes=changes)
        answer = await self.coordinator.handle(request, client_host="operator")
        assert isinstance(answer, UpdateConnectorsResponse)
        assert not answer.error_code, answer.error_message
        return answer

    async def add(self, name: str = "c", tasks: int = 2, cls: str = "scripted", **config: str) -> None:
        """Add or reconfigure a connector."""
        lines = {"connector.class": cls, "tasks.max": str(tasks), **config}
        await self.update(ConnectorChange(connector=name, config=entries(lines)))

    async def update_class(self, name: str, cls: str) -> None:
        """Give a connector another class."""
        await self.add(name, 1, cls=cls)

    async def want(self, name: str, state: TargetState) -> None:
        """Resume, pause or stop a connector."""
        await self.update(ConnectorChange(connector=name, target_state=state))

    async def describe(self) -> DescribedGroup:
        """The group as everybody can see it."""
        answer = await self.coordinator.handle(DescribeRequest(group_ids=(GROUP,)), client_host="operator")
        assert isinstance(answer, DescribeResponse)
        return answer.groups[0]

    # ---- workers

    def make(
        self,
        member_id: str,
        *,
        assignors: Sequence[ConnectAssignor] = (),
        listeners: Sequence[WorkerRebalanceListener] | None = None,
        times: WorkerSettings | None = None,
        refresh_s: float = 1.0,
        **more: Any,
    ) -> Actor:
        """A worker that does not run yet."""
        heartbeats, control = Link(self), Link(self)
        worker = Worker(
            MemberSettings(group_id=GROUP, member_id=member_id, **more),
            Connections(heartbeats=heartbeats, control=control),
            assignors=assignors,
            listeners=[RecordingListener(self, member_id)] if listeners is None else listeners,
            times=replace(times or WorkerSettings(), first_sequence=int(self.now * 1_000_000)),
        )
        runner = TaskRunner(
            member_id,
            RunnerSettings(scratch=self.scratch, refresh_s=refresh_s),
            load_class=self._load,
            publish=worker.publish_tasks,
            report=worker.report,
        )
        worker.set_runner(runner)
        self.actors[member_id] = Actor(worker, runner, heartbeats, control)
        return self.actors[member_id]

    def start(self, member_id: str, **more: Any) -> Actor:
        """A worker that runs."""
        actor = self.make(member_id, **more)
        actor.task = asyncio.create_task(actor.worker.run(), name=f"worker {member_id}")
        return actor

    async def until(self, condition: Callable[[], object], *, within: float = 30.0, step: float = 0.05) -> float:
        """Let time pass until something is so; how long that took."""
        started = self.now
        while not condition():
            if self.now > started + within:
                raise AssertionError(f"not within {within} s; {await self.story()}")
            for actor in self.actors.values():
                if actor.task is not None and actor.task.done() and not actor.task.cancelled():
                    actor.task.result()
            await asyncio.sleep(step)
        return self.now - started

    async def settled(self, *member_ids: str, within: float = 30.0) -> dict[str, list[str]]:
        """Until these (all, if none is named) share all units and everything runs; who has what."""
        who = member_ids or tuple(self.actors)
        started = self.now
        while True:
            group = await self.describe()
            runs = {member_id: self.actors[member_id].units for member_id in who}
            wanted = {Unit(c.connector, unit.task) for c in group.connectors for unit in c.units}
            expected = {
                c.connector: int(next((e.value for e in c.config if e.name == "tasks.max"), "1"))
                for c in group.connectors
            }
            complete = all(
                len(c.units) == 1 + expected[c.connector] for c in group.connectors if c.target_state == "RUNNING"
            )
            everything = sorted(unit for its in runs.values() for unit in its)
            members = {member.member_id for member in group.members}
            if complete and group.state == "Stable" and members == set(who) and everything == sorted(wanted):
                return {member_id: [str(unit) for unit in sorted(its)] for member_id, its in runs.items()}
            if self.now > started + within:
                raise AssertionError(f"not settled within {within} s; {await self.story()}")
            await asyncio.sleep(0.05)

    async def story(self) -> str:
        """What to print when a test fails."""
        group = await self.describe()
        members = [(m.member_id, m.state, m.member_epoch, show(units_of(m.assigned))) for m in group.members]
        runs = {member_id: show(actor.units) for member_id, actor in self.actors.items()}
        return f"group {group.state} at {group.group_epoch}: {members}; running {runs}; " + " | ".join(
            self.journal[-20:]
        )

    # ---- what user code is told

    def note(self, line: str) -> None:
        """Write it down, and run the hook of that name, if any: with the member, or for every member."""
        self.journal.append(line)
        _, _, point = line.partition(" ")
        hook = self.hook.get(line) or self.hook.get(point)
        if hook is not None:
            hook()

    def count(self, text: str) -> int:
        """How many lines of the journal hold this text."""
        return sum(text in line for line in self.journal)

    def began(self, member_id: str, unit: Unit) -> None:
        """A task has begun to run."""
        others = self._running.setdefault(unit, set()) - self.zombies - {member_id}
        if others and member_id not in self.zombies:
            self._offences.append(f"{unit} runs on {member_id} and {sorted(others)}")
        self._running[unit].add(member_id)

    def ended(self, member_id: str, unit: Unit) -> None:
        """A task has ended."""
        self._running.setdefault(unit, set()).discard(member_id)

    def _load(self, name: str) -> type[Connector]:
        if name != "scripted":
            raise ConfigError("connector.class", name, "scripted")
        world = self

        class ScriptedConnector(Scripted):
            stage = world

        return ScriptedConnector


class Scripted(Connector):
    """``tasks.max`` tasks (or ``tasks``, where given) that write down their starts and stops."""

    stage: World

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.stage.note(f"? construct {name}")

    def task_configs(self, limit: int) -> Sequence[Config]:
        self.stage.note(f"? task_configs {self.name}")
        return [{"task": str(number), "text": self.config.get("text", "")} for number in range(limit)]

    def task(self, config: Config, context: TaskContext) -> Task:
        return ScriptedTask(self.stage, context)


class ScriptedTask(Task):
    """Runs from the end of ``start`` to the end of ``stop``."""

    def __init__(self, stage: World, context: TaskContext) -> None:
        self.stage, self.context = stage, context

    def start(self) -> None:
        self.stage.note(f"{self.context.member_id} start {self.context.unit}")
        self.stage.began(self.context.member_id, self.context.unit)
        self.stage.contexts[self.context.unit] = self.context

    def stop(self) -> None:
        try:
            self.stage.note(f"{self.context.member_id} stop {self.context.unit}")
        finally:
            self.stage.ended(self.context.member_id, self.context.unit)


class RecordingListener(WorkerRebalanceListener):
    """Writes down what it is told, and that its calls never overlap."""

    def __init__(self, stage: World, member_id: str) -> None:
        self.stage, self.member_id = stage, member_id
        self.inside: Counter[str] = Counter()
        self.held: Counter[Unit] = Counter()

    def on_assigned(self, units: Units, epoch: int) -> None:
        self._call("on_assigned", units)

    def on_revoked(self, units: Units, epoch: int) -> None:
        self._call("on_revoked", units)

    def on_lost(self, units: Units, epoch: int) -> None:
        self._call("on_lost", units)

    def _call(self, event: str, units: Units) -> None:
        if self.inside.total():
            self.stage._offences.append(f"{self.member_id}: {event} while in {list(self.inside.elements())}")
        self.inside[event] += 1
        try:
            self.stage.note(f"{self.member_id} {event} {show(units)}")
        finally:
            self.inside[event] -= 1
        for unit in units:
            self.held[unit] += 1 if event == "on_assigned" else -1
            if self.held[unit] not in (0, 1):
                self.stage._offences.append(f"{self.member_id}: {event} of {unit} makes {self.held[unit]} of it")


def error(code: int, message: str = "", epoch: int = -1) -> HeartbeatResponse:
    """A heartbeat's refusal."""
    return HeartbeatResponse(error_code=code, error_message=message, coordinator_epoch=epoch)

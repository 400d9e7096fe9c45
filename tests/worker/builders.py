"""A whole group on one event loop: a coordinator, workers, and connectors that record their calls.

``World`` is the harness. It keeps a journal of all calls of user code, in order, and checks after every test that no
unit ran on two workers at once. A ``hook`` makes user code misbehave at a named point: ``world.hook["start c-0"]``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectAssignorInput
from connectgroup.assign.members import ConnectMemberAssignment
from connectgroup.connector import Connector, TaskContext
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import ConfigError, TransportError
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.log.base import Log
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.member.settings import MemberSettings
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.assignment import InstalledMember, PrepareResponse
from connectgroup.protocol.messages.common import entries, grouped, units_of
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest, UpdateConnectorsResponse
from connectgroup.protocol.messages.describe import DescribedGroup, DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.records.connect import TargetState
from connectgroup.protocol.units import Unit, Units, show
from connectgroup.testing.virtual_time import Gate
from connectgroup.transport.base import Client
from connectgroup.transport.local import LocalClient
from connectgroup.worker.loop import Worker
from connectgroup.worker.runner import TaskRunner
from connectgroup.worker.settings import Connections, RunnerSettings, WorkerSettings

from .scripted import RecordingListener, Scripted

GROUP = "workers"


def share_out(members: Sequence[tuple[str, Units]], units: Sequence[Unit]) -> dict[str, Units]:
    """Each member keeps its units up to an even share; the rest goes to the member with the fewest units."""
    limit = -(-len(units) // len(members))
    left = set(units)
    by_member: dict[str, set[Unit]] = {}
    for member_id, owned in sorted(members):
        by_member[member_id] = set(sorted(owned & left)[:limit])
        left -= by_member[member_id]
    for unit in sorted(left):
        by_member[min(by_member, key=lambda member_id: (len(by_member[member_id]), member_id))].add(unit)
    return {member_id: frozenset(its) for member_id, its in by_member.items()}


def server_spread(spec: PrepareResponse) -> tuple[InstalledMember, ...]:
    """The server-side assignor."""
    members = [(member.member_id, share) for member, share in zip(spec.members, spec.shares(), strict=True)]
    versions = {member.member_id: member.assignor.version for member in spec.members}
    return tuple(
        InstalledMember(member_id=member_id, units=grouped(its), version=versions[member_id])
        for member_id, its in share_out(members, spec.all_units()).items()
    )


class Spread(ConnectAssignor):
    """The same assignor on a worker; ``before`` runs first and may raise, block, or return another result."""

    name = "spread"

    def __init__(self) -> None:
        self.before: Callable[[ConnectAssignorInput], Any] = lambda group: None
        self.calls = 0
        self.assignments: list[ConnectMemberAssignment] = []

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        self.calls += 1
        instead = self.before(group)
        if instead is not None:
            return instead  # type: ignore[no-any-return]
        by_member = share_out([(member.member_id, member.owned) for member in group.members], group.units)
        return ConnectAssignment(
            members=[
                ConnectMemberAssignment(member_id=member_id, units=units) for member_id, units in by_member.items()
            ]
        )

    def on_assignment(self, assignment: ConnectMemberAssignment) -> None:
        self.assignments.append(assignment)


def settings(**changes: Any) -> GroupSettings:
    """Connect's defaults (session timeout 10 s, heartbeat interval 3 s) and the server-side assignor."""
    return GroupSettings(**{"server_assignor": "even", "server_assignors": {"even": server_spread}, **changes})


class Link(Client):
    """A worker's connection, which a test can cut; records its requests.

    Attributes:
        cut: outstanding requests get no response, and new ones do not arrive.
        requests: every request of ``call``, with the loop's time.
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
        """Number of heartbeats sent."""
        return sum(isinstance(request, HeartbeatRequest) for _, request in self.requests)

    def cut(self) -> None:
        """Drop all messages from now on."""
        self._cut.set()

    def heal(self) -> None:
        """Deliver messages again from the next call on."""
        self._cut.clear()

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        now = self._world.now
        self.requests.append((now, request))
        # A busy loop would stop virtual time, and the test with it: fail instead.
        assert len(self.requests) < 50 or self.requests[-50][0] < now, f"50 calls at once, the last {request}"
        if self.instead is not None and (response := await self.instead(request)) is not None:
            return response
        server = self._world.coordinator
        if self._client is None or self._server is not server:
            self._client, self._server = LocalClient(server), server
        if self._cut.is_set():
            await asyncio.sleep(timeout_s)
            raise TransportError("no response")
        call = asyncio.create_task(self._client.call(request, timeout_s=timeout_s))
        cut = asyncio.create_task(self._cut.wait())
        try:
            await asyncio.wait({call, cut}, return_when=asyncio.FIRST_COMPLETED)
            if cut.done():
                self._client = None
                await asyncio.sleep(now + timeout_s - self._world.now)
                raise TransportError("no response")
            return call.result()
        finally:
            for task in (call, cut):
                task.cancel()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


@dataclass(eq=False)
class Actor:
    """One worker of the harness."""

    worker: Worker
    runner: TaskRunner
    heartbeats: Link
    control: Link
    task: asyncio.Task[None] | None = None

    @property
    def units(self) -> Units:
        """The units that the worker runs."""
        return self.runner.running

    def cut(self) -> None:
        """Cut both connections."""
        self.heartbeats.cut()
        self.control.cut()

    def heal(self) -> None:
        """Restore both connections."""
        self.heartbeats.heal()
        self.control.heal()


@dataclass
class World:
    """The harness. Use it with ``async with``; at the end everything is stopped, whatever state it is in."""

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
    _violations: list[str] = field(default_factory=list)

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
        assert not self._violations, "; ".join(self._violations)

    @property
    def now(self) -> float:
        """The loop's time, in seconds."""
        return asyncio.get_running_loop().time()

    def gate(self) -> Gate:
        """A gate that is opened at the end of the test at the latest."""
        gate = Gate()
        self.gates.append(gate)
        return gate

    def slow(self, seconds: float) -> Callable[[], None]:
        """A hook that takes this long, each time."""
        loop = asyncio.get_running_loop()

        def wait() -> None:
            gate = self.gate()
            loop.call_soon_threadsafe(loop.call_later, seconds, gate.open)
            gate.wait()

        return wait

    # ---- coordinator

    async def restart(self) -> None:
        """Start another coordinator on the same storage."""
        await self.coordinator.close()
        await self.__aenter__()

    async def update(self, *changes: ConnectorChange) -> UpdateConnectorsResponse:
        """Apply an operator's change; it must succeed."""
        request = UpdateConnectorsRequest(group_id=GROUP, changes=changes)
        response = await self.coordinator.handle(request, client_host="operator")
        assert isinstance(response, UpdateConnectorsResponse)
        assert not response.error_code, response.error_message
        return response

    async def add(self, name: str = "c", tasks: int = 2, cls: str = "scripted", **config: str) -> None:
        """Add or reconfigure a connector."""
        lines = {"connector.class": cls, "tasks.max": str(tasks), **config}
        await self.update(ConnectorChange(connector=name, config=entries(lines)))

    async def update_class(self, name: str, cls: str) -> None:
        """Give a connector another class."""
        await self.add(name, 1, cls=cls)

    async def set_state(self, name: str, state: TargetState) -> None:
        """Resume, pause or stop a connector."""
        await self.update(ConnectorChange(connector=name, target_state=state))

    async def describe(self) -> DescribedGroup:
        """The group, as described by the coordinator."""
        response = await self.coordinator.handle(DescribeRequest(group_ids=(GROUP,)), client_host="operator")
        assert isinstance(response, DescribeResponse)
        return response.groups[0]

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
        """Create a worker without running it."""
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
        """Create a worker and run it."""
        actor = self.make(member_id, **more)
        actor.task = asyncio.create_task(actor.worker.run(), name=f"worker {member_id}")
        return actor

    async def run(self, *member_ids: str, tasks: int) -> list[Actor]:
        """Add the connector c with so many tasks, start these workers, and wait until they run all units."""
        await self.add("c", tasks)
        actors = [self.start(member_id) for member_id in member_ids]
        await self.settled()
        return actors

    async def until(self, condition: Callable[[], object], *, within: float = 30.0, step: float = 0.05) -> float:
        """Advance time until the condition holds; return how long that took, in seconds."""
        started = self.now
        while not condition():
            if self.now > started + within:
                raise AssertionError(f"not within {within} s; {await self.report()}")
            for actor in self.actors.values():
                if actor.task is not None and actor.task.done() and not actor.task.cancelled():
                    actor.task.result()
            await asyncio.sleep(step)
        return self.now - started

    async def settled(self, *member_ids: str, within: float = 30.0) -> dict[str, list[str]]:
        """Advance time until these members (default: all) own and run all units; return the units by member."""
        expected_members = member_ids or tuple(self.actors)
        started = self.now
        while True:
            group = await self.describe()
            runs = {member_id: self.actors[member_id].units for member_id in expected_members}
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
            if (
                complete
                and group.state == "Stable"
                and members == set(expected_members)
                and everything == sorted(wanted)
            ):
                return {member_id: [str(unit) for unit in sorted(its)] for member_id, its in runs.items()}
            if self.now > started + within:
                raise AssertionError(f"not settled within {within} s; {await self.report()}")
            await asyncio.sleep(0.05)

    async def report(self) -> str:
        """The state to print when a test fails."""
        group = await self.describe()
        members = [(m.member_id, m.state, m.member_epoch, show(units_of(m.assigned))) for m in group.members]
        runs = {member_id: show(actor.units) for member_id, actor in self.actors.items()}
        return f"group {group.state} at {group.group_epoch}: {members}; running {runs}; " + " | ".join(
            self.journal[-20:]
        )

    # ---- calls of user code

    def note(self, line: str) -> None:
        """Add to the journal, and run the hook of that name, if any: for one member, or for every member."""
        self.journal.append(line)
        _, _, point = line.partition(" ")
        hook = self.hook.get(line) or self.hook.get(point)
        if hook is not None:
            hook()

    def count(self, text: str) -> int:
        """Number of journal lines that contain this text."""
        return sum(text in line for line in self.journal)

    def began(self, member_id: str, unit: Unit) -> None:
        """A task has started."""
        others = self._running.setdefault(unit, set()) - self.zombies - {member_id}
        if others and member_id not in self.zombies:
            self._violations.append(f"{unit} runs on {member_id} and {sorted(others)}")
        self._running[unit].add(member_id)

    def ended(self, member_id: str, unit: Unit) -> None:
        """A task has stopped."""
        self._running.setdefault(unit, set()).discard(member_id)

    def _load(self, name: str) -> type[Connector]:
        if name != "scripted":
            raise ConfigError("connector.class", name, "scripted")
        harness = self

        class ScriptedConnector(Scripted):
            world = harness

        return ScriptedConnector


def error(code: int, message: str = "", epoch: int = -1) -> HeartbeatResponse:
    """A heartbeat response with an error."""
    return HeartbeatResponse(error_code=code, error_message=message, coordinator_epoch=epoch)

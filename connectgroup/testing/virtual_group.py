"""A worker group in one process and in virtual time: the shipped coordinator and workers, each in a node of its own.

The network between them has latency and partitions, and loses messages. A call is an ordinary ``LocalClient`` call, so
timeouts and the order of responses are those of every transport. The request and its response travel outside of any
node: they arrive also when their sender has been paused or killed.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import tempfile
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ..assign.placement import WorkerTraits
from ..client.admin import Admin
from ..connector import Connector
from ..coordinator.compute import server_assignors
from ..coordinator.runtime import Coordinator
from ..errors import TransportError, one_line
from ..log.memory import MemoryLog, MemoryStorage
from ..masking import masked_text, without_secrets
from ..member.settings import MemberSettings
from ..own_plugins import make_assignor
from ..protocol.messages.api import Request, Response
from ..protocol.messages.describe import DescribedGroup
from ..protocol.records.base import Kind, Tombstone
from ..protocol.records.connect import ComputationRecord, Record
from ..telemetry import metrics
from ..transport.base import Client
from ..transport.local import LocalClient
from ..worker.loop import Worker
from ..worker.runner import TaskRunner
from ..worker.settings import Connections, RunnerSettings, WorkerSettings
from .faults import MIN_LATENCY_S, Fault, Faults
from .history import noted_errors
from .plugins import (
    GuardedTask,
    RecordingRunner,
    end_tasks,
    guarded_classes,
    guarded_listener,
    make_listeners,
)
from .virtual_time import Node, VirtualLoop, virtual_sleep
from .worker_group import COORDINATOR, GroupPlan, WorkerGroup

T = TypeVar("T")

OPERATOR = "operator"


class _ObservedLog(MemoryLog):
    """A memory log that reports removed members and failed computations, and whose appends may be slow."""

    def __init__(self, group: VirtualGroup) -> None:
        super().__init__(group.storage)
        self._group = group

    async def append(self, records: Sequence[Record]) -> None:
        await asyncio.sleep(self._group.faults.append_s())
        await super().append(records)
        for record in records:
            if isinstance(record, Tombstone) and record.key.kind is Kind.MEMBER:
                self._group.history.fenced(record.key.name)
            elif isinstance(record, ComputationRecord):
                self._group.report_computation(record)


@dataclass(eq=False)
class _Member:
    """One worker process of the simulation."""

    node: Node
    worker: Worker
    links: list[NetworkLink]
    task: asyncio.Task[None]


class VirtualGroup(WorkerGroup):
    """See the module.

    Attributes:
        loop: the event loop; run code of the test on it with ``loop.run_until_complete``.
        faults: the faults of a test with a seed; none without.
        storage: the coordinator's log.
    """

    def __init__(
        self, plan: GroupPlan, *, seed: int | None = None, only: Collection[str] | None = None, prefix: str = ""
    ) -> None:
        """``only``, ``prefix``: see ``Faults``."""
        super().__init__(plan, seed=seed or 0)
        self.loop = VirtualLoop()
        self.storage = MemoryStorage()
        self.faults = Faults(seed, only=only, now=self.loop.time, prefix=prefix)
        self._network = Network(self.faults)
        self._members: dict[str, _Member] = {}
        self._ended: list[_Member] = []
        self._coordinators: list[tuple[Coordinator, Node]] = []
        self._classes: dict[str, type[Connector]] = {}
        self._started: set[GuardedTask] = set()
        self._sequence = 0
        self._failures_in_a_row, self._failures, self._last_failure = 0, 0, ""
        self._cleanup = ExitStack()
        self._dice = random.getstate()
        random.seed(f"group {seed}")
        self._cleanup.callback(random.setstate, self._dice)
        self._scratch = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="connectgroup-")))
        self._cleanup.enter_context(virtual_sleep(self.loop))
        self._cleanup.enter_context(self.faults.armed())
        self._cleanup.enter_context(noted_errors(self.history, self.loop, self._masked))
        try:
            self._start_coordinator()
            for name, spec in plan.connectors.items():
                self.add_connector(name, spec)
            for name in plan.names:
                self.add_worker(name)
        except BaseException:
            self.close()
            raise

    def _masked(self, message: str) -> str:
        return without_secrets(message, *self._configs.values())

    @property
    def faults_occurred(self) -> Sequence[Fault]:
        return self.faults.occurred

    # ----------------------------------------------------------------------------------------------
    # Time

    @property
    def now(self) -> float:
        return self.loop.time()

    def _advance(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        for name, member in list(self._members.items()):
            if member.task.done() and not member.node.dead:
                self._forget(name)

    def _forget(self, name: str) -> None:
        """A worker has ended by itself: rejected by the coordinator, drained, or restarting."""
        member = self._members.pop(name)
        self._alive.pop(name, None)
        self._ended.append(member)
        error = None if member.task.cancelled() else member.task.exception()
        self.history.note(f"{name} has ended{'' if error is None else f': {error}'}")
        self.history.ended(name)
        if error is not None:
            self._failed[name] = one_line(error)

    # ----------------------------------------------------------------------------------------------
    # Coordinator

    def _start_coordinator(self) -> None:
        node = Node(COORDINATOR)
        own, settings = self.plan.settings.server_assignor, self.plan.settings
        if own and own not in settings.server_assignors:
            # Without a time limit: the coordinator then calls it in the thread of the event loop.
            settings = replace(settings, server_assignors={**settings.server_assignors, **server_assignors([own])})
        coordinator = Coordinator(_ObservedLog(self), settings, wall_clock_ms=self._wall_clock_ms)
        self.loop.run_until_complete(self.loop.create_task(coordinator.start(), context=node.context))
        self._coordinators.append((coordinator, node))
        self._network.coordinator = coordinator, node
        self.history.note("the coordinator starts")

    def report_computation(self, record: ComputationRecord) -> None:
        """The coordinator has written a computation, with the number of failures since the last target assignment."""
        if record.failures > self._failures_in_a_row:
            self._failures += record.failures - self._failures_in_a_row
            self._last_failure = masked_text(record.error)
            self.history.note(f"computation for epoch {record.epoch} failed: {self._last_failure}")
        self._failures_in_a_row = record.failures

    def _computations(self, group: DescribedGroup) -> Iterator[str]:
        yield from super()._computations(group)
        if self._failures:
            yield f"failed computations: {self._failures}; the last: {self._last_failure}"

    def _wall_clock_ms(self) -> int:
        return 1_700_000_000_000 + int(self.loop.time() * 1000)

    def _kill_coordinator(self) -> None:
        if self._network.coordinator is not None:
            coordinator, node = self._network.coordinator
            node.kill()
            metrics.unregister(coordinator.shard.metrics)
            self._network.coordinator = None
            self.history.note("the coordinator is killed")
            self.loop.run_until_complete(self._network.reset())

    def _admin(self, *, retry_for_s: float) -> Admin | None:
        if self._network.coordinator is None or self.loop.is_closed():
            return None
        coordinator, _ = self._network.coordinator
        return Admin([LocalClient(coordinator, client_host=OPERATOR, client_id="test")], retry_for_s=retry_for_s)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._network.coordinator is not None
        _, node = self._network.coordinator
        done: T = self.loop.run_until_complete(self.loop.create_task(coroutine, context=node.context.copy()))
        return done

    def _add_classes(self, classes: Mapping[str, Any]) -> None:
        self._classes |= classes

    # ----------------------------------------------------------------------------------------------
    # Workers

    def _start_worker(self, name: str, traits: WorkerTraits) -> None:
        assert name not in self._members, f"{name} runs already"
        node = Node(name)
        self._members[name] = node.context.run(self._make, name, node, traits)
        self._alive[name] = name not in self._network.partitioned
        self.history.note(f"{name} starts")

    def _make(self, name: str, node: Node, traits: WorkerTraits) -> _Member:
        links = [self._network.link(name), self._network.link(name)]
        self._sequence += 1_000_000_000
        worker = Worker(
            MemberSettings(group_id=self.plan.group_id, member_id=name, traits=traits),
            Connections(heartbeats=links[0], control=links[1]),
            assignors=[make_assignor(each) for each in self._assignors_of(name)],
            listeners=[guarded_listener(listener, node) for listener in make_listeners(self._listeners_of(name))],
            times=WorkerSettings(first_sequence=self._sequence, process_id=self._sequence),
        )
        recorder = RecordingRunner(name, self.history, node)
        runner = TaskRunner(
            name,
            RunnerSettings(scratch=self._scratch / name, group_id=self.plan.group_id, allowed_paths=None),
            load_class=guarded_classes(self._classes, node, self._started, recorder),
            publish=worker.publish_tasks,
            report=worker.report,
        )
        worker.set_runner(recorder.around(self.faults.slow(runner)))
        return _Member(node, worker, links, self.loop.create_task(worker.run(), name=name, context=node.context))

    def worker(self, name: str) -> Worker:
        """The worker of that name, for tests that need more than the methods here."""
        return self._member(name).worker

    def _member(self, name: str) -> _Member:
        self._check_worker(name, self._members)
        return self._members[name]

    def stop(self, name: str) -> None:
        member = self._member(name)
        self.resume(name)
        self.history.note(f"{name} is asked to stop")
        member.worker.stop(for_good=True)
        self.loop.run_until_complete(asyncio.wait({member.task}))
        self._forget(name)

    def kill(self, name: str) -> None:
        if name == COORDINATOR:
            return self._kill_coordinator()
        self._check_worker(name, (*self._members, COORDINATOR))
        member = self._members.pop(name)
        self._alive.pop(name)
        member.node.kill()
        metrics.forget(group=self.plan.group_id, worker=name)
        self._ended.append(member)
        self.history.note(f"{name} is killed")
        self.history.ended(name)
        return None

    def pause(self, name: str) -> None:
        self._member(name).node.paused = True
        self._alive[name] = False
        self.history.paused(name)
        self.history.note(f"{name} is paused")

    def resume(self, name: str) -> None:
        node = self._member(name).node
        if node.paused:
            self.history.resumed(name)
            self.history.note(f"{name} resumes")
            self._alive[name] = name not in self._network.partitioned
            node.resume(self.loop)

    def partition(self, *names: str) -> None:
        for name in names:
            self._check_worker(name, self._members)
            self._network.cut(name)
            self._alive[name] = False
            self.history.note(f"{name} is cut off from the coordinator")

    def heal(self, *names: str) -> None:
        for name in names or sorted(self._network.partitioned):
            self._check_worker(name, self._known)
            self._network.heal(name)
            self.history.note(f"{name} can reach the coordinator again")
            if name in self._members:
                self._alive[name] = not self._members[name].node.paused

    # ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.loop.is_closed():
            return
        try:
            self.faults.end()
            self.loop.run_until_complete(self._close())
        finally:
            self.loop.close()
            self._cleanup.close()
            end_tasks(self._started)

    async def _close(self) -> None:
        """Stop the workers that run; let the rest end without a call of plug-in code."""
        self._network.partitioned.clear()
        living = list(self._members.values())
        for member in living:
            member.node.resume(self.loop)
            member.task.cancel()
        await asyncio.gather(*(member.task for member in living), return_exceptions=True)
        for member in (*living, *self._ended):
            member.node.kill()
            member.node.resume(self.loop)
        for coordinator, node in self._coordinators:
            node.resume(self.loop)
            await self.loop.create_task(coordinator.close(), context=node.context.copy())
        while left := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1)


NOWHERE = contextvars.Context()
"""A context that belongs to no node."""


class Network:
    """All connections of a group.

    Attributes:
        faults: what happens to the messages.
        coordinator: the handler of the requests, with the node it runs in; ``None`` while there is none.
        partitioned: the workers whose messages are lost, in both directions.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.coordinator: tuple[Coordinator, Node] | None = None
        self.partitioned: set[str] = set()
        self._cuts: dict[str, int] = {}
        self._links: list[NetworkLink] = []
        self._lost: list[asyncio.Future[None]] = []

    def link(self, worker: str) -> NetworkLink:
        """A new connection of a worker."""
        link = NetworkLink(self, worker)
        self._links.append(link)
        return link

    def cut(self, worker: str) -> None:
        """Lose all messages of a worker, including those on their way, until ``heal``."""
        self.partitioned.add(worker)
        self._cuts[worker] = self._cuts.get(worker, 0) + 1

    def heal(self, worker: str) -> None:
        """Deliver the messages of a worker again."""
        self.partitioned.discard(worker)

    async def reset(self) -> None:
        """The coordinator has died: all connections break."""
        for link in self._links:
            await link.reset()

    async def carry(self, worker: str, request: Request, client_host: str, client_id: str) -> Response:
        """Deliver a request and return its response; never returns if either is lost."""
        cuts = self._cuts.get(worker, 0)
        message = self.faults.message(worker, type(request).__name__.removesuffix("Request"))
        await asyncio.sleep(message.latency_s(response=False))
        if self._is_cut(worker, cuts) or message.is_lost(response=False) or self.coordinator is None:
            await self._never()
        assert self.coordinator is not None
        coordinator, node = self.coordinator
        loop = asyncio.get_running_loop()
        calls = [
            loop.create_task(
                coordinator.handle(request, client_host=client_host, client_id=client_id), context=node.context.copy()
            )
            for _ in range(2 if message.is_repeated() else 1)
        ]
        for extra in calls[1:]:
            extra.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        response = await calls[0]
        await asyncio.sleep(message.latency_s(response=True))
        if self._is_cut(worker, cuts) or message.is_lost(response=True):
            await self._never()
        return response

    async def _never(self) -> None:
        """Wait for ever; referenced from here, because asyncio itself does not keep such a task alive."""
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost.append(lost)
        await lost

    def _is_cut(self, worker: str, cuts: int) -> bool:
        return worker in self.partitioned or self._cuts.get(worker, 0) != cuts


class NetworkLink(Client):
    """One connection of one worker."""

    def __init__(self, network: Network, worker: str) -> None:
        self._network, self._worker = network, worker
        self._client = LocalClient(self, client_host="local", client_id=worker)

    @property
    def address(self) -> str:
        return "the coordinator"

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        if self._network.coordinator is None:
            await asyncio.sleep(MIN_LATENCY_S)
            raise TransportError("no coordinator is running: connection refused")
        return await self._client.call(request, timeout_s=timeout_s)

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        """The far end of the connection, as ``LocalClient`` calls it."""
        carried = self._network.carry(self._worker, request, client_host, client_id)
        return await asyncio.get_running_loop().create_task(carried, context=NOWHERE.copy())

    async def reset(self) -> None:
        """Break the connection: outstanding calls fail; the next call connects again."""
        await self._client.close()
        self._client = LocalClient(self, client_host="local", client_id=self._worker)

    async def close(self) -> None:
        await self._client.close()

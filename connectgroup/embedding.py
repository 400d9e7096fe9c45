"""A whole worker group inside one program: coordinator, workers and connectors on one event loop.

    async with worker_group("mine", workers=2, connectors={"letters": {"connector.class": "idle"}}) as group:
        await group.wait_stable()

For one member of a group whose coordinator runs elsewhere: ``serve_worker`` or ``Worker.running``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from .assign.api import ConnectAssignor
from .assign.placement import NO_TRAITS, WorkerTraits
from .checks import check_call, check_name, check_object, check_whole
from .client.admin import Admin, no_unit_starts
from .connector import Connector
from .coordinator.runtime import Coordinator
from .errors import ConfigError, GroupError
from .group.connect.settings import GroupSettings
from .listener import WorkerRebalanceListener
from .log.memory import MemoryLog
from .member.settings import MemberSettings
from .own_plugins import (
    Assignors,
    ConfigOrTasks,
    OneWorkersAssignors,
    check_by_worker,
    check_connector,
    class_loader,
    make_assignor,
    of_worker,
    without_class,
)
from .private import temporary_directory
from .protocol.messages.describe import DescribedGroup
from .protocol.units import shown
from .transport.local import LocalClient
from .worker.loop import Worker
from .worker.runner import Runner, TaskRunner
from .worker.serving import serve_worker
from .worker.settings import RunnerSettings
from .worker.state import StopReason

MAX_WORKERS = 1_000
"""Workers that ``worker_group`` starts; the coordinator's default limit is the same."""


ASSIGNORS: Final = "a list of names, ConnectAssignor classes or objects"

WORKERS: Final = f"a whole number from 0 to {MAX_WORKERS}, or a list of names, each once"


class EmbeddedGroup:
    """A group in this process; created by ``worker_group``.

    Attributes:
        group_id: the group's name.
        coordinator: serves the group; its log is in memory.
        admin: changes connectors, describes and restarts.
        workers: the running workers by name. ``add_worker`` and ``stop_worker`` change it; so does a restart, after
            which another ``Worker`` has the name, and a drain, which removes the worker.
    """

    def __init__(
        self,
        group_id: str,
        coordinator: Coordinator,
        assignors: Assignors,
        scratch: Path,
        classes: Mapping[str, type[Connector]],
    ) -> None:
        self.group_id, self.coordinator = group_id, coordinator
        self.admin = Admin.local(coordinator)
        self.workers: dict[str, Worker] = {}
        self._assignors, self._scratch, self._load_class = assignors, scratch, class_loader(classes)
        self._serving: dict[str, asyncio.Task[StopReason]] = {}
        self._task_runners: set[str] = set()

    async def add_worker(
        self,
        name: str,
        *,
        traits: WorkerTraits = NO_TRAITS,
        assignors: OneWorkersAssignors | None = None,
        listeners: Sequence[WorkerRebalanceListener] = (),
        runner: Runner | None = None,
    ) -> Worker:
        """Start a worker.

        Args:
            traits: its labels, rack, capacity and host, for assignors.
            assignors: its own, a list; ``None``: what the group's ``assignors`` say. An assignor that is introduced, or
                replaced by another version, is added worker by worker.
            runner: runs its units. ``None``: a ``TaskRunner``, which runs the connector classes that the configurations
                name (``connector.class``): installed ones, and those that ``worker_group`` was given.

        Raises:
            ConfigError: the name or another argument cannot be used, or a worker of this name runs.
        """
        check_name("worker", name)
        if name in self.workers:
            raise ConfigError("worker", name, "the name of no worker that runs already")
        started: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()

        def on_start(worker: Worker) -> None:
            if runner is None:
                # The coordinator has no port: this program alone adds connectors, and it has the same rights as they.
                settings = RunnerSettings(scratch=self._scratch / name, group_id=self.group_id, allowed_paths=None)
                publish, report = worker.publish_tasks, worker.report
                worker.set_runner(
                    TaskRunner(name, settings, load_class=self._load_class, publish=publish, report=report)
                )
            self.workers[name] = worker
            if not started.done():
                started.set_result(worker)

        serving = asyncio.create_task(
            serve_worker(
                MemberSettings(group_id=self.group_id, member_id=name, traits=traits),
                lambda: LocalClient(self.coordinator, client_id=name),
                assignors=_make_assignors(self._assignors if assignors is None else assignors, name),
                listeners=listeners,
                runner=runner,
                signals=False,
                on_start=on_start,
            ),
            name=f"serve {name}",
        )
        waited: set[asyncio.Future[Any]] = {serving, started}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            serving.result()  # its error
        if runner is None:
            self._task_runners.add(name)
        self._serving[name] = serving
        serving.add_done_callback(partial(self._on_end, name))
        return self.workers[name]

    def _on_end(self, name: str, serving: asyncio.Task[StopReason]) -> None:
        """A worker that has drained is no worker of this group any more; one that was rejected is until it is stopped,
        which raises its error."""
        if serving.cancelled() or serving.exception() is not None:
            return
        if serving.result() is StopReason.DRAINED and self._serving.get(name) is serving:
            self._forget(name)

    def _forget(self, name: str) -> None:
        del self.workers[name], self._serving[name]
        self._task_runners.discard(name)

    async def stop_worker(self, name: str) -> None:
        """Stop a worker: it stops its units and leaves the group.

        Raises:
            ConfigError: no worker of this name runs; the error lists those that do.
            GroupError: the coordinator had rejected the worker.
        """
        if name not in self.workers:
            raise ConfigError("worker", name, shown(list(self.workers)))
        serving = self._serving[name]
        self._forget(name)
        serving.cancel()  # which stops the worker
        try:
            await asyncio.wait({serving})
        except asyncio.CancelledError:
            serving.cancel()
            await asyncio.wait({serving})
            raise
        if not serving.cancelled():
            serving.result()

    async def wait_stable(self, *, timeout_s: float = 30.0) -> DescribedGroup:
        """Wait until every worker has reached the newest target assignment and no unit is starting.

        Each assigned unit then runs, or has failed. Units of a worker with a runner of its own are not waited for,
        because the runner may not report them: use ``Admin.wait_worker``. ``Admin.wait_stable`` waits for no unit.

        Raises:
            TimedOut: not within ``timeout_s``.
            GroupError: the coordinator has rejected a worker, which the message names.
            GroupIdNotFound: neither a worker nor a connector has created the group within that time.
        """

        def is_stable(group: DescribedGroup) -> bool:
            for name, serving in list(self._serving.items()):
                if serving.done() and not serving.cancelled() and (error := serving.exception()) is not None:
                    if isinstance(error, GroupError):
                        raise type(error)(f"worker {name} has ended: {error}") from error
                    raise error
            members = {member.member_id for member in group.members}
            return (
                group.state == "Stable" and members == set(self.workers) and no_unit_starts(group, self._task_runners)
            )

        return await self.admin.wait_until(self.group_id, is_stable, what="stable", timeout_s=timeout_s)


@asynccontextmanager
async def worker_group(
    group_id: str,
    *,
    workers: int | Sequence[str] = 1,
    connectors: Mapping[str, ConfigOrTasks] | None = None,
    assignors: Assignors = ("balanced",),
    listeners: Callable[[str], Sequence[WorkerRebalanceListener]] = lambda worker: (),
    settings: GroupSettings | None = None,
) -> AsyncIterator[EmbeddedGroup]:
    """Run a coordinator and workers while the ``async with`` block runs; the end of the block stops them.

    Args:
        workers: their number (``worker-1``, ``worker-2``, ...), or their names.
        connectors: by name: a number of idle tasks, or a configuration. ``connector.class`` is the name of an installed
            class, or a class; numbers and booleans become text.
        assignors: of each worker: entry-point names, classes or objects, in order of preference; empty: the coordinator
            assigns. One list for all workers, lists by the worker's name (``{"worker-1": ["balanced"]}``), or a
            function of the name that returns one.
        listeners: a function that returns the listeners of a worker, called with the worker's name:
            ``lambda worker: [Recorder(worker)]``. Not a list: each worker has listeners of its own.
        settings: timeouts and limits of the group.

    Raises:
        ConfigError: an argument cannot be used: its name, its value, and what is allowed.
    """
    check_name("group_id", group_id)
    names = worker_names(workers)
    if connectors is not None:
        check_object("connectors", connectors, Mapping, 'by name: {"letters": {"connector.class": "idle"}}')
    configs: dict[str, dict[str, object]] = {}
    classes: dict[str, type[Connector]] = {}
    for name, spec in (connectors or {}).items():
        check_connector(f"connectors: {name}", spec)
        configs[name], own = without_class(spec)
        classes |= own
    if settings is not None:
        check_object("settings", settings, GroupSettings, "GroupSettings(...), of the group")
    check_call("listeners", listeners, ("worker",), "a function of the worker's name: lambda worker: [listener]")
    check_by_worker("assignors", assignors, ASSIGNORS)
    made = {name: _make_assignors(assignors, name) for name in names}  # an error precedes the start
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(temporary_directory("connectgroup-"))
        coordinator = Coordinator(MemoryLog(), settings or GroupSettings())
        await coordinator.start()
        stack.push_async_callback(coordinator.close)
        group = EmbeddedGroup(group_id, coordinator, assignors, scratch, classes)
        stack.push_async_callback(group.admin.close)
        for name, config in configs.items():
            await group.admin.put_connector(group_id, name, config)
        stack.push_async_callback(_stop_workers, group)
        for name in names:
            await group.add_worker(name, assignors=made[name], listeners=listeners(name))
        yield group


def worker_names(workers: object, allowed: str = WORKERS) -> list[str]:
    """The names of the first workers.

    Raises:
        ConfigError: ``workers`` is neither a number nor names; says what is allowed.
    """
    if isinstance(workers, int):
        check_whole("workers", workers, 0, MAX_WORKERS)
        return [f"worker-{number}" for number in range(1, workers + 1)]
    if isinstance(workers, str) or not isinstance(workers, Iterable):
        raise ConfigError("workers", workers, allowed)
    names = list(workers)
    for name in names:
        check_name("workers", name)
    if len(set(names)) < len(names):
        raise ConfigError("workers", ", ".join(names), allowed)
    return names


def _make_assignors(assignors: Assignors, worker: str) -> list[ConnectAssignor]:
    """The assignors of one worker."""
    return [make_assignor(each) for each in of_worker("assignors", assignors, worker, ASSIGNORS)]


async def _stop_workers(group: EmbeddedGroup) -> None:
    """Stop all workers, whatever errors they end with."""
    for worker in group.workers.values():
        # Before the first one leaves: the others would start its units.
        worker.stop()
    async with AsyncExitStack() as stops:
        for name in list(group.workers):
            stops.push_async_callback(group.stop_worker, name)

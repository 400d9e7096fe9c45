"""A whole worker group inside one program: coordinator, workers and connectors on one event loop.

    async with worker_group("mine", workers=2, connectors={"letters": {"connector.class": "idle"}}) as group:
        await group.wait_stable()

For one member of a group whose coordinator runs elsewhere: ``Worker.running``.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from .assign.placement import NO_TRAITS, WorkerTraits
from .client.admin import POLL_S, Admin
from .coordinator.runtime import Coordinator
from .errors import GroupIdNotFound
from .group.connect.settings import GroupSettings
from .listener import WorkerRebalanceListener
from .log.memory import MemoryLog
from .member.state_machine import MemberSettings
from .plugins import load_assignor, load_connector_class
from .protocol.messages.describe import DescribedGroup
from .transport.local import LocalClient
from .worker.loop import Worker
from .worker.runner import Runner, RunnerSettings, TaskRunner


class EmbeddedGroup:
    """A group in this process; created by ``worker_group``.

    Attributes:
        group_id: the group's name.
        coordinator: serves the group; its log is in memory.
        admin: changes connectors, describes and restarts.
        workers: the running workers by name.
    """

    def __init__(self, group_id: str, coordinator: Coordinator, assignors: Sequence[str], scratch: Path) -> None:
        self.group_id, self.coordinator = group_id, coordinator
        self.admin = Admin.local(coordinator)
        self.workers: dict[str, Worker] = {}
        self._assignors, self._scratch = tuple(assignors), scratch
        self._lives: dict[str, AsyncExitStack] = {}

    async def add_worker(
        self,
        name: str,
        *,
        traits: WorkerTraits = NO_TRAITS,
        listeners: Sequence[WorkerRebalanceListener] = (),
        runner: Runner | None = None,
    ) -> Worker:
        """Start a worker.

        Args:
            traits: its labels, rack, capacity and host, for assignors.
            runner: runs its units; the default runs installed connector classes (``TaskRunner``).
        """
        if name in self.workers:
            raise ValueError(f"worker {name}: runs already; allowed: another name")
        life = AsyncExitStack()
        worker = await life.enter_async_context(
            Worker.running(
                MemberSettings(group_id=self.group_id, member_id=name, traits=traits),
                lambda: LocalClient(self.coordinator, client_id=name),
                assignors=[load_assignor(assignor) for assignor in self._assignors],
                listeners=listeners,
                runner=runner,
            )
        )
        if runner is None:
            settings = RunnerSettings(scratch=self._scratch / name, group_id=self.group_id)
            publish, report = worker.publish_tasks, worker.report
            worker.set_runner(
                TaskRunner(name, settings, load_class=load_connector_class, publish=publish, report=report)
            )
        self.workers[name], self._lives[name] = worker, life
        return worker

    async def stop_worker(self, name: str) -> None:
        """Stop a worker: it stops its units and leaves the group."""
        del self.workers[name]
        await self._lives.pop(name).aclose()

    async def wait_stable(self, *, timeout_s: float = 30.0) -> DescribedGroup:
        """Wait until every worker has reached the newest target assignment; see ``Admin.wait_stable``."""

        def is_stable(group: DescribedGroup) -> bool:
            members = {member.member_id for member in group.members}
            return group.state == "Stable" and members == set(self.workers)

        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        while True:
            try:
                left_s = give_up_at - loop.time()
                return await self.admin.wait_until(self.group_id, is_stable, what="stable", timeout_s=left_s)
            except GroupIdNotFound:
                # The first worker or connector creates the group.
                if loop.time() >= give_up_at or not self.workers:
                    raise
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def worker_group(
    group_id: str,
    *,
    workers: int | Sequence[str] = 1,
    connectors: Mapping[str, Mapping[str, str]] | None = None,
    assignors: Sequence[str] = ("balanced",),
    listeners: Callable[[str], Sequence[WorkerRebalanceListener]] = lambda worker: (),
    settings: GroupSettings | None = None,
) -> AsyncIterator[EmbeddedGroup]:
    """Run a coordinator and workers while the ``async with`` block runs; the end of the block stops them.

    Args:
        workers: their number (``worker-1``, ``worker-2``, ...), or their names.
        connectors: configurations by name.
        assignors: entry-point names, in order of preference; empty: the coordinator assigns.
        listeners: the listeners of a worker, by the worker's name.
    """
    names = [f"worker-{number}" for number in range(1, workers + 1)] if isinstance(workers, int) else list(workers)
    async with AsyncExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="connectgroup-"))
        coordinator = Coordinator(MemoryLog(), settings or GroupSettings())
        await coordinator.start()
        stack.push_async_callback(coordinator.close)
        group = EmbeddedGroup(group_id, coordinator, assignors, Path(scratch))
        stack.push_async_callback(group.admin.close)
        for name, config in (connectors or {}).items():
            await group.admin.put_connector(group_id, name, config)
        for name in names:
            await group.add_worker(name, listeners=listeners(name))
            stack.push_async_callback(_stop, group, name)
        yield group
        for name in list(group.workers):
            await group.stop_worker(name)


async def _stop(group: EmbeddedGroup, name: str) -> None:
    if name in group.workers:
        await group.stop_worker(name)

"""A coordinator with a TCP port and workers of this process, for tests of commands that describe a group."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectgroup import (
    Admin,
    LocalClient,
    MemberSettings,
    RunnerSettings,
    TaskRunner,
    Worker,
    WorkerTraits,
    load_assignor,
)
from connectgroup.cli.command import main
from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.plugins import load_connector_class

GROUP = "g"


@dataclass
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


async def command(*arguments: object) -> Done:
    """Run a command in a thread while the group of the test is served by the loop."""
    out, err = io.StringIO(), io.StringIO()

    def call() -> int:
        try:
            return main([str(argument) for argument in arguments])
        except SystemExit as ended:  # argparse
            return int(ended.code or 0)

    with redirect_stdout(out), redirect_stderr(err):
        code = await asyncio.to_thread(call)
        sys.stdout.flush()
    return Done(code, out.getvalue(), err.getvalue())


@dataclass
class LiveGroup:
    """A group that is served at ``address``."""

    server: CoordinatorServer
    admin: Admin
    scratch: Path
    assignor: str = "balanced"
    allowed_paths: tuple[Path, ...] = ()
    lives: dict[str, AsyncExitStack] = field(default_factory=dict)

    async def groups(self, action: str, *arguments: object) -> Done:
        """Run ``connectgroup groups ACTION g ...``."""
        return await command("groups", action, GROUP, *arguments, "--coordinator", self.server.address)

    async def start(self, name: str, traits: WorkerTraits | None = None) -> None:
        """Start a worker that runs installed connector classes."""
        life = AsyncExitStack()
        settings = MemberSettings(group_id=GROUP, member_id=name, traits=traits or WorkerTraits())
        assignors = [load_assignor(self.assignor)]
        worker = await life.enter_async_context(
            Worker.running(settings, lambda: LocalClient(self.server.coordinator), assignors=assignors)
        )
        publish, report = worker.publish_tasks, worker.report
        runner_settings = RunnerSettings(scratch=self.scratch / name, allowed_paths=self.allowed_paths)
        worker.set_runner(
            TaskRunner(name, runner_settings, load_class=load_connector_class, publish=publish, report=report)
        )
        self.lives[name] = life

    async def stop(self, name: str) -> None:
        """Stop a worker cleanly."""
        await self.lives.pop(name).aclose()

    async def settled(self, workers: int, units: int) -> None:
        """Wait until this number of workers runs this number of units in total, and the group is stable."""

        def there(group: Any) -> bool:
            described = [unit for connector in group.connectors for unit in connector.units]
            running = sum(unit.state == "RUNNING" for unit in described)
            return group.state == "Stable" and len(group.members) == workers and running == units

        await self.admin.wait_until(GROUP, there, what="settled", timeout_s=60)


@asynccontextmanager
async def live_group(
    tmp_path: Path,
    *,
    workers: Mapping[str, WorkerTraits | None],
    connectors: Mapping[str, Mapping[str, str]],
    assignor: str = "balanced",
    allowed_paths: tuple[Path, ...] = (),
    **config: Any,
) -> AsyncIterator[LiveGroup]:
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0, **config}))
    await server.start()
    async with Admin.local(server.coordinator) as admin:
        group = LiveGroup(server, admin, tmp_path / "scratch", assignor, allowed_paths)
        try:
            for name, settings in connectors.items():
                await admin.put_connector(GROUP, name, {"connector.class": "idle", **settings})
            for name, traits in workers.items():
                await group.start(name, traits)
            yield group
            for name in list(group.lives):
                await group.stop(name)
        finally:
            await server.close()

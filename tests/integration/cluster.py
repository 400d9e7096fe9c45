"""A worker group for tests: a ``Supervisor`` on an event loop of its own, driven from the test's thread.

The coordinator runs in this process, as under ``connectgroup up``; the workers are processes with a Spark session
each. Every wait has a limit, and a failure shows the group and the last lines of its workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from connectgroup.config.connector_file import ConnectorFile
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.protocol.messages.common import each_unit
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DescribedGroup, DescribedUnit
from connectgroup.protocol.units import CONNECTOR, Unit
from connectgroup.supervisor import HERE, Supervisor

from .flow import Pipe
from .processes import PATIENCE_S, START_PATIENCE_S, call_command, wait

T = TypeVar("T")

GROUP = "integration"
PLUGINS = Path(__file__).parent / "plugins"


class LocalGroup:
    """See the module. ``start`` it, ``close`` it."""

    def __init__(self, root: Path, connectors: list[ConnectorFile]) -> None:
        """Create the group without running it.

        Args:
            connectors: created at the start, so that workers warm up for their classes.
        """
        self.log: list[tuple[str, str]] = []
        """Every line of every worker's log, with the worker's name."""
        self._supervisor = Supervisor(
            GROUP,
            workers=0,
            scratch=root / "scratch",
            coordinator=CoordinatorConfig(
                port=0,
                data=root / "groups.sqlite",
                session_timeout_ms=8_000,  # no live worker loses its session on a busy machine
                heartbeat_interval_ms=1_000,
                scheduled_rebalance_max_delay_ms=1_000,
            ),
            connectors=connectors,
            restart=False,
            kill_unresponsive=False,  # tests resume workers after their session
            worker_log=lambda name, line: self.log.append((name, line)),
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)

    def start(self) -> None:
        """Start the coordinator; ``have_workers`` starts workers."""
        self._thread.start()
        self._call(self._supervisor.__aenter__())

    def close(self) -> None:
        """Stop everything."""
        try:
            # Resume paused workers, so that they stop cleanly.
            self._call(self._supervisor.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30)

    # ----------------------------------------------------------------------------------------------
    # The group

    @property
    def address(self) -> str:
        return self._supervisor.server.address

    def describe(self) -> DescribedGroup:
        return self._call(self._supervisor.describe())

    def members(self) -> set[str]:
        """The members of the group."""
        return {member.member_id for member in self.describe().members}

    def is_in(self, worker: str) -> bool:
        """Whether a worker is a member."""
        return worker in self.members()

    def is_out(self, worker: str) -> bool:
        """Whether a worker is not, or no longer, a member."""
        return worker not in self.members()

    def units(self, connector: str) -> dict[Unit, DescribedUnit]:
        """A connector and its tasks, as described."""
        return {
            Unit(described.connector, unit.task): unit
            for described in self.describe().connectors
            for unit in described.units
            if described.connector == connector
        }

    def tasks_of(self, worker: str, *connectors: str) -> dict[Unit, int]:
        """The tasks of these connectors that run on a worker, with their owner epochs."""
        return {
            unit: described.owner_epoch
            for connector in connectors
            for unit, described in self.units(connector).items()
            if described.member_id == worker and not unit.is_connector and described.state == "RUNNING"
        }

    def is_running(self, connector: str, tasks: int) -> bool:
        """Whether the connector and exactly this number of tasks run."""
        units = self.units(connector)
        wanted = {Unit(connector, task) for task in range(CONNECTOR, tasks)}
        return {unit for unit, described in units.items() if described.should_run} == wanted and all(
            described.state == "RUNNING" for described in units.values() if described.should_run
        )

    def messages(self, connector: str) -> list[str]:
        """The error messages of a connector's failed units."""
        return [unit.message for unit in self.units(connector).values() if unit.state == "FAILED"]

    # ----------------------------------------------------------------------------------------------
    # Connectors

    def put(self, name: str, config: Mapping[str, str]) -> None:
        self._call(self._supervisor.put_connector(ConnectorFile(name=name, config=dict(config))))

    def delete(self, name: str) -> None:
        """Delete a connector; return when none of its units runs any more."""
        change = UpdateConnectorsRequest(group_id=GROUP, changes=(ConnectorChange(connector=name, delete=True),))
        self._call(self._supervisor.server.coordinator.handle(change, client_host=HERE))

        def is_gone() -> bool:
            return not any(
                unit.connector == name
                for member in self.describe().members
                for unit in (*each_unit(member.assigned), *each_unit(member.pending_revocation))
            )

        self.wait(f"the end of connector {name}", is_gone)

    def run(self, *pipes: Pipe) -> None:
        """Create connectors and wait until all their tasks run."""
        for pipe in pipes:
            self.put(pipe.name, pipe.config)
        for pipe in pipes:
            self.wait(f"{pipe.tasks} tasks of {pipe.name}", partial(self.is_running, pipe.name, pipe.tasks))

    # ----------------------------------------------------------------------------------------------
    # Workers

    def have_workers(self, count: int) -> list[str]:
        """Start or stop workers until this number of members has a Spark session; return their names."""
        while len(self.alive()) > count:
            self.stop(self.alive()[-1])
        for _ in range(count - len(self.alive())):
            self._call(self._supervisor.add_worker())
        alive = self.alive()
        self.wait(f"{count} workers", lambda: self.members() == set(alive), patience_s=START_PATIENCE_S)
        self.settle()
        return alive

    def add(self) -> str:
        """Start one more worker without waiting for it; return its name."""
        return self._call(self._supervisor.add_worker()).name

    def settle(self) -> None:
        """Wait until the group is stable."""
        self.wait("a stable group", lambda: self.describe().state == "Stable")

    def alive(self) -> list[str]:
        """The worker processes that run or are paused, oldest first."""
        return [name for name, worker in self._supervisor.workers.items() if worker.alive]

    def pid(self, worker: str) -> int:
        process = self._supervisor.workers[worker].process
        assert process is not None
        return process.pid

    def kill(self, worker: str) -> None:
        """SIGKILL; return when the process has ended and is reaped."""
        self._signal(worker, signal.SIGKILL)
        self.wait(f"the end of {worker}", lambda: worker not in self.alive())

    def pause(self, worker: str) -> None:
        """SIGSTOP; return when all threads have stopped."""
        self._signal(worker, signal.SIGSTOP)
        self.wait(f"{worker} paused", lambda: thread_states(self.pid(worker)) == {"T"})

    def resume(self, worker: str) -> None:
        self._signal(worker, signal.SIGCONT)

    def stop(self, worker: str) -> int:
        """Stop a worker cleanly; return its exit code."""
        return self._call(self._supervisor.stop_worker(worker))

    def log_of(self, worker: str) -> list[str]:
        """A worker's log lines so far."""
        return [line for name, line in list(self.log) if name == worker]

    # ----------------------------------------------------------------------------------------------

    def wait(self, what: str, until: Callable[[], T | None], patience_s: float = PATIENCE_S) -> T:
        """Wait until a value is not false; on failure show the group."""
        return wait(what, until, self.output, patience_s)

    def output(self) -> str:
        """The group as shown by the command line, and the last lines of its workers."""
        shown = [call_command("groups", what, GROUP, "--coordinator", self.address) for what in ("describe", "explain")]
        lines = [f"  {name} | {line}" for name, line in self.log[-40:]]
        return "\n".join([*(f"{done.out}{done.err}" for done in shown), "last lines of the workers:", *lines])

    def _signal(self, worker: str, number: signal.Signals) -> None:
        self._loop.call_soon_threadsafe(self._supervisor.signal_worker, worker, number)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)


def thread_states(pid: int) -> set[str]:
    """The states of a process's threads, as ``ps`` shows them."""
    states = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that ends meanwhile
            states.add(task.joinpath("stat").read_text().rsplit(")", 1)[1].split()[0])
    return states


def plugin_path() -> str:
    """``PYTHONPATH`` with the tests' own plug-ins on it."""
    return os.pathsep.join(filter(None, (str(PLUGINS), os.environ.get("PYTHONPATH"))))

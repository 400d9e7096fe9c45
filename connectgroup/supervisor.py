"""``connectgroup up``: a coordinator in this process and worker processes beside it, on one machine.

The supervisor knows for certain when a worker process is gone, because it reaped it. It says so to the group at
once, and nobody waits for a session timeout (design 3.11). A worker that died is started again after a moment, under
the same name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .config import ConnectorFile, CoordinatorConfig
from .coordinator.server import CoordinatorServer
from .errors import from_code
from .messages import (
    ConnectorChange,
    DescribedGroup,
    DescribeRequest,
    DescribeResponse,
    HeartbeatRequest,
    Rebalance,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
    each_unit,
    entries,
)
from .names import LEAVE_EPOCH

logger = logging.getLogger(__name__)

RESTART_WAIT_S = 1.0
STOP_TIMEOUT_S = 30.0
HERE = "this process"


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """One worker process and what it last said.

    Attributes:
        name: its member id; kept when it is started again.
        rows: rows it has made durable in its present life.
        rows_before: rows of its earlier lives.
        wanted: whether it is to run; false once it has been told to stop.
    """

    name: str
    process: asyncio.subprocess.Process | None = None
    rows: int = 0
    rows_before: int = 0
    units: int = 0
    epoch: int = 0
    wanted: bool = True
    watch: asyncio.Task[None] | None = None
    lines: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether the process runs (or is stopped by a signal, which looks the same from here)."""
        return self.process is not None and self.process.returncode is None


class Supervisor:
    """A worker group on this machine.

    ``async with Supervisor(...) as supervisor:`` starts coordinator and workers; leaving the block stops them.
    """

    def __init__(
        self,
        group: str,
        *,
        workers: int,
        scratch: Path,
        coordinator: CoordinatorConfig,
        connectors: Sequence[ConnectorFile] = (),
        assignors: Sequence[str] = ("balanced",),
        restart: bool = True,
        worker_log: Callable[[str, str], None] | None = None,
    ) -> None:
        """Nothing runs yet.

        Args:
            workers: how many to start.
            scratch: where tasks get a directory each.
            connectors: created, or changed to this, before the workers start.
            restart: start a worker that died again; otherwise it stays down.
            worker_log: given each line of a worker's log with its name; by default they go to standard error.

        Raises:
            ConfigError, PluginError: see ``CoordinatorServer``.
        """
        self.group = group
        self.server = CoordinatorServer(coordinator)
        self.workers: dict[str, WorkerProcess] = {}
        self._count, self._scratch, self._connectors = workers, scratch, tuple(connectors)
        self._assignors, self._restart = tuple(assignors), restart
        self._worker_log = worker_log or _to_stderr
        self._closing = False

    async def __aenter__(self) -> Supervisor:
        await self.server.start()
        try:
            for connector in self._connectors:
                await self.put_connector(connector)
            for _ in range(self._count):
                await self.add_worker()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ----------------------------------------------------------------------------------------------

    async def add_worker(self, name: str | None = None) -> WorkerProcess:
        """Start one more worker; ``worker-1``, ``worker-2``, ... unless named."""
        worker = WorkerProcess(name or f"worker-{len(self.workers) + 1}")
        self.workers[worker.name] = worker
        await self._start(worker)
        return worker

    def signal_worker(self, name: str, number: signal.Signals) -> None:
        """Send a worker a signal; one that runs no more is left alone."""
        process = self.workers[name].process
        if process is not None and process.returncode is None:
            process.send_signal(number)

    async def stop_worker(self, name: str) -> int:
        """Have a worker stop its tasks, leave and end.

        Returns:
            Its exit code; negative for a signal.
        """
        worker = self.workers[name]
        worker.wanted = False
        while True:
            process, watch = worker.process, worker.watch
            assert process is not None
            assert watch is not None
            if process.returncode is None:
                # Where it has been paused, it must run on to be able to stop.
                for number in (signal.SIGTERM, signal.SIGCONT):
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(number)
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                logger.error("%s did not end within %g s and is killed", name, STOP_TIMEOUT_S)
                process.kill()
                await process.wait()
            await watch
            # Another one, if it was just being started again when it was told to stop.
            if worker.process is process:
                assert process.returncode is not None
                return process.returncode

    async def put_connector(self, connector: ConnectorFile) -> None:
        """Create a connector, or change it to this configuration.

        Raises:
            GroupError: refused; one line.
        """
        change = ConnectorChange(connector=connector.name, config=entries(connector.config))
        response = await self.server.coordinator.handle(
            UpdateConnectorsRequest(group_id=self.group, changes=(change,)), client_host=HERE
        )
        assert isinstance(response, UpdateConnectorsResponse)
        if response.error_code:
            raise from_code(response.error_code, response.error_message)

    async def describe(self) -> DescribedGroup:
        """The group as the coordinator has it now."""
        response = await self.server.coordinator.handle(DescribeRequest(group_ids=(self.group,)), client_host=HERE)
        assert isinstance(response, DescribeResponse)
        return response.groups[0]

    @property
    def rows(self) -> int:
        """Rows that workers said they made durable; what a killed worker did in its last moments is not in it."""
        return sum(worker.rows_before + worker.rows for worker in self.workers.values())

    async def close(self) -> None:
        """Stop the workers, all at once, then the coordinator."""
        self._closing = True
        await asyncio.gather(*(self.stop_worker(name) for name, worker in self.workers.items() if worker.process))
        await self.server.close()

    # ----------------------------------------------------------------------------------------------

    async def _start(self, worker: WorkerProcess) -> None:
        worker.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "connectgroup", "worker", "--supervised"),
            *("--coordinator", self.server.address, "--group", self.group, "--name", worker.name),
            *("--scratch", str(self._scratch)),
            *(word for name in self._assignors for word in ("--assignor", name)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # A group of its own: Ctrl-C in a terminal is for the supervisor, which stops the workers in order.
            start_new_session=True,
        )
        worker.lines = [
            asyncio.create_task(self._read_reports(worker, worker.process)),
            asyncio.create_task(self._read_log(worker, worker.process)),
        ]
        worker.watch = asyncio.create_task(self._watch(worker, worker.process), name=f"watch {worker.name}")

    async def _read_reports(self, worker: WorkerProcess, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                said = json.loads(line)
                worker.rows, worker.units, worker.epoch = int(said["rows"]), int(said["units"]), int(said["epoch"])

    async def _read_log(self, worker: WorkerProcess, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:
                continue  # longer than a line may be: the rest of it comes as lines of its own
            if not line:
                return
            self._worker_log(worker.name, line.decode(errors="replace").rstrip())

    async def _watch(self, worker: WorkerProcess, process: asyncio.subprocess.Process) -> None:
        """Wait for the end of a process, tell the group, and start it again if it should run."""
        code = await process.wait()
        _end_group(process.pid)
        await self._say_dead(worker.name, code)
        await asyncio.gather(*worker.lines, return_exceptions=True)
        worker.rows_before, worker.rows, worker.units = worker.rows_before + worker.rows, 0, 0
        if code != 0 and worker.wanted and not self._closing:
            logger.error("%s %s", worker.name, ending(code))
        if not (worker.wanted and self._restart) or self._closing:
            return
        await asyncio.sleep(RESTART_WAIT_S)
        if worker.wanted and not self._closing:
            await self._start(worker)

    async def _say_dead(self, name: str, code: int) -> None:
        """A leave on the worker's behalf; one that left by itself is unknown by now, which is as good."""
        request = HeartbeatRequest(group_id=self.group, member_id=name, member_epoch=LEAVE_EPOCH, cause=ending(code))
        await self.server.coordinator.handle(request, client_host=HERE)


def ending(code: int) -> str:
    """How a process ended, in words: ``died (SIGKILL)``, ``ended with exit code 1``."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"died ({signal.Signals(-code).name})"
    return f"died (signal {-code})"


def _end_group(pid: int) -> None:
    """What a dead worker started (a Java process) has its process group, and must not outlive it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _to_stderr(name: str, line: str) -> None:
    print(f"{name} | {line}", file=sys.stderr, flush=True)


def explain(rebalance: Rebalance) -> str:
    """One rebalance on one line: epoch, cause, moves, standstill."""
    moved = [move for move in rebalance.moves if move.source]
    started = len(rebalance.moves) - len(moved)
    parts = [f"epoch {rebalance.epoch}", "; ".join(rebalance.causes) or "?"]
    if moved:
        longest_ms = max(move.standstill_ms for move in moved)
        parts.append(f"{len(moved)} moved, longest standstill {longest_ms} ms")
    if started:
        parts.append(f"{started} started")
    if not rebalance.moves:
        parts.append("nothing moved")
    if rebalance.finished_ms < 0:
        parts.append("under way")
    else:
        parts.append(f"took {rebalance.finished_ms - rebalance.started_ms} ms, computed by {rebalance.computed_by}")
    return " | ".join(parts)


def summary(group: DescribedGroup) -> str:
    """A group on one line: state, epoch, members, units running of all there are."""
    held = sum(len(list(each_unit(member.assigned))) for member in group.members)
    units = [unit for connector in group.connectors for unit in connector.units if unit.state != "OFF"]
    failed = sum(unit.state == "FAILED" for unit in units)
    text = f"{group.state} | epoch {group.group_epoch} | {len(group.members)} workers | {held}/{len(units)} units"
    return text + (f" | {failed} FAILED" if failed else "")

"""The group of worker processes under measurement, and the scenarios' single steps."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from benchmarks.task_log import Death, Event, TaskDowntime, TaskLog, downtimes, last_start_ns, running
from connectgroup.config.connector_file import ConnectorFile
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.protocol.messages.common import RestartRequest, RestartResponse
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.supervisor import HERE, Supervisor

GROUP = "bench"
MAIN = "main"
QUIET_S = 0.4
"""The tasks are checked after this time without a start or stop."""
PATIENCE_S = 60.0
RETURN_S = 60.0
"""More than a worker takes to return on a loaded machine: the scheduled rebalance delay of the rolling restarts, and
the session timeout of the static workers."""
JOINING = re.compile(r"^(\S+) INFO joining group")


class Unsettled(Exception):
    """The tasks did not reach their target in time; names them."""


class Bench:
    """A group under measurement, and its samples."""

    def __init__(
        self,
        directory: Path,
        *,
        tasks: int,
        workers: int,
        session_s: float = 10.0,
        delay_s: float = 0.0,
        supervised: bool = True,
        verbose: bool = False,
        log: str | None = None,
    ) -> None:
        """Does not start anything.

        Args:
            log: the URL of the log; a SQLite file if null.
            delay_s: the scheduled rebalance delay; 0 as in the Connect runs that serve as the comparison.
            supervised: the supervisor starts the workers; otherwise ``start_unwatched`` does.
        """
        self.tasks, self.workers, self.session_s, self.verbose = tasks, workers, session_s, verbose
        self.log = TaskLog(directory / "tasks.log")
        self.scratch = directory / "scratch"
        self.supervisor = Supervisor(
            GROUP,
            workers=workers if supervised else 0,
            scratch=self.scratch,
            coordinator=CoordinatorConfig(
                port=0,
                data=directory / "groups.sqlite" if log is None else None,
                log=log,
                session_timeout_ms=int(session_s * 1000),
                heartbeat_interval_ms=int(session_s * 300),
                scheduled_rebalance_max_delay_ms=int(delay_s * 1000),
            ),
            restart=False,
            worker_log=self._hear,
            allowed_paths=[directory.resolve()],
        )
        self.wanted: set[str] = set()
        self.live: set[str] = {f"worker-{number}" for number in range(1, workers + 1)}
        self.joined_ns: dict[str, int] = {}
        self.samples: dict[str, list[float]] = {}
        self._heard = asyncio.Event()
        self._listening: list[asyncio.Task[None]] = []

    # ----------------------------------------------------------------------------------------------
    # Scenarios

    async def create(self, key: str, name: str, tasks: int) -> None:
        """Create a connector; measure from the put until all of its tasks run. Delete it afterwards."""
        began_ns = await self.put(name, tasks)
        self.note(key, began_ns, await self.settled(began_ns))
        await self.delete(name, tasks)
        await self.settled(time.time_ns())

    async def join(self, name: str, *, watched: bool = True) -> asyncio.subprocess.Process | None:
        """Add one worker. An unwatched worker has no supervisor to report its death; its process is returned."""
        self.joined_ns.pop(name, None)
        began_ns = time.time_ns()
        process = None
        if watched:
            await self.supervisor.add_worker(name)
        else:
            process = await self.start_unwatched(name)
        self.live.add(name)
        last_ns = await self.settled(began_ns)
        stood = self.stood(began_ns)
        self.note("join", self.joined_ns[name], last_ns)
        self.add("join moved", len({still.unit for still in stood}))
        self.add("join median", statistics.median(still.seconds for still in stood) if stood else 0.0)
        self.add("join longest", max_downtime(stood))
        self.add("join sum", total(stood))
        return process

    async def stop(self, name: str) -> None:
        """Stop a worker cleanly."""
        began_ns = time.time_ns()
        self.live.discard(name)
        ending = asyncio.create_task(self.supervisor.stop_worker(name))
        self.note("stop", began_ns, await self.settled(began_ns))
        self.add("stop longest", max_downtime(self.stood(began_ns)))
        await ending

    async def kill(self, name: str, silent: asyncio.subprocess.Process | None = None) -> None:
        """SIGKILL; the supervisor reaps the process and reports its death, or (``silent``) no process does."""
        began_ns = time.time_ns()
        self.live.discard(name)
        if silent is not None:
            os.killpg(silent.pid, signal.SIGKILL)
        else:
            self.supervisor.signal_worker(name, signal.SIGKILL)
        self.log.deaths.append(Death(at_ns=began_ns, member_id=name))
        self.note("kill silent" if silent else "kill", began_ns, await self.settled(began_ns))
        if silent is not None:
            await silent.wait()

    async def add_tasks(self) -> None:
        """Add 10 tasks: in a connector of their own, then by a higher ``tasks.max``; each is undone."""
        began_ns = await self.put("more", 10)
        self.note("add", began_ns, await self.settled(began_ns))
        self.add("add others", len({event.unit for event in self.since(began_ns) if not event.unit.startswith("more")}))
        await self.delete("more", 10)
        await self.settled(time.time_ns())

        before = set(self.wanted)
        began_ns = await self.put(MAIN, self.tasks + 10)
        self.note("grow", began_ns, await self.settled(began_ns))
        self.add("grow others", len({event.unit for event in self.since(began_ns)} & before))
        self.wanted -= names(MAIN, self.tasks + 10) - names(MAIN, self.tasks)
        await self.put(MAIN, self.tasks)
        await self.settled(time.time_ns())

    async def roll(self) -> None:
        """Stop each worker in turn and start it again under its name."""
        began_ns = time.time_ns()
        for name in sorted(self.live):
            self.live.discard(name)
            stopped_ns = time.time_ns()
            await self.supervisor.stop_worker(name)
            await self.supervisor.add_worker(name)
            self.live.add(name)
            # A short quiet time: an operator's script continues as soon as the group is stable.
            await self.settled(stopped_ns, quiet_s=0.1)
        await self.note_roll("roll", began_ns)

    async def restart(self) -> None:
        """Each worker in turn is restarted through the coordinator: ``connectgroup workers restart``.

        Raises:
            Unsettled: a restart is rejected.
        """
        began_ns = time.time_ns()
        for name in sorted(self.live):
            stopped_ns = time.time_ns()
            self.joined_ns.pop(name, None)
            request = RestartRequest(group_id=GROUP, member_id=name)
            response = await self.supervisor.server.coordinator.handle(request, client_host=HERE)
            assert isinstance(response, RestartResponse)
            if response.error_code:
                raise Unsettled(response.error_message or name)
            await self.all_joined()
            await self.settled(stopped_ns, quiet_s=0.1)
        await self.note_roll("restart", began_ns)

    async def bounce_static(self, processes: dict[str, asyncio.subprocess.Process]) -> None:
        """Each static worker in turn is stopped by SIGTERM and started again with its instance id."""
        began_ns = time.time_ns()
        for name in sorted(processes):
            stopped_ns = time.time_ns()
            self.live.discard(name)
            processes[name].terminate()
            await processes[name].wait()
            self.joined_ns.pop(name, None)
            processes[name] = await self.start_unwatched(name, "--instance", name)
            self.live.add(name)
            await self.all_joined()
            await self.settled(stopped_ns, quiet_s=0.1)
        await self.note_roll("static", began_ns)

    async def note_roll(self, key: str, began_ns: int) -> None:
        """Record a rolling bounce: duration, stops, moves and downtime."""
        self.note(key, began_ns, await self.settled(began_ns))
        stood = self.stood(began_ns)
        self.add(f"{key} stops", sum(not event.starts for event in self.since(began_ns)))
        self.add(f"{key} moves", sum(still.source != still.target for still in stood))
        self.add(f"{key} sum", total(stood))

    # ----------------------------------------------------------------------------------------------
    # Operations

    async def put(self, name: str, tasks: int) -> int:
        """Create or change a connector of idle tasks; return the time of the request."""
        config = {"connector.class": "idle", "tasks.max": str(tasks), "log": str(self.log.path)}
        self.wanted |= names(name, tasks)
        began_ns = time.time_ns()
        await self.supervisor.put_connector(ConnectorFile(name=name, config=config))
        return began_ns

    async def delete(self, name: str, tasks: int) -> None:
        """Delete a connector."""
        self.wanted -= names(name, tasks)
        change = ConnectorChange(connector=name, delete=True)
        request = UpdateConnectorsRequest(group_id=GROUP, changes=(change,))
        await self.supervisor.server.coordinator.handle(request, client_host=HERE)

    async def all_joined(self) -> None:
        """Wait until all live workers have joined.

        Raises:
            Unsettled: a worker did not join.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not self.live.issubset(self.joined_ns):
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            raise Unsettled(f"{', '.join(sorted(self.live - self.joined_ns.keys()))} did not join") from None

    async def start_unwatched(self, name: str, *options: str) -> asyncio.subprocess.Process:
        """Start a worker process without a supervisor: no process reports its death."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "connectgroup", "worker", "--coordinator", self.supervisor.server.address, "--group", GROUP),
            *("--name", name, "--scratch", str(self.scratch), "--assignor", "balanced"),
            *("--allowed-path", str(self.log.path.parent.resolve()), *options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._listening.append(asyncio.create_task(self._listen(name, process)))
        return process

    async def _listen(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        try:
            async for line in process.stderr:
                self._hear(name, line.decode(errors="replace").rstrip())
        except asyncio.CancelledError:  # the measurement was aborted
            process.kill()
            raise

    def _hear(self, name: str, line: str) -> None:
        """Process one line of a worker's log: the line before its first heartbeat begins with the time."""
        if found := JOINING.match(line):
            self.joined_ns[name] = int(datetime.fromisoformat(found[1]).timestamp() * 1e3) * 1_000_000
            self._heard.set()
        elif self.verbose or " ERROR " in line:
            print(f"{name} | {line}", file=sys.stderr, flush=True)

    # ----------------------------------------------------------------------------------------------
    # Observation

    async def settled(self, since_ns: int, *, quiet_s: float = QUIET_S) -> int:
        """Wait until each wanted task runs on one live worker, balanced, and no other task does; return the last start.

        Raises:
            Unsettled: not within a minute.
        """
        deadline = time.monotonic() + PATIENCE_S
        changed, looked = time.monotonic(), False
        while True:
            if self.log.poll():
                changed, looked = time.monotonic(), False
            elif not looked and time.monotonic() - changed >= quiet_s:
                looked = True
                if not self.amiss():
                    return last_start_ns(self.log.runs, since_ns=since_ns) or since_ns
            if time.monotonic() > deadline:
                raise Unsettled("; ".join(self.amiss()))
            await asyncio.sleep(0.02)

    def amiss(self) -> list[str]:
        """Describe every deviation from the expected state."""
        places = running(self.log.runs)
        found = []
        for what, units in (
            ("not running", self.wanted - places.keys()),
            ("running and not wanted", places.keys() - self.wanted),
            ("on two workers", {unit for unit, where in places.items() if len(where) > 1}),
            ("on a worker that has gone", {unit for unit, where in places.items() if not self.live.issuperset(where)}),
        ):
            if units:
                found.append(f"{len(units)} tasks {what}, {min(units)} first")
        loads = Counter(member_id for where in places.values() for member_id in where)
        counts = [loads[name] for name in self.live]
        if max(counts) - min(counts) > 1:
            found.append(f"uneven: {dict(sorted(loads.items()))}")
        return found

    def since(self, began_ns: int) -> Iterable[Event]:
        """Starts and stops since a point in time."""
        return (event for event in self.log.events if event.at_ns >= began_ns)

    def stood(self, began_ns: int) -> list[TaskDowntime]:
        """Downtimes that began after a point in time."""
        return downtimes(self.log.runs, since_ns=began_ns)

    def note(self, key: str, began_ns: int, ended_ns: int) -> None:
        """Add a sample: a duration in seconds."""
        self.add(key, (ended_ns - began_ns) / 1e9)

    def add(self, key: str, value: float) -> None:
        """Add a sample."""
        self.samples.setdefault(key, []).append(value)


def names(connector: str, tasks: int) -> set[str]:
    """The tasks of a connector by their names in the log."""
    return {f"{connector}-{number}" for number in range(tasks)}


def tenth(tasks: int) -> int:
    """The size of the small connector."""
    return max(1, tasks // 10)


def max_downtime(stood: Sequence[TaskDowntime]) -> float:
    """Seconds of the longest downtime."""
    return max((still.seconds for still in stood), default=0.0)


def total(stood: Sequence[TaskDowntime]) -> float:
    """Task-seconds of all downtimes."""
    return sum(still.seconds for still in stood)

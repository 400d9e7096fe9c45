"""How long rebalances of idle tasks take: one coordinator on SQLite, worker processes over TCP, no Spark.

    python benchmarks/rebalance.py [--tasks 300] [--workers 3] [--rounds 3]

Every figure comes from the tasks' own log (``task_log``). The coordinator lives in this process, as it does in
``connectgroup up``. Exit code 1 if any task was ever seen on two workers at once, or did not run at the end of a
scenario; nothing else decides it, least of all a time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import platform
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from benchmarks.task_log import Death, Standstill, TaskLog, last_start_ns, overlaps, running, standstills
from connectgroup.config import ConnectorFile, CoordinatorConfig
from connectgroup.messages import ConnectorChange, UpdateConnectorsRequest
from connectgroup.supervisor import HERE, Supervisor

GROUP = "bench"
MAIN = "main"
QUIET_S = 0.4
"""Without a start or stop for so long, the tasks are looked at."""
PATIENCE_S = 60.0
JOINING = re.compile(r"^(\d\d:\d\d:\d\d\.\d{3}) INFO joining group")

CONNECT_SOURCE = (
    "Connect: Kafka 4.3.1, 3 workers, one connector of 300 idle tasks, same kind of machine (2 cores, shared); medians"
)
# Seconds unless the row says otherwise; only for --tasks 300 --workers 3. Source: CONNECT_SOURCE. Connect's join is
# counted from its first revocation and not from the newcomer's first heartbeat, which comes earlier.
CONNECT = {
    "create small": 1.5,
    "create": 3.2,
    "join": 5.1,
    "join longest": 4.4,
    "join sum": 265.0,
    "stop": 4.9,
    "stop longest": 4.6,
    "kill silent": 11.6,
    "add": 0.56,
    "roll": 17.9,
    "roll sum": 1464.0,
}


class Unsettled(Exception):
    """The tasks did not get to where they belong in time; says which."""


@dataclass(slots=True)
class Row:
    """One line of the table: what was measured, and each of its samples."""

    key: str
    title: str
    unit: str = "s"
    samples: list[float] = field(default_factory=list)


TITLES = {
    "create small": "{small} tasks created: PUT -> all running",
    "create": "{tasks} tasks created: PUT -> all running",
    "join": "a worker joins: its first heartbeat -> balanced",
    "join moved": "   tasks moved (the minimum: {minimum})",
    "join median": "   standstill of a moved task, median",
    "join longest": "   standstill, longest",
    "join sum": "   standstill, sum",
    "stop": "a worker stops cleanly: SIGTERM -> all running",
    "stop longest": "   standstill, longest",
    "kill": "a worker is killed, its supervisor says so: SIGKILL -> all running",
    "kill silent": "a worker is killed, nobody says so (session 10 s): SIGKILL -> all running",
    "add": "10 tasks added in a second connector: PUT -> all running",
    "add others": "   other tasks interrupted",
    "grow": "tasks.max raised by 10: PUT -> all running",
    "grow others": "   other tasks interrupted",
    "roll": "rolling bounce of {workers}, process starts included",
    "roll stops": "   stops",
    "roll sum": "   standstill, sum",
}
UNITS = {"join moved": "tasks", "add others": "tasks", "grow others": "tasks", "roll stops": "tasks"}
UNITS |= {"join sum": "task-s", "roll sum": "task-s"}


class Bench:
    """A group under measurement, and what has been found."""

    def __init__(self, directory: Path, *, tasks: int, workers: int) -> None:
        self.tasks, self.workers = tasks, workers
        self.log = TaskLog(directory / "tasks.log")
        self.scratch = directory / "scratch"
        self.supervisor = Supervisor(
            GROUP,
            workers=workers,
            scratch=self.scratch,
            coordinator=CoordinatorConfig(port=0, data=directory / "groups.sqlite"),
            restart=False,
            worker_log=self._hear,
        )
        self.wanted: set[str] = set()
        self.live: set[str] = {f"worker-{number}" for number in range(1, workers + 1)}
        self.joined_ns: dict[str, int] = {}
        self.samples: dict[str, list[float]] = {}
        self.faults: list[str] = []

    # ----------------------------------------------------------------------------------------------
    # Scenarios

    async def create(self, key: str, name: str, tasks: int) -> None:
        """A connector where there was none; put -> all of its tasks run."""
        began_ns = await self.put(name, tasks)
        self.note(key, began_ns, await self.settled(began_ns))

    async def join(self, name: str, *, watched: bool = True) -> asyncio.subprocess.Process | None:
        """One worker more. An unwatched one has no supervisor to say that it died; it is returned."""
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
        self.add("join longest", longest(stood))
        self.add("join sum", total(stood))
        return process

    async def stop(self, name: str) -> None:
        """A worker ends in order."""
        began_ns = time.time_ns()
        self.live.discard(name)
        ending = asyncio.create_task(self.supervisor.stop_worker(name))
        self.note("stop", began_ns, await self.settled(began_ns))
        self.add("stop longest", longest(self.stood(began_ns)))
        await ending

    async def kill(self, name: str, silent: asyncio.subprocess.Process | None = None) -> None:
        """SIGKILL; its supervisor reaps it and says so, or nobody does."""
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
        """10 more: in a connector of their own, then by a higher ``tasks.max``; back again after each."""
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
        """Each worker in turn ends and is started again under its name."""
        began_ns = time.time_ns()
        for name in sorted(self.live):
            self.live.discard(name)
            stopped_ns = time.time_ns()
            await self.supervisor.stop_worker(name)
            await self.settled(stopped_ns, quiet_s=0.0)
            await self.supervisor.add_worker(name)
            self.live.add(name)
            last_ns = await self.settled(stopped_ns, quiet_s=0.0)
        last_ns = await self.settled(began_ns)
        self.note("roll", began_ns, last_ns)
        self.add("roll stops", sum(not event.starts for event in self.since(began_ns)))
        self.add("roll sum", total(self.stood(began_ns)))

    # ----------------------------------------------------------------------------------------------
    # Doing

    async def put(self, name: str, tasks: int) -> int:
        """Create or change a connector of idle tasks; when that was asked for."""
        config = {"connector.class": "idle", "tasks.max": str(tasks), "log": str(self.log.path)}
        self.wanted |= names(name, tasks)
        began_ns = time.time_ns()
        await self.supervisor.put_connector(ConnectorFile(name=name, config=config))
        return began_ns

    async def delete(self, name: str, tasks: int) -> None:
        """Remove a connector."""
        self.wanted -= names(name, tasks)
        change = ConnectorChange(connector=name, delete=True)
        request = UpdateConnectorsRequest(group_id=GROUP, changes=(change,))
        await self.supervisor.server.coordinator.handle(request, client_host=HERE)

    async def start_unwatched(self, name: str) -> asyncio.subprocess.Process:
        """A worker process of nobody's: its death is for the session timeout to find."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "connectgroup", "worker", "--coordinator", self.supervisor.server.address, "--group", GROUP),
            *("--name", name, "--scratch", str(self.scratch), "--assignor", "balanced"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._unwatched = asyncio.create_task(self._listen(name, process))
        return process

    async def _listen(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self._hear(name, line.decode(errors="replace").rstrip())

    def _hear(self, name: str, line: str) -> None:
        """One line of a worker's log: the one before its first heartbeat has its time in front."""
        if found := JOINING.match(line):
            clock = datetime.strptime(found[1], "%H:%M:%S.%f").time()
            self.joined_ns[name] = int(datetime.combine(datetime.now().date(), clock).timestamp() * 1e3) * 1_000_000
        elif " ERROR " in line or VERBOSE:
            print(f"{name} | {line}", file=sys.stderr, flush=True)

    # ----------------------------------------------------------------------------------------------
    # Looking

    async def settled(self, since_ns: int, *, quiet_s: float = QUIET_S) -> int:
        """Wait until every wanted task runs on one live worker, evenly, and nothing else does; the last start since.

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
        """What is not as it should be, in words."""
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
        """Starts and stops after a moment."""
        return (event for event in self.log.events if event.at_ns >= began_ns)

    def stood(self, began_ns: int) -> list[Standstill]:
        """Standstills that began after a moment."""
        return standstills(self.log.runs, since_ns=began_ns)

    def note(self, key: str, began_ns: int, ended_ns: int) -> None:
        """One more sample: a time in seconds."""
        self.add(key, (ended_ns - began_ns) / 1e9)

    def add(self, key: str, value: float) -> None:
        """One more sample."""
        self.samples.setdefault(key, []).append(value)

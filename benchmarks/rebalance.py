"""Duration of rebalances of idle tasks: one coordinator on SQLite, worker processes over TCP, no Spark.

    python benchmarks/rebalance.py [--tasks 300] [--workers 3] [--rounds 3]

Every figure is derived from the tasks' own log (``task_log``). The coordinator runs in this process, as it does in
``connectgroup up``. Exit code 1 if any task ever ran on two workers at once, or did not run at the end of a scenario,
or if a rolling restart moved a task or stopped one twice; no time affects it.
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
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Run as a script from any directory: the modules next to this file are imported as benchmarks.NAME.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.task_log import Death, Event, TaskDowntime, TaskLog, downtimes, last_start_ns, overlaps, running
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
JOINING = re.compile(r"^(\d\d:\d\d:\d\d\.\d{3}) INFO joining group")

CONNECT_SOURCE = (
    "Connect: Kafka 4.3.1, 3 workers, one connector of 300 idle tasks, same kind of machine (2 cores, shared); medians"
)
# Seconds unless the row says otherwise; only for --tasks 300 --workers 3. Source: CONNECT_SOURCE. Connect's join is
# measured from its first revocation, not from the new worker's first heartbeat, which comes earlier.
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
    "roll stops": 300,
    "roll sum": 1464.0,
}


class Unsettled(Exception):
    """The tasks did not reach their target in time; names them."""


TITLES = {
    "create small": "{small} tasks created: PUT -> all running",
    "create": "{tasks} tasks created: PUT -> all running",
    "join": "a worker joins: its first heartbeat -> balanced",
    "join moved": "   tasks moved (minimum: {minimum})",
    "join median": "   downtime of a moved task, median",
    "join longest": "   downtime, longest",
    "join sum": "   downtime, sum",
    "stop": "a worker stops cleanly: SIGTERM -> all running",
    "stop longest": "   downtime, longest",
    "kill": "a worker is killed, its supervisor reports it: SIGKILL -> all running",
    "kill silent": "a worker is killed, no process reports it (session {session:g} s): SIGKILL -> all running",
    "add": "10 tasks added in a second connector: PUT -> all running",
    "add others": "   other tasks interrupted",
    "grow": "tasks.max raised by 10: PUT -> all running",
    "grow others": "   other tasks interrupted",
    "roll": "rolling bounce of {workers}, process starts included",
    "roll stops": "   stops",
    "roll moves": "   moves",
    "roll sum": "   downtime, sum",
    "restart": "rolling restart of {workers} by `workers restart`, process starts included",
    "restart stops": "   stops",
    "restart moves": "   moves",
    "restart sum": "   downtime, sum",
    "static": "rolling bounce of {workers} with --instance, process starts included",
    "static stops": "   stops",
    "static moves": "   moves",
    "static sum": "   downtime, sum",
}
UNITS = {"join moved": "tasks", "add others": "tasks", "grow others": "tasks"}
UNITS |= {f"{scenario} {count}": "tasks" for scenario in ("roll", "restart", "static") for count in ("stops", "moves")}
UNITS |= {f"{scenario} sum": "task-s" for scenario in ("join", "roll", "restart", "static")}


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
    ) -> None:
        """Does not start anything.

        Args:
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
                data=directory / "groups.sqlite",
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
            *("--name", name, "--scratch", str(self.scratch), "--assignor", "balanced", *options),
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
            clock = datetime.strptime(found[1], "%H:%M:%S.%f").time()
            self.joined_ns[name] = int(datetime.combine(datetime.now().date(), clock).timestamp() * 1e3) * 1_000_000
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


async def measure(bench: Bench, rounds: int) -> None:
    """Run all scenarios, each ``rounds`` times (a join precedes each end of a worker, so there are three per round).

    Raises:
        Unsettled: a task is missing or on a wrong worker, and remains so.
    """
    newcomer = f"worker-{bench.workers + 1}"
    async with bench.supervisor:
        await bench.all_joined()
        for _ in range(rounds):
            await bench.create("create small", "small", tenth(bench.tasks))
            await bench.create("create", "big", bench.tasks)
        await bench.put(MAIN, bench.tasks)
        await bench.settled(time.time_ns())
        for _ in range(rounds):
            await bench.join(newcomer)
            await bench.stop(newcomer)
            await bench.join(newcomer)
            await bench.kill(newcomer)
            silent = await bench.join(newcomer, watched=False)
            await bench.kill(newcomer, silent)
            await bench.add_tasks()
            await bench.roll()


async def measure_restarts(bench: Bench, rounds: int) -> None:
    """Rolling restarts of supervised workers, with a scheduled rebalance delay that is longer than a restart takes.

    Raises:
        Unsettled: see ``measure``.
    """
    async with bench.supervisor:
        await bench.all_joined()
        await bench.put(MAIN, bench.tasks)
        await bench.settled(time.time_ns())
        for _ in range(rounds):
            await bench.restart()


async def measure_static(bench: Bench, rounds: int) -> None:
    """Rolling bounces of static workers, which no supervisor reports as dead.

    Raises:
        Unsettled: see ``measure``.
    """
    async with bench.supervisor:
        processes: dict[str, asyncio.subprocess.Process] = {}
        try:
            for name in sorted(bench.live):
                processes[name] = await bench.start_unwatched(name, "--instance", name)
            await bench.all_joined()
            await bench.put(MAIN, bench.tasks)
            await bench.settled(time.time_ns())
            for _ in range(rounds):
                await bench.bounce_static(processes)
        finally:
            for process in processes.values():
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()


def moved(bench: Bench) -> list[str]:
    """Rolling restarts that moved a task, or stopped one more than once."""
    return [
        f"{key}: {figure(value)} {what}, expected {expected}"
        for key in ("restart", "static")
        for what, expected in (("stops", bench.tasks), ("moves", 0))
        for value in bench.samples.get(f"{key} {what}", ())
        if value != expected
    ]


def table(bench: Bench, rounds: int) -> str:
    """Format the figures, one per line, with Connect's figures for the same size where available."""
    comparable = (bench.tasks, bench.workers, bench.session_s) == (300, 3, 10.0)
    words = {
        "tasks": bench.tasks,
        "small": tenth(bench.tasks),
        "workers": bench.workers,
        "session": bench.session_s,
        "minimum": bench.tasks // (bench.workers + 1),
    }
    rows: list[tuple[str, ...]] = [("scenario", "median (range, n)", "unit", "Connect", "ratio")]
    for key, title in TITLES.items():
        samples = bench.samples.get(key)
        if not samples:
            continue
        middle = statistics.median(samples)
        ours = f"{figure(middle)} ({figure(min(samples))}-{figure(max(samples))}, {len(samples)})"
        theirs = CONNECT.get(key) if comparable else None
        ratio = f"{theirs / middle:.3g}x" if theirs and middle else ""
        beside = figure(theirs) if theirs is not None else ""
        rows.append((title.format(**words), ours, UNITS.get(key, "s"), beside, ratio))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * width for width in widths))
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    head = f"{bench.tasks} idle tasks, {bench.workers} workers, {rounds} rounds; {os.cpu_count()} CPUs, Python "
    head += platform.python_version()
    return "\n".join([head, "", *lines, *(["", CONNECT_SOURCE] if comparable else [])])


def figure(value: float) -> str:
    """Format with three significant digits."""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


async def run(options: argparse.Namespace) -> int:
    """Measure, check, print; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="rebalance-") as directory:

        def bench_in(name: str, session_s: float, **more: Any) -> Bench:
            folder = Path(directory, name)
            folder.mkdir()
            size = {"tasks": options.tasks, "workers": options.workers, "session_s": session_s}
            return Bench(folder, **size, verbose=options.verbose, **more)

        benches = {
            measure: bench_in("bench", options.session),
            measure_restarts: bench_in("restarts", options.session, delay_s=RETURN_S),
            measure_static: bench_in("static", RETURN_S, supervised=False),
        }
        faults = []
        for run_scenarios, bench in benches.items():
            try:
                await run_scenarios(bench, options.rounds)
            except Unsettled as error:
                faults.append(f"not settled within {PATIENCE_S:g} s: {error}")
            bench.log.poll()
            faults += moved(bench)
    first, *others = benches.values()
    for other in others:
        first.samples |= other.samples
    print(table(first, options.rounds))
    return verdict([bench.log for bench in benches.values()], faults)


def verdict(logs: Sequence[TaskLog], faults: Sequence[str]) -> int:
    """Print every violation; return the exit code."""
    found = [*faults, *(overlap for log in logs for overlap in overlaps(log.runs))]
    for fault in found:
        print(f"FAULT: {fault}")
    starts = sum(event.starts for log in logs for event in log.events)
    print(f"\n{starts} starts, {len(found)} faults (a task on two workers at once, missing, or where it should not be)")
    return 1 if found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Time rebalances of idle tasks.")
    parser.add_argument("--tasks", type=at_least(1), default=300, help="of the one connector (default 300)")
    parser.add_argument("--workers", type=at_least(2), default=3, help="before one joins (default 3)")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="how often each scenario is run (default 3)")
    parser.add_argument("--session", type=at_least(3), default=10, help="session timeout in seconds (default 10)")
    parser.add_argument("--verbose", action="store_true", help="show the workers' logs")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO if options.verbose else logging.CRITICAL)
    return asyncio.run(run(options))


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: an integer from ``least`` to 10,000."""

    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text[:6]) <= 10_000:
            raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {least} to 10000")
        return int(text)

    return number


if __name__ == "__main__":
    sys.exit(main())

"""A worker group of real processes: a coordinator on a SQLite log, workers over TCP, SIGKILL and SIGSTOP.

The same methods as in virtual time; seconds are seconds. Each worker connects through a proxy, which
``partition`` cuts: bytes are lost, connections stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..assign.placement import WorkerTraits
from ..client.admin import Admin
from ..transport.credentials import FILE_NAME, VARIABLE
from ..transport.tcp_client import TcpClient
from .worker_group import COORDINATOR, GroupPlan, WorkerGroup
from .worker_process import reference

T = TypeVar("T")

END_S = 60.0
"""Longest wait for a process to start or to end."""
LOOK_S = 0.05
"""How often worker processes are looked at. The coordinator may notice up to so much earlier that one has ended."""


@dataclass(eq=False)
class _WorkerProcess:
    process: subprocess.Popen[bytes]
    proxy: TcpProxy
    alive_s: float
    """The group's clock when it was last seen to run."""
    paused: bool = False


class RealGroup(WorkerGroup):
    """See the module."""

    real = True

    def __init__(self, plan: GroupPlan, *, seed: int = 0) -> None:
        super().__init__(plan, seed=seed)
        self._began = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="worker group", daemon=True)
        self._folder = tempfile.TemporaryDirectory(prefix="connectgroup-")
        self._root = Path(self._folder.name)
        self._journal, self._read_bytes = self._root / "journal", 0
        self._journal.touch()
        for name in plan.names:  # an error precedes the start
            self._plugins(name)
        self._classes: dict[str, Any] = {}
        self._workers: dict[str, _WorkerProcess] = {}
        self._coordinator: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._client: TcpClient | None = None
        self._thread.start()
        try:
            self._start_coordinator()
            self._add_classes({})
            for name, spec in plan.connectors.items():
                self.add_connector(name, spec)
            for name in plan.names:
                self.add_worker(name)
        except BaseException:
            self.close()
            raise

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def _advance(self, seconds: float) -> None:
        until_s = self.now + seconds
        while (left_s := until_s - self.now) > 0:
            time.sleep(min(left_s, LOOK_S))
            self._look()
        self._read()

    def _look(self) -> None:
        """Notice the workers that have ended by themselves."""
        for name, worker in list(self._workers.items()):
            now_s = self.now
            status = worker.process.poll()
            if status is None:
                worker.alive_s = now_s
            else:
                lines = self._log_of(name).read_text(errors="replace").strip().splitlines() or ["no message"]
                self.history.note(f"{name} has ended{f': {lines[-1]}' if status else ''}")
                if status:
                    self._failed[name] = lines[-1]
                # The coordinator may have noticed the end earlier than this process.
                self._forget(name, worker.alive_s)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(END_S)

    def _read(self) -> None:
        """Take the new lines of the journal into the history."""
        with self._journal.open("rb") as file:
            file.seek(self._read_bytes)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._read_bytes += len(line)
            entry = json.loads(line)
            at_s = entry["at_s"] - self._began
            if entry["event"] == "start":
                self.history.started(entry["worker"], entry["unit"], entry["epoch"], at_s, fenced=entry["fenced"])
            elif entry["event"] == "fenced":
                self.history.fences(entry["worker"], entry["unit"])
            else:
                self.history.stopped(entry["worker"], entry["unit"], at_s)

    def _log_of(self, name: str) -> Path:
        return self._root / f"{name}.log"

    def story(self) -> str:
        logs = [
            f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(self._root.glob("*.log"))
        ]
        return "\n".join([super().story(), *logs])

    # ----------------------------------------------------------------------------------------------
    # Coordinator

    def _start_coordinator(self) -> None:
        settings = self.plan.settings
        options = {
            "--data": self._root / "coordinator",
            "--port": self._port,
            "--session-timeout-ms": settings.session_timeout_ms,
            "--heartbeat-interval-ms": settings.heartbeat_interval_ms,
            "--rebalance-delay-ms": settings.scheduled_delay_ms,
            "--assignment-interval-ms": settings.assignment_interval_ms,
            "--moves-per-round": settings.max_moves,
            **({"--fallback-assignor": settings.server_assignor} if settings.server_assignor else {}),
        }
        words = [str(word) for option in options.items() for word in option]
        with self._log_of(COORDINATOR).open("ab") as log:
            self._coordinator = subprocess.Popen(
                [sys.executable, "-m", "connectgroup", "coordinator", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
            )
        assert self._coordinator.stdout is not None
        line = self._coordinator.stdout.readline().decode()
        assert line.startswith("coordinator at "), f"the coordinator did not start\n{self.story()}"
        self._port = int(line.strip().split(",")[0].rpartition(":")[2])
        self._client = TcpClient("127.0.0.1", self._port, "test")
        self.history.note("the coordinator starts")

    def _admin(self, *, retry_for_s: float) -> Admin | None:
        self._read()
        return None if self._client is None else Admin([self._client], timeout_s=5, retry_for_s=retry_for_s)

    def _add_classes(self, classes: Mapping[str, Any]) -> None:
        self._classes |= {name: reference(plugin) for name, plugin in classes.items()}
        new = self._root / "classes.new"
        new.write_text(json.dumps(self._classes), encoding="utf-8")
        new.rename(self._root / "classes.json")

    # ----------------------------------------------------------------------------------------------
    # Workers

    def _start_worker(self, name: str, traits: WorkerTraits) -> None:
        assert name not in self._workers, f"{name} runs already"
        proxy = TcpProxy("127.0.0.1", self._port)
        self._call(proxy.start())
        settings = {
            **self._plugins(name),
            "name": name,
            "traits": asdict(traits),
            "group": self.plan.group_id,
            "port": proxy.port,
            "journal": str(self._journal),
            "scratch": str(self._root / f"{name}-tasks"),
            "classes": str(self._root / "classes.json"),
        }
        with self._log_of(name).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.worker_process", json.dumps(settings), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # The worker connects to the port of its TCP proxy, for which there is no note with the credentials.
                env=_environment() | {VARIABLE: str(self._root / "coordinator" / FILE_NAME)},
            )
        self._workers[name] = _WorkerProcess(process, proxy, self.now)
        self._alive[name] = True
        self.history.note(f"{name} starts")

    def _plugins(self, name: str) -> dict[str, list[Any]]:
        assignors = [reference(plugin) for plugin in self._assignors_of(name)]
        return {"assignors": assignors, "listeners": [reference(plugin) for plugin in self._listeners_of(name)]}

    def stop(self, name: str) -> None:
        self.resume(name)
        self.history.note(f"{name} is asked to stop")
        self._workers[name].process.terminate()
        self._workers[name].process.wait(END_S)
        self._forget(name)

    def kill(self, name: str) -> None:
        if name == COORDINATOR:
            self._kill_coordinator()
            return
        self._check_worker(name, (*self._workers, COORDINATOR))
        killed_s = self.now  # before the wait: the coordinator may hear of the end, and a successor start, during it
        self._workers[name].process.kill()
        self._workers[name].process.wait(END_S)
        self.history.note(f"{name} is killed", killed_s)
        self._forget(name, killed_s)

    def _forget(self, name: str, ended_s: float | None = None) -> None:
        self._read()
        self.history.ended(name, ended_s)
        self._alive.pop(name, None)
        self._call(self._workers.pop(name).proxy.close())

    def _kill_coordinator(self) -> None:
        process, self._coordinator = self._coordinator, None
        if process is not None:
            process.kill()
            process.wait(END_S)
            if process.stdout is not None:
                process.stdout.close()
            self.history.note("the coordinator is killed")
        if self._client is not None:
            self._call(self._client.close())
            self._client = None

    def pause(self, name: str) -> None:
        self._check_worker(name, self._workers)
        worker = self._workers[name]
        paused_s = self.now
        worker.process.send_signal(signal.SIGSTOP)
        worker.paused = True
        self._alive[name] = False
        self._read()
        self.history.note(f"{name} is paused", paused_s)
        self.history.paused(name, paused_s)
        self._may_be_removed(name)

    def _may_be_removed(self, name: str) -> None:
        """The group may remove a worker from now on; whether it did is known when the worker can be reached again."""
        self.history.fenced(name)

    def _may_be_member(self, name: str) -> None:
        group = self.describe()
        if group is not None and any(member.member_id == name for member in group.members):
            self.history.not_fenced(name)

    def resume(self, name: str) -> None:
        self._check_worker(name, self._workers)
        worker = self._workers[name]
        if worker.paused:
            self._may_be_member(name)
            self.history.resumed(name)
            self.history.note(f"{name} resumes")
            worker.paused, self._alive[name] = False, True
            worker.process.send_signal(signal.SIGCONT)

    def partition(self, *names: str) -> None:
        for name in names:
            self._check_worker(name, self._workers)
            self._loop.call_soon_threadsafe(self._workers[name].proxy.cut)
            self._alive[name] = False
            self._read()
            self._may_be_removed(name)
            self.history.note(f"{name} is cut off from the coordinator")

    def heal(self, *names: str) -> None:
        for name in names or list(self._workers):
            self._check_worker(name, self._workers)
            if not self._alive[name]:
                self._may_be_member(name)
            self._loop.call_soon_threadsafe(self._workers[name].proxy.heal)
            self._alive[name] = not self._workers[name].paused

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        try:
            for worker in self._workers.values():
                worker.process.send_signal(signal.SIGTERM)
                worker.process.send_signal(signal.SIGCONT)
            for name, worker in list(self._workers.items()):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(END_S)
                worker.process.kill()
                worker.process.wait()
                self._forget(name)
            self._kill_coordinator()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(END_S)
            self._loop.close()
            self._folder.cleanup()


def _environment() -> dict[str, str]:
    """The environment of the processes: they import what this process imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class TcpProxy:
    """Forwards connections to one address until it is cut.

    Attributes:
        port: the port to connect to, on 127.0.0.1.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._cut = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Open the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Lose all bytes from now on, in both directions."""
        self._cut.set()

    def heal(self) -> None:
        """Close the connections that were cut; new ones are forwarded."""
        if self._cut.is_set():
            self._cut.clear()
            for task in self._tasks:
                task.cancel()

    async def close(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            if self._cut.is_set():
                await asyncio.get_running_loop().create_future()
            onward, back = await asyncio.open_connection(*self._target)
            writers.append(back)
            pumps = {asyncio.create_task(self._pump(reader, back)), asyncio.create_task(self._pump(onward, writer))}
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for each in writers:
                with contextlib.suppress(OSError):
                    each.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if self._cut.is_set():
                    await asyncio.get_running_loop().create_future()
                writer.write(data)
                await writer.drain()
        # The peer closed: a partition hides that as well.
        if self._cut.is_set():
            await asyncio.get_running_loop().create_future()

"""``connectgroup up``: a coordinator in this process, and worker processes on the same machine.

The supervisor knows for certain when a worker process has ended, because it reaps the process. It immediately sends a
leave for the member, so that the group does not wait for the session timeout (PD-11). It restarts a worker that
died after a back-off, under the same name. It kills a worker that the group has removed and that does not respond: a
process stopped by SIGSTOP in a SQLite transaction keeps the database locked for all others.

A worker that is to restart is replaced: a second process warms up (it starts Spark) while the first one runs its tasks;
only then the first one stops them and leaves, and the second joins under the same name. One worker at a time: two
processes of a worker need the memory of two. If the replacement cannot be started, the first process goes on.

Decisions:

- To leave before the replacement is warm cost 15 to 43 s of downtime for the start of Spark, more than a kill. Old and
  new process talk through the supervisor, not through the coordinator: until the first has left, the second is no
  member, and PD-15 holds unchanged. If the replacement ends or does not warm up, the request stays and is tried again
  after 60 s. If the first process dies meanwhile, the supervisor reports it, and the second joins when it is warm. A
  process that ends with exit code 75 without a replacement (it drained after a stall) is started again at once.
- With fewer processors than workers, the first worker starts alone and the others when it runs the tasks: on two
  cores, three workers, the first rows arrive after 9 to 10 s instead of 19 s; the third worker joins after 20 s
  instead of 17.
- ``up`` keeps the tasks of a restarting worker for 30 s, a coordinator for 10 s: a start of Spark takes 5 to 15 s. A
  longer delay costs nothing here, because the supervisor reports a dead worker and its tasks move without a delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .backoff import Attempts, BackOff
from .client.admin import Admin, has_started_all
from .config.base import checked
from .config.connector_file import ConnectorFile
from .config.coordinator import CoordinatorConfig
from .config.secrets import NO_SECRETS, Secrets
from .config.worker import WorkerConfig
from .coordinator.server import CoordinatorServer
from .errors import GroupIdNotFound, from_code
from .loggers import relay
from .os_process import kill_family
from .protocol.messages.common import config_of, each_unit
from .protocol.messages.describe import DescribedConnector, DescribedGroup
from .protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from .protocol.units import LEAVE_EPOCH, counted
from .spark.remote import remote_address
from .spark.server import SharedSpark
from .spark.session import SHARED, runs_here
from .worker.runner import access_options, worker_options
from .worker.scratch import Scratch
from .worker.settings import PROCESS_ID_VARIABLE, new_process_id
from .worker.supervised import (
    JOIN,
    KEEP,
    RESTART,
    RESTART_EXIT_CODE,
    SPARK,
    WorkerProcess,
    end_group,
    ending,
)

logger = logging.getLogger(__name__)

RESTART_WAIT_S = 1.0
MAX_RESTART_WAIT_S = 30.0
LONG_LIFE_S = 60.0
SILENCE_CHECK_S = 0.5
"""Interval of the checks for unresponsive workers; a worker reports twice a second."""
FIRST_WORKER_TIMEOUT_S = 30.0
"""How long the other workers wait for the first."""
STOP_TIMEOUT_S = WorkerConfig.model_fields["rebalance_timeout_ms"].default / 1000 + 5
"""A worker ends within its rebalance timeout; its process gets a few seconds more."""
REPLACEMENT_TIMEOUT_S = 300.0
"""How long a replacement may take to warm up."""
LINES_TIMEOUT_S = 5.0
"""How long to wait for the last lines of a worker that has ended."""
HERE = "this process"
WITHOUT_ROWS = ("STARTING", "UNASSIGNED")
"""States of units that process nothing yet."""
REJECTED_EXIT_CODE = 2
"""Exit code of a worker with a configuration error, or rejected by the coordinator (``cli.command``). A new process
would end in the same way."""


class Supervisor:
    """A worker group on this machine.

    ``async with Supervisor(...) as supervisor:`` starts the coordinator and the workers; leaving the block stops them.

    Attributes:
        environment: variables of workers that start from now on, besides those of this process.
        serves: whether the coordinator has started; changed by ``__aenter__``.
        killed: whether ``kill`` was called.
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
        server_assignor: str | None = None,
        group_protocol: str | None = None,
        rebalance_timeout_ms: int | None = None,
        restart: bool = True,
        worker_log: Callable[[str, str], None] | None = None,
        metrics_port: int | None = None,
        secrets: Secrets = NO_SECRETS,
        allowed_paths: Sequence[Path] | None = None,
        kill_unresponsive: bool = True,
        one_first: bool = False,
        shared_spark: bool = False,
    ) -> None:
        """Create a supervisor; nothing runs before the ``async with`` block.

        Args:
            workers: number of workers to start.
            scratch: parent of the tasks' directories.
            connectors: created, or updated to this configuration, before the workers start.
            assignors: assignors that the workers list, in order of preference; if empty, the coordinator assigns.
            server_assignor: assignor of the coordinator that the workers request, if ``assignors`` is empty.
            group_protocol: of the workers, ``connect`` or ``classic``; ``None`` for the default of a worker.
            rebalance_timeout_ms: rebalance timeout of the workers; ``None`` for the default of a worker.
            restart: whether to restart a worker that died. A worker that requests a restart (SIGUSR2,
                ``connectgroup workers restart``) is started again in either case, one that was stopped (SIGTERM) or
                drained in none.
            worker_log: called with the worker's name and a line of its log; the default prints it to standard error.
            metrics_port: the n-th worker serves its metrics at this port plus n; 0: each at any port; ``None``: none.
            secrets: the secrets that connectors may refer to.
            allowed_paths: the files and directories that connectors may use; ``None``: the default of a worker.
            kill_unresponsive: whether to kill a worker that the group has removed and that has not reported for the
                session timeout.
            one_first: if the group has connectors, start the other workers when the first runs all tasks. For machines
                with fewer processors than workers: the first rows arrive earlier, because one Spark starts alone.
            shared_spark: whether the workers share one Java, which this process starts with them, or when the first of
                them needs it. Not where they use a Spark Connect server or a cluster.

        Raises:
            ConfigError, PluginError: see ``CoordinatorServer``; a worker would reject the group or an option.
        """
        # The rules of a worker, before any process is started.
        options: dict[str, object] = {"group": group, "scratch": scratch, "assignors": tuple(assignors)}
        optional = {"server_assignor": server_assignor, "rebalance_timeout_ms": rebalance_timeout_ms}
        optional["group_protocol"] = group_protocol
        options |= {"secret_env": secrets.env, "secret_paths": secrets.paths}
        options["allowed_paths"] = paths = tuple(allowed_paths or ())
        checked(WorkerConfig, options | {name: value for name, value in optional.items() if value is not None})
        self.group = group
        self.server = CoordinatorServer(coordinator)
        access = self.server.access_to_others
        self.admin = Admin.local(self.server.coordinator, client_host=HERE, access=access)
        self.workers: dict[str, WorkerProcess] = {}
        self._count, self._scratch, self._connectors = workers, scratch, tuple(connectors)
        self._options = [*worker_options(assignors, server_assignor, rebalance_timeout_ms), *secrets.options()]
        self._options += [] if group_protocol is None else ["--group-protocol", group_protocol]
        self._options += [word for path in paths for word in ("--allowed-path", str(path))]
        self._restart = restart
        self._worker_log = worker_log or relay
        self._metrics_port = metrics_port
        self._kill_unresponsive = kill_unresponsive
        self._one_first = one_first
        self._spark: SharedSpark | None = None
        self._of_spark: Scratch | None = None
        self._shares_spark = shared_spark and runs_here() and not remote_address()
        self._telling: set[asyncio.Task[None]] = set()
        self.environment: dict[str, str] = {}
        self.serves = self.killed = False
        self._processes_started: list[asyncio.subprocess.Process] = []
        """Those of workers, also of former ones and of replacements; ``_spawn`` drops those that have ended."""
        self._others: asyncio.Task[None] | None = None
        self._silence: asyncio.Task[None] | None = None
        self._closing = False
        self._replacing = asyncio.Lock()
        self._replacements: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Supervisor:
        await self.server.start()
        self.serves = True
        try:
            for connector in self._connectors:
                await self.put_connector(connector)
            if self._shares_spark:
                # Locked: another supervisor may have the same directory, for a group whose log is elsewhere.
                self._of_spark = Scratch(self._scratch, "spark")
                self._spark = SharedSpark(
                    self._of_spark.path / "spark",
                    heap=f"{1024 + 512 * (self._count - 1)}m",
                    log=partial(self._worker_log, "spark"),
                    changed=self._spark_has_changed,
                )
            connectors = (await self.describe()).connectors
            if self._spark is not None and any(map(_needs_spark, connectors)):
                # Beside the start of the workers, whose Python takes a second until one would ask for it.
                self._spark.begin()
            workers = [self._new_worker() for _ in range(self._count)]
            if self._one_first and connectors:
                first, *others = workers
                await self._start(first)
                self._others = asyncio.create_task(self._start_others(first, others), name="start the other workers")
            else:
                for worker in workers:
                    await self._start(worker)
        except BaseException:
            await self.close()
            raise
        if self._kill_unresponsive:
            self._silence = asyncio.create_task(self._watch_for_silence(), name="watch for unresponsive workers")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ----------------------------------------------------------------------------------------------

    async def add_worker(self, name: str | None = None) -> WorkerProcess:
        """Start one more worker; the default names are ``worker-1``, ``worker-2``, ..."""
        worker = self._new_worker(name)
        await self._start(worker)
        return worker

    def signal_worker(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a worker; no effect if its process has ended."""
        process = self.workers[name].process
        if process is not None and process.returncode is None:
            process.send_signal(number)

    async def stop_worker(self, name: str) -> int:
        """Stop a worker: it stops its tasks, leaves the group and ends.

        Returns:
            The exit code of the process; negative for a signal.
        """
        while True:
            worker = self.workers[name]
            worker.wanted = False
            if worker.replacing is not None and worker.replacing is not asyncio.current_task():
                worker.replacing.cancel()
                await asyncio.wait({worker.replacing})
                worker.replacing = None
                if self.workers[name] is not worker:
                    continue
            process, watch = worker.process, worker.watch
            if process is None:
                return 0  # it has not been started yet
            assert watch is not None
            if process.returncode is None:
                # A process paused by SIGSTOP must continue before it can stop.
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
            # It is another process if the worker was being restarted when the stop was requested.
            if self.workers[name] is worker and worker.process is process:
                assert process.returncode is not None
                return process.returncode

    async def put_connector(self, connector: ConnectorFile) -> None:
        """Create a connector, or update it to this configuration.

        Raises:
            GroupError: the coordinator rejected the change; a one-line message.
        """
        await self.admin.put_connector(self.group, connector.name, connector.config)

    async def describe(self) -> DescribedGroup:
        """Return the coordinator's description of the group; an empty one before its first member or connector."""
        try:
            return await self.admin.describe(self.group)
        except GroupIdNotFound:
            return DescribedGroup(group_id=self.group, state="Empty")

    @property
    def all_rejected(self) -> bool:
        """Whether every worker has ended with a configuration error: no worker will run any more."""
        return bool(self.workers) and all(worker.rejected for worker in self.workers.values())

    @property
    def rows(self) -> int:
        """Rows that workers have reported as durable; rows after the last report of a killed worker are missing."""
        return sum(worker.rows_before + worker.rows for worker in self.workers.values())

    def summary(self, group: DescribedGroup) -> str:
        """Format a group as one line, as ``summary``; it begins with the start of Spark while tasks wait for it."""
        began_s = None if self._spark is None else self._spark.began_s
        units = [unit for connector in group.connectors for unit in connector.units if unit.should_run]
        if began_s is None or (units and not any(unit.state in WITHOUT_ROWS for unit in units)):
            return summary(group)
        waited_s = asyncio.get_running_loop().time() - began_s
        return summary(group, state=f"starting Spark, {waited_s:.0f} s")

    def rows_per_second(self, group_id: str) -> dict[str, float]:
        """Rows made durable per second, by connector, as the workers of this group have reported.

        May be called from any thread.
        """
        rates: dict[str, float] = {}
        for worker in self.workers.copy().values() if group_id == self.group else ():
            for connector, rate in worker.rows_per_s.items():
                rates[connector] = rates.get(connector, 0.0) + rate
        return rates

    def kill(self) -> None:
        """Kill all workers and Spark at once, with all that they have started. Those that would start are killed, too;
        ``close`` has nothing to wait for then.
        """
        self._closing = self.killed = True
        logger.warning("the workers and Spark are killed")
        for process in self._processes_started:
            if process.returncode is None:
                kill_family(process.pid)
        if self._spark is not None:
            self._spark.kill()

    async def close(self) -> None:
        """Stop all workers concurrently, then the coordinator."""
        self._closing = True
        if self._silence is not None:
            self._silence.cancel()
        if self._others is not None:
            await self._others
        await asyncio.gather(*(self.stop_worker(name) for name, worker in self.workers.items() if worker.process))
        if self._replacements:  # the former process of a worker still ends
            await asyncio.wait(self._replacements)
        for task in self._telling:
            task.cancel()
        if self._spark is not None:
            await self._spark.close()
        if self._of_spark is not None:
            self._of_spark.remove()
        await self.server.close()

    # ----------------------------------------------------------------------------------------------

    def _new_worker(self, name: str | None = None) -> WorkerProcess:
        worker = WorkerProcess(name or f"worker-{len(self.workers) + 1}")
        self.workers[worker.name] = worker
        if self._metrics_port is not None:
            worker.metrics_port = self._metrics_port + len(self.workers) if self._metrics_port else 0
        return worker

    async def _start_others(self, first: WorkerProcess, others: Sequence[WorkerProcess]) -> None:
        """Start the other workers when the first runs the tasks or has ended, or after ``FIRST_WORKER_TIMEOUT_S``."""
        names = ", ".join(worker.name for worker in others)
        if names:
            logger.info(
                "%s starts first, %s when it runs the tasks: there are fewer processors than workers", first.name, names
            )
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + FIRST_WORKER_TIMEOUT_S
        while first.alive and loop.time() < give_up_at and not self._closing:
            if has_started_all(await self.describe()):
                break
            await asyncio.sleep(0.25)
        for worker in others:
            if worker.wanted and not self._closing:
                await self._start_again(worker, at_once=True)

    def _note_pid(self, worker: WorkerProcess) -> None:
        """Write the process id of a worker to a file, for who wants to signal it."""
        if worker.process is not None:
            with contextlib.suppress(OSError):
                self._pid_file(worker).write_text(f"{worker.process.pid}\n")

    def _forget_pid(self, worker: WorkerProcess, pid: int) -> None:
        """Remove the file of a process that has ended, unless it is of the next one already."""
        with contextlib.suppress(OSError):
            if self._pid_file(worker).read_text() == f"{pid}\n":
                self._pid_file(worker).unlink()

    def _pid_file(self, worker: WorkerProcess) -> Path:
        return self._scratch.with_name(f"{worker.name}.pid")

    async def _start(self, worker: WorkerProcess) -> None:
        await self._spawn(worker)
        self._note_pid(worker)
        assert worker.process is not None
        worker.watch = asyncio.create_task(self._watch(worker, worker.process), name=f"watch {worker.name}")

    async def _spawn(self, worker: WorkerProcess, *options: str) -> None:
        worker.on_restart = partial(self._begin_replacement, worker)
        worker.on_spark, worker.wants_spark = partial(self._give_spark, worker), False
        worker.ready.clear()
        worker.released.clear()
        worker.started_s, worker.reported_s, worker.left = asyncio.get_running_loop().time(), None, False
        worker.process_id = new_process_id()
        worker.process = await asyncio.create_subprocess_exec(
            sys.executable,
            # -P: modules of the current directory must not shadow those of the standard library or of plug-ins.
            *("-P", "-m", "connectgroup", "worker", "--supervised"),
            *("--coordinator", self.server.address, "--group", self.group, "--name", worker.name),
            *("--scratch", str(self._scratch)),
            *access_options(self.server.config, self.server.credentials),
            *self._options,
            *options,
            *([] if worker.metrics_port is None else ["--metrics-port", str(worker.metrics_port)]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                **self.environment,
                **({SHARED: "true"} if self._spark else {}),
                PROCESS_ID_VARIABLE: str(worker.process_id),
            },
            # A separate process group: Ctrl-C in a terminal signals only the supervisor, which then stops the workers.
            start_new_session=True,
        )
        self._processes_started = [each for each in self._processes_started if each.returncode is None]
        self._processes_started.append(worker.process)
        if self.killed:
            kill_family(worker.process.pid)
        assert worker.process.stdout is not None
        assert worker.process.stderr is not None
        worker.lines = [
            asyncio.create_task(worker.read_reports(worker.process.stdout)),
            asyncio.create_task(worker.read_log(worker.process.stderr, self._worker_log)),
        ]

    def _give_spark(self, worker: WorkerProcess, why: str) -> None:
        """A worker wants a gateway to Spark's Java, ``again`` if it gives one back."""
        if self._spark is not None and not self.killed:
            self._spark.begin()
            self._beside(self._offer_spark(worker, again=why == "again"))

    def _spark_has_changed(self) -> None:
        """Spark's Java has started, has ended or cannot be started."""
        for worker in self._processes():
            self._beside(self._offer_spark(worker))

    async def _offer_spark(self, worker: WorkerProcess, *, again: bool = False) -> None:
        """Tell a worker its gateway, that Java has ended, or why it does not start."""
        spark, process = self._spark, worker.process
        if spark is None or process is None or not worker.alive:
            return
        if again:
            await spark.release(process.pid)
        if not spark.is_ready:
            worker.say(f"{SPARK} {json.dumps({'failed': spark.failure})}")
        elif worker.wants_spark:
            worker.wants_spark = False
            try:
                worker.say(f"{SPARK} {await spark.open(process.pid)}")
            except Exception as error:
                worker.wants_spark = True  # until Java has started again
                logger.debug("%s has no gateway to Spark: %s", worker.name, error)
                return
            if not worker.alive:
                await spark.release(process.pid)

    def _processes(self) -> list[WorkerProcess]:
        """The workers, and those that are about to replace one."""
        return [*self.workers.values(), *(each.replacement for each in self.workers.values() if each.replacement)]

    def _beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return task

    def _begin_replacement(self, worker: WorkerProcess) -> None:
        """A worker asks to be restarted."""
        if worker.replacing is None or worker.replacing.done():
            worker.replacing = asyncio.create_task(self._replace(worker), name=f"replace {worker.name}")
            self._replacements.add(worker.replacing)
            worker.replacing.add_done_callback(self._replacements.discard)

    async def _replace(self, worker: WorkerProcess) -> None:
        """Warm up a second process, have the first one leave, and let the second join under its name."""
        async with self._replacing:
            if not worker.alive or not worker.wanted or self._closing or self.workers[worker.name] is not worker:
                return
            logger.info("%s restarts: its replacement warms up", worker.name)
            worker.replacement = new = WorkerProcess(worker.name, metrics_port=worker.metrics_port)
            try:
                failure = await self._warm_up(new)
                if failure:
                    await _end(new)
                    await self._keep(worker, failure)
                    return
                if worker.alive:
                    worker.say(RESTART)
                    await self._until_released(worker)
                if not worker.wanted or self._closing:
                    return
                new.rows_before, new.started_s = worker.rows_before + worker.rows, asyncio.get_running_loop().time()
                self.workers[worker.name] = new
                self._note_pid(new)
                assert new.process is not None
                new.watch = asyncio.create_task(self._watch(new, new.process), name=f"watch {new.name}")
                new.say(JOIN)
                logger.info("%s: its replacement joins", worker.name)
            finally:
                # What is not a worker of this supervisor any more, or not yet.
                left = worker if self.workers[worker.name] is new else new
                await _end(left)
                if left is worker and worker.watch is not None:
                    await asyncio.wait({worker.watch})

    async def _warm_up(self, new: WorkerProcess) -> str:
        """Start a replacement and wait until it has warmed up.

        Returns:
            Why it has not; empty if it has.
        """
        try:
            await self._spawn(new, "--replacement")
        except OSError as error:
            return f"its replacement cannot be started: {error}"
        assert new.process is not None
        waits = {asyncio.create_task(new.ready.wait()), asyncio.create_task(new.process.wait())}
        try:
            await asyncio.wait(waits, timeout=REPLACEMENT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        if new.process.returncode is not None:
            await asyncio.wait(new.lines, timeout=LINES_TIMEOUT_S)
            why = f": {new.last_error}" if new.last_error else ""
            return f"its replacement {ending(new.process.returncode)} before it had warmed up{why}"
        return "" if new.ready.is_set() else f"its replacement has not warmed up within {REPLACEMENT_TIMEOUT_S:g} s"

    async def _keep(self, worker: WorkerProcess, failure: str) -> None:
        """The replacement failed: the first process goes on; if it has ended meanwhile, it is started again."""
        worker.replacement = None
        if worker.alive:
            logger.error("%s is not restarted, its process goes on: %s", worker.name, failure)
            worker.replacing = None  # from here on the worker may ask again
            worker.say(f"{KEEP} {failure}")
            return
        logger.error("%s: %s", worker.name, failure)
        if worker.watch is not None:
            await asyncio.wait({worker.watch})
        if worker.wanted and self._restart and not self._closing:
            await self._start_again(worker, at_once=False)

    async def _until_released(self, worker: WorkerProcess) -> None:
        """Wait until a worker has left the group for its replacement; kill it if it does not."""
        assert worker.process is not None
        assert worker.watch is not None
        released = asyncio.create_task(worker.released.wait())
        done, _ = await asyncio.wait(
            {released, worker.watch}, timeout=STOP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        released.cancel()
        if not done:
            logger.error("%s did not leave within %g s and is killed", worker.name, STOP_TIMEOUT_S)
            with contextlib.suppress(ProcessLookupError):
                worker.process.kill()
            await asyncio.wait({worker.watch})

    async def _watch(self, worker: WorkerProcess, process: asyncio.subprocess.Process) -> None:
        """Wait until a process ends, send a leave for its member, and start it again if the worker should run."""
        code = await process.wait()
        end_group(process.pid)
        self._forget_pid(worker, process.pid)
        released = self._beside(self._spark.release(process.pid)) if self._spark is not None else None
        if worker.replacement is not None:
            # ``_replace`` lets the next process join. If this one has died, the group must know before.
            if not worker.released.is_set():
                await self._leave_for_dead_worker(worker, code)
            await self._read_to_end(worker)
            if code == 0 or worker.left:
                self._stays_away(worker)
                if worker.replacing is not None:
                    worker.replacing.cancel()
            return
        restarts = code == RESTART_EXIT_CODE and worker.wanted and not self._closing
        if not restarts:
            # A restarting worker has already left the group; a second leave would end the delay of its units.
            await self._leave_for_dead_worker(worker, code)
        await self._read_to_end(worker)
        worker.rows_before, worker.rows, worker.units = worker.rows_before + worker.rows, 0, 0
        worker.rows_per_s = {}
        if restarts:
            logger.info("%s restarts", worker.name)
        elif worker.wanted and not self._closing:
            if code == REJECTED_EXIT_CODE:
                worker.rejected = True
                logger.error("%s %s, a configuration error: it is not started again", worker.name, ending(code))
                return
            if code == 0 or worker.left:
                self._stays_away(worker)
                return
            logger.error("%s %s", worker.name, ending(code))
        if self._restart or restarts:
            if released is not None:
                # The next process deletes the files of this one, which Spark would write again for its queries.
                await asyncio.wait({released})
            await self._start_again(worker, at_once=restarts)

    def _stays_away(self, worker: WorkerProcess) -> None:
        """A worker was stopped by a signal or drained, also while its replacement warms up."""
        logger.info("%s was stopped or drained: it is not started again", worker.name)
        worker.wanted = False

    async def _read_to_end(self, worker: WorkerProcess) -> None:
        """Read the last lines of a worker that has ended."""
        _, open_pipes = await asyncio.wait(worker.lines, timeout=LINES_TIMEOUT_S)
        for reader in open_pipes:
            # A process that it started has its standard output or error, and outlives it.
            reader.cancel()

    async def _watch_for_silence(self) -> None:
        """Kill workers that do not respond, once the group has removed them: their units run elsewhere by then."""
        session_s = self.server.config.session_timeout_ms / 1000
        before: set[str] = set()

        def limit_s(worker: WorkerProcess) -> float:
            # A worker that has left reports no more: it stops Spark and deletes its files.
            return max(session_s, STOP_TIMEOUT_S) if worker.left else session_s

        while True:
            await asyncio.sleep(SILENCE_CHECK_S)
            now_s = asyncio.get_running_loop().time()
            silent = {
                name
                for name, worker in self.workers.items()
                if worker.alive and worker.reported_s is not None and worker.reported_s < now_s - limit_s(worker)
            }
            # Twice in a row: after a pause of this process, reports that have arrived are read before the second check.
            suspects, before = silent & before, silent
            if not suspects:
                continue
            members = {member.member_id for member in (await self.describe()).members}
            for worker in (self.workers[name] for name in suspects - members):
                if worker.process is not None:
                    how = "left" if worker.left else "was removed"
                    logger.error(
                        "%s has not responded for %g s and %s: it is killed", worker.name, limit_s(worker), how
                    )
                    with contextlib.suppress(ProcessLookupError):
                        worker.process.kill()

    async def _start_again(self, worker: WorkerProcess, *, at_once: bool) -> None:
        """Restart immediately if requested; otherwise after a back-off that doubles with each death after a short life.

        A life is short up to ``LONG_LIFE_S``.
        """
        lived_s = asyncio.get_running_loop().time() - worker.started_s
        worker.deaths = 0 if at_once else 1 if lived_s > LONG_LIFE_S else worker.deaths + 1
        while worker.wanted and not self._closing:
            if worker.deaths:
                await asyncio.sleep(min(RESTART_WAIT_S * 2 ** (worker.deaths - 1), MAX_RESTART_WAIT_S))
            if not worker.wanted or self._closing:
                return
            try:
                await self._start(worker)
                return
            except OSError as error:
                worker.deaths += 1
                logger.error("%s cannot be started: %s", worker.name, error)

    async def _leave_for_dead_worker(self, worker: WorkerProcess, code: int) -> None:
        """Send a leave on behalf of the dead process, so that the next one may join under the same name at once.

        If it has already left, the error UNKNOWN_MEMBER_ID is ignored.
        """
        request = HeartbeatRequest(
            group_id=self.group,
            member_id=worker.name,
            member_epoch=LEAVE_EPOCH,
            cause=ending(code),
            process_id=worker.process_id,
        )

        # After the session timeout the coordinator removes the member without this request.
        attempts = Attempts(BackOff(0.1, 0.2), for_s=self.server.config.session_timeout_ms / 1000)
        while True:
            # The dead process had connected as a user; this process has no connection.
            response = await self.server.coordinator.handle(request, client_host=HERE, principal=None)
            assert isinstance(response, HeartbeatResponse)
            if not (from_code(response.error_code, None).retriable and await attempts.pause()):
                return


def _needs_spark(connector: DescribedConnector) -> bool:
    """Whether the workers start Spark for a connector as soon as they run."""
    return config_of(connector.config).get("connector.class") == "pipeline"


async def _end(worker: WorkerProcess) -> None:
    """End a process that is no worker of its supervisor; a worker that has left ends by itself."""
    process = worker.process
    if process is None:
        return
    if process.returncode is None and process.stdin is not None:
        process.stdin.close()  # it stops
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    end_group(process.pid)
    for reader in worker.lines:
        reader.cancel()


def summary(group: DescribedGroup, *, state: str = "") -> str:
    """Format a group as one line: state, epoch, members, assigned and total units.

    Args:
        state: instead of the group's state, or of what the start of a task waits for.
    """
    held = sum(len(list(each_unit(member.assigned))) for member in group.members)
    units = [unit for connector in group.connectors for unit in connector.units if unit.should_run]
    failed = sum(unit.has_failed for unit in units)
    workers, all_units = counted(len(group.members), "worker"), counted(len(units), "unit")
    starting = [unit for unit in units if unit.state == "STARTING"]
    waiting = next((unit.message for unit in starting if unit.message), "")
    if starting and not waiting and group.state == "Stable":
        waiting = f"starting {counted(len(starting), 'unit')}"  # assigned, but no rows flow yet
    text = f"{state or waiting or group.state} | epoch {group.group_epoch} | {workers} | {held}/{all_units}"
    return text + (f" | {failed} FAILED" if failed else "")

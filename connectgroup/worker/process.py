"""A worker process: two connections, the installed plug-ins, signal handlers, and status reports to a supervisor.

SIGTERM, SIGINT and SIGHUP stop the tasks, leave the group and end the process; a second SIGTERM or SIGINT ends the
process immediately.
SIGUSR1 drains the worker: the group moves its units to other members first, then the process ends (a worker alone in
its group continues). SIGUSR2 restarts the worker, as ``connectgroup workers restart`` does: the worker stops its tasks,
leaves the group announcing a rejoin (``returns``), and is started again under the same name (``restart``). Under a
supervisor, the new process warms up before the old one stops anything: the supervisor starts it as a replacement
(``--replacement``), and says when to leave and when to join. A supervised worker also ends when its supervisor does
(its standard input closes), so that no worker is orphaned.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from operator import itemgetter

from ..assign.placement import placement_of
from ..config.secrets import Secrets
from ..config.worker import WorkerConfig
from ..connector import Connector
from ..errors import ConfigError, ConnectGroupError, PluginError, TransportError
from ..gc_tuning import collect_all_again, short_collections
from ..loggers import set_by_operator
from ..os_process import this_process
from ..plugins import load_assignor, load_connector_class, load_listener
from ..protocol.messages.common import config_of
from ..protocol.messages.describe import DescribeRequest, DescribeResponse
from ..protocol.units import Unit
from ..spark.archive import archive_classes
from ..spark.remote import remote_address
from ..spark.session import JAVA, SHARED, runs_here, session_is_alive
from ..threads import off_loop
from ..transport.following import FollowingClient
from .heartbeat import ProcessReport
from .loop import Worker
from .runner import TaskRunner
from .scratch import Scratch
from .serving import handle_signals
from .settings import PROCESS_ID_VARIABLE, Connections, RunnerSettings, WorkerSettings
from .supervised import (
    JOIN,
    KEEP,
    LEFT,
    READY,
    RELEASED,
    RESTART,
    RESTART_EXIT_CODE,
    SPARK,
    WANTS_RESTART,
    WANTS_SPARK,
)

logger = logging.getLogger(__name__)

REPORT_EVERY_S = 0.5
WARM_UP_END_S = 10.0
"""How long a worker that is stopped while it warms up waits for the warm-up to end; it cannot be interrupted."""
JOIN_CHECK_S = 0.25
"""How often a worker that warms up looks whether the Java of its supervisor is still being started."""
MAX_RATES = 100
"""Connectors in one report: the supervisor reads lines of at most 64 KiB."""

COLLECT_ALL_EVERY_S = 60.0
FEW_UNITS = 1_000
"""Up to this many units, a full collection of all objects of a worker is short enough."""


async def run_worker(
    config: WorkerConfig,
    *,
    supervised: bool = False,
    replacement: bool = False,
    on_join: Callable[[], None] = lambda: None,
) -> bool:
    """Run one worker until it is stopped.

    Args:
        replacement: warm up, report that, and join when the supervisor says so.
        on_join: called just before the worker joins.
        supervised: write one JSON line to standard output twice a second, and end when standard input closes:
            ``{"rows": .., "units": .., "epoch": .., "rows_per_s": {connector: ..}}``.

    Returns:
        Whether the worker is to be started again under the same name; SIGUSR2 is blocked then.

    Raises:
        ConnectGroupError: the worker could not start, or the coordinator rejected it; a one-line message.
    """
    assignors = [load_assignor(name) for name in config.assignors]
    access = config.access()
    heartbeats, control = (FollowingClient(config.addresses, config.name, access=access) for _ in range(2))
    worker = Worker(
        config.member_settings(),
        Connections(heartbeats=heartbeats, control=control),
        assignors=assignors,
        listeners=[load_listener(name) for name in config.listeners],
        # A supervisor reports the death of its workers itself: their tasks move without a delay then.
        times=WorkerSettings(process_id=_process_id(), os_process=this_process(supervised=True))
        if supervised
        else None,
    )
    scratch = Scratch(config.scratch, config.name)
    runner = TaskRunner(
        config.name,
        RunnerSettings(
            scratch=scratch.path,
            refresh_s=config.refresh_s,
            group_id=config.group,
            secrets=Secrets(env=config.secret_env, paths=config.secret_paths),
            allowed_paths=config.allowed_paths,
        ),
        load_class=load_connector_class,
        publish=worker.publish_tasks,
        report=worker.report,
    )
    worker.set_runner(runner)
    worker.set_logger_levels_by(set_by_operator)
    process_report = ProcessReport(config.allowed_paths)
    worker.set_process_report(process_report)
    logging.getLogger(__package__.partition(".")[0]).addHandler(process_report)

    def give_up(unit: Unit) -> None:
        if not worker.member.draining:
            logger.error("%s cannot be started again here: this worker drains and starts again", unit)
            worker.drain(then_restart=True)

    runner.give_up = give_up
    supervision = _Supervision(worker) if supervised else None
    restart = worker.restart
    if supervision is not None:
        restart = supervision.ask_for_replacement
        worker.prepare_restart_by(restart)
        if os.environ.get(SHARED):
            JAVA.use(supervision.ask_for_spark)
        supervision.start()
    beside = [asyncio.create_task(_collect_garbage(worker)), asyncio.create_task(_stop_waiting_for_spark(worker))]
    if not JAVA.is_used and runs_here() and not remote_address():
        beside.append(asyncio.create_task(_archive_classes()))
    if supervised:
        beside.append(asyncio.create_task(_report_to_supervisor(worker, runner)))
    try:
        signals = handle_signals(worker.stop, worker.drain, restart)
        with scratch.for_temporary_files(), signals, short_collections():
            starting: list[asyncio.Task[None]] = []
            warming_up = asyncio.create_task(_warm_up(config, control, None if replacement else starting))
            if await _unless_stopped(worker, warming_up):
                if supervision is not None and replacement:
                    with contextlib.suppress(BrokenPipeError, ValueError):
                        _write_report({READY: True})
                    await _unless_stopped(worker, asyncio.create_task(supervision.may_join()))
                logger.info("joining group %s at %s", config.group, config.coordinator)
                on_join()
                await worker.run()
                if supervised:
                    with contextlib.suppress(BrokenPipeError, ValueError):
                        _write_report(_report(worker, runner))
                        _write_report({RELEASED if worker.restarts else LEFT: True})
            else:
                starting.append(warming_up)
            if any(not each.done() for each in starting):
                kill_java()  # what still starts is not needed any more, and ends sooner without it
            if not all([await _ended_within(each, WARM_UP_END_S) for each in starting]):
                # What it started still needs its directory: Spark's Java would hang without it, and end with this
                # process otherwise. The next worker of this name removes the directory.
                if not JAVA.is_used:
                    scratch.leave()
                kill_java()
                if supervised or not worker.restarts:  # otherwise the process executes itself again
                    exit_without_finalizing(RESTART_EXIT_CODE if worker.restarts else 0)
            if worker.restarts:
                # If unhandled, a second SIGUSR2 would end the process before the new process has its handler.
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
            return worker.restarts
    finally:
        for task in beside:
            task.cancel()
        await heartbeats.close()
        await control.close()
        if spark := sys.modules.get("connectgroup.spark.session"):
            spark.end_starts()  # that of a task, too: Java that starts needs the directory
        scratch.remove()


def _process_id() -> int | None:
    """The process id that the supervisor has set; its child processes do not inherit it."""
    text = os.environ.pop(PROCESS_ID_VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() else None


async def _unless_stopped(worker: Worker, task: asyncio.Task[None]) -> bool:
    """Wait for the task; return false if the worker is stopped first. The task then runs on."""
    stopping = asyncio.create_task(worker.wait_stopping())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        return False
    task.result()
    return True


async def _ended_within(task: asyncio.Task[None], timeout_s: float) -> bool:
    """Wait until the task ends, whatever its result; if it takes longer, cancel it. Its threads are then abandoned."""
    await asyncio.wait({task}, timeout=timeout_s)
    if not task.done():
        task.cancel()
        return False
    task.cancelled() or task.exception()  # read, so that asyncio does not report it: the worker is stopped
    return True


async def _warm_up(config: WorkerConfig, control: FollowingClient, beside: list[asyncio.Task[None]] | None) -> None:
    """Run slow initialization before joining, so that assigned tasks start immediately.

    Args:
        beside: receives the initialization of classes whose tasks start without it (``Connector.starts_cold``), which
            goes on while the worker joins; ``None``: a replacement, which joins when all is done.

    Raises:
        ConfigError: this worker lacks what a connector of the group needs, such as Spark. As a member it would be
            assigned tasks that it cannot run, although other workers may be able to.
    """
    try:
        described = await control.call(DescribeRequest(group_ids=(config.group,)), timeout_s=10)
    except TransportError as error:
        logger.warning("cannot ask which connectors there are, so nothing is warmed up: %s", error)
        return
    assert isinstance(described, DescribeResponse)
    connectors = [
        (connector.connector, settings)
        for group in described.groups
        for connector in group.connectors
        # A connector with labels that this worker does not have is for other workers (``assignment.labels``).
        if set(placement_of(settings := config_of(connector.config)).labels) <= set(config.traits().labels)
    ]
    for name in sorted({settings.get("connector.class", "") for _, settings in connectors}):
        cls: type[Connector] | None = None
        connector_name = ""
        try:
            cls = load_connector_class(name)
            starts_cold = beside is not None
            for connector_name, settings in connectors:
                if settings.get("connector.class", "") == name and starts_cold:
                    starts_cold = await off_loop(f"look at {connector_name}", cls.starts_cold, settings)
            has_warm_up = cls.warm_up.__func__ is not Connector.warm_up.__func__  # type: ignore[attr-defined]
            if has_warm_up:
                logger.info("warming up %s %s ...", name, "beside its first tasks" if starts_cold else "before joining")
            warming = asyncio.create_task(off_loop(f"warm up {name}", cls.warm_up))
            while not warming.done() and not starts_cold:
                await asyncio.wait({warming}, timeout=JOIN_CHECK_S)
                # No other worker has Spark either: the tasks show that they wait for it.
                starts_cold = beside is not None and JAVA.is_used and JAVA.gateway is None
            if warming.done():
                warming.result()
            elif beside is not None:
                beside.append(asyncio.create_task(_logging_failure(name, warming)))
        except ConfigError as error:
            if cls is None:
                logger.error("connector.class %s cannot be warmed up: %s", name, error)
                continue
            where = f"connector {connector_name} of group {config.group}: {error.field}"
            raise ConfigError(where, error.value, error.allowed) from error
        except Exception as error:
            _log_failure(name, error)


async def _logging_failure(name: str, warming: Awaitable[None]) -> None:
    try:
        await warming
    except Exception as error:
        _log_failure(name, error)


def _log_failure(name: str, error: Exception) -> None:
    """Log why a class is not warmed up. Not fatal: its tasks will report the error; other tasks run."""
    if JAVA.is_closed:
        return  # it was not: the worker stops
    kind = "" if isinstance(error, ConnectGroupError) else f"{type(error).__name__}: "
    text = error.with_location() if isinstance(error, PluginError) else f"{kind}{error}"
    logger.error("connector.class %s cannot be warmed up: %s", name, text)


class _Supervision:
    """What a supervisor says to this worker, on standard input, and what the worker asks of it.

    The worker stops when its supervisor ends: standard input closes.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker, self._loop = worker, asyncio.get_running_loop()
        self._joins = asyncio.Event()
        self._asked = False

    def start(self) -> None:
        """Listen, in a thread."""
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()

    async def may_join(self) -> None:
        """Wait until the supervisor says that this replacement may join."""
        await self._joins.wait()

    def ask_for_replacement(self) -> None:
        """Ask for a process that warms up; this worker runs until the restart."""
        if self._worker.member.draining:
            self._worker.restart()  # it says why it does not
        elif not self._asked:
            self._asked = True
            logger.info("a restart was requested: this process goes on until its replacement has warmed up")
            with contextlib.suppress(BrokenPipeError, ValueError):
                _write_report({WANTS_RESTART: True})

    def ask_for_spark(self, why: str) -> None:
        """Ask for a gateway to the supervisor's Java, from any thread: to ``start``, or ``again`` for another one."""
        self._call(self._report_spark, why)

    def _report_spark(self, why: str) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):
            _write_report({WANTS_SPARK: why})

    def _listen(self) -> None:
        rest = b""
        # Not sys.stdin: this thread would hold its lock for ever, and the interpreter waits for that lock at exit.
        with contextlib.suppress(OSError):
            while read := os.read(0, 4096):
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    self._call(self._hear, line.decode(errors="replace"))
        self._call(self._worker.stop)

    def _call(self, function: Callable[..., None], *arguments: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: the worker has ended already
            self._loop.call_soon_threadsafe(function, *arguments)

    def _hear(self, line: str) -> None:
        word, _, reason = line.partition(" ")
        if word == JOIN:
            self._joins.set()
        elif word == RESTART:
            self._worker.restart()
        elif word == SPARK:
            JAVA.receive(reason)
        elif word == KEEP:
            self._asked = False
            self._worker.refuse_restart(reason)


async def _stop_waiting_for_spark(worker: Worker) -> None:
    """When the worker stops, end the starts of tasks that wait for Spark: the stop would wait for them."""
    await worker.wait_stopping()
    JAVA.close()


async def _collect_garbage(worker: Worker) -> None:
    while True:
        await asyncio.sleep(COLLECT_ALL_EVERY_S)
        if len(worker.member.owned) <= FEW_UNITS:
            collect_all_again()


async def _archive_classes() -> None:
    """As a supervisor does for the Java that its workers share."""
    while True:
        if await off_loop("look for Spark", session_is_alive):
            await archive_classes()
            return
        await asyncio.sleep(COLLECT_ALL_EVERY_S)


async def _report_to_supervisor(worker: Worker, runner: TaskRunner) -> None:
    with contextlib.suppress(BrokenPipeError, ValueError):
        while True:
            _write_report(_report(worker, runner))
            await asyncio.sleep(REPORT_EVERY_S)


def _report(worker: Worker, runner: TaskRunner) -> dict[str, object]:
    fastest = sorted(runner.metrics.rows_per_second().items(), key=itemgetter(1), reverse=True)
    return {
        "rows": runner.rows,
        "units": len(runner.running),
        "epoch": worker.member.epoch,
        "rows_per_s": dict(fastest[:MAX_RATES]),
    }


def _write_report(report: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


# --------------------------------------------------------------------------------------------------
# The end of the process. A supervisor starts a restarted worker again; without one, the process executes itself again:
# the new one runs the same command line in the same environment under the same process id, so systemd, a container and
# a shell keep track of it.


class ReplaceAtExit:
    """Executes this command line again once the interpreter has shut down, if ``wanted``.

    ``os.execve`` alone would skip the exit handlers of libraries. They run in reverse order of registration, so this
    object is created before the libraries with such handlers are loaded.
    """

    def __init__(self) -> None:
        # A copy of the current environment: Spark and Java change it.
        self._environment: Mapping[str, str] = dict(os.environ)
        self._command: list[str] = []
        atexit.register(self._replace)

    def wanted(self, *options: str) -> None:
        """Request that the command line is executed again at exit, with these options appended."""
        self._command = [sys.executable, *sys.orig_argv[1:], *options]

    def _replace(self) -> None:
        if not self._command:
            return
        _stop_java()
        # Ignored until the new process has its handler: a restart is already under way.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        try:
            os.execve(sys.executable, self._command, self._environment)
        except OSError as error:
            logger.error("the worker cannot be started again: %s: %s", sys.executable, error.strerror)
            os._exit(1)


def kill_java() -> None:
    """Kill the Java process, if there is one; for a process that ends while a thread still uses it."""
    spark = sys.modules.get("connectgroup.spark.session")
    if spark is not None:
        spark.kill_session(ends=True)


def exit_without_finalizing(code: int) -> None:
    """Have this process exit with this code as soon as the interpreter begins to exit.

    A thread that still runs the code of an extension, such as Arrow's, would crash the interpreter's finalization.
    """

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)

    atexit.register(end)


def _stop_java() -> None:
    """End and reap the Java process, if there is one: the new process would not know this child process."""
    spark = sys.modules.get("connectgroup.spark.session")
    if spark is not None:
        try:
            spark.stop_session()
        except Exception as error:
            logger.warning("the Java process may still be ending: %s", error)

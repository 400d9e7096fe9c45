"""Starts and stops the connectors and tasks assigned to this worker, each independently and off the event loop.

Each grant gets one supervising coroutine. It creates the connector and starts the task, waits until the task fails or
must stop, and stops it. For the connector itself, it polls the task configurations and sends changes to the group.
When a task fails, the runner logs one line and restarts the task under the same grant after an increasing back-off:
a missing source, or a full or locked sink, may recover without intervention. A fenced task is not restarted: a newer
owner runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from ..assign.placement import RETRY_TIMEOUT, max_tasks, own_settings, progress_timeout_s, retries_of
from ..assign.sandbox import describe, location_of
from ..backoff import BackOff
from ..config.coordinator import CoordinatorConfig
from ..config.paths import check_paths
from ..config.secrets import restored
from ..connector import Config, Connector, Task
from ..errors import ConfigError, ConnectGroupError, Fenced, PluginError, StaleMemberEpoch
from ..fault_points import fault_point
from ..member.actions import Grant
from ..protocol.messages.describe import LAST_ERROR, RETRYING
from ..protocol.messages.heartbeat import TaskStatus
from ..protocol.messages.progress import TaskProgress
from ..protocol.records.connect import UnitState
from ..protocol.units import Unit, Units, show
from ..threads import clock_of, deliver, off_loop
from .call_pool import SLICE, Call, CallPool, Inbox, Withdrawn, slices
from .compute import check_task_configs
from .hanging import named, place_of_thread
from .run import BatchSpans, TaskEvents, TaskStalled, UnitRun, stalls_again, stalls_at_s, stop_stalled
from .scratch import new_directory, remove_directory
from .settings import RunnerSettings
from .unit_metrics import RunnerMetrics, UnitMetrics

logger = logging.getLogger(__name__)


Publish = Callable[..., Awaitable[None]]
"""Send a connector's task list to the group: name, owner epoch, configurations (``None``: unchanged), and for a
connector with ``credential_names`` these. Raises ``StaleMemberEpoch`` if the connector now has another owner."""


class Runner(Protocol):
    """Runs the units of a worker; called by the worker loop.

    Both methods run on the event loop and must not block it. The worker calls ``start`` and ``stop`` in the order of
    the group's decisions, with one exception: when the worker loses its units or ends, it calls ``stop`` immediately,
    also while a ``start`` or another ``stop`` is under way, and possibly twice for the same units. A method that does
    not return in time is cancelled and abandoned; a method that is cancelled for another reason, or raises
    ``SystemExit``, counts as failed.
    """

    async def start(self, grants: Sequence[Grant]) -> None:
        """Start these units. Returns when the runner has accepted them, not when they run.

        Until this returns, the worker neither starts nor revokes other units.

        Raises:
            Exception: the worker reports every unit of ``grants`` as FAILED with this error and does not restart
                them; it still owns them, and calls ``stop`` for them later. Units of other calls are not affected. A
                runner that can start some of ``grants`` reports the others itself (``Worker.report``).
        """

    async def stop(self, units: Units) -> None:
        """Stop these units; after it returns, none of them writes any more. Unknown units are ignored.

        A revocation must complete within the rebalance timeout; otherwise the coordinator removes the worker from the
        group.

        Raises:
            UnitsNotStopped: these units failed to stop, and may still be writing; the others have stopped.
            Exception: the same of all units of the call. Unless those that failed have been reported as fenced
                (``TaskStatus.fenced``), the worker does not acknowledge the revocation, so that the group assigns the
                units to another member only after the rebalance timeout. A worker that ends leaves the group
                nevertheless: other members are then assigned its units at once.
        """


class UnitsNotStopped(ConnectGroupError):
    """Some units have failed to stop. A runner raises it in ``stop``: the other units of the call have stopped.

    Attributes:
        units: those that may still be writing.
    """

    def __init__(self, units: Units, why: str) -> None:
        super().__init__(f"{show(units)}: {why}")
        self.units = units


@runtime_checkable
class MeasuredRunner(Protocol):
    """A runner that measures its tasks; optional."""

    def take_progress(self, limit: int) -> Sequence[TaskProgress]:
        """Return the numbers of at most ``limit`` tasks: those that have changed since they were last returned.

        Called on the event loop every few seconds; must not block.
        """


MAX_LAST_NUMBERS = 10_000
"""Numbers of stopped tasks that wait for a heartbeat."""

START_REPORT_S = 0.5
"""A unit that has not started after so many seconds is reported as STARTING. Fast starts cost no status."""


class TaskStartLate(ConnectGroupError):
    """The start of a task has not returned in time; its thread goes on."""


class _Failed(Exception):
    """A run ended with an error, stored in ``__cause__``."""


class TaskRunner:
    """Runs the connectors and tasks of installed connector classes.

    Attributes:
        give_up: called with a task that stalls again, or whose stop hangs: another worker should run the tasks of this
            one (``Worker.drain``).
        names_what_hangs: calls that do not return are logged by unit, so the worker does not log ``start`` and
            ``stop`` of this runner as a whole.
    """

    names_what_hangs: ClassVar[bool] = True

    def __init__(
        self,
        member_id: str,
        settings: RunnerSettings,
        *,
        load_class: Callable[[str], type[Connector]] | Mapping[str, type[Connector]],
        publish: Publish,
        report: Callable[[TaskStatus], None],
    ) -> None:
        """Create a runner without units.

        Args:
            member_id: the worker's member id in the group.
            load_class: the connector classes by their names in ``connector.class``, or a function that loads one.
            publish: sends a task list to the group.
            report: receives a unit's status; called on the event loop.
        """
        self._member_id = member_id
        self._settings = settings
        self._load_class = load_class if callable(load_class) else partial(_class_of, load_class)
        self._publish = publish
        self._report = report
        self._runs: dict[Unit, UnitRun] = {}  # ``start`` adds, ``stop`` removes
        self._ending: dict[Unit, list[UnitRun]] = {}  # runs that have been stopped and have not ended
        self._classes: dict[str, type[Connector]] = {}  # by name, once loaded
        # Classes that are being loaded: those that wait for one, and the task that loads it.
        self._loading: dict[str, tuple[deque[asyncio.Future[type[Connector]]], asyncio.Task[None]]] = {}
        self._starts: list[set[Unit]] = []
        """One set per ``start`` under way: the units that have been stopped since it began."""
        self._pool, self._events = CallPool(), Inbox()
        self.give_up: Callable[[Unit], None] = lambda unit: None
        self._measured: dict[Unit, None] = {}  # tasks whose numbers have changed since ``take_progress``, in order
        self._last_numbers: deque[TaskProgress] = deque(maxlen=MAX_LAST_NUMBERS)
        """Of tasks that have stopped since the last ``take_progress``."""
        self.rows = 0  # of all tasks so far; changed with ``_rows_lock``
        self._rows_lock = threading.Lock()
        self.metrics = RunnerMetrics(
            settings.group_id, member_id, lambda: [run.metrics for run in self._runs.copy().values()]
        )

    @property
    def running(self) -> Units:
        """The units that are started or being started."""
        return frozenset(self._runs)

    def take_progress(self, limit: int) -> list[TaskProgress]:
        """Return the numbers of at most ``limit`` tasks: those that have changed since they were last returned.

        The last numbers of a task that has stopped are among them, so that totals across workers miss none.
        """
        taken = [self._last_numbers.popleft() for _ in range(min(limit, len(self._last_numbers)))]
        for unit in list(islice(self._measured.copy(), limit - len(taken))):
            del self._measured[unit]
            if (run := self._runs.get(unit)) is not None:
                taken.append(run.metrics.progress(run.grant.owner_epoch))
        return taken

    async def start(self, grants: Sequence[Grant]) -> None:
        """See ``Runner.start``. Starts in slices: other callbacks of the event loop run in between, also ``stop``."""
        stopped: set[Unit] = set()
        self._starts.append(stopped)
        try:
            for some in slices(grants):
                for grant in some:
                    if grant.unit not in stopped:
                        self._begin(grant)
                if len(grants) > SLICE:
                    await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(START_REPORT_S, self._report_starting, tuple(grants))
        finally:
            self._starts = [other for other in self._starts if other is not stopped]

    def _report_starting(self, grants: Sequence[Grant]) -> None:
        """Report the units whose first start is still under way, so that the group does not move them."""
        for grant in grants:
            run = self._runs.get(grant.unit)
            if run is not None and run.grant is grant and run.metrics.state is None:
                self._tell(run, UnitState.STARTING)

    def _show_wait(self, run: UnitRun, what: str) -> None:
        """Report what the first start of a unit waits for."""
        if run.metrics.state is None and not run.stopping and self._runs.get(run.grant.unit) is run:
            self._tell(run, UnitState.STARTING, what)

    def _begin(self, grant: Grant) -> None:
        cls, starts = grant.connector_config.get("connector.class", ""), self.metrics.starts_of(grant.unit)
        run = UnitRun(grant, UnitMetrics(grant.unit, cls, starts, clock_of(asyncio.get_running_loop())))
        # A hanging stop of an earlier grant is stale; the stop of this grant must not wait for it.
        self._ending.pop(grant.unit, None)
        self._runs[grant.unit] = run
        run.on_wait = partial(self._show_wait, run)
        run.supervisor = asyncio.create_task(self._supervise(run), name=f"run {grant.unit}@{grant.owner_epoch}")

    async def stop(self, units: Units) -> None:
        """See ``Runner.stop``. Stops in slices, like ``start``. From the call on, none of ``units`` starts any more."""
        for stopped in self._starts:
            stopped |= units
        # Sorted, because the iteration order of a set of names differs between processes, and a run should be
        # repeatable. A bulk stop uses the order of the starts instead: a long sort would block the event loop.
        known = sorted(units) if len(units) <= SLICE else [u for u in {**self._runs, **self._ending} if u in units]
        ending: deque[UnitRun] = deque()
        for some in slices(known):
            for unit in some:
                run = self._runs.pop(unit, None)
                if run is not None and run.supervisor is not None:
                    run.stop()
                    if run.start is not None:
                        self._pool.withdraw(run.start)
                    task = run.starting
                    if task is not None and type(task).interrupt_start is not Task.interrupt_start:
                        run.interrupting = asyncio.create_task(self._interrupt_start(unit, task))
                    self._ending.setdefault(unit, []).append(run)
                    run.supervisor.add_done_callback(partial(self._ended, run))
                # Also wait for runs that another call is stopping.
                ending += self._ending.get(unit, ())
            if len(known) > SLICE:
                await asyncio.sleep(0)
        failed: dict[Unit, BaseException] = {}
        while ending:
            runs = [ending.popleft() for _ in range(min(SLICE, len(ending)))]
            # ``wait`` and not ``gather``: the cancellation of a caller must not cancel a stop under way.
            if supervisors := [run.supervisor for run in runs if run.supervisor is not None]:
                await asyncio.wait(supervisors)
            failed.update((run.grant.unit, run.stop_error) for run in runs if run.stop_error is not None)
            if ending:
                await asyncio.sleep(0)
        if failed:
            error = next(iter(failed.values()))
            raise UnitsNotStopped(frozenset(failed), describe(error)) from error

    async def _interrupt_start(self, unit: Unit, task: Task) -> None:
        """Have a task end its start, for which the stop waits."""
        try:
            await off_loop(f"interrupt {unit}", task.interrupt_start)
        except Exception as error:
            logger.error("%s: interrupt_start raised: %s", unit, describe(error))

    def _ended(self, run: UnitRun, supervisor: asyncio.Task[None]) -> None:
        unit = run.grant.unit
        left = [other for other in self._ending.get(unit, ()) if other is not run]
        if left:
            self._ending[unit] = left
        else:
            self._ending.pop(unit, None)
        if unit in self._measured and unit not in self._runs:
            del self._measured[unit]
            self._last_numbers.append(run.metrics.progress(run.grant.owner_epoch))
        if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
            logger.error("%s: its supervisor failed: %s", unit, run.line_of(error), exc_info=error)
            run.stop_error = error

    # ----------------------------------------------------------------------------------------------

    async def _supervise(self, run: UnitRun) -> None:
        """Run one grant until it must stop; retry failures. The back-off grows while the task writes no rows."""
        first_s, failures, now_s = self._settings.retry_initial_s, 0, asyncio.get_running_loop().time
        retries, failing_since_s = retries_of(run.grant.connector_config), 0.0
        max_s = self._settings.retry_max_s if retries.max_delay_s is None else retries.max_delay_s
        while not run.stopping:
            rows_before = run.rows
            try:
                await self._attempt(run)
                return
            except _Failed as failed:
                failures = failures + 1 if run.rows == rows_before else 0
                failing_since_s = failing_since_s if failures > 1 else now_s()
                is_final = retries.timeout_s is not None and now_s() - failing_since_s >= retries.timeout_s
                wait_s = BackOff(first_s, max_s).wait_s(failures) if failures else min(first_s, max_s)
                if not run.stopping:
                    retry = f"{RETRYING}, attempt {max(failures, 1)}, next in {math.ceil(wait_s)} s{LAST_ERROR}"
                    if is_final:
                        retry = f"not retried any more ({RETRY_TIMEOUT}){LAST_ERROR}"
                    state = UnitState.STALLED if isinstance(failed.__cause__, TaskStalled) else UnitState.FAILED
                    self._say(run, state, failed.__cause__, retry)
                if is_final:
                    await run.stopped()
                await run.pause(wait_s)

    async def _attempt(self, run: UnitRun) -> None:
        work = self._run_connector if run.grant.unit.is_connector else self._run_task
        run.metrics.on_attempt()
        try:
            await work(run, await self._class(run.grant.connector_config.get("connector.class", "")))
        except Fenced as error:
            self.metrics.fenced_writes += 1
            # Usual after a change of the connector: the new owner of a slice may claim it before this task is stopped.
            self._say(run, UnitState.FAILED, error, level=logging.WARNING)
            await run.stopped()
        except StaleMemberEpoch as error:
            logger.info("%s: %s", run.grant.unit, error)
            await run.stopped()
        except Exception as error:
            raise _Failed from error

    async def _class(self, name: str) -> type[Connector]:
        """Return the connector class of that name.

        It is looked up once for all tasks: a search of the installed distributions takes milliseconds, and a hundred
        tasks may start together. A failure is not cached: the next call searches again.
        """
        if name in self._classes:
            return self._classes[name]
        found: asyncio.Future[type[Connector]] = asyncio.get_running_loop().create_future()
        if name not in self._loading:
            self._loading[name] = deque(), asyncio.create_task(self._load(name), name=f"load {name}")
        self._loading[name][0].append(found)
        return await found

    async def _load(self, name: str) -> None:
        cls: type[Connector] | None = None
        error: BaseException | None = None
        try:
            cls = self._classes[name] = await off_loop(f"load {name}", self._load_class, name)
        except Exception as raised:
            error = raised
        waiting, _ = self._loading.pop(name)
        while waiting:
            for found in [waiting.popleft() for _ in range(min(SLICE, len(waiting)))]:
                deliver(found, cls, error)
            await asyncio.sleep(0)

    async def _run_connector(self, run: UnitRun, cls: type[Connector]) -> None:
        """Run a connector: publish its task list to the group whenever its task configurations change."""
        grant = run.grant
        with _named(run, "the constructor of its connector", f"make {grant.unit}"):
            connector = await off_loop(f"make {grant.unit}", self._create, run, cls)
        limit = max_tasks(run.grant.connector_config)
        known: list[dict[str, str]] | None = None
        masked: tuple[str, ...] = ()
        try:
            while not run.stopping:
                try:
                    with _named(run, "task_configs", f"tasks of {connector.name}"):
                        wanted = await off_loop(f"tasks of {connector.name}", connector.task_configs, limit)
                except Exception:
                    # Its configuration is shown while it fails, too.
                    with contextlib.suppress(Exception):
                        if secret := tuple(connector.credential_names):
                            await self._publish(connector.name, run.grant.owner_epoch, None, secret)
                    raise
                configs = restored(wanted, grant.connector_config, run.secrets)
                secret = tuple(connector.credential_names)
                if (configs, secret) != (known, masked) or fault_point("a task list is published again"):
                    check_task_configs(connector, configs, limit)
                    await self._publish(connector.name, run.grant.owner_epoch, configs, *([secret] if secret else ()))
                    known, masked = configs, secret
                    self._say(run, UnitState.RUNNING, None)
                await run.pause(self._settings.refresh_s)
        finally:
            if type(connector).stop is not Connector.stop:
                try:
                    with _named(run, "stop of its connector", f"end {grant.unit}"):
                        await off_loop(f"end {grant.unit}", connector.stop)
                except Exception as error:
                    logger.error("%s: stop raised: %s", grant.unit, _with_location(run.line_of(error), error, cls))

    def _create(self, run: UnitRun, cls: type[Connector]) -> Connector:
        """Create the connector with its secrets. Blocks."""
        return cls(run.grant.unit.connector, own_settings(self._usable(run, cls, run.grant.connector_config)))

    def _usable(self, run: UnitRun, cls: type[Connector], config: Config) -> dict[str, str]:
        """Return a configuration with its secrets and, for a task, with real paths. Blocks.

        Raises:
            ConfigError: it refers to a secret, or names a file, that this worker does not allow.
        """
        resolved = self._settings.secrets.resolve(config, run.secrets)
        real = check_paths(cls, resolved, self._settings.allowed_paths)
        # What a connector opens, it opens for its tasks; the configurations that it publishes have the paths as given.
        return resolved if run.grant.unit.is_connector else real

    async def _run_task(self, run: UnitRun, cls: type[Connector]) -> None:
        """Run a task: start it, wait until it fails or must stop, stop it."""
        loop = asyncio.get_running_loop()
        grant, unit, epoch = run.grant, run.grant.unit, run.grant.owner_epoch
        events = TaskEvents(run, self._events, partial(self._on_rows, unit))
        scratch: Path | None = None

        # Each start and each stop is one thread call: a call costs a fraction of a millisecond, and where a hundred
        # tasks move together these calls add up to their downtime.
        def begin() -> Task:
            nonlocal scratch
            connector = self._create(run, cls)
            scratch = new_directory(self._settings.scratch, f"{unit}-{epoch}")
            clock = clock_of(loop)
            on_batch = BatchSpans(run.metrics.on_batch, grant, self._settings.group_id, self._member_id, clock)
            context = events.context(self._member_id, scratch, on_batch)
            task: Task | None = None
            run.fenced = connector.fenced
            try:
                task = run.starting = connector.task(self._usable(run, cls, grant.config), context)
                if run.stopping:  # since before the task was there to be interrupted
                    task.interrupt_start()
                task.start()
            except BaseException:
                # The remains of a start that failed half-way must not continue to write. The error of the start
                # matters more than an error of this stop, and may forbid a retry.
                with contextlib.suppress(Exception):
                    end(task)
                raise
            finally:
                run.starting = None
            return task

        def end(task: Task | None) -> None:
            try:
                if task is not None:
                    task.stop()
            finally:
                if scratch is not None:
                    remove_directory(scratch)

        run.stop_error = None
        if run.stopping:
            return
        run.start = Call(f"start {unit}", begin)
        try:
            with _named(run, "start", run.start.name), self._late_start(run):
                task = await self._pool.run(run.start)
        except Withdrawn:
            return
        events.begin()
        try:
            is_running = False
            timeout_s = progress_timeout_s(grant.connector_config)
            while events.failure is None and not run.stopping:
                if not is_running and (events.is_active or not task.reports_polls):
                    is_running = True
                    self._say(run, UnitState.RUNNING, None)
                at_s = stalls_at_s(events.active_at_s, timeout_s, reports_polls=task.reports_polls)
                if at_s is not None and loop.time() >= at_s:
                    events.keep(self._stalled(run, events.active_at_s, timeout_s))
                else:
                    await run.pause(None if at_s is None else at_s - loop.time())
        finally:
            stop = asyncio.create_task(self._pool.off_loop_with_retry(f"stop {unit}", partial(end, task)))
            try:
                with _named(run, "stop", f"stop {unit}"):
                    if isinstance(events.failure, TaskStalled):
                        await stop_stalled(run, task, stop, self.give_up, fenced=run.fenced)
                    else:
                        await stop
            except Exception as error:
                logger.error("%s: stop raised: %s", unit, _with_location(run.line_of(error), error, cls))
                run.stop_error = error
                events.keep(error)
        if events.failure is not None:
            raise events.failure

    # ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _late_start(self, run: UnitRun) -> Iterator[None]:
        """Report a task as FAILED whose start takes longer than ``start_timeout_s``; it is RUNNING if it returns."""
        limit_s = self._settings.start_timeout_s

        def report() -> None:
            if run.start is not None and (place := place_of_thread(run.start.name)) is not None and not run.stopping:
                self._say(run, UnitState.FAILED, TaskStartLate(f"start has not returned within {limit_s:g} s{place}"))

        timer = asyncio.get_running_loop().call_later(limit_s, report)
        try:
            yield
        finally:
            timer.cancel()

    def _stalled(self, run: UnitRun, active_at_s: float, timeout_s: float) -> TaskStalled:
        """Report a task as STALLED; give up if it has stalled again."""
        now_s, error = asyncio.get_running_loop().time(), TaskStalled(timeout_s)
        self._say(run, UnitState.STALLED, error, idle_s=now_s - active_at_s)
        if stalls_again(run.stalled_at_s, now_s, timeout_s):
            self.give_up(run.grant.unit)
        run.stalled_at_s = now_s
        return error

    def _on_rows(self, unit: Unit, rows: int) -> None:
        """Rows have become durable, or (0) other numbers of a task have changed; called from any thread."""
        with self._rows_lock:
            self.rows += rows
        self._measured[unit] = None

    def _say(
        self,
        run: UnitRun,
        state: UnitState,
        error: BaseException | None,
        retry: str = "",
        level: int = logging.ERROR,
        *,
        idle_s: float = 0.0,
    ) -> None:
        """Report the state of a unit, and log its error as one line. ``idle_s``: see ``TaskStatus.idle_ms``."""
        run.metrics.on_state(state)
        message = run.line_of(error) if error is not None else ""
        if error is not None:
            cls = self._classes.get(run.grant.connector_config.get("connector.class", ""))
            what = "has stalled" if state is UnitState.STALLED else "failed"
            line = _with_location(message, error, cls)
            # The group gets the status itself.
            logger.log(level, "%s %s: %s", run.grant.unit, what, line, extra={"is_status": True})
        self._tell(run, state, retry + message, error, idle_s)

    def _tell(
        self,
        run: UnitRun,
        state: UnitState,
        message: str = "",
        error: BaseException | None = None,
        idle_s: float = 0.0,
    ) -> None:
        """Send the status of a unit to the group."""
        self._report(
            TaskStatus(
                connector=run.grant.unit.connector,
                task=run.grant.unit.task,
                owner_epoch=run.grant.owner_epoch,
                state=state,
                message=message,
                # A connector writes task lists only, and the coordinator rejects those of a former owner.
                fenced=run.fenced or run.grant.unit.is_connector,
                fenced_by=error.token if isinstance(error, Fenced) else -1,
                idle_ms=min(round(1_000 * idle_s), 2**31 - 1),
            )
        )


def _named(run: UnitRun, phase: str, thread: str) -> AbstractContextManager[None]:
    return named(lambda: f"{run.grant.unit}: {phase}", partial(place_of_thread, thread))


def _with_location(message: str, error: BaseException, cls: type[Connector] | None) -> str:
    """The message of an error, followed by file and line of the connector class's package, if it is from there."""
    location = error.location if isinstance(error, PluginError) else ""
    return PluginError(message, location=location or (location_of(error, cls) if cls else "")).with_location()


def _class_of(classes: Mapping[str, type[Connector]], name: str) -> type[Connector]:
    if name not in classes:
        raise ConfigError("connector.class", name, ", ".join(sorted(classes)))
    return classes[name]


# --------------------------------------------------------------------------------------------------
# The options of ``connectgroup worker`` for a worker that a supervisor starts.


def worker_options(
    assignors: Sequence[str], server_assignor: str | None, rebalance_timeout_ms: int | None
) -> list[str]:
    """Options that all workers of a supervisor share."""
    options = [word for name in assignors for word in ("--assignor", name)]
    if not assignors:
        options += ["--server-assignor", server_assignor] if server_assignor is not None else ["--no-assignor"]
    if rebalance_timeout_ms is not None:
        options += ["--rebalance-timeout-ms", str(rebalance_timeout_ms)]
    return options


def access_options(config: CoordinatorConfig, credentials: Path | None) -> list[str]:
    """Options with which a worker connects to a coordinator: paths of files, not their contents."""
    files = {"--credentials": credentials}
    if config.tls_cert is not None:
        # Its issuer and its names do not matter: the workers connect to this coordinator and no other.
        files["--tls-server"] = config.tls_cert
    if config.tls_ca is not None:
        files |= {"--tls-cert": config.tls_cert, "--tls-key": config.tls_key}
    return [word for option, path in files.items() if path is not None for word in (option, str(path))]

"""Worker groups for programs without asyncio: the event loop runs in a thread, and every method waits for its result.

    import connectgroup

    letters = {"connector.class": "idle", "tasks.max": "4"}
    with connectgroup.sync.worker_group("mine", workers=2, connectors={"letters": letters}) as group:
        print(group.wait_stable().state)

Any thread may call any method, several at a time, except code that runs on the event loop itself (coroutines of a
runner): it would wait for itself. Listeners are called in threads of their own, so they may. Each ``with`` block has an
event loop of its own; several groups in one process do not affect each other.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from . import embedding
from .assign.api import ConnectAssignor
from .assign.placement import NO_TRAITS, WorkerTraits
from .checks import check_call, kind_of
from .client.admin import Admin as AsyncAdmin
from .connector import Config
from .embedding import EmbeddedGroup
from .errors import ConfigError, TimedOut
from .group.connect.settings import GroupSettings
from .listener import WorkerRebalanceListener
from .member.actions import Grant
from .member.settings import MemberSettings
from .own_plugins import Assignors, ConfigOrTasks, OneWorkersAssignors
from .protocol.messages.describe import DescribedGroup
from .protocol.messages.heartbeat import TaskStatus
from .protocol.units import Units, show
from .threads import off_loop
from .transport.access import Access
from .transport.base import Client
from .worker import serving
from .worker.arguments import check_on_start, check_settings
from .worker.call_pool import off_loop_with_retry
from .worker.loop import Worker as AsyncWorker
from .worker.runner import Runner
from .worker.serving import client_maker
from .worker.settings import WorkerSettings
from .worker.state import StopReason, WorkerState

P = ParamSpec("P")
T = TypeVar("T")


class _Loop:
    """An event loop in a thread, for the time of one ``async with`` block."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def running(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
        """Enter an asynchronous context manager on the loop, and leave it at the end of the block."""
        entered: Future[T] = Future()
        ended: Future[None] = Future()
        stop: list[Callable[[], object]] = []

        async def life() -> None:
            self._loop, stopped = asyncio.get_running_loop(), asyncio.Event()
            stop.append(stopped.set)
            async with make() as value:
                entered.set_result(value)
                await stopped.wait()

        def run() -> None:
            try:
                asyncio.run(life())
            except BaseException as error:
                (ended if entered.done() else entered).set_exception(error)
            if not ended.done():
                ended.set_result(None)

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()
        try:
            yield entered.result()
        finally:
            loop, self._loop = self._loop, None
            if loop is not None and stop and not ended.done():
                loop.call_soon_threadsafe(stop[0])
            self._thread.join()
            ended.result()

    @contextmanager
    def here(self) -> Iterator[None]:
        """The running event loop, in this thread, for the time of a block."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.current_thread()
        try:
            yield
        finally:
            self._loop = None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises:
            RuntimeError: the block has ended, or this is code on the loop itself.
        """
        loop = self._loop
        if loop is None or threading.current_thread() is self._thread:
            work.close()
            why = "the block has ended" if loop is None else "called on the event loop, which would wait for itself"
            raise RuntimeError(f"{self._name}: {why}; allowed: calls from other threads within the with block")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while waiting
            raise

    def waiting(self, method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
        """The method as a function that waits for its result."""

        @wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return self.call(method(*args, **kwargs))

        return call


class Admin:
    """The requests of an operator; see ``connectgroup.Admin``, whose methods and errors these are."""

    def __init__(self, admin: AsyncAdmin, loop: _Loop) -> None:
        """Created by ``admin`` and ``worker_group``."""
        self.list_groups = loop.waiting(admin.list_groups)
        self.describe = loop.waiting(admin.describe)
        self.delete_group = loop.waiting(admin.delete_group)
        self.wait_until = loop.waiting(admin.wait_until)
        self.wait_stable = loop.waiting(admin.wait_stable)
        self.describe_connector = loop.waiting(admin.describe_connector)
        self.add_connector = loop.waiting(admin.add_connector)
        self.put_connector = loop.waiting(admin.put_connector)
        self.patch_connector = loop.waiting(admin.patch_connector)
        self.set_state = loop.waiting(admin.set_state)
        self.delete_connector = loop.waiting(admin.delete_connector)
        self.restart_connector = loop.waiting(admin.restart_connector)
        self.restart_task = loop.waiting(admin.restart_task)
        self.restart_worker = loop.waiting(admin.restart_worker)
        self.drain_worker = loop.waiting(admin.drain_worker)
        self.wait_worker = loop.waiting(admin.wait_worker)
        self.wait_running = loop.waiting(admin.wait_running)
        self.reset_topics = loop.waiting(admin.reset_topics)


class Group:
    """A group in this process; see ``connectgroup.EmbeddedGroup``.

    Attributes:
        group_id: the group's name.
        admin: changes connectors, describes and restarts.
    """

    def __init__(self, group: EmbeddedGroup, loop: _Loop) -> None:
        """Created by ``worker_group``."""
        self._group, self._loop = group, loop
        self.group_id = group.group_id
        self.admin = Admin(group.admin, loop)

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the running workers."""
        return tuple(self._group.workers.copy())

    def add_worker(
        self,
        name: str,
        *,
        traits: WorkerTraits = NO_TRAITS,
        assignors: OneWorkersAssignors | None = None,
        listeners: Sequence[WorkerRebalanceListener] = (),
        runner: Runner | BlockingRunner | None = None,
    ) -> None:
        """Start a worker; see ``EmbeddedGroup.add_worker``. The methods of ``runner`` may block, as of ``worker``."""
        usable = _as_runner(runner)

        async def add() -> None:
            await self._group.add_worker(name, traits=traits, assignors=assignors, listeners=listeners, runner=usable)

        self._loop.call(add())

    def stop_worker(self, name: str) -> None:
        """Stop a worker; see ``EmbeddedGroup.stop_worker``."""
        self._loop.call(self._group.stop_worker(name))

    def describe(self) -> DescribedGroup:
        """Return the current description of the group."""
        return self.admin.describe(self.group_id)

    def wait_stable(self, *, timeout_s: float = 30.0) -> DescribedGroup:
        """Wait until every worker has reached the newest target assignment and no unit is starting.

        Raises:
            TimedOut: not within ``timeout_s``.
        """
        return self._loop.call(self._group.wait_stable(timeout_s=timeout_s))


@contextmanager
def worker_group(
    group_id: str,
    *,
    workers: int | Sequence[str] = 1,
    connectors: Mapping[str, ConfigOrTasks] | None = None,
    assignors: Assignors = ("balanced",),
    listeners: Callable[[str], Sequence[WorkerRebalanceListener]] = lambda worker: (),
    settings: GroupSettings | None = None,
) -> Iterator[Group]:
    """Run a coordinator and workers while the ``with`` block runs; arguments as ``connectgroup.worker_group``."""
    loop = _Loop(f"group {group_id}")

    def make() -> AbstractAsyncContextManager[EmbeddedGroup]:
        return embedding.worker_group(
            group_id,
            workers=workers,
            connectors=connectors,
            assignors=assignors,
            listeners=listeners,
            settings=settings,
        )

    with loop.running(make) as group:
        yield Group(group, loop)


class Worker:
    """A worker of a program without asyncio; created by ``worker`` and ``serve_worker``. Any thread may call it.

    Attributes:
        member_id: its member id.
    """

    def __init__(self, worker: AsyncWorker, loop: _Loop) -> None:
        """Created by ``worker`` and ``serve_worker``."""
        self._worker, self._loop = worker, loop
        self.member_id = worker.member_id

    @property
    def state(self) -> WorkerState:
        """The state of this worker as it knows it itself, also after its end; for readiness probes."""
        return self._worker.state

    def report(self, status: TaskStatus) -> None:
        """Report the state of a unit; arguments and errors as ``connectgroup.Worker.report``."""
        self._loop.call(self._do(lambda worker: worker.report(status)))

    def publish_tasks(self, connector: str, owner_epoch: int, configs: Sequence[Config]) -> None:
        """Send the task list of a connector; arguments and errors as ``connectgroup.Worker.publish_tasks``."""
        self._loop.call(self._worker.publish_tasks(connector, owner_epoch, configs))

    def stop(self, *, for_good: bool = False) -> None:
        """Ask the worker to stop its units and to leave the group; ``wait_stopped`` waits for that."""
        self._loop.call(self._do(lambda worker: worker.stop(for_good=for_good)))

    def restart(self) -> None:
        """Ask the worker to stop in order to be started again with the same member id."""
        self._loop.call(self._do(lambda worker: worker.restart()))

    def drain(self) -> None:
        """Ask the group to move this worker's units to other members; the worker stops then."""
        self._loop.call(self._do(lambda worker: worker.drain()))

    def wait_stopped(self, *, timeout_s: float | None = None) -> StopReason:
        """Wait until this worker has ended, also by itself, and return the reason.

        Raises:
            TimedOut: not within ``timeout_s``.
        """
        if (ended := self.state.ended) is not None:
            return ended
        return self._loop.call(self._wait_stopped(timeout_s))

    async def _wait_stopped(self, timeout_s: float | None) -> StopReason:
        try:
            return await asyncio.wait_for(self._worker.wait_stopped(), timeout_s)
        except TimeoutError:
            raise TimedOut(f"worker {self.member_id}: has not ended within {timeout_s:g} s") from None

    async def _do(self, what: Callable[[AsyncWorker], None]) -> None:
        what(self._worker)


class BlockingRunner(Protocol):
    """A runner with plain methods, which may block: each call has a thread. See ``connectgroup.Runner``."""

    def start(self, grants: Sequence[Grant]) -> None:
        """Start these units."""

    def stop(self, units: Units) -> None:
        """Stop these units; after it returns, none of them writes any more."""


class _Threaded:
    """A ``BlockingRunner`` as a ``Runner``."""

    def __init__(self, runner: BlockingRunner) -> None:
        self._runner = runner

    async def start(self, grants: Sequence[Grant]) -> None:
        units = show(frozenset(grant.unit for grant in grants))
        await off_loop(f"start {units}", self._runner.start, grants)

    async def stop(self, units: Units) -> None:
        await off_loop_with_retry(f"stop {show(units)}", self._runner.stop, units)


MakeRunner = Callable[[Worker], Runner | BlockingRunner]
"""A function that makes the runner of a worker, before the worker joins; it must not call the worker yet."""


def _split(runner: Runner | BlockingRunner | MakeRunner | None) -> tuple[Runner | None, MakeRunner | None]:
    if callable(runner) and not isinstance(runner, type) and not hasattr(runner, "start"):
        return None, runner
    return _as_runner(cast("Runner | BlockingRunner | None", runner)), None


def _as_runner(runner: Runner | BlockingRunner | None) -> Runner | None:
    if runner is None:
        return None
    if isinstance(runner, type):
        raise ConfigError("runner", kind_of(runner), f"an object of it: {runner.__name__}()")
    for name, argument in (("start", "grants"), ("stop", "units")):
        method = getattr(runner, name, None)
        if not callable(method):
            raise ConfigError("runner", kind_of(runner), f"an object with def {name}(self, {argument})")
        check_call(f"runner.{name}", method, (argument,), f"def {name}(self, {argument})")
    if inspect.iscoroutinefunction(runner.start) or inspect.iscoroutinefunction(runner.stop):
        return cast("Runner", runner)
    return _Threaded(cast("BlockingRunner", runner))


@contextmanager
def worker(
    settings: MemberSettings,
    connect: Callable[[], Client] | str,
    *,
    assignors: Sequence[ConnectAssignor] = (),
    listeners: Sequence[WorkerRebalanceListener] = (),
    runner: Runner | BlockingRunner | MakeRunner | None = None,
    times: WorkerSettings | None = None,
    access: Access | None = None,
) -> Iterator[Worker]:
    """Run one worker while the ``with`` block runs.

    The block is not interrupted when the worker ends before: ``Worker.wait_stopped`` waits for that, and
    ``Worker.state`` tells.

    Args:
        connect: creates a client of the coordinator; or the address of a coordinator, ``host:port``.
        runner: runs the units; its methods may be coroutines, or plain methods, which run in threads and may block. Or
            a function of the ``Worker`` that makes the runner before the worker joins: ``lambda worker: Mine(worker)``.
        access: how to authenticate to an address, and TLS; ``None``: see ``Access``.
        settings, assignors, listeners, times: as of ``connectgroup.Worker.running``.

    Raises:
        ConfigError: an argument cannot be used.
        GroupError: the coordinator rejected the worker; raised at the end of the block.
    """
    make_client, (usable, make_runner) = client_maker(connect, access, settings), _split(runner)
    loop = _Loop(f"worker {settings.member_id}")

    @asynccontextmanager
    async def make() -> AsyncIterator[AsyncWorker]:
        started: asyncio.Future[AsyncWorker] = asyncio.get_running_loop().create_future()

        async def live() -> None:
            async with AsyncWorker.running(
                settings, make_client, assignors=assignors, listeners=listeners, runner=usable, times=times
            ) as running:
                if make_runner is not None:
                    running.set_runner(cast("Runner", _as_runner(make_runner(Worker(running, loop)))))
                started.set_result(running)
                await running.wait_stopped()

        life = asyncio.create_task(live())
        waited: set[asyncio.Future[Any]] = {life, started}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            life.result()  # its error
        try:
            yield started.result()
        finally:
            started.result().stop()
            await life

    with loop.running(make) as running:
        yield Worker(running, loop)


def serve_worker(
    settings: MemberSettings,
    connect: Callable[[], Client] | str,
    *,
    assignors: Sequence[ConnectAssignor] = (),
    listeners: Sequence[WorkerRebalanceListener] = (),
    runner: Runner | BlockingRunner | MakeRunner | None = None,
    times: WorkerSettings | None = None,
    access: Access | None = None,
    signals: bool = True,
    on_start: Callable[[Worker], object] = lambda worker: None,
) -> StopReason:
    """Run a worker in this thread until it is stopped or has drained, and again after each restart.

    Args:
        on_start: called with each worker before it joins; keep it for other threads.
        settings, connect, assignors, listeners, runner, times, access: as of ``worker``.
        signals: as of ``connectgroup.serve_worker``, as are the result and the errors.
    """
    check_settings(settings)
    check_on_start(on_start)
    usable, make_runner = _split(runner)
    loop = _Loop(f"worker {settings.member_id}")

    def made(started: AsyncWorker) -> Runner:
        assert make_runner is not None
        return cast("Runner", _as_runner(make_runner(Worker(started, loop))))

    async def serve() -> StopReason:
        with loop.here():
            return await serving.serve_worker(
                settings,
                connect,
                assignors=assignors,
                listeners=listeners,
                runner=usable if make_runner is None else made,
                times=times,
                access=access,
                signals=signals,
                on_start=lambda started: on_start(Worker(started, loop)),
            )

    return asyncio.run(serve())


@contextmanager
def admin(
    addresses: str | Sequence[str],
    *,
    timeout_s: float = 10.0,
    retry_for_s: float = 5.0,
    access: Access | None = None,
) -> Iterator[Admin]:
    """Connect to coordinators while the ``with`` block runs; arguments as ``connectgroup.Admin.connect``."""
    loop = _Loop("admin")

    def make() -> AsyncAdmin:
        return AsyncAdmin.connect(addresses, timeout_s=timeout_s, retry_for_s=retry_for_s, access=access)

    with loop.running(make) as connected:
        yield Admin(connected, loop)

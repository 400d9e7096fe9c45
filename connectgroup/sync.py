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
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from . import embedding
from .assign.api import ConnectAssignor
from .assign.placement import NO_TRAITS, WorkerTraits
from .client.admin import Admin as AsyncAdmin
from .embedding import EmbeddedGroup
from .group.connect.settings import GroupSettings
from .listener import WorkerRebalanceListener
from .member.settings import MemberSettings
from .own_plugins import Assignors, ConfigOrTasks, OneWorkersAssignors
from .protocol.messages.describe import DescribedGroup
from .transport.base import Client
from .worker.arguments import check_settings
from .worker.loop import Worker
from .worker.runner import Runner

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
        runner: Runner | None = None,
    ) -> None:
        """Start a worker; see ``EmbeddedGroup.add_worker``."""

        async def add() -> None:
            await self._group.add_worker(name, traits=traits, assignors=assignors, listeners=listeners, runner=runner)

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


@contextmanager
def worker(
    settings: MemberSettings,
    connect: Callable[[], Client],
    *,
    assignors: Sequence[ConnectAssignor] = (),
    listeners: Sequence[WorkerRebalanceListener] = (),
    runner: Runner | None = None,
) -> Iterator[None]:
    """Run one worker while the ``with`` block runs; arguments and errors as ``Worker.running``."""
    check_settings(settings)
    loop = _Loop(f"worker {settings.member_id}")

    def make() -> AbstractAsyncContextManager[Worker]:
        return Worker.running(settings, connect, assignors=assignors, listeners=listeners, runner=runner)

    with loop.running(make):
        yield


@contextmanager
def admin(addresses: str | Sequence[str], *, timeout_s: float = 10.0, retry_for_s: float = 5.0) -> Iterator[Admin]:
    """Connect to coordinators while the ``with`` block runs; arguments as ``connectgroup.Admin.connect``."""
    loop = _Loop("admin")
    with loop.running(lambda: AsyncAdmin.connect(addresses, timeout_s=timeout_s, retry_for_s=retry_for_s)) as connected:
        yield Admin(connected, loop)

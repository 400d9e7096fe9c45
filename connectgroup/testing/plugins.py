"""The plug-ins of a test: created once per worker, silent once their worker was killed, recorded in the history."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from ..checks import setting_text
from ..connector import Config, Connector, Task, TaskContext
from ..listener import WorkerRebalanceListener
from ..member.actions import Grant
from ..own_plugins import ConfigOrTasks, OneWorkersListeners, class_loader, make_listener, without_class
from ..protocol.units import Unit, Units
from ..worker.arguments import check_plugins
from ..worker.runner import Runner
from .history import History
from .virtual_time import Node

Listeners = OneWorkersListeners | Mapping[str, OneWorkersListeners] | Callable[[str], OneWorkersListeners]
"""The listeners of every worker; or of each worker, by its name, or as a function of its name."""

PLUGINS: Final = "a list of names, classes or instances"
"""What the plug-ins of one worker may be."""

MAX_END_S = 5.0
"""Seconds of real time that the stops of a killed worker's tasks may take together at the end of a test."""


def make_listeners(specs: OneWorkersListeners) -> list[WorkerRebalanceListener]:
    """The listeners of one worker."""
    listeners = [make_listener(spec) for spec in specs]
    check_plugins((), listeners)  # here, because ``guarded_listener`` has all callbacks
    return listeners


def configuration(spec: ConfigOrTasks) -> tuple[dict[str, str], dict[str, type[Connector]]]:
    """A connector's configuration as the group stores it, and the test's own class that it names, if any."""
    config, classes = without_class(spec)
    # Also other values than those of ``setting_text``: a test has paths.
    texts = {name: str(value) if (text := setting_text(value)) is None else text for name, value in config.items()}
    return {"tasks.max": "1", **texts}, classes


def guarded_classes(
    classes: Mapping[str, type[Connector]], node: Node, started: set[GuardedTask], recorder: RecordingRunner
) -> Callable[[str], type[Connector]]:
    """Load the test's own classes and, by entry point, the installed ones; their tasks end with the node."""
    load = class_loader(classes)
    return lambda name: guarded_class(load(name), node, started, recorder)


def guarded_class(
    cls: type[Connector], node: Node, started: set[GuardedTask], recorder: RecordingRunner
) -> type[Connector]:
    """A connector class whose tasks are not called after their worker was killed: a killed process runs no ``stop``.

    Args:
        started: receives the tasks while they run; those of a killed worker stay in it.
        recorder: records which tasks are fenced, and which have stopped.
    """

    def task(self: Connector, config: Config, context: TaskContext) -> Task:
        if self.fenced:
            recorder.fences(context.unit)
        return GuardedTask(cls.task(self, config, context), node, started, partial(recorder.task_stopped, context.unit))

    members = {"task": task, "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), members)


class GuardedTask(Task):
    """See ``guarded_class``."""

    def __init__(self, task: Task, node: Node, started: set[GuardedTask], on_stopped: Callable[[], None]) -> None:
        self._task, self._node, self._started, self._on_stopped = task, node, started, on_stopped

    @property
    def reports_polls(self) -> bool:  # type: ignore[override]
        return self._task.reports_polls

    def abandon(self) -> None:
        if not self._node.killed:
            self._task.abandon()

    def interrupt_start(self) -> None:
        if not self._node.killed:
            self._task.interrupt_start()

    def start(self) -> None:
        if not self._node.killed:
            self._started.add(self)
            self._task.start()

    def stop(self) -> None:
        if not self._node.killed:
            self._started.discard(self)
            self._task.stop()
            if not self._node.killed:
                self._on_stopped()

    def end(self) -> None:
        """Stop the task although its worker was killed."""
        with contextlib.suppress(Exception):
            self._task.stop()


def end_tasks(tasks: set[GuardedTask]) -> None:
    """Stop the tasks of killed workers at the end of a test: else their threads would go on in the tests after it.

    A stop that hangs is abandoned.
    """
    stops = [threading.Thread(target=task.end, name="end of a task", daemon=True) for task in tasks]
    for stop in stops:
        stop.start()
    ends_s = time.monotonic() + MAX_END_S
    for stop in stops:
        stop.join(max(0.0, ends_s - time.monotonic()))


def guarded_listener(listener: WorkerRebalanceListener, node: Node) -> WorkerRebalanceListener:
    """A listener that is not called after its worker was killed. Errors name the class that it stands for."""
    cls = type(listener)
    members = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    guarded: type[GuardedListener] = type(cls.__name__, (GuardedListener,), members)
    return guarded(listener, node)


class GuardedListener(WorkerRebalanceListener):
    """See ``guarded_listener``."""

    def __init__(self, listener: WorkerRebalanceListener, node: Node) -> None:
        self._listener, self._node = listener, node

    def on_assigned(self, units: Units, epoch: int) -> Awaitable[None] | None:
        return None if self._node.killed else self._listener.on_assigned(units, epoch)

    def on_revoked(self, units: Units, epoch: int) -> Awaitable[None] | None:
        return None if self._node.killed else self._listener.on_revoked(units, epoch)

    def on_lost(self, units: Units, epoch: int) -> Awaitable[None] | None:
        return None if self._node.killed else self._listener.on_lost(units, epoch)


class RecordingRunner:
    """A runner that records each unit from its grant to the end of its stop, around another runner.

    Attributes:
        runner: the other runner, whose connector classes report to this one; set before the first start.
    """

    runner: Runner

    def __init__(self, worker: str, history: History, node: Node) -> None:
        self._worker, self._history, self._node = worker, history, node
        self._stopping: set[Unit] = set()

    def around(self, runner: Runner) -> RecordingRunner:
        """Set the other runner; return this one."""
        self.runner = runner
        return self

    async def start(self, grants: Sequence[Grant]) -> None:
        """See ``Runner.start``."""
        for grant in grants:
            self._stopping.discard(grant.unit)
            self._history.started(self._worker, str(grant.unit), grant.owner_epoch, fenced=grant.unit.is_connector)
        await self.runner.start(grants)

    async def stop(self, units: Units) -> None:
        """See ``Runner.stop``. A stop that raises or hangs leaves its units recorded as running."""
        if self._node.killed:
            return
        self._stopping |= units
        await self.runner.stop(units)
        for unit in sorted(units):
            self._history.stopped(self._worker, str(unit))

    def fences(self, unit: Unit) -> None:
        """A task is about to start whose sink fences it; may be called in any thread."""
        self._history.fences(self._worker, str(unit))

    def task_stopped(self, unit: Unit) -> None:
        """The stop of a task has returned, whatever those of others do; may be called in any thread."""
        if unit in self._stopping:
            self._history.stopped(self._worker, str(unit))

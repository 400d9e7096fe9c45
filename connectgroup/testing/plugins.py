"""The plug-ins of a test: created once per worker, silent once their worker was killed, recorded in the history."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..assign.api import ConnectAssignor
from ..connector import Config, Connector, Task, TaskContext
from ..errors import ConfigError
from ..listener import WorkerRebalanceListener
from ..member.actions import Grant
from ..plugins import load_assignor, load_connector_class, load_listener
from ..protocol.units import Units
from ..worker.arguments import check_plugins
from ..worker.runner import Runner
from .history import History
from .virtual_time import Node

Assignors = Sequence[str | Callable[[], ConnectAssignor] | ConnectAssignor]
"""Entry-point names, classes (one instance per worker), or instances (one for all workers)."""

Listeners = Sequence[str | Callable[[], WorkerRebalanceListener] | WorkerRebalanceListener]
"""As ``Assignors``, for rebalance listeners."""

ConfigOrTasks = int | Mapping[str, Any]
"""A connector of a test: a number of idle tasks, or a configuration, in which ``connector.class`` may be a class."""


def make_assignors(specs: Assignors) -> list[ConnectAssignor]:
    """The assignors of one worker."""
    return [
        load_assignor(spec) if isinstance(spec, str) else spec if isinstance(spec, ConnectAssignor) else spec()
        for spec in specs
    ]


def make_listeners(specs: Listeners) -> list[WorkerRebalanceListener]:
    """The listeners of one worker."""
    listeners = [
        load_listener(spec) if isinstance(spec, str) else spec if isinstance(spec, WorkerRebalanceListener) else spec()
        for spec in specs
    ]
    check_plugins((), listeners)  # here, because ``guarded_listener`` has all callbacks
    return listeners


def class_name(cls: type[Connector]) -> str:
    """The name under which a test's own connector class is configured."""
    return f"{cls.__module__}.{cls.__qualname__}".replace("<locals>.", "")


def check_spec(field: str, spec: object) -> None:
    """Check that a connector of a test is a number of tasks or a configuration.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(spec, bool) or not isinstance(spec, Mapping | int) or (isinstance(spec, int) and spec < 1):
        allowed = 'a number of idle tasks, at least 1, or a configuration: {"connector.class": MyConnector}'
        raise ConfigError(field, spec, allowed)


def configuration(spec: ConfigOrTasks) -> tuple[dict[str, str], dict[str, type[Connector]]]:
    """A connector's configuration as the group stores it, and the test's own class that it names, if any."""
    if isinstance(spec, int):
        return {"connector.class": "idle", "tasks.max": str(spec)}, {}
    config: dict[str, Any] = {"tasks.max": "1", **spec}
    classes: dict[str, type[Connector]] = {}
    cls = config.get("connector.class")
    if inspect.isclass(cls) and issubclass(cls, Connector):
        config["connector.class"] = class_name(cls)
        classes[config["connector.class"]] = cls
    return {name: str(value) for name, value in config.items()}, classes


def class_loader(classes: Mapping[str, type[Connector]], node: Node) -> Callable[[str], type[Connector]]:
    """Load the test's own classes and, by entry point, the installed ones; their tasks end with the node."""

    def load(name: str) -> type[Connector]:
        return guarded_class(classes.get(name) or load_connector_class(name), node)

    return load


def guarded_class(cls: type[Connector], node: Node) -> type[Connector]:
    """A connector class whose tasks are not called after their worker was killed: a killed process runs no ``stop``."""

    def task(self: Connector, config: Config, context: TaskContext) -> Task:
        return GuardedTask(cls.task(self, config, context), node)

    members = {"task": task, "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), members)


class GuardedTask(Task):
    """See ``guarded_class``."""

    def __init__(self, task: Task, node: Node) -> None:
        self._task, self._node = task, node

    def start(self) -> None:
        if not self._node.killed:
            self._task.start()

    def stop(self) -> None:
        if not self._node.killed:
            self._task.stop()


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
    """A runner that records each unit from its grant to the end of its stop, around another runner."""

    def __init__(self, worker: str, runner: Runner, history: History, node: Node) -> None:
        self._worker, self._runner, self._history, self._node = worker, runner, history, node

    async def start(self, grants: Sequence[Grant]) -> None:
        """See ``Runner.start``."""
        for grant in grants:
            self._history.started(self._worker, str(grant.unit), grant.owner_epoch)
        await self._runner.start(grants)

    async def stop(self, units: Units) -> None:
        """See ``Runner.stop``. A stop that raises leaves its units recorded as running."""
        if self._node.killed:
            return
        await self._runner.stop(units)
        for unit in sorted(units):
            self._history.stopped(self._worker, str(unit))

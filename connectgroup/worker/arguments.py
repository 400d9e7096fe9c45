"""Checks of the objects that an embedder passes to ``Worker``: an error names the argument and what is allowed."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from ..assign.api import ConnectAssignor
from ..checks import check_call, check_methods, check_number, check_object, kind_of
from ..errors import NO_VALUE, UNKNOWN_SETTING, ConfigError
from ..listener import WorkerRebalanceListener
from ..member.settings import MemberSettings
from ..transport.base import Client
from .runner import Runner
from .settings import Connections, WorkerSettings
from .unit_runner import ThreadUnitRunner, UnitRunner

CALLBACKS: Final = ("on_assigned", "on_revoked", "on_lost")


def check_settings(settings: MemberSettings) -> None:
    """Check that the settings of a member are its settings, and not its name.

    Raises:
        ConfigError: they are not.
    """
    check_object("settings", settings, MemberSettings, 'MemberSettings(group_id="mine", member_id="w1")')


def check_connections(connections: Connections) -> None:
    """Check that a worker gets two clients.

    Raises:
        ConfigError: it gets one client, also twice, a runner in their place, or an address.
    """
    check_object("connections", connections, Connections, "Connections(heartbeats=client, control=client)")
    for name, client in connections._asdict().items():
        allowed = "a client: TcpClient(host, port) or LocalClient(coordinator)"
        check_methods(f"connections.{name}", client, ("call", "close"), allowed)
    if connections.heartbeats is connections.control:
        allowed = "two clients, each with a connection of its own: a function that makes a new one at each call"
        raise ConfigError("connections", "the same client twice", allowed)


def check_connect(connect: Callable[[], Client]) -> None:
    """Check that ``connect`` is a function: a worker has two connections.

    Raises:
        ConfigError: it is a client or an address.
    """
    check_call("connect", connect, (), "a function that makes a client: lambda: TcpClient(host, port)")


def check_plugins(assignors: Sequence[ConnectAssignor], listeners: Sequence[WorkerRebalanceListener]) -> None:
    """Check that all are objects of the right class, not classes or names, and that listeners have the callbacks.

    A callback with a misspelt name would never be called, and one with other arguments only be logged.

    Raises:
        ConfigError: carries the first one that is not.
    """
    _check_objects("assignors", assignors, ConnectAssignor, 'load_assignor("balanced")')
    _check_objects("listeners", listeners, WorkerRebalanceListener, 'load_listener("log")')
    for listener in listeners:
        check_callbacks(listener)


def check_callbacks(listener: WorkerRebalanceListener) -> None:
    """Check the arguments of a listener's callbacks, and that no method has nearly the name of one.

    Raises:
        ConfigError: names the callback.
    """
    who = type(listener).__name__
    for name in CALLBACKS:
        check_call(f"{who}.{name}", getattr(listener, name), ("units", "epoch"), f"def {name}(self, units, epoch)")
    for name, near in _nearly_callbacks(tuple(dir(type(listener)))):
        if callable(getattr(listener, name)):
            raise ConfigError(f"{who}.{name}", UNKNOWN_SETTING, f"{near} (did you mean that?)")


@lru_cache(maxsize=64)
def _nearly_callbacks(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Those of the names that are nearly the names of callbacks, each with that callback."""
    others = (name for name in names if name not in CALLBACKS)
    near = ((name, difflib.get_close_matches(name, CALLBACKS, n=1, cutoff=0.8)) for name in others)
    return tuple((name, found[0]) for name, found in near if found)


def check_runner(runner: Runner | None) -> None:
    """Check that a runner is an object with ``start`` and ``stop``, and that they are coroutine functions.

    Raises:
        ConfigError: it is a class, a method is missing, has other arguments, or is a plain function: the worker would
            wait for its result in vain. Also of the two methods of a runner by unit.
    """
    if runner is None:
        return
    if inspect.isclass(runner):
        raise ConfigError("runner", kind_of(runner), f"an object of it: {runner.__name__}()")
    for name, argument in (("start", "grants"), ("stop", "units")):
        method = getattr(runner, name, None)
        if not callable(method):
            raise ConfigError("runner", kind_of(runner), f"an object with async def {name}(self, {argument})")
        if inspect.isroutine(method) and not inspect.iscoroutinefunction(method):
            raise ConfigError(f"runner.{name}", "a plain function", f"async def {name}(self, {argument})")
        check_call(f"runner.{name}", method, (argument,), f"async def {name}(self, {argument})")
    for base, prefix in ((UnitRunner, "async "), (ThreadUnitRunner, "")):
        if isinstance(runner, base):
            _check_unit_methods(runner, base, prefix)


def _check_unit_methods(runner: Runner, base: type, prefix: str) -> None:
    """Check the two methods of a runner by unit. A coroutine that a thread calls, for example, would never run."""
    check_number(f"{type(runner).__name__}.start_timeout_s", getattr(runner, "start_timeout_s", None), 0, 86_400)
    for name, argument in (("start_unit", "grant"), ("stop_unit", "unit")):
        field, method = f"{type(runner).__name__}.{name}", getattr(runner, name)
        allowed = f"{prefix}def {name}(self, {argument})"
        if getattr(method, "__func__", None) is getattr(base, name):
            raise ConfigError(field, NO_VALUE, allowed)
        if inspect.isroutine(method) and inspect.iscoroutinefunction(method) != bool(prefix):
            raise ConfigError(field, "a plain function" if prefix else "a coroutine function", allowed)
        check_call(field, method, (argument,), allowed)


def check_on_start(on_start: Callable[..., object]) -> None:
    """Check that ``on_start`` of ``serve_worker`` takes a worker.

    Raises:
        ConfigError: it does not.
    """
    allowed = "a function of the worker: on_start=workers.append"
    if inspect.iscoroutinefunction(on_start):
        raise ConfigError("on_start", f"the coroutine function {on_start.__name__}", allowed)
    check_call("on_start", on_start, ("worker",), allowed)


def check_made_runner(runner: object) -> None:
    """Check that there is a runner: a function that makes it may have forgotten to return it.

    Raises:
        ConfigError: it is ``None``, or a coroutine, which would make it.
    """
    if inspect.iscoroutine(runner):
        runner.close()
    if runner is None or inspect.iscoroutine(runner):
        got = "None" if runner is None else "a coroutine"
        raise ConfigError("runner", got, "a runner, or a plain function of the worker that returns one")


def check_times(times: WorkerSettings | None) -> None:
    """Check that the timeouts of a worker are its settings, and no number.

    Raises:
        ConfigError: they are not.
    """
    if times is not None:
        check_object("times", times, WorkerSettings, "WorkerSettings(...)")


def _check_objects(field: str, objects: Sequence[Any], base: type, by_name: str) -> None:
    if isinstance(objects, str) or not isinstance(objects, Sequence):
        raise ConfigError(field, kind_of(objects), f"a list of {base.__name__} objects")
    for each in objects:
        if isinstance(each, base):
            continue
        if inspect.isclass(each) and issubclass(each, base):
            raise ConfigError(field, kind_of(each), f"an object of it: {each.__name__}()")
        allowed = f"{base.__name__} objects" + (f", such as {by_name}" if isinstance(each, str) else "")
        raise ConfigError(field, kind_of(each), allowed)

"""Plug-ins that a program passes itself: names of installed ones, classes, or objects.

An error is raised where the plug-ins are passed: it names the argument and what is allowed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from .assign.api import ConnectAssignor
from .checks import check_call, kind_of
from .connector import Connector
from .errors import ConfigError
from .listener import WorkerRebalanceListener
from .plugins import load_assignor, load_connector_class, load_listener

T = TypeVar("T")

CLASS: Final = "connector.class"

ConfigOrTasks = int | Mapping[str, Any]
"""A connector: a number of idle tasks, or a configuration, in which ``connector.class`` may be a class."""


OneWorkersAssignors = Sequence[str | Callable[[], ConnectAssignor] | ConnectAssignor]
"""Entry-point names, classes (one object per worker), or objects (one for all workers), in order of preference."""

Assignors = OneWorkersAssignors | Mapping[str, OneWorkersAssignors] | Callable[[str], OneWorkersAssignors]
"""The assignors of every worker; or of each worker, by its name, or as a function of its name."""

OneWorkersListeners = Sequence[str | Callable[[], WorkerRebalanceListener] | WorkerRebalanceListener]
"""As ``OneWorkersAssignors``, for rebalance listeners."""

BY_WORKER: Final = ', or a mapping or function of the worker\'s name: {"worker-1": [...]}, lambda worker: [...]'


def check_by_worker(field: str, plugins: object, words: str) -> None:
    """Check that plug-ins are a list, lists by the name of the worker, or a function of the worker's name.

    Args:
        words: what is allowed as the plug-ins of one worker.

    Raises:
        ConfigError: they are not.
    """
    allowed = words + BY_WORKER
    if isinstance(plugins, Sequence | Mapping) and not isinstance(plugins, str):
        return
    if isinstance(plugins, type) or not callable(plugins):
        raise ConfigError(field, kind_of(plugins), allowed)
    check_call(field, plugins, ("worker",), allowed)


def of_worker(
    field: str,
    plugins: Sequence[T] | Mapping[str, Sequence[T]] | Callable[[str], Sequence[T]],
    worker: str,
    words: str,
) -> Sequence[T]:
    """The plug-ins of one worker; see ``check_by_worker``.

    Raises:
        ConfigError: a mapping has none for this worker, or what is given for it is no list.
    """
    if isinstance(plugins, Mapping):
        if worker not in plugins:
            named = f"a list for every worker; listed: {', '.join(map(str, plugins)) or 'none'}"
            raise ConfigError(field, f"nothing for {worker}", named)
        found: object = plugins[worker]
    else:
        found = plugins(worker) if callable(plugins) else plugins
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise ConfigError(f"{field} of {worker}", kind_of(found), words)
    return found


def make_assignor(assignor: object) -> ConnectAssignor:
    """An assignor by its entry-point name, of a class, or the object itself.

    Raises:
        ConfigError: it is none of these, there is none of that name, or the class is abstract or needs arguments.
    """
    if isinstance(assignor, str):
        return load_assignor(assignor)
    hint = "or an object of it"
    return _make("assignors", assignor, ConnectAssignor, hint)  # type: ignore[type-abstract]


def make_listener(listener: object) -> WorkerRebalanceListener:
    """A listener; as ``make_assignor``."""
    if isinstance(listener, str):
        return load_listener(listener)
    hint = "an object of it, or listeners=lambda worker: [...]"
    return _make("listeners", listener, WorkerRebalanceListener, hint)


def _make(field: str, plugin: object, base: type[T], hint: str) -> T:
    """An object of the base class.

    Args:
        hint: what to pass in the place of a class that needs arguments.
    """
    if isinstance(plugin, base):
        return plugin
    allowed = f"names, {base.__name__} classes or objects"
    if not callable(plugin):
        raise ConfigError(field, kind_of(plugin), allowed)
    check_concrete(field, plugin, allowed)
    check_call(field, plugin, (), f"a class that is created without arguments, {hint}")
    made = plugin()
    if not isinstance(made, base):
        raise ConfigError(field, kind_of(made), allowed)
    return made


def check_concrete(field: str, cls: object, allowed: str) -> None:
    """Check that a class is not abstract.

    Raises:
        ConfigError: it is; names the methods that it lacks.
    """
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise ConfigError(field, f"the abstract {kind_of(cls)[4:]}; missing: {missing}", allowed)


def class_name(cls: type[Connector]) -> str:
    """The name under which a program's own connector class is configured."""
    return f"{cls.__module__}.{cls.__qualname__}".replace("<locals>.", "")


def check_connector(field: str, spec: object) -> None:
    """Check that a connector is a number of tasks, or a configuration whose class is a connector class or a name.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(spec, bool) or not isinstance(spec, Mapping | int) or (isinstance(spec, int) and spec < 1):
        allowed = 'a number of idle tasks, at least 1, or a configuration: {"connector.class": MyConnector}'
        raise ConfigError(field, kind_of(spec), allowed)
    cls = None if isinstance(spec, int) else spec.get(CLASS)
    if inspect.isclass(cls):
        allowed = "the name of an installed class, or a subclass of Connector"
        if not issubclass(cls, Connector):
            raise ConfigError(f"{field}: {CLASS}", kind_of(cls), allowed)
        check_concrete(f"{field}: {CLASS}", cls, allowed)


def without_class(spec: ConfigOrTasks) -> tuple[dict[str, Any], dict[str, type[Connector]]]:
    """A connector's configuration with the name of its class; and the program's own class of that name, if any."""
    if isinstance(spec, int):
        return {CLASS: "idle", "tasks.max": spec}, {}
    cls = spec.get(CLASS)
    if not (inspect.isclass(cls) and issubclass(cls, Connector)):
        return dict(spec), {}
    return {**spec, CLASS: class_name(cls)}, {class_name(cls): cls}


def class_loader(classes: Mapping[str, type[Connector]]) -> Callable[[str], type[Connector]]:
    """Finds the program's own classes, and by entry point the installed ones."""
    return lambda name: classes.get(name) or load_connector_class(name)

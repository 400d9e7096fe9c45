"""Checks of the objects that an embedder passes to ``Worker``: an error names the argument and what is allowed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from ..assign.api import ConnectAssignor
from ..errors import ConfigError
from ..listener import WorkerRebalanceListener
from .runner import Runner


def check_plugins(assignors: Sequence[ConnectAssignor], listeners: Sequence[WorkerRebalanceListener]) -> None:
    """Check that all are objects of the right class, and not classes or names.

    Raises:
        ConfigError: carries the first one that is not.
    """
    _check_objects("assignors", assignors, ConnectAssignor, 'load_assignor("balanced")')
    _check_objects("listeners", listeners, WorkerRebalanceListener, 'load_listener("log")')


def check_runner(runner: Runner | None) -> None:
    """Check that a runner has ``start`` and ``stop``, and that they are coroutine functions.

    Raises:
        ConfigError: a method is missing, or is a plain function: the worker would wait for its result in vain.
    """
    if runner is None:
        return
    for name, argument in (("start", "grants"), ("stop", "units")):
        method = getattr(runner, name, None)
        if not callable(method):
            raise ConfigError("runner", _shown(runner), f"an object with async def {name}(self, {argument})")
        if inspect.isroutine(method) and not inspect.iscoroutinefunction(method):
            raise ConfigError(f"runner.{name}", "a plain function", f"async def {name}(self, {argument})")


def _check_objects(field: str, objects: Sequence[Any], base: type, by_name: str) -> None:
    if isinstance(objects, str) or not isinstance(objects, Sequence):
        raise ConfigError(field, _shown(objects), f"a list of {base.__name__} objects")
    for each in objects:
        if isinstance(each, base):
            continue
        if inspect.isclass(each) and issubclass(each, base):
            raise ConfigError(field, _shown(each), f"an object of it: {each.__name__}()")
        allowed = f"{base.__name__} objects" + (f", such as {by_name}" if isinstance(each, str) else "")
        raise ConfigError(field, _shown(each), allowed)


def _shown(value: object) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    return value if isinstance(value, str) else f"an object of {type(value).__name__}"

"""Finding a plug-in by its name.

A plug-in is a class that an installed distribution names under one of our entry points. Nothing else is ever
imported: a dotted path in a configuration, which may come from over the network, is a name like any other and
is not found. Whatever goes wrong is one line that names plug-in, distribution and offence.

Two plug-ins of one name are refused where the name is asked for, with both named, the built-in ones included:
which of them ran would hang on the order of a path (KAFKA-20843).
"""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeVar

from .assign.api import Assignor, ConnectAssignor, PartitionAssignor
from .assign.sandbox import declaration_offence, describe
from .connector import Connector
from .dataplane.sink import Sink
from .dataplane.source import Source
from .errors import ConfigError, PluginError
from .listener import WorkerRebalanceListener
from .protocol.units import printable

Kind = Literal["assignors", "partition_assignors", "listeners", "connectors", "sources", "sinks"]
_SETTING: dict[Kind, str] = {
    "assignors": "assignor",
    "partition_assignors": "assignor",
    "listeners": "listener",
    "connectors": "connector.class",
    "sources": "source",
    "sinks": "sink",
}
T = TypeVar("T")
AnyAssignor = TypeVar("AnyAssignor", bound=Assignor[Any, Any, Any])


def load_assignor(name: str) -> ConnectAssignor:
    """A new assignor of connectors and tasks, of that name.

    Raises:
        ConfigError: there is none; the error lists those there are.
        PluginError: two have the name, or it cannot be imported, made or used.
    """
    return _load_assignor("assignors", name, ConnectAssignor)  # type: ignore[type-abstract]


def load_partition_assignor(name: str) -> PartitionAssignor:
    """A new assignor of topic partitions, of that name. Raises as ``load_assignor`` does.

    The two kinds have entry points of their own, so that an operator is never offered one that cannot serve the group,
    and one name may stand for the same idea in both.
    """
    return _load_assignor("partition_assignors", name, PartitionAssignor)  # type: ignore[type-abstract]


def _load_assignor(kind: Kind, name: str, base: type[AnyAssignor]) -> AnyAssignor:
    found = _find(kind, name)
    assignor = _make(found, _load(found, base))
    offence = declaration_offence(assignor)
    if offence is None and assignor.name != name:
        # Members find one another's assignor by the class's name, an operator by the entry point's.
        offence = f"name: got {printable(assignor.name)!r}; allowed: {name!r}, as its entry point says"
    if offence is not None:
        raise PluginError(f"{_told(found)}: {offence}")
    return assignor


def load_listener(name: str) -> WorkerRebalanceListener:
    """A new listener of that name. Raises as ``load_assignor`` does."""
    found = _find("listeners", name)
    return _make(found, _load(found, WorkerRebalanceListener))


def load_connector_class(name: str) -> type[Connector]:
    """The class that ``connector.class`` names. Raises as ``load_assignor`` does."""
    found = _find("connectors", name)
    return _load(found, Connector)  # type: ignore[type-abstract]


def load_source_class(name: str) -> type[Source]:
    """The class of a source. Raises as ``load_assignor`` does."""
    return _load(_find("sources", name), Source)  # type: ignore[type-abstract]


def load_sink_class(name: str) -> type[Sink]:
    """The class of a sink. Raises as ``load_assignor`` does."""
    return _load(_find("sinks", name), Sink)  # type: ignore[type-abstract]


def available(kind: Kind) -> tuple[str, ...]:
    """The names that can be asked for, sorted. Nothing is imported."""
    return tuple(sorted({found.name for found in entry_points(group=f"connectgroup.{kind}")}))


def _find(kind: Kind, name: str) -> EntryPoint:
    # Equal entries are one: an editable install may be seen twice on the path.
    named = {_told(found): found for found in entry_points(group=f"connectgroup.{kind}") if found.name == name}
    if not named:
        raise ConfigError(_SETTING[kind], name, ", ".join(available(kind)) or f"none ({kind} are not installed)")
    if len(named) > 1:
        raise PluginError(f"{_SETTING[kind]} {name!r} is defined more than once: {'; '.join(sorted(named))}")
    return next(iter(named.values()))


def _load(found: EntryPoint, base: type[T]) -> type[T]:
    try:
        loaded: object = found.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a module may run anything when it is imported
        raise PluginError(f"{_told(found)}: cannot be imported: {describe(error)}") from error
    if not inspect.isclass(loaded) or not issubclass(loaded, base):
        raise PluginError(f"{_told(found)}: is not a subclass of {base.__name__}")
    missing = sorted(getattr(loaded, "__abstractmethods__", ()))
    if missing:
        raise PluginError(f"{_told(found)}: is abstract; missing: {', '.join(missing)}")
    return loaded


def _make(found: EntryPoint, cls: type[T]) -> T:
    try:
        return cls()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(f"{_told(found)}: cannot be made: {describe(error)}") from error


def _told(found: EntryPoint) -> str:
    kind = found.group.removeprefix("connectgroup.").removesuffix("s")
    origin = f"{found.dist.name} {found.dist.version}" if found.dist else "an unknown distribution"
    return printable(f"{kind} {found.name!r} ({found.value} of {origin})", most=300)

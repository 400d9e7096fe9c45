"""Loads plug-ins by name.

A plug-in is a class that an installed distribution registers in one of connectgroup's entry point groups. Nothing else
is ever imported: a dotted path in a configuration, which may come from the network, is treated as a name and is not
found. A connector class is also found by the simple name of its Python class, as in Kafka Connect. Every error is one
line that names the plug-in, the distribution and the problem.

If two plug-ins have the same name, loading that name fails with an error that names both; this includes built-in
plug-ins. Otherwise the order of the search path would decide which of them runs (KAFKA-20843).
"""

from __future__ import annotations

import difflib
import inspect
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Final, Literal, TypeVar

from .assign.api import Assignor, ConnectAssignor, PartitionAssignor
from .assign.sandbox import declaration_violation, describe, location_in, location_of
from .checks import kind_of
from .connector import Connector
from .dataplane.java_plugins import (
    PLUGIN_PATH,
    find_java_class,
    how_to_install,
    is_java_name,
    java_class_name,
    java_classes,
)
from .dataplane.sink import Sink
from .dataplane.source import Source
from .dataplane.transform import Predicate, Transform
from .errors import ConfigError, PluginError
from .listener import WorkerRebalanceListener
from .protocol.units import printable

KNOWN_FOR_S: Final = 1.0
"""For how long the installed plug-ins are remembered: to read the metadata of all distributions takes 10 ms."""

Kind = Literal[
    "assignors",
    "partition_assignors",
    "listeners",
    "connectors",
    "java_connectors",
    "sources",
    "sinks",
    "transforms",
    "predicates",
]
_SETTING: dict[Kind, str] = {
    "assignors": "assignor",
    "partition_assignors": "assignor",
    "listeners": "listener",
    "connectors": "connector.class",
    "java_connectors": "connector.class",
    "sources": "source",
    "sinks": "sink",
    "transforms": "transforms.<name>.type",
    "predicates": "predicates.<name>.type",
}
T = TypeVar("T")
AnyAssignor = TypeVar("AnyAssignor", bound=Assignor[Any, Any, Any])


def installed_plugins(kind: Kind) -> EntryPoints:
    """The entry points of the group ``connectgroup.KIND``, as they were at most ``KNOWN_FOR_S`` ago."""
    return _read_entry_points(kind, tuple(sys.path), time.monotonic() // KNOWN_FOR_S)


@lru_cache(maxsize=16)
def _read_entry_points(kind: Kind, search_path: tuple[str, ...], period: float) -> EntryPoints:
    return entry_points(group=f"connectgroup.{kind}")


def load_assignor(name: str) -> ConnectAssignor:
    """Create an assignor of connectors and tasks.

    Raises:
        ConfigError: there is no plug-in of that name; the error lists the available names.
        PluginError: two plug-ins have the name, or the plug-in cannot be imported, created or used.
    """
    return _load_assignor("assignors", name, ConnectAssignor)  # type: ignore[type-abstract]


def load_partition_assignor(name: str) -> PartitionAssignor:
    """Create an assignor of topic partitions. Raises the same errors as ``load_assignor``.

    The two kinds have separate entry point groups, so that an error never lists an assignor that cannot serve the
    group, and the same name may be used for the same algorithm in both.
    """
    return _load_assignor("partition_assignors", name, PartitionAssignor)  # type: ignore[type-abstract]


def _load_assignor(kind: Kind, name: str, base: type[AnyAssignor]) -> AnyAssignor:
    found = _find(kind, name)
    assignor = _make(found, _load(found, base))
    violation = declaration_violation(assignor)
    if violation is None and assignor.name != name:
        # Members match assignors by the ``name`` of the class, operators by the name of the entry point.
        violation = f"name: got {printable(assignor.name)!r}; allowed: {name!r}, as its entry point says"
    if violation is not None:
        raise PluginError(f"{_describe_entry_point(found)}: {violation}")
    return assignor


def load_listener(name: str) -> WorkerRebalanceListener:
    """Create a listener. Raises the same errors as ``load_assignor``."""
    found = _find("listeners", name)
    return _make(found, _load(found, WorkerRebalanceListener))


def connector_class_name(name: str) -> str:
    """The name under which a connector class is installed, for its simple class name with or without ``Connector``.

    Any other text is returned as it is. Kafka Connect finds its connectors by these forms too (``PluginUtils``).
    """
    installed = installed_plugins("connectors")
    if any(found.name == name for found in installed):
        return name
    classes = {found.name for found in installed if name in (found.attr, found.attr.removesuffix("Connector"))}
    return next(iter(classes)) if len(classes) == 1 else name


def load_connector_class(name: str) -> type[Connector]:
    """Return the class that ``connector.class`` names. Raises the same errors as ``load_assignor``.

    A Java class in a jar on the plug-in path is a connector of Kafka Connect (``connectors.connect``).
    """
    named = connector_class_name(name)
    java = "" if named in available("connectors") else java_class_name(named)
    if java and find_java_class(java) is not None:
        is_sink = any(each.name == java and each.kind == "sink" for each in java_classes())
        found = _find("java_connectors", "sink" if is_sink else "source")
    else:
        found = _find("connectors", named)
    return _load(found, Connector)  # type: ignore[type-abstract]


def load_source_class(name: str) -> type[Source]:
    """Return the class of a source. Raises the same errors as ``load_assignor``."""
    return _load(_find("sources", name), Source)  # type: ignore[type-abstract]


def load_sink_class(name: str) -> type[Sink]:
    """Return the class of a sink. Raises the same errors as ``load_assignor``."""
    return _load(_find("sinks", name), Sink)  # type: ignore[type-abstract]


def load_transform_class(name: str, setting: str) -> type[Transform]:
    """Return the class of a transform that a setting names. Raises the same errors as ``load_assignor``."""
    return _load(_find("transforms", name, setting), Transform)  # type: ignore[type-abstract]


def load_predicate_class(name: str, setting: str) -> type[Predicate]:
    """Return the class of a predicate that a setting names. Raises the same errors as ``load_assignor``."""
    return _load(_find("predicates", name, setting), Predicate)  # type: ignore[type-abstract]


def available(kind: Kind) -> tuple[str, ...]:
    """Return the available names, sorted. Nothing is imported."""
    return tuple(sorted({found.name for found in installed_plugins(kind)}))


def installed_versions(kind: Kind) -> Mapping[str, str]:
    """The version of the distribution of each plug-in, by its name, sorted; as old as ``installed_plugins``."""
    return _read_versions(kind, tuple(sys.path), time.monotonic() // KNOWN_FOR_S)


@lru_cache(maxsize=16)
def _read_versions(kind: Kind, search_path: tuple[str, ...], period: float) -> Mapping[str, str]:
    found = sorted(_read_entry_points(kind, search_path, period), key=lambda each: each.name)
    return {each.name: each.dist.version if each.dist else "" for each in found}


_BASES: Final[dict[Kind, type]] = {
    "assignors": ConnectAssignor,
    "partition_assignors": PartitionAssignor,
    "listeners": WorkerRebalanceListener,
    "connectors": Connector,
    "java_connectors": Connector,
    "sources": Source,
    "sinks": Sink,
    "transforms": Transform,
    "predicates": Predicate,
}


def unusable(kind: Kind) -> list[str]:
    """Why plug-ins of a kind cannot be loaded, a line for each: two have one name, or one cannot be imported.

    Plug-ins of other distributions are imported.
    """
    problems = []
    for name in available(kind):
        try:
            found = _find(kind, name)
            if found.dist is None or found.dist.name != "connectgroup":
                _load(found, _BASES[kind])
        except PluginError as error:
            problems.append(error.with_location())
    return problems


def _find(kind: Kind, name: str, setting: str = "") -> EntryPoint:
    setting = setting or _SETTING[kind]
    if not isinstance(name, str):
        raise ConfigError(setting, kind_of(name), "the name of an installed one; an object or class needs no load")
    named = [found for found in installed_plugins(kind) if found.name == name]
    if not named:
        near = difflib.get_close_matches(name, available(kind), n=1)
        allowed = ", ".join(available(kind)) or f"none ({kind} are not installed)"
        if near:
            allowed = f"{allowed} (did you mean {near[0]}?)"
        elif kind == "connectors" and is_java_name(name):
            allowed = (
                f"{allowed}, a Java class in a jar on the plug-in path (--plugin-path, {PLUGIN_PATH}):"
                f" {how_to_install(name)}. Some of Kafka Connect may run as a pipeline: connectgroup connectors"
                " translate FILE"
            )
        elif kind == "connectors" and name.endswith(("Connector", "FileStreamSource", "FileStreamSink")):
            allowed = f"{allowed}. One of Kafka Connect may run as a pipeline: connectgroup connectors translate FILE"
        raise ConfigError(setting, name, allowed)
    if len(named) > 1:
        # Equal entries count as one: an editable install may appear twice on the path. A description reads the metadata
        # of the distribution, which takes a millisecond.
        described = sorted({_describe_entry_point(found) for found in named})
        if len(described) > 1:
            raise PluginError(f"{setting} {name!r} is defined more than once: {'; '.join(described)}")
    return named[0]


def _load(found: EntryPoint, base: type[T]) -> type[T]:
    try:
        loaded: object = found.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit: a module may run any code on import
        message = f"{_describe_entry_point(found)}: cannot be imported: {describe(error)}"
        raise PluginError(message, location=location_in(error, found.module)) from error
    if not inspect.isclass(loaded) or not issubclass(loaded, base):
        raise PluginError(f"{_describe_entry_point(found)}: is not a subclass of {base.__name__}")
    missing = sorted(getattr(loaded, "__abstractmethods__", ()))
    if missing:
        raise PluginError(f"{_describe_entry_point(found)}: is abstract; missing: {', '.join(missing)}")
    return loaded


def _make(found: EntryPoint, cls: type[T]) -> T:
    try:
        return cls()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        message = f"{_describe_entry_point(found)}: cannot be made: {describe(error)}"
        raise PluginError(message, location=location_of(error, cls)) from error


def _describe_entry_point(found: EntryPoint) -> str:
    kind = found.group.removeprefix("connectgroup.").removesuffix("s")
    origin = f"{found.dist.name} {found.dist.version}" if found.dist else "an unknown distribution"
    return printable(f"{kind} {found.name!r} ({found.value} of {origin})", limit=300)

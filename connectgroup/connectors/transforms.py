"""The transforms and predicates of a connector's configuration, in Kafka Connect's form.

``transforms=a,b`` names the transforms in order; ``transforms.a.type`` is the plug-in of one;
``transforms.a.predicate`` and ``transforms.a.negate`` limit it to some rows; everything else below ``transforms.a.``
are its settings.
``predicates=p`` and ``predicates.p.type`` are the same for predicates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from ..connector import Config
from ..dataplane.dead_letters import HAS_VALUE_COLUMN, PLACE_COLUMN
from ..dataplane.java_plugins import find_java_class, is_java_name
from ..dataplane.settings import parse_settings, setting_names, settings_below, unknown_setting
from ..dataplane.transform import Place, Predicate, Transform, entry_point_name, listed
from ..errors import NO_VALUE, ConfigError
from ..plugins import available, load_predicate_class, load_transform_class
from ..spark.connect_runtime import KAFKA_TRANSFORMS, JavaTransform

if TYPE_CHECKING:
    from ..spark.transforms.chain import Chain

TRANSFORMS: Final = "transforms."
PREDICATES: Final = "predicates."
MAX_NAMES: Final = 100
"""Transforms of one connector, and predicates: each is looked for among all settings, and Spark plans each."""
PluginT = TypeVar("PluginT", bound=Transform | Predicate)


def check_predicates(chain: Chain, columns: frozenset[str], source: str) -> None:
    """Check that the source has the columns that predicates require, as far as the transforms before keep its columns.

    Args:
        chain: the transforms and their predicates.
        columns: the names of the columns of the source.
        source: the name of the source.

    Raises:
        ConfigError: a predicate requires a column that the source does not have.
    """
    for step in chain:
        if step.predicate is not None:
            for name in step.predicate.requires:
                if name not in columns:
                    raise ConfigError(
                        f"{step.predicate.place.prefix}type",
                        type(step.predicate).__name__,
                        f"predicates without the column {name}: the source {source} has the columns "
                        + ", ".join(sorted(columns)),
                    )
        if not step.transform.keeps_columns:
            return


def check_types(chain: Chain, types: Mapping[str, str]) -> None:
    """Check the settings of transforms with the columns of the source, as far as the transforms before keep them.

    Raises:
        ConfigError: a setting does not fit a column.
    """
    for step in chain:
        step.transform.check_columns(types)
        if not step.transform.keeps_columns:
            return


def split_java(config: Config, *, is_sink: bool = False) -> tuple[Config, list[JavaTransform]]:
    """Return a configuration without the transformations of Kafka Connect's plug-ins, and these.

    They get the records before rows are made of them, so they are the first ones.

    Args:
        is_sink: whether a plug-in gets the records as they are in Kafka: then all are those of Java.

    Raises:
        ConfigError: one follows a transform of this package, or a predicate does not fit.
    """
    names, found, others = _names(config, "transforms"), list[JavaTransform](), list[str]()
    kinds = [config.get(f"{TRANSFORMS}{name}.type", "") for name in names]
    last = max((at for at, kind in enumerate(kinds) if is_java_transform(kind)), default=-1)
    for at, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        prefix = f"{TRANSFORMS}{name}."
        settings = settings_below(config, prefix)
        if is_sink and not is_java_name(kind):
            raise ConfigError(f"{prefix}type", kind, "a Java class: a sink connector in Java gets the records of Kafka")
        # Kafka's own are Java's, too: so they may come before one of a plug-in.
        if not (is_sink or is_java_transform(kind) or (at < last and kind.startswith(KAFKA_TRANSFORMS))):
            others.append(name)
            continue
        if others:
            allowed = f"{name} before {others[0]}: a transformation of Java gets the record before the rows are made"
            raise ConfigError("transforms", config["transforms"], allowed)
        negate, predicate = _negates(settings, prefix), settings.pop("predicate", "")
        of_predicate = settings_below(config, f"{PREDICATES}{predicate}.") if predicate else {}
        if predicate and not is_java_name(of_predicate.get("type", "")):
            allowed = "a predicate whose type is a Java class, for a transformation of Java"
            raise ConfigError(f"{prefix}predicate", predicate, allowed)
        found.append(
            JavaTransform(
                cls=settings.pop("type"),
                setting=f"{prefix}type",
                config=settings,
                predicate=of_predicate.pop("type", ""),
                predicate_setting=f"{PREDICATES}{predicate}.type" if predicate else "",
                predicate_config=of_predicate,
                negate=negate,
            )
        )
    if not found:
        return config, []
    used = {
        name
        for name in _names(config, "predicates")
        if any(config.get(f"{TRANSFORMS}{each}.predicate") == name for each in others)
    }
    java = {f"{TRANSFORMS}{name}." for name in names if name not in others}
    java |= {f"{PREDICATES}{name}." for name in _names(config, "predicates") if name not in used}
    left = {key: value for key, value in config.items() if not key.startswith(tuple(java))}
    return {**left, "transforms": ",".join(others), "predicates": ",".join(sorted(used))}, found


def is_java_transform(kind: str) -> bool:
    """Whether the type of a transform is a class of Java that this package does not have itself."""
    if not is_java_name(kind):
        return False
    if kind.startswith(KAFKA_TRANSFORMS):
        return kind.rpartition(".")[2].partition("$")[0] not in available("transforms")
    return find_java_class(kind) is not None


def parse_chain(config: Config, metadata: frozenset[str]) -> Chain:
    """Create the transforms of a configuration, in order.

    Args:
        config: the whole configuration of the connector.
        metadata: the columns of the source that are record metadata.

    Raises:
        ConfigError: a setting is missing, unknown or not allowed; carries the first one.
        PluginError: a transform or a predicate cannot be loaded.
    """
    from ..spark.transforms.chain import ChainStep

    names, predicates = _names(config, "transforms"), _names(config, "predicates")
    _check_prefixes(config, TRANSFORMS, names)
    _check_prefixes(config, PREDICATES, predicates)
    steps = []
    metadata |= {PLACE_COLUMN, HAS_VALUE_COLUMN}  # which the rows of a batch may have (``passes_on``)
    for name in names:
        prefix = f"{TRANSFORMS}{name}."
        settings = settings_below(config, prefix)
        negate, predicate = _negates(settings, prefix), settings.pop("predicate", None)
        if predicate is not None and predicate not in predicates:
            raise ConfigError(f"{prefix}predicate", predicate, ", ".join(predicates) or "a name listed in predicates")
        place = Place(prefix, metadata)
        transform = _create(settings, place, _transform_class, ("predicate", "negate"))
        steps.append(ChainStep(transform, _predicate(config, predicate, metadata) if predicate else None, negate))
        metadata |= frozenset(transform.adds_metadata)
    if not names:
        for name in predicates:
            _predicate(config, name, metadata)
    return tuple(steps)


def _predicate(config: Config, name: str, metadata: frozenset[str]) -> Predicate:
    prefix = f"{PREDICATES}{name}."
    return _create(settings_below(config, prefix), Place(prefix, metadata), _predicate_class)


def _create(
    settings: dict[str, str],
    place: Place,
    load: Callable[[str, str], type[PluginT]],
    framework: tuple[str, ...] = (),
) -> PluginT:
    """Create one plug-in from the settings below its prefix."""
    setting = f"{place.prefix}type"
    kind = settings.pop("type", None)
    if kind is None:
        names = available("transforms") if place.prefix.startswith(TRANSFORMS) else available("predicates")
        raise ConfigError(setting, NO_VALUE, ", ".join(names))
    cls = load(kind, setting)
    known = setting_names(cls.Settings)
    for key in settings:
        if key not in known:
            raise unknown_setting(place.prefix + key, [place.prefix + name for name in (*known, *framework, "type")])
    return cls(parse_settings(cls.Settings, settings, prefix=place.prefix), place)


def _transform_class(name: str, setting: str) -> type[Transform]:
    return load_transform_class(entry_point_name(name, setting), setting)


def _predicate_class(name: str, setting: str) -> type[Predicate]:
    return load_predicate_class(entry_point_name(name, setting), setting)


def _negates(settings: dict[str, str], prefix: str) -> bool:
    """Take from the settings of a transform whether it applies to the records for which its predicate is false.

    Raises:
        ConfigError: it is neither true nor false, or there is no predicate.
    """
    negate = settings.pop("negate", None)
    if negate is None:
        return False
    if negate.lower() not in ("true", "false"):
        raise ConfigError(f"{prefix}negate", negate, "true, false")
    if not settings.get("predicate"):
        raise ConfigError(f"{prefix}negate", negate, f"nothing without {prefix}predicate")
    return negate.lower() == "true"


def _names(config: Config, setting: str) -> tuple[str, ...]:
    names = listed(config.get(setting, ""))
    if len(names) > MAX_NAMES:
        raise ConfigError(setting, f"{len(names)} names", f"at most {MAX_NAMES}")
    if len(set(names)) < len(names) or not all(re.fullmatch(r"[\w-]+", name) for name in names):
        raise ConfigError(setting, config[setting], "names of letters, digits, _ and -, each once, by commas")
    return names


def _check_prefixes(config: Config, prefix: str, names: tuple[str, ...]) -> None:
    for key in config:
        if key.startswith(prefix) and key.removeprefix(prefix).partition(".")[0] not in names:
            raise unknown_setting(key, [f"{prefix}{name}.type" for name in names] or [prefix.rstrip(".")])

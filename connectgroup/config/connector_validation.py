"""The settings of connector classes, transforms and predicates, and the validation of a configuration.

Definitions come from the pydantic models of a connector class (``Connector.settings_models``) and from the settings
that every connector has. Validation collects all errors by setting: those of the common settings, of the models, and
then of the class itself, which is created as on a worker. A class is loaded by entry point only.

Source: Kafka Connect's ``ConfigInfos``, KIP-26, KIP-769.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ..assign.placement import (
    DEFAULT_PROGRESS_TIMEOUT_MS,
    PROGRESS_TIMEOUT,
    RETRY_DELAY,
    RETRY_TIMEOUT,
    check_settings,
    placement_settings,
)
from ..connector import Config, Connector
from ..dataplane.java_plugins import JavaKind, is_java_name, java_classes
from ..dataplane.settings import NOT_INSTALLED, settings_below
from ..dataplane.transform import entry_point_name
from ..errors import NO_VALUE, UNKNOWN_SETTING, ConfigError, PluginError
from ..masking import is_credential, masked_value, without_secrets
from ..plugins import (
    Kind,
    available,
    installed_versions,
    load_connector_class,
    load_predicate_class,
    load_transform_class,
)
from ..protocol.units import printable
from .connector_check import create_checked
from .connector_offsets import Permissions, access_errors
from .paths import AllowedPaths
from .secrets import Secrets

COMMON: Final = "Common"
PLACEMENT: Final = "Placement"

PLUGIN_TYPES: Final[Mapping[Kind, str]] = {
    "connectors": "source",
    "sources": "source",
    "sinks": "sink",
    "transforms": "transformation",
    "predicates": "predicate",
}
"""Kafka's ``PluginType`` of each kind that ``/connector-plugins`` lists."""

_ENDS: Final[Mapping[str, Kind]] = {"source": "sources", "sink": "sinks"}

MAX_COLLECTED: Final = 10
"""So many errors of a check that reports its first one only are collected; each costs another check."""

_TYPES: Final = {int: "INT", float: "DOUBLE", bool: "BOOLEAN"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One setting of a connector class.

    Attributes:
        name: the setting, with its prefix.
        type: Kafka's type: STRING, INT, DOUBLE, BOOLEAN, PASSWORD.
        required: whether it has no default.
        default: the default as text; ``None`` if there is none.
        documentation: the allowed values.
        group: the heading under which a user interface shows it.
        recommended: values that a user interface offers.
    """

    name: str
    type: str = "STRING"
    required: bool = False
    default: str | None = None
    documentation: str = ""
    group: str = COMMON
    recommended: tuple[str, ...] = ()

    def as_json(self, order: int = 0) -> dict[str, Any]:
        """Kafka Connect's ``ConfigKeyInfo``."""
        return {
            "name": self.name,
            "type": self.type,
            "required": self.required,
            "default_value": self.default,
            "importance": "HIGH" if self.required else "MEDIUM",
            "documentation": self.documentation,
            "group": self.group,
            "width": "MEDIUM",
            "display_name": self.name,
            "dependents": [],
            "order": order,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """The result of ``validate``.

    Attributes:
        connector_class: ``connector.class``.
        config: the configuration, credentials masked.
        definitions: all settings of the class; the common settings only, if the class cannot be loaded.
        errors_of: errors by setting; a setting may be unknown.
        connector: the connector that the configuration makes; ``None`` if it has errors.
        error: the first error, with setting and value; ``None`` without errors.
        access: why it was not tried to reach the source and the sink, if it was asked for; empty if it was tried.
    """

    connector_class: str
    config: Mapping[str, str]
    definitions: tuple[Definition, ...]
    errors_of: Mapping[str, tuple[str, ...]]
    connector: Connector | None = dataclasses.field(default=None, repr=False)
    error: ConfigError | PluginError | None = None
    access: str = ""

    @property
    def errors(self) -> list[str]:
        """All errors, in the order of the settings."""
        return [error for errors in self.errors_of.values() for error in errors]

    def as_json(self) -> dict[str, Any]:
        """Kafka Connect's ``ConfigInfos``. An unknown setting has an error and no definition."""
        known = {definition.name: definition for definition in self.definitions}
        names = [*known, *(name for name in self.errors_of if name not in known)]
        return {
            "name": self.connector_class,
            "error_count": len(self.errors),
            "groups": list(dict.fromkeys(definition.group for definition in self.definitions)),
            "configs": [
                {
                    "definition": known[name].as_json(order) if name in known else None,
                    "value": {
                        "name": name,
                        "value": self.config.get(name, known[name].default if name in known else None),
                        "recommended_values": list(known[name].recommended) if name in known else [],
                        "errors": list(self.errors_of.get(name, ())),
                        "visible": True,
                    },
                }
                for order, name in enumerate(names, 1)
            ],
        }


def list_plugins(*kinds: Kind) -> list[dict[str, str]]:
    """Name, type and version of each installed plug-in of these kinds, of ``PLUGIN_TYPES``. Nothing is imported."""
    return [
        {"class": name, "type": PLUGIN_TYPES[kind], "version": version}
        for kind in kinds
        for name, version in installed_versions(kind).items()
    ]


def list_java_plugins(*kinds: JavaKind) -> list[dict[str, str]]:
    """Name, type and version of each class of these kinds on the plug-in path, in the same form. No Java is needed. One
    that two plug-ins have is listed once: the first one runs.
    """
    listed: dict[tuple[str, str], dict[str, str]] = {}
    for each in java_classes():
        if each.kind in kinds:
            listed.setdefault((each.name, each.kind), {"class": each.name, "type": each.kind, "version": each.version})
    return list(listed.values())


def plugin_definitions(name: str) -> tuple[Definition, ...]:
    """All settings of a connector class, or of a transform or a predicate without a prefix, or of a source or sink of
    ``pipeline`` with its prefix; of both if they have one name.

    Args:
        name: of its entry point; of a transform or predicate also Kafka Connect's class.

    Raises:
        ConfigError: there is no such plug-in; names the most similar one, or lists the available ones.
        PluginError: it cannot be loaded.
    """
    if name in available("connectors"):
        return definitions({"connector.class": name})
    short = entry_point_name(name, "plugin")
    model: type[BaseModel]
    if short in available("transforms"):
        model = load_transform_class(short, "plugin").Settings
    elif short in available("predicates"):
        model = load_predicate_class(short, "plugin").Settings
    elif ends := [end for end in _ENDS if name in available(_ENDS[end])]:
        found = definitions({"connector.class": "pipeline", **dict.fromkeys(ends, name)})
        return tuple(each for each in found if each.name.split(".")[0] in ends and "." in each.name)
    else:
        try:
            return definitions({"connector.class": name})
        except ConfigError as error:
            installed = {kind: available(kind) for kind in PLUGIN_TYPES}
            near = difflib.get_close_matches(name, [each for names in installed.values() for each in names], n=1)
            # Of a class of Kafka Connect, the error says how to get it.
            if is_java_name(name) or (not near and error.allowed != ", ".join(installed["connectors"])):
                raise
        if near:
            kinds = "a connector class, a source, a sink, a transform or a predicate"
            raise ConfigError("plugin", name, f"{kinds} that connectgroup plugins list shows (did you mean {near[0]}?)")
        raise ConfigError("plugin", name, "; ".join(f"{kind} {', '.join(names)}" for kind, names in installed.items()))
    return tuple(_definition("", key, field, model) for key, field in _fields(model))


def definitions(config: Config) -> tuple[Definition, ...]:
    """All settings of the class that ``connector.class`` names.

    Args:
        config: the configuration; it may be incomplete. Some classes have other settings for other values.

    Raises:
        ConfigError: there is no such class; lists the available ones.
        PluginError: the class cannot be loaded.
    """
    return _defined(_models(load_connector_class(config.get("connector.class", "")), config))


def _defined(models: Mapping[str, type[BaseModel]]) -> tuple[Definition, ...]:
    defined = {definition.name: definition for definition in common_definitions()}
    for prefix, model in models.items():
        for key, field in _fields(model):
            defined.setdefault(prefix + key, _definition(prefix, key, field, model))
    return tuple(defined.values())


def validate(
    config: Mapping[str, str],
    allowed_paths: AllowedPaths = None,
    *,
    secrets: Secrets | None = None,
    access: Permissions | None = None,
) -> Validation:
    """Validate a configuration, and create its connector. Imports the class and its plug-ins, and may block.

    Args:
        allowed_paths, secrets: see ``connector_check.check_connector``.
        access: if the settings are valid, try to reach what they name (``Connector.check_access``) with these
            permissions; ``None``: open nothing.
    """
    errors: dict[str, list[str]] = {}
    raised: list[ConfigError | PluginError] = []
    connector: Connector | None = None

    def add(setting: str, message: object) -> None:
        text = printable(without_secrets(str(message)[:10_000], config).split("\n")[0], limit=500)
        errors.setdefault(setting, []).append(text)

    def without_errors() -> dict[str, str]:
        return {key: value for key, value in config.items() if key not in errors}

    def result(defined: tuple[Definition, ...], access: str = "the settings are not valid") -> Validation:
        return Validation(
            connector_class=config.get("connector.class", ""),
            config={key: masked_value(key, value) for key, value in config.items()},
            definitions=defined,
            errors_of={key: tuple(messages) for key, messages in errors.items()},
            connector=None if errors else connector,
            error=raised[0] if raised else None,
            access=access,
        )

    if not config.get("name"):
        add("name", 'Missing required configuration "name" which has no default value.')
    for _ in range(MAX_COLLECTED):
        try:
            check_settings(config.get("name", ""), sound := without_errors())
            break
        except ConfigError as error:
            raised.append(error)
            add(error.field, error)
            if error.field not in sound:
                break
    if not config.get("connector.class"):
        raised.append(ConfigError("connector.class", NO_VALUE, "the name of a connector class"))
        add("connector.class", 'Missing required configuration "connector.class" which has no default value.')
        return result(common_definitions())
    try:
        cls = load_connector_class(config["connector.class"])
        models = _models(cls, config)
    except (ConfigError, PluginError) as error:
        raised.append(error)
        add("connector.class", error)
        return result(common_definitions())
    defined = _defined(models)
    for prefix, model in models.items():
        for setting, message in _model_errors(prefix, model, config):
            if setting not in errors:
                raised += [message] if isinstance(message, ConfigError) else []
                add(setting, message)
    for _ in range(MAX_COLLECTED):
        try:
            connector = create_checked(cls, config.get("name", ""), sound := without_errors(), allowed_paths, secrets)
        except ConfigError as error:
            raised.append(error)
            # A missing setting is often a misspelt one. Other errors of the class may result from the errors so far.
            unknown = error.value is UNKNOWN_SETTING and error.field in sound
            if unknown or not errors:
                add(error.field, error)
            if unknown:
                continue
        except PluginError as error:
            raised.append(error)
            if not errors:
                add("connector.class", error)
        break
    if errors:
        return result(defined)
    if access is None:
        return result(defined, "")
    assert connector is not None, "it has no errors"
    try:
        found = access_errors(connector, config["name"], config, int(config.get("tasks.max", "1")), access)
    except ConfigError as error:
        return result(defined, without_secrets(str(error), config))
    except PluginError as error:
        found = {"connector.class": str(error)}
    for setting, message in found.items():
        add(setting, message)
    return result(defined, "")


def _models(cls: type[Connector], config: Config) -> Mapping[str, type[BaseModel]]:
    try:
        return cls.settings_models(config)
    except Exception as error:
        raise PluginError(f"connector class {cls.__name__}: settings_models failed: {type(error).__name__}") from error


def _model_errors(prefix: str, model: type[BaseModel], config: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    """All errors of the settings of one model. Unknown settings are left to the class, which knows all its models."""
    known = {key for key, _ in _fields(model)}
    values = settings_below(config, prefix)
    try:
        model.model_validate({key: value for key, value in values.items() if key in known})
    except ConfigError as error:
        yield error.field, error
    except ValidationError as error:
        documented = {key: field.description for key, field in _fields(model)}
        for violation in error.errors(include_url=False):
            key = str(violation["loc"][0]) if violation["loc"] else ""
            if violation["type"] == "missing":
                yield prefix + key, f'Missing required configuration "{prefix}{key}" which has no default value.'
            else:
                described = None if violation["type"] == NOT_INSTALLED else documented.get(key)
                allowed = described or violation["msg"]
                yield prefix + key, ConfigError(prefix + key, values.get(key, ""), allowed)


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """The settings of a model; a field with ``exclude=True`` is internal, not a setting."""
    for name, field in model.model_fields.items():
        if not field.exclude:
            yield field.alias or name, field


def _definition(prefix: str, key: str, field: FieldInfo, model: type[BaseModel]) -> Definition:
    default = None if field.is_required() else field.get_default(call_default_factory=False)
    kind = next((name for python, name in _TYPES.items() if field.annotation is python), "STRING")
    return Definition(
        name=prefix + key,
        type="PASSWORD" if is_credential(key) else kind,
        required=field.is_required(),
        default=None if default is None else str(default),
        documentation=field.description or "",
        group=prefix.rstrip(".").capitalize() or model.__name__.removesuffix("Settings"),
    )


def common_definitions() -> tuple[Definition, ...]:
    """The settings that every connector has."""
    return (
        Definition(name="name", required=True, documentation="the connector's name, unique in its group"),
        Definition(
            name="connector.class",
            required=True,
            documentation="the name of an installed connector class",
            recommended=available("connectors"),
        ),
        Definition(
            name="tasks.max", type="INT", default="1", documentation="maximum number of tasks: a whole number from 1"
        ),
        Definition(
            name=PROGRESS_TIMEOUT,
            type="INT",
            default=DEFAULT_PROGRESS_TIMEOUT_MS,
            documentation="a task that completes no poll within this time, in milliseconds, is started again; 0: never",
        ),
        Definition(
            name=RETRY_TIMEOUT,
            type="INT",
            default="-1",
            documentation="a unit that has failed for this long, in milliseconds, without writing a row, is not"
            " retried any more; 0: from its first failure; -1: it is retried without end",
        ),
        Definition(
            name=RETRY_DELAY,
            type="INT",
            documentation="the maximum back-off between retries, in milliseconds; 30000 if not set",
        ),
        *(Definition(name=name, group=PLACEMENT, documentation=form) for name, form in placement_settings().items()),
    )

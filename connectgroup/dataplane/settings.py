"""Settings of sources and sinks: one pydantic model per plug-in; errors name the field, the value and what is allowed.

A ``_`` in a field's name is a ``.`` in a configuration: ``busy_timeout_ms`` is ``sink.busy.timeout.ms``. A field's
``description`` states the allowed values; the error message for a rejected value ends with it.

Of the settings of other systems' clients a connector may have those on a list, and those an operator allows. Who may
write a connector is not the user of the worker. Settings of clients read files, send what they contain, start programs,
load code and switch checks off, and each version of a client has new ones. So each client has a list of what is known
to do none of that (Kafka: ``spark.kafka_client``, PostgreSQL: ``postgres_store``, formats of Spark:
``spark.sources.any_spark``, functions of Spark SQL: ``spark.transforms.expressions``).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from ..checks import not_unicode
from ..errors import NO_VALUE, UNKNOWN_SETTING, ConfigError
from ..protocol.units import printable

NOT_INSTALLED: Final = "not_installed"
"""Type of the pydantic error for the name of a plug-in that is not installed; its message lists the installed ones."""


class PluginSettings(BaseModel):
    """Base of the settings of a source or a sink. Unknown settings are rejected; values never appear in a traceback."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, alias_generator=lambda name: name.replace("_", ".")
    )

    @model_validator(mode="before")
    @classmethod
    def _trimmed(cls, config: Any) -> Any:
        """Remove blanks around numbers, booleans and choices, not around texts (Kafka's ``ConfigDef.parseType``)."""
        for name, field in cls.model_fields.items():
            key = field.alias or name
            if str not in (field.annotation, *get_args(field.annotation)) and isinstance(config.get(key), str):
                config = {**config, key: config[key].strip()}
        return config


def require_absolute(field: str, path: str, allowed: str) -> None:
    """Reject a relative path: each worker has its own working directory.

    Raises:
        ConfigError: the path is relative.
    """
    if not Path(path).is_absolute():
        raise ConfigError(field, path, allowed)


def settings_below(config: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the settings with a prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}


SettingsT = TypeVar("SettingsT", bound=PluginSettings)


def parse_settings(model: type[SettingsT], config: Mapping[str, str], *, prefix: str = "") -> SettingsT:
    """Parse and check the settings of one plug-in.

    Args:
        model: the plug-in's settings model.
        config: its configuration; the keys have no prefix.
        prefix: ``source.`` or ``sink.``: prefix of the setting names in an error.

    Raises:
        ConfigError: a setting is missing, unknown or not allowed; carries the first one.
    """
    try:
        return model.model_validate(dict(config))
    except ValidationError as error:
        violation = error.errors()[0]
        if not violation["loc"]:  # pydantic names no field if a key of the settings is not Unicode
            raise not_unicode(prefix, str(violation["input"])) from error
        key = ".".join(str(part) for part in violation["loc"])
        if violation["type"] == "extra_forbidden":
            raise unknown_setting(prefix + key, setting_names(model, prefix)) from error
        described = {str(field.alias or name): field.description for name, field in model.model_fields.items()}
        raise ConfigError(prefix + key, config.get(key, NO_VALUE), described.get(key) or violation["msg"]) from error


def setting_names(model: type[PluginSettings], prefix: str = "") -> list[str]:
    """Return the names of all settings of a model as they are written in a configuration."""
    return sorted(prefix + str(field.alias or name) for name, field in model.model_fields.items())


def unknown_setting(key: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a setting that does not exist; it suggests the most similar setting that does.

    Without a similar one it lists those that may be meant: with the same prefix, if there are some.
    """
    allowed = sorted(known)
    prefix = f"{key.partition('.')[0]}."
    # The prefix is equal, so it says nothing: sink.host is no misspelt sink.table.
    below = [name.removeprefix(prefix) for name in allowed if name.startswith(prefix)] if "." in key else []
    near = [prefix + name for name in difflib.get_close_matches(key.removeprefix(prefix), below, n=1)]
    if not near:
        # sink.dsn is no misspelt sink.
        others = [name for name in allowed if not key.startswith(f"{name}.")]
        near = difflib.get_close_matches(key, others, n=1, cutoff=0.8 if below else 0.6)
    listed = [prefix + name for name in below] or allowed
    return ConfigError(
        printable(key), UNKNOWN_SETTING, f"{near[0]} (did you mean that?)" if near else ", ".join(listed)
    )


ALLOWED_SETTINGS: Final = "CONNECTGROUP_ALLOWED_SETTINGS"
"""Environment variable of a worker, and of a server that checks configurations: more settings, each as
``CLIENT.SETTING``, separated by commas: ``kafka.sasl.oauthbearer.method,postgres.service,sql.from_xml``."""


def is_allowed(client: str, name: str) -> bool:
    """Whether the operator of this process allows a setting that is not on the list of its client."""
    listed = os.environ.get(ALLOWED_SETTINGS, "").split(",")
    return f"{client}.{name}" in (each.strip() for each in listed)


def check_setting(field: str, client: str, name: str, known: Collection[str], what: str) -> None:
    """Reject a setting of a client that neither the list nor the operator allows.

    Args:
        field: the setting of the connector.
        client: as the operator names it.
        name: the client's name of the setting.
        known: the client's list.
        what: what is on the list, for the reader of the error.

    Raises:
        ConfigError: names the setting, without its value, which may be a password.
    """
    if name in known or is_allowed(client, name):
        return
    near = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.9)
    hint = f"{near[0]} (did you mean that?), " if near else ""
    raise ConfigError(field, name, f"{hint}{what}, and what the worker's {ALLOWED_SETTINGS} adds ({client}.SETTING)")

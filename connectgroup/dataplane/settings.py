"""Settings of sources and sinks: a pydantic model a plug-in, errors that name field, value and what is allowed.

``_`` in a field's name reads ``.`` in a configuration: ``busy_timeout_ms`` is ``sink.busy.timeout.ms``. A field's
``description`` says what is allowed; it is the end of the error message when a value is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import NO_VALUE, UNKNOWN_SETTING, ConfigError
from ..protocol.units import printable


class PluginSettings(BaseModel):
    """Base of the settings of a source or a sink. Unknown settings are refused; values never appear in a traceback."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, alias_generator=lambda name: name.replace("_", ".")
    )


def require_absolute(field: str, path: str, allowed: str) -> None:
    """Refuse a relative path: each worker has a working directory of its own.

    Raises:
        ConfigError: the path is relative.
    """
    if not Path(path).is_absolute():
        raise ConfigError(field, path, allowed)


SettingsT = TypeVar("SettingsT", bound=PluginSettings)


def parse_settings(
    model: type[SettingsT], config: Mapping[str, str], *, prefix: str = "", known: Iterable[str] = ()
) -> SettingsT:
    """Read and check the settings of one plug-in.

    Args:
        model: the plug-in's settings.
        config: its configuration, without the prefix.
        prefix: ``source.`` or ``sink.``: what the names in an error begin with.
        known: other settings that exist, with their prefixes, to suggest for a misspelt one.

    Raises:
        ConfigError: the first setting that is missing, unknown or not allowed.
    """
    try:
        return model.model_validate(dict(config))
    except ValidationError as error:
        raise _config_error(error.errors()[0], model, config, prefix, known) from error


def setting_names(model: type[PluginSettings], prefix: str = "") -> list[str]:
    """The names of all settings of a model as they stand in a configuration."""
    return sorted(prefix + str(field.alias or name) for name, field in model.model_fields.items())


def unknown_setting(key: str, known: Iterable[str]) -> ConfigError:
    """The error for a setting that does not exist; suggests the nearest one that does."""
    allowed = sorted(known)
    near = difflib.get_close_matches(key, allowed, n=1)
    return ConfigError(
        printable(key), UNKNOWN_SETTING, f"{near[0]} (did you mean that?)" if near else ", ".join(allowed)
    )


def _config_error(
    violation: Mapping[str, object] | object,
    model: type[PluginSettings],
    config: Mapping[str, str],
    prefix: str,
    known: Iterable[str],
) -> ConfigError:
    assert isinstance(violation, dict)
    key = ".".join(str(part) for part in violation["loc"])
    if violation["type"] == "extra_forbidden":
        return unknown_setting(prefix + key, {*setting_names(model, prefix), *known})
    described = {str(field.alias or name): field.description for name, field in model.model_fields.items()}
    return ConfigError(prefix + key, config.get(key, NO_VALUE), described.get(key) or str(violation["msg"]))

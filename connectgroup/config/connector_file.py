"""Connector files in Kafka Connect's formats: JSON, and the properties of a standalone worker."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from ..assign.placement import check_settings
from ..checks import json_kind, setting_text
from ..errors import NO_VALUE, ConfigError, Problem
from ..masking import HIDDEN, NOT_MASKED
from ..properties import read_properties
from ..protocol.units import printable
from .base import Name, Settings, checked


class ConnectorFile(Settings):
    """A connector in Kafka Connect's format: ``{"name": ..., "config": {...}, "initial_state": ...}``."""

    of_others: ClassVar[frozenset[str]] = frozenset({"config"})

    name: Name
    config: dict[str, str] = Field(repr=False)
    initial_state: Literal["RUNNING", "PAUSED", "STOPPED"] = "RUNNING"


STANDARD_INPUT: Final = Path("-")
"""Read as JSON instead of a file."""


def read_connector(path: Path) -> ConnectorFile:
    """Read a connector from its file, and check the settings that do not depend on its class.

    Raises:
        ConfigError: as ``read_unchecked``, or a setting is invalid. Names the file.
    """
    connector = read_unchecked(path)
    check_common(path, connector)
    return connector


def check_common(path: Path, connector: ConnectorFile) -> None:
    """Check the settings that do not depend on the connector's class.

    Raises:
        ConfigError: one is invalid. Names the file.
    """
    if not connector.config.get("connector.class"):
        raise ConfigError(f"{path}: config.connector.class", NO_VALUE, "the name of a connector class")
    try:
        check_settings(connector.name, connector.config)
    except ConfigError as error:
        raise ConfigError(f"{path}: config.{error.field}", error.value, error.allowed) from error


def read_several(path: Path) -> list[ConnectorFile]:
    """Read the connectors of a file: that of ``read_unchecked``, or of an array of such objects in JSON.

    Raises:
        ConfigError: as ``read_unchecked``; or two have one name, or there is none.
    """
    content = _content(path)
    if not isinstance(content, list):
        return [_connector(str(path), content)]
    if not content:
        raise ConfigError(str(path), "an empty array", "connectors")
    found = [_connector(f"{path}[{number}]", each) for number, each in enumerate(content)]
    for number, each in enumerate(found):
        if any(each.name == other.name for other in found[:number]):
            raise ConfigError(f"{path}[{number}]: name", each.name, "each connector once")
    return found


def read_unchecked(path: Path) -> ConnectorFile:
    """Read a connector from its file; its settings are not checked.

    The file is JSON: an object with ``name`` and ``config``, or the configuration alone, which then has the name (the
    two forms that Kafka Connect reads); or, if its name ends in ``.properties``, the configuration as properties.
    ``-`` is JSON from standard input.

    Raises:
        ConfigError: the file cannot be read, is not of its format, has two names, or contains a masked value. Names the
            file.
    """
    return _connector(str(path), _content(path))


def _content(path: Path) -> Any:
    if path.suffix == ".properties":
        return read_properties(path)
    form = '{"name": ..., "config": {...}}; or properties in a file whose name ends in .properties'
    return read_json(path, form=form)


def _connector(where: str, content: Any) -> ConnectorFile:
    if not isinstance(content, dict):
        raise ConfigError(where, json_kind(content), 'an object: {"name": ..., "config": {...}}')
    if "config" not in content and "connector.class" in content:
        content = {"name": content.get("name", ""), "config": content}
    if isinstance(content.get("config"), dict):
        settings = {key: _text(value) for key, value in content["config"].items()}
        content = {**content, "config": settings}
    connector = checked(ConnectorFile, content, where=f"{where}: ")
    for key, value in connector.config.items():
        if HIDDEN in value:
            raise ConfigError(f"{where}: config.{printable(key)}", HIDDEN, NOT_MASKED)
    name = connector.config.get("name", connector.name)
    if name != connector.name:
        raise ConfigError(f"{where}: config.name", name, f"{printable(connector.name)}, the name of the connector")
    return connector


def read_json(path: Path, *, form: str = '{"offsets": [...]}') -> Any:
    """Read a JSON file in which no object has a key twice.

    Args:
        form: the expected content, for errors.

    Raises:
        ConfigError: the file cannot be read, or is not JSON.
    """
    try:
        text = sys.stdin.read() if path == STANDARD_INPUT else path.read_text(encoding="utf-8-sig")
        if not text.strip():
            raise ConfigError(str(path), Problem("is empty"), f"JSON: {form}")
        return json.loads(text, object_pairs_hook=_once)
    except OSError as error:
        raise ConfigError("file", path, f"a readable file ({error.strerror or error})", is_path=True) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), _not_json(error), f"JSON: {form}") from error


def _not_json(error: Exception) -> Problem:
    is_form = isinstance(error, (json.JSONDecodeError, UnicodeError, RecursionError))
    return Problem(f"is not JSON: {error}" if is_form else str(error))


def settings_from(text: str) -> dict[str, str]:
    """Read the settings of a connector from a JSON object; numbers and booleans become text.

    Raises:
        ConfigError: it is not a JSON object, or a value is none of a setting.
    """
    form = 'an object of settings: {"connector.class": ..., ...}'
    try:
        content = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ConfigError("configuration", _not_json(error), f"JSON: {form}") from error
    if not isinstance(content, dict):
        raise ConfigError("configuration", json_kind(content), form)
    for name, value in content.items():
        if setting_text(value) is None:
            raise ConfigError(printable(name), json_kind(value), "a string, a number or a boolean")
    return {name: _text(value) for name, value in content.items()}


def _text(value: Any) -> Any:
    """The text of a setting; ``ConnectorFile`` rejects values without one."""
    text = setting_text(value)
    return value if text is None else text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject duplicate keys in JSON objects: otherwise the last one would silently win."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"has the key {printable(key)!r} twice")
        found[key] = value
    return found

"""Connector files: JSON, in Kafka Connect's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ..assign.placement import check_settings
from ..errors import NO_VALUE, ConfigError
from ..masking import HIDDEN
from ..protocol.units import printable
from .base import Name, Settings, checked


class ConnectorFile(Settings):
    """A connector in Kafka Connect's format: ``{"name": ..., "config": {...}}``."""

    of_others: ClassVar[frozenset[str]] = frozenset({"config"})

    name: Name
    config: dict[str, str] = Field(repr=False)


def read_connector(path: Path) -> ConnectorFile:
    """Read a connector from its JSON file, and check the settings that do not depend on its class.

    Raises:
        ConfigError: the file cannot be read, is not JSON, or contains an invalid setting. Names the file.
    """
    content = read_json(path, form='{"name": ..., "config": {...}}')
    if not isinstance(content, dict):
        raise ConfigError(str(path), type(content).__name__, 'an object: {"name": ..., "config": {...}}')
    connector = checked(ConnectorFile, content, where=f"{path}: ")
    for key, value in connector.config.items():
        if HIDDEN in value:
            raise ConfigError(f"{path}: config.{printable(key)}", HIDDEN, "the value that a listing has masked")
    if not connector.config.get("connector.class"):
        raise ConfigError(f"{path}: config.connector.class", NO_VALUE, "the name of a connector class")
    try:
        check_settings(connector.name, connector.config)
    except ConfigError as error:
        raise ConfigError(f"{path}: config.{error.field}", error.value, error.allowed) from error
    return connector


def read_json(path: Path, *, form: str = '{"offsets": [...]}') -> Any:
    """Read a JSON file in which no object has a key twice.

    Args:
        form: the expected content, for errors.

    Raises:
        ConfigError: the file cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise ConfigError(str(path), error.strerror or error, "a readable file") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), error, f"JSON: {form}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject duplicate keys in JSON objects: otherwise the last one would silently win."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"duplicate key {key!r}")
        found[key] = value
    return found

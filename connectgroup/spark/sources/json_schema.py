"""Infers columns from JSON objects, for a source that has no schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ...dataplane.columns import Column, Columns, check_names

_TYPES: Final[dict[type, str]] = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}


def columns_of_objects(path: Path, lines: bytes) -> Columns:
    """Return the fields of the objects in some lines, in the order in which they first appear.

    A field is BOOLEAN, BIGINT or DOUBLE if all its values are; integers and other numbers together are DOUBLE.
    Everything else is STRING: also dates, nested values, which are read as JSON text, and fields that are always null.

    Args:
        path: the file, for errors.
        lines: whole lines; those that are not JSON objects do not count.

    Raises:
        ConfigError: two names differ only in case, or a name is empty.
    """
    found: dict[str, set[str]] = {}
    for line in lines.split(b"\n"):
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            continue  # Reported when the line is read.
        for name, value in item.items() if isinstance(item, dict) else ():
            types = found.setdefault(name, set())
            if value is not None:
                types.add(_type_of(value))
    columns = [Column(name, _common(types)) for name, types in found.items()]
    return check_names(columns, field=f"fields of {path}")


def _type_of(value: Any) -> str:
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return "DOUBLE"
    return _TYPES.get(type(value), "STRING")


def _common(types: set[str]) -> str:
    if types == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    return next(iter(types)) if len(types) == 1 else "STRING"

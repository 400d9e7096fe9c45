"""Infers columns from JSON objects, for a source that has no schema."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from ...dataplane.columns import Column, Columns, check_names

_TYPES: Final[dict[type, str]] = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}


def new_fields(objects: Iterable[dict[str, Any]], columns: Columns) -> list[str]:
    """Return the names of fields that are not columns; an empty name, one that differs only in case, and one with a
    lone surrogate, which is not UTF-8, is none."""
    known = {"", *(column.name.lower() for column in columns)}
    found = {name: None for item in objects for name in item if name.lower() not in known and _is_text(name)}
    return list({name.lower(): name for name in reversed(found)}.values())[::-1]


def columns_to_add(lines: bytes) -> Columns:
    """Return the columns of ``columns_of_objects`` without those that cannot be added: see ``new_fields``."""
    columns = _columns_of(lines)
    first = {column.name.lower(): column for column in reversed(columns) if column.name}
    return tuple(column for column in columns if first.get(column.name.lower()) is column)


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
    return check_names(_columns_of(lines), field=f"fields of {path}")


def _columns_of(lines: bytes) -> list[Column]:
    found: dict[str, set[str]] = {}
    for line in lines.split(b"\n"):
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            continue  # Reported when the line is read.
        for name, value in item.items() if isinstance(item, dict) else ():
            if not _is_text(name):
                continue
            types = found.setdefault(name, set())
            if value is not None:
                types.add(_type_of(value))
    return [Column(name, _common(types)) for name, types in found.items()]


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _type_of(value: Any) -> str:
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return "DOUBLE"
    return _TYPES.get(type(value), "STRING")


def _common(types: set[str]) -> str:
    if types == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    return next(iter(types)) if len(types) == 1 else "STRING"

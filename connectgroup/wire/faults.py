"""Finds the field at fault when generated code fails, from the line that failed.

The generated code contains no names and no checks for the sake of messages: it is fast because it simply fails, with
an ``IndexError`` or a ``struct.error``. Each of its lines belongs to one field (or a few), so the traceback *is* the
path to the fault, from the message down to the field, and costs nothing until it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Final

from .definition import INTEGERS, Field
from .primitives import WireFault

MAX_CLASSIC_STRING: Final = 32767
"""Maximum bytes in a string whose length is an int16."""

_BITS: Final = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The fields that each line of a generated module belongs to."""

    filename: str
    version: int
    flexible: bool
    fields: Mapping[int, tuple[Field, ...]]


def explain_decoding(error: BaseException, lines: Lines) -> str:
    """``groups.members.member_id at byte 17: got length 200; allowed: 0 to the 12 bytes that remain``."""
    path, frame, blamed = _trace(error.__traceback__, lines)
    names = [field.attribute for field in blamed]
    place = ".".join([*path, "/".join(names)] if names else path) or "tagged fields"
    at = f" at byte {frame.f_locals['pos']}" if frame is not None and "pos" in frame.f_locals else ""
    if isinstance(error, WireFault):
        return f"{place}{at}: {error}"
    if isinstance(error, UnicodeDecodeError):
        return f"{place}{at}: got bytes that are not UTF-8; allowed: UTF-8"
    return f"{place}{at}: the bytes end before the value does"


def explain_encoding(error: BaseException, lines: Lines) -> str:
    """``owned.tasks: got 2147483648; allowed: int32, -2147483648 to 2147483647``."""
    path, frame, blamed = _trace(error.__traceback__, lines)
    message = frame.f_locals.get("m") if frame is not None else None
    for field in blamed:
        place = ".".join([*path, field.attribute])
        if isinstance(error, WireFault):
            return f"{place}: {error}"
        if not hasattr(message, field.attribute):
            found = type(message).__name__
            return f"{'.'.join(path) or 'message'}: got {found}; allowed: something with {field.attribute}"
        value = getattr(message, field.attribute)
        nullable = lines.version in field.nullable
        if value is None and nullable:
            continue
        if field.array and not isinstance(value, (tuple, list)):
            return f"{place}: got {_found(value)}; allowed: a tuple{' or None' if nullable else ''}"
        for element in value if field.array else (value,):
            if not _fits(field, element, lines.flexible):
                return f"{place}: got {_found(element)}; allowed: {_allowed(field, nullable, lines.flexible)}"
    return f"{'.'.join(path) or 'message'}: cannot be encoded ({type(error).__name__})"


def _trace(traceback: TracebackType | None, lines: Lines) -> tuple[list[str], FrameType | None, tuple[Field, ...]]:
    """The fields on the path, the innermost generated frame, and the fields of its line."""
    path: list[str] = []
    frame: FrameType | None = None
    blamed: tuple[Field, ...] = ()
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == lines.filename:
            if frame is not None and blamed:
                path.append(blamed[0].attribute)
            frame, blamed = traceback.tb_frame, lines.fields.get(traceback.tb_lineno, ())
        traceback = traceback.tb_next
    return path, frame, blamed


def _found(value: object) -> str:
    """Describe a value for an error message, without its text, which may be a secret in a configuration."""
    if value is None or isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        lone = next((at for at, c in enumerate(value) if _lone_surrogate(c)), None)
        if lone is not None:
            return f"a string with U+{ord(value[lone]):04X} at character {lone}"
        return f"a string of {len(value.encode())} bytes"
    return type(value).__name__


def _lone_surrogate(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _fits(field: Field, value: Any, flexible: bool) -> bool:
    if field.choices is not None:
        return value in list(field.choices)
    if field.wire_type in INTEGERS:
        limit = 1 << _BITS[field.wire_type]
        return isinstance(value, int) and -limit <= value < limit
    if field.wire_type == "bool":
        return value in (False, True)
    if field.wire_type == "string":
        if not isinstance(value, str) or any(map(_lone_surrogate, value)):
            return False
        return flexible or len(value.encode()) <= MAX_CLASSIC_STRING
    if field.wire_type == "bytes":
        return isinstance(value, (bytes, bytearray, memoryview))
    return field.struct is not None and isinstance(value, field.struct.cls)


def _allowed(field: Field, nullable: bool, flexible: bool) -> str:
    if field.choices is not None:
        allowed = ", ".join(f"{choice.value} ({choice.name})" for choice in field.choices)
    elif field.wire_type in INTEGERS:
        limit = 1 << _BITS[field.wire_type]
        allowed = f"{field.wire_type}, {-limit} to {limit - 1}"
    elif field.wire_type == "string":
        allowed = "a string without lone surrogates" + ("" if flexible else f", at most {MAX_CLASSIC_STRING} bytes")
    elif field.struct is not None:
        allowed = f"a {field.struct.cls.__name__}"
    else:
        allowed = field.wire_type
    return f"{allowed} or None" if nullable and not field.array else allowed

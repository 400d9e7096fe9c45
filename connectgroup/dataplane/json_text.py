"""JSON that sinks write. JSON has no NaN and no infinity: they are the texts NaN, Infinity and -Infinity, as Kafka
Connect's and Spark's writers have them, and the sources read these texts as numbers.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any


def json_encoder(
    default: Callable[[Any], Any] | None = None, *, ensure_ascii: bool = False, compact: bool = True
) -> Callable[[Any], str]:
    """Return a function that writes a value as JSON.

    Args:
        default: converts a value that JSON does not have; by default bytes to base64 and others with ``str``.
        ensure_ascii: whether other characters are escaped.
        compact: whether there are no blanks.
    """
    separators = (",", ":") if compact else None
    encode = json.JSONEncoder(
        ensure_ascii=ensure_ascii, separators=separators, default=default or plain, allow_nan=False
    ).encode

    def text(value: Any) -> str:
        try:
            return encode(value)
        except ValueError:
            return encode(finite(value))

    return text


def plain(value: Any) -> str:
    """Return bytes in base64, decimals with all digits and no exponent, and any other value as ``str`` has it."""
    if isinstance(value, Decimal):
        return format(value, "f")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def finite(value: Any) -> Any:
    """Return a value in which NaN and infinities are texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value

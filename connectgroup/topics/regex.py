"""Regular expressions in RE2 syntax, as Kafka has them in subscriptions; google-re2 is imported when one is used.

A search takes time linear in the length of its input, so an expression from a client cannot block the coordinator.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

MAX_MEMORY_BYTES = 8 << 20
"""Memory that one compiled expression may use."""


def violation(pattern: str) -> str:
    """What is allowed instead of a regular expression; empty if it is valid."""
    try:
        _compiled(pattern)
    except ImportError:
        return "no regular expression: google-re2 is not installed here (extra 'kafka')"
    except Exception as error:
        detail = error.args[0] if error.args else ""
        return f"RE2 syntax ({detail.decode('utf-8', 'replace') if isinstance(detail, bytes) else detail})"
    return ""


def matching(pattern: str, names: tuple[str, ...]) -> frozenset[str]:
    """The names that match as a whole."""
    compiled = _compiled(pattern)
    return frozenset(name for name in names if compiled.fullmatch(name))


@lru_cache(maxsize=1_000)
def _compiled(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY_BYTES
    return re2.compile(pattern, options)

"""Logs by URL: ``sqlite:///path``, ``postgresql://host/database``, ``kafka://host:port/topic`` and ``memory:``.

A back end is one module or package of ``connectgroup.log`` with a function ``from_url``, and one entry in
``BACK_ENDS``. It is imported only when it is used.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from ..errors import ConfigError

if TYPE_CHECKING:
    from .base import Log

BACK_ENDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "kafka": ("connectgroup.log.kafka.store", "kafka://HOST:PORT/TOPIC"),
        "memory": ("connectgroup.log.memory", "memory:"),
        "postgresql": ("connectgroup.log.postgres.store", "postgresql://USER@HOST:PORT/DATABASE"),
        "sqlite": ("connectgroup.log.sqlite.log", "sqlite:///path"),
    }
)
"""By scheme: the module with ``from_url``, and the form of its URLs for error messages."""

LOG_FILE: Final = "groups.sqlite"
"""The file of the log in the data directory of a coordinator."""

LOG_FORMS: Final = "sqlite:///PATH, the path of the file, or the data directory of a coordinator"
"""How a command names a log that it reads."""

ALLOWED: Final = ", ".join(form for _, form in BACK_ENDS.values())


SHARED: Final = ("kafka", "postgresql")
"""The schemes of logs that several coordinators share."""


def log_from_url(url: str, *, field: str = "log", restored: bool = False) -> Log:
    """Create the log of a URL; it is not opened.

    Args:
        url: one of the forms in ``BACK_ENDS``. Characters that a URL reserves are percent-encoded.
        field: the name of the setting, for the error.
        restored: treat a shared log as one that lacks acknowledged records.

    Raises:
        ConfigError: the scheme is unknown, or the back end rejects the rest of the URL.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(field, url, ALLOWED) from error
    module, form = BACK_ENDS.get(parts.scheme, ("", ""))
    if not module:
        raise ConfigError(field, url, ALLOWED)
    try:
        make = import_module(module).from_url
        log: Log = make(parts, restored=True) if restored else make(parts)
    except ValueError as error:
        raise ConfigError(field, url, form) from error
    return log


def check_parameters(given: Iterable[str], known: Sequence[str]) -> None:
    """Check the names of the parameters of a URL, which follow its question mark.

    Raises:
        ConfigError: one is unknown.
    """
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            allowed = f"?{near[0]}= (did you mean that?)" if near else f"the parameters {', '.join(known)}"
            raise ConfigError("log", f"?{name}=", allowed)


def sqlite_url(path: Path) -> str:
    """The URL of a log in a file; a relative path is relative to the working directory."""
    return f"sqlite:///{quote(str(path))}"

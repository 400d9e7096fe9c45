"""The event loop of a command: asyncio's own, or uvloop's (the extra ``uvloop``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from .errors import ConfigError


def new_event_loop(kind: Literal["asyncio", "uvloop", "auto"]) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory for ``asyncio.Runner``; ``None`` is asyncio's own.

    Args:
        kind: ``auto`` is uvloop's if it is installed.

    Raises:
        ConfigError: uvloop is not installed.
    """
    if kind == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if kind == "auto":
            return None
        raise ConfigError("event loop", "uvloop, not installed", "pip install 'connectgroup[uvloop]'") from None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory

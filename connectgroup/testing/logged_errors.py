"""The errors that the coordinator and the workers of a simulated group log, as events of the group's story.

The log has what their messages to each other omit: file and line of a plug-in that raises, and failed stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from .history import History
from .virtual_time import NODE


class _Noting(logging.Handler):
    """Adds each error that is logged on an event loop to a history."""

    def __init__(self, history: History, loop: asyncio.AbstractEventLoop, mask: Callable[[str], str]) -> None:
        super().__init__(logging.ERROR)
        self._history, self._loop, self._mask = history, loop, mask

    def emit(self, record: logging.LogRecord) -> None:
        node = NODE.get()
        with contextlib.suppress(RuntimeError):  # not on an event loop
            # Other groups of the same test have event loops of their own.
            if node is not None and asyncio.get_running_loop() is self._loop:
                self._history.note(f"{node.name}: {self._mask(record.getMessage())}")


@contextlib.contextmanager
def noted_errors(history: History, loop: asyncio.AbstractEventLoop, mask: Callable[[str], str]) -> Iterator[None]:
    """Add the errors that are logged on this event loop to the history.

    Args:
        mask: removes credentials from a message.
    """
    logger = logging.getLogger(__package__.partition(".")[0])
    handler = _Noting(history, loop, mask)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)

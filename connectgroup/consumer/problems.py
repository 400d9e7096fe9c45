"""Problems that last: logged once when they begin, and once when they are over, however often they are met."""

from __future__ import annotations

import logging
import time

from ..protocol.units import printable

logger = logging.getLogger(__name__)


class Problems:
    """The present problems of one consumer, by subject.

    Args:
        group: for the log.
    """

    def __init__(self, group: str) -> None:
        self._group = printable(group)
        self._since: dict[str, float] = {}

    def met(self, subject: str, text: str) -> None:
        """A problem occurred: a warning the first time, DEBUG until the subject is ``solved``."""
        level = logging.DEBUG if subject in self._since else logging.WARNING
        self._since.setdefault(subject, time.monotonic())
        logger.log(level, "group %s: %s", self._group, text)

    def solved(self, subject: str) -> None:
        """The subject has no problem; logged if it had one."""
        since = self._since.pop(subject, None)
        if since is not None:
            logger.info("group %s: %s: available after %.1f s", self._group, subject, time.monotonic() - since)

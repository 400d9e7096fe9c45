"""The events of a run, one tuple per event: hashed in batches, formatted only when they are shown."""

from __future__ import annotations

import hashlib
import marshal

PIECE = 4096
HISTORY_EVENTS = 60
"""Events shown before a violation."""


class Trace:
    """The events of one run, in order.

    Each is the time and what happened: strings and numbers, whose bytes are the same in every process. ``marshal``
    serializes them four times as fast as ``repr``, and raises for any other type; in its format 2 equal strings have
    equal bytes whether or not they are one object.
    """

    def __init__(self) -> None:
        self._lines: list[tuple[object, ...]] = []
        self._hash = hashlib.sha256()
        self._hashed = 0

    def add(self, line: tuple[object, ...]) -> None:
        """Add one event."""
        self._lines.append(line)
        if len(self._lines) == PIECE:
            self._hash.update(marshal.dumps(self._lines[:-HISTORY_EVENTS], 2))
            self._hashed += PIECE - HISTORY_EVENTS
            del self._lines[:-HISTORY_EVENTS]

    @property
    def events(self) -> int:
        """Number of events."""
        return self._hashed + len(self._lines)

    def hexdigest(self) -> str:
        """The hash of all events, in hexadecimal digits."""
        whole = self._hash.copy()
        whole.update(marshal.dumps(self._lines, 2))
        return whole.hexdigest()

    def history(self) -> tuple[str, ...]:
        """The last events, formatted."""
        return tuple(f"{at_s:.6f} {' '.join(map(str, words))}" for at_s, *words in self._lines[-HISTORY_EVENTS:])

"""What was said of a run, a tuple an event: hashed many at a time, and put into words only for whoever reads it."""

from __future__ import annotations

import hashlib

PIECE = 4096
STORY = 60
"""Lines of a story: what went before a violation."""


class Trace:
    """The events of one run, in order.

    Each is the time and what happened: strings, numbers, and tuples of these, whose ``repr`` is the same in every
    process.
    """

    def __init__(self) -> None:
        self._lines: list[tuple[object, ...]] = []
        self._hash = hashlib.sha256()
        self._hashed = 0

    def add(self, line: tuple[object, ...]) -> None:
        """One more."""
        self._lines.append(line)
        if len(self._lines) == PIECE:
            self._hash.update(repr(self._lines[:-STORY]).encode())
            self._hashed += PIECE - STORY
            del self._lines[:-STORY]

    @property
    def events(self) -> int:
        """How many there were."""
        return self._hashed + len(self._lines)

    def hexdigest(self) -> str:
        """The hash of all of them, in hexadecimal digits."""
        whole = self._hash.copy()
        whole.update(repr(self._lines).encode())
        return whole.hexdigest()

    def story(self) -> tuple[str, ...]:
        """The last of them, in words."""
        return tuple(f"{at_s:.6f} {' '.join(map(str, words))}" for at_s, *words in self._lines[-STORY:])

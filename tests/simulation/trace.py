"""What was said of a run, a tuple an event: hashed many at a time, and put into words only for whoever reads it."""

from __future__ import annotations

import hashlib
import marshal

PIECE = 4096
STORY = 60
"""Lines of a story: what went before a violation."""


class Trace:
    """The events of one run, in order.

    Each is the time and what happened: strings and numbers, whose bytes are the same in every process. ``marshal``
    makes them four times as fast as ``repr``, and raises for anything else; in its format 2 equal strings are equal
    bytes whether or not they are one object.
    """

    def __init__(self) -> None:
        self._lines: list[tuple[object, ...]] = []
        self._hash = hashlib.sha256()
        self._hashed = 0

    def add(self, line: tuple[object, ...]) -> None:
        """One more."""
        self._lines.append(line)
        if len(self._lines) == PIECE:
            self._hash.update(marshal.dumps(self._lines[:-STORY], 2))
            self._hashed += PIECE - STORY
            del self._lines[:-STORY]

    @property
    def events(self) -> int:
        """How many there were."""
        return self._hashed + len(self._lines)

    def hexdigest(self) -> str:
        """The hash of all of them, in hexadecimal digits."""
        whole = self._hash.copy()
        whole.update(marshal.dumps(self._lines, 2))
        return whole.hexdigest()

    def story(self) -> tuple[str, ...]:
        """The last of them, in words."""
        return tuple(f"{at_s:.6f} {' '.join(map(str, words))}" for at_s, *words in self._lines[-STORY:])

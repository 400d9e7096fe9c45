"""The syntax of the lines of a scene: forms such as ``{who} heartbeats[ at epoch {epoch}][, {lost=response lost}]``.

``{name}`` is a word of the kind of that name (``FIELDS``), ``[...]`` is optional, and ``{name=words}`` is a flag: true
if the words are present. A function under ``@line(form)`` runs the lines of that form; its arguments are the harness
and the parsed words, and it returns the output, line by line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from .words import FIELDS

Verb = Callable[..., Iterable[str]]

FORMS: Final[list[Form]] = []


@dataclass(frozen=True, slots=True)
class Form:
    """One kind of line: its syntax, its function, and whether it defines the initial group."""

    text: str
    pattern: re.Pattern[str]
    verb: Verb
    setup: bool

    def words(self, command: str) -> dict[str, Any] | None:
        """The parsed words of a line of this form; ``None`` for any other line."""
        match = self.pattern.fullmatch(command)
        if match is None:
            return None
        present = {name: word for name, word in match.groupdict().items() if word is not None}
        return {name: FIELDS[name].read(word) if name in FIELDS else True for name, word in present.items()}


def line(text: str, *, setup: bool = False) -> Callable[[Verb], Verb]:
    """Register a function for all lines of this form; ``setup`` if they define the initial group."""

    def register(verb: Verb) -> Verb:
        FORMS.append(Form(text, _compiled(text), verb, setup))
        return verb

    return register


def _compiled(text: str) -> re.Pattern[str]:
    pattern = ""
    for part in re.split(r"(\{[^}]*\}|\[|\])", text):
        if part.startswith("{"):
            name, flag, words = part[1:-1].partition("=")
            assert bool(flag) != (name in FIELDS), f"{text}: {name} is {'both' if flag else 'neither'} field and flag"
            pattern += f"(?P<{name}>{re.escape(words) if flag else FIELDS[name].pattern})"
        else:
            pattern += {"[": "(?:", "]": ")?"}.get(part, re.escape(part))
    return re.compile(pattern)

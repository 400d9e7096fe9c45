"""How a line of a scene is told from others: forms such as ``{who} beats[ at epoch {epoch}][, {lost=unheard}]``.

``{name}`` is a word of the kind its name says (``FIELDS``), ``[...]`` may be left out, and ``{name=words}`` is a flag:
true where the words stand. A function under ``@line(form)`` is what lines of that form do; it is given the stage
and the words, already read, and returns what came out, line by line.
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
    """One kind of line: how it reads, what it does, and whether it is for the stage before anything happens."""

    text: str
    pattern: re.Pattern[str]
    verb: Verb
    sets_stage: bool

    def words(self, command: str) -> dict[str, Any] | None:
        """The words of a line of this form, read; ``None`` for any other line."""
        match = self.pattern.fullmatch(command)
        if match is None:
            return None
        said = {name: word for name, word in match.groupdict().items() if word is not None}
        return {name: FIELDS[name].read(word) if name in FIELDS else True for name, word in said.items()}


def line(text: str, *, sets_stage: bool = False) -> Callable[[Verb], Verb]:
    """Make a function the meaning of all lines of this form; ``sets_stage`` if they stand before anything happens."""

    def register(verb: Verb) -> Verb:
        FORMS.append(Form(text, _compiled(text), verb, sets_stage))
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

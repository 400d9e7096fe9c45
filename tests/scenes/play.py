"""The interpreter: the text of a scene in, the same scene with its actual output.

A line at the left margin is a command, ``#`` and blank lines are for the reader, and text after ``->`` or indented is
output. ``play`` discards the output and produces it again with the shipped rules, so a scene is correct
if and only if playing it changes nothing.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from . import lines, looks
from .forms import FORMS
from .harness import SceneHarness
from .words import SceneError

__all__ = ["difference", "lines", "looks", "play", "scenes"]

HERE: Final = Path(__file__).parent
COLUMN: Final = 36
WIDTH: Final = 118


def play(text: str, name: str = "scene") -> str:
    """The scene with its actual output.

    Raises:
        SceneError: a line that has none of the forms, or cannot be run; names scene and line.
        AssertionError: an invariant of ``tests.group.invariants`` is violated; a note names scene and line.
    """
    harness = SceneHarness()
    played: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith((" ", "\t")):
            continue
        command = line if line.startswith("#") else line.partition("->")[0]
        command = command.rstrip()
        if not command or command.startswith("#"):
            played.append(command)
            continue
        try:
            played += written(command, perform(harness, command))
        except SceneError as error:
            raise SceneError(f"{name}:{number}: {command!r}: {error}") from None
        except Exception as error:
            error.add_note(f"{name}:{number}: {command}")
            raise
    return "\n".join(played) + "\n"


def perform(harness: SceneHarness, command: str) -> list[str]:
    """Run one line; returns its output."""
    for form in FORMS:
        words = form.words(command)
        if words is not None:
            if not form.setup:
                harness.create()
            elif harness.is_created:
                raise SceneError("the initial group is defined before the first act")
            return list(form.verb(harness, **words))
    raise SceneError("unknown line; allowed:\n  " + "\n  ".join(form.text for form in FORMS))


def written(command: str, output: Iterable[str]) -> list[str]:
    """A line and its output, as formatted in the text."""
    indent = " " * (COLUMN + 3)
    rest = [
        part
        for words in output
        for part in textwrap.wrap(words, WIDTH - len(indent), subsequent_indent="  ", break_on_hyphens=False)
    ]
    if not rest:
        return [command]
    first = command.ljust(COLUMN) + "-> " + rest[0]
    begin = [first] if len(command) < COLUMN else [command, " " * COLUMN + "-> " + rest[0]]
    return [*begin, *(indent + part for part in rest[1:])]


def scenes() -> list[Path]:
    """All scenes, sorted by name."""
    return sorted(HERE.glob("*.txt"))


def difference(name: str, text: str, played: str) -> str:
    """A unified diff of the text and the actual output."""
    return "".join(
        difflib.unified_diff(
            text.splitlines(keepends=True),
            played.splitlines(keepends=True),
            f"{name}, as written",
            f"{name}, actual output",
        )
    )

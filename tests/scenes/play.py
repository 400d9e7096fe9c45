"""The interpreter: a scene's text in, the same scene with what really came out.

What stands at the left margin is done, ``#`` and blank lines are for the reader, and what comes after ``->`` or is
indented came out. ``play`` leaves the last aside and writes it anew from the shipped rules, so a scene is right
exactly when playing it changes nothing.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from . import lines, looks
from .forms import FORMS
from .stage import Stage
from .words import SceneError

__all__ = ["difference", "lines", "looks", "play", "scenes"]

HERE: Final = Path(__file__).parent
COLUMN: Final = 36
WIDTH: Final = 118


def play(text: str, name: str = "scene") -> str:
    """The scene as it goes when it is played from an empty stage.

    Raises:
        SceneError: a line that has none of the forms, or asks for what cannot be; names scene and line.
        AssertionError: a promise of ``tests.group.invariants`` was broken; a note names scene and line.
    """
    stage = Stage()
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
            played += written(command, perform(stage, command))
        except SceneError as error:
            raise SceneError(f"{name}:{number}: {command!r}: {error}") from None
        except Exception as error:
            error.add_note(f"{name}:{number}: {command}")
            raise
    return "\n".join(played) + "\n"


def perform(stage: Stage, command: str) -> list[str]:
    """Do one line; returns what came out."""
    for form in FORMS:
        words = form.words(command)
        if words is not None:
            if not form.sets_stage:
                stage.open()
            elif stage.is_open:
                raise SceneError("the scene has begun; the stage is set before")
            return list(form.verb(stage, **words))
    raise SceneError("no line reads so; allowed:\n  " + "\n  ".join(form.text for form in FORMS))


def written(command: str, came_out: Iterable[str]) -> list[str]:
    """A line and what came out, as they stand in the text."""
    indent = " " * (COLUMN + 3)
    rest = [
        part
        for words in came_out
        for part in textwrap.wrap(words, WIDTH - len(indent), subsequent_indent="  ", break_on_hyphens=False)
    ]
    if not rest:
        return [command]
    first = command.ljust(COLUMN) + "-> " + rest[0]
    begin = [first] if len(command) < COLUMN else [command, " " * COLUMN + "-> " + rest[0]]
    return [*begin, *(indent + part for part in rest[1:])]


def scenes() -> list[Path]:
    """All scenes there are, by name."""
    return sorted(HERE.glob("*.txt"))


def difference(name: str, text: str, played: str) -> str:
    """What is written against what came out, as a unified diff."""
    return "".join(
        difflib.unified_diff(
            text.splitlines(keepends=True),
            played.splitlines(keepends=True),
            f"{name}, as written",
            f"{name}, as it really goes",
        )
    )

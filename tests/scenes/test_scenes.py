"""Every scene matches its actual output; the scenes, their index and the cited ids are complete."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

import tests.scenes

from .forms import FORMS
from .play import WIDTH, difference, play, scenes
from .words import SceneError

MAX_LINES = 60

NOT_APPLICABLE = {
    "CN-14": "configurations are part of grants, so there is no offset to wait for",
    "TO-09": "there is no initial rebalance delay",
}
"""Scenarios without a counterpart in this product."""


def ids(prefix: str, numbers: Iterable[int]) -> list[str]:
    return [f"{prefix}-{number:02}" for number in numbers]


SCENARIOS = [
    *(f"KIP-{number}" for number in range(1, 5)),
    *ids("RE", range(1, 11)),
    *ids("HB", [*range(1, 14), 15, 17, 18, 19]),
    *ids("ST", range(1, 9)),
    *ids("TO", [1, 2, 3, 5, 6, 7, 8, 9]),
    *ids("TA", range(1, 4)),
    *ids("CN", range(1, 19)),
]
"""Rows of the conformance scenarios: rebalances, fencing, static members, timers, targets, client-side assignors."""


@pytest.mark.parametrize("path", scenes(), ids=lambda path: path.stem)
def test_scene_matches_its_transcript(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    played = play(text, path.name)
    assert played == text, f"python -m tests.scenes --write {path.stem} accepts the output\n" + difference(
        path.name, text, played
    )


@pytest.mark.parametrize("path", scenes(), ids=lambda path: path.stem)
def test_scene_is_short_and_fits_a_page(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_LINES
    assert [line for line in lines if len(line) > WIDTH] == []


def test_index_names_every_scene_by_its_title() -> None:
    index = re.findall(r"^    (\S+) +(.+)$", tests.scenes.__doc__ or "", re.MULTILINE)
    titles = {path.stem: path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for path in scenes()}
    assert len(index) == len(titles)
    assert dict(index) == titles


def test_every_kind_of_line_is_in_some_scene_and_is_of_one_kind_only() -> None:
    """A kind of line that no scene has is not tested; every line matches exactly one kind."""
    unused = {form.text for form in FORMS}
    for path in scenes():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line and not line.startswith((" ", "#")):
                command = line.partition("->")[0].rstrip()
                forms = [form.text for form in FORMS if form.pattern.fullmatch(command)]
                assert len(forms) == 1, f"{path.name}: {command!r} is {forms}"
                unused.discard(forms[0])
    assert unused == set()


def test_every_applicable_scenario_is_named_in_a_scene_or_a_test() -> None:
    here = Path(__file__)
    folder = here.parent.parent
    files = [path for suffix in ("py", "txt") for path in folder.rglob(f"*.{suffix}") if path != here]
    named = {word for path in files for word in re.findall(r"\b[A-Z]+-\d+\b", path.read_text(encoding="utf-8"))}
    assert sorted(set(SCENARIOS) - named - NOT_APPLICABLE.keys()) == []
    assert sorted(named & NOT_APPLICABLE.keys()) == [], "the scenario is applicable after all"


def test_changed_output_is_shown_as_a_difference() -> None:
    """The output in the text has no influence on the actual output."""
    text = "A joins                             -> epoch 7, assigned nothing\n"
    played = play(text)
    assert played.splitlines()[0] == "A joins                             -> epoch 1, assigned nothing"
    assert "-A joins                             -> epoch 7" in difference("scene", text, played)
    assert play(played) == played


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("# Title\nA jions\n", "scene:2: 'A jions': unknown line; allowed:\n  group\n", id="typo"),
        pytest.param("A acknowledges foo\n", "there is no worker A; allowed: none yet", id="unknown worker"),
        pytest.param("A joins\nA acknowledges foo\n", "A has no pending revocation of foo", id="no revocation"),
        pytest.param("A joins\nstable at epoch 4\n", "the initial group is defined before", id="late definition"),
        pytest.param("connector foo with 1 task\nA joins\n", "need a line 'stable at epoch", id="no epoch"),
        pytest.param(
            "setting max_mebers 2\n", "got 'max_mebers'; allowed: assignment_interval_ms", id="unknown setting"
        ),
        pytest.param("A joins with even 3--\n", "allowed: even 0-3 version 1", id="no version range"),
    ],
)
def test_invalid_scene_reports_the_place_and_the_allowed_lines(text: str, problem: str) -> None:
    with pytest.raises(SceneError, match=re.escape(problem)):
        play(text)

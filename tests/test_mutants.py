"""The list of ``tests/mutants.py`` fits the tree: a breakage that breaks nothing any more would count as noticed."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from .mutations import ALL

ROOT = Path(__file__).parents[1]


def test_every_breakage_has_its_place_once_and_leaves_a_file_that_compiles() -> None:
    faults = []
    for mutant in ALL:
        try:
            ast.parse(mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8")))
        except (ValueError, SyntaxError) as error:
            faults.append(f"{mutant.name}: {error}")
    assert not faults, "\n".join(faults)


def test_every_breakage_is_one_of_its_own() -> None:
    assert len(ALL) >= 50
    assert not [mutant.name for mutant in ALL if mutant.old == mutant.new]
    names = Counter(mutant.name for mutant in ALL)
    assert not [name for name, times in names.items() if times > 1]
    places = Counter((mutant.file, mutant.old, mutant.new) for mutant in ALL)
    assert not [place for place, times in places.items() if times > 1]


def test_the_tests_that_must_notice_are_there() -> None:
    missing = []
    for selection in sorted({selection for mutant in ALL for selection in mutant.tests.split()}):
        file, _, name = selection.partition("::")
        path = ROOT / file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        # Of a method the class is enough: it may be inherited from a contract.
        first = name.partition("::")[0].partition("[")[0]
        if not path.exists() or (first and not re.search(rf"(def|class) {first}\(", text)):
            missing.append(selection)
    assert not missing

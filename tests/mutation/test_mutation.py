"""The list of planted faults matches the product, and the patterns work as documented."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter

import pytest

from tests.volume import ci_only

from .fault import ROOT
from .faults import FAULTS
from .pattern import PatternError, replaced

SOURCE = '''
class Group:
    def admit(self, epoch, members):
        """A docstring."""
        if epoch < self.epoch:   # a comment
            return None
        for member in members:
            self.add(member.id, epoch=epoch)
        return [x for x in members if x.alive or x.away]
'''


@ci_only("each file is parsed for each of its faults; in a user's run, simulation and model plant theirs")
def test_each_fault_applies_once_and_compiles() -> None:
    plain = {fault.path: ast.unparse(ast.parse((ROOT / fault.path).read_text(encoding="utf-8"))) for fault in FAULTS}
    problems = []
    for fault in FAULTS:
        try:
            text = ast.unparse(fault.applied(plain[fault.path]))
            compile(text, str(fault.path), "exec")
        except (PatternError, SyntaxError) as error:
            problems.append(f"{fault.target}: {fault.name}: {error}")
        else:
            if text == plain[fault.path]:
                problems.append(f"{fault.target}: {fault.name}: changes nothing")
            if missing := undefined(text):
                # It would end in NameError, which any test detects.
                problems.append(f"{fault.target}: {fault.name}: the file does not define {', '.join(missing)}")
    assert not problems, "\n".join(problems)


def undefined(source: str) -> list[str]:
    """The names that a module uses and nowhere defines."""
    tree = ast.parse(source)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    defined = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | {
        *vars(builtins),
        "__file__",
        "__package__",
    }
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                defined.add(node.name)
            case ast.arg():
                defined.add(node.arg)
            case ast.alias():
                defined.add((node.asname or node.name).partition(".")[0])
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name:
                defined.add(node.name)
    return sorted({node.id for node in names if isinstance(node.ctx, ast.Load)} - defined)


def test_each_fault_is_unique_and_has_a_detector() -> None:
    names = Counter(fault.name for fault in FAULTS)
    places = Counter((fault.target, fault.old, fault.new, fault.nth) for fault in FAULTS)
    assert not [each for each, times in (names + places).items() if times > 1]
    assert not [fault.name for fault in FAULTS if not (fault.tests or fault.simulator or fault.model)]


def test_the_tests_that_must_fail_exist() -> None:
    missing = []
    for selection in sorted({selection for fault in FAULTS for selection in fault.tests.split()}):
        file, _, name = selection.partition("::")
        path = ROOT / file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        # For a method the class is enough: the method may be inherited from a contract.
        first = name.partition("::")[0].partition("[")[0]
        if not path.exists() or (first and not re.search(rf"(def|class) {first}\(", text)):
            missing.append(selection)
    assert not missing


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("A < B.C", "A <= B.C", "if epoch <= self.epoch:"),
        ("if A: return None", "", "pass"),
        ("F(X.I, E=V)", "F(X.I)", "self.add(member.id)"),
        ("F(..., epoch=V)", "F(..., epoch=0)", "self.add(member.id, epoch=0)"),
        ("F(...)", "", "pass"),
        ("A or B", "B", "return [x for x in members if x.away]"),
        ("[X for Y in Z if ...]", "[X for Y in Z]", "return [x for x in members]"),
        ("X.A or X.B", "X.B", "return [x for x in members if x.away]"),
        ("...", "members = []\n...", "members = []"),
    ],
)
def test_pattern_is_replaced_whatever_names_and_form(old: str, new: str, line: str) -> None:
    text = ast.unparse(replaced(SOURCE, "Group.admit", old, new))
    assert line in [each.strip() for each in text.splitlines()]
    assert "A docstring." in text


@pytest.mark.parametrize(
    ("qualname", "old", "problem"),
    [
        ("Group.leave", "A < B", "there is no leave"),
        ("Group.admit", "A > B", "matches nothing"),
        ("Group.admit", "A < A", "matches nothing"),
        ("Group.admit", "S.A", "matches 4 times, in lines 5, 8, 8, 9"),
    ],
)
def test_pattern_that_does_not_match_is_reported(qualname: str, old: str, problem: str) -> None:
    with pytest.raises(PatternError, match=re.escape(problem).replace("4", r"\d+").replace("8,\\ 8,\\ 9", ".*")):
        replaced(SOURCE, qualname, old, "None")


def test_planted_fault_is_removed_afterwards() -> None:
    from connectgroup.group.kernel import reconcile

    (fault,) = (fault for fault in FAULTS if fault.name.startswith("any heartbeat acknowledges"))
    right = reconcile.reconcile.__code__
    with fault.planted():
        assert reconcile.reconcile.__code__ is not right
    assert reconcile.reconcile.__code__ is right

"""The table in ``known_bugs`` is complete, and each test that it names exists and cites its bug."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import tests.known_bugs

HERE = Path(__file__).parent
KNOWN = {
    "KAFKA": """
        19974 19431 19862 17306 18672 19760 16973 18484 19064 19857 19233 20747 20434 20843 20570 16367 16930 18688
        19163 18813 20431 20273 18916 8896
        16198 16375 16251 16258 16190 16639 16985 17116 20332 20428 20145 20253 19242 19394 19357 19813
        10763 9184 9841 9849 9851 9848 12495 15693 13719 10426 16051 10792 17871 15238 13586 17105 15059
        15018 15800 13469 12226 13472 13927 18073 17507
    """,
    "others": (
        "MINOR #21376, MINOR #20739, Jepsen Bufstream K-txn, SPARK-26425, paimon#9666, paimon#9667, "
        "iceberg-kafka-connect#200, strimzi#11475"
    ),
}
IDS = {f"KAFKA-{number}" for number in KNOWN["KAFKA"].split()} | set(KNOWN["others"].split(", "))
ROW = re.compile(r"(?P<ids>\S.*?): ")
REFERENCE = re.compile(r"(?P<file>[\w/]+\.py)::(?P<test>test_\w+)")
REASON = re.compile(r"(no such part yet|cannot have it): \w+")


def table(text: str) -> dict[str, list[str]]:
    """The lines below each id."""
    rows: dict[str, list[str]] = {}
    ids: list[str] = []
    _, _, below = text.partition("\n\nGroup coordinators")
    for line in below.splitlines():
        if line.startswith("    "):
            for bug in ids:
                rows[bug].append(line.strip())
        elif row := ROW.match(line):
            ids = row["ids"].split(", ")
            assert not rows.keys() & set(ids), f"{ids} twice"
            rows.update({bug: [] for bug in ids})
    return rows


@cache
def docstrings(file: Path) -> dict[str, str]:
    """The docstring of every test of a file; under "" that of the file."""
    module = ast.parse(file.read_text())
    found = {
        node.name: ast.get_docstring(node) or ""
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    return {"": ast.get_docstring(module) or "", **found}


ROWS = table(tests.known_bugs.__doc__ or "")


def test_every_known_bug_has_a_row_and_every_row_a_known_bug() -> None:
    assert ROWS.keys() == IDS


@pytest.mark.parametrize("bug", sorted(IDS))
def test_each_row_names_tests_that_cite_its_bug_or_gives_a_reason(bug: str) -> None:
    lines = ROWS[bug]
    assert lines, f"{bug}: neither a test nor a reason"
    for line in lines:
        if reference := REFERENCE.fullmatch(line):
            file = (HERE.parent if "/" in reference["file"] else HERE) / reference["file"]
            name, found = reference["test"], docstrings(file)
            assert name in found, f"{bug}: there is no {line}"
            number = re.sub(r"\D", "", bug) or bug
            assert number in found[name] or number in name or number in found[""], f"{line} does not cite {bug}"
        else:
            assert REASON.match(line), f"{bug}: {line!r} is neither a test nor a reason"


@pytest.mark.parametrize("file", sorted(path.name for path in HERE.glob("test_*.py") if path.name != "test_table.py"))
def test_each_scenario_begins_with_its_bug_and_is_in_the_table(file: str) -> None:
    for name, docstring in docstrings(HERE / file).items():
        if not name:
            continue
        bugs = [bug for bug in IDS if re.search(re.escape(bug) + r"\b", docstring)]
        assert any(re.match(re.escape(bug) + r"\b", docstring) for bug in bugs), f"{file}::{name} begins with no id"
        for bug in bugs:
            assert f"{file}::{name}" in ROWS[bug], f"{file}::{name} is not in the row of {bug}"


def test_table_check_finds_each_kind_of_mistake() -> None:
    """The checks must be able to fail."""
    lines = (tests.known_bugs.__doc__ or "").splitlines()
    assert len(ROWS) > 60
    assert sum(map(len, ROWS.values())) > 90
    without = [line for line in lines if not line.startswith("KAFKA-19974")]
    assert table("\n".join(without)).keys() == IDS - {"KAFKA-19974"}
    with pytest.raises(AssertionError, match="twice"):
        table("\n".join([*lines, "KAFKA-19974: again"]))
    assert not REFERENCE.fullmatch("test_member.py::a_word")
    assert not REASON.match("no such part yet")

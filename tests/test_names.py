"""Names: external text, escaped for one line; and the names of classes."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

import connectgroup
from connectgroup.protocol.units import printable


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("a\nb\0", "a\\nb\\x00"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 77 + "..."),
        ("\n" * 41, "\\n" * 38 + "\\" + "..."),
        (b"ab", "b'ab'"),
        (17, "17"),
        ("\ud800", "\\ud800"),
    ],
)
def test_text_is_escaped_and_cut_to_80_characters(value: object, shown: str) -> None:
    assert printable(value) == shown


@pytest.mark.parametrize("value", ["\n" * (7 << 20), b"\n" * (7 << 20), "x" * (7 << 20)])
def test_long_text_is_cut_before_it_is_escaped(value: object) -> None:
    """7 MiB took 2.7 s, and meanwhile every worker of the coordinator lost its lease."""
    started = time.process_time()
    for _ in range(10):
        assert len(printable(value)) == 80
    assert time.process_time() - started < 0.5


IN_SEVERAL_MODULES = {
    "Admin": "connectgroup.sync has the classes of connectgroup for programs without asyncio, by the same names",
    "Worker": "as Admin",
}
"""Names of classes that stand in more than one module, and why."""


def test_class_name_stands_in_one_module() -> None:
    """Otherwise a reader has to look where a name was imported from to know what it means."""
    package = Path(connectgroup.__file__).parent
    folders = (package, package.parent / "assignors", package.parent / "listeners")
    modules: dict[str, set[str]] = {}
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        if path.is_relative_to(package / "assignors") or path.is_relative_to(package / "listeners"):
            continue  # links to the other two folders
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, set()).add(str(path.relative_to(package.parent)))
    found = {name: sorted(places) for name, places in modules.items() if len(places) > 1}
    assert len(modules) > 500
    assert {name: places for name, places in found.items() if name not in IN_SEVERAL_MODULES} == {}
    assert found.keys() == IN_SEVERAL_MODULES.keys(), "an exception that is none any more"

"""The benchmark of assignors: a run in a tiny size, and what it reads of Java's. No time decides anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.assignors import Row, line, main, measured, read_java, validated_moves
from benchmarks.tracing import KINDS, measure, table
from connectgroup.assign.api import ConnectAssignment
from tests.assignors.tables import group

JAVA = """
| assignor | case | members×units | median ms | min ms | median thread-CPU ms | n |
|---|---|---|---|---|---|---|
| connect IncrementalCooperative | full | 4×20 | 0.3 | 0.2 | 0.274 | 20 (warm 100) |
| connect IncrementalCooperative | 1 joins: round 1 (revoke) | 4×20 | 0.2 | 0.1 | 1.5 | 20 (warm 100) |
| connect IncrementalCooperative | 1 joins: round 2 (assign) | 4×20 | 0.2 | 0.1 | 0.5 | 20 (warm 100) |
| connect IncrementalCooperative | 1 leaves (delay 0) | 4×20 | >60 s | | | 1 |
| server Uniform | full | 4×20 | 0.030 | 0.027 | 0.031 | 20 (warm 100) |
"""


def test_each_assignor_has_three_rows_with_the_fewest_moves() -> None:
    rows = measured("4x20")
    assert [(row.assignor, row.case) for row in rows] == [
        ("incremental-cooperative", "full"),
        ("incremental-cooperative", "leaves"),
        ("incremental-cooperative", "joins: revoke"),
        ("incremental-cooperative", "joins: assign"),
        ("balanced", "full"),
        ("balanced", "leaves"),
        ("balanced", "joins"),
    ]
    assert [row.moved for row in rows] == [0, 0, 4, 0, 0, 0, 4]
    assert all(row.peak_mib > 0 for row in rows)


def test_figures_of_java_are_beside_ours() -> None:
    java = read_java(JAVA)
    assert java == {
        ("4x20", "full", "connect"): 0.274,
        ("4x20", "joins: revoke", "connect"): 1.5,
        ("4x20", "joins: assign", "connect"): 0.5,
        ("4x20", "full", "uniform"): 0.031,
    }
    joins = Row("balanced", "joins", "4x20", 0.5, 0.5, 4)
    assert line(joins, java) == "| balanced | joins | 4x20 | 0.50 | 0.50 | 2.00 | 0.50 |  |  |"
    leaves = joins._replace(case="leaves")
    assert line(leaves, java).count("|  ") == 4


def test_invalid_result_is_not_measured() -> None:
    input_group = group({"a": 2}, {"m1": "a a-0", "m2": "a-1"})
    columns = input_group.columns()
    assert validated_moves(input_group, ConnectAssignment.from_columns(columns, np.array([0, 0, 1]))) == 0
    for wrong in ([0, 1, 0], [0, 0, 0]):
        with pytest.raises(AssertionError):
            validated_moves(input_group, ConnectAssignment.from_columns(columns, np.array(wrong)))


def test_table_explains_missing_java_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["3x10", "--peers", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "Java: left out (no " in printed
    assert printed.count("| balanced | ") == 3


# --------------------------------------------------------------------------------------------------
# The benchmark of tracing runs all kinds, and divides by the run of the same round.


def test_each_kind_is_measured_in_each_round() -> None:
    found = measure(rounds=2, seconds=20)
    assert list(found) == list(KINDS)
    assert all(len(each) == 2 and min(each) > 0 for each in found.values())


def test_ratio_is_the_median_of_the_rounds() -> None:
    lines = table({"no tracing calls": [100, 200, 100], "no SDK": [101, 204, 103]})
    assert lines[-1] == "| no SDK | 103.0 | 101.0 | 1.020 | < 1.01 |"

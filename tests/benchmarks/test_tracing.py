"""The benchmark of tracing runs all kinds, and divides by the run of the same round."""

from __future__ import annotations

from benchmarks.tracing import KINDS, measure, table


def test_each_kind_is_measured_in_each_round() -> None:
    found = measure(rounds=2, seconds=20)
    assert list(found) == list(KINDS)
    assert all(len(each) == 2 and min(each) > 0 for each in found.values())


def test_ratio_is_the_median_of_the_rounds() -> None:
    lines = table({"no tracing calls": [100, 200, 100], "no SDK": [101, 204, 103]})
    assert lines[-1] == "| no SDK | 103.0 | 101.0 | 1.020 | < 1.01 |"

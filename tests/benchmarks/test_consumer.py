"""The arithmetic of the benchmark of consumers."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from benchmarks.consumer import BASE, Meter, Reading, table


def test_meter_counts_until_all_rows_are_read() -> None:
    meter = Meter(10)
    assert [meter.add(4), meter.add(4), meter.add(2)] == [True, True, False]
    assert meter.result().rows == 10


def test_table_has_medians_and_ratios() -> None:
    def readings(*walls_s: float) -> list[Reading]:
        return [Reading(rows=100, wall_s=wall_s, cpu_s=0.0001) for wall_s in walls_s]

    lines = table({BASE: readings(1, 1, 9), "other": readings(2, 2, 1)}).splitlines()
    assert lines[2:] == [f"| {BASE} | 100 | 1.00x | 1.00 | 1.00x |", "| other | 50 | 0.50x | 1.00 | 1.00x |"]

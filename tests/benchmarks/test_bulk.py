"""The benchmark of bulk starts and stops in a tiny size. No time decides anything."""

from __future__ import annotations

import pytest

from benchmarks.bulk import main


def test_starts_and_stops_have_a_row_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tasks", "300"]) == 0
    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert rows[2:] == ["start 300", "stop 300"]

"""The benchmark of the partition assignors in a tiny size, and its reading of the other side's table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.partition_assignors import CASES, java_times, main
from connectgroup.plugins import available

TABLE = """\
java 17.0.15, heap 6144 MB, load 4.95
| assignor | case | members×units | median ms | min ms | median thread-CPU ms | n |
|---|---|---|---|---|---|---|
| server Uniform | full | 3×20 | 0.516 | 0.485 | 0.500 | 20 (warm 100) |
| client Range | - | 3×20 | failed: OutOfMemoryError | | | |
| client Range | 1 leaves | 3×20 | >60 s | | | 1 |
"""


def test_each_assignor_case_and_size_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["3x20", "--rounds", "1"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(available("partition_assignors")) * len(CASES)


def test_times_of_the_other_side_are_beside_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{TABLE}END\n", encoding="utf-8")
    script.chmod(0o700)
    assert java_times(TABLE.splitlines()) == {("server Uniform", "full", "3x20"): 0.5}
    assert main(["3x20", "--rounds", "1", "--java", str(script)]) == 0
    beside = [line.split(" | ")[6] for line in capsys.readouterr().out.splitlines() if " | 3x20 | " in line]
    assert sorted(beside) == ["-"] * (len(beside) - 1) + ["0.50"]


def test_script_without_times_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\necho no java >&2; exit 3\n", encoding="utf-8")
    script.chmod(0o700)
    assert main(["3x20", "--java", str(script)]) == 1
    assert capsys.readouterr().err.strip().endswith("ended with 3: no java")


@pytest.mark.parametrize("arguments", [["0x5"], ["5"], ["3x"], ["--rounds", "0"], ["--rounds", "x"]])
def test_invalid_size_is_rejected(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "allowed:" in capsys.readouterr().err

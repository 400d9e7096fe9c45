"""``connectgroup prepare``: an archive of the classes that Spark loads, and sessions that use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.processes import run_command

USES_ARCHIVE = """
from connectgroup.spark.session import spark_session, stop_session
session = spark_session()
maps = open(f"/proc/{session.sparkContext._gateway.proc.pid}/maps").read()
print(session.range(3).count(), maps.count("spark.jsa") > 0)
stop_session()
"""


def output_of_a_session(cache: Path) -> list[str]:
    """Start a session in a process of its own; return what the script above prints."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", USES_ARCHIVE]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.long
def test_session_uses_the_prepared_archive_and_starts_without_a_usable_one(tmp_path: Path) -> None:
    done = run_command("prepare", environment={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.code == 0, done.err
    (archive,) = tmp_path.rglob("spark.jsa")
    assert done.out.startswith(f"prepared: {archive} (")
    assert output_of_a_session(tmp_path) == ["3", "True"]
    os.chmod(archive, 0o644)
    archive.write_bytes(archive.read_bytes()[:1000])
    assert output_of_a_session(tmp_path) == ["3", "False"]


def test_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_command("prepare", environment={"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert done.code == 2
    assert "XDG_CACHE_HOME: got" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err

"""``connectgroup prepare``: an archive of the classes that Spark loads, and sessions that use it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from connectgroup.spark.archive import archive_classes, archive_options
from connectgroup.spark.java import find_java
from tests.integration.processes import START_PATIENCE_S, Program, marked, programs, run_command, wait
from tests.volume import SIZE, ci_only

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


def prepared(cache: Path) -> Path:
    """An archive below ``cache``: a copy of the one that ``make test`` has prepared, which saves a session."""
    options = archive_options(find_java())
    assert options or SIZE == "user", "connectgroup prepare, at the beginning of make test, has left no archive"
    if options:
        archives = options[0].strip('"').partition("=")[2].split(":")
        folder = Path(archives[-1]).parent
        shutil.copytree(folder, cache / folder.parent.name / folder.name)
    else:
        done = run_command("prepare", environment={"XDG_CACHE_HOME": str(cache)}, patience_s=START_PATIENCE_S)
        assert done.code == 0, done.err
        assert re.match(rf"prepared: {cache}/.*/spark.jsa \(", done.out), done.out
    (archive,) = cache.rglob("spark.jsa")
    return archive


@ci_only("one Spark more; in a user's run, the archive's options below, with which every Spark of the tests starts")
@pytest.mark.long
def test_session_uses_the_prepared_archive(tmp_path: Path) -> None:
    prepared(tmp_path)
    assert output_of_a_session(tmp_path) == ["3", "True"]


def test_damaged_archive_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = prepared(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert str(archive) in archive_options(find_java())[0]
    os.chmod(archive, 0o644)
    archive.write_bytes(archive.read_bytes()[:1000])
    assert archive_options(find_java()) == [], "a session starts as it does without an archive"


async def test_workers_of_one_user_make_one_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come while it is made, or later, make no other; one that cannot be made ends no worker."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made, go = tmp_path / "made", tmp_path / "go"
    script = f"echo one >> {made}; until test -e {go}; do sleep 0.1; done"
    first = asyncio.create_task(archive_classes(0, ("sh", "-c", script)))
    while not made.exists():
        assert not first.done()
        await asyncio.sleep(0.05)
    await archive_classes(0, ("sh", "-c", script))
    go.touch()
    await first
    assert made.read_text() == "one\n"
    monkeypatch.setenv("XDG_CACHE_HOME", str(made))
    await archive_classes(0, ("sh", "-c", script))
    assert made.read_text() == "one\n"


def test_ctrl_c_ends_prepare_and_the_java_that_it_has_started(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell ignore it, and so their children
    try:
        with marked(), Program("prepare", environment={"XDG_CACHE_HOME": str(tmp_path)}) as prepare:

            def has_java() -> bool:
                return any("SparkSubmit" in command for command in programs(prepare.pid).values())

            wait("Spark", lambda: has_java() or prepare.code is not None, prepare.output)
            prepare.signal(signal.SIGINT)
            assert prepare.ended() == 130, prepare.output()
            assert prepare.lines == ["starting Spark to record its classes; this takes up to a minute"]
    finally:
        signal.signal(signal.SIGINT, before)
    assert not list(tmp_path.rglob("spark.jsa"))


def test_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_command("prepare", "--json", environment={"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert (done.code, done.out) == (2, "")
    assert json.loads(done.err)["message"].startswith("XDG_CACHE_HOME: got"), "and no line of progress"

"""``connectgroup up`` as it is typed, in any current directory.

Modules of the current directory do not shadow the standard library or connectgroup.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from connectgroup.errors import ConfigError
from connectgroup.spark.java import cache_directory, make_script
from connectgroup.transport.credentials import announce
from connectgroup.worker.scratch import Scratch

from ..integration.processes import COMMAND, Program, run_command
from ..volume import ci_only
from .connector_files import connector_file

SHADOW = "raise ImportError(f'{__name__} of the current directory')\n"


@pytest.fixture
def full_of_shadows(tmp_path: Path) -> Path:
    """A directory with modules of common names, as a user may have one."""
    folder = tmp_path / "project"
    for package in "assignors", "listeners":
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(SHADOW)
    for module in "numbers", "calendar", "pydantic":
        (folder / f"{module}.py").write_text(SHADOW)
    return folder


SCRIPT = pytest.param(
    [Path(sys.executable).parent / "connectgroup"],
    id="connectgroup",
    marks=ci_only("4 s of a core; in a user's run, python -m, which puts the current directory first"),
)
USUAL = pytest.param(
    "caf\u00e9".encode(), id="UTF-8", marks=ci_only("5 s of a core; in a user's run, a name that is no UTF-8")
)


@pytest.mark.parametrize("command", [SCRIPT, pytest.param(COMMAND, id="python -m")])
def test_up_runs_tasks_whatever_modules_the_current_directory_has(
    full_of_shadows: Path, tmp_path: Path, command: list[str | Path]
) -> None:
    idle = connector_file(tmp_path / "idle.json", **{"connector.class": "idle", "tasks.max": "2"})
    arguments = ("up", "--data", tmp_path / "data", "--connector", idle, "--port", 0, "--workers", 1)
    with Program(*arguments, command=command, cwd=full_of_shadows) as up:
        up.line_with("| 1 worker | 3/3 units |")
        up.signal(signal.SIGTERM)
        assert up.ended() == 0, up.output()


@pytest.mark.parametrize("name", [pytest.param(b"caf\xe9", id="Latin 1"), USUAL])
def test_up_runs_in_a_directory_whatever_the_encoding_of_its_name_and_of_the_terminal(
    tmp_path: Path, name: bytes
) -> None:
    here = tmp_path / os.fsdecode(name)
    here.mkdir()
    idle = connector_file(tmp_path / "idle.json", **{"connector.class": "idle"})
    environment = {"PYTHONIOENCODING": "ascii", "XDG_STATE_HOME": str(tmp_path / "state")}
    arguments = ("up", "--connector", idle, "--port", 0, "--workers", 1)
    with Program(*arguments, command=COMMAND, cwd=here, environment=environment) as up:
        at = up.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]
        up.line_with("connectors may use files in ")
        up.line_with("| 1 worker | 2/2 units |")
        # The note that names the file of credentials, for clients on this machine.
        status = run_command("connectors", "status", "--coordinator", at, environment=environment)
        assert status.code == 0, status.err
        up.signal(signal.SIGTERM)
        assert up.ended() == 0, up.output()


def test_directory_that_was_deleted_is_one_line(tmp_path: Path) -> None:
    line = 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"'
    with Program("up", "--port", 0, command=("sh", "-c", line, tmp_path / "gone", *COMMAND)) as up:
        assert up.ended() == 2, up.output()
        [said] = up.lines
        assert said.startswith("connectgroup: current directory: got '"), said


def test_user_without_a_home_directory_needs_the_file_of_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container's user that has no entry in ``/etc/passwd``. The cache is among the temporary files then."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert not announce(8474, tmp_path / "credentials")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"connectgroup-cache-{os.geteuid()}"
    for relative in "", "cache":
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert cache_directory() == own


def test_home_directory_that_cannot_be_written_needs_no_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scripts that start Spark are among the temporary files, where no other user can have put them."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    cache = cache_directory()
    assert cache == tmp_path / f"connectgroup-cache-{os.geteuid()}"
    scratch = Scratch(tmp_path / "scratch", "w")
    with scratch.for_temporary_files():
        assert tempfile.gettempdir().startswith(str(scratch.path))
        assert cache_directory() == cache, "all workers of a user have one, which outlives them"
    scratch.remove()
    script = make_script(cache, "java", "exit 0\n")
    assert script.exists()
    assert cache.stat().st_mode & 0o777 == 0o700
    cache.chmod(0o777)
    with pytest.raises(ConfigError, match="allowed: a directory, no link, that belongs to this user"):
        make_script(cache, "java", "exit 1\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "connectgroup"


def test_workers_of_up_join_at_once_when_it_was_killed_and_is_started_again(tmp_path: Path) -> None:
    """The new workers have the names of those that ended with it."""
    idle = connector_file(tmp_path / "idle.json", **{"connector.class": "idle"})
    # Longer than the test waits.
    arguments = ("up", "--connector", idle, "--port", 0, "--workers", 1, "--session-timeout-ms", 600_000)
    with Program(*arguments, cwd=tmp_path) as up:
        up.line_with("| 1 worker | 2/2 units |")
        up.signal(signal.SIGKILL)
        up.ended()
    with Program(*arguments, cwd=tmp_path) as up:
        up.line_with("worker-1 ended without leaving the group")
        up.signal(signal.SIGTERM)
        assert up.ended() == 0, up.output()

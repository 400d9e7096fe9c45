"""The scratch directory of a worker process: only the worker's own directory is ever deleted."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from connectgroup.errors import ConfigError
from connectgroup.worker.scratch import Scratch, default_parent

from ..integration.processes import Program, wait


def run_worker_once(*arguments: object, temporary: Path) -> tuple[int, str]:
    """Start a worker, stop it once it is up; return its exit code and output. Needs no coordinator."""
    common = ("--name", "w", "--group", "g", "--coordinator", "127.0.0.1:1")
    with Program("worker", *common, *map(str, arguments), environment={"TMPDIR": str(temporary)}) as worker:
        wait("start or end", lambda: worker.code is not None or any("joining" in line for line in worker.lines))
        if worker.code is None:
            worker.signal(signal.SIGTERM)
        return worker.ended(), worker.output()


def test_worker_keeps_a_directory_of_its_name_that_it_did_not_create(tmp_path: Path) -> None:
    precious = tmp_path / "w" / "precious"
    precious.parent.mkdir()
    precious.write_text("mine")
    code, output = run_worker_once("--scratch", tmp_path, temporary=tmp_path)
    assert code == 0, output
    assert precious.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["w"], "the worker removed its own directory"


@pytest.mark.parametrize("link", ["connectgroup", f"connectgroup-{os.geteuid()}"])
def test_worker_deletes_nothing_through_a_symbolic_link_at_the_default_path(tmp_path: Path, link: str) -> None:
    precious = tmp_path / "home" / "w" / "precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("mine")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / link).symlink_to(tmp_path / "home")
    code, output = run_worker_once(temporary=tmp_path / "tmp")
    assert precious.read_text() == "mine"
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["w"]
    if link != "connectgroup":
        assert code == 2, output
        # The message shows the first 80 characters of a path.
        assert f"--scratch: got '{str(tmp_path / 'tmp' / link)[:70]}" in output
        assert "; allowed: a directory, not a symbolic link" in output


def test_temporary_files_of_a_worker_are_deleted_with_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    scratch = Scratch(Path("relative"), "w")
    with scratch.for_temporary_files():
        own = Path(tempfile.mkdtemp())
        child = subprocess.run(["mktemp"], capture_output=True, text=True, check=True).stdout.strip()
        for path in own, Path(child):
            assert scratch.path.absolute() in path.parents
    assert os.environ["TMPDIR"] == str(tmp_path)
    scratch.remove()
    assert list(tmp_path.rglob("*")) == [tmp_path / "relative"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_default_parent_is_created_private_and_used_again(temporary: Path) -> None:
    path = default_parent()
    assert path.parent == temporary
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert default_parent() == path


def test_default_parent_that_others_can_write_is_refused(temporary: Path) -> None:
    default_parent().chmod(0o777)
    with pytest.raises(ConfigError, match="no other user can write; or scratch=DIRECTORY"):
        default_parent()


def test_default_parent_of_another_user_is_refused(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = default_parent()
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    path.rename(path.with_name(f"connectgroup-{user}"))
    with pytest.raises(ConfigError, match="that this user owns"):
        default_parent()


def test_default_parent_that_is_a_file_is_refused(temporary: Path) -> None:
    (temporary / f"connectgroup-{os.geteuid()}").write_text("")
    with pytest.raises(ConfigError, match=r"scratch: got .* allowed: a directory"):
        default_parent()


def test_scratch_is_private_and_created_with_its_parents(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "a" / "b", "../w 1")
    assert scratch.path.parent == tmp_path / "a" / "b"
    assert stat.S_IMODE(scratch.path.stat().st_mode) == 0o700
    scratch.remove()
    scratch.remove()
    assert not scratch.path.exists()


def test_scratch_of_a_process_that_was_killed_is_removed_by_the_next_of_its_name(tmp_path: Path) -> None:
    arguments = ("--name", "w", "--group", "g", "--coordinator", "127.0.0.1:1", "--scratch", tmp_path)
    with Program("worker", *arguments) as killed:
        killed.line_with("joining group")
    (left,) = tmp_path.iterdir()
    assert (left / "tmp").is_dir(), "for the temporary files of Java, too"
    (left / "checkpoint").mkdir()
    (left / "checkpoint" / "file").write_text("")
    (left / "link").symlink_to(tmp_path)
    other = Scratch(tmp_path, "w-1")
    assert left.exists(), "left by a worker of another name"
    scratch = Scratch(tmp_path, "w")
    assert set(tmp_path.iterdir()) == {other.path, scratch.path}


def test_scratch_of_a_live_process_of_the_same_name_is_kept(tmp_path: Path) -> None:
    """Two workers of one name in two groups, with the default parent."""
    first, second = Scratch(tmp_path, "w"), Scratch(tmp_path, "w")
    assert first.path != second.path
    assert first.path.exists()


@pytest.mark.parametrize("kind", ["no marker", "marker of another name", "marker is a link", "link to a directory"])
def test_directory_that_is_not_marked_as_this_workers_is_kept(tmp_path: Path, kind: str) -> None:
    parent, path = tmp_path / "scratch", tmp_path / "scratch" / "w-abcdefgh"
    parent.mkdir()
    elsewhere = tmp_path / "elsewhere"
    if kind == "link to a directory":
        elsewhere.mkdir()
        path.symlink_to(elsewhere)
    else:
        path.mkdir()
    marker = path / ".connectgroup-worker"
    if kind == "marker is a link":
        (tmp_path / "marker").write_text("w")
        marker.symlink_to(tmp_path / "marker")
    elif kind != "no marker":
        marker.write_text("x" if kind == "marker of another name" else "w")
    (path / "precious").write_text("")
    Scratch(parent, "w")
    assert (path / "precious").exists()


def test_parent_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^scratch: got '.*file'; allowed: a directory this user can write"):
        Scratch(tmp_path / "file", "w")

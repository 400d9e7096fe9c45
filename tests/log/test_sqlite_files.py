"""Files and folders that cannot be a SQLite log: rejected with one line, and unchanged."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectgroup.errors import LogError
from connectgroup.log.sqlite import store as sqlite_store
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.log.sqlite.store import APPLICATION_ID, file_system
from connectgroup.protocol.records.connect import GroupRecord

from .sqlite_helpers import alter, filled_log, run_process, states_of


def _no_database(path: Path) -> None:
    path.write_bytes(b"not a database, but a text of some length that is none. " * 100)


def _other_application(path: Path) -> None:
    alter(path, "PRAGMA application_id = 77")
    alter(path, "CREATE TABLE t (x)")


def _nameless_application(path: Path) -> None:
    alter(path, "CREATE TABLE records (x)")


def _newer_schema(path: Path) -> None:
    asyncio.run(filled_log(path))
    alter(path, "PRAGMA user_version = 2")


def _cut_in_half(path: Path) -> None:
    asyncio.run(filled_log(path))
    os.truncate(path, path.stat().st_size // 2)


def _no_tables(path: Path) -> None:
    alter(path, f"PRAGMA application_id = {APPLICATION_ID}")
    alter(path, "PRAGMA user_version = 1")


def _no_epoch(path: Path) -> None:
    asyncio.run(filled_log(path))
    alter(path, "DELETE FROM meta")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (_no_database, "file is not a database"),
        (_other_application, "is the database of another application"),
        (_nameless_application, "is the database of another application"),
        (_newer_schema, "has schema version 2, written by other software; allowed: 1"),
        (_cut_in_half, "malformed"),
        (_no_tables, "no such table"),
        (_no_epoch, "has lost its coordinator epoch"),
        (lambda path: path.mkdir(), "is a directory; allowed: a file"),
        (lambda path: path.parent.rmdir(), "its folder does not exist"),
        (lambda path: path.with_name("groups.db.lock").mkdir(), "lock file"),
    ],
)
def test_file_that_is_not_a_log_is_rejected_and_unchanged(tmp_path: Path, prepare: object, message: str) -> None:
    """Bad input 30."""
    path = tmp_path / "folder" / "groups.db"
    path.parent.mkdir()
    assert callable(prepare)
    prepare(path)
    before = path.read_bytes() if path.is_file() else b""
    for _ in range(2):  # the second attempt shows that the first released everything
        with pytest.raises(LogError) as caught:
            asyncio.run(SqliteLog(path).open())
        assert message in str(caught.value)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert (path.read_bytes() if path.is_file() else b"")[:16] == before[:16]


@pytest.mark.parametrize(("mode", "message"), [(0o755, "cannot be written by this user"), (0o700, "Permission denied")])
def test_file_without_write_permission_is_rejected(mode: int, message: str) -> None:
    """In a process of an ordinary user: the tests may run as root, which may write anything."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's directories are closed to other users
        path = Path(folder) / "groups.db"
        asyncio.run(filled_log(path))
        os.chmod(folder, mode)
        if os.getuid() != 0:
            os.chmod(path, 0o444)
            message = "cannot be written by this user"
        done = run_process("forbidden", path)
        assert done.stdout.splitlines() == [f"{path}: {message}"] * 2, done.stderr


def test_network_file_system_is_rejected_and_an_overlay_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite's write-ahead log needs shared memory, which a network file system does not have. A test cannot mount one;
    only the name of the type is simulated."""
    monkeypatch.setattr(sqlite_store, "file_system", lambda folder: "nfs4")
    with pytest.raises(LogError, match="network file system"):
        asyncio.run(SqliteLog(tmp_path / "groups.db").open())
    monkeypatch.undo()
    if file_system(Path("/dev/shm")) == "tmpfs":
        path = Path("/dev/shm") / f"connectgroup-test-{os.getpid()}.db"
        with caplog.at_level(logging.WARNING):
            asyncio.run(states_of(path))
        for leftover in path.parent.glob(f"{path.name}*"):
            leftover.unlink()
        assert "do not survive" in caplog.text


# --------------------------------------------------------------------------------------------------
# The log holds connector configurations: only its owner may read it (reliability, section 5, secrets at rest).


@pytest.fixture(params=[0o000, 0o022], ids=["umask 000", "umask 022"], autouse=True)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {path.name: f"{stat.S_IMODE(path.stat().st_mode):04o}" for path in sorted(folder.iterdir())}


async def test_log_files_are_private_to_their_owner(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "groups.sqlite")
    await log.open()
    await log.append([GroupRecord(group_id="g", epoch=1)])
    try:
        found = modes(tmp_path)
    finally:
        await log.close()
    assert found == dict.fromkeys(
        ["groups.sqlite", "groups.sqlite-shm", "groups.sqlite-wal", "groups.sqlite.lock"], "0600"
    )


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
async def test_log_readable_by_others_is_opened_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path = tmp_path / "groups.sqlite"
    for _ in range(2):
        caplog.clear()
        log = SqliteLog(path)
        with caplog.at_level(logging.WARNING):
            await log.open()
        await log.close()
        path.chmod(mode)
    warned = f"{path}: other users may access it (mode {mode:04o})" in caplog.text
    assert warned is (mode != 0o600)
    assert stat.S_IMODE(path.stat().st_mode) == mode

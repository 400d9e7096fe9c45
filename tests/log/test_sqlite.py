"""The log in a SQLite file: the contract of every log, and the failures of files."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import connectgroup
from connectgroup.errors import LogError
from connectgroup.log.base import MAX_BATCH_BYTES, Loaded, Log, LogFenced
from connectgroup.log.sqlite import store as sqlite_store
from connectgroup.log.sqlite.files import APPLICATION_ID, file_system
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.log.sqlite.rows import row_checksum
from connectgroup.log.sqlite.store import Store
from connectgroup.protocol.records.base import Key
from connectgroup.protocol.records.connect import MemberRecord, Record
from connectgroup.testing.contracts.log import LogContract, contents, member, newest, opened
from tests.no_threads import NoThreads

State = dict[Key, Record] | LogError
CHILD = [sys.executable, str(Path(__file__).with_name("appending_process.py"))]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(connectgroup.__file__).parents[1])}


class TestSqliteLog(LogContract):
    def make_log(self, place: Path, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> Log:
        return SqliteLog(place / "groups.db", max_batch_bytes=max_batch_bytes)


def _start_appending(path: Path, first: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*CHILD, "append", str(path), str(first)], stdout=subprocess.PIPE, env=ENVIRONMENT)


def _run(what: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CHILD, what, str(path)], capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT
    )


# ------------------------------------------------------------------------------------------- crashes


@pytest.mark.parametrize("seed", range(3))
def test_killed_process_loses_no_acknowledged_batch_and_leaves_no_partial_one(tmp_path: Path, seed: int) -> None:
    """D3, F6-F8: a real process, killed 10 times on one file, which is being compacted at the same time."""
    generator = random.Random(seed)
    path = tmp_path / "groups.db"
    acknowledged: set[int] = set()
    for _ in range(10):
        child = _start_appending(path, max(acknowledged, default=0) + 1000)
        assert child.stdout is not None
        for _ in range(generator.randrange(1, 60)):
            line = child.stdout.readline()
            assert line, "the process ended by itself"
            acknowledged.add(int(line))
        child.kill()
        acknowledged |= {int(line) for line in child.stdout.read().split(b"\n")[:-1]}
        child.wait()
        child.stdout.close()

        parts = asyncio.run(_parts(path))
        assert acknowledged <= parts.keys(), f"seed {seed}: lost {sorted(acknowledged - parts.keys())}"
        assert {number: found for number, found in parts.items() if found != {"0", "1", "2"}} == {}, f"seed {seed}"


async def _parts(path: Path) -> dict[int, set[str]]:
    async with opened(SqliteLog(path)) as log:
        parts: dict[int, set[str]] = {}
        for record in await contents(log):
            assert isinstance(record, MemberRecord)
            if record.member_id != "counter":
                number, part = record.member_id.split("-")
                parts.setdefault(int(number), set()).add(part)
        return parts


def test_full_disk_is_an_error_until_there_is_space(tmp_path: Path) -> None:
    """F10, with the file system's own error (a limit on file size) and one process throughout."""
    done = _run("fill", tmp_path / "groups.db")
    assert done.stdout.split() == ["full", "still-full", "readable", "recovered", "complete"], done.stderr


# ------------------------------------------------------------------------------------------- one writer


async def test_log_that_gets_no_thread_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F36."""
    path = tmp_path / "groups.db"
    none, log = NoThreads(monkeypatch, "log "), SqliteLog(path)
    with pytest.raises(LogError, match=f"^{path}: not opened: can't start new thread$"):
        await log.open()
    none.over()
    async with opened(log):
        assert log.epoch == 1


def test_second_process_is_rejected_with_the_owner_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "groups.db"
    child = _start_appending(path, 0)
    assert child.stdout is not None
    child.stdout.readline()
    with pytest.raises(LogError, match=rf"in use by process {child.pid}; allowed: one process at a time"):
        asyncio.run(SqliteLog(path).open())
    child.send_signal(signal.SIGSTOP)  # a paused process still holds the lock
    with pytest.raises(LogError, match=str(child.pid)):
        asyncio.run(SqliteLog(path).open())
    child.kill()
    child.wait()
    child.stdout.close()
    assert asyncio.run(_parts(path))


@pytest.mark.asyncio
async def test_writer_whose_lock_file_was_removed_is_fenced_by_the_epoch(tmp_path: Path) -> None:
    """D4: the epoch is checked in the transaction that writes."""
    path = tmp_path / "groups.db"
    async with opened(SqliteLog(path)) as old:
        await old.append([member("a")])
        (tmp_path / "groups.db.lock").unlink()
        async with opened(SqliteLog(path)) as new:
            for _ in range(2):
                with pytest.raises(LogFenced, match=f"epoch {new.epoch}, this one has {old.epoch}"):
                    await old.append([member("zombie")])
            gone, acknowledged = (asyncio.ensure_future(old.append([member(name)])) for name in ("zombie", "other"))
            await asyncio.sleep(0)
            gone.cancel()
            with pytest.raises(LogFenced):
                await acknowledged
            await new.append([member("b")])
            assert await contents(new) == [member("a"), member("b")]


# ------------------------------------------------------------------------------------------- damage


async def _filled(path: Path) -> dict[str, State]:
    """A closed log of two groups with 20 records each, of which the last replaces the first, and its states."""
    async with opened(SqliteLog(path)) as log:
        for number in (*range(19), 0):
            await log.append([member(f"m{number}", group="g", host="10.0.0.1"), member(f"m{number}", group="h")])
        return _sound_or_not(await log.load())


async def _states(path: Path) -> dict[str, State]:
    """The state of each group of a closed log, or its error. Opening the log compacts it."""
    async with opened(SqliteLog(path)) as log:
        states = _sound_or_not(await log.load())
        # By the index: it may be damaged where the table is not, or the reverse.
        for group in states.keys() & {"g", "h"}:
            alone = _sound_or_not(await log.load(group))[group]
            if isinstance(states[group], LogError) or isinstance(alone, LogError):
                states[group] = alone
            else:
                assert alone == states[group]
        return states


def _sound_or_not(loaded: dict[str, Loaded]) -> dict[str, State]:
    return {group: found if isinstance(found, LogError) else newest(found) for group, found in loaded.items()}


def _alter(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE records SET value = zeroblob(5) WHERE offset = 5", "offset 5, group g: its checksum is"),
        ("UPDATE records SET value = NULL WHERE offset = 5", "offset 5, group g: its checksum is"),
        ("UPDATE records SET name = 'm3' WHERE offset = 5", "offset 5, group g: its checksum is"),
        ("UPDATE records SET kind = 99 WHERE offset = 5", "offset 5, group g: its checksum is"),
        ("UPDATE records SET epoch = 7 WHERE offset = 5", "offset 5, group g: its checksum is"),
        ("UPDATE records SET offset = 500 WHERE offset = 5", "offset 500, group g: its checksum is"),
        ("UPDATE records SET name = x'ff' WHERE offset = 5", "offset 5, group g: its checksum is"),
        ("UPDATE records SET crc32 = 'x' WHERE offset = 5", "group g: 19 records found where 20"),
        ("UPDATE records SET group_id = 'x' WHERE offset = 5", "group g: 19 records found where 20"),
        ("UPDATE records SET group_id = 5 WHERE offset = 5", "group g: 19 records found where 20"),
        ("DELETE FROM records WHERE offset = 5", "group g: 19 records found where 20"),
        ("DELETE FROM records WHERE group_id = 'g'", "group g: 0 records found where 20"),
        ("DELETE FROM groups WHERE group_id = 'g'", "group g: 20 records found where 0"),
        ("UPDATE groups SET checksum = 1 WHERE group_id = 'g'", "20 records found where 20 were written, or"),
    ],
)
async def test_group_with_a_damaged_record_is_rejected_and_the_others_are_served(
    tmp_path: Path, statement: str, message: str
) -> None:
    """D7, F27: never skipped, not even by compaction; the error names the position."""
    path = tmp_path / "groups.db"
    sound = await _filled(path)
    _alter(path, statement)
    for _ in range(2):  # opening compacts: the second time shows that the damage stays detected
        states = await _states(path)
        assert isinstance(states["g"], LogError)
        assert str(states["g"]).startswith(str(path))
        assert message in str(states["g"])
        assert states["h"] == sound["h"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (99, None, "record kind 99 is not known"),
        (2, b"\x7f\xff" + bytes(20), "offset 41, group g: "),
        (2, b"", "offset 41, group g: "),
    ],
)
async def test_record_of_a_newer_version_is_not_skipped(
    tmp_path: Path, kind: int, value: bytes | None, message: str
) -> None:
    """KAFKA-18672: a kind or version unknown to this software, with a valid checksum."""
    path = tmp_path / "groups.db"
    await _filled(path)
    crc = row_checksum(41, 41, 1, kind, b"g", b"m", value)
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO records VALUES (41, 41, 1, ?, 'g', 'm', ?, ?)", (kind, value, crc))
    connection.execute(
        "UPDATE groups SET row_count = 21, checksum = (checksum + ?) & 4294967295 WHERE group_id = 'g'", (crc,)
    )
    connection.commit()
    connection.close()
    states = await _states(path)
    assert message in str(states["g"])
    assert not isinstance(states["h"], LogError)


@pytest.mark.parametrize("seed", [0, 1, 2, 122])  # 122: into the text of the schema
def test_flipped_bit_in_the_file_is_never_served(tmp_path: Path, seed: int) -> None:
    """F9: SQLite pages have no checksum. Whatever bit flips, a group is served intact or not at all."""
    generator = random.Random(seed)
    original = tmp_path / "original.db"
    sound = asyncio.run(_filled(original))
    size = original.stat().st_size
    refused = 0
    for turn in range(60):
        path = tmp_path / f"flipped-{turn}.db"
        shutil.copy(original, path)
        with path.open("r+b") as file:
            # Half of them in the first bytes of a page, where SQLite keeps its pointers.
            offset = (
                generator.randrange(size)
                if turn % 2
                else generator.randrange(size // 4096) * 4096 + generator.randrange(200)
            )
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 1 << generator.randrange(8)]))
        try:
            states = asyncio.run(_states(path))
        except LogError:
            refused += 1
            continue
        for group in ("g", "h"):
            found = states.get(group)
            assert found == sound[group] or isinstance(found, LogError), f"seed {seed}, byte {offset}: {group} {found}"
            refused += isinstance(found, LogError)
        path.unlink()
    assert refused, "no flip was detected"


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bit_in_the_write_ahead_log_loses_the_last_transaction_at_most(tmp_path: Path, seed: int) -> None:
    """F9: SQLite truncates the log at the first bad frame; a cut in the middle is rejected, again and again."""
    generator = random.Random(seed)
    original = tmp_path / "groups.db"
    child = _start_appending(original, 0)
    assert child.stdout is not None
    last = [int(child.stdout.readline()) for _ in range(30)][-1]
    child.kill()
    child.wait()
    child.stdout.close()
    size = (tmp_path / "groups.db-wal").stat().st_size
    refused = 0
    for turn in range(25):
        folder = tmp_path / str(turn)
        folder.mkdir()
        for file in ("groups.db", "groups.db-wal", "groups.db.lock"):
            shutil.copy(tmp_path / file, folder / file)
        offset = generator.randrange(size) if turn else generator.randrange(32)
        with (folder / "groups.db-wal").open("r+b") as wal:
            wal.seek(offset)
            byte = wal.read(1)[0]
            wal.seek(offset)
            wal.write(bytes([byte ^ 1 << generator.randrange(8)]))
        for _ in range(2):
            try:
                parts = asyncio.run(_parts(folder / "groups.db"))
            except LogError:
                refused += 1
                continue
            lost = set(range(last)) - parts.keys()  # ``last`` may have been the last transaction
            assert not lost, f"seed {seed}, byte {offset} of {size}: lost {sorted(lost)}"
    assert refused >= 2, "no flip was detected"


def test_only_a_torn_last_transaction_is_cut_off(tmp_path: Path) -> None:
    """F8, F9: a crash during an unacknowledged write."""
    path = tmp_path / "groups.db"
    child = _start_appending(path, 0)
    assert child.stdout is not None
    last = [int(child.stdout.readline()) for _ in range(30)][-1]
    child.kill()
    child.wait()
    child.stdout.close()
    wal = tmp_path / "groups.db-wal"
    os.truncate(wal, wal.stat().st_size - 100)
    with wal.open("ab") as file:
        file.write(bytes(100))
    parts = asyncio.run(_parts(path))
    assert set(range(last)) <= parts.keys()
    assert all(found == {"0", "1", "2"} for found in parts.values())


def test_log_whose_checkpoint_is_blocked_by_a_reader_is_rejected(
    tmp_path: Path,
) -> None:
    """The contents of the write-ahead log must be durable in the file before any request is served."""
    path = tmp_path / "groups.db"
    child = _start_appending(path, 0)
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()
    child.wait()
    child.stdout.close()
    reader = sqlite3.connect(path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM records").fetchone()
    with pytest.raises(LogError, match="another process is reading it"):
        asyncio.run(SqliteLog(path).open())
    reader.close()
    assert asyncio.run(_parts(path))


def test_missing_write_ahead_log_is_detected(tmp_path: Path) -> None:
    """Bad input 30: the file alone would open without an error, without the last acknowledged records."""
    path = tmp_path / "groups.db"
    child = _start_appending(path, 0)
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()
    child.wait()
    child.stdout.close()
    (tmp_path / "groups.db-wal").unlink()
    log = SqliteLog(path)
    for _ in range(2):
        with pytest.raises(LogError, match=f"groups.db-wal is missing though process {child.pid} did not close it"):
            asyncio.run(log.open())
    (tmp_path / "groups.db.lock").unlink()
    asyncio.run(_states(path))


# ------------------------------------------------------------------------------------------- places


def _no_database(path: Path) -> None:
    path.write_bytes(b"not a database, but a text of some length that is none. " * 100)


def _other_application(path: Path) -> None:
    _alter(path, "PRAGMA application_id = 77")
    _alter(path, "CREATE TABLE t (x)")


def _nameless_application(path: Path) -> None:
    _alter(path, "CREATE TABLE records (x)")


def _newer_schema(path: Path) -> None:
    asyncio.run(_filled(path))
    _alter(path, "PRAGMA user_version = 2")


def _cut_in_half(path: Path) -> None:
    asyncio.run(_filled(path))
    os.truncate(path, path.stat().st_size // 2)


def _no_tables(path: Path) -> None:
    _alter(path, f"PRAGMA application_id = {APPLICATION_ID}")
    _alter(path, "PRAGMA user_version = 1")


def _no_epoch(path: Path) -> None:
    asyncio.run(_filled(path))
    _alter(path, "DELETE FROM meta")


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
        asyncio.run(_filled(path))
        os.chmod(folder, mode)
        if os.getuid() != 0:
            os.chmod(path, 0o444)
            message = "cannot be written by this user"
        done = _run("forbidden", path)
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
            asyncio.run(_states(path))
        for leftover in path.parent.glob(f"{path.name}*"):
            leftover.unlink()
        assert "do not survive" in caplog.text


# ------------------------------------------------------------------------------------------- housekeeping


@pytest.mark.asyncio
async def test_replaced_records_are_compacted(tmp_path: Path) -> None:
    path = tmp_path / "groups.db"
    async with opened(SqliteLog(path, compact_after=50)) as log:
        for number in range(500):
            await log.append([member("the same", host=str(number))])
        assert len(await contents(log)) <= 100
        assert (await contents(log))[-1] == member("the same", host="499")


@pytest.mark.asyncio
async def test_concurrent_appends_share_a_commit(tmp_path: Path) -> None:
    """Group commit: writes to the write-ahead log are counted, not timed."""
    path = tmp_path / "groups.db"
    wal = path.with_name("groups.db-wal")
    async with opened(SqliteLog(path)) as log:
        await asyncio.gather(*(log.append([member(str(number))]) for number in range(64)))
        together = wal.stat().st_size
        start = together
        for number in range(64):
            await log.append([member(f"x{number}")])
        assert wal.stat().st_size - start > 4 * together


def _synchronous(store: Store) -> int:
    assert store._connection is not None
    (value,) = store._connection.execute("PRAGMA synchronous").fetchone()
    return int(value)


@pytest.mark.asyncio
async def test_every_connection_is_opened_with_synchronous_full(tmp_path: Path) -> None:
    """NORMAL (1) may lose an acknowledged commit when the machine fails; FULL is 2. A test cannot cut the power."""
    log = SqliteLog(tmp_path / "groups.db")
    async with opened(log):
        assert await log._run(_synchronous) == 2
        await log._run(Store._drop_connection)  # as after a failure
        await log.append([member("a")])
        assert await log._run(_synchronous) == 2


@pytest.mark.asyncio
async def test_changed_value_of_the_same_length_fails_its_checksum(tmp_path: Path) -> None:
    """D7: the value still decodes, under its own key, and with the same length."""
    path = tmp_path / "groups.db"
    async with opened(SqliteLog(path)) as log:
        await log.append([member("a", host="10.0.0.1")])
    connection = sqlite3.connect(path)
    (value,) = connection.execute("SELECT value FROM records").fetchone()
    assert b"10.0.0.1" in value
    connection.execute("UPDATE records SET value = ?", (value.replace(b"10.0.0.1", b"10.0.0.2"),))
    connection.commit()
    connection.close()
    async with opened(SqliteLog(path)) as log:
        assert "its checksum is" in str((await log.load("g"))["g"])


@pytest.mark.asyncio
async def test_record_of_a_later_coordinator_epoch_than_the_log_is_an_error(tmp_path: Path) -> None:
    """D4: the epoch of the log was set back, so it would no longer fence a writer."""
    path = tmp_path / "groups.db"
    for _ in range(3):
        async with opened(SqliteLog(path)) as log:
            pass
    async with opened(SqliteLog(path)) as log:
        await log.append([member("a")])
        assert log.epoch == 4
    connection = sqlite3.connect(path)
    connection.execute("UPDATE meta SET value = 0 WHERE name = 'epoch'")
    connection.commit()
    connection.close()
    async with opened(SqliteLog(path)) as log:
        loaded = (await log.load("g"))["g"]
        assert isinstance(loaded, LogError)
        assert "it is of coordinator epoch 4, the log is at 1" in str(loaded)

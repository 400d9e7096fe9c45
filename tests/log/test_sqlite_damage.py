"""A damaged SQLite log: records, pages and write-ahead logs that were changed or lost are detected."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from connectgroup.errors import LogError
from connectgroup.log.rows import row_checksum
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.log.sqlite.wal import check_wal
from connectgroup.protocol.records.connect import GroupRecord
from connectgroup.testing.contracts.log import contents, member, opened
from tests.guides import ROOT, blocks
from tests.integration.processes import call_command

from .sqlite_helpers import alter, filled_log, killed_after, parts_in, states_of


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
    sound = await filled_log(path)
    alter(path, statement)
    for _ in range(2):  # opening compacts: the second time shows that the damage stays detected
        states = await states_of(path)
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
    await filled_log(path)
    crc = row_checksum(41, 41, 1, kind, b"g", b"m", value)
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO records VALUES (41, 41, 1, ?, 'g', 'm', ?, ?)", (kind, value, crc))
    connection.execute(
        "UPDATE groups SET row_count = 21, checksum = (checksum + ?) & 4294967295 WHERE group_id = 'g'", (crc,)
    )
    connection.commit()
    connection.close()
    states = await states_of(path)
    assert message in str(states["g"])
    assert not isinstance(states["h"], LogError)


@pytest.mark.parametrize("seed", [0, 1, 2, 122])  # 122: into the text of the schema
def test_flipped_bit_in_the_file_is_never_served(tmp_path: Path, seed: int) -> None:
    """F9: SQLite pages have no checksum. Whatever bit flips, a group is served intact or not at all."""
    generator = random.Random(seed)
    original = tmp_path / "original.db"
    sound = asyncio.run(filled_log(original))
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
            states = asyncio.run(states_of(path))
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
    last = killed_after(30, original)
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
                parts = asyncio.run(parts_in(folder / "groups.db"))
            except LogError:
                refused += 1
                continue
            lost = set(range(last)) - parts.keys()  # ``last`` may have been the last transaction
            assert not lost, f"seed {seed}, byte {offset} of {size}: lost {sorted(lost)}"
    assert refused >= 2, "no flip was detected"


def test_write_ahead_log_that_is_damaged_before_its_last_transaction_is_rejected_by_itself(tmp_path: Path) -> None:
    """F9, without the count of records beside the log, which finds such a loss too."""
    wal = tmp_path / "some.db-wal"
    with contextlib.closing(sqlite3.connect(tmp_path / "some.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        for number in range(4):
            connection.execute(f"CREATE TABLE t{number} (x)")
        data = bytearray(wal.read_bytes())
        check_wal(wal)
        data[100] ^= 1
        wal.write_bytes(data)
        with pytest.raises(LogError, match=r"damaged at frame 1, with \d commits after it"):
            check_wal(wal)


def test_only_a_torn_last_transaction_is_cut_off(tmp_path: Path) -> None:
    """F8, F9: a crash during an unacknowledged write."""
    path = tmp_path / "groups.db"
    last = killed_after(30, path)
    wal = tmp_path / "groups.db-wal"
    frame = wal.read_bytes()[-4120:]
    with wal.open("ab") as file:
        file.write(frame[:-100] + bytes(100))
    parts = asyncio.run(parts_in(path))
    assert set(range(last)) <= parts.keys()
    assert all(found == {"0", "1", "2"} for found in parts.values())


def test_log_whose_checkpoint_is_blocked_by_a_reader_is_rejected(
    tmp_path: Path,
) -> None:
    """The contents of the write-ahead log must be durable in the file before any request is served."""
    path = tmp_path / "groups.db"
    killed_after(1, path)
    reader = sqlite3.connect(path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM records").fetchone()
    with pytest.raises(LogError, match="another process is reading it"):
        asyncio.run(SqliteLog(path).open())
    reader.close()
    assert asyncio.run(parts_in(path))


@pytest.mark.parametrize("transactions", [1, 5])
def test_write_ahead_log_that_was_cut_behind_a_transaction_is_detected(tmp_path: Path, transactions: int) -> None:
    """SQLite takes it for a whole one: acknowledged records would be missing without an error."""
    path = tmp_path / "groups.db"
    killed_after(30, path)
    wal = tmp_path / "groups.db-wal"
    data = wal.read_bytes()
    length = 24 + int.from_bytes(data[8:12], "big")
    # A frame with a size of the database is the last one of a transaction.
    ends = [at + length for at in range(32, len(data), length) if any(data[at + 4 : at + 8])]
    os.truncate(wal, ends[-1 - transactions - 1])  # one more: the last transaction may not be acknowledged
    for _ in range(2):
        with pytest.raises(LogError, match=f"was acknowledged: .* connectgroup groups recover {path}"):
            asyncio.run(SqliteLog(path).open())
    asyncio.run(contents_of_restored(path))  # with a higher coordinator epoch, see RESTORED_EPOCHS
    assert asyncio.run(parts_in(path))


async def contents_of_restored(path: Path) -> None:
    """Open a log that lacks records, as ``groups recover`` does."""
    async with opened(SqliteLog(path, restored=True)):
        pass


@pytest.mark.parametrize("files", [("groups.db",), ("groups.db", "groups.db-wal")])
@pytest.mark.parametrize("killed", [True, False])
def test_missing_file_is_no_empty_log_while_its_lock_file_is_there(
    tmp_path: Path, files: tuple[str, ...], killed: bool
) -> None:
    path = tmp_path / "groups.db"
    if killed:
        killed_after(1, path)
    else:
        asyncio.run(filled_log(path))
    for file in files:
        (tmp_path / file).unlink(missing_ok=True)
    for _ in range(2):
        with pytest.raises(LogError, match="is missing though process"):
            asyncio.run(SqliteLog(path).open())
        assert not path.exists()
    (tmp_path / "groups.db.lock").unlink()
    (tmp_path / "groups.db-wal").unlink(missing_ok=True)
    assert asyncio.run(states_of(path)) == {}


def test_missing_write_ahead_log_is_detected(tmp_path: Path) -> None:
    """Bad input 30: the file alone would open without an error, without the last acknowledged records."""
    path = tmp_path / "groups.db"
    killed_after(1, path)
    (tmp_path / "groups.db-wal").unlink()
    log = SqliteLog(path)
    for _ in range(2):
        with pytest.raises(LogError, match=r"groups.db-wal is missing though process \d+ did not close it"):
            asyncio.run(log.open())
    asyncio.run(contents_of_restored(path))
    asyncio.run(states_of(path))


async def test_coordinator_epoch_of_an_older_copy_is_above_those_that_workers_have_seen(tmp_path: Path) -> None:
    """The copy has all records, but workers would ignore a coordinator of a lower epoch."""
    path, copy = tmp_path / "groups.db", tmp_path / "copy"
    await filled_log(path)
    shutil.copy(path, copy)
    for _ in range(3):
        async with opened(SqliteLog(path)) as log:
            seen = log.epoch
    shutil.copy(copy, path)
    async with opened(SqliteLog(path)) as log:
        assert log.epoch > seen


async def test_groups_beside_one_that_cannot_be_read_are_recovered_and_named(tmp_path: Path) -> None:
    path = tmp_path / "groups.db"
    async with opened(SqliteLog(path)) as log:
        for group in "abc":
            await log.append([GroupRecord(group_id=group, epoch=3, created_ms=1_000)])
    alter(path, "UPDATE records SET value = zeroblob(5) WHERE group_id = 'b'")
    done = await asyncio.to_thread(call_command, "groups", "recover", path)
    assert (done.code, done.out) == (2, "group a: recovered\ngroup c: recovered\n")
    assert "group b: its checksum is" in done.err
    assert done.err.count("\n") == 1


async def test_copy_is_put_back_after_a_crash_as_the_guide_says(tmp_path: Path) -> None:
    """docs/operations.md: without what the crash has left of the former file, which would damage the copy."""
    at, backup, crashed = (tmp_path / name for name in ("at", "backup", "crashed"))
    at.mkdir()
    backup.mkdir()
    log, path = SqliteLog(at / "groups.sqlite"), crashed / "groups.sqlite"
    async with opened(log):
        await log.append([GroupRecord(group_id="g", epoch=3, created_ms=1_000)])
    shutil.copy(at / "groups.sqlite", backup)
    async with opened(log):
        for size in 5_000_000, 1, 1:  # the first one is more than SQLite keeps in its write-ahead log
            await log.append([member("m", host="x" * size)])
        shutil.copytree(at, crashed)
    assert (crashed / "groups.sqlite-wal").stat().st_size > 0
    (block,) = (each.text for each in blocks((ROOT / "docs/operations.md").read_text("utf-8")) if "-wal" in each.text)
    for line in block.replace("/var/lib/connectgroup", str(crashed)).replace("/backup", str(backup)).splitlines():
        name, *words = line.split()
        if name == "connectgroup":
            done = await asyncio.to_thread(call_command, *words)
            assert (done.code, done.out) == (0, "group g: recovered\n"), done.err
        else:
            await asyncio.to_thread(subprocess.run, [name, *words], check=True)
    async with opened(SqliteLog(path)) as put_back:
        assert [each.epoch for each in await contents(put_back) if isinstance(each, GroupRecord)][-1:] == [4]

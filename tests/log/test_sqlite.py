"""The log in a SQLite file: the contract of every log, and the failures of files."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
from pathlib import Path

import pytest

from connectgroup.errors import LogError
from connectgroup.log.base import MAX_BATCH_BYTES, Log, LogFenced
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.log.sqlite.store import Store
from connectgroup.protocol.records.base import Tombstone
from connectgroup.testing.contracts.log import LogContract, contents, member, opened
from tests.no_threads import NoThreads
from tests.volume import volume

from .sqlite_helpers import parts_in, run_process, start_appending


class TestSqliteLog(LogContract):
    def make_log(self, place: Path, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> Log:
        return SqliteLog(place / "groups.db", max_batch_bytes=max_batch_bytes)


# ------------------------------------------------------------------------------------------- crashes


@pytest.mark.parametrize("seed", range(volume(1, 3)))
def test_killed_process_loses_no_acknowledged_batch_and_leaves_no_partial_one(tmp_path: Path, seed: int) -> None:
    """D3, F6-F8: a real process, killed 10 times on one file, which is being compacted at the same time."""
    generator = random.Random(seed)
    path = tmp_path / "groups.db"
    acknowledged: set[int] = set()
    for _ in range(10):
        child = start_appending(path, max(acknowledged, default=0) + 1000)
        assert child.stdout is not None
        for _ in range(generator.randrange(1, 60)):
            line = child.stdout.readline()
            assert line, "the process ended by itself"
            acknowledged.add(int(line))
        child.kill()
        acknowledged |= {int(line) for line in child.stdout.read().split(b"\n")[:-1]}
        child.wait()
        child.stdout.close()

        parts = asyncio.run(parts_in(path))
        assert acknowledged <= parts.keys(), f"seed {seed}: lost {sorted(acknowledged - parts.keys())}"
        assert {number: found for number, found in parts.items() if found != {"0", "1", "2"}} == {}, f"seed {seed}"


def test_full_disk_is_an_error_until_there_is_space(tmp_path: Path) -> None:
    """F10, with the file system's own error (a limit on file size) and one process throughout."""
    done = run_process("fill", tmp_path / "groups.db")
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
    child = start_appending(path, 0)
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
    assert asyncio.run(parts_in(path))


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
    (tmp_path / "groups.db.lock").unlink()  # it has the epoch, too
    async with opened(SqliteLog(path)) as log:
        loaded = (await log.load("g"))["g"]
        assert isinstance(loaded, LogError)
        assert "it is of coordinator epoch 4, the log is at 1" in str(loaded)


@pytest.mark.asyncio
async def test_many_small_groups_that_were_deleted_are_compacted(tmp_path: Path) -> None:
    """No group alone has enough rows to be compacted."""
    async with opened(SqliteLog(tmp_path / "groups.db", compact_after=20)) as log:
        for number in range(200):
            record = member("m", group=f"g{number}")
            await log.append([record])
            await log.append([Tombstone(record.key)])
        await log.append([member("m", group="kept")])
        loaded = (await log.load()).values()
        left = [record for records in loaded if not isinstance(records, LogError) for record in records]
        assert left[-1] == member("m", group="kept")
        assert len(left) <= 150

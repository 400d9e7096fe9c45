"""What a log promises in passing: each of these could be broken without any other test noticing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from connectgroup.errors import LogError
from connectgroup.log.base import AppendRefused
from connectgroup.log.memory import MemoryLog
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.log.sqlite.store import Store
from connectgroup.testing.contracts.log import contents, member, opened
from connectgroup.wire.record_codec import encode_record


def _synchronous(store: Store) -> int:
    assert store._connection is not None
    (value,) = store._connection.execute("PRAGMA synchronous").fetchone()
    return int(value)


@pytest.mark.asyncio
async def test_every_connection_waits_for_the_disk(tmp_path: Path) -> None:
    """NORMAL (1) may lose an acknowledged commit with the machine; FULL is 2. A test cannot pull the plug."""
    log = SqliteLog(tmp_path / "groups.db")
    async with opened(log):
        assert await log._run(_synchronous) == 2
        await log._run(Store._drop_connection)  # as after any failure
        await log.append([member("a")])
        assert await log._run(_synchronous) == 2


@pytest.mark.asyncio
async def test_a_changed_value_of_the_same_length_is_found(tmp_path: Path) -> None:
    """D7: it still decodes, under its own key, and the lengths agree: only the checksum of the value can tell."""
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
async def test_a_record_of_a_coordinator_epoch_that_is_still_to_come_is_found(tmp_path: Path) -> None:
    """D4: the count of openings was set back, so a writer's epoch would fence nobody any more."""
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


@pytest.mark.asyncio
async def test_the_bound_of_a_batch_is_on_keys_and_values() -> None:
    """D9, to the byte."""
    record = member("a" * 200, group="g" * 100)
    size = len(encode_record(record) or b"") + 200 + 100
    async with opened(MemoryLog(max_batch_bytes=size)) as log:
        await log.append([record])
        assert await contents(log, "g" * 100) == [record]
    async with opened(MemoryLog(max_batch_bytes=size - 1)) as log:
        with pytest.raises(AppendRefused, match=f"takes {size} bytes; allowed: up to {size - 1}"):
            await log.append([record])

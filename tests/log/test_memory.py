"""The log in memory keeps the contract of every log."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectgroup.errors import LogError
from connectgroup.log.base import MAX_BATCH_BYTES, AppendRefused, EncodedRecord, Log, LogFenced
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.testing.contracts.log import LogContract, contents, member, opened
from connectgroup.wire.record_codec import encode_record


class TestMemoryLog(LogContract):
    storage: MemoryStorage

    @pytest.fixture(autouse=True)
    def _storage(self) -> None:
        self.storage = MemoryStorage()

    def make_log(self, place: Path, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> Log:
        return MemoryLog(self.storage, max_batch_bytes=max_batch_bytes)


@pytest.mark.asyncio
async def test_reopened_log_fences_the_earlier_one() -> None:
    storage = MemoryStorage()
    async with opened(MemoryLog(storage)) as old, opened(MemoryLog(storage)) as new:
        with pytest.raises(LogFenced, match="epoch 2, this one has 1"):
            await old.append([member("a")])
        await new.append([member("a")])


@pytest.mark.asyncio
async def test_group_that_does_not_decode_is_rejected_and_the_others_are_served() -> None:
    """D7, F27."""
    storage = MemoryStorage()
    async with opened(MemoryLog(storage)) as log:
        await log.append([member("a", group="g"), member("a", group="h")])
        storage.batches.append([EncodedRecord(member("b", group="h").key, b"\xff\xff\xff")])
        loaded = await log.load()
        assert loaded["g"] == (member("a", group="g"),)
        assert isinstance(loaded["h"], LogError)
        assert "batch 1, group h" in str(loaded["h"])


@pytest.mark.asyncio
async def test_batch_limit_counts_keys_and_values() -> None:
    """D9, to the byte."""
    record = member("a" * 200, group="g" * 100)
    size = len(encode_record(record) or b"") + 200 + 100
    async with opened(MemoryLog(max_batch_bytes=size)) as log:
        await log.append([record])
        assert await contents(log, "g" * 100) == [record]
    async with opened(MemoryLog(max_batch_bytes=size - 1)) as log:
        with pytest.raises(AppendRefused, match=f"takes {size} bytes; allowed: up to {size - 1}"):
            await log.append([record])

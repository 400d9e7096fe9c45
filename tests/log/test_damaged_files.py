"""Files that were truncated, flipped, emptied, swapped or overwritten: rejected with the position, or served intact."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from connectgroup.errors import LogError
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.testing.contracts.log import member, opened

from .life import NAME, Acknowledged, append, holds, serves

PAGE = 4096


async def ten_batches(path: Path) -> Acknowledged:
    acknowledged = Acknowledged()
    async with opened(SqliteLog(path)) as log:
        for number in range(10):
            await append(log, acknowledged, number, bytes_each=1500)
    return acknowledged


async def refusal(path: Path, acknowledged: Acknowledged) -> str:
    """The error that prevents serving the log or its group; empty if the log is served intact."""
    try:
        async with opened(SqliteLog(path)) as log:
            loaded = (await log.load("g"))["g"]
            if isinstance(loaded, LogError):
                return str(loaded)
            await holds(log, acknowledged)
            return ""
    except LogError as error:
        return str(error)


@pytest.mark.parametrize("lock_file_too", [True, False], ids=["with lock file", "without"])
async def test_truncated_file_is_rejected(directory: Path, lock_file_too: bool) -> None:
    """F28: the log was closed cleanly, so no other file holds the missing part."""
    original = directory / "original"
    original.mkdir()
    acknowledged = await ten_batches(original / NAME)
    size = (original / NAME).stat().st_size
    assert size > 10 * PAGE
    for boundary in range(0, size + 1, PAGE):
        for length in {boundary - 1, boundary, boundary + 1} & set(range(size)):
            if length == 0 and not lock_file_too:
                continue  # indistinguishable from a new file
            folder = directory / str(length)
            shutil.copytree(original, folder)
            if not lock_file_too:
                (folder / f"{NAME}.lock").unlink()
            os.truncate(folder / NAME, length)
            for _ in range(2):
                message = await refusal(folder / NAME, acknowledged)
                assert message.startswith(str(folder / NAME)), f"cut to {length} of {size} bytes: {message!r}"
                assert "\n" not in message
            if length <= size - PAGE:
                assert (folder / NAME).stat().st_size == length, "left unchanged"


async def test_emptied_or_removed_file_is_rejected_until_its_lock_file_is_removed(directory: Path) -> None:
    """F28: a log that was removed on purpose was removed with its lock file; all else is an accident."""
    path = directory / NAME
    acknowledged = await ten_batches(path)
    os.truncate(path, 0)
    message = rf"{path}: is empty though process {os.getpid()} wrote a log there: .* To start empty, remove {NAME}.lock"
    for _ in range(2):
        with pytest.raises(LogError, match=message):
            await SqliteLog(path).open()
    path.unlink()
    with pytest.raises(LogError, match="is missing though process"):
        await SqliteLog(path).open()
    (directory / f"{NAME}.lock").unlink()
    await serves(path, Acknowledged())
    assert acknowledged.kept


async def test_every_flipped_bit_of_a_record_is_detected_with_its_offset(directory: Path) -> None:
    """D7, F9, F27."""
    original = directory / "original"
    original.mkdir()
    async with opened(SqliteLog(original / NAME)) as log:
        for number in range(5):
            await log.append([member(f"m{number}", host="unmistakable" if number == 3 else "x")])
        epoch = log.epoch
    data = (original / NAME).read_bytes()
    start = data.index(b"unmistakable")
    assert data.count(b"unmistakable") == 1
    path = directory / "copy" / NAME
    shutil.copytree(original, path.parent)
    for bit in range(start * 8, (start + len(b"unmistakable")) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        async with opened(SqliteLog(path)) as log:
            found = (await log.load("g"))["g"]
        assert isinstance(found, LogError)
        assert str(found).startswith(f"{path}: offset 4, group g: its checksum is ")
    assert epoch == 1


def _noise(length: int) -> Callable[[Path], None]:
    return lambda path: _write(path, Random(length).randbytes(length))


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _head_only(path: Path) -> None:
    """A valid first page, and noise."""
    asyncio.run(ten_batches(path))
    data = path.read_bytes()
    path.write_bytes(data[:PAGE] + Random(1).randbytes(len(data) - PAGE))


def _older_schema(path: Path) -> None:
    asyncio.run(ten_batches(path))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 0")
    connection.close()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (_noise(1), "not a database"),
        (_noise(99), "not a database"),
        (_noise(512), "not a database"),
        (_noise(3 * PAGE), "not a database"),
        (lambda path: _write(path, bytes(3 * PAGE)), "not a database"),
        (lambda path: _write(path, b"SQLite format 3\0"), "not a database"),
        (_head_only, "malformed"),
        (_older_schema, "has schema version 0, written by other software; allowed: 1"),
        (lambda path: Path(f"{path}-wal").mkdir(), "Is a directory"),
        (lambda path: Path(f"{path}-shm").mkdir(), "readonly database|unable to open"),
    ],
    ids=[
        "1 byte",
        "99 bytes",
        "noise",
        "pages of noise",
        "zeros",
        "a header",
        "noise behind the first page",
        "older schema",
        "folder as write-ahead log",
        "folder as shared memory",
    ],
)
def test_foreign_file_is_rejected_and_not_written(
    directory: Path, prepare: Callable[[Path], None], message: str
) -> None:
    """Bad input 30."""
    path = directory / NAME
    prepare(path)
    before = path.read_bytes() if path.exists() else None
    messages = [asyncio.run(refusal(path, Acknowledged())) for _ in range(2)]
    for line in messages:
        assert line.startswith(str(path))
        assert re.search(message, line)
        assert "\n" not in line
    assert before is None or path.read_bytes() == before

"""Checks SQLite's write-ahead log (WAL) before SQLite reads it: is it damaged before its last transaction?

SQLite uses the frames of the WAL up to the first frame with a wrong checksum and discards the rest. At the end of the
WAL that is correct: a crash tears the transaction that was being written, and that transaction was never acknowledged
as durable. In the middle it would silently lose acknowledged records. Each transaction is durable before the next one
begins (synchronous=FULL, one writer), so at most one can be torn: two commits after the first bad frame mean that the
WAL is damaged (F9).

A bit flip within the last transaction cannot be distinguished from a torn write, and is treated as one.

Source: sqlite.org, "WAL-mode File Format".
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from ...errors import LogError

_HEADER: Final = struct.Struct(">8I")  # magic, version, page size, sequence, salt, salt, checksum, checksum
_FRAME: Final = struct.Struct(">6I")  # page, pages of the file if a commit, salt, salt, checksum, checksum
_WORDS: Final = {0x377F0682: struct.Struct("<II"), 0x377F0683: struct.Struct(">II")}

_PAGE_SIZES: Final = [1 << power for power in range(9, 17)]


def check_wal(wal: Path) -> None:
    """Check a WAL. An intact WAL, a WAL torn at its end, and a missing WAL pass.

    Raises:
        LogError: the WAL is damaged before its last transaction; the message names the frame.
        OSError: the WAL cannot be read.
    """
    try:
        data = wal.read_bytes()
    except FileNotFoundError:
        return
    if len(data) <= _HEADER.size:
        return  # SQLite syncs the header before it writes a frame: a torn header has no frames after it
    magic, _, page_size, _, *salts, sum0, sum1 = _HEADER.unpack_from(data)
    words = _WORDS.get(magic)
    if words is None or page_size not in _PAGE_SIZES or _checksum(words, data[:24], 0, 0) != (sum0, sum1):
        raise _damaged(wal, "its header")
    bad = 0
    commits = 0
    length = _FRAME.size + page_size
    for number, start in enumerate(range(_HEADER.size, len(data) - length + 1, length), 1):
        _, commit, *of_frame, found0, found1 = _FRAME.unpack_from(data, start)
        if not bad:
            sum0, sum1 = _checksum(words, data[start : start + 8], sum0, sum1)
            sum0, sum1 = _checksum(words, data[start + _FRAME.size : start + length], sum0, sum1)
            if of_frame == salts and (found0, found1) == (sum0, sum1):
                continue
            bad = number
        # Frames with other salts are older than the last checkpoint and already in the database file.
        commits += bool(commit) and of_frame == salts
    if commits > 1:
        raise _damaged(wal, f"frame {bad}, with {commits} commits after it")


def rewrite_wal(wal: Path) -> None:
    """Rewrite a WAL unchanged, so that its readable contents are on the disk. No other process may be writing it.

    After a failed fsync, the kernel marks the pages as clean: reads return them as if they were on the disk, and no
    later fsync writes them. SQLite would copy such a transaction into the database file. After a power loss, the
    database file would have pages of this transaction, and the WAL older pages of an earlier one: a corrupt database.

    Raises:
        OSError: the WAL cannot be read or written.

    Source: Rebello et al., "Can Applications Recover from fsync Failures?" (2020).
    """
    try:
        descriptor = os.open(wal, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        data = wal.read_bytes()
        at = 0
        while at < len(data):
            at += os.pwrite(descriptor, data[at:], at)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(words: struct.Struct, data: bytes, sum0: int, sum1: int) -> tuple[int, int]:
    for word0, word1 in words.iter_unpack(data):
        sum0 = (sum0 + word0 + sum1) & 0xFFFFFFFF
        sum1 = (sum1 + word1 + sum0) & 0xFFFFFFFF
    return sum0, sum1


def _damaged(wal: Path, where: str) -> LogError:
    return LogError(f"{wal}: damaged at {where}: acknowledged records would be lost; restore it from a copy")

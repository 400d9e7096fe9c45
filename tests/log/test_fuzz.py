"""Random rows and write-ahead logs: a valid record, or an error with the position."""

from __future__ import annotations

import random
import sqlite3
import struct
from pathlib import Path
from typing import Any, Final

from connectgroup.errors import LogError, WireError
from connectgroup.log.rows import Row, row_checksum
from connectgroup.log.sqlite.wal import check_wal
from connectgroup.testing.contracts.log import ONE_OF_EACH
from connectgroup.wire import record_codec
from tests.fuzzing import INPUTS, SEED, mutated, one_line

NUMBERS: Final = (0, 1, -1, 5, 99, 2**31 - 1, 2**31, -(2**63), 2**63 - 1)
PAGE_SIZES: Final = (0, 1, 7, 8, 511, 512, 513, 4096, 65_536, 131_072, 2**31, 2**32 - 1)


def test_any_row_decodes_or_raises_wire_error() -> None:
    """D7, F27. Half of the rows have a valid checksum, as a faulty writer would make them."""
    rng = random.Random(SEED)
    rows = [
        (7, 5, 3, int(record.key.kind), record.key.group_id.encode(), record.key.name.encode(), value)
        for record in ONE_OF_EACH
        for value in (record_codec.encode_record(record), None)
    ]
    values = [row[-1] or b"" for row in rows]
    names = [b"g", b"m", b"c", b"\xff", b"\xed\xa0\x80", b"", "ü".encode(), bytes(300)]
    accepted = refused = 0
    for number in range(INPUTS):
        row: list[Any] = list(rows[number % len(rows)])
        match int(rng.random() * 8):
            case 0:
                row[int(rng.random() * 4)] = rng.choice(NUMBERS)
            case 1:
                row[3] = rng.randrange(12)
            case 2:
                row[4 + int(rng.random() * 2)] = mutated(rng.choice(names), names, rng)
            case 3:
                row[int(rng.random() * 7)] = rng.choice((None, "text", 1.5, b"bytes", 7))
            case _ if row[6] is not None:
                row[6] = mutated(row[6], values, rng)
        try:
            crc = row_checksum(*row) if rng.random() < 0.9 else rng.getrandbits(32)
        except (TypeError, struct.error):
            crc = 0
        found = Row.of((*row, crc))
        if found is None:
            refused += 1
            continue
        try:
            record = found.record(newest_epoch=3)
        except WireError as error:
            refused += 1
            if refused % 64 == 0:
                one_line(error)
            continue
        except BaseException as error:
            raise AssertionError(f"FUZZ_SEED={SEED}: {row} ended in {error!r}") from error
        accepted += 1
        assert record.key == found.key()
        assert record_codec.encode_record(record) is not None or row[6] is None
    assert min(accepted, refused) > INPUTS // 50


def test_any_write_ahead_log_is_ignored_or_reported_as_damaged(directory: Path) -> None:
    """Half of them have a header with a valid checksum."""
    rng = random.Random(SEED)
    connection = sqlite3.connect(directory / "some.db", isolation_level=None)
    connection.execute("PRAGMA page_size = 512")
    connection.execute("PRAGMA journal_mode = WAL")
    wal = directory / "some.db-wal"
    valid = []
    for number in range(4):
        connection.execute(f"CREATE TABLE t{number} (x)")
        valid.append(wal.read_bytes())
    connection.close()
    passed = damaged = 0
    for number in range(INPUTS):
        data = mutated(valid[number % len(valid)], valid, rng)
        if len(data) >= 32 and rng.random() < 0.5:
            head = bytearray(data[:24])
            if rng.random() < 0.5:
                struct.pack_into(">I", head, 8, rng.choice(PAGE_SIZES))
            order = ">" if head[3] & 1 else "<"
            sum0 = sum1 = 0
            for word0, word1 in struct.iter_unpack(f"{order}II", head):
                sum0 = (sum0 + word0 + sum1) & 0xFFFFFFFF
                sum1 = (sum1 + word1 + sum0) & 0xFFFFFFFF
            data = bytes(head) + struct.pack(">II", sum0, sum1) + data[32:]
        wal.write_bytes(data)
        try:
            check_wal(wal)
            passed += 1
        except LogError as error:
            damaged += 1
            one_line(error, f"{wal}: damaged at ")
        except BaseException as error:
            raise AssertionError(f"FUZZ_SEED={SEED}: {data.hex()} ended in {error!r}") from error
    assert min(passed, damaged) > 0

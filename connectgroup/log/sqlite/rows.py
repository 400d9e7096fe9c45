"""One row of the log, its checksum and its checks."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from ...errors import WireError
from ...protocol.records.base import Key, Kind
from ...protocol.records.connect import Record
from ...wire.record_codec import decode_record


class Row:
    """One row as read from the file, not verified."""

    __slots__ = ("batch", "crc", "epoch", "group_id", "kind", "name", "offset", "raw_group", "value")

    offset: int
    batch: int
    epoch: int
    kind: int
    raw_group: bytes
    group_id: str
    name: bytes
    value: bytes | None
    crc: int

    @classmethod
    def of(cls, values: tuple[Any, ...]) -> Row | None:
        """Return the row, or ``None`` if a column has the wrong type."""
        *numbers, group, name, value, crc = values
        if not all(isinstance(number, int) for number in (*numbers, crc)):
            return None
        if not isinstance(group, bytes) or not isinstance(name, bytes) or not isinstance(value, bytes | None):
            return None
        row = cls()
        row.offset, row.batch, row.epoch, row.kind = numbers
        row.raw_group, row.name, row.value, row.crc = group, name, value, crc
        row.group_id = text_of(group)
        return row

    def key(self) -> Key:
        """Return the row's key after verifying the row's checksum; otherwise raise ``WireError``."""
        crc = row_checksum(self.offset, self.batch, self.epoch, self.kind, self.raw_group, self.name, self.value)
        if crc != self.crc:
            raise WireError(f"its checksum is {crc}, {self.crc} was written")
        try:
            return Key(Kind(self.kind), self.group_id, self.name.decode())
        except ValueError as error:
            raise WireError(f"record kind {self.kind} is not known to this version of the software") from error

    def record(self, *, newest_epoch: int) -> Record:
        """Return the row's record after all checks; otherwise raise ``WireError``, which names the problem."""
        key = self.key()
        if self.epoch > newest_epoch:
            raise WireError(f"it is of coordinator epoch {self.epoch}, the log is at {newest_epoch}")
        return decode_record(key, self.value)


def row_checksum(
    offset: int, batch: int, epoch: int, kind: int, group_id: bytes, name: bytes, value: bytes | None
) -> int:
    """Return the CRC-32 of all columns of a row, including lengths, so that no two rows have the same encoding."""
    head = struct.pack(
        ">qqqqqqq", offset, batch, epoch, kind, len(group_id), len(name), -1 if value is None else len(value)
    )
    return zlib.crc32(b"".join((head, group_id, name, value or b"")))


def text_of(raw: object) -> str:
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)

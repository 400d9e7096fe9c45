"""The records of the topic, as bytes: rows of groups, the ownership of the log, and the coordinators that stand by.

Compaction keeps the last record of each key. The bytes of a key must therefore never change: a deleted record would be
back if its tombstone had another key than the record.

- ``00``: the ownership, a JSON object. One key: the owner replaces it with each renewal of its lease.
- ``01``, the kind (2 bytes), the length of the group's name (4 bytes), the group, the name: one record of a group. The
  value is the record as ``wire.record_codec`` encodes it, null for a tombstone. The header ``row`` has offset, batch,
  epoch and checksum of the row (``log.rows``), 8 bytes each. These offsets are those of the log and not of the topic.
- ``02``, an address: a coordinator that stands by, a JSON object.

All integers are big-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from ..rows import Values

OWNER_KEY: Final = b"\x00"
_ROW_TYPE: Final = 1
_STANDBY_TYPE: Final = 2
_KEY: Final = struct.Struct(">BHI")
_ROW: Final = struct.Struct(">qqqq")
ROW_HEADER: Final = "row"

Headers = list[tuple[str, bytes]]
Encoded = tuple[bytes, bytes | None, Headers]
"""Key, value and headers of one Kafka record."""


class UnknownRecordError(Exception):
    """A record of the topic that this version of the software did not write."""


class _Stored:
    """A value that is stored as a JSON object. Members of the object that this version does not know are ignored."""

    __slots__ = ()

    def encode(self) -> bytes:
        return json.dumps(self.members()).encode()

    def members(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises ``UnknownRecordError``."""
        try:
            found = json.loads(value)
            known = {each.name: type(each.default) for each in fields(cls)}  # type: ignore[arg-type]
            values = {name: found[name] for name in known if name in found}
        except (ValueError, RecursionError, TypeError) as error:
            raise UnknownRecordError("is no JSON object") from error
        wrong = [name for name, given in values.items() if type(given) is not known[name]]
        if wrong:
            raise UnknownRecordError(f"has an invalid {wrong[0]}")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerState(_Stored):
    """The ownership of the log.

    Attributes:
        epoch, renewals, last, holder, address, lease_ms, credentials, server: see ``leased.OwnerRow``.
        since_ms: since when the holder owns the log. This and all times: milliseconds since 1970, by its own clock.
        renewed_ms: when its lease was renewed last.
        failover_from_ms: the last sign of life of its predecessor; -1: it had none.
        failover_ms: since when it serves the log of its predecessor; -1: it had none, or does not serve yet.
        failover_cause: see ``base.Ownership``.
        partitions: how many partitions the log was started with; stored if there are several.
    """

    epoch: int = 0
    renewals: int = 0
    last: int = 0
    holder: str = ""
    address: str = ""
    lease_ms: int = 0
    credentials: str = ""
    server: str = ""
    since_ms: int = -1
    renewed_ms: int = -1
    failover_from_ms: int = -1
    failover_ms: int = -1
    failover_cause: str = ""
    partitions: int = 1

    def members(self) -> dict[str, Any]:
        members = asdict(self)
        if self.partitions == 1:
            del members["partitions"]
        return members


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby(_Stored):
    """A coordinator that stands by.

    Attributes:
        process: its process; empty: it has left.
        since_ms, seen_ms: since when, and when it was registered last; milliseconds since 1970, by its own clock.
    """

    process: str = ""
    since_ms: int = -1
    seen_ms: int = -1


def encode_row(values: Values) -> Encoded:
    """The Kafka record of one row."""
    offset, batch, epoch, kind, group, name, value, crc = values
    key = _KEY.pack(_ROW_TYPE, kind, len(group)) + group + name
    return key, value, [(ROW_HEADER, _ROW.pack(offset, batch, epoch, crc))]


def encode_owner(state: OwnerState) -> Encoded:
    """The Kafka record of the ownership."""
    return OWNER_KEY, state.encode(), []


def encode_standby(address: str, standby: Standby) -> Encoded:
    """The Kafka record of a coordinator that stands by."""
    return bytes((_STANDBY_TYPE,)) + address.encode(), standby.encode(), []


def decode(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, Any]]
) -> Values | OwnerState | tuple[str, Standby]:
    """A record of the topic.

    A row with a damaged header has a checksum that does not match: its group is not loaded.

    Raises:
        UnknownRecordError: another program wrote it, or a newer version of this one; says what is wrong with it.
    """
    if not key:
        raise UnknownRecordError("has no key")
    if key == OWNER_KEY:
        return OwnerState.decode(value or b"")
    if key[0] == _STANDBY_TYPE:
        return key[1:].decode(errors="replace"), Standby.decode(value or b"")
    if key[0] != _ROW_TYPE or len(key) < _KEY.size:
        raise UnknownRecordError(f"has an unknown key, which begins with {key[:8].hex(' ')}")
    _, kind, length = _KEY.unpack_from(key)
    group, name = key[_KEY.size : _KEY.size + length], key[_KEY.size + length :]
    if len(group) < length:
        raise UnknownRecordError("has a key that was cut off")
    packed = dict(headers).get(ROW_HEADER)
    if not isinstance(packed, bytes) or len(packed) != _ROW.size:
        return 0, 0, 0, kind, group, name, value, -1
    offset, batch, epoch, crc = _ROW.unpack(packed)
    return offset, batch, epoch, kind, group, name, value, crc

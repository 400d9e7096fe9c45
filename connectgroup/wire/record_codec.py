"""Records as stored in the log: the version in two bytes, then a flexible body.

A log outlives the program that wrote it. So a record of an unknown kind or version is never skipped: it may be the one
that revoked a task, and a group served without it would assign the task twice. The caller must refuse to serve that
group (KAFKA-18672). A tagged field that a *newer* program added is skipped: that is the purpose of tagged fields.

The fields of the key are also in the value, and must agree with it: a value stored under another record's key is
detected when it is read.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from ..errors import WireError
from ..protocol.records import connect as records, consumer
from ..protocol.records.base import Key, Kind, Tombstone
from ..protocol.records.connect import Record
from ..protocol.units import printable
from .codec import Codec, compile_codec
from .definition import load

_VERSION: Final = struct.Struct(">h")

CLASSES: Final[dict[Kind, type[Any]]] = {
    Kind.GROUP: records.GroupRecord,
    Kind.MEMBER: records.MemberRecord,
    Kind.TARGET: records.TargetRecord,
    Kind.TARGET_MEMBER: records.TargetMemberRecord,
    Kind.CURRENT: records.CurrentRecord,
    Kind.CONNECTOR: records.ConnectorRecord,
    Kind.COMPUTATION: records.ComputationRecord,
    Kind.STATUS: records.StatusRecord,
    Kind.REBALANCE: records.RebalanceRecord,
    Kind.DELAY: records.DelayRecord,
    Kind.CLASSIC_GROUP: consumer.ClassicGroupRecord,
    Kind.OFFSET: consumer.OffsetRecord,
    Kind.PENDING_OFFSET: consumer.PendingOffsetRecord,
    Kind.CONSUMER_MEMBER: consumer.ConsumerMemberRecord,
    Kind.CONSUMER_TARGET_MEMBER: consumer.ConsumerTargetMemberRecord,
    Kind.CONSUMER_CURRENT: consumer.ConsumerCurrentRecord,
    Kind.CONSUMER_TOPICS: consumer.ConsumerTopicsRecord,
    Kind.CONSUMER_REGEX: consumer.ConsumerRegexRecord,
    Kind.CLASSIC_MEMBER: consumer.ClassicMemberRecord,
}
"""The class of each kind; its definition has the same name."""


def encode_record(record: Record) -> bytes | None:
    """The value to store under ``record.key``, null for a tombstone.

    Encoded in the highest version. Equal records have equal bytes.

    Raises:
        WireError: a value that its field cannot hold.
    """
    if isinstance(record, Tombstone):
        return None
    to_write = _TO_WRITE.get(type(record))
    if to_write is None:
        raise WireError(f"record: got {type(record).__name__}; allowed: a record of a known kind")
    prefix, codec = to_write
    return prefix + codec.encode(record)


def decode_record(key: Key, data: bytes | memoryview | None) -> Record:
    """The record stored under ``key``; a tombstone if its value is null.

    Raises:
        WireError: an unknown kind or version, bytes that are not such a record, or a record with another key. The group
            cannot be served.
    """
    try:
        codecs = CODECS[Kind(key.kind)]
    except ValueError:
        known = ", ".join(f"{kind.value} ({kind.name})" for kind in Kind)
        raise WireError(f"record of group {printable(key.group_id)}: got kind {key.kind}; allowed: {known}") from None
    if data is None:
        return Tombstone(key)
    data = bytes(data)
    if len(data) < _VERSION.size:
        raise WireError(f"{_show(key)}: got {len(data)} bytes; allowed: 2 or more")
    (version,) = _VERSION.unpack_from(data)
    codec = codecs.get(version)
    if codec is None:
        allowed = f"{min(codecs)} to {max(codecs)}; it was written by newer software"
        raise WireError(f"{_show(key)}: got version {version}; allowed: {allowed}")
    try:
        record: Record = codec.decode(data, _VERSION.size)
    except WireError as error:
        raise WireError(f"{_show(key)}: {error}") from error
    if record.key != key:
        raise WireError(f"{_show(key)}: got the record of {_show(record.key)}; allowed: its own")
    return record


def _show(key: Key) -> str:
    name = f" {printable(key.name)}" if key.name else ""
    return f"record {Kind(key.kind).name}{name} of group {printable(key.group_id)}"


def _codecs(cls: type[Any]) -> dict[int, Codec]:
    definition = load(cls.__name__, cls)
    if definition.kind != "data":
        raise AssertionError(f"{definition.name}: type {definition.kind}, expected data")
    return {version: compile_codec(definition, version) for version in definition.versions}


CODECS: Final[dict[Kind, dict[int, Codec]]] = {kind: _codecs(cls) for kind, cls in CLASSES.items()}
"""The codec of each version of each kind."""

_TO_WRITE: Final = {CLASSES[kind]: (_VERSION.pack(max(codecs)), codecs[max(codecs)]) for kind, codecs in CODECS.items()}

"""A log keeps the records of many groups, in order, batch by batch, and hands them out again after a restart.

What a log promises to its caller, in the order of a life:

1. ``open`` takes the log for this process alone and raises its *epoch*. Either a second process is turned away,
   or it takes over and the first one's next ``append`` fails with ``LogFenced``. Never do both write (D4).
2. ``load`` gives each group's records in the order they were appended, whole batches only. It waits for the
   appends called before it. A group with a record that cannot be trusted - unknown kind or version, bad checksum,
   bytes that do not decode, a record missing - gets an error in place of its records, and is never served with
   that record left out (D7, KAFKA-18672). The other groups are not affected.
3. ``append`` writes one batch, all or nothing, and returns when it would survive the crashes this log promises to
   survive (D3). Batches stand in the order in which ``append`` was called, also when calls overlap. An empty batch
   writes nothing and returns once everything before it is durable: an answer that reveals a state waits on that.
4. A failed ``append`` says which of two things happened. ``AppendRefused``: nothing was written, nothing else is
   affected, no need to load again. Any other ``LogError``, or a cancelled call: the outcome is unknown; the caller
   drops what it knows of the group and loads it again, and never sends the batch again blind (D6).
5. A log may be compacted at any time: a record replaced by a later one of the same key may be gone, and so may a
   tombstone with all it removed. Replaying what is left gives the same state (D2).
6. ``close`` ends it. What was acknowledged stays; every later call raises ``LogError``.

One log belongs to one event loop. Sources: Kafka's ``CoordinatorRuntime`` and ``CoordinatorLoader``; reliability
list D1-D10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ..errors import LogError, WireError
from ..protocol.records.base import Key
from ..protocol.records.connect import Record
from ..protocol.units import printable
from ..wire.record_codec import encode_record

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Largest batch by default: a target for 1,000 workers and 100,000 tasks takes about 1 MB."""

Loaded = tuple[Record, ...] | LogError
"""One group out of the log: its records, or why it must not be served."""


class AppendRefused(LogError):
    """The batch cannot be written here, and nothing was: too large, or holding a value that no record can hold."""


class LogFenced(LogError):
    """Another process has opened the log since. This one must stop serving; opening again would fence the other."""


class Log(Protocol):
    """What the coordinator's runtime needs of a log; the duties are the prose above."""

    @property
    def epoch(self) -> int:
        """The coordinator epoch of this opening, >= 1; each opening of the same log has a higher one."""

    async def open(self) -> None:
        """Take the log for this process and raise its epoch.

        Raises:
            LogError: what is wrong with the place, on one line; nothing is held then, and ``open`` may be tried again.
        """

    async def load(self, group_id: str | None = None) -> dict[str, Loaded]:
        """The records of one group, or of all.

        Args:
            group_id: the group; the result then has exactly this key, with ``()`` if the log has nothing of it.

        Raises:
            LogError: nothing can be read at all.
        """

    async def append(self, records: Sequence[Record]) -> None:
        """Add one batch, durable on return.

        Raises:
            AppendRefused: nothing was written, and only this caller is affected (KAFKA-19760).
            LogFenced: another process owns the log now.
            LogError: the outcome is unknown; load again.
        """

    async def compact(self) -> int:
        """Drop what later records have replaced; how many records that were."""

    async def close(self) -> None:
        """Let go of the log. A second call does nothing."""


class EncodedRecord(NamedTuple):
    """A record as stored: its key, and its bytes or ``None`` for a tombstone."""

    key: Key
    value: bytes | None


def encode_batch(records: Sequence[Record], *, max_bytes: int) -> list[EncodedRecord]:
    """A batch in its stored form, or ``AppendRefused``: the one place where a batch is turned down.

    The bound is on plain bytes, keys and values: an estimate of what compression would save failed the other
    writers of a shared batch (KAFKA-19760).
    """
    encoded = []
    size = 0
    for record in records:
        key = record.key
        try:
            value = encode_record(record)
            size += len(key.group_id.encode()) + len(key.name.encode()) + len(value or b"")
        except (WireError, UnicodeEncodeError) as error:
            raise AppendRefused(f"{where(key)}: cannot be stored: {printable(error)}") from error
        encoded.append(EncodedRecord(key, value))
    if size > max_bytes:
        raise AppendRefused(
            f"group {printable(encoded[0].key.group_id)}: a batch of {len(encoded)} records takes {size} bytes; "
            f"allowed: up to {max_bytes}"
        )
    return encoded


def where(key: Key) -> str:
    """A key as an error names it."""
    return f"group {printable(key.group_id)}: {key.kind.name.lower()} {printable(key.name)!r}"

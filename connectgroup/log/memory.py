"""An in-memory log that lives as long as the process: for tests, for the simulator, and for experiments.

It stores bytes, not objects, so that it returns what any other log would return, and it has the same order, limits and
fencing. ``MemoryStorage`` takes the role of the disk: pass the same storage to a second log to simulate a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult

from ..errors import LogError, WireError
from ..protocol.records.base import Key
from ..protocol.records.connect import Record
from ..protocol.units import printable
from ..wire.record_codec import decode_record
from .base import MAX_BATCH_BYTES, EncodedRecord, Loaded, Log, LogFenced, encode_batch


@dataclass(slots=True)
class MemoryStorage:
    """The durable part of a ``MemoryLog``: the batches in order, and the epoch of the latest opening."""

    batches: list[list[EncodedRecord]] = field(default_factory=list)
    epoch: int = 0


class MemoryLog(Log):
    """The log contract without a disk. A new log that opens the same storage fences the earlier one."""

    def __init__(self, storage: MemoryStorage | None = None, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> None:
        self._storage = MemoryStorage() if storage is None else storage
        self._max_batch_bytes = max_batch_bytes
        self._epoch = 0
        self._open = False

    @property
    def epoch(self) -> int:
        return self._epoch

    async def open(self) -> None:
        if self._open:
            raise LogError("the memory log is open already")
        self._storage.epoch += 1
        self._epoch = self._storage.epoch
        self._open = True

    async def append(self, records: Sequence[Record]) -> None:
        self._check()
        batch = encode_batch(records, max_bytes=self._max_batch_bytes)
        if batch:
            self._storage.batches.append(batch)

    async def load(self, group_id: str | None = None) -> dict[str, Loaded]:
        self._check()
        found: dict[str, list[Record]] = {} if group_id is None else {group_id: []}
        broken: dict[str, LogError] = {}
        for offset, batch in enumerate(self._storage.batches):
            for key, value in batch:
                if group_id is not None and key.group_id != group_id:
                    continue
                try:
                    found.setdefault(key.group_id, []).append(decode_record(key, value))
                except WireError as error:
                    place = f"memory log: batch {offset}, group {printable(key.group_id)}"
                    broken.setdefault(key.group_id, LogError(f"{place}: {printable(error, limit=200)}"))
        return {group: broken.get(group) or tuple(records) for group, records in found.items()}

    async def compact(self) -> int:
        self._check()
        newest: dict[Key, int] = {}
        for position, record in enumerate(record for batch in self._storage.batches for record in batch):
            newest[record.key] = position
        kept: list[list[EncodedRecord]] = []
        position = dropped = 0
        for batch in self._storage.batches:
            left = []
            for record in batch:
                if newest[record.key] == position and record.value is not None:
                    left.append(record)
                else:
                    dropped += 1
                position += 1
            if left:
                kept.append(left)
        self._storage.batches = kept
        return dropped

    async def close(self) -> None:
        self._open = False

    def _check(self) -> None:
        if not self._open:
            raise LogError("the memory log is not open")
        newest = self._storage.epoch
        if newest != self._epoch:
            raise LogFenced(f"the memory log was opened again at epoch {newest}, this one has {self._epoch}")


def from_url(url: SplitResult) -> Log:
    """The log of ``memory:``; see ``registry``.

    Raises:
        ValueError: the URL has a path or more.
    """
    if url.netloc or url.path or url.query or url.fragment:
        raise ValueError("memory: has no path")
    return MemoryLog()

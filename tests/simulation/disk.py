"""The log on a simulated disk: slow, full, torn, in doubt, taken over by another coordinator, or killed mid-write.

The shipped ``MemoryLog`` implements the contract; here its calls take time and fail in the ways of a real disk and a
real process. Each batch is handed to ``on_durable`` at the moment it is durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from connectgroup.errors import LogError
from connectgroup.log.base import MAX_BATCH_BYTES, AppendRefused, Loaded, Log, LogFenced
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.records.connect import Record

from .sometimes import Sometimes

FAULTS = (
    "crash before append",
    "crash after append",
    "torn tail",
    "append lost",
    "append in, answered as failed",
    "append in doubt",
    "batch refused",
    "load failed",
)


class SimulatedDisk:
    """State that outlives coordinators: the batches, and the queue of faults for the next calls."""

    def __init__(
        self,
        random: Random,
        sometimes: Sometimes,
        on_durable: Callable[[Sequence[Record], int], None],
        hit: Callable[[str], None],
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self.storage = MemoryStorage()
        self.max_batch_bytes = max_batch_bytes
        self.random = random
        self.reach = sometimes.reach
        self.on_durable = on_durable
        self.hit = hit
        self.faults: deque[str] = deque()
        self.slow = 1.0
        self.stalled: asyncio.Event | None = None
        self.doubtful: tuple[SimulatedLog, Sequence[Record]] | None = None

    def stall(self) -> None:
        """No append completes until ``resume``."""
        self.stalled = self.stalled or asyncio.Event()

    def resume(self) -> None:
        """Appends complete again, also those that are under way."""
        if self.stalled is not None:
            self.stalled.set()
            self.stalled = None

    def settle_doubt(self) -> None:
        """Decide whether a batch in doubt was written; the outcome is final."""
        if self.doubtful is None:
            return
        (log, records), self.doubtful = self.doubtful, None
        if self.random.random() < 0.5 and log.epoch == self.storage.epoch:
            log.write(records)
            self.reach("an append in doubt was durable")
        else:
            self.reach("an append in doubt was not durable")


class SimulatedLog(Log):
    """One process's handle on the disk."""

    def __init__(self, disk: SimulatedDisk, crash: Callable[[], None]) -> None:
        self._disk = disk
        self._inner = MemoryLog(disk.storage, max_batch_bytes=disk.max_batch_bytes)
        self._crash = crash
        self._last: asyncio.Future[None] | None = None

    @property
    def epoch(self) -> int:
        return self._inner._epoch  # read at every event, so not through a second property

    async def open(self) -> None:
        self._disk.settle_doubt()
        await self._inner.open()

    async def load(self, group_id: str | None = None) -> dict[str, Loaded]:
        await self._behind()
        self._disk.settle_doubt()
        if len(self._disk.storage.batches) > 100 and self._disk.random.random() < 0.8:
            # Only sometimes: reading less makes room for more seeds.
            await self._inner.compact()
        if self._fault() == "load failed" and group_id is not None:
            self._disk.faults.popleft()
            self._disk.hit("load failed")
            self._disk.reach("a load failed")
            raise LogError("the disk cannot be read just now")
        return await self._inner.load(group_id)

    async def append(self, records: Sequence[Record]) -> None:
        """Write one batch, or fail with the next queued fault."""
        disk = self._disk
        previous, self._last = self._last, asyncio.get_running_loop().create_future()
        mine = self._last
        try:
            if previous is not None and not previous.done():
                await previous
            await asyncio.sleep(disk.random.uniform(0.0002, 0.003) * disk.slow)
            if disk.stalled is not None:
                disk.reach("an append stalled")
                await disk.stalled.wait()
            fault = self._fault()
            if fault is not None and fault != "load failed" and records:
                disk.faults.popleft()
                disk.hit(fault)
                await self._fail(fault, records)
            disk.settle_doubt()
            self.write(records)
            await asyncio.sleep(disk.random.uniform(0.0002, 0.002) * disk.slow)
            if disk.storage.epoch != self.epoch:
                # The batch is durable, but this coordinator may no longer acknowledge it.
                raise LogFenced("the disk was taken over while this was written")
        finally:
            if not mine.done():
                mine.set_result(None)

    async def _fail(self, fault: str, records: Sequence[Record]) -> None:
        disk = self._disk
        if fault in ("crash before append", "torn tail"):
            disk.reach("a torn tail was cut" if fault == "torn tail" else "a coordinator crashed before an append")
            await self._die()
        if fault == "crash after append":
            disk.settle_doubt()
            self.write(records)
            disk.reach("a coordinator crashed after an append")
            await self._die()
        if fault == "append lost":
            disk.reach("an append failed and was not durable")
            raise LogError("the disk is full")
        if fault == "append in, answered as failed":
            disk.settle_doubt()
            self.write(records)
            disk.reach("an append failed and was durable")
            raise LogError("the disk did not answer")
        if fault == "append in doubt":
            disk.settle_doubt()
            disk.doubtful = self, records
            raise LogError("the disk did not say")
        assert fault == "batch refused"
        if len({getattr(record, "member_id", "") for record in records}) > 2:
            # Only a batch of several requests: no disk rejects a single valid request forever.
            disk.reach("a batch was rejected as a whole")
            raise AppendRefused("the batch is too large")

    async def _die(self) -> None:
        self._crash()
        await asyncio.get_running_loop().create_future()

    def write(self, records: Sequence[Record]) -> None:
        """Write to the shipped log, at once."""
        append = self._inner.append(records)
        try:
            append.send(None)
        except StopIteration:
            if records:
                self._disk.on_durable(records, self.epoch)
            return
        raise AssertionError("a memory log never suspends")

    def _fault(self) -> str | None:
        return self._disk.faults[0] if self._disk.faults else None

    async def _behind(self) -> None:
        if self._last is not None and not self._last.done():
            await self._last

    async def compact(self) -> int:
        return await self._inner.compact()

    async def close(self) -> None:
        await self._inner.close()

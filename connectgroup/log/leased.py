"""A log in a database that several coordinators share: one owns it, the others stand by.

The database has one row with the ownership (``OwnerRow``). Its holder renews the lease by counting ``renewals``.
Another coordinator takes the log over, in one atomic statement, if epoch and renewals are still those that it has seen
for as long as the lease. ``last``, the offset of the last record, is checked and advanced by the statement that writes
a batch:

- a batch of an earlier epoch is not written, however late it arrives (D4);
- a batch whose outcome is unknown is settled before anything else is read or written: the owner takes the log again at
  the next epoch, which waits for that batch or excludes it, and reads the groups of the batch again (D6);
- a database that has lost acknowledged batches is noticed by its owner with the next batch or renewal, and by the
  coordinators that have seen a higher offset, or that it runs on another server than before (``lost_records``).

The owner keeps the rows of all groups in memory, as bytes. A group can therefore be loaded again while the database is
away, if nothing was sent.

Source: Kubernetes' ``leaderelection`` (a lease that only local clocks measure), Chubby's sequencers, DynamoDB's lock
client (record version numbers); ``log.base.SharedLog``, points 7 to 9.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from ..errors import LogError, WireError
from ..protocol.records.base import Key
from ..protocol.records.connect import Record
from .base import (
    MAX_BATCH_BYTES,
    Loaded,
    LogFenced,
    LogHeld,
    LogNotWritable,
    Ownership,
    SharedLog,
    encode_batch,
)
from .rows import (
    COMPACT_AFTER,
    RESTORED_EPOCHS,
    Batch,
    BatchQueue,
    CompactionDue,
    Loading,
    Row,
    Sums,
    Values,
    rows_of,
    text_of,
)

LEASE_S: Final = 3.0
"""A coordinator that dies is replaced after this time. Workers stop tasks 8 s after the last response."""

RENEW_S: Final = 1.0
"""Interval between two renewals of the lease."""

LOOK_S: Final = 0.25
"""Interval at which a coordinator that stands by looks for the owner, and at which a failed renewal is repeated."""

DRIFT: Final = 0.05
"""By how much the clocks of two machines may differ in their rates: the owner's lease ends so much earlier."""

ANSWER_S: Final = 5.0
"""How long the database may take to answer a coordinator that does not own the log, or no longer wants to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """The ownership of the log, as stored.

    Attributes:
        epoch: the coordinator epoch; 0: the log is new.
        renewals: grows with each renewal of the lease; never falls.
        last: the offset of the last record.
        holder: the opening that holds the lease, ``process:number``; empty: it was released.
        address: what the holder advertises; of a partition that was released, see ``SharedLog.successor``.
        lease_ms: the lease of the holder.
        credentials: of the holder, see ``SharedLog.credentials``.
        namesake: the process of another coordinator that stands by at the address of the one that looks; empty: none.
        server: the identity of the database server when the log was written last; empty: its owner has then found that
            it lacks acknowledged records.
        current: its identity now.
    """

    epoch: int
    renewals: int
    last: int
    holder: str
    address: str
    lease_ms: int
    server: str
    current: str
    credentials: str = ""
    namesake: str = ""


YIELD_S: Final = 2.0
"""How long the other coordinators leave a partition to the one that it was handed to."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LeasedStore(Protocol):
    """One partition of a log in a database.

    Each call is one atomic statement, which may be cancelled: the outcome is unknown then. Each raises
    ``LogNotWritable`` if nothing was changed, and any other ``LogError`` if the outcome is unknown.

    Attributes:
        name: the database, and the partition of several, for messages.
        max_record_bytes: maximum size of the key and the value of one record; ``None``: no such limit.
        partitions: how many partitions the log has; ``connect`` sets it.
        expected_partitions: how many it must have, and is created with; ``None``: as many as it has, or 1.
    """

    name: str
    partitions: int = 1
    expected_partitions: int | None = None

    @property
    def max_record_bytes(self) -> int | None:
        return None

    async def connect(self) -> None:
        """Check version and rights; create the tables if they are missing."""

    async def look(self, process: str, address: str) -> OwnerRow:
        """Read the ownership, and note that this process stands by."""

    async def take(
        self, seen: OwnerRow, *, holder: str, address: str, lease_ms: int, epochs: int, credentials: str = ""
    ) -> tuple[int, int] | None:
        """Become the holder, unless another one did or the lease was renewed since ``seen``.

        Returns:
            Epoch and last offset, once every batch of an earlier epoch was written or never will be.
        """

    async def retake(self, holder: str) -> tuple[int, int] | None:
        """Increment the epoch of a holder; returns as ``take``; ``None``: it holds the log no longer."""

    async def renew(self, holder: str, last: int) -> bool:
        """Renew the lease; false: the log has another holder, or lacks records up to ``last``."""

    async def mark_serving(self, holder: str) -> bool:
        """Note that the holder serves, and the identity of the server; returns as ``renew``."""

    async def release(self, holder: str, last: int, successor: str | None = None) -> None:
        """Release the lease of a holder.

        Args:
            last: the offset up to which it knows records; a database may note whether it has them.
            successor: of one of several partitions: the address of the row becomes this one.
        """

    def partition(self, number: int) -> LeasedStore:
        """A store for another partition of the log, with connections of its own; this one is for partition 0."""
        raise LogError(f"{self.name}: has one partition")

    async def leave(self, process: str) -> None:
        """The process stands by no longer."""

    async def append(self, epoch: int, last: int, rows: Sequence[Values], sums: Sums) -> bool:
        """Write rows and add their sums if epoch and last offset are these; returns whether they are."""

    async def compact(
        self, epoch: int, offsets: Sequence[int], group: bytes, stored: tuple[int, int], kept: tuple[int, int]
    ) -> bool:
        """Remove rows of a group and set its sums, if epoch and sums are these; returns whether they are.

        A database that has lost an earlier compaction, and nothing else, has more rows than its owner knows of.
        """

    async def read(self, groups: Sequence[bytes] | None) -> tuple[list[Values], list[tuple[bytes, int, int]]]:
        """The rows of some or all groups in the order of their offsets, and their sums as stored."""

    async def ownership(self) -> Ownership:
        """See ``SharedLog``."""

    async def close(self) -> None:
        """Close the connections; the next call opens new ones."""


class LeasedLog(SharedLog):
    """The log contract on a database that coordinators share.

    Args:
        store: the database.
        address: the ``host:port`` at which clients reach this coordinator.
        process: a unique name of this process; generated by default.
        lease_s: the lease of this coordinator, in seconds.
        max_batch_bytes: maximum batch size, in uncompressed bytes of keys and values.
        compact_after: rows that one group may add before it is compacted (more if it has more live rows).
        restored: treat the log as one that lacks acknowledged records.
    """

    def __init__(
        self,
        store: LeasedStore,
        *,
        address: str = "",
        process: str | None = None,
        lease_s: float = LEASE_S,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        compact_after: int = COMPACT_AFTER,
        restored: bool = False,
    ) -> None:
        self.store, self.address, self.credentials = store, address, ""
        self.successor: str | None = None
        self._process = process or uuid.uuid4().hex
        self._lease_s, self._max_batch_bytes, self._compact_after = lease_s, max_batch_bytes, compact_after
        self._lost_records = "it was restored" if restored else ""
        # From which epoch on another coordinator has made good for that, once it serves: ``_note_losses``.
        self._recovered_from: float = math.inf
        self._seen: OwnerRow | None = None  # set by ``_look``
        self._seen_since_s = 0.0
        self._known = (0, 0)  # the highest epoch and offset that this process knows to have been durable
        self._owned = (0, 0)  # those of its own last opening, in which it knows all that was acknowledged
        self._openings = 0
        self._warned: set[str] = set()  # what ``_warn`` has logged
        self._term: _Term | None = None

    # ------------------------------------------------------------------------------------------ partitions

    @property
    def partitions(self) -> int:
        return self.store.partitions

    def expect_partitions(self, count: int) -> None:
        self.store.expected_partitions = count

    def partition(self, number: int) -> LeasedLog:
        if number == 0:
            return self
        log = LeasedLog(
            self.store.partition(number),
            process=self._process,
            lease_s=self._lease_s,
            max_batch_bytes=self._max_batch_bytes,
            compact_after=self._compact_after,
            restored=bool(self._lost_records),
        )
        log._warned = self._warned  # each warning once
        return log

    # ------------------------------------------------------------------------------------------ standing by

    @property
    def epoch(self) -> int:
        return self._owned[0]

    @property
    def owner(self) -> str:
        if self._term is not None and not self._term.lost.done():
            return self.address
        return self._seen.address if self._seen is not None and self._seen.holder else ""

    @property
    def lease_ends_s(self) -> float:
        return -math.inf if self._term is None else self._term.lease_ends_s

    @property
    def lost_records(self) -> str:
        return self._lost_records

    async def connect(self) -> None:
        await self.store.connect()

    async def stand_by(self) -> None:
        problem = ""
        while True:
            wait_s = LOOK_S
            try:
                wait_s = await self._look() + self._yield_s()
                if problem:
                    logger.info("%s: can be read again", self.store.name)
                    problem = ""
            except LogError as error:
                if str(error) != problem:
                    logger.warning("%s", error)
                problem = str(error)
            if wait_s <= 0:
                return
            await asyncio.sleep(min(wait_s, LOOK_S))

    async def _look(self) -> float:
        """Read the ownership; return after how many seconds the log may be taken, as far as is known now."""
        row = await _answered(self.store.look(self._process, self.address), self.store.name)
        now_s = asyncio.get_running_loop().time()
        seen = self._seen
        self._warn(row, seen)
        if seen is None or _lease_of(row) != _lease_of(seen):
            self._seen_since_s = now_s
        self._seen = row
        self._note_losses(row)
        self._known = max(self._known, (row.epoch, row.last))
        if not row.holder or row.holder.partition(":")[0] == self._process:
            return self._seen_since_s - now_s
        return self._seen_since_s + row.lease_ms / 1000 - now_s

    def _note_losses(self, row: OwnerRow) -> None:
        """Note whether acknowledged records may be missing, until another coordinator serves the log all the same: its
        owner has found its last record there, or a successor, whose epochs begin above all former ones, has recovered
        the groups. To recover them once more would end all tasks."""
        is_elsewhere = row.server != row.current
        if (row.epoch, row.last) < self._known:
            self._lost_records = (
                f"it ends at record {row.last} of epoch {row.epoch}, but record {self._known[1]} of epoch "
                f"{self._known[0]} was written"
            )
            # The identity that is noted tells who serves; where it has not changed, nothing does.
            self._recovered_from = row.epoch + RESTORED_EPOCHS if is_elsewhere else math.inf
        elif is_elsewhere:
            has_all = row.epoch == self._owned[0] and row.last >= self._owned[1]
            if not has_all and not self._lost_records:
                self._lost_records = (
                    f"it was restored, or is on another server than before: {row.current}, not {row.server}"
                    if row.server
                    else "its last owner has missed records"
                )
                self._recovered_from = row.epoch
        elif row.epoch >= self._recovered_from:
            self._lost_records, self._recovered_from = "", math.inf

    def _yield_s(self) -> float:
        """How long to leave a partition that was released to the coordinator that it was handed to."""
        row = self._seen
        if row is None or row.holder or self.successor is None or row.address in ("", self.address):
            return 0.0
        return YIELD_S

    def _warn(self, row: OwnerRow, seen: OwnerRow | None) -> None:
        """Warn, once for each of them, of coordinators between which clients cannot follow."""
        process = row.holder.partition(":")[0]
        is_other = process not in ("", self._process)
        # Not of a former process at this address: its lease is renewed no longer.
        renews = is_other and seen is not None and seen.holder == row.holder and seen.renewals != row.renewals
        namesake = process if renews and row.address == self.address else row.namesake
        warnings = {}
        if namesake and self.address:
            warnings[f"{namesake} {self.address}"] = (
                f"another coordinator of this log advertises {self.address}, too: clients take the two for one; "
                "allowed: an --advertised address of its own for each"
            )
        if is_other and row.credentials and self.credentials and row.credentials != self.credentials:
            warnings[f"{row.holder} {row.credentials}"] = (
                f"the coordinator at {row.address}, which owns the log, has other users or passwords than this one: "
                "clients cannot follow from one to the other; allowed: the same --credentials for all coordinators of "
                "a log"
            )
        for who, warning in warnings.items():
            if who not in self._warned:
                self._warned.add(who)
                logger.warning("%s: %s", self.store.name, warning)

    async def ownership(self) -> Ownership:
        return await _answered(self.store.ownership(), self.store.name)

    # ------------------------------------------------------------------------------------------ owning

    async def open(self) -> None:
        if self._term is not None:
            raise LogError(f"{self.store.name}: is open already")
        await self.connect()
        if (wait_s := await self._look()) > 0:
            assert self._seen is not None
            raise LogHeld(
                f"{self.store.name}: is owned by the coordinator at {self._seen.address or 'an unknown address'}, "
                f"whose lease ends in {wait_s:.1f} s if it does not renew it"
            )
        row = self._seen
        assert row is not None
        epochs = 1
        if self._lost_records:
            # Not the epoch of a former coordinator: its workers would take this one for one that was replaced.
            epochs = max(0, self._known[0] - row.epoch) + RESTORED_EPOCHS
        self._openings += 1
        holder = f"{self._process}:{self._openings}"
        clock = asyncio.get_running_loop().time
        sent_s = clock()
        try:
            taken = await _answered(
                self.store.take(
                    row,
                    holder=holder,
                    address=self.address,
                    lease_ms=round(self._lease_s * 1000),
                    epochs=epochs,
                    credentials=self.credentials,
                ),
                self.store.name,
            )
            if taken is not None and clock() > sent_s + self.own_lease_s / 2:
                # A store may fence and read for long before it writes: do not take the log again because of that.
                sent_s = clock()
                try:
                    is_renewed = await _answered(self.store.renew(holder, taken[1]), self.store.name)
                except LogError:
                    await self.release(holder)
                    raise
                taken = taken if is_renewed else None
        except asyncio.CancelledError:
            await self.release(holder)  # this coordinator is stopped: the next one need not wait for the lease
            raise
        if taken is None:
            raise LogHeld(f"{self.store.name}: another coordinator has just taken it")
        self._owned = self._known = taken
        term = _Term(self, holder, taken, sent_s)
        try:
            await term.read(None)
        except BaseException:
            await term.close()
            raise
        self._term = term

    async def wait_lost(self) -> str:
        term = self._opened()
        return await asyncio.shield(term.lost)

    async def mark_serving(self) -> None:
        term = self._opened()
        await term.settle()
        if not await term.until_lost(self.store.mark_serving(term.holder)):
            term.end("another coordinator has opened it")
            raise LogFenced(term.lost.result())
        self._lost_records, self._recovered_from = "", math.inf

    async def append(self, records: Sequence[Record]) -> None:
        term = self._opened()
        term.check()
        batch = encode_batch(records, max_bytes=self._max_batch_bytes, max_record_bytes=self.store.max_record_bytes)
        await term.append(batch)

    async def load(self, group_id: str | None = None) -> dict[str, Loaded]:
        return await self._opened().load(group_id)

    async def check_writable(self) -> None:
        await self._opened().renew()

    async def compact(self) -> int:
        return await self._opened().compact()

    async def close(self) -> None:
        term, self._term = self._term, None
        try:
            if term is not None:
                self._seen = None  # the owner before this one
                await term.close()
            if term is None or self.successor is not None:  # a partition is not to be handed to one that has left
                with suppress(LogError):
                    await _answered(self.store.leave(self._process), self.store.name)
        finally:
            await self.store.close()

    def _opened(self) -> _Term:
        if self._term is None:
            raise LogError(f"{self.store.name}: is not open")
        return self._term

    async def release(self, holder: str, last: int = 0) -> None:
        """Release the lease of an opening, if it has it and the database can be reached."""
        with suppress(LogError):
            await _answered(self.store.release(holder, last, self.successor), self.store.name)

    def note_durable(self, epoch: int, last: int) -> None:
        """The open term has this epoch now, and records up to this offset."""
        self._owned = self._known = (epoch, last)

    def make_due(self) -> CompactionDue:
        """The compaction rule of a new term."""
        return CompactionDue(self._compact_after)

    @property
    def own_lease_s(self) -> float:
        """How long the owner may respond after it has sent a renewal."""
        return self._lease_s * (1 - DRIFT)


class _Term:
    """One opening of the log, from its epoch to the loss or the release of the lease.

    Attributes:
        lease_ends_s: ``_confirmed`` extends it; ``end`` ends it.
        lost: completed by ``end``, with the reason.
    """

    def __init__(self, log: LeasedLog, holder: str, taken: tuple[int, int], sent_s: float) -> None:
        self._log, self._store, self.holder = log, log.store, holder
        self._loop = asyncio.get_running_loop()
        self._epoch, self._last = taken
        self.lost: asyncio.Future[str] = self._loop.create_future()
        self.lease_ends_s = sent_s + log.own_lease_s
        self._sent_s, self._problem = sent_s, ""
        self._rows: dict[str, list[Row]] = {}
        self._sums: Sums = {}
        self._in_doubt: set[str] | None = None  # the groups of batches whose outcome is unknown
        self._due = log.make_due()
        self._queue = BatchQueue(self._store.name, self._write, self._compact_due)
        self._using_rows = asyncio.Lock()
        self._using_lease = asyncio.Lock()
        self._abandoned: set[asyncio.Task[Any]] = set()
        self._renewer = asyncio.create_task(self._keep(), name=f"lease of {self._store.name}")
        self._expiry = self._loop.call_at(self.lease_ends_s, self._check_lease)

    # ------------------------------------------------------------------------------------------ lease

    async def _keep(self) -> None:
        while not self.lost.done():
            renew_s = min(RENEW_S, self._log.own_lease_s / 3)
            pause_s = min(LOOK_S, renew_s) if self._problem else renew_s
            await asyncio.sleep(max(0.0, self._sent_s + pause_s - self._loop.time()))
            try:
                await self.renew()
            except LogFenced:
                return
            except LogError as error:
                self._problem = str(error)

    async def renew(self) -> None:
        """Renew the lease.

        Raises:
            LogFenced: the log has another owner, or has lost acknowledged records.
            LogError: the lease was not renewed.
        """
        async with self._using_lease:
            self.check()
            self._sent_s = sent_s = self._loop.time()
            try:
                async with asyncio.timeout_at(self.lease_ends_s):
                    is_owner = await self._store.renew(self.holder, self._last)
            except TimeoutError:
                raise LogError(f"{self._store.name}: did not answer in {self.lease_ends_s - sent_s:.1f} s") from None
        if not is_owner:
            self.end("another coordinator has opened it, or it has lost records")
            raise LogFenced(self.lost.result())
        self.lease_ends_s = max(self.lease_ends_s, sent_s + self._log.own_lease_s)
        self._problem = ""

    def _check_lease(self) -> None:
        if self.lost.done():
            return
        if self._loop.time() < self.lease_ends_s:
            self._expiry = self._loop.call_at(self.lease_ends_s, self._check_lease)
            return
        cause = f": {self._problem}" if self._problem else ""
        self.end(f"the lease has expired, it could not be renewed{cause}")

    def end(self, reason: str) -> None:
        """This process owns the log no longer."""
        if not self.lost.done():
            self.lease_ends_s = -math.inf
            self.lost.set_result(f"{self._store.name}: {reason}")

    def check(self) -> None:
        """Raise ``LogFenced`` once the lease was lost."""
        if self.lost.done():
            raise LogFenced(self.lost.result())
        if self._loop.time() >= self.lease_ends_s:
            self._check_lease()
            raise LogFenced(self.lost.result())

    async def until_lost(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of a call; the loss of the lease ends the wait for it.

        Raises:
            LogFenced: the lease was lost first; the call was abandoned.
        """
        task = self._loop.create_task(call)
        try:
            waited: set[asyncio.Future[Any]] = {task, self.lost}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                self._abandoned.add(task)
                task.add_done_callback(self._forget)
                task.cancel()
        if task.done() and not task.cancelled():
            return task.result()
        raise LogFenced(self.lost.result())

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """End the term: what was appended is durable, or its outcome unknown; then the lease is released."""
        try:
            if not self.lost.done():
                with suppress(TimeoutError):  # such as of an append that waits for a locked table
                    async with asyncio.timeout(ANSWER_S):
                        await self._queue.flush()
        finally:  # also of a caller who waits no longer: the lease would be renewed for as long as this process lives
            self._renewer.cancel()
            self._expiry.cancel()
            await self._queue.close()
            await asyncio.gather(self._renewer, return_exceptions=True)
            self.end("is not open")
            await self._log.release(self.holder, self._last)

    # ------------------------------------------------------------------------------------------ writing

    async def append(self, batch: Batch) -> None:
        """Write one batch together with those that are queued; see ``Log``."""
        await self._queue.append(batch)

    async def _write(self, batches: list[Batch]) -> list[str]:
        async with self._using_rows:
            return await self._deliver(batches)

    async def _compact_due(self, groups: list[str]) -> None:
        async with self._using_rows:
            for group in groups:
                await self._compact(group)

    async def _deliver(self, batches: list[Batch]) -> list[str]:
        """Write batches; return the groups that are due for compaction."""
        self.check()
        if not any(batches):
            return []
        try:
            await self.settle()
        except LogFenced:
            raise
        except LogError as error:
            raise LogNotWritable(str(error)) from error
        rows, sums = rows_of(batches, first=self._last + 1, epoch=self._epoch)
        await self._change(self._store.append(self._epoch, self._last, rows, sums), sums)
        self._last += len(rows)
        self._log.note_durable(self._epoch, self._last)
        for values in rows:
            row = Row.of(values)
            assert row is not None
            self._rows.setdefault(row.group_id, []).append(row)
        for group, (count, total) in sums.items():
            before = self._sums.get(group, (0, 0))
            self._sums[group] = before[0] + count, before[1] + total & 0xFFFFFFFF
        return self._due.on_appended(sums)

    async def _change(self, call: Coroutine[Any, Any, bool], groups: Iterable[str]) -> None:
        """Perform a change; if its outcome is unknown, its groups are in doubt.

        Raises:
            LogFenced, LogNotWritable: nothing was changed.
            LogError: the outcome is unknown.
        """
        try:
            is_owner = await self.until_lost(call)
        except LogNotWritable:
            raise
        except LogFenced as error:
            raise LogError(f"{error}; the outcome of a change is unknown") from error
        except BaseException:
            self._in_doubt = (self._in_doubt or set()) | set(groups)
            raise
        if not is_owner:
            self.end("another coordinator has opened it, or it has lost records")
            raise LogFenced(self.lost.result())

    async def settle(self) -> None:
        """Take the log at the next epoch after an unknown outcome, and read the groups in doubt again (D6).

        Raises:
            LogFenced: the log has another owner now.
            LogError: it cannot be read now.
        """
        if self._in_doubt is None:
            return
        async with self._using_lease:
            taken = await self.until_lost(self._store.retake(self.holder))
        if taken is None:
            self.end("another coordinator has opened it")
            raise LogFenced(self.lost.result())
        if taken[1] < self._last:
            self.end("it has lost acknowledged records")
            raise LogFenced(self.lost.result())
        self._epoch, self._last = taken
        self._log.note_durable(*taken)
        await self.read(sorted(self._in_doubt))
        self._in_doubt = None

    # ------------------------------------------------------------------------------------------ reading

    async def read(self, groups: Sequence[str] | None) -> None:
        """Read the rows of some groups or of all from the database."""
        names = None if groups is None else [group.encode() for group in groups]
        rows, sums = await self.until_lost(self._store.read(names))
        for group in self._rows.copy() if groups is None else groups:
            self._rows.pop(group, None)
            self._sums.pop(group, None)
        for count, values in enumerate(rows):
            row = Row.of(values)
            if row is not None:  # otherwise its group's sums do not match
                self._rows.setdefault(row.group_id, []).append(row)
            if count % 1_000 == 999:
                await asyncio.sleep(0)  # the lease is renewed meanwhile
        for name, count, total in sums:
            self._sums[text_of(name)] = count, total
        live = {group: len(found) for group, found in self._rows.items()}
        self._due.on_compacted({group: live.get(group, 0) for group in (live if groups is None else groups)})

    async def load(self, group_id: str | None) -> dict[str, Loaded]:
        """See ``Log``."""
        await self._queue.flush()
        self.check()
        async with self._using_rows:
            if self._in_doubt is not None and (group_id is None or group_id in self._in_doubt):
                await self.settle()
            loading = Loading(self._store.name, newest_epoch=self._epoch, group_id=group_id)
            names = sorted(self._rows.keys() | self._sums.keys()) if group_id is None else [group_id]
            count = 0
            for name in names:
                for row in self._rows.get(name, ()):
                    loading.add(row)
                    count += 1
                    if count % 500 == 0:
                        await asyncio.sleep(0)
            return loading.result({name: self._sums[name] for name in names if name in self._sums})

    # ------------------------------------------------------------------------------------------ compaction

    async def compact(self) -> int:
        """See ``Log``."""
        await self._queue.flush()
        self.check()
        async with self._using_rows:
            await self.settle()
            return sum([await self._compact(group) for group in sorted(self._rows)])

    async def _compact(self, group: str) -> int:
        """Compact one group; a corrupt one is not changed. Returns the number of removed rows."""
        rows, newest = self._rows.get(group, []), dict[Key, int]()
        try:
            keys = [row.key() for row in rows]
        except WireError:
            return 0
        for key, row in zip(keys, rows, strict=True):
            newest[key] = row.offset
        kept = [row for key, row in zip(keys, rows, strict=True) if newest[key] == row.offset and row.value is not None]
        stored = len(rows), sum(row.crc for row in rows) & 0xFFFFFFFF
        if self._sums.get(group, (0, 0)) != stored:
            return 0
        if len(kept) < len(rows):
            offsets = {row.offset for row in kept}
            dropped = [row.offset for row in rows if row.offset not in offsets]
            sums = len(kept), sum(row.crc for row in kept) & 0xFFFFFFFF
            await self._change(self._store.compact(self._epoch, dropped, group.encode(), stored, sums), [group])
            if kept:
                self._rows[group], self._sums[group] = kept, sums
            else:
                self._rows.pop(group, None)
                self._sums.pop(group, None)
        self._due.on_compacted({group: len(kept)})
        return len(rows) - len(kept)


def _lease_of(row: OwnerRow) -> tuple[int, int, str, str, str]:
    """What has to stay the same for as long as a lease before another coordinator takes the log. The server, too: the
    former owner, if it lives, takes the log there at once, and only it knows that no record is missing."""
    return row.epoch, row.renewals, row.holder, row.server, row.current


async def _answered(call: Coroutine[Any, Any, T], name: str) -> T:
    """The result of a call to the database, which has ``ANSWER_S`` for it."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await call
    except TimeoutError:
        raise LogError(f"{name}: did not answer in {ANSWER_S:g} s") from None

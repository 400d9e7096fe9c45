"""A log in one SQLite file: the log of an embedded deployment.

Every statement runs on one thread of the log's own, so that a slow disk never holds up the event loop. Batches that
wait while one is being written are written together, in one transaction with one fsync (group commit): the time
to an answer grows with the disk, not with the number of groups. What the file holds and how it is kept whole is in
``sqlite_store``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from ...errors import LogError
from ...protocol.records.connect import Record
from ..base import MAX_BATCH_BYTES, EncodedRecord, Loaded, Log, encode_batch
from .store import COMPACT_AFTER, Store

P = ParamSpec("P")
T = TypeVar("T")
Waiting = tuple[list[EncodedRecord], "asyncio.Future[None]"]


class SqliteLog(Log):
    """The log contract on a file.

    Survives: an end of the process at any moment, and (synchronous=FULL) of the machine, as far as its disk keeps
    what it has acknowledged.

    Args:
        path: the file; made if it does not exist, in a folder that does, for its owner only (mode 0600). One that other
            users may access is opened with a warning. ``<path>.lock`` stands beside it.
        max_batch_bytes: largest batch, in plain bytes of keys and values.
        compact_after: records that one group may add before replaced ones are dropped (more if more are live).
    """

    def __init__(
        self, path: str | Path, *, max_batch_bytes: int = MAX_BATCH_BYTES, compact_after: int = COMPACT_AFTER
    ) -> None:
        self._path = Path(path)
        self._max_batch_bytes = max_batch_bytes
        self._compact_after = compact_after
        self._store: Store | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._epoch = 0
        self._waiting: list[Waiting] = []
        self._writer: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        return self._epoch

    async def append(self, records: Sequence[Record]) -> None:
        self._check()
        batch = encode_batch(records, max_bytes=self._max_batch_bytes)
        if not batch and self._writer is None:
            return
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((batch, written))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(), name=f"writer of {self._path}")
        await written

    async def _write(self) -> None:
        """Write what waits, as much as there is at a time, until nothing waits."""
        taken: list[Waiting] = []
        try:
            while self._waiting:
                taken, self._waiting = self._waiting, []
                due: list[str] = []
                try:
                    due = await self._run(Store.append, [batch for batch, _ in taken])
                except Exception as error:
                    for _, written in taken:
                        if not written.done():  # done: its caller has gone away
                            written.set_exception(_copy(error))
                else:
                    for _, written in taken:
                        if not written.done():
                            written.set_result(None)
                with suppress(LogError):  # the next append meets the same trouble and has somebody to tell
                    for group_id in due:
                        await self._run(Store.compact, group_id)
        finally:
            self._writer = None
            for _, written in (*taken, *self._waiting):  # none, unless this task was cancelled
                written.cancel()

    async def load(self, group_id: str | None = None) -> dict[str, Loaded]:
        with suppress(LogError):  # told to those who appended
            await self.append(())
        return await self._run(Store.load, group_id)

    async def compact(self) -> int:
        with suppress(LogError):
            await self.append(())
        return await self._run(Store.compact)

    async def open(self) -> None:
        if self._store is not None:
            raise LogError(f"{self._path}: is open already")
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"log {self._path.name}")
        store = Store(self._path, compact_after=self._compact_after)
        try:
            opened = asyncio.get_running_loop().run_in_executor(thread, store.open)
        except RuntimeError as error:  # the executor's, which makes its thread now: all later calls run in that one
            raise LogError(f"{self._path}: not opened: {error}") from error
        try:
            self._epoch = await opened
        except BaseException:
            thread.submit(store.close)
            thread.shutdown(wait=False)
            raise
        self._store, self._thread = store, thread

    async def close(self) -> None:
        if self._store is None or self._thread is None:
            return
        with suppress(LogError):
            await self.append(())
        store, thread = self._store, self._thread
        self._store = self._thread = None
        try:
            await asyncio.get_running_loop().run_in_executor(thread, store.close)
        finally:
            thread.shutdown(wait=False)

    def _check(self) -> None:
        if self._store is None:
            raise LogError(f"{self._path}: is not open")

    async def _run(self, work: Callable[Concatenate[Store, P], T], *args: P.args, **named: P.kwargs) -> T:
        if self._store is None or self._thread is None:
            raise LogError(f"{self._path}: is not open")
        call = partial(work, self._store, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def _copy(error: Exception) -> Exception:
    """The same error for one more waiter: one exception object for all would mix up their tracebacks."""
    if not isinstance(error, LogError):
        return error
    copy: LogError = type(error)(*error.args)
    copy.__cause__ = error
    return copy

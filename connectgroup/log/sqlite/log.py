"""A log in one SQLite file, for embedded deployments.

All statements run on one thread that the log owns, so that a slow disk never blocks the event loop. Batches that are
queued while another batch is written are written together, in one transaction with one fsync (group commit): latency
depends on the disk, not on the number of groups. ``store`` documents the contents of the file and its integrity checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import SplitResult, unquote

from ...errors import LogError
from ...protocol.records.connect import Record
from ..base import MAX_BATCH_BYTES, Loaded, Log, encode_batch
from ..rows import COMPACT_AFTER, BatchQueue
from .store import Store

P = ParamSpec("P")
T = TypeVar("T")


class SqliteLog(Log):
    """The log contract on a file.

    Acknowledged batches survive a crash of the process at any time, and (synchronous=FULL) a crash of the machine,
    provided that its disk keeps the data it has acknowledged.

    Args:
        path: the file. If it does not exist, it is created with mode 0600 in an existing directory. A file that other
            users may access is opened with a warning. The lock file is ``<path>.lock``.
        max_batch_bytes: maximum batch size, in uncompressed bytes of keys and values.
        compact_after: records that one group may add before it is compacted (more if it has more live records).
        restored: open a log that lacks acknowledged records, because it is an older copy or its WAL was cut.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        compact_after: int = COMPACT_AFTER,
        restored: bool = False,
    ) -> None:
        self._path = Path(path)
        self._max_batch_bytes = max_batch_bytes
        self._compact_after, self._restored = compact_after, restored
        self._store: Store | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._epoch = self.last_alive_ms = 0
        self._queue = BatchQueue(
            str(path),
            write=lambda batches: self._run(Store.append, batches),
            compact=lambda groups: self._run(Store.compact_groups, groups),
        )

    @property
    def epoch(self) -> int:
        return self._epoch

    async def append(self, records: Sequence[Record]) -> None:
        self._check()
        batch = encode_batch(records, max_bytes=self._max_batch_bytes)
        await self._queue.append(batch)

    async def load(self, group_id: str | None = None) -> dict[str, Loaded]:
        await self._queue.flush()
        return await self._run(Store.load, group_id)

    async def check_writable(self) -> None:
        await self._run(Store.check_writable)

    async def show_alive(self) -> None:
        await self._run(Store.show_alive)

    async def compact(self) -> int:
        await self._queue.flush()
        return await self._run(Store.compact)

    async def open(self) -> None:
        if self._store is not None:
            raise LogError(f"{self._path}: is open already")
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"log {self._path.name}")
        store = Store(self._path, compact_after=self._compact_after, restored=self._restored)
        try:
            opened = asyncio.get_running_loop().run_in_executor(thread, store.open)
        except RuntimeError as error:  # the executor creates its thread now; all later calls use this thread
            raise LogError(f"{self._path}: not opened: {error}") from error
        try:
            self._epoch = await opened
        except BaseException:
            thread.submit(store.close)
            thread.shutdown(wait=False)
            raise
        self._store, self._thread, self.last_alive_ms = store, thread, store.last_alive_ms

    async def close(self) -> None:
        if self._store is None or self._thread is None:
            return
        await self._queue.flush()
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


def from_url(url: SplitResult) -> Log:
    """The log of ``sqlite:///path``, with four slashes for an absolute path; see ``registry``.

    Raises:
        ValueError: the URL has no path, or has a host, a query or a fragment.
    """
    return SqliteLog(path_of(url))


def path_of(url: SplitResult) -> str:
    """The file of ``sqlite:///path``. Raises as ``from_url``."""
    path = unquote(url.path.removeprefix("/"))
    if url.netloc or url.query or url.fragment or not path:
        raise ValueError("a path is required")
    return path

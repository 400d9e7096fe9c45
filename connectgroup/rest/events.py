"""Server-sent events of a group, for the page: a table of what it shows, and its changes.

A ``Feed`` describes one group at intervals and compares each description with the one before; all streams of the group
share it, so the coordinator's work does not grow with their number. A description of 5,000 tasks is some 300 kB, a
change of one task 100 bytes. A stream that resumes (``Last-Event-ID``) gets the changes since; if they are gone, or the
server is another one, it gets the whole table.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from ..client.admin import Admin
from ..errors import ConnectGroupError, GroupIdNotFound
from ..protocol.units import printable
from ..telemetry.metrics import values_of
from .errors import RestError
from .page_table import May, Table, page_table

logger = logging.getLogger(__name__)

Rates = Callable[[str], Mapping[str, float]]
"""Rows per second by connector of a group, as far as they are known; called in a thread."""

POLL_S: Final = 0.25
"""Interval between two descriptions: at most four events a second."""
MAX_LOAD: Final = 0.1
"""At most this share of the time is spent on descriptions of all groups: those of large groups are made less often."""
MAX_PAUSE_S: Final = 30.0
"""How long a feed pauses at most, however many there are."""
MAX_TURN_S: Final = 1.0
"""How long a feed waits for the description of another."""
MAX_STREAMS: Final = 64
MAX_STREAMS_OF_USER: Final = 16
"""Of one user who has logged in."""
MAX_STREAM_S: Final = 600.0
"""A stream ends after this time, and the client resumes it: so an account that was removed loses it."""
MAX_CHANGES: Final = 64
"""Changes that are kept for streams that are behind or resume."""
LINGER_S: Final = 10.0
"""A feed without streams continues for this long, for clients that reconnect."""
KEEP_ALIVE_S: Final = 10.0
RATES_S: Final = 2.0
"""Interval between two readings of metrics."""


def changes(before: Table, after: Table) -> dict[str, Any]:
    """What turns one table into another: ``set``, the new rows by key, and ``remove``, keys; empty if nothing."""
    changed = {key: row for key, row in after.items() if key not in before or before[key] != row}
    removed = sorted(before.keys() - after.keys())
    return {"set": changed, "remove": removed} if changed or removed else {}


def rows_per_second(group_id: str) -> dict[str, float]:
    """Rows that the sinks made durable per second, by connector: of tasks in this process that have written any."""
    rates: dict[str, float] = {}
    for labels, values in values_of("task"):
        rate = values["sink-record-send-rate"]
        if labels["group"] == group_id and values["sink-record-send-total"] and isinstance(rate, int | float):
            rates[labels["connector"]] = rates.get(labels["connector"], 0.0) + rate
    return rates


def event(name: str, data: object, *, event_id: str = "") -> bytes:
    """One event of a stream (``text/event-stream``); JSON has no line breaks, so the data is one line."""
    lines = [*([f"id: {event_id}"] if event_id else []), f"event: {name}", f"data: {json.dumps(data)}"]
    return ("\n".join(lines) + "\n\n").encode()


class Feed:
    """The table of one group, kept up to date while it has streams."""

    def __init__(
        self,
        admin: Admin,
        group_id: str,
        rates: Rates,
        may: May | None = None,
        describing: asyncio.Lock | None = None,
        count: Callable[[], int] = lambda: 1,
    ) -> None:
        """Store the arguments.

        Args:
            may: see ``page_table``.
            describing: held during a description; ``None``: there are no other feeds.
            count: the number of feeds, which share ``MAX_LOAD``.
        """
        self.streams = 0
        self._describing, self._count = describing or asyncio.Lock(), count
        self._admin, self._group_id, self._read_rates = admin, group_id, rates
        self._may = may
        self._rates: Mapping[str, float] = {}
        self._rates_at = 0.0
        self._id = secrets.token_hex(4)
        self._table: Table = {}
        self._version = 0
        self._changes: deque[tuple[int, dict[str, Any]]] = deque(maxlen=MAX_CHANGES)
        self._changed = asyncio.Event()
        self._whole = (0, b"")
        self._closed = False

    async def update(self) -> None:
        """Describe the group once and keep what has changed.

        Raises:
            ConnectGroupError: the group cannot be described. Streams get the error as a row of the table.
        """
        now_ms = int(time.time() * 1000)
        try:
            group = await self._admin.describe(self._group_id)
        except GroupIdNotFound as error:
            self._publish({"error": printable(error, limit=400)})
            raise
        except ConnectGroupError as error:
            # The last known rows stay, and the page says that they are old.
            self._publish({**self._table, "error": printable(error, limit=400)})
            raise
        self._publish(page_table(group, now_ms, before=self._table, rates=self._rates, may=self._may))

    async def run(self) -> None:
        """Update until there has been no stream for ``LINGER_S``."""
        loop = asyncio.get_running_loop()
        used_at = loop.time()
        while not self._closed and (self.streams or loop.time() - used_at < LINGER_S):
            if self.streams:
                used_at = loop.time()
            async with self._turn():
                started = loop.time()
                if started - self._rates_at >= RATES_S:
                    # In a thread: the metrics of thousands of tasks take longer than a heartbeat may wait.
                    self._rates, self._rates_at = await run_in_threadpool(self._read_rates, self._group_id), started
                try:
                    await self.update()
                    pause_s = (loop.time() - started) / MAX_LOAD * self._count()
                except ConnectGroupError:
                    pause_s = loop.time() - started  # it waited for a coordinator, which is no load
            await asyncio.sleep(min(max(POLL_S, pause_s), MAX_PAUSE_S))

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One description at a time; but one that waits for a coordinator does not hold up all others."""
        is_mine = False
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_TURN_S):
                is_mine = await self._describing.acquire()
        try:
            yield
        finally:
            if is_mine:
                self._describing.release()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._wake()

    async def stream(self, last_id: str, **hello: object) -> AsyncGenerator[bytes, None]:
        """The events of one stream: ``hello``, then ``table`` or ``change``, and comments as keep-alive.

        Args:
            last_id: the id of the last event that the client has; empty if it has none.
            hello: the data of the first event, besides the server's clock.
        """
        loop = asyncio.get_running_loop()
        end_at = loop.time() + MAX_STREAM_S
        yield event("hello", {**hello, "now_ms": int(time.time() * 1000)})
        version = self._version_of(last_id)
        while not self._closed and loop.time() < end_at:
            changed = self._changed
            if version == self._version:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await changed.wait()
                except TimeoutError:
                    yield b": keep-alive\n\n"
                continue
            newer = [(number, change) for number, change in self._changes if number > version]
            if version >= 0 and newer and newer[0][0] == version + 1:
                for version, change in newer:
                    yield event("change", change, event_id=f"{self._id}.{version}")
            else:
                version = self._version
                yield self._table_event()

    def _publish(self, table: Table) -> None:
        change = changes(self._table, table)
        if change:
            self._version += 1
            self._changes.append((self._version, change))
            self._table = table
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _table_event(self) -> bytes:
        """The whole table; encoded once for all streams that get the same version."""
        if self._whole[0] != self._version:
            self._whole = (self._version, event("table", self._table, event_id=f"{self._id}.{self._version}"))
        return self._whole[1]

    def _version_of(self, last_id: str) -> int:
        """The version that the client has; -1 if it is not one of this feed."""
        feed, _, number = last_id.partition(".")
        known = feed == self._id and number.isascii() and number.isdigit() and len(number) < 16
        return int(number) if known and int(number) <= self._version else -1


class Feeds:
    """The feeds of all groups that have streams, and the limit on streams."""

    def __init__(self, admin: Admin, rates: Rates | None = None) -> None:
        """Use this client; it belongs to the caller. ``rates``: see ``RestServer``."""
        self._admin, self._rates = admin, rates or rows_per_second
        # By group and user; changed by _open and _run.
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._opening: dict[tuple[str, str], asyncio.Task[Feed]] = {}  # changed by _opened and _open
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._describing = asyncio.Lock()
        self._of_users: Counter[str] = Counter()  # streams; changed by _counted
        self._closed = False

    async def stream(
        self,
        group_id: str,
        last_id: str,
        *,
        admin: Admin | None = None,
        user: str = "",
        principal: str = "",
        may: May | None = None,
        **hello: object,
    ) -> AsyncGenerator[bytes, None]:
        """Open a stream of a group; see ``Feed.stream``. The caller exhausts or closes the iterator.

        Args:
            admin: describes the group; the one of this object if ``None``.
            may: what this user may change; see ``page_table``.
            user: whose descriptions these are; those of one user share a feed. Empty: they are the same for all.
            principal: of the login; empty: there was none.

        Raises:
            ConnectGroupError: the group cannot be described.
            RestError: 503: too many streams, or the server stops.
        """
        if excess := "events: the server stops" if self._closed else self._excess(principal):
            raise RestError(503, excess)
        key = group_id, user
        feed = self._feeds.get(key) or await self._opened(key, admin or self._admin, may)
        return self._counted(feed, last_id, hello, principal)

    async def _opened(self, key: tuple[str, str], admin: Admin, may: May | None) -> Feed:
        """A new feed. All who want it at the same time share its first description, which keeps the event loop busy."""
        task = self._opening.get(key)
        if task is None:
            task = asyncio.create_task(self._open(key, admin, may), name=f"open events of {key[0]}")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # all its clients may have gone
            self._opening[key] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise RestError(503, "events: the server stops") from None
            raise

    async def _open(self, key: tuple[str, str], admin: Admin, may: May | None) -> Feed:
        feed = Feed(admin, key[0], self._rates, may, self._describing, self._running.__len__)
        try:
            await feed.update()
        finally:
            del self._opening[key]
        if self._closed:
            raise RestError(503, "events: the server stops")
        self._feeds[key] = feed
        self._running[key] = asyncio.create_task(self._run(key, feed), name=f"events of {key[0]}")
        return feed

    def _excess(self, principal: str) -> str:
        """The error of one more stream; empty if there may be one."""
        if sum(feed.streams for feed in self._feeds.values()) >= MAX_STREAMS:
            return f"events: got more than {MAX_STREAMS} streams; allowed: at most {MAX_STREAMS}"
        if principal and self._of_users[principal] >= MAX_STREAMS_OF_USER:
            limit = MAX_STREAMS_OF_USER
            return f"events: got more than {limit} streams of {printable(principal)}; allowed: at most {limit}"
        return ""

    async def close(self) -> None:
        """End all streams and stop."""
        self._closed = True
        running = [*self._running.values(), *self._opening.values()]
        for feed in self._feeds.values():
            feed.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run(self, key: tuple[str, str], feed: Feed) -> None:
        try:
            await feed.run()
        except Exception:
            # Clients reconnect; their request creates a new feed, or fails with this error.
            logger.exception("events of group %s ended", printable(key[0]))
        finally:
            del self._feeds[key], self._running[key]
            feed.close()

    async def _counted(
        self, feed: Feed, last_id: str, hello: Mapping[str, object], principal: str
    ) -> AsyncGenerator[bytes, None]:
        if self._excess(principal):
            return  # others have begun since: the client tries again, and gets the error
        feed.streams += 1
        self._of_users[principal] += 1
        try:
            async for each in feed.stream(last_id, **hello):
                yield each
        finally:
            feed.streams -= 1
            self._of_users[principal] -= 1
            if not self._of_users[principal]:
                del self._of_users[principal]

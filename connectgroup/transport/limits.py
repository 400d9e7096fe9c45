"""Limits of a server for its peers, and its allowed listen addresses; settings import it, so it imports little."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from ..loggers import LineBudget
from ..protocol.units import printable

LOOPBACK: Final = "an address of this machine's own (127.0.0.1, ::1, localhost)"
"""Error text: the addresses that a server without TLS and authentication may listen on."""


MAX_REFUSED: Final = 64
MIN_SPARE: Final = 128
"""File descriptors that connections leave: the log, threads of lookups, files of plug-ins; and the refused ones."""
REFUSED_DESCRIPTORS: Final = 16
"""So many of these are for connections that are refused because of them; others are closed without a response."""

MAX_ALL_UNSENT_BYTES: Final = 16 << 20
"""Of responses that clients do not read: a description of the largest group has some MB, and many clients may ask."""

MOST: Final = 4
"""How many times as much may wait for clients that read."""
STALLED_S: Final = 10.0
"""A client that has read nothing for so long, in seconds, does not read. The buffers of the system hide for some
seconds what a slow one reads."""

MAX_COMPLAINTS: Final = 1_000
"""Peers whose last log message is remembered: one machine may have any number of IPv6 addresses."""


def max_descriptor(*, spare: float = 0.0) -> int:
    """The first file descriptor that a connection may not have.

    A new descriptor is the lowest free one, so its number says how many are in use.

    Args:
        spare: the share of all descriptors that these connections leave to others.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return int(limit - max(min(MIN_SPARE, limit // 8), limit * spare))


def descriptor_of(transport: asyncio.BaseTransport) -> int:
    """The file descriptor of a connection; -1 if it has none any more."""
    found = transport.get_extra_info("socket")
    return found.fileno() if found is not None else -1


class Complaints:
    """Logs at most one message per peer and minute, and of all peers as many as a ``LineBudget`` has; the next message
    gives the number of suppressed messages."""

    def __init__(self, logger: logging.Logger) -> None:
        """Log here."""
        self._logger = logger
        self._last: dict[str, tuple[float, int]] = {}  # by peer: when, and how many since; in the order of messages
        self._budget = LineBudget()

    def log(self, host: str, what: str) -> None:
        """Log a message about a peer."""
        now = time.monotonic()
        last, left_out = self._last.get(host, (now - 60.0, 0))
        if now - last < 60.0:
            self._last[host] = (last, left_out + 1)
            return
        if not self._budget.take():
            return
        self._last.pop(host, None)
        self._last[host] = (now, 0)
        if len(self._last) > MAX_COMPLAINTS:
            del self._last[next(iter(self._last))]
        more = f" ({left_out} more since the last line)" if left_out else ""
        if others := self._budget.take_left_out():
            more += f" ({others} more of other peers)"
        self._logger.warning("%s: %s%s", printable(host), printable(what, limit=200), more)


C = TypeVar("C", bound="Unread")


class Unread(Protocol):
    """A connection whose client may leave responses unread."""

    @property
    def unsent_bytes(self) -> int:
        """How much waits for the client, if that is more than its buffer should have; else 0."""


class UnsentResponses(Generic[C]):
    """What the clients that do not read their responses make a server hold.

    Above the limit, connections are closed whose clients have read nothing for ``STALLED_S``, the one that read last
    the longest time ago first. Clients that read, however slowly, may together have ``MOST`` times as much. The only
    client with unread responses is left to its own deadline.
    """

    def __init__(self, limit: int, close: Callable[[C], None]) -> None:
        """``limit``: bytes of all connections together; ``close`` is called for each connection to be closed."""
        self._limit, self._close = limit, close
        # Of the connections that have too much to send: how much, and when it became less, on the loop's clock.
        self._held: dict[C, tuple[int, float]] = {}
        self._bytes = 0  # their sum
        self._look: asyncio.TimerHandle | None = None  # the next look at all of them, while they are above the limit

    def note(self, connection: C, size: int) -> None:
        """Note how much a connection has to send, 0 if its client reads."""
        now = asyncio.get_running_loop().time()
        before, read_at = self._held.pop(connection, (0, now))
        if size < before:
            read_at = now
        self._bytes += size - before
        if size:
            self._held[connection] = size, read_at
        if self._bytes > self._limit and (self._look is None or self._bytes > MOST * self._limit):
            self._close_some()

    def _close_some(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection, (before, _) in self._held.items():
            if (size := connection.unsent_bytes) < before:
                self._held[connection] = size, now
        self._bytes = sum(size for size, _ in self._held.values())
        for connection in sorted(self._held, key=lambda each: self._held[each][1]):
            is_stalled = now - self._held[connection][1] >= STALLED_S
            most = self._limit * (1 if is_stalled else MOST)
            if self._bytes <= most or len(self._held) == 1:
                break
            self._bytes -= self._held.pop(connection)[0]
            self._close(connection)
        if self._look is not None:
            self._look.cancel()
        is_above = self._bytes > self._limit and len(self._held) > 1
        self._look = loop.call_later(STALLED_S, self._close_some) if is_above else None


UNREAD: Final = "closed: does not read its responses, and all clients together leave too much unread"
"""The message about such a connection."""


def is_address(host: str) -> bool:
    """Whether a host is an IP address; otherwise it is a host name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a host is an IP address that only this machine can reach; false for a host name."""
    return is_address(host) and ipaddress.ip_address(host).is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server for its peers.

    Attributes:
        max_frame_bytes: maximum request size; an assignment for 1,000 workers and 100,000 tasks takes 2 MiB. Equal to
            the maximum batch size of the log.
        max_connections: maximum number of connections. A connection counts until its last request is done, even if it
            was lost before. A worker needs two connections, a command needs one while it runs.
        max_connections_per_address: maximum number of connections from one address.
        max_connections_per_principal: maximum number of connections of one authenticated user.
        max_refused: maximum number of connections above a limit that the server reads from, until it has responded to
            their first request with an error; it closes further connections unread.
        refused_deadline_s: how long the server reads from such a connection.
        max_unauthenticated: maximum number of connections that have not authenticated yet; above it, the oldest of them
            is closed, so that they do not lock out other clients. They do not count as ``max_connections``.
        authentication_deadline_s: how long a connection may take to authenticate.
        reclaim_idle_s: at a limit on connections, a new one replaces the one without a request under way that has been
            idle for the longest time, at least this long.
        max_incomplete_bytes: maximum size of all requests above 64 KiB that have not arrived whole (at least two of the
            largest); above it, the oldest of them is dropped with its connection.
        max_in_flight: maximum number of requests in flight per connection; above it, the server stops reading.
        max_unsent_bytes: maximum size of unsent responses per connection; above it, the server stops reading.
        max_all_unsent_bytes: maximum size of the unsent responses of all connections that do not read theirs
            (``UnsentResponses``). What a proxy forwards does not count.
        frame_deadline_s: timeout from a frame's first byte to its last, and from the connect to the first frame.
        unsent_deadline_s: how long a peer may leave more than ``max_unsent_bytes`` unread.
        idle_deadline_s: timeout without received bytes and without a request under way.
    """

    max_frame_bytes: int = 8 << 20
    max_connections: int = 2000
    max_connections_per_address: int = 1500
    max_connections_per_principal: int = 1500
    max_refused: int = MAX_REFUSED
    refused_deadline_s: float = 5.0
    max_unauthenticated: int = 200
    authentication_deadline_s: float = 10.0
    reclaim_idle_s: float = 0.1
    max_incomplete_bytes: int = 16 << 20
    max_in_flight: int = 64
    max_unsent_bytes: int = 256 * 1024
    max_all_unsent_bytes: int = MAX_ALL_UNSENT_BYTES
    frame_deadline_s: float = 30.0
    unsent_deadline_s: float = 30.0
    idle_deadline_s: float = 600.0


async def resolve(host: str) -> list[str]:
    """Resolve a host once to distinct IP addresses; an empty host means all addresses of this machine.

    Raises:
        OSError: the host cannot be resolved.
        RuntimeError: the operating system has no thread for the lookup.
    """
    if is_address(host):
        return [host]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except UnicodeError as error:  # a label that is empty or longer than 63 characters
        raise OSError(f"not a host name: {error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))

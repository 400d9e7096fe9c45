"""The connections of the REST server: limits, deadlines, and the TLS handshake; uvicorn handles the requests.

A client that opens connections and sends nothing, or sends and reads slowly, must not lock out other clients, nor take
the file descriptors that workers need. At a limit, a new connection replaces the one without a complete request that
has been so for the longest time; if there is none, it gets 503.

HTTP allows a server to close an idle connection at any time, but a client that has just sent a request on it cannot
know whether it was processed. So a connection whose request has arrived is not idle, although it has not been read.

Source: ``transport.tcp_server``, which has the same rules for workers.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import termios
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..transport.acceptor import Handshake, Turns
from ..transport.access import Certificate
from ..transport.limits import (
    MAX_ALL_UNSENT_BYTES,
    MAX_REFUSED,
    REFUSED_DESCRIPTORS,
    UNREAD,
    Complaints,
    UnsentResponses,
    descriptor_of,
    max_descriptor,
)
from .errors import error_response

logger = logging.getLogger(__name__)

SWEEP_S: Final = 0.5
RECLAIM_IDLE_S: Final = 0.1
RECLAIM_SLOW_S: Final = 1.0
"""Connections that may be replaced at a limit: without a request for so long, or in the middle of a request of which
nothing has arrived, or a response of which nothing was read, for so long."""
EVENTS_A_TURN: Final = 200
"""Parts of requests that are processed before the others have their turn: a body may be sent in chunks of a byte."""
BEGUN_A_TURN: Final = 8
"""Requests of all connections that begin in one turn of the event loop, which serves the heartbeats of workers, too: a
thousand connections may send one at once, and a response takes up to some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestLimits:
    """Limits of the REST server for its clients.

    Attributes:
        max_connections: maximum number of connections, TLS handshakes included.
        max_connections_per_address: maximum number of connections from one address.
        idle_deadline_s: a connection without a request is closed after this time.
        header_deadline_s: how long the headers of a request may take, and a TLS handshake.
        unsent_deadline_s: how long a client may leave a response unread.
        refused_deadline_s: how long a connection above a limit may take to send the request that gets 503.
        max_refused: maximum number of such connections; others are closed unread.
        max_all_unsent_bytes: maximum size of the responses that clients do not read (``UnsentResponses``).
    """

    max_connections: int = 1_000
    max_connections_per_address: int = 500
    idle_deadline_s: float = 30.0
    header_deadline_s: float = 10.0
    unsent_deadline_s: float = 30.0
    refused_deadline_s: float = 5.0
    max_refused: int = MAX_REFUSED
    max_all_unsent_bytes: int = MAX_ALL_UNSENT_BYTES


class HttpConnections:
    """All connections of one server.

    Args:
        limits: see ``RestLimits``.
        certificate: of the server; ``None`` for plain text.
        new_protocol: returns what handles the requests of a new connection; the argument is this object.
    """

    def __init__(
        self,
        limits: RestLimits,
        certificate: Certificate | None,
        new_protocol: Callable[[HttpConnections], HttpConnection],
    ) -> None:
        self.limits, self._certificate, self._new_protocol = limits, certificate, new_protocol
        # Changed by admit and release, and by the begin and the end of a handshake.
        self._open: dict[HttpConnection, None] = {}
        self._handshakes: dict[Handshake, None] = {}
        self._turns = Turns()  # of the handshakes
        self._refused: dict[HttpConnection, None] = {}
        self._high: set[HttpConnection | Handshake] = set()  # those with a descriptor of at least _max_descriptor
        self._by_address: Counter[str] = Counter()
        self._complaints = Complaints(logger)
        self._unsent = UnsentResponses[HttpConnection](limits.max_all_unsent_bytes, self._close_unread)
        self._max_descriptor = max_descriptor(spare=0.25)  # a quarter of them is for workers only
        self._sweeper: asyncio.TimerHandle | None = None
        # The requests that began in this turn of the event loop, and connections with one that has not, in the order
        # of their arrival. Changed by may_begin, _begin_turn and release.
        self._begun = 0
        self._waiting: dict[HttpConnection, None] = {}
        self._ends_turn = False
        self._closed = False

    def start(self) -> None:
        """Begin to watch deadlines."""
        self._sweep()

    def close(self) -> None:
        """Stop watching, and drop the handshakes in progress. The caller closes the connections."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for handshake in list(self._handshakes):
            handshake.abort()

    def accept(self) -> asyncio.Protocol:
        """The protocol of an accepted connection."""
        if self._certificate is None:
            return self._new_protocol(self)
        return Handshake(
            self._certificate.context,
            self.limits.header_deadline_s,
            self._turns,
            lambda: self._new_protocol(self),
            self._begin_handshake,
            self._end_handshake,
        )

    def may_begin(self, connection: HttpConnection) -> bool:
        """Whether the next request of a connection may begin in this turn of the event loop; if not, ``go_on`` is
        called in a later one."""
        if not self._ends_turn:
            self._ends_turn = True
            asyncio.get_running_loop().call_soon(self._begin_turn)
        if self._begun >= BEGUN_A_TURN:
            self._waiting[connection] = None
            return False
        self._begun += 1
        return True

    def _begin_turn(self) -> None:
        self._begun, self._ends_turn = 0, False
        try:
            for connection in list(islice(self._waiting, BEGUN_A_TURN)):
                self._waiting.pop(connection, None)
                connection.go_on()
        finally:
            if self._waiting and not self._ends_turn:  # none of those has begun a request
                self._ends_turn = True
                asyncio.get_running_loop().call_soon(self._begin_turn)

    def admit(self, connection: HttpConnection) -> str:
        """Count a new connection; above a limit, return the error message for its first request."""
        message = self._violation(connection.address, connection.descriptor)
        if not message:
            self._open[connection] = None
            self._by_address[connection.address] += 1
            if connection.descriptor >= self._max_descriptor:
                self._high.add(connection)
            return ""
        self._complaints.log(connection.address, message)
        last = self._max_descriptor + REFUSED_DESCRIPTORS
        if len(self._refused) >= self.limits.max_refused or connection.descriptor >= last:
            connection.abort()
        else:
            self._refused[connection] = None
        return message

    def release(self, connection: HttpConnection) -> None:
        """Stop counting a connection."""
        self.count_unsent(connection, 0)
        self._refused.pop(connection, None)
        self._waiting.pop(connection, None)
        self._high.discard(connection)
        if connection in self._open:
            del self._open[connection]
            self._forget(connection.address)

    def count_unsent(self, connection: HttpConnection, size: int) -> None:
        """Note how much a connection has to send to a client that does not read, 0 if it reads."""
        self._unsent.note(connection, size)

    def _close_unread(self, connection: HttpConnection) -> None:
        self._complaints.log(connection.address, UNREAD)
        asyncio.get_running_loop().call_soon(connection.abort)  # not while it writes

    def _forget(self, address: str) -> None:
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _violation(self, address: str, descriptor: int) -> str:
        limits = self.limits
        limit = limits.max_connections_per_address
        if self._by_address[address] >= limit and not self._reclaim(address):
            return f"too many connections from this address (at most {limit})"
        limit = limits.max_connections
        if len(self._open) + len(self._handshakes) >= limit and not self._reclaim(None):
            return f"too many connections (at most {limit})"
        # The system gives the lowest free descriptor: as many are in use, by whatever part of the process, and besides
        # those of connections that were admitted with a higher one, because others were closed for them.
        above = descriptor + len(self._high) - self._max_descriptor
        if above >= 0 and not self._reclaim(None, 1 + above):
            return f"too many open files: from {self._max_descriptor} on they are for workers"
        return ""

    def _reclaim(self, address: str | None, at_least: int = 1) -> bool:
        """Close some of the connections that wait for the longest time; return whether there is room now.

        Args:
            address: those of this one only.
            at_least: how many must go for that.
        """
        now = asyncio.get_running_loop().time()
        own = [each for each in self._open if address is None or each.address == address]
        idle = sorted((each for each in own if each.may_be_replaced(now)), key=lambda each: each.waits_since)
        for each in idle[: at_least + len(own) // 50]:
            self._complaints.log(each.address, "closed: idle, and other clients need connections")
            each.abort()
            self.release(each)
        if idle:
            return len(idle) >= at_least
        # A handshake that is in progress while a whole new connection comes is not served any later.
        oldest = next((each for each in self._handshakes if address is None or each.client_host == address), None)
        if oldest is not None:
            self._end_handshake(oldest, "closed: no TLS handshake yet, and other clients need connections")
            oldest.abort()
        return oldest is not None

    def _begin_handshake(self, handshake: Handshake) -> bool:
        if self._closed or self._violation(handshake.client_host, handshake.descriptor):
            self._complaints.log(handshake.client_host, "closed: too many connections")
            return False
        self._handshakes[handshake] = None
        self._by_address[handshake.client_host] += 1
        if handshake.descriptor >= self._max_descriptor:
            self._high.add(handshake)
        return True

    def _end_handshake(self, handshake: Handshake, failure: str) -> None:
        self._high.discard(handshake)
        if handshake in self._handshakes:
            del self._handshakes[handshake]
            self._forget(handshake.client_host)
            if failure:
                self._complaints.log(handshake.client_host, failure)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        if self._certificate is not None:
            self._certificate.refresh()
        for connection in [*self._open, *self._refused]:
            if overdue := connection.end_if_overdue(loop.time()):
                self._complaints.log(connection.address, overdue)
        self._sweeper = loop.call_later(SWEEP_S, self._sweep)


class HttpConnection(H11Protocol):
    """One connection: uvicorn's, with deadlines.

    Attributes:
        address: of the client.
        descriptor: the file descriptor; -1 without one.
        waits_since: since when the server waits for the client, on the loop's clock.
    """

    def __init__(self, connections: HttpConnections, **uvicorn: Any) -> None:
        """Store the arguments; ``uvicorn``: those of its own protocol."""
        super().__init__(**uvicorn)
        self._connections = connections
        self.conn = _Paced(self.conn._max_incomplete_event_size, self._may_go_on)
        self.address, self.descriptor = "", -1
        # Changed by connection_made, data_received and on_response_complete.
        self._began_at = self.waits_since = self._heard_at = self.loop.time()
        self._header_began_at: float | None = None
        self._is_refused = self._goes_on = False
        self._choked_at: float | None = None
        self._closing_at: float | None = None
        self._events = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.descriptor = descriptor_of(transport)
        if refused := self._connections.admit(self):
            self._is_refused = True
            self.app = _refusing(refused)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.release(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._goes_on:
            self.transport.pause_reading()
        self._heard_at = self.loop.time()
        if not self._is_busy and self._header_began_at is None:
            self._header_began_at = self._heard_at
        super().data_received(data)

    def handle_events(self) -> None:
        self._events = 0
        super().handle_events()
        # What has arrived may also be the rest of a request that was rejected before its end.
        if self._is_busy or (self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]):
            self._header_began_at = None

    def on_response_complete(self) -> None:
        self.waits_since = self.loop.time()
        self._header_began_at = None
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._choked_at = self.loop.time()
        super().pause_writing()
        self._connections.count_unsent(self, self.unsent_bytes)

    def resume_writing(self) -> None:
        self._choked_at = None
        super().resume_writing()
        self._connections.count_unsent(self, 0)

    @property
    def unsent_bytes(self) -> int:
        """How much waits for a client that does not read fast enough, else 0."""
        size: int = self.transport.get_write_buffer_size() if self._choked_at is not None else 0
        return size

    def abort(self) -> None:
        """Close immediately."""
        self.transport.abort()

    def may_be_replaced(self, now: float) -> bool:
        """Whether another client may have the place of this connection."""
        if self._choked_at is not None:
            return now - self._choked_at >= RECLAIM_SLOW_S
        if self._is_busy:
            return self.cycle.more_body and now - self._heard_at >= RECLAIM_SLOW_S
        return now - self.waits_since >= RECLAIM_IDLE_S and not self._goes_on and not self._has_unread()

    def end_if_overdue(self, now: float) -> str:
        """Close the connection if a deadline has passed, and return the reason; an empty one is not worth a line."""
        limits = self._connections.limits
        if self._closing_at is not None:
            if now - self._closing_at > limits.refused_deadline_s:
                self.abort()
            return ""
        if self._choked_at is not None:
            if now - self._choked_at > limits.unsent_deadline_s:
                self.abort()
                return f"closed: did not read its response for {limits.unsent_deadline_s:g} s"
            return ""
        if self._is_busy:
            return ""
        if self._is_refused:
            if now - self._began_at > limits.refused_deadline_s:
                self.abort()
            return ""
        if self._goes_on:  # it waits for its turn
            return ""
        if self._header_began_at is not None and now - self._header_began_at > limits.header_deadline_s:
            self._answer_timeout()
            return f"closed: no whole request within {limits.header_deadline_s:g} s"
        is_idle = self._header_began_at is None and now - self.waits_since > limits.idle_deadline_s
        if is_idle and not self._has_unread():
            self._close(now)
        return ""

    def timeout_keep_alive_handler(self) -> None:
        if not self._goes_on and not self._has_unread():
            super().timeout_keep_alive_handler()

    def _has_unread(self) -> bool:
        """Whether the system has received something that the event loop has not read yet; not the end of the stream."""
        count = bytearray(4)
        with suppress(OSError, ValueError):  # closed
            fcntl.ioctl(self.descriptor, termios.FIONREAD, count)
        return any(count)

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _answer_timeout(self) -> None:
        """Respond with 408, if no response has begun, and close."""
        if self.conn.our_state is h11.IDLE:
            seconds = self._connections.limits.header_deadline_s
            body = error_response(408, f"the request did not arrive within {seconds:g} s").body
            head = (
                "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            self.transport.write(head.encode() + bytes(body))
        self._close(self.loop.time())

    def _close(self, now: float) -> None:
        self._closing_at = now
        self.transport.close()

    def _may_go_on(self) -> bool:
        """Whether another part of a request may be processed in this turn of the event loop."""
        self._events += 1
        is_beginning = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if self._events > EVENTS_A_TURN:
            if not self._goes_on:
                self.loop.call_soon(self.go_on)
        elif not is_beginning or self._connections.may_begin(self):
            return True
        self._goes_on = True
        return False

    def go_on(self) -> None:
        """Process what has arrived and was left for another turn of the event loop."""
        self._goes_on = False
        if self.transport.is_closing():
            return
        self.handle_events()
        if not self._goes_on and not self.flow.read_paused:
            self.transport.resume_reading()


class _Paced(h11.Connection):
    """Returns no more events in this turn when it may not go on: the rest stays in its buffer."""

    def __init__(self, max_bytes: int, may_go_on: Callable[[], bool]) -> None:
        super().__init__(h11.SERVER, max_bytes)
        self._may_go_on = may_go_on

    def next_event(self) -> Any:
        return super().next_event() if self._may_go_on() else h11.NEED_DATA


def _refusing(message: str) -> ASGIApp:
    """An application that refuses every request."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await error_response(503, f"{message}; retry after one second", {"Connection": "close"})(scope, receive, send)

    return refuse

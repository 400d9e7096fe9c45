"""Accepts the connections of a server, one per turn of the event loop, whichever loop it is; and their TLS handshakes.

The loops' own servers accept as many connections in one turn as wait, and no request is handled meanwhile. If no file
descriptor is free, asyncio's writes a traceback for each of them, and uvloop's closes them, or its port for good.

asyncio reports a connection to its protocol after the handshake only. So that handshakes in progress can be counted and
closed, the server accepts in plain text and starts TLS itself: once the first message of the client has arrived, and
for one client per turn of the event loop, because the signature in its answer takes a millisecond or more.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import errno
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from ..errors import PortInUse, TransportError
from ..protocol.units import printable
from .base import reason
from .limits import descriptor_of

BACKLOG: Final = 1024  # all workers may reconnect at the same time
RETRY_S: Final = 1.0
"""Seconds until the next attempt to accept if the system has no file descriptor or no memory."""

OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def bind(addresses: Sequence[str], port: int) -> list[socket.socket]:
    """Bind a port at all IP addresses; 0: any free port, the same one at all of them.

    Raises:
        OSError: the port is in use, or an address is not one of this machine's.
    """
    sockets: list[socket.socket] = []
    try:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            # asyncio sets TCP_NODELAY only on sockets with this protocol number. Without it, the body of a response
            # waits for the acknowledgement of its headers: 40 ms.
            try:
                listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(addresses) > 1:
                    continue  # a machine without IPv6, and a host that has addresses of both kinds
                raise
            sockets.append(listening)
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((address, port))
            port = listening.getsockname()[1]
    except OSError:
        for opened in sockets:
            opened.close()
        raise
    return sockets


def cannot_listen(host: str, port: int, error: OSError | RuntimeError) -> TransportError:
    """The error of a server that could not bind its port."""
    is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
    return (PortInUse if is_taken else TransportError)(f"{host}:{port}: cannot listen: {reason(error)}")


class Acceptor:
    """Listens on sockets, which it owns, and makes a protocol for each connection."""

    def __init__(self, sockets: Sequence[socket.socket], new_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._sockets, self._new_protocol = sockets, new_protocol
        self._loop = asyncio.get_running_loop()
        self._begun: set[asyncio.Task[None]] = set()  # connections whose transport is not made yet
        self._closed = False  # ``close`` sets it

    def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is in use.
        """
        for listening in self._sockets:
            listening.listen(BACKLOG)
        for listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def close(self) -> None:
        """Close the sockets; a second call has no effect."""
        if not self._closed:
            self._closed = True
            for listening in self._sockets:
                self._loop.remove_reader(listening.fileno())
                listening.close()

    async def wait_closed(self) -> None:
        """Wait until the protocols of all accepted connections have them."""
        if self._begun:
            await asyncio.wait(self._begun)

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in OUT_OF_RESOURCES:
                raise
            # As asyncio does: its handler of exceptions knows the context.
            message = "socket.accept() out of system resource"
            self._loop.call_exception_handler({"message": message, "exception": error, "socket": listening})
            self._loop.remove_reader(listening.fileno())
            self._loop.call_later(RETRY_S, self._accept_again, listening)
            return
        task = self._loop.create_task(self._serve(accepted))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    def _accept_again(self, listening: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    async def _serve(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        try:
            with suppress(OSError):  # the client has closed the connection
                await self._loop.connect_accepted_socket(self._new_protocol, accepted)
        except BaseException:
            accepted.close()
            raise


class Turns:
    """TLS handshakes start one by one, each in a turn of the event loop of its own."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._goes_on = False  # ``_next`` is to be called

    async def wait(self) -> None:
        """Wait until those have started that waited before."""
        loop = asyncio.get_running_loop()
        own: asyncio.Future[None] = loop.create_future()
        self._waiting.append(own)
        if not self._goes_on:
            self._goes_on = True
            loop.call_soon(self._next)
        await own

    def _next(self) -> None:
        self._goes_on = False
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # done: it was cancelled
                first.set_result(None)
                break
        if self._waiting:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._next)


TLS_BUFFER_BYTES: Final = 32 * 1024
"""The buffer for what is read of one connection: two records of TLS. asyncio's own has 256 KiB."""

LOST: Final = "the connection was lost"
"""The reason of an error without a message: uvloop's."""


class Handshake(asyncio.Protocol):
    """A connection whose TLS handshake is in progress."""

    def __init__(
        self,
        context: ssl.SSLContext,
        deadline_s: float,
        turns: Turns,
        served: Callable[[], asyncio.Protocol],
        on_begin: Callable[[Handshake], bool],
        on_end: Callable[[Handshake, str], None],
    ) -> None:
        """Create the protocol of an accepted connection.

        Args:
            context: the server's certificate.
            deadline_s: how long the handshake may take.
            turns: of the server's handshakes: to answer the first message of a client takes milliseconds.
            served: creates the protocol of the connection after the handshake.
            on_begin: called first; false: the connection is closed.
            on_end: called at the end of the handshake, with the reason if it failed.
        """
        self._context, self._deadline_s, self._turns, self._served = context, deadline_s, turns, served
        self._on_begin, self._on_end = on_begin, on_end
        self._early: list[bytes] = []  # what arrived before TLS was started, or for the protocol after it
        self._hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the first message is there
        self._task: asyncio.Task[None] | None = None  # the handshake
        self.client_host, self.descriptor = "", -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else "unknown"
        self.descriptor = descriptor_of(transport)
        if self._on_begin(self):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="TLS handshake")
        else:
            self.abort()

    async def _run(self) -> None:
        loop, failure = asyncio.get_running_loop(), "closed: no TLS handshake"
        secured: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._hello
                await self._turns.wait()
                # TLS on a connection that is lost would not end, and its protocol would not hear that it is lost.
                if not self._transport.is_closing():
                    starting = loop.start_tls(
                        self._transport, self, self._context, server_side=True, ssl_handshake_timeout=self._deadline_s
                    )
                    # When ``start_tls`` waits, and the bytes of the connection are for TLS.
                    loop.call_soon(self._pass_on)
                    secured = await starting
            if self._transport.is_closing():  # it may have been lost since the handshake
                secured, failure = None, f"{failure}: {LOST}"
        except TimeoutError:
            failure = f"{failure} within {self._deadline_s:g} s"
        except (OSError, ssl.SSLError) as error:
            failure = f"closed: no TLS handshake: {printable(reason(error) or LOST, limit=150)}"
            error.__traceback__ = None  # a reference cycle with the frame of start_tls, and the buffers
        finally:
            # The task has the exception, and with it this frame and the buffers of the handshake.
            self._task = None
            self._on_end(self, "" if secured is not None else failure)
        if secured is None:
            self._transport.abort()
            return
        protocol = self._served()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        for data in self._early:
            protocol.data_received(data)

    def _pass_on(self) -> None:
        """Pass the bytes that have arrived before TLS was started to its protocol."""
        _shrink(self._transport.get_protocol())
        early, self._early = b"".join(self._early), []
        protocol = cast(asyncio.BufferedProtocol, self._transport.get_protocol())  # uvloop's is none by its class
        while early:
            buffer = memoryview(protocol.get_buffer(len(early)))
            size = min(len(buffer), len(early))
            buffer[:size] = early[:size]
            protocol.buffer_updated(size)
            early = early[size:]

    def data_received(self, data: bytes) -> None:
        """The client's first message; or its first request, which may arrive together with the end of its handshake."""
        self._early.append(data)
        if not self._hello.done() and _has_record(b"".join(self._early)):
            self._transport.pause_reading()  # what follows is for the handshake
            self._hello.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._hello.done():
            self._hello.set_result(None)

    def abort(self) -> None:
        """Close immediately."""
        if self._task is not None:
            self._task.cancel()
        with suppress(OSError):
            self._transport.abort()


RECORD: Final = struct.Struct(">BHH")
"""The head of a record of TLS: its type, version and length."""
HANDSHAKE: Final = 22
MAX_HELLO_BYTES: Final = 16 * 1024


def _has_record(data: bytes) -> bool:
    """Whether the first bytes of a client have a whole record, or are none of TLS: the handshake fails then."""
    if data[0] != HANDSHAKE:
        return True
    return len(data) >= RECORD.size and len(data) >= RECORD.size + min(RECORD.unpack_from(data)[2], MAX_HELLO_BYTES)


def _shrink(protocol: object) -> None:
    """Give asyncio's protocol of a TLS connection, of which nothing was read yet, a small buffer.

    It keeps its buffer as long as it lives: strangers could make a server hold 300 MB with a thousand connections, and
    a thousand workers need twice as much. Of another version of asyncio, which has other attributes, nothing changes.
    """
    if isinstance(protocol, asyncio.sslproto.SSLProtocol) and hasattr(protocol, "_ssl_buffer_view"):
        own: Any = protocol
        own.max_size = TLS_BUFFER_BYTES
        own._ssl_buffer = bytearray(TLS_BUFFER_BYTES)
        own._ssl_buffer_view = memoryview(own._ssl_buffer)

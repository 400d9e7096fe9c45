"""One TLS handshake of the server, from the accepted connection to the connection that the server serves.

asyncio reports a connection to its protocol after the handshake only. So that handshakes in progress can be counted and
closed, the server accepts in plain text and starts TLS itself. uvloop begins to read when ``connection_made`` has
returned, although that has paused reading: the first bytes of the handshake may then arrive here, and are passed on.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from ..protocol.units import printable
from .base import reason
from .limits import descriptor_of

LOST: Final = "the connection was lost"
"""The reason of an error without a message: uvloop's."""


class Handshake(asyncio.Protocol):
    """A connection whose TLS handshake is in progress."""

    def __init__(
        self,
        context: ssl.SSLContext,
        deadline_s: float,
        served: Callable[[], asyncio.Protocol],
        on_begin: Callable[[Handshake], bool],
        on_end: Callable[[Handshake, str], None],
    ) -> None:
        """Create the protocol of an accepted connection.

        Args:
            context: the server's certificate.
            deadline_s: how long the handshake may take.
            served: creates the protocol of the connection after the handshake.
            on_begin: called first; false: the connection is closed.
            on_end: called at the end of the handshake, with the reason if it failed.
        """
        self._context, self._deadline_s, self._served = context, deadline_s, served
        self._on_begin, self._on_end = on_begin, on_end
        self._early: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self.client_host, self.descriptor = "", -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.pause_reading()  # the bytes are for the handshake
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
        starting = loop.create_task(
            loop.start_tls(
                self._transport, self, self._context, server_side=True, ssl_handshake_timeout=self._deadline_s
            )
        )
        try:
            await asyncio.sleep(0)  # now the bytes of the connection are for TLS
            self._pass_on()
            secured = await starting
        except (OSError, ssl.SSLError) as error:  # a timeout is an OSError
            failure = f"closed: no TLS handshake: {printable(reason(error) or LOST, limit=150)}"
            error.__traceback__ = None  # a reference cycle with the frame of start_tls, and the buffers
        finally:
            starting.cancel()
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
        early, self._early = b"".join(self._early), []
        protocol = cast(asyncio.BufferedProtocol, self._transport.get_protocol())  # uvloop's is none by its class
        while early:
            buffer = memoryview(protocol.get_buffer(len(early)))
            size = min(len(buffer), len(early))
            buffer[:size] = early[:size]
            protocol.buffer_updated(size)
            early = early[size:]

    def data_received(self, data: bytes) -> None:
        """The client's first request, which may arrive together with the end of its handshake."""
        self._early.append(data)

    def abort(self) -> None:
        """Close immediately."""
        if self._task is not None:
            self._task.cancel()
        with suppress(OSError):
            self._transport.abort()

"""The server: accepts connections, passes requests to the handler, and sends the responses in request order.

Nothing that a peer sends or fails to send may affect another peer: every queue and every wait is bounded (``Limits``).
Requests of one connection run concurrently, because a heartbeat may be parked for seconds inside the handler; the
server sends their responses in request order, as Kafka's protocol requires. The server itself responds to ApiVersions
and FindCoordinator; the handler handles all other requests.

It is based on ``asyncio.Protocol``: with streams, each request takes 50% more CPU time.

Source: Kafka's ``SocketServer`` and ``Selector`` (muting a channel, idle connections, quotas of connections).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections import Counter, deque
from typing import Final

from ..errors import ConfigError, CoordinatorNotAvailable, InvalidRequest, TransportError, UnknownServerError, WireError
from ..protocol.messages.api import Handler, Response
from ..protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)
from ..protocol.units import printable
from ..wire.apis import (
    API_VERSIONS,
    APIS,
    FIND_COORDINATOR,
    DecodeFailure,
    RequestHeader,
    decode_request,
    encode_response,
    refusal,
    served,
)
from ..wire.framing import DEFAULT_MAX_BYTES, FrameReader, frame
from .base import Conversation, reason
from .limits import LOOPBACK, Limits, is_loopback, resolve

GROUP_KEY: Final = 0
"""FindCoordinator's key type for groups, the only supported key type."""

logger = logging.getLogger(__name__)


class TcpServer:
    """Serves one handler on one port.

    Args:
        handler: handles the requests.
        host: the address to listen on.
        port: the port to listen on; 0 for any free port, which ``port`` contains after ``start``.
        advertised_host: host in FindCoordinator responses; ``host`` if null.
        advertised_port: port in FindCoordinator responses; the listening port if null.
        node_id: node id in FindCoordinator responses.
        limits: limits for peers.
        tls: null for plain text.
        loopback_only: whether ``start`` rejects a host that other machines can reach.
    """

    def __init__(
        self,
        handler: Handler,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertised_host: str | None = None,
        advertised_port: int | None = None,
        node_id: int = 0,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        loopback_only: bool = False,
    ) -> None:
        self.handler, self.host, self.port = handler, host, port
        self.limits = limits or Limits()
        self._advertised = (advertised_host, advertised_port, node_id)
        self._tls, self._loopback_only = tls, loopback_only
        self._listener: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._refused: set[_Connection] = set()
        self._by_host: Counter[str] = Counter()
        self._complaints: dict[str, tuple[float, int]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    async def start(self) -> None:
        """Listen on exactly the addresses that the host resolves to now.

        Raises:
            ConfigError: ``loopback_only``, and the host resolves to an address that other machines can reach.
            TransportError: the port is in use, or the host is not an address of this machine.
        """
        loop = asyncio.get_running_loop()
        try:
            # Resolve once: a second lookup could return other addresses than those that were checked.
            addresses = await resolve(self.host)
            reachable = [address for address in addresses if not is_loopback(address)]
            if self._loopback_only and reachable:
                raise ConfigError("host", f"{self.host} ({', '.join(reachable)})", LOOPBACK)
            # Accept one connection per turn of the loop. asyncio accepts up to ``backlog`` connections per turn. If no
            # file descriptor is free, it fails, and logs a traceback, as often; no request is handled meanwhile (F36).
            self._listener = await loop.create_server(
                lambda: _Connection(self), addresses, self.port, ssl=self._tls, backlog=1
            )
            for listening in self._listener.sockets:
                with socket.socket(fileno=os.dup(listening.fileno())) as same:
                    same.listen(_BACKLOG)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread for a name lookup
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            raise TransportError(f"{self.host}:{self.port}: cannot listen: {reason(error)}") from error
        self.port = self._listener.sockets[0].getsockname()[1]
        self._sweep()

    async def close(self, *, grace_s: float = 1.0) -> None:
        """Stop: accept no connections, let requests finish for ``grace_s``, then cancel them.

        Returns within three times ``grace_s``.
        """
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._refused):
            connection.abort()
        for connection in self._connections:
            connection.stop_reading()
        tasks = {task for connection in self._connections for task in connection.conversation.tasks}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=grace_s)
        for connection in list(self._connections):
            connection.hang_up()
        if self._connections:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), grace_s)
            except TimeoutError:
                for connection in list(self._connections):
                    connection.abort()
        await listener.wait_closed()

    def handle_locally(self, request: ApiVersionsRequest | FindCoordinatorRequest) -> Response:
        """Respond to the requests that the server itself handles."""
        if isinstance(request, ApiVersionsRequest):
            return _API_VERSIONS
        host, port, node_id = self._advertised
        host, port = self.host if host is None else host, self.port if port is None else port
        if request.key_type != GROUP_KEY:
            return refusal(
                FIND_COORDINATOR, InvalidRequest.code, f"key_type: got {request.key_type}; allowed: {GROUP_KEY} (group)"
            )
        return FindCoordinatorResponse(
            node_id=node_id,
            host=host,
            port=port,
            coordinators=tuple(
                FoundCoordinator(key=key, node_id=node_id, host=host, port=port) for key in request.coordinator_keys
            ),
        )

    # ------------------------------------------------------------------------------------------ connections

    def admit(self, connection: _Connection) -> str:
        """Count a new connection; above a limit, return the error message for the response to its first request."""
        host, limits = connection.client_host, self.limits
        if len(self._connections) >= limits.max_connections:
            return f"the coordinator is at its limit of {limits.max_connections} connections (max_connections)"
        if self._by_host[host] >= limits.max_connections_per_address:
            limit = limits.max_connections_per_address
            return (
                f"the coordinator is at its limit of {limit} connections from one address (max_connections_per_address)"
            )
        self._connections.add(connection)
        self._by_host[host] += 1
        return ""

    def admit_refused(self, connection: _Connection) -> bool:
        """Whether a connection above a limit may stay open until the response to its first request."""
        if len(self._refused) >= self.limits.max_refused:
            return False
        self._refused.add(connection)
        return True

    @property
    def is_closing(self) -> bool:
        """Whether the server no longer accepts connections."""
        return self._listener is None

    def release(self, connection: _Connection) -> None:
        """Stop counting a connection that is lost and whose last request is done."""
        self._refused.discard(connection)
        if connection in self._connections:
            self._connections.discard(connection)
            self._by_host[connection.client_host] -= 1
            if not self._by_host[connection.client_host]:
                del self._by_host[connection.client_host]
            if not self._connections:
                self._empty.set()

    def log_complaint(self, host: str, what: str) -> None:
        """Log at most one message per peer and minute; the next message gives the number of suppressed messages."""
        now = asyncio.get_running_loop().time()
        last, left_out = self._complaints.get(host, (now - 60.0, 0))
        if now - last < 60.0:
            self._complaints[host] = (last, left_out + 1)
            return
        self._complaints[host] = (now, 0)
        more = f" ({left_out} more since the last line)" if left_out else ""
        logger.warning("%s: %s%s", printable(host), printable(what, limit=200), more)

    def _sweep(self) -> None:
        """Close overdue connections; one timer serves all connections, so that a request needs no timer."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in [*self._connections, *self._refused]:
            if overdue := connection.overdue(now):
                self.log_complaint(connection.client_host, overdue)
                connection.abort()
        if len(self._complaints) > 1000:
            self._complaints = {host: kept for host, kept in self._complaints.items() if now - kept[0] < 60.0}
        limits = self.limits
        shortest = min(
            limits.frame_deadline_s, limits.unsent_deadline_s, limits.idle_deadline_s, limits.refused_deadline_s
        )
        self._sweeper = loop.call_later(min(1.0, shortest / 4), self._sweep)


class _Connection(asyncio.Protocol):
    """One connection: decodes frames and requests, encodes responses, and enforces the limits for its peer."""

    def __init__(self, server: TcpServer) -> None:
        self._server, self._limits = server, server.limits
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(server.limits.max_frame_bytes)
        self._frames: deque[bytes] = deque()  # complete frames that have not begun
        self._out: list[bytes] = []  # responses of this turn of the event loop, sent together
        self._lost = self._stopped = self._hanging_up = self._paused = False
        self._began_at = self._heard_at = self._frame_began_at = self._loop.time()
        self._waits_for_frame = True
        self._choked_at: float | None = None
        self._refused = ""  # above a limit: the error message for its first request
        self.client_host = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else "unknown"
        self.conversation: Conversation[RequestHeader] = Conversation(
            self._server.handler, client_host=self.client_host, response=self._answer
        )
        if self._server.is_closing:
            self._stopped = True
            self._server.log_complaint(self.client_host, "the server is closing")
            transport.abort()
            return
        if refused := self._server.admit(self):
            self._server.log_complaint(self.client_host, refused)
            if not self._server.admit_refused(self):
                self._stopped = True
                transport.abort()
                return
            self._refused = refused
            self._reader = FrameReader(min(DEFAULT_MAX_BYTES, self._limits.max_frame_bytes))
        transport.set_write_buffer_limits(high=self._limits.max_unsent_bytes)

    def data_received(self, data: bytes) -> None:
        if self._stopped:
            return
        try:
            frames = self._reader.feed(data)
        except WireError as error:
            self._refuse(str(error))
            return
        self._heard_at = now = self._loop.time()
        if frames or not self._waits_for_frame:
            self._frame_began_at = now
        self._waits_for_frame = self._reader.mid_frame
        self._frames += frames
        self._work()

    def _work(self) -> None:
        """Begin requests within the limits; resume reading only when no complete frame is left."""
        for _ in range(self._limits.max_in_flight):  # then other connections have their turn
            if not self._frames or not self._may_begin():
                break
            self._begin(self._frames.popleft())
        pause = bool(self._frames) or not self._may_begin()
        if pause and not self._paused:
            self._transport.pause_reading()
        elif self._paused and not pause:
            self._frame_began_at = self._loop.time()  # the deadline does not run while reading is paused
            self._transport.resume_reading()
        self._paused = pause

    def _may_begin(self) -> bool:
        return not self._stopped and self._choked_at is None and len(self.conversation) < self._limits.max_in_flight

    def _begin(self, data: bytes) -> None:
        try:
            decoded = decode_request(data)
        except DecodeFailure as failure:
            self._refuse_request(failure)
            return
        header = RequestHeader(decoded.api_key, decoded.version, decoded.correlation_id)
        request = decoded.request
        if self._refused and not isinstance(request, ApiVersionsRequest):
            # Respond to ApiVersions: its response has no field for an error message, but that of the next request has.
            self._stopped = True
            self.conversation.put(header, refusal(header.api_key, CoordinatorNotAvailable.code, self._refused))
            self.conversation.put(header, None)
        elif isinstance(request, ApiVersionsRequest | FindCoordinatorRequest):
            self.conversation.put(header, self._server.handle_locally(request))
        else:
            self.conversation.begin(header, request, client_id=decoded.client_id or "")

    def _refuse_request(self, failure: DecodeFailure) -> None:
        """Respond, in request order, to a request that cannot be decoded.

        If the client could not decode the response either, close the connection instead, in request order.
        """
        header = failure.header
        if header is None:
            self._refuse(str(failure))
        elif header.api_key == API_VERSIONS or (
            header.api_key in APIS and header.version in APIS[header.api_key].versions
        ):
            self.conversation.put(header, refusal(header.api_key, failure.code, str(failure)))
        else:
            self._server.log_complaint(self.client_host, str(failure))
            self._stopped = True
            self.conversation.put(header, None)

    def _refuse(self, why: str) -> None:
        """Framing is lost: close the connection, because no later bytes can be interpreted."""
        self._server.log_complaint(self.client_host, f"closed: {why}")
        self._stopped = True
        self._frames.clear()
        self._transport.close()

    # ------------------------------------------------------------------------------------------ responses

    def _answer(self, header: RequestHeader, response: Response | None) -> None:
        if self._lost:
            if not self.conversation:
                self._server.release(self)
            return
        if not self._out:
            self._loop.call_soon(self._send)
        if response is None:
            self._hanging_up = True
            self._out.append(b"")
            return
        api_key, version, correlation_id = header
        try:
            data = encode_response(response, api_key=api_key, version=version, correlation_id=correlation_id)
        except WireError as error:
            logger.error("%s: a response cannot be sent: %s", self.client_host, printable(error, limit=300))
            failed = refusal(api_key, UnknownServerError.code, "the server failed: a response that cannot be sent")
            data = encode_response(failed, api_key=api_key, version=version, correlation_id=correlation_id)
        self._out.append(frame(data))

    def _send(self) -> None:
        out, self._out = self._out, []
        if self._lost:
            return
        if out:
            self._transport.write(b"".join(out))
        if self._hanging_up:
            self._transport.close()
        elif self._frames or self._paused:
            self._work()

    def pause_writing(self) -> None:
        self._choked_at = self._loop.time()
        self._work()

    def resume_writing(self) -> None:
        self._choked_at = None
        self._work()

    # ------------------------------------------------------------------------------------------ closing

    def overdue(self, now: float) -> str:
        """Return the reason to close the connection; empty if there is none."""
        limits = self._limits
        if self._refused:
            late = now - self._began_at > limits.refused_deadline_s
            return f"closed: {self._refused}" if late else ""
        if self._choked_at is not None:
            late = now - self._choked_at > limits.unsent_deadline_s
            return f"closed: did not read its responses for {limits.unsent_deadline_s:g} s" if late else ""
        if self._paused or len(self.conversation):
            return ""
        if self._waits_for_frame and now - self._frame_began_at > limits.frame_deadline_s:
            return f"closed: no whole frame within {limits.frame_deadline_s:g} s"
        if now - self._heard_at > limits.idle_deadline_s:
            return f"closed: idle for {limits.idle_deadline_s:g} s"
        return ""

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._stopped = True
        self._frames.clear()
        if not self.conversation:
            self._server.release(self)

    def stop_reading(self) -> None:
        """Begin no more requests; requests under way still get their responses."""
        self._stopped = True
        self._frames.clear()
        self._transport.pause_reading()

    def hang_up(self) -> None:
        """Send the pending responses, then close."""
        self._hanging_up = True
        self._send()

    def abort(self) -> None:
        """Close immediately; discard unsent responses."""
        self._transport.abort()


_BACKLOG: Final = 1024  # all workers may reconnect at the same time
_API_VERSIONS: Final = ApiVersionsResponse(api_keys=served())

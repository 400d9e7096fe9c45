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
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ..errors import ConfigError, CoordinatorNotAvailable, InvalidRequest
from ..protocol.messages.api import Handler, Request, Response
from ..protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)
from ..protocol.messages.rejected import rejected
from ..protocol.units import printable
from ..telemetry.metrics import register, unregister
from ..threads import NoThread, off_loop
from ..wire.apis import (
    FIND_COORDINATOR,
    refusal,
    served,
)
from .acceptor import Acceptor, Handshake, Turns, bind, cannot_listen
from .access import Security
from .access_rules import AccessOperation, Resource
from .audit import AuditedHandler, AuditLog, is_change, record_request, result_of
from .base import Relay
from .group_access import CODE, Authorization, AuthorizedHandler, RequiredAccess, needed
from .limits import (
    LOOPBACK,
    REFUSED_DESCRIPTORS,
    UNREAD,
    Complaints,
    Limits,
    UnsentResponses,
    is_loopback,
    max_descriptor,
    resolve,
)
from .quotas import RequestQuotas
from .tcp_connection import BeginBudget, Connection, LargeRequests, Server

GROUP_KEY: Final = 0
"""FindCoordinator's key type for groups, the only supported key type."""

FindCoordinator = Callable[[str], tuple[str, int, int] | None]
"""Returns host, port and node id of the coordinator of a group; ``None``: none is known."""

logger = logging.getLogger(__name__)


def found_coordinators(request: FindCoordinatorRequest, find: FindCoordinator) -> Response:
    """The response to FindCoordinator, for its key or for each of its keys."""
    unowned = "no coordinator owns the log at present"
    keys = request.coordinator_keys or (request.key,)
    found = {key: find(key) for key in keys}
    if not any(found.values()):
        return refusal(FIND_COORDINATOR, CoordinatorNotAvailable.code, unowned)
    first = next(each for each in found.values() if each is not None)
    named = []
    for key in request.coordinator_keys:
        host, port, node_id = found[key] or ("", -1, -1)
        code, message = (0, None) if found[key] is not None else (CoordinatorNotAvailable.code, unowned)
        named.append(
            FoundCoordinator(key=key, node_id=node_id, host=host, port=port, error_code=code, error_message=message)
        )
    host, port, node_id = first
    return FindCoordinatorResponse(node_id=node_id, host=host, port=port, coordinators=tuple(named))


class TcpServer:
    """Serves one handler on one port.

    Args:
        handler: handles the requests.
        host: the address to listen on.
        port: the port to listen on; 0 for any free port, which ``port`` contains after ``start``.
        advertised_host: host in FindCoordinator responses; ``host`` if ``None``.
        advertised_port: port in FindCoordinator responses; the listening port if ``None``.
        node_id: node id in FindCoordinator responses.
        limits: limits for peers.
        security: what clients must prove, and TLS; ``None``: nothing, and plain text.
        group_access: which principals may do what; ``None``: all of them everything.
        quotas: requests per second of principals; ``None``: there is no limit.
        audit: gets a line for each change and each denied request; ``None``: there are no lines.
        loopback_only: whether ``start`` rejects a host that other machines can reach, unless ``security`` allows it.
        on_connection_lost: called with the last request for the handler that a lost connection has received, if any
            (with the last one of a member, if there was one), and with the principal of the connection.

    Attributes:
        addresses: the IP addresses that are listened on; set by ``start``.
        find_coordinator: host, port and node id of the coordinator that serves a group, in FindCoordinator
            responses; ``None``: no coordinator is known. By default those that this server advertises.
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
        security: Security | None = None,
        group_access: Authorization | None = None,
        quotas: RequestQuotas | None = None,
        audit: AuditLog | None = None,
        loopback_only: bool = False,
        on_connection_lost: Callable[[Request, str], None] = lambda request, principal: None,
    ) -> None:
        self.handler, self.host, self.port = handler, host, port
        self.addresses: list[str] = []
        self.limits = limits or Limits()
        security = security or Security()
        self.authenticator = security.authenticator
        self._group_access, self._audit = group_access or Authorization(), audit
        self.quotas = quotas or RequestQuotas()
        self._advertised = (advertised_host, advertised_port, node_id)
        self._certificate = security.certificate
        self._tls, self._loopback_only = security.tls, loopback_only and not security.is_reachable
        self.find_coordinator: FindCoordinator = self._itself
        self.on_connection_lost = on_connection_lost
        self._listener: Acceptor | None = None  # between ``start`` and ``close``
        self._connections: set[Connection] = set()  # admitted ones; ``release`` removes
        self._unauthenticated: dict[Connection | Handshake, None] = {}  # in the order of arrival
        self._high: set[Connection | Handshake] = set()  # those with a descriptor of at least _max_descriptor
        self._handshakes = Turns()
        self.large_requests = LargeRequests()
        self.begin_budget = BeginBudget()
        self._incomplete: dict[Connection, int] = {}  # bytes of large incomplete requests, in the order of their begin
        self._incomplete_bytes = 0  # their sum
        self._unsent: UnsentResponses[Connection] = UnsentResponses(
            self.limits.max_all_unsent_bytes, self._close_unread
        )
        self._refused: set[Connection] = set()  # above a limit: connected until they have read why
        self._by_host: Counter[str] = Counter()
        self._by_principal: Counter[str] = Counter()
        self._complaints = Complaints(logger)
        self._max_descriptor = max_descriptor()
        self._to_send: list[Connection] = []  # connections with responses of this turn of the event loop
        self._sweeper: asyncio.TimerHandle | None = None  # the next look at deadlines
        self._empty = asyncio.Event()  # ``close`` clears it; the release of the last connection sets it

    async def start(self) -> None:
        """Listen on exactly the addresses that the host resolves to now.

        Raises:
            ConfigError: ``loopback_only``, and the host resolves to an address that other machines can reach.
            TransportError: the port is in use, or the host is not an address of this machine.
        """
        try:
            # Resolve once: a second lookup could return other addresses than those that were checked.
            addresses = await resolve(self.host)
            reachable = [address for address in addresses if not is_loopback(address)]
            if self._loopback_only and reachable:
                raise ConfigError("host", f"{self.host} ({', '.join(reachable)})", LOOPBACK)
            sockets = bind(addresses, self.port)
            self._listener = Acceptor(sockets, self._new_protocol)
            self._listener.start()
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread for a name lookup
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            raise cannot_listen(self.host, self.port, error) from error
        self.addresses, self.port = addresses, sockets[0].getsockname()[1]
        register(self.quotas)
        if self._audit is not None:
            self._audit.start()
        self._sweep()

    async def close(self, *, grace_s: float = 1.0) -> None:
        """Stop: accept no connections, let requests finish for ``grace_s``, then cancel them.

        Returns within three times ``grace_s``.
        """
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        unregister(self.quotas)
        if self._sweeper is not None:
            self._sweeper.cancel()
        for each in [*self._refused, *self._unauthenticated]:
            each.abort()
        for connection in self._connections:
            connection.stop_reading()
        conversations = [connection.conversation for connection in self._connections]
        if conversations:
            await asyncio.wait([each.drained() for each in conversations], timeout=grace_s)
            late = set().union(*(each.cancel() for each in conversations))
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
        if self._audit is not None:
            with suppress(NoThread):
                await off_loop("close the audit log", self._audit.close)
        await listener.wait_closed()

    def hang_up_all(self, is_concerned: Callable[[str], bool] | None = None) -> None:
        """Close connections, after the responses that are to be sent on them.

        Args:
            is_concerned: whether connections whose requests are about this group alone are closed; those about several
                groups, or none so far, stay: requests about other groups may be under way. ``None``: all are closed.
        """
        for connection in [each for each in self._connections if is_concerned is None or each.is_about(is_concerned)]:
            connection.stop_reading()
            connection.hang_up()

    def handler_for(self, connection: Connection) -> Handler:
        """The handler of the requests of one connection."""
        handler = self.handler
        if self._group_access:
            handler = AuthorizedHandler(
                handler,
                self._group_access,
                lambda: connection.principal,
                lambda request, denial: self._on_denied(connection, request, denial),
            )
        if self._audit is not None:
            handler = AuditedHandler(handler, self._audit, lambda: connection.principal, describing=self.handler)
        return handler

    def _on_denied(self, connection: Connection, request: Request, denial: str) -> None:
        principal = connection.principal
        self.quotas.count_denied(principal)
        self.log_complaint(connection.client_host, f"user {printable(principal)}: {denial}")
        if self._audit is not None and not is_change(request):  # the line of a change says it
            record_request(self._audit, request, principal, connection.client_host, result_of(CODE), message=denial)

    def _itself(self, group_id: str) -> tuple[str, int, int]:
        host, port, node_id = self._advertised
        return self.host if host is None else host, self.port if port is None else port, node_id

    def handle_locally(self, request: ApiVersionsRequest | FindCoordinatorRequest) -> Response:
        """Respond to the requests that the server itself handles."""
        if isinstance(request, ApiVersionsRequest):
            return _API_VERSIONS_WITH_SASL if self.authenticator is not None else _API_VERSIONS
        if request.key_type != GROUP_KEY:
            return refusal(
                FIND_COORDINATOR, InvalidRequest.code, f"key_type: got {request.key_type}; allowed: {GROUP_KEY} (group)"
            )
        return found_coordinators(request, self.find_coordinator)

    def denied(self, request: Request, connection: Connection) -> Response | None:
        """The response to a request about one group that is denied; ``None``: it is allowed."""
        denial = self._group_access.first_denial(connection.principal, needed(request))
        if not denial:
            return None
        self._on_denied(connection, request, denial)
        return rejected(request, CODE, denial)

    def without_denied(self, request: Request, found: Response, connection: Connection) -> Response:
        """The response to FindCoordinator with an error for each group that may not be described.

        An empty key names no group: clients that follow the owner of a log send it.
        """
        if not (self._group_access and isinstance(request, FindCoordinatorRequest)):
            return found
        assert isinstance(found, FindCoordinatorResponse)
        denials: dict[str, str] = {}
        for key in request.coordinator_keys or (request.key,):
            access = RequiredAccess(AccessOperation.DESCRIBE, Resource(key))
            if key and (denial := self._group_access.denial(connection.principal, access)):
                denials[key] = denial
                self._on_denied(connection, replace(request, coordinator_keys=(key,)), denial)
        if not denials:
            return found
        if not request.coordinator_keys:
            return refusal(FIND_COORDINATOR, CODE, denials[request.key])
        refused = {
            key: FoundCoordinator(key=key, node_id=-1, host="", port=-1, error_code=CODE, error_message=denial)
            for key, denial in denials.items()
        }
        return replace(found, coordinators=tuple(refused.get(each.key, each) for each in found.coordinators))

    # ------------------------------------------------------------------------------------------ connections

    def _new_protocol(self, server: Server | None = None) -> asyncio.Protocol:
        """The protocol of an accepted connection; ``server``: of a port of its own, which is this one otherwise."""
        if self._tls is None:
            return Connection(server or self)
        deadline_s = self.limits.authentication_deadline_s
        return Handshake(
            self._tls,
            deadline_s,
            self._handshakes,
            lambda: Connection(server or self),
            self._begin_handshake,
            self._end_handshake,
        )

    def _begin_handshake(self, handshake: Handshake) -> bool:
        """Count a TLS handshake, which takes some 80 kB; false while the server is closing."""
        if self.is_closing or self._lacks_descriptors(handshake):
            return False
        self._add_unauthenticated(handshake)
        return True

    def _end_handshake(self, handshake: Handshake, failure: str) -> None:
        self._forget_unauthenticated(handshake)
        if failure:
            self.log_complaint(handshake.client_host, failure)

    def _add_unauthenticated(self, connection: Connection | Handshake) -> None:
        """Count a connection that has not authenticated; at the limit, close the oldest of them."""
        if len(self._unauthenticated) >= self.limits.max_unauthenticated:
            oldest = next(iter(self._unauthenticated))
            self._forget_unauthenticated(oldest)
            self.log_complaint(oldest.client_host, "closed: too many connections that have not authenticated")
            oldest.abort()
        self._unauthenticated[connection] = None

    def _forget_unauthenticated(self, connection: Connection | Handshake) -> None:
        self._unauthenticated.pop(connection, None)
        self._high.discard(connection)

    def _lacks_descriptors(self, new: Connection | Handshake) -> bool:
        """Whether so many files are open that a new connection must be closed, even if others are closed for it.

        The system gives the lowest free descriptor: as many are in use, and besides those of connections that were
        admitted with a higher one, because others were closed for them.
        """
        above = 1 + new.descriptor + len(self._high) - self._max_descriptor
        if above <= 0:
            return False
        for oldest in list(self._unauthenticated)[:above]:
            self._forget_unauthenticated(oldest)
            self.log_complaint(oldest.client_host, "closed: too many open files, and not authenticated")
            oldest.abort()
            above -= 1
        if above > 0 and not self._close_idle(self._connections, above):
            return True
        if new.descriptor >= self._max_descriptor:
            self._high.add(new)
        return False

    def new_relay(self, on_writable: Callable[[], None], connection: Connection) -> Relay | None:
        """The relay of a new connection; ``on_writable`` is to be called when it has become writable again."""
        return None

    def send_soon(self, connection: Connection) -> None:
        """Send the responses of a connection later in this turn of the event loop: one call for all connections."""
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._send)
        self._to_send.append(connection)

    def _send(self) -> None:
        connections, self._to_send = self._to_send, []
        for connection in connections:
            try:
                connection.send()
            except Exception:
                # The responses of the other connections must not be lost with it.
                logger.exception("%s: closed: its responses cannot be sent", connection.client_host)
                connection.abort()

    def admit(self, connection: Connection) -> str:
        """Count a new connection; above a limit, return the error message for the response to its first request.

        A connection that has to authenticate counts against a limit of its own until it has: above that, the oldest of
        these connections is closed instead.
        """
        if self._lacks_descriptors(connection):
            return f"the coordinator is at its limit of {self._max_descriptor} open files (ulimit -n)"
        if connection.admission.is_open:
            return self._count(connection)
        self._add_unauthenticated(connection)
        return ""

    def admit_authenticated(self, connection: Connection) -> str:
        """Count a connection that has authenticated; returns as ``admit``."""
        self._unauthenticated.pop(connection, None)
        refused = self._count(connection)
        if refused:
            self.log_complaint(connection.client_host, refused)
            self._refused.add(connection)
        return refused

    def _count(self, connection: Connection) -> str:
        host, principal, limits = connection.client_host, connection.admission.principal, self.limits
        at_limit = "the coordinator is at its limit of"
        # The narrowest limit first: a client that is refused costs no other client its connection.
        limit = limits.max_connections_per_principal
        full = bool(principal) and self._by_principal[principal] >= limit
        if full and not self._close_idle([e for e in self._connections if e.admission.principal == principal]):
            return f"{at_limit} {limit} connections of principal {principal} (max_connections_per_principal)"
        limit = limits.max_connections_per_address
        full = self._by_host[host] >= limit
        if full and not self._close_idle([each for each in self._connections if each.client_host == host]):
            return f"{at_limit} {limit} connections from one address (max_connections_per_address)"
        if len(self._connections) >= limits.max_connections and not self._close_idle(self._connections):
            return f"{at_limit} {limits.max_connections} connections (max_connections)"
        self._connections.add(connection)
        self._by_host[host] += 1
        self._by_principal[principal] += 1
        return ""

    def _close_idle(self, connections: Collection[Connection], at_least: int = 1) -> bool:
        """Close some of the connections that are idle for the longest time; return whether there is room now.

        Otherwise a client that opens connections and leaves them idle would lock out all others. A worker or a command
        whose connection is closed opens a new one for its next request. Several at once: finding them takes long.

        Source: Kafka closes the least recently used connection for one of its inter-broker listener (KIP-612).
        """
        now = asyncio.get_running_loop().time()
        idle = [each for each in connections if each.idle_s(now) >= self.limits.reclaim_idle_s]
        idle.sort(key=lambda each: each.idle_s(now), reverse=True)
        for each in idle[: at_least + len(connections) // 50]:
            self.log_complaint(each.client_host, "closed: idle, and other clients need connections")
            each.abort()
            self.release(each)
        return len(idle) >= at_least

    def count_incomplete(self, connection: Connection, size: int) -> None:
        """Note how much of an incomplete large request a connection has sent, 0 for none.

        Above the limit of all connections, the oldest of these requests is dropped with its connection.
        """
        self._incomplete_bytes += size - self._incomplete.pop(connection, 0)
        if size:
            self._incomplete[connection] = size
        limits = self.limits
        while self._incomplete_bytes > max(limits.max_incomplete_bytes, 2 * limits.max_frame_bytes):
            oldest = min(self._incomplete, key=lambda each: each.frame_began_at)
            self._incomplete_bytes -= self._incomplete.pop(oldest)
            self.log_complaint(oldest.client_host, "closed: too many large requests that have not arrived whole")
            oldest.abort()

    def count_unsent(self, connection: Connection, size: int) -> None:
        """Note how much a connection has to send to a peer that does not read, 0 if it reads."""
        self._unsent.note(connection, size)

    def _close_unread(self, connection: Connection) -> None:
        self.log_complaint(connection.client_host, UNREAD)
        asyncio.get_running_loop().call_soon(connection.abort)  # not while it writes

    def admit_refused(self, connection: Connection) -> bool:
        """Whether a connection above a limit may stay open until the response to its first request."""
        last = self._max_descriptor + REFUSED_DESCRIPTORS
        if len(self._refused) >= self.limits.max_refused or connection.descriptor >= last:
            return False
        self._refused.add(connection)
        return True

    @property
    def is_closing(self) -> bool:
        """Whether the server no longer accepts connections."""
        return self._listener is None

    def release(self, connection: Connection) -> None:
        """Stop counting a connection that is lost and whose last request is done."""
        self._refused.discard(connection)
        self._forget_unauthenticated(connection)
        if connection in self._incomplete:
            self.count_incomplete(connection, 0)
        if connection in self._connections:
            self._connections.discard(connection)
            for count, key in (
                (self._by_host, connection.client_host),
                (self._by_principal, connection.admission.principal),
            ):
                count[key] -= 1
                if not count[key]:
                    del count[key]
            if not self._connections:
                self._empty.set()

    def log_complaint(self, host: str, what: str) -> None:
        """Log at most one message per peer and minute; the next message gives the number of suppressed messages."""
        self._complaints.log(host, what)

    def _sweep(self) -> None:
        """Close overdue connections; one timer serves all connections, so that a request needs no timer."""
        if self._certificate is not None:
            self._certificate.refresh()
            self._tls = self._certificate.context
        if self._group_access.rules is not None:
            self._group_access.rules.refresh()
        loop = asyncio.get_running_loop()
        now = loop.time()
        unauthenticated = [each for each in self._unauthenticated if isinstance(each, Connection)]
        for connection in [*self._connections, *self._refused, *unauthenticated]:
            if overdue := connection.overdue(now):
                self.log_complaint(connection.client_host, overdue)
                connection.abort()
        limits = self.limits
        shortest = min(
            limits.frame_deadline_s,
            limits.unsent_deadline_s,
            limits.idle_deadline_s,
            limits.refused_deadline_s,
            limits.authentication_deadline_s,
        )
        self._sweeper = loop.call_later(min(1.0, shortest / 4), self._sweep)


_API_VERSIONS: Final = ApiVersionsResponse(api_keys=served())
_API_VERSIONS_WITH_SASL: Final = ApiVersionsResponse(api_keys=served(sasl=True))

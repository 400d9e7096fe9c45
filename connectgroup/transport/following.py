"""A client of the coordinator that serves, wherever that is: it follows a fail-over from one address to another.

A request that was not processed (no connection, or NOT_COORDINATOR) is sent to another address at once: first to the
one that a coordinator names as the owner of the log (FindCoordinator), then to those that were configured or learnt.
While no coordinator serves, the addresses are tried again and again until the time of the call is up. A request whose
outcome is unknown fails, as with any client; the next call begins at another address.

Each coordinator describes those that share the log: one that cannot read the log is no reason to fail.

A client that lives longer than ``LEARN_S`` learns the addresses of the coordinators that stand by, too: one that was
given a single address is not lost with the machine that has it.

Source: Kafka's ``ConsumerCoordinator.lookupCoordinator``; KIP-302 (several addresses).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ..backoff import Attempts, BackOff
from ..checks import parse_address
from ..errors import ConfigError, CoordinatorNotAvailable, NotAuthenticated, NotCoordinator, NotSent, TransportError
from ..protocol.messages.api import Request, Response
from ..protocol.messages.cluster import (
    DescribeCoordinatorsRequest,
    DescribeCoordinatorsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ..protocol.messages.rejected import error_of
from ..protocol.units import printable
from .access import Access
from .base import Client
from .tcp_client import TcpClient

PAUSES: Final = BackOff(first_s=0.2, max_s=0.4)
"""Before all addresses are tried again. A fail-over takes about four seconds; a worker's lease is eight."""

CONNECT_TIMEOUT_S: Final = 2.0
"""Timeout of connecting, where there is another address to try."""

LOOK_UP_TIMEOUT_S: Final = 1.0
"""How long a coordinator may take to say which one serves."""

LEARN_S: Final = 1.0
"""When a client asks for the other coordinators of the log: so long after its first response. Most commands have ended
by then."""

LEARN_AGAIN_S: Final = 120.0
"""When it asks again, once it has been answered."""

LEARN_TIMEOUT_S: Final = 30.0
"""How long it waits for the answer, which comes after those to earlier requests, such as a parked heartbeat."""

logger = logging.getLogger(__name__)


def parse_addresses(field: str, text: str | Sequence[str]) -> list[tuple[str, int]]:
    """Split ``host:port,host:port``, or a list of addresses.

    Raises:
        ConfigError: an address does not have this form.
    """
    named = text.split(",") if isinstance(text, str) else list(text)
    return list(dict.fromkeys(parse_address(field, each.strip()) for each in named))


class FollowingClient(Client):
    """A client of a coordinator with one or more addresses.

    Args:
        addresses: host and port of each coordinator, at least one.
        client_id: sent to the coordinator with each request.
        access: how to authenticate, and TLS; ``None``: see ``Access``.
        first: a client that is tried before the addresses, such as one of a coordinator in this process.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        client_id: str = "connectgroup",
        *,
        access: Access | None = None,
        first: Client | None = None,
    ) -> None:
        self._client_id, self._access = client_id, access
        self._has_choice = len(addresses) + (first is not None) > 1
        self._configured: list[Client] = [self._make(host, port) for host, port in addresses]
        if first is not None:
            self._configured.insert(0, first)
        # By address: those that a coordinator has named, besides the configured ones. Changed by ``_client_at``.
        self._named: dict[str, Client] = {}
        # Of ``_named``: those that share the log, as learnt last. Changed by ``_learn``.
        self._learnt: list[Client] = []
        self._learn_at_s: float | None = None
        self._learning: asyncio.Task[None] | None = None
        self._current = self._configured[0]
        self._closed = False

    @property
    def is_remote(self) -> bool:
        """See ``TcpClient``."""
        return True

    @property
    def address(self) -> str:
        return self._current.address

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        loop = asyncio.get_running_loop()
        ends_s, attempts = loop.time() + timeout_s, Attempts(PAUSES, for_s=timeout_s)
        tried: set[Client] = set()
        while True:
            client = self._current
            response, problem = None, None
            try:
                response = await client.call(request, timeout_s=max(0.001, ends_s - loop.time()))
            except NotAuthenticated:
                raise
            except NotSent as error:
                problem = error
            except TransportError:
                if client is self._current:
                    self._current = self._after(client)
                raise
            if response is not None and not _is_for_another(request, response):
                if self._is_due(loop.time()):
                    self._learning = loop.create_task(self._learn(), name=f"coordinators besides {client.address}")
                return response
            tried.add(client)
            following = await self._follow(client, response is not None, ends_s - loop.time())
            if following in tried:
                tried.clear()
                is_over = self._closed or (response is None and not self._has_choice)
                if is_over or not await attempts.pause():
                    if response is not None:
                        return response
                    assert problem is not None
                    raise problem
            if client is self._current:
                self._current = following

    async def close(self) -> None:
        self._closed = True
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)
        for client in *self._configured, *self._named.values():
            await client.close()

    async def _follow(self, client: Client, responded: bool, timeout_s: float) -> Client:
        """The client for the next attempt."""
        if responded and timeout_s > 0:
            try:
                found = await client.call(
                    FindCoordinatorRequest(coordinator_keys=("",)),
                    timeout_s=min(LOOK_UP_TIMEOUT_S, timeout_s),
                )
            except TransportError:
                return self._after(client)
            assert isinstance(found, FindCoordinatorResponse)
            named = found.coordinators[0] if found.coordinators else found
            if not named.error_code and (owner := self._client_at(named.host, named.port)) is not client:
                return owner
        return self._after(client)

    def _is_due(self, now_s: float) -> bool:
        """Whether to learn the other coordinators now."""
        if self._closed or (self._learning is not None and not self._learning.done()):
            return False
        if self._learn_at_s is None:
            self._learn_at_s = now_s + LEARN_S
        return now_s >= self._learn_at_s

    async def _learn(self) -> None:
        """Ask which coordinators share the log."""
        self._learn_at_s = asyncio.get_running_loop().time() + LEARN_S
        try:
            found = await self._current.call(DescribeCoordinatorsRequest(), timeout_s=LEARN_TIMEOUT_S)
        except TransportError:
            return
        if not isinstance(found, DescribeCoordinatorsResponse) or found.error_code:
            return
        self._learn_at_s += LEARN_AGAIN_S - LEARN_S
        before = {client.address for client in self._configured + self._learnt}
        learnt = []
        for each in found.coordinators:
            try:
                host, port = parse_address("advertised", each.address)
            except ConfigError:  # of a log that is not shared
                continue
            learnt.append(self._client_at(host, port))
        self._learnt = [client for client in learnt if client not in self._configured]
        for client in self._configured if self._learnt else ():
            if isinstance(client, TcpClient):
                client.connect_timeout_s = min(client.connect_timeout_s, CONNECT_TIMEOUT_S)
        if new := [client.address for client in self._learnt if client.address not in before]:
            logger.info("follows the coordinators of the same log, too: %s", printable(", ".join(new)))

    def _client_at(self, host: str, port: int) -> Client:
        address = f"{host}:{port}"
        for client in self._configured:
            if client.address == address:
                return client
        if address not in self._named:
            self._has_choice = True
            self._named[address] = self._make(host, port)
        return self._named[address]

    def _after(self, client: Client) -> Client:
        """The client after this one, of those that were configured or learnt."""
        clients = self._configured + self._learnt
        if client not in clients:
            return clients[0]
        return clients[(clients.index(client) + 1) % len(clients)]

    def _make(self, host: str, port: int) -> TcpClient:
        if not self._has_choice:
            return TcpClient(host, port, self._client_id, access=self._access)
        return TcpClient(host, port, self._client_id, access=self._access, connect_timeout_s=CONNECT_TIMEOUT_S)


def _is_for_another(request: Request, response: Response) -> bool:
    """Whether another coordinator may answer a request that this one has not."""
    code = error_of(request, response)[0]
    # Of a request that may have changed something, CoordinatorNotAvailable says that its outcome is unknown.
    return code == NotCoordinator.code or (
        isinstance(request, DescribeCoordinatorsRequest) and code == CoordinatorNotAvailable.code
    )

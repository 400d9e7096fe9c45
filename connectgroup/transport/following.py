"""A client of the coordinator that serves, wherever that is: it follows a fail-over from one address to another.

A request that was not processed (no connection, or NOT_COORDINATOR) is sent to another address at once: first to the
one that a coordinator names as the owner of the log (FindCoordinator), then to those that were configured or learnt.
While no coordinator serves, the addresses are tried again and again until the time of the call is up. A request whose
outcome is unknown fails, as with any client; the next call begins at another address.

Each coordinator describes those that share the log: one that cannot read the log is no reason to fail.

The groups of a log may be spread over several partitions, each with an owner of its own. The client keeps the owner of
each group that it has asked about, and asks all owners for a list of all groups.

A client that lives longer than ``LEARN_S`` learns the addresses of the coordinators that stand by, too: one that was
given a single address is not lost with the machine that has it.

Source: Kafka's ``ConsumerCoordinator.lookupCoordinator``; KIP-302 (several addresses).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
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
from ..protocol.messages.describe import DescribeResponse
from ..protocol.messages.rejected import error_of, rejected
from ..protocol.units import partition_of, printable
from .access import Access
from .base import Client
from .group_access import group_of, groups_asked
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
"""When it asks again after a response."""

MAX_GROUPS: Final = 1_000
"""Groups of which a client keeps the owner; of others it looks them up again."""

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
        # By group: where its last request was processed. Changed by ``_keep``, ``_forget``.
        self._owners: dict[str, Client] = {}
        self._closed = False

    @property
    def is_remote(self) -> bool:
        """See ``TcpClient``."""
        return True

    @property
    def address(self) -> str:
        return self._current.address

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        ends_s = asyncio.get_running_loop().time() + timeout_s
        response = await self._call(request, timeout_s=timeout_s)
        if isinstance(response, DescribeResponse) and response.partition_count > 1:
            return await self._call_owners(request, response, ends_s)
        return response

    async def _call_owners(self, request: Request, first: DescribeResponse, ends_s: float) -> Response:
        """All groups of a log with several partitions, from the owners of all of them."""
        loop = asyncio.get_running_loop()
        groups = {group.group_id: group for group in first.groups}
        missing = {*range(first.partition_count)} - {*first.partitions}
        attempts = Attempts(PAUSES, for_s=max(0.0, ends_s - loop.time()))
        while missing:
            for owner in await self._owners_of(missing, ends_s):
                try:
                    response = await owner.call(request, timeout_s=max(0.001, ends_s - loop.time()))
                except NotAuthenticated:
                    raise
                except TransportError:
                    continue
                if isinstance(response, DescribeResponse) and not error_of(request, response)[0]:
                    new = missing & {*response.partitions}
                    count = first.partition_count
                    groups |= {
                        group.group_id: group for group in response.groups if partition_of(group.group_id, count) in new
                    }
                    missing -= new
            if missing and not await attempts.pause():
                which = ", ".join(map(str, sorted(missing)))
                why = f"no coordinator lists the groups of partition {which} of the log"
                return rejected(request, CoordinatorNotAvailable.code, why)
        listed = tuple(groups[group_id] for group_id in sorted(groups))
        return replace(first, groups=listed, partitions=tuple(range(first.partition_count)))

    async def _owners_of(self, partitions: set[int], ends_s: float) -> list[Client]:
        """Clients of the coordinators that own partitions, as far as is known now."""
        timeout_s = max(0.001, ends_s - asyncio.get_running_loop().time())
        try:
            found = await self._call(DescribeCoordinatorsRequest(include_standbys=False), timeout_s=timeout_s)
        except NotAuthenticated:
            raise
        except TransportError:
            return []
        if not isinstance(found, DescribeCoordinatorsResponse):
            return []
        owners: list[Client] = []
        for address in dict.fromkeys(each.address for each in found.coordinators if each.partition in partitions):
            with suppress(ConfigError):  # it advertises none
                owners.append(self._client_at(*parse_address("advertised", address)))
        return owners

    async def _call(self, request: Request, *, timeout_s: float) -> Response:
        loop = asyncio.get_running_loop()
        ends_s, attempts = loop.time() + timeout_s, Attempts(PAUSES, for_s=timeout_s)
        group_id = _group_of(request)
        tried: set[Client] = set()
        # The last one of those that were configured or learnt: what follows one that it has named, too, which may have
        # ended, while the one that named it cannot read the log.
        place: Client | None = None
        while True:
            client = self._owners.get(group_id, self._current)
            if client in self._configured or client in self._learnt:
                place = client
            response, problem = None, None
            try:
                response = await client.call(request, timeout_s=max(0.001, ends_s - loop.time()))
            except NotAuthenticated:
                raise
            except NotSent as error:
                problem = error
            except TransportError:
                self._forget(client)
                if client is self._current:
                    self._current = self._after(place)
                raise
            if response is not None and not _is_for_another(request, response):
                if self._is_due(loop.time()):
                    self._learning = loop.create_task(self._learn(), name=f"coordinators besides {client.address}")
                return response
            tried.add(client)
            if response is None:
                self._forget(client)
            following = await self._follow(client, place, group_id, response is not None, ends_s - loop.time())
            if following in tried:
                tried.clear()
                is_over = self._closed or (response is None and not self._has_choice)
                if is_over or not await attempts.pause():
                    if response is not None:
                        return response
                    assert problem is not None
                    raise problem
            self._keep(group_id, following)
            if client is self._current:
                self._current = following

    async def close(self) -> None:
        self._closed = True
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)
        for client in *self._configured, *self._named.values():
            await client.close()

    def _keep(self, group_id: str, client: Client) -> None:
        if group_id:
            self._owners.pop(group_id, None)
            if len(self._owners) >= MAX_GROUPS:
                del self._owners[next(iter(self._owners))]
            self._owners[group_id] = client

    def _forget(self, client: Client) -> None:
        """A coordinator has not responded: its groups may have another one."""
        self._owners = {group_id: each for group_id, each in self._owners.items() if each is not client}

    async def _follow(
        self, client: Client, place: Client | None, group_id: str, responded: bool, timeout_s: float
    ) -> Client:
        """The client for the next attempt."""
        if responded and timeout_s > 0:
            try:
                found = await client.call(
                    FindCoordinatorRequest(coordinator_keys=(group_id,)),
                    timeout_s=min(LOOK_UP_TIMEOUT_S, timeout_s),
                )
            except TransportError:
                return self._after(place)
            assert isinstance(found, FindCoordinatorResponse)
            named = found.coordinators[0] if found.coordinators else found
            if not named.error_code and (owner := self._client_at(named.host, named.port)) is not client:
                return owner
        return self._after(place)

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
        for address in dict.fromkeys(each.address for each in found.coordinators):  # one may own several partitions
            try:
                host, port = parse_address("advertised", address)
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

    def _after(self, place: Client | None) -> Client:
        """The client after this one, of those that were configured or learnt."""
        clients = self._configured + self._learnt
        if place is None or place not in clients:
            return clients[0]
        return clients[(clients.index(place) + 1) % len(clients)]

    def _make(self, host: str, port: int) -> TcpClient:
        if not self._has_choice:
            return TcpClient(host, port, self._client_id, access=self._access)
        return TcpClient(host, port, self._client_id, access=self._access, connect_timeout_s=CONNECT_TIMEOUT_S)


def _group_of(request: Request) -> str:
    """The group that a request is about, the first one of several; empty: none."""
    if group_id := getattr(request, "group_id", ""):
        return str(group_id)
    return group_of(next(iter(groups_asked(request)), ""))


def _is_for_another(request: Request, response: Response) -> bool:
    """Whether another coordinator may answer a request that this one has not."""
    code = error_of(request, response)[0]
    # Of a request that may have changed something, CoordinatorNotAvailable says that its outcome is unknown.
    return code == NotCoordinator.code or (
        isinstance(request, DescribeCoordinatorsRequest) and code == CoordinatorNotAvailable.code
    )

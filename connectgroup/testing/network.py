"""The network between workers and the coordinator of a group in one process: latency, partitions, lost messages.

A call is an ordinary ``LocalClient`` call, so timeouts and the order of responses are those of every transport. The
request and its response travel outside of any node: they arrive also when their sender has been paused or killed.
"""

from __future__ import annotations

import asyncio
import contextvars

from ..coordinator.runtime import Coordinator
from ..errors import TransportError
from ..protocol.messages.api import Request, Response
from ..transport.base import Client
from ..transport.local import LocalClient
from .faults import MIN_LATENCY_S, Faults
from .virtual_time import Node

NOWHERE = contextvars.Context()
"""A context that belongs to no node."""


class Network:
    """All connections of a group.

    Attributes:
        faults: what happens to the messages.
        coordinator: the handler of the requests, with the node it runs in; ``None`` while there is none.
        partitioned: the workers whose messages are lost, in both directions.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.coordinator: tuple[Coordinator, Node] | None = None
        self.partitioned: set[str] = set()
        self._cuts: dict[str, int] = {}
        self._links: list[NetworkLink] = []
        self._lost: list[asyncio.Future[None]] = []

    def link(self, worker: str) -> NetworkLink:
        """A new connection of a worker."""
        link = NetworkLink(self, worker)
        self._links.append(link)
        return link

    def cut(self, worker: str) -> None:
        """Lose all messages of a worker, including those on their way, until ``heal``."""
        self.partitioned.add(worker)
        self._cuts[worker] = self._cuts.get(worker, 0) + 1

    def heal(self, worker: str) -> None:
        """Deliver the messages of a worker again."""
        self.partitioned.discard(worker)

    async def reset(self) -> None:
        """The coordinator has died: all connections break."""
        for link in self._links:
            await link.reset()

    async def carry(self, worker: str, request: Request, client_host: str, client_id: str) -> Response:
        """Deliver a request and return its response; never returns if either is lost."""
        cuts = self._cuts.get(worker, 0)
        message = self.faults.message(worker, type(request).__name__.removesuffix("Request"))
        await asyncio.sleep(message.latency_s(response=False))
        if self._is_cut(worker, cuts) or message.is_lost(response=False) or self.coordinator is None:
            await self._never()
        assert self.coordinator is not None
        coordinator, node = self.coordinator
        loop = asyncio.get_running_loop()
        calls = [
            loop.create_task(
                coordinator.handle(request, client_host=client_host, client_id=client_id), context=node.context.copy()
            )
            for _ in range(2 if message.is_repeated() else 1)
        ]
        for extra in calls[1:]:
            extra.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        response = await calls[0]
        await asyncio.sleep(message.latency_s(response=True))
        if self._is_cut(worker, cuts) or message.is_lost(response=True):
            await self._never()
        return response

    async def _never(self) -> None:
        """Wait for ever; referenced from here, because asyncio itself does not keep such a task alive."""
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost.append(lost)
        await lost

    def _is_cut(self, worker: str, cuts: int) -> bool:
        return worker in self.partitioned or self._cuts.get(worker, 0) != cuts


class NetworkLink(Client):
    """One connection of one worker."""

    def __init__(self, network: Network, worker: str) -> None:
        self._network, self._worker = network, worker
        self._client = LocalClient(self, client_host="local", client_id=worker)

    @property
    def address(self) -> str:
        return "the coordinator"

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        if self._network.coordinator is None:
            await asyncio.sleep(MIN_LATENCY_S)
            raise TransportError("no coordinator is running: connection refused")
        return await self._client.call(request, timeout_s=timeout_s)

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        """The far end of the connection, as ``LocalClient`` calls it."""
        carried = self._network.carry(self._worker, request, client_host, client_id)
        return await asyncio.get_running_loop().create_task(carried, context=NOWHERE.copy())

    async def reset(self) -> None:
        """Break the connection: outstanding calls fail; the next call connects again."""
        await self._client.close()
        self._client = LocalClient(self, client_host="local", client_id=self._worker)

    async def close(self) -> None:
        await self._client.close()

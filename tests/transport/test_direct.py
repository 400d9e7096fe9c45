"""Requests that the handler begins without a task for each (``DirectHandler``): the contract holds as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from connectgroup.errors import UnknownServerError
from connectgroup.protocol.messages.api import DirectHandler, Request, Response
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.testing.contracts.transport import ScriptedHandler, TransportContract, beat, closing
from connectgroup.transport.base import Client
from connectgroup.transport.local import LocalClient
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer

pytestmark = pytest.mark.timeout(60)


class Direct:
    """Begins each heartbeat itself, and those that fail with an exception at once."""

    def __init__(self, handler: ScriptedHandler) -> None:
        self.scripted = handler
        self.begun: list[asyncio.Task[None]] = []

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        return await self.scripted.handle(request, client_host=client_host, client_id=client_id)

    def begin(
        self,
        request: Request,
        *,
        client_host: str,
        client_id: str,
        principal: str | None,
        respond: Callable[[Response], None],
    ) -> bool:
        if not isinstance(request, HeartbeatRequest):
            return False
        if request.member_id in ("raises", "asserts"):
            raise RuntimeError("secret")

        async def process() -> None:
            respond(await self.handle(request, client_host=client_host, client_id=client_id))

        self.begun.append(asyncio.get_running_loop().create_task(process()))
        return True


class TestDirectTransport(TransportContract):
    @asynccontextmanager
    async def serving(self, handler: ScriptedHandler) -> AsyncIterator[Callable[[], Client]]:
        direct = Direct(handler)
        assert isinstance(direct, DirectHandler)
        tcp = TcpServer(direct)
        await tcp.start()
        try:
            yield lambda: TcpClient("127.0.0.1", tcp.port)
        finally:
            await tcp.close(grace_s=0.05)
            for task in direct.begun:
                task.cancel()


@pytest.mark.asyncio
async def test_closing_server_responds_to_a_heartbeat_that_cannot_finish_and_ignores_the_late_response() -> None:
    """L7: every request gets a response or a rejection, and close returns."""
    handler = ScriptedHandler("a")
    direct = Direct(handler)
    tcp = TcpServer(direct)
    await tcp.start()
    async with closing(TcpClient("127.0.0.1", tcp.port)) as client:
        call = asyncio.ensure_future(client.call(beat("a"), timeout_s=30))
        await handler.has_begun("a")
        await tcp.close(grace_s=0.05)
        response = await call
        assert isinstance(response, HeartbeatResponse)
        assert (response.error_code, response.error_message) == (15, "the server is closing")
        handler.release("a")
        await direct.begun[0]


@pytest.mark.asyncio
async def test_response_of_another_type_is_a_server_error() -> None:
    tcp = TcpServer(Direct(ScriptedHandler()))
    await tcp.start()
    async with closing(TcpClient("127.0.0.1", tcp.port)) as client:
        response = await client.call(beat("wrong type"), timeout_s=10)
        assert isinstance(response, HeartbeatResponse)
        assert response.error_code == UnknownServerError.code
    await tcp.close(grace_s=0.05)


# --------------------------------------------------------------------------------------------------
# The transport within one process passes the contract of every transport.


class TestLocalTransport(TransportContract):
    @asynccontextmanager
    async def serving(self, handler: ScriptedHandler) -> AsyncIterator[Callable[[], Client]]:
        yield lambda: LocalClient(handler)

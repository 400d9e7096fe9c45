"""Coordinators that ask for authentication, and connections to them without a client's rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse
from connectgroup.transport.access import Access, Security
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer
from connectgroup.wire.apis import APIS, decode_response, encode_request
from connectgroup.wire.primitives import FrameReader, frame


@asynccontextmanager
async def serving(data: Path, /, **config: Any) -> AsyncIterator[CoordinatorServer]:
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0, "data": data / "groups.sqlite", **config}))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def port_of(server: CoordinatorServer) -> int:
    return int(server.address.rpartition(":")[2])


async def describe(server: CoordinatorServer, access: Access | None = None) -> Response:
    client = TcpClient("localhost", port_of(server), access=access)
    try:
        return await client.call(DescribeRequest(), timeout_s=10)
    finally:
        await client.close()


class Raw:
    """A connection without a client's rules."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer, self._frames, self._next = reader, writer, FrameReader(), 0

    @classmethod
    async def to(cls, server: CoordinatorServer) -> Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", port_of(server)))

    async def ask(self, request: Request, version: int) -> Any:
        self._next += 1
        key = next(api.key for api in APIS.values() if api.request_class is type(request))
        data = encode_request(request, version=version, correlation_id=self._next, client_id="raw")
        return await self.ask_bytes(data, key, version)

    async def ask_bytes(self, data: bytes, key: int, version: int) -> Any:
        self.writer.write(frame(data))
        messages: list[bytes] = []
        while not messages:
            received = await asyncio.wait_for(self._reader.read(65_536), 10)
            assert received, "the server has closed the connection"
            messages = self._frames.feed(received)
        return decode_response(messages[0], api_key=key, version=version)[1]

    async def is_closed(self) -> bool:
        return await asyncio.wait_for(self._reader.read(1), 10) == b""


class TcpServerOf:
    """A program that listens at a port, speaks the protocol, and counts the requests that it gets."""

    def __init__(self, port: int = 0, security: Security | None = None) -> None:
        self.requests = 0
        self._server = TcpServer(self, port=port, security=security)

    @property
    def port(self) -> int:
        return self._server.port

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        self.requests += 1
        return DescribeResponse()

    async def __aenter__(self) -> TcpServerOf:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

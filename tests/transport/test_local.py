"""The transport within one process passes the contract of every transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from connectgroup.testing.contracts.transport import ScriptedHandler, TransportContract
from connectgroup.transport.base import Client
from connectgroup.transport.local import LocalClient


class TestLocalTransport(TransportContract):
    @asynccontextmanager
    async def serving(self, handler: ScriptedHandler) -> AsyncIterator[Callable[[], Client]]:
        yield lambda: LocalClient(handler)

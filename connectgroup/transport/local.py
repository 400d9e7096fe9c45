"""Client and handler in one process: the transport contract without encoding.

For embedding, for tests and for the simulator. It uses the event loop's clock, so that a loop in virtual time works.
"""

from __future__ import annotations

import asyncio

from ..checks import check_methods
from ..errors import TransportError
from ..protocol.messages.api import Handler, Request, Response
from .base import Client, Conversation

Answer = asyncio.Future[Response]


class LocalClient(Client):
    """A client of a handler in the same event loop.

    Args:
        handler: handles the requests: a coordinator in this process.
        client_host: passed to the handler.
        client_id, principal: passed to the handler with each request.

    Raises:
        ConfigError: the handler is none: an address, or a class.
    """

    def __init__(
        self, handler: Handler, *, client_host: str = "local", client_id: str = "", principal: str = ""
    ) -> None:
        allowed = "a Coordinator in this process; TcpClient(host, port) is a client of another process"
        check_methods("handler", handler, ("handle",), allowed)
        self._handler, self._client_host, self._client_id = handler, client_host, client_id
        self._principal = principal
        self._conversation = self._connect()
        self._outstanding: dict[Answer, None] = {}  # in the order of the calls
        self._closed = False

    @property
    def address(self) -> str:
        return f"{type(self._handler).__name__} in this process"

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        if self._closed:
            raise TransportError(f"{self.address}: the client is closed")
        future: Answer = asyncio.get_running_loop().create_future()
        self._outstanding[future] = None
        self._conversation.begin(future, request, client_id=self._client_id, principal=self._principal)
        try:
            async with asyncio.timeout(timeout_s):
                if future.done():
                    await asyncio.sleep(0)  # as on a connection: a client that calls in a loop leaves others their turn
                return await future
        except TimeoutError:
            if future is next((other for other in self._outstanding if other is future or not other.done()), None):
                self._hang_up(f"abandoned: no response to an earlier {type(request).__name__} in {timeout_s} s")
            raise TransportError(f"{self.address}: no response to {type(request).__name__} in {timeout_s} s") from None

    async def close(self) -> None:
        self._closed = True
        self._hang_up("the client is closed")

    def _connect(self) -> Conversation[Answer]:
        return Conversation(self._handler, client_host=self._client_host, response=self._deliver)

    def _deliver(self, future: Answer, response: Response | None) -> None:
        self._outstanding.pop(future, None)
        if not future.done() and response is not None:
            future.set_result(response)

    def _hang_up(self, why: str) -> None:
        """Emulate a closed connection: outstanding calls fail, and new calls do not wait behind them."""
        outstanding, self._outstanding = self._outstanding, {}
        self._conversation = self._connect()
        for future in outstanding:
            if not future.done():
                future.set_exception(TransportError(f"{self.address}: {why}"))

"""A client sends requests to a handler and returns the responses, or raises an error that gives the reason.

The contract of every transport:

1. ``call`` returns the response type of the request, whatever error code it carries. ``TransportError`` means that
   no response arrived. The handler may have processed the request nevertheless, so only idempotent requests may be
   retried. The caller decides when to retry.
2. Calls may overlap. They reach the handler in call order and run there concurrently; their responses return in the
   same order (Kafka's rule for one connection). A delayed response therefore delays the responses after it: a caller
   that parks heartbeats and needs fast responses to other requests meanwhile uses a second client.
3. A call fails after ``timeout_s``. If it is the oldest outstanding call, the client closes the connection, and the
   other outstanding calls fail as well: no response could arrive before that one (Kafka's ``NetworkClient`` does the
   same). Otherwise the connection stays open, and the late response is dropped. The next call reconnects.
4. If the handler raises, the response is UNKNOWN_SERVER_ERROR; other requests are not affected.
5. After ``close`` every call fails, including outstanding calls. A second ``close`` has no effect.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from ..errors import ConfigError, CoordinatorNotAvailable, UnknownServerError
from ..protocol.messages.api import DirectHandler, Handler, Request, Response
from ..protocol.messages.describe import DescribeRequest
from ..protocol.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from ..protocol.messages.rejected import RESPONSE_OF, rejected
from ..protocol.units import printable
from ..wire.apis import DecodedRequest

Ticket = TypeVar("Ticket")

logger = logging.getLogger(__name__)

MAY_BE_LARGE: Final = (DescribeRequest, OffsetCommitRequest, OffsetFetchRequest, OffsetDeleteRequest)
"""Requests whose responses may take long to encode."""


class Client(Protocol):
    """The transport interface of a worker; the module docstring is its contract."""

    @property
    def address(self) -> str:
        """The destination of the calls, for log and error messages."""

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        """Send a request and return the handler's response.

        Args:
            request: any request of the protocol.
            timeout_s: total timeout: connecting, sending and waiting.

        Raises:
            TransportError: not connected, connection lost, or no response in time; names the address and the request.
            WireError: a value in the request cannot be encoded; nothing was sent. (Only for transports that encode.)
        """

    async def close(self) -> None:
        """Close the connection."""


class Relay(Protocol):
    """Forwards those requests of one connection that the handler does not handle to another server."""

    @property
    def is_writable(self) -> bool:
        """Whether more requests may be forwarded; while false, the connection reads no more of them."""

    def forward(self, data: bytes, defer: Callable[[], Callable[[bytes | None], None]]) -> bool:
        """Forward a request, or return false: the request is for the handler.

        Args:
            data: header and body.
            defer: takes the next position in the response order; the function that it returns is called once, with
                header and body of the response. With ``None`` the connection is closed in request order.
        """

    def prepare(self, decoded: DecodedRequest) -> None:
        """Do what takes long of ``commit_in_transaction``, which follows. Called in a thread, for a large request."""

    def commit_in_transaction(self, decoded: DecodedRequest, respond: Callable[[bytes | None], None]) -> None:
        """Forward a TxnOffsetCommit, which the handler takes part in; ``respond``: as that of ``forward``."""

    def pause(self) -> None:
        """The peer does not read its responses: read no more of the other server."""

    def resume(self) -> None:
        """The peer reads again."""

    def close(self) -> None:
        """The connection is lost."""


class _Turn(Generic[Ticket]):
    """The position of one request in the response order; ``request`` is ``None`` if the handler does not process it."""

    __slots__ = ("done", "flush", "request", "response", "ticket")

    def __init__(self, ticket: Ticket, flush: Callable[[], None], request: Request | None = None) -> None:
        self.ticket, self.flush, self.request = ticket, flush, request
        self.done = False
        self.response: Response | bytes | None = None

    def respond(self, response: Response | bytes | None) -> None:
        """Take the response; a later one is ignored."""
        if not self.done:
            self.done, self.response = True, response
            self.flush()

    def respond_to_request(self, response: Response | bytes) -> None:
        """Take the response of the handler, which must be of the request's type."""
        assert self.request is not None
        if not isinstance(response, (RESPONSE_OF[type(self.request)], bytes)):
            logger.error("handler responded to %s with %s", _show(self.request), type(response).__name__)
            response = rejected(
                self.request, UnknownServerError.code, "the server failed: a response of the wrong type"
            )
        self.respond(response)

    def fail(self, error: BaseException) -> None:
        """The handler has failed."""
        assert self.request is not None
        logger.error("handler failed on %s", _show(self.request), exc_info=error)
        why = printable(error, limit=1000) if isinstance(error, ConfigError) else type(error).__name__
        self.respond(rejected(self.request, UnknownServerError.code, f"the server failed: {why}"))

    def cancel(self) -> None:
        """The server is closing."""
        assert self.request is not None
        self.respond(rejected(self.request, CoordinatorNotAvailable.code, "the server is closing"))


def _ignore(ticket: object, response: object) -> None:
    """In place of the connection, which is lost."""


class Conversation(Generic[Ticket]):
    """The handler's side of one connection: requests run concurrently, responses are sent in request order.

    Args:
        handler: handles the requests.
        client_host: passed to the handler.
        response: called once per request, in order, with its ticket and its response.
        encode: encodes a response that may be large, or returns it as it is; called with its ticket.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        client_host: str,
        response: Callable[[Ticket, Any], None],
        encode: Callable[[Ticket, Response], Awaitable[Response | bytes]] | None = None,
    ) -> None:
        self._handler, self._client_host, self._answer, self._encode = handler, client_host, response, encode
        self._begin = handler.begin if isinstance(handler, DirectHandler) else None
        self._turns: deque[_Turn[Ticket]] = deque()  # requests without a response, in order
        self._tasks: set[asyncio.Task[Response | bytes]] = set()  # handlers that run
        self._drained: asyncio.Future[None] | None = None  # done when all have responses; a waiter makes it

    def __len__(self) -> int:
        """The number of requests that were begun and have no response yet."""
        return len(self._turns)

    def begin(self, ticket: Ticket, request: Request, *, client_id: str = "", principal: str = "") -> None:
        """Pass the request to the handler, which starts to process it now or in the next turn of the event loop."""
        turn = _Turn(ticket, self._flush, request)
        self._turns.append(turn)
        # Not while a task may have to begin an earlier request: the handler gets the requests in their order.
        if self._begin is not None and not self._tasks and self._begins(turn, request, client_id, principal):
            return
        response: Coroutine[Any, Any, Response | bytes]
        response = self._handler.handle(
            request, client_host=self._client_host, client_id=client_id, principal=principal
        )
        if self._encode is not None and isinstance(request, MAY_BE_LARGE):
            response = _encoded(response, partial(self._encode, ticket))
        task = asyncio.get_running_loop().create_task(response)
        self._tasks.add(task)
        task.add_done_callback(partial(self._finished, turn))

    def _begins(self, turn: _Turn[Ticket], request: Request, client_id: str, principal: str) -> bool:
        """Whether the handler processes the request without a task."""
        assert self._begin is not None
        try:
            return self._begin(
                request,
                client_host=self._client_host,
                client_id=client_id,
                principal=principal,
                respond=turn.respond_to_request,
            )
        except Exception as error:
            turn.fail(error)
            return True

    def put(self, ticket: Ticket, response: Response | None) -> None:
        """Respond without the handler, in request order; ``response`` defines the meaning of ``None``."""
        turn = _Turn(ticket, self._flush)
        self._turns.append(turn)
        turn.respond(response)

    def defer(self, ticket: Ticket) -> Callable[[Response | bytes | None], None]:
        """Take a position in the response order; the function that is returned sends the response."""
        turn = _Turn(ticket, self._flush)
        self._turns.append(turn)
        return turn.respond

    def drained(self) -> asyncio.Future[None]:
        """A future that completes when the handler has responded to all requests."""
        self._drained = asyncio.get_running_loop().create_future()
        self._flush()
        return self._drained

    def cancel(self) -> set[asyncio.Task[Response | bytes]]:
        """Cancel the requests that the handler has not responded to; return those of their tasks that are to end."""
        for task in self._tasks:
            task.cancel()
        for turn in [turn for turn in self._turns if turn.request is not None]:
            turn.cancel()
        return set(self._tasks)

    def close(self) -> None:
        """Drop the reference to the connection; no request is outstanding."""
        self._answer = _ignore

    def _finished(self, turn: _Turn[Ticket], task: asyncio.Task[Response | bytes]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            turn.cancel()
        elif (error := task.exception()) is not None:
            turn.fail(error)
        else:
            turn.respond_to_request(task.result())

    def _flush(self) -> None:
        turns = self._turns
        while turns and turns[0].done:
            turn = turns.popleft()
            self._answer(turn.ticket, turn.response)
        if self._drained is not None and not self._drained.done() and not any(turn.request for turn in turns):
            self._drained.set_result(None)


async def _encoded(
    response: Coroutine[Any, Any, Any], encode: Callable[[Response], Awaitable[Response | bytes]]
) -> Response | bytes:
    return await encode(await response)


@contextmanager
def name_lookup_errors(host: str) -> Iterator[None]:
    """Convert a failure to start the thread of a name lookup to ``OSError`` (reliability F36)."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(f"cannot look up {host}: {error}") from error


def reason(error: Exception) -> str:
    """Return the operating system's error message without the address, which asyncio puts in front of it.

    An error of TLS has a message of its own; its ``errno`` is no number of the operating system.
    """
    if isinstance(error, ssl.SSLError):
        return printable(getattr(error, "verify_message", "") or error.reason or error)
    number = getattr(error, "errno", None)
    return printable(os.strerror(number) if number and number > 0 else error)


def _show(request: Request) -> str:
    """Format a request for a log message without its contents, which may include a password."""
    return f"{type(request).__name__} for group {printable(getattr(request, 'group_id', ''))!r}"

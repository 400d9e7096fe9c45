"""A client carries requests to a handler and brings back its answers, or says why there is none.

What every transport promises:

1. ``call`` returns the response of the request's own type, whatever error code it carries. ``TransportError`` means
   that no answer came; the request may have been carried out all the same, so only what can be repeated without
   harm is sent again. When to try again is the caller's to decide.
2. Calls may overlap. They reach the handler in the order in which they were called and run there side by side; their
   answers come back in that same order (Kafka's rule for one connection). So an answer that is held back holds back
   those after it: who parks heartbeats and wants quick answers to something else meanwhile takes a second client.
3. A call that has waited ``timeout_s`` fails. If it was the oldest one outstanding, the connection is given up, and
   the others outstanding fail with it: nothing could come before that answer (Kafka's ``NetworkClient`` does so too).
   If it was not, the connection stays, and the late answer is dropped. The next call connects again.
4. A handler that raises is answered for with UNKNOWN_SERVER_ERROR; other requests are not affected.
5. After ``close`` every call fails, also those that are outstanding. A second ``close`` does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from ..errors import CoordinatorNotAvailable, UnknownServerError
from ..protocol.messages.api import Handler, Request, Response
from ..protocol.units import printable
from ..wire.apis import APIS, refusal

Ticket = TypeVar("Ticket")

logger = logging.getLogger(__name__)


class Client(Protocol):
    """What a worker needs of a transport; the duties are the prose above."""

    @property
    def address(self) -> str:
        """Where the calls go, for people to read."""

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        """The handler's answer.

        Args:
            request: any of our requests.
            timeout_s: for all of it: connecting, sending, waiting.

        Raises:
            TransportError: not connected, connection lost, or no answer in time; says where and which.
            WireError: the request holds a value that a message cannot; nothing was sent. (Only where there are bytes.)
        """

    async def close(self) -> None:
        """Let go of the connection."""


class _Turn(Generic[Ticket]):
    """One request's place in the order of answers."""

    __slots__ = ("done", "response", "ticket")

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.done = False
        self.response: Response | None = None


class Conversation(Generic[Ticket]):
    """The handler's side of one connection: requests run side by side, answers leave in the order of the requests.

    Args:
        handler: who answers.
        client_host: for the handler.
        answer: called once a request, in order, with its ticket and its response.
    """

    def __init__(
        self, handler: Handler, *, client_host: str, answer: Callable[[Ticket, Response | None], None]
    ) -> None:
        self._handler, self._client_host, self._answer = handler, client_host, answer
        self._turns: deque[_Turn[Ticket]] = deque()
        self.tasks: set[asyncio.Task[Response]] = set()

    def __len__(self) -> int:
        """Requests begun and not answered yet."""
        return len(self._turns)

    def begin(self, ticket: Ticket, request: Request, *, client_id: str = "") -> None:
        """Give the request to the handler, which starts on it in the next turn of the event loop."""
        turn = _Turn(ticket)
        self._turns.append(turn)
        answer = self._handler.handle(request, client_host=self._client_host, client_id=client_id)
        task = asyncio.get_running_loop().create_task(answer)
        self.tasks.add(task)
        task.add_done_callback(partial(self._finished, turn, request))

    def put(self, ticket: Ticket, response: Response | None) -> None:
        """Answer without the handler, in turn; what null stands for is up to ``answer``."""
        turn = _Turn(ticket)
        turn.done, turn.response = True, response
        self._turns.append(turn)
        self._flush()

    def _finished(self, turn: _Turn[Ticket], request: Request, task: asyncio.Task[Response]) -> None:
        self.tasks.discard(task)
        key, expected = _API_OF[type(request)]
        if task.cancelled():
            turn.response = refusal(key, CoordinatorNotAvailable.code, "the server is closing")
        elif (error := task.exception()) is not None:
            logger.error("handler failed on %s", _show(request), exc_info=error)
            turn.response = refusal(key, UnknownServerError.code, f"the server failed: {type(error).__name__}")
        elif not isinstance(response := task.result(), expected):
            logger.error("handler answered %s with %s", _show(request), type(response).__name__)
            turn.response = refusal(key, UnknownServerError.code, "the server failed: an answer of the wrong type")
        else:
            turn.response = response
        turn.done = True
        self._flush()

    def _flush(self) -> None:
        turns = self._turns
        while turns and turns[0].done:
            turn = turns.popleft()
            self._answer(turn.ticket, turn.response)


@contextmanager
def looking_up(host: str) -> Iterator[None]:
    """A name is looked up in a thread; that the system has none to give is an ``OSError`` too (reliability F36)."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(f"cannot look up {host}: {error}") from error


def reason(error: Exception) -> str:
    """What the operating system says, in its own words: asyncio puts the address in front a second time."""
    number = getattr(error, "errno", None)
    return printable(os.strerror(number) if number and number > 0 else error)


def _show(request: Request) -> str:
    """A request in a log line: not its contents, which may hold somebody's password."""
    return f"{type(request).__name__} for group {printable(getattr(request, 'group_id', ''))!r}"


_API_OF: Final[dict[type[Request], tuple[int, type[Response]]]] = {
    api.request_class: (api.key, api.response_class) for api in APIS.values()
}

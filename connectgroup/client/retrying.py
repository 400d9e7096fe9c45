"""Requests are retried with back-off, at the next address if there are several, until a time limit:

- any request that was not processed: no connection, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR;
- an idempotent request whose outcome is unknown: the response is lost, or the log failed.

A creation or a deletion with an unknown outcome is not retried, because the retry could not distinguish its own earlier
success from a conflict. The error of a change says that it may have been made if the outcome of any attempt is unknown,
also of one before the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ..backoff import Attempts, BackOff
from ..errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotAuthenticated,
    NotCoordinator,
    NotSent,
    TransportError,
    from_code,
)
from ..protocol.messages.api import Request, Response
from ..protocol.messages.rejected import error_of
from ..transport.base import Client

_NOT_PROCESSED: Final = (NotSent, CoordinatorLoadInProgress, NotCoordinator)
_UNKNOWN_OUTCOME: Final = (TransportError, CoordinatorNotAvailable)

BACK_OFF: Final = BackOff(first_s=0.1, max_s=1.0)

R = TypeVar("R", bound=Response)


class RetryingSender:
    """Sends requests to a coordinator that has one or more addresses."""

    def __init__(self, clients: Sequence[Client], *, timeout_s: float, retry_for_s: float) -> None:
        """See ``Admin``."""
        if not clients:
            raise ValueError("clients: got none; allowed: one or more")
        self._clients = list(clients)
        self._timeout_s, self._retry_for_s = timeout_s, retry_for_s

    def through(self, wrap: Callable[[Client], Client]) -> RetryingSender:
        """A sender with the same limits whose requests go through ``wrap`` of each client."""
        clients = [wrap(each) for each in self._clients]
        return RetryingSender(clients, timeout_s=self._timeout_s, retry_for_s=self._retry_for_s)

    @property
    def address(self) -> str:
        """The address that the next request is sent to."""
        return self._clients[0].address

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            await client.close()

    async def send(self, request: Request, expected: type[R], *, idempotent: bool, reads: bool = False) -> R:
        """Return the response; an error code in it becomes its exception.

        Args:
            expected: the class of the response.
            idempotent: whether the request may be retried although an earlier attempt may have been processed.
            reads: whether it changes nothing.

        Raises:
            GroupError: the coordinator rejects the request.
            TransportError: there is no response.
        """
        retried = (*_NOT_PROCESSED, *_UNKNOWN_OUTCOME) if idempotent else _NOT_PROCESSED
        attempts, may_have_changed = Attempts(BACK_OFF, for_s=self._retry_for_s), False
        while True:
            try:
                response = await self._attempt(request)
                break
            except (*_NOT_PROCESSED, *_UNKNOWN_OUTCOME) as error:
                again = isinstance(error, retried) and not isinstance(error, NotAuthenticated)
                may_have_changed |= not (reads or isinstance(error, _NOT_PROCESSED))
                if not (again and await attempts.pause()):
                    if not may_have_changed:
                        raise
                    raise type(error)(f"{error}; the change may have been made") from error
                # The next address, unless this coordinator is about to serve the group.
                if not isinstance(error, CoordinatorLoadInProgress):
                    self._clients.append(self._clients.pop(0))
        assert isinstance(response, expected)
        return response

    async def _attempt(self, request: Request) -> Response:
        response = await self._clients[0].call(request, timeout_s=self._timeout_s)
        code, message = error_of(request, response)
        if code:
            raise from_code(code, message)
        return response

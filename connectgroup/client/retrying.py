"""Requests are retried with back-off, at the next address if there are several, until a time limit:

- any request that was not processed: no connection, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR;
- an idempotent request whose outcome is unknown: the response is lost, or the log failed.

A creation or a deletion with an unknown outcome is not retried, because the retry could not distinguish its own earlier
success from a conflict: the error says that the change may have been made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_exponential, wait_random

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
from ..transport.base import Client
from .conditions import error_of

_NOT_PROCESSED: Final = (NotSent, CoordinatorLoadInProgress, NotCoordinator)
_UNKNOWN_OUTCOME: Final = (TransportError, CoordinatorNotAvailable)

R = TypeVar("R", bound=Response)


class RetryingSender:
    """Sends requests to a coordinator that has one or more addresses."""

    def __init__(self, clients: Sequence[Client], *, timeout_s: float, retry_for_s: float) -> None:
        """See ``Admin``."""
        if not clients:
            raise ValueError("clients: got none; allowed: one or more")
        self._clients = list(clients)
        self._timeout_s, self._retry_for_s = timeout_s, retry_for_s

    @property
    def address(self) -> str:
        """The address that the next request is sent to."""
        return self._clients[0].address

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            await client.close()

    async def send(self, request: Request, expected: type[R], *, idempotent: bool) -> R:
        """Return the response; an error code in it becomes its exception.

        Args:
            expected: the class of the response.
            idempotent: whether the request may be retried although an earlier attempt may have been processed.

        Raises:
            GroupError: the coordinator rejects the request.
            TransportError: there is no response.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._retry_for_s
        retried = (*_NOT_PROCESSED, *_UNKNOWN_OUTCOME) if idempotent else _NOT_PROCESSED
        retrying = AsyncRetrying(
            retry=retry_if_exception(
                lambda error: isinstance(error, retried) and not isinstance(error, NotAuthenticated)
            ),
            wait=wait_exponential(multiplier=0.05, max=1.0) + wait_random(0, 0.05),
            # The loop's clock, so that a loop in virtual time works.
            stop=lambda _: loop.time() >= give_up_at,
            sleep=asyncio.sleep,
            before_sleep=self._use_next_client,
            reraise=True,
        )
        try:
            response: Response = await retrying(self._attempt, request)
        except _UNKNOWN_OUTCOME as error:
            if idempotent or isinstance(error, NotSent):
                raise
            raise type(error)(f"{error}; the change may have been made") from error
        assert isinstance(response, expected)
        return response

    async def _attempt(self, request: Request) -> Response:
        response = await self._clients[0].call(request, timeout_s=self._timeout_s)
        code, message = error_of(request, response)
        if code:
            raise from_code(code, message)
        return response

    def _use_next_client(self, state: RetryCallState) -> None:
        """Send the next attempt to the next address, unless this coordinator is about to serve the group."""
        error = state.outcome.exception() if state.outcome is not None else None
        if not isinstance(error, CoordinatorLoadInProgress):
            self._clients.append(self._clients.pop(0))

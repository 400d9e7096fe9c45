"""One input of a shard: a request, an expired timer, or the result of an effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import CoordinatorLoadInProgress, GroupError
from ..group.registry import NO_CLIENT, Client, Input, RequestTraits
from ..protocol.messages.describe import DescribeRequest
from ..protocol.units import printable


@dataclass(frozen=True, slots=True)
class Describe:
    """The input that reads a group: the response is its ``DescribedGroup``.

    Attributes:
        request: what to describe; its group ids are ignored.
    """

    request: DescribeRequest


@dataclass(slots=True, eq=False)
class Command:
    """One queued, parked or completed input.

    Attributes:
        what: the request, the expired timer, or the result.
        traits: what the shard knows about it; for a timer or a result only the group id.
        response: completed with the response; ``None``: no sender waits for a response.
        error_response: builds the response that carries an error.
        number: grows with each queued command.
        arrived: the late-copy check has been done.
        late: the request is a late copy; it changes nothing.
        parked: the request has been parked.
        parked_response: the response that the request was parked with, if any.
        respond_by_s: the end of its max wait, on the event loop's clock.
        max_wait: the call of the event loop that ends the max wait.
    """

    what: Input
    traits: RequestTraits
    client: Client = NO_CLIENT
    response: asyncio.Future[Any] | None = None
    error_response: Callable[[GroupError], Any] | None = None
    number: int = 0
    arrived: bool = False
    late: bool = False
    parked: bool = False
    parked_response: Any = None
    respond_by_s: float = 0.0
    max_wait: asyncio.TimerHandle | None = None

    @property
    def group_id(self) -> str:
        return self.traits.group_id

    @property
    def done(self) -> bool:
        """Whether the request has been completed, or its sender does not wait any more."""
        return self.response is not None and self.response.done()

    def resolve(self, response: Any) -> None:
        """Send the response."""
        self.cancel_max_wait()
        if self.response is not None and not self.response.done():
            self.response.set_result(response)

    def refuse(self, error: GroupError) -> None:
        """Send the error as a response of the request's own type."""
        if self.error_response is not None:
            self.resolve(self.error_response(error))

    def cancel_max_wait(self) -> None:
        if self.max_wait is not None:
            self.max_wait.cancel()


def loading_error(group_id: str) -> GroupError:
    """The error of requests for a group that is being loaded."""
    return CoordinatorLoadInProgress(f"group {printable(group_id)} is being loaded")

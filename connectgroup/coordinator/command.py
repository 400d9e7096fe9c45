"""One input of a shard: a request, an expired timer, or the result of an effect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from ..errors import CoordinatorLoadInProgress, GroupError
from ..group.registry import NO_CLIENT, Client, GroupType, Input, RequestTraits
from ..protocol.messages.describe import DescribedGroup, DescribeRequest
from ..protocol.units import printable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Describe:
    """The input that reads a group: the response is its ``DescribedGroup``, except for a large group (see ``copies``).

    Attributes:
        request: what to describe; its group ids are ignored.
        copies: whether the response for a large group is a ``Snapshot``, which takes megabytes, or ``TAKES_LONG``.
    """

    request: DescribeRequest
    copies: bool = False


TAKES_LONG: Final = object()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the state of a group, to describe it in a thread while the group changes."""

    group_type: GroupType
    state: Any
    request: DescribeRequest
    now_ms: int

    @classmethod
    def of(cls, group_type: GroupType, state: Any, request: DescribeRequest, now_ms: int) -> Snapshot:
        """Copy the containers of the state; their values never change."""
        copied = copy(state)
        for name, value in vars(state).items():
            if isinstance(value, dict | set):
                setattr(copied, name, value.copy())
        return cls(group_type, copied, request, now_ms)

    def described(self) -> DescribedGroup:
        """The description, with the name of the group's type.

        Raises:
            GroupError: the group cannot be described.
        """
        described = self.group_type.describe(self.state, self.request, self.now_ms)
        return replace(described, group_type=self.group_type.name) if self.state.exists else described


class Receiver(Protocol):
    """Takes the response to one command: a future, or a ``Reply``."""

    def done(self) -> bool:
        """Whether it has one, or does not wait any more."""

    def set_result(self, response: Any, /) -> object:
        """Take the response."""


class Reply:
    """Takes the response to a request that no task waits for.

    Attributes:
        pending: the requests without a response yet; this one is removed.
    """

    __slots__ = ("_done", "_respond", "pending")

    def __init__(self, respond: Callable[[Any], None], pending: dict[Receiver, Command]) -> None:
        self._respond, self.pending = respond, pending
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, response: Any, /) -> None:
        self._done = True
        self.pending.pop(self, None)
        try:
            self._respond(response)
        except Exception:
            # The response of another request of this turn must not be lost with it.
            logger.exception("a response cannot be sent")


@dataclass(slots=True, eq=False)
class Command:
    """One queued, parked or completed input.

    Attributes:
        what: the request, the expired timer, or the result.
        traits: what the shard knows about it; for a timer or a result only the group id.
        response: completed with the response; ``None``: no sender waits for a response.
        error_response: builds the response that carries an error.
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
    response: Receiver | None = None
    error_response: Callable[[GroupError], Any] | None = None
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

    def refuse(self, error: GroupError, *, session_ms: int = 0) -> None:
        """Send the error as a response of the request's own type.

        Args:
            session_ms: the session of the sender, which began again with this request although it is rejected.
        """
        if self.error_response is None:
            return
        response = self.error_response(error)
        if session_ms and hasattr(response, "session_timeout_ms"):
            response = replace(response, session_timeout_ms=session_ms)
        self.resolve(response)

    def cancel_max_wait(self) -> None:
        if self.max_wait is not None:
            self.max_wait.cancel()


def loading_error(group_id: str) -> GroupError:
    """The error of requests for a group that is being loaded."""
    return CoordinatorLoadInProgress(f"group {printable(group_id)} is being loaded")

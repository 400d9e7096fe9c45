"""The queue of a shard: requests, expired timers and results of effects, in order of arrival."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import GroupError
from ..group.kernel.effects import Computed, Matched, Repeat
from ..group.registry import NO_CLIENT, Client, Input, RequestTraits
from .command import Command

MAX_INPUTS_PER_TURN = 500
"""Maximum number of commands per turn: bounds the batch and the latency of the first command."""


class Intake:
    """Queued commands, and requests without a response yet.

    Attributes:
        not_serving: why all requests are rejected, or ``None``.
        on_arrival: called when a request has been queued.
    """

    def __init__(self) -> None:
        self.not_serving: GroupError | None = None
        self.on_arrival: Callable[[RequestTraits], None] = lambda request: None
        self._queue: deque[Command] = deque()
        self._has_work = asyncio.Event()
        self._pending: dict[Command, None] = {}  # in order of arrival

    async def submit(
        self,
        what: Any,
        traits: RequestTraits,
        error_response: Callable[[GroupError], Any],
        client: Client = NO_CLIENT,
    ) -> Any:
        """Queue one request and return its response.

        Args:
            what: a request of a registered type, or a ``Describe``.
            traits: what its type says about it.
            error_response: builds the response that carries an error.
            client: the client that sent it.
        """
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        command = Command(what, traits, client, response, error_response)
        if self.not_serving is not None:
            command.refuse(self.not_serving)
        else:
            self.enqueue(command)
            self.on_arrival(traits)
        self._pending[command] = None
        try:
            return await response
        finally:
            self._pending.pop(command, None)

    def on_effect(self, result: Computed | Matched | Repeat) -> None:
        """Queue the result of an effect: it is one more input of its group."""
        self.submit_input(result.group_id, result.what if isinstance(result, Repeat) else result)

    def submit_input(self, group_id: str, what: Input) -> None:
        """Queue an input of a group that has no sender."""
        self.enqueue(Command(what, RequestTraits(group_id=group_id)))

    def enqueue(self, command: Command) -> None:
        """Queue a command, unless the shard does not serve any more."""
        if self.not_serving is None:
            self._queue.append(command)
            self._has_work.set()

    async def take(self) -> list[Command]:
        """Wait for commands; return those of the next turn."""
        if not self._queue:
            self._has_work.clear()
            await self._has_work.wait()
        return [self._queue.popleft() for _ in range(min(len(self._queue), MAX_INPUTS_PER_TURN))]

    def stop(self, error: GroupError) -> None:
        """Reject all pending requests, in whatever state they are, and all later ones."""
        self.not_serving = error
        for command in list(self._pending):
            command.refuse(error)

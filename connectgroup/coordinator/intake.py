"""The queue of a shard: requests, expired timers and results of effects, in order of arrival."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from ..errors import GroupError
from ..group.kernel.effects import Computed, Matched, Repeat
from ..group.kernel.process import Process
from ..group.registry import NO_CLIENT, Client, Input, RequestTraits
from .command import Command, Receiver, Reply

MAX_INPUTS_PER_TURN = 500
"""Maximum number of commands per turn: bounds the batch and the latency of the first command."""

MIN_OTHERS_PER_TURN = 50
"""Commands per turn, at least, that are not heartbeats of members, if so many are queued."""


class Intake:
    """Queued commands, and requests without a response yet.

    Attributes:
        not_serving: why all requests are rejected, or ``None``.
        on_arrival: called when a request has been queued.

    If more commands are queued than one turn takes, heartbeats of members go first: they must arrive before the leases
    of the members expire, whatever other clients send.
    """

    def __init__(
        self, is_member: Callable[[str, str, Process], bool] = lambda group_id, sender, process: False
    ) -> None:
        """``is_member``: whether a group has the sender as a member that belongs to the process."""
        self._is_member = is_member
        self.not_serving: GroupError | None = None
        self.on_arrival: Callable[[RequestTraits], None] = lambda request: None
        self._queue: deque[Command] = deque()
        self._heartbeats: deque[Command] = deque()
        self._count = 0
        self._has_work = asyncio.Event()
        self._pending: dict[Receiver, Command] = {}  # in order of arrival

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
        self._begin(Command(what, traits, client, response, error_response), response)
        try:
            return await response
        finally:
            self._pending.pop(response, None)

    def begin(
        self,
        what: Any,
        traits: RequestTraits,
        error_response: Callable[[GroupError], Any],
        client: Client,
        respond: Callable[[Any], None],
    ) -> None:
        """As ``submit``, without a task that waits: ``respond`` is called with the response."""
        reply = Reply(respond, self._pending)
        self._begin(Command(what, traits, client, reply, error_response), reply)

    def _begin(self, command: Command, receiver: Receiver) -> None:
        self._pending[receiver] = command
        if self.not_serving is not None:
            command.refuse(self.not_serving)
        else:
            self.enqueue(command)
            self.on_arrival(command.traits)

    def on_effect(self, result: Computed | Matched | Repeat) -> None:
        """Queue the result of an effect: it is one more input of its group."""
        self.submit_input(result.group_id, result.what if isinstance(result, Repeat) else result)

    def submit_input(self, group_id: str, what: Input) -> None:
        """Queue an input of a group that has no sender."""
        self.enqueue(Command(what, RequestTraits(group_id=group_id)))

    def enqueue(self, command: Command) -> None:
        """Queue a command, unless the shard does not serve any more."""
        if self.not_serving is None:
            self._count += 1
            command.number = self._count
            self._queue_of(command).append(command)
            self._has_work.set()

    def put_back(self, commands: Sequence[Command]) -> None:
        """Queue commands again that ``take`` has returned, before all others."""
        if self.not_serving is None:
            for command in reversed(commands):
                self._queue_of(command).appendleft(command)
            self._has_work.set()

    def _queue_of(self, command: Command) -> deque[Command]:
        return self._heartbeats if self._is_heartbeat_of_member(command) else self._queue

    def _is_heartbeat_of_member(self, command: Command) -> bool:
        """Numbered requests only: a late one is recognized, in whatever order they are decided."""
        sent = command.traits
        return (
            sent.renews is not None and sent.sequence >= 0 and self._is_member(sent.group_id, sent.sender, sent.process)
        )

    async def take(self) -> list[Command]:
        """Wait for commands; return those of the next turn."""
        heartbeats, others = self._heartbeats, self._queue
        if not heartbeats and not others:
            self._has_work.clear()
            await self._has_work.wait()
        first = min(len(heartbeats), MAX_INPUTS_PER_TURN - min(len(others), MIN_OTHERS_PER_TURN))
        taken = [heartbeats.popleft() for _ in range(first)]
        taken += [others.popleft() for _ in range(min(len(others), MAX_INPUTS_PER_TURN - first))]
        taken.sort(key=attrgetter("number"))  # within a turn, in order of arrival
        return taken

    def stop(self, error: GroupError) -> None:
        """Reject all pending requests, in whatever state they are, and all later ones."""
        self.not_serving = error
        for command in list(self._pending.values()):
            command.refuse(error)

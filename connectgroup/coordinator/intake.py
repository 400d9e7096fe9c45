"""The queue of a shard: requests, expired timers and results of effects.

Heartbeats of members are decided before all others, because they must arrive before the leases of the members expire,
whatever other clients send. All others share the time of a turn fairly (``fair_queue``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from ..errors import CoordinatorLoadInProgress, GroupError
from ..group.kernel.effects import Computed, Matched, Repeat
from ..group.registry import NO_CLIENT, Client, Input, RequestTraits
from ..protocol.units import printable
from .command import Command, Receiver, Reply
from .fair_queue import FairQueue

MAX_INPUTS_PER_TURN = 500
"""Maximum number of heartbeats per turn, and of other commands: bounds the batch."""

MAX_TURN_S: Final = 0.025
"""Seconds after which a turn takes no further command. Nothing else runs on the event loop meanwhile."""

MIN_OTHERS_S: Final = 0.005
"""Seconds of each turn for other commands than heartbeats, at least."""

FEW_HEARTBEATS: Final = 100
"""So many heartbeats are decided in the order of their arrival: it takes some milliseconds."""

MAX_OF_GROUP = 2_000
"""Maximum number of queued requests of one principal for one group, besides heartbeats of members."""

MAX_OF_PRINCIPAL = 10_000
"""Maximum number of queued requests of one principal, besides heartbeats of members."""

REFUSAL_DELAY_S: Final = 0.1
"""A request above these limits is refused after this time: a client that repeats it at once does not keep the event
loop busy."""


class Intake:
    """Queued commands, and requests without a response yet.

    Attributes:
        not_serving: why all requests are rejected, or ``None``.
        queued: the number of queued commands.
        on_arrival: called when a request has been queued.
    """

    def __init__(self, is_from_member: Callable[[RequestTraits], bool] = lambda request: False) -> None:
        """``is_from_member``: whether the sender of a heartbeat is a member, and sends as the member's process."""
        self._is_from_member = is_from_member
        self.not_serving: GroupError | None = None
        self.on_arrival: Callable[[RequestTraits], None] = lambda request: None
        self._heartbeats, self._others = FairQueue(few=FEW_HEARTBEATS), FairQueue()
        self._waiting: Counter[tuple[str, str]] = Counter()  # the members of commands in ``_others``, by group and id
        self.queued = 0
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
        elif (queue := self._queue_of(command)) is self._others and (excess := self._excess(command)) is not None:
            asyncio.get_running_loop().call_later(REFUSAL_DELAY_S, command.refuse, excess)
        else:
            self._put(command, queue)
            self.on_arrival(command.traits)

    def _excess(self, command: Command) -> GroupError | None:
        """The error of a request above the limits of its principal, or ``None``."""
        if len(self._others) < MAX_OF_GROUP:
            return None
        of_principal, of_group = self._others.lengths(command.client.principal, command.group_id)
        if of_group >= MAX_OF_GROUP:
            where, limit = f"for group {printable(command.group_id)}", MAX_OF_GROUP
        elif of_principal >= MAX_OF_PRINCIPAL:
            where, limit = "of this user", MAX_OF_PRINCIPAL
        else:
            return None
        return CoordinatorLoadInProgress(f"{limit} requests {where} are queued already; send it again later")

    def on_effect(self, result: Computed | Matched | Repeat) -> None:
        """Queue the result of an effect: it is one more input of its group."""
        self.submit_input(result.group_id, result.what if isinstance(result, Repeat) else result)

    def submit_input(self, group_id: str, what: Input) -> None:
        """Queue an input of a group that has no sender."""
        self.enqueue(Command(what, RequestTraits(group_id=group_id)))

    def enqueue(self, command: Command) -> None:
        """Queue a command, unless the shard does not serve any more."""
        if self.not_serving is None:
            self._put(command, self._queue_of(command))

    def _queue_of(self, command: Command) -> FairQueue:
        sent = command.traits
        if not sent.beats or not self._is_from_member(sent):
            return self._others
        return self._others if self._waiting and _member_of(sent) in self._waiting else self._heartbeats

    def _put(self, command: Command, queue: FairQueue) -> None:
        queue.put(command)
        self.queued += 1
        if queue is self._others and (member := _member_of(command.traits))[1]:
            self._waiting[member] += 1
        self._has_work.set()

    async def ready(self) -> None:
        """Wait until there are commands for a turn."""
        if self.queued:
            # Also after a turn without an append: the event loop reads requests, among them heartbeats, and sends
            # responses.
            await asyncio.sleep(0)
            return
        self._has_work.clear()
        await self._has_work.wait()

    def commands(self) -> Iterator[Command]:
        """Take the commands of one turn; each is decided before the next is taken."""
        clock = asyncio.get_running_loop().time
        now_s = clock()
        ends_s = now_s + MAX_TURN_S
        for queue in self._heartbeats, self._others:
            for _ in range(MAX_INPUTS_PER_TURN):
                if not queue:
                    break
                command = queue.take()
                self.queued -= 1
                if queue is self._others:
                    self._forget_waiting(command)
                yield command
                began_s, now_s = now_s, clock()
                queue.charge(now_s - began_s)
                if now_s >= ends_s:
                    break
            ends_s = max(ends_s, now_s + MIN_OTHERS_S)

    def _forget_waiting(self, command: Command) -> None:
        member = _member_of(command.traits)
        if member[1]:
            self._waiting[member] -= 1
            if not self._waiting[member]:
                del self._waiting[member]

    def stop(self, error: GroupError) -> None:
        """Reject all pending requests, in whatever state they are, and all later ones."""
        self.not_serving = error
        for command in list(self._pending.values()):
            command.refuse(error)


def _member_of(sent: RequestTraits) -> tuple[str, str]:
    return sent.group_id, sent.member or sent.sender or sent.follows

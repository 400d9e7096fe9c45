"""Parked requests: the response is delayed until a record changes it, a later request arrives, or the wait elapses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from ..errors import StaleMemberEpoch
from .command import Command, loading_error


class Parking:
    """The parked requests of a shard, at most one for each sender of a group."""

    def __init__(self) -> None:
        self.parked: dict[tuple[str, str], Command] = {}

    def park(self, command: Command, response: Any) -> None:
        """Park a request.

        Args:
            response: what it gets when its max wait elapses. ``None``: it waits until a step responds to it.
        """
        if not command.parked:
            command.parked = True
            command.respond_by_s = asyncio.get_running_loop().time() + command.traits.max_wait_ms / 1000
        command.parked_response = response
        self.parked[_place(command)] = command

    def arm(self, commands: Iterable[Command]) -> None:
        """Arm the max-wait timers of requests; only after the records of their turn are durable (D1)."""
        for command in commands:
            command.cancel_max_wait()
            if command.response is not None and not command.done and command.parked_response is not None:
                loop = asyncio.get_running_loop()
                command.max_wait = loop.call_at(command.respond_by_s, self._max_wait_elapsed, command)

    def _max_wait_elapsed(self, command: Command) -> None:
        """Max wait elapsed: send the response the request was parked with."""
        if self.parked.get(_place(command)) is command:
            del self.parked[_place(command)]
            command.resolve(command.parked_response)

    def has_one_of(self, group_id: str, sender: str) -> bool:
        """Whether a request of a sender is parked."""
        return (group_id, sender) in self.parked

    def has_earlier(self, command: Command) -> bool:
        """Whether an earlier request of the same sender is parked."""
        return self.parked.get(_place(command), command) is not command

    def replaced_by(self, command: Command) -> tuple[Command, Any]:
        """Unpark the earlier request of the same sender; return it with the response it now gets."""
        earlier = self.parked.pop(_place(command))
        response = earlier.parked_response
        if response is None and earlier.error_response is not None:
            error = StaleMemberEpoch("a later request of the same member has replaced this one")
            response = earlier.error_response(error)
        return earlier, response

    def yielded_to(self, command: Command) -> tuple[Command, Any] | None:
        """As ``replaced_by``, for a request that is no heartbeat of the member."""
        place = command.group_id, command.traits.follows
        earlier = self.parked.get(place)
        if earlier is None or not earlier.traits.yields or earlier.parked_response is None:
            return None
        del self.parked[place]
        return earlier, earlier.parked_response

    def take(self, group_id: str, senders: Iterable[str]) -> list[Command]:
        """Unpark the requests of these senders, in the order of their names."""
        taken = []
        for sender in sorted(senders):
            command = self.parked.pop((group_id, sender), None)
            if command is not None:
                command.cancel_max_wait()
                taken.append(command)
        return taken

    def take_group(self, group_id: str) -> list[Command]:
        """Unpark all requests of a group."""
        return self.take(group_id, [sender for group, sender in self.parked if group == group_id])

    def refuse_group(self, group_id: str) -> None:
        """Reject all parked requests of a group that is being loaded."""
        for place in [place for place in self.parked if place[0] == group_id]:
            self.parked.pop(place).refuse(loading_error(group_id))


def _place(command: Command) -> tuple[str, str]:
    return command.traits.group_id, command.traits.sender

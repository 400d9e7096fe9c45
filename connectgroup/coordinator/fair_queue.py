"""A queue in which clients share the time of the coordinator: no principal and no group delays the requests of others.

The principals with queued commands share the time equally, and so do the groups of each principal; the commands of one
principal for one group keep their order. The share that has had the least time goes first, and one that had no
commands for a while gets no credit for it (start-time fair queueing, Goyal et al. 1996).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from itertools import count
from typing import Final, Generic, TypeVar

from .command import Command

K = TypeVar("K", bound=Hashable)

MIN_COST_S: Final = 0.000_05
"""What the time of a command counts at least, in seconds. In virtual time all commands cost the same."""

MAX_IDLE: Final = 1_000
"""Shares without commands whose time is remembered, beyond the number of those with commands."""


class _Shares(Generic[K]):
    """Those that share time: whose turn it is, and how much each has had."""

    __slots__ = ("_now_s", "_numbers", "_used_s", "_waiting")

    def __init__(self) -> None:
        self._now_s = 0.0  # the time of the share whose turn it was last
        self._used_s: dict[K, float] = {}  # of the shares that wait, or that have had more time than the others
        self._waiting: list[tuple[float, int, K]] = []  # a heap
        self._numbers = count()

    def wait(self, key: K) -> None:
        """A share has commands; it does not wait yet."""
        used_s = self._used_s[key] = max(self._used_s.get(key, 0.0), self._now_s)
        heapq.heappush(self._waiting, (used_s, next(self._numbers), key))

    def choose(self) -> K:
        """The share that has had the least time; it waits no longer."""
        self._now_s, _, key = heapq.heappop(self._waiting)
        return key

    def charge(self, key: K, seconds: float) -> None:
        """The chosen share has used this time."""
        self._used_s[key] += seconds
        if len(self._used_s) > 2 * len(self._waiting) + MAX_IDLE:
            waiting = {other for _, _, other in self._waiting}
            self._used_s = {
                other: used_s
                for other, used_s in self._used_s.items()
                if other == key or other in waiting or used_s > self._now_s
            }


class _Principal:
    """The queued commands of one principal, by group.

    Attributes:
        length: number of commands.
        shares: of its groups.
    """

    __slots__ = ("groups", "length", "shares")

    def __init__(self) -> None:
        self.groups: dict[str, deque[Command]] = {}
        self.length = 0
        self.shares: _Shares[str] = _Shares()


class FairQueue:
    """Commands of many principals and groups."""

    def __init__(self, *, few: int = 0) -> None:
        """``few``: up to so many commands are taken in the order of their arrival, which costs less."""
        self._few = few
        self._new: deque[Command] = deque()  # not in ``_principals`` yet
        self._principals: dict[str | None, _Principal] = {}
        self._shares: _Shares[str | None] = _Shares()
        self._chosen: tuple[str | None, str] | None = None  # principal and group of the command that was taken last
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, command: Command) -> None:
        """Add a command, as the last one of its principal and group."""
        self._new.append(command)
        self._length += 1

    def lengths(self, principal: str | None, group_id: str) -> tuple[int, int]:
        """The number of commands of a principal, and of those the number for this group."""
        self._sort()
        found = self._principals.get(principal)
        return (0, 0) if found is None else (found.length, len(found.groups.get(group_id, ())))

    def take(self) -> Command:
        """Remove the next command; ``charge`` is to be called before the next call.

        Raises:
            IndexError: the queue is empty.
        """
        if self._length <= self._few and not self._principals:
            command = self._new.popleft()
            self._length -= 1
            return command
        self._sort()
        key = self._shares.choose()
        principal = self._principals[key]
        group_id = principal.shares.choose()
        self._chosen = key, group_id
        principal.length -= 1
        self._length -= 1
        return principal.groups[group_id].popleft()

    def charge(self, seconds: float) -> None:
        """The command that was taken last took this time."""
        if self._chosen is None:
            return
        (key, group_id), self._chosen = self._chosen, None
        seconds = max(seconds, MIN_COST_S)
        principal = self._principals[key]
        principal.shares.charge(group_id, seconds)
        if principal.groups[group_id]:
            principal.shares.wait(group_id)
        else:
            del principal.groups[group_id]
        self._shares.charge(key, seconds)
        if principal.length:
            self._shares.wait(key)
        else:
            del self._principals[key]

    def _sort(self) -> None:
        """Add the new commands to those of their principals and groups."""
        while self._new:
            command = self._new.popleft()
            key, group_id = command.client.principal, command.group_id
            principal = self._principals.get(key)
            if principal is None:
                principal = self._principals[key] = _Principal()
            is_chosen = self._chosen is not None and self._chosen[0] == key
            if not principal.length and not is_chosen:
                self._shares.wait(key)
            if group_id not in principal.groups:
                principal.groups[group_id] = deque()
                principal.shares.wait(group_id)
            principal.groups[group_id].append(command)
            principal.length += 1

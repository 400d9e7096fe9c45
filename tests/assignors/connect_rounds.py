"""A group at its smallest, for assignors that take several rounds: it asks, does what it is told, and keeps time.

It plays the coordinator's part of ``connectgroup.group.connect.delay``: the units of a lost worker are delayed,
and the delay and state of an answer are shown to the next call. Nothing else is carried from round to round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from connectgroup.assign.api import ConnectAssignor, ConnectGroup
from connectgroup.assign.members import ConnectMember, ConnectorSpec, DelayedWork
from connectgroup.assign.sandbox import run_assignor
from connectgroup.protocol.units import NO_UNITS, Units

from .tables import counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round came to.

    Attributes:
        counts: connectors and tasks a worker, each sorted: Kafka's ``[0,1|0,4]``.
        delay_ms: how long something waits; 0 where a round follows as soon as this one is done.
        revoked: what was taken from somebody who had it.
        started: what was given to somebody who had not.
    """

    counts: tuple[list[int], list[int]]
    delay_ms: int
    revoked: Units
    started: Units


class Rounds:
    """Workers, and what each runs; ``now_ms`` is the caller's to set."""

    def __init__(self, make: Callable[[], ConnectAssignor], connectors: Mapping[str, int], *, delay_ms: int) -> None:
        """``make``: a new assignor; each round has one of its own, as if another member were asked."""
        self.make = make
        self.connectors = dict(connectors)
        self.delay_ms = delay_ms
        self.now_ms = 0
        self.running: dict[str, Units] = {}
        self._told: dict[str, bytes] = {}
        self._lost: dict[str, tuple[int, Units]] = {}
        self._asked: tuple[int, Units] | None = None

    def join(self, *workers: str, claiming: Units = NO_UNITS) -> Round:
        """Workers come, and everybody is asked; whoever comes back in time has its own again."""
        for worker in workers:
            self.running[worker] = self._lost.pop(worker, (0, claiming))[1]
        return self.round()

    def lose(self, worker: str) -> Round:
        """A worker is gone, without a word."""
        units = self.running.pop(worker)
        self._told.pop(worker, None)
        if self.delay_ms:
            self._lost[worker] = (self.now_ms + self.delay_ms, units)
        return self.round()

    def forget(self) -> None:
        """As if the answer had never reached anybody: whoever was told nothing has nothing."""
        self._told.clear()

    def question(self) -> ConnectGroup:
        """What an assignor is asked now."""
        self._lost = {name: lost for name, lost in self._lost.items() if lost[0] > self.now_ms}
        if self._asked is not None and self._asked[0] <= self.now_ms:
            self._asked = None
        waiting = [
            DelayedWork(member_id=name, left_ms=until - self.now_ms, units=units)
            for name, (until, units) in sorted(self._lost.items())
        ]
        if self._asked is not None:
            waiting.append(DelayedWork(left_ms=self._asked[0] - self.now_ms, units=self._asked[1]))
        return ConnectGroup(
            members=[
                ConnectMember(member_id=name, owned=units, assignor_state=self._told.get(name, b""))
                for name, units in self.running.items()
            ],
            connectors=[ConnectorSpec(name=name, num_tasks=tasks) for name, tasks in self.connectors.items()],
            delayed=waiting,
            scheduled_rebalance_max_delay_ms=self.delay_ms,
        )

    def round(self) -> Round:
        """Ask, and do as told. No unit may be given to anybody while somebody else has it."""
        question = self.question()
        answer = run_assignor(self.make(), question)
        before = dict(self.running)
        after = {member.member_id: member.units for member in answer.members}
        for name, units in after.items():
            others = NO_UNITS.union(*(its for other, its in before.items() if other != name))
            assert not (units - before[name]) & others, "given to one while another has it"
        self.running = after
        self._told = {member.member_id: member.metadata for member in answer.members}
        self._asked = (self.now_ms + answer.delay_ms, answer.delayed) if answer.delay_ms else None
        lost_ms = max((work.left_ms for work in question.delayed if work.member_id), default=0)
        return Round(
            counts=counts(after),
            delay_ms=max(lost_ms, 0 if answer.delayed else answer.delay_ms),
            revoked=NO_UNITS.union(*(before[name] - after[name] for name in after)),
            started=NO_UNITS.union(*(after[name] - before[name] for name in after)),
        )

"""A minimal group for assignors that take several rounds: it calls the assignor, applies the result, and keeps time.

It replaces ``connectgroup.group.connect.delay``: the units of a lost worker are delayed, and the delay and state
of a result are passed to the next call. No other state is kept between rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from connectgroup.assign.api import ConnectAssignor, ConnectAssignorInput
from connectgroup.assign.members import ConnectMember, ConnectorSpec, DelayedWork
from connectgroup.assign.sandbox import run_assignor
from connectgroup.protocol.units import NO_UNITS, Units

from .tables import counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The effect of one round.

    Attributes:
        counts: connectors and tasks per worker, each sorted: Kafka's ``[0,1|0,4]``.
        delay_ms: the delay of units; 0 if a round follows as soon as this one is done.
        revoked: units taken from their owner.
        started: units assigned to a new owner.
    """

    counts: tuple[list[int], list[int]]
    delay_ms: int
    revoked: Units
    started: Units


class Rounds:
    """The workers, and the units that each runs; the caller sets ``now_ms``."""

    def __init__(self, make: Callable[[], ConnectAssignor], connectors: Mapping[str, int], *, delay_ms: int) -> None:
        """``make`` creates an assignor; each round uses a new one, as if another member computed."""
        self.make = make
        self.connectors = dict(connectors)
        self.delay_ms = delay_ms
        self.now_ms = 0
        self.running: dict[str, Units] = {}
        self._states: dict[str, bytes] = {}
        self._lost: dict[str, tuple[int, Units]] = {}
        self._computed: tuple[int, Units] | None = None

    def join(self, *workers: str, claiming: Units = NO_UNITS) -> Round:
        """Workers join, and a round follows; a worker that returns in time gets its units back."""
        for worker in workers:
            self.running[worker] = self._lost.pop(worker, (0, claiming))[1]
        return self.round()

    def lose(self, worker: str) -> Round:
        """A worker fails."""
        units = self.running.pop(worker)
        self._states.pop(worker, None)
        if self.delay_ms:
            self._lost[worker] = (self.now_ms + self.delay_ms, units)
        return self.round()

    def forget(self) -> None:
        """As if the result had reached no worker: the assignor state is lost."""
        self._states.clear()

    def input_group(self) -> ConnectAssignorInput:
        """The input of an assignor now."""
        self._lost = {name: lost for name, lost in self._lost.items() if lost[0] > self.now_ms}
        if self._computed is not None and self._computed[0] <= self.now_ms:
            self._computed = None
        waiting = [
            DelayedWork(member_id=name, left_ms=until - self.now_ms, units=units)
            for name, (until, units) in sorted(self._lost.items())
        ]
        if self._computed is not None:
            waiting.append(DelayedWork(left_ms=self._computed[0] - self.now_ms, units=self._computed[1]))
        return ConnectAssignorInput(
            members=[
                ConnectMember(member_id=name, owned=units, assignor_state=self._states.get(name, b""))
                for name, units in self.running.items()
            ],
            connectors=[ConnectorSpec(name=name, num_tasks=tasks) for name, tasks in self.connectors.items()],
            delayed=waiting,
            scheduled_rebalance_max_delay_ms=self.delay_ms,
        )

    def round(self) -> Round:
        """Run the assignor and apply the result. No unit may be assigned while another worker owns it."""
        input_group = self.input_group()
        result = run_assignor(self.make(), input_group)
        before = dict(self.running)
        after = {member.member_id: member.units for member in result.members}
        for name, units in after.items():
            others = NO_UNITS.union(*(its for other, its in before.items() if other != name))
            assert not (units - before[name]) & others, "assigned while another worker owns it"
        self.running = after
        self._states = {member.member_id: member.metadata for member in result.members}
        self._computed = (self.now_ms + result.delay_ms, result.delayed) if result.delay_ms else None
        lost_ms = max((delay.left_ms for delay in input_group.delayed if delay.member_id), default=0)
        return Round(
            counts=counts(after),
            delay_ms=max(lost_ms, 0 if result.delayed else result.delay_ms),
            revoked=NO_UNITS.union(*(before[name] - after[name] for name in after)),
            started=NO_UNITS.union(*(after[name] - before[name] for name in after)),
        )

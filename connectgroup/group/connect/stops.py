"""When and where each unit last ran, to explain rebalances: the downtime of moves, and moves that never started.

A worker that is about to leave accepts no new units, but the group does not know that yet: units of workers that left
before it are assigned to it. When it leaves, such a unit has not moved to it in any sense that matters. The unit still
counts as stopped since it last ran, on the worker where it last ran, and the move is marked as not started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...protocol.messages.describe import Move, Rebalance
from ...protocol.units import Unit


@dataclass(slots=True, kw_only=True)
class _Arrival:
    """A unit that ran elsewhere before, and that its new worker has not reported yet.

    Attributes:
        source: the member that ran it last.
        stopped_ms: when that member stopped it.
        epoch: of the finished rebalance that counts the move; 0: none does.
        is_listed: whether the move is one of ``Rebalance.moves``.
    """

    source: str
    stopped_ms: int
    epoch: int = 0
    is_listed: bool = False


class Stops:
    """Where units have stopped and have not started again.

    Attributes:
        moves_not_started: number of finished moves whose unit was released before it was reported.
    """

    def __init__(self) -> None:
        self.moves_not_started = 0
        self._stopped: dict[Unit, tuple[str, int]] = {}
        self._arrived: dict[Unit, _Arrival] = {}
        self._not_started: dict[int, set[Unit]] = {}

    def stop(self, unit: Unit, member_id: str, at_ms: int, *, has_status: bool) -> None:
        """A member has released a unit, or must.

        Args:
            has_status: whether any status of the unit was ever reported. Workers whose runner reports nothing start
                their units all the same.
        """
        arrival = self._arrived.pop(unit, None)
        if arrival is None or not has_status:
            self._stopped[unit] = (member_id, at_ms)
            return
        self._stopped[unit] = (arrival.source, arrival.stopped_ms)
        if arrival.epoch:
            self.moves_not_started += 1
        if arrival.is_listed:
            self._not_started.setdefault(arrival.epoch, set()).add(unit)

    def assign(self, unit: Unit, at_ms: int) -> tuple[str, int]:
        """A unit is assigned: the member that ran it last, empty if none did, and when it stopped."""
        source, stopped_ms = self._stopped.pop(unit, ("", at_ms))
        if source:
            self._arrived[unit] = _Arrival(source=source, stopped_ms=stopped_ms)
        else:
            self.report(unit)
        return source, stopped_ms

    def report(self, unit: Unit) -> None:
        """The owner of the unit has reported a status: it has started the unit."""
        self._arrived.pop(unit, None)

    def finish(self, rebalance: Rebalance, landed: Mapping[Unit, Move]) -> None:
        """A rebalance has finished, with these assignments."""
        listed = {Unit(move.connector, move.task) for move in rebalance.moves}
        for unit in self._arrived.keys() & landed.keys():
            if landed[unit].source != landed[unit].target:
                self._arrived[unit].epoch, self._arrived[unit].is_listed = rebalance.epoch, unit in listed

    def not_started(self, epoch: int) -> set[Unit]:
        """The listed moves of a rebalance whose unit was released before it was reported."""
        return self._not_started.get(epoch, set())

    def forget(self, unit: Unit) -> None:
        """The unit should not run any more."""
        self._stopped.pop(unit, None)
        self._arrived.pop(unit, None)

    def forget_rebalance(self, epoch: int) -> None:
        """The rebalance is no longer kept."""
        self._not_started.pop(epoch, None)

"""The state of a group as numbers, for metrics."""

from __future__ import annotations

from collections import Counter

from ...protocol.messages.common import each_unit
from ...protocol.records.connect import TargetState
from ..registry import ConnectorNumbers, GroupNumbers
from .state import Group


def measure(group: Group) -> GroupNumbers:
    """Count members, tasks, delayed and unassigned units.

    May run in a thread while another one applies records: each collection is copied before it is read.
    """
    held = group.holders.copy().keys()
    runnable = group.runnable.copy().keys()
    rebalances, computation = group.rebalances.copy(), group.computation
    last = rebalances[next(reversed(rebalances))] if rebalances else None
    unassigned = Counter(unit.connector for unit in runnable if not unit.is_connector and unit not in held)
    waiting = {unit for record in group.delays.copy().values() for unit in each_unit(record.units)}
    return GroupNumbers(
        members=len(group.members),
        epoch=group.epoch,
        target_epoch=group.target_epoch,
        computed_by=group.computed_by,
        is_rebalancing=last is not None and last.finished_ms < 0,
        delayed_units=len(waiting.intersection(runnable) - held),
        computation_failures=0 if computation is None else computation.failures,
        moves_not_started=group.stops.moves_not_started,
        connectors={
            name: ConnectorNumbers(
                tasks=len(record.tasks),
                paused=len(record.tasks) if record.target_state == TargetState.PAUSED else 0,
                unassigned=unassigned[name],
            )
            for name, record in group.connectors.copy().items()
        },
    )

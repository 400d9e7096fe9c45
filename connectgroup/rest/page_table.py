"""What the page shows of a group, as a flat table: key -> row. Small rows make small changes.

| key | row |
|---|---|
| ``error`` | why the group cannot be described; the other rows are then the last known ones |
| ``group`` | id, state, epochs, assignor, the errors of the assignor and of the coordinator's log |
| ``worker/W`` | state, epoch, capacity, host, start, memory, number of units by state |
| ``connector/C`` | what it is, target state, number of units by state; rows per second, lag, errors of its tasks |
| ``unit/N/C`` | ``[state, worker, owner epoch]`` of task N of connector C; N is -1 for the connector itself |
| ``lag/N/C`` | ``[records, bytes, files]`` that task N of connector C has not read yet; null if not known |
| ``failure/N/C`` | the error message of a failed unit |
| ``delay/I`` | delayed units, the worker they are kept for, the deadline |
| ``rebalance/E`` | causes, cost and the longest moves of the rebalance with epoch E |

Of configurations, only names of plug-ins are part of it, so there are no credentials in it. Times are milliseconds
since 1970.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ..protocol.messages.common import units_of
from ..protocol.messages.describe import DescribedConnector, DescribedGroup, DescribedMember, DescribedUnit, Rebalance
from ..protocol.messages.progress import UNKNOWN, Progress
from ..protocol.units import CONNECTOR, Unit, printable

Table = dict[str, Any]

May = Callable[[str | None], Sequence[str]]
"""What the user may do to a connector, or (``None``) to the group: ``alter``, ``delete``."""

MAX_UNITS: Final = 20_000
"""A group with more units is shown by numbers of units only."""
MAX_FAILURES: Final = 100
MAX_MESSAGE: Final = 4_096
"""Characters of an error message."""
MAX_MOVES: Final = 20
"""Moves of one rebalance; ``GET /groups/{group}/rebalances`` has 100."""
MAX_DELAYED: Final = 100
"""Delayed units that are named."""
CLOCK_ERROR_MS: Final = 1_500
"""Two deadlines of the same delay that differ by less are the same one, computed from two descriptions."""


def page_table(
    group: DescribedGroup, now_ms: int, *, before: Table, rates: Mapping[str, float], may: May | None = None
) -> Table:
    """The table of a group.

    Args:
        now_ms: wall clock at the description.
        before: the previous table: a deadline keeps its value.
        may: what the user of the table may change; ``None``: there are no rules.
        rates: rows per second by connector, more recent than those that workers have reported; connectors whose rate is
            not known are omitted.
    """
    counts: dict[str, Counter[str]] = {}
    for connector in group.connectors:
        for unit in connector.units:
            if unit.member_id:
                counts.setdefault(unit.member_id, Counter())[unit.state] += 1
    table: Table = {
        "group": {
            "id": group.group_id,
            "state": group.state,
            "epoch": group.group_epoch,
            "target_epoch": group.assignment_epoch,
            "assignor": group.assignor_name,
            "computing": group.computing_member,
            "assignor_error": group.assignor_error,
            "log_error": group.log_error,
        }
    }
    if may is not None:
        table["group"]["may"] = may(None)
    for member in group.members:
        key = f"worker/{member.member_id}"
        table[key] = _worker(member, counts.get(member.member_id, Counter()))
        table[key]["kept_until_ms"] = _deadline(before.get(key, {}).get("kept_until_ms"), now_ms, member.kept_ms)
    show_units = sum(len(connector.units) for connector in group.connectors) <= MAX_UNITS
    for connector in group.connectors:
        row = table[f"connector/{connector.connector}"] = _connector(connector, rates.get(connector.connector))
        if may is not None:
            row["may"] = may(connector.connector)
        if show_units:
            for unit in connector.units:
                table[_key("unit", connector, unit)] = [unit.state, unit.member_id, unit.owner_epoch]
                if unit.numbers is not None and (lag := _lag([unit.numbers])) != NO_LAG:
                    table[_key("lag", connector, unit)] = lag
    table |= list(_failures(group))[:MAX_FAILURES]
    for number, delay in enumerate(group.delayed):
        key, units = f"delay/{number}", units_of(delay.units)
        table[key] = {
            "worker": delay.member_id,
            "instance": delay.instance_id,
            "until_ms": _deadline(before.get(key, {}).get("until_ms"), now_ms, delay.left_ms),
            "count": len(units),
            "units": [str(unit) for unit in sorted(units)[:MAX_DELAYED]],
        }
    for rebalance in group.rebalances:
        table[f"rebalance/{rebalance.epoch}"] = _rebalance(rebalance)
    return table


def _key(kind: str, connector: DescribedConnector, unit: DescribedUnit) -> str:
    return f"{kind}/{unit.task}/{connector.connector}"


def _worker(member: DescribedMember, states: Counter[str]) -> dict[str, Any]:
    return {
        "instance": member.instance_id,
        "address": member.client_host,
        "state": member.state,
        "epoch": member.member_epoch,
        "capacity": member.capacity,
        "rack": member.rack,
        "host": member.host,
        "started_ms": member.started_ms or None,
        "memory_bytes": member.memory_bytes or None,
        "units": dict(states),
        "revoking": len(units_of(member.pending_revocation)),
        "target": len(units_of(member.target)),
    }


NO_LAG: Final = [None, None, None]


def _lag(numbers: Sequence[Progress]) -> list[int | None]:
    """The lag of tasks: records, bytes and files, each null if no task knows it."""
    known = [
        [value for value in values if value != UNKNOWN]
        for values in (
            [each.records_lag for each in numbers],
            [each.bytes_lag for each in numbers],
            [each.files_left for each in numbers],
        )
    ]
    return [sum(values) if values else None for values in known]


def _connector(connector: DescribedConnector, rate: float | None) -> dict[str, Any]:
    numbers = [unit.numbers for unit in connector.units if unit.numbers is not None]
    if rate is None and any(each.records_written for each in numbers):
        rate = sum(each.records_per_minute for each in numbers) / 60
    return {
        "what": _what(connector),
        "target_state": connector.target_state,
        "state": next((unit.state for unit in connector.units if unit.task == CONNECTOR), ""),
        "tasks": dict(Counter(unit.state for unit in connector.units if unit.task != CONNECTOR)),
        "rows_per_s": None if rate is None else round(rate, 1),
        "lag": _lag(numbers),
        "dead_letters": sum(each.dead_letters for each in numbers),
        "errors": sum(each.errors for each in numbers),
        "unfinished": sum(max(each.unfinished_files, 0) for each in numbers),
        "unreadable": sum(max(each.unreadable_files, 0) for each in numbers),
    }


def _what(connector: DescribedConnector) -> str:
    """Its class, and what it reads and writes: names of plug-ins."""
    names = {
        entry.name: entry.value for entry in connector.config if entry.name in ("connector.class", "source", "sink")
    }
    ends = [printable(names[end], limit=60) for end in ("source", "sink") if end in names]
    return " to ".join(ends) or printable(names.get("connector.class", ""), limit=120)


def _failures(group: DescribedGroup) -> Iterator[tuple[str, str]]:
    for connector in group.connectors:
        for unit in connector.units:
            if unit.has_failed:
                yield _key("failure", connector, unit), unit.message[:MAX_MESSAGE]


def _rebalance(rebalance: Rebalance) -> dict[str, Any]:
    moves = [
        {
            "unit": str(Unit(move.connector, move.task)),
            "from": move.source,
            "to": move.target,
            "downtime_ms": move.downtime_ms,
            "handover_ms": move.handover_ms,
            "assigned_ms": move.assigned_ms,
        }
        for move in rebalance.moves[:MAX_MOVES]
    ]
    return {
        "epoch": rebalance.epoch,
        "causes": rebalance.causes,
        "started_ms": rebalance.started_ms,
        "finished_ms": rebalance.finished_ms,
        "computed_by": rebalance.computed_by,
        "assignor": rebalance.assignor,
        "moved": rebalance.moved,
        "started": rebalance.started,
        "max_downtime_ms": rebalance.max_downtime_ms,
        "max_handover_ms": rebalance.max_handover_ms,
        "moves": moves,
        "delayed": [
            {"worker": each.member_id, "until_ms": each.until_ms, "count": each.count} for each in rebalance.delayed
        ],
    }


def _deadline(before: int | None, now_ms: int, left_ms: int) -> int | None:
    """The wall clock at which a delay ends; null if there is none (negative time left)."""
    if left_ms < 0:
        return None
    until_ms = now_ms + left_ms
    return before if before is not None and abs(before - until_ms) < CLOCK_ERROR_MS else until_ms

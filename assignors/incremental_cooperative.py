"""The rebalances of Kafka Connect, round by round: revoke first, assign the revoked units in the next round.

KIP-415 and its successors require of one round:

- *Deleted* units are no longer in the input, so they stop and are assigned to no worker.
- *Claimed twice*: both copies stop; the unit is assigned in the next round.
- *New* units, and those whose lost worker did not return in time, go to the workers with the fewest units.
- *Lost* units are delayed until their worker returns. While any unit is delayed nothing is revoked, but new units are
  assigned.
- *Load*: workers that own more than the balanced count (connectors and tasks separately) revoke the excess, and not a
  unit more; revoked units are assigned in the next round.
- *Back-off*: if the previous round revoked as well, the revocation is delayed by
  ``min(40**n ms, scheduled.rebalance.max.delay.ms)``, where n counts such rounds in a row, so that workers that join
  one by one do not stop tasks again and again (KAFKA-12495). A round that needs no revocation resets the count. The
  setting belongs to the group; 0 is no delay (KAFKA-15693).

Kafka's leader keeps the state of earlier rounds in memory and loses it when it leaves. Here the input contains all of
it, so any member can compute any round:

- current owners: ``owned``, the member's units in the current target assignment. The group keeps the delayed units of a
  lost worker and their remaining delay (``delayed``). The group also detects that a worker returned: it reassigns the
  worker its units before it runs an assignor.
- that the previous round revoked: its result listed the revoked units in ``delayed``, so the input lists them too.
  The group runs the assignor again as soon as all members have reached the target, that is, when those units have
  stopped; it waits no longer than the delay for a worker that does not stop.
- n: assignor user data in the result (``assignor_state``), which the group passes to the next member that computes.

``balanced`` needs one round where this assignor needs two, because the group itself waits for a unit to stop before it
starts elsewhere. Differences from Kafka Connect: a worker that returns under its own name gets its units back at once;
lost units go to the least loaded worker, which is the one that came back empty, without a list of candidates; a
back-off below 1 s is 1 s; ``moves_per_round`` does not bound revocations.

This assignor is for users who want the behavior they know from Kafka Connect.

Source: KIP-415; KAFKA-12495, KAFKA-12283; Kafka's ``IncrementalCooperativeAssignorTest``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectAssignorInput
from connectgroup.assign.columns import ConnectColumns
from connectgroup.protocol.units import NO_UNITS

from .balanced import UNASSIGNED, Integers, limits, to_release

BACK_OFF_BASE = 40
MAX_ROUNDS = 200
"""Upper bound on the count; the delay reaches its maximum long before."""


class IncrementalCooperativeAssignor(ConnectAssignor):
    """The rounds of KIP-415; a pure function of the input."""

    name = "incremental-cooperative"

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        """Compute one round: which units stay, stop and start."""
        columns = group.columns()
        owner = columns.unit_owner.astype(np.int64)
        if not columns.member_ids:
            return ConnectAssignment.from_columns(columns, np.full_like(owner, UNASSIGNED))
        lost = columns.indices(group.waiting) if group.waiting else np.empty(0, dtype=np.int64)
        twice = np.flatnonzero(columns.unit_claims > 1)
        to_place = owner < 0
        to_place[lost] = False
        owner[twice] = UNASSIGNED

        left_ms = max((work.left_ms for work in group.delayed if not work.units or work.member_id), default=0)
        over = _over(columns, owner)
        revokes, rounds, delay_ms = True, 0, 0
        if left_ms:
            # A delay is already running: do not start a second one, and do not revoke during it.
            revokes, rounds = False, _rounds(columns)
            delay_ms = 0 if len(lost) else left_ms
        elif len(over) and any(work.units and not work.member_id for work in group.delayed):
            rounds = min(_rounds(columns) + 1, MAX_ROUNDS)
            delay_ms = min(BACK_OFF_BASE ** min(rounds, 9), group.scheduled_rebalance_max_delay_ms)
            revokes = delay_ms == 0
        elif len(over):
            rounds = _rounds(columns)
        if revokes:
            owner[over] = UNASSIGNED
        _deal(columns, owner, to_place)
        stopping = np.concatenate((twice, over)) if revokes else twice
        delayed = columns.units(np.unique(stopping)) - group.waiting if len(stopping) else NO_UNITS
        return ConnectAssignment.from_columns(
            columns,
            owner,
            delayed=delayed,
            delay_ms=max(delay_ms, group.scheduled_rebalance_max_delay_ms, 1) if delayed else delay_ms,
            assignor_state=str(rounds).encode() if rounds else b"",
        )


def _rounds(columns: ConnectColumns) -> int:
    """Number of consecutive rounds that delayed revocations, from the previous result's user data; 0 if unreadable."""
    notes = [
        assignor_state
        for assignor_state in set(columns.member_assignor_state)
        if assignor_state.isdigit() and len(assignor_state) <= 3
    ]
    return max((int(note) for note in notes), default=0)


def _over(columns: ConnectColumns, owner: Integers) -> Integers:
    """The units that workers own above the balanced count, connectors and tasks separately."""
    members = len(columns.member_ids)
    found = [np.empty(0, dtype=np.int64)]
    for rows in _classes(columns):
        # Tasks of one connector are revoked where they are stacked; connectors all count as one kind.
        kinds = np.where(columns.unit_task[rows] >= 0, columns.unit_connector[rows], 0).astype(np.int64)
        found.append(rows[to_release(owner[rows], kinds, limits(owner[rows], members))])
    return np.concatenate(found)


def _deal(columns: ConnectColumns, owner: Integers, to_place: NDArray[np.bool_]) -> None:
    """Assign units, in place, each to the worker with the fewest of its class so far, of equal ones the first."""
    members = len(columns.member_ids)
    for rows in _classes(columns):
        given = rows[to_place[rows]]
        if not len(given):
            continue
        held = owner[rows]
        load = np.bincount(held[held >= 0], minlength=members)
        owner[given] = _takers(load, len(given))


def _takers(load: Integers, amount: int) -> Integers:
    """int64[amount]: the worker of each unit, as if each unit in turn went to the worker with the fewest so far."""
    order = np.argsort(load, kind="stable")
    rising = load[order]
    # Capacity below each worker's level if all workers before it are filled up to that level.
    below = rising * np.arange(len(load)) - (np.cumsum(rising) - rising)
    sharing = int(np.searchsorted(below, amount, side="left"))
    level, rest = divmod(amount + int(rising[:sharing].sum()), sharing)
    need = np.zeros(len(load), dtype=np.int64)
    need[order[:sharing]] = level - rising[:sharing]
    # The remainder above the level goes to the first workers by name among those that take part.
    need[np.sort(order[:sharing])[:rest]] += 1
    takers = np.repeat(np.arange(len(load)), need)
    start = np.repeat(np.cumsum(need) - need, need)
    step = load[takers] + np.arange(amount) - start
    return takers[np.lexsort((takers, step))]


def _classes(columns: ConnectColumns) -> list[Integers]:
    """The indices of connectors and those of tasks; empty classes are omitted."""
    is_task = columns.unit_task >= 0
    return [rows for rows in (np.flatnonzero(~is_task), np.flatnonzero(is_task)) if len(rows)]

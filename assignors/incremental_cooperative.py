"""Kafka Connect's rebalances, round for round: revoke first, give out what was revoked in the next round.

What KIP-415 and its successors ask of one round:

- *Deleted* units are no longer in the question, so they stop and are given to nobody.
- *Claimed twice*: both copies stop; the unit is given out in the next round.
- *New* units, and those whose lost worker did not come back in time, go to the workers that have least.
- *Lost* work waits for its worker. While anything waits nothing is revoked, but new units are given out.
- *Load*: workers that hold more than an even share (connectors and tasks apart) give up what is over, and not a unit
  more; what they give up is given out in the next round.
- *Back-off*: where the round before revoked too, revoking waits ``min(40**n ms, scheduled.rebalance.max.delay.ms)``, n
  counting such rounds in a row, so that workers that join one by one do not stop tasks again and again (KAFKA-12495). A
  round in which nothing has to be revoked starts the count anew. The setting is the group's; 0 is no delay
  (KAFKA-15693).

Kafka's leader keeps what it needs of earlier rounds in its memory, and forgets it when it goes. Here it is all in the
question, so any member may compute any round:

- who held what: ``owned``, the share of the target in force; what waits for a lost worker, and how much longer, is
  the group's to know (``held_back``). So is that a worker came back: it is given its own again before anybody is
  asked.
- that the round before revoked: the answer held the revoked units back, so they are in ``held_back``. The group asks
  again as soon as all members have reached the target, which is when those units have stopped; a worker that does not
  stop is waited for no longer than the delay.
- n: a note in the answer (``told``), which the group shows to whoever is asked next.

``balanced`` needs one round where this needs two, because the group itself waits for a unit to stop before it starts
elsewhere. This one is for those who want what they know.

Source: KIP-415; KAFKA-12495, KAFKA-12283; Kafka's ``IncrementalCooperativeAssignorTest``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectGroup
from connectgroup.assign.columns.connect import ConnectColumns
from connectgroup.protocol.units import NO_UNITS

from .balanced import NOBODY, Integers, limits, to_let_go

BACK_OFF_BASE = 40
MOST_ROUNDS = 200
"""Where the count stops; the wait is at its longest long before."""


class IncrementalCooperativeAssignor(ConnectAssignor):
    """KIP-415's rounds; a function of the question alone."""

    name = "incremental-cooperative"

    def assign(self, group: ConnectGroup) -> ConnectAssignment:
        """One round: what stays, what stops, what starts."""
        columns = group.columns()
        owner = columns.unit_owner.astype(np.int64)
        if not columns.member_ids:
            return ConnectAssignment.from_columns(columns, np.full_like(owner, NOBODY))
        lost = columns.indices(group.waiting) if group.waiting else np.empty(0, dtype=np.int64)
        twice = np.flatnonzero(columns.unit_claims > 1)
        to_place = owner < 0
        to_place[lost] = False
        owner[twice] = NOBODY

        left_ms = max((work.left_ms for work in group.held_back if not work.units or work.member_id), default=0)
        over = _over(columns, owner)
        revokes, rounds, delay_ms = True, 0, 0
        if left_ms:
            # What has been begun is waited for: no second delay on top, no revocation under it.
            revokes, rounds = False, _rounds(columns)
            delay_ms = 0 if len(lost) else left_ms
        elif len(over) and any(work.units and not work.member_id for work in group.held_back):
            rounds = min(_rounds(columns) + 1, MOST_ROUNDS)
            delay_ms = min(BACK_OFF_BASE ** min(rounds, 9), group.scheduled_rebalance_max_delay_ms)
            revokes = delay_ms == 0
        elif len(over):
            rounds = _rounds(columns)
        if revokes:
            owner[over] = NOBODY
        _deal(columns, owner, to_place)
        stopping = np.concatenate((twice, over)) if revokes else twice
        held_back = columns.units(np.unique(stopping)) - group.waiting if len(stopping) else NO_UNITS
        return ConnectAssignment.from_columns(
            columns,
            owner,
            held_back=held_back,
            delay_ms=max(delay_ms, group.scheduled_rebalance_max_delay_ms, 1) if held_back else delay_ms,
            told=str(rounds).encode() if rounds else b"",
        )


def _rounds(columns: ConnectColumns) -> int:
    """How many rounds in a row have put revoking off, by the note of the answer before; 0 where it cannot be read."""
    notes = [told for told in set(columns.member_told) if told.isdigit() and len(told) <= 3]
    return max((int(note) for note in notes), default=0)


def _over(columns: ConnectColumns, owner: Integers) -> Integers:
    """What workers hold above an even share, connectors and tasks apart."""
    members = len(columns.member_ids)
    found = [np.empty(0, dtype=np.int64)]
    for rows in _classes(columns):
        # Tasks of one connector are given up by whom they are stacked on; connectors are all alike.
        kinds = np.where(columns.unit_task[rows] >= 0, columns.unit_connector[rows], 0).astype(np.int64)
        found.append(rows[to_let_go(owner[rows], kinds, limits(owner[rows], members))])
    return np.concatenate(found)


def _deal(columns: ConnectColumns, owner: Integers, to_place: NDArray[np.bool_]) -> None:
    """Give units out, in place, each to whoever has least of its class by then, of those the first."""
    members = len(columns.member_ids)
    for rows in _classes(columns):
        given = rows[to_place[rows]]
        if not len(given):
            continue
        held = owner[rows]
        load = np.bincount(held[held >= 0], minlength=members)
        owner[given] = _takers(load, len(given))


def _takers(load: Integers, amount: int) -> Integers:
    """int64[amount]: who takes the first, the second ..., as if each went to whoever has least by then."""
    order = np.argsort(load, kind="stable")
    rising = load[order]
    # How much fits below each worker's level: those before it are filled up to it.
    below = rising * np.arange(len(load)) - (np.cumsum(rising) - rising)
    sharing = int(np.searchsorted(below, amount, side="left"))
    level, rest = divmod(amount + int(rising[:sharing].sum()), sharing)
    need = np.zeros(len(load), dtype=np.int64)
    need[order[:sharing]] = level - rising[:sharing]
    # The last ones, above the level, go to the first workers by name among those who share.
    need[np.sort(order[:sharing])[:rest]] += 1
    takers = np.repeat(np.arange(len(load)), need)
    start = np.repeat(np.cumsum(need) - need, need)
    step = load[takers] + np.arange(amount) - start
    return takers[np.lexsort((takers, step))]


def _classes(columns: ConnectColumns) -> list[Integers]:
    """The rows of connectors, and those of tasks; neither is empty."""
    is_task = columns.unit_task >= 0
    return [rows for rows in (np.flatnonzero(~is_task), np.flatnonzero(is_task)) if len(rows)]

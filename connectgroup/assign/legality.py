"""Validity of an assignment: complete, no unit twice, no unknown unit. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Set as AbstractSet
from typing import TYPE_CHECKING, TypeVar

from ..protocol.units import TopicPartition, Unit, printable

if TYPE_CHECKING:
    pass


UnitT = TypeVar("UnitT", Unit, TopicPartition)


def first_violation(
    shares: Iterable[tuple[str, Iterable[UnitT]]],
    *,
    members: Collection[str],
    units: AbstractSet[UnitT],
    delayed: AbstractSet[UnitT] = frozenset(),
    waiting: AbstractSet[UnitT] = frozenset(),
) -> str | None:
    """Return the first violation of an assignment and the number of further ones as one line; None if it is valid.

    Args:
        shares: member id and its units, repeats included.
        members: the members of the group.
        units: all units; each must be assigned exactly once, unless the group has no members.
        delayed: units in ``units`` that the assignor omits on purpose, and therefore must not assign.
        waiting: units in ``units`` that are delayed for a lost worker; they may be assigned or omitted.

    Source: "Connect on the new protocol", ConnectGroupInstallAssignment, request validation.
    """
    listed = [(member_id, list(given)) for member_id, given in shares]
    if waiting:
        listed = [(member_id, [unit for unit in given if unit not in waiting]) for member_id, given in listed]
        units, delayed = units - waiting, delayed - waiting
    for unit in sorted(delayed - units):
        return f"{printable(unit)}, delayed, does not exist"
    to_give = units - delayed if delayed else units
    everything = [unit for _, given in listed for unit in given]
    known = all(member_id in members for member_id, _ in listed)
    once = len({member_id for member_id, _ in listed}) == len(listed)
    if known and once and len(everything) == len(to_give) and to_give == set(everything):
        return None  # fast path: a valid assignment takes a few passes at C speed

    violations: list[str] = []
    times = Counter(member_id for member_id, _ in listed)
    for member_id in sorted(times):
        if member_id not in members:
            violations.append(f"{printable(member_id)} is not a member")
        if times[member_id] > 1:
            violations.append(f"{printable(member_id)} is listed twice")
    holders: dict[UnitT, list[str]] = {}
    for member_id, given in sorted(listed, key=lambda share: share[0]):
        for unit in given:
            holders.setdefault(unit, []).append(member_id)
    for unit in sorted(holders):
        names = [printable(member_id) for member_id in holders[unit]]
        if unit not in units:
            violations.append(f"{printable(unit)}, assigned to {names[0]}, does not exist")
        elif unit in delayed:
            violations.append(f"{printable(unit)}, assigned to {names[0]}, is delayed")
        elif len(names) > 1:
            violations.append(f"{printable(unit)} is assigned twice: to {names[0]} and {names[1]}")
    if members:
        violations.extend(f"{printable(unit)} is not assigned" for unit in sorted(to_give - holders.keys()))
    if not violations:
        return None
    return violations[0] if len(violations) == 1 else f"{violations[0]} (and {len(violations) - 1} more)"


def _not_subscribed(partition: TopicPartition, member_id: str) -> str:
    return f"{printable(partition)} is assigned to {printable(member_id)}, which is not subscribed to it"

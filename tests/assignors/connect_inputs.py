"""Random inputs for assignors of connectors and tasks, of every kind that occurs in a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from random import Random

from hypothesis import strategies as st

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectAssignorInput
from connectgroup.protocol.units import Unit, Units
from connectgroup.testing.contracts.connect_assignor import ConnectAssignorContract

from .tables import group


@st.composite
def input_groups(draw: st.DrawFn) -> ConnectAssignorInput:
    """Groups where no member owns anything, a few own everything, or units are scattered, with stale and duplicate
    claims.
    """
    connectors = draw(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 12), max_size=6))
    members = draw(st.lists(st.sampled_from([f"m{n}" for n in range(8)]), unique=True, min_size=1))
    holders = members[: draw(st.integers(0, len(members)))]
    held: dict[str, set[Unit]] = {member_id: set() for member_id in members}
    everything = ConnectAssignorInput(connectors=group(connectors, {}).connectors).units
    for unit in [*everything, Unit("gone"), Unit("a", 99)]:
        for member_id in draw(st.lists(st.sampled_from(holders), max_size=2)) if holders else ():
            held[member_id].add(unit)
    return group(connectors, {member_id: frozenset(its) for member_id, its in held.items()})


def case(random: Random, assignor: ConnectAssignor) -> ConnectAssignorInput:
    """A group with no, few or scattered owners, or a balanced one with a member, connector or task changed."""
    connectors = {f"c{number}": random.randint(0, 7) for number in range(random.randint(1, 5))}
    members = [f"m{number}" for number in range(random.randint(1, 7))]
    kind_of_case = random.choice(["fresh", "lopsided", "anyhow", "at rest"])
    if kind_of_case == "at rest":
        _, result = last(assignor, group(connectors, dict.fromkeys(members, "")))
        held = {each.member_id: each.units for each in result.members}
        change = random.choice(["leaves", "joins", "grows", "shrinks"])
        if change == "leaves" and len(members) > 1:
            del held[random.choice(members)]
        elif change == "joins":
            held["n1"] = frozenset()
        elif change == "grows":
            connectors["n"] = random.randint(0, 9)
        else:
            connectors["c0"] = 0
        return group(connectors, held)
    holders = {"fresh": [], "lopsided": members[:2], "anyhow": members}[kind_of_case]
    everything = group(connectors, {}).units if holders else ()
    whose = {unit: random.choice(holders) for unit in everything if random.random() < 0.9}
    return group(connectors, {each: frozenset(unit for unit in whose if whose[unit] == each) for each in members})


def last(
    assignor: ConnectAssignor, input_group: ConnectAssignorInput
) -> tuple[ConnectAssignorInput, ConnectAssignment]:
    """The result of the last round, and its input."""

    class Contract(ConnectAssignorContract):
        def assignor(self) -> ConnectAssignor:
            return assignor

    return Contract().final(input_group)


def one_holder_each(input_group: ConnectAssignorInput, *, of_two: bool = True) -> dict[Unit, str]:
    """The owner of each unit: of two that claim a unit the first, or neither."""
    claims = Counter(unit for member in input_group.members for unit in member.owned)
    holders: dict[Unit, str] = {}
    for member in sorted(input_group.members, key=lambda member: member.member_id):
        for unit in member.owned:
            if of_two or claims[unit] == 1:
                holders.setdefault(unit, member.member_id)
    return holders


def fewest_moves(members: int, holder: Mapping[Unit, str], everything: list[Unit]) -> int:
    """How many of these units cannot stay (or be) where they are if counts are to be even: by definition, without a
    formula; the members with the most units keep the remainder.
    """
    share, extra = divmod(len(everything), members)
    held = sorted(Counter(holder[unit] for unit in everything if unit in holder).values(), reverse=True)
    held += [0] * (members - len(held))
    limits = [share + 1] * extra + [share] * (members - extra)
    return len(everything) - sum(map(min, held, limits))


def moves(input_group: ConnectAssignorInput, after: Mapping[str, Units], *, of_two: bool) -> tuple[int, int]:
    """The number of units that move, connectors plus tasks, and the minimum."""
    before = one_holder_each(input_group, of_two=of_two)
    found = fewest = 0
    for is_connector in (True, False):
        everything = [unit for unit in input_group.units if unit.is_connector is is_connector]
        found += len(everything) - sum(unit in after[before[unit]] for unit in everything if unit in before)
        fewest += fewest_moves(len(after), before, everything)
    return found, fewest


def owning(input_group: ConnectAssignorInput, after: Mapping[str, Units]) -> ConnectAssignorInput:
    """The same group after every member has reached its assignment."""
    return replace(
        input_group,
        members=[replace(member, owned=after[member.member_id]) for member in input_group.members],
        delayed=(),
    )

"""The contract class detects each kind of violation in the test named after it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from connectgroup.assign.api import ConnectAssignment, ConnectAssignor, ConnectAssignorInput
from connectgroup.assign.members import ConnectMember, ConnectMemberAssignment
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.errors import PluginError
from connectgroup.protocol.units import Unit
from connectgroup.testing.contracts.connect_assignor import ConnectAssignorContract


def dealt(members: Iterable[ConnectMember], units: Iterable[Unit]) -> ConnectAssignment:
    """Units dealt to the members, in the given orders."""
    held: dict[str, set[Unit]] = {member.member_id: set() for member in members}
    names = list(held)
    for index, unit in enumerate(units if names else ()):
        held[names[index % len(names)]].add(unit)
    return ConnectAssignment(
        members=[ConnectMemberAssignment(member_id=name, units=frozenset(its)) for name, its in held.items()]
    )


def in_order(group: ConnectAssignorInput) -> list[ConnectMember]:
    return sorted(group.members, key=lambda member: member.member_id)


class Broken(ConnectAssignor):
    name = "broken"


class ForgetsOne(Broken):
    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        return dealt(in_order(group), group.units[1:])


class AllToTheFirst(Broken):
    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        return dealt(in_order(group)[:1], group.units)


class ReassignsEverything(Broken):
    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        fewest = sorted(in_order(group), key=lambda member: len(member.owned))
        return dealt(fewest, group.units)


class InputOrder(Broken):
    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        return dealt(group.members, group.units)


class HashOrder(Broken):
    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        return dealt(in_order(group), frozenset(group.units))


class Remembers(Broken):
    def __init__(self) -> None:
        self.calls = 0

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        self.calls += 1
        members = in_order(group)
        turn = self.calls % max(len(members), 1)
        return dealt(members[turn:] + members[:turn], group.units)


class NoName(BalancedAssignor):
    name = ""


class ContractOf(ConnectAssignorContract):
    """Abstract: pytest collects none of these; the tests below instantiate them."""

    __test__ = False
    kind: type[ConnectAssignor] = BalancedAssignor

    def assignor(self) -> ConnectAssignor:
        return self.kind()


class ContractOfHashOrder(ContractOf):
    kind = HashOrder


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (NoName, "test_it_can_introduce_itself_to_the_group"),
        (ForgetsOne, "test_everything_is_given_to_exactly_one_member"),
        (AllToTheFirst, "test_counts_are_within_one_of_each_other"),
        (ReassignsEverything, "test_its_own_answer_comes_back_unchanged"),
        (InputOrder, "test_order_of_the_input_has_no_effect"),
        (Remembers, "test_nothing_is_remembered_between_calls"),
    ],
)
def test_each_way_to_break_the_contract_fails_its_test(kind: type[ConnectAssignor], test: str) -> None:
    contract = ContractOf()
    contract.kind = kind
    with pytest.raises((AssertionError, PluginError, pytest.fail.Exception)):
        getattr(contract, test)()


def test_result_that_depends_on_the_hash_seed_fails_its_test() -> None:
    with pytest.raises(AssertionError):
        ContractOfHashOrder().test_the_answer_does_not_hang_on_the_hash_seed()


def test_checks_of_unwanted_properties_can_be_disabled() -> None:
    contract = ContractOf()
    for switched, kind in (("even", AllToTheFirst), ("sticky", ReassignsEverything)):
        contract.kind = kind
        setattr(contract, switched, False)
    contract.test_its_own_answer_comes_back_unchanged()
    contract.kind = AllToTheFirst
    contract.test_counts_are_within_one_of_each_other()


def test_example_of_a_custom_assignor_passes_its_contract() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "examples" / "custom_assignor.py")],
        cwd=root,
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout

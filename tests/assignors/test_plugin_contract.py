"""``AssignorContract``: ten lines suffice for either kind, and each violation fails its test.

Checks common to both kinds are in ``test_assignor_contract``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from connectgroup.assign.api import (
    ConnectAssignment,
    ConnectAssignor,
    ConnectAssignorInput,
    PartitionAssignment,
    PartitionAssignor,
    PartitionAssignorInput,
)
from connectgroup.assign.members import (
    ConnectMember,
    ConnectMemberAssignment,
    ConnectorSpec,
    Metadata,
    PartitionMember,
    PartitionMemberAssignment,
)
from connectgroup.assign.placement import WorkerTraits
from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from connectgroup.assignors.sticky import StickyAssignor
from connectgroup.errors import PluginError
from connectgroup.protocol.units import TopicPartition, Unit
from connectgroup.testing import AssignorContract

from .partition_tables import input_group, partitions

# --------------------------------------------------------------------------------------------------
# A plug-in of each kind, as an author would write it


class Dealt(ConnectAssignor):
    name = "dealt"

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        ids = sorted(member.member_id for member in group.members)
        tasks = [unit for unit in group.units if not unit.is_connector]
        connectors = [unit for unit in group.units if unit.is_connector]
        held = {name: {*tasks[turn :: len(ids)], *connectors[turn :: len(ids)]} for turn, name in enumerate(ids)}
        shares = [ConnectMemberAssignment(member_id=name, units=frozenset(its)) for name, its in held.items()]
        return ConnectAssignment(members=shares)


class TestDealt(AssignorContract):
    assignor = Dealt
    fewest = False


class DelaysWithoutMembers(Dealt):
    """ "Assign each unit exactly once or list it as delayed", also in a group without members."""

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        if group.members:
            return super().assign(group)
        return ConnectAssignment(members=[], delayed=frozenset(group.units), delay_ms=1_000)


class TestDelaysWithoutMembers(AssignorContract):
    assignor = DelaysWithoutMembers
    fewest = False


class FirstSubscriber(PartitionAssignor):
    name = "first-subscriber"

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        members = sorted(group.members, key=lambda member: member.member_id)
        held: defaultdict[str, set[TopicPartition]] = defaultdict(set)
        for one in group.partitions:
            held[next(member.member_id for member in members if one.topic in member.subscribed)].add(one)
        shares = [PartitionMemberAssignment(member_id=name, partitions=frozenset(its)) for name, its in held.items()]
        return PartitionAssignment(members=shares)


class TestFirstSubscriber(AssignorContract):
    assignor = FirstSubscriber
    even = False


class TestBalancedMovesTheFewest(AssignorContract):
    assignor = BalancedAssignor


# --------------------------------------------------------------------------------------------------
# Violations


class Broken(PartitionAssignor):
    """Correct, except for what a subclass changes in the members, partitions or result."""

    name = "broken"

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        held = self.dealt(self.members(group), self.partitions(group))
        shares = [PartitionMemberAssignment(member_id=name, partitions=frozenset(its)) for name, its in held.items()]
        return PartitionAssignment(members=shares)

    def members(self, group: PartitionAssignorInput) -> Sequence[PartitionMember]:
        return sorted(group.members, key=lambda member: member.member_id)

    def partitions(self, group: PartitionAssignorInput) -> Iterable[TopicPartition]:
        return group.partitions

    def dealt(
        self, members: Sequence[PartitionMember], partitions: Iterable[TopicPartition]
    ) -> dict[str, set[TopicPartition]]:
        """Each partition to the subscriber with the fewest so far, the first of them."""
        held: dict[str, set[TopicPartition]] = {member.member_id: set() for member in members}
        for one in partitions:
            takers = [member.member_id for member in members if one.topic in member.subscribed]
            held[min(takers, key=lambda name: len(held[name]))].add(one)
        return held


class NoName(Broken):
    name = ""


class ForgetsOne(Broken):
    def partitions(self, group: PartitionAssignorInput) -> Iterable[TopicPartition]:
        return group.partitions[1:]


class GivesToAnybody(Broken):
    def members(self, group: PartitionAssignorInput) -> Sequence[PartitionMember]:
        topics = frozenset(spec.name for spec in group.topics)
        return [PartitionMember(member_id=each.member_id, subscribed=topics) for each in super().members(group)]


class AllToTheFirst(Broken):
    def dealt(
        self, members: Sequence[PartitionMember], partitions: Iterable[TopicPartition]
    ) -> dict[str, set[TopicPartition]]:
        takers = {one: next(each.member_id for each in members if one.topic in each.subscribed) for one in partitions}
        return {each.member_id: {one for one in takers if takers[one] == each.member_id} for each in members}


class FewestFirst(Broken):
    def members(self, group: PartitionAssignorInput) -> Sequence[PartitionMember]:
        return sorted(super().members(group), key=lambda member: len(member.owned))


class InputOrder(Broken):
    def members(self, group: PartitionAssignorInput) -> Sequence[PartitionMember]:
        return group.members


class HashOrder(Broken):
    def partitions(self, group: PartitionAssignorInput) -> Iterable[TopicPartition]:
        return frozenset(group.partitions)


class Remembers(Broken):
    calls = 0

    def members(self, group: PartitionAssignorInput) -> Sequence[PartitionMember]:
        self.calls += 1
        members = super().members(group)
        turn = self.calls % max(len(members), 1)
        return [*members[turn:], *members[:turn]]


class RefusesUnknownTopics(Broken):
    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        for member in group.members:
            if member.subscribed - {spec.name for spec in group.topics}:
                raise ValueError("gone")
        return super().assign(group)


class NeedlessExchange(StickyAssignor):
    """Two members exchange one partition each: balanced, but with needless moves."""

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        shares = {each.member_id: set(each.partitions) for each in super().assign(group).members}
        full = [name for name in sorted(shares) if shares[name]]
        if len(full) > 1 and len({member.subscribed for member in group.members}) == 1:
            one, other = min(shares[full[0]]), max(shares[full[1]])
            shares[full[0]] ^= {one, other}
            shares[full[1]] ^= {one, other}
        its = [PartitionMemberAssignment(member_id=name, partitions=frozenset(some)) for name, some in shares.items()]
        return PartitionAssignment(members=its)


class WithholdsForEver(CooperativeStickyAssignor):
    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        return PartitionAssignment(withheld=frozenset(group.partitions))


class MovesAllTheTasks(BalancedAssignor):
    """Balances as though no member owned anything."""

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        backwards = sorted(group.members, key=lambda member: (-len(member.owned), member.member_id))
        ids = [member.member_id for member in backwards]
        held: dict[str, set[Unit]] = {name: set() for name in ids}
        for wanted in (True, False):
            for turn, unit in enumerate([unit for unit in group.units if unit.is_connector is wanted] if ids else ()):
                held[ids[turn % len(ids)]].add(unit)
        shares = [ConnectMemberAssignment(member_id=name, units=frozenset(its)) for name, its in held.items()]
        return ConnectAssignment(members=shares)


class ContractOfHashOrder(AssignorContract):
    """At module level, so that a subprocess finds it by name."""

    __test__ = False
    assignor = HashOrder


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (NoName, "test_it_can_introduce_itself_to_the_group"),
        (ForgetsOne, "test_everything_is_given_to_exactly_one_member"),
        (GivesToAnybody, "test_everything_is_given_to_exactly_one_member"),
        (AllToTheFirst, "test_counts_are_within_one_of_each_other"),
        (WithholdsForEver, "test_counts_are_within_one_of_each_other"),
        (FewestFirst, "test_its_own_answer_comes_back_unchanged"),
        (InputOrder, "test_order_of_the_input_has_no_effect"),
        (Remembers, "test_nothing_is_remembered_between_calls"),
        (RefusesUnknownTopics, "test_a_topic_that_does_not_exist_is_refused_or_is_nothing"),
        (NeedlessExchange, "test_no_more_is_moved_than_even_counts_need"),
        (MovesAllTheTasks, "test_no_more_is_moved_than_even_counts_need"),
    ],
)
def test_each_way_to_break_the_contract_fails_its_test(kind: type[Any], test: str) -> None:
    contract = type("Contract", (AssignorContract,), {"assignor": kind})()
    with pytest.raises((AssertionError, PluginError, pytest.fail.Exception)):
        getattr(contract, test)()


class PerMember(ConnectAssignor):
    """Fails on a group without members, as a first version of an assignor may."""

    name = "per-member"

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        len(group.units) // len(group.members)
        return BalancedAssignor().assign(group)


@pytest.mark.parametrize(
    "test",
    [
        "test_everything_is_given_to_exactly_one_member",
        "test_counts_are_within_one_of_each_other",
        "test_its_own_answer_comes_back_unchanged",
        "test_order_of_the_input_has_no_effect",
        "test_nothing_is_remembered_between_calls",
        "test_no_more_is_moved_than_even_counts_need",
        "test_the_answer_does_not_hang_on_the_hash_seed",
    ],
)
def test_failure_is_one_line_without_traceback_and_names_the_sample_group(test: str) -> None:
    contract = type("Contract", (AssignorContract,), {"assignor": PerMember})()
    with pytest.raises(
        pytest.fail.Exception, match=r"ZeroDivisionError.*\(at .*\), on the group 'no members and no connectors'$"
    ) as caught:
        getattr(contract, test)()
    assert not caught.value.pytrace
    assert caught.value.__suppress_context__
    assert "\n" not in str(caught.value)


def test_result_that_depends_on_the_hash_seed_fails_its_test() -> None:
    with pytest.raises(AssertionError):
        ContractOfHashOrder().test_the_answer_does_not_hang_on_the_hash_seed()


def test_assignor_that_ignores_a_missing_topic_is_not_strict() -> None:
    contract = type("Contract", (AssignorContract,), {"assignor": Broken, "strict": True})()
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        contract.test_a_topic_that_does_not_exist_is_refused_or_is_nothing()


def test_checks_of_unwanted_properties_can_be_disabled() -> None:
    for kind, switch, test in (
        (NeedlessExchange, "fewest", "test_no_more_is_moved_than_even_counts_need"),
        (MovesAllTheTasks, "even", "test_no_more_is_moved_than_even_counts_need"),
        (FewestFirst, "sticky", "test_its_own_answer_comes_back_unchanged"),
    ):
        getattr(type("Contract", (AssignorContract,), {"assignor": kind, switch: False})(), test)()


def test_most_loaded_members_keep_the_remainder() -> None:
    """From 4, 3 and 0, two moves lead to 3, 2 and 2; three to 2, 2 and 3."""

    class Scripted(PartitionAssignor):
        name = "scripted"

        def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
            new = {"m1": "t{0,1}", "m2": "t{4,5}", "m3": "t{2,3,6}"}
            its = [PartitionMemberAssignment(member_id=name, partitions=partitions(new[name])) for name in new]
            return PartitionAssignment(members=its)

    class About(AssignorContract):
        __test__ = False
        assignor = Scripted

        def groups(self) -> dict[str, PartitionAssignorInput]:
            owned = {"m1": "t{0,1,2,3}", "m2": "t{4,5,6}"}
            return {"a newcomer": input_group({"t": 7}, dict.fromkeys(["m1", "m2", "m3"], "*"), owned=owned)}

    with pytest.raises(AssertionError, match="a newcomer: 3 partitions moved, 2 are enough"):
        About().test_no_more_is_moved_than_even_counts_need()


@pytest.mark.parametrize("given", [None, BalancedAssignor(), TopicPartition, "balanced"])
def test_invalid_assignor_is_rejected_when_the_class_is_defined(given: object) -> None:
    with pytest.raises(TypeError, match=r"TestOdd\.assignor: got .*; allowed: a class that derives from"):
        type("TestOdd", (AssignorContract,), {"assignor": given})


def test_contract_without_samples_says_what_is_missing() -> None:
    class About(AssignorContract):
        __test__ = False

    with pytest.raises(NotImplementedError, match="which assignor it is about"):
        About().test_it_can_introduce_itself_to_the_group()


class Slots(ConnectAssignor):
    """Needs its traits, and the metadata of every member: a number of slots."""

    name = "slots"
    slots: int

    def configure(self, traits: WorkerTraits) -> None:
        self.slots = traits.capacity + 1

    def metadata(self) -> Metadata:
        return Metadata(metadata=b"%d" % self.slots)

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        assert self.slots
        slots = {member.member_id: int(member.metadata) for member in group.members}
        most = max(sorted(slots), key=lambda member_id: slots[member_id], default=None)
        shares = [] if most is None else [ConnectMemberAssignment(member_id=most, units=frozenset(group.units))]
        return ConnectAssignment(members=shares)


class TestSlots(AssignorContract):
    """The members of the sample groups have the metadata of assignors on workers with their traits."""

    assignor = Slots
    even = False

    def groups(self) -> dict[str, ConnectAssignorInput]:
        members = [ConnectMember(member_id="a", capacity=3), ConnectMember(member_id="b", metadata=b"9")]
        return {**super().groups(), "mine": ConnectAssignorInput(members=members, connectors=[ConnectorSpec(name="c")])}

    def test_members_have_metadata(self) -> None:
        assert [member.metadata for member in self.inputs()["mine"].members] == [b"4", b"9"]
        answer = self.configured().assign(self.inputs()["mine"])
        assert [share.member_id for share in answer.members] == ["b"]


def test_failure_names_the_group_of_the_author() -> None:
    class About(AssignorContract):
        __test__ = False
        assignor = Slots

        def groups(self) -> dict[str, Any]:
            return {"two zones": ConnectAssignorInput(members=[ConnectMember(member_id="a", metadata=b"x")])}

    with pytest.raises(pytest.fail.Exception, match=r"ValueError: invalid literal.*, on the group 'two zones'$"):
        About().test_everything_is_given_to_exactly_one_member()
    About.groups = lambda self: {"two zones": []}  # type: ignore[method-assign]
    with pytest.raises(pytest.fail.Exception, match=r"^groups: 'two zones': got 'an object of list'; allowed: Conn"):
        About().test_everything_is_given_to_exactly_one_member()


def test_groups_of_the_author_precede_those_of_the_kind() -> None:
    class Own(AssignorContract):
        __test__ = False

        def groups(self) -> dict[str, PartitionAssignorInput]:
            return {"mine": PartitionAssignorInput()}

    class About(Own):
        assignor = Broken

    assert About().groups().keys() == {"mine"}

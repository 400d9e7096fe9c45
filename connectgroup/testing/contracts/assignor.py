"""The contract of every assignor, of either kind, as one pytest class to inherit.

    from connectgroup.testing import AssignorContract

    class TestMine(AssignorContract):
        assignor = Mine

        def groups(self) -> dict[str, ConnectAssignorInput]:  # optional: further groups, by a name for messages
            return {**super().groups(), "two zones": ConnectAssignorInput(members=[...], connectors=[...])}

runs the whole contract on a table of groups: without members, fresh, unbalanced, with members that left or joined, with
owned units that no longer exist or are claimed twice. Disable what the assignor does not aim at: ``even = False`` if it
balances by weight or co-locates units, ``fewest = False`` if it computes each assignment from scratch,
``sticky = False`` if it ignores the current owners, ``revokes_duplicates = True`` if it revokes a unit that two workers
claim from both. All built-in assignors pass the contract.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any, ClassVar

import pytest

from ...assign.api import (
    Assignor,
    ConnectAssignor,
    ConnectAssignorInput,
    PartitionAssignment,
    PartitionAssignor,
    PartitionAssignorInput,
    RebalanceProtocol,
    assigned_too_early,
)
from ...assign.convert import assignor_info
from ...assign.members import Metadata, PartitionMember, TopicSpec, claimants
from ...assign.sandbox import run_assignor
from ...errors import PluginError
from ...protocol.units import Partitions, TopicPartition
from .connect_assignor import (
    AssignorPromises,
    AssignorPromises as Promises,
    ConnectAssignorContract,
    metadata_in,
    on_group,
    unless,
)


class PartitionAssignorContract(AssignorPromises[PartitionAssignorInput, PartitionAssignment, TopicPartition]):
    """The contract of assignors of topic partitions.

    Attributes:
        strict: whether a subscription to a topic that does not exist is rejected or ignored.
    """

    strict: ClassVar[bool] = False

    def assignor(self) -> PartitionAssignor:
        """A new assignor to test."""
        raise NotImplementedError("a contract test says which assignor it is about: def assignor(self)")

    def groups(self) -> dict[str, PartitionAssignorInput]:
        """See ``sample_groups``."""
        return sample_groups()

    def metadata_of(self, member: PartitionMember) -> Metadata:
        """What the assignor of a consumer with these topics returns."""
        return metadata_in(assignor_info(self.configured(), member.subscribed))

    def to_give(self, group: PartitionAssignorInput) -> Partitions:
        """Every partition of a topic with at least one subscriber."""
        return frozenset(group.partitions)

    def shares(self, group: PartitionAssignorInput, answer: PartitionAssignment) -> dict[str, Partitions]:
        """Every member's assignment, including members that the result omits."""
        given = {member.member_id: member.partitions for member in answer.members}
        return {member.member_id: given.get(member.member_id, frozenset()) for member in group.members}

    def left_out(self, answer: PartitionAssignment) -> Partitions:
        """The partitions that another member still owns."""
        return answer.withheld

    def final(self, group: PartitionAssignorInput) -> tuple[PartitionAssignorInput, PartitionAssignment]:
        """Run again while partitions are withheld, after their owner has revoked them; at most 4 rounds (KIP-429)."""
        for _ in range(4):
            answer = run_assignor(self.configured(), group)
            if not answer.withheld:
                return group, answer
            group = self.owning(group, self.shares(group, answer))
        raise AssertionError("four rounds, and something is withheld in each")

    def counts(
        self, group: PartitionAssignorInput, shares: Mapping[str, Partitions]
    ) -> Iterator[tuple[str, list[int]]]:
        """Balanced if all members have the same subscription."""
        if len({member.subscribed for member in group.members}) == 1:
            yield "partitions", [len(partitions) for partitions in shares.values()]

    def owning(self, group: PartitionAssignorInput, shares: Mapping[str, Partitions]) -> PartitionAssignorInput:
        """The same input after every member has applied its assignment."""
        members = [dataclasses.replace(member, owned=shares[member.member_id]) for member in group.members]
        return dataclasses.replace(group, members=members)

    def shuffled(self, group: PartitionAssignorInput, random: Random) -> PartitionAssignorInput:
        """The same input with members and topics in another order."""
        members, topics = list(group.members), list(group.topics)
        random.shuffle(members)
        random.shuffle(topics)
        return dataclasses.replace(group, members=members, topics=topics)

    def text_of(self, answer: PartitionAssignment) -> str:
        """All assignments, sorted."""
        shares = sorted((member.member_id, member.version, sorted(member.partitions)) for member in answer.members)
        return repr((answer.error, answer.message, shares, sorted(answer.withheld)))

    def test_a_topic_that_does_not_exist_is_refused_or_is_nothing(self) -> None:
        there, gone = frozenset({"t"}), frozenset({"gone"})
        members = [PartitionMember(member_id="m1", subscribed=there | gone), PartitionMember(member_id="m2")]
        group = PartitionAssignorInput(members=members, topics=[TopicSpec(name="t", num_partitions=2)])
        if self.strict:
            with pytest.raises(PluginError, match="gone"):
                run_assignor(self.configured(), group)
        else:
            with on_group("with a subscription to a topic that does not exist"):
                shares = self.shares(group, run_assignor(self.configured(), group))
            assert shares == {"m1": frozenset(group.partitions), "m2": frozenset()}

    def test_who_lists_cooperative_gives_nothing_to_one_while_another_owns_it(self) -> None:
        """KIP-429; the leader of a classic group rejects such a result."""
        if RebalanceProtocol.COOPERATIVE not in self.assignor().rebalance_protocols:
            return
        for name, group in self.inputs().items():
            with on_group(name):
                early = assigned_too_early(group.members, run_assignor(self.configured(), group))
                assert not early, f"{name}: {early[0]}"


def sample_groups() -> dict[str, PartitionAssignorInput]:
    """The groups that the contract runs on, by name; small and deterministic."""
    topics = [TopicSpec(name="t1", num_partitions=4), TopicSpec(name="t2", num_partitions=7)]
    topics += [TopicSpec(name="empty", num_partitions=0), TopicSpec(name="nobody's", num_partitions=3)]
    names = ("t1", "t2", "empty")
    everything = [TopicPartition(spec.name, number) for spec in topics[:2] for number in range(spec.num_partitions)]
    gone = [TopicPartition("gone", 0), TopicPartition("t1", 99), TopicPartition("nobody's", 0)]

    def alike(owned: Mapping[str, Iterable[TopicPartition]]) -> PartitionAssignorInput:
        return PartitionAssignorInput(members=[_member(each, names, its) for each, its in owned.items()], topics=topics)

    groups = {
        "no members and no topics": PartitionAssignorInput(),
        "no members": PartitionAssignorInput(topics=topics),
        "nothing to read": PartitionAssignorInput(members=[_member("m1", ()), _member("m2", ())]),
        "nobody subscribed": PartitionAssignorInput(members=[_member("m1", (), everything)], topics=topics),
        "one member, fresh": alike({"m1": ()}),
        "three members, fresh": alike({"m1": (), "m2": (), "m3": ()}),
        "more members than partitions": alike({f"m{number:02}": () for number in range(15)}),
        "one owns everything": alike({"m1": everything, "m2": (), "m3": ()}),
        "owning what is gone": alike({"m1": gone, "m2": everything[:5]}),
        "two claim the same": alike({"m1": everything[:6], "m2": everything[3:9], "m3": ()}),
    }
    random = Random(3)
    for number in range(12):
        specs = [TopicSpec(name=f"topic-{n}", num_partitions=random.randint(0, 9)) for n in range(random.randint(1, 6))]
        ids = [f"member-{n}" for n in range(random.randint(1, 7))]
        holders = ids[: random.randint(1, len(ids))]
        owned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in ids}
        for spec in specs:
            for partition in range(spec.num_partitions):
                if random.random() < 0.8:
                    owned[random.choice(holders)].append(TopicPartition(spec.name, partition))
        wanted = [spec.name for spec in specs]
        members = [
            _member(
                member_id,
                wanted if number % 2 else random.sample(wanted, random.randint(0, len(wanted))),
                owned[member_id],
                instance_id=f"static-{member_id[::-1]}" if random.random() < 0.3 else None,
                generation=random.choice((-1, 4, 5)),
            )
            for member_id in ids
        ]
        groups[f"random {number}"] = PartitionAssignorInput(members=members, topics=specs)
    return groups


def _member(
    member_id: str,
    subscribed: Iterable[str],
    owned: Iterable[TopicPartition] = (),
    *,
    instance_id: str | None = None,
    generation: int = -1,
) -> PartitionMember:
    return PartitionMember(
        member_id=member_id,
        instance_id=instance_id,
        subscribed=frozenset(subscribed),
        owned=frozenset(owned),
        generation=generation,
    )


class AssignorContract(Promises[Any, Any, Any]):
    """Complete, valid, balanced, deterministic, order-independent, sticky on its own result, with the fewest moves.

    Attributes:
        assignor: the plug-in, a class that derives from ``ConnectAssignor`` or ``PartitionAssignor``.
        even: whether the members' counts must differ by at most one (partitions: if all have the same subscription).
        fewest: whether a balanced assignor must revoke no more from any member than balance requires.
        sticky: whether the assignor, run on its own result, must return it unchanged.
        strict: partitions only: whether a subscription to a topic that does not exist is rejected or ignored.
        revokes_duplicates: connectors and tasks only: whether a unit that several workers claim is revoked from all of
            them, as in KIP-415, or the first of them, sorted, keeps it. Every claimant revokes a partition that is
            claimed twice (KIP-792).
    """

    contract_requires: ClassVar[tuple[str, ...]] = ("assignor",)
    assignor: Callable[[], Assignor[Any, Any, Any]]
    fewest: ClassVar[bool] = True
    strict: ClassVar[bool] = False
    revokes_duplicates: ClassVar[bool] = False

    def __init_subclass__(cls, **more: Any) -> None:
        """Add the sample groups and the tests that are specific to assignors of this kind."""
        super().__init_subclass__(**more)
        if "assignor" not in vars(cls):
            return
        given = vars(cls)["assignor"]
        kinds = {ConnectAssignor: ConnectAssignorContract, PartitionAssignor: PartitionAssignorContract}
        for base, contract in kinds.items():
            if inspect.isclass(given) and issubclass(given, base):
                # After the author's own bases, so that the author can override it.
                cls.__bases__ = (*(each for each in cls.__bases__ if each is not contract), contract)
                return
        raise TypeError(
            f"{cls.__name__}.assignor: got {given!r}; allowed: a class that derives from ConnectAssignor or "
            "PartitionAssignor, itself and not a function that makes one"
        )

    def test_no_more_is_moved_than_even_counts_need(self) -> None:
        """The most loaded members keep one more where some must have it: balance is impossible with fewer moves."""
        if not (self.even and self.fewest):
            return
        for name, group in self.inputs().items():
            with on_group(name):
                held = holdings(group, revokes_duplicates=self.revokes_duplicates)
                settled, answer = self.final(group)
                shares = self.shares(settled, answer)
                taken = {member_id: held[member_id] - shares[member_id] for member_id in held}
                parts = zip(*(self.counts(group, each) for each in (held, shares, taken)), strict=True)
                for (word, before), (_, after), (_, moved) in parts:
                    share, extra = divmod(sum(after), len(after)) if after else (0, 0)
                    limits = [share + (place < extra) for place in range(len(after))]
                    needed = sum(max(0, had - limit) for had, limit in zip(sorted(before)[::-1], limits, strict=True))
                    assert sum(moved) <= needed, (
                        f"{name}: {sum(moved)} {word} moved, {needed} are enough{unless('fewest')}"
                    )


def holdings(
    group: ConnectAssignorInput | PartitionAssignorInput, *, revokes_duplicates: bool = False
) -> dict[str, frozenset[Any]]:
    """The units that each member owns and may keep: they exist, and the member is their only owner.

    Of two workers that claim a unit the first, sorted, owns it, or neither (``revokes_duplicates``); of two consumers
    neither does (KIP-792).
    """
    holder: dict[Any, str]
    if isinstance(group, PartitionAssignorInput):
        there = frozenset[Any](group.partitions)
        holder = {each: owners[0] for each, owners in claimants(group.members).items() if len(owners) == 1}
    else:
        there = frozenset(group.units)
        claims = Counter(unit for member in group.members for unit in member.owned)
        backwards = sorted(group.members, key=lambda member: member.member_id, reverse=True)
        holder = {
            unit: member.member_id
            for member in backwards
            for unit in member.owned
            if claims[unit] == 1 or not revokes_duplicates
        }
    return {
        member.member_id: frozenset(each for each in there if holder.get(each) == member.member_id)
        for member in group.members
    }

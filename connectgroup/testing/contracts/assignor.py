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

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from ...assign.api import Assignor, ConnectAssignor, ConnectAssignorInput, PartitionAssignor, PartitionAssignorInput
from ...assign.members import claimants
from .connect_assignor import AssignorPromises as Promises, ConnectAssignorContract, on_group, unless
from .partition_assignor import PartitionAssignorContract


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

"""The columns of a partition group, the generation rule, and the validation of results given as arrays."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from connectgroup.assign.columns import SEVERAL, UNASSIGNED, PartitionColumns, collector_paused, order_of
from connectgroup.assign.members import claimants, validate_subscription
from connectgroup.assign.sandbox import run_assignor
from connectgroup.errors import PluginError
from connectgroup.protocol.units import TopicPartition
from tests.volume import volume

from .partition_inputs import input_groups
from .partition_tables import input_group, partitions

# --------------------------------------------------------------------------------------------------
# Who owns what (KIP-792)


def test_overlapping_claims_of_one_generation_are_named() -> None:
    subscribed = {"c1": "*", "c2": "*", "c3": "*"}
    owned = {"c1": "t{0,1}", "c2": "t{1,2}", "c3": "t{2}"}
    group = input_group({"t": 3}, subscribed, owned=owned, generations={"c1": 4, "c2": 4, "c3": 4})
    assert validate_subscription(group.members) == {
        TopicPartition("t", 1): ("c1", "c2"),
        TopicPartition("t", 2): ("c2", "c3"),
    }


def test_stale_claim_does_not_overlap() -> None:
    subscribed = {"c1": "*", "c2": "*"}
    for stale in (3, -1):
        owned = {"c1": "t{0,1}", "c2": "t{1,2}"}
        group = input_group({"t": 3}, subscribed, owned=owned, generations={"c1": stale, "c2": 4})
        assert validate_subscription(group.members) == {}
        assert claimants(group.members)[TopicPartition("t", 1)] == ("c2",)
        assert claimants(group.members)[TopicPartition("t", 0)] == ("c1",)  # stale, but undisputed


def test_generations_are_unknown_by_default() -> None:
    assert input_group({}, {"c1": ""}).members[0].generation == -1


@settings(max_examples=volume(50, 200), deadline=None)
@given(input_groups())
def test_columns_equal_the_objects(group: PartitionAssignorInput) -> None:
    columns = group.columns()
    assert tuple(columns.partition(index) for index in range(len(columns.partition_topic))) == group.partitions
    owners = claimants(group.members)
    subscribed = {member.member_id: member.subscribed for member in group.members}
    for index, partition in enumerate(group.partitions):
        claim, owner = int(columns.partition_claim[index]), int(columns.partition_owner[index])
        claimed = owners.get(partition, ())
        assert claim == (
            UNASSIGNED if not claimed else SEVERAL if len(claimed) > 1 else columns.member_ids.index(claimed[0])
        )
        stays = claim >= 0 and partition.topic in subscribed[columns.member_ids[claim]]
        assert owner == (claim if stays else UNASSIGNED)
    for index, member_id in enumerate(columns.member_ids):
        row = columns.subscribed[columns.member_kind[index]]
        assert {name for name, yes in zip(columns.topic_names, row, strict=True) if yes} == subscribed[member_id] & {
            *columns.topic_names
        }
    assert len({row.tobytes() for row in columns.subscribed}) == len(columns.subscribed)


def test_claim_of_an_invalid_partition_is_ignored() -> None:
    """Otherwise it could be taken for the neighbouring topic's last partition."""
    owned = frozenset({TopicPartition("u", -1), TopicPartition("t", 2)})
    columns = input_group({"t": 2, "u": 1}, {"m1": "*"}, owned={"m1": owned}).columns()
    assert columns.partition_claim.tolist() == [UNASSIGNED] * 3


@given(st.lists(st.integers(-1, 3) | st.integers(0, 70_000), max_size=40))
def test_sort_is_stable_for_narrow_and_wide_numbers(numbers: list[int]) -> None:
    order = order_of(np.array(numbers, dtype=np.int64)).tolist()
    assert order == sorted(range(len(numbers)), key=lambda index: numbers[index])


@pytest.mark.parametrize("was_on", [True, False])
def test_garbage_collector_settings_are_restored(was_on: bool) -> None:
    def fails_in_it() -> None:
        with collector_paused():
            assert not gc.isenabled()
            raise ZeroDivisionError

    (gc.enable if was_on else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError):
            fails_in_it()
        assert gc.isenabled() is was_on
    finally:
        gc.enable()


# --------------------------------------------------------------------------------------------------
# Results as arrays


INPUT = input_group({"t": 2, "u": 1}, {"m1": "t", "m2": "*"}, owned={"m1": "t{0}", "m2": "u{0}"})


class Scripted(PartitionAssignor):
    """Returns the given array, for the given columns."""

    name = "scripted"

    def __init__(self, owner: object, columns: PartitionColumns | None = None, withheld: str = "") -> None:
        self._owner, self._columns, self._withheld = owner, columns, withheld

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        columns = self._columns or group.columns()
        return PartitionAssignment.from_columns(
            columns,
            self._owner,  # type: ignore[arg-type]
            withheld=partitions(self._withheld),
        )


def test_result_as_an_array_has_every_assignment() -> None:
    result = run_assignor(Scripted(np.array([0, 1, 1])), INPUT)
    assert [(member.member_id, member.partitions) for member in result.members] == [
        ("m1", partitions("t{0}")),
        ("m2", partitions("t{1} u{0}")),
    ]


def test_unchanged_assignment_is_the_same_set() -> None:
    result = run_assignor(Scripted(np.array([0, 1, 1])), INPUT)
    assert result.members[0].partitions is INPUT.members[0].owned


def test_omitted_partitions_may_be_withheld_but_must_be_complete() -> None:
    result = run_assignor(Scripted(np.array([0, -1, 1]), withheld="t{1}"), INPUT)
    assert result.withheld == partitions("t{1}")


@pytest.mark.parametrize(
    ("make", "violation"),
    [
        (lambda: Scripted(np.array([0, 1])), r"owner: got int64 of shape \(2,\); allowed: signed integers of shape"),
        (lambda: Scripted(np.array([0.0, 1, 1])), "owner: got float64 of shape"),
        (lambda: Scripted([0, 1, 1]), "owner: got a list"),
        (lambda: Scripted(np.array([0, 2, 1])), r"owner of t-1: got 2; allowed: -1 \.\. 1"),
        (lambda: Scripted(np.array([-1, -1, 1])), r"t-0 is not assigned \(and 1 more\)"),
        (lambda: Scripted(np.array([0, 1, 0])), "u-0 is assigned to m1, which is not subscribed to it"),
        (
            lambda: Scripted(np.array([0, -1, 0]), withheld="t{1}"),
            "u-0 is assigned to m1, which is not subscribed to it",
        ),
        (lambda: Scripted(np.array([0, 1, 1]), withheld="t{1}"), "t-1, assigned to m2, is delayed"),
        (lambda: Scripted(np.array([0, -1, 1]), withheld="u{0}"), "t-1 is not assigned|u-0, assigned to m2"),
        (lambda: Scripted(np.array([0, 1, 1]), withheld="gone{0}"), "gone-0, delayed, does not exist"),
        (
            lambda: Scripted(np.array([0, 1, 1]), input_group({"t": 2, "u": 1}, {"m1": "t", "m2": "*"}).columns()),
            "columns of another group",
        ),
    ],
)
def test_invalid_array_is_one_line(make: Callable[[], Scripted], violation: str) -> None:
    with pytest.raises(PluginError, match=violation):
        run_assignor(make(), INPUT)


def test_withheld_items_must_be_partitions() -> None:
    class Odd(Scripted):
        def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
            return PartitionAssignment.from_columns(
                group.columns(),
                np.array([0, 1, 1]),
                withheld={"t-1"},  # type: ignore[arg-type]
            )

    with pytest.raises(PluginError, match=r"withheld: got .*; allowed: a frozenset of TopicPartition"):
        run_assignor(Odd(None), INPUT)

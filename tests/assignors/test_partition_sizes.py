"""Large groups. Kafka's own tests allow 30 to 90 seconds; these check the result only, not the time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from connectgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from connectgroup.assignors.range import RangeAssignor
from connectgroup.assignors.sticky import StickyAssignor
from connectgroup.assignors.uniform import UniformAssignor
from tests.volume import ci_only

from .partition_tables import Racks, input_group, validated

KINDS = pytest.mark.parametrize(
    "assignor", [UniformAssignor(), StickyAssignor(), CooperativeStickyAssignor()], ids=lambda each: each.name
)
LATER = ci_only("seconds of a core; in a user's run, the others of this size, and this one's sequences in test_sticky")
MEMBERS = [f"member{number:04}" for number in range(2000)]
TOPICS = {f"topic{number:03}": 2000 for number in range(500)}


def counts(result: PartitionAssignment) -> set[int]:
    return {len(member.partitions) for member in result.members}


def with_shares(group: PartitionAssignorInput, result: PartitionAssignment) -> PartitionAssignorInput:
    """The same group after every member has reached its assignment."""
    owned = {member.member_id: member.partitions for member in result.members}
    members = [replace(member, owned=owned[member.member_id], generation=1) for member in group.members]
    return replace(group, members=members)


@pytest.mark.parametrize(
    "assignor",
    [UniformAssignor(), pytest.param(StickyAssignor(), marks=LATER), CooperativeStickyAssignor()],
    ids=lambda each: each.name,
)
def test_sk_30_a_million_partitions_on_two_thousand_members(assignor: PartitionAssignor) -> None:
    """Assign, assign again, and once more after a leave: only the partitions of that member move."""
    group = input_group(TOPICS, dict.fromkeys(MEMBERS, "*"))
    first = validated(assignor, group)
    assert counts(first) == {500}
    again = with_shares(group, first)
    for share, member in zip(validated(assignor, again).members, again.members, strict=True):
        assert share.partitions is member.owned
    result = validated(assignor, replace(again, members=again.members[1:]))
    assert result.by_column is not None
    columns, owner = result.by_column
    assert {*np.bincount(owner).tolist()} == {500, 501}
    assert (owner != columns.partition_owner).sum() == 500


def test_sk_30_one_member_is_subscribed_to_the_first_topic_only() -> None:
    assignor = UniformAssignor()
    group = input_group(TOPICS, {**dict.fromkeys(MEMBERS, "*"), MEMBERS[-1]: "topic000"})
    first = validated(assignor, group)
    assert counts(first) == {500}
    assert {partition.topic for partition in first.members[-1].partitions} == {"topic000"}
    again = with_shares(group, first)
    for share, member in zip(validated(assignor, again).members, again.members, strict=True):
        assert share.partitions is member.owned


@pytest.mark.parametrize("alike", [True, False], ids=["cut alike", "each cut differently"])
def test_sk_30_a_hundred_thousand_partitions_in_racks(alike: bool) -> None:
    """Only the range assignor uses racks; with enough members, every partition is read in its own rack."""
    topics = {f"topic{number:02}": 2000 if alike else 2000 + number for number in range(50)}
    racks = {member_id: f"r{index % 4}" for index, member_id in enumerate(MEMBERS)}
    replicas = {name: [Racks({f"r{number % 4}"}) for number in range(count)] for name, count in topics.items()}
    group = input_group(topics, dict.fromkeys(MEMBERS, "*"), racks=racks, replicas=replicas)
    result = validated(RangeAssignor(), group)
    assert sum(len(member.partitions) for member in result.members) == sum(topics.values())
    far = sum(
        racks[member.member_id] not in replicas[topic][number]
        for member in result.members
        for topic, number in member.partitions
    )
    assert far <= sum(count % 2000 for count in topics.values())


@KINDS
def test_members_with_distinct_subscriptions_are_assigned(assignor: PartitionAssignor) -> None:
    """Two hundred different subscriptions, and all partitions owned by a few members."""
    names = [f"topic{number:03}" for number in range(200)]
    subscribed = {f"m{number:03}": " ".join({names[number], names[number * 7 % 200]}) for number in range(200)}
    owned = {f"m{number:03}": f"{names[number]}{{{','.join(map(str, range(50)))}}}" for number in range(0, 200, 2)}
    result = validated(assignor, input_group(dict.fromkeys(names, 50), subscribed, owned=owned))
    assert sum(len(member.partitions) for member in result.members) + len(result.withheld) == 10_000

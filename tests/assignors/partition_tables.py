"""Partition groups and assignments as short text, so that a test reads like the table it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from connectgroup.assign.members import PartitionMember, TopicSpec
from connectgroup.assign.sandbox import run_assignor
from connectgroup.protocol.units import Partitions, TopicPartition

Racks = frozenset[str]


def partitions(text: str) -> Partitions:
    """``"t1{0,2} t2{1}"`` as partitions."""
    found = set()
    for word in text.split():
        match = re.fullmatch(r"(\w+)\{([\d,]*)\}", word)
        assert match, word
        found |= {TopicPartition(match[1], int(number)) for number in match[2].split(",") if number}
    return frozenset(found)


def input_group(
    topics: Mapping[str, int],
    subscribed: Mapping[str, str],
    *,
    owned: Mapping[str, str | Partitions] | None = None,
    generations: Mapping[str, int] | None = None,
    instances: Mapping[str, str] | None = None,
    racks: Mapping[str, str] | None = None,
    replicas: Mapping[str, Sequence[Racks]] | None = None,
) -> PartitionAssignorInput:
    """A group from ``{topic: number of partitions}``, ``{member: its subscribed topics}``, and optional properties.

    ``"*"`` is all topics. ``owned``, ``generations``, ``instances`` and ``racks`` are by member, ``replicas`` by topic.
    """
    members = []
    for member_id, names in subscribed.items():
        its = (owned or {}).get(member_id, "")
        members.append(
            PartitionMember(
                member_id=member_id,
                instance_id=(instances or {}).get(member_id),
                subscribed=frozenset(topics if names == "*" else names.split()),
                owned=partitions(its) if isinstance(its, str) else its,
                generation=(generations or {}).get(member_id, -1),
                rack=(racks or {}).get(member_id),
            )
        )
    specs = [
        TopicSpec(name=name, num_partitions=count, racks=tuple((replicas or {}).get(name, ())))
        for name, count in topics.items()
    ]
    return PartitionAssignorInput(members=members, topics=specs)


def validated(assignor: PartitionAssignor, group: PartitionAssignorInput) -> PartitionAssignment:
    """The assignor's validated result."""
    result = run_assignor(assignor, group)
    assert result.error == 0, result.message
    return result


def shares(assignor: PartitionAssignor, group: PartitionAssignorInput) -> dict[str, Partitions]:
    """The assignor's validated result, one entry per member."""
    return {member.member_id: member.partitions for member in validated(assignor, group).members}


def table(**rows: str) -> dict[str, Partitions]:
    """The expected result, one argument per member: ``c1="t1{0,2} t2{1}"``."""
    return {member_id: partitions(text) for member_id, text in rows.items()}


def transfers(group: PartitionAssignorInput, result: Mapping[str, Partitions]) -> dict[TopicPartition, str]:
    """Partitions that move from one owner to another, with the new owner."""
    owner = {partition: member.member_id for member in group.members for partition in member.owned}
    return {
        partition: member_id
        for member_id, its in result.items()
        for partition in sorted(its)
        if owner.get(partition, member_id) != member_id
    }


def settled(assignor: PartitionAssignor, group: PartitionAssignorInput) -> dict[str, Partitions]:
    """Every member's assignment once no partition is withheld; four rounds must suffice (KIP-429)."""
    for _ in range(4):
        result = validated(assignor, group)
        given = {member.member_id: member.partitions for member in result.members}
        if not result.withheld:
            return given
        members = [replace(member, owned=given[member.member_id]) for member in group.members]
        group = replace(group, members=members)
    raise AssertionError(f"still withheld after four rounds: {sorted(result.withheld)}")


def movable(group: PartitionAssignorInput, held: Mapping[str, Partitions]) -> tuple[TopicPartition, str, str] | None:
    """A partition that could move to a subscriber with two fewer, its owner, and that member: absent if balanced."""
    subscribed = {member.member_id: member.subscribed for member in group.members}
    for owner in sorted(held):
        for partition in sorted(held[owner]):
            for other in sorted(held):
                if partition.topic in subscribed[other] and len(held[other]) + 2 <= len(held[owner]):
                    return partition, owner, other
    return None

"""Questions and answers about partitions as short text, so that a test reads like the table it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionGroup
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


def question(
    topics: Mapping[str, int],
    subscribed: Mapping[str, str],
    *,
    owned: Mapping[str, str | Partitions] | None = None,
    generations: Mapping[str, int] | None = None,
    instances: Mapping[str, str] | None = None,
    racks: Mapping[str, str] | None = None,
    replicas: Mapping[str, Sequence[Racks]] | None = None,
) -> PartitionGroup:
    """A group from ``{topic: number of partitions}``, ``{member: topics it is subscribed to}``, and what else is said.

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
    return PartitionGroup(members=members, topics=specs)


def asked(assignor: PartitionAssignor, group: PartitionGroup) -> PartitionAssignment:
    """A judged answer."""
    answer = run_assignor(assignor, group)
    assert answer.error == 0, answer.message
    return answer


def shares(assignor: PartitionAssignor, group: PartitionGroup) -> dict[str, Partitions]:
    """A judged answer, one entry a member."""
    return {member.member_id: member.partitions for member in asked(assignor, group).members}


def table(**rows: str) -> dict[str, Partitions]:
    """The answer a row of a table states: ``c1="t1{0,2} t2{1}"``."""
    return {member_id: partitions(text) for member_id, text in rows.items()}


def transfers(group: PartitionGroup, answer: Mapping[str, Partitions]) -> dict[TopicPartition, str]:
    """Partitions that somebody owns and another gets, with the latter."""
    owner = {partition: member.member_id for member in group.members for partition in member.owned}
    return {
        partition: member_id
        for member_id, its in answer.items()
        for partition in sorted(its)
        if owner.get(partition, member_id) != member_id
    }


def settled(assignor: PartitionAssignor, group: PartitionGroup) -> dict[str, Partitions]:
    """Everybody's share when nothing is withheld any more; four rounds must be enough (KIP-429)."""
    for _ in range(4):
        answer = asked(assignor, group)
        given = {member.member_id: member.partitions for member in answer.members}
        if not answer.withheld:
            return given
        members = [replace(member, owned=given[member.member_id]) for member in group.members]
        group = replace(group, members=members)
    raise AssertionError(f"still withheld after four rounds: {sorted(answer.withheld)}")


def movable(group: PartitionGroup, held: Mapping[str, Partitions]) -> tuple[TopicPartition, str, str] | None:
    """A partition that could go to a subscriber with two less, its owner, and that one: what "balanced" forbids."""
    subscribed = {member.member_id: member.subscribed for member in group.members}
    for owner in sorted(held):
        for partition in sorted(held[owner]):
            for other in sorted(held):
                if partition.topic in subscribed[other] and len(held[other]) + 2 <= len(held[owner]):
                    return partition, owner, other
    return None

"""Random partition groups for hypothesis: without owners, with few owners, scattered, with invalid claims."""

from __future__ import annotations

from hypothesis import strategies as st

from connectgroup.assign.api import PartitionAssignorInput
from connectgroup.assign.members import PartitionMember, TopicSpec
from connectgroup.protocol.units import TopicPartition

TOPICS = tuple("abcde")
MEMBERS = tuple(f"m{number}" for number in range(7))


@st.composite
def input_groups(draw: st.DrawFn, *, alike: bool | None = None) -> PartitionAssignorInput:
    """Groups of up to seven members and five topics; ``alike``: equal subscriptions; None: equal or not."""
    sizes = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), max_size=len(TOPICS)))
    ids = draw(st.lists(st.sampled_from(MEMBERS), unique=True, min_size=1))
    holders = ids[: draw(st.integers(0, len(ids)))]  # few owners, or none
    same = draw(st.booleans()) if alike is None else alike
    names = st.frozensets(st.sampled_from(sorted(sizes))) if sizes else st.just(frozenset[str]())
    subscribed = {member_id: frozenset(sizes) if same else draw(names) for member_id in ids}
    owned: dict[str, set[TopicPartition]] = {member_id: set() for member_id in ids}
    everything = [TopicPartition(name, number) for name, count in sorted(sizes.items()) for number in range(count)]
    for partition in [*everything, TopicPartition("gone", 0), TopicPartition("a", 99)]:
        for member_id in draw(st.lists(st.sampled_from(holders), max_size=2)) if holders else ():
            owned[member_id].add(partition)
    members = [
        PartitionMember(
            member_id=member_id,
            instance_id=draw(st.sampled_from([None, None, f"i-{member_id}"])),
            subscribed=subscribed[member_id],
            owned=frozenset(owned[member_id]),
            generation=draw(st.sampled_from([-1, 7, 8])),
        )
        for member_id in ids
    ]
    topics = [TopicSpec(name=name, num_partitions=count) for name, count in sizes.items()]
    return PartitionAssignorInput(members=members, topics=topics)

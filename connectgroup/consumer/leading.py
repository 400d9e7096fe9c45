"""The work of a group's leader between JoinGroup and SyncGroup: build the input, run the assignor, send the result.

The coordinator does not interpret partitions. The member that it elected leader reads all subscriptions, queries the
cluster for the topics, and computes the assignment. The assignor is untrusted code: it runs off the event loop with a
time limit, and its result is validated. If it fails, all members keep their partitions for this generation, so a
faulty plug-in costs the group no more than a rebalance.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ..assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from ..assign.members import PartitionMemberAssignment, TopicSpec
from ..assign.ownership import claimants
from ..assign.sandbox import run_assignor
from ..errors import PluginError
from ..protocol.messages.classic import JoinedMember, MemberShare
from ..protocol.units import TopicPartition, printable
from ..threads import off_loop
from ..wire.embedded import decode_subscription
from .client import GroupClient
from .rounds import Joined, assignments_to_send, group_input, validate_result

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """The result of the leader's work.

    Attributes:
        shares: for SyncGroup.
        names: the topics with at least one subscriber.
        topics: those of them that exist, as passed to the assignor.
        failure: of the assignor, if it failed; all members then keep their partitions.
    """

    shares: tuple[MemberShare, ...]
    names: frozenset[str]
    topics: tuple[TopicSpec, ...]
    failure: PluginError | None


async def lead(
    client: GroupClient,
    assignor: PartitionAssignor,
    members: Sequence[JoinedMember],
    *,
    as_before: bool,
    timeout_s: float,
) -> Led:
    """Compute the assignment of the group.

    Args:
        client: for partition counts and racks.
        assignor: the assignor that the coordinator has chosen.
        members: from the JoinGroup response.
        as_before: keep the assignment: nothing has changed except that a static leader rejoined (KIP-814). ``shares``
            is then empty, and only the topics are queried.
        timeout_s: time limit of the assignor.

    Raises:
        TransportError: no broker returned the topics.
        WireError: a member's subscription cannot be decoded.
    """
    joined = [
        Joined(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            subscription=decode_subscription(member.metadata),
            version=member.metadata_version,
            reason=member.metadata_reason,
        )
        for member in members
    ]
    names = frozenset[str]().union(*(member.subscription.topics for member in joined))
    topics = await client.topics(names)
    if as_before:
        return Led(shares=(), names=names, topics=topics.there, failure=None)
    group = group_input(joined, topics.there, assignor)
    failure = None
    try:
        async with asyncio.timeout(timeout_s):
            result = await off_loop(f"assignor {assignor.name}", _run_assignor, assignor, group)
    except TimeoutError:
        failure = PluginError(f"assignor {assignor.name!r}: no response within {timeout_s:g} s")
    except PluginError as error:
        logger.error("%s", error.with_location())
        failure = error
    if failure is not None:
        result = as_it_is(group)
    shares = await off_loop("assignment", assignments_to_send, group, result)
    return Led(
        shares=shares,
        names=names,
        topics=topics.there,
        failure=failure,
    )


def as_it_is(group: PartitionAssignorInput) -> PartitionAssignment:
    """Every member keeps its undisputed partitions; the rest is unassigned until the next rebalance."""
    sole = {partition: owners[0] for partition, owners in claimants(group.members).items() if len(owners) == 1}
    there = frozenset(group.partitions)
    kept: dict[str, set[TopicPartition]] = {member.member_id: set() for member in group.members}
    subscribed = {member.member_id: member.subscribed for member in group.members}
    for partition, member_id in sole.items():
        if partition in there and partition.topic in subscribed[member_id]:
            kept[member_id].add(partition)
    return PartitionAssignment(
        members=[
            PartitionMemberAssignment(member_id=member_id, partitions=frozenset(partitions), version=-1)  # no user data
            for member_id, partitions in kept.items()
        ]
    )


def _run_assignor(assignor: PartitionAssignor, group: PartitionAssignorInput) -> PartitionAssignment:
    result = run_assignor(assignor, group)
    if result.error:
        raise PluginError(
            f"assignor {assignor.name!r}: error {result.error}: {printable(result.message or 'no message', limit=200)}"
        )
    return validate_result(assignor, group, result)

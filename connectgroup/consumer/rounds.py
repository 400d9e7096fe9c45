"""One rebalance of a classic group, first as each member goes through it, then as its leader does.

    member   before_joining     what it gives up, and what it says it still holds
             -> JoinGroup
    leader   question           what everybody said, as an assignor is asked it
             settle             nothing is given to one member while another owns it
             shares_to_send     everybody's share as bytes
             -> SyncGroup
    member   after_sync         what it gives up, what it takes, and whether it joins again at once

The promise: a partition is revoked by its owner before it is given to another member. EAGER keeps it by giving up
everything before JoinGroup. COOPERATIVE gives up nothing then; the leader leaves out what is to move, its owner sees
that it is gone from its share, gives it up and joins again, and in that next rebalance it is free.

Both kinds may be in one group. What a member says it owns is all the leader needs to know of it: one that has given up
everything owns nothing, whatever the protocol is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..assign.api import (
    PartitionAssignment,
    PartitionAssignor,
    PartitionGroup,
    PartitionMember,
    RebalanceProtocol,
    TopicSpec,
)
from ..errors import PluginError
from ..protocol.units import Partitions, printable
from .choice import protocols_of
from .embedded import Assignment, Subscription, encode_assignment
from .validation import given_too_early

NOTHING: Partitions = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeJoining:
    """What happens to what a member holds before it sends JoinGroup.

    Attributes:
        lost: it is no longer the member's and may be somebody else's already: nothing of it can be committed.
        revoked: the member gives it up while it is still its own.
        kept: goes on, and is what the member says it owns.
    """

    lost: Partitions = NOTHING
    revoked: Partitions = NOTHING
    kept: Partitions = NOTHING


def before_joining(
    protocol: RebalanceProtocol, *, owned: Partitions, subscribed: frozenset[str], in_group: bool
) -> BeforeJoining:
    """What a member must be rid of before it sends JoinGroup, and what it may keep.

    Args:
        protocol: the one it follows: ``choice.choose_protocol``.
        owned: what it holds.
        subscribed: the topics it wants now.
        in_group: false where it has no member id or no generation (any more): it is new, or was told so.

    Source: Kafka's ``ConsumerCoordinator.onJoinPrepare``.
    """
    if not in_group:
        return BeforeJoining(lost=owned)
    if protocol is RebalanceProtocol.EAGER:
        return BeforeJoining(revoked=owned)
    unwanted = frozenset(partition for partition in owned if partition.topic not in subscribed)
    return BeforeJoining(revoked=unwanted, kept=owned - unwanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterSync:
    """What a member does with its share, in this order.

    Attributes:
        revoked: to be given up first, and before the next JoinGroup.
        holds: what it holds from then on.
        added: those of ``holds`` that are new.
        rejoin: join again at once, so that what was revoked can be given on; or, where nothing was taken over, because
            the share was made for an earlier subscription.
    """

    revoked: Partitions = NOTHING
    added: Partitions = NOTHING
    holds: Partitions = NOTHING
    rejoin: bool = False


def after_sync(*, owned: Partitions, assigned: Partitions, subscribed: frozenset[str]) -> AfterSync:
    """What a member does with the share it was given.

        revoked = owned - assigned        (none in EAGER: it comes here owning nothing)
        added   = assigned - owned

    Args:
        owned: what it kept while joining.
        assigned: its share.
        subscribed: the topics it wants now; a share with others in it is not taken over.

    Source: KIP-429, "Consumer"; Kafka's ``ConsumerCoordinator.onJoinComplete``.
    """
    if any(partition.topic not in subscribed for partition in assigned):
        return AfterSync(holds=owned, rejoin=True)
    revoked = owned - assigned
    return AfterSync(revoked=revoked, added=assigned - owned, holds=assigned, rejoin=bool(revoked))


# --------------------------------------------------------------------------------------------------
# The leader


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A member as the JoinGroup answer tells the leader of it.

    Attributes:
        subscription: what it said to the assignor that was chosen.
    """

    member_id: str
    instance_id: str | None = None
    subscription: Subscription


def question(joined: Iterable[Joined], topics: Iterable[TopicSpec], assignor: PartitionAssignor) -> PartitionGroup:
    """What everybody said, as ``assignor`` is asked it.

    Args:
        topics: those that exist; more than anybody wants does no harm.
        assignor: the one the coordinator chose. The members' user data has no version on this protocol; it is taken to
            be in the assignor's own.
    """
    members = [
        PartitionMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            version=assignor.maximum_version,
            metadata=member.subscription.user_data or b"",
            subscribed=member.subscription.topics,
            owned=member.subscription.owned,
            generation=member.subscription.generation,
            rack=member.subscription.rack,
        )
        for member in joined
    ]
    return PartitionGroup(members=members, topics=tuple(topics))


def settle(assignor: PartitionAssignor, group: PartitionGroup, answer: PartitionAssignment) -> PartitionAssignment:
    """The answer as it may be sent out: nothing in it is given to one member while another owns it.

    An assignor that lists COOPERATIVE has promised that, so one that breaks its word is refused, as Kafka does. One
    that does not list it cannot be blamed for members that have kept something all the same; there the leader itself
    leaves out what must be given up first.

    Args:
        assignor: the one that was asked.
        group: what it was asked.
        answer: what ``assignor_guard.run_assignor`` returned.

    Raises:
        PluginError: the answer is an error, or breaks the assignor's promise: what goes to whom, and whose it is.

    Source: KIP-429; KIP-792 (generations in the check); Kafka's ``validateCooperativeAssignment``.
    """
    who = f"assignor {printable(assignor.name)!r}"
    if answer.error:
        raise PluginError(f"{who}: error {answer.error}: {printable(answer.message, most=200)}")
    if RebalanceProtocol.COOPERATIVE not in protocols_of(assignor):
        return withhold(group.members, answer)
    if early := given_too_early(group.members, answer):
        more = f" (and {len(early) - 1} more)" if len(early) > 1 else ""
        raise PluginError(f"{who} lists COOPERATIVE, but {early[0]}{more}; allowed: to leave it out of this round")
    return answer


def withhold(members: Sequence[PartitionMember], answer: PartitionAssignment) -> PartitionAssignment:
    """``answer`` without what other members still own, which becomes ``withheld``.

    An assignor that knows where everything is to be in the end becomes a cooperative one by returning
    ``withhold(group.members, answer)``.
    """
    early = frozenset(each.partition for each in given_too_early(members, answer))
    if not early:
        return answer
    shares = [replace(share, partitions=share.partitions - early) for share in answer.members]
    return replace(answer, members=shares, withheld=answer.withheld | early)


def shares_to_send(group: PartitionGroup, answer: PartitionAssignment) -> dict[str, bytes]:
    """What SyncGroup carries: every member's share, nothing for one that the answer does not name.

    Raises:
        WireError: a share that cannot be sent.
    """
    shares = {share.member_id: share for share in answer.members}
    sent = {}
    for member in group.members:
        share = shares.get(member.member_id)
        given = (
            Assignment() if share is None else Assignment(partitions=share.partitions, user_data=share.metadata or None)
        )
        sent[member.member_id] = encode_assignment(given)
    return sent

"""One rebalance of a classic group, from the view of each member and of the leader.

    member   before_joining     what it revokes, and what it reports as owned
             -> JoinGroup
    leader   group_input        all subscriptions, as the input of an assignor
             validate_result    no partition is assigned to a member while another owns it
             assignments_to_send all assignments as bytes
             -> SyncGroup
    member   after_sync         what it revokes, what it adds, and whether it rejoins immediately

The guarantee: a partition is revoked by its owner before it is assigned to another member. EAGER achieves this by
revoking everything before JoinGroup. COOPERATIVE revokes nothing at that point; the leader omits the partitions that
are to move, the owner sees that they are no longer in its assignment, revokes them and rejoins, and in that next
rebalance they are free.

Members of both protocols may be in one group. The leader needs only the owned partitions that a member reports: a
member that has revoked everything owns nothing, whatever its protocol.

The protocol (KIP-429) defines which partitions a member revokes and when; see ``RebalanceProtocol``. Each assignor
lists the protocols whose rules its results obey. A member does not know which of its assignors the coordinator will
choose, so it follows the highest protocol that *all* of them support, and must select it before it joins.

This permits a safe migration from one protocol to the other: ``range`` -> ``range, cooperative-sticky`` ->
``cooperative-sticky``, one process after the other. During the first bounce every member is still EAGER. During the
second, members of both protocols are in the group, and the one assignor that all of them list reads from each
subscription what the member has kept: nothing, or all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..assign.api import (
    PartitionAssignment,
    PartitionAssignor,
    PartitionAssignorInput,
    RebalanceProtocol,
    assigned_too_early,
    withhold,
)
from ..assign.convert import assignor_info
from ..assign.members import PartitionMember, PartitionMemberAssignment, TopicSpec
from ..errors import ConfigError, PluginError, WireError
from ..protocol.messages.classic import EmbeddedAssignment, MemberShare, OfferedProtocol, Subscription
from ..protocol.units import Partitions, printable
from ..wire.embedded import encode_assignment, encode_subscription

NOTHING: Partitions = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeJoining:
    """What happens to a member's partitions before it sends JoinGroup.

    Attributes:
        lost: no longer the member's, possibly already assigned to another member: their offsets cannot be committed.
        revoked: revoked by the member while it still owns them.
        kept: not interrupted; the member reports them as owned.
    """

    lost: Partitions = NOTHING
    revoked: Partitions = NOTHING
    kept: Partitions = NOTHING


def before_joining(
    protocol: RebalanceProtocol, *, owned: Partitions, subscribed: frozenset[str], in_group: bool
) -> BeforeJoining:
    """Return the partitions that a member must release before it sends JoinGroup, and those it may keep.

    Args:
        protocol: the protocol it follows: ``choose_protocol``.
        owned: the partitions it owns.
        subscribed: the topics it subscribes to now.
        in_group: false if it has no valid member id or generation: it is new, or the coordinator removed it.

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
    """What a member does with its assignment, in this order.

    Attributes:
        revoked: to be revoked first, and before the next JoinGroup.
        holds: owned from then on.
        added: the new ones among ``holds``.
        rejoin: rejoin immediately, so that revoked partitions can be assigned to other members; or, if the assignment
            was not applied, because it was computed for an earlier subscription.
    """

    revoked: Partitions = NOTHING
    added: Partitions = NOTHING
    holds: Partitions = NOTHING
    rejoin: bool = False


def after_sync(*, owned: Partitions, assigned: Partitions, subscribed: frozenset[str]) -> AfterSync:
    """Return what a member does with its assignment.

        revoked = owned - assigned        (empty in EAGER: the member owns nothing at this point)
        added   = assigned - owned

    Args:
        owned: the partitions it kept while joining.
        assigned: its assignment.
        subscribed: the topics it subscribes to now; an assignment with other topics is not applied.

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
    """A member as the JoinGroup response describes it to the leader.

    Attributes:
        subscription: the member's subscription for the chosen assignor.
        version: the version of its user data, -1 if unknown.
        reason: the reason that goes with it, 0 if there is none.
    """

    member_id: str
    instance_id: str | None = None
    subscription: Subscription
    version: int = -1
    reason: int = 0


def group_input(
    joined: Iterable[Joined], topics: Iterable[TopicSpec], assignor: PartitionAssignor
) -> PartitionAssignorInput:
    """Return the input of ``assignor`` from all subscriptions.

    Args:
        topics: topics that exist; topics without a subscriber are allowed.
        assignor: the assignor that the coordinator chose. User data without a version is assumed to have the highest
            one that it reads: other clients send none, and Kafka's broker does not pass it on.
    """
    members = [
        PartitionMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            version=member.version if member.version >= 0 else assignor.maximum_version,
            reason=member.reason,
            metadata=member.subscription.user_data or b"",
            subscribed=member.subscription.topics,
            owned=member.subscription.owned,
            generation=member.subscription.generation,
            rack=member.subscription.rack,
        )
        for member in joined
    ]
    return PartitionAssignorInput(members=members, topics=tuple(topics))


def validate_result(
    assignor: PartitionAssignor, group: PartitionAssignorInput, result: PartitionAssignment
) -> PartitionAssignment:
    """Return a result that may be sent: no partition is assigned to a member while another owns it.

    An assignor that lists COOPERATIVE guarantees that, so a violation is rejected, as in Kafka. An assignor that does
    not list it cannot be blamed if members have kept partitions all the same; in that case the leader itself omits the
    partitions that must be revoked first.

    Args:
        assignor: the assignor that was run.
        group: its input.
        result: the return value of ``assign.sandbox.run_assignor``.

    Raises:
        PluginError: the result is an error, or violates the assignor's guarantee; names the partition, the assigned
            member and the owners.

    Source: KIP-429; KIP-792 (generations in the check); Kafka's ``validateCooperativeAssignment``.
    """
    who = f"assignor {printable(assignor.name)!r}"
    if result.error:
        raise PluginError(f"{who}: error {result.error}: {printable(result.message, limit=200)}")
    if RebalanceProtocol.COOPERATIVE not in protocols_of(assignor):
        return withhold(group.members, result)
    if early := assigned_too_early(group.members, result):
        more = f" (and {len(early) - 1} more)" if len(early) > 1 else ""
        raise PluginError(f"{who} lists COOPERATIVE, but {early[0]}{more}; allowed: to leave it out of this round")
    return result


def assignments_to_send(group: PartitionAssignorInput, result: PartitionAssignment) -> tuple[MemberShare, ...]:
    """Return the assignments of SyncGroup: one per member, empty for a member that the result does not name.

    Raises:
        WireError: an assignment that cannot be sent.
    """
    given = {share.member_id: share for share in result.members}
    sent = []
    for member_id in sorted(member.member_id for member in group.members):
        share = given.get(member_id, PartitionMemberAssignment(member_id=member_id))
        assignment = EmbeddedAssignment(partitions=share.partitions, user_data=share.metadata or None)
        sent.append(
            MemberShare(
                member_id=member_id,
                assignment=encode_assignment(assignment),
                assignment_version=share.version if member_id in given else -1,
                assignment_error=share.error,
            )
        )
    return tuple(sent)


def choose_protocol(assignors: Sequence[PartitionAssignor]) -> RebalanceProtocol:
    """Return the highest protocol that all configured assignors support; called at start-up.

    Args:
        assignors: in order of preference.

    Raises:
        ConfigError: there is no assignor, two have the same name, or they have no protocol in common.
        PluginError: an assignor's ``rebalance_protocols`` is not a non-empty tuple of protocols.

    Source: KIP-429, "Compatibility and Upgrade Path": only commonly supported ones count, the highest id wins.
    """
    if not assignors:
        raise ConfigError("assignors", "none", "one or more, in order of preference")
    names = [assignor.name for assignor in assignors]
    if len(set(names)) < len(names):
        raise ConfigError("assignors", ", ".join(names), "each name once")
    has = {assignor.name: protocols_of(assignor) for assignor in assignors}
    common = frozenset(RebalanceProtocol).intersection(*has.values())
    if not common:
        listed = "; ".join(f"{name} has {', '.join(each.name for each in sorted(has[name]))}" for name in names)
        raise ConfigError("assignors", ", ".join(names), f"assignors with a rebalance protocol in common; {listed}")
    return max(common)


def protocols_of(assignor: PartitionAssignor) -> frozenset[RebalanceProtocol]:
    """The protocols in an assignor's ``rebalance_protocols``. Raises PluginError if the attribute is invalid."""
    listed: object = assignor.rebalance_protocols
    if not isinstance(listed, tuple) or not listed or not all(isinstance(each, RebalanceProtocol) for each in listed):
        known = ", ".join(f"{each.name} ({each.value})" for each in RebalanceProtocol)
        got = printable(repr(listed))
        raise PluginError(
            f"assignor {printable(assignor.name)!r}: rebalance_protocols: got {got}; allowed: one or more of {known}"
        )
    return frozenset(listed)


def join_offers(
    assignors: Sequence[PartitionAssignor],
    *,
    subscribed: frozenset[str],
    owned: Partitions,
    generation: int,
    rack: str | None = None,
) -> tuple[OfferedProtocol, ...]:
    """Return the protocols of a JoinGroup request: each assignor's name and the member's subscription for it.

    The versions and the reason are for connectgroup's coordinator; Kafka's skips them.

    Args:
        assignors: in order of preference; the coordinator counts votes for the first that all members have.
        subscribed: the topics that the member subscribes to.
        owned: the partitions that the member still owns: ``rounds.before_joining(...).kept``.
        generation: the generation whose assignment the member last *applied*, -1 for none. Not that of the last
            JoinGroup response: a member that missed the assignment of a generation owns what an earlier one assigned
            (KAFKA-13419).
        rack: the member's rack.

    Raises:
        PluginError: an assignor's ``metadata`` raised, or returned data that cannot be sent.
        WireError: a topic or rack that cannot be sent.
    """
    offers = []
    for assignor in assignors:
        info = assignor_info(assignor, subscribed)
        # Kafka's own assignors send null if they have no user data.
        subscription = Subscription(
            topics=subscribed, user_data=info.metadata or None, owned=owned, generation=generation, rack=rack
        )
        offers.append(
            OfferedProtocol(
                name=assignor.name,
                metadata=encode_subscription(subscription),
                assignor_version=info.maximum_version,
                metadata_version=info.version,
                metadata_reason=info.reason,
            )
        )
    return tuple(offers)


def assignor_named(assignors: Sequence[PartitionAssignor], name: str) -> PartitionAssignor:
    """Return the assignor that the coordinator has chosen.

    Raises:
        WireError: it is not among those that were offered.
    """
    for assignor in assignors:
        if assignor.name == name:
            return assignor
    offered = ", ".join(assignor.name for assignor in assignors)
    raise WireError(f"JoinGroup response: protocol_name: got {printable(name)!r}; allowed: {offered}")

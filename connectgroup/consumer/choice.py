"""Which rebalance protocol a member follows and which assignors it offers (KIP-429).

The protocol defines which partitions a member revokes and when; see ``RebalanceProtocol``. Each assignor lists the
protocols whose rules its results obey. A member does not know which of its assignors the coordinator will choose, so it
follows the highest protocol that *all* of them support, and must select it before it joins.

This permits a safe migration from one protocol to the other: ``range`` -> ``range, cooperative-sticky`` ->
``cooperative-sticky``, one process after the other. During the first bounce every member is still EAGER. During the
second, members of both protocols are in the group, and the one assignor that all of them list reads from each
subscription what the member has kept: nothing, or all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..assign.api import PartitionAssignor, RebalanceProtocol
from ..assign.convert import assignor_info
from ..errors import ConfigError, PluginError, WireError
from ..protocol.messages.classic import OfferedProtocol
from ..protocol.messages.embedded import Subscription
from ..protocol.units import Partitions, printable
from ..wire.embedded import encode_subscription


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


def choose_leader(joined: Sequence[tuple[str, int]]) -> str:
    """Select the leader: of the members with the highest assignor version, the one that joined first.

    A newer assignor can read the metadata of an older one, but not vice versa, so one bounce suffices to introduce a
    new version. This is for coordinators that receive versions, as ours does (``group.classic``). Kafka's JoinGroup
    never got the field; there the first member to join leads, and an assignor must read newer metadata as far as it
    can.

    Args:
        joined: member id and assignor version (``Assignor.maximum_version``), in order of joining; not empty.

    Source: KIP-429, "Looking into the Future: Assignor Version".
    """
    return max(joined, key=lambda member: member[1])[0]

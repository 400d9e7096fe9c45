"""Which rebalance protocol a member follows and which assignors it offers (KIP-429).

The protocol says what a member gives up and when; see ``RebalanceProtocol``. Each assignor lists those whose rules its
answers keep. A member does not know which of its assignors the coordinator will choose, so it follows the best
protocol that *all* of them share, and must have settled on one before it joins.

That makes a safe way from one to the other: ``range`` -> ``range, cooperative-sticky`` -> ``cooperative-sticky``, one
process after the other. In the first bounce everybody is EAGER still; in the second, members of both kinds are in the
group, and the one assignor that all list reads from each what it has kept: nothing, or all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..assign.api import PartitionAssignor, RebalanceProtocol
from ..assign.convert import assignor_info
from ..errors import ConfigError, PluginError, WireError
from ..protocol.units import Partitions, printable
from .embedded import Subscription, encode_subscription


def choose_protocol(assignors: Sequence[PartitionAssignor]) -> RebalanceProtocol:
    """The highest protocol that all configured assignors have; to be asked at start-up.

    Args:
        assignors: in order of preference.

    Raises:
        ConfigError: there is no assignor, two of one name, or no protocol that all of them have.
        PluginError: an assignor whose ``rebalance_protocols`` are not a tuple of one or more.

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
    """What an assignor lists in ``rebalance_protocols``. Raises PluginError if it is not what it should be."""
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
) -> tuple[tuple[str, bytes], ...]:
    """What a JoinGroup lists as its protocols: each assignor's name and what the member says to it.

    Args:
        assignors: in order of preference; the coordinator counts votes for the first that all members have.
        subscribed: the topics it wants.
        owned: what it still holds: ``rounds.before_joining(...).kept``.
        generation: the one whose assignment it last *took over*, -1 for none. Not that of the last JoinGroup answer: a
            member that missed the assignment of a generation holds what an earlier one gave it (KAFKA-13419).
        rack: where it runs.

    Raises:
        PluginError: an assignor's ``metadata`` raised, or gave what cannot be sent.
        WireError: a topic or rack that cannot be sent.
    """
    offers = []
    for assignor in assignors:
        # Kafka's own assignors that have nothing to say say null.
        user_data = assignor_info(assignor, subscribed).metadata or None
        subscription = Subscription(
            topics=subscribed, user_data=user_data, owned=owned, generation=generation, rack=rack
        )
        offers.append((assignor.name, encode_subscription(subscription)))
    return tuple(offers)


def assignor_named(assignors: Sequence[PartitionAssignor], name: str) -> PartitionAssignor:
    """The one that the coordinator has chosen.

    Raises:
        WireError: it is none of those that were offered.
    """
    for assignor in assignors:
        if assignor.name == name:
            return assignor
    offered = ", ".join(assignor.name for assignor in assignors)
    raise WireError(f"JoinGroup answer: protocol_name: got {printable(name)!r}; allowed: {offered}")


def choose_leader(joined: Sequence[tuple[str, int]]) -> str:
    """Who computes: of those with the highest assignor version the one that joined first.

    A newer assignor reads what an older one says, not the other way round, so one bounce is enough to bring in a new
    version. For coordinators that are told versions, as ours is of its own members. Kafka's JoinGroup never got the
    field, so there the first to join leads and an assignor must read newer metadata as well as it can.

    Args:
        joined: member id and assignor version (``Assignor.maximum_version``), in order of joining; not empty.

    Source: KIP-429, "Looking into the Future: Assignor Version".
    """
    return max(joined, key=lambda member: member[1])[0]

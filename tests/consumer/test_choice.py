"""Choice of the rebalance protocol, the assignors and the leader (KIP-429)."""

from __future__ import annotations

import pytest

from connectgroup.assign.api import PartitionAssignor, RebalanceProtocol
from connectgroup.assign.members import Metadata
from connectgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from connectgroup.assignors.range import RangeAssignor
from connectgroup.assignors.roundrobin import RoundRobinAssignor
from connectgroup.assignors.sticky import StickyAssignor
from connectgroup.consumer.rounds import assignor_named, choose_protocol, join_offers, protocols_of
from connectgroup.errors import ConfigError, PluginError, WireError
from connectgroup.protocol.messages.classic import Subscription
from connectgroup.wire.embedded import decode_subscription
from tests.assignors.partition_tables import partitions

from .assignors import COOPERATIVE, EAGER, Careful, Hasty, Odd, Planned


def test_protocols_have_the_numbers_of_kafka() -> None:
    """KIP-429, "RebalanceProtocol": EAGER (0), COOPERATIVE (1)."""
    assert [(each.name, each.value) for each in RebalanceProtocol] == [("EAGER", 0), ("COOPERATIVE", 1)]


@pytest.mark.parametrize(
    ("assignor", "protocols"),
    [
        (RangeAssignor(), {EAGER}),
        (RoundRobinAssignor(), {EAGER}),
        (StickyAssignor(), {EAGER}),
        (CooperativeStickyAssignor(), {EAGER, COOPERATIVE}),
        (Planned(), {EAGER}),  # rebalance_protocols not set
    ],
    ids=lambda value: value.name if isinstance(value, PartitionAssignor) else "",
)
def test_built_in_assignors_have_the_protocols_of_kafka(
    assignor: PartitionAssignor, protocols: set[RebalanceProtocol]
) -> None:
    """The table of KIP-429, "Compatibility and Upgrade Path"; EAGER is the default."""
    assert protocols_of(assignor) == protocols


@pytest.mark.parametrize(
    ("assignors", "chosen"),
    [
        ([RangeAssignor()], EAGER),
        ([CooperativeStickyAssignor()], COOPERATIVE),
        ([Hasty()], COOPERATIVE),
        ([CooperativeStickyAssignor(), Careful()], COOPERATIVE),
        ([RangeAssignor(), CooperativeStickyAssignor()], EAGER),
        ([CooperativeStickyAssignor(), RangeAssignor()], EAGER),
        ([CooperativeStickyAssignor(), Hasty(), Careful()], COOPERATIVE),
    ],
)
def test_highest_protocol_common_to_all_assignors_is_chosen(
    assignors: list[PartitionAssignor], chosen: RebalanceProtocol
) -> None:
    assert choose_protocol(assignors) is chosen


@pytest.mark.parametrize(
    ("assignors", "message"),
    [
        ([], "assignors: got 'none'; allowed: one or more, in order of preference"),
        (
            [RangeAssignor(), CooperativeStickyAssignor(), Hasty()],
            "assignors: got 'range, cooperative-sticky, hasty'; "
            "allowed: assignors with a rebalance protocol in common; "
            "range has EAGER; cooperative-sticky has EAGER, COOPERATIVE; hasty has COOPERATIVE",
        ),
        ([RangeAssignor(), RangeAssignor()], "assignors: got 'range, range'; allowed: each name once"),
    ],
)
def test_incompatible_assignors_are_rejected_at_startup(assignors: list[PartitionAssignor], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose_protocol(assignors)
    assert str(refused.value) == message


def test_assignor_without_valid_protocols_is_named() -> None:
    message = r"assignor 'odd': rebalance_protocols: got \(1,\); allowed: one or more of EAGER \(0\), COOPERATIVE \(1\)"
    with pytest.raises(PluginError, match=message):
        choose_protocol([Odd()])
    for listed in ((), [EAGER], None):
        odd = Odd()
        odd.rebalance_protocols = listed  # type: ignore[misc, assignment]
        with pytest.raises(PluginError, match="rebalance_protocols: got"):
            choose_protocol([odd])


def test_all_assignors_of_a_member_get_the_same_subscription() -> None:
    owned = partitions("t{1}")
    offers = join_offers(
        [Planned(), RangeAssignor()], subscribed=frozenset({"t", "u"}), owned=owned, generation=4, rack="r"
    )
    assert [each.name for each in offers] == ["planned", "range"]
    planned, ranged = (decode_subscription(each.metadata) for each in offers)
    common = {"topics": frozenset({"t", "u"}), "owned": owned, "generation": 4, "rack": "r"}
    assert planned == Subscription(user_data=b"plan", **common)  # type: ignore[arg-type]
    assert ranged == Subscription(user_data=None, **common)  # type: ignore[arg-type]


def test_metadata_gets_the_subscribed_topics() -> None:
    """KIP-429, ``subscriptionUserData(Set<String> topics)``."""

    class Repeats(RangeAssignor):
        def metadata(self, subscribed: frozenset[str]) -> Metadata:
            return Metadata(metadata=",".join(sorted(subscribed)).encode())

    for subscribed in ({"t", "u"}, {"v"}):
        [offer] = join_offers([Repeats()], subscribed=frozenset(subscribed), owned=frozenset(), generation=-1)
        assert decode_subscription(offer.metadata).user_data == ",".join(sorted(subscribed)).encode()


def test_metadata_is_offered_with_its_version_and_reason() -> None:
    class Drains(RangeAssignor):
        maximum_version = 3

        def metadata(self, subscribed: frozenset[str]) -> Metadata:
            return Metadata(version=2, reason=7, metadata=b"drains")

    offers = join_offers([Drains(), RangeAssignor()], subscribed=frozenset("t"), owned=frozenset(), generation=-1)
    versions = [(each.assignor_version, each.metadata_version, each.metadata_reason) for each in offers]
    assert versions == [(3, 2, 7), (0, 0, 0)]


def test_assignor_whose_metadata_fails_is_named() -> None:
    class Failing(Planned):
        def metadata(self, subscribed: frozenset[str]) -> None:  # type: ignore[override]
            raise KeyError("rack")

    with pytest.raises(PluginError, match=r"planned.*metadata raised KeyError"):
        join_offers([Failing()], subscribed=frozenset(), owned=frozenset(), generation=-1)


def test_assignor_is_the_one_chosen_by_the_coordinator() -> None:
    chosen = CooperativeStickyAssignor()
    assert assignor_named([RangeAssignor(), chosen], "cooperative-sticky") is chosen
    with pytest.raises(WireError, match="JoinGroup response: protocol_name: got 'sticky'; allowed: range"):
        assignor_named([RangeAssignor()], "sticky")

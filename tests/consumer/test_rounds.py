"""What a member revokes and takes, and what a leader may assign (KIP-429, KIP-792), on the smallest groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from connectgroup.assign.api import PartitionAssignment, PartitionAssignorInput, RebalanceProtocol
from connectgroup.assign.members import PartitionMemberAssignment, TopicSpec, claimants
from connectgroup.assign.sandbox import run_assignor
from connectgroup.assignors.cooperative_sticky import CooperativeStickyAssignor
from connectgroup.assignors.range import RangeAssignor
from connectgroup.consumer.rounds import (
    AfterSync,
    BeforeJoining,
    Joined,
    after_sync,
    assignments_to_send,
    before_joining,
    group_input,
    validate_result,
)
from connectgroup.errors import PluginError, WireError
from connectgroup.protocol.messages.classic import Subscription
from connectgroup.protocol.units import TopicPartition
from connectgroup.wire.embedded import decode_assignment
from tests.assignors import partition_tables as tables
from tests.assignors.partition_inputs import input_groups
from tests.assignors.partition_tables import partitions, table
from tests.volume import volume

from .assignors import COOPERATIVE, EAGER, Careful, Hasty, Planned, Reversed

T, T_AND_U = frozenset({"t"}), frozenset({"t", "u"})
some = st.frozensets(st.sampled_from(sorted(partitions("t{0,1,2,3} u{0,1,2}"))))


# --------------------------------------------------------------------------------------------------
# A member


def test_eager_member_revokes_everything_before_it_joins() -> None:
    before = before_joining(EAGER, owned=partitions("t{0} u{1}"), subscribed=T_AND_U, in_group=True)
    assert before == BeforeJoining(revoked=partitions("t{0} u{1}"))


def test_cooperative_member_revokes_only_unsubscribed_partitions_before_it_joins() -> None:
    owned = partitions("t{0} u{1}")
    assert before_joining(COOPERATIVE, owned=owned, subscribed=T_AND_U, in_group=True) == BeforeJoining(kept=owned)
    assert before_joining(COOPERATIVE, owned=owned, subscribed=T, in_group=True) == BeforeJoining(
        revoked=partitions("u{1}"), kept=partitions("t{0}")
    )


@pytest.mark.parametrize("protocol", RebalanceProtocol)
def test_removed_member_loses_its_partitions(protocol: RebalanceProtocol) -> None:
    """It revokes nothing: its partitions may have other owners by now, so it must not commit for them."""
    before = before_joining(protocol, owned=partitions("t{0}"), subscribed=T, in_group=False)
    assert before == BeforeJoining(lost=partitions("t{0}"))


def test_cooperative_member_revokes_what_it_lost_and_rejoins() -> None:
    assert after_sync(owned=partitions("t{0,1}"), assigned=partitions("t{1,2}"), subscribed=T) == AfterSync(
        revoked=partitions("t{0}"), added=partitions("t{2}"), holds=partitions("t{1,2}"), rejoin=True
    )


@pytest.mark.parametrize("owned", ["", "t{0}"])
def test_member_that_revokes_nothing_does_not_rejoin(owned: str) -> None:
    """An eager member owns nothing at this point."""
    after = after_sync(owned=partitions(owned), assigned=partitions("t{0,1}"), subscribed=T)
    assert (after.revoked, after.rejoin) == (frozenset(), False)
    assert after.added == partitions("t{0,1}") - partitions(owned)


def test_assignment_for_an_earlier_subscription_is_not_applied() -> None:
    """Kafka's ``onJoinComplete``: the member rejoins with its new subscription, and keeps what it owns."""
    after = after_sync(owned=partitions("t{0}"), assigned=partitions("t{1} u{0}"), subscribed=T)
    assert after == AfterSync(holds=partitions("t{0}"), rejoin=True)


@given(some, some)
def test_new_owned_is_owned_less_revoked_plus_added(owned: object, assigned: object) -> None:
    after = after_sync(owned=owned, assigned=assigned, subscribed=T_AND_U)  # type: ignore[arg-type]
    assert after.holds == assigned
    assert (owned - after.revoked) | after.added == after.holds  # type: ignore[operator]
    assert not after.added & owned  # type: ignore[operator]
    assert not after.revoked & after.holds
    assert after.rejoin == bool(after.revoked)


# --------------------------------------------------------------------------------------------------
# The leader


def test_assignor_input_holds_every_subscription() -> None:
    subscription = Subscription(topics=T, user_data=b"x", owned=partitions("t{0}"), generation=6, rack="r")
    joined = [
        Joined(member_id="m1", instance_id="i1", subscription=subscription),
        Joined(member_id="m2", subscription=Subscription(topics=T_AND_U)),
    ]
    group = group_input(joined, [TopicSpec(name="t", num_partitions=2)], RangeAssignor())
    first, second = group.members
    assert (first.member_id, first.instance_id, first.metadata, first.rack) == ("m1", "i1", b"x", "r")
    assert (first.subscribed, first.owned, first.generation) == (T, partitions("t{0}"), 6)
    assert (second.member_id, second.instance_id, second.metadata, second.generation) == ("m2", None, b"", -1)
    assert group.topics == (TopicSpec(name="t", num_partitions=2),)


def test_assignor_input_has_the_version_and_the_reason_of_each_members_metadata() -> None:
    """A client that sends no version is assumed to have the highest one that the assignor reads."""

    class Newer(Planned):
        minimum_version, maximum_version = 3, 5

    subscription = Subscription(topics=T)
    joined = [
        Joined(member_id="m1", subscription=subscription, version=4, reason=9),
        Joined(member_id="m2", subscription=subscription),
    ]
    group = group_input(joined, [], Newer())
    assert run_assignor(Newer(), group).members[0].partitions == frozenset()
    assert [(member.version, member.reason) for member in group.members] == [(4, 9), (5, 0)]


def test_assignment_is_sent_with_the_version_and_the_error_of_the_result() -> None:
    result = PartitionAssignment(members=[PartitionMemberAssignment(member_id="m1", version=2, error=3)])
    sent = {share.member_id: share for share in assignments_to_send(OWNED, result)}
    assert (sent["m1"].assignment_version, sent["m1"].assignment_error) == (2, 3)
    assert (sent["m2"].assignment_version, sent["m2"].assignment_error) == (-1, 0)


OWNED = tables.input_group({"t": 3}, {"m1": "*", "m2": "*"}, owned={"m1": "t{0,1}", "m2": "t{2}"})
SWAPPED = {"m1": partitions("t{1,2}"), "m2": partitions("t{0}")}


def given_to(result: PartitionAssignment) -> dict[str, object]:
    return {share.member_id: share.partitions for share in result.members}


def test_assignor_that_breaks_the_cooperative_rule_is_rejected() -> None:
    """Kafka's ``validateCooperativeAssignment``: the partition, its new owner and its current one."""
    hasty = Hasty(**SWAPPED)
    with pytest.raises(PluginError) as refused:
        validate_result(hasty, OWNED, run_assignor(hasty, OWNED))
    assert str(refused.value) == (
        "assignor 'hasty' lists COOPERATIVE, but t-0 is assigned to m2 while owned by m1 (and 1 more); "
        "allowed: to leave it out of this round"
    )


def test_assignments_of_an_eager_assignor_are_withheld_for_a_round() -> None:
    """Its members have revoked everything before; one that still claims a partition keeps it."""
    planned = Planned(**SWAPPED)
    result = validate_result(planned, OWNED, run_assignor(planned, OWNED))
    assert given_to(result) == table(m1="t{1}", m2="")
    assert result.withheld == partitions("t{0,2}")

    given_up = replace(OWNED, members=[replace(member, owned=frozenset()) for member in OWNED.members])
    free = run_assignor(planned, given_up)
    assert validate_result(planned, given_up, free) is free


def test_assignment_is_made_cooperative_by_a_single_call() -> None:
    careful = Careful(**SWAPPED)
    result = validate_result(careful, OWNED, run_assignor(careful, OWNED))
    assert given_to(result) == table(m1="t{1}", m2="")
    assert result.withheld == partitions("t{0,2}")

    revoked = tables.input_group({"t": 3}, {"m1": "*", "m2": "*"}, owned={"m1": "t{1}"})
    result = validate_result(careful, revoked, run_assignor(careful, revoked))
    assert given_to(result) == SWAPPED
    assert result.withheld == frozenset()


def test_error_of_an_assignor_is_an_assignor_error() -> None:
    failed = PartitionAssignment(error=7, message="no\nluck")
    with pytest.raises(PluginError, match=r"assignor 'range': error 7: no\\nluck"):
        validate_result(RangeAssignor(), OWNED, failed)


def test_every_member_gets_an_assignment_even_an_empty_one() -> None:
    result = Planned(m1=partitions("t{0,1,2}")).assign(OWNED)
    sent = assignments_to_send(OWNED, replace(result, members=result.members[:1]))
    assert {share.member_id: decode_assignment(share.assignment).partitions for share in sent} == table(
        m1="t{0,1,2}", m2=""
    )
    with_data = [replace(share, metadata=b"word") for share in result.members]
    sent = assignments_to_send(OWNED, replace(result, members=with_data))
    assert [decode_assignment(share.assignment).user_data for share in sent] == [b"word", b"word"]
    assert decode_assignment(assignments_to_send(OWNED, result)[1].assignment).user_data is None


def test_assignment_that_cannot_be_encoded_is_named() -> None:
    group = tables.input_group({"x" * 40000: 1}, {"m1": "*"})
    with pytest.raises(WireError, match="Assignment v3: partitions: got a value out of range"):
        assignments_to_send(group, run_assignor(RangeAssignor(), group))


@settings(max_examples=volume(50, 200), deadline=None)
@given(input_groups(), st.sampled_from([RangeAssignor, CooperativeStickyAssignor, Reversed]))
def test_owned_partitions_are_withheld_and_none_is_forgotten(group: PartitionAssignorInput, make: type) -> None:
    """For any assignor: by the owners' claims of the latest generation."""
    assignor = make()
    result = validate_result(assignor, group, run_assignor(assignor, group))
    owners = claimants(group.members)
    seen: list[TopicPartition] = []
    for share in result.members:
        seen += share.partitions
        for partition in share.partitions:
            assert owners.get(partition, (share.member_id,)) == (share.member_id,)
    assert len(seen) == len(set(seen))
    assert set(seen) | result.withheld == set(group.partitions)
    assert result.withheld.isdisjoint(seen)
    assert all(owners[partition] for partition in result.withheld)

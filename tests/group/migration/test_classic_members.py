"""Members of a consumer group that use the classic protocol: parked joins, static members, invalid requests."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from connectgroup.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidGroupId,
    UnknownMemberId,
)
from connectgroup.group.kernel.outcome import TimerKey, TimerKind
from connectgroup.protocol.messages.classic import LeaveGroupRequest, LeavingMember, OfferedProtocol, Subscription
from connectgroup.wire.embedded import encode_subscription
from connectgroup.wire.record_codec import encode_record
from tests.volume import volume

from .driver import GROUP, Driver, named, offers
from .test_migration import REBALANCES, mixed


@settings(max_examples=volume(20, 500, 5_000), deadline=None)
@given(metadata=st.binary(max_size=80), cut=st.integers(0, 60), topics=st.frozensets(st.text(max_size=8), max_size=3))
def test_any_metadata_is_joined_with_or_rejected(metadata: bytes, cut: int, topics: frozenset[str]) -> None:
    """Whatever bytes a client sends: a response, and records that can be stored."""
    whole = encode_subscription(Subscription(topics=topics, owned=named(0, 1)))
    driver = Driver()
    driver.beat("new", 0)
    for data in (metadata, whole[:cut] + metadata, whole):
        offered = (OfferedProtocol(name="range", metadata=data),)
        joined = driver.join("", protocols=offered)
        assert joined.error_code in (0, InconsistentGroupProtocol.code)
        if joined.error_code == 0:
            assert driver.sync(joined.member_id, joined.generation_id).error_code in (0, REBALANCES)
        for record in driver.records:
            encode_record(record)
        classic = Driver()
        member_id = classic.join("", protocols=offered).member_id
        classic.sync(member_id, classic.group.generation, {member_id: data})
        assert classic.beat("new", 0).error_code in (0, GroupIdNotFound.code)
        for record in classic.records:
            encode_record(record)


def test_join_is_parked_only_while_it_waits_for_a_target_assignment() -> None:
    """Not while the member must revoke first, and not without a member id: deciding it again would add a member."""
    driver, [first], generation = mixed((0, 1, 2, 3), protocol="cooperative-sticky")
    driver.join(first, "cooperative-sticky", owned=(0, 1, 2, 3))
    assert not driver.parks
    driver.delays_computations = True
    driver.beat("newer", 0)
    driver.join(first, "cooperative-sticky", owned=(0, 1, 2, 3))
    assert not driver.parks, "it must revoke first"
    assert driver.join("", "cooperative-sticky").error_code == 0
    assert not driver.parks
    again = driver.join("some-id", "cooperative-sticky")
    assert driver.parks
    assert again.generation_id == generation + 1, "what it gets if the target assignment is late"
    driver.compute()
    assert driver.join("some-id", "cooperative-sticky").generation_id == driver.group.epoch
    assert not driver.parks


def test_removed_member_that_still_owns_partitions_is_unknown_when_it_joins() -> None:
    """Its join was lost, and its session has expired: the partitions belong to others, so it must not commit them."""
    driver, [first], generation = mixed((0, 1, 2, 3), protocol="cooperative-sticky")
    subscription = Subscription(topics=frozenset({"foo"}), owned=named(0, 1, 2, 3), generation=generation)
    offered = (OfferedProtocol(name="cooperative-sticky", metadata=encode_subscription(subscription)),)
    driver.expire(TimerKind.SESSION, first)
    assert first not in driver.group.members
    assert driver.join(first, protocols=offered).error_code == UnknownMemberId.code
    assert first not in driver.group.members
    assert driver.join(first, "cooperative-sticky").error_code == 0, "as a new member, without partitions"


def test_restarted_static_member_of_the_classic_protocol_gets_its_partitions_back() -> None:
    """Without a new group epoch, and its former process is fenced."""
    driver = Driver()
    driver.beat("new", 0)
    joined = driver.join("", group_instance_id="i")
    kept = driver.beat("new", 1, (0, 1, 2, 3)).assignment.topic_partitions[0].partitions
    driver.beat("new", 1, kept)
    joined = driver.join(joined.member_id, group_instance_id="i")
    share = driver.assigned(joined.member_id, joined.generation_id, instance="i")
    epoch = driver.group.epoch
    again = driver.join("", group_instance_id="i")
    assert again.member_id != joined.member_id
    assert driver.assigned(again.member_id, again.generation_id, instance="i") == share
    assert driver.group.epoch == epoch
    assert driver.heartbeat(again.member_id, again.generation_id, instance="i") == 0
    assert driver.heartbeat(joined.member_id, joined.generation_id, instance="i") == FencedInstanceId.code
    assert driver.heartbeat("x", 1, instance="unknown") == UnknownMemberId.code
    assert driver.join(joined.member_id, group_instance_id="i").error_code == FencedInstanceId.code


def test_operator_removes_static_members_by_their_instance_ids() -> None:
    """Of either protocol (kafka-consumer-groups, ``removeMembersFromConsumerGroup``)."""
    driver = Driver()
    driver.beat("a", 0, instance_id="i")
    driver.beat("b", 0)
    second = driver.join("", group_instance_id="j").member_id
    assert driver.leave("other", instance="j") == FencedInstanceId.code
    assert driver.leave(instance="unknown") == UnknownMemberId.code
    members = tuple(LeavingMember(member_id="", group_instance_id=each) for each in ("i", "j", "j"))
    response = driver.send(LeaveGroupRequest(group_id=GROUP, members=members))
    assert [each.error_code for each in response.members] == [0, 0, UnknownMemberId.code]
    assert set(driver.group.members) == {"b"}
    assert second not in driver.group.members
    assert driver.send(LeaveGroupRequest(group_id=GROUP, member_id="b")).error_code == UnknownMemberId.code
    assert driver.send(LeaveGroupRequest(group_id="", members=members)).error_code == InvalidGroupId.code


def test_requests_of_classic_members_are_validated() -> None:
    driver = Driver(max_members=2)
    driver.beat("new", 0)
    for timeout_ms, code in ((5_999, 26), (6_000, 0), (1_800_000, 0), (1_800_001, 26)):
        response = driver.join("a", session_timeout_ms=timeout_ms, rebalance_timeout_ms=-1)
        assert response.error_code == code, timeout_ms
    assert driver.group.members["a"].rebalance_timeout_ms == 1_800_000, "the session timeout, in old versions"
    assert driver.join("b").error_code == GroupMaxSizeReached.code
    assert driver.join("a", group_id="").error_code == InvalidGroupId.code
    assert driver.sync("a", 1, group_id="").error_code == InvalidGroupId.code
    assert driver.join("a", protocols=()).error_code == InconsistentGroupProtocol.code


def test_member_that_returns_with_the_consumer_protocol_has_a_time_limit_for_its_revocations() -> None:
    """TO-02. The timer of the JoinGroup that it owed ends, and does not stand for one of its revocations."""
    driver, [first], generation = mixed((0, 1, 2, 3))
    assert driver.heartbeat(first, generation) == REBALANCES
    driver.beat(first, 0)
    assert TimerKey(TimerKind.REBALANCE, GROUP, first) not in driver.timers
    owned = driver.held(first)
    assert len(owned) == 2
    driver.beat("newer", 0)
    driver.beat(first, driver.group.current(first).epoch, owned)
    assert driver.group.current(first).pending, "it is to revoke a partition"
    driver.expire(TimerKind.REBALANCE, first)
    assert first not in driver.group.members


def test_partition_of_a_dropped_topic_is_not_free_after_a_conversion_until_its_owner_has_revoked_it() -> None:
    """P1. The member joins with another subscription, and still runs its partitions when the group is converted."""
    driver = Driver()
    [first] = driver.stable((0, 1), protocol="cooperative-sticky")
    dropped = offers("cooperative-sticky", topics=("other",), owned=(0, 1))
    assert driver.join(first, protocols=dropped).error_code == 0
    driver.beat("new", 0)
    assert driver.held(first) == [0, 1]
    joined = driver.join(first, protocols=dropped)
    assert driver.held(first) == [0, 1], "it has not revoked them yet"
    assert driver.assigned(first, joined.generation_id) == []
    driver.join(first, protocols=offers("cooperative-sticky", topics=("other",)))
    assert driver.held(first) == []


def test_partition_of_a_dropped_topic_is_not_free_while_the_group_is_classic() -> None:
    """P1. No member subscribes to the topic when the group becomes classic; the next one that joins does."""
    driver, [first], generation = mixed((0, 1), protocol="cooperative-sticky")
    driver.beat("new", generation + 1, subscribed_topic_names=("other",))
    driver.join(first, protocols=offers("cooperative-sticky", topics=("other",), owned=(0, 1)))
    assert driver.held(first) == [0, 1]
    driver.beat("new", -1)
    assert driver.type is driver.classic
    driver.beat("newer", 0)
    assert driver.held(first) == [0, 1]
    assert driver.held("newer") == [2, 3]

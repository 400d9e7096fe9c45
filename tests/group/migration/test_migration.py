"""Conversion of groups with members, one test for each row of the scenarios (MG-01 to MG-15)."""

from __future__ import annotations

import pytest

from connectgroup.errors import (
    GroupIdNotFound,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from connectgroup.group.consumer.settings import MigrationPolicy
from connectgroup.group.kernel.outcome import TimerKey, TimerKind
from connectgroup.protocol.messages.classic import OfferedProtocol
from connectgroup.protocol.messages.offsets import OffsetCommitRequest, PartitionCommit, TopicCommit
from connectgroup.protocol.records.base import Kind, Tombstone
from connectgroup.protocol.records.connect import GroupRecord, TargetRecord
from connectgroup.protocol.records.consumer import ClassicState, TopicMetadata

from .driver import GROUP, SESSION_MS, TOPIC, TOPIC_ID, Driver, assignment, numbers

REBALANCES = RebalanceInProgress.code
PREPARING = ClassicState.PREPARING_REBALANCE


def mixed(*shares: tuple[int, ...], protocol: str = "range") -> tuple[Driver, list[str], int]:
    """A classic group that the member ``new`` of the consumer protocol has joined; ids of the classic members."""
    driver = Driver()
    ids = driver.stable(*shares, protocol=protocol)
    generation = driver.group.generation
    assert driver.beat("new", 0).error_code == 0
    return driver, ids, generation


def test_first_member_of_the_consumer_protocol_converts_the_group() -> None:
    """MG-01: the members stay, with their assignments; the group epoch starts at the generation."""
    driver = Driver()
    [first] = driver.stable((0, 1, 2, 3))
    generation = driver.group.generation
    response = driver.beat("new", 0)
    assert (response.error_code, response.member_epoch) == (0, generation + 1)
    assert response.assignment.topic_partitions == (), "its partitions are not free yet"
    assert driver.type is driver.consumer
    assert set(driver.group.members) == {first, "new"}
    assert driver.held(first) == [0, 1, 2, 3]
    assert driver.group.current(first).epoch == generation
    kinds = [record.key.kind for record in driver.records if isinstance(record, Tombstone)]
    assert kinds == [Kind.CLASSIC_MEMBER, Kind.CLASSIC_GROUP]
    epochs = [record.epoch for record in driver.records if isinstance(record, GroupRecord)]
    targets = [(record.epoch, record.at_ms) for record in driver.records if isinstance(record, TargetRecord)]
    assert epochs == [generation, generation + 1]
    assert targets == [(generation, 0), (generation + 1, 1_000)]
    timers = {key.member_id: timer.after_ms for key, timer in driver.timers.items() if key.kind is TimerKind.SESSION}
    assert timers == {first: SESSION_MS, "new": 45_000}


def test_parked_requests_of_the_classic_group_are_answered_with_rebalance_in_progress() -> None:
    """MG-03: a JoinGroup that waits for others, and a SyncGroup that waits for the leader."""
    driver = Driver()
    first, second = driver.stable((0, 1), (2, 3))
    assert driver.join(first) is None
    driver.beat("new", 0)
    assert driver.answers[first].error_code == REBALANCES
    driver = Driver()
    first, second = driver.stable((0, 1), (2, 3))
    driver.join(first), driver.join(second)
    assert driver.sync(second, driver.group.generation) is None
    driver.beat("new", 0)
    assert driver.answers[second].error_code == REBALANCES


def test_member_without_an_assignment_is_converted_with_none() -> None:
    """MG-04."""
    driver = Driver()
    _, second = driver.stable((0, 1, 2, 3), ())
    driver.join(second)
    driver.join("")
    driver.beat("new", 0)
    assert driver.type is driver.consumer
    assert driver.held(second) == []


@pytest.mark.parametrize("policy", [MigrationPolicy.DOWNGRADE, MigrationPolicy.DISABLED])
def test_policy_may_forbid_the_conversion_to_a_consumer_group(policy: MigrationPolicy) -> None:
    """MG-06."""
    driver = Driver(migration_policy=policy)
    driver.stable((0,))
    before = dict(driver.log)
    response = driver.beat("new", 0)
    assert response.error_code == GroupIdNotFound.code
    assert policy.value in response.error_message
    assert (driver.type, driver.log) == (driver.classic, before)


def test_group_that_cannot_be_read_is_not_converted() -> None:
    """MG-05, MG-06: user data of a custom assignor, other protocol types, bytes that are no subscription; too large."""
    custom = Driver()
    custom.stable((0,), protocol="custom", user_data=b"state")
    assert "custom assignor" in custom.beat("new", 0).error_message
    connect = Driver()
    connect.join("", protocol_type="connect", protocols=(OfferedProtocol(name="compatible", metadata=b"x"),))
    assert "'connect'" in connect.beat("new", 0).error_message
    unreadable = Driver()
    unreadable.join("", protocols=(OfferedProtocol(name="range", metadata=b"x"),))
    assert "cannot be read" in unreadable.beat("new", 0).error_message
    large = Driver(max_members=1)
    large.stable((0,), (1,))
    assert "at most 1" in large.beat("new", 0).error_message
    twice = Driver()
    twice.stable((0, 1), (1, 2))
    assert "is assigned to" in twice.beat("new", 0).error_message
    for driver in (custom, connect, unreadable, large, twice):
        assert driver.type is driver.classic


def test_member_id_that_has_not_joined_yet_is_no_obstacle() -> None:
    """The client that got MEMBER_ID_REQUIRED joins the consumer group with that id."""
    driver = Driver()
    pending = driver.join("", requires_member_id=True).member_id
    assert driver.beat("new", 0).error_code == 0
    assert driver.type is driver.consumer
    assert TimerKey(TimerKind.SESSION, GROUP, pending) not in driver.timers
    assert driver.join(pending, requires_member_id=True).error_code == 0
    assert set(driver.group.members) == {"new", pending}


def test_user_data_of_kafkas_assignors_is_no_obstacle() -> None:
    """MG-05: librdkafka sends a member's own user data back to it."""
    driver = Driver()
    driver.stable((0,), protocol="cooperative-sticky", user_data=b"owned")
    assert driver.beat("new", 0).error_code == 0


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
def test_classic_member_gives_partitions_to_the_new_member_by_joining_again(protocol: str) -> None:
    """An eager member owns nothing when it joins; a cooperative one acknowledges with a second JoinGroup."""
    driver, [first], generation = mixed((0, 1, 2, 3), protocol=protocol)
    assert driver.heartbeat(first, generation) == REBALANCES
    owned = (0, 1, 2, 3) if protocol == "cooperative-sticky" else ()
    joined = driver.join(first, protocol, owned=owned)
    assert (joined.error_code, joined.leader, joined.protocol_name) == (0, "", protocol)
    kept = driver.assigned(first, joined.generation_id)
    assert len(kept) == 2
    moved = sorted({0, 1, 2, 3} - set(kept))
    if owned:
        assert driver.held(first) == [0, 1, 2, 3], "it still runs what it is to revoke"
        assert driver.beat("new", generation + 1).assignment.topic_partitions == ()
        assert driver.heartbeat(first, joined.generation_id) == REBALANCES
        joined = driver.join(first, protocol, owned=kept)
        assert driver.assigned(first, joined.generation_id) == kept
    assert joined.generation_id == generation + 1
    [topic] = driver.beat("new", generation + 1).assignment.topic_partitions
    assert sorted(topic.partitions) == moved
    assert driver.heartbeat(first, joined.generation_id) == 0


def test_partition_that_a_cooperative_member_has_not_revoked_yet_is_not_free() -> None:
    """The leader took partition 1 away; the member may run it until it joins again."""
    driver = Driver()
    first, second = driver.stable((0, 1), (), protocol="cooperative-sticky")
    assert driver.join(first, "cooperative-sticky", owned=(0, 1)) is None
    assert driver.join(second, "cooperative-sticky").error_code == 0
    generation = driver.group.generation
    driver.sync(second, generation)
    leader = driver.group.record.leader
    driver.sync(leader, generation, {first: assignment(0), second: assignment()})
    driver.beat("new", 0)
    assert driver.held(first) == [0, 1]
    assert driver.heartbeat(first, generation) == REBALANCES
    driver.join(first, "cooperative-sticky", owned=(0,))
    assert 1 not in driver.held(first)


def test_new_classic_member_joins_a_consumer_group() -> None:
    """KIP-848, "Migration": a rolling downgrade begins with it."""
    driver = Driver()
    driver.beat("new", 0)
    asked = driver.join("", requires_member_id=True)
    assert asked.error_code == MemberIdRequired.code
    joined = driver.join(asked.member_id, requires_member_id=True)
    assert (joined.error_code, joined.generation_id) == (0, driver.group.epoch)
    assert driver.assigned(joined.member_id, joined.generation_id) == [], "the member new has not revoked yet"
    assert driver.heartbeat(joined.member_id, joined.generation_id) == 0, "nothing is free for it"
    kept = driver.beat("new", 1, (0, 1, 2, 3)).assignment.topic_partitions[0].partitions
    driver.beat("new", 1, kept)
    assert driver.heartbeat(joined.member_id, joined.generation_id) == REBALANCES
    again = driver.join(joined.member_id)
    assert sorted({*driver.assigned(again.member_id, again.generation_id), *kept}) == [0, 1, 2, 3]


@pytest.mark.parametrize("ends", ["leave", "session", "rebalance"])
def test_group_is_classic_again_when_the_last_member_of_the_consumer_protocol_is_gone(ends: str) -> None:
    """MG-07: generation = group epoch, preparing a rebalance, the first member leads."""
    driver, [first], generation = mixed((0, 1, 2, 3))
    joined = driver.join(first)
    kept = driver.assigned(first, joined.generation_id)
    driver.beat("new", generation + 1)
    if ends == "leave":
        driver.beat("new", -1)
    elif ends == "session":
        driver.expire(TimerKind.SESSION, "new")
    else:
        driver.beat("new", generation + 1, sorted({0, 1, 2, 3} - set(kept)), subscribed_topic_names=("absent",))
        driver.expire(TimerKind.REBALANCE, "new")
    assert driver.type is driver.classic
    record = driver.group.record
    assert (record.state, record.leader, record.protocol_name) == (PREPARING, first, "range")
    bumps = 2 if ends == "rebalance" else 1  # another subscription advances the group epoch too
    assert driver.group.generation == generation + bumps, "the removal does not advance it"
    assert driver.group.members[first].assignment == assignment(*kept)
    assert TimerKey(TimerKind.REBALANCE, GROUP) in driver.timers
    assert driver.heartbeat(first, joined.generation_id) == REBALANCES
    assert driver.join(first).generation_id == driver.group.generation


def test_member_that_is_behind_the_group_epoch_is_not_fenced_by_the_conversion() -> None:
    """It sends its own epoch until it joins again, then the new generation only."""
    driver, [first], generation = mixed((0, 1, 2, 3))
    driver.beat("new", -1)
    assert driver.type is driver.classic
    assert driver.group.generation == generation + 1
    assert driver.heartbeat(first, generation) == REBALANCES
    driver.restart()
    assert driver.heartbeat(first, generation) == REBALANCES
    driver.join(first)
    assert driver.heartbeat(first, generation) == IllegalGeneration.code


@pytest.mark.parametrize("conversions", [1, 2, 3])
def test_member_that_is_behind_is_not_fenced_by_repeated_conversions(conversions: int) -> None:
    """It still sends the generation of its last JoinGroup, and its partitions are assigned to no other member."""
    driver, [first], generation = mixed((0, 1, 2, 3))
    for _ in range(conversions):
        driver.beat("new", -1)
        assert driver.type is not driver.consumer
        assert driver.heartbeat(first, generation) == REBALANCES
        assert driver.beat("new", 0).assignment.topic_partitions == ()
        assert driver.type is driver.consumer
        assert driver.held(first) == [0, 1, 2, 3]
        assert driver.heartbeat(first, generation) == REBALANCES
    epoch = driver.join(first).generation_id
    assert epoch > generation
    assert len(driver.assigned(first, epoch)) == 2


def left_behind() -> tuple[Driver, str, str, int]:
    """A group that has become classic again, and has begun a generation without its static member.

    Returns:
        The driver, the member that joined, the static member, and the generation that this one still sends.
    """
    driver = Driver()
    driver.join("")
    driver.join("", group_instance_id="i")
    dynamic, static = driver.group.members
    driver.join(dynamic)
    generation = driver.group.generation
    driver.sync(static, generation, group_instance_id="i")
    driver.sync(dynamic, generation, {dynamic: assignment(0, 1), static: assignment(2, 3)})
    driver.beat("new", 0)
    driver.beat("new", -1)
    assert driver.type is driver.classic
    assert driver.heartbeat(static, generation, instance="i") == REBALANCES, "it has not joined again"
    driver.join(dynamic)
    driver.expire(TimerKind.REBALANCE)
    assert driver.group.generation > generation + 1
    return driver, dynamic, static, generation


def commit(driver: Driver, member_id: str, generation: int) -> int:
    """The error code for an offset that the static member ``i`` commits."""
    partition = PartitionCommit(partition_index=2, committed_offset=1, committed_metadata=None)
    request = OffsetCommitRequest(
        group_id=GROUP,
        member_id=member_id,
        group_instance_id="i",
        generation_id_or_member_epoch=generation,
        topics=(TopicCommit(name=TOPIC, partitions=(partition,)),),
    )
    code: int = driver.send(request).topics[0].partitions[0].error_code
    return code


@pytest.mark.parametrize("completed", [False, True])
def test_static_member_that_missed_a_generation_and_joined_late_is_at_that_generation(completed: bool) -> None:
    """A member that is behind sends its former epoch until it joins again, then the generation only."""
    driver, dynamic, static, _ = left_behind()
    generation = driver.group.generation
    if completed:
        driver.sync(dynamic, generation, {dynamic: assignment(0, 1), static: assignment(2, 3)})
    assert driver.join(static, group_instance_id="i").generation_id == generation
    driver.restart()
    assert driver.heartbeat(static, generation, instance="i") == 0
    driver.beat("new", 0)
    assert driver.type is driver.consumer
    assert driver.heartbeat(static, generation, instance="i") == REBALANCES
    assert commit(driver, static, generation) == 0


@pytest.mark.parametrize("then", ["classic", "rebalance", "consumer"])
def test_static_member_that_missed_a_generation_is_fenced_at_its_former_epoch(then: str) -> None:
    """The partitions that it still runs belong to others now: its commits are rejected, whatever the group becomes."""
    driver, dynamic, static, former = left_behind()
    driver.sync(dynamic, driver.group.generation, {dynamic: assignment(0, 1, 2, 3)})
    if then == "rebalance":
        driver.join(dynamic)
        assert driver.group.state is PREPARING
    elif then == "consumer":
        driver.beat("new", 0)
        assert driver.type is driver.consumer
    assert driver.heartbeat(static, former, instance="i") == IllegalGeneration.code
    assert commit(driver, static, former) != 0


@pytest.mark.parametrize("policy", [MigrationPolicy.UPGRADE])
def test_policy_may_forbid_the_conversion_to_a_classic_group(policy: MigrationPolicy) -> None:
    """MG-08: the group stays a consumer group, and the classic members stay in it."""
    driver = Driver(migration_policy=policy)
    [first] = driver.stable((0, 1, 2, 3))
    driver.beat("new", 0)
    driver.beat("new", -1)
    assert (driver.type, set(driver.group.members)) == (driver.consumer, {first})


def test_group_that_is_too_large_for_a_classic_group_is_not_converted() -> None:
    """MG-09."""
    driver = Driver(max_classic_members=1)
    driver.stable((0,), (1,))
    driver.beat("new", 0)
    driver.beat("new", -1)
    assert driver.type is driver.consumer


def test_static_member_returns_with_the_classic_protocol() -> None:
    """MG-10: it replaces the last member of the consumer protocol, and the group is classic."""
    driver = Driver()
    driver.beat("a", 0, instance_id="i")
    driver.join("other")
    driver.beat("a", -2, instance_id="i")
    joined = driver.join("", group_instance_id="i")
    assert joined.error_code == 0
    assert driver.type is driver.classic
    assert driver.group.instances["i"] == joined.member_id
    assert driver.sync(joined.member_id, joined.generation_id, group_instance_id="i").error_code == REBALANCES


def test_static_member_returns_with_the_consumer_protocol() -> None:
    """Its classic process has sent no LeaveGroup: the new one replaces it, with its partitions."""
    driver = Driver()
    driver.join("", group_instance_id="i")
    driver.join("", group_instance_id="j")
    first, second = driver.group.members
    driver.join(first, group_instance_id="i")
    generation = driver.group.generation
    driver.sync(second, generation, group_instance_id="j")
    driver.sync(first, generation, {first: assignment(0, 1), second: assignment(2, 3)}, group_instance_id="i")
    response = driver.beat("new", 0, instance_id="i")
    assert response.error_code == 0
    assert [sorted(each.partitions) for each in response.assignment.topic_partitions] == [[0, 1]]
    assert set(driver.group.members) == {"new", second}
    assert driver.heartbeat(first, generation, instance="i") == 82, "FENCED_INSTANCE_ID"


@pytest.mark.parametrize("unassigned", ["left", "joined", "added"])
def test_static_member_that_converts_the_group_starts_a_new_assignment(unassigned: str) -> None:
    """The last classic assignment may be older than the members and the partitions of the group."""
    driver = Driver()
    driver.join("", group_instance_id="i")
    driver.join("")
    first, second = driver.group.members
    driver.join(first, group_instance_id="i")
    generation = driver.group.generation
    driver.sync(second, generation)
    driver.sync(first, generation, {first: assignment(0, 1), second: assignment(2, 3)}, group_instance_id="i")
    if unassigned == "left":
        driver.leave(second)
    elif unassigned == "joined":
        driver.join("")
    else:
        driver.consumer.topics = {TOPIC: TopicMetadata(topic_id=TOPIC_ID, topic_name=TOPIC, num_partitions=6)}
    assert driver.beat("new", 0, instance_id="i").error_code == 0
    assert driver.group.target_epoch == driver.group.epoch
    targets = [driver.group.target(member_id).units for member_id in driver.group.members]
    partitions = 6 if unassigned == "added" else 4
    assert sorted(number for each in targets for number in numbers(each)) == list(range(partitions))
    assert all(targets), "each member gets partitions"


def test_requests_of_no_classic_member_are_rejected() -> None:
    """MG-12."""
    driver, [first], generation = mixed((0, 1, 2, 3))
    assert driver.heartbeat(first, generation + 7) == IllegalGeneration.code
    assert driver.heartbeat("nobody", generation) == UnknownMemberId.code
    assert driver.heartbeat("new", generation + 1) == UnknownMemberId.code
    assert driver.sync("new", generation + 1).error_code == UnknownMemberId.code
    assert driver.join("new").error_code == UnknownMemberId.code
    assert driver.leave("new") == UnknownMemberId.code
    assert driver.sync(first, generation, protocol_name="other").error_code == InconsistentGroupProtocol.code
    assert driver.beat(first, generation).error_code == UnknownMemberId.code
    assert driver.beat(first, -1).error_code == UnknownMemberId.code


def test_classic_member_must_share_an_assignor_with_the_others() -> None:
    """MG-13."""
    driver, _, _ = mixed((0, 1, 2, 3))
    assert driver.join("", "other").error_code == InconsistentGroupProtocol.code
    assert driver.join("", protocol_type="connect").error_code == InconsistentGroupProtocol.code
    assert driver.join("", "other", "range").protocol_name == "range"


def test_policy_disabled_keeps_classic_members_out() -> None:
    """MG-14: but an empty group is replaced under every policy."""
    driver = Driver(migration_policy=MigrationPolicy.DISABLED)
    driver.beat("new", 0)
    assert driver.join("").error_code == InconsistentGroupProtocol.code
    driver.beat("new", -1)
    assert driver.join("").error_code == 0
    assert driver.type is driver.classic


def test_heartbeat_tells_nothing_before_the_target_assignment_is_there() -> None:
    """MG-15."""
    driver = Driver()
    [first] = driver.stable((0, 1, 2, 3))
    generation = driver.group.generation
    driver.delays_computations = True
    driver.beat("new", 0)
    assert driver.heartbeat(first, generation) == 0
    driver.compute()
    assert driver.heartbeat(first, generation) == REBALANCES


def test_classic_member_that_does_not_join_again_in_time_is_removed() -> None:
    """Its rebalance timeout counts from the first REBALANCE_IN_PROGRESS, and from JoinGroup to SyncGroup."""
    driver, [first], generation = mixed((0, 1, 2, 3))
    assert driver.heartbeat(first, generation) == REBALANCES
    driver.expire(TimerKind.REBALANCE, first)
    assert set(driver.group.members) == {"new"}
    driver, [first], generation = mixed((0, 1, 2, 3))
    driver.heartbeat(first, generation)
    joined = driver.join(first)
    driver.expire(TimerKind.REBALANCE, first)
    assert set(driver.group.members) == {"new"}
    driver, [first], generation = mixed((0, 1, 2, 3))
    joined = driver.join(first)
    driver.assigned(first, joined.generation_id)
    assert TimerKey(TimerKind.REBALANCE, GROUP, first) not in driver.timers


def test_sync_at_an_earlier_epoch_than_the_target_assignment_asks_for_another_join() -> None:
    driver, [first], _ = mixed((0, 1, 2, 3))
    joined = driver.join(first)
    driver.beat("newer", 0)
    assert driver.sync(first, joined.generation_id).error_code == REBALANCES
    assert driver.assigned(first, driver.join(first).generation_id)


def test_classic_member_leaves_a_mixed_group() -> None:
    driver, [first, second], _ = mixed((0, 1), (2, 3))
    assert driver.leave(first) == 0
    assert driver.leave(first) == UnknownMemberId.code
    assert driver.leave(second) == 0
    assert driver.type is driver.consumer
    assert sorted(driver.beat("new", driver.group.current("new").epoch).assignment.topic_partitions[0].partitions) == [
        0, 1, 2, 3,
    ]  # fmt: skip


def test_mixed_group_survives_a_restart_of_the_coordinator() -> None:
    driver, [first], generation = mixed((0, 1, 2, 3))
    driver.restart()
    assert driver.timers[TimerKey(TimerKind.SESSION, GROUP, first)].after_ms == SESSION_MS
    assert driver.heartbeat(first, generation) == REBALANCES
    joined = driver.join(first)
    assert len(driver.assigned(first, joined.generation_id)) == 2

"""The rules of classic groups. Source of each rule: Kafka's GroupMetadataManagerTest, named where it has a number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectgroup.group.classic.state import ClassicSettings
from connectgroup.group.kernel.outcome import TimerKey, TimerKind
from connectgroup.protocol.messages.classic import LeaveGroupRequest, SyncGroupRequest
from connectgroup.protocol.messages.describe import DeleteRequest, DescribeRequest

from .driver import GROUP, NO_DELAY, REBALANCE_MS, SESSION_MS, Driver, offers

UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS = 25, 22, 27


# ---- joining


def test_first_member_leads_the_first_generation() -> None:
    group = Driver()
    joined = group.join()
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id == "c-1"
    assert [member.member_id for member in joined.members] == ["c-1"]
    assert group.state == "CompletingRebalance"
    assert group.sync("c-1", assignments=["c-1"]).assignment == b"c-1"
    assert group.state == "Stable"


def test_member_id_is_required_from_version_4_on() -> None:
    """KIP-394: a client that never receives its response leaves no member behind."""
    group = Driver()
    refused = group.join(requires_member_id=True)
    assert (refused.error_code, refused.member_id) == (79, "c-1")
    assert not group.group.members
    assert group.join("c-1", requires_member_id=True).error_code == 0


def test_member_id_that_is_not_used_is_forgotten() -> None:
    group = Driver()
    group.join(requires_member_id=True)
    group.expire(TimerKind.SESSION, "c-1")
    assert group.join("c-1").error_code == UNKNOWN_MEMBER_ID
    assert not group.log, "a group that no member has joined leaves no record"


def test_member_ids_that_are_not_used_have_a_limit() -> None:
    """A client may ask for any number of ids, each with a session timeout of half an hour; the oldest is forgotten."""
    group = Driver(ClassicSettings(initial_rebalance_delay_ms=0, max_members=3))
    sent = [group.join(requires_member_id=True).member_id for _ in range(5)]
    assert len(group.timers) == 3
    assert [group.join(each).error_code for each in sent[:2]] == [UNKNOWN_MEMBER_ID] * 2
    assert group.join(sent[2]) is None, "it waits for those that have an id, too"
    for each in sent[3:]:
        group.join(each)
    assert {member_id: group.answers[member_id].error_code for member_id in sent[2:4]} == dict.fromkeys(sent[2:4], 0)


def test_rebalance_waits_for_a_member_id_that_was_sent() -> None:
    group = Driver()
    (first,) = group.stable("a")
    group.join(requires_member_id=True)
    assert group.join(first, protocols=offers("range", metadata=b"new")) is None
    group.join("c-2")
    assert group.answers[first].generation_id == 2


def test_initial_rebalance_waits_for_more_members() -> None:
    """testJoinGroup...InitialRebalanceDelay: each new member extends the delay, up to the rebalance timeout."""
    group = Driver(ClassicSettings(initial_rebalance_delay_ms=3_000))
    rebalance = TimerKey(TimerKind.REBALANCE, GROUP)
    assert group.join(rebalance_timeout_ms=5_000) is None
    assert group.timers[rebalance].after_ms == 3_000
    assert group.join(rebalance_timeout_ms=5_000) is None
    group.expire(TimerKind.REBALANCE)
    assert group.timers[rebalance].after_ms == 2_000, "the rest of the rebalance timeout"
    assert not group.answers
    group.expire(TimerKind.REBALANCE)
    assert {member: answer.generation_id for member, answer in group.answers.items()} == {"c-1": 1, "c-2": 1}
    assert len(group.answers["c-1"].members) == 2
    assert group.answers["c-2"].members == ()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, 24),
        ({"session_timeout_ms": 5_999}, 26),
        ({"session_timeout_ms": 1_800_001}, 26),
        ({"member_id": "unknown"}, UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, 23),
        ({"protocol_type": ""}, 23),
    ],
)
def test_invalid_join_creates_no_group(changes: dict[str, object], code: int) -> None:
    group = Driver()
    assert group.join(**changes).error_code == code  # type: ignore[arg-type]
    assert not group.group.exists


@pytest.mark.parametrize("changes", [{"protocol_type": "connect"}, {"protocols": offers("sticky")}])
def test_member_without_a_common_protocol_is_rejected(changes: dict[str, object]) -> None:
    group = Driver()
    group.stable("a")
    assert group.join(**changes).error_code == 23  # type: ignore[arg-type]
    assert group.state == "Stable"


def test_protocol_that_most_members_prefer_is_selected() -> None:
    group = Driver()
    group.join(protocols=offers("range", "sticky"))
    group.join(protocols=offers("sticky", "range"))
    group.join(protocols=offers("sticky", "range"))
    group.join("c-1", protocols=offers("range", "sticky"))
    group.join("c-2", protocols=offers("sticky", "range"))
    assert {answer.protocol_name for answer in group.answers.values()} == {"sticky"}


def test_group_of_the_maximum_size_rejects_a_new_member() -> None:
    group = Driver(ClassicSettings(initial_rebalance_delay_ms=0, max_members=1))
    (first,) = group.stable("a")
    assert group.join().error_code == 81
    assert group.join(first, protocols=offers("range", metadata=b"new")).error_code == 0


def test_follower_that_missed_its_response_gets_it_again() -> None:
    group = Driver()
    first, second = group.stable("a", "b")
    again = group.join(second)
    assert (again.generation_id, again.leader, again.members) == (group.group.generation, first, ())
    assert group.state == "Stable"


def test_leader_that_joins_a_stable_group_requests_a_rebalance() -> None:
    group = Driver()
    first, second = group.stable("a", "b")
    assert group.join(first) is None
    assert group.state == "PreparingRebalance"
    assert group.heartbeat(second) == REBALANCE_IN_PROGRESS


def test_follower_with_other_metadata_requests_a_rebalance() -> None:
    group = Driver()
    _, second = group.stable("a", "b")
    assert group.join(second, protocols=offers("range", metadata=b"other topics")) is None
    assert group.state == "PreparingRebalance"


def test_member_that_does_not_join_in_time_is_removed() -> None:
    group = Driver()
    first, second = group.stable("a", "b")
    assert group.join(first) is None
    assert group.timers[TimerKey(TimerKind.REBALANCE, GROUP)].after_ms == REBALANCE_MS
    group.expire(TimerKind.REBALANCE)
    assert [member.member_id for member in group.answers[first].members] == [first]
    assert group.heartbeat(second) == UNKNOWN_MEMBER_ID


def test_member_of_the_highest_assignor_version_leads() -> None:
    """KIP-429: the coordinator selects the member with the highest version as the leader."""
    group = Driver()
    group.join(protocols=offers("range", version=1))
    group.join(protocols=offers("range", version=2))
    group.join(protocols=offers("range", version=2))
    group.join("c-1", protocols=offers("range", version=1))
    group.join("c-2", protocols=offers("range", version=2))
    assert {answer.leader for answer in group.answers.values()} == {"c-2"}


def test_leader_gets_the_version_and_the_reason_of_each_members_metadata() -> None:
    """For its assignor. A changed reason begins a rebalance, as changed metadata does."""
    group = Driver()
    first, second = group.stable("a", "b")
    [offer] = offers("range")
    offer = replace(offer, metadata_version=2, metadata_reason=7)
    assert group.join(second, protocols=(offer,)) is None, "it waits for the others"
    seen = [(each.metadata_version, each.metadata_reason) for each in group.join(first).members]
    assert seen == [(-1, 0), (2, 7)]


def test_leader_stays_when_other_members_reach_its_version() -> None:
    group = Driver()
    group.join(protocols=offers("range", version=1))
    group.join(protocols=offers("range", version=2))
    group.join("c-1", protocols=offers("range", version=1))
    assert group.group.record.leader == "c-2"
    group.join("c-1", protocols=offers("range", version=2))
    group.join("c-2", protocols=offers("range", version=2))
    assert group.group.record.leader == "c-2"


def test_leader_stays_without_assignor_versions() -> None:
    group = Driver()
    first, second, third = group.stable("a", "b", "c")
    group.leave(first)
    group.join(third)
    group.join(second)
    assert group.answers[third].leader == second, "the first one that joined"
    group.finish([second, third])
    group.join(second)
    group.join(third)
    assert group.group.record.leader == second


def test_workers_of_kafka_connect_form_a_group() -> None:
    """Protocol type ``connect``: the coordinator does not read what workers exchange."""
    group = Driver()
    protocols = offers("sessioned", "compatible", "default", metadata=b"worker state")
    group.join(protocol_type="connect", protocols=protocols)
    group.join(protocol_type="connect", protocols=protocols)
    joined = group.join("c-1", protocol_type="connect", protocols=protocols)
    assert (joined.protocol_type, joined.protocol_name) == ("connect", "sessioned")
    assert [member.metadata for member in joined.members] == [b"worker state"] * 2
    assert group.join(protocol_type="consumer", protocols=protocols).error_code == 23


# ---- syncing


def test_followers_wait_for_the_leader() -> None:
    group = Driver()
    group.join()
    group.join()
    group.join("c-1")
    assert group.sync("c-2") is None
    assert group.sync("c-1", assignments=["c-1", "c-2"]).assignment == b"c-1"
    assert group.answers["c-2"].assignment == b"c-2"
    assert group.sync("c-2").assignment == b"c-2", "a repeated request gets the same response"


def test_member_without_an_assignment_gets_an_empty_one() -> None:
    group = Driver()
    group.join()
    assert group.sync("c-1").assignment == b""


def test_rebalance_completes_the_parked_sync_requests() -> None:
    group = Driver()
    group.join()
    group.join()
    group.join("c-1")
    group.sync("c-2")
    group.join()
    assert group.answers["c-2"].error_code == REBALANCE_IN_PROGRESS


def test_members_that_do_not_sync_in_time_are_removed() -> None:
    """testJoinGroup...PendingSync: the leader has failed after JoinGroup."""
    group = Driver()
    group.join()
    group.join()
    group.join("c-1")
    group.sync("c-2")
    group.expire(TimerKind.REBALANCE)
    assert list(group.group.members) == ["c-2"]
    assert group.answers["c-2"].error_code == REBALANCE_IN_PROGRESS
    assert group.join("c-2").leader == "c-2"


def test_follower_that_does_not_sync_is_removed_from_a_stable_group() -> None:
    group = Driver()
    group.join()
    group.join()
    group.join("c-1")
    group.sync("c-1")
    group.expire(TimerKind.REBALANCE)
    assert list(group.group.members) == ["c-1"]


def test_sync_errors() -> None:
    group = Driver()
    assert group.sync("x").error_code == UNKNOWN_MEMBER_ID
    (first,) = group.stable("a")
    assert group.sync("x").error_code == UNKNOWN_MEMBER_ID
    assert group.sync(first, 7).error_code == ILLEGAL_GENERATION
    assert group.sync(first, protocol_type="connect").error_code == 23
    assert group.sync(first, protocol_name="sticky").error_code == 23
    assert group.sync(first, protocol_type="consumer", protocol_name="range").error_code == 0
    group.join()
    assert group.sync(first).error_code == REBALANCE_IN_PROGRESS
    assert group.send(SyncGroupRequest(group_id="", member_id=first, generation_id=1)).error_code == 24


# ---- heartbeats, sessions, leaving


def test_heartbeat_errors() -> None:
    group = Driver()
    assert group.heartbeat("x") == UNKNOWN_MEMBER_ID
    (first,) = group.stable("a")
    assert group.heartbeat("x") == UNKNOWN_MEMBER_ID
    assert group.heartbeat(first, 0) == ILLEGAL_GENERATION
    assert group.heartbeat(first) == 0


def test_heartbeat_before_the_assignment_is_valid() -> None:
    group = Driver()
    group.join()
    assert group.heartbeat("c-1") == 0


def test_member_without_heartbeats_is_removed() -> None:
    group = Driver()
    first, second = group.stable("a", "b")
    group.expire(TimerKind.SESSION, second)
    assert group.state == "PreparingRebalance"
    assert group.join(first).generation_id == 3
    assert group.heartbeat(second) == UNKNOWN_MEMBER_ID


def test_member_that_waits_in_join_group_keeps_its_session() -> None:
    group = Driver()
    first, _ = group.stable("a", "b")
    group.join(first)
    group.expire(TimerKind.SESSION, first)
    assert first in group.group.members


def test_new_member_that_waits_too_long_is_removed() -> None:
    """Its client may have disconnected before it received its member id."""
    group = Driver()
    group.stable("a")
    group.join()
    session = TimerKey(TimerKind.SESSION, GROUP, "c-2")
    assert group.timers[session].after_ms == NO_DELAY.new_member_timeout_ms
    group.expire(TimerKind.SESSION, "c-2")
    assert group.answers["c-2"].error_code == UNKNOWN_MEMBER_ID


def test_session_timeout_is_that_of_the_member() -> None:
    group = Driver()
    (first,) = group.stable("a")
    assert group.timers[TimerKey(TimerKind.SESSION, GROUP, first)].after_ms == SESSION_MS


def test_group_is_empty_after_the_last_member_leaves() -> None:
    group = Driver()
    (first,) = group.stable("a")
    assert group.leave(first) == 0
    assert (group.state, group.group.generation) == ("Empty", 2)
    assert group.leave(first) == UNKNOWN_MEMBER_ID
    assert not group.timers
    again = group.join()
    assert (again.error_code, again.generation_id) == (0, 3)


def test_member_that_leaves_while_it_waits_gets_a_response() -> None:
    group = Driver()
    first, second = group.stable("a", "b")
    group.join(first)
    assert group.leave(first) == 0
    assert group.answers[first].error_code == UNKNOWN_MEMBER_ID
    assert group.join(second).leader == second


def test_leave_of_version_2_names_one_member() -> None:
    group = Driver()
    (first,) = group.stable("a")
    assert group.send(LeaveGroupRequest(group_id=GROUP, member_id="x")).error_code == UNKNOWN_MEMBER_ID
    assert group.send(LeaveGroupRequest(group_id=GROUP, member_id=first)).error_code == 0
    assert group.state == "Empty"
    assert group.send(LeaveGroupRequest(group_id="", member_id=first)).error_code == 24


def test_member_id_that_has_not_joined_can_leave() -> None:
    group = Driver()
    group.join(requires_member_id=True)
    assert group.leave("c-1") == 0
    assert not group.group.exists


# ---- restart of the coordinator


def test_stable_group_survives_a_restart_of_the_coordinator() -> None:
    group = Driver()
    first, second = group.stable("a", "b")
    group.restart()
    assert group.heartbeat(first) == group.heartbeat(second) == 0
    assert group.sync(second).assignment == second.encode()
    assert set(group.timers) == {TimerKey(TimerKind.SESSION, GROUP, each) for each in (first, second)}


def test_rebalance_continues_after_a_restart_of_the_coordinator() -> None:
    group = Driver()
    first, second = group.stable("a", "b")
    group.join(first)
    group.restart()
    assert TimerKey(TimerKind.REBALANCE, GROUP) in group.timers
    group.join(first)
    group.join(second)
    assert group.answers[first].generation_id == 3
    group.restart()
    group.sync(second)
    group.sync(first, assignments=[first, second])
    assert group.answers[second].assignment == second.encode()


# ---- description and deletion


def test_describe_and_delete() -> None:
    group = Driver()
    (first,) = group.stable("a")
    described = group.type.describe(group.group, DescribeRequest(), 0)
    assert (described.state, described.group_epoch, described.assignor_name) == ("Stable", 1, "range")
    assert [(member.member_id, member.client_id) for member in described.members] == [(first, "a")]
    delete = DeleteRequest(group_ids=(GROUP,))
    assert group.send(delete).results[0].error_code == 68
    group.leave(first)
    assert group.send(delete).results[0].error_code == 0
    assert group.log == {}
    assert group.send(delete).results[0].error_code == 69


def test_numbers_of_a_group() -> None:
    group = Driver()
    group.join()
    numbers = group.type.measure(group.group)
    assert (numbers.members, numbers.epoch, numbers.is_rebalancing) == (1, 1, True)

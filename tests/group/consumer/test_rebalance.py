"""Whole rebalances, heartbeat by heartbeat: the case studies of KIP-848 and Kafka's testReconciliationProcess."""

from __future__ import annotations

from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.protocol.units import TopicPartition

from .driver import Driver, Plan, beat, join, topic_id

A3: Plan = {"a": {"foo": (0, 1, 2)}}
B3: Plan = {"a": {"foo": (0, 1)}, "b": {"foo": (2,)}}
C3: Plan = {"a": {"foo": (0,)}, "b": {"foo": (2,)}, "c": {"foo": (1,)}}


def test_case_study_basic() -> None:
    """KIP-848, "Basic": A joins (epoch 1), then B (2), then C (3)."""
    group = Driver(foo=3)
    assert group.ask(join("a"), A3) == (1, {"foo": (0, 1, 2)})
    assert group.ask(join("b"), B3) == (2, {})
    assert group.ask(beat("a", 1)) == (1, {"foo": (0, 1)})
    assert group.ask(beat("b", 2)) == (2, None)
    assert group.ask(beat("a", 1, {"foo": (0, 1)})) == (2, None)
    assert group.ask(beat("b", 2)) == (2, {"foo": (2,)})
    assert group.group.state_name == "Stable"

    assert group.ask(join("c"), C3) == (3, {})
    assert group.ask(beat("b", 2)) == (3, None)
    assert group.ask(beat("c", 3)) == (3, None)
    assert group.ask(beat("a", 2)) == (2, {"foo": (0,)})
    assert group.ask(beat("a", 2, {"foo": (0,)})) == (3, None)
    assert group.ask(beat("c", 3)) == (3, {"foo": (1,)})
    assert group.group.state_name == "Stable"


def two_members() -> Driver:
    """A owns foo-0..2 and B foo-3..5."""
    group = Driver(foo=6)
    plan = {"a": {"foo": (0, 1, 2)}, "b": {"foo": (3, 4, 5)}}
    group.ask(join("a"), {"a": {"foo": (0, 1, 2, 3, 4, 5)}})
    group.ask(join("b"), plan)
    group.ask(beat("a", 1))
    group.ask(beat("a", 1, {"foo": (0, 1, 2)}))
    assert group.ask(beat("b", 2)) == (2, {"foo": (3, 4, 5)})
    return group


def with_c(group: Driver) -> None:
    """C joins: it gets foo-2 of A before foo-5 of B."""
    group.plan = {"a": {"foo": (0, 1)}, "b": {"foo": (3, 4)}, "c": {"foo": (2, 5)}}
    assert group.ask(join("c")) == (3, {})


def test_case_study_incremental_revocation_and_assignment() -> None:
    """KIP-848, "Incremental Revocation & Assignment"."""
    group = two_members()
    with_c(group)
    assert group.ask(beat("a", 2)) == (2, {"foo": (0, 1)})
    assert group.ask(beat("b", 2)) == (2, {"foo": (3, 4)})
    assert group.ask(beat("a", 2, {"foo": (0, 1)})) == (3, None)
    assert group.ask(beat("c", 3)) == (3, {"foo": (2,)})
    assert group.ask(beat("b", 2, {"foo": (3, 4)})) == (3, None)
    assert group.ask(beat("c", 3)) == (3, {"foo": (2, 5)})
    assert group.group.state_name == "Stable"


def test_case_study_member_failure() -> None:
    """KIP-848, "Member Failure": A fails, B and C get its partitions at epoch 4."""
    group = two_members()
    with_c(group)
    for request in (beat("a", 2), beat("b", 2), beat("a", 2, {"foo": (0, 1)}), beat("b", 2, {"foo": (3, 4)})):
        group.ask(request)
    assert group.ask(beat("c", 3)) == (3, {"foo": (2, 5)})
    group.plan = {"b": {"foo": (0, 3, 4)}, "c": {"foo": (1, 2, 5)}}
    group.expire(TimerKind.SESSION, "a")
    assert (group.group.epoch, group.group.target_epoch) == (4, 4)
    assert group.ask(beat("b", 3)) == (4, {"foo": (0, 3, 4)})
    assert group.ask(beat("c", 3)) == (4, {"foo": (1, 2, 5)})


def test_case_study_partition_added() -> None:
    """KIP-848, "Partition Added": the coordinator detects foo-1 and B gets it."""
    group = Driver(foo=1)
    group.ask(join("a"), {"a": {"foo": (0,)}})
    assert group.ask(join("b")) == (2, {})
    assert group.ask(beat("a", 1)) == (2, None)
    group.plan = {"a": {"foo": (0,)}, "b": {"foo": (1,)}}
    group.set_topics(foo=2)
    assert (group.group.epoch, group.group.target_epoch) == (3, 3)
    assert group.ask(beat("b", 2)) == (3, {"foo": (1,)})
    assert group.ask(beat("a", 2)) == (3, None)


def test_unchanged_topics_write_no_record() -> None:
    group = Driver(foo=1, bar=1)
    group.ask(join("a"), {"a": {"foo": (0,)}})
    group.set_topics(foo=1, bar=7)
    assert (group.records, group.group.epoch) == ([], 1)


def test_topic_that_is_deleted_and_created_again_is_another_topic() -> None:
    group = Driver(foo=1)
    group.ask(join("a"), {"a": {"foo": (0,)}})
    group.plan = {}
    group.set_topics()
    assert group.ask(beat("a", 1)) == (1, {})
    assert group.pending("a") == {"foo": (0,)}
    assert group.ask(beat("a", 1, {})) == (2, None)


def test_reconciliation_process() -> None:
    """RE-01 to RE-10, Kafka's testReconciliationProcess; epochs are 8 lower. RE-04 writes no record here."""
    group = Driver(foo=6, bar=3)
    group.ask(join("m1", "foo", "bar"), {"m1": {"foo": (0, 1, 2, 3, 4, 5), "bar": (0, 1, 2)}})
    group.ask(
        join("m2", "foo", "bar"), {"m1": {"foo": (0, 1, 2), "bar": (0, 1)}, "m2": {"foo": (3, 4, 5), "bar": (2,)}}
    )
    group.ask(beat("m1", 1))
    group.ask(beat("m1", 1, {"foo": (0, 1, 2), "bar": (0, 1)}))
    assert group.ask(beat("m2", 2)) == (2, {"foo": (3, 4, 5), "bar": (2,)})

    plan = {
        "m1": {"foo": (0, 1), "bar": (0,)},
        "m2": {"foo": (2, 3), "bar": (2,)},
        "m3": {"foo": (4, 5), "bar": (1,)},
    }
    assert group.ask(join("m3", "foo", "bar"), plan) == (3, {})  # RE-01
    assert (group.state("m3"), group.group.state_name) == ("UNRELEASED", "Reconciling")
    assert group.ask(beat("m1", 2)) == (2, {"foo": (0, 1), "bar": (0,)})  # RE-02
    assert (group.state("m1"), group.pending("m1")) == ("UNREVOKED", {"foo": (2,), "bar": (1,)})
    assert group.ask(beat("m2", 2)) == (2, {"foo": (3,), "bar": (2,)})  # RE-03
    assert (group.state("m2"), group.pending("m2")) == ("UNREVOKED", {"foo": (4, 5)})
    assert group.ask(beat("m3", 3)) == (3, None)  # RE-04
    assert group.ask(beat("m1", 2, {"foo": (0, 1), "bar": (0,)})) == (3, None)  # RE-05
    assert group.state("m1") == "STABLE"
    assert group.ask(beat("m2", 2)) == (2, None)  # RE-06
    assert (group.records, group.state("m2")) == ([], "UNREVOKED")
    assert group.ask(beat("m3", 3)) == (3, {"bar": (1,)})  # RE-07
    assert group.ask(beat("m3", 3)) == (3, None)  # RE-08
    assert group.records == []
    assert group.ask(beat("m2", 2, {"foo": (3,), "bar": (2,)})) == (3, {"foo": (2, 3), "bar": (2,)})  # RE-09
    epochs = group.group.current("m2").assigned
    assert epochs == {each: 3 if each == TopicPartition(topic_id("foo"), 2) else 2 for each in epochs}
    assert group.ask(beat("m3", 3, {"bar": (1,)})) == (3, {"bar": (1,), "foo": (4, 5)})  # RE-10
    assert (group.state("m3"), group.group.state_name) == ("STABLE", "Stable")


def test_heartbeat_of_a_member_that_waits_is_parked_within_what_its_client_tolerates() -> None:
    """A partition is not idle until the next heartbeat after its owner has revoked it.

    librdkafka takes the interval in the response as the timeout of its requests: it is always the configured one.
    """
    group = Driver(foo=3)
    group.ask(join("a"), A3)
    group.plan = B3
    joined = group.send(join("b"))
    assert (joined.heartbeat_interval_ms, group.outcome.parks) == (5_000, True), "foo-2 has not been revoked"
    assert group.send(beat("b", 2)).heartbeat_interval_ms == 5_000
    assert group.outcome.parks
    traits = group.group_type.traits(beat("b", 2))
    assert (traits.max_wait_ms, traits.yields) == (2_500, True)
    assert group.send(beat("a", 1)).heartbeat_interval_ms == 5_000
    assert not group.outcome.parks, "it is to revoke"
    group.ask(beat("a", 1, {"foo": (0, 1)}))
    assert "b" in group.group.members_to_wake
    assert group.ask(beat("b", 2)) == (2, {"foo": (2,)})
    assert not group.outcome.parks
    group.send(beat("b", 2))
    assert not group.outcome.parks, "it waits for nothing"


def test_join_is_not_parked_when_the_assignor_has_failed() -> None:
    group = Driver(foo=3)
    group.plan = None
    group.send(join("a"))
    group.send(join("a"))
    assert not group.outcome.parks

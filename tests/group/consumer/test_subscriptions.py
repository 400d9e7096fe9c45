"""Subscriptions by name and by regular expression: CA-17 to CA-20, KIP-848 "Regular Expressions"."""

from __future__ import annotations

from typing import Any

from connectgroup.group.kernel.outcome import Matched
from connectgroup.group.registry import ClientInfo
from connectgroup.protocol.messages.common import AssignorInfo
from connectgroup.protocol.messages.consumer import ConsumerPrepareRequest
from connectgroup.topics import matching_topics, regex_violation

from .driver import GROUP, Driver, beat, join, topic_id

ALL = {"a": {"foo": (0,), "bar": (0,)}}


def by_regex(member_id: str, pattern: str, **changes: Any) -> Any:
    return join(member_id, subscribed_topic_names=None, subscribed_topic_regex=pattern, **changes)


def test_dropped_subscription_revokes_without_a_new_target() -> None:
    """CA-18, KAFKA-19431: the partitions are revoked in the response to the heartbeat that drops the subscription."""
    group = Driver(foo=1, bar=1)
    group.ask(join("a", "foo", "bar"), ALL)
    group.held_back = True
    assert group.ask(beat("a", 1, {"foo": (0,), "bar": (0,)}, subscribed_topic_names=("bar",))) == (1, {"bar": (0,)})
    assert (group.state("a"), group.pending("a")) == ("UNREVOKED", {"foo": (0,)})


def test_dropped_subscription_without_owned_partitions_needs_no_acknowledgement() -> None:
    """CA-17"""
    group = Driver(foo=1, bar=1)
    group.ask(join("a", "foo", "bar"), ALL)
    group.held_back = True
    assert group.ask(beat("a", 1, {"bar": (0,)}, subscribed_topic_names=("bar",))) == (1, {"bar": (0,)})
    assert (group.state("a"), group.pending("a")) == ("STABLE", {})


def test_dropped_subscription_joins_a_pending_revocation() -> None:
    """KAFKA-19431: a member that has partitions to revoke drops a topic; it does not wait for the acknowledgement."""
    group = Driver(foo=2, bar=1)
    group.ask(join("a", "foo", "bar"), {"a": {"foo": (0, 1), "bar": (0,)}})
    group.ask(join("b", "foo"), {"a": {"foo": (0,), "bar": (0,)}, "b": {"foo": (1,)}})
    assert group.ask(beat("a", 1)) == (1, {"foo": (0,), "bar": (0,)})
    group.held_back = True
    assert group.ask(beat("a", 1, subscribed_topic_names=("foo",))) == (1, {"foo": (0,)})
    assert group.pending("a") == {"foo": (1,), "bar": (0,)}


def test_unresolved_regular_expression_matches_nothing() -> None:
    """CA-20"""
    group = Driver(foo=1, bar=1)
    group.ask(join("a", "foo", "bar"), ALL)
    group.input(beat("a", 1, subscribed_topic_names=("bar",), subscribed_topic_regex="fo.*"))
    assert group.outcome.response.assignment is not None
    assert group.pending("a") == {"foo": (0,)}


def test_topics_that_match_are_assigned() -> None:
    group = Driver(foo=1, fox=1, bar=1)
    assert group.ask(by_regex("a", "fo.*"), {"a": {"foo": (0,), "fox": (0,)}}) == (2, {"foo": (0,), "fox": (0,)})
    assert sorted(group.group.topics) == ["foo", "fox"]
    assert len(group.inputs) == 1, "the first computation waits for the regular expression"


def test_topic_that_matches_now_advances_the_epoch() -> None:
    """Case study "Partition Added" with a regular expression."""
    group = Driver(foo=1, bar=1)
    group.ask(by_regex("a", "fo.*"), {"a": {"foo": (0,)}})
    epoch = group.group.epoch
    group.plan = {"a": {"foo": (0,), "fox": (0, 1)}}
    group.set_topics(foo=1, bar=1, fox=2)
    assert group.group.epoch == group.group.target_epoch == epoch + 1
    assert group.ask(beat("a", epoch)) == (epoch + 1, {"foo": (0,), "fox": (0, 1)})
    group.plan = {"a": {"foo": (0,)}}
    group.set_topics(foo=1, bar=1)
    assert group.group.epoch == epoch + 2


def test_topic_that_matches_now_advances_the_epoch_if_another_member_was_waiting_for_it() -> None:
    """The subscribed topics are the same with the new match, the subscription of the member is not."""
    group = Driver(foo=1)
    group.ask(join("a", "fox"))
    group.ask(by_regex("b", "fo.*"), {"b": {"foo": (0,)}})
    epoch = group.group.epoch
    group.plan = {"b": {"foo": (0,), "fox": (0,)}}
    group.set_topics(foo=1, fox=1)
    assert group.group.epoch == group.group.target_epoch == epoch + 2


def test_regular_expression_that_is_resolved_after_the_input_of_an_assignor_advances_the_epoch() -> None:
    """The chosen member prepares before the topics of a later member are known; these are subscribed already."""
    listed = (AssignorInfo(name="x", minimum_version=0, maximum_version=1, version=1),)
    group = Driver(foo=2)
    group.input(join("a", client_assignors=listed))
    late = by_regex("b", "fo.*", client_assignors=listed)
    group.log += group.group_type.step(group.group, late, group.now_ms, ClientInfo()).records  # no effect is performed
    epoch = group.group.epoch
    prepared = group.send(ConsumerPrepareRequest(group_id=GROUP, member_id="a", member_epoch=0))
    assert prepared.group_epoch == epoch
    assert [member.subscribed_topic_ids for member in prepared.members] == [(topic_id("foo"),), ()]
    group.input(Matched(group_id=GROUP, pattern="fo.*", topics=frozenset({"foo"})))
    assert group.group.epoch == epoch + 1, "the target assignment of the former epoch gives b nothing"


def test_names_and_regular_expression_are_united() -> None:
    group = Driver(foo=1, bar=1)
    plan = {"a": {"foo": (0,), "bar": (0,)}}
    assert group.ask(join("a", "bar", subscribed_topic_regex="fo.*"), plan)[1] == {"foo": (0,), "bar": (0,)}
    group.plan = {"a": {"bar": (0,)}}
    epoch = group.group.epoch
    assert group.ask(beat("a", epoch, subscribed_topic_regex="")) == (epoch, {"bar": (0,)})
    assert group.group.regexes == {}, "a regular expression that no member uses is forgotten"


def test_late_match_of_a_dropped_regular_expression_is_ignored() -> None:
    group = Driver(foo=1)
    group.ask(join("a"), {"a": {"foo": (0,)}})
    group.input(Matched(group_id=GROUP, pattern="x.*", topics=frozenset({"foo"})))
    assert group.records == []


def test_members_with_different_subscriptions() -> None:
    """KAFKA-16930: a member with no subscription."""
    group = Driver(foo=1, bar=1)
    group.ask(join("a", "foo"), {"a": {"foo": (0,)}})
    assert group.ask(join("b", "bar"), {"a": {"foo": (0,)}, "b": {"bar": (0,)}}) == (2, {"bar": (0,)})
    assert group.ask(join("c", subscribed_topic_names=())) == (3, {})


def test_re2_matches_whole_names_in_linear_time() -> None:
    names = ("foo", "foo-1", "a-foo", "bar")
    assert matching_topics("foo.*", names) == {"foo", "foo-1"}
    assert matching_topics("(?i)FOO|b.r", names) == {"foo", "bar"}
    assert matching_topics("(a*)*b", ("a" * 30_000,)) == frozenset()


def test_re2_rejects_other_syntax() -> None:
    assert regex_violation("fo+|b.r") == ""
    for pattern in ("(foo", r"(foo)\1", "foo(?=bar)", "a{1001}", "["):
        assert regex_violation(pattern).startswith("RE2 syntax ("), pattern

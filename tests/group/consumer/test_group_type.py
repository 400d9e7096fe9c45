"""The group type as the coordinator's shard uses it: traits, descriptions, numbers, errors, loading."""

from __future__ import annotations

from typing import Any

import pytest

from connectgroup.errors import CoordinatorNotAvailable, GroupIdNotFound, InconsistentGroupProtocol
from connectgroup.group.consumer.settings import no_regex
from connectgroup.group.consumer.state import ConsumerGroupState
from connectgroup.group.kernel.outcome import Compute, Match, Repeat, SetTimer, TimerKind
from connectgroup.group.registry import ClientInfo
from connectgroup.protocol.messages.common import AssignorInfo
from connectgroup.protocol.messages.consumer import (
    ConsumerDescribeRequest,
    ConsumerInstallRequest,
    ConsumerPrepareRequest,
)
from connectgroup.protocol.messages.describe import DeleteRequest, DescribeRequest
from connectgroup.protocol.messages.offsets import GroupToFetch, OffsetCommitRequest, OffsetFetchRequest

from .driver import GROUP, Driver, beat, join

REQUESTS: tuple[Any, ...] = (
    join("a"),
    ConsumerDescribeRequest(group_ids=(GROUP,)),
    ConsumerPrepareRequest(group_id=GROUP, member_id="a", member_epoch=1),
    ConsumerInstallRequest(group_id=GROUP, member_id="a", member_epoch=1, group_epoch=1),
    OffsetCommitRequest(group_id=GROUP, member_id="a"),
    OffsetFetchRequest(group_id=GROUP),
    OffsetFetchRequest(groups=(GroupToFetch(group_id=GROUP, topics=None),)),
    DeleteRequest(group_ids=(GROUP,)),
)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_each_request_names_its_group_and_has_an_error_response(request_: Any) -> None:
    group_type = Driver().group_type
    assert group_type.traits(request_).group_id == GROUP
    response = group_type.error_response(request_, CoordinatorNotAvailable("no"))
    assert isinstance(request_, OffsetCommitRequest) or "error_code=15" in repr(response)
    other = group_type.error_response(request_, InconsistentGroupProtocol("another type"))
    assert isinstance(request_, OffsetCommitRequest) or f"error_code={GroupIdNotFound.code}" in repr(other)


def test_heartbeat_renews_the_session_and_a_join_does_not() -> None:
    group_type = Driver().group_type
    joining, staying = group_type.traits(join("a")), group_type.traits(beat("a", 1, max_wait_ms=99_000))
    assert (joining.creates_group, joining.renews, joining.max_wait_ms) == (True, None, 2_500)
    assert (staying.creates_group, staying.max_wait_ms) == (False, 15_000)
    assert staying.renews is not None
    assert staying.renews.after_ms == 45_000


def test_description_and_numbers() -> None:
    group = Driver(foo=2)
    request = DescribeRequest(group_ids=(GROUP,))
    with pytest.raises(GroupIdNotFound):
        group.group_type.describe(group.group, request, 0)
    group.ask(join("a", instance_id="i"), {"a": {"foo": (0, 1)}})
    group.ask(join("b"), {"a": {"foo": (0,)}, "b": {"foo": (1,)}})
    described = group.group_type.describe(group.group, request, 0)
    assert (described.state, described.group_epoch, described.assignment_epoch) == ("Reconciling", 2, 2)
    assert [(member.member_id, member.state) for member in described.members] == [("a", "STABLE"), ("b", "UNRELEASED")]
    numbers = group.group_type.measure(group.group)
    assert (numbers.members, numbers.epoch, numbers.is_rebalancing, numbers.computed_by) == (2, 2, True, "coordinator")
    group.ask(beat("a", 1))
    group.ask(beat("a", -2, instance_id="i"))
    described = group.group_type.describe(group.group, request, 0)
    assert described.members[0].state == "AWAY"


def test_loaded_group_requests_what_it_waits_for_again() -> None:
    """The computation and the search ended with the former coordinator; the topics may have changed meanwhile."""
    group = Driver(foo=1)
    group.held_back = True
    group.send(join("a"))
    loaded = group.group_type.on_load(ConsumerGroupState.replay(GROUP, group.log), 0)
    assert [type(effect) for effect in loaded.effects] == [Compute, Repeat]
    timers = {timer.key.kind for timer in loaded.timers if isinstance(timer, SetTimer)}
    assert timers == {TimerKind.SESSION, TimerKind.COMPUTE}

    group = Driver(foo=1)
    group.group_type.step(group.group, join("a", subscribed_topic_regex="fo.*"), 0, ClientInfo())
    effects = group.group_type.on_load(group.group, 0).effects
    assert [type(effect) for effect in effects] == [Match, Repeat]


def test_member_that_joins_again_is_asked_to_compute_again() -> None:
    """Its former process may have sent Prepare and be gone."""
    group = Driver(foo=1)
    listed = (AssignorInfo(name="mine"),)
    group.ask(join("a", client_assignors=listed))
    group.send(ConsumerPrepareRequest(group_id=GROUP, member_id="a", member_epoch=0))
    assert group.group.computation is not None
    assert group.group.computation.prepared
    group.ask(join("a", client_assignors=listed))
    assert group.group.computation is not None
    assert not group.group.computation.prepared


def test_static_member_that_takes_over_the_instance_id_of_another_member() -> None:
    group = Driver(foo=2)
    group.ask(join("a", instance_id="i"), {"a": {"foo": (0, 1)}})
    group.ask(join("b"), {"a": {"foo": (0,)}, "b": {"foo": (1,)}})
    group.ask(beat("a", -2, instance_id="i"))
    group.plan = {"b": {"foo": (0, 1)}}
    group.ask(join("b", instance_id="i"))
    assert (sorted(group.group.members), group.group.epoch) == (["b"], 3)
    assert group.ask(beat("b", group.group.current("b").epoch))[0] == 3


def test_topics_of_a_static_member_are_forgotten_when_another_member_takes_over_its_instance_id() -> None:
    group = Driver(foo=1, fox=1)
    group.ask(join("a", "fox", instance_id="i", subscribed_topic_regex="fox.*"), {"a": {"fox": (0,)}})
    group.ask(join("b"), {"a": {"fox": (0,)}, "b": {"foo": (0,)}})
    group.ask(beat("a", -2, instance_id="i"))
    group.ask(join("b", instance_id="i"), {"b": {"foo": (0,)}})
    assert (sorted(group.group.topics), group.group.regexes) == (["foo"], {})
    assert [topic.topic_name for topic in group.inputs[-1].input.topics] == ["foo"]


def test_without_a_library_no_regular_expression_is_valid() -> None:
    assert "no library" in no_regex("foo")

"""Validation of consumer heartbeats: RV-01 to RV-13, each a sentence of KIP-848's list of errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from connectgroup.errors import (
    InvalidGroupId,
    InvalidRegularExpression,
    InvalidRequest,
    PolicyViolation,
    UnknownMemberId,
    UnsupportedAssignor,
)
from connectgroup.protocol.messages.common import AssignorInfo
from connectgroup.protocol.messages.consumer import (
    ConsumerDescribeRequest,
    ConsumerInstallRequest,
    ConsumerPrepareRequest,
    TopicPartitions,
)

from .driver import Driver, beat, join, topic_id

TWICE = (TopicPartitions(topic_id=topic_id("foo"), partitions=(0, 0)),)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (replace(join("a"), group_id=""), "GroupId: got ''"),  # RV-01
        (beat("", 1), "MemberId: got ''"),  # RV-02
        (beat("", -1), "MemberId: got ''"),
        (join("a", instance_id=""), "InstanceId: got ''"),  # RV-03
        (join("a", rack_id=""), "RackId: got ''"),  # RV-04
        (join("a", rebalance_timeout_ms=-1), "RebalanceTimeoutMs: got '-1'"),  # RV-05
        (join("a", rebalance_timeout_ms=0), "RebalanceTimeoutMs: got '0'"),
        (join("a", rebalance_timeout_ms=3_600_001), "allowed: 1 to 3600000"),
        (join("a", owned=None), "TopicPartitions: got 'null'; allowed: empty if MemberEpoch is 0"),  # RV-06
        (join("a", owned=TWICE), "TopicPartitions: got 'partitions'"),
        (join("a", subscribed_topic_names=None), "SubscribedTopicNames: got 'None'"),  # RV-07
        (beat("a", -2), "InstanceId: got 'None'; allowed: a group instance id if MemberEpoch is -2"),  # RV-08
        (beat("a", -3, instance_id="i"), "MemberEpoch: got '-3'; allowed: >= -2"),  # RV-09
        (beat("a", 1, max_wait_ms=-1), "MaxWaitMs"),
        (replace(beat("a", 1), owned=TWICE), "TopicPartitions: got 'a partition twice'"),
        (
            join("a", server_assignor="range", client_assignors=(AssignorInfo(name="x"),)),
            "ServerAssignor or ClientAssignors, not both",
        ),
        (join("a", client_assignors=(AssignorInfo(name=""),)), "ClientAssignors.Name"),
        (join("a", client_assignors=(AssignorInfo(name="x"),) * 2), "each assignor once"),
        (join("a", client_assignors=(AssignorInfo(name="x", minimum_version=-2),)), "MinimumVersion"),
        (join("a", client_assignors=(AssignorInfo(name="x", maximum_version=-1),)), "MaximumVersion"),
        (join("a", client_assignors=(AssignorInfo(name="x", version=2),)), "ClientAssignors.Version"),
    ],
)
def test_invalid_heartbeat_is_rejected_and_changes_nothing(request_: Any, message: str) -> None:
    group = Driver(foo=1)
    response = group.send(request_)
    assert response.error_code == InvalidRequest.code
    assert message in response.error_message
    assert group.log == []


def test_unknown_server_side_assignor() -> None:
    """RV-10: "UNSUPPORTED_ASSIGNOR if the requested assignor is not supported"."""
    group = Driver(foo=1)
    response = group.send(join("a", server_assignor="unknown"))
    assert response.error_code == UnsupportedAssignor.code
    assert "allowed: range, uniform" in response.error_message
    assert group.log == []


def test_invalid_regular_expression() -> None:
    """RV-13: "INVALID_REGULAR_EXPRESSION"."""
    group = Driver(foo=1)
    response = group.send(join("a", subscribed_topic_names=None, subscribed_topic_regex="(foo"))
    assert response.error_code == InvalidRegularExpression.code == 128
    assert response.error_message == "SubscribedTopicRegex: got '(foo'; allowed: RE2 syntax"
    assert group.log == []


def test_empty_list_of_topics_subscribes_to_nothing() -> None:
    """RV-07: "an empty list is fine"."""
    group = Driver(foo=1)
    assert group.ask(join("a", subscribed_topic_names=()))[1] == {}
    assert group.group.topics == {}


def test_number_of_partitions_of_a_group_is_limited() -> None:
    group = Driver(foo=200_001)
    response = group.send(join("a"))
    assert response.error_code == PolicyViolation.code
    assert "200001 partitions; allowed: at most 200000" in response.error_message
    assert group.log == []


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (ConsumerPrepareRequest(group_id="", member_id="a", member_epoch=1), InvalidGroupId.code),
        (ConsumerPrepareRequest(group_id="g", member_id="", member_epoch=1), InvalidRequest.code),
        (ConsumerPrepareRequest(group_id="g", member_id="a", member_epoch=-1), InvalidRequest.code),
        (ConsumerInstallRequest(group_id="g", member_id="a", member_epoch=-2, group_epoch=1), InvalidRequest.code),
        (ConsumerInstallRequest(group_id="g", member_id="a", member_epoch=1, group_epoch=-1), InvalidRequest.code),
        (ConsumerPrepareRequest(group_id="g", member_id="x", member_epoch=1), UnknownMemberId.code),
        (ConsumerPrepareRequest(group_id="g", member_id="a", member_epoch=1), UnknownMemberId.code),
        (ConsumerInstallRequest(group_id="", member_id="a", member_epoch=1, group_epoch=1), InvalidGroupId.code),
        (ConsumerInstallRequest(group_id="g", member_id="", member_epoch=1, group_epoch=1), InvalidRequest.code),
        (ConsumerInstallRequest(group_id="g", member_id="x", member_epoch=1, group_epoch=1), UnknownMemberId.code),
        (ConsumerInstallRequest(group_id="g", member_id="a", member_epoch=1, group_epoch=1), UnknownMemberId.code),
    ],
)
def test_prepare_and_install_of_a_member_that_was_not_asked(request_: Any, code: int) -> None:
    group = Driver(foo=1)
    group.ask(join("a"), {"a": {"foo": (0,)}})
    assert group.send(request_).error_code == code
    assert group.records == []


@pytest.mark.parametrize(("group_id", "code"), [("", 24), ("other", 69)])
def test_description_of_an_unknown_group(group_id: str, code: int) -> None:
    group = Driver(foo=1)
    group.group.group_id = group_id
    [described] = group.send(ConsumerDescribeRequest(group_ids=(group_id,))).groups
    assert (described.group_id, described.error_code, described.group_state) == (group_id, code, "Dead")


def test_description() -> None:
    group = Driver(foo=2)
    group.ask(join("a", rack_id="r", instance_id="i"), {"a": {"foo": (0, 1)}})
    group.ask(join("b"), {"a": {"foo": (0,)}, "b": {"foo": (1,)}})
    [described] = group.send(ConsumerDescribeRequest(group_ids=("g",))).groups
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Reconciling", 2, 2)
    a, b = described.members
    assert (a.member_id, a.instance_id, a.rack_id, a.member_epoch, a.client_id, a.client_host, a.member_type) == (
        *("a", "i", "r", 1, "client", "host", 1),
    )
    partitions = [
        [(topic.topic_name, topic.partitions) for topic in assignment.topic_partitions]
        for assignment in (a.assignment, a.target_assignment, b.assignment, b.target_assignment)
    ]
    assert partitions == [[("foo", (0, 1))], [("foo", (0,))], [], [("foo", (1,))]]

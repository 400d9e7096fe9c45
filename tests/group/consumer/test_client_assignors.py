"""Client-side assignors of consumer groups by Prepare and Install, which Kafka removed before release (KIP-848)."""

from __future__ import annotations

from typing import Any

from connectgroup.errors import (
    ComputeAssignment,
    FencedMemberEpoch,
    InvalidAssignment,
    StaleGroupEpoch,
    UnknownMemberId,
    UnsupportedAssignor,
)
from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.protocol.messages.common import AssignorInfo
from connectgroup.protocol.messages.consumer import (
    ConsumerInstallRequest,
    ConsumerPrepareRequest,
    ConsumerPrepareResponse,
    InstalledConsumer,
)

from .driver import Driver, Share, beat, join, wire

MINE = (AssignorInfo(name="mine", minimum_version=0, maximum_version=3, version=2, metadata=b"hello"),)


def prepare(member_id: str, epoch: int) -> ConsumerPrepareRequest:
    return ConsumerPrepareRequest(group_id="g", member_id=member_id, member_epoch=epoch)


def install(member_id: str, group_epoch: int, shares: dict[str, Share], **changes: Any) -> ConsumerInstallRequest:
    members = tuple(
        InstalledConsumer(member_id=name, topic_partitions=wire(share), version=2, metadata=b"for " + name.encode())
        for name, share in shares.items()
    )
    return ConsumerInstallRequest(
        group_id="g", member_id=member_id, member_epoch=0, group_epoch=group_epoch, members=members, **changes
    )


def joined() -> Driver:
    """a and b list the assignor; a has computed epoch 1, b has joined: epoch 2."""
    group = Driver(foo=2)
    group.plan = None
    group.ask(join("a", client_assignors=MINE))
    assert group.send(prepare("a", 0)).error_code == 0
    assert group.send(install("a", 1, {"a": {"foo": (0, 1)}})).error_code == 0
    assert group.ask(join("a", client_assignors=MINE)) == (1, {"foo": (0, 1)})
    assert group.ask(join("b", client_assignors=MINE)) == (1, {})
    return group


def test_chosen_member_computes_and_every_member_gets_its_assignment() -> None:
    group = joined()
    asked = group.send(beat("a", 1))
    assert (asked.error_code, asked.member_epoch) == (ComputeAssignment.code, 1)
    prepared = group.send(prepare("a", 1))
    assert isinstance(prepared, ConsumerPrepareResponse)
    assert (prepared.group_epoch, prepared.assignor_name) == (2, "mine")
    assert [(topic.topic_name, topic.num_partitions) for topic in prepared.topics] == [("foo", 2)]
    assert [(each.member_id, each.assignor.metadata, each.topic_partitions) for each in prepared.members] == [
        ("a", b"hello", wire({"foo": (0, 1)})),
        ("b", b"hello", ()),
    ]
    assert group.send(install("a", 2, {"a": {"foo": (0,)}, "b": {"foo": (1,)}})).error_code == 0
    assert group.ask(beat("b", 1)) == (2, {})
    assert group.ask(beat("a", 1)) == (1, {"foo": (0,)})
    told = group.send(beat("a", 1, {"foo": (0,)}))
    assert (told.member_epoch, told.assignor_name, told.assignor_version, told.assignor_metadata) == (
        *(2, "mine", 2, b"for a"),
    )
    assert group.ask(beat("b", 2)) == (2, {"foo": (1,)})
    assert group.inputs == [], "no server-side assignor has run"


def test_prepare_with_a_member_epoch_that_the_member_does_not_have_yet() -> None:
    group = joined()
    assert group.send(prepare("a", 2)).error_code == FencedMemberEpoch.code
    assert group.records == []


def test_repeated_install_succeeds_without_effect() -> None:
    group = joined()
    group.send(prepare("a", 1))
    request = install("a", 2, {"a": {"foo": (0,)}, "b": {"foo": (1,)}})
    assert group.send(request).error_code == 0
    assert group.send(request).error_code == 0
    assert group.records == []


def test_only_the_chosen_member_may_install_and_only_for_the_prepared_epoch() -> None:
    group = joined()
    shares: dict[str, Share] = {"a": {"foo": (0,)}, "b": {"foo": (1,)}}
    assert group.send(install("b", 2, shares)).error_code == UnknownMemberId.code
    assert group.send(install("a", 2, shares)).error_code == UnknownMemberId.code, "it has not sent Prepare"
    group.send(prepare("a", 1))
    assert group.send(install("a", 1, shares)).error_code == StaleGroupEpoch.code
    assert group.group.target_epoch == 1


def test_invalid_assignment_is_rejected_whole_and_another_member_computes() -> None:
    group = joined()
    group.send(prepare("a", 1))
    response = group.send(install("a", 2, {"a": {"foo": (0, 1)}, "b": {"foo": (1,)}}))
    assert response.error_code == InvalidAssignment.code
    assert "assigned twice" in response.error_message
    assert group.send(beat("b", 1)).error_code == ComputeAssignment.code


def test_assignment_for_an_earlier_epoch_is_installed_and_the_next_is_computed() -> None:
    """The target epoch may trail the group epoch."""
    group = joined()
    group.send(prepare("a", 1))
    group.send(join("c", client_assignors=MINE))
    assert group.send(install("a", 2, {"a": {"foo": (0,)}, "b": {"foo": (1,)}})).error_code == 0
    assert (group.group.epoch, group.group.target_epoch) == (3, 2)
    assert group.send(beat("a", 1)).error_code == ComputeAssignment.code


def test_after_three_failures_the_coordinator_computes() -> None:
    group = joined()
    group.plan = {"a": {"foo": (0,)}, "b": {"foo": (1,)}}
    for _ in range(3):
        assert group.group.computation is not None
        member_id = group.group.computation.member_id
        assert group.send(prepare(member_id, 1)).error_code == 0
        assert group.send(install(member_id, 2, {}, error=1, message="no")).error_code == 0
    assert (group.group.target_epoch, group.group.computed_by) == (2, "coordinator")
    assert [effect.assignor for effect in group.inputs] == ["uniform"]


def test_late_computation_is_given_to_another_member() -> None:
    group = joined()
    group.send(prepare("a", 1))
    assert group.armed(TimerKind.COMPUTE) == 60_000
    group.expire(TimerKind.COMPUTE)
    assert group.group.computation is not None
    assert group.group.computation.member_id == "b"
    assert "a" in group.group.members


def test_members_without_assignors_are_assigned_by_the_coordinator() -> None:
    """A mixed group: consumers of other implementations list no client-side assignor."""
    group = Driver(foo=2)
    group.ask(join("a", client_assignors=MINE))
    group.plan = {"a": {"foo": (0,)}, "b": {"foo": (1,)}}
    group.ask(join("b"))
    assert (group.group.computed_by, group.group.target_epoch) == ("coordinator", 2)


def test_assignors_without_a_common_one() -> None:
    group = Driver(foo=2)
    group.ask(join("a", client_assignors=MINE))
    response = group.send(join("b", client_assignors=(AssignorInfo(name="other"),)))
    assert response.error_code == UnsupportedAssignor.code
    assert "no assignor is listed by all members; listed: mine by 1 member, other by 1 member" in response.error_message


def test_partition_is_not_assigned_to_a_member_that_is_not_subscribed() -> None:
    group = Driver(foo=1, bar=1)
    group.ask(join("a", "foo", client_assignors=MINE))
    group.ask(join("b", "bar", client_assignors=MINE))
    assert group.group.computation is not None
    chosen = group.group.computation.member_id
    group.send(prepare(chosen, 0))
    response = group.send(install(chosen, 2, {"a": {"bar": (0,)}, "b": {"foo": (0,)}}))
    assert response.error_code == InvalidAssignment.code
    assert "bar is assigned to a, which is not subscribed" in response.error_message


def test_member_that_has_prepared_is_not_asked_again() -> None:
    group = joined()
    assert group.send(beat("a", 1)).error_code == ComputeAssignment.code
    group.send(prepare("a", 1))
    assert group.ask(beat("a", 1)) == (1, None)


def test_member_that_is_to_revoke_may_be_asked_to_compute() -> None:
    """Only an acknowledgement goes first: a heartbeat without owned partitions is none."""
    group = joined()
    group.send(prepare("a", 1))
    group.send(install("a", 2, {"a": {"foo": (0,)}, "b": {"foo": (1,)}}))
    assert group.ask(beat("a", 1)) == (1, {"foo": (0,)})
    group.send(join("c", client_assignors=MINE))
    assert group.send(beat("a", 1)).error_code == ComputeAssignment.code
    assert group.ask(beat("a", 1, {"foo": (0,)})) == (2, {"foo": (0,)}), "the acknowledgement"
    assert group.send(beat("a", 2)).error_code == ComputeAssignment.code


def test_partition_that_is_added_while_a_member_computes_is_assigned_by_the_next_computation() -> None:
    group = joined()
    group.send(prepare("a", 1))
    group.set_topics(foo=3)
    assert group.send(install("a", 2, {"a": {"foo": (0,)}, "b": {"foo": (1,)}})).error_code == 0
    assert (group.group.epoch, group.group.target_epoch) == (3, 2)
    group.send(prepare("a", 1))
    assert group.send(install("a", 3, {"a": {"foo": (0, 2)}, "b": {"foo": (1,)}})).error_code == 0
    assert group.group.target_epoch == 3


def test_static_member_that_returns_computes_instead_of_a_chosen_member_that_is_silent() -> None:
    """The group epoch has advanced since the chosen member was to compute, which has sent nothing."""
    group = Driver(foo=2)
    group.plan = None
    group.ask(join("a", client_assignors=MINE))
    assert group.send(prepare("a", 0)).error_code == 0
    assert group.send(install("a", 1, {"a": {"foo": (0, 1)}})).error_code == 0
    group.ask(join("a", client_assignors=MINE))
    group.ask(join("b", client_assignors=MINE, instance_id="i-b"))
    group.send(beat("b", -2, instance_id="i-b"))
    group.set_topics(foo=3)
    assert group.send(beat("a", 1)).error_code == ComputeAssignment.code
    assert group.ask(join("b", client_assignors=MINE, instance_id="i-b")) == (1, {})
    assert group.send(beat("b", 1)).error_code == ComputeAssignment.code
    assert group.send(prepare("b", 1)).error_code == 0

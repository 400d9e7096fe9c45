"""What a member promises in passing: each of these could be broken without any other test noticing."""

from __future__ import annotations

import pytest

from connectgroup.errors import FencedMemberEpoch
from connectgroup.member.actions import Lose
from connectgroup.member.state_machine import Member, MemberSettings, Phase
from connectgroup.protocol.messages.common import grouped, units_of
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse, MemberAssignment
from connectgroup.protocol.units import Unit


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("has stopped everything", -2),
        ("one stop failed", -1),
        ("has lost everything", -1),
        ("goes for good", -1),
        ("has no static name", -1),
    ],
)
def test_only_a_static_member_that_has_stopped_everything_says_that_it_comes_back(how: str, says: int) -> None:
    """X6: its successor is given the same units under the same tokens. What still ran could write with them."""
    name = None if how == "has no static name" else "i"
    member = Member(MemberSettings(group_id="g", member_id="m", instance_id=name))
    request = member.next_request(0)
    assert request is not None
    units = frozenset({Unit("c"), Unit("c", 0)})
    member.on_response(
        request,
        HeartbeatResponse(member_epoch=3, assignment=MemberAssignment(units=grouped(units)), coordinator_epoch=1),
    )
    assert member.owned.keys() == units
    if how == "has lost everything":
        request = member.next_request(1)
        assert request is not None
        member.on_response(request, HeartbeatResponse(error_code=FencedMemberEpoch.code, coordinator_epoch=1))
        member.mark_lost()
    else:
        member.mark_revoked(units - {Unit("c", 0)} if how == "one stop failed" else units)
    member.close(temporarily=how != "goes for good")
    leave = member.next_request(2)
    assert leave is not None
    assert leave.member_epoch == says


def in_the_group(*, owned: frozenset[Unit] = frozenset()) -> Member:
    """A member at epoch 3, answered and with nothing to say."""
    member = Member(MemberSettings(group_id="g", member_id="m"))
    request = member.next_request(0)
    assert request is not None
    assignment = MemberAssignment(units=grouped(owned))
    member.on_response(request, HeartbeatResponse(member_epoch=3, assignment=assignment, coordinator_epoch=1))
    assert member.phase is Phase.MEMBER
    assert not member.has_unsent_changes
    return member


def test_a_worker_that_is_to_drain_says_so_at_once_with_all_it_has_and_once() -> None:
    units = frozenset({Unit("c"), Unit("c", 0)})
    member = in_the_group(owned=units)
    member.drain()
    assert member.has_unsent_changes
    request = member.next_request(1)
    assert request is not None
    assert request.draining
    assert request.owned is not None
    assert units_of(request.owned) == units
    member.on_response(request, HeartbeatResponse(member_epoch=3, coordinator_epoch=1))
    member.drain()
    assert not member.has_unsent_changes


def test_that_a_call_has_failed_that_was_given_up_before_is_no_news() -> None:
    """Its connection is closed after the next request is on its way; that one is still waited for."""
    member = in_the_group()
    first, second = member.next_request(1), member.next_request(2)
    assert first is not None
    assert second is not None
    member.on_no_answer(first)
    member.on_response(second, HeartbeatResponse(member_epoch=4, coordinator_epoch=1))
    assert member.epoch == 4
    assert not member.has_unsent_changes


def test_a_worker_that_is_fenced_as_it_goes_says_goodbye_once_and_does_not_join_again() -> None:
    """The answer to its last heartbeat comes when everything has been stopped."""
    member = in_the_group(owned=frozenset({Unit("c", 0)}))
    request = member.next_request(1)
    assert request is not None
    member.mark_revoked([Unit("c", 0)])
    member.close("shut down")
    fenced = HeartbeatResponse(error_code=FencedMemberEpoch.code, coordinator_epoch=1)
    assert [type(action) for action in member.on_response(request, fenced)] == [Lose]
    member.mark_lost()
    leave = member.next_request(2)
    assert leave is not None
    assert (leave.member_epoch, leave.cause) == (-1, "shut down")
    member.close("once more")
    assert member.next_request(3) is None

"""What a member promises in passing: each of these could be broken without any other test noticing."""

from __future__ import annotations

import pytest

from connectgroup.errors import FencedMemberEpoch
from connectgroup.member.machine import Member, MemberSettings
from connectgroup.messages import HeartbeatResponse, MemberAssignment, grouped
from connectgroup.names import Unit


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
    member.close(comes_back=how != "goes for good")
    leave = member.next_request(2)
    assert leave is not None
    assert leave.member_epoch == says

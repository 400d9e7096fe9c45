"""Restart or drain of a worker by an operator.

Restart: the member stops its units, leaves, and joins again under the same member id.

The request is part of the member's record, so that it survives a coordinator failover, and is repeated in every
heartbeat response until the member leaves. If the member is lost instead (fenced, or its session expired), it may not
have received the request: the group's record keeps the request until a member of that id joins again. The leave
announces that the member returns, so its units are delayed for it (``leave``, ``delay``): each stops once and starts
once, on the same worker. A member that cannot be restarted, because its replacement does not start, says why
(``restart_error``): the request ends, and the reason stays until the next request.

Drain: the request is repeated until the member reports that it drains; from then on the rules of draining apply. It
ends with the membership: a lost member that joins again is not asked to drain.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import GroupIdNotFound, InvalidRequest, UnknownMemberId
from ...protocol.messages.common import RestartRequest, RestartResponse
from ...protocol.units import printable
from ..kernel.outcome import Outcome
from . import validate
from .overlay import Overlay
from .state import Group


def restart_member(group: Group, request: RestartRequest, now_ms: int) -> Outcome[RestartResponse]:
    """Ask one member to restart or to drain, by its member id or its group instance id.

    Several members may restart at the same time; a repeated request changes nothing.

    Raises:
        GroupIdNotFound: there is no such group.
        UnknownMemberId: the member is not in the group: unknown, left, lost, or temporarily left.
        InvalidRequest: a restart of a member that is draining, so it leaves permanently.
    """
    validate.restart(request)
    if not group.exists:
        raise GroupIdNotFound(f"GroupId: got {printable(request.group_id)!r}; there is no such group")
    # An operator knows a static member by its group instance id: the member id may change at every start.
    member_id = request.member_id
    if member_id not in group.members:
        member_id = group.instances.get(member_id, member_id)
    member = group.members.get(member_id)
    if member is None:
        delay = group.delays.get(member_id)
        if delay is not None:
            left_s = delay.left_ms(now_ms) / 1000
            raise UnknownMemberId(
                f"worker {printable(member_id)!r} is not in the group: it restarts or is lost, and its units are "
                f"delayed for it for {left_s:.1f} s more"
            )
        known = printable(", ".join(sorted(group.members)), limit=300)
        raise UnknownMemberId(f"worker: got {printable(member_id)!r}; allowed: {known or 'none, the group is empty'}")
    if group.current(member_id).temporarily_left:
        raise UnknownMemberId(
            f"worker {printable(member_id)!r} has temporarily left; its units are kept for its group.instance.id "
            f"{printable(member.instance_id)!r}"
        )
    draining = member.draining or member.drain_requested
    if draining and not request.drain:
        raise InvalidRequest(f"worker {printable(member_id)!r} is draining and leaves for good")
    if draining or (member.restart_requested and not request.drain):
        return Outcome(response=RestartResponse(already_requested=True))
    overlay = Overlay(group, now_ms)
    # A drain replaces a requested restart: the worker leaves permanently.
    overlay.write(replace(member, restart_requested=not request.drain, drain_requested=request.drain, restart_error=""))
    return Outcome(response=RestartResponse(), records=tuple(overlay.records))

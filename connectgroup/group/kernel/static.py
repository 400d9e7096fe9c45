"""Static membership (``group.instance.id``): the rules that do not depend on the group type.

A leave with epoch -2 says that the member returns. Until its session timeout its units are kept for it and no epoch
advances. The next member that joins with the same instance id replaces it, whatever its member id.

Source: KIP-345; KIP-848 as Kafka shipped it (``ConsumerGroup.staticMember``, epoch -2); scenarios ST-01 to ST-08.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from ...errors import FencedInstanceId, UnknownMemberId, UnreleasedInstanceId
from ...protocol.records.base import MemberState
from ...protocol.units import STATIC_LEAVE_EPOCH, printable
from .reconcile import Current, U

M_co = TypeVar("M_co", covariant=True)
"""The record of a member."""


class StaticGroup(Protocol[M_co]):
    """What static membership reads of a group."""

    @property
    def members(self) -> Mapping[str, M_co]: ...
    @property
    def instances(self) -> Mapping[str, str]:
        """Member ids, by group instance id."""

    def current(self, member_id: str) -> Current[Any]: ...


def check_instance_id(group: StaticGroup[Any], member_id: str, instance_id: str | None) -> None:
    """Check that the group instance id in a request belongs to the member that sends it.

    Raises:
        UnknownMemberId: no member has this instance id (ST-06).
        FencedInstanceId: another member has this instance id now (ST-05).
    """
    if instance_id is None:
        return
    static_member = group.instances.get(instance_id)
    if static_member is None:
        raise UnknownMemberId(f"InstanceId: got {printable(instance_id)!r}; no member of the group has it")
    if static_member != member_id:
        raise FencedInstanceId(f"InstanceId: {printable(instance_id)!r} is in use by member {printable(static_member)}")


def check_sender(group: StaticGroup[Any], member_id: str, instance_id: str | None) -> None:
    """Check that the sender of a request is a member, and that its group instance id, if any, is its own.

    Raises:
        UnknownMemberId, FencedInstanceId: see ``check_instance_id``; or the group has no such member.
    """
    check_instance_id(group, member_id, instance_id)
    if member_id not in group.members:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; the group has no such member")


def former_static_member(group: StaticGroup[M_co], member_id: str, instance_id: str | None) -> M_co | None:
    """The other member with the joining member's instance id that has temporarily left, or ``None``.

    Raises:
        UnreleasedInstanceId: that member has not left (ST-04). If its process is dead, its session expires.
    """
    static_member = group.instances.get(instance_id) if instance_id is not None else None
    if static_member is None or static_member == member_id:
        return None
    if not group.current(static_member).temporarily_left:
        raise UnreleasedInstanceId(
            f"InstanceId: {printable(instance_id)!r} is in use: member {printable(static_member)} has not left"
        )
    return group.members[static_member]


def after_temporary_leave(current: Current[U], target: Container[U]) -> Current[U]:
    """The current assignment of a member that leaves temporarily (ST-01).

    It runs nothing, and the units of its target assignment are kept for it.
    """
    return Current(
        epoch=STATIC_LEAVE_EPOCH,
        previous_epoch=STATIC_LEAVE_EPOCH,
        state=MemberState.STABLE,
        assigned={unit: 0 for unit in current.assigned if unit in target},
    )


# --------------------------------------------------------------------------------------------------
# Who sends as a member: a process, on connections of one principal.


class Process(NamedTuple):
    """The process that a member belongs to, or that sends a request.

    The process id is a part of the request; the principal is known from the connection alone.

    Attributes:
        process_id: drawn at random by the process; -1: none or unknown.
        principal: the authenticated user of the connection, or the name in its TLS certificate; empty: the server does
            not authenticate. ``None``: unknown (an earlier version has stored the member), or the sender is a part of
            the coordinator's own process that acts for any principal.
    """

    process_id: int = -1
    principal: str | None = ""

    def accepts(self, sender: Process) -> bool:
        """Whether a member of this process accepts a request of the sender; what is unknown accepts everything."""
        if self == sender:  # nearly always
            return True
        if self.process_id not in (-1, sender.process_id):
            return False
        return self.principal == sender.principal or self.principal is None or sender.principal is None


NO_PROCESS = Process()
"""The process of a request without a process id, on a connection without authentication."""

ANY_PROCESS = Process(-1, None)
"""The process of a member that accepts every sender."""

"""Prepare and Install: the rules that do not depend on the group type.

Source: KIP-848, ConsumerGroupPrepareAssignment and ConsumerGroupInstallAssignment; "Connect on the new protocol",
ConnectGroupPrepareAssignment and ConnectGroupInstallAssignment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from ...errors import FencedMemberEpoch, GroupIdNotFound, UnknownMemberId
from ...protocol.records.connect import ComputationRecord
from ...protocol.units import printable
from .computation import ComputedGroup, Draft, accepts_prepare, computation_timer, under_way
from .deadlines import Computing
from .reconcile import Current
from .selection import select_assignor
from .timers import Timer


class PreparedGroup(ComputedGroup, Protocol):
    """What Prepare reads of a group."""

    @property
    def exists(self) -> bool: ...
    @property
    def members(self) -> Mapping[str, Any]: ...
    def current(self, member_id: str) -> Current[Any]: ...


class PreparedDraft(Draft, Protocol):
    """A group with the records of the current step applied to it."""

    @property
    def group(self) -> PreparedGroup: ...


def check_member(group: PreparedGroup, member_id: str) -> None:
    """The first two checks of both requests, in the order of the source.

    Raises:
        GroupIdNotFound: the group does not exist.
        UnknownMemberId: the group has no such member.
    """
    if not group.exists:
        raise GroupIdNotFound(f"GroupId: got {printable(group.group_id)!r}; there is no such group")
    if member_id not in group.members:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; the group has no such member")


def not_chosen(member_id: str) -> UnknownMemberId:
    """The error for a member that sends Prepare or Install and is not the chosen one."""
    return UnknownMemberId(f"{printable(member_id)} is not the member chosen to compute the assignment")


def prepare(draft: PreparedDraft, member_id: str, member_epoch: int) -> tuple[str, tuple[Timer, ...]]:
    """Record that the chosen member computes the assignment for the current group epoch.

    The record stores the group epoch and the assignor of the response. They decide whether the Install is accepted,
    even after the group epoch has advanced and after a coordinator failover.

    Returns:
        The assignor, and the timers to set.

    Raises:
        GroupIdNotFound, UnknownMemberId, FencedMemberEpoch: as listed in the source's request handling. An earlier
            member epoch is accepted: heartbeats use another connection and may advance the epoch several times while
            the request is in flight.
    """
    check_member(draft.group, member_id)
    epoch = draft.group.current(member_id).epoch
    if member_epoch > epoch:
        raise FencedMemberEpoch(f"{printable(member_id)} sent epoch {member_epoch}, the group has it at {epoch}")
    computation, assignor = under_way(draft), select_assignor(draft.listings())
    if computation is None or assignor is None or not accepts_prepare(draft, computation, member_id, assignor):
        raise not_chosen(member_id)
    prepared = replace(
        computation, epoch=draft.epoch, member_id=member_id, prepared=True, assignor=assignor, replaced_members=()
    )
    if prepared != computation:
        draft.write(prepared)
    return assignor, () if member_id == computation.member_id else (computation_timer(draft, member_id),)


def computation_of_result(group: Computing, epoch: int) -> ComputationRecord | None:
    """The server-side computation that a result for a group epoch belongs to; ``None`` if the result is stale.

    A result is stale if no server-side computation is in progress, or if it is for an earlier epoch than the one
    requested. A coordinator that has loaded the group requests the computation again for the newest epoch, so a later
    epoch is accepted.
    """
    computation = under_way(group)
    if computation is None or computation.member_id or not computation.prepared:
        return None
    return computation if computation.epoch <= epoch <= group.epoch else None

"""Scheduled rebalance delay: the units of a lost worker are reserved for it until a recorded deadline.

A lost member (session expired, fenced, or rebalance timeout expired) may return soon. The units that it owned and that
its target assignment keeps are delayed until a deadline: they are assigned to no member, whatever an assignor returns,
so an assignor need not know about delays. The deadline is a record. A new coordinator continues with it, and neither
restarts the delay nor drops it, as the leader of Kafka Connect does. An assignor that needs a delay of its own requests
it in its result.

Source: "Connect on the new protocol", "Triggering Rebalances"; KIP-415, ``scheduled.rebalance.max.delay.ms``;
PD-08; S15, CN-11, L8.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from zlib import crc32

from ...protocol.messages.assignment import DelayedUnits
from ...protocol.messages.common import grouped, units_of
from ...protocol.messages.describe import DelayedUntil
from ...protocol.records.base import Kind
from ...protocol.records.connect import DelayRecord, MemberRecord
from ...protocol.units import NO_UNITS, Units
from ..kernel.timers import Timer
from . import timers as timing
from .overlay import Overlay
from .settings import GroupSettings
from .state import Target

MIN_DELAY_MS = 1_000
"""Lower bound on the delay an assignor requests; shorter delays are raised to it."""


def delay_units(
    overlay: Overlay, member_id: str, settings: GroupSettings, *, returns: bool = False
) -> tuple[Timer, ...]:
    """Delay the units of a member that is about to be removed. Call it after the group epoch has been advanced.

    Only units that are in both the current and the target assignment are delayed: a unit that the member has not
    started yet has no downtime, and a unit with a pending revocation goes to another member. Nothing is delayed if no
    other member is left, since no move back and forth could be avoided, nor for a member that had temporarily left,
    whose session timeout was its delay, nor for a draining member, which was leaving.

    Args:
        returns: the member announced that it joins again (a restart). Its units are delayed even if no other member is
            left: others may be restarting at the same time, and the first to return must not be assigned the units of
            all.
    """
    member, current, share = overlay.member(member_id), overlay.current(member_id), overlay.target(member_id)
    others = overlay.any_member(
        lambda other: other.member_id != member_id and not overlay.current(other.member_id).temporarily_left
    )
    units = current.assigned.keys() & share.units & overlay.group.runnable.keys()
    if not settings.scheduled_delay_ms or member is None or not (others or returns) or not units:
        return ()
    if current.temporarily_left or member.draining:
        return ()
    record = DelayRecord(
        group_id=overlay.group.group_id,
        member_id=member_id,
        instance_id=member.instance_id,
        units=grouped(units),
        error=share.error,
        version=share.version,
        metadata=share.metadata,
        delay_ms=settings.scheduled_delay_ms,
        deadline_ms=overlay.now_ms + settings.scheduled_delay_ms,
        epoch=overlay.epoch,
        said=_said(member),
    )
    overlay.write(record)
    return (timing.delay(record, overlay.now_ms),)


def _said(member: MemberRecord) -> int:
    return crc32(repr((member.assignors, member.server_assignor, member.traits)).encode())


def delays_for(overlay: Overlay, member: MemberRecord) -> tuple[DelayRecord, ...]:
    """The delays whose units are reserved for a joining member, by its member id or its group instance id.

    There are several if two workers were lost and one returns with the id of the first and the instance id of the
    second.
    """
    return tuple(
        delay
        for delay in overlay.delays.values()
        if delay.member_id == member.member_id
        or (delay.instance_id is not None and delay.instance_id == member.instance_id)
    )


def give_back(overlay: Overlay, delay: DelayRecord, member: MemberRecord) -> tuple[Timer, ...]:
    """Restore a returning member's target assignment without an assignor, if nothing else has changed since (L8).

    All other units must be assigned or delayed: the target assignment becomes the current one (S9).

    Otherwise the join is one more cause to compute. The input of the assignor then shows the delayed units as the
    member's own, and the delay ends with the next target assignment.
    """
    group = overlay.group
    if delay.epoch != group.epoch or group.epoch != group.target_epoch:
        return ()
    if _said(member) != delay.said or member.draining:
        return ()
    delayed = NO_UNITS.union(*(overlay.waiting(other) for other in overlay.delays.values()))
    if group.runnable.keys() - overlay.placed() - delayed:
        # The last member left before the units of a former one were assigned again; an empty group computes nothing.
        return ()
    overlay.forget(Kind.DELAY, delay.member_id)
    units = overlay.waiting(delay)
    share = Target(units=units, error=delay.error, version=delay.version, metadata=delay.metadata)
    overlay.set_share(member.member_id, share)
    for other in list(overlay.delays.values()):
        # These members can still be restored in the same way: only returns have happened since.
        if other.epoch == group.epoch:
            overlay.write(replace(other, epoch=overlay.epoch))
    overlay.raise_target()
    return (timing.cancel_delay(group.group_id, delay.member_id),)


def after_install(
    overlay: Overlay, asked: Units, delay_ms: int, *, epoch: int, served: Container[str] | None
) -> tuple[Timer, ...]:
    """End the delays of members that returned and are in the new target; start the delay that the assignor requests.

    A deadline is never extended: an assignor that requests a delay for the same units again keeps the old deadline.

    Args:
        epoch: the target epoch.
        served: the members whose return the target assignment takes into account; ``None``: all.
    """
    group_id = overlay.group.group_id
    timers: list[Timer] = []
    for delay in list(overlay.delays.values()):
        if delay.member_id and overlay.is_back(delay, served):
            overlay.forget(Kind.DELAY, delay.member_id)
            timers.append(timing.cancel_delay(group_id, delay.member_id))
    before = overlay.delays.get("")
    # Units of a lost worker are covered by the delay of that worker.
    held = asked - overlay.lost_units(served)
    if delay_ms:
        # An assignor that always requests another computation must not keep the group busy with nothing else (L2).
        delay_ms = max(delay_ms, MIN_DELAY_MS)
        record = DelayRecord(
            group_id=group_id,
            units=grouped(held),
            delay_ms=delay_ms,
            deadline_ms=overlay.now_ms + delay_ms,
            epoch=epoch,
        )
        if before is not None and held and held <= units_of(before.units):
            record = replace(record, deadline_ms=min(record.deadline_ms, before.deadline_ms))
        overlay.write(record)
        timers.append(timing.delay(record, overlay.now_ms))
    elif before is not None:
        overlay.forget(Kind.DELAY, "")
        timers.append(timing.cancel_delay(group_id, ""))
    return tuple(timers)


def end(overlay: Overlay, member_id: str) -> bool:
    """End a delay whose deadline has passed: advance the group epoch unless all of its units are assigned already.

    Returns:
        Whether a new target assignment is needed.
    """
    delay = overlay.delays.get(member_id)
    if delay is None:
        return False
    is_back = bool(member_id) and overlay.waiting_member(delay) is not None
    units = overlay.waiting(delay)
    overlay.forget(Kind.DELAY, member_id)
    if not member_id:
        overlay.bump("the delay requested by the assignor has elapsed")
    elif units and not is_back:
        overlay.bump(f"{member_id} did not return within {delay.delay_ms} ms")
    elif overlay.epoch == overlay.target_epoch and units - overlay.placed():
        # The member has returned, and no assignor has assigned its delayed units since.
        overlay.bump(f"the work of {member_id} has no place")
    else:
        return False
    return True


def shown(overlay: Overlay) -> tuple[DelayedUnits, ...]:
    """The delayed units, as shown to assignors and in descriptions."""
    return tuple(
        DelayedUnits(
            member_id=delay.member_id,
            instance_id=delay.instance_id,
            left_ms=delay.left_ms(overlay.now_ms),
            units=grouped(overlay.waiting(delay)),
        )
        for _, delay in sorted(overlay.delays.items())
        if not delay.member_id or overlay.waiting_member(delay) is None
    )


def delayed_until(overlay: Overlay, max_units: int) -> Iterator[DelayedUntil]:
    """The delayed units with their deadlines, for the explanation of a rebalance.

    Args:
        max_units: upper bound on the units listed for each delay: a record must fit into a batch.
    """
    for _, delay in sorted(overlay.delays.items()):
        units = sorted(overlay.waiting(delay))
        if units:
            yield DelayedUntil(
                member_id=delay.member_id,
                until_ms=delay.deadline_ms,
                count=len(units),
                units=grouped(units[:max_units]),
            )

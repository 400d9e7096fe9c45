"""Scheduled delay: a lost worker's work is kept for it for a while, and the group remembers until when.

A member that is lost (silent, fenced, or too slow to stop) may be back in a moment. What it ran and was to run is
held back until its deadline: nobody is given it, whatever an assignor says, so an assignor need not know of delays at
all. The deadline is a record. A new coordinator goes on from it, neither beginning anew nor forgetting, as Kafka
Connect's leader does. An assignor that wants a delay of its own asks for it with its answer.

Source: "Connect on the new protocol", "Triggering Rebalances"; KIP-415, ``scheduled.rebalance.max.delay.ms``; design
3.8; S15, CN-11, L8.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from zlib import crc32

from ...protocol.messages.assignment import HeldBack
from ...protocol.messages.common import ConnectorTasks, grouped, units_of
from ...protocol.records.base import Kind
from ...protocol.records.connect import DelayRecord, MemberRecord
from ..kernel.timers import Timer
from . import timers as timing
from .overlay import Draft
from .settings import GroupSettings
from .state import Target

LEAST_DELAY_MS = 1_000
"""An assignor that asks for less is given this."""


def hold_back(draft: Draft, member_id: str, settings: GroupSettings, *, returns: bool = False) -> tuple[Timer, ...]:
    """Keep the work of a member that is about to be removed; called after the epoch has been raised for it.

    Only what it had and was to keep: what it was still to be given has stopped nowhere, and what it was giving up is
    somebody else's. Not where nobody is left whom a move back and forth could be spared, nor for a member that was
    away, which has had its time, or draining, which was going.

    Args:
        returns: the member announced that it joins again (a restart). Its units are delayed even if no other member is
            left: others may be restarting at the same time, and the first to return must not be assigned the units of
            all.
    """
    member, current, share = draft.member(member_id), draft.current(member_id), draft.target(member_id)
    others = any(not draft.current(other.member_id).away for other in draft.members() if other.member_id != member_id)
    units = current.assigned.keys() & share.units & draft.group.runnable.keys()
    if not settings.scheduled_delay_ms or member is None or not (others or returns) or not units:
        return ()
    if current.away or member.draining:
        return ()
    record = DelayRecord(
        group_id=draft.group.group_id,
        member_id=member_id,
        instance_id=member.instance_id,
        units=grouped(units),
        error=share.error,
        version=share.version,
        metadata=share.metadata,
        delay_ms=settings.scheduled_delay_ms,
        deadline_ms=draft.now_ms + settings.scheduled_delay_ms,
        epoch=draft.epoch,
        said=_said(member),
    )
    draft.write(record)
    return (timing.delay(record, draft.now_ms),)


def _said(member: MemberRecord) -> int:
    return crc32(repr((member.assignors, member.server_assignor, member.traits)).encode())


def waiting_for(draft: Draft, member: MemberRecord) -> tuple[DelayRecord, ...]:
    """What is held back for a member that joins: for its id, or for its static name.

    More than one where two workers were lost and one comes back with the id of the first and the name of the second.
    """
    return tuple(
        delay
        for delay in draft.delays.values()
        if delay.member_id == member.member_id
        or (delay.instance_id is not None and delay.instance_id == member.instance_id)
    )


def give_back(draft: Draft, delay: DelayRecord, member: MemberRecord) -> tuple[Timer, ...]:
    """Restore a returning member's share without asking an assignor, if nothing else has happened since (L8).

    Otherwise its joining is one more cause to compute; the assignor is shown what is held back as its own, and the
    delay ends with the next target.
    """
    group = draft.group
    if delay.epoch != group.epoch or group.epoch != group.target_epoch:
        return ()
    if _said(member) != delay.said or member.draining:
        return ()
    draft.forget(Kind.DELAY, delay.member_id)
    units = draft.waiting(delay)
    share = Target(units=units, error=delay.error, version=delay.version, metadata=delay.metadata)
    draft.set_share(member.member_id, share)
    for other in list(draft.delays.values()):
        # They can still be given back so: nothing but a return has happened since.
        if other.epoch == group.epoch:
            draft.write(replace(other, epoch=draft.epoch))
    draft.raise_target()
    return (timing.cancel_delay(group.group_id, delay.member_id),)


def after_install(
    draft: Draft, asked: Sequence[ConnectorTasks], delay_ms: int, *, epoch: int, served: Container[str] | None
) -> tuple[Timer, ...]:
    """A new target ends the delays of members that are back in it, and brings the assignor's own, if it asks for one.

    A deadline never moves back: an assignor that asks again for the same units keeps the one it had.

    Args:
        epoch: the target epoch.
        served: the members whose return the target takes into account; ``None``: all.
    """
    group_id = draft.group.group_id
    timers: list[Timer] = []
    for delay in list(draft.delays.values()):
        if delay.member_id and draft.is_back(delay, served):
            draft.forget(Kind.DELAY, delay.member_id)
            timers.append(timing.cancel_delay(group_id, delay.member_id))
    before = draft.delays.get("")
    # What waits for a lost worker waits for that.
    held = units_of(asked) - draft.lost_work(served)
    if delay_ms:
        # One that always asks to be asked again must not keep the group busy with nothing else (L2).
        delay_ms = max(delay_ms, LEAST_DELAY_MS)
        record = DelayRecord(
            group_id=group_id,
            units=grouped(held),
            delay_ms=delay_ms,
            deadline_ms=draft.now_ms + delay_ms,
            epoch=epoch,
        )
        if before is not None and held and held <= units_of(before.units):
            record = replace(record, deadline_ms=min(record.deadline_ms, before.deadline_ms))
        draft.write(record)
        timers.append(timing.delay(record, draft.now_ms))
    elif before is not None:
        draft.forget(Kind.DELAY, "")
        timers.append(timing.cancel_delay(group_id, ""))
    return tuple(timers)


def end(draft: Draft, member_id: str) -> bool:
    """A deadline has passed: raise the epoch, unless everything of it has its place already.

    Returns:
        Whether a new target is needed.
    """
    delay = draft.delays.get(member_id)
    if delay is None:
        return False
    is_back = bool(member_id) and draft.waits_for(delay) is not None
    units = draft.waiting(delay)
    draft.forget(Kind.DELAY, member_id)
    if not member_id:
        draft.bump("the delay that the assignor asked for is over")
    elif units and not is_back:
        draft.bump(f"{member_id} did not come back within {delay.delay_ms} ms")
    elif draft.epoch == draft.target_epoch and units - draft.placed():
        # It is back, and nobody has been asked since where its work is to go.
        draft.bump(f"the work of {member_id} has no place")
    else:
        return False
    return True


def shown(draft: Draft) -> tuple[HeldBack, ...]:
    """What is held back, for assignors and people."""
    return tuple(
        HeldBack(
            member_id=delay.member_id,
            instance_id=delay.instance_id,
            left_ms=delay.left_ms(draft.now_ms),
            units=grouped(draft.waiting(delay)),
        )
        for _, delay in sorted(draft.delays.items())
        if not delay.member_id or draft.waits_for(delay) is None
    )

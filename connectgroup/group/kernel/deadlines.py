"""The timers of the members of a group and of its computation, and what each is armed for."""

from __future__ import annotations

from typing import Protocol
from zlib import crc32

from ...protocol.records.connect import ComputationRecord
from .reconcile import Current, U
from .timers import CancelTimer, SetTimer, TimerKey, TimerKind


class SessionSettings(Protocol):
    """The session timeout of a group type."""

    @property
    def session_timeout_ms(self) -> int: ...


class Computing(Protocol):
    """The state that identifies a computation; both a group and a draft provide it."""

    @property
    def epoch(self) -> int: ...
    @property
    def target_epoch(self) -> int: ...
    @property
    def computation(self) -> ComputationRecord | None: ...


def computation(group: Computing) -> int:
    """A number that identifies the computation of the next target assignment: chosen member and attempt.

    The group epoch cannot identify it: a computation continues when the epoch advances (PD-06).
    """
    asked = group.computation
    if asked is None or asked.epoch <= group.target_epoch:
        return crc32(repr((group.target_epoch, "", 0)).encode())
    return crc32(repr((group.target_epoch, asked.member_id, asked.failures)).encode())


def revocation(current: Current[U]) -> int:
    """A number that identifies a member's pending revocation; 0 if nothing is pending.

    The member epoch cannot identify it: it stays the same from one revocation to the next (CA-08). A unit is revoked
    once per owner epoch, so two revocations never have the same units and owner epochs.
    """
    return crc32(repr(sorted(current.pending.items())).encode()) if current.pending else 0


def session(group_id: str, member_id: str, settings: SessionSettings) -> SetTimer:
    """The session timeout: the member must send a heartbeat before this fires."""
    return SetTimer(TimerKey(TimerKind.SESSION, group_id, member_id), settings.session_timeout_ms)


def rebalance(group_id: str, member_id: str, current: Current[U], timeout_ms: int) -> SetTimer:
    """The member must acknowledge its pending revocation before this fires; armed only in UNREVOKED (TO-03)."""
    return SetTimer(TimerKey(TimerKind.REBALANCE, group_id, member_id, revocation(current)), timeout_ms)


def compute(group_id: str, group: Computing, timeout_ms: int) -> SetTimer:
    """The deadline of a computation: "the worker should finish the assignment within
    rebalance.timeout.ms".
    """
    return SetTimer(TimerKey(TimerKind.COMPUTE, group_id, belongs_to=computation(group)), timeout_ms)


def cancel_rebalance(group_id: str, member_id: str) -> CancelTimer:
    """The member has no pending revocation any more."""
    return CancelTimer(TimerKey(TimerKind.REBALANCE, group_id, member_id))


def cancel_member(group_id: str, member_id: str) -> tuple[CancelTimer, ...]:
    """Cancel the timers of a removed member."""
    return (
        CancelTimer(TimerKey(TimerKind.SESSION, group_id, member_id)),
        cancel_rebalance(group_id, member_id),
    )

"""What a program that embeds a worker can ask the worker itself: its state, and why it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..protocol.units import NO_UNITS, Units


class StopReason(StrEnum):
    """Why a worker has ended.

    STOPPED: the program called ``stop``, or cancelled it.
    RESTARTED: a restart was requested, by an operator or by ``restart``: make a new worker with the same member id
    within the scheduled rebalance delay (``serve_worker`` does).
    DRAINED: other workers have taken its units; it has left the group for good.
    REJECTED: the coordinator rejected it; a new worker with the same settings would be rejected as well.
    FAILED: an error of this library; the exception has the details.
    """

    STOPPED = "stopped"
    RESTARTED = "restarted"
    DRAINED = "drained"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """The state of a worker, as the worker knows it.

    A worker is ready if ``joined``. A worker that has not joined needs no restart: it retries until ``ended`` is set.

    Attributes:
        joined: whether it is a member of the group, by the last response of the coordinator.
        epoch: its member epoch; 0 before it has joined.
        owned: the units that it may be running, those that start or stop included.
        lease_left_s: seconds until its lease expires unless the coordinator responds before: then it stops the units
            that are not fenced. ``None`` without a lease: before it has joined, and after the lease has expired.
        last_error: why the last heartbeat has failed, or why the coordinator has rejected the worker; empty after a
            heartbeat that has succeeded.
        ended: why the worker has ended; ``None`` until then.
    """

    joined: bool = False
    epoch: int = 0
    owned: Units = NO_UNITS
    lease_left_s: float | None = None
    last_error: str = ""
    ended: StopReason | None = None

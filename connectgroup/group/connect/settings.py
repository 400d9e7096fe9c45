"""Settings of the groups of a coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...checks import MAX_INT32, MAX_MS, check_text, check_whole
from ...errors import ConfigError
from ...protocol.messages.assignment import InstalledMember, PrepareResponse
from ...protocol.messages.common import ConnectorTasks


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAssignment:
    """The result of a server-side assignor: ``members``, ``delayed``, ``delay_ms``, ``message`` as in Install.

    ``error`` is that of the assignor, 0 if it has set none: then nothing is installed, and the group keeps its target
    assignment.
    """

    members: tuple[InstalledMember, ...] = ()
    delayed: tuple[ConnectorTasks, ...] = ()
    delay_ms: int = 0
    message: str = ""
    error: int = 0


ServerAssignorCall = Callable[[PrepareResponse], tuple[InstalledMember, ...] | ServerAssignment]
"""A server-side assignor. Its input is the response that a member gets to Prepare; its result is what a member sends
with Install, or only the members if there is nothing else to set.

``coordinator.compute.as_server_assignor`` converts any ``ConnectAssignor``. By hand: ``question.shares()``
returns the target assignment of each member (if two members have a unit, its owner is uncertain),
``question.all_units()`` the units to assign, and the result for a member is
``InstalledMember(member_id=..., units=grouped(units), version=...)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits and times. Times are in milliseconds; the defaults are those of Kafka Connect's workers where they exist.

    Attributes:
        session_timeout_ms: a member without a heartbeat for this long is removed (Connect: 10 s).
        heartbeat_interval_ms: interval between a member's heartbeats (Connect: 3 s): at most a third of
            ``session_timeout_ms``, so that two heartbeats in a row may be lost.
        max_rebalance_timeout_ms: upper bound on the rebalance timeout a member may request.
        failures_before_fallback: number of failed computations in a row after which the server-side assignor runs.
        server_assignor: ``group.remote.assignor``, the name of the assignor used as fallback and where members list
            none. Empty: none. A coordinator finds it by its entry point if it is not in ``server_assignors``.
        server_assignors: all assignors that a member may request by name.
        max_members: maximum number of members in a group.
        max_units: maximum number of connectors and tasks in a group. Two workers on two cores run 20,000 tasks within
            the default session timeout, and lose their leases at 100,000.
        max_groups: maximum number of groups on a coordinator.
        assignment_interval_ms: minimum time between two computations; one computation covers all causes within it
            (Kafka: ``group.consumer.assignment.interval.ms``). 0: every change is computed at once.
        max_moves: maximum number of units that one round may move from members that run them to others; the rest is
            deferred to the next round, which starts when all members have reached this round's target assignment.
            0: no limit.
        scheduled_delay_ms: ``scheduled.rebalance.max.delay.ms``: how long the units of a lost worker are delayed for it
            (Connect: 300 s). 0: they are reassigned at once.
        max_delay_ms: upper bound on the delay an assignor may request.
        max_start_ms: how long a target assignment waits at most for units that are starting, before it moves them.
        connection_loss_grace_ms: how long after the loss of a member's connection the coordinator looks whether the
            member's process has ended, on the same machine; if so, the member is removed. 0: it does not look.

    Raises:
        ConfigError: a field is out of its range: the field, its value, and what is allowed.
    """

    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    max_rebalance_timeout_ms: int = 3_600_000
    failures_before_fallback: int = 3
    server_assignor: str = "balanced"
    server_assignors: Mapping[str, ServerAssignorCall] = field(default_factory=dict)
    max_members: int = 1_000
    max_units: int = 25_000
    max_groups: int = 1_000
    assignment_interval_ms: int = 0
    max_moves: int = 0
    scheduled_delay_ms: int = 0
    max_delay_ms: int = 3_600_000
    max_start_ms: int = 60_000
    connection_loss_grace_ms: int = 1_000

    def __post_init__(self) -> None:
        for name in ("session_timeout_ms", "heartbeat_interval_ms", "max_rebalance_timeout_ms", "max_start_ms"):
            check_whole(name, getattr(self, name), 1, MAX_MS)
        for name in ("assignment_interval_ms", "scheduled_delay_ms", "max_delay_ms", "connection_loss_grace_ms"):
            check_whole(name, getattr(self, name), 0, MAX_MS)
        for name in ("failures_before_fallback", "max_members", "max_units", "max_groups"):
            check_whole(name, getattr(self, name), 1, MAX_INT32)
        check_whole("max_moves", self.max_moves, 0, 1_000_000)
        check_text("server_assignor", self.server_assignor)
        if self.heartbeat_interval_ms * 3 > self.session_timeout_ms:
            allowed = f"at most a third of session_timeout_ms ({self.session_timeout_ms})"
            raise ConfigError("heartbeat_interval_ms", self.heartbeat_interval_ms, allowed)

    @property
    def max_park_ms(self) -> int:
        """Upper bound on parking a heartbeat: a third of the session timeout, so that two may be lost in a row."""
        return self.session_timeout_ms // 3

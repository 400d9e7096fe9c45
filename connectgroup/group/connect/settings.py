"""What an operator may set about every group of a coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...protocol.messages.assignment import InstalledMember, PrepareResponse
from ...protocol.messages.common import ConnectorTasks


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """What a member would say with Install: ``members``, ``held_back``, ``delay_ms`` and ``message`` as there."""

    members: tuple[InstalledMember, ...] = ()
    held_back: tuple[ConnectorTasks, ...] = ()
    delay_ms: int = 0
    message: str = ""


ServerAssign = Callable[[PrepareResponse], tuple[InstalledMember, ...] | ServerAnswer]
"""A server-side assignor: the same question a member gets from Prepare, the same answer it gives to Install; the
members alone where there is nothing else to say.

``coordinator.own_assignors.as_server_assignor`` makes one of any ``ConnectAssignor``. By hand: ``question.shares()``
says who has what (a unit that two have is nobody's for certain), ``question.all_units()`` what there is to give, and a
share is answered as ``InstalledMember(member_id=..., units=grouped(units), version=...)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits and times, all in milliseconds, with Kafka Connect's worker defaults where it has them.

    Attributes:
        session_timeout_ms: silence longer than this removes a member (Connect: 10 s).
        heartbeat_interval_ms: how often a member is to ask (Connect: 3 s).
        longest_rebalance_timeout_ms: the most a member may ask for as rebalance timeout.
        failures_before_fallback: after so many failed computations in a row the server-side assignor runs.
        server_assignor: ``group.remote.assignor``, the name of the one used as fallback and where members list none.
            Empty: none. A coordinator finds it by its entry point where ``server_assignors`` does not have it.
        server_assignors: all that a member may ask for by name.
        most_members: members a group may have.
        most_units: connectors and tasks a group may have.
        most_groups: groups a coordinator may have.
        assignment_interval_ms: the least time between two computations; what comes within it is answered by one
            (Kafka: ``group.consumer.assignment.interval.ms``). 0: each change at once.
        most_moves: units that one round may take from members that run them and give to others; what is over waits
            for the next round, which begins when all members have reached this one's target. 0: no limit.
        scheduled_delay_ms: ``scheduled.rebalance.max.delay.ms``: how long the work of a lost worker is kept for it
            (Connect: 300 s). 0: it is given on at once.
        longest_delay_ms: the most an assignor may ask for as a delay of its own.
    """

    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    longest_rebalance_timeout_ms: int = 3_600_000
    failures_before_fallback: int = 3
    server_assignor: str = "balanced"
    server_assignors: Mapping[str, ServerAssign] = field(default_factory=dict)
    most_members: int = 1_000
    most_units: int = 200_000
    most_groups: int = 1_000
    assignment_interval_ms: int = 0
    most_moves: int = 0
    scheduled_delay_ms: int = 0
    longest_delay_ms: int = 3_600_000

    @property
    def longest_wait_ms(self) -> int:
        """The longest a heartbeat is parked: a third of the session, so that two may be lost unpunished."""
        return self.session_timeout_ms // 3

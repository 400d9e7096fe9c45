"""The settings of a member of a worker group."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..assign.placement import NO_TRAITS, WorkerTraits, check_traits
from ..checks import MAX_MS, check_name, check_number, check_whole
from ..errors import ConfigError

UNFENCED_MARGIN: Final = 0.5
"""``lease_margin`` of a worker with a unit that is not fenced: the most that leaves time for two heartbeats."""


def lease_ms(session_timeout_ms: int, margin: float, *, unfenced: bool) -> int:
    """How long a worker runs without a response until its lease expires, before its session does.

    It then stops the units that are not fenced. Fenced ones run on: their sinks reject them once a successor has
    claimed them.

    Args:
        margin: ``MemberSettings.lease_margin``.
        unfenced: the worker has a unit whose former owner no sink rejects (``Connector.fenced``). The stop of such a
            unit must have ended when the session expires: it gets at least ``UNFENCED_MARGIN`` of the session.
    """
    return int(session_timeout_ms * (1 - (max(margin, UNFENCED_MARGIN) if unfenced else margin)))


def parked_ms(max_wait_ms: int, lease: int) -> int:
    """How long a heartbeat may be parked: two in a row, the second without a response, leave time for a retry."""
    return min(max_wait_ms, 3 * lease // 10)


class GroupProtocol(StrEnum):
    """The protocol with which a worker is a member of its group (``group.protocol``).

    CONNECT: ConnectGroupHeartbeat. CLASSIC: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.
    """

    CONNECT = "connect"
    CLASSIC = "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """The settings and metadata with which a worker joins.

    Attributes:
        rebalance_timeout_ms: how long the worker may take to stop units (Connect: 60 s).
        max_wait_ms: how long the coordinator may park a heartbeat; 0 requests an immediate response. With a shorter
            wait, more of the lease is left when the coordinator becomes unreachable; changes are sent at once either
            way.
        server_assignor: the server-side assignor that this worker requests. The coordinator rejects a worker that also
            lists client-side assignors ("ServerAssignor and ClientAssignors cannot be used together").
        lease_margin: the part of the session timeout that is left when the lease of a worker expires (``lease_ms``). 0
            to 0.5: below 0 the lease would outlast the session, and with a shorter lease it would expire between two
            heartbeats. At least ``UNFENCED_MARGIN`` while the worker has a unit that is not fenced.
        traits: labels, rack, capacity and host of the worker, for assignors.
        group_protocol: the protocol that the worker uses; a group may have members of both.

    Raises:
        ConfigError: a field is out of its range: the field, its value, and what is allowed.
    """

    group_id: str
    member_id: str
    instance_id: str | None = None
    rebalance_timeout_ms: int = 60_000
    max_wait_ms: int = 2_000
    server_assignor: str | None = None
    lease_margin: float = 0.2
    traits: WorkerTraits = NO_TRAITS
    group_protocol: GroupProtocol = GroupProtocol.CONNECT

    def __post_init__(self) -> None:
        check_name("group_id", self.group_id)
        check_name("member_id", self.member_id)
        for field, name in (("instance_id", self.instance_id), ("server_assignor", self.server_assignor)):
            if name is not None:
                check_name(field, name)
        check_whole("rebalance_timeout_ms", self.rebalance_timeout_ms, 1, MAX_MS)
        check_whole("max_wait_ms", self.max_wait_ms, 0, MAX_MS)
        check_number("lease_margin", self.lease_margin, 0, 0.5)
        if not isinstance(self.traits, WorkerTraits):
            raise ConfigError("traits", self.traits, "WorkerTraits(...)")
        check_traits(self.traits)
        if not isinstance(self.group_protocol, GroupProtocol):
            raise ConfigError("group_protocol", self.group_protocol, "GroupProtocol.CONNECT or GroupProtocol.CLASSIC")

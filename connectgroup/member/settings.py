"""The settings of a member of a worker group."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..assign.placement import NO_TRAITS, WorkerTraits, check_traits
from ..checks import MAX_MS, check_name, check_number, check_whole
from ..errors import ConfigError
from ..protocol.messages.heartbeat import UNFENCED_SESSION

UNFENCED_MARGIN: Final = 0.5
"""``lease_margin`` of a worker with a unit that is not fenced: the most that leaves time for two heartbeats."""


def lease_ms(session_timeout_ms: int, margin: float, *, unfenced: bool, longer: bool = False) -> int:
    """How long a worker runs without a response until its lease expires, before its session does.

    It then stops the units that are not fenced. Fenced ones run on: their sinks reject them once a successor has
    claimed them.

    A unit that is not fenced must survive a fail-over of the coordinator, which takes up to five seconds, and must have
    stopped when the session expires, for which it has half a session: together that is more than one of 10 s. So the
    coordinator gives such workers a longer session, and their lease ends with the margin of all others: after 8 of
    13 s. Fenced workers are not found dead later because of that. A shorter lease of coordinators instead would end
    with each pause of a machine or restart of a database.

    Args:
        session_timeout_ms: as the last response has it.
        margin: ``MemberSettings.lease_margin``.
        unfenced: the worker has a unit whose former owner no sink rejects (``Connector.fenced``). The stop of such a
            unit must have ended when the session expires: it gets at least ``UNFENCED_MARGIN`` of a session.
        longer: the session is the longer one: the request that got the response was one of a worker with such a unit.
    """
    session = session_timeout_ms / UNFENCED_SESSION if longer else session_timeout_ms
    until_stop = session_timeout_ms - max(margin, UNFENCED_MARGIN) * session if unfenced else session_timeout_ms
    return int(min(session * (1 - margin), until_stop))


def parked_ms(max_wait_ms: int, lease: int, *, unfenced: bool = False) -> int:
    """How long a heartbeat may be parked: two in a row, the second without a response, leave time for a retry.

    A unit that is not fenced stops with the lease: then they leave the time of a fail-over, 4.8 of 8 s.
    """
    return min(max_wait_ms, lease // 5 if unfenced else 3 * lease // 10)


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
            heartbeats.
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

"""A minimal worker for random runs of the group rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from connectgroup.errors import ComputeAssignment, FencedMemberEpoch, GroupIdNotFound, UnknownMemberId
from connectgroup.protocol.messages.assignment import PrepareResponse
from connectgroup.protocol.messages.common import AssignorInfo, ConfigEntry, grouped, units_of
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse, TaskStatus
from connectgroup.protocol.units import Unit

from .builders import GROUP


@dataclass(kw_only=True)
class SimpleWorker:
    """A minimal worker: the member's half of the protocol."""

    member_id: str
    assignors: tuple[AssignorInfo, ...] = ()
    epoch: int = 0
    runs: dict[Unit, int] = field(default_factory=dict)
    configs: dict[Unit, tuple[ConfigEntry, ...]] = field(default_factory=dict)
    stops: dict[Unit, int] = field(default_factory=dict)
    full: bool = True
    changed: bool = False
    statuses: tuple[TaskStatus, ...] = ()
    prepared: PrepareResponse | None = None
    compute_requested: bool = False
    last: tuple[HeartbeatRequest, dict[Unit, int]] | None = None
    join_duplicated: bool = False
    instance: str | None = None
    draining: bool = False

    def request(self) -> HeartbeatRequest:
        """The next heartbeat; it is incremental unless a response was lost or something has changed."""
        owned = grouped([*self.runs, *self.stops])
        return HeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=10_000 if self.full else -1,
            client_assignors=(self.assignors or None) if self.full else None,
            owned=() if self.epoch == 0 else owned if self.full or self.changed else None,
            statuses=self.statuses,
            instance_id=self.instance if self.full or self.epoch == 0 else None,
            draining=self.draining and self.full,
        )

    def on_response(self, response: HeartbeatResponse, random: Random) -> None:
        """Process a response: take over the epoch, stop revoked units slowly, start new units."""
        self.full, self.changed, self.statuses = False, False, ()
        if response.error_code in (FencedMemberEpoch.code, UnknownMemberId.code, GroupIdNotFound.code):
            self.abandon()
            return
        if response.error_code:
            self.full = True
            self.compute_requested = self.compute_requested or response.error_code == ComputeAssignment.code
            return
        self.epoch = response.member_epoch
        if response.assignment is None:
            return
        units = units_of(response.assignment.units)
        tokens = {Unit(grant.connector, grant.task): grant.owner_epoch for grant in response.assignment.grants}
        connectors = {entry.connector: entry.config for entry in response.assignment.configs}
        for grant in response.assignment.grants:
            unit = Unit(grant.connector, grant.task)
            self.configs[unit] = connectors[grant.connector] if unit.is_connector else grant.config
        assert not units & self.stops.keys(), "assigned a unit whose revocation the worker has not acknowledged"
        for unit in sorted(self.runs.keys() - units):
            del self.runs[unit]
            self.stops[unit] = random.randint(0, 6)
        for unit in sorted(units - self.runs.keys()):
            self.runs[unit] = tokens[unit]
            self.statuses += (TaskStatus(connector=unit.connector, task=unit.task, owner_epoch=tokens[unit], state=1),)

    def abandon(self) -> None:
        """Stop everything and rejoin."""
        self.runs, self.stops = {}, {}
        self.epoch, self.full, self.changed, self.statuses = 0, True, False, ()
        self.prepared, self.compute_requested = None, False

    def tick(self) -> None:
        """Time passes: units that were stopping may have stopped."""
        for unit in list(self.stops):
            self.stops[unit] -= 1
            if self.stops[unit] < 0:
                del self.stops[unit]
                self.changed = True

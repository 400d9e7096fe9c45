"""What a target assignment does not move: delayed units (S15, L8) and starting ones (PD-16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.records.base import Key, Kind, Tombstone
from connectgroup.protocol.records.connect import (
    ComputationRecord,
    DelayRecord,
    MemberRecord,
    Record,
    TargetMemberRecord,
)
from connectgroup.protocol.units import Unit, Units, show

from ..setting import REQUESTS_REBALANCE
from .base import Batch, Change, Invariant, delayed_units

if TYPE_CHECKING:
    from ..cluster import WorkerNode
    from .watch import Watch


class DelayedUnits(Invariant):
    """S15: a delayed unit is not assigned until its member returns or the deadline passes; each deadline passes once.

    A deadline is durable and never moves back, under any coordinator. Its duration is checked only where one
    coordinator has served all the time: another coordinator restores it from the wall clock, which jumps here.
    """

    ids = "S15"
    records = DelayRecord, Tombstone

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._since_s: dict[str, float] = {}
        self._held: dict[Unit, str] = {}

    def on_record(self, record: Record, batch: Batch) -> None:
        match record:
            case DelayRecord():
                before = self.durable.delays.get(record.member_id)
                if before is None:
                    self._since_s[record.member_id] = self.cluster.loop.now
                elif record.member_id and record.deadline_ms > before.deadline_ms:
                    later_ms = record.deadline_ms - before.deadline_ms
                    self.broken(f"the deadline of {record.member_id} moves back by {later_ms} ms")
            case Tombstone(key=Key(kind=Kind.DELAY)):
                self._since_s.pop(record.key.name, None)

    def on_batch(self, batch: Batch) -> None:
        if not (batch.delays or (self._held and batch.connectors)):
            return
        delays = self.durable.delays.values()
        self._held = {unit: delay.member_id for delay in delays for unit in delayed_units(self.durable, delay)}
        for unit, member_id in self._held.items():
            holder = self.durable.holders.get(unit)
            if holder is not None and member_id:
                self.broken(f"{unit} is delayed for {member_id} and owned by {holder}")

    def on_change(self, change: Change) -> None:
        for unit in change.gained if self._held else ():
            delay = self.durable.delays.get(self._held.get(unit, ""))
            # After the earlier records of the same batch.
            if unit in self._held and delay is not None and unit in delayed_units(self.durable, delay):
                self.broken(f"{unit} is delayed for {self._held[unit]} and is assigned to {change.member_id}")

    def on_started(self, node: WorkerNode, unit: Unit, epoch: int) -> None:
        if unit in self._held and (unit, epoch) not in self.watch.void:
            self.broken(f"{unit} is delayed for {self._held[unit]} and is started by {node.name}")

    def on_tick(self) -> None:
        since_s = self.watch.calm.service_s
        if since_s is None:
            return
        bound_s = self.cluster.setting.delay_s * (1 + self.cluster.setting.drift) + 1.5
        for member_id, began_s in self._since_s.items():
            lasts_s = self.cluster.loop.now - max(began_s, since_s)
            if lasts_s > bound_s:
                self.broken(f"the delay of {member_id} has lasted {lasts_s:.1f} s")


class StartingUnitsStay(Invariant):
    """PD-16: a target assignment takes no unit from a member that is starting it, unless the member drains.

    After ``max_start_ms`` the status is removed first.
    """

    ids = "PD-16"
    records = TargetMemberRecord, Tombstone

    def on_record(self, record: Record, batch: Batch) -> None:
        durable = self.durable
        match record:
            case TargetMemberRecord(member_id=who) if who in durable.members and not durable.members[who].draining:
                current = durable.current(who)
                for unit in (durable.target(who).units - units_of(record.units)) & durable.starting:
                    status = durable.statuses[unit]
                    epoch = durable.runnable.get(unit, status.owner_epoch + 1)
                    starts = (who, current.assigned.get(unit)) == (status.member_id, status.owner_epoch) and (
                        epoch <= status.owner_epoch and not current.temporarily_left
                    )
                    if starts:
                        self.broken(f"{unit} is starting on {who} and moved by a target assignment")
            case Tombstone(key=Key(kind=Kind.STATUS)) if durable.deferred_starts and not batch.connectors:
                self.cluster.sometimes.reach("a unit did not start in time")


class ReturnToDelayedUnits(Invariant):
    """L8: a member that returns in time gets its units in the step that adds it, without a new computation.

    One that drains on its return gets none of them without a computation: they would start there and move away at once.
    """

    ids = "L8"
    records = (MemberRecord,)

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._expected: dict[str, Units] = {}

    def on_record(self, record: Record, batch: Batch) -> None:
        durable = self.durable
        if not isinstance(record, MemberRecord) or not durable.delays or durable.epoch != batch.epoch_before:
            return
        if durable.epoch != durable.target_epoch or len(batch.joined) != 1 or batch.left or batch.connectors:
            return
        delayed = {unit for delay in durable.delays.values() for unit in delayed_units(durable, delay)}
        if durable.runnable.keys() - delayed.union(*(target.units for target in durable.targets.values())):
            return  # the last member left with units that are not delayed for it: an assignor has to assign those
        for delay in durable.delays.values():
            if delay.member_id == "" or delay.epoch != durable.epoch:
                continue
            back = delay.member_id == record.member_id or (
                delay.instance_id is not None and delay.instance_id == record.instance_id
            )
            if back and record.member_id in batch.joined and not durable.members.get(record.member_id):
                self._expected[record.member_id] = frozenset(delayed_units(durable, delay))
                return

    def on_batch(self, batch: Batch) -> None:
        expected, self._expected = self._expected, {}
        for member_id, units in expected.items():
            computation = any(isinstance(record, ComputationRecord) for record in batch.records)
            missing = units - self.durable.target(member_id).units
            member = self.durable.members.get(member_id)
            if member is not None and member.draining:
                if not computation and missing != units:
                    self.broken(f"{member_id} drains, and is back with {show(units - missing)}")
                continue
            if not missing and not computation:
                self.cluster.sometimes.reach("a member returned to its delayed units")
                continue
            setting = self.cluster.setting
            if (
                len(setting.versions) > 1
                or REQUESTS_REBALANCE in setting.fault_rates
                or self.cluster.lists_assignors == "some"
            ):
                continue  # it may rejoin with other assignors or metadata, which needs a new target
            if missing:
                self.broken(f"{member_id} is back without {show(missing)}")
            else:
                self.broken(f"{member_id} is back, and a new target is computed")

"""Invariants that hold in a group after every step. Each docstring names its rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from connectgroup.group.connect.state import ConnectGroupState, runnable_units
from connectgroup.group.kernel.reconcile import Current
from connectgroup.protocol import HISTORY
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.messages.heartbeat import HeartbeatAssignment, HeartbeatRequest
from connectgroup.protocol.records.base import Key, Tombstone
from connectgroup.protocol.records.connect import MemberState, Record
from connectgroup.protocol.units import Unit, show


def group_state(group: ConnectGroupState) -> dict[str, Any]:
    """The complete state of a group: what its records contain, and the indexes derived from them."""
    return {
        "epoch": group.epoch,
        "members": dict(group.members),
        "target_epoch": group.target_epoch,
        "target_assignor": group.target_assignor,
        "computed_by": group.computed_by,
        "targets": dict(group.targets),
        "currents": dict(group.currents),
        "connectors": dict(group.connectors),
        "computation": group.computation,
        "statuses": dict(group.statuses),
        "rebalances": list(group.rebalances.items()),
        "delays": dict(group.delays),
        "instances": dict(group.instances),
        "target_checksum": group.target_checksum,
        "deferred": group.deferred,
        "target_ms": group.target_ms,
        "runnable": dict(group.runnable),
        "holders": dict(group.holders),
        "wanted_by": dict(group.wanted_by),
        "behind": set(group.behind),
    }


def one_owner(group: ConnectGroupState) -> None:
    """S1: a unit that one member owns or is still stopping is owned by no other member."""
    owner: dict[Unit, str] = {}
    for member_id, current in group.currents.items():
        assert not current.assigned.keys() & current.pending.keys(), f"{member_id} holds and stops the same unit"
        for unit in current.held:
            assert unit not in owner, f"{unit} is held by {owner[unit]} and by {member_id}"
            owner[unit] = member_id


def epochs_in_order(group: ConnectGroupState) -> None:
    """S4, S7: member epoch <= target epoch <= group epoch; only a member in UNREVOKED has pending revocations."""
    assert group.target_epoch <= group.epoch
    for member_id, current in group.currents.items():
        assert current.epoch <= group.target_epoch, member_id
        if current.state is MemberState.UNREVOKED:
            assert current.pending, f"{member_id} is UNREVOKED without a pending revocation"
        else:
            assert not current.pending, f"{member_id} is {current.state.name} but has to revoke {show(current.pending)}"
        if current.epoch == group.target_epoch:
            assert current.assigned.keys() <= group.target(member_id).units, member_id


def indexes_match(group: ConnectGroupState) -> None:
    """The derived indexes equal what a scan of the whole group computes (KAFKA-18916)."""
    assert group.holders == {
        unit: (member_id, epoch)
        for member_id, current in group.currents.items()
        for unit, epoch in current.held.items()
    }
    assert group.instances == {
        member.instance_id: member_id for member_id, member in group.members.items() if member.instance_id is not None
    }
    assert group.runnable == dict(pair for connector in group.connectors.values() for pair in runnable_units(connector))
    assert group.wanted_by == {unit: member_id for member_id, target in group.targets.items() for unit in target.units}
    existing = {Unit(name, task) for name, each in group.connectors.items() for task in range(-1, len(each.tasks))}
    assert group.statuses.keys() <= existing, "a unit that does not exist has a status"
    there = {
        member_id
        for member_id in group.members
        if group.current(member_id).temporarily_left
        or (
            group.current(member_id).epoch == group.target_epoch
            and group.current(member_id).state is MemberState.STABLE
            and group.current(member_id).assigned.keys() == group.target(member_id).units
        )
    }
    assert group.behind == group.members.keys() - there
    assert group.targets.keys() <= group.members.keys()
    assert group.currents.keys() == group.members.keys()


def target_is_valid(group: ConnectGroupState) -> None:
    """S9: a current target assigns each runnable unit to exactly one member or delays it; it has no other unit."""
    if group.members and group.epoch == group.target_epoch:
        shares = [unit for target in group.targets.values() for unit in target.units]
        waiting = [
            unit
            for delay in group.delays.values()
            for unit in units_of(delay.units)
            if group.runnable.get(unit, delay.epoch + 1) <= delay.epoch
        ]
        assert sorted(shares + waiting) == sorted(group.runnable)


def rebalance_history_is_consistent(group: ConnectGroupState) -> None:
    """The history of rebalances: ascending epochs, at most 100, finished when all members are; its moves happened."""
    epochs = list(group.rebalances)
    assert epochs == sorted(epochs)
    assert len(epochs) <= HISTORY
    target_is_valid(group)
    last = group.latest_rebalance
    if last is None:
        return
    assert last.epoch <= group.epoch
    assert last.causes
    done = group.epoch == group.target_epoch and not group.behind
    assert (last.finished_ms >= 0) == done, f"{last} in a group that is {group.state_name}"
    if done:
        assert last.finished_ms >= last.started_ms
        assert last.epoch == group.epoch
        for move in last.moves:
            unit = Unit(move.connector, move.task)
            # The successor of a static member takes over its units without a rebalance.
            if unit in group.runnable and move.target in group.members:
                assert unit in group.current(move.target).assigned, f"{unit} did not move to {move.target}"
            assert move.handover_ms >= 0


def no_unit_runs_twice(may_run: Mapping[str, Set[Unit]]) -> None:
    """S2: no two live members can run the same unit, whichever responses were lost."""
    owner: dict[Unit, str] = {}
    for member_id, units in may_run.items():
        for unit in units:
            assert unit not in owner, f"{unit} may run on {owner[unit]} and on {member_id}"
            owner[unit] = member_id


def revokes_or_assigns(
    request: HeartbeatRequest, assignment: HeartbeatAssignment, before: Current[Unit] | None
) -> None:
    """CN-13: "either revoked connectors/tasks or newly assigned connectors/tasks. The protocol never does both"."""
    knows = set(units_of(request.owned)) if request.owned is not None else set(before.held if before else ())
    units = units_of(assignment.units)
    both = bool(knows - units) and bool(units - knows)
    assert not both, f"{request.member_id}: stop {show(knows - units)} and start {show(units - knows)} in one response"
    granted = [Unit(grant.connector, grant.task) for grant in assignment.grants]
    assert granted == sorted(units - knows), "each new unit has its owner epoch and its configuration"
    assert {config.connector for config in assignment.configs} == {unit.connector for unit in granted}


class Ledger:
    """S6: a unit is never granted twice under the same owner epoch, and its owner epochs only increase.

    One exception: a static member that left temporarily, after all its tasks had stopped, may be granted its former
    units under the same owner epoch (CN-12).
    """

    def __init__(self) -> None:
        self._newest: dict[Unit, int] = {}
        self._kept: set[Unit] = set()
        self._held: dict[tuple[str, Unit], int] = {}
        self._epoch = 0

    def forget(self, member_id: str) -> None:
        """The member rejoined and runs nothing: whatever it is assigned from now on is a new grant."""
        self._held = {key: epoch for key, epoch in self._held.items() if key[0] != member_id}

    def note(self, group: ConnectGroupState) -> None:
        """Check the group after a step. A deleted group may be created again, as another incarnation."""
        if not group.exists:
            self.__init__()  # type: ignore[misc]
        assert group.epoch >= self._epoch, "the group epoch decreased"
        self._epoch = group.epoch
        held: dict[tuple[str, Unit], int] = {}
        for member_id, current in group.currents.items():
            if current.temporarily_left:
                self._kept |= current.held.keys()
                continue
            for unit, epoch in current.held.items():
                held[member_id, unit] = epoch
                if self._held.get((member_id, unit)) != epoch:
                    newest = self._newest.get(unit, -1)
                    again = unit in self._kept and epoch == newest
                    assert epoch > newest or again, f"{unit} granted to {member_id} at {epoch}, before that at {newest}"
                    self._newest[unit] = epoch
                    self._kept.discard(unit)
        self._held = held


def compacted(log: Iterable[Record], *, tombstones: bool = False) -> list[Record]:
    """The newest record of each key, in log order; tombstones are dropped unless ``tombstones`` is set."""
    newest: dict[Key, tuple[int, Record]] = {}
    for offset, record in enumerate(log):
        newest[record.key] = (offset, record)
    kept = (record for _, record in sorted(newest.values(), key=lambda entry: entry[0]))
    return [record for record in kept if tombstones or not isinstance(record, Tombstone)]


def replay_equals_live(group: ConnectGroupState, log: list[Record]) -> None:
    """D2, P3: the replay of the log, whole or compacted, equals the group that is being served."""
    live = group_state(group)
    assert group_state(ConnectGroupState.replay(group.group_id, log)) == live, "the whole log"
    assert group_state(ConnectGroupState.replay(group.group_id, compacted(log))) == live, "the compacted log"

"""What is durable, what is served, and what is read back: D2, D3, D4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.protocol.messages.describe import Rebalance
from connectgroup.protocol.records.base import Key, Kind, Tombstone
from connectgroup.protocol.records.connect import RebalanceRecord, Record
from connectgroup.protocol.units import Unit
from connectgroup.wire.record_codec import decode_record
from tests.coordinator.builders import served
from tests.group import invariants as whole

from .base import Batch, Invariant

if TYPE_CHECKING:
    from ..base import CoordinatorNode
    from .watch import Watch

CHECK_EVERY = 25
"""Batches between two full comparisons."""


class ServedIsDurable(Invariant):
    """D2: after each turn the coordinator's group is the one that the durable records make.

    What the batches since the last comparison have changed is compared each time; everything at intervals, so that a
    change without a record is detected too.
    """

    ids = "D2"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._touched: set[Key] = set()
        self._same: dict[int, tuple[Rebalance, Rebalance]] = {}
        self._seen: ConnectGroupState | None = None
        self._batches = 0
        self._turns = 0

    def on_record(self, record: Record, batch: Batch) -> None:
        self._touched.add(record.key)

    def on_batch(self, batch: Batch) -> None:
        self._batches += 1

    def on_turn(self, peer: CoordinatorNode) -> None:
        cluster, durable = self.cluster, self.durable
        coordinator = peer.coordinator
        if coordinator is None or peer.dead or peer.log.epoch != cluster.disk.storage.epoch or cluster.disk.doubtful:
            return
        group: ConnectGroupState = served(coordinator, durable.group_id)
        if group is None or coordinator.shard.groups.loading or coordinator.shard.intake.not_serving is not None:
            return
        self._turns += 1
        if group.epoch != durable.epoch or group.target_epoch != durable.target_epoch:
            self.broken(f"served {group.epoch}/{group.target_epoch}, durable {durable.epoch}/{durable.target_epoch}")
        if group is not self._seen or self._batches >= CHECK_EVERY or self._turns % 250 == 0:
            self._seen, self._batches = group, 0
            self._compare_all(group)
        else:
            for key in self._touched:
                if _of(group, key) != _of(durable, key):
                    self.broken(f"served {_of(group, key)}, durable {_of(durable, key)} under {key}")
                    break
            if group.behind != durable.behind:
                self.broken(f"served {group.behind} behind, durable {durable.behind}")
        self._touched.clear()

    def on_loaded(self, peer: CoordinatorNode) -> None:
        durable, coordinator = self.durable, peer.coordinator
        assert coordinator is not None
        if peer.log.epoch != self.cluster.disk.storage.epoch or not durable.exists:
            return
        group = served(coordinator, durable.group_id)
        if group is None:
            self.broken("a group that is on the disk was not loaded")
        else:
            self._compare_all(group)
            self._seen, self._batches = group, 0
            self._touched.clear()

    def on_rest(self) -> None:
        self._turns = -1

    def _compare_all(self, group: ConnectGroupState) -> None:
        served, durable = whole.group_state(group), whole.group_state(self.durable)
        wrong = [name for name in served if name != "rebalances" and served[name] != durable[name]]
        if not self._same_rebalances(group.rebalances):
            wrong.append("rebalances")
        if wrong:
            self.broken(f"{wrong[0]}: served {served[wrong[0]]}, durable {durable[wrong[0]]}"[:2_000])

    def _same_rebalances(self, served: Mapping[int, Rebalance]) -> bool:
        """Whether they are equal and in the same order. Compared pairs are not compared again: there are a hundred,
        each with up to a hundred moves, and loaded ones are never the same objects.
        """
        durable = self.durable.rebalances
        for epoch, rebalance in served.items():
            other = durable.get(epoch)
            before = self._same.get(epoch)
            if other is None or before is None or before[0] is not rebalance or before[1] is not other:
                if other is None or rebalance != other:
                    return False
                self._same[epoch] = rebalance, other
        return list(served) == list(durable)


def _of(group: ConnectGroupState, key: Key) -> Any:
    """A group's state under a record's key, with the indexes that are cheap to read."""
    name = key.name
    match key.kind:
        case Kind.MEMBER:
            return group.members.get(name)
        case Kind.CURRENT:
            current = group.currents.get(name)
            return current, [group.holders.get(unit) for unit in current.held] if current else None
        case Kind.TARGET_MEMBER:
            target = group.targets.get(name)
            return target, [group.wanted_by.get(unit) for unit in target.units] if target else None
        case Kind.CONNECTOR:
            connector = group.connectors.get(name)
            fault_ids = range(-1, len(connector.tasks) if connector else 0)
            return connector, [group.runnable.get(Unit(name, number)) for number in fault_ids]
        case Kind.COMPUTATION:
            return group.computation
        case Kind.REBALANCE:
            return group.rebalances.get(int(name))
        case Kind.STATUS:
            connector_name, _, task = name.rpartition("\n")
            return group.statuses.get(Unit(connector_name, int(task)))
        case _:
            return group.epoch, group.target_epoch, group.target_assignor, group.computed_by, group.created_ms


class ReplayGivesTheGroup(Invariant):
    """D2: every prefix that ends with a batch replays to the group that was served then, compacted at any time.

    ``durable`` is the replay of each whole prefix, as it grows. It is compared with the replay of the compacted log:
    the newest record of each key, decoded from the bytes of the log, compacted up to some earlier batch and followed by
    all records since (a log is seldom compacted to its end). Both replays must give the same group, including the
    indexes (KAFKA-18916).
    """

    ids = "D2"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._newest: dict[Key, Record] = {}
        self._since: list[Record] = []
        self._batches = 0

    def on_batch(self, batch: Batch) -> None:
        stored = self.cluster.disk.storage.batches[-1]
        for record, (key, value) in zip(batch.records, stored, strict=True):
            read = decode_record(key, value)
            if read != record:
                self.broken(f"{record} is read back as {read}")
            # A rebalance is compared only this once: there are a hundred of them, each with up to a hundred moves.
            self._since.append(record if isinstance(record, RebalanceRecord) else read)
        self._batches += 1
        if self._batches % CHECK_EVERY == 0:
            self._check()

    def on_rest(self) -> None:
        self._check()

    def _check(self) -> None:
        durable = self.durable
        read = ConnectGroupState.replay(durable.group_id, [*self._newest.values(), *self._since])
        replayed, served_state = whole.group_state(read), whole.group_state(durable)
        wrong = [name for name in replayed if replayed[name] != served_state[name]]
        if wrong:
            self.broken(f"{wrong[0]}: read back {replayed[wrong[0]]}, was {served_state[wrong[0]]}"[:2_000])
        try:
            whole.indexes_match(durable)
            whole.rebalance_history_is_consistent(durable)
        except AssertionError as error:
            self.broken(f"full validation: {error}")
        # Half of the time up to here; half of the time a batch's tombstones stay, as they do until they expire.
        for record in self._since:
            key = record.key
            self._newest.pop(key, None)
            self._newest[key] = record
        if self._batches % 2:
            self._newest = {key: record for key, record in self._newest.items() if not isinstance(record, Tombstone)}
        self._since = []


class OneWriter(Invariant):
    """D4: once a later coordinator has written, or opened the log, no write of an earlier one becomes visible."""

    ids = "D4"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._writer = 0

    def on_batch(self, batch: Batch) -> None:
        if batch.writer < max(self._writer, self.cluster.disk.storage.epoch):
            self.broken(f"epoch {batch.writer} writes after {max(self._writer, self.cluster.disk.storage.epoch)}")
        self._writer = batch.writer


class AllOrNothing(Invariant):
    """D3: a batch is durable as a whole, and the next coordinator reads back what was acknowledged."""

    ids = "D3"

    def on_batch(self, batch: Batch) -> None:
        stored = self.cluster.disk.storage.batches
        if not stored or len(stored[-1]) != len(batch.records):
            self.broken(f"of {len(batch.records)} records {len(stored[-1]) if stored else 0} are on the disk")
        elif any(
            isinstance(record, Tombstone) != (replayed.value is None) or replayed.key != record.key
            for record, replayed in zip(batch.records, stored[-1], strict=True)
        ):
            self.broken("the batch on the disk differs")

    def on_loaded(self, peer: CoordinatorNode) -> None:
        durable, coordinator = self.durable, peer.coordinator
        assert coordinator is not None
        if peer.log.epoch != self.cluster.disk.storage.epoch or not durable.exists:
            return
        group = served(coordinator, durable.group_id)
        if group is None or (group.epoch, group.members.keys()) != (durable.epoch, durable.members.keys()):
            self.broken("what was loaded is not what was acknowledged")

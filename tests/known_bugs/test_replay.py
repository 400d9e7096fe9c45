"""Bugs of loading: a log that was, or is being, compacted, and indexes derived from it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.records.base import Kind
from connectgroup.protocol.records.connect import CurrentRecord, MemberRecord, Record, held
from connectgroup.protocol.units import Unit
from tests.coordinator.builders import GROUP, add, ask, beat, change, look, send, serving, task_list, tick
from tests.group.builders import tasks
from tests.group.invariants import compacted, group_state
from tests.model.driver import Driver, acts


def thinned(log: Sequence[Record], random: Random, keeps: float) -> list[Record]:
    """The log as read during a compaction: any of the records that are replaced later may be missing."""
    newest = {record.key: offset for offset, record in enumerate(log)}
    return [r for offset, r in enumerate(log) if newest[r.key] == offset or random.random() < keeps]


# --------------------------------------------------------------------------------------------------
# KAFKA-19862


def test_load_that_misses_a_release_ends_with_the_right_owner() -> None:
    """KAFKA-19862: compaction went on during the load, the record that removed a partition from its old owner was
    missed, and the load failed; here two claims are accepted, and after the whole log the owner is the right one.
    """

    def has(member_id: str, epoch: int, **units: int) -> CurrentRecord:
        owned = {Unit("foo", int(name[1:])): given for name, given in units.items()}
        return CurrentRecord(
            group_id=GROUP, member_id=member_id, epoch=epoch, previous_epoch=epoch - 1, assigned=held(owned)
        )

    # A owned foo-0 and released it at 11 (that record is missing), B was granted it, and A was granted foo-1.
    seen = [has("A", 10, t0=10), has("B", 11, t0=11), has("A", 12, t1=12)]
    for order in (seen, [seen[1], seen[0], seen[2]]):
        group = ConnectGroupState(GROUP)
        for record in order:
            group.apply(record)
        assert group.holders == {Unit("foo", 0): ("B", 11), Unit("foo", 1): ("A", 12)}

    # The same with a unit that moves back: B's release is missed as well.
    group = ConnectGroupState.replay(GROUP, [*seen[:2], has("A", 13, t0=13, t1=12), has("B", 14)])
    assert group.holders == {Unit("foo", 0): ("A", 13), Unit("foo", 1): ("A", 12)}


@pytest.mark.parametrize("keeps", [0.0, 0.3, 0.9])
def test_group_is_the_same_however_much_of_its_log_is_compacted_during_the_load(keeps: float) -> None:
    """KAFKA-19862: any of the records that are replaced by the end of the load may be missing: the group is the
    same.
    """
    double_claims = 0
    for seed in range(40):
        driver, random = Driver.drawn(seed), Random(seed)
        driver.play(acts(seed, 120))
        live = group_state(driver.group)
        for _ in range(5):
            log = thinned(driver.log, random, keeps)
            assert group_state(ConnectGroupState.replay(GROUP, log)) == live
            double_claims += claims_twice(log)
    assert keeps == 0 or double_claims > 100, "the test requires loads with two claims on a unit"


def claims_twice(log: Sequence[Record]) -> int:
    """How often a reader of the log sees a unit with two owners at the same time."""
    group, seen = ConnectGroupState(GROUP), 0
    for record in log:
        group.apply(record)
        units = [unit for current in group.currents.values() for unit in current.held]
        seen += len(units) - len(set(units))
    return seen


# --------------------------------------------------------------------------------------------------
# KAFKA-17306


def test_records_may_precede_those_they_refer_to() -> None:
    """KAFKA-17306: offsets preceded their group in the compacted log; here records of a member, a connector or a
    target may precede it, and the group is the same.
    """
    swapped = 0
    for seed in range(10):
        driver = Driver.drawn(seed)
        driver.play(acts(seed, 100))
        live, log = group_state(driver.group), compacted(driver.log)
        members = [record for record in log if isinstance(record, MemberRecord)]
        swapped += len(members)
        rest = [record for record in log if not isinstance(record, MemberRecord)]
        again = group_state(ConnectGroupState.replay(GROUP, [*rest, *members]))
        assert again == live
        assert (
            group_state(
                ConnectGroupState.replay(GROUP, [r for r in log if r.key.kind != Kind.GROUP] + group_records(log))
            )
            == live
        )
    assert swapped > 10


def group_records(log: Sequence[Record]) -> list[Record]:
    return [record for record in log if record.key.kind == Kind.GROUP]


# --------------------------------------------------------------------------------------------------
# KAFKA-18916


class CompactedOnOpen(MemoryLog):
    """A log that is compacted before a new coordinator reads it."""

    async def open(self) -> None:
        await super().open()
        await self.compact()


@pytest.mark.parametrize("log", [MemoryLog, CompactedOnOpen])
@pytest.mark.parametrize("how", ["delete", "stop"])
async def test_deleted_connector_is_revoked_from_its_workers_after_a_load(log: type[MemoryLog], how: str) -> None:
    """KAFKA-18916: an index that only live traffic updated was empty, so a deletion moved no unit; here a load derives
    all indexes: a deletion is sent at once to all owners of its units.
    """
    storage = MemoryStorage()
    async with serving(log(storage)) as first:
        await change(first, add("c"))
        await change(first, add("d"))
        a = (await ask(first, beat("a"))).member_epoch
        await change(first, task_list("a", a, 4))
        a = (await ask(first, beat("a", a))).member_epoch
        await ask(first, beat("b"))
        revocation = await ask(first, beat("a", a))
        assert revocation.assignment is not None
        a = (await ask(first, beat("a", a, units_of(revocation.assignment.units)))).member_epoch
        b = (await ask(first, beat("b", a))).member_epoch
    async with serving(log(storage)) as second:
        held_by = {m.member_id: units_of(m.assigned) for m in (await look(second)).members}
        assert {"c"} <= {unit.connector for unit in held_by["a"]} & {unit.connector for unit in held_by["b"]}
        parked = [send(second, beat(name, epoch, max_wait_ms=3000)) for name, epoch in (("a", a), ("b", b))]
        await tick()
        assert not any(task.done() for task in parked)
        gone = ConnectorChange(connector="c", delete=how == "delete", target_state=0 if how == "delete" else 3)
        epoch = (await change(second, UpdateConnectorsRequest(group_id=GROUP, changes=(gone,)))).group_epoch
        for task in parked:
            response = await asyncio.wait_for(task, 0.01)
            assert isinstance(response, HeartbeatResponse)
            assert response.assignment is not None
            assert units_of(response.assignment.units) <= tasks(d=[-1])
        assert (await look(second)).group_epoch == epoch

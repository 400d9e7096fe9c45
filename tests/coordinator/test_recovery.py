"""An older copy of the log is put back: workers and sinks continue after ``connectgroup groups recover``."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from connectgroup.connector import fencing_token
from connectgroup.coordinator.loading import recover
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.dataplane.errors import TaskFenced
from connectgroup.dataplane.offset_store import OffsetStore
from connectgroup.dataplane.ownership import Owner
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.records.connect import UnitState
from connectgroup.protocol.units import Unit

from .builders import GROUP, add, ask, beat, change, computed, look, running, served, serving, task_list


async def token_of_a(storage: MemoryStorage, *, joins: int) -> int:
    """A worker joins and dies, again and again; returns the fencing token of its last grant."""
    async with serving(MemoryLog(storage)) as coordinator:
        await change(coordinator, add())
        for number in range(joins):
            await ask(coordinator, beat("a", process_id=-1, sequence=-1, host=str(number)))
            group = served(coordinator)
        return fencing_token(group.created_ms, group.current("a").assigned[Unit("c")])


def claim(path: Path, token: int) -> None:
    """A sink's claim under a token."""
    store = OffsetStore(path)
    try:
        store.claim(Owner(connector="c", task=0, tasks=1, fencing_token=token, source="s"), lambda name: True)
    finally:
        store.close()


async def test_tasks_write_again_after_an_older_copy_of_the_log_was_recovered(tmp_path: Path) -> None:
    storage, sink = MemoryStorage(), tmp_path / "sink.db"
    await token_of_a(storage, joins=1)
    copy = deepcopy(storage)
    claim(sink, await token_of_a(storage, joins=5))

    older = await token_of_a(deepcopy(copy), joins=1)
    with pytest.raises(TaskFenced):
        claim(sink, older)
    assert await recover(MemoryLog(copy), now_ms=10_000_000) == ([GROUP], [])
    async with serving(MemoryLog(copy)) as coordinator:
        group = await look(coordinator)
        assert not group.members
        assert [each.connector for each in group.connectors] == ["c"]
    claim(sink, await token_of_a(copy, joins=1))


async def test_tasks_write_again_on_an_older_copy_of_the_log_without_a_command(tmp_path: Path) -> None:
    """The owner of a rejected task reports the token of the sink; the group issues higher tokens from then on."""
    storage, sink, task = MemoryStorage(), tmp_path / "sink.db", Unit("c", 0)

    async def token_of_task(coordinator: Coordinator) -> int:
        """Heartbeats until the member has the task; returns its fencing token."""
        for _ in range(10):
            group = served(coordinator)
            current = group.current("a")
            if task in current.assigned and not current.pending and current.epoch == group.epoch:
                return fencing_token(group.created_ms, current.assigned[task])
            await ask(coordinator, beat("a", max(current.epoch, 0), frozenset(current.assigned), process_id=-1))
            await computed(coordinator)
        raise AssertionError("the task has no owner")

    async with serving(MemoryLog(storage)) as coordinator:
        await change(coordinator, add())
        await ask(coordinator, beat("a", process_id=-1))
        await computed(coordinator)
        connector = served(coordinator).current("a").assigned.get(Unit("c"))
        await change(coordinator, task_list("a", connector, 1))
        await token_of_task(coordinator)
        copy = deepcopy(storage)
        for number in range(5):
            await ask(coordinator, beat("a", process_id=-1, host=str(number)))
            await computed(coordinator)
        seen = await token_of_task(coordinator)
        claim(sink, seen)

    async with serving(MemoryLog(copy)) as coordinator:
        await ask(coordinator, beat("a", process_id=-1))
        older = await token_of_task(coordinator)
        with pytest.raises(TaskFenced) as fenced:
            claim(sink, older)
        assert fenced.value.token == seen
        group = served(coordinator)

        async def report(token: int) -> None:
            current = group.current("a")
            status = replace(running(current.assigned[task], 0), state=UnitState.FAILED, message="x", fenced_by=token)
            await ask(coordinator, beat("a", current.epoch, statuses=(status,), process_id=-1))
            await computed(coordinator)

        before = group.epoch
        for never_issued in (older, seen + (1 << 31) - (1 << 20), seen + (1 << 40), (1 << 62) + 5):
            await report(never_issued)
        assert group.epoch == before, "no member can use up the epochs"
        await report(fenced.value.token)
        assert group.epoch < before + 100
        claim(sink, await token_of_task(coordinator))


@pytest.mark.parametrize("order", ["cd", "dc"])
async def test_each_connector_writes_again_on_an_older_copy_of_the_log(order: str) -> None:
    """The group epoch has passed the token of the second sink when its task is rejected."""
    storage = MemoryStorage()

    async def tokens(coordinator: Coordinator) -> dict[str, int]:
        """Heartbeats until the member has both tasks; returns their fencing tokens by connector."""
        for _ in range(10):
            group = served(coordinator)
            current = group.current("a")
            granted = {unit.connector: epoch for unit, epoch in current.assigned.items() if not unit.is_connector}
            if len(granted) == 2 and not current.pending and current.epoch == group.epoch:
                return {name: fencing_token(group.created_ms, epoch) for name, epoch in granted.items()}
            await ask(coordinator, beat("a", max(current.epoch, 0), frozenset(current.assigned), process_id=-1))
            await computed(coordinator)
        raise AssertionError("a task has no owner")

    async with serving(MemoryLog(storage)) as coordinator:
        for name in order:
            await change(coordinator, add(name))
        await ask(coordinator, beat("a", process_id=-1))
        await computed(coordinator)
        for name in order:
            owner_epoch = served(coordinator).current("a").assigned[Unit(name)]
            await change(coordinator, task_list("a", owner_epoch, 1, name))
        await tokens(coordinator)
        copy = deepcopy(storage)
        for number in range(5):
            await ask(coordinator, beat("a", process_id=-1, host=str(number)))
            await computed(coordinator)
        seen = await tokens(coordinator)

    async with serving(MemoryLog(copy)) as coordinator:
        await ask(coordinator, beat("a", process_id=-1))
        await computed(coordinator)
        for name in order:
            assert (await tokens(coordinator))[name] < seen[name]
            current = served(coordinator).current("a")
            status = replace(
                running(current.assigned[Unit(name, 0)], 0),
                connector=name,
                state=UnitState.FAILED,
                message="x",
                fenced_by=seen[name],
            )
            epochs = set()
            for _ in range(2):
                await ask(coordinator, beat("a", current.epoch, statuses=(status,), process_id=-1))
                epochs.add(served(coordinator).epoch)
            assert len(epochs) == 1, "the second status is late: the task is being assigned again"
            assert (await tokens(coordinator))[name] > seen[name]

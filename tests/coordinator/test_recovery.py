"""An older copy of the log is put back: workers and sinks continue after ``connectgroup groups recover``."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

from connectgroup.connector import fencing_token
from connectgroup.coordinator.recovery import recover
from connectgroup.dataplane.errors import Fenced
from connectgroup.dataplane.offset_store import OffsetStore
from connectgroup.dataplane.ownership import Owner
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.units import Unit

from .builders import GROUP, add, ask, beat, change, look, served, serving


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
    with pytest.raises(Fenced):
        claim(sink, older)
    assert await recover(MemoryLog(copy), now_ms=10_000_000) == [GROUP]
    async with serving(MemoryLog(copy)) as coordinator:
        group = await look(coordinator)
        assert not group.members
        assert [each.connector for each in group.connectors] == ["c"]
    claim(sink, await token_of_a(copy, joins=1))

"""A shard with two toy group types: parking, timers, failed appends, loading and deduplication know no group type."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from connectgroup.coordinator.shard import Shard
from connectgroup.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InconsistentGroupProtocol,
    StaleMemberEpoch,
)
from connectgroup.group.registry import GroupType, Registry
from connectgroup.log.base import Log
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.describe import DescribedGroup, DescribeRequest

from .builders import FaultyLog, tick
from .toys import IDLE_MS, PATIENCE_MS, Add, Arrive, BarrierType, CounterType, Value, Watch

TYPES: tuple[GroupType, ...] = (CounterType(), BarrierType())
RETRIED = (CoordinatorLoadInProgress.code, CoordinatorNotAvailable.code)

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def sharding(log: Log | None = None, types: Sequence[GroupType] = TYPES) -> AsyncIterator[Shard]:
    """A running shard, which is closed at the end."""
    registry = Registry(types)
    shard = Shard(log or MemoryLog(), registry, clock_ms=lambda: 0, max_groups=10, in_flight_s=20)
    await shard.start()
    try:
        yield shard
    finally:
        await shard.close()


def submit(shard: Shard, request: Any) -> asyncio.Task[Any]:
    """A request, as the coordinator submits it."""
    return asyncio.create_task(shard.submit(request))


async def ask(shard: Shard, request: Any) -> Value:
    value: Value = await submit(shard, request)
    return value


async def describe(shard: Shard, group_id: str) -> DescribedGroup:
    described = await shard.describe(DescribeRequest(), group_id)
    assert isinstance(described, DescribedGroup)
    return described


async def test_parked_request_is_decided_again_when_a_record_concerns_it() -> None:
    async with sharding() as shard:
        await ask(shard, Add(group_id="c"))
        watching = submit(shard, Watch(group_id="c", seen=1))
        await tick()
        assert not watching.done()
        await ask(shard, Add(group_id="c"))
        assert (await watching).value == 2


async def test_parked_request_gets_its_response_when_the_max_wait_elapses() -> None:
    async with sharding() as shard:
        await ask(shard, Add(group_id="c"))
        began_s = asyncio.get_running_loop().time()
        assert (await ask(shard, Watch(group_id="c", seen=1, max_wait_ms=2_000))).value == 1
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(2)


async def test_later_request_of_a_sender_completes_the_parked_one() -> None:
    async with sharding() as shard:
        await ask(shard, Add(group_id="c"))
        first = submit(shard, Watch(group_id="c", seen=1))
        await tick()
        second = submit(shard, Watch(group_id="c", seen=1))
        assert (await first).value == 1
        assert not second.done()


async def test_one_input_responds_to_all_parked_requests() -> None:
    async with sharding() as shard:
        arrived = [submit(shard, Arrive(group_id="b", sender=sender, size=3)) for sender in "xyz"]
        assert {(await each).value for each in arrived} == {1}


async def test_timer_responds_to_requests_that_were_parked_without_a_response() -> None:
    async with sharding() as shard:
        began_s = asyncio.get_running_loop().time()
        arrived = [submit(shard, Arrive(group_id="b", sender=sender, size=3)) for sender in "xy"]
        assert {(await each).value for each in arrived} == {1}
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(PATIENCE_MS / 1000)
        await asyncio.sleep(2 * PATIENCE_MS / 1000)
        assert (await describe(shard, "b")).group_epoch == 1, "the timer was cancelled"


async def test_late_duplicate_changes_nothing() -> None:
    async with sharding() as shard:
        assert (await ask(shard, Add(group_id="c", sequence=5))).value == 1
        assert (await ask(shard, Add(group_id="c", sequence=5))).error_code == StaleMemberEpoch.code
        assert (await ask(shard, Add(group_id="c", sequence=6))).value == 2


@pytest.mark.parametrize("fault", ["before", "after", "bug"])
async def test_failed_append_drops_its_groups_and_loads_them_again(fault: Any) -> None:
    """D6: the client retries, and the state is what the log has."""
    log = FaultyLog()
    async with sharding(log) as shard:
        await ask(shard, Add(group_id="c"))
        waiting = submit(shard, Arrive(group_id="b", sender="x"))
        await tick()
        log.faults.append(fault)
        assert (await ask(shard, Arrive(group_id="b", sender="y"))).error_code in RETRIED
        assert (await waiting).error_code in RETRIED
        await asyncio.sleep(1)
        arrived = [submit(shard, Arrive(group_id="b", sender=sender)) for sender in "xy"]
        assert not any([(await each).error_code for each in arrived])
        assert (await ask(shard, Add(group_id="c"))).value == 2, "the other group is unchanged"


async def test_refused_batch_fails_only_the_command_at_fault() -> None:
    log = FaultyLog()
    async with sharding(log) as shard:
        log.refuses = lambda records: any(record.group_id == "bad" for record in records)
        together = [submit(shard, Add(group_id="c")), submit(shard, Add(group_id="bad"))]
        values = [await each for each in together]
        assert values[0].value == 1
        assert values[1].error_code in RETRIED


async def test_groups_of_both_types_are_loaded_with_their_timers() -> None:
    storage = MemoryStorage()
    async with sharding(MemoryLog(storage)) as first:
        await ask(first, Add(group_id="c"))
        submit(first, Arrive(group_id="b", sender="x"))
        await tick()
    async with sharding(MemoryLog(storage)) as second:
        assert [(await describe(second, name)).group_type for name in ("b", "c")] == ["barrier", "counter"]
        await asyncio.sleep((PATIENCE_MS + 100) / 1000)
        assert (await describe(second, "b")).group_epoch == 1
        await asyncio.sleep((IDLE_MS - PATIENCE_MS) / 1000)
        assert (await describe(second, "c")).group_epoch == 2


async def test_group_of_unknown_type_is_refused_by_name_and_its_records_are_kept() -> None:
    storage = MemoryStorage()
    async with sharding(MemoryLog(storage)) as first:
        submit(first, Arrive(group_id="b", sender="x"))
        await ask(first, Add(group_id="c"))
    batches = list(storage.batches)
    async with sharding(MemoryLog(storage), TYPES[:1]) as second:
        for response in (await ask(second, Add(group_id="b")), await describe(second, "b")):
            assert response.error_code == InconsistentGroupProtocol.code
            assert "group b is of type 'barrier'" in (response.error_message or "")
            assert "allowed: counter" in (response.error_message or "")
        assert storage.batches == batches
        assert (await ask(second, Add(group_id="c"))).value == 2
    async with sharding(MemoryLog(storage)) as third:
        assert (await describe(third, "b")).group_type == "barrier"


async def test_request_of_another_type_is_refused() -> None:
    async with sharding() as shard:
        await ask(shard, Add(group_id="c"))
        refused = await ask(shard, Arrive(group_id="c", sender="x"))
        assert refused.error_code == InconsistentGroupProtocol.code
        assert "group c is of type 'counter'" in refused.error_message

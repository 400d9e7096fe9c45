"""A coordinator on a log with fault injection, and short builders of requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import LogError
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.computation import under_way
from connectgroup.log.base import AppendRefused, Loaded, Log, LogFenced, LogNotWritable
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.common import entries, grouped
from connectgroup.protocol.messages.connectors import (
    ConnectorChange,
    TaskConfig,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
)
from connectgroup.protocol.messages.describe import DescribedGroup, DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse, TaskStatus
from connectgroup.protocol.records.connect import Record
from connectgroup.protocol.units import Units
from tests.group import invariants
from tests.worker.builders import settings

GROUP = "workers"
Fault = Literal["none", "before", "after", "refuse", "fenced", "bug"]


class FaultyLog(Log):
    """A memory log that can fail or be slow, before or after the batch is written.

    Attributes:
        faults: the faults of the next appends; "none" is no fault, as is an empty queue.
        gate: while set, appends wait for it before the write.
        full: the error of each append, until it is ``None`` again.
        unreadable: loads fail.
        refuses: batches that are rejected.
    """

    def __init__(self, storage: MemoryStorage | None = None) -> None:
        self.storage = storage or MemoryStorage()
        self.inner = MemoryLog(self.storage)
        self.faults: deque[Fault] = deque()
        self.gate: asyncio.Event | None = None
        self.full: LogNotWritable | None = None
        self.unreadable = False
        self.refuses: Callable[[Sequence[Record]], bool] = lambda records: False
        self.appends = 0

    @property
    def epoch(self) -> int:
        return self.inner.epoch

    async def open(self) -> None:
        await self.inner.open()

    async def load(self, group_id: str | None = None) -> dict[str, Loaded]:
        if self.unreadable:
            raise LogError("the disk is gone")
        return await self.inner.load(group_id)

    async def check_writable(self) -> None:
        if self.full is not None:
            raise self.full

    async def append(self, records: Sequence[Record]) -> None:
        self.appends += 1
        if self.gate is not None:
            await self.gate.wait()
        await self.check_writable()
        fault = self.faults.popleft() if self.faults else None
        if fault == "refuse" or self.refuses(records):
            raise AppendRefused("a batch too large")
        if fault == "before":
            raise LogError("disk full")
        if fault == "bug":
            raise OSError(28, "No space left on device")
        if fault == "fenced":
            raise LogFenced("opened again at epoch 2")
        await self.inner.append(records)
        if fault == "after":
            raise LogError("no response from the disk")

    async def compact(self) -> int:
        return await self.inner.compact()

    async def close(self) -> None:
        await self.inner.close()


@asynccontextmanager
async def serving(
    log: Log | None = None, group: GroupSettings | None = None, *, wall_clock_ms: Callable[[], int] | None = None
) -> AsyncIterator[Coordinator]:
    """A running coordinator, which is closed at the end."""
    loop = asyncio.get_running_loop()
    coordinator = Coordinator(
        MemoryLog() if log is None else log,
        group or settings(),
        wall_clock_ms=wall_clock_ms or (lambda: int(loop.time() * 1000)),
    )
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.close()


def beat(member_id: str = "a", epoch: int = 0, owned: Units | None = None, **more: Any) -> HeartbeatRequest:
    """A heartbeat; at epoch 0, a join."""
    if epoch == 0:
        more = {"rebalance_timeout_ms": 60_000, "owned": (), **more}
    elif owned is not None:
        more["owned"] = grouped(owned)
    return HeartbeatRequest(**{"group_id": GROUP, "member_id": member_id, "member_epoch": epoch, **more})


def add(name: str = "c", *, group_id: str = GROUP, **config: str) -> UpdateConnectorsRequest:
    """An operator's request that adds a connector."""
    lines = entries({"connector.class": "x", **config})
    return UpdateConnectorsRequest(group_id=group_id, changes=(ConnectorChange(connector=name, config=lines),))


def task_list(member_id: str, owner_epoch: int, count: int, name: str = "c") -> UpdateConnectorsRequest:
    """The task list of a connector, published by its owner."""
    tasks = tuple(TaskConfig(config=entries({"task": str(number)})) for number in range(count))
    change = ConnectorChange(connector=name, task_configs=tasks, owner_epoch=owner_epoch)
    return UpdateConnectorsRequest(group_id=GROUP, member_id=member_id, changes=(change,))


def running(owner_epoch: int, task: int = -1) -> TaskStatus:
    """The status RUNNING of a unit."""
    return TaskStatus(connector="c", task=task, owner_epoch=owner_epoch, state=1)


def send(coordinator: Coordinator, request: Request) -> asyncio.Task[Response]:
    """Send a request without waiting for its response."""
    return asyncio.create_task(coordinator.handle(request, client_host="test"))


async def ask(coordinator: Coordinator, request: HeartbeatRequest) -> HeartbeatResponse:
    """Send a heartbeat; returns its response."""
    response = await asyncio.wait_for(send(coordinator, request), 60)
    assert isinstance(response, HeartbeatResponse)
    if await computed(coordinator, request.group_id) and request.member_epoch == 0 and not response.error_code:
        # As a worker does: the next request follows at once, and is parked until the computation is done.
        response = await asyncio.wait_for(send(coordinator, replace(request, sequence=-1)), 60)
        assert isinstance(response, HeartbeatResponse)
    return response


async def change(coordinator: Coordinator, request: UpdateConnectorsRequest) -> UpdateConnectorsResponse:
    """Send a change of connectors; returns its response."""
    response = await asyncio.wait_for(send(coordinator, request), 60)
    assert isinstance(response, UpdateConnectorsResponse)
    await computed(coordinator, request.group_id)
    return response


async def computed(coordinator: Coordinator, group_id: str = GROUP) -> bool:
    """Let a server-side computation that is in progress finish; return whether there was one.

    Its assignor runs on the event loop (``conftest``), so the result needs no time, unless the log is slow.
    """
    found = False
    for _ in range(50):
        group = served(coordinator, group_id)
        computation = None if group is None else under_way(group)
        if computation is None or computation.member_id or not computation.prepared:
            break
        found = True
        await asyncio.sleep(0)
    return found


async def look(coordinator: Coordinator, group_id: str = GROUP) -> DescribedGroup:
    """Describe a group."""
    response = await asyncio.wait_for(send(coordinator, DescribeRequest(group_ids=(group_id,))), 60)
    assert isinstance(response, DescribeResponse)
    return response.groups[0]


async def tick(turns: int = 30) -> None:
    """Let the event loop run everything that needs no time."""
    for _ in range(turns):
        await asyncio.sleep(0)


def served(coordinator: Coordinator, group_id: str = GROUP) -> Any:
    """The group in the coordinator's memory; ``None`` if there is none."""
    loaded = coordinator.shard.groups.loaded.get(group_id)
    return None if loaded is None else loaded.state


async def memory_is_log(coordinator: Coordinator, log: Log, group_id: str = GROUP) -> None:
    """D2, D8: the group in memory equals the replay of the log."""
    loaded = (await log.load(group_id))[group_id]
    assert not isinstance(loaded, LogError)
    group, stored = served(coordinator, group_id), ConnectGroupState.replay(group_id, loaded)
    if group is None:
        assert not stored.exists
    else:
        assert invariants.group_state(group) == invariants.group_state(stored)

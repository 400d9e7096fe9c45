"""Bugs of starting and stopping a coordinator, and of its timers."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.errors import (
    CoordinatorNotAvailable,
    LogError,
    TransportError,
)
from connectgroup.group.connect.group_type import expire, on_load
from connectgroup.log.base import Loaded
from connectgroup.log.memory import MemoryLog
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.protocol.messages.common import units_of
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from tests.coordinator.builders import (
    add,
    ask,
    beat,
    change,
    look,
    send,
    served,
    serving,
    task_list,
    tick,
)
from tests.worker.builders import settings


async def response_of(task: asyncio.Task[Any], within: float = 5) -> HeartbeatResponse:
    response = await asyncio.wait_for(task, within)
    assert isinstance(response, HeartbeatResponse)
    return response


# --------------------------------------------------------------------------------------------------
# KAFKA-18484, KAFKA-19064


class FailsToClose(MemoryLog):
    async def close(self) -> None:
        await super().close()
        raise LogError("the disk has failed")


async def test_coordinator_whose_log_fails_to_close_answers_every_request() -> None:
    """KAFKA-19064: an exception while unloading left requests without a response; here every request gets a response
    and no timer is left; then close() raises the error.
    """
    coordinator = Coordinator(FailsToClose(), settings())
    await coordinator.start()
    epoch = (await ask(coordinator, beat("a"))).member_epoch
    parked = send(coordinator, beat("a", epoch, max_wait_ms=3000))
    await tick()
    with pytest.raises(LogError, match="has failed"):
        await coordinator.close()
    assert (await response_of(parked, 0.1)).error_code == CoordinatorNotAvailable.code
    assert not coordinator.shard.timers.armed
    await coordinator.close()


async def test_server_whose_log_fails_to_close_releases_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-19064: after any failure on the way the rest is unloaded too."""
    monkeypatch.setattr("connectgroup.coordinator.server.log_from_url", lambda url: FailsToClose())
    server = CoordinatorServer(CoordinatorConfig(port=0))
    await server.start()
    with pytest.raises(LogError, match="has failed"):
        await server.close()
    assert server._server._listener is None


class UnreadableOnce(SqliteLog):
    reads = 0

    async def load(self, group_id: str | None = None) -> dict[str, Loaded]:
        UnreadableOnce.reads += 1
        if UnreadableOnce.reads == 1:
            raise LogError("temporary read error")
        return await super().load(group_id)


# --------------------------------------------------------------------------------------------------
# KAFKA-19394


async def test_coordinator_that_fails_to_start_holds_no_resource(tmp_path: Path) -> None:
    """KAFKA-19394: a component that failed during its start could not be closed; here a failed start releases the log,
    so that any coordinator can open it, this one included.
    """
    UnreadableOnce.reads = 0
    coordinator = Coordinator(UnreadableOnce(tmp_path / "groups.sqlite"), settings())
    with pytest.raises(LogError, match="temporary read error"):
        await coordinator.start()
    async with serving(SqliteLog(tmp_path / "groups.sqlite")) as other:
        await ask(other, beat("a"))
    await coordinator.start()
    assert [member.member_id for member in (await look(coordinator)).members] == ["a"]
    await asyncio.wait_for(coordinator.close(), 5)

    never = Coordinator(SqliteLog(tmp_path / "no such directory" / "groups.sqlite"), settings())
    with pytest.raises(LogError):
        await never.start()
    await asyncio.wait_for(never.close(), 5)


async def test_server_whose_port_is_in_use_closes_its_log(tmp_path: Path) -> None:
    """KAFKA-19394: the log was opened first; a failed start releases it."""
    first = CoordinatorServer(CoordinatorConfig(port=0))
    await first.start()
    path = tmp_path / "groups.sqlite"
    second = CoordinatorServer(CoordinatorConfig(port=first._server.port, data=path))
    with pytest.raises(TransportError, match="cannot listen"):
        await second.start()
    async with serving(SqliteLog(path)) as third:
        assert (await ask(third, beat("a"))).error_code == 0
    await asyncio.wait_for(second.close(), 5)
    await first.close()


# --------------------------------------------------------------------------------------------------
# MINOR #21376


class SingleThreadDict(dict[Any, Any]):
    """A dictionary that only the thread that created it may change."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._thread = threading.get_ident()
        self.changes = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self._seen()
        super().__setitem__(key, value)

    def pop(self, *args: Any) -> Any:
        self._seen()
        return super().pop(*args)

    def _seen(self) -> None:
        self.changes += 1
        assert threading.get_ident() == self._thread, "a timer set off the loop"


@pytest.mark.parametrize("seed", range(6))
async def test_timers_are_those_that_a_new_coordinator_would_set(tmp_path: Path, seed: int) -> None:
    """MINOR #21376: the map of timers was changed by several threads; here by one, although the log has its own
    thread. After any run of joins, leaves, revocations and expiries the armed timers are those of the group's state.
    """
    random = Random(seed)
    group_settings = settings(scheduled_delay_ms=3_000)
    async with serving(SqliteLog(tmp_path / "groups.sqlite"), group_settings) as coordinator:
        timers = coordinator.shard.timers.armed = SingleThreadDict(coordinator.shard.timers.armed)
        await change(coordinator, add())
        for _ in range(40):
            names = [f"m{number}" for number in range(5)]
            group = await look(coordinator)
            here = {member.member_id: member for member in group.members}
            sent = []
            for name in random.sample(names, 3):
                member = here.get(name)
                if member is None or random.random() < 0.1:
                    sent.append(send(coordinator, beat(name)))
                elif random.random() < 0.15:
                    sent.append(send(coordinator, beat(name, -1)))
                else:
                    owned = units_of(member.assigned) if random.random() < 0.6 else None
                    sent.append(send(coordinator, beat(name, member.member_epoch, owned)))
                    grant = next((m for m in member.assigned if m.owns_connector), None)
                    if grant is not None and random.random() < 0.5:
                        unit = next(u for c in group.connectors for u in c.units if u.task == -1)
                        sent.append(
                            send(coordinator, task_list(name, unit.owner_epoch, random.randint(0, 6)))  # may be late
                        )
            for task in sent:
                await task
            await asyncio.sleep(random.choice([0, 0.5, 4, 11]) * random.random())
            await look(coordinator)
            await asyncio.sleep(0.01)  # a server-side computation and its append finish; timers follow the append
            group_served = served(coordinator)
            now_ms = coordinator.shard.groups.clock_ms()
            wanted = {timer.key for timer in on_load(group_served, now_ms, group_settings).timers}
            running = {armed.timer.key for armed in timers.values()}
            assert wanted <= running
            for key in running - wanted:
                assert expire(group_served, key, now_ms, group_settings).records == (), f"{key} is left over"
        assert timers.changes > 100

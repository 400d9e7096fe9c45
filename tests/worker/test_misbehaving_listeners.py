"""Listeners that raise or hang, and exceptions of calls in threads: one log line each, and the group goes on."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest

from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.units import Unit, Units
from connectgroup.threads import off_loop
from connectgroup.worker.settings import WorkerSettings

from .builders import GROUP, World
from .errors import Odd, raising
from .scripted import RecordingListener


@pytest.mark.parametrize("error", [ValueError("disk full"), SystemExit(3), Odd("odd"), asyncio.CancelledError()])
async def test_listener_that_raises_in_on_assigned_is_logged_and_the_units_start(
    tmp_path: Path, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async with World(tmp_path) as world:
        world.hook["a on_assigned c"] = raising(error)
        [a] = await world.run("a", tasks=2)
        assert a.worker.lost == 0
    lines = [record.getMessage() for record in caplog.records if "on_assigned of c " in record.getMessage()]
    assert len(lines) == 1
    assert "listener RecordingListener" in lines[0]
    assert type(error).__name__ in lines[0]
    assert "\n" not in lines[0]
    if isinstance(error, ValueError):
        assert re.search(rf" \(at {re.escape(str(Path(__file__).parent))}/\w+\.py:\d+\)$", lines[0])


async def test_revocation_that_a_listener_rejects_is_never_acknowledged(tmp_path: Path) -> None:
    """F18: the units are reassigned only after the worker was removed at its rebalance timeout."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", rebalance_timeout_ms=20_000)
        await world.settled()
        world.hook["a on_revoked c-1, c-2"] = raising(ValueError("offsets not committed"))
        started = world.now
        world.start("b")
        await world.until(lambda: world.count("a on_revoked"))
        await asyncio.sleep(15)
        assert world.count("b start") == 0
        assert a.worker.member.owned.keys() == {Unit("c"), Unit("c", 0), Unit("c", 1), Unit("c", 2)}
        await world.until(lambda: world.count("a on_lost c, c-0, c-1, c-2"), within=10)
        assert 20 <= world.now - started < 25
        await world.settled()
        assert a.worker.lost == 1


@pytest.mark.parametrize("point", ["on_assigned d", "on_revoked c-1, c-2"])
async def test_tasks_are_stopped_when_the_lease_ends_although_a_listener_hangs(tmp_path: Path, point: str) -> None:
    """KAFKA-9184 with F18: no user code may keep tasks running past the time when other members may own them."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", times=WorkerSettings(lose_timeout_s=5))
        await world.settled()
        gate = world.gate()
        world.hook[f"a {point}"] = gate.wait
        if point == "on_assigned d":
            await world.add("d", 1)
        else:
            world.start("b")
        await world.until(lambda: gate.entered)
        a.cut()
        cut = world.now
        await world.until(lambda: world.count("a stop c-0"), within=9)
        assert world.now - cut <= 8.1
        await asyncio.sleep(20)
        a.heal()
        await asyncio.sleep(20)
        assert world.count("a on_lost") == 0, "calls never overlap, so on_lost is not called while it hangs"
        assert a.worker.member.epoch > 0, "the worker has rejoined"
        gate.open()


@pytest.mark.parametrize("event", ["on_assigned", "on_lost"])
async def test_listener_that_hung_is_called_for_what_it_missed_once_it_returns(tmp_path: Path, event: str) -> None:
    """S11: every unit of ``on_assigned`` gets one ``on_lost``, also those that were lost while the listener hung."""
    async with World(tmp_path) as world:
        second = Counting()
        await world.add("c", 2, fenced="true")
        await world.add("u", 1)
        first = RecordingListener(world, "a")
        a = world.start("a", listeners=[first, second], times=WorkerSettings(lose_timeout_s=5))
        await world.settled()
        assigned = world.count("a on_assigned")
        gate = world.gate()
        if event == "on_assigned":
            world.hook["a on_assigned d"] = gate.wait
            await world.add("d", 1)
        else:
            world.hook["a on_lost u-0"] = gate.wait  # the lease ends; tasks that a sink fences run on
            a.cut()
        await world.until(lambda: gate.entered, within=20)
        a.cut()
        await asyncio.sleep(20)
        a.heal()
        await world.until(lambda: a.worker.lost and a.worker.member.owned, within=60)
        await asyncio.sleep(5)
        assert world.count("a on_assigned") == assigned + (event == "on_assigned"), "calls never overlap"
        gate.open()
        await world.settled()
        expected = Counter(a.worker.member.owned.keys())
        await world.until(lambda: +first.held == +second.held == expected)
        assert not -second.held


async def test_listener_after_one_that_hangs_is_called_for_a_loss(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        second = Counting()
        await world.add("c", 2)
        a = world.start("a", listeners=[RecordingListener(world, "a"), second], times=WorkerSettings(lose_timeout_s=5))
        await world.settled()
        gate = world.gate()
        world.hook["a on_lost c, c-0, c-1"] = gate.wait
        a.cut()
        await world.until(lambda: a.worker.lost, within=20)
        await world.until(lambda: not +second.held, within=20)
        assert gate.entered
        gate.open()


async def test_exception_of_an_abandoned_listener_call_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The call was abandoned, so its exception would otherwise be lost."""
    async with World(tmp_path) as world:
        a = world.start("a", times=WorkerSettings(lose_timeout_s=5))
        await world.settled()
        gate = world.gate()

        def late() -> NoReturn:
            gate.wait()
            raise ValueError("too late")

        world.hook["a on_assigned d"] = late
        await world.add("d", 1)
        await world.until(lambda: gate.entered)
        a.cut()
        await world.until(lambda: a.worker.lost)
        await asyncio.sleep(20)
        del world.hook["a on_assigned d"]
        gate.open()
        a.heal()
        await world.settled()
    lines = [record.getMessage() for record in caplog.records if "too late" in record.getMessage()]
    assert lines == ["listener RecordingListener: on_assigned of d had been abandoned, and raised ValueError: too late"]


async def test_listener_that_hangs_in_on_revoked_costs_its_worker_the_units_only(tmp_path: Path) -> None:
    """F18, L4: fenced at the rebalance timeout, all units run elsewhere, the worker rejoins without the listener."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", rebalance_timeout_ms=10_000, times=WorkerSettings(lose_timeout_s=5))
        await world.settled()
        gate = world.gate()
        world.hook["a on_revoked c-1, c-2"] = gate.wait
        world.start("b")
        await world.until(lambda: gate.entered)
        sent, started = a.heartbeats.heartbeats, world.now
        await world.until(lambda: a.worker.lost, within=18)
        assert a.heartbeats.heartbeats - sent < 12, "heartbeats continued at their interval"
        await world.settled(within=12)
        assert world.now - started < 25


async def test_units_lost_during_on_assigned_do_not_start(tmp_path: Path) -> None:
    """KAFKA-16375: actions decided before the loss end with their current step."""
    async with World(tmp_path) as world:
        a = world.start("a")
        await world.until(lambda: a.worker.member.epoch)
        world.hook["a on_assigned c"] = world.slow(15)
        await world.add("c", 1)
        await world.until(lambda: world.count("a on_assigned c"))
        a.cut()
        await asyncio.sleep(25)
        assert world.count("construct") == 0
        assert world.count("a on_lost c") == 1


async def test_each_unit_is_lost_or_revoked_but_never_both(tmp_path: Path) -> None:
    """S11, F17: the member is fenced during on_revoked; the listener counts its calls per unit."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", rebalance_timeout_ms=5_000, times=WorkerSettings(lose_timeout_s=30))
        await world.settled()
        world.hook["a on_revoked c-1, c-2"] = world.slow(12)
        world.start("b")
        await world.until(lambda: a.worker.lost, within=20)
        await world.until(lambda: world.count("a on_lost"), within=20)
        assert world.count("a on_lost c, c-0") == 1
        assert world.count("a on_lost c, c-0, c-1") == 0
        await world.settled()


async def test_stop_slower_than_the_rebalance_timeout_ends_in_on_lost(tmp_path: Path) -> None:
    """F17, WC-08: the late acknowledgement is not sent, it would be fenced. Only the sink can fence the task itself."""
    async with World(tmp_path) as world:
        world.zombies.add("a")
        await world.add("c", 3)
        a = world.start("a", rebalance_timeout_ms=5_000)
        await world.settled()
        world.hook["a stop c-2"] = world.slow(12)
        world.start("b")
        await world.until(lambda: world.count("a on_lost"), within=20)
        assert world.count("a on_lost c, c-0, c-1, c-2") == 1
        assert world.count("a on_revoked") == 0
        assert world.count("b start c-2") == 1
        assert a.worker.lost == 1
        await world.settled()


async def test_task_that_never_stops_does_not_prevent_the_rejoin_of_its_worker(tmp_path: Path) -> None:
    """L4: the task is fenced by the sink; the worker rejoins within its timeout for lost units."""
    async with World(tmp_path) as world:
        world.zombies.add("a")
        await world.add("c", 3)
        a = world.start("a", rebalance_timeout_ms=5_000, times=WorkerSettings(lose_timeout_s=10))
        await world.settled()
        world.hook["a stop c-2"] = world.gate().wait
        world.start("b")
        await world.until(lambda: world.count("a on_lost"), within=30)
        del world.hook["a stop c-2"]
        await world.settled(within=20)
        assert a.worker.lost == 1


class Counting(WorkerRebalanceListener):
    """Counts the units that it was called for, as a listener that exports them does."""

    def __init__(self) -> None:
        self.held: Counter[Unit] = Counter()

    def on_assigned(self, units: Units, epoch: int) -> None:
        self.held.update(units)

    def on_revoked(self, units: Units, epoch: int) -> None:
        self.held.subtract(units)

    def on_lost(self, units: Units, epoch: int) -> None:
        self.held.subtract(units)


class SelfCancelling(WorkerRebalanceListener):
    """Asynchronous; cancels itself."""

    async def on_assigned(self, units: Units, epoch: int) -> None:
        raise asyncio.CancelledError

    async def on_revoked(self, units: Units, epoch: int) -> None:
        sys.exit(1)


async def test_async_listener_cannot_end_the_worker(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", listeners=[SelfCancelling()], rebalance_timeout_ms=5_000)
        await world.settled()
        world.start("b")
        await world.settled()
        assert a.worker.lost == 1


# --------------------------------------------------------------------------------------------------
# Off the loop


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), StopIteration(), asyncio.CancelledError(), Odd("x")]
)
async def test_anything_raised_in_a_thread_is_returned_as_an_exception(error: BaseException) -> None:
    with pytest.raises(RuntimeError, match=type(error).__name__):
        await off_loop("test", raising(error))


async def test_ordinary_exception_is_returned_unchanged() -> None:
    error = ValueError("this one")
    with pytest.raises(ValueError) as caught:
        await off_loop("test", raising(error))
    assert caught.value is error


@pytest.mark.parametrize("event", ["on_assigned", "on_revoked", "on_lost"])
async def test_listener_that_raises_does_not_stop_the_next_listener(tmp_path: Path, event: str) -> None:
    class Raises(WorkerRebalanceListener):
        def on_assigned(self, units: Units, epoch: int) -> None:
            self.fail("on_assigned")

        def on_revoked(self, units: Units, epoch: int) -> None:
            self.fail("on_revoked")

        def on_lost(self, units: Units, epoch: int) -> None:
            self.fail("on_lost")

        def fail(self, event_now: str) -> None:
            if event_now == event:
                raise ValueError(f"not {event_now}")

    async with World(tmp_path) as world:
        await world.add("c", 1)
        a = world.make("a", listeners=[Raises(), RecordingListener(world, "a")], rebalance_timeout_ms=1_000)
        a.task = asyncio.create_task(a.worker.run())
        await world.settled()
        if event == "on_revoked":
            world.start("b")
        elif event == "on_lost":
            leave = HeartbeatRequest(
                group_id=GROUP, member_id="a", member_epoch=-1, process_id=a.worker.member.process_id
            )
            await world.coordinator.handle(leave, client_host="operator")
        await world.until(lambda: world.count(f"a {event} "))

"""Workers join, share units, expire and leave, with the real coordinator in virtual time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from connectgroup.errors import TransportError
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.member.state_machine import ConvertedAssignment, convert
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.messages.heartbeat import (
    HeartbeatAssignment,
    TaskStatus,
)
from connectgroup.protocol.records.connect import TargetState
from connectgroup.protocol.units import Unit, Units
from connectgroup.worker import heartbeat
from connectgroup.worker.settings import WorkerSettings

from .builders import World


async def test_second_worker_gets_its_part_of_the_units(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 3)
        world.start("a")
        assert await world.settled() == {"a": ["c", "c-0", "c-1", "c-2"]}
        world.start("b")
        assert await world.settled(within=1) == {"a": ["c", "c-0"], "b": ["c-1", "c-2"]}


async def test_only_units_that_move_are_stopped(tmp_path: Path) -> None:
    """KAFKA-17105: needless restarts. One start for a unit that stays, one stop and one start for a unit that moves."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        for name in "abc":
            world.start(name)
            await world.settled()
        assert world.count(" start c-0") == 1
        assert world.count(" stop c-0") == 0
        moved = sum(world.count(f" stop c-{number}") for number in range(3))
        assert sum(world.count(f" start c-{number}") for number in range(3)) == 3 + moved


async def test_change_reaches_a_parked_worker_at_once(tmp_path: Path) -> None:
    """PD-09: a change wakes a parked heartbeat."""
    async with World(tmp_path) as world:
        world.start("a")
        await world.until(lambda: world.actors["a"].worker.member.epoch)
        await asyncio.sleep(20)
        await world.add("c", 2)
        started = world.now
        await world.settled()
        assert world.now - started < 0.5


async def test_leaving_worker_hands_over_its_units_at_once(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        a, b = await world.run("a", "b", tasks=3)
        a.worker.stop()
        assert a.task is not None
        await asyncio.wait_for(a.task, 1)
        assert await world.settled("b", within=0.5) == {"b": ["c", "c-0", "c-1", "c-2"]}
        assert b.worker.lost == 0
        assert world.count("a on_lost") == 0


async def test_leaving_worker_gets_one_callback_for_each_unit(tmp_path: Path) -> None:
    """S11: exactly one on_revoked or on_lost per unit; also when the worker is stopped during a revocation."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=3)
        gate = world.gate()
        world.hook["a stop c-2"] = gate.wait
        world.start("b")
        await world.until(lambda: gate.entered)
        a.worker.stop()
        await asyncio.sleep(1)
        gate.open()
        assert a.task is not None
        await asyncio.wait_for(a.task, 2)
        units = [unit for line in world.journal if "a on_revoked" in line for unit in line.split(" ", 2)[2].split(", ")]
        assert sorted(units) == ["c", "c-0", "c-1", "c-2"]
        assert await world.settled("b", within=1) == {"b": ["c", "c-0", "c-1", "c-2"]}


async def test_killed_worker_is_replaced_after_the_session_timeout(tmp_path: Path) -> None:
    """L3 without a delay: its units run elsewhere soon after the session timeout."""
    async with World(tmp_path) as world:
        a, _ = await world.run("a", "b", tasks=3)
        assert a.task is not None
        a.cut()
        a.task.cancel()
        took = -world.now
        await world.settled("b", within=12)
        took += world.now
        assert 6 < took < 11


async def test_returning_worker_gets_tasks_only_after_they_have_started_elsewhere(tmp_path: Path) -> None:
    """A start of 20 s is not thrown away for another one of 20 s; afterwards the tasks are balanced."""
    async with World(tmp_path) as world:
        await world.add("c", 4)
        world.start("a")
        b = world.start("b")
        of_b = (await world.settled())["b"]
        assert b.task is not None
        b.cut()
        b.task.cancel()
        for unit in of_b:
            world.hook[f"a start {unit}"] = world.slow(20)
        await world.until(lambda: world.count(f"a on_assigned {', '.join(of_b)}"))
        await asyncio.sleep(2)
        began = world.now
        world.start("b")
        await world.until(lambda: world.actors["b"].worker.member.epoch)
        stops = world.count("a stop c-")
        await asyncio.sleep(15)
        assert world.count("a stop c-") == stops  # nothing that starts on a is stopped
        assert not set(map(str, world.actors["b"].units)) & set(of_b)
        await world.until(lambda: len(world.actors["b"].units) == 2)
        assert 17 < world.now - began < 20
        await world.settled()
        causes = [cause for rebalance in (await world.describe()).rebalances for cause in rebalance.causes]
        assert causes[-1].endswith(" left to move, which were starting")


async def test_lease_covers_the_stop_of_tasks_that_no_sink_fences(tmp_path: Path) -> None:
    """PD-10: without a delay the group assigns a lost worker's tasks when its session expires.

    The harness checks that no task runs on two workers.
    """
    async with World(tmp_path) as world:
        a, _ = await world.run("a", "b", tasks=3)
        world.hook["a stop c-0"] = world.hook["a stop c-1"] = world.hook["a stop c-2"] = world.slow(4.9)
        a.cut()
        took = await world.until(lambda: world.count("a stop c-"))
        await world.settled("b", within=12)
        assert 3 < took <= 5.1


async def test_slow_stop_does_not_delay_heartbeats(tmp_path: Path) -> None:
    """Trap 1 and KAFKA-10792: a stop of 40 s, far beyond the session timeout; no unit is lost, none runs twice."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=3)
        world.hook["a stop c-2"] = world.slow(40)
        world.start("b")
        await world.until(lambda: world.count("a stop c-2"))
        sent = a.heartbeats.heartbeats
        await asyncio.sleep(35)
        assert 35 / 4 < a.heartbeats.heartbeats - sent < 35 / 1.5
        assert world.count("b start c-2") == 0
        await world.settled(within=6)
        assert a.worker.lost == 0
        assert world.count("a on_lost") == 0


async def test_second_rebalance_before_the_end_of_the_first_skips_no_revocation(tmp_path: Path) -> None:
    """KAFKA-10763: joins, a change of tasks and a leave during revocations; in the end each unit runs once."""
    async with World(tmp_path) as world:
        await world.run("a", tasks=6)
        for number in range(6):
            world.hook[f"stop c-{number}"] = world.slow(4 + number)
        for name in "bde":
            world.start(name)
            await asyncio.sleep(2)
        await world.add("c", 4)
        world.actors["b"].worker.stop()
        await world.settled("a", "d", "e", within=40)
        for number in range(6):
            alive = world.count(f" start c-{number}") - world.count(f" stop c-{number}")
            assert alive == (1 if number < 4 else 0)
        assert world.count("on_lost") == 0


@pytest.mark.parametrize("state", [TargetState.PAUSED, TargetState.STOPPED])
async def test_paused_connector_stops_at_once_while_another_revocation_is_slow(
    tmp_path: Path, state: TargetState
) -> None:
    """CA-19: the worker gets the revocation while it is UNREVOKED, and does not wait for the slow stop."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        await world.add("d", 3)
        a = world.start("a")
        await world.settled()
        for number in range(3):
            world.hook[f"a stop c-{number}"] = world.slow(30)
        await world.set_state("c", TargetState.PAUSED)
        await world.until(lambda: world.count("a stop c-") == 3)
        await world.set_state("d", state)
        await world.until(lambda: world.count("a stop d-") == 3, within=1)
        assert world.count("a on_revoked") == 0
        await world.until(lambda: a.units == {Unit("c"), *([Unit("d")] if state is TargetState.PAUSED else [])})
        await world.until(lambda: world.count("a on_revoked") == 2, within=35)
        await asyncio.sleep(1)
        described = await world.describe()
        assert (described.state, described.members[0].state) == ("Stable", "STABLE")
        assert (a.worker.lost, world.count("on_lost")) == (0, 0)


async def test_failed_stop_that_began_early_is_not_acknowledged(tmp_path: Path) -> None:
    """X6, F18: a unit whose stop failed may still write, also if its stop overlapped another revocation."""
    async with World(tmp_path) as world:
        await world.add("c", 1)
        await world.add("d", 1)
        a = world.start("a", rebalance_timeout_ms=20_000)
        await world.settled()
        right = a.runner.stop

        async def stop(units: Units) -> None:
            await right(units)
            if Unit("d", 0) in units:
                raise OSError("d-0 did not stop")

        a.runner.stop = stop  # type: ignore[method-assign]
        world.hook["a stop c-0"] = world.slow(5)
        await world.set_state("c", TargetState.PAUSED)
        await world.until(lambda: world.count("a stop c-0"))
        await world.set_state("d", TargetState.PAUSED)
        await world.until(lambda: world.count("a on_revoked c-0"), within=10)
        await asyncio.sleep(5)
        described = (await world.describe()).members[0]
        assert (described.state, Unit("d", 0) in a.worker.member.owned) == ("UNREVOKED", True)
        a.runner.stop = right  # type: ignore[method-assign]
        await world.until(lambda: a.worker.lost == 1, within=20)
        await world.until(lambda: a.units == {Unit("c"), Unit("d")}, within=20)


async def test_slow_on_revoked_does_not_delay_heartbeats(tmp_path: Path) -> None:
    """Trap 1, for the listener."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=3)
        world.hook["a on_revoked c-1, c-2"] = world.slow(40)
        world.start("b")
        await world.until(lambda: world.count("a on_revoked"))
        sent = a.heartbeats.heartbeats
        await asyncio.sleep(35)
        assert 35 / 4 < a.heartbeats.heartbeats - sent < 35 / 1.5
        assert world.count("b on_assigned") == 0, "not acknowledged, so not reassigned"
        await world.settled(within=6)
        assert a.worker.lost == 0


async def test_blocked_connector_does_not_delay_heartbeats(tmp_path: Path) -> None:
    """KAFKA-10792, 17871, 15238: whichever call of a connector blocks, the worker and other connectors continue."""
    async with World(tmp_path) as world:
        for point in ("construct x", "task_configs y", "start z-0"):
            world.hook[point] = world.gate().wait
        await world.add("c", 1)
        for name in "xyz":
            await world.add(name, 1)
        a = world.start("a")
        await world.until(lambda: world.count("start c-0") and world.count("start z-0"))
        sent = a.heartbeats.heartbeats
        await asyncio.sleep(60)
        assert 15 <= a.heartbeats.heartbeats - sent <= 45
        assert a.worker.lost == 0
        await world.set_state("c", TargetState.PAUSED)
        await world.until(lambda: world.count("a stop c-0"), within=1)


async def test_stream_of_statuses_does_not_prevent_responses_to_heartbeats(tmp_path: Path) -> None:
    """10,000 tasks start one after the other, and the coordinator responds slowly: no lease expires."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a")
        await world.settled("a")

        async def late(request: Request) -> Response | None:
            await asyncio.sleep(0.3)
            return None

        a.heartbeats.instead = late
        for number in range(500):
            unit = Unit("c", number % 3)
            status = TaskStatus(
                connector=unit.connector,
                task=unit.task,
                owner_epoch=a.worker.member.owned[unit],
                state=2,
                message=str(number),
            )
            a.worker.report(status)
            await asyncio.sleep(0.04)
        assert a.worker.lost == 0
        assert a.heartbeats.heartbeats < 150


async def test_idle_worker_sends_at_most_two_heartbeats_an_interval(tmp_path: Path) -> None:
    """L2, KAFKA-20253, KAFKA-20145: ten minutes without a change."""
    async with World(tmp_path) as world:
        await world.run("a", "b", tasks=3)
        for max_wait in ("a", "b"):
            actor = world.actors[max_wait]
            sent = actor.heartbeats.heartbeats
            await asyncio.sleep(300)
            assert 80 <= actor.heartbeats.heartbeats - sent <= 200


async def test_worker_that_does_not_park_sends_one_heartbeat_an_interval(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", max_wait_ms=0)
        await world.settled()
        sent = a.heartbeats.heartbeats
        await asyncio.sleep(300)
        assert 95 <= a.heartbeats.heartbeats - sent <= 105


async def test_callbacks_come_as_revoked_then_acknowledged_then_assigned(tmp_path: Path) -> None:
    """S12; the listener itself checks that its calls never overlap."""
    async with World(tmp_path) as world:
        await world.run("a", tasks=3)
        world.hook["a on_revoked c-1, c-2"] = world.slow(2)
        world.start("b")
        await world.settled()
        lines = [line for line in world.journal if "on_" in line or "stop" in line or " start" in line]
        moved = lines[lines.index("a on_revoked c-1, c-2") - 2 :]
        assert sorted(moved[:2]) == ["a stop c-1", "a stop c-2"], "stop first: a listener may commit the last offsets"
        assert moved[2:4] == ["a on_revoked c-1, c-2", "b on_assigned c-1, c-2"]
        assert sorted(moved[4:]) == ["b start c-1", "b start c-2"]


class AsyncListener(WorkerRebalanceListener):
    """The same callbacks, as coroutines."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def on_assigned(self, units: Units, epoch: int) -> None:
        await asyncio.sleep(0.5)
        self.calls.append("assigned")

    async def on_revoked(self, units: Units, epoch: int) -> None:
        await asyncio.sleep(0.5)
        self.calls.append("revoked")


async def test_listeners_may_be_async(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        listener = AsyncListener()
        await world.add("c", 1)
        a = world.start("a", listeners=[listener])
        await world.settled()
        a.worker.stop()
        assert a.task is not None
        await a.task
        assert listener.calls == ["assigned", "assigned", "revoked"]


# --------------------------------------------------------------------------------------------------
# Connectors change


async def test_changed_tasks_max_moves_only_the_difference(tmp_path: Path) -> None:
    """tasks.max up and down; the other tasks keep running (KAFKA-17105)."""
    async with World(tmp_path) as world:
        await world.run("a", "b", tasks=2)
        await world.add("c", 4)
        await world.settled()
        assert [world.count(f" start c-{number}") for number in range(4)] == [1, 1, 1, 1]
        await world.add("c", 1)
        await world.settled()
        assert world.count(" stop c-0") == 0
        assert [world.count(f" stop c-{number}") for number in (1, 2, 3)] == [1, 1, 1]


async def test_changed_task_is_restarted_at_a_later_owner_epoch(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 1, text="one")
        world.start("a")
        await world.settled()
        before = world.contexts[Unit("c", 0)].owner_epoch
        await world.add("c", 1, text="two")
        await world.until(lambda: world.count("a start c-0") == 2)
        assert world.contexts[Unit("c", 0)].owner_epoch > before
        assert world.count("a stop c-0") == 1


async def test_paused_connector_stops_its_tasks_and_a_deleted_one_everything(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=2)
        await world.set_state("c", TargetState.PAUSED)
        await world.until(lambda: a.units == {Unit("c")}, within=1)
        await world.set_state("c", TargetState.STOPPED)
        await world.until(lambda: not a.units, within=1)
        await world.set_state("c", TargetState.RUNNING)
        await world.settled(within=2)
        await world.update(ConnectorChange(connector="c", delete=True))
        await world.until(lambda: not a.units, within=1)
        assert world.count("on_lost") == 0


async def test_late_rejection_of_a_leave_is_not_an_error(tmp_path: Path) -> None:
    """The leave is sent once; whatever the response, ``run`` returns."""
    async with World(tmp_path) as world:
        a = world.start("a")
        await asyncio.sleep(1)

        async def broken(request: Request) -> Response | None:
            raise TransportError("connection reset")

        a.control.instead = broken
        a.worker.stop()
        assert a.task is not None
        await asyncio.wait_for(a.task, 2)


async def test_large_assignment_is_converted_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The units start as usual; a conversion of 100,000 grants on the loop would block heartbeats for a second."""
    threads: list[str] = []

    def convert_and_note(assignment: HeartbeatAssignment) -> ConvertedAssignment:
        threads.append(threading.current_thread().name)
        return convert(assignment)

    monkeypatch.setattr(heartbeat, "convert", convert_and_note)
    async with World(tmp_path) as world:
        await world.add("c", heartbeat.MANY_GRANTS + 10)
        a = world.start("a")
        await world.until(lambda: len(a.units) == heartbeat.MANY_GRANTS + 11)
        assert a.worker.lost == 0
    assert "convert assignment" in threads
    assert threading.main_thread().name not in threads


# --------------------------------------------------------------------------------------------------
# A worker stops: cleanly, in bounded time, with and without a coordinator.


async def test_stop_returns_while_joining_without_a_coordinator(tmp_path: Path) -> None:
    """L7, KAFKA-19357."""
    async with World(tmp_path) as world:
        a = world.make("a")
        a.cut()
        a.task = asyncio.create_task(a.worker.run())
        await asyncio.sleep(20)
        a.worker.stop()
        await asyncio.wait_for(a.task, 6)


async def test_stop_before_the_first_response_leaves_no_member_behind(tmp_path: Path) -> None:
    """KAFKA-17116, KAFKA-16985: a join may still be under way when the leave is sent."""
    async with World(tmp_path) as world:
        a = world.make("a")
        a.task = asyncio.create_task(a.worker.run())
        await asyncio.sleep(0)
        a.worker.stop()
        await asyncio.wait_for(a.task, 6)
        assert (await world.describe()).members == ()


@pytest.mark.parametrize("cut", [False, True])
async def test_stop_returns_with_a_blocked_task(tmp_path: Path, cut: bool) -> None:
    """L7: bounded by the rebalance timeout, with and without a coordinator."""
    async with World(tmp_path) as world:
        await world.add("c", 2)
        world.hook["a stop c-1"] = world.gate().wait
        a = world.start("a", rebalance_timeout_ms=16_000)
        await world.settled()
        if cut:
            a.cut()
        a.worker.stop()
        assert a.task is not None
        await asyncio.wait_for(a.task, 16)
        if not cut:
            assert (await world.describe()).members == ()


async def test_stop_sends_the_leave_although_a_listener_raises(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 2)
        a = world.start("a", times=WorkerSettings(lose_timeout_s=5))
        await world.settled()

        def refuse() -> None:
            raise ValueError("no")

        world.hook["a on_revoked c, c-0, c-1"] = refuse
        a.worker.stop()
        assert a.task is not None
        await asyncio.wait_for(a.task, 12)
        assert (await world.describe()).members == ()
        assert not a.units


async def test_cancelled_run_stops_its_tasks_and_leaves(tmp_path: Path) -> None:
    """KAFKA-16985: an embedder cancels ``run``: no task goes on writing, and the group does not wait for a timeout."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=2)
        assert a.task is not None
        a.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await a.task
        assert world.count("a stop c-0") == world.count("a stop c-1") == 1
        assert (await world.describe()).members == ()
        assert not [
            task for task in asyncio.all_tasks() if "heartbeat" in repr(task) or "LocalClient.call" in repr(task)
        ]

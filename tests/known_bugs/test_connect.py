"""Bugs of Connect's herder: plug-in code in its thread, locks held over callbacks, restarts, late task lists."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectgroup.assign.members import ConnectMemberAssignment, Metadata
from connectgroup.dataplane.offset_store import OffsetStore
from connectgroup.dataplane.ownership import Owner
from connectgroup.errors import CoordinatorLoadInProgress, Fenced
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.records.connect import TargetState
from connectgroup.protocol.units import Unit
from tests.coordinator.builders import FaultyLog
from tests.worker.builders import GROUP, Spread, World

# --------------------------------------------------------------------------------------------------
# KAFKA-10792, KAFKA-17871, KAFKA-15238


class ThreadRecorder(World):
    """Records which plug-in code ran in the thread of the event loop."""

    seen: dict[str, set[bool]]

    def note(self, line: str) -> None:
        point = line.split(" ")[1]
        self.seen.setdefault(point, set()).add(threading.current_thread() is threading.main_thread())
        super().note(line)


class RecordingAssignor(Spread):
    """An assignor whose methods all record their calls."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.before = lambda group: self.world.note("? assign")

    def metadata(self) -> Metadata:
        self.world.note("? metadata")
        return Metadata()

    def on_assignment(self, assignment: ConnectMemberAssignment) -> None:
        self.world.note("? on_assignment")


async def test_plug_in_code_never_runs_in_the_event_loop(tmp_path: Path) -> None:
    """KAFKA-10792: a source task that was slow to stop blocked the herder's thread. KAFKA-17871: so did a flush that
    hung. KAFKA-15238: so did the set-up of a sink task. Here the event loop calls no plug-in code: each of these
    calls runs in a thread of its own, so none can delay a heartbeat.
    """
    world = ThreadRecorder(tmp_path)
    world.seen = {}
    async with world:
        await world.add("c", 4)
        for name in "ab":
            world.start(name, assignors=[RecordingAssignor(world)])
            world.seen.pop("metadata", None)  # of the constructor, which the embedding program calls
            await world.settled()
        await asyncio.sleep(5)
        world.actors["a"].cut()
        await world.until(lambda: world.actors["a"].worker.lost)
        await world.until(lambda: not world.actors["a"].units)
        assert world.seen == {
            point: {False}
            for point in (
                *("construct", "task_configs", "start", "stop"),
                *("metadata", "assign", "on_assignment"),
                *("on_assigned", "on_revoked", "on_lost"),
            )
        }


# --------------------------------------------------------------------------------------------------
# KAFKA-10426, KAFKA-16051


async def test_callbacks_may_call_the_coordinator_while_it_waits_for_them(tmp_path: Path) -> None:
    """KAFKA-10426, KAFKA-16051: the herder held a lock while it waited for a store that waited for the herder. Here no
    lock is held over plug-in code: listeners and tasks send requests to the coordinator, and an operator's change is
    made from the very callback for which the group waits.
    """
    async with World(tmp_path) as world:
        loop = asyncio.get_running_loop()
        asked: Counter[str] = Counter()

        def ask(point: str) -> Callable[[], None]:
            def call() -> None:
                group = asyncio.run_coroutine_threadsafe(world.describe(), loop).result(20)
                assert group.group_epoch > 0
                asked[point] += 1

            return call

        def add() -> None:
            asyncio.run_coroutine_threadsafe(world.add("late", 2), loop).result(20)
            asked["add"] += 1

        await world.add("c", 3)
        for point in ("on_assigned c-0, c-1, c-2", "construct c", "task_configs c", "start c-1", "stop c-2"):
            world.hook[point] = ask(point)
        world.hook["a on_revoked c-1, c-2"] = add
        a = world.start("a")
        await world.settled()
        world.start("b")
        await world.settled(within=5)
        assert {"add", "stop c-2", "start c-1", "on_assigned c-0, c-1, c-2", "construct c"} <= asked.keys()
        assert a.worker.lost == 0


# --------------------------------------------------------------------------------------------------
# KAFKA-13719


class SingleRun(World):
    """A task may not start, on any worker, before its former run has ended."""

    runs: Counter[Unit]

    def began(self, member_id: str, unit: Unit) -> None:
        self.runs[unit] += 1
        if self.runs[unit] > 1:
            self._violations.append(f"{unit} starts on {member_id} before its former run has ended")
        super().began(member_id, unit)

    def ended(self, member_id: str, unit: Unit) -> None:
        self.runs[unit] -= 1
        super().ended(member_id, unit)


async def test_restarted_connector_does_not_restart_its_tasks(tmp_path: Path) -> None:
    """KAFKA-13719: restarting a connector also started its tasks where they were not assigned; here a connector that
    fails and starts again publishes an unchanged task list, and no task is started or stopped.
    """
    world = SingleRun(tmp_path)
    world.runs = Counter()
    async with world:
        await world.run("a", "b", tasks=5)
        starts, epoch = world.count(" start "), (await world.describe()).group_epoch

        def fail() -> None:
            raise RuntimeError("the database is restarting")

        made = world.count("construct c")
        for _ in range(5):
            world.hook["task_configs c"] = fail
            await asyncio.sleep(2)
            del world.hook["task_configs c"]
            await asyncio.sleep(40)
        assert world.count("construct c") >= made + 5, "the connector was restarted"
        assert world.count(" start ") == starts
        assert (await world.describe()).group_epoch == epoch


async def test_each_task_runs_once_through_repeated_pause_and_resume(tmp_path: Path) -> None:
    """KAFKA-13719: the same for pause and resume, with slow stops."""
    world = SingleRun(tmp_path)
    world.runs = Counter()
    async with world:
        await world.run("a", "b", tasks=5)
        for number in range(5):
            world.hook[f"stop c-{number}"] = world.slow(0.3 * number)
        for number in range(12):
            await world.set_state("c", (TargetState.PAUSED, TargetState.RUNNING, TargetState.STOPPED)[number % 3])
            await asyncio.sleep(0.25 * (number % 4))
        await world.set_state("c", TargetState.RUNNING)
        await world.settled()
        for number in range(5):
            assert world.count(f" start c-{number}") - world.count(f" stop c-{number}") == 1


async def test_late_task_list_is_not_applied_to_a_new_configuration(tmp_path: Path) -> None:
    """KAFKA-13719: a task list belongs to the grant under which it was computed: a list that is published after its
    connector was reconfigured is rejected, and none of its tasks is started.
    """
    async with World(tmp_path) as world:
        gate = world.gate()
        world.hook["task_configs c"] = gate.wait
        await world.add("c", 3, text="old")
        a = world.start("a")
        await world.until(lambda: gate.entered)
        del world.hook["task_configs c"]
        await world.add("c", 2, text="new")
        await asyncio.sleep(3)
        gate.open()
        await world.settled()
        await asyncio.sleep(10)
        texts = {unit: run.grant.config.get("text") for unit, run in a.runner._runs.items() if not unit.is_connector}
        assert texts == {Unit("c", 0): "new", Unit("c", 1): "new"}
        assert world.count("a start") == 2


# --------------------------------------------------------------------------------------------------
# KAFKA-15059


async def test_task_can_fence_its_predecessor_during_a_rebalance(tmp_path: Path) -> None:
    """KAFKA-15059: zombie fencing was rejected while a rebalance was pending, and the tasks failed for good; here the
    sink fences, so a task can start again during a rebalance that does not end.
    """
    store = OffsetStore(tmp_path / "sink.sqlite")
    async with World(tmp_path) as world:
        claims: list[int] = []

        def claim() -> None:
            claims.append(a.runner._runs[Unit("c", 0)].grant.owner_epoch)
            store.claim(Owner(connector="c", task=0, tasks=1, fencing_token=claims[-1]), lambda name: True)

        world.hook["start c-0"] = claim
        await world.add("c", 1)
        hangs, gate = Spread(), world.gate()
        a = world.start("a", assignors=[hangs])
        await world.settled()
        hangs.before = lambda group: gate.wait()
        world.start("b", assignors=[Spread()])
        await world.until(lambda: gate.entered)
        [epoch] = claims
        world.contexts[Unit("c", 0)].failed(OSError("the source went away"))
        await world.until(lambda: world.count("a start c-0") == 2)
        group = await world.describe()
        assert group.state == "Assigning"
        await asyncio.sleep(0.2)
        [unit] = [unit for unit in (await world.describe()).connectors[0].units if unit.task == 0]
        assert (unit.state, unit.owner_epoch, claims) == ("RUNNING", epoch, [epoch, epoch])
        with pytest.raises(Fenced):
            store.claim(Owner(connector="c", task=0, tasks=1, fencing_token=epoch - 1), lambda name: True)
        gate.open()
    store.close()


async def test_task_list_is_accepted_during_a_rebalance(tmp_path: Path) -> None:
    """KAFKA-15059: the task list of a connector's owner does not wait for the revocations of other members."""
    async with World(tmp_path) as world:
        await world.run("a", tasks=4)
        world.hook["a stop c-3"] = world.slow(40)
        world.start("b")
        await world.until(lambda: world.count("a stop c-3"))
        await world.add("d", 2)
        took = await world.until(lambda: Unit("d") in world.actors["b"].units, within=5)
        took += await world.until(lambda: world.count("b start d"), within=2)
        assert took < 1
        assert (await world.describe()).state == "Reconciling"
        states = {unit.state for c in (await world.describe()).connectors for unit in c.units}
        assert "FAILED" not in states
        await world.settled(within=50)


# --------------------------------------------------------------------------------------------------
# KAFKA-9849


async def test_worker_without_responses_stops_before_its_session_ends(
    tmp_path: Path,
) -> None:
    """KAFKA-9849, WC-04: a worker that could not read the config log kept its tasks past their reassignment; here
    configurations are part of the grants, and a retriable error does not extend the lease: a worker that gets only
    such errors stops what no sink fences when its lease expires, and gets it back when the group can be read again.
    """
    logs: list[FaultyLog] = []

    def make(storage: Any) -> FaultyLog:
        logs.append(FaultyLog(storage))
        return logs[-1]

    async with World(tmp_path, log=make) as world:
        [a] = await world.run("a", tasks=3)
        answers: Counter[int] = Counter()

        async def listen(request: Request) -> Response | None:
            response = await world.coordinator.handle(request, client_host="test")
            assert isinstance(response, HeartbeatResponse)
            answers[response.error_code] += 1
            return response

        a.heartbeats.instead = listen
        await asyncio.sleep(3)
        logs[-1].unreadable = True
        logs[-1].faults.append("before")
        began = world.now
        change = ConnectorChange(connector="d", config=entries({"connector.class": "scripted"}))
        await world.coordinator.handle(
            UpdateConnectorsRequest(group_id=GROUP, changes=(change,)), client_host="operator"
        )
        await world.until(lambda: world.count("a on_lost"), within=9, step=0.01)
        assert 2 < world.now - began <= 5.05
        assert answers[CoordinatorLoadInProgress.code] > 3, "the worker got responses all the time"
        assert not a.units
        await asyncio.sleep(30)
        logs[-1].unreadable = False
        await world.settled(within=10)
        assert world.count("a start c-0") == 2

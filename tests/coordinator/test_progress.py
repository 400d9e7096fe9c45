"""The numbers of running tasks: shown for the owner that has reported them, and written with what is written anyway."""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from types import FunctionType, MethodType, ModuleType

import pytest

from connectgroup.coordinator.history import INTERVAL_MS, INTERVALS, Histories
from connectgroup.coordinator.progress import MAX_TOPICS, ReportedProgress
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import (
    DeleteRequest,
    DescribedGroup,
    DescribedUnit,
    DescribeRequest,
    DescribeResponse,
)
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, TaskStatus
from connectgroup.protocol.messages.progress import ConnectorHistory, LogLine, Progress, TaskProgress
from connectgroup.protocol.records.connect import ConnectorRecord, TargetState, TaskEntry, UnitState
from connectgroup.protocol.units import Unit
from connectgroup.rest.page_table import page_table
from connectgroup.rest.views import task_status

from .builders import GROUP, FaultyLog, add, ask, beat, change, look, running, send, serving, task_list


async def task_unit(coordinator: Coordinator) -> DescribedUnit:
    """Task 0 of connector ``c``."""
    return (await look(coordinator)).connectors[0].units[1]


def numbers(owner_epoch: int, lag: int = 5, *, task: int = 0) -> TaskProgress:
    return TaskProgress(connector="c", task=task, owner_epoch=owner_epoch, progress=Progress(records_lag=lag))


async def owner_of_a_task(coordinator: Coordinator) -> tuple[int, int]:
    """Have member ``a`` own task 0 of connector ``c``; return the owner epoch of the task and the member epoch."""
    await change(coordinator, add())
    epoch = (await ask(coordinator, beat("a"))).member_epoch
    connector = (await look(coordinator)).connectors[0].units[0]
    await change(coordinator, task_list("a", connector.owner_epoch, 1))
    for _ in range(5):
        epoch = (await ask(coordinator, beat("a", epoch))).member_epoch
        task = await task_unit(coordinator)
        if task.member_id == "a":
            return task.owner_epoch, epoch
    raise AssertionError("the task was not assigned")


async def test_numbers_of_a_task_are_shown_for_its_owner_and_are_no_records() -> None:
    log = FaultyLog()
    async with serving(log) as coordinator:
        owner_epoch, epoch = await owner_of_a_task(coordinator)
        await ask(coordinator, beat("a", epoch))
        appends = log.appends
        assert (await task_unit(coordinator)).numbers is None
        for lag in (5, 7):
            await ask(coordinator, beat("a", epoch, progress=(numbers(owner_epoch, lag),)))
            assert (await task_unit(coordinator)).numbers == Progress(records_lag=lag)
        assert log.appends == appends


async def test_numbers_of_others_than_the_owner_are_ignored() -> None:
    async with serving() as coordinator:
        owner_epoch, epoch = await owner_of_a_task(coordinator)
        await ask(coordinator, beat("b", epoch, progress=(numbers(owner_epoch),)))
        await ask(coordinator, beat("a", epoch, group_id="nosuch", progress=(numbers(owner_epoch),)))
        others = (numbers(owner_epoch - 1), numbers(owner_epoch, task=7))
        await ask(coordinator, beat("a", epoch, progress=others))
        assert (await task_unit(coordinator)).numbers is None
        await ask(coordinator, beat("a", epoch, progress=(numbers(owner_epoch),)))
        assert (await task_unit(coordinator)).numbers == Progress(records_lag=5)


async def test_topics_that_a_connector_reports_have_a_limit() -> None:
    async with serving() as coordinator:
        owner_epoch, epoch = await owner_of_a_task(coordinator)
        for number in range(4):
            names = tuple(f"t{number}-{each}" for each in range(MAX_TOPICS // 2))
            await ask(coordinator, beat("a", epoch, progress=(replace(numbers(owner_epoch), topics=names),)))
        assert len((await look(coordinator)).connectors[0].topics) == MAX_TOPICS


async def test_lag_ends_with_the_assignment_and_all_numbers_with_the_group() -> None:
    async with serving() as coordinator:
        owner_epoch, epoch = await owner_of_a_task(coordinator)
        await ask(coordinator, beat("a", epoch, progress=(numbers(owner_epoch),)))
        await ask(coordinator, beat("a", -1))
        ended = (await task_unit(coordinator)).numbers
        assert ended == Progress(), "only the owner knows the lag"
        await send(coordinator, DeleteRequest(group_ids=("workers",)))
        await owner_of_a_task(coordinator)
        assert (await task_unit(coordinator)).numbers is None


async def test_stalled_task_is_shown_as_stalled_and_as_failed_to_tools_of_kafka_connect() -> None:
    """Connect's tools know no state STALLED; groups, metrics, page and replay show it."""
    async with serving() as coordinator:
        owner_epoch, epoch = await owner_of_a_task(coordinator)
        status = TaskStatus(connector="c", task=0, owner_epoch=owner_epoch, state=UnitState.STALLED, message="no poll")
        await ask(coordinator, beat("a", epoch, statuses=(status,)))
        group = await look(coordinator)
        assert (await task_unit(coordinator)).state == "STALLED"
        connect = task_status(group.connectors[0], group.connectors[0].units[1])
        assert (connect["state"], connect["trace"]) == ("FAILED", "no poll")
        assert page_table(group, 0, before={}, rates={})["failure/0/c"] == "no poll"


# ---- totals of all owners


def written(owner_epoch: int, rows: int, *, letters: int = 0, last: str = "") -> TaskProgress:
    progress = Progress(records_written=rows, records_lag=5, dead_letters=letters, last_dead_letter=last)
    return TaskProgress(connector="c", task=0, owner_epoch=owner_epoch, progress=progress)


async def moved(coordinator: Coordinator) -> tuple[int, int]:
    """Have member ``b`` own the task of ``a``, which leaves; return the owner epoch and the member epoch."""
    await ask(coordinator, beat("a", -1))
    epoch = (await ask(coordinator, beat("b"))).member_epoch
    for _ in range(5):
        epoch = (await ask(coordinator, beat("b", epoch))).member_epoch
        task = await task_unit(coordinator)
        if task.member_id == "b":
            return task.owner_epoch, epoch
    raise AssertionError("the task was not assigned")


async def test_rows_and_dead_letters_count_across_moves_and_the_last_ones_come_with_the_acknowledgement() -> None:
    async with serving() as coordinator:
        owner_epoch, epoch = await owner_of_a_task(coordinator)
        await ask(coordinator, beat("a", epoch, progress=(written(owner_epoch, 100),)))
        # The heartbeat that acknowledges the revocation of all units: its sender is not the owner any more after it.
        last = written(owner_epoch, 130, letters=2, last="x: bad")
        await ask(coordinator, beat("a", epoch, frozenset(), progress=(last,)))
        later_epoch, epoch = await moved(coordinator)
        kept = (await task_unit(coordinator)).numbers
        assert kept is not None
        assert (kept.records_written, kept.dead_letters, kept.last_dead_letter) == (130, 2, "x: bad")
        assert kept.records_lag == -1
        await ask(coordinator, beat("b", epoch, progress=(written(later_epoch, 7, letters=1, last="y: bad"),)))
        found = (await task_unit(coordinator)).numbers
        assert found is not None
        assert (found.records_written, found.dead_letters, found.last_dead_letter) == (137, 3, "y: bad")
        assert found.records_lag == 5
        # A late copy of an earlier report, and one of the former owner, add nothing.
        await ask(coordinator, beat("b", epoch, progress=(written(later_epoch, 3),)))
        await ask(coordinator, beat("a", epoch, progress=(written(owner_epoch, 500),)))
        assert (await task_unit(coordinator)).numbers == found


async def test_totals_go_on_with_the_tasks_of_a_changed_configuration() -> None:
    """The change clears the list of tasks until the connector has made the new one."""
    async with serving() as coordinator:
        owner_epoch, epoch = await owner_of_a_task(coordinator)
        failure = TaskStatus(connector="c", task=0, owner_epoch=owner_epoch, state=UnitState.FAILED, message="no disk")
        await ask(coordinator, beat("a", epoch, statuses=(failure,), progress=(written(owner_epoch, 100),)))
        before = (await look(coordinator)).connectors[0].units[0].owner_epoch
        await change(coordinator, add(path="/other"))
        assert len((await look(coordinator)).connectors[0].units) == 1
        last = (written(owner_epoch, 130),)
        epoch = (await ask(coordinator, beat("a", epoch, frozenset(), progress=last))).member_epoch
        for _ in range(5):
            epoch = (await ask(coordinator, beat("a", epoch))).member_epoch
            connector = (await look(coordinator)).connectors[0].units[0]
            if connector.member_id == "a" and connector.owner_epoch > before:
                break
        await change(coordinator, task_list("a", connector.owner_epoch, 1))
        after = (await task_unit(coordinator)).numbers
        assert after is not None
        assert (after.records_written, after.errors, after.records_lag) == (130, 1, -1)


@pytest.mark.parametrize("stops", [True, False], ids=["it stops in order", "it is killed"])
async def test_totals_count_across_coordinators(stops: bool) -> None:
    """One that is killed has written the totals with the status of the last owner; the owner reports the rest again."""
    storage = MemoryStorage()
    async with AsyncExitStack() as coordinators:
        life = await coordinators.enter_async_context(AsyncExitStack())
        first = await life.enter_async_context(serving(MemoryLog(storage)))
        owner_epoch, epoch = await owner_of_a_task(first)
        failure = TaskStatus(connector="c", task=0, owner_epoch=owner_epoch, state=UnitState.FAILED, message="no disk")
        await ask(first, beat("a", epoch, statuses=(failure,), progress=(written(owner_epoch, 100, letters=2),)))
        owner_epoch, epoch = await moved(first)
        running = TaskStatus(connector="c", task=0, owner_epoch=owner_epoch, state=UnitState.RUNNING)
        await ask(first, beat("b", epoch, statuses=(running,)))
        last = written(owner_epoch, 30, letters=1, last="a.csv, line 7")
        await ask(first, beat("b", epoch, progress=(last,)))
        before = (await task_unit(first)).numbers
        assert before is not None
        assert (before.records_written, before.dead_letters, before.errors) == (130, 3, 1)
        if stops:
            await life.aclose()
        second = await coordinators.enter_async_context(serving(MemoryLog(storage)))
        if stops:
            assert (await task_unit(second)).numbers == before, "it need not be reported again"
        for rows, total in (30, 130), (45, 145):
            await ask(second, beat("b", epoch, progress=(written(owner_epoch, rows, letters=1),)))
            after = (await task_unit(second)).numbers
            assert after is not None
            assert (after.records_written, after.dead_letters, after.errors) == (total, 3, 1)
        [history] = (await described(second)).connectors[0].history
        assert sum(history.rows) == 15, "rows of before did not come at the moment when they were reported again"


@pytest.mark.parametrize("stops", [True, False], ids=["it stops in order", "it is killed"])
@pytest.mark.parametrize("how", ["PAUSED", "STOPPED", "drained"])
async def test_totals_and_history_of_a_connector_without_running_tasks_outlast_the_coordinator(
    how: str, stops: bool
) -> None:
    """Its last numbers come with the acknowledgement of the revocation or before; no worker reports them again."""
    clock, storage = Clock(), MemoryStorage()
    async with AsyncExitStack() as coordinators:
        life = await coordinators.enter_async_context(AsyncExitStack())
        first = await life.enter_async_context(serving(MemoryLog(storage), wall_clock_ms=clock))
        owner_epoch, epoch = await owner_of_a_task(first)
        connector = (await look(first)).connectors[0].units[0].owner_epoch
        failure = TaskStatus(connector="c", task=0, owner_epoch=owner_epoch, state=UnitState.FAILED, message="no disk")
        await ask(first, beat("a", epoch, statuses=(running(connector), failure)))
        await ask(first, beat("a", epoch, statuses=(running(owner_epoch, 0),)))
        await ask(first, beat("a", epoch, progress=(written(owner_epoch, 100),)))
        last = (written(owner_epoch, 130, letters=2, last="a.csv, line 7"),)
        if how == "drained":
            await ask(first, beat("a", -1, progress=last))
        else:
            state = ConnectorChange(connector="c", target_state=TargetState[how])
            await change(first, UpdateConnectorsRequest(group_id=GROUP, changes=(state,)))
            response = await ask(first, beat("a", epoch, progress=last if how == "STOPPED" else ()))
            response = await ask(first, beat("a", epoch, frozenset(), progress=last if how == "PAUSED" else ()))
            assert response.error_code == 0
        before = await task_unit(first)
        assert (before.state, before.member_id) == ("UNASSIGNED" if how == "drained" else how, "")
        assert before.numbers is not None
        if stops:
            await life.aclose()
        elif how != "drained":
            await asyncio.sleep(600)
            await ask(first, beat("a", response.member_epoch))
            await asyncio.sleep(600)
        second = await coordinators.enter_async_context(serving(MemoryLog(storage), wall_clock_ms=clock))
        after = await task_unit(second)
        assert after.numbers is not None
        assert (after.state, after.numbers) == (before.state, before.numbers)
        assert (after.numbers.records_written, after.numbers.dead_letters, after.numbers.errors) == (130, 2, 1)
        if stops or how != "drained":
            [history] = (await described(second)).connectors[0].history
            assert (sum(history.rows), sum(history.errors)) == (130, 3)
        # The next run begins where the last one ended, and a connector that is created again at zero.
        if how == "drained":
            return
        await change(
            second, UpdateConnectorsRequest(group_id=GROUP, changes=(ConnectorChange(connector="c", delete=True),))
        )
        await change(second, add())
        assert all(unit.numbers is None for unit in (await described(second)).connectors[0].units)
    async with serving(MemoryLog(storage), wall_clock_ms=clock) as third:
        assert all(unit.numbers is None for unit in (await described(third)).connectors[0].units)


async def test_totals_that_cannot_be_written_do_not_keep_a_coordinator_from_its_end() -> None:
    log = FaultyLog()
    async with serving(log) as coordinator:
        owner_epoch, epoch = await owner_of_a_task(coordinator)
        running = TaskStatus(connector="c", task=0, owner_epoch=owner_epoch, state=UnitState.RUNNING)
        await ask(coordinator, beat("a", epoch, statuses=(running,), progress=(written(owner_epoch, 7),)))
        log.faults.append("before")


async def test_a_connector_that_is_created_again_begins_at_zero() -> None:
    async with serving() as coordinator:
        owner_epoch, epoch = await owner_of_a_task(coordinator)
        await ask(coordinator, beat("a", epoch, progress=(written(owner_epoch, 100),)))
        await change(
            coordinator, UpdateConnectorsRequest(group_id=GROUP, changes=(ConnectorChange(connector="c", delete=True),))
        )
        await change(coordinator, add())
        (connector,) = (await described(coordinator)).connectors
        assert not connector.events
        assert not connector.history
        assert all(unit.numbers is None for unit in connector.units)


# ---- history and events


async def described(coordinator: Coordinator, *, points: int = 240) -> DescribedGroup:
    request = DescribeRequest(group_ids=(GROUP,), history_points=points, include_events=True)
    response = await send(coordinator, request)
    assert isinstance(response, DescribeResponse)
    return response.groups[0]


class Clock:
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000 // INTERVAL_MS * INTERVAL_MS

    def __call__(self) -> int:
        return self.ms


async def test_the_last_hour_of_a_connector_is_kept_in_intervals() -> None:
    clock = Clock()
    async with serving(wall_clock_ms=clock) as coordinator:
        owner_epoch, epoch = await owner_of_a_task(coordinator)
        rows = 0
        for more in (10, 20, 0, 30):
            rows += more
            if more:
                await ask(coordinator, beat("a", epoch, progress=(written(owner_epoch, rows),)))
            clock.ms += INTERVAL_MS
        (history,) = (await described(coordinator)).connectors[0].history
        assert history.rows == (10, 20, 0, 30, 0)
        assert history.lag == (5, 5, 5, 5, 5)
        assert history.end_ms == clock.ms + INTERVAL_MS
        (coarse,) = (await described(coordinator, points=INTERVALS // 2)).connectors[0].history
        assert (coarse.rows, coarse.interval_ms) == ((10, 20, 30), 2 * INTERVAL_MS)
        clock.ms += 2 * INTERVALS * INTERVAL_MS
        (old,) = (await described(coordinator)).connectors[0].history
        assert old.rows == (0,) * INTERVALS, "an hour, not more"


@pytest.mark.parametrize("stops", [True, False], ids=["it stops in order", "it is killed"])
async def test_the_last_hour_goes_on_at_the_next_coordinator(stops: bool) -> None:
    """One that is killed has written it within the last five minutes; the minutes are as they were."""
    clock, storage = Clock(), MemoryStorage()
    async with AsyncExitStack() as coordinators:
        life = await coordinators.enter_async_context(AsyncExitStack())
        first = await life.enter_async_context(serving(MemoryLog(storage), wall_clock_ms=clock))
        owner_epoch, epoch = await owner_of_a_task(first)
        connector = (await look(first)).connectors[0].units[0].owner_epoch
        runs = tuple(
            TaskStatus(connector="c", task=task, owner_epoch=each, state=UnitState.RUNNING)
            for task, each in ((-1, connector), (0, owner_epoch))
        )
        await ask(first, beat("a", epoch, statuses=runs))
        rows = 0
        for minute in range(40):
            rows += minute
            letters = 1 + minute // 20
            await ask(first, beat("a", epoch, progress=(written(owner_epoch, rows, letters=letters),)))
            clock.ms += 60_000
        if stops:
            await life.aclose()
        else:
            await asyncio.sleep(600)
            await ask(first, beat("a", epoch))  # a turn
            await asyncio.sleep(600)
        (before,) = (await described(first)).connectors[0].history if not stops else (None,)
        second = await coordinators.enter_async_context(serving(MemoryLog(storage), wall_clock_ms=clock))
        (after,) = (await described(second, points=60)).connectors[0].history
        assert sum(after.rows) == sum(range(40))
        assert after.rows[-20:-1] == tuple(range(21, 40))
        assert sum(after.errors) == 2
        assert before is None or sum(before.rows) == sum(after.rows)
        clock.ms += 60_000
        # What it reports again came before, and its lag is not counted twice.
        await ask(second, beat("a", epoch, progress=(written(owner_epoch, rows, letters=2),)))
        await ask(second, beat("a", epoch, progress=(written(owner_epoch, rows + 7, letters=3),)))
        (later,) = (await described(second, points=60)).connectors[0].history
        assert (sum(later.rows), sum(later.errors), later.lag[-1]) == (sum(after.rows) + 7, 3, 5)
        failed = replace(runs[0], state=UnitState.FAILED, message="no such table")
        await ask(second, beat("a", epoch, statuses=(failed,)))
        another = await coordinators.enter_async_context(serving(MemoryLog(storage), wall_clock_ms=clock))
        (kept,) = (await described(another, points=60)).connectors[0].history
        assert sum(kept.rows) == sum(after.rows), "the record of a status replaces the one with the history"
    clock.ms += 2 * INTERVALS * INTERVAL_MS
    async with serving(MemoryLog(storage), wall_clock_ms=clock) as third:
        assert not (await described(third)).connectors[0].history, "an hour, not more"


async def test_errors_are_counted_and_the_last_events_are_shown_with_their_cause() -> None:
    async with serving() as coordinator:
        owner_epoch, epoch = await owner_of_a_task(coordinator)

        def failed(attempt: int) -> TaskStatus:
            text = f"RETRYING, attempt {attempt}, next in 1 s, last error: no such table"
            return TaskStatus(connector="c", task=0, owner_epoch=owner_epoch, state=UnitState.FAILED, message=text)

        for attempt in (1, 2, 2):  # a status whose response was lost is sent again
            await ask(coordinator, beat("a", epoch, statuses=(failed(attempt),)))
        letters = written(owner_epoch, 10, letters=3, last="a.csv, line 7: not a number")
        line = LogLine(connector="c", task=0, at_ms=5, level="WARNING", message="the lag cannot be measured\n\x1b[31m")
        for _ in range(2):
            await ask(coordinator, beat("a", epoch, progress=(letters,), log_lines=(line,)))
        other = replace(line, connector="nosuch")
        await ask(coordinator, beat("a", epoch, log_lines=(other,)))
        (connector,) = (await described(coordinator)).connectors
        events = [(each.kind, each.task, each.message, each.count) for each in connector.events]
        assert events == [
            ("error", 0, "no such table", 2),
            ("dead_letter", 0, "a.csv, line 7: not a number", 3),
            ("log", 0, "the lag cannot be measured\\n\\x1b[31m", 1),
        ]
        assert {each.member_id for each in connector.events} == {"a"}
        numbers = connector.units[1].numbers
        assert numbers is not None
        assert numbers.errors == 2
        assert sum(connector.history[0].errors) == 5
        assert (await look(coordinator)).connectors[0].events == (), "only on request"


async def test_start_and_memory_of_a_worker_are_shown() -> None:
    async with serving() as coordinator:
        _, epoch = await owner_of_a_task(coordinator)
        await ask(coordinator, beat("a", epoch, started_ms=1_000, memory_bytes=2_000, allowed_paths=("/data",)))
        await ask(coordinator, beat("a", epoch))
        (member,) = (await look(coordinator)).members
        assert (member.started_ms, member.memory_bytes, member.allowed_paths) == (1_000, 2_000, ("/data",))


def held_bytes(root: object) -> int:
    """The memory of an object and of all that it refers to: of data, not of classes and functions."""
    seen: dict[int, object] = {}
    left = [root]
    while left:
        each = left.pop()
        if id(each) not in seen and not isinstance(each, type | ModuleType | FunctionType | MethodType):
            seen[id(each)] = each
            left += gc.get_referents(each)
    return sum(map(sys.getsizeof, seen.values()))


def test_lag_that_fits_no_field_does_not_keep_a_group_from_being_loaded() -> None:
    """Each of two tasks has as much as a field holds, in the log."""
    histories, most = Histories(), (1 << 63) - 1
    found = ConnectorHistory(end_ms=1_000 * INTERVAL_MS, interval_ms=INTERVAL_MS, rows=(1,), lag=(most,), errors=(0,))
    now_ms = 1_000 * INTERVAL_MS
    assert histories.restore(("g", "c"), found, 2 * most, now_ms)
    assert histories.shown("g", 60, now_ms)["c"].lag[-1] == most


def test_description_of_one_connector_puts_together_its_history_alone() -> None:
    """On the page, the view of one connector of 3,000 kept the coordinator busy for a second."""
    reported, group = ReportedProgress(lambda: 1_700_000_000_000), ConnectGroupState("g")
    group.holders.update({Unit(name, 0): ("worker-1", 7) for name in ("a", "b")})
    for name in ("a", "b"):
        group.connectors[name] = ConnectorRecord(group_id="g", connector=name, version=1, tasks=(TaskEntry(),))
        numbers = TaskProgress(connector=name, task=0, owner_epoch=7, progress=Progress(records_written=5))
        reported.record(
            group, HeartbeatRequest(group_id="g", member_id="worker-1", member_epoch=7, progress=(numbers,))
        )
    named = DescribeRequest(connectors=("b", "b", "c"), history_points=60)
    assert {name: sum(each.rows) for name, each in reported.of("g", named).history.items()} == {"b": 5}
    assert reported.of("g", DescribeRequest(history_points=60)).history.keys() == {"a", "b"}
    reported.forget_connectors("g", {"a", "c"})
    left = reported.of("g", DescribeRequest(history_points=60))
    assert ({*left.history}, {*left.accounts}) == ({"b"}, {Unit("b", 0)})


async def test_an_hour_of_a_thousand_tasks_takes_less_than_32_megabytes() -> None:
    """The worst case: each task is the only one of its connector, and all that is kept of one is long."""
    reported, now_ms = ReportedProgress(lambda: now_ms), 1_700_000_000_000
    group = ConnectGroupState("g")
    names = [f"connector-{number}" for number in range(1_000)]
    for name in names:
        group.connectors[name] = ConnectorRecord(group_id="g", connector=name, version=1, tasks=(TaskEntry(),))
    group.holders.update({Unit(name, 0): ("worker-1", 7) for name in names})
    for minute in range(60):
        now_ms += 60_000
        numbers = {"records_written": 10**12 + minute, "records_lag": 10**9 + minute, "dead_letters": minute + 1}
        progress = Progress(**numbers, last_dead_letter=f"{minute}" * 250)
        tasks = tuple(TaskProgress(connector=name, task=0, owner_epoch=7, progress=progress) for name in names)
        failed = tuple(
            TaskStatus(connector=name, task=0, owner_epoch=7, state=UnitState.FAILED, message=f"{minute:02}" * 1_000)
            for name in names
        )
        request = HeartbeatRequest(group_id="g", member_id="worker-1", progress=tasks, statuses=failed)
        reported.record(group, request)
        reported.record_accepted(group, request)
    described = DescribeRequest(history_points=240, include_events=True)
    history = reported.of("g", described).history
    assert len(history) == 1_000
    assert sum(history["connector-7"].errors) == 120
    assert held_bytes(reported) < 32_000_000

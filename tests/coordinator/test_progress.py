"""The numbers of running tasks: in memory only, shown for the owner that has reported them."""

from __future__ import annotations

from dataclasses import replace

from connectgroup.coordinator.progress import MAX_TOPICS
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.protocol.messages.describe import DeleteRequest, DescribedUnit
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.messages.progress import Progress, TaskProgress
from connectgroup.protocol.records.connect import UnitState
from connectgroup.rest.page_table import page_table
from connectgroup.rest.views import task_status

from .builders import FaultyLog, add, ask, beat, change, look, send, serving, task_list


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


async def test_numbers_end_with_the_assignment_and_with_the_group() -> None:
    async with serving() as coordinator:
        owner_epoch, epoch = await owner_of_a_task(coordinator)
        await ask(coordinator, beat("a", epoch, progress=(numbers(owner_epoch),)))
        await ask(coordinator, beat("a", -1))
        assert (await task_unit(coordinator)).numbers is None
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

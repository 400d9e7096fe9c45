"""The numbers of tasks in heartbeats: those of a lost heartbeat are sent again, and none is sent for them alone."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from connectgroup.connector import Lag
from connectgroup.errors import TransportError
from connectgroup.loggers import lines_about
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.messages.progress import Progress
from connectgroup.protocol.units import Unit
from connectgroup.worker.heartbeat import MAX_KEPT, ProcessReport

from .builders import GROUP, World

TASK = Unit("c", 0)


async def numbers(world: World) -> Progress | None:
    return (await world.describe()).connectors[0].units[1].numbers


async def test_numbers_of_a_lost_heartbeat_are_sent_again(tmp_path: Path) -> None:
    lost: list[HeartbeatRequest] = []

    async def lose(request: Request) -> Response | None:
        if isinstance(request, HeartbeatRequest) and request.progress and len(lost) < 2:
            lost.append(request)
            raise TransportError("no response")
        return None

    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=1)
        a.heartbeats.instead = lose
        world.contexts[TASK].lag(Lag(records=3))
        await world.until(lambda: len(lost) == 2)
        await asyncio.sleep(20)
        assert (await numbers(world)) == Progress(records_lag=3)
        assert lost[0].progress == lost[1].progress


async def test_only_numbers_that_have_changed_are_sent(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=2)
        await asyncio.sleep(20)
        before = a.heartbeats.heartbeats
        await asyncio.sleep(60)
        usual = a.heartbeats.heartbeats - before
        for records in (3, 4):
            world.contexts[TASK].lag(Lag(records=records))
            await asyncio.sleep(60)
        sent = [request for _, request in a.heartbeats.requests if isinstance(request, HeartbeatRequest)]
        reports = [request.progress for request in sent if request.progress]
        assert [[(each.task, each.progress.records_lag) for each in report] for report in reports] == [
            [(0, 3)],
            [(0, 4)],
        ]
        assert abs(a.heartbeats.heartbeats - before - 3 * usual) <= 1


async def test_the_last_rows_of_a_task_come_with_the_acknowledgement_of_its_revocation(tmp_path: Path) -> None:
    """Otherwise the total across workers would miss those of the last seconds, also of a task that ran for less."""
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=2)
        await asyncio.sleep(20)
        first = {unit: world.contexts[unit] for unit in (TASK, Unit("c", 1))}
        for context in first.values():
            context.progress(100)
        for _ in range(1_000):
            if await numbers(world) is not None:
                break
            await asyncio.sleep(0.1)
        for context in first.values():  # the next report is not due yet
            context.progress(11)
        a.worker.stop()
        assert a.task is not None
        await a.task
        world.start("b")
        await world.settled("b")
        for unit in first:
            assert world.contexts[unit] is not first[unit]
            world.contexts[unit].progress(5)
        await asyncio.sleep(20)
        described = (await world.describe()).connectors[0].units[1:]
        assert [unit.numbers and unit.numbers.records_written for unit in described] == [116, 116]


async def test_lines_about_units_and_the_memory_of_the_process_are_sent(tmp_path: Path) -> None:
    lost: list[HeartbeatRequest] = []

    async def lose(request: Request) -> Response | None:
        if isinstance(request, HeartbeatRequest) and request.log_lines and len(lost) < 2:
            lost.append(request)
            raise TransportError("no response")
        return None

    report, log = ProcessReport(), logging.getLogger("connectgroup.test")
    log.addHandler(report)
    try:
        async with World(tmp_path) as world:
            await world.add("c", 1)
            a = world.start("a")
            a.worker.set_process_report(report)
            await world.settled()
            a.heartbeats.instead = lose
            log.warning("%s: the lag cannot be measured: %s", TASK, "no\nanswer")
            log.warning("about no unit: %s", 5)
            log.error("%s failed: x", TASK, extra={"is_status": True})
            await world.until(lambda: len(lost) == 2)
            await asyncio.sleep(20)
            asked = DescribeRequest(group_ids=(GROUP,), include_events=True)
            response = await world.coordinator.handle(asked, client_host="operator")
            assert isinstance(response, DescribeResponse)
            (group,) = response.groups
            (line,) = [each for each in group.connectors[0].events if each.kind == "log"]
            assert (line.task, line.member_id, line.level, line.message) == (
                0, "a", "WARNING", "the lag cannot be measured: no\\nanswer",
            )  # fmt: skip
            assert group.members[0].started_ms == report.started_ms
            assert group.members[0].memory_bytes > 1_000_000
    finally:
        log.removeHandler(report)


def test_lines_of_code_that_does_not_know_its_unit_are_about_the_one_of_its_thread() -> None:
    report, log = ProcessReport(), logging.getLogger("connectgroup.test_about")
    log.addHandler(report)
    log.propagate = False
    other = Unit("other", 3)
    with lines_about(TASK):
        log.warning("%s: links to %s", "/in/a.csv", "/etc/passwd")
        log.warning("%s: its own", other)
    log.warning("%s: about no unit", "/in/b.csv")
    lines = [(Unit(line.connector, line.task), line.message) for line in report.take_lines(MAX_KEPT)]
    assert lines == [(TASK, "/in/a.csv: links to /etc/passwd"), (other, "its own")]


def test_allowed_paths_that_a_heartbeat_cannot_have_are_not_reported() -> None:
    plain = (Path("/data"), Path("/d-\u00e4"))
    assert ProcessReport(plain).allowed_paths == ("/data", "/d-\u00e4")
    assert ProcessReport((*plain, Path(os.fsdecode(b"/d-\xe4")))).allowed_paths is None
    many = [Path(f"/{number:02}{'x' * 1021}") for number in range(17)]
    assert ProcessReport(many[:16]).allowed_paths is not None
    assert ProcessReport(many).allowed_paths is None


def test_lines_that_no_heartbeat_takes_are_counted() -> None:
    report = ProcessReport()
    log = logging.getLogger("connectgroup.test_kept")
    log.addHandler(report)
    log.propagate = False
    for number in range(MAX_KEPT + 5):
        log.warning("%s: line %d", TASK, number)
    lines = report.take_lines(MAX_KEPT)
    assert (len(lines), lines[0].message, lines[-1].message) == (MAX_KEPT, "line 5", f"line {MAX_KEPT + 4}")
    log.warning("%s: later", TASK)
    (later,) = report.take_lines(MAX_KEPT)
    assert later.message == "later (5 lines before it are only in the worker's log)"

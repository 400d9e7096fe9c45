"""The numbers of running tasks, from the task to REST, the command line and the rows of the live page."""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from connectgroup import Batch, Lag
from connectgroup.cli.command import main
from connectgroup.cli.render import lag_text
from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.protocol.messages.describe import DescribedConnector, DescribedGroup, DescribedUnit
from connectgroup.protocol.messages.progress import Progress
from connectgroup.rest.page_table import page_table
from connectgroup.transport.tcp_server import TcpServer
from tests.coordinator.builders import GROUP
from tests.volume import ci_only

from .browser import unit
from .conftest import Api, running_worker


class SlowTask(Task):
    """Does only what the test does with its context."""

    reports_polls = True

    def __init__(self, context: TaskContext) -> None:
        self.context = context

    def start(self) -> None:
        Slow.contexts.put(self.context)

    def stop(self) -> None:
        pass


class Slow(Connector):
    contexts: ClassVar[queue.SimpleQueue[TaskContext]]

    def task_configs(self, max_tasks: int) -> Sequence[Config]:
        return [{} for _ in range(max_tasks)]

    def task(self, config: Config, context: TaskContext) -> Task:
        return SlowTask(context)


@pytest.fixture(autouse=True)
def contexts() -> None:
    Slow.contexts = queue.SimpleQueue()


async def started() -> TaskContext:
    """The context of the task's next start."""
    return await asyncio.to_thread(Slow.contexts.get, timeout=30)


async def created(api: Api) -> TaskContext:
    """Create the connector; return the context of its task once it has been started."""
    await api("POST", "/connectors", 201, {"name": "c", "config": {"connector.class": "idle", "tasks.max": "1"}})
    return await started()


def task_of(status: Mapping[str, Any]) -> dict[str, Any]:
    tasks: list[dict[str, Any]] = status["tasks"]
    return tasks[0] if tasks else {"state": ""}


async def test_task_is_running_only_after_its_first_poll(api: Api, tmp_path: Path) -> None:
    async with running_worker(api, tmp_path, lambda name: Slow):
        context = await created(api)
        await api.until(lambda status: status["connector"]["state"] == "RUNNING", "/connectors/c/status")
        group = await api("GET", f"/groups/{GROUP}", 200)
        assert [each["state"] for each in group["connectors"][0]["units"]] == ["RUNNING", "STARTING"]
        assert task_of(await api("GET", "/connectors/c/status", 200))["state"] == "UNASSIGNED"
        context.polled()
        await api.until(lambda status: task_of(status)["state"] == "RUNNING", "/connectors/c/status")


async def test_durable_rows_are_activity_and_a_failure_before_the_first_poll_is_never_running(
    api: Api, tmp_path: Path
) -> None:
    async with running_worker(api, tmp_path, lambda name: Slow, retry_initial_s=0.01):
        context = await created(api)
        context.failed(OSError("no such host"))
        await api.until(lambda status: task_of(status)["state"] == "FAILED", "/connectors/c/status")
        again = await started()
        assert task_of(await api("GET", "/connectors/c/status", 200))["state"] == "FAILED"
        again.progress(3)
        await api.until(lambda status: task_of(status)["state"] == "RUNNING", "/connectors/c/status")


async def test_numbers_of_a_task_are_in_its_status(
    api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_worker(api, tmp_path, lambda name: Slow):
        context = await created(api)
        assert "progress" not in task_of(await api("GET", "/connectors/c/status", 200))
        letters: dict[str, Any] = {"dead_letters": 2, "last_dead_letter": "a.csv, line 7: not a number"}
        times: dict[str, Any] = {"read_s": 0.5, "commit_s": 0.1}
        context.batch(Batch(read=120, rows=120, read_bytes=4_000, written_bytes=3_000, **times, **letters))
        context.batch(Batch(read=0, rows=0, dead_letters=1, last_dead_letter="not kept", committed=False, **times))
        context.progress(120)
        context.polled()
        context.lag(
            Lag(records=1_500, bytes=2_500_000, files=3, unfinished_files=2, unreadable_files=1, skipped_files=4)
        )
        status = await api.until(lambda status: "progress" in task_of(status), "/connectors/c/status")
        status = await api.until(lambda status: task_of(status)["progress"]["files_left"], "/connectors/c/status")
        numbers = task_of(status)["progress"]
        assert numbers.pop("last_record_ms") > 0
        assert numbers.pop("last_poll_ms") > 0
        assert numbers == {
            "records_read": 120,
            "records_written": 120,
            "records_per_second": 4.0,
            "bytes_read": 4_000,
            "bytes_written": 3_000,
            "records_lag": 1_500,
            "bytes_lag": 2_500_000,
            "files_left": 3,
            "unfinished_files": 2,
            "unreadable_files": 1,
            "skipped_files": 4,
            "errors": 0,
            **letters,
        }
        assert task_of(status)["state"] == "RUNNING"
        group = await api("GET", f"/groups/{GROUP}", 200)
        assert group["connectors"][0]["units"][1]["progress"]["records_lag"] == 1_500
        context.lag(Lag(records=0))
        await api.until(lambda status: task_of(status)["progress"]["records_lag"] == 0, "/connectors/c/status")

        server = TcpServer(api.coordinator)
        await server.start()
        try:
            place = ["--coordinator", f"127.0.0.1:{server.port}", "--group", GROUP]
            assert await asyncio.to_thread(main, ["connectors", "status", "c", *place]) == 0
            table = capsys.readouterr().out.splitlines()
            assert await asyncio.to_thread(main, ["connectors", "status", "c", "--json", *place]) == 0
            as_json = json.loads(capsys.readouterr().out)
            assert await asyncio.to_thread(main, ["groups", "describe", GROUP, *place[:2]]) == 0
            description = capsys.readouterr().out
        finally:
            await server.close()
    assert table[1].split()[-8:] == ["ROWS", "ROWS/S", "LAG", "ERRORS", "LAST", "RECORD", "LAST", "POLL"]
    assert table[3].split()[4:8] == ["120", "4.0", "0", "records"]
    assert task_of(as_json)["progress"]["records_lag"] == 0
    assert "4.0 rows/s, 120 rows, lag 0 records, last record " in description
    shown = "2 dead letters, the last: a.csv, line 7: not a number"
    assert table[-1] == f"c-0: {shown}"
    assert f"    {shown}" in description.splitlines()


def test_lag_says_how_many_files_are_not_read_and_why() -> None:
    numbers = Progress(files_left=3, bytes_lag=2_500_000, unfinished_files=2, unreadable_files=1, skipped_files=4)
    assert lag_text(numbers) == "3 files, 2.5 MB, 2 unfinished, 1 unreadable, 4 skipped"
    assert lag_text(Progress(skipped_files=0)) == ""


# ---- the page


def measured_group(*lags: Progress) -> DescribedGroup:
    units = (
        unit(-1),
        *(
            DescribedUnit(task=task, member_id="a", owner_epoch=3, state="RUNNING", progress=(lag,))
            for task, lag in enumerate(lags)
        ),
    )
    return DescribedGroup(group_id="g", connectors=(DescribedConnector(connector="c", units=units),))


def test_page_shows_the_lag_and_the_rate_of_all_tasks() -> None:
    group = measured_group(
        Progress(records_lag=5, records_written=9, records_per_minute=90),
        Progress(records_lag=7, records_written=9, records_per_minute=30, bytes_lag=100, unfinished_files=1),
    )
    table = page_table(group, 0, before={}, rates={})
    assert table["connector/c"]["lag"] == [12, 100, None]
    assert table["connector/c"]["rows_per_s"] == 2.0
    assert [table["connector/c"][name] for name in ("dead_letters", "unfinished", "unreadable")] == [0, 1, 0]
    assert (table["lag/0/c"], table["lag/1/c"]) == ([5, None, None], [7, 100, None])
    assert page_table(group, 0, before={}, rates={"c": 3.0})["connector/c"]["rows_per_s"] == 3.0
    unknown = page_table(measured_group(Progress()), 0, before={}, rates={})
    assert unknown["connector/c"]["lag"] == [None, None, None]
    assert "lag/0/c" not in unknown


def batch(*topics: str) -> Batch:
    return Batch(read=1, rows=1, read_s=0.1, commit_s=0.1, topics=topics)


@ci_only("20 s, as workers report every 5 s; a user's run shows and resets topics by commands")
async def test_topics_that_a_task_has_used_are_shown_until_they_are_reset(api: Api, tmp_path: Path) -> None:
    """KIP-558."""

    async def used(context: TaskContext, *topics: str) -> None:
        context.batch(batch(*topics))
        context.progress(1)

    async def shown(*topics: str) -> None:
        await api.until(lambda found: found == {"c": {"topics": [*topics]}}, "/connectors/c/topics")

    async with running_worker(api, tmp_path, lambda name: Slow):
        context = await created(api)
        await shown()
        await used(context, "b", "a")
        await shown("a", "b")
        await used(context, "c")
        await shown("a", "b", "c")
        await api("PUT", "/connectors/c/topics/reset", 202)
        await shown()
        await used(context, "b")
        await shown("b")
        # A batch that was not committed has written nothing.
        context.batch(Batch(read=1, rows=1, read_s=0.1, commit_s=0.1, committed=False, topics=["d"]))
        await used(context, "e")
        await shown("b", "e")
        await api("DELETE", "/connectors/c", 204)
        await created(api)
        await shown()


async def test_commands_show_and_reset_topics(api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_worker(api, tmp_path, lambda name: Slow):
        context = await created(api)
        context.batch(batch("orders", "people"))
        context.progress(1)
        await api.until(lambda found: bool(found["c"]["topics"]), "/connectors/c/topics")
        server = TcpServer(api.coordinator)
        await server.start()
        try:
            place = ["topics", "c", "--coordinator", f"127.0.0.1:{server.port}", "--group", GROUP]
            for options in ((), ("--json",), ("--reset",), ()):
                assert await asyncio.to_thread(main, ["connectors", *place, *options]) == 0
        finally:
            await server.close()
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert printed.err == "no topics: its tasks have used none since the last reset\n"
    assert lines[:2] == ["orders", "people"]
    assert json.loads("\n".join(lines[2:-1])) == {"c": {"topics": ["orders", "people"]}}
    assert lines[-1] == "connector c: topics reset"

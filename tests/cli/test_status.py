"""``connectgroup status``, and ``connectors describe|logs|errors``: failures, numbers and logs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from connectgroup.cli.render import ago_text
from connectgroup.cli.status import checked as checked_group
from connectgroup.client.admin import Admin
from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.errors import UnreleasedInstanceId
from connectgroup.protocol.messages.classic import JoinGroupRequest, OfferedProtocol
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.messages.progress import LogLine, Progress, TaskProgress
from connectgroup.protocol.records.connect import UnitState
from tests.coordinator.builders import GROUP, add, ask, beat, change, look, task_list

from ..integration.processes import Program
from .live import Done, command

CAUSE = 'relation "orders" does not exist'


@dataclass
class Group:
    """A group with connector ``c``, whose task 0 is owned by worker ``a``: the test, which reports what it likes."""

    server: CoordinatorServer
    owner_epoch: int
    connector_epoch: int
    epoch: int
    process_id: int = -1

    async def __call__(self, *arguments: object) -> Done:
        return await command(*arguments, "--coordinator", self.server.address)

    @property
    def coordinator(self) -> Coordinator:
        assert isinstance(self.server.coordinator, Coordinator)
        return self.server.coordinator

    async def runs(self) -> None:
        described = [("c", -1), ("c", 0)]
        statuses = [self.status(task, UnitState.RUNNING) for _, task in described]
        await ask(self.coordinator, beat("a", self.epoch, statuses=tuple(statuses), process_id=self.process_id))

    async def fails(self, attempt: int = 3) -> None:
        text = f"RETRYING, attempt {attempt}, next in 4 s, last error: {CAUSE}"
        await ask(self.coordinator, beat("a", self.epoch, statuses=(self.status(0, UnitState.FAILED, text),)))

    async def reports(self, progress: Progress, *lines: LogLine) -> None:
        task = TaskProgress(connector="c", task=0, owner_epoch=self.owner_epoch, progress=progress)
        await ask(self.coordinator, beat("a", self.epoch, progress=(task,), log_lines=lines))

    def status(self, task: int, state: UnitState, message: str = "") -> TaskStatus:
        epoch = self.owner_epoch if task >= 0 else self.connector_epoch
        return TaskStatus(connector="c", task=task, owner_epoch=epoch, state=state, message=message)


async def owning_all(server: CoordinatorServer, *, is_new: bool = True, process_id: int = -1, **more: Any) -> Group:
    """Have worker ``a`` own connector ``c``, which is added if it is new, and its task; ``more``: of its heartbeats."""
    more["process_id"] = process_id
    coordinator, epochs = server.coordinator, dict[int, int]()
    assert isinstance(coordinator, Coordinator)
    if is_new:
        await change(coordinator, add())
    member_epoch = 0
    async with asyncio.timeout(120):
        while 0 not in epochs:
            member_epoch = (await ask(coordinator, beat("a", member_epoch, **more))).member_epoch
            units = (await look(coordinator)).connectors[0].units
            known = len(epochs)
            epochs = {unit.task: unit.owner_epoch for unit in units if unit.member_id}
            if is_new and len(epochs) > known == 0:
                await change(coordinator, replace(task_list("a", epochs[-1], 1), process_id=process_id))
            await asyncio.sleep(0.01)  # the coordinator computes the assignment in a thread
    return Group(server, epochs[0], epochs[-1], member_epoch, process_id)


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0, "session_timeout_ms": 300_000}))
    await server.start()
    try:
        yield await owning_all(server)
    finally:
        await server.close()


async def test_downtime_across_a_kill_of_the_coordinator_and_its_workers_includes_the_outage(tmp_path: Path) -> None:
    """``up`` is killed: the next coordinator counts from the last sign of life of this one."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    config = {"port": 0, "session_timeout_ms": 300_000}
    server = CoordinatorServer(checked(CoordinatorConfig, {**config, "data": before / "log"}))
    await server.start()
    try:
        await (await owning_all(server, process_id=1, os_process="m/1/1")).runs()
        lock = before / "log.lock"
        os.utime(lock, (0, 0))
        async with asyncio.timeout(120):
            while not lock.stat().st_mtime:  # noqa: ASYNC110 -- one with nothing to write is alive, too
                await asyncio.sleep(0.05)
        shutil.copytree(before, after)  # what a kill leaves
    finally:
        await server.close()
    hour_ago = time.time() - 3_600
    os.utime(after / "log.lock", (hour_ago, hour_ago))
    server = CoordinatorServer(checked(CoordinatorConfig, {**config, "data": after / "log"}))
    await server.start()
    try:
        assert isinstance(server.coordinator, Coordinator)
        server.coordinator.lost_connections.has_ended = lambda process: True
        refused = await ask(server.coordinator, beat("a", process_id=2))
        assert refused.error_code == UnreleasedInstanceId.code
        group = await owning_all(server, is_new=False, process_id=2)
        await group.runs()
        described = await look(server.coordinator)
        downtimes = [move.downtime_ms for move in described.rebalances[-1].moves]
        assert len(downtimes) == 2
        assert all(3_600_000 <= each < 7_200_000 for each in downtimes), downtimes
    finally:
        await server.close()


async def test_status_shows_failed_connectors_first_with_the_cause_before_the_attempt(group: Group) -> None:
    await group.fails()
    await group.reports(Progress(records_written=1_234, records_lag=5, last_record_ms=time.time_ns() // 1_000_000))
    lines = (await group("status")).lines
    assert lines[0] == f"c-0 FAILED on a: {CAUSE}"
    assert lines[1] == "  RETRYING, attempt 3, next in 4 s"
    head, row = lines[2].split(), lines[3]
    assert head == ["NAME", "STATE", "TASKS", "ROWS", "ROWS/S", "LAG", "ERRORS", "DEAD", "LETTERS", "LAST", "RECORD"]
    assert row.split()[:6] == ["c", "FAILED", "0/1", "1234", "0.0", "5"]
    assert row.endswith((" ago", "now"))
    only = await group("connectors", "restart", "c", "--only-failed")
    text = "the connector itself has not failed; --include-tasks restarts c-0 as well"
    assert (only.code, only.out) == (0, f"connector c: nothing restarted: {text}\n")
    itself = group.status(-1, UnitState.FAILED, "no such class")
    await ask(group.coordinator, beat("a", group.epoch, statuses=(itself,)))
    row = next(line for line in (await group("status")).lines if line.startswith("c  "))
    assert row.split()[7] == "2", "an error of the task, and one of the connector itself"
    await ask(group.coordinator, beat("a", group.epoch, statuses=(group.status(-1, UnitState.RUNNING),)))
    one = (await group("connectors", "status", "c")).out
    assert "c-0" in one.splitlines()[2], "the failed task comes before the connector"
    assert json.loads((await group("status", "c", "--json")).out)["name"] == "c"
    assert isinstance(json.loads((await group("status", "--json")).out), list)
    unknown = await group("status", "nosuch")
    assert (unknown.code, unknown.err) == (
        3, "connectgroup: connector nosuch does not exist; connectors of this group: c\n"
    )  # fmt: skip


async def test_restart_of_what_has_failed_includes_a_task_that_has_stalled(group: Group) -> None:
    """``status`` lists it as failed; it processes nothing either."""
    await group.runs()
    nothing = await group("connectors", "restart", "c", "--include-tasks", "--only-failed")
    assert nothing.out == "connector c: nothing restarted: nothing has failed\n"
    await ask(group.coordinator, beat("a", group.epoch, statuses=(group.status(0, UnitState.STALLED, "no poll"),)))
    done = await group("connectors", "restart", "c", "--include-tasks", "--only-failed")
    assert (done.code, done.out) == (0, "connector c: restarting c-0\n")


async def test_check_has_exit_codes_for_monitors(group: Group) -> None:
    starting = await group("status", "--check")
    assert (starting.code, starting.lines[0]) == (1, "WARNING: 2 connectors or tasks not running yet: c, c-0")
    await group.runs()
    running = await group("status", "--check")
    assert (running.code, running.out) == (0, "OK: 1 of 1 task running\n")
    await group.reports(Progress(unreadable_files=1))
    unread = await group("status", "--check")
    assert (unread.code, unread.lines) == (1, ["WARNING: c-0: 1 file cannot be read"])
    await group.fails()
    failed = await group("connectors", "status", "c", "--check")
    assert (failed.code, failed.lines[0]) == (2, f"CRITICAL: c-0 on a: {CAUSE}")
    as_json = await group("status", "--check", "--json")
    shown = json.loads(as_json.out)
    assert (as_json.code, shown["status"], shown["exit_code"]) == (2, "CRITICAL", 2)
    assert shown["reasons"][0] == f"c-0 on a: {CAUSE}"
    full = replace(await look(group.coordinator), log_error="no space left")
    level, reasons = checked_group(full)
    assert (level, reasons[1]) == (2, shown["reasons"][0])
    assert reasons[0].endswith("takes no writes: no space left")
    await group.runs()
    recovered = await group("status", "--check")
    assert recovered.code == 1
    assert "c: 1 error or dead letter within the last hour" in recovered.out
    await ask(group.coordinator, beat("a", -1))
    empty = await group("status", "--check")
    assert (empty.code, empty.lines[0]) == (
        2, "CRITICAL: no worker in the group; 2 connectors or tasks should run"
    )  # fmt: skip
    gone = await command("status", "--check", "--coordinator", "127.0.0.1:1")
    assert gone.code == 5


async def test_describe_logs_and_errors_show_what_workers_have_reported(group: Group) -> None:
    assert (await group("connectors", "errors", "c")).err.startswith("no errors and no dead letters")
    await group.runs()
    await group.fails(3)
    await group.fails(4)
    line = LogLine(connector="c", task=0, at_ms=5, level="WARNING", message="a.csv.gz is incomplete\x1b[31m")
    letters = Progress(
        records_written=10, dead_letters=2, last_dead_letter="a.csv, line 7: not a number", unreadable_files=1,
        skipped_files=2, unfinished_files=3,
    )  # fmt: skip
    await group.reports(letters, line)
    errors = (await group("connectors", "errors", "c")).lines
    assert errors[0].split() == ["WHEN", "TASK", "WORKER", "KIND", "COUNT", "CAUSE"]
    assert errors[1].split(maxsplit=2)[2].endswith(CAUSE)
    assert " error  " in errors[1]
    assert " 2  " in errors[1], "two attempts failed for one cause"
    assert errors[2].endswith("a.csv, line 7: not a number")
    logs = (await group("connectors", "logs", "c")).lines
    assert [each.split(" ", 1)[1] for each in logs] == [
        "INFO c a: runs",
        "INFO c-0 a: runs",
        f"ERROR c-0 a: {CAUSE} (2 times)",
        "ERROR c-0 a: dead letter: a.csv, line 7: not a number (2 times)",
        "WARNING c-0 a: a.csv.gz is incomplete\\x1b[31m",
    ]
    assert len((await group("connectors", "logs", "c", "--last", "2")).lines) == 2
    assert (await group("connectors", "logs", "c", "--task", "-1")).lines[0].endswith("INFO c a: runs")
    for action in ("logs", "errors"):
        nothing = await group("connectors", action, "c", "--task", "7")
        assert (nothing.code, nothing.err) == (3, "connectgroup: connector c has no task 7: it has 1 task\n")
    assert [each["kind"] for each in json.loads((await group("connectors", "errors", "c", "--json")).out)] == [
        "error", "dead_letter",
    ]  # fmt: skip
    described = (await group("connectors", "describe", "c")).out
    for text in (
        f"c-0 FAILED on a: {CAUSE}\n  RETRYING, attempt 4, next in 4 s\n10 rows, ",
        "3 files unfinished: no line feed at the end",
        "1 file cannot be read: damaged, incomplete if compressed",
        "2 files left out: hidden",
        "4 errors or dead letters within the last hour",
        "c-0: 2 dead letters, the last: a.csv, line 7: not a number",
        "configuration:\n  connector.class=x\n",
    ):
        assert text in described
    shown = json.loads((await group("connectors", "describe", "c", "--json")).out)
    assert (shown["units"][0]["task"], shown["units"][0]["cause"]) == (0, CAUSE)
    assert sum(shown["history"]["errors"]) == 4


async def test_errors_say_where_the_records_of_dead_letters_are(group: Group) -> None:
    """The first setting is that of a sink connector of Kafka Connect in its own form."""
    await group.runs()
    await group.reports(Progress(dead_letters=1, last_dead_letter="a.csv, line 7: not a number"))
    for name, where in (("topic.name", "the topic bad"), ("name", "bad of its sink")):
        setting = f"errors.deadletterqueue.{name}"
        async with Admin.local(group.coordinator) as admin:
            await admin.patch_connector(GROUP, "c", {setting: "bad"})
        shown = (await group("connectors", "errors", "c")).lines[-1]
        assert shown == f"the records are in {where} ({setting})"


async def test_numbers_that_fit_no_field_cost_other_workers_nothing(group: Group) -> None:
    """A worker may report any: the sum with those of another task was an error in the heartbeat of its worker."""
    most = (1 << 63) - 1
    numbers = Progress(records_written=most, bytes_read=most, records_lag=most, dead_letters=most)
    for task, epoch in ((0, group.owner_epoch), (-1, group.connector_epoch)):
        reported = TaskProgress(connector="c", task=task, owner_epoch=epoch, progress=numbers)
        await ask(group.coordinator, beat("a", group.epoch, progress=(reported,)))
    described = json.loads((await group("connectors", "describe", "c", "--json")).out)
    assert (max(described["history"]["rows"]), described["history"]["lag"][-1]) == (most, most)
    assert [each["count"] for each in described["events"]] == [(1 << 31) - 1] * 2


async def test_texts_of_strangers_do_not_command_the_terminal(group: Group) -> None:
    """What a worker with no more than Read reports, and how a consumer calls itself, is shown to operators."""
    evil = "\x1b]0;title\x07\x9b2J\nconnectgroup: all is well\u202e"
    letters = Progress(dead_letters=1, last_dead_letter=evil)
    task = TaskProgress(connector="c", task=0, owner_epoch=group.owner_epoch, progress=letters, topics=(evil,))
    await ask(group.coordinator, beat("a", group.epoch, progress=(task,)))
    join = JoinGroupRequest(
        group_id="consumers",
        session_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=(OfferedProtocol(name="range", metadata=b""),),
    )
    joining = asyncio.create_task(group.coordinator.handle(join, client_host="h", client_id=evil))
    async with asyncio.timeout(120):
        while "consumers" not in (await group("groups", "list")).out:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for words in (
        ("status", "c"),
        ("connectors", "describe", "c"),
        ("connectors", "errors", "c"),
        ("connectors", "topics", "c"),
        ("groups", "describe", GROUP),
        ("groups", "describe", "consumers"),
        ("groups", "describe", "consumers", "--members"),
    ):
        shown = (await group(*words)).out
        assert r"\x1b]0;title\x07\x9b2J\nconnectgroup" in shown, words
        assert all(line.isprintable() for line in shown.split("\n")), words
    joining.cancel()


async def test_logs_follow_and_status_watch_go_on_until_they_are_interrupted(group: Group) -> None:
    await group.runs()
    commands = (("connectors", "logs", "c", "--follow", "--json"), ("status", "--watch", "1"))
    for arguments, wanted in zip(commands, ("it goes on", f"c-0 FAILED on a: {CAUSE}"), strict=True):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", "-m", "connectgroup"),
            *arguments,
            "--coordinator",
            group.server.address,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            first = await process.stdout.readline()
            assert json.loads(first)["message"] == "runs" if "--json" in arguments else first
            line = LogLine(connector="c", task=0, at_ms=2**50, level="INFO", message="it goes on")
            await group.reports(Progress(), line)
            await group.fails()
            async with asyncio.timeout(120):
                while wanted not in (await process.stdout.readline()).decode():
                    pass
        finally:
            process.terminate()
            await process.wait()
    rejected = await group("status", "--watch", "--check")
    assert rejected.code == 3, "2 would say that something has failed"
    text = "connectgroup status: argument --watch: not allowed with argument --check; see connectgroup status --help\n"
    assert rejected.err == text


async def test_watch_and_follow_go_on_when_the_coordinator_is_back(tmp_path: Path) -> None:
    settings = {"data": tmp_path / "groups.sqlite", "session_timeout_ms": 300_000}
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0, **settings}))
    await server.start()
    try:
        group = await owning_all(server)
        await group.runs()
        at = ("--coordinator", server.address)
        with (
            Program("status", "--watch", "1", *at) as watch,
            Program("connectors", "logs", "c", "--follow", *at) as logs,
        ):
            await asyncio.to_thread(watch.line_with, "c  ")
            await asyncio.to_thread(logs.line_with, "c-0 a: runs")
            await server.close()
            for each in (watch, logs):
                await asyncio.to_thread(each.line_with, "; asked again")
            watch.lines.clear()
            server = CoordinatorServer(checked(CoordinatorConfig, {"port": int(at[1].rpartition(":")[2]), **settings}))
            await server.start()
            await asyncio.to_thread(watch.line_with, "c  ")
            line = LogLine(connector="c", task=0, at_ms=2**50, level="INFO", message="it goes on")
            await replace(group, server=server).reports(Progress(), line)
            await asyncio.to_thread(logs.line_with, "it goes on")
    finally:
        await server.close()


def test_times_are_shown_as_the_time_since() -> None:
    now = 1_700_000_000_000
    shown = {age: ago_text(now - 1000 * age, now) for age in (-5, 0, 3, 59, 60, 150, 7_200, 90_000, 200_000)}
    assert list(shown.values()) == [
        "now", "now", "3 s ago", "59 s ago", "1 min ago", "2 min ago", "2 h ago", "25 h ago", "2 d ago",
    ]  # fmt: skip
    assert ago_text(0) == ""

"""Workers restarted from the command line: no unit moves, and each task stops once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.task_log import TaskLog
from connectgroup.cli.command import main
from connectgroup.config.connector_file import ConnectorFile
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.supervisor import Supervisor

from ..integration.commands import CONNECTOR, GROUP, CommandGroup
from ..integration.processes import COMMAND, Program, marked, wait, with_mark
from ..volume import ci_only

TASKS = 9


class RestartGroup(CommandGroup):
    """Its units are delayed for workers that restart."""

    def __init__(self, root: Path, *options: str | int) -> None:
        super().__init__(root, "--rebalance-delay-ms", 600_000, *options, tasks=TASKS)

    def all_run(self, workers: int) -> bool:
        used = {member_id for where in self.runs().values() for member_id in where}
        return len(self.runs()) == TASKS and len(used) == workers and "Stable" in self.described()


def test_rolling_restart_of_three_workers_moves_nothing(tmp_path: Path) -> None:
    with RestartGroup(tmp_path) as group, ExitStack() as stack:
        workers = {name: stack.enter_context(group.worker(name)) for name in ("a", "b", "c")}
        wait("all tasks", lambda: group.all_run(3), workers["a"].output)
        before, stops = group.runs(), len(group.stops())
        for name in workers:
            done = group.restart(name)
            assert (done.out, done.err, done.code) == (f"worker {name}: restarted\n", "", 0)
            assert group.runs() == before
        assert len(group.stops()) - stops == TASKS
        explained = "\n".join(group.explained("--moves", "--last", 6))
        assert "->" not in explained, "no move"
        assert explained.count("left to restart | nothing moved") == 3
        assert explained.count(": restarted on ") == TASKS + 1, "the tasks and the connector"


def test_sigusr2_restarts_a_worker_with_a_generated_name_in_the_same_process(tmp_path: Path) -> None:
    with RestartGroup(tmp_path) as group, group.worker("a") as a, group.worker() as b:
        wait("all tasks", lambda: group.all_run(2), b.output)
        before, stops = group.runs(), len(group.stops())
        command = Path(f"/proc/{b.pid}/cmdline").read_bytes()
        for _ in range(2):  # the second is ignored: the restart is under way
            b.signal(signal.SIGUSR2)
        wait("its second process", lambda: sum("joining group" in line for line in list(b.lines)) == 2, b.output)
        wait("its tasks again", lambda: group.all_run(2), b.output)
        assert group.runs() == before
        assert len(group.stops()) - stops == sum("a" not in where for where in before.values())
        assert Path(f"/proc/{b.pid}/cmdline").read_bytes().startswith(command)
        assert b.code is None
        assert a.code is None
        b.signal(signal.SIGHUP)
        assert b.ended() == 0, b.output()
        wait("the tasks of b on a", lambda: set(map(tuple, group.runs().values())) == {("a",)}, a.output)


def test_restart_of_an_unknown_worker_is_rejected_with_one_line(tmp_path: Path) -> None:
    # A paused worker must not expire during the test.
    with RestartGroup(tmp_path, "--session-timeout-ms", 600_000) as group, group.worker("a") as a:
        with group.worker("b") as b:
            wait("all tasks", lambda: group.all_run(2), a.output)
            unknown = group.restart("x")
            assert (unknown.out, unknown.code) == ("", 3)
            assert unknown.err == "connectgroup: worker: got 'x'; allowed: a, b\n"
            # Paused, the worker does not act on the request, so a second request finds the first.
            os.kill(b.pid, signal.SIGSTOP)
            assert group.restart("b", "--no-wait").out == "worker b: restart requested\n"
            assert "worker b (127.0.0.1): RESTARTING" in group.described()
            again = group.restart("b", "--no-wait")
            assert (again.out, again.code) == ("worker b: restart already requested\n", 0)
            late = group.restart("b", "--timeout", 1)
            assert (late.err, late.code) == ("connectgroup: worker b: not back within 1 s\n", 7)
            # Another worker may restart meanwhile: if the paused worker was chosen to compute, the join of the other
            # one replaces it.
            assert group.restart("a").out == "worker a: restarted\n"
            os.kill(b.pid, signal.SIGCONT)
            wait("its tasks again", lambda: "RESTARTING" not in group.described() and group.all_run(2), b.output)
            b.signal(signal.SIGTERM)
            assert b.ended() == 0
        missing = group.restart("b")
        assert (missing.err, missing.code) == ("connectgroup: worker: got 'b'; allowed: a\n", 3)


def test_worker_is_drained_and_a_connector_deleted_by_command(tmp_path: Path) -> None:
    with RestartGroup(tmp_path) as group, group.worker("a") as a:
        with group.worker("b") as b:
            wait("all tasks", lambda: group.all_run(2), a.output)
            unknown = group.run("workers", "drain", "x")
            assert (unknown.err, unknown.code) == ("connectgroup: worker: got 'x'; allowed: a, b\n", 3)
            done = group.run("workers", "drain", "b")
            assert (done.out, done.code) == ("worker b: drained\n", 0)
            assert "worker b: 0 units to move" in done.err
            assert b.ended() == 0, b.output()
            assert set(map(tuple, group.runs().values())) == {("a",)}
        vain = group.run("workers", "drain", "a", "--timeout", 1)
        still = f"worker a: not drained within 1 s: it still has {TASKS + 1} units"
        assert vain.err.splitlines()[-1] == f"connectgroup: {still}; there is no other worker that can run them"
        assert vain.code == 7
        again = group.run("workers", "drain", "a", "--no-wait")
        assert (again.out, again.code) == ("worker a: drain already requested\n", 0)
        as_json = group.run("workers", "drain", "a", "--no-wait", "--json")
        assert json.loads(as_json.out) == {"name": "a", "result": "drain already requested"}
        assert len(group.runs()) == TASKS
        deleted = group.run("connectors", "delete", CONNECTOR, "--wait")
        assert (deleted.out, deleted.code) == (f"connector {CONNECTOR}: deleted\n", 0)
        assert group.runs() == {}, "all tasks have stopped"


async def test_supervised_worker_that_restarts_is_started_again_at_once(tmp_path: Path) -> None:
    """Also by a supervisor that does not restart failed workers; its exit is not reported as a failure."""
    lines: list[str] = []
    supervisor = Supervisor(
        GROUP,
        workers=2,
        scratch=tmp_path / "scratch",
        coordinator=CoordinatorConfig(port=0, scheduled_rebalance_max_delay_ms=60_000),
        connectors=[ConnectorFile(name="naps", config={"connector.class": "idle", "tasks.max": "4"})],
        restart=False,
        worker_log=lambda name, line: lines.append(f"{name} {line}"),
    )
    async with supervisor:
        await settled(supervisor)
        before = {member.member_id: member.assigned for member in (await supervisor.describe()).members}
        supervisor.signal_worker("worker-1", signal.SIGUSR2)
        await until(lambda: sum("worker-1" in line and "joining group" in line for line in list(lines)) == 2)
        await settled(supervisor)
        group = await supervisor.describe()
        assert {member.member_id: member.assigned for member in group.members} == before
        causes = [cause for rebalance in group.rebalances[-2:] for cause in rebalance.causes]
        # Two rebalances, or one, if the replacement joins before the first is complete.
        assert causes[-2:] == ["worker-1 left to restart", "worker-1 came back"]
        replaced = supervisor.workers["worker-1"]
        assert replaced.watch is not None
        supervisor.signal_worker("worker-1", signal.SIGHUP)
        await asyncio.wait_for(replaced.watch, 90)
        assert (replaced.alive, replaced.left, replaced.wanted) == (False, True, False)
        assert {member.member_id for member in (await supervisor.describe()).members} == {"worker-2"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_worker_that_is_stopped_while_its_replacement_warms_up_stays_away(
    tmp_path: Path, number: signal.Signals
) -> None:
    with marked() as mark:
        supervisor = Supervisor(
            GROUP, workers=1, scratch=tmp_path / "scratch", coordinator=CoordinatorConfig(port=0), restart=True
        )
        async with supervisor:
            first = supervisor.workers["worker-1"]
            await until(lambda: first.epoch > 0)
            supervisor.signal_worker("worker-1", signal.SIGUSR2)
            await until(lambda: first.replacement is not None and first.replacement.process is not None)
            supervisor.signal_worker("worker-1", number)
            await until(lambda: not with_mark(mark))
            assert supervisor.workers["worker-1"] is first
            assert (await supervisor.describe()).members == ()


@pytest.mark.parametrize("ignored", [False, True], ids=["", "nohup"])
def test_closed_terminal_ends_up_and_its_replaced_workers_in_order(tmp_path: Path, ignored: bool) -> None:
    with marked() as mark:
        options = ("up", "--workers", 1, "--port", 0, "--data", tmp_path / "data")
        with Program(*options, command=("nohup", *COMMAND) if ignored else COMMAND) as up:
            up.line_with("coordinator at ")
            up.line_with("joining group")
            [worker] = [pid for pid, words in with_mark(mark).items() if "--supervised" in words]
            os.kill(worker, signal.SIGUSR2)
            up.line_with("its replacement joins")
            wait("the end of the first process", lambda: worker not in with_mark(mark), up.output)
            os.killpg(up.pid, signal.SIGHUP)
            if ignored:
                up.signal(signal.SIGTERM)
            assert up.ended() == 0, up.output()


async def test_worker_goes_on_if_its_replacement_cannot_be_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says why, the supervisor and the worker log it, and no task stops; another request tries again."""
    log, lines = TaskLog(tmp_path / "tasks.log"), list[str]()
    config = {"connector.class": "idle", "tasks.max": "4", "log": str(log.path)}
    supervisor = Supervisor(
        GROUP,
        workers=2,
        scratch=tmp_path / "scratch",
        coordinator=CoordinatorConfig(port=0),
        connectors=[ConnectorFile(name="naps", config=config)],
        worker_log=lambda name, line: lines.append(f"{name} {line}"),
    )
    async with supervisor:
        await settled(supervisor)
        log.poll()
        events, process = len(log.events), supervisor.workers["worker-1"].process
        supervisor.environment["PYTHONHOME"] = str(tmp_path)  # Python does not start
        command = ["workers", "restart", "worker-1", "--group", GROUP, "--coordinator", supervisor.server.address]
        for attempt in (1, 2):
            code = await asyncio.to_thread(main, [*command, "--timeout", "60"])
            error = capsys.readouterr().err
            assert code == 7
            why = "its replacement ended with exit code 1 before it had warmed up: "
            assert error.startswith(f"connectgroup: worker worker-1: not restarted, it goes on: {why}")
            assert "encodings" in error, "the error in the log of the replacement"
            found = {member.member_id: member.state for member in (await supervisor.describe()).members}
            assert found["worker-1"] == "STABLE"
            assert caplog.text.count("worker-1 is not restarted, its process goes on: its replacement ended") == attempt
        # The second line of the same text within a second is not repeated in the worker's own log.
        await until(lambda: any("not restarted, this process goes on: its replacement ended" in line for line in lines))
        await settled(supervisor)
        log.poll()
        assert len(log.events) == events
        assert supervisor.workers["worker-1"].process is process


async def test_replacement_takes_over_at_once_if_its_predecessor_dies_meanwhile(tmp_path: Path) -> None:
    supervisor = Supervisor(
        GROUP,
        workers=2,
        scratch=tmp_path / "scratch",
        coordinator=CoordinatorConfig(port=0),
        connectors=[ConnectorFile(name="naps", config={"connector.class": "idle", "tasks.max": "4"})],
        restart=False,
    )
    async with supervisor:
        await settled(supervisor)
        first = supervisor.workers["worker-1"]
        supervisor.signal_worker("worker-1", signal.SIGUSR2)
        await until(lambda: first.replacement is not None and first.replacement.process is not None)
        supervisor.signal_worker("worker-1", signal.SIGKILL)
        await until(lambda: supervisor.workers["worker-1"] is not first)
        await settled(supervisor)
        assert await supervisor.stop_worker("worker-1") == 0


async def test_stop_during_a_replacement_leaves_no_process(tmp_path: Path) -> None:
    with marked():
        supervisor = Supervisor(
            GROUP, workers=2, scratch=tmp_path / "scratch", coordinator=CoordinatorConfig(port=0), restart=False
        )
        async with supervisor:
            first = supervisor.workers["worker-1"]
            await until(lambda: first.epoch > 0)
            supervisor.signal_worker("worker-1", signal.SIGUSR2)
            await until(lambda: first.replacement is not None and first.replacement.process is not None)


@pytest.mark.timeout(300)
@ci_only("starts Spark three times (30 s of a core); the tests above show the order with idle tasks")
async def test_rows_go_on_while_a_replacement_starts_spark(tmp_path: Path) -> None:
    """Two workers with real tasks, one restarted by command: its tasks move to no other worker, and stop only when the
    new Spark has warmed up. Rows are exact. The longest gap is printed: downtime is measured, not judged.
    """
    table = tmp_path / "rows.sqlite"
    config = {
        "connector.class": "pipeline",
        "tasks.max": "2",
        "trigger.ms": "500",
        "source": "datagen",
        "source.rows.per.second": "200",
        "transforms": "mask",
        "transforms.mask.type": "MaskField",
        "transforms.mask.fields": "word",
        "sink": "sqlite",
        "sink.path": str(table),
        "sink.table": "rows",
    }
    supervisor = Supervisor(
        GROUP,
        workers=2,
        scratch=tmp_path / "scratch",
        coordinator=CoordinatorConfig(port=0, scheduled_rebalance_max_delay_ms=60_000),
        connectors=[ConnectorFile(name="numbers", config=config)],
        allowed_paths=[tmp_path],
    )
    async with supervisor:
        await settled(supervisor, units=3)
        before = {member.member_id: member.assigned for member in (await supervisor.describe()).members}
        task, name = next(
            (unit.task, unit.member_id)
            for connector in (await supervisor.describe()).connectors
            for unit in connector.units
            if unit.task >= 0
        )

        def rows() -> int:
            """Rows of the task; a task reads every second slice."""
            with sqlite3.connect(table, timeout=30) as database:
                return int(database.execute("SELECT count(*) FROM rows WHERE id % 8 % 2 = ?", (task,)).fetchone()[0])

        gaps, last_s, last = [0.0], time.monotonic(), 0
        assert await supervisor.admin.restart_worker(GROUP, name)
        first = supervisor.workers[name]
        after = 0
        while after < 5:  # commits of the new process
            await asyncio.sleep(0.05)
            now_s, found = time.monotonic(), rows()
            if found != last:
                gaps.append(now_s - last_s)
                last_s, last = now_s, found
                after += supervisor.workers[name] is not first
        await settled(supervisor, units=3)
        print(f"the longest time without rows of {name}'s task: {max(gaps):.2f} s")
        group = await supervisor.describe()
        assert {member.member_id: member.assigned for member in group.members} == before
        causes = [cause for rebalance in group.rebalances[-2:] for cause in rebalance.causes]
        assert causes[-2:] == [f"{name} left to restart", f"{name} came back"]
        assert group.rebalances[-1].moved == 0
    with sqlite3.connect(table) as database:
        ids = sorted(row[0] for row in database.execute("SELECT id FROM rows"))
    assert len(ids) == len(set(ids))
    by_slice = [[each // 8 for each in ids if each % 8 == number] for number in range(8)]
    assert all(numbers == list(range(len(numbers))) for numbers in by_slice), "no gap"


async def settled(supervisor: Supervisor, units: int = 5) -> None:
    """Wait until two workers run all units of the group."""
    for _ in range(900):
        if await has_settled(supervisor, units):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("not settled")


async def has_settled(supervisor: Supervisor, units: int) -> bool:
    """Whether two workers run all units of the group."""
    group = await supervisor.describe()
    found = [unit for connector in group.connectors for unit in connector.units]
    run = len(found) == units and {unit.state for unit in found} == {"RUNNING"}
    return run and len(group.members) == 2 and group.state == "Stable"


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(900):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("not within 90 s")

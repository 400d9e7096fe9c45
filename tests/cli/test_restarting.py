"""Workers restarted from the command line: no unit moves, and each task stops once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from connectgroup.config.connector_file import ConnectorFile
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.supervisor import Supervisor

from ..integration.commands import CONNECTOR, GROUP, CommandGroup
from ..integration.processes import wait

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
        b.signal(signal.SIGTERM)
        assert b.ended() == 0, b.output()


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
        assert causes == ["worker-1 left to restart", "worker-1 came back"]


async def settled(supervisor: Supervisor) -> None:
    """Wait until two workers run all units of the group."""
    for _ in range(900):
        group = await supervisor.describe()
        units = [unit for connector in group.connectors for unit in connector.units]
        run = len(units) == 5 and {unit.state for unit in units} == {"RUNNING"}
        if run and len(group.members) == 2 and group.state == "Stable":
            return
        await asyncio.sleep(0.1)
    raise AssertionError("not settled")


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(900):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("not within 90 s")

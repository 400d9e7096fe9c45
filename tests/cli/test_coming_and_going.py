"""Workers from the command line that are restarted, killed and drained; and the deletion of a group."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.distribution import make_distribution

from ..integration.commands import CONNECTOR, GROUP, CommandGroup
from ..integration.processes import run_command, wait

SHORT = ("--session-timeout-ms", 3000, "--heartbeat-interval-ms", 500, "--rebalance-delay-ms", 60_000)


def test_restart_of_a_static_worker_moves_nothing(tmp_path: Path) -> None:
    with CommandGroup(tmp_path) as group, group.worker("a") as a:
        with group.worker("b1", "--instance", "b") as first:
            wait("all tasks", lambda: group.is_stable("a", "b1"), a.output)
            before, epoch = group.placement(), group.epoch()
            first.signal(signal.SIGTERM)
            assert first.ended() == 0, first.output()
        described = group.described()
        assert re.search(
            r"^worker b1 \(127\.0\.0\.1\): temporarily left, kept for [\d.]+ s\n  instance b, ", described, re.M
        )
        assert re.search(r"^  naps\S*: WAITING for instance b$", described, re.MULTILINE)
        with group.worker("b2", "--instance", "b") as second:
            wait("its tasks again", lambda: "b2" in group.placement().values() and group.is_stable(), second.output)
            assert group.placement() == {unit: "b2" if worker == "b1" else worker for unit, worker in before.items()}
            assert group.epoch() == epoch
            restarted = group.restart("b")
            assert (restarted.err, restarted.out) == ("", "worker b: restarted\n"), second.output()


def test_the_only_worker_reports_that_it_drains_in_vain(tmp_path: Path) -> None:
    """It runs its tasks until another worker owns them, or until it is stopped."""
    with CommandGroup(tmp_path) as group, group.worker("a") as a:
        wait("all tasks", group.is_stable, a.output)
        a.signal(signal.SIGUSR1)
        a.line_with("draining: waiting for another worker to take naps, naps-0, naps-1, naps-2, naps-3, naps-4")
        assert group.is_stable()
        a.signal(signal.SIGTERM)
        assert a.ended() == 0


def test_an_unschedulable_task_is_described_with_the_next_computation(tmp_path: Path) -> None:
    with CommandGroup(tmp_path) as group, group.worker("a", "--assignor", "weighted") as a:
        wait("all tasks", group.is_stable, a.output)
        group.put(CONNECTOR, 1, **{"assignment.labels": "gpu=true"})
        shown = r"^unschedulable: .*naps.*gpu=true(?s:.*)^not assigned: naps.*; the assignor is run again in \d+ s$"
        # Not at once: the change of the connector and its new task list are computed one after the other.
        wait("a task without a worker", lambda: re.search(shown, group.described(), re.MULTILINE), a.output)
        assert "last assignor error" not in group.described()


def test_units_of_a_killed_worker_are_described_as_delayed(tmp_path: Path) -> None:
    with CommandGroup(tmp_path, *SHORT) as group, group.worker("a") as a:
        with group.worker("b") as b:
            wait("all tasks", lambda: group.is_stable("a", "b"), a.output)
            before = group.placement()
            b.signal(signal.SIGKILL)
            b.ended()
        wait("its removal", lambda: "delayed" in group.described(), a.output)
        assert re.search(r"^delayed [\d.]+ s more for worker b: naps", group.described(), re.MULTILINE)
        shown = group.run("connectors", "status", CONNECTOR).out
        for unit, worker in before.items():
            state = "RUNNING +a " if worker == "a" else "UNASSIGNED +- "
            assert re.search(rf"^{unit} +{state}", shown, re.MULTILINE), shown
        assert re.search(r"^naps-\d: delayed [\d.]+ s more for lost worker b ", shown, re.MULTILINE)
        with group.worker("b") as again:
            wait("its tasks again", lambda: group.placement() == before, again.output)
            assert "delayed" not in group.described()


def test_units_of_a_killed_worker_run_again_before_its_session_ends(tmp_path: Path) -> None:
    """PD-13: no supervisor reports its death; the coordinator, on the same machine, sees that the process has ended."""
    options = ("--session-timeout-ms", 3_600_000, "--rebalance-delay-ms", 0)
    with CommandGroup(tmp_path, *options) as group, group.worker("a") as a, group.worker("b") as b:
        wait("all tasks", lambda: group.is_stable("a", "b"), a.output)
        assert re.search(r"^  naps-0: RUNNING on \w.*, not fenced$", group.described(), re.MULTILINE), group.described()
        b.signal(signal.SIGKILL)
        wait("its tasks on the other", lambda: group.is_stable("a"), a.output)
        assert any("b ended without leaving the group" in line for line in group.explained())


STALLING = """
from connectgroup import Connector, Task
from connectgroup.worker import runner

runner.progress_timeout_s = lambda config: 0.5  # the shortest one that is accepted is half a minute

class Stalls(Connector):
    def task_configs(self, limit):
        return [{}]
    def task(self, config, context):
        return Stalling()

class Stalling(Task):
    reports_polls = True
    def start(self):
        pass
    def stop(self):
        pass
"""


def test_worker_with_a_task_that_stalls_again_and_again_drains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gray failure: the task neither fails nor polls its source. Another worker may be able to run it."""
    make_distribution(tmp_path / "plugins", "gray", "connectgroup.connectors", STALLING, gray=":Stalls")
    path = filter(None, (str(tmp_path / "plugins"), os.environ.get("PYTHONPATH")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    with CommandGroup(tmp_path, tasks=1) as group, group.worker("a") as a:
        file = tmp_path / "gray.json"
        file.write_text(json.dumps({"name": "gray", "config": {"connector.class": "gray"}}))
        added = run_command("connectors", "put", file, "--group", GROUP, "--coordinator", group.address)
        assert added.code == 0, added.err
        wait("its state", lambda: "gray-0: STALLED on a" in group.described(), a.output)
        a.line_with("gray-0 cannot be started again here: this worker drains and starts again")
        wait("the drain", lambda: "draining" in group.described().lower(), a.output)


def test_worker_is_drained_and_the_empty_group_deleted(tmp_path: Path) -> None:
    with CommandGroup(tmp_path, "--moves-per-round", 1) as group:
        with group.worker("a") as a, group.worker("b") as b:
            wait("all tasks", lambda: group.is_stable("a", "b"), a.output)
            refused = group.run("groups", "delete")
            assert refused.code == 4
            assert refused.err == f"connectgroup: group {GROUP} has 2 members; allowed: a group without members\n"
            b.signal(signal.SIGUSR1)
            assert b.ended() == 0, b.output()
            assert set(group.placement().values()) == {"a"}
            assert "left to move in this round" in "\n".join(group.explained())
            a.signal(signal.SIGTERM)
            assert a.ended() == 0
        refused = group.run("groups", "delete")
        assert (refused.code, refused.out) == (2, "")
        assert re.fullmatch(
            rf"connectgroup: group {GROUP} has 1 connector with \d+ tasks: \w+; allowed: --yes, to delete them too\n",
            refused.err,
        )
        done = group.run("groups", "delete", "--yes")
        assert (done.out, done.err) == (f"group {GROUP}: deleted\n", "")
        assert run_command("groups", "list", "--coordinator", group.address).out.split() == [
            "GROUP",
            "TYPE",
            "STATE",
            "EPOCH",
            "MEMBERS",
        ]


NEVER = """
from connectgroup.assign.api import ConnectAssignor

class Never(ConnectAssignor):
    name = "never"

    def assign(self, group):
        raise RuntimeError("assign failed")
"""


def test_configured_server_assignor_computes_when_the_client_assignor_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = tmp_path / "plugins"
    make_distribution(plugins, "never", "connectgroup.assignors", NEVER, never=":Never")
    monkeypatch.setenv("PYTHONPATH", str(plugins))
    with (
        CommandGroup(tmp_path, "--fallback-assignor", "incremental-cooperative") as group,
        group.worker("a", "--assignor", "never") as a,
    ):
        wait("all tasks", group.is_stable, a.output)
        described = group.described()
        assert "assignor: incremental-cooperative" in described
        assert re.search(r"^last assignor error: a: assignor 'never' .*assign failed", described, re.MULTILINE), (
            described
        )

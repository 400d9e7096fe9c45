"""Workers from the command line that are restarted, killed and drained; and the deletion of a group."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.distribution import make_distribution

from ..integration.processes import Program, run_command, wait
from .connector_files import connector_file

GROUP = "sleepers"


class CommandHarness:
    """A coordinator, and workers of one group with five idle tasks."""

    def __init__(self, scratch: Path, *options: str | int) -> None:
        self.scratch = scratch
        self.coordinator = Program("coordinator", "--port", 0, "--data", scratch / "data", *options)

    def __enter__(self) -> CommandHarness:
        self.coordinator.__enter__()
        address = self.coordinator.line_with("coordinator at ").removeprefix("coordinator at ")
        self.at = ("--coordinator", address)
        file = connector_file(self.scratch / "idle.json", **{"connector.class": "idle", "tasks.max": "5"})
        assert run_command("connectors", "put", file, "--group", GROUP, *self.at).code == 0
        return self

    def __exit__(self, *error: object) -> None:
        self.coordinator.__exit__(*error)

    def worker(self, name: str, *options: str) -> Program:
        scratch = self.scratch / "scratch"
        return Program("worker", "--name", name, "--group", GROUP, "--scratch", scratch, *self.at, *options)

    def describe(self) -> str:
        return run_command("groups", "describe", GROUP, *self.at).out

    def placement(self) -> dict[str, str]:
        """The worker of each unit."""
        return dict(re.findall(r"^  (naps\S*): RUNNING on (\S+)", self.describe(), re.MULTILINE))

    def all_run(self) -> bool:
        described = self.describe()
        return "Stable" in described and len(self.placement()) == 6

    def epoch(self) -> str:
        found = re.search(r"epoch (\d+)", self.describe())
        assert found is not None
        return found[1]


SHORT = ("--session-timeout-ms", 3000, "--heartbeat-interval-ms", 500, "--rebalance-delay-ms", 60_000)


def test_restart_of_a_static_worker_moves_nothing(tmp_path: Path) -> None:
    with CommandHarness(tmp_path) as harness, harness.worker("a") as a:
        with harness.worker("b1", "--instance", "b") as first:
            wait("all tasks", lambda: harness.all_run() and set(harness.placement().values()) == {"a", "b1"}, a.output)
            before, epoch = harness.placement(), harness.epoch()
            first.signal(signal.SIGTERM)
            assert first.ended() == 0, first.output()
        described = harness.describe()
        assert re.search(
            r"^worker b1 \(127\.0\.0\.1\): temporarily left, kept for [\d.]+ s\n  instance b, ", described, re.M
        )
        assert re.search(r"^  naps\S*: WAITING for instance b$", described, re.MULTILINE)
        with harness.worker("b2", "--instance", "b") as second:
            wait("its tasks again", lambda: "b2" in harness.placement().values() and harness.all_run(), second.output)
            assert harness.placement() == {unit: "b2" if worker == "b1" else worker for unit, worker in before.items()}
            assert harness.epoch() == epoch
            restarted = run_command("workers", "restart", "b", "--group", GROUP, *harness.at)
            assert (restarted.err, restarted.out) == ("", "worker b: restarted\n"), second.output()


def test_the_only_worker_reports_that_it_drains_in_vain(tmp_path: Path) -> None:
    """It runs its tasks until another worker owns them, or until it is stopped."""
    with CommandHarness(tmp_path) as harness, harness.worker("a") as a:
        wait("all tasks", harness.all_run, a.output)
        a.signal(signal.SIGUSR1)
        a.line_with("draining: waiting for another worker to take naps, naps-0, naps-1, naps-2, naps-3, naps-4")
        assert harness.all_run()
        a.signal(signal.SIGTERM)
        assert a.ended() == 0


def test_an_unschedulable_task_is_described_with_the_next_computation(tmp_path: Path) -> None:
    config = {"connector.class": "idle", "tasks.max": "1", "assignment.labels": "gpu=true"}
    file = connector_file(tmp_path / "gpu.json", **config)
    with CommandHarness(tmp_path) as harness, harness.worker("a", "--assignor", "weighted") as a:
        wait("all tasks", harness.all_run, a.output)
        assert run_command("connectors", "put", file, "--group", GROUP, *harness.at).code == 0
        wait("a task without a worker", lambda: "unschedulable: " in harness.describe(), a.output)
        described = harness.describe()
        assert re.search(r"^unschedulable: .*naps.*gpu=true", described, re.MULTILINE), described
        assert re.search(r"^not assigned: naps.*; the assignor is run again in \d+ s$", described, re.MULTILINE)
        assert "last assignor error" not in described


def test_units_of_a_killed_worker_are_described_as_delayed(tmp_path: Path) -> None:
    with CommandHarness(tmp_path, *SHORT) as harness, harness.worker("a") as a:
        with harness.worker("b") as b:
            wait("all tasks", lambda: harness.all_run() and set(harness.placement().values()) == {"a", "b"}, a.output)
            before = harness.placement()
            b.signal(signal.SIGKILL)
            b.ended()
        wait("the end of its session", lambda: "delayed" in harness.describe(), a.output)
        assert re.search(r"^delayed [\d.]+ s more for worker b: naps", harness.describe(), re.MULTILINE)
        with harness.worker("b") as again:
            wait("its tasks again", lambda: harness.placement() == before, again.output)
        assert "delayed" not in harness.describe()


def test_worker_is_drained_and_the_empty_group_deleted(tmp_path: Path) -> None:
    with CommandHarness(tmp_path, "--moves-per-round", 1) as harness:
        with harness.worker("a") as a, harness.worker("b") as b:
            wait("all tasks", lambda: harness.all_run() and set(harness.placement().values()) == {"a", "b"}, a.output)
            refused = run_command("groups", "delete", GROUP, *harness.at)
            assert refused.code == 2
            assert refused.err == f"connectgroup: group {GROUP} has 2 members; allowed: a group without members\n"
            b.signal(signal.SIGUSR1)
            assert b.ended() == 0, b.output()
            assert set(harness.placement().values()) == {"a"}
            assert "left to move in this round" in run_command("groups", "explain", GROUP, *harness.at).out
            a.signal(signal.SIGTERM)
            assert a.ended() == 0
        done = run_command("groups", "delete", GROUP, *harness.at)
        assert (done.out, done.err) == (f"group {GROUP}: deleted\n", "")
        assert run_command("groups", "list", *harness.at).out.split() == ["GROUP", "STATE", "EPOCH", "WORKERS"]


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
        CommandHarness(tmp_path, "--fallback-assignor", "incremental-cooperative") as harness,
        harness.worker("a", "--assignor", "never") as a,
    ):
        wait("all tasks", harness.all_run, a.output)
        described = harness.describe()
        assert "assignor: incremental-cooperative" in described
        assert re.search(r"^last assignor error: a: assignor 'never' .*assign failed", described, re.MULTILINE), (
            described
        )

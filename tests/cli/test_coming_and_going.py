"""Workers that come and go, from the command line: bounced, silent, drained; and a group that is no more."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.distribution import make_distribution

from ..integration.processes import Program, run_command, wait
from .test_command import connector_file

GROUP = "sleepers"


class CommandHarness:
    """A coordinator, and workers of one group that shares five idle tasks."""

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

    def places(self) -> dict[str, str]:
        """Who runs what."""
        return dict(re.findall(r"^  (naps\S*): RUNNING on (\S+)", self.describe(), re.MULTILINE))

    def all_run(self) -> bool:
        described = self.describe()
        return "Stable" in described and len(self.places()) == 6

    def epoch(self) -> str:
        found = re.search(r"epoch (\d+)", self.describe())
        assert found is not None
        return found[1]


SHORT = ("--session-timeout-ms", 3000, "--heartbeat-interval-ms", 500, "--rebalance-delay-ms", 60_000)


def test_restart_of_a_static_worker_moves_nothing(tmp_path: Path) -> None:
    with CommandHarness(tmp_path) as stage, stage.worker("a") as a:
        with stage.worker("b1", "--instance", "b") as first:
            wait("both at work", lambda: stage.all_run() and set(stage.places().values()) == {"a", "b1"}, a.output)
            before, epoch = stage.places(), stage.epoch()
            first.signal(signal.SIGTERM)
            assert first.ended() == 0, first.output()
        described = stage.describe()
        assert re.search(
            r"^worker b1 \(127\.0\.0\.1\): temporarily left, kept for [\d.]+ s\n  instance b, ", described, re.M
        )
        assert re.search(r"^  naps\S*: WAITING for instance b$", described, re.MULTILINE)
        with stage.worker("b2", "--instance", "b") as second:
            wait("its work again", lambda: "b2" in stage.places().values() and stage.all_run(), second.output)
            assert stage.places() == {unit: "b2" if who == "b1" else who for unit, who in before.items()}
            assert stage.epoch() == epoch
            restarted = run_command("workers", "restart", "b", "--group", GROUP, *stage.at)
            assert (restarted.err, restarted.out) == ("", "worker b: restarted\n"), second.output()


def test_the_only_worker_reports_that_it_drains_in_vain(tmp_path: Path) -> None:
    """It runs its tasks until another worker takes them, or until it is stopped."""
    with CommandHarness(tmp_path) as stage, stage.worker("a") as a:
        wait("at work", stage.all_run, a.output)
        a.signal(signal.SIGUSR1)
        a.line_with("draining: waiting for another worker to take naps, naps-0, naps-1, naps-2, naps-3, naps-4")
        assert stage.all_run()
        a.signal(signal.SIGTERM)
        assert a.ended() == 0


def test_an_unschedulable_task_is_described_with_the_next_computation(tmp_path: Path) -> None:
    config = {"connector.class": "idle", "tasks.max": "1", "assignment.labels": "gpu=true"}
    file = connector_file(tmp_path / "gpu.json", **config)
    with CommandHarness(tmp_path) as stage, stage.worker("a", "--assignor", "weighted") as a:
        wait("at work", stage.all_run, a.output)
        assert run_command("connectors", "put", file, "--group", GROUP, *stage.at).code == 0
        wait("a task without a worker", lambda: "unschedulable: " in stage.describe(), a.output)
        described = stage.describe()
        assert re.search(r"^unschedulable: .*naps.*gpu=true", described, re.MULTILINE), described
        assert re.search(r"^not assigned: naps.*; the assignor is run again in \d+ s$", described, re.MULTILINE)
        assert "last assignor error" not in described


def test_units_of_a_killed_worker_are_described_as_delayed(tmp_path: Path) -> None:
    with CommandHarness(tmp_path, *SHORT) as stage, stage.worker("a") as a:
        with stage.worker("b") as b:
            wait("both at work", lambda: stage.all_run() and set(stage.places().values()) == {"a", "b"}, a.output)
            before = stage.places()
            b.signal(signal.SIGKILL)
            b.ended()
        wait("the end of its session", lambda: "delayed" in stage.describe(), a.output)
        assert re.search(r"^delayed [\d.]+ s more for worker b: naps", stage.describe(), re.MULTILINE)
        with stage.worker("b") as again:
            wait("its work again", lambda: stage.places() == before, again.output)
        assert "delayed" not in stage.describe()


def test_worker_is_drained_and_the_empty_group_deleted(tmp_path: Path) -> None:
    with CommandHarness(tmp_path, "--moves-per-round", 1) as stage:
        with stage.worker("a") as a, stage.worker("b") as b:
            wait("both at work", lambda: stage.all_run() and set(stage.places().values()) == {"a", "b"}, a.output)
            refused = run_command("groups", "delete", GROUP, *stage.at)
            assert refused.code == 2
            assert refused.err == f"connectgroup: group {GROUP} has 2 members; allowed: a group that all have left\n"
            b.signal(signal.SIGUSR1)
            assert b.ended() == 0, b.output()
            assert set(stage.places().values()) == {"a"}
            assert "left to move in this round" in run_command("groups", "explain", GROUP, *stage.at).out
            a.signal(signal.SIGTERM)
            assert a.ended() == 0
        done = run_command("groups", "delete", GROUP, *stage.at)
        assert (done.out, done.err) == (f"group {GROUP}: deleted\n", "")
        assert run_command("groups", "list", *stage.at).out == ""


NEVER = """
from connectgroup.assign.api import ConnectAssignor

class Never(ConnectAssignor):
    name = "never"

    def assign(self, group):
        raise RuntimeError("not today")
"""


def test_configured_server_assignor_computes_when_the_client_assignor_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = tmp_path / "plugins"
    make_distribution(plugins, "never", "connectgroup.assignors", NEVER, never=":Never")
    monkeypatch.setenv("PYTHONPATH", str(plugins))
    with (
        CommandHarness(tmp_path, "--fallback-assignor", "incremental-cooperative") as stage,
        stage.worker("a", "--assignor", "never") as a,
    ):
        wait("all at work", stage.all_run, a.output)
        described = stage.describe()
        assert "assignor: incremental-cooperative" in described
        assert re.search(r"^last assignor error: a: assignor 'never' .*not today", described, re.MULTILINE), described

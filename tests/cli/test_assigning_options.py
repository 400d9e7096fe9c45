"""Who computes the target assignment, as set on the command line: a worker's assignor, or the coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..integration.processes import Program, call_command, run_command, wait
from .connector_files import connector_file

GROUP = "sleepers"


@pytest.mark.parametrize(
    ("options", "computed_by"),
    [(["--no-assignor"], "coordinator"), (["--server-assignor", "balanced"], "coordinator"), ([], "worker-1")],
    ids=" ".join,
)
def test_up_uses_the_configured_assignor(tmp_path: Path, options: list[str], computed_by: str) -> None:
    file = connector_file(tmp_path / "idle.json", **{"connector.class": "idle", "tasks.max": "2"})
    arguments = ("--group", GROUP, "--data", tmp_path / "data", "--connector", file, "--port", 0, "--workers", 1)
    with Program("up", *arguments, *options, "--rebalance-timeout-ms", 5000) as up:
        at = up.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]

        def explained() -> bool:
            return f"computed by {computed_by}" in call_command("groups", "explain", GROUP, "--coordinator", at).out

        wait("a target assignment", explained, up.output)


def test_worker_that_requests_an_unknown_server_assignor_exits(tmp_path: Path) -> None:
    with Program("coordinator", "--port", 0, "--data", tmp_path / "data") as coordinator:
        at = coordinator.line_with("coordinator at ").removeprefix("coordinator at ")
        done = run_command(
            *("worker", "--group", GROUP, "--coordinator", at, "--scratch", tmp_path / "scratch"),
            *("--server-assignor", "nosuch"),
        )
        assert done.code == 2
        assert done.err.endswith("connectgroup: ServerAssignor: got 'nosuch'; allowed: balanced\n")

"""``--rest-port``: the coordinator and a worker serve the REST API in their own process."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from ..integration.processes import Program, wait


def call(url: str, method: str = "GET", body: object = None) -> Any:
    headers = {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, method=method, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.loads(response.read() or "null")


def test_any_worker_and_the_coordinator_serve_the_rest_api(tmp_path: Path) -> None:
    rest = ("--rest-port", 0, "--group", "g")
    with Program("coordinator", "--port", 0, "--data", tmp_path / "data", *rest) as coordinator:
        address = coordinator.line_with("coordinator at ").removeprefix("coordinator at ")
        here = coordinator.line_with("REST at ").removeprefix("REST at ")
        config = {"connector.class": "idle", "tasks.max": "2"}
        call(f"{here}/connectors", "POST", {"name": "naps", "config": config})
        with Program("worker", "--coordinator", address, "--name", "a", *rest, "--scratch", tmp_path / "s") as worker:
            there = worker.line_with("REST at ").partition("REST at ")[2].partition(",")[0]

            def running() -> bool:
                status = call(f"{there}/connectors/naps/status")
                return [each["state"] for each in status["tasks"]] == ["RUNNING", "RUNNING"]

            wait("two tasks", lambda: running() or None, worker.output)
            # What one of them changes, the other shows.
            call(f"{there}/connectors/naps/config", "PUT", {**config, "tasks.max": "1"})
            wait("one task", lambda: len(call(f"{here}/connectors/naps")["tasks"]) == 1 or None, worker.output)
            assert [each["worker_id"] for each in call(f"{here}/groups/g")["workers"]] == ["a"]

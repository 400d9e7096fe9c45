"""``connectgroup rest`` and ``connectgroup up --rest-port``: the REST API of real processes."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.distribution import make_distribution

from ..integration.processes import Program, call_command, wait


def call(url: str, method: str = "GET", body: Any = None) -> Any:
    """Send a request and return the body; fails for a status of 400 or more."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as response:
        content = response.read()
    return json.loads(content) if content else None


WRITER = """
import threading
from connectgroup import Connector, Task


class Writer(Connector):
    def task_configs(self, max_tasks):
        return [{}]

    def task(self, config, context):
        return Writes(context)


class Writes(Task):
    def __init__(self, context):
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.write, args=(context,), daemon=True)

    def write(self, context):
        while not self.stopped.wait(0.05):
            context.progress(10)

    def start(self):
        self.thread.start()

    def stop(self):
        self.stopped.set()
"""


def test_up_shows_the_rows_per_second_of_its_workers(tmp_path: Path) -> None:
    """The live page's stream; the tasks run in processes of their own."""
    make_distribution(tmp_path / "plugins", "writer", "connectgroup.connectors", WRITER, writer=":Writer")
    environment = {"PYTHONPATH": str(tmp_path / "plugins")}
    arguments = ("--data", tmp_path / "data", "--port", 0, "--rest-port", 0, "--workers", 1, "--group", "g")
    with Program("up", *arguments, environment=environment) as up:
        url = up.line_with("REST at ").removeprefix("REST at ")
        assert up.line_with("page at ") == f"page at {url}/page"
        for name, connector_class in (("writes", "writer"), ("naps", "idle")):
            call(f"{url}/connectors", "POST", {"name": name, "config": {"connector.class": connector_class}})
        rates: dict[str, float | None] = {}
        with urllib.request.urlopen(f"{url}/groups/g/events", timeout=30) as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    data = json.loads(line[6:])
                    rows = data.get("set", data)
                    rates |= {key: row["rows_per_s"] for key, row in rows.items() if key.startswith("connector/")}
                if rates.get("connector/writes"):
                    break
        assert rates["connector/naps"] is None
        up.signal(signal.SIGTERM)
        up.ended()


def test_up_serves_the_rest_api_of_its_group(tmp_path: Path) -> None:
    arguments = ("--data", tmp_path / "data", "--port", 0, "--rest-port", 0, "--workers", 1, "--group", "g")
    with Program("up", *arguments) as up:
        url = up.line_with("REST at ").removeprefix("REST at ")
        call(f"{url}/connectors", "POST", {"name": "naps", "config": {"connector.class": "idle", "tasks.max": 2}})

        def states() -> list[str]:
            status = call(f"{url}/connectors/naps/status")
            return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]

        wait("running tasks", lambda: states() == ["RUNNING"] * 3, up.output)
        up.signal(signal.SIGINT)
        assert up.ended() == 0, up.output()
    assert not any("Traceback" in line for line in up.lines), up.output()


def test_rest_serves_a_group_of_a_coordinator_elsewhere(tmp_path: Path) -> None:
    with Program("coordinator", "--port", 0, "--data", tmp_path / "data") as coordinator:
        address = coordinator.line_with("coordinator at ").removeprefix("coordinator at ")
        with Program("rest", "--coordinator", address, "--port", 0, "--group", "g") as rest:
            url = rest.line_with("REST at ").removeprefix("REST at ").partition(",")[0]
            assert call(f"{url}/health")["status"] == "healthy"
            call(f"{url}/connectors/naps/config", "PUT", {"connector.class": "idle"})
            taken = call_command("rest", "--coordinator", address, "--port", url.rpartition(":")[2])
            assert taken.code == 2
            assert taken.err.endswith("cannot listen: Address already in use; another port, or 0 for any: --port\n")
            listed = call_command("connectors", "list", "--json", "--group", "g", "--coordinator", address)
            assert json.loads(listed.out)[0]["name"] == "naps"
            rest.signal(signal.SIGTERM)
            assert rest.ended() == 0, rest.output()


@pytest.mark.parametrize(
    ("arguments", "option"), [(["rest"], "--connector-class"), (["up", "--rest-port", "0"], "--rest-connector-class")]
)
def test_connector_class_that_is_not_installed_is_refused(arguments: list[str], option: str, tmp_path: Path) -> None:
    more = ["--data", str(tmp_path / "data"), "--workers", "1"] if arguments[0] == "up" else []
    done = call_command(*arguments, "--port", "0", option, "zz", *more)
    assert (done.code, done.out) == (2, ""), done
    assert done.err == f"connectgroup: {option}: got 'zz'; allowed: idle, pipeline\n", done


def test_an_address_that_other_machines_reach_is_refused(tmp_path: Path) -> None:
    for arguments in (["rest", "--host", "0.0.0.0"], ["up", "--rest-host", "0.0.0.0", "--rest-port", "0"]):
        option = next(each for each in arguments if each.endswith("host"))
        more = ["--data", str(tmp_path / "data"), "--workers", "1"] if arguments[0] == "up" else []
        done = call_command(*arguments, "--port", "0", *more)
        assert (done.code, done.out) == (2, ""), done
        assert done.err.startswith(f"connectgroup: {option}: got '0.0.0.0'; allowed: a loopback address"), done

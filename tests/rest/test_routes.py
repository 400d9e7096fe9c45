"""Every public route of Kafka Connect 4: status, body, and the message of an error, by Kafka Connect's documentation.

Source: "Kafka Connect", "REST API" of Kafka's documentation; KIP-419 (loggers), KIP-558 (topics), KIP-745 (restart),
KIP-769 (plug-ins), KIP-875 (offsets), KIP-980 (initial state), KIP-477 (PATCH), KIP-1017 (health).
``benchmarks/rest_side_by_side.py`` compares the same routes with a running Kafka Connect.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connectgroup import Worker

from .conftest import Api

IDLE = {"connector.class": "idle", "tasks.max": "2"}
NEW = {"name": "new", "config": IDLE}
SLICE = {"partition": {"slice": "slice-0"}, "offset": {"position": 7}}
INFO = {"name", "config", "tasks", "type"}
STATUS = {"name", "connector", "tasks", "type"}


@dataclass(frozen=True)
class Row:
    """One request and its response.

    Attributes:
        body: of the request, as JSON; null for none.
        found: the body of the response if it is text, a list or null (an empty body); the fields of the object, or of
            the first object of the list, if it is a set; a part of the message of an error.
    """

    method: str
    path: str
    status: int
    found: object
    body: Any = None

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.status}"


ROWS = [
    Row("GET", "/", 200, {"version", "commit", "kafka_cluster_id"}),
    Row("GET", "/health", 200, {"status", "message"}),
    # ---- connectors: c runs with two tasks, p (a pipeline) and s are stopped
    Row("GET", "/connectors", 200, ["c", "p", "s"]),
    Row("GET", "/connectors?expand=status", 200, {"c", "p", "s"}),
    Row("GET", "/connectors?expand=info&expand=status", 200, {"c", "p", "s"}),
    Row("POST", "/connectors", 201, INFO, NEW),
    Row("POST", "/connectors", 201, INFO, {**NEW, "initial_state": "PAUSED"}),
    Row("POST", "/connectors", 400, "initial_state", {**NEW, "initial_state": "OFF"}),
    Row("POST", "/connectors", 409, "Connector c already exists", {**NEW, "name": "c"}),
    Row("POST", "/connectors", 400, "Connector configuration is invalid", {"name": "new", "config": {}}),
    Row("GET", "/connectors/c", 200, INFO),
    Row("GET", "/connectors/x", 404, "Connector x not found"),
    Row("GET", "/connectors/c/config", 200, {"name", *IDLE}),
    Row("GET", "/connectors/x/config", 404, "Connector x not found"),
    Row("PUT", "/connectors/c/config", 200, INFO, {**IDLE, "tasks.max": "3"}),
    Row("PUT", "/connectors/new/config", 201, INFO, IDLE),
    Row("PUT", "/connectors/c/config", 400, "Connector configuration is invalid", {**IDLE, "tasks.max": "0"}),
    Row("PUT", "/connectors/c/config", 400, "name", {**IDLE, "name": "other"}),
    Row("PATCH", "/connectors/c/config", 200, INFO, {"tasks.max": "3", "stop.ms": None}),
    Row("PATCH", "/connectors/x/config", 404, "Connector x not found", {"tasks.max": "3"}),
    Row("GET", "/connectors/c/status", 200, STATUS),
    Row("GET", "/connectors/x/status", 404, "No status found for connector x"),
    Row("GET", "/connectors/c/tasks", 200, {"id", "config"}),
    Row("GET", "/connectors/x/tasks", 404, "Connector x not found"),
    Row("GET", "/connectors/c/tasks/1/status", 200, {"id", "state", "worker_id", "version"}),
    Row("GET", "/connectors/c/tasks/2/status", 404, "No status found for task c-2"),
    Row("GET", "/connectors/c/topics", 200, {"c"}),
    Row("PUT", "/connectors/c/topics/reset", 202, None),
    Row("DELETE", "/connectors/c", 204, None),
    Row("DELETE", "/connectors/x", 404, "Connector x not found"),
    # ---- wanted states and restarts
    Row("PUT", "/connectors/c/pause", 202, None),
    Row("PUT", "/connectors/c/resume", 202, None),
    Row("PUT", "/connectors/c/stop", 204, None),
    Row("PUT", "/connectors/x/pause", 404, "Unknown connector x"),
    Row("PUT", "/connectors/x/resume", 404, "Unknown connector x"),
    Row("PUT", "/connectors/x/stop", 404, "Unknown connector x"),
    Row("POST", "/connectors/c/restart", 204, None),
    Row("POST", "/connectors/c/restart?includeTasks=true&onlyFailed=false", 202, STATUS),
    Row("POST", "/connectors/x/restart", 404, "Unknown connector: x"),
    Row("POST", "/connectors/c/tasks/0/restart", 204, None),
    Row("POST", "/connectors/c/tasks/9/restart", 404, "Unknown task: c-9"),
    # ---- offsets (KIP-875): altered and reset only when the connector is stopped
    Row("GET", "/connectors/p/offsets", 200, {"offsets"}),
    Row("GET", "/connectors/x/offsets", 404, "Connector x not found"),
    Row("PATCH", "/connectors/p/offsets", 200, {"message"}, {"offsets": [SLICE]}),
    Row("PATCH", "/connectors/p/offsets", 400, "Partitions / offsets need to be provided", {"offsets": []}),
    Row("PATCH", "/connectors/c/offsets", 400, "Connectors must be in the STOPPED state", {"offsets": [SLICE]}),
    Row("PATCH", "/connectors/x/offsets", 404, "Connector x not found", {"offsets": [SLICE]}),
    Row("DELETE", "/connectors/p/offsets", 200, {"message"}),
    Row("DELETE", "/connectors/c/offsets", 400, "Connectors must be in the STOPPED state"),
    Row("DELETE", "/connectors/x/offsets", 404, "Connector x not found"),
    # ---- plug-ins (KIP-769)
    Row("GET", "/connector-plugins", 200, {"class", "type", "version"}),
    Row("GET", "/connector-plugins?connectorsOnly=false", 200, {"class", "type", "version"}),
    Row("GET", "/connector-plugins/idle/config", 200, {"name", "type", "required", "default_value", "importance"}),
    Row("GET", "/connector-plugins/x/config", 404, "Unknown plugin x"),
    Row("PUT", "/connector-plugins/idle/config/validate", 200, {"name", "error_count", "groups", "configs"}, IDLE),
    Row("PUT", "/connector-plugins/idle/config/validate", 400, "does not match", {"connector.class": "pipeline"}),
    Row("PUT", "/connector-plugins/x/config/validate", 404, "Failed to find any class that implements Connector", {}),
    # ---- loggers (KIP-419)
    Row("GET", "/admin/loggers", 200, {"root"}),
    Row("GET", "/admin/loggers/root", 200, {"level", "last_modified"}),
    Row("GET", "/admin/loggers/x", 404, "Logger x not found"),
    Row("PUT", "/admin/loggers/connectgroup.rest.events", 200, ["connectgroup.rest.events"], {"level": "INFO"}),
    Row("PUT", "/admin/loggers/connectgroup.rest?scope=cluster", 204, None, {"level": "INFO"}),
    Row("PUT", "/admin/loggers/root", 404, "invalid log level 'LOUD'", {"level": "LOUD"}),
    # ---- what is no route
    Row("GET", "/nosuch", 404, "HTTP 404 Not Found"),
    Row("PUT", "/connectors", 405, "HTTP 405 Method Not Allowed"),
]


@pytest.fixture
async def connectors(api: Api, worker: Worker, tmp_path: Path) -> Api:
    sink = {"sink": "sqlite", "sink.path": str(tmp_path / "out.db"), "sink.table": "t"}
    pipeline = {"connector.class": "pipeline", "source": "datagen", **sink}
    for name, config in (("p", pipeline), ("s", IDLE)):
        await api("POST", "/connectors", 201, {"name": name, "config": config, "initial_state": "STOPPED"})
    await api("POST", "/connectors", 201, {"name": "c", "config": IDLE})
    await api.until(lambda found: [task["state"] for task in found["tasks"]] == ["RUNNING"] * 2, "/connectors/c/status")
    return api


async def differences(api: Api, row: Row) -> str:
    """What the response has that the row does not expect; empty if nothing."""
    response = await api.http.request(row.method, row.path, json=row.body)
    if response.status_code != row.status:
        return f"{row}: got {response.status_code} {response.text}"
    if row.found is None:
        fits = response.content == b"" and "content-type" not in response.headers
        return "" if fits else f"{row}: got {response.headers} {response.text!r}; allowed: an empty body without a type"
    body = json.loads(response.content)
    if row.status >= 400:
        fits = body["error_code"] == row.status and str(row.found) in body["message"].partition("\n")[0]
    elif isinstance(row.found, set):
        fits = row.found <= (body[0] if isinstance(body, list) else body).keys()
    else:
        fits = body == row.found
    return "" if fits else f"{row}: got {response.text}; allowed: {row.found}"


async def test_routes_that_read_respond_as_documented(connectors: Api) -> None:
    """On one server: they change nothing."""
    found = [await differences(connectors, row) for row in ROWS if row.method == "GET"]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.parametrize("row", [row for row in ROWS if row.method != "GET"], ids=str)
async def test_route_that_writes_responds_as_documented(connectors: Api, row: Row) -> None:
    assert not await differences(connectors, row)

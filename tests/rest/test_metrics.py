"""``GET /metrics`` of the REST API: Prometheus' text of a group that runs in this process."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from connectgroup import Worker
from connectgroup.config.rest import RestConfig
from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.embedding import worker_group
from connectgroup.errors import GroupError
from connectgroup.rest import metrics as exposition
from connectgroup.rest.routes import root
from connectgroup.rest.server import RestServer
from connectgroup.telemetry import metrics
from connectgroup.telemetry.metric_table import METRICS
from tests.coordinator.builders import GROUP

from .conftest import PATIENCE_S, Api, rest_server

SECRET = "canary-91ce07"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(autouse=True)
def nothing_is_measured_yet() -> None:
    """Earlier tests may have left workers that never ended."""
    metrics.forget()


async def scrape(http: httpx.AsyncClient) -> Series:
    """All series of one scrape; each is there once."""
    response = await http.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=")
    samples = [sample for family in text_string_to_metric_families(response.text) for sample in family.samples]
    series = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(series) == len(samples)
    return series


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


async def test_scrape_of_a_running_group(api: Api, worker: Worker) -> None:
    await api("POST", "/connectors", 201, {"name": "naps", "config": {"connector.class": "idle", "tasks.max": 2}})
    await api.until(lambda status: len(status["tasks"]) == 2, "/connectors/naps/status")
    await api.until(lambda status: status["tasks"][1]["state"] == "RUNNING", "/connectors/naps/status")
    series = await scrape(api.http)
    member = {"group": GROUP, "worker": "w"}
    assert series[key("kafka_connect_connect_coordinator_assigned_tasks", **member)] == 2
    assert series[key("kafka_connect_worker_rebalance_rebalancing", **member)] == 0
    assert series[key("connectgroup_group_members", group=GROUP)] == 1
    assert series[key("connectgroup_coordinator_append_total")] > 0
    assert series[key("kafka_connect_task_error_last_error_timestamp", **member, connector="naps", task="1")] == 0
    assert series[key("kafka_connect_connector_status", **member, connector="naps", task="0", status="running")] == 1
    assert any(name.startswith("process_") for name, _ in series)


async def test_scrapes_at_the_same_time_share_one_thread(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large group each takes seconds of a processor, on which heartbeats are served, too."""
    expose, share = exposition.exposition, root.Scrapes.of
    all_asked, asked, begun, running, most = threading.Event(), [0], [0], [0], [0]

    async def counted(self: root.Scrapes, *arguments: Any) -> tuple[bytes, str]:
        asked[0] += 1
        if asked[0] == 30:
            asyncio.get_running_loop().call_soon(all_asked.set)
        return await share(self, *arguments)

    def slow(accept: str) -> tuple[bytes, str]:
        begun[0] += 1
        running[0] += 1
        most[0] = max(most[0], running[0])
        all_asked.wait(PATIENCE_S)
        running[0] -= 1
        return expose(accept)

    monkeypatch.setattr(root.Scrapes, "of", counted)
    monkeypatch.setattr(exposition, "exposition", slow)
    # Other words for the same content type are no reason to make it once more.
    kinds = [{"Accept": f"text/plain;q=0.{number}, application/openmetrics-text"} for number in range(30)]
    responses = await asyncio.gather(*(api.http.get("/metrics", headers=kind) for kind in kinds))
    assert {each.status_code for each in responses} == {200}
    assert most == [1]
    assert begun == [2], "those that wait share the next one"


async def test_openmetrics_on_request(api: Api) -> None:
    """For a client that accepts nothing else; a Prometheus server accepts plain text too, and gets all types by it."""
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    response = await api.http.get("/metrics", headers=accept)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")


PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1"
"""The ``Accept`` header of a Prometheus server."""


@pytest.mark.parametrize("accept", ["*/*", PROMETHEUS])
async def test_every_counter_has_its_type_and_its_name_of_the_table(api: Api, worker: Worker, accept: str) -> None:
    """Also Kafka's counters whose names do not end in ``_total``."""
    await api("POST", "/connectors", 201, {"name": "naps", "config": {"connector.class": "idle", "tasks.max": 2}})
    await api.until(lambda status: len(status["tasks"]) == 2, "/connectors/naps/status")
    await api.until(lambda status: status["tasks"][1]["state"] == "RUNNING", "/connectors/naps/status")
    text = (await api.http.get("/metrics", headers={"Accept": accept})).text
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    expected = {metric.exported: "counter" if metric.is_counter else "gauge" for metric in METRICS}
    assert {name: types.get(name) for name in expected} == expected
    assert types["kafka_connect_task_error_total_record_errors"] == "counter"
    assert "untyped" not in types.values()
    # Not by the parser of prometheus_client: it appends ``_total`` to the name of a counter. Prometheus does not.
    sample = 'kafka_connect_task_error_total_record_errors{connector="naps",group="workers",task="1",worker="w"} 0.0'
    assert sample in text.splitlines()


async def test_metrics_need_the_same_password_as_other_routes(api: Api, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ops=pass\n")
    users.chmod(0o600)
    async with rest_server(api.coordinator, users=users) as guarded:
        assert (await guarded.http.get("/metrics")).status_code == 401
        assert (await guarded.http.get("/metrics", auth=("ops", "pass"))).status_code == 200


async def test_server_of_metrics_alone_has_no_other_route() -> None:
    server = RestServer(None, RestConfig(port=0))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url) as http:
            await scrape(http)
            assert (await http.get("/connectors")).status_code == 404
            assert (await http.get("/metrics", headers={"Host": "elsewhere"})).status_code == 403
    finally:
        await server.close()


async def test_missing_package_is_named(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "connectgroup.rest.metrics", raising=False)
    message = await api("GET", "/metrics", 501)
    assert message == "/metrics requires prometheus_client; allowed: pip install 'connectgroup[rest]'"


class Secretive(Connector):
    """A connector with secrets in its configuration, its tasks' configurations and its errors."""

    def task_configs(self, limit: int) -> Sequence[Config]:
        return [{"password": SECRET} for _ in range(limit)]

    def task(self, config: Config, context: TaskContext) -> Task:
        raise RuntimeError(f"cannot log in with {SECRET}")


async def until_failed(http: httpx.AsyncClient) -> str:
    """Wait until both tasks have failed; return the whole scrape."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while (text := (await http.get("/metrics")).text).count('status="failed"') < 2:
        assert asyncio.get_running_loop().time() < deadline, text
        await asyncio.sleep(0.02)
    return text


async def test_secret_of_a_configuration_is_nowhere_in_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Canary: in settings, in tasks' configurations, in errors, and in a class name that is not installed."""
    monkeypatch.setattr("connectgroup.own_plugins.load_connector_class", lambda name: {"vault": Secretive}[name])
    secretive = {"connector.class": "vault", "tasks.max": "2", "password": SECRET, "url": f"db://me:{SECRET}@host"}
    async with worker_group("guarded", workers=1, connectors={"vault": secretive}) as group:
        with pytest.raises(GroupError):
            await group.admin.add_connector("guarded", "other", {"password": SECRET, "assignment.labels": SECRET})
        await group.admin.put_connector("guarded", "unknown", {"connector.class": SECRET})
        server = RestServer(group.admin, RestConfig(port=0, group="guarded"))
        await server.start()
        try:
            async with httpx.AsyncClient(base_url=server.url) as http:
                text = await until_failed(http)
        finally:
            await server.close()
    assert 'connector="vault"' in text
    assert 'connector="unknown"' in text
    assert SECRET not in text

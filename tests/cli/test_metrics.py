"""``--metrics-port``: real processes, scraped over HTTP; the dashboard asks for nothing that they do not export."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ..integration.processes import Program, call_command, wait

DASHBOARD: Final = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"
NAME: Final = re.compile(r"\b(?:kafka_connect|connectgroup|process)_[a-z_]+\b")
SELECTOR: Final = re.compile(r"(\w+)\{([^}]*)\}")


def scrape(url: str) -> dict[str, list[Mapping[str, str]]]:
    """The labels of all series by metric, and each metric without series."""
    with urllib.request.urlopen(url, timeout=30) as response:
        text = response.read().decode()
    declared = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    found: dict[str, list[Mapping[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        # The parser ends the name of every counter with ``_total``; some of Kafka's do not.
        total = f"{family.name}_total"
        found[total if total in declared else family.name] = [each.labels for each in family.samples]
    assert found.keys() == declared
    return found


def tasks_of(url: str) -> float:
    """The number of tasks that a worker runs."""
    with urllib.request.urlopen(url, timeout=30) as response:
        for family in text_string_to_metric_families(response.read().decode()):
            for sample in family.samples:
                if sample.name == "kafka_connect_worker_task_count":
                    return sample.value
    return 0.0


def queries(dashboard: Any) -> Iterator[str]:
    """All queries of the dashboard's panels and variables."""
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]


def test_up_serves_the_metrics_of_coordinator_and_workers_that_the_dashboard_shows(tmp_path: Path) -> None:
    connector = tmp_path / "naps.json"
    connector.write_text(json.dumps({"name": "naps", "config": {"connector.class": "idle", "tasks.max": "3"}}))
    words = ("--data", tmp_path / "data", "--port", 0, "--metrics-port", 0, "--workers", 1, "--group", "g")
    with Program("up", *words, "--connector", connector) as up:
        url = up.line_with("metrics at ").removeprefix("metrics at ")
        worker_url = up.line_with("INFO metrics at ").rpartition(" ")[2]
        wait("three tasks", lambda: tasks_of(worker_url) == 3 or None, up.output)
        exported = scrape(url)
        from_worker = scrape(worker_url)
        up.signal(signal.SIGINT)
        assert up.ended() == 0, up.output()
    assert exported["connectgroup_group_members"] == [{"group": "g"}]
    assert not exported["kafka_connect_worker_task_count"], "the workers are other processes"
    assert from_worker["kafka_connect_worker_task_count"] == [{"group": "g", "worker": "worker-1"}]
    assert not from_worker["connectgroup_group_members"]

    asked = list(queries(json.loads(DASHBOARD.read_text(encoding="utf-8"))))
    assert len(asked) > 40
    for query in asked:
        names = NAME.findall(query)
        assert names, query
        assert set(names) <= exported.keys(), query
        for name, selector in SELECTOR.findall(query):
            # Prometheus adds job and instance. A metric without a value, such as the time of a loss, has no series.
            for labels in (exported[name] + from_worker[name])[:1]:
                assert set(re.findall(r"(\w+)=", selector)) <= {*labels, "job", "instance"}, query


def test_coordinator_and_worker_serve_their_own_metrics(tmp_path: Path) -> None:
    with Program("coordinator", "--port", 0, "--data", tmp_path / "data", "--metrics-port", 0) as coordinator:
        address = coordinator.line_with("coordinator at ").removeprefix("coordinator at ")
        url = coordinator.line_with("metrics at ").removeprefix("metrics at ")
        assert url.startswith("http://127.0.0.1:")
        words = ("--coordinator", address, "--group", "g", "--name", "w", "--scratch", tmp_path / "scratch")
        with Program("worker", *words, "--metrics-port", 0) as worker:
            worker_url = worker.line_with("metrics at ").rpartition(" ")[2]
            wait("a member", lambda: scrape(url)["connectgroup_group_members"] or None, coordinator.output)
            wait("its metrics", lambda: scrape(worker_url)["kafka_connect_worker_rebalance_epoch"] or None)
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0, worker.output()
        coordinator.signal(signal.SIGTERM)
        assert coordinator.ended() == 0, coordinator.output()


def test_port_without_room_for_the_workers_is_rejected(tmp_path: Path) -> None:
    done = call_command("up", "--port", 0, "--data", tmp_path / "data", "--workers", 2, "--metrics-port", 65534)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "connectgroup: --metrics-port: got '65534'; allowed: 0 to 65533 for 2 workers, each at a port of its own\n"
    )


@pytest.mark.parametrize("option", ["--port", "--rest-port"])
def test_port_that_a_worker_would_take_from_the_same_command_is_rejected(option: str, tmp_path: Path) -> None:
    ports = {"--port": 0, option: 9102}
    words = [word for pair in ports.items() for word in pair]
    done = call_command("up", *words, "--data", tmp_path / "data", "--workers", 2, "--metrics-port", 9100)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"connectgroup: --metrics-port: got '9100'; allowed: a port P with {option} 9102 outside P to P+2, those of "
        "this process and its workers\n"
    )


@pytest.mark.parametrize("command", ["coordinator", "up"])
def test_port_in_use_is_named_before_anything_starts(command: str, tmp_path: Path) -> None:
    with Program("coordinator", "--port", 0, "--data", tmp_path / "data", "--metrics-port", 0) as coordinator:
        port = coordinator.line_with("metrics at ").rpartition(":")[2].removesuffix("/metrics")
        done = call_command(command, "--port", 0, "--data", tmp_path / "other", "--metrics-port", port)
        assert (done.code, done.out) == (2, "")
        taken = f"127.0.0.1:{port}: cannot listen: Address already in use"
        assert done.err.endswith(f"{taken}; another port, or 0 for any: --metrics-port\n")

"""Workers of a real Kafka Connect: their group and their sink's consumer group are on the coordinator of the proxy."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.processes import wait
from tests.volume import ci_only

from .conftest import NewGroup

if TYPE_CHECKING:
    from .running import Proxy

RECORDS = 40


def rest(url: str, path: str, body: Any = None) -> Any:
    """GET a path of Kafka Connect's REST API, or POST to it."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=90) as response:
        return json.load(response)


@ci_only("two Javas for half a minute; in a user's run, test_classic_workers sends what Kafka Connect sends")
def test_two_workers_of_kafka_connect_share_tasks_and_lose_no_record(
    new_group: NewGroup, proxy: Proxy, tmp_path: Path
) -> None:
    from benchmarks.kafka_connect import running_connect
    from tests.consumer.broker import Unavailable

    file = tmp_path / "records"
    config = {
        "connector.class": "FileStreamSink", "tasks.max": "2", "file": str(file),
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    }  # fmt: skip

    fast = "session.timeout.ms=6000\nscheduled.rebalance.max.delay.ms=0"

    def owners(url: str) -> list[str]:
        """The workers of the running tasks; none while Kafka Connect has no status, or rebalances."""
        with contextlib.suppress(urllib.error.HTTPError):
            tasks = rest(url, "/connectors/sink/status")["tasks"]
            return [task["worker_id"] for task in tasks if task["state"] == "RUNNING"]
        return []

    try:
        with new_group("connected", partitions=4) as group, running_connect(proxy.bootstrap, more=fast) as first:
            group.write(RECORDS)
            rest(first, "/connectors", {"name": "sink", "config": {**config, "topics": group.name}})
            wait("two tasks", lambda: len(owners(first)) == 2)
            listed = proxy.broker.tool("GroupsCommand", "--bootstrap-server", proxy.bootstrap, "--list")
            assert re.search(r"^connect +Classic +connect\b", listed, re.MULTILINE), listed
            assert re.search(r"^connect-sink +Classic +consumer\b", listed, re.MULTILINE), listed
            wait("all records", lambda: file.exists() and len(file.read_text().split()) >= RECORDS)
            with running_connect(proxy.bootstrap, more=fast):
                wait("a task on each worker", lambda: len(set(owners(first))) == 2)
                group.write(RECORDS)
                wait("the other records", lambda: len(file.read_text().split()) >= 2 * RECORDS)
            wait("both tasks on the worker that is left", lambda: len(on := owners(first)) == 2 and len(set(on)) == 1)
            written = sorted(map(int, file.read_text().split()))
            assert set(written) == set(range(2 * RECORDS)), "every record was written, some maybe twice"
    except Unavailable as missing:
        pytest.skip(str(missing))

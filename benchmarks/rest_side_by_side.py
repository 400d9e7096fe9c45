"""The same requests to a real Kafka Connect and to connectgroup, side by side: status and body of each response.

    python benchmarks/rest_side_by_side.py            all requests; exit code 1 if an unlisted difference was found
    python benchmarks/rest_side_by_side.py --all      print the responses that are the same, too

Both run one connector that has two tasks and moves little or nothing. Compared are the status, the names of the fields
(without ``progress``, which only connectgroup has), and of an error the first sentence of its message. Ids of workers,
versions, classes, their types and settings are replaced by a word. Needs Java and Maven (Kafka 4.3.1 is fetched from
Maven Central once).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Run as a script from any directory: the modules next to this file are imported as benchmarks.NAME.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import httpx

from benchmarks.kafka_connect import running_connect
from tests.consumer.broker import running_broker
from tests.integration.processes import Program

PATIENCE_S = 30.0
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Step:
    """One request.

    Attributes:
        method, path: of the request.
        body: sent as JSON; a string is sent as it is.
        until: the request is repeated until this is true of the body.
        better: why a difference is intended; empty: there must be none.
        headers: instead of a JSON content type.
    """

    method: str
    path: str
    body: Any = None
    until: Callable[[Any], bool] | None = None
    better: str = ""
    headers: dict[str, str] | None = None


def states(connector: str, *tasks: str) -> Callable[[Any], bool]:
    """Whether a status has these states."""
    return lambda body: (
        "connector" in body
        and body["connector"]["state"] == connector
        and [task["state"] for task in body["tasks"]] == list(tasks)
    )


RUNNING = states("RUNNING", "RUNNING", "RUNNING")
STRICT = "a mistake in a request is an error that names it"
TRUTH = "states are those of the tasks themselves, at once"


def steps(config: dict[str, str]) -> Iterator[Step]:
    """All requests, in order."""
    yield Step("GET", "/")
    yield Step("GET", "/health")
    yield Step("GET", "/connectors")
    yield Step("GET", "/connectors/")
    yield Step("GET", "/nosuch")
    yield Step("POST", "/connectors/naps/status")
    yield Step("DELETE", "/connectors")
    # Creation.
    yield Step("POST", "/connectors", "{", better=STRICT)
    yield Step("POST", "/connectors", "[]", better=STRICT)
    yield Step("POST", "/connectors", "{}", headers={"Content-Type": "text/plain"}, better=STRICT)
    yield Step("POST", "/connectors", {"name": "naps", "config": {}}, better=STRICT)
    yield Step("POST", "/connectors", {"name": "naps", "config": {"connector.class": "no.such.Class"}}, better=STRICT)
    yield Step("POST", "/connectors", {"name": "naps", "config": {**config, "tasks.max": "three"}}, better=STRICT)
    yield Step("POST", "/connectors", {"name": "naps", "config": {**config, "tasks.max": "0"}}, better=STRICT)
    yield Step("POST", "/connectors", {"name": "naps", "config": {**config, "name": "other"}}, better=STRICT)
    yield Step("POST", "/connectors", {"name": "naps", "config": config, "initial_state": "ASLEEP"}, better=STRICT)
    yield Step("POST", "/connectors", {"name": "naps", "config": config, "nosuch": 1}, better=STRICT)
    yield Step("POST", "/connectors", {"name": "naps", "config": config})
    yield Step("POST", "/connectors", {"name": "naps", "config": config})
    yield Step("GET", "/connectors")
    yield Step("GET", "/connectors/naps/status", until=RUNNING)
    yield Step("GET", "/connectors/naps", until=lambda body: len(body.get("tasks", ())) == 2)
    yield Step("GET", "/connectors/naps/config")
    yield Step("GET", "/connectors/naps/tasks")
    yield Step("GET", "/connectors/naps/tasks/0/status")
    yield Step("GET", "/connectors/naps/tasks/99/status", better="the message names the task")
    yield Step("GET", "/connectors/naps/tasks/x/status", better="404 in both; the body is JSON here")
    yield Step("GET", "/connectors?expand=status")
    yield Step("GET", "/connectors?expand=info&expand=status")
    yield Step("GET", "/connectors/naps/topics")
    yield Step("PUT", "/connectors/naps/topics/reset")
    yield Step("GET", "/connectors/nosuch/topics", better=STRICT)
    yield Step("PUT", "/connectors/nosuch/topics/reset", better=STRICT)
    # Connectors that do not exist.
    for method, path in (
        ("GET", ""), ("GET", "/config"), ("GET", "/status"), ("GET", "/tasks"), ("GET", "/offsets"),
        ("PUT", "/pause"), ("PUT", "/resume"), ("PUT", "/stop"), ("POST", "/restart"), ("POST", "/tasks/0/restart"),
        ("DELETE", ""),
    ):  # fmt: skip
        yield Step(method, f"/connectors/nosuch{path}")
    # Changes.
    yield Step("PUT", "/connectors/naps/config", config)
    yield Step("PUT", "/connectors/naps/config", {**config, "name": "other"}, better=STRICT)
    yield Step("PATCH", "/connectors/naps/config", {"tasks.max": "1"})
    yield Step("GET", "/connectors/naps/status", until=states("RUNNING", "RUNNING"))
    yield Step("PUT", "/connectors/naps/config", config)
    yield Step("GET", "/connectors/naps/status", until=RUNNING)
    yield Step("PUT", "/connectors/second/config", {**config, "tasks.max": "1"})
    yield Step("DELETE", "/connectors/second")
    # States.
    yield Step("PUT", "/connectors/naps/pause")
    yield Step("GET", "/connectors/naps/status", until=states("PAUSED", "PAUSED", "PAUSED"))
    yield Step("PUT", "/connectors/naps/pause")
    yield Step("PUT", "/connectors/naps/resume")
    yield Step("GET", "/connectors/naps/status", until=RUNNING)
    yield Step("POST", "/connectors/naps/restart")
    yield Step("POST", "/connectors/naps/restart?includeTasks=true")
    yield Step("GET", "/connectors/naps/status", until=RUNNING)
    yield Step("POST", "/connectors/naps/restart?includeTasks=true&onlyFailed=true", better=TRUTH)
    yield Step("POST", "/connectors/naps/restart?includeTasks=perhaps", better=STRICT)
    yield Step("POST", "/connectors/naps/tasks/0/restart")
    yield Step("POST", "/connectors/naps/tasks/99/restart", better="the message names the task")
    yield Step("GET", "/connectors/naps/status", until=RUNNING)
    # Offsets.
    yield Step("PATCH", "/connectors/naps/offsets", {"offsets": [{"partition": {"a": 1}, "offset": {"b": 1}}]})
    yield Step("DELETE", "/connectors/naps/offsets")
    yield Step("PUT", "/connectors/naps/stop")
    yield Step("GET", "/connectors/naps/status", until=states("STOPPED"))
    yield Step("PATCH", "/connectors/naps/offsets", {"offsets": []}, better=STRICT)
    # Plug-ins and loggers.
    yield Step("GET", "/connector-plugins")
    yield Step("PUT", "/connector-plugins/nosuch/config/validate", {"connector.class": "nosuch"}, better=STRICT)
    yield Step("GET", "/connector-plugins/nosuch/config", better=STRICT)
    yield Step("GET", "/admin/loggers/no.such.logger", better="404, as documented")
    yield Step("PUT", "/admin/loggers/root", {"level": "DEAFENING"}, better=STRICT)
    yield Step("PUT", "/admin/loggers/root", {"level": "INFO"}, better="Python's root logger is called root too")
    # The end.
    yield Step("DELETE", "/connectors/naps")
    yield Step("DELETE", "/connectors/naps")
    yield Step("POST", "/connectors", {"name": "later", "config": config, "initial_state": "PAUSED"})
    # In Kafka Connect the tasks of a connector that never ran are not known.
    yield Step("GET", "/connectors/later/status", until=lambda body: "PAUSED" in str(body), better=TRUTH)
    yield Step("DELETE", "/connectors/later")
    yield Step("POST", "/connectors", {"name": "never", "config": config, "initial_state": "STOPPED"})
    yield Step("GET", "/connectors/never/status", until=states("STOPPED"))
    yield Step("DELETE", "/connectors/never")
    yield Step("GET", "/connectors", until=lambda body: body == [])


def answered(client: httpx.Client, step: Step) -> tuple[int, Any]:
    """Send a request, again while a rebalance is going on or until its condition holds; return status and body."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        content = step.body if isinstance(step.body, str) else None if step.body is None else json.dumps(step.body)
        response = client.request(step.method, step.path, content=content, headers=step.headers or JSON)
        try:
            body = response.json() if response.content else None
        except ValueError:
            body = "not JSON"
        # Kafka Connect answers 409 during a rebalance.
        is_busy = response.status_code == 409 and "rebalance" in response.text
        if not is_busy and (step.until is None or step.until(body)):
            return response.status_code, body
        if time.monotonic() > give_up:
            return response.status_code, body
        time.sleep(0.2)


def shape(value: Any, key: str = "") -> Any:
    """A body without what may differ: of an error the first sentence, of other bodies states, names and fields."""
    if isinstance(value, dict):
        if value.keys() == {"error_code", "message"}:
            first = re.split(r"(?<=\.)\s|; |\n| \(", str(value["message"]))[0]
            return f"{value['error_code']}: {first}"
        if key == "config" or "connector.class" in value:
            return "a configuration"
        return {name: shape(each, name) for name, each in sorted(value.items()) if name != "progress"}
    if isinstance(value, list):
        shapes = sorted((shape(each) for each in value), key=str)
        return [shapes[0], "..."] if len(shapes) > 2 else shapes
    if key in ("worker_id", "type", "version", "commit", "kafka_cluster_id", "class", "message", "level"):
        return "a text"
    if key == "last_modified":
        return "a time"
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all requests and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="print the responses that are the same, too")
    options = parser.parse_args(arguments)
    theirs = {"connector.class": "FileStreamSink", "tasks.max": "2", "topics": "naps"}
    ours = {"connector.class": "idle", "tasks.max": "2"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(running_broker())
        connect = stack.enter_context(running_connect(broker.bootstrap))
        group = stack.enter_context(
            Program("up", "--workers", "1", "--rest-port", "0", "--port", "0", "--data", folder / "data", cwd=folder)
        )
        url = group.line_with("REST at ").split()[2].rstrip(",")
        group.line_with("joined")
        clients = [stack.enter_context(httpx.Client(base_url=base, timeout=90)) for base in (connect, url)]
        counts = {"the same": 0, "intended": 0, "unlisted": 0}
        for their_step, our_step in zip(steps(theirs), steps(ours), strict=True):
            left, right = (answered(client, step) for client, step in zip(clients, (their_step, our_step), strict=True))
            before, after = (f"{status} {json.dumps(shape(body))}" for status, body in (left, right))
            verdict = "the same" if before == after else "intended" if our_step.better else "unlisted"
            counts[verdict] += 1
            if options.all or verdict != "the same":
                print(
                    f"{our_step.method} {our_step.path}: {verdict}"
                    + (f" ({our_step.better})" * (verdict == "intended"))
                )
                print(f"    Kafka Connect: {before[:400]}")
                if verdict != "the same":
                    print(f"    connectgroup:  {after[:400]}")
        print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
        return 1 if counts["unlisted"] else 0


if __name__ == "__main__":
    sys.exit(main())

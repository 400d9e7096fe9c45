"""Connectors move from a real Kafka Connect to a group with their offsets, and back: every record once."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from connectgroup.dataplane.java_plugins import PLUGIN_PATH
from tests.cli.live import GROUP, Done, LiveGroup, command, live_group
from tests.volume import ci_only

from .conftest import PATIENCE_S
from .java_plugins import DEBEZIUM, debezium as debezium, debezium_settings, java_plugin_path as java_plugin_path
from .kafka_topics import committed, make_topic, produce

STRING: Final = "org.apache.kafka.connect.storage.StringConverter"
STRINGS: Final = {"key.converter": STRING, "value.converter": STRING}


class Connect:
    """A running Kafka Connect."""

    def __init__(self, url: str, servers: str) -> None:
        self.url, self.servers = url, servers

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request; while the workers rebalance, again."""
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._send(method, path, body)
            except urllib.error.HTTPError as error:
                if b"rebalance" not in error.read() or time.monotonic() > give_up_s:
                    raise
            time.sleep(0.1)

    def _send(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=90) as response:
            text = response.read()
        return json.loads(text) if text else None

    def put(self, name: str, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self("PUT", f"/connectors/{name}/config", {**STRINGS, "tasks.max": "1", **settings})

    def states(self, name: str) -> list[str]:
        """The state of the connector, and of its tasks; none while the workers rebalance."""
        with suppress(urllib.error.HTTPError):
            status = self("GET", f"/connectors/{name}/status")
            return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        return []


@pytest.fixture(scope="module")
def connect(kafka: str, debezium: Path) -> Iterator[Connect]:
    """A worker of Kafka Connect on the broker, with the same plug-ins."""
    from benchmarks.kafka_connect import running_connect
    from tests.consumer.broker import Unavailable

    try:
        with running_connect(kafka, group="moving", more=f"plugin.path={debezium}") as url:
            yield Connect(url, kafka)
    except Unavailable as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"continuous integration has no Kafka Connect: {missing}")
        pytest.skip(str(missing))


@pytest_asyncio.fixture
async def group(tmp_path: Path, spark: None) -> AsyncIterator[LiveGroup]:
    async with live_group(tmp_path, workers={"w": None}, connectors={}, allowed_paths=(tmp_path,)) as group:
        yield group


async def until(condition: Callable[[], bool], what: str = "") -> None:
    """Wait until a condition holds, which blocks."""
    give_up_s = asyncio.get_running_loop().time() + PATIENCE_S
    while not await asyncio.to_thread(condition):
        assert asyncio.get_running_loop().time() < give_up_s, what
        await asyncio.sleep(0.1)


async def connectors(group: LiveGroup, action: str, *arguments: object) -> Done:
    return await command("connectors", action, *arguments, "--group", GROUP, "--coordinator", group.server.address)


def lines(file: Path, numbers: range) -> None:
    with file.open("a") as opened:
        opened.writelines(f"line {n}\n" for n in numbers)


def values(servers: str, topic: str) -> list[str]:
    return [value for _, value in committed(servers, topic)]


def expected(end: int) -> list[str]:
    return [f"line {n}" for n in range(end)]


def reached(servers: str, topic: str, end: int) -> Callable[[], bool]:
    """Whether a topic has this number of records; more is for the assertion after the wait."""
    return lambda: len(values(servers, topic)) >= end


IN_CI = (
    "a Kafka Connect beside Spark; in a user's run, tests/cli/test_moving.py moves from a server that answers like it"
)


@ci_only(IN_CI)
async def test_connectors_in_all_states_move_with_their_offsets_and_back(
    connect: Connect, group: LiveGroup, tmp_path: Path, java_plugin_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGIN_PATH, str(java_plugin_path))
    servers = connect.servers
    names = ("failed", "paused", "running", "stopped")
    for name in names:
        make_topic(servers, f"from-{name}", 1)
        lines(tmp_path / name, range(10))
        # The broken one cannot send a record.
        broken = {"producer_override_max_request_size": "10"} if name == "failed" else {}
        connect.put(name, connector_class="FileStreamSource", file=str(tmp_path / name), topic=f"from-{name}", **broken)
    for name in names[1:]:
        await until(reached(servers, f"from-{name}", 10))
    connect("PUT", "/connectors/paused/pause")
    connect("PUT", "/connectors/stopped/stop")
    expected_states = {
        "failed": ["RUNNING", "FAILED"],
        "paused": ["PAUSED", "PAUSED"],
        "running": ["RUNNING", "RUNNING"],
        "stopped": ["STOPPED"],
    }
    await until(lambda: {name: connect.states(name) for name in names} == expected_states)
    url = ("--bootstrap-servers", servers, connect.url)

    table = await connectors(group, "import", "--dry-run", *url)
    assert [line.split()[:1] + line.split()[-4:] for line in table.lines[1:]] == [
        [name, "as", "it", "is", "org.apache.kafka.connect.file.FileStreamSourceConnector"] for name in names
    ]
    assert "RUNNING, 1 task FAILED" in table.lines[1]
    assert (table.code, (await connectors(group, "list")).lines[1:]) == (0, [])

    # Without a stop: created, and nothing runs twice.
    early = await connectors(group, "import", "--only", "running", *url)
    again = f"next: connectgroup connectors import {connect.url} --only running --stop-originals"
    assert (early.code, early.lines[-1].endswith(again)) == (0, True)
    assert (await connectors(group, "resume", "running")).code == 0
    both = await connectors(group, "import", "--only", "running", "--stop-originals", *url)
    assert (both.code, connect.states("running")) == (1, ["RUNNING", "RUNNING"])
    assert "is here, and not STOPPED: a connector must not run on both sides" in both.lines[-1]
    assert (await connectors(group, "delete", "running", "--wait")).code == 0
    lines(tmp_path / "running", range(10, 15))
    await until(reached(servers, "from-running", 15))

    done = await connectors(group, "import", "--stop-originals", *url)
    assert done.code == 0
    assert [line.partition(":")[2].split()[0] for line in done.lines[5:]] == ["created", "PAUSED", "RUNNING", "created"]
    assert done.lines[5].endswith(
        "the original was RUNNING, 1 task FAILED; next: connectgroup connectors resume failed"
    )
    for name in names:
        assert connect.states(name) == ["STOPPED"]
        lines(tmp_path / name, range(15 if name == "running" else 10, 20))
    for name in names:
        if name != "running":
            await connectors(group, "resume", name)
    for name in names:
        await until(reached(servers, f"from-{name}", 20))
        assert values(servers, f"from-{name}") == expected(20)

    # And back.
    refused = await connectors(group, "export", "--only", "running", connect.url)
    assert (refused.code, "it is RUNNING here: a connector must not run on both sides" in refused.out) == (1, True)
    back = await connectors(group, "export", "--only", "running", "--stop-originals", connect.url)
    assert (back.code, back.out) == (
        0,
        "connector running: RUNNING in Kafka Connect, from the offsets here, where it is STOPPED\n",
    )
    lines(tmp_path / "running", range(20, 25))
    await until(reached(servers, "from-running", 25))
    assert values(servers, "from-running") == expected(25)
    assert "STOPPED" in (await connectors(group, "status", "running")).lines[0]


@ci_only(IN_CI)
async def test_connectors_move_to_pipelines_where_the_offsets_are_exact(
    connect: Connect, group: LiveGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source and a sink of FileStream, without a plug-in."""
    monkeypatch.setenv(PLUGIN_PATH, "")
    servers, file, out = connect.servers, tmp_path / "in" / "lines.txt", tmp_path / "out.txt"
    file.parent.mkdir()
    for topic, partitions in (("native", 1), ("to-file", 3)):
        make_topic(servers, topic, partitions)
    lines(file, range(10))
    produce(servers, "to-file", [(n % 3, None, f"line {n}") for n in range(30)])
    connect.put("native", connector_class="FileStreamSource", file=str(file), topic="native")
    connect.put("sink", connector_class="FileStreamSink", file=str(out), topics="to-file")
    await until(reached(servers, "native", 10))
    await until(lambda: out.exists() and len(out.read_text().splitlines()) == 30)
    only = ("--only", "native", "--only", "sink")
    done = await connectors(
        group, "import", *only, "--stop-originals", "--bootstrap-servers", servers, connect.url, "--json"
    )
    rows = {row["name"]: row for row in json.loads(done.out)}
    assert (done.code, rows["native"]["result"], rows["native"]["detail"]) == (0, "maps to", "source files, sink kafka")
    assert rows["sink"]["detail"] == "source kafka, sink jsonl"
    assert rows["sink"]["here"].startswith("RUNNING here")
    lines(file, range(10, 20))
    produce(servers, "to-file", [(n % 3, None, f"line {n}") for n in range(30, 40)])

    def written() -> list[str]:
        rows = [row for part in (tmp_path / "out").rglob("*.jsonl") for row in part.read_text().splitlines()]
        return sorted([*out.read_text().splitlines(), *(json.loads(row)["value"] for row in rows)])

    await until(reached(servers, "native", 20))
    await until(lambda: len(written()) >= 40)
    assert values(servers, "native") == expected(20)
    assert written() == sorted(expected(40))

    back = await connectors(group, "export", *only, "--stop-originals", connect.url)
    assert back.code == 0, back
    lines(file, range(20, 25))
    produce(servers, "to-file", [(n % 3, None, f"line {n}") for n in range(40, 45)])
    await until(reached(servers, "native", 25))
    await until(lambda: len(written()) >= 45)
    assert values(servers, "native") == expected(25)
    assert written() == sorted(expected(45))


@ci_only(IN_CI)
async def test_sink_connector_in_java_keeps_the_offsets_of_its_consumer_group(
    connect: Connect, group: LiveGroup, tmp_path: Path, java_plugin_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGIN_PATH, str(java_plugin_path))
    servers, out = connect.servers, tmp_path / "out.txt"
    make_topic(servers, "to-java", 3)
    connect.put("java-sink", connector_class="FileStreamSink", file=str(out), topics="to-java")

    def written() -> list[str]:
        return out.read_text().splitlines() if out.exists() else []

    async def writes(numbers: range, *, again: int) -> None:
        """It is at least once: what an interrupted task had not committed, from a number on, may be written again."""
        before = len(written())
        produce(servers, "to-java", [(n % 3, None, f"line {n}") for n in numbers])
        await until(lambda: {f"line {n}" for n in numbers} <= set(written()[before:]))
        assert set(written()[before:]) <= {f"line {n}" for n in range(again, numbers.stop)}

    await writes(range(30), again=0)
    arguments = ("--only", "java-sink", "--stop-originals", connect.url)
    done = await connectors(group, "import", "--bootstrap-servers", servers, *arguments)
    assert done.code == 0, done
    assert "org.apache.kafka.connect.file.FileStreamSinkConnector" in done.out
    assert connect.states("java-sink") == ["STOPPED"]
    await writes(range(30, 60), again=30)
    back = await connectors(group, "export", *arguments)
    assert back.code == 0, back
    await writes(range(60, 90), again=30)


@ci_only(IN_CI)
async def test_debezium_goes_on_at_the_next_change_here_and_there(
    connect: Connect, group: LiveGroup, debezium: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    monkeypatch.setenv(PLUGIN_PATH, str(debezium))
    topic = "moved.public.orders"
    make_topic(connect.servers, topic, 1)

    def insert(numbers: range) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY)")
            connection.execute(f"INSERT INTO orders SELECT generate_series({numbers.start}, {numbers.stop - 1})")

    def changes() -> list[tuple[str, int]]:
        found = [json.loads(value) for value in values(connect.servers, topic) if value]
        return [(each["op"], each["after"]["id"]) for each in found]

    async def sees(wanted: list[tuple[str, int]]) -> None:
        """More than wanted is for the assertion."""
        await until(lambda: len(changes()) >= len(wanted))
        assert changes() == wanted

    insert(range(50))
    json_form = {
        f"{part}.converter{more}": value
        for part in ("key", "value")
        for more, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "false"))
    }
    settings = {**debezium_settings(database, "orders"), "topic.prefix": "moved", **json_form}
    connect("PUT", "/connectors/orders/config", {"connector.class": DEBEZIUM, **settings})
    wanted = [("r", n) for n in range(50)]
    await sees(wanted)
    arguments = ("--only", "orders", "--stop-originals", connect.url)
    for action, end in (("import", 60), ("export", 80)):
        insert(range(end - 10, end))
        wanted += [("c", n) for n in range(end - 10, end)]
        await sees(wanted)
        more = ("--bootstrap-servers", connect.servers) if action == "import" else ()
        done = await connectors(group, action, *more, *arguments)
        assert done.code == 0, done
        insert(range(end, end + 10))
        wanted += [("c", n) for n in range(end, end + 10)]
        await sees(wanted)

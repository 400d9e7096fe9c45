"""``connectors import`` and ``export`` on a server that answers like Kafka Connect: a real one is in
``tests/spark/test_moving.py``."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from connectgroup.config.moving import OffsetsDiffer, Original, Relocation, decide, offsets_here, offsets_there
from connectgroup.connector import PartitionOffset
from connectgroup.dataplane.java_plugins import PLUGIN_PATH

from ..certificates import create_certificates
from .connector_files import with_plugin
from .live import GROUP, Done, LiveGroup, command, live_group

STRING: Final = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}


_BUSY: Final = (
    (
        409,
        {"message": "Cannot complete request momentarily due to stale configuration (a concurrent change)"},
    ),
    (409, {"message": "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"}),
    (500, {"message": "Request cannot be completed because a rebalance is expected"}),
)
"""What Kafka Connect answers while its workers rebalance, or read a configuration."""


class FakeConnect(ThreadingHTTPServer):
    """Attributes, which tests may change: ``connectors`` has config, type, state, tasks and offsets by name;
    ``rebalances`` is the number of requests that get an answer of ``_BUSY``; ``status`` is that of all answers, if
    it is not 0; ``requests`` are those that change something."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.connectors: dict[str, dict[str, Any]] = {}
        self.rebalances = 0
        self.is_old = False
        self.redirect = ""
        self.status = 0
        self.requests: list[str] = []
        self.logins: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, name: str, config: dict[str, str], offsets: list[tuple[Any, Any]], **more: Any) -> None:
        shown = [{"partition": partition, "offset": offset} for partition, offset in offsets]
        self.connectors[name] = {
            "config": {**config, "name": name}, "type": "sink", "state": "RUNNING", "tasks": ["RUNNING"],
            "offsets": shown, **more,
        }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    server: FakeConnect

    def log_message(self, *_: Any) -> None:
        return

    def _answer(self) -> None:
        self._send(*self._answer_to(self.path))

    def _answer_to(self, path: str) -> tuple[int, Any]:
        server, (path, _, query) = self.server, path.partition("?")
        server.logins.add(self.headers["Authorization"])
        length = int(self.headers["Content-Length"] or 0)
        body: Any = json.loads(self.rfile.read(length)) if length else None
        if server.rebalances:
            server.rebalances -= 1
            return _BUSY[server.rebalances % len(_BUSY)]
        if server.status:
            return server.status, {}
        if server.redirect:
            return 302, {}
        if self.command != "GET":
            server.requests.append(f"{self.command} {path}")
        _, _, name, what = (*path.split("/", 3), "", "")[:4]
        if name and name not in server.connectors:
            return 404, {"message": f"Connector {name} not found"}
        each = server.connectors.get(name, {})
        if not name and self.command == "POST":
            server.add(body["name"], body["config"], [], state=body["initial_state"], tasks=[])
            return 201, {}
        if not name:
            listed = {name: {"info": self._info(each), "status": self._status(each)}
                      for name, each in server.connectors.items()}  # fmt: skip
            return 200, listed if "expand" in query and not server.is_old else list(listed)
        if what == "offsets" and server.is_old:
            return 404, {"message": "HTTP 404 Not Found"}
        if what == "offsets" and self.command == "PATCH":
            each["offsets"] = body["offsets"]
        elif what == "stop":
            each["state"], each["tasks"] = "STOPPED", []
            each["offsets"] = each.get("last", each["offsets"])
        elif what == "resume":
            each["state"], each["tasks"] = "RUNNING", ["RUNNING"]
        shapes = {"status": self._status(each), "offsets": {"offsets": each["offsets"]}, "": self._info(each)}
        return 200, shapes.get(what, {})

    do_GET = do_PUT = do_POST = do_PATCH = _answer

    def _info(self, each: dict[str, Any]) -> Any:
        return {key: each[key] for key in ("config", "type") if key in each}

    def _status(self, each: dict[str, Any]) -> Any:
        return {"connector": {"state": each["state"]}, "tasks": [{"state": state} for state in each["tasks"]]}

    def _send(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        if self.server.redirect:
            self.send_header("Location", self.server.redirect)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeConnect]:
    monkeypatch.setenv(PLUGIN_PATH, "")
    with FakeConnect() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest_asyncio.fixture
async def group(tmp_path: Path) -> AsyncIterator[LiveGroup]:
    async with live_group(tmp_path, workers={}, connectors={}) as group:
        yield group


async def connectors(group: LiveGroup, action: str, *arguments: object) -> Done:
    return await command("connectors", action, *arguments, "--group", GROUP, "--coordinator", group.server.address)


def sink(tmp_path: Path, topics: str = "t") -> dict[str, str]:
    file = str(tmp_path / "out.txt")
    return {"connector.class": "FileStreamSink", "file": file, "topics": topics, "tasks.max": "1", **STRING}


def at(topic: str, partition: int, offset: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"kafka_topic": topic, "kafka_partition": partition}, {"kafka_offset": offset}


async def shown(group: LiveGroup, name: str) -> list[tuple[Any, Any]]:
    found = json.loads((await connectors(group, "offsets", name, "--json")).out)["offsets"]
    return [(each["partition"], each["offset"]) for each in found]


async def test_offsets_are_those_that_the_original_committed_when_it_stopped(
    connect: FakeConnect, group: LiveGroup, tmp_path: Path
) -> None:
    last = [{"partition": partition, "offset": offset} for partition, offset in (at("t", 0, 9), at("t", 1, 4))]
    connect.add("out", sink(tmp_path), [at("t", 0, 7)], last=last)
    servers = ("--bootstrap-servers", "kafka:9092", connect.url)
    early = await connectors(group, "import", *servers)
    assert (early.code, connect.requests) == (0, [])
    assert early.lines[-1].startswith(
        "connector out: created STOPPED, with the offsets of now: a connector must not run"
    )
    assert await shown(group, "out") == [at("t", 0, 7)]
    resumed = await connectors(group, "import", "--resume", *servers)
    assert "next: connectgroup connectors import" in resumed.lines[-1]
    assert "STOPPED" in (await connectors(group, "status", "out")).lines[0]
    connect.rebalances = len(_BUSY)
    done = await connectors(group, "import", "--stop-originals", *servers)
    assert done.lines[-1] == "connector out: RUNNING here, from the offsets of the original, which is STOPPED"
    assert (done.code, connect.requests) == (0, ["PUT /connectors/out/stop"])
    assert await shown(group, "out") == [at("t", 0, 9), at("t", 1, 4)]
    again = await connectors(group, "import", *servers)
    assert (again.code, again.lines[-1]) == (0, "connector out: is RUNNING here already, and the original is STOPPED")
    connect.connectors["out"]["state"] = "RUNNING"
    again = await connectors(group, "import", "--stop-originals", *servers)
    assert (again.code, "out is here, and not STOPPED: a connector must not run on both" in again.out) == (1, True)
    assert connect.connectors["out"]["state"] == "RUNNING"
    connect.connectors["out"]["state"] = "STOPPED"
    other = await connectors(group, "import", "--set", "trigger.ms=500", *servers)
    assert (other.code, "out is here with another configuration; allowed: connectgroup conn" in other.out) == (1, True)

    back = await connectors(group, "export", "--only", "out", "--stop-originals", connect.url)
    assert back.out == "connector out: RUNNING in Kafka Connect, from the offsets here, where it is STOPPED\n"
    assert connect.requests[1:] == ["PATCH /connectors/out/offsets", "PUT /connectors/out/resume"]
    both = await connectors(group, "export", "--only", "out", connect.url)
    assert (both.code, "it is not STOPPED in Kafka Connect: a connector must not run on both" in both.out) == (1, True)
    gone = await connectors(group, "export", "--only", "nosuch", connect.url)
    assert (gone.code, gone.out) == (1, "connector nosuch: not exported: connector nosuch does not exist here\n")


async def test_connector_whose_offsets_cannot_be_set_is_not_left_here(
    connect: FakeConnect, group: LiveGroup, tmp_path: Path
) -> None:
    """It would read everything again. The original was stopped: the error says how it runs again."""
    connect.add("out", sink(tmp_path), [at("t", 0, 7)])
    (tmp_path / "out").write_text("a file where the directory of the sink should be")
    done = await connectors(group, "import", "--stop-originals", "--bootstrap-servers", "kafka:9092", connect.url)
    assert done.code == 1
    assert done.lines[-1].startswith("connector out: not imported: ")
    assert done.lines[-1].endswith(f"runs again with: curl -X PUT {connect.url}/connectors/out/resume")
    assert (await connectors(group, "list")).lines[1:] == []


@pytest.mark.parametrize("name", ["a\nb", "x" * 250, " a"])
async def test_original_whose_name_is_not_allowed_here_is_not_stopped(
    connect: FakeConnect, group: LiveGroup, tmp_path: Path, name: str
) -> None:
    connect.add(name, sink(tmp_path), [at("t", 0, 7)])
    done = await connectors(group, "import", "--stop-originals", "--json", "--bootstrap-servers", "k:1", connect.url)
    (row,) = json.loads(done.out)
    assert (done.code, row["result"], connect.requests) == (1, "cannot", [])
    assert row["detail"].startswith("name: got ")


async def test_original_that_is_refused_here_is_not_stopped(
    connect: FakeConnect, group: LiveGroup, tmp_path: Path
) -> None:
    """Such as one for whose tasks the group has no room."""
    connect.add("out", sink(tmp_path), [at("t", 0, 7)])
    more = ("--set", "tasks.max=99999", "--bootstrap-servers", "kafka:9092")
    done = await connectors(group, "import", "--stop-originals", *more, connect.url)
    assert done.lines[-1].startswith("connector out: not imported: ")
    assert (done.code, connect.requests) == (1, [])
    assert (await connectors(group, "list")).lines[1:] == []


async def test_table_says_what_becomes_of_each_connector_and_why(
    connect: FakeConnect, group: LiveGroup, tmp_path: Path
) -> None:
    debezium = {"connector.class": "io.debezium.connector.postgresql.PostgresConnector", "database.dbname": "d"}
    connect.add("changes", debezium, [], type="source", state="PAUSED", tasks=["PAUSED", "FAILED"])
    connect.add("out", sink(tmp_path), [at("t", 0, 7)], tasks=["RUNNING", "FAILED"])
    connect.add("other", {"connector.class": "com.acme.Own", "topics": "t"}, [])
    connect.add("secret", {**sink(tmp_path), "password": "[hidden]"}, [])
    done = await connectors(group, "import", "--dry-run", "--json", "--bootstrap-servers", "kafka:9092", connect.url)
    rows = {row["name"]: row for row in json.loads(done.out)}
    assert (done.code, connect.requests) == (1, [])
    assert (rows["changes"]["result"], rows["changes"]["state"]) == ("needs plug-in", "PAUSED, 1 task FAILED")
    assert rows["changes"]["detail"].startswith(
        f"{debezium['connector.class']}: connectgroup plugins install io.debezium:debezium-connector-postgres:VERSION; "
        "as a pipeline: source.incrementing.column: missing"
    )
    assert (rows["out"]["result"], rows["out"]["offsets"]) == ("maps to", 1)
    assert (rows["other"]["result"], rows["other"]["detail"]) == ("needs plug-in", "com.acme.Own")
    assert rows["secret"]["detail"] == "its configuration has masked values"
    without = await connectors(group, "import", "--dry-run", "--only", "out", connect.url)
    assert "source.bootstrap.servers: missing: bootstrap.servers of Kafka Connect's workers" in without.out


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "Kafka Connect at URL: SSH-2.0-OpenSSH_9.2; allowed: a worker that answers"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1_000, "Kafka Connect at URL: got more than 100 headers; allowed: a"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + DEEP, "URL/connectors?expand=info&expand=status: 200, no JSON; allowed: Kafka"),
    ],
    ids=["no HTTP", "many headers", "deep"],
)
async def test_server_that_is_not_kafka_connect_is_an_error_of_one_line(
    group: LiveGroup, answer: bytes, message: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found = await connectors(group, "import", url)
    assert found.err.startswith(f"connectgroup: {message.replace('URL', url)}")
    assert found.code in (2, 5)
    assert found.err.count("\n") == 1


async def test_errors_of_the_server_are_one_line(connect: FakeConnect, group: LiveGroup, tmp_path: Path) -> None:
    unknown = await connectors(group, "import", "--only", "x", connect.url)
    assert unknown.err == "connectgroup: --only: got 'x'; allowed: nothing: there is no connector\n"
    nowhere = await connectors(group, "import", "http://127.0.0.1:1")
    assert nowhere.err.startswith("connectgroup: Kafka Connect at http://127.0.0.1:1: ")
    assert nowhere.err.count("\n") == 1
    await group.admin.put_connector(GROUP, "mine", {"connector.class": "idle"})
    back = await connectors(group, "export", "--only", "mine", "http://127.0.0.1:1")
    assert (back.code, back.err) == (nowhere.code, nowhere.err), "and not that of a coordinator"
    assert (await connectors(group, "import", "connect:8083")).err.startswith("connectgroup: URL: got 'connect:8083'")
    login = connect.url.replace("http://", "http://ann:a%40b@")
    assert (await connectors(group, "import", "--dry-run", login)).code == 0
    assert f"Basic {base64.b64encode(b'ann:a@b').decode()}" in connect.logins
    connect.redirect = "http://127.0.0.1:1/connectors"
    assert "GET /connectors?expand=info&expand=status: 302" in (await connectors(group, "import", login)).err
    connect.redirect = ""
    connect.status = 401
    denied = await connectors(group, "import", connect.url)
    assert denied.err.endswith(": 401; allowed: http://USER:PASSWORD@HOST of a user who may\n")
    connect.status = 0
    connect.add("odd", {}, [], state={"not": "known"})
    del connect.connectors["odd"]["type"]
    odd = await connectors(group, "import", connect.url)
    assert (odd.code, "the description of connector odd is not Kafka Connect's" in odd.err) == (2, True)
    connect.connectors.clear()
    wrong = await connectors(group, "import", "--set", "a", connect.url)
    assert wrong.err == "connectgroup: --set: got 'a'; allowed: SETTING=VALUE\n"
    connect.is_old = True
    connect.add("out", sink(tmp_path), [])
    assert "Kafka Connect 2.3 or later" in (await connectors(group, "import", connect.url)).err


async def test_tls_needs_a_known_certificate(
    connect: FakeConnect, group: LiveGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_certificates(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    connect.socket = context.wrap_socket(connect.socket, server_side=True)
    url = connect.url.replace("http://", "https://")
    unknown = await connectors(group, "import", "--dry-run", url)
    assert "CERTIFICATE_VERIFY_FAILED" in unknown.err
    assert unknown.err.endswith("of an authority that the system or a file in SSL_CERT_FILE has\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
    connect.add("out", sink(tmp_path), [at("t", 0, 7)])
    known = await connectors(group, "import", "--dry-run", "--bootstrap-servers", "k:1", url)
    assert "out   sink  RUNNING  1" in known.out


async def test_java_class_gets_settings_and_a_note_on_converters_of_workers(
    connect: FakeConnect, group: LiveGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_plugin(tmp_path, monkeypatch, "source.SourceConnector", "acme.Own")
    override = "producer.override.linger.ms"
    connect.add("own", {"connector.class": "Own", "tables": "t", override: "5"}, [], type="source")
    arguments = ("--plugin-path", tmp_path, "--dry-run", "--json", connect.url)
    (row,) = json.loads((await connectors(group, "import", *arguments)).out)
    assert "sink.bootstrap.servers" in row["detail"]
    assert row["detail"].endswith("(--bootstrap-servers)")
    (row,) = json.loads((await connectors(group, "import", "--bootstrap-servers", "k:1", *arguments)).out)
    assert (row["result"], row["detail"]) == ("runs as it is", "acme.Own")
    assert row["notes"][0].startswith(
        "key.converter, value.converter: those of Kafka Connect's workers, which its REST"
    )
    assert row["notes"][1].startswith(f"{override}: has no effect here; see sink.client")
    own = ("--set", "sink=parquet", "--set", f"sink.path={tmp_path}")
    (row,) = json.loads((await connectors(group, "import", *own, *arguments)).out)
    assert (row["result"], len(row["notes"])) == ("runs as it is", 1)


def test_overrides_of_the_consumer_of_a_sink_in_java_count_where_the_source_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_plugin(tmp_path, monkeypatch, "sink.SinkConnector", "acme.Out")
    text = "org.apache.kafka.connect.storage.StringConverter"
    config = {"connector.class": "acme.Out", "topics": "t", "key.converter": text, "value.converter": text}
    override = "consumer.override"

    def moved(**overrides: str) -> Relocation:
        settings = {f"{override}.{name.replace('_', '.')}": value for name, value in overrides.items()}
        original = Original(name="c", config=config | settings, kind="sink", state="STOPPED")
        return decided(original)

    kept = moved(
        auto_offset_reset="latest", isolation_level="read_uncommitted", max_poll_records="5", fetch_min_bytes="9"
    )
    assert (kept.result, len(kept.notes)) == ("as it is", 1)
    assert kept.notes[0].startswith(f"{override}.fetch.min.bytes: has no effect here; see source.client")
    refused = moved(auto_offset_reset="none")
    assert refused.result == "cannot"
    assert refused.why.startswith("source.starting.offsets: got 'none'; allowed: earliest, latest")


# ---------------------------------------------------------------------------------------------- offsets


def source(config: dict[str, str], *offsets: tuple[Any, Any], error: str = "") -> Original:
    found = [PartitionOffset(partition=partition, offset=offset) for partition, offset in offsets]
    return Original(name="c", config=config, kind="source", state="STOPPED", offsets=found, offsets_error=error)


def decided(original: Original) -> Relocation:
    return decide(original, bootstrap_servers="kafka:9092")


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLUGIN_PATH, "")


@pytest.mark.parametrize(
    ("content", "position", "why"),
    [
        (b"a\nb\n", 4, ""),
        (b"a\r\nb\r\nc", 6, ""),
        (b"a\n" * 600_000, 1_200_000, ""),
        ("ä\nb\n".encode(), 4, "has characters of several bytes before its offset 4: FileStream counts characters"),
        ("a\nä\n".encode(), 2, ""),
        (b"a\n", 4, "is shorter than its offset, 4"),
        (b"ab\n", 1, "no line ends at its offset 1"),
        (None, 4, "cannot be read here (No such file or directory), so it cannot be told whether its offset is exact"),
    ],
    ids=["ascii", "windows", "long", "before", "after", "short", "inside", "missing"],
)
def test_offset_of_a_file_is_kept_where_characters_are_bytes(
    tmp_path: Path, content: bytes | None, position: int, why: str
) -> None:
    file = tmp_path / "a[1].txt"
    if content is not None:
        file.write_bytes(content)
    config = {"connector.class": "FileStreamSource", "file": str(file), "topic": "t"}
    original = source(config, ({"filename": str(file)}, {"position": position}))
    move = decided(original)
    if why:
        assert not move.is_possible
        assert f"{file}: {why}" in move.why
        return
    assert move.result == "native"
    (there,) = original.offsets
    (here,) = offsets_here(original, move.configs, "c")
    assert (here.partition, here.offset) == ({"slice": "a[1].txt"}, {"position": position})
    assert list(offsets_there(config, move.configs["c"], [here])) == [there]


def test_offset_of_an_incrementing_column_is_the_next_key_of_each_slice() -> None:
    config = {
        "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector", "connection.url": "jdbc:sqlite:/d.db",
        "mode": "incrementing", "incrementing.column.name": "id", "table.whitelist": "flights,pilots",
        "topic.prefix": "p-",
    }  # fmt: skip
    offsets = (
        ({"protocol": "1", "table": "flights"}, {"incrementing": 41}),
        ({"protocol": "1", "table": "main.pilots"}, {"incrementing": 6}),
    )
    original = source(config, *offsets)
    move = decided(original)
    assert move.result == "native", move.why
    here = {name: offsets_here(original, move.configs, name) for name in move.configs}
    assert {each.offset["position"] for each in here["c-flights"] if each.offset} == {42}
    assert {each.offset["position"] for each in here["c-pilots"] if each.offset} == {7}
    assert here["c-pilots"][0].partition == {"slice": f"keys 0 of {len(here['c-pilots'])}"}
    by_time = source({**config, "mode": "timestamp+incrementing"}, *offsets)
    assert "its offsets have no exact equal in the source sqlite" in decided(by_time).why


def test_offsets_of_topics_go_to_the_pipeline_that_reads_them() -> None:
    config = {
        "connector.class": "io.confluent.connect.s3.S3SinkConnector", "s3.bucket.name": "b", "topics": "a,b",
        "format.class": "io.confluent.connect.s3.format.json.JsonFormat", "value.converter": "a.JsonConverter",
    }  # fmt: skip
    found = [PartitionOffset(partition=each, offset=offset) for each, offset in (at("a", 0, 5), at("b", 1, 6))]
    original = Original(name="c", config=config, kind="sink", state="STOPPED", offsets=found)
    move = decided(original)
    assert move.result == "native", move.why
    assert [offsets_here(original, move.configs, name) for name in ("c-a", "c-b")] == [[found[0]], [found[1]]]


def test_offsets_without_an_equal_are_not_moved() -> None:
    original = source(
        {"connector.class": "FileStreamSource", "file": "/a", "topic": "t"}, error="its offsets cannot be read: 404"
    )
    assert (decided(original).result, decided(original).why) == ("cannot", "its offsets cannot be read: 404")
    pipeline = {"connector.class": "pipeline", "source": "sqlite"}
    with pytest.raises(OffsetsDiffer, match="no exact equal in Kafka Connect's connector"):
        offsets_there({}, pipeline, [PartitionOffset(partition={"slice": "keys 0 of 1"}, offset={"position": 3})])

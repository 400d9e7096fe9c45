"""The REST server itself: root, health, plug-ins, groups, limits."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from http.client import HTTPResponse
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from connectgroup import Worker
from connectgroup.client.admin import Admin
from connectgroup.config.rest import RestConfig
from connectgroup.errors import PortInUse, TransportError
from connectgroup.log.base import LogNotWritable
from connectgroup.rest import bodies, connections
from connectgroup.rest.connections import BEGUN_A_TURN, RestLimits
from connectgroup.rest.guard import Guard
from connectgroup.rest.server import RestServer
from connectgroup.transport.tcp_client import TcpClient
from tests.coordinator.builders import GROUP, FaultyLog, beat, serving

from .conftest import PATIENCE_S, Api, rest_server

IDLE = {"connector.class": "idle"}
EVENTS = f"/groups/{GROUP}/events"


async def test_root_names_version_and_group(api: Api) -> None:
    root = await api("GET", "/", 200)
    assert root.keys() == {"version", "commit", "kafka_cluster_id"}
    assert re.fullmatch(r"4\.\d+\.\d+-connectgroup", root["version"])
    assert root["kafka_cluster_id"] == GROUP


async def test_health_follows_the_coordinator(api: Api) -> None:
    """KIP-1017."""
    assert (await api("GET", "/health", 200))["status"] == "healthy"
    await api.coordinator.close()
    response = await api.http.get("/health")
    assert (response.status_code, response.json()["status"]) == (500, "unhealthy")
    refused = await api.http.get("/connectors")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


async def test_health_and_groups_say_that_the_log_takes_no_writes() -> None:
    """Reads are served meanwhile."""
    log = FaultyLog()
    async with serving(log) as coordinator, rest_server(coordinator) as api:
        await api("PUT", "/connectors/c/config", 201, IDLE)
        log.full = LogNotWritable("no space left")
        await api("DELETE", "/connectors/c", 503)
        response = await api.http.get("/health")
        assert (response.status_code, response.json()["status"]) == (500, "unhealthy")
        assert response.json()["message"].endswith("takes no writes: no space left")
        assert (await api("GET", f"/groups/{GROUP}", 200))["log_error"] == "no space left"
        log.full = None
        await api.until(lambda group: "log_error" not in group, f"/groups/{GROUP}")
        await api("GET", "/health", 200)


async def test_a_coordinator_that_does_not_run_is_503() -> None:
    admin = Admin([TcpClient("127.0.0.1", 1)], retry_for_s=0)
    server = RestServer(admin, RestConfig(port=0))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url) as http:
            response = await http.get("/connectors")
            assert response.status_code == 503
            assert "127.0.0.1:1: cannot connect" in response.json()["message"]
    finally:
        await server.close()
        await admin.close()


async def test_a_server_with_too_many_connections_says_when_to_retry() -> None:
    async with serving() as coordinator, rest_server(coordinator, max_connections_per_address=1) as api:
        await api.admin.add_connector(GROUP, "c", IDLE)
        async with httpx.AsyncClient(base_url=api.server.url) as second, api.http.stream("GET", EVENTS) as busy:
            assert busy.status_code == 200
            refused = await second.get("/connectors")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            message = "too many connections from this address (at most 1); retry after one second"
            assert refused.json() == {"error_code": 503, "message": message}
        # Without a request under way, a connection gives way to others.
        assert await answered(api.http) == ["c"]
        async with httpx.AsyncClient(base_url=api.server.url) as third:
            assert await answered(third) == ["c"]


async def answered(http: httpx.AsyncClient) -> Any:
    """The answer to a request, tried until another connection has been idle for long enough to give way."""
    until = asyncio.get_running_loop().time() + PATIENCE_S
    while (response := await http.get("/connectors")).status_code == 503:
        assert asyncio.get_running_loop().time() < until
        await asyncio.sleep(0.05)
    return response.json()


async def test_a_connection_that_sends_nothing_is_closed() -> None:
    async with serving() as coordinator, rest_server(coordinator, idle_timeout_s=1) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()


REQUEST = b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def status_of(client: socket.socket) -> int:
    """The status of the next response on a connection."""

    def read() -> int:
        response = HTTPResponse(client)
        response.begin()
        response.read()
        return response.status

    return await asyncio.to_thread(read)


async def open_idle(api: Api) -> socket.socket:
    """A connection that has served a request and may be used for another one."""
    client = socket.create_connection(("127.0.0.1", api.server.port), PATIENCE_S)
    client.sendall(REQUEST)
    assert await status_of(client) == 200
    return client


async def test_connection_does_not_give_way_when_its_request_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop has not read it yet. If the server closed now, the client would see that it is reset."""
    admit = connections.HttpConnections.admit

    def admit_late(self: connections.HttpConnections, connection: connections.HttpConnection) -> str:
        client.sendall(REQUEST)
        return admit(self, connection)

    async with serving() as coordinator, rest_server(coordinator, max_connections_per_address=1) as api:
        with await open_idle(api) as client:
            await asyncio.sleep(3 * connections.RECLAIM_IDLE_S)
            monkeypatch.setattr(connections.HttpConnections, "admit", admit_late)
            refused = await api.http.get("/connectors")
            assert refused.status_code == 503
            assert await status_of(client) == 200


@pytest.mark.parametrize("library", ["asyncio", "uvloop"])
def test_idle_connection_is_not_closed_when_its_request_has_arrived(library: str) -> None:
    """Also after the event loop was busy for longer than the time limit: uvloop runs timers before it reads."""
    loops = pytest.importorskip(library)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with serving() as coordinator, rest_server(coordinator, idle_timeout_s=1) as api:
            with await open_idle(api) as client, socket.create_server(("127.0.0.1", 0)) as other:

                def be_busy() -> None:
                    loop.remove_reader(other)
                    time.sleep(1.7)
                    client.sendall(REQUEST)

                loop.add_reader(other, be_busy)
                with socket.create_connection(other.getsockname()):
                    assert await status_of(client) == 200

    loops.run(main())


async def test_body_of_a_rejected_request_is_no_beginning_of_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The response to headers that are rejected precedes the body: the connection is idle after it."""
    monkeypatch.setattr("connectgroup.rest.server.RestLimits", partial(RestLimits, header_deadline_s=0.2))
    head = b"PUT /connectors/c/config HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\n"
    async with serving() as coordinator, rest_server(coordinator) as api:
        with await open_idle(api) as client:
            client.sendall(head + b"Content-Length: 2\r\n\r\n")
            assert await status_of(client) == 403
            client.sendall(b"{}")
            await asyncio.sleep(3 * connections.SWEEP_S)
            client.sendall(REQUEST)
            assert await status_of(client) == 200


async def test_headers_that_do_not_arrive_whole_are_408(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a request that was served, and although bytes go on to arrive."""
    monkeypatch.setattr("connectgroup.rest.server.RestLimits", partial(RestLimits, header_deadline_s=0.5))
    request = b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n"
    async with serving() as coordinator, rest_server(coordinator) as api:
        for before in (b"", request + b"\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
            writer.write(before + request)
            received = asyncio.create_task(reader.read())
            with suppress(ConnectionError):
                while not received.done():
                    writer.write(b"a: b\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.1)
            assert b"HTTP/1.1 408 Request Timeout" in await asyncio.wait_for(received, PATIENCE_S)
            writer.close()


async def test_responses_that_no_client_reads_have_a_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A description of a large group has megabytes, and there may be a thousand connections."""
    limited = partial(RestLimits, max_all_unsent_bytes=150_000)
    monkeypatch.setattr("connectgroup.rest.server.RestLimits", limited)
    async with serving() as coordinator, rest_server(coordinator) as api:
        with ExitStack() as opened:
            for _ in range(4):
                client = opened.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", api.server.port))
                client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
            until = asyncio.get_running_loop().time() + PATIENCE_S
            while "leave too much unread" not in caplog.text:
                assert asyncio.get_running_loop().time() < until
                await asyncio.sleep(0.05)
            await api("GET", "/openapi.json", 200)


async def test_few_requests_begin_in_a_turn_of_the_event_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats of workers are served by the same loop, however many clients of REST send at once."""
    loop, serve = asyncio.get_running_loop(), Guard.__call__
    turns, begun = [0], Counter[int]()

    def count() -> None:
        turns[0] += 1
        ticking[0] = loop.call_soon(count)

    async def counted(*arguments: Any) -> None:
        begun[turns[0]] += 1
        await serve(*arguments)

    monkeypatch.setattr(Guard, "__call__", counted)
    opened = [await asyncio.open_connection("127.0.0.1", api.server.port) for _ in range(100)]
    ticking = [loop.call_soon(count)]
    request = "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for _, writer in opened:
        writer.write("".join(map(request.format, ("", "connectors", "nowhere"))).encode())

    async def responses(reader: asyncio.StreamReader) -> list[bytes]:
        found = []
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            found.append(head[9:12])
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
        return found

    async with asyncio.timeout(PATIENCE_S):
        found = await asyncio.gather(*(responses(reader) for reader, _ in opened))
    ticking[0].cancel()
    for _, writer in opened:
        writer.close()
    assert found == [[b"200", b"200", b"404"]] * 100
    assert begun.total() == 300
    assert max(begun.values()) < 2 * BEGUN_A_TURN, "the end of one turn of the server, and the next"


async def test_a_body_in_chunks_of_a_byte_is_read_whole(api: Api) -> None:
    config = {"connector.class": "idle", "log": "/" + "x" * 5_000}
    body = json.dumps({"name": "c", "config": config}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = b"POST /connectors HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).startswith(b"HTTP/1.1 201 Created")
    writer.close()
    assert await api("GET", "/connectors", 200) == ["c"]


# ---- plug-ins


async def test_connector_classes_are_listed_with_their_settings(api: Api) -> None:
    listed = await api("GET", "/connector-plugins", 200)
    types = {(plugin["class"], plugin["type"]) for plugin in listed}
    assert types >= {
        ("idle", "source"),
        ("pipeline", "source"),
        ("kafka", "source"),
        ("kafka", "sink"),
        ("csv", "sink"),
    }
    assert all(plugin.keys() == {"class", "type", "version"} for plugin in listed)
    definitions = {each["name"]: each for each in await api("GET", "/connector-plugins/pipeline/config", 200)}
    assert definitions["connector.class"]["required"]
    assert definitions["tasks.max"]["default_value"] == "1"
    assert definitions["trigger.ms"]["type"] == "INT"
    assert definitions["trigger.ms"]["default_value"] == "200"
    assert definitions["assignment.labels"]["group"] == "Placement"
    assert "task" not in definitions, "internal"
    assert "nosuch" in await api("GET", "/connector-plugins/nosuch/config", 404)


async def test_source_and_sink_have_the_settings_of_the_pipeline_with_them(api: Api) -> None:
    names = [each["name"] for each in await api("GET", "/connector-plugins/files/config", 200)]
    assert {"source.path", "source.format"} <= {*names}
    assert all(name.startswith("source.") for name in names)
    ends = {each["name"].split(".")[0] for each in await api("GET", "/connector-plugins/kafka/config", 200)}
    assert ends == {"source", "sink"}
    message = await api("PUT", "/connector-plugins/files/config/validate", 400, {"name": "c"})
    assert "/connector-plugins/pipeline/config/validate with source=files" in message


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"source": "kafka", "sink": "sqlite"}, "sink"),
        ({"source": "kafka", "sink": "kafka"}, "source"),
        ({"source": "files", "sink": "kafka"}, "source"),
        ({"source": "files", "sink": "sqlite"}, "source"),
    ],
)
async def test_type_of_a_connector_is_what_it_is_in_kafka_connect(
    api: Api, config: dict[str, str], expected: str
) -> None:
    """A sink connector takes records from Kafka to another system."""
    ends = {
        "source.bootstrap.servers": "127.0.0.1:1",
        "source.topics": "t",
        "source.path": "/in",
        "source.format": "csv",
        "sink.bootstrap.servers": "127.0.0.1:2",
        "sink.topic": "t",
        "sink.path": "/out/x.sqlite",
        "sink.table": "t",
    }
    needed = {("source", "kafka"): ("source.bootstrap.servers", "source.topics")}
    needed |= {("source", "files"): ("source.path", "source.format"), ("sink", "sqlite"): ("sink.path", "sink.table")}
    needed |= {("sink", "kafka"): ("sink.bootstrap.servers", "sink.topic")}
    own = {name: ends[name] for end in config.items() for name in needed[end]}
    body = {"connector.class": "pipeline", **config, **own}
    created = await api("POST", "/connectors", 201, {"name": "c", "config": body})
    status = await api("GET", "/connectors/c/status", 200)
    assert (created["type"], status["type"]) == (expected, expected)


async def test_null_is_an_error_of_its_setting(api: Api) -> None:
    result = await api("PUT", "/connector-plugins/idle/config/validate", 200, {**IDLE, "name": "c", "log": None})
    errors = {each["value"]["name"]: each["value"]["errors"] for each in result["configs"]}
    assert (result["error_count"], errors["log"]) == (1, ["Null value can not be supplied as the configuration value."])
    assert "config.log: got null" in (
        await api("POST", "/connectors", 400, {"name": "c", "config": {**IDLE, "log": None}})
    )
    assert "body.log: got null" in (await api("PUT", "/connectors/c/config", 400, {**IDLE, "log": None}))


async def test_validation_knows_the_paths_of_workers_on_its_machine_only() -> None:
    """Links and mounts of other machines are not known here."""
    log = {**IDLE, "name": "c", "log": "/outside/log"}
    for host, errors in ((socket.gethostname(), 1), ("elsewhere", 0)):
        async with serving() as coordinator, rest_server(coordinator, allowed_paths=None) as api:
            joins = beat("a", host=host, started_ms=1, allowed_paths=("/data",))
            await coordinator.handle(joins, client_host="a")
            result = await api("PUT", "/connector-plugins/idle/config/validate", 200, log)
            assert result["error_count"] == errors


async def test_validation_does_not_wait_long_for_a_coordinator_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectgroup.rest.routes.plugins.LOOK_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        admin = Admin([TcpClient("127.0.0.1", silent.getsockname()[1])])
        server = RestServer(admin, RestConfig(port=0))
        await server.start()
        try:
            async with httpx.AsyncClient(base_url=server.url, timeout=8) as http:  # other requests wait for 10 s
                path = "/connector-plugins/idle/config/validate"
                response = await http.put(path, json={**IDLE, "name": "c", "log": "/outside/log"})
                assert (response.status_code, response.json()["error_count"]) == (200, 0)
        finally:
            await server.close()
            await admin.close()


async def test_options_name_the_methods_of_a_path(api: Api) -> None:
    for path, methods in (("/connectors", "GET, HEAD, OPTIONS, POST"), ("/connectors/c/pause", "OPTIONS, PUT")):
        response = await api.http.options(path)
        assert (response.status_code, response.headers["allow"], response.content) == (200, methods, b"")
    assert (await api.http.options("/nosuch")).status_code == 404


async def test_body_may_be_compressed_and_begin_with_a_byte_order_mark(api: Api) -> None:
    text = json.dumps({"name": "c", "config": IDLE}).encode()
    headers = {"Content-Type": "application/json"}
    bodies = ((b"\xef\xbb\xbf" + text, headers), (gzip.compress(text), {**headers, "Content-Encoding": "gzip"}))
    for body, sent in bodies:
        assert (await api.http.post("/connectors", content=body, headers=sent)).status_code == 201
        await api("DELETE", "/connectors/c", 204)


@pytest.mark.parametrize(
    ("body", "encoding", "status", "message"),
    [
        (gzip.compress(b" " * (2 << 20)), "gzip", 413, "got more than 1048576 bytes"),
        (gzip.compress(b"{}")[:-5], "gzip", 400, "gzip that is not whole"),
        (gzip.compress(b"{}") + b"more", "gzip", 400, "or more than one stream"),
        (b"{}", "gzip", 400, "is not valid gzip"),
        (b"{}", "br", 415, "Content-Encoding: got 'br'; allowed: gzip, identity"),
    ],
    ids=["too long", "cut", "more behind it", "plain", "brotli"],
)
async def test_damaged_or_long_compressed_body_is_an_error(
    api: Api, body: bytes, encoding: str, status: int, message: str
) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    response = await api.http.post("/connectors", content=body, headers=headers)
    assert response.status_code == status
    assert message in response.json()["message"]


async def test_transforms_and_predicates_are_listed_on_request_with_their_settings(api: Api) -> None:
    listed = await api("GET", "/connector-plugins?connectorsOnly=FALSE", 200)
    types = {plugin["class"]: plugin["type"] for plugin in listed}
    assert (types["pipeline"], types["MaskField"], types["TopicNameMatches"]) == (
        *("source", "transformation", "predicate"),
    )
    assert all(plugin["version"] for plugin in listed)
    assert await api("GET", "/connector-plugins?connectorsOnly=true", 200) == await api(
        "GET", "/connector-plugins", 200
    )
    for name in ("MaskField", "org.apache.kafka.connect.transforms.MaskField$Value"):
        definitions = {each["name"]: each for each in await api("GET", f"/connector-plugins/{name}/config", 200)}
        assert definitions["fields"]["required"]
        assert not definitions["replacement"]["required"]
    [pattern] = await api("GET", "/connector-plugins/TopicNameMatches/config", 200)
    assert pattern["name"] == "pattern"
    assert "connectorsOnly" in await api("GET", "/connector-plugins?connectorsOnly=1", 400)
    assert "keys are" in await api("GET", "/connector-plugins/MaskField$Key/config", 404)


async def test_validation_reports_all_errors_by_setting(api: Api) -> None:
    config = {
        "name": "c",
        "source": "files",
        "source.format": "xml",
        "sink": "sqlite",
        "trigger.ms": "1",
        "sink.tabel": "t",
        "sink.password": "canary",
    }
    result = await api("PUT", "/connector-plugins/pipeline/config/validate", 200, config)
    found = {each["value"]["name"]: each for each in result["configs"]}
    errors = {name: each["value"]["errors"] for name, each in found.items() if each["value"]["errors"]}
    assert set(errors) >= {"source.path", "source.format", "trigger.ms", "sink.path", "sink.table"}
    assert result["error_count"] == sum(map(len, errors.values()))
    assert errors["source.path"] == ['Missing required configuration "source.path" which has no default value.']
    assert errors["trigger.ms"] == ["trigger.ms: got '1'; allowed: 10 to 3600000"]
    assert found["trigger.ms"]["value"]["value"] == "1"
    assert found["connector.class"]["value"]["value"] == "pipeline"
    assert "canary" not in json.dumps(result)


async def test_a_valid_configuration_has_no_errors_and_an_unknown_setting_has_one(api: Api) -> None:
    result = await api("PUT", "/connector-plugins/idle/config/validate", 200, {**IDLE, "name": "c"})
    assert (result["name"], result["error_count"]) == ("idle", 0)
    assert {"Common", "Placement"} <= set(result["groups"])
    result = await api(
        "PUT", "/connector-plugins/idle/config/validate", 200, {**IDLE, "name": "c", "assignment.wieght": "1"}
    )
    (unknown,) = [each for each in result["configs"] if each["definition"] is None]
    assert unknown["value"]["name"] == "assignment.wieght"
    assert "did you mean" in unknown["value"]["errors"][0]


async def test_validation_is_for_the_named_class_only(api: Api) -> None:
    message = await api("PUT", "/connector-plugins/idle/config/validate", 400, {"connector.class": "pipeline"})
    assert message == "Included connector type pipeline does not match request type idle"
    await api("PUT", "/connector-plugins/os.system/config/validate", 404, {"name": "c"})


@pytest.mark.parametrize("name", ["Idle", "IdleConnector"])
async def test_connector_class_is_found_by_its_simple_name(api: Api, name: str) -> None:
    result = await api(
        "PUT", f"/connector-plugins/{name}/config/validate", 200, {"name": "c", "connector.class": "idle"}
    )
    assert result["error_count"] == 0
    assert await api("GET", f"/connector-plugins/{name}/config", 200)
    await api("POST", "/connectors", 201, {"name": "c", "config": {"connector.class": name}})
    assert (await api("GET", "/connectors/c/config", 200))["connector.class"] == name
    status = await api("GET", "/connectors/c/status", 200)
    assert status["connector"]["version"] == (await api("GET", "/connector-plugins", 200))[0]["version"]
    message = await api("POST", "/connectors", 400, {"name": "d", "config": {"connector.class": f"{name}r"}})
    assert "connector.class: got" in message


async def test_messages_name_the_fields_of_rest(api: Api) -> None:
    assert (await api("DELETE", "/connectors/%2E%2E", 400)).startswith("name: got '..'; allowed: ")
    message = await api("POST", "/connectors", 400, {"name": "a\nb", "config": IDLE})
    assert message.startswith("name: got 'a\\nb'; allowed: ")


# ---- groups


async def test_groups_are_listed_described_and_deleted(api: Api) -> None:
    assert await api("GET", "/groups", 200) == []
    await api("POST", "/connectors", 201, {"name": "c", "config": IDLE})
    await api.coordinator.handle(beat("a"), client_host="h")
    (listed,) = await api("GET", "/groups", 200)
    assert listed.keys() == {"group_id", "state", "group_epoch", "workers"}
    assert (listed["group_id"], listed["group_epoch"]) == (GROUP, 2)
    described = await api("GET", f"/groups/{GROUP}", 200)
    assert [worker["worker_id"] for worker in described["workers"]] == ["a"]
    assert described["connectors"][0]["units"][0]["task"] == -1
    rebalances = await api("GET", f"/groups/{GROUP}/rebalances", 200)
    assert [rebalance["causes"] for rebalance in rebalances] == [["connector c added"], ["a joined"]]
    assert rebalances[1].keys() >= {
        "computed_by",
        "assignor",
        "moves",
        "max_downtime_ms",
        "max_handover_ms",
        "delayed",
        "finished_ms",
    }
    assert "has 1 members" in await api("DELETE", f"/groups/{GROUP}", 409)
    await api("POST", f"/groups/{GROUP}/workers/a/restart", 202)
    assert "got 'b'" in await api("POST", f"/groups/{GROUP}/workers/b/restart", 404)
    await api.coordinator.handle(beat("a", -1), client_host="h")
    await api("DELETE", f"/groups/{GROUP}", 204)
    for method, path in (("GET", ""), ("GET", "/rebalances"), ("DELETE", ""), ("POST", "/workers/a/restart")):
        assert await api(method, f"/groups/{GROUP}{path}", 404) == f"no such group '{GROUP}'; groups here: none"


async def test_a_worker_restarts_on_request(api: Api, worker: Worker) -> None:
    await api("POST", "/connectors", 201, {"name": "c", "config": IDLE})
    await api.until(lambda group: group["state"] == "Stable" and group["workers"], f"/groups/{GROUP}")
    await api("POST", f"/groups/{GROUP}/workers/w/restart", 202)
    await api.until(lambda group: not group["workers"], f"/groups/{GROUP}")


# ---- routes


async def test_unknown_paths_and_methods_have_connects_error_body(api: Api) -> None:
    assert await api("GET", "/nosuch", 404) == "HTTP 404 Not Found"
    assert await api("GET", "/connectors/c/nosuch", 404) == "HTTP 404 Not Found"
    assert await api("POST", "/connectors/c/status", 405) == "HTTP 405 Method Not Allowed"
    assert (await api.http.delete("/connectors")).headers["allow"] == "GET, HEAD, POST"
    assert (await api.http.post("/connectors/c/config")).headers["allow"] == "GET, HEAD, PATCH, PUT"


async def test_a_trailing_slash_makes_no_difference(api: Api) -> None:
    assert await api("GET", "/connectors/", 200) == []
    await api("PUT", "/connectors/c/config/", 201, IDLE)


@pytest.mark.parametrize("name", ["a/b", "/", "a/", "a%2Fb", "100 %", "what?", "é#1", "a;b=c", "a+b"])
async def test_every_character_of_a_name_can_be_sent_encoded(api: Api, name: str) -> None:
    path = f"/connectors/{quote(name, safe='')}"
    created = await api.http.post("/connectors", json={"name": name, "config": IDLE})
    assert (created.status_code, created.headers["Location"]) == (201, path)
    assert (await api("GET", f"{path}/status", 200))["name"] == name
    assert (await api("PUT", f"{path}/config", 200, IDLE))["name"] == name
    await api("DELETE", f"{path}/", 204)
    assert await api("GET", "/connectors", 200) == []


# ---- bodies


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "got nothing"),
        (b"{", "is not valid JSON"),
        (b"[]", "got an array; allowed: a JSON object"),
        (b'"x"', "got a string"),
        (b"3", "got a number"),
        (b"null", "got null"),
        (b'{"a": NaN}', "got NaN"),
        (b'{"a": -Infinity}', "got -Infinity"),
        (b'{"a": 1e999}', "got the number 1e999"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b'{"a": 1, "a": 2}', "got the key 'a' twice"),
        (b'{"a": "\\ud800"}', "not valid Unicode"),
        (b'{"a": "\xff"}', "not valid Unicode"),
        (b"[" * 100_000, "levels of nesting; allowed: at most 64"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "got 65 levels of nesting"),
        (json.dumps({str(number): "" for number in range(1001)}).encode(), "got 1001 settings; allowed: at most 1000"),
    ],
    ids=lambda value: value[:20] if isinstance(value, bytes) else None,
)
async def test_a_body_that_is_not_a_json_object_is_400(api: Api, body: bytes, message: str) -> None:
    """Reliability, section 4, REST 19."""
    headers = {"Content-Type": "application/json"}
    assert message in await api("PUT", "/connectors/c/config", 400, content=body, headers=headers)


async def test_brackets_in_strings_are_no_nesting(api: Api) -> None:
    assert bodies.parse_json(b'{"a": "[[[[' + b"[" * 100 + b'\\"[["}') == {"a": "[" * 104 + '"[['}


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/xml"])
async def test_a_body_of_another_content_type_is_415(api: Api, content_type: str) -> None:
    headers = {"Content-Type": content_type}
    message = await api("POST", "/connectors", 415, content=b"{}", headers=headers)
    assert message == f"Content-Type: got {content_type!r}; allowed: application/json"


async def test_content_type_parameters_are_accepted(api: Api) -> None:
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    await api("PUT", "/connectors/c/config", 201, content=json.dumps(IDLE).encode(), headers=headers)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_above_the_limit_is_413(api: Api, chunked: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:  # an iterator makes httpx send the body in chunks, without a length
        for _ in range(40):
            yield b" " * 65_536

    content = chunks() if chunked else b" " * (bodies.MAX_BODY_BYTES + 1)
    message = await api("POST", "/connectors", 413, content=content, headers={"Content-Type": "application/json"})
    assert message == "body: got more than 1048576 bytes; allowed: at most 1048576"


# ---- the port


async def test_a_port_in_use_is_named(api: Api) -> None:
    with pytest.raises(TransportError, match=f"127.0.0.1:{api.server.port}: cannot listen: Address already in use"):
        await RestServer(api.admin, RestConfig(port=api.server.port)).start()


async def test_a_port_that_another_process_takes_meanwhile_is_named(
    api: Api, port_taken_late: Callable[[], AbstractContextManager[None]]
) -> None:
    """It was an ``OSError`` without the port."""
    server = RestServer(api.admin, RestConfig(port=0))
    with port_taken_late(), pytest.raises(PortInUse, match="cannot listen: Address already in use"):
        await server.start()


async def test_malformed_http_is_rejected_and_the_server_goes_on(api: Api) -> None:
    """Reliability, section 4, REST 24."""
    long = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"
    both = b"POST /connectors HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n{}"
    for garbage in (b"\0\1\2\r\n\r\n", b"GET /\r\n\r\n", long, both):
        reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
        writer.write(garbage)
        answer = await asyncio.wait_for(reader.readline(), 10)
        assert answer.split(b" ")[1:2] in ([], [b"400"], [b"431"])
        writer.close()
    assert await api("GET", "/connectors", 200) == []

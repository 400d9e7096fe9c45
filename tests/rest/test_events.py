"""``GET /groups/{group}/events`` and ``GET /page``: what the server sends to the live page."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from starlette.types import Message

from connectgroup import LocalClient
from connectgroup.client.admin import Admin
from connectgroup.errors import ConnectGroupError
from connectgroup.protocol.messages.assignment import DelayedUnits
from connectgroup.protocol.messages.common import grouped
from connectgroup.protocol.messages.describe import (
    DescribedConnector,
    DescribedGroup,
    DescribedMember,
    DescribedUnit,
    Move,
    Rebalance,
)
from connectgroup.protocol.records.connect import TargetState
from connectgroup.protocol.units import Unit
from connectgroup.rest import events, page_table as tables, views
from connectgroup.rest.page_table import Table, page_table
from connectgroup.rest.routes import groups
from connectgroup.rest.routes.page import FILES
from connectgroup.telemetry.metric_table import METRICS
from connectgroup.telemetry.metrics import MetricSource, Value, register, unregister
from tests.coordinator.builders import GROUP, beat, serving

from .conftest import PATIENCE_S, Api, rest_server

EVENTS = f"/groups/{GROUP}/events"
IDLE = {"connector.class": "idle"}


class Event(NamedTuple):
    """One server-sent event."""

    name: str
    data: Any
    id: str


class Client:
    """A client of one stream; keeps the table as the page does."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.table: Table = {}
        self.last_id = ""
        self._events = self._read()

    async def _read(self) -> AsyncIterator[Event]:
        fields: dict[str, str] = {}
        async for line in self.response.aiter_lines():
            name, _, value = line.partition(": ")
            if name:
                fields[name] = value
            elif "data" in fields:
                yield Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
                fields = {}

    async def next(self) -> Event:
        async with asyncio.timeout(PATIENCE_S):
            received = await anext(self._events)
        self.last_id = received.id or self.last_id
        if received.name == "table":
            self.table = received.data
        if received.name == "change":
            self.table |= received.data["set"]
            for key in received.data["remove"]:
                del self.table[key]
        return received

    async def until(self, key: str, value: object) -> None:
        """Read until a row has this value."""
        while self.table.get(key) != value:
            await self.next()


@asynccontextmanager
async def stream(api: Api, path: str = EVENTS, last_id: str = "", **more: Any) -> AsyncIterator[Client]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    async with api.http.stream("GET", path, headers=headers, **more) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
        yield Client(response)


async def add(api: Api, name: str) -> None:
    await api.admin.add_connector(GROUP, name, IDLE)


# ---- the stream


async def test_a_stream_has_the_table_and_then_changes_only(api: Api) -> None:
    await add(api, "c")
    async with stream(api) as client:
        hello = await client.next()
        assert hello.name == "hello"
        assert hello.data.keys() == {"may_change", "may_create", "has_connector_routes", "now_ms"}
        assert (hello.data["may_change"], hello.data["has_connector_routes"]) == (True, True)
        first = await client.next()
        assert first.name == "table"
        assert first.data["connector/c"]["target_state"] == "RUNNING"
        assert first.data["unit/-1/c"] == ["UNASSIGNED", "", -1]
        await api.coordinator.handle(beat("a"), client_host="test")
        change = await client.next()
        assert change.name == "change"
        assert "worker/a" in change.data["set"]
        assert change.id != first.id
        await api.admin.delete_connector(GROUP, "c")
        while "connector/c" in client.table:
            await client.next()
        assert not [key for key in client.table if key.startswith("unit/")]


async def test_a_stream_resumes_with_the_changes_since_the_last_event(api: Api) -> None:
    await add(api, "c")
    async with stream(api) as client:
        await client.next()
        await client.next()
    async with stream(api) as other:  # keeps the feed up to date
        await other.next()
        await api.admin.set_state(GROUP, "c", TargetState.STOPPED)
        while other.table.get("connector/c", {}).get("target_state") != "STOPPED":
            await other.next()
        async with stream(api, last_id=client.last_id) as resumed:
            assert (await resumed.next()).name == "hello"
            change = await resumed.next()
            assert change.name == "change"
            assert change.data["set"]["connector/c"]["target_state"] == "STOPPED"


@pytest.mark.parametrize("last_id", ["nosuch.1", "x", "1", ".", pytest.param("x" * 3_000, id="long")])
async def test_an_unknown_last_event_id_gets_the_whole_table(api: Api, last_id: str) -> None:
    await add(api, "c")
    async with stream(api, last_id=last_id) as client:
        await client.next()
        assert (await client.next()).name == "table"


async def test_a_stream_that_is_far_behind_gets_the_whole_table(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.01)
    await add(api, "c")
    async with stream(api) as client:
        await client.next()
        first = await client.next()
    async with stream(api) as other:
        for number in range(events.MAX_CHANGES + 1):
            await add(api, f"d{number}")
            while f"connector/d{number}" not in other.table:
                await other.next()
        async with stream(api, last_id=first.id) as resumed:
            await resumed.next()
            assert (await resumed.next()).name == "table"


async def test_the_error_of_a_coordinator_that_does_not_respond_is_a_row() -> None:
    async with serving() as coordinator, Admin([LocalClient(coordinator)], retry_for_s=0) as admin:
        await admin.add_connector(GROUP, "c", IDLE)
        feed = events.Feed(admin, GROUP, events.rows_per_second)
        await feed.update()
        stream = feed.stream("")
        assert b"event: hello" in await anext(stream)
        assert b'"connector/c"' in await anext(stream)
        await coordinator.close()
        with pytest.raises(ConnectGroupError):
            await feed.update()
        change = json.loads((await anext(stream)).partition(b"data: ")[2])
        assert change["set"].keys() == {"error"}
        assert change["remove"] == [], "the last known rows stay"


async def test_a_group_that_does_not_exist_has_no_stream(api: Api) -> None:
    assert "no such group" in await api("GET", "/groups/nosuch/events", 404)


async def test_a_deleted_group_leaves_an_error_only(api: Api) -> None:
    await add(api, "c")
    async with stream(api) as client:
        await client.next()
        await client.next()
        await api.admin.delete_group(GROUP)
        while client.table.keys() != {"error"}:
            await client.next()


async def test_head_returns_at_once(api: Api) -> None:
    assert (await api.http.head(EVENTS)).status_code == 200


async def test_the_number_of_streams_is_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_STREAMS", 1)
    await add(api, "c")
    async with stream(api) as client:
        await client.next()
        assert "allowed: at most 1" in await api("GET", EVENTS, 503)
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while (await api.http.head(EVENTS)).status_code != 200:
        assert asyncio.get_running_loop().time() < deadline


async def test_streams_of_one_user_leave_some_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_STREAMS_OF_USER", 2)
    users = tmp_path / "users"
    users.write_text("ann=a\nbob=b\n")
    users.chmod(0o600)
    async with serving() as coordinator, rest_server(coordinator, users=users) as api, AsyncExitStack() as held:
        ann, bob = httpx.BasicAuth("ann", "a"), httpx.BasicAuth("bob", "b")
        assert (await api.http.post("/connectors", json={"name": "c", "config": IDLE}, auth=ann)).status_code == 201
        for _ in range(2):
            opened = await held.enter_async_context(stream(api, auth=ann))
            await opened.next()
        refused = await asyncio.wait_for(api.http.get(EVENTS, auth=ann), PATIENCE_S)
        assert (refused.status_code, refused.json()["message"]) == (
            503,
            "events: got more than 2 streams of ann; allowed: at most 2",
        )
        await (await held.enter_async_context(stream(api, auth=bob))).next()


async def test_streams_that_begin_together_share_one_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a thousand requests for the events of a large group kept the event loop busy, though 64 may have them."""
    described = 0
    async with serving() as coordinator, Admin.local(coordinator) as admin:
        await admin.add_connector(GROUP, "c", IDLE)
        describe = admin.describe

        async def counted(group: str) -> DescribedGroup:
            nonlocal described
            described += 1
            return await describe(group)

        monkeypatch.setattr(admin, "describe", counted)
        feeds = events.Feeds(admin)
        opened = await asyncio.gather(*(feeds.stream(GROUP, "") for _ in range(50)))
        assert described < 10, "the first one, and those that the feed has made since"
        for one in opened:
            assert b"hello" in await anext(one)
        await feeds.close()
        for one in opened:
            await one.aclose()
        with pytest.raises(ConnectGroupError):
            await asyncio.gather(*(events.Feeds(admin).stream("nowhere", "") for _ in range(5)))


async def test_feeds_describe_their_groups_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each description keeps the event loop busy: together they would delay heartbeats."""
    monkeypatch.setattr(events, "POLL_S", 0.0)
    groups = [f"group-{number}" for number in range(5)]
    at_once, now = list[int](), set[str]()
    has_asked = asyncio.Event()
    async with serving() as coordinator, Admin.local(coordinator) as admin:
        for group in groups:
            await admin.add_connector(group, "c", IDLE)
        describe = admin.describe

        async def counted(group: str) -> DescribedGroup:
            now.add(group)
            at_once.append(len(now))
            if len(at_once) >= 30:
                has_asked.set()
            try:
                await asyncio.sleep(0)
                return await describe(group)
            finally:
                now.discard(group)

        feeds = events.Feeds(admin)
        async with AsyncExitStack() as opened:
            opened.push_async_callback(feeds.close)
            for group in groups:
                one = await feeds.stream(group, "")
                opened.push_async_callback(one.aclose)
                await anext(one)
            monkeypatch.setattr(admin, "describe", counted)
            await asyncio.wait_for(has_asked.wait(), PATIENCE_S)
    assert max(at_once) == 1


async def test_a_quiet_stream_sends_keep_alives(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.01)
    await add(api, "c")
    async with api.http.stream("GET", EVENTS) as response, asyncio.timeout(PATIENCE_S):
        async for line in response.aiter_lines():
            if line == ": keep-alive":
                break


async def test_the_end_of_the_server_ends_the_streams(api: Api) -> None:
    await add(api, "c")
    async with stream(api) as client:
        await client.next()
        await api.server.close()
        with suppress(StopAsyncIteration):
            while True:
                await client.next()


async def test_a_client_that_reads_nothing_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's ``send`` waits while the client's buffers are full."""
    monkeypatch.setattr(groups, "SEND_TIMEOUT_S", 0.01)
    closed = asyncio.Event()

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b": keep-alive\n\n"
        finally:
            closed.set()

    started: list[Message] = []

    async def send(message: Message) -> None:
        started.append(message)
        if len(started) > 1:
            await never()

    async with asyncio.timeout(PATIENCE_S):
        await groups.EventStream(endless(), {})({"type": "http"}, never, send)
        await closed.wait()


# ---- users


async def test_the_page_is_public_and_its_data_is_not(tmp_path: Path) -> None:
    files = {"users": "admin=a", "readers": "guest=g"}
    for name, line in files.items():
        (tmp_path / name).write_text(line)
        (tmp_path / name).chmod(0o600)
    config = {name: tmp_path / name for name in files}
    async with serving() as coordinator, rest_server(coordinator, **config) as api:
        await add(api, "c")
        for path in ("/page", "/page/", *(f"/page/{name}" for name in FILES)):
            response = await api.http.get(path)
            assert response.status_code == 200, path
            assert "script-src 'self'" in response.headers["content-security-policy"]
        assert (await api.http.post("/page")).status_code == 401
        for path in (EVENTS, "/", "/groups", "/page/nosuch.js", "/page/../connectors", "/page/%2e%2e/connectors"):
            assert (await api.http.get(path)).status_code == 401, path
        foreign = await api.http.get("/page", headers={"Host": "example.org"})
        assert foreign.status_code == 403
        for user, may_change in (("admin", True), ("guest", False)):
            async with stream(api, auth=(user, user[0])) as client:
                assert (await client.next()).data["may_change"] is may_change


async def test_the_page_needs_no_other_host_and_has_no_inline_code(api: Api) -> None:
    html = (await api.http.get("/page")).text
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", html)
    texts = [html] + [(await api.http.get(f"/page/{name}")).text for name in FILES]
    hosts = {host for text in texts for host in re.findall(r"https?://[\w./]+", text)}
    assert hosts == {"http://www.w3.org/2000/svg"}, "the name of a namespace, which is never requested"
    imported = {name for text in texts for name in re.findall(r'from "\./([\w.]+)"', text)}
    assert imported <= set(FILES)
    assert set(re.findall(r'"/page/([\w.]+)"', html)) <= set(FILES)


# ---- the table


def group_of(tasks: int, **more: Any) -> DescribedGroup:
    units = tuple(DescribedUnit(task=task, member_id="a", owner_epoch=3, state="RUNNING") for task in range(-1, tasks))
    connector = DescribedConnector(connector="c", target_state="RUNNING", units=units)
    members = (DescribedMember(member_id="a", state="STABLE"),)
    return DescribedGroup(**{"group_id": "g", "connectors": (connector,), "members": members, **more})


def table_of(group: DescribedGroup, now_ms: int = 0, before: Table | None = None) -> Table:
    return page_table(group, now_ms, before=before or {}, rates={})


def test_a_change_of_one_of_5000_tasks_is_small() -> None:
    before = group_of(5_000)
    connector = before.connectors[0]
    failed = DescribedUnit(task=7, member_id="a", owner_epoch=3, state="FAILED", message="no such table")
    units = (*connector.units[:8], failed, *connector.units[9:])
    after = group_of(5_000, connectors=(DescribedConnector(connector="c", target_state="RUNNING", units=units),))
    change = events.changes(table_of(before), table_of(after))
    assert change["set"].keys() == {"unit/7/c", "failure/7/c", "connector/c", "worker/a"}
    assert change["set"]["failure/7/c"] == "no such table"
    assert len(json.dumps(change)) < 1_000
    assert len(json.dumps(table_of(after))) < 400_000


def test_a_group_with_very_many_units_is_sent_as_numbers() -> None:
    table = table_of(group_of(tables.MAX_UNITS + 1))
    assert not [key for key in table if key.startswith("unit/")]
    assert table["connector/c"]["tasks"] == {"RUNNING": tables.MAX_UNITS + 1}
    assert table["worker/a"]["units"] == {"RUNNING": tables.MAX_UNITS + 2}


def test_messages_and_moves_are_bounded() -> None:
    units = tuple(DescribedUnit(task=task, state="FAILED", message="x" * 5_000) for task in range(-1, 500))
    connector = DescribedConnector(connector="c", units=units)
    moves = tuple(Move(connector="c", task=task, source="a", target="b") for task in range(100))
    table = table_of(group_of(0, connectors=(connector,), rebalances=(Rebalance(epoch=4, moves=moves),)))
    failures = [row for key, row in table.items() if key.startswith("failure/")]
    assert len(failures) == tables.MAX_FAILURES
    assert {len(message) for message in failures} == {tables.MAX_MESSAGE}
    assert len(table["rebalance/4"]["moves"]) == tables.MAX_MOVES


def test_rows_per_second_are_those_of_tasks_that_have_written_rows() -> None:
    class Running(MetricSource):
        scope = "task"

        def __init__(self, group: str, connector: str, task: int, rows: int, rate: float) -> None:
            self.labels = {"group": group, "worker": "a", "connector": connector, "task": str(task)}
            self._known = {"sink-record-send-total": rows, "sink-record-send-rate": rate}

        def values(self) -> dict[str, Value]:
            names = [metric.name for metric in METRICS if metric.scope == "task"]
            return {name: self._known.get(name) for name in names}

    sources = [
        Running("rates", "orders", 0, 10, 1.5),
        Running("rates", "orders", 1, 10, 2.0),
        Running("rates", "idle", 0, 0, 0.0),
        Running("other", "orders", 0, 10, 9.0),
    ]
    for source in sources:
        register(source)
    try:
        assert events.rows_per_second("rates") == {"orders": 3.5}
    finally:
        for source in sources:
            unregister(source)


def test_a_static_member_that_has_left_is_kept_until_a_deadline() -> None:
    away = DescribedMember(member_id="a", instance_id="i", state="AWAY", kept_ms=4_000)
    assert table_of(group_of(1, members=(away,)), 1_000)["worker/a"]["kept_until_ms"] == 5_000
    assert table_of(group_of(1))["worker/a"]["kept_until_ms"] is None
    kept = [
        views.group_description(each)["workers"][0]["kept_ms"] for each in (group_of(1, members=(away,)), group_of(1))
    ]
    assert kept == [4_000, None]


def test_a_deadline_stays_the_same_while_time_passes() -> None:
    def delayed(left_ms: int) -> DescribedGroup:
        delay = DelayedUnits(member_id="b", left_ms=left_ms, units=grouped({Unit("c", 1)}))
        return group_of(1, delayed=(delay,))

    first = table_of(delayed(10_000), 1_000)
    assert first["delay/0"]["until_ms"] == 11_000
    assert events.changes(first, table_of(delayed(9_700), 1_290, before=first)) == {}
    later = table_of(delayed(10_000), 5_000, before=first)
    assert later["delay/0"]["until_ms"] == 15_000

"""Rules of access over REST: 403, lists with what a user may describe, and the lines of the audit log."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from connectgroup.errors import ConnectorAlreadyExists, CoordinatorNotAvailable
from connectgroup.log.base import LogNotWritable
from connectgroup.rest.app import OPERATIONS
from tests.consumer.inside import eventually
from tests.coordinator.builders import GROUP, FaultyLog, beat, serving

from .conftest import Api, rest_server

NEEDS: dict[tuple[str, str], tuple[str | None, str]] = {
    ("GET", "/"): (None, ""),
    ("GET", "/openapi.json"): (None, ""),
    ("GET", "/health"): (None, ""),
    ("GET", "/page"): (None, ""),
    ("GET", "/page/{file}"): (None, ""),
    ("GET", "/coordinators"): (None, ""),
    ("GET", "/connector-plugins"): (None, ""),
    ("GET", "/connector-plugins/{plugin}/config"): (None, ""),
    ("PUT", "/connector-plugins/{plugin}/config/validate"): ("Alter", "connector"),
    ("GET", "/connectors"): ("Describe", "list"),
    ("POST", "/connectors"): ("Alter", "connector"),
    ("GET", "/connectors/{name}"): ("Describe", "connector"),
    ("DELETE", "/connectors/{name}"): ("Delete", "connector"),
    ("GET", "/connectors/{name}/config"): ("Describe", "connector"),
    ("PUT", "/connectors/{name}/config"): ("Alter", "connector"),
    ("PATCH", "/connectors/{name}/config"): ("Alter", "connector"),
    ("GET", "/connectors/{name}/status"): ("Describe", "connector"),
    ("POST", "/connectors/{name}/restart"): ("Alter", "connector"),
    ("PUT", "/connectors/{name}/pause"): ("Alter", "connector"),
    ("PUT", "/connectors/{name}/resume"): ("Alter", "connector"),
    ("PUT", "/connectors/{name}/stop"): ("Alter", "connector"),
    ("GET", "/connectors/{name}/tasks"): ("Describe", "connector"),
    ("GET", "/connectors/{name}/tasks/{task}/status"): ("Describe", "connector"),
    ("POST", "/connectors/{name}/tasks/{task}/restart"): ("Alter", "connector"),
    ("GET", "/connectors/{name}/offsets"): ("Describe", "connector"),
    ("PATCH", "/connectors/{name}/offsets"): ("Alter", "connector"),
    ("DELETE", "/connectors/{name}/offsets"): ("Alter", "connector"),
    ("GET", "/connectors/{name}/topics"): ("Describe", "connector"),
    ("PUT", "/connectors/{name}/topics/reset"): ("Alter", "connector"),
    ("GET", "/admin/loggers"): ("Describe", "group"),
    ("GET", "/admin/loggers/{logger}"): ("Describe", "group"),
    ("PUT", "/admin/loggers/{logger}"): ("Alter", "group"),
    ("GET", "/groups"): ("Describe", "list"),
    ("GET", "/groups/{group}"): ("Describe", "group"),
    ("DELETE", "/groups/{group}"): ("Delete", "group"),
    ("GET", "/groups/{group}/events"): ("Describe", "group"),
    ("GET", "/groups/{group}/connectors/{name}"): ("Describe", "connector"),
    ("GET", "/groups/{group}/history"): ("Describe", "group"),
    ("GET", "/groups/{group}/rebalances"): ("Describe", "group"),
    ("POST", "/groups/{group}/workers/{worker}/restart"): ("Alter", "group"),
    ("POST", "/groups/{group}/workers/{worker}/drain"): ("Alter", "group"),
    ("GET", "/metrics"): ("Describe", "everything"),
}
"""The operation that each route needs, and on what."""

USERS = ("none", "read", "describe", "alter", "delete", "boss")
BODIES: dict[str, Any] = {
    "POST": {"name": "c", "config": {"connector.class": "idle"}},
    "PUT": {"connector.class": "idle"},
    "PATCH": {"color": "red"},
}


@asynccontextmanager
async def ruled(tmp_path: Path, rules: str, log: FaultyLog | None = None) -> AsyncIterator[Api]:
    (tmp_path / "rules").write_text(rules)
    users = tmp_path / "users"
    users.write_text("".join(f"{user}=word\n" for user in USERS))
    users.chmod(0o600)
    files = {"users": users, "access_rules": tmp_path / "rules", "audit_log": tmp_path / "audit"}
    async with serving(log) as coordinator, rest_server(coordinator, **files) as api:
        yield api


async def status_of(api: Api, user: str, method: str, path: str) -> tuple[int, str]:
    async with api.http.stream(method, path, json=BODIES.get(method), auth=(user, "word")) as response:
        text = "" if response.headers["content-type"].startswith("text/event-stream") else await response.aread()
        return response.status_code, str(text)


def test_every_route_has_an_operation() -> None:
    assert {(each.method, each.path) for each in OPERATIONS} == NEEDS.keys()
    for each in OPERATIONS:
        expected = NEEDS[each.method, each.path][0]
        assert (each.needs.operation.value if each.needs.operation else None) == expected


@pytest.mark.parametrize(("method", "path"), NEEDS, ids=[" ".join(each) for each in NEEDS])
async def test_route_needs_exactly_its_operation(method: str, path: str, tmp_path: Path) -> None:
    """One user for each operation. What is denied has the same response whether it exists or not."""
    operation, of = NEEDS[method, path]
    resource = {"connector": f"group {GROUP} connector c", "everything": "group *"}.get(of, f"group {GROUP}")
    rules = [f"allow {user} {user} {resource}" for user in USERS[1:5]]
    rules += [f"allow {user} {user} group * connector *" for user in USERS[1:5] if of == "everything"]
    names = {"name": "c", "group": GROUP, "plugin": "idle", "logger": "root", "worker": "w", "file": "page.css"}
    concrete = path.format(**names, task=0)
    rules += ["allow boss all group *", "allow boss all group * connector *"]
    async with ruled(tmp_path, "\n".join(rules)) as api:
        denials = {user: await status_of(api, user, method, concrete) for user in USERS}
        for user, (status, text) in denials.items():
            implied = operation == "Describe" and user in USERS[1:5]
            may = operation is None or of == "list" or user in (operation.lower(), "boss") or implied
            assert (status != 403) is may, (user, status, text)
        if denials["none"][0] == 403:
            missing = denials["none"]
            with contextlib.suppress(ConnectorAlreadyExists):
                await api.admin.add_connector(GROUP, "c", {"connector.class": "idle"})
            assert await status_of(api, "none", method, concrete) == missing


async def test_health_names_files_and_hosts_only_to_users_who_may_describe_the_group(tmp_path: Path) -> None:
    log = FaultyLog()

    async def message(api: Api, user: str) -> str:
        response = await api.http.get("/health", auth=(user, "word"))
        assert response.status_code == 500
        return str(response.json()["message"])

    async with ruled(tmp_path, f"allow describe describe group {GROUP}", log) as api:
        await api.admin.add_connector(GROUP, "c", {"connector.class": "idle"})
        log.full = LogNotWritable("/data/log: no space left")
        joined: Any = await api.coordinator.handle(beat("w"), client_host="")
        assert joined.error_code == CoordinatorNotAvailable.code
        assert (await message(api, "describe")).endswith("takes no writes: /data/log: no space left")
        assert (await message(api, "none")).endswith("takes no writes")
        await api.coordinator.close()
        full, plain = await asyncio.gather(message(api, "describe"), message(api, "none"))
        assert full.endswith("the coordinator is closing")
        assert plain == "the coordinator does not serve the group"


async def test_lists_have_what_may_be_described(tmp_path: Path) -> None:
    rules = f"""
    allow describe describe group {GROUP} connector mine-*
    allow read describe group other
    allow boss all group *
    allow boss all group * connector *
    """
    async with ruled(tmp_path, rules) as api:
        for group in (GROUP, "other"):
            for name in ("mine-1", "theirs"):
                await api.admin.add_connector(group, name, {"connector.class": "idle"})

        async def get(user: str, path: str) -> Any:
            response = await api.http.get(path, auth=(user, "word"))
            assert response.status_code == 200, response.text
            return response.json()

        assert await get("boss", "/connectors") == ["mine-1", "theirs"]
        assert await get("describe", "/connectors") == ["mine-1"]
        assert [*await get("describe", "/connectors?expand=status")] == ["mine-1"]
        assert await get("read", "/connectors") == []
        assert [each["group_id"] for each in await get("boss", "/groups")] == ["other", GROUP]
        assert [each["group_id"] for each in await get("read", "/groups")] == ["other"]
        assert await get("none", "/groups") == []
        assert (await get("read", "/groups/other"))["connectors"] in ([], {})
        assert "mine-1" not in json.dumps(await get("read", "/groups/other"))
        missing = await api.http.get("/groups/other/rebalances", auth=("describe", "word"))
        assert missing.status_code == 403
        assert "mine-1" not in missing.text


async def test_stream_of_events_has_what_may_be_described(tmp_path: Path) -> None:
    rules = f"""
    allow describe describe group {GROUP}
    allow describe describe group {GROUP} connector mine-*
    allow boss all group *
    allow boss all group * connector *
    """
    async with ruled(tmp_path, rules) as api:
        for name in ("mine-1", "theirs"):
            await api.admin.add_connector(GROUP, name, {"connector.class": "idle"})
        found = {}
        for user in ("boss", "describe"):
            async with api.http.stream("GET", f"/groups/{GROUP}/events", auth=(user, "word")) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and "mine-1" in line:
                        found[user] = line
                        break
        assert "theirs" in found["boss"]
        assert "theirs" not in found["describe"]


async def test_a_check_of_a_connector_needs_the_operation_of_its_change_and_is_no_line_of_the_audit_log(
    tmp_path: Path,
) -> None:
    rules = f"allow alter alter group {GROUP} connector c"
    async with ruled(tmp_path, rules) as api:
        body = {"name": "c", "config": {"connector.class": "idle"}}
        for user, status in (("alter", 204), ("describe", 403)):
            response = await api.http.post("/connectors?validateOnly=true", json=body, auth=(user, "word"))
            assert response.status_code == status, response.text
        assert (await api.http.post("/connectors", json=body, auth=("alter", "word"))).status_code == 201
        path = "/connectors/c/config?validateOnly=TRUE"
        assert (await api.http.patch(path, json={"tasks.max": 2}, auth=("alter", "word"))).status_code == 204
        other = "/connectors/c/config?validateOnly=false"
        assert (await api.http.patch(other, json={"tasks.max": 2}, auth=("alter", "word"))).status_code == 200
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    requests = [(each["request"], each["result"]) for each in lines if each["request"].startswith(("POST", "PATCH"))]
    assert [request for request, result in requests if result == "OK"] == ["POST /connectors", f"PATCH {other}"]


async def test_changes_over_rest_are_lines_of_the_audit_log(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    rules = f"allow boss all group {GROUP}\nallow boss all group {GROUP} connector *\n"

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    async with ruled(tmp_path, rules) as api:
        body = {"name": "c", "config": {"connector.class": "idle", "db.password": "Confidential"}}
        assert (await api.http.post("/connectors", json=body, auth=("boss", "word"))).status_code == 201
        assert (await api.http.get("/connectors/c", auth=("boss", "word"))).status_code == 200
        assert (await api.http.put("/connectors/c/pause", auth=("none", "word"))).status_code == 403
        assert (await api.http.get("/connectors/c", auth=("none", "word"))).status_code == 403
        assert (await api.http.get("/connectors", auth=("none", "word"))).json() == []  # nothing is denied
        assert (await api.http.delete("/connectors/c?x=1", auth=("boss", "word"))).status_code == 204
        assert (await api.http.delete("/connectors/c", auth=("boss", "word"))).status_code == 404
        await eventually(lambda: len(lines()) >= 5)
    created, paused, read, deleted, missing = lines()
    assert "Confidential" not in path.read_text()
    assert created["server"] == "rest"
    assert (created["principal"], created["host"], created["result"]) == ("boss", "127.0.0.1", "OK")
    assert created["request"] == "POST /connectors"
    assert created["resources"] == [{"operation": "Alter", "group": GROUP, "connector": "c"}]
    assert created["change"]["config"] == {"connector.class": "idle", "db.password": "[hidden]"}
    assert (paused["principal"], paused["result"]) == ("none", "GROUP_AUTHORIZATION_FAILED")
    assert (read["request"], read["result"]) == ("GET /connectors/c", "GROUP_AUTHORIZATION_FAILED")
    assert (deleted["request"], deleted["result"]) == ("DELETE /connectors/c?x=1", "OK")
    assert missing["result"] == "CONNECTOR_NOT_FOUND"


async def test_client_without_user_is_anonymous(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text(f"allow ANONYMOUS describe group {GROUP} connector c\n")
    async with serving() as coordinator, rest_server(coordinator, access_rules=tmp_path / "rules") as api:
        await api.admin.add_connector(GROUP, "c", {"connector.class": "idle"})
        await api("GET", "/connectors/c", 200)
        assert "not authorized to delete connector c" in await api("DELETE", "/connectors/c", 403)

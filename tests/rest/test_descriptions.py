"""``GET /groups/{group}`` of many clients at a time."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from starlette.responses import JSONResponse

from connectgroup.client.admin import Admin
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import GroupIdNotFound
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.rest import bodies
from connectgroup.rest.routes.groups import Descriptions
from tests.coordinator.builders import GROUP, add, send, serving, tick

from .conftest import Api

pytestmark = pytest.mark.asyncio


class Held:
    """A coordinator whose descriptions wait."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.began = 0
        self.has_begun, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def handle(self, request: Request, **client: Any) -> Response:
        if isinstance(request, DescribeRequest):
            self.began += 1
            self.has_begun.set()
            await self.may_go_on.wait()
        return await self.coordinator.handle(request, **client)


@pytest.mark.parametrize("in_thread", [False, True])
async def test_clients_that_ask_at_the_same_time_share_a_description_that_has_what_they_wrote(
    in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "FEW_PARTS", 0 if in_thread else 200)
    async with serving() as coordinator:
        await send(coordinator, add("before"))
        held, descriptions = Held(coordinator), Descriptions()
        async with Admin.local(held) as admin:
            first = asyncio.create_task(descriptions.of(admin, GROUP, ""))
            await held.has_begun.wait()
            await send(coordinator, add("after"))
            others = [asyncio.create_task(descriptions.of(admin, GROUP, "")) for _ in range(50)]
            others[0].cancel()  # a client that goes away
            await tick()
            held.may_go_on.set()
            assert json.loads(await first)["group_id"] == GROUP
            for body in await asyncio.gather(*others[1:]):
                assert {each["name"] for each in json.loads(body)["connectors"]} == {"before", "after"}
            assert held.began == 2
            await descriptions.of(admin, GROUP, "")
            assert held.began == 3, "nothing is kept"
            with pytest.raises(GroupIdNotFound):
                await descriptions.of(admin, "nosuch", "")


@pytest.mark.parametrize(
    "path",
    [
        "/connectors?expand=info&expand=status",
        "/connectors/c",
        "/connectors/c/status",
        "/connectors/c/tasks",
        f"/groups/{GROUP}",
        f"/groups/{GROUP}/connectors/c",
        f"/groups/{GROUP}/history",
        f"/groups/{GROUP}/rebalances",
    ],
)
async def test_large_body_is_made_in_a_thread_and_is_the_one_made_at_once(
    path: str, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats of workers are served by the same event loop."""
    await send(api.coordinator, add("c"))
    at_once = await api("GET", path, 200)
    threads, render = set[int](), JSONResponse.render

    def rendered(self: JSONResponse, content: Any) -> bytes:
        threads.add(threading.get_ident())
        return render(self, content)

    monkeypatch.setattr(JSONResponse, "render", rendered)
    monkeypatch.setattr(bodies, "FEW_PARTS", -1)
    later = await api("GET", path, 200)
    for body in later, at_once:
        if path.endswith("/history"):  # an interval may have ended
            body["c"] = ...
        elif path.endswith(f"/groups/{GROUP}/connectors/c"):
            del body["history"]
    assert later == at_once
    assert threads
    assert threading.get_ident() not in threads

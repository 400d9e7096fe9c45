"""A REST server on a real socket, a coordinator and one worker in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio

from connectgroup import (
    Connections,
    Connector,
    LocalClient,
    MemberSettings,
    Runner,
    RunnerSettings,
    TaskRunner,
    Worker,
    load_assignor,
)
from connectgroup.client.admin import Admin
from connectgroup.config.rest import RestConfig
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.plugins import load_connector_class
from connectgroup.rest.server import RestServer
from tests.coordinator.builders import GROUP, serving

from .browser import chromium

if TYPE_CHECKING:
    from playwright.async_api import Browser

PATIENCE_S = 90.0


@dataclass
class Api:
    """The client of a REST server, and what is behind it."""

    http: httpx.AsyncClient
    admin: Admin
    coordinator: Coordinator
    server: RestServer

    async def __call__(self, method: str, path: str, status: int, body: Any = None, **more: Any) -> Any:
        """Send a request, check the status, return the body."""
        response = await self.http.request(method, path, json=body, **more)
        assert response.status_code == status, (method, path, response.status_code, response.text)
        if status >= 400:
            content = response.json()
            assert content.keys() == {"error_code", "message"}
            assert content["error_code"] == status
            assert "Traceback" not in content["message"]
            return content["message"]
        return response.json() if response.content else None

    async def until(self, condition: Callable[[Any], bool], path: str) -> Any:
        """Repeat a GET until its body fulfils a condition."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not condition(body := await self("GET", path, 200)):
            assert asyncio.get_running_loop().time() < deadline, body
            await asyncio.sleep(0.02)
        return body


@asynccontextmanager
async def rest_server(coordinator: Coordinator, **config: Any) -> AsyncIterator[Api]:
    async with Admin.local(coordinator) as admin:
        server = RestServer(admin, RestConfig(**{"port": 0, "group": GROUP, "allowed_paths": (Path("/"),), **config}))
        await server.start()
        try:
            async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as http:
                yield Api(http, admin, coordinator, server)
        finally:
            await server.close()


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving() as coordinator, rest_server(coordinator) as api:
        yield api


@asynccontextmanager
async def running_worker(
    api: Api, scratch: Path, load_class: Callable[[str], type[Connector]] = load_connector_class, **settings: Any
) -> AsyncIterator[Worker]:
    """A worker named ``w``. ``settings``: of its runner."""
    connections = Connections(heartbeats=LocalClient(api.coordinator), control=LocalClient(api.coordinator))
    member = MemberSettings(group_id=GROUP, member_id="w")
    worker = Worker(member, connections, assignors=[load_assignor("balanced")])
    runner: Runner = TaskRunner(
        "w",
        RunnerSettings(**{"scratch": scratch, "group_id": GROUP, "allowed_paths": None, **settings}),
        load_class=load_class,
        publish=worker.publish_tasks,
        report=worker.report,
    )
    worker.set_runner(runner)
    running = asyncio.create_task(worker.run())
    yield worker
    worker.stop()
    await running


@pytest.fixture
async def worker(api: Api, tmp_path: Path) -> AsyncIterator[Worker]:
    """It runs the connectors of installed classes."""
    async with running_worker(api, tmp_path / "scratch") as worker:
        yield worker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Chromium, one for all tests of a module."""
    async with chromium() as browser:
        yield browser

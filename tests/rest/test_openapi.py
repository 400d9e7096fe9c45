"""``GET /openapi.json``, and random requests by it: no 500, no traceback, responses as documented."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from connectgroup.rest.app import OPERATIONS
from connectgroup.rest.operations import Operation
from tests.coordinator.builders import serving

from .conftest import Api, rest_server


async def test_every_operation_is_documented_and_every_documented_operation_is_served(api: Api) -> None:
    document = await api("GET", "/openapi.json", 200)
    assert document["openapi"].startswith("3.1")
    documented = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert documented == {(operation.method, operation.path) for operation in OPERATIONS}
    for method, path in sorted(documented):
        described = document["paths"][path][method.lower()]
        assert described["summary"], (method, path)
        concrete = path.replace("{name}", "nosuch").replace("{task}", "0").replace("{group}", "nosuch")
        concrete = concrete.replace("{logger}", "nosuch").replace("{plugin}", "idle").replace("{worker}", "w")
        response = await api.http.request(method, concrete)
        # A path that is not served has Kafka Connect's generic message.
        assert not response.text.count("HTTP 40"), (method, path, response.text)
        response = await api.http.request("TRACE", concrete)
        assert response.status_code == 405, (path, response.text)
    assert (await api.http.get("/nosuch")).json()["message"] == "HTTP 404 Not Found"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server in a thread of its own: schemathesis sends its requests without an event loop."""
    level, started, urls = logging.root.level, threading.Event(), list[str]()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with serving() as coordinator, rest_server(coordinator) as api:
            await api("POST", "/connectors", 201, {"name": "0", "config": {"connector.class": "idle"}})
            urls.append(api.server.url)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(30)
    yield urls[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()
    logging.root.setLevel(level)


@pytest.fixture(scope="module")
def api_schema(url: str) -> Any:
    schemathesis = pytest.importorskip("schemathesis", reason="the extra 'dev' is not installed")
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


CHECKS = ("response_schema_conformance", "content_type_conformance", "status_code_conformance")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: f"{operation.method} {operation.path}")
def test_any_request_gets_a_documented_response(api_schema: Any, operation: Operation) -> None:
    from schemathesis import checks as available

    available.load_all_checks()
    checks = available.CHECKS.get_by_names(CHECKS)
    described = api_schema[operation.path][operation.method]

    @given(case=described.as_strategy())
    @settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
    def send(case: Any) -> None:
        if operation.path == "/admin/loggers/{logger}" and operation.method == "PUT":
            case.path_parameters = {"logger": "canary"}  # the levels of the test process stay
        response = case.call()
        assert response.status_code < 500, response.text
        assert "Traceback" not in response.text
        if response.status_code >= 400:
            assert response.json().keys() == {"error_code", "message"}
            assert response.json()["error_code"] == response.status_code
        case.validate_response(response, checks=checks)

    send()

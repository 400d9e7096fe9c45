"""Quotas of requests by principal: ThrottleTimeMs in the response, and a muted connection (KIP-219)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from connectgroup import Connections, MemberSettings, Worker
from connectgroup.client.admin import Admin
from connectgroup.protocol.messages.assignment import PrepareRequest
from connectgroup.protocol.messages.describe import DescribeRequest, ListGroupsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.telemetry.metrics import values_of
from connectgroup.transport.access import Access
from connectgroup.transport.credentials import Credentials
from connectgroup.transport.quotas import MAX_THROTTLE_S, RequestQuotas
from connectgroup.transport.tcp_client import TcpClient
from tests.consumer.inside import eventually

from .authenticating import port_of, serving


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_bucket_holds_one_second_and_debt_is_limited() -> None:
    clock = Clock()
    quotas = RequestQuotas(lambda principal: {"a": 10.0}.get(principal), clock=clock)
    assert [quotas.take("a") for _ in range(10)] == [0.0] * 10
    assert quotas.take("a") == pytest.approx(0.1)
    assert quotas.take("a") == pytest.approx(0.2)
    assert quotas.take("b") == 0.0, "it has no quota"
    clock.now += 0.2
    assert quotas.take("a") == pytest.approx(0.1)
    for _ in range(1_000):
        assert quotas.take("a") <= MAX_THROTTLE_S
    clock.now += MAX_THROTTLE_S + 0.1
    assert quotas.take("a") == 0.0, "the debt was no longer than the longest throttle time"


def test_refused_request_takes_no_token() -> None:
    clock = Clock()
    quotas = RequestQuotas(lambda principal: {"a": 10.0}.get(principal), clock=clock)
    assert [quotas.refusal("a") for _ in range(10)] == [""] * 10
    for _ in range(1_000):
        assert quotas.refusal("a") == "a: too many requests; allowed: 10 per second, the quota of this user"
    assert quotas.refusal("b") == "", "it has no quota"
    clock.now += 0.1
    assert [bool(quotas.refusal("a")) for _ in range(2)] == [False, True]


def client_of(server: Any, user: str) -> TcpClient:
    return TcpClient("localhost", port_of(server), access=Access(credentials=Credentials(user, f"word-{user}")))


def users(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    file.write_text("busy=word-busy\ncalm=word-calm\n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize(
    "request_",
    [
        HeartbeatRequest(group_id="g", member_id="m", member_epoch=0),
        PrepareRequest(group_id="g", member_id="m", member_epoch=1),
        DescribeRequest(),
        ListGroupsRequest(),
    ],
    ids=lambda request: type(request).__name__,
)
async def test_connection_above_its_quota_is_muted_for_the_throttle_time(request_: Any, tmp_path: Path) -> None:
    """The next request of the connection is begun after the time in the response."""
    loop = asyncio.get_running_loop()
    async with serving(tmp_path, credentials=users(tmp_path), requests_per_second_per_principal=1) as server:
        busy, calm = client_of(server, "busy"), client_of(server, "calm")

        try:
            throttled, begins_at = 0, 0.0
            while throttled < 3:
                sent = loop.time()
                response: Any = await busy.call(request_, timeout_s=60)
                # Two milliseconds: the time in the response is rounded up, and a timer of the loop down.
                assert loop.time() >= begins_at - 0.002
                assert response.throttle_time_ms <= MAX_THROTTLE_S * 1000 + 1
                begins_at = sent + response.throttle_time_ms / 1000
                throttled += response.throttle_time_ms > 0
            other: Any = await calm.call(request_, timeout_s=20)
            assert other.throttle_time_ms == 0, "the quota is one of each principal"
        finally:
            await busy.close()
            await calm.close()


async def test_all_connections_of_a_principal_share_its_quota(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("allow * all group *\nquota busy 3\n")
    async with serving(tmp_path, credentials=users(tmp_path), access_rules=rules) as server:
        clients = [client_of(server, "busy") for _ in range(6)]
        calm = client_of(server, "calm")
        try:
            throttled = False
            while not throttled:
                calls = (each.call(ListGroupsRequest(), timeout_s=60) for each in clients)
                responses: list[Any] = await asyncio.gather(*calls)
                throttled = any(each.throttle_time_ms for each in responses)
            for _ in range(20):
                response: Any = await calm.call(ListGroupsRequest(), timeout_s=20)
                assert response.throttle_time_ms == 0, "it has no quota"
            [values] = [values for labels, values in values_of("principal") if labels["principal"] == "busy"]
            assert float(values["throttled-request-total"] or 0) > 0
            assert float(values["throttle-time-ms-total"] or 0) > 0
        finally:
            for each in (*clients, calm):
                await each.close()


async def test_worker_keeps_its_membership_while_its_principal_is_throttled(tmp_path: Path) -> None:
    """Its heartbeats are late by the longest throttle time at most."""
    settings = {"requests_per_second_per_principal": 4, "session_timeout_ms": 30_000}
    async with serving(tmp_path, credentials=users(tmp_path), **settings) as server:
        connections = Connections(heartbeats=client_of(server, "busy"), control=client_of(server, "busy"))
        worker = Worker(MemberSettings(group_id="g", member_id="w"), connections)
        running = asyncio.create_task(worker.run())
        flooding = [client_of(server, "busy") for _ in range(5)]
        admin = Admin.local(server.coordinator)

        async def flood(client: TcpClient) -> None:
            while True:
                await client.call(ListGroupsRequest(), timeout_s=30)

        tasks: list[asyncio.Task[None]] = []
        try:
            before = await admin.wait_worker("g", "w")
            tasks = [asyncio.create_task(flood(each)) for each in flooding]

            def throttled() -> float:
                found = [values for labels, values in values_of("principal") if labels["principal"] == "busy"]
                return float(found[0]["throttled-request-total"] or 0) if found else 0.0

            await eventually(lambda: throttled() >= 40)
            after = await admin.describe("g")
            assert [each.joined_epoch for each in after.members] == [each.joined_epoch for each in before.members]
            assert after.group_epoch == before.group_epoch
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in flooding:
                await each.close()
            worker.stop()
            await running
            await admin.close()

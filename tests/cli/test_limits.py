"""The limits of a coordinator are settings: each option reaches the part that enforces it."""

from __future__ import annotations

import asyncio
import struct

import pytest

from connectgroup.cli.parser import build_parser
from connectgroup.cli.processes import LIMITS
from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.errors import GroupMaxSizeReached, InvalidRequest, PolicyViolation
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest


def join(member_id: str, group_id: str = "g") -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group_id, member_id=member_id, member_epoch=0, rebalance_timeout_ms=10_000, owned=()
    )


def connector(tasks: str) -> UpdateConnectorsRequest:
    config = entries({"connector.class": "idle", "tasks.max": tasks})
    changes = tuple(ConnectorChange(connector=name, config=config) for name in ("a", "b"))
    return UpdateConnectorsRequest(group_id="g", changes=changes)


@pytest.mark.parametrize(
    ("setting", "requests", "code"),
    [
        ("max_members", [join("a"), join("b")], GroupMaxSizeReached.code),
        ("max_groups", [join("a"), join("a", "other")], PolicyViolation.code),
        ("max_units", [connector("1")], InvalidRequest.code),
    ],
)
async def test_coordinator_enforces_the_limit_of_a_setting(
    setting: str, requests: list[HeartbeatRequest | UpdateConnectorsRequest], code: int
) -> None:
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0, setting: 1}))
    await server.start()
    try:
        codes = [(await server.coordinator.handle(each, client_host="test")).error_code for each in requests]  # type: ignore[union-attr]
    finally:
        await server.close()
    assert codes == [0] * (len(requests) - 1) + [code]


async def test_request_above_the_largest_frame_ends_the_connection() -> None:
    server = CoordinatorServer(
        checked(CoordinatorConfig, {"port": 0, "max_frame_bytes": 65_536, "authentication": False})
    )
    await server.start()
    try:
        reader, writer = await asyncio.open_connection(*server.address.split(":"))
        writer.write(struct.pack(">i", 65_537))
        assert await reader.read() == b""
        writer.close()
    finally:
        await server.close()


@pytest.mark.parametrize("command", ["coordinator", "proxy", "up"])
def test_each_limit_is_an_option_with_the_default_of_the_setting(command: str) -> None:
    needed = {"coordinator": (), "proxy": ("--broker", "127.0.0.1:1"), "up": ()}[command]
    options = build_parser().parse_args([command, *needed])
    limits = [name for name in CoordinatorConfig.model_fields if name.startswith("max_") or name == "idle_timeout_s"]
    assert {*LIMITS, "max_connections", "max_connections_per_address"} == {*limits}
    for name in limits:
        assert getattr(options, name) == CoordinatorConfig.model_fields[name].default

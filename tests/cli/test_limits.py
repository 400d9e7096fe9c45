"""The limits of a coordinator are settings: each option reaches the part that enforces it."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from connectgroup.cli.parser import build_parser
from connectgroup.cli.processes import LIMITS, coordinator_config
from connectgroup.config.base import checked
from connectgroup.config.coordinator import KAFKA_NAMES, CoordinatorConfig
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.errors import ConfigError, GroupMaxSizeReached, InvalidRequest, PolicyViolation
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
    fields = CoordinatorConfig.model_fields.keys() - KAFKA_NAMES.values()
    limits = [name for name in fields if name.startswith("max_") or name == "idle_timeout_s"]
    assert {*LIMITS, "max_connections", "max_connections_per_address"} == {*limits}
    for name in limits:
        assert getattr(options, name) == CoordinatorConfig.model_fields[name].default


COMMANDS = [("coordinator",), ("proxy", "--broker", "localhost:9092")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each[0])
def test_file_has_settings_with_the_names_of_kafka(command: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    values = {name: str(number) for number, name in enumerate(KAFKA_NAMES, 1_000) if "policy" not in name}
    values |= {
        "group.consumer.heartbeat.interval.ms": "300",
        "group.consumer.migration.policy": "upgrade",
        "group.max.session.timeout.ms": "2000",
        "group.consumer.assignors": "range, uniform",
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    options = build_parser().parse_args([*command, "--config", str(file)])
    config = coordinator_config(options)
    assert config.group_assignors == ("range", "uniform")
    del values["group.consumer.assignors"]
    assert {name: str(getattr(config, KAFKA_NAMES[name])) for name in values} == values
    consumers, classic = config.consumer_settings(), config.classic_settings()
    assert (consumers.max_members, classic.max_members) == (
        int(values["group.consumer.max.size"]),
        int(values["group.max.size"]),
    )
    assert consumers.offsets == classic.offsets
    assert classic.offsets.retention_ms == int(values["offsets.retention.minutes"]) * 60_000

    options = build_parser().parse_args([*command, "--config", str(file), "--consumer-session-timeout-ms", "9000"])
    assert coordinator_config(options).consumer_session_timeout_ms == 9_000, "an option takes precedence"
    assert coordinator_config(build_parser().parse_args(command)).consumer_session_timeout_ms == 45_000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "offsets.retention.minute=5",
            "offsets.retention.minute: unknown; allowed: offsets.retention.minutes (did",
        ),
        ("log.dirs=/tmp", "log.dirs: unknown; allowed: group.consumer.session.timeout.ms, "),
        ("group.max.size=many", "group.max.size: got 'many'; allowed: a whole number from 1 to 10000"),
        ("group.consumer.migration.policy=up", "group.consumer.migration.policy: got 'up'; allowed: 'bidirectional', "),
        (
            "group.consumer.heartbeat.interval.ms=20000",
            "group.consumer.heartbeat.interval.ms: got '20000'; allowed: at most a third of ",
        ),
    ],
)
def test_setting_of_the_file_that_is_wrong_is_named_as_in_the_file(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"# settings\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        coordinator_config(build_parser().parse_args(["coordinator", "--config", str(file)]))
    assert str(caught.value).startswith(f"{file}: {message}")

"""Clients of Kafka Connect's REST API that others wrote manage our connectors, unmodified."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectgroup import Worker
from tests.consumer.broker import Unavailable, fetched_with_dependencies

from .conftest import Api

CONFIG = {"connector.class": "idle", "tasks.max": "2"}
JAVA_CLIENT = "org.sourcelab:kafka-connect-client:4.0.5"
PATIENCE_S = 120


async def run(*command: str | Path) -> tuple[int, str]:
    """The exit code and the output of a command, while the test's loop serves it."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(PATIENCE_S):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


def is_in(state: str) -> Callable[[Any], bool]:
    """Whether the connector of a status is in this state."""
    return lambda body: body["connector"]["state"] == state


async def test_kc_of_kafka_connect_py_manages_connectors(api: Api, worker: Worker) -> None:
    async def kc(*words: str) -> str:
        code, output = await run(Path(sys.executable).with_name("kc"), "--url", api.server.url, *words)
        assert code == 0, output
        return output

    await kc("create", "--config-data", json.dumps({"name": "naps", "config": CONFIG}))
    assert "naps" in await kc("list")
    await api.until(is_in("RUNNING"), "/connectors/naps/status")
    await api.until(lambda body: body["state"] == "RUNNING", "/connectors/naps/tasks/1/status")
    assert "RUNNING" in await kc("task-status", "naps", "1")
    assert "naps" in await kc("list-tasks", "naps")
    await kc("update", "naps", "--config-data", json.dumps({**CONFIG, "tasks.max": "1"}))
    assert '"tasks.max": "1"' in await kc("config", "naps")
    assert "idle" in await kc("list-plugins")
    await kc("validate-config", "idle", "--config-data", json.dumps({**CONFIG, "name": "naps"}))
    for action, state in (("pause", "PAUSED"), ("resume", "RUNNING")):
        await kc(action, "naps")
        await api.until(is_in(state), "/connectors/naps/status")
    await kc("restart", "naps", "--include-tasks")
    await kc("restart-task", "naps", "0")
    await kc("reset-topics", "naps")
    await kc("delete", "naps")
    assert await api("GET", "/connectors", 200) == []


async def test_java_client_manages_connectors(api: Api, worker: Worker, tmp_path: Path) -> None:
    try:
        jars = await asyncio.to_thread(fetched_with_dependencies, "kafka-connect-client", [JAVA_CLIENT])
    except Unavailable as error:
        pytest.skip(str(error))
    code, output = await run(
        "javac", "-cp", f"{jars}/*", "-d", tmp_path, Path(__file__).with_name("ConnectClient.java")
    )
    assert code == 0, output
    path = f"{tmp_path}{os.pathsep}{jars}/*"
    code, output = await run(
        "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", path, "ConnectClient", api.server.url, "naps"
    )
    lines = [line for line in output.splitlines() if not line.startswith("SLF4J")]
    assert code == 0, output
    version, *rest = lines
    assert version.startswith("version 4.")
    assert rest == [
        "connectors [naps]",
        "RUNNING",
        "tasks 2",
        "task 1 RUNNING",
        "tasks.max 1",
        "PAUSED",
        "RUNNING",
        "expanded [naps]",
        "plugin idle",
        "error Connector naps not found",
    ]

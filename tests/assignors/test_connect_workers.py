"""A worker's properties, from the command line to the result of an assignor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import pytest

from connectgroup.assign.placement import MAX_TRAITS, WorkerTraits
from connectgroup.assign.sandbox import configure_assignor
from connectgroup.assignors.weighted import WeightedAssignor
from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.config.worker import WorkerConfig
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.errors import ConfigError, PluginError
from connectgroup.protocol.messages.common import each_unit, entries
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest, UpdateConnectorsResponse
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse
from connectgroup.protocol.units import Unit

ROOT = Path(__file__).parents[2]
WORKERS = {"a": (), "b": ("--label", "gpu=true", "--label", "zone=z", "--capacity", "5", "--rack", "r1")}
PATIENCE_S = 60


def config(**values: object) -> WorkerConfig:
    return checked(WorkerConfig, {"group": "g", "scratch": ".", **values})


def test_worker_options_reach_its_assignors() -> None:
    traits = config(capacity="7", labels=("zone=a", "gpu=true"), rack="r", host="h").traits()
    assert traits == WorkerTraits(capacity=7, labels=(("gpu", "true"), ("zone", "a")), rack="r", host="h")
    assert config(host="h").traits() == WorkerTraits(host="h")
    assert config(host="h").member_settings().traits == WorkerTraits(host="h")


@pytest.mark.parametrize(
    ("values", "assignors", "server_assignor"),
    [
        ({}, ("balanced",), None),
        ({"assignors": ("weighted",)}, ("weighted",), None),
        ({"assignors": ()}, (), None),
        ({"server_assignor": "even"}, (), "even"),
        ({"server_assignor": "even", "assignors": ()}, (), "even"),
    ],
)
def test_worker_lists_client_assignors_or_requests_a_server_assignor(
    values: dict[str, object], assignors: tuple[str, ...], server_assignor: str | None
) -> None:
    settings = config(**values)
    assert (settings.assignors, settings.member_settings().server_assignor) == (assignors, server_assignor)


def test_rebalance_timeout_of_a_worker_is_a_setting() -> None:
    assert config(rebalance_timeout_ms="5000").member_settings().rebalance_timeout_ms == 5_000


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"labels": ("gpu",)}, "labels: got 'gpu'; allowed: name=value, each name once"),
        ({"labels": ("a=1", "a=2")}, "labels: got 'a=2'; allowed: name=value, each name once"),
        ({"capacity": "many"}, "capacity: got 'many'; allowed: a whole number from 1 to 1000000000"),
        ({"capacity": 0}, "capacity: got '0'; allowed: a whole number from 1 to 1000000000"),
        (
            {"server_assignor": "balanced", "assignors": ("weighted",)},
            "server_assignor: got 'balanced'; allowed: server_assignor or assignors, not both",
        ),
        ({"rebalance_timeout_ms": 0}, "rebalance_timeout_ms: got '0'; allowed: a whole number from 1 to 3600000"),
        ({"rack": ""}, "rack: got ''; allowed: a non-empty text"),
        (
            {"labels": tuple(f"{number}={'x' * 240}" for number in range(60))},
            f"bytes'; allowed: at most {MAX_TRAITS}",
        ),
    ],
)
def test_invalid_worker_properties_are_rejected_with_one_line(values: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**values).traits()
    assert line in str(caught.value)


def test_assignor_that_raises_on_worker_properties_is_named() -> None:
    class Shy(WeightedAssignor):
        def configure(self, traits: WorkerTraits) -> None:
            raise RuntimeError("no names")

    with pytest.raises(PluginError, match=r"assignor 'weighted' .*: configure raised RuntimeError: no names"):
        configure_assignor(Shy(), WorkerTraits())


@pytest.mark.processes
async def test_tasks_run_on_the_worker_process_with_their_label(tmp_path: Path) -> None:
    """End to end: options of ``connectgroup worker``, metadata over TCP, Prepare, ``weighted``, Install."""
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0}))
    await server.start()
    workers = []
    try:
        lines = {"connector.class": "idle", "tasks.max": "3", "assignment.labels": "gpu=true,zone=z"}
        change = ConnectorChange(connector="c", config=entries(lines))
        changed = await server.coordinator.handle(
            UpdateConnectorsRequest(group_id="g", changes=(change,)), client_host="operator"
        )
        assert isinstance(changed, UpdateConnectorsResponse)
        assert not changed.error_code, changed.error_message
        common = ("--coordinator", server.address, "--group", "g", "--assignor", "weighted", "--scratch", str(tmp_path))
        for name, options in WORKERS.items():
            workers.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "connectgroup", "worker", "--name", name, *common, *options),
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    cwd=ROOT,
                )
            )
        held: dict[str, set[Unit]] = {}
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(PATIENCE_S * 10):
                described = await server.coordinator.handle(DescribeRequest(group_ids=("g",)), client_host="operator")
                assert isinstance(described, DescribeResponse)
                [group] = described.groups
                held = {member.member_id: set(each_unit(member.assigned)) for member in group.members}
                if len(held) == 2 and group.state == "Stable" and sum(map(len, held.values())) == 4:
                    break
                await asyncio.sleep(0.1)
        assert held == {"a": set(), "b": {Unit("c"), Unit("c", 0), Unit("c", 1), Unit("c", 2)}}
        assert group.assignor_name == "weighted"
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                worker.terminate()
        await asyncio.gather(*(worker.wait() for worker in workers))
        await server.close()

"""200 clients create, change and delete connectors at the same time while workers are killed; REST over real processes.

Every write that was acknowledged is there afterwards, and no write is half applied: the configuration of a connector is
always one that a client sent, complete.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import httpx
import pytest

from tests.volume import ci_only, volume

from ..integration.commands import GROUP, CommandGroup
from ..integration.processes import Program, wait

pytestmark = pytest.mark.processes

CLIENTS = volume(25, 200, 400)
WRITES = 3


def config_of(number: int, write: int) -> dict[str, str]:
    """A configuration whose settings belong together: a mixture of two writes is recognized."""
    return {"connector.class": "idle", "tasks.max": "1", "assignment.weight": f"{write + 1}", "log": f"/tmp/{write}"}


async def answered(
    api: httpx.AsyncClient, method: str, path: str, config: dict[str, str] | None = None, *, status: int, repeated: int
) -> httpx.Response:
    """Send a request until it is acknowledged: 503 means that the machine is overloaded, and acknowledges nothing.

    Args:
        status: the expected status.
        repeated: the status that is also allowed after a 503, which leaves open whether the change was made.
    """
    answer = await api.request(method, path, json=config)
    allowed = {status}
    for _ in range(10):
        if answer.status_code != 503:
            break
        allowed.add(repeated)
        answer = await api.request(method, path, json=config)
    assert answer.status_code in allowed, answer.text
    return answer


async def run_client(api: httpx.AsyncClient, number: int) -> tuple[str, dict[str, str] | None]:
    """Write and delete one connector; return its name and what the last acknowledged write leaves: null if deleted."""
    name, dice = f"c-{number}", random.Random(number)
    left: dict[str, str] | None = None
    for write in range(WRITES):
        if left is not None and dice.random() < 0.3:
            await answered(api, "DELETE", f"/connectors/{name}", status=204, repeated=404)
            left = None
        else:
            config = config_of(number, write)
            created = 200 if left else 201
            await answered(api, "PUT", f"/connectors/{name}/config", config, status=created, repeated=200)
            left = config
            shown = (await answered(api, "GET", f"/connectors/{name}", status=200, repeated=200)).json()["config"]
            assert shown == {**config, "name": name}, "a client reads its own write"
    return name, left


async def kill_workers(group: CommandGroup, workers: list[Program], done: asyncio.Event) -> int:
    """Kill a worker and start another one until ``done`` is set; return the number of kills."""
    kills = 0
    while not done.is_set():
        victim = workers.pop(0)
        victim.signal(signal.SIGKILL)
        await asyncio.to_thread(victim.ended)
        kills += 1
        workers.append(group.worker(f"w-{kills + 2}"))
        await asyncio.to_thread(workers[-1].line_with, "joining group")
    return kills


@ci_only("30 s of a core; in a user's run, rest/test_connectors and the test of power loss of the log")
async def test_every_acknowledged_write_is_kept_while_workers_are_killed(tmp_path: Path) -> None:
    with CommandGroup(tmp_path, tasks=2) as group:
        workers = [group.worker(f"w-{number}") for number in range(3)]
        rest = Program("rest", "--coordinator", group.address, "--port", 0, "--group", GROUP)
        try:
            url = rest.line_with("REST at ").removeprefix("REST at ").partition(",")[0]
            done = asyncio.Event()
            killer = asyncio.create_task(kill_workers(group, workers, done))
            limits = httpx.Limits(max_connections=CLIENTS)
            async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as api:
                try:
                    results = dict(await asyncio.gather(*(run_client(api, number) for number in range(CLIENTS))))
                except httpx.HTTPError as error:
                    raise AssertionError(f"{error!r}\n{rest.output()}\n{group.first_coordinator.output()}") from error
                done.set()
                assert await killer >= 1
                expanded = (await api.get("/connectors", params={"expand": "info"})).json()
            kept = {name: each["info"]["config"] for name, each in expanded.items() if name in results}
            assert kept == {name: {**left, "name": name} for name, left in results.items() if left is not None}
            units = 3 + 2 * len(kept)
            wait("all units", lambda: group.is_stable(units=units), group.described)
            assert not any("Traceback" in line for line in rest.lines), rest.output()
        finally:
            rest.kill()
            for worker in workers:
                worker.kill()

"""Duration of rebalances of large groups: the shipped coordinator and members in one process, without sockets.

    python benchmarks/convergence.py [--rounds 3] [--scale 1.0] [--profile]

Scenarios: 10 consumers (KIP-848, heartbeat interval 5 s, long polls) join together and share 900 partitions; 500
workers with 5,000 idle tasks, one more joins; 1,000 workers with 10,000 tasks, one more joins. Each ends when all
members own their balanced assignment. The table has medians: seconds by the clock, and CPU seconds of all parties
together. Exit code 1 if a group did not converge, or a unit had two owners; no time affects it.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import logging
import pstats
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Run as a script from any directory: the modules next to this file are imported as benchmarks.NAME.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from connectgroup.assignors.balanced import BalancedAssignor
from connectgroup.coordinator.compute import server_assignors
from connectgroup.coordinator.listing import ConsumerGroups
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log.memory import MemoryLog
from connectgroup.member.actions import Grant
from connectgroup.member.settings import MemberSettings
from connectgroup.protocol.messages.common import ConfigEntry
from connectgroup.protocol.messages.connectors import ConnectorChange, TaskConfig, UpdateConnectorsRequest
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest, each_partition
from connectgroup.protocol.units import TopicPartition, Unit, Units
from connectgroup.topics import StaticTopics
from connectgroup.transport.local import LocalClient
from connectgroup.worker.loop import Worker
from connectgroup.worker.settings import Connections

GROUP = "bench"
PATIENCE_S = 120.0
INTERVAL_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """One run.

    Attributes:
        wall_s: by the clock.
        cpu_s: CPU time of this process.
        faults: what was wrong at the end.
    """

    wall_s: float
    cpu_s: float
    faults: tuple[str, ...]


# --------------------------------------------------------------------------------------------------
# Consumers


class Consumer:
    """A member that revokes and acknowledges at once; it sends long polls."""

    def __init__(self, coordinator: Coordinator, number: int) -> None:
        self._coordinator, self._member_id = coordinator, f"consumer-{number}"
        self.owned: frozenset[TopicPartition] = frozenset()

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        epoch, topics, report = 0, (), True
        while True:
            request = ConsumerHeartbeatRequest(
                group_id=GROUP,
                member_id=self._member_id,
                member_epoch=epoch,
                rebalance_timeout_ms=60_000 if epoch == 0 else -1,
                subscribed_topic_names=("topic",) if epoch == 0 else None,
                owned=topics if report else None,
                max_wait_ms=INTERVAL_MS,
            )
            response: Any = await self._coordinator.handle(request, client_host="h")
            if response.error_code:
                raise RuntimeError(f"{response.error_code} {response.error_message}")
            epoch, report = response.member_epoch, False
            if response.assignment is not None:
                topics = response.assignment.topic_partitions
                report = frozenset(each_partition(topics)) != self.owned
                self.owned = frozenset(each_partition(topics))


async def consumers_join(members: int, partitions: int) -> Time:
    """All join together; the end: each owns its part."""
    consumers = ConsumerGroups(StaticTopics({"topic": partitions}))
    coordinator = Coordinator(MemoryLog(), GroupSettings(), consumers=consumers)
    await coordinator.start()
    group = [Consumer(coordinator, number) for number in range(members)]

    def converged() -> bool:
        counts = [len(each.owned) for each in group]
        return sum(counts) == partitions and max(counts) - min(counts) <= 1

    tasks: list[asyncio.Task[None]] = []

    async def join() -> None:
        tasks.extend(asyncio.create_task(each.run()) for each in group)

    try:
        return await timed(join, converged, lambda: Counter(unit for each in group for unit in each.owned))
    finally:
        await stop(tasks)
        await coordinator.close()


# --------------------------------------------------------------------------------------------------
# Workers


class NoTasks:
    """A runner that only notes what runs."""

    def __init__(self) -> None:
        self.running: dict[Unit, int] = {}

    async def start(self, grants: Sequence[Grant]) -> None:
        """See ``Runner.start``."""
        self.running.update({grant.unit: grant.owner_epoch for grant in grants})

    async def stop(self, units: Units) -> None:
        """See ``Runner.stop``."""
        for unit in units:
            self.running.pop(unit, None)


class Group:
    """A coordinator and workers on this event loop."""

    def __init__(self, workers: int, tasks: int) -> None:
        settings = GroupSettings(
            server_assignors=server_assignors(["balanced"]),
            max_members=10_000,
            session_timeout_ms=60_000,
            # A thousand workers in this process take a second of it each time all send their periodic heartbeats.
            heartbeat_interval_ms=20_000,
        )
        self.coordinator = Coordinator(MemoryLog(), settings)
        self.workers, self.tasks = workers, tasks
        self.runners: list[NoTasks] = []
        self._workers: list[Worker] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Group:
        await self.coordinator.start()
        for _ in range(self.workers):
            await self.add()
        await self._change(None, config=(ConfigEntry(name="connector.class", value="idle"),), expected_version=0)
        await until(lambda: bool(self._connector()))
        if not (running := self._connector()):
            raise TimeoutError(f"{self.workers} workers: the connector does not run after {PATIENCE_S:g} s")
        [(owner, owner_epoch)] = running
        await self._change(owner, task_configs=(TaskConfig(),) * self.tasks, owner_epoch=owner_epoch)
        await until(self.converged)
        return self

    async def _change(self, worker: int | None, **fields: Any) -> None:
        change = ConnectorChange(connector="big", **fields)
        request = UpdateConnectorsRequest(
            group_id=GROUP,
            member_id=f"worker-{worker}" if worker is not None else None,
            changes=(change,),
            process_id=self._workers[worker].member.process_id if worker is not None else -1,
        )
        response: Any = await self.coordinator.handle(request, client_host="h")
        assert not response.error_code, response.error_message
        assert not any(each.error_code for each in response.results), response.results

    def _connector(self) -> list[tuple[int, int]]:
        """The worker that runs the connector, and its owner epoch, if it runs."""
        return [
            (number, epoch)
            for number, runner in enumerate(self.runners)
            for unit, epoch in runner.running.items()
            if unit.is_connector
        ]

    async def __aexit__(self, *_: object) -> None:
        await stop(self._tasks)
        await self.coordinator.close()

    async def add(self) -> None:
        """Start one more worker."""
        name = f"worker-{len(self.runners)}"
        runner = NoTasks()
        self.runners.append(runner)
        worker = Worker(
            MemberSettings(group_id=GROUP, member_id=name),
            Connections(
                heartbeats=LocalClient(self.coordinator, client_id=name),
                control=LocalClient(self.coordinator, client_id=name),
            ),
            assignors=[BalancedAssignor()],
            runner=runner,
        )
        self._workers.append(worker)
        self._tasks.append(asyncio.create_task(worker.run()))

    def converged(self) -> bool:
        """Whether all tasks run, balanced; the connector itself runs too."""
        counts = [len(runner.running) for runner in self.runners]
        return sum(counts) == self.tasks + 1 and max(counts) - min(counts) <= 2 and min(counts) > 0

    def owners(self) -> Counter[Any]:
        """How many workers run each unit."""
        return Counter(unit for runner in self.runners for unit in runner.running)


async def worker_joins(workers: int, tasks: int) -> Time:
    """One worker joins a balanced group; the end: balanced again, with the minimum of moves or not."""
    async with Group(workers, tasks) as group:
        return await timed(group.add, group.converged, group.owners)


# --------------------------------------------------------------------------------------------------
# Measurement


async def timed(
    begin: Callable[[], Awaitable[None]], converged: Callable[[], bool], owners: Callable[[], Counter[Any]]
) -> Time:
    """Begin, and wait until the group has converged."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    await begin()
    await until(converged)
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    faults = [f"not converged within {PATIENCE_S:g} s"] if not converged() else []
    faults += [f"{unit} has {count} owners" for unit, count in owners().items() if count > 1]
    return Time(wall_s=wall_s, cpu_s=cpu_s, faults=tuple(faults))


async def until(converged: Callable[[], bool]) -> None:
    """Wait for a condition, or for ``PATIENCE_S``."""
    deadline = time.perf_counter() + PATIENCE_S
    while not converged() and time.perf_counter() < deadline:  # noqa: ASYNC110 - looks at several objects
        await asyncio.sleep(0.002)


async def stop(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


SCENARIOS: dict[str, tuple[Callable[[int, int], Any], int, int]] = {
    "{0} consumers join together, {1} partitions": (consumers_join, 10, 900),
    "{0} workers, {1} tasks, one joins": (worker_joins, 500, 5_000),
    "{0} workers, {1} tasks, one joins ": (worker_joins, 1_000, 10_000),
}
GOALS_S = (0.2, 0.15, 0.3)


def table(times: dict[str, list[Time]]) -> str:
    """Format the medians, one line for each scenario."""
    lines = ["| scenario | seconds | CPU seconds | goal |", "|---|---|---|---|"]
    for (name, of_it), goal_s in zip(times.items(), GOALS_S, strict=True):
        wall_s = statistics.median(each.wall_s for each in of_it)
        cpu_s = statistics.median(each.cpu_s for each in of_it)
        lines.append(f"| {name.strip()} | {wall_s:.3f} | {cpu_s:.3f} | {goal_s:g} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Time rebalances of large groups in one process.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all sizes, for a quick check")
    parser.add_argument("--profile", action="store_true", help="print the profile of each scenario")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    times: dict[str, list[Time]] = {}
    for title, (run, members, units) in SCENARIOS.items():
        sizes = max(2, int(members * options.scale)), max(2, int(units * options.scale))
        of_it = times.setdefault(title.format(*sizes), [])
        profiler = cProfile.Profile()
        for _ in range(options.rounds):
            if options.profile:
                profiler.enable()
            of_it.append(asyncio.run(run(*sizes)))
            profiler.disable()
        if options.profile:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    print(table(times))
    faults = [fault for of_it in times.values() for each in of_it for fault in each.faults]
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

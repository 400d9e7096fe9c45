"""How long a worker's runner takes to start and stop many idle tasks, and how long its event loop is blocked.

    python benchmarks/bulk.py [--tasks 100000]

One process, no coordinator, garbage collection as in a worker process. The heartbeat is a timer every 5 ms; its lag
includes other load on the machine. The CPU time of the loop's thread between two heartbeats does not.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from connectgroup.connector import Config
from connectgroup.gc_tuning import short_collections
from connectgroup.member.actions import Grant
from connectgroup.plugins import load_connector_class
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.units import Unit
from connectgroup.worker.runner import TaskRunner
from connectgroup.worker.settings import RunnerSettings

BEAT_S = 0.005


class Heart:
    """A timer on the event loop that measures its own lateness."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.start()
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def start(self) -> None:
        """Start a new measurement."""
        self.lag_s = self.cpu_s = 0.0
        self._last, self._last_cpu = self._loop.time(), time.thread_time()

    def _beat(self) -> None:
        now, cpu = self._loop.time(), time.thread_time()
        self.lag_s = max(self.lag_s, now - self._last - BEAT_S)
        self.cpu_s = max(self.cpu_s, cpu - self._last_cpu)
        self._last, self._last_cpu = now, cpu
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def stop(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()


async def measure(tasks: int, scratch: Path) -> list[str]:
    """Start and stop ``tasks`` tasks; return a row of the table for each."""
    running, count = asyncio.Event(), 0

    def report(status: TaskStatus) -> None:
        nonlocal count
        count += 1
        if count == tasks:
            running.set()

    async def publish(name: str, owner_epoch: int, configs: Sequence[Config]) -> None:
        raise AssertionError("no connector runs here")

    runner = TaskRunner(
        "bench", RunnerSettings(scratch=scratch), load_class=load_connector_class, publish=publish, report=report
    )
    config = {"connector.class": "idle", "tasks.max": str(tasks)}
    units = frozenset(Unit("c", number) for number in range(tasks))
    grants = [Grant(unit=unit, owner_epoch=1, connector_config=config) for unit in sorted(units)]
    heart, rows = Heart(), []

    def row(what: str, began: float, cpu: float) -> str:
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        return f"| {what} {tasks} | {took_s:.1f} | {cpu_s:.1f} | {heart.lag_s * 1000:.0f} | {heart.cpu_s * 1000:.0f} |"

    await asyncio.sleep(0.1)
    heart.start()
    began, cpu = time.perf_counter(), time.process_time()
    await runner.start(grants)
    await running.wait()
    rows.append(row("start", began, cpu))
    heart.start()
    began, cpu = time.perf_counter(), time.process_time()
    await runner.stop(units)
    rows.append(row("stop", began, cpu))
    heart.stop()
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurement and print a table."""
    parser = argparse.ArgumentParser(description="Start and stop many idle tasks in one worker's runner.")
    parser.add_argument("--tasks", type=int, default=100_000, help="how many (100000)")
    parser.add_argument(
        "--scratch", type=Path, help="where each task gets a directory; the default for temporary files"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    print(f"load {os.getloadavg()[0]:.1f}")
    print("| | seconds | CPU seconds | longest lag of the loop, ms | most CPU of its thread between heartbeats, ms |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch, short_collections():
        print("\n".join(asyncio.run(measure(options.tasks, Path(scratch)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

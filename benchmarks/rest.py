"""Latency of the REST API with many connectors: a coordinator, a REST server and idle workers as processes.

    python benchmarks/rest.py                        1,000 connectors, 2 workers
    python benchmarks/rest.py --connectors 200 --clients 1 4

Prints the median, the 99th percentile and the maximum in milliseconds, by request and by number of clients that send
requests one after the other. The clients share the cores with the servers.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from connectgroup import Admin

GROUP = "bench"
REQUESTS = (
    ("GET", "/connectors/c-{number}/status"),
    ("GET", "/connectors/c-{number}"),
    ("GET", "/connectors"),
    ("GET", "/connectors?expand=status"),
    ("PUT", "/connectors/c-{number}/pause"),
    ("PUT", "/connectors/c-{number}/resume"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connectors", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        address = _start(stack, "coordinator", "--port", "0", "--data", f"{folder}/data", line="coordinator at ")
        for number in range(options.workers):
            scratch = ("--scratch", f"{folder}/scratch")
            _start(stack, "worker", "--name", f"w-{number}", "--group", GROUP, "--coordinator", address, *scratch)
        rest = ("rest", "--coordinator", address, "--port", "0", "--group", GROUP, "--requests-per-second", "1000000")
        url = _start(stack, *rest, line="REST at ").removeprefix("http://").partition(",")[0]
        began = time.monotonic()
        asyncio.run(_create(address, options.connectors))
        print(f"{options.connectors} connectors, all running after {time.monotonic() - began:.1f} s")
        print(f"{'request':<34}{'clients':>8}{'requests':>10}{'median ms':>11}{'p99 ms':>9}{'max ms':>9}")
        for method, path in REQUESTS:
            for clients in options.clients:
                times = _measure(url, method, path, options.connectors, clients, options.seconds)
                p99 = statistics.quantiles(times, n=100)[98] if len(times) > 1 else times[0]
                row = f"{len(times):>10}{statistics.median(times):>11.1f}{p99:>9.1f}{max(times):>9.1f}"
                print(f"{method + ' ' + path.replace('c-{number}', 'C'):<34}{clients:>8}{row}", flush=True)
    return 0


def _start(stack: ExitStack, *words: str, line: str = "") -> str:
    """Start a command that ends with the block; return what follows this text in its output."""
    process = subprocess.Popen(
        [sys.executable, "-m", "connectgroup", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    while line:
        printed = process.stdout.readline()
        if not printed:
            raise RuntimeError(f"connectgroup {' '.join(words)}: ended without {line!r}")
        if line in printed:
            return printed.partition(line)[2].strip()
    return ""


async def _create(address: str, connectors: int) -> None:
    async with Admin.connect(address, timeout_s=60) as admin:
        for number in range(connectors):
            await admin.put_connector(GROUP, f"c-{number}", {"connector.class": "idle", "tasks.max": "1"})
        await admin.wait_until(
            GROUP,
            lambda group: (
                group.state == "Stable"
                and sum(unit.state == "RUNNING" for each in group.connectors for unit in each.units) == 2 * connectors
            ),
            what="running",
            timeout_s=300,
        )


def _measure(url: str, method: str, path: str, connectors: int, clients: int, seconds: float) -> list[float]:
    """Milliseconds of each request."""

    def client(first: int) -> list[float]:
        connection = http.client.HTTPConnection(url, timeout=60)
        times, number, end = [], first, time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            connection.request(method, path.format(number=number % connectors))
            response = connection.getresponse()
            response.read()
            times.append((time.perf_counter() - began) * 1000)
            if response.status >= 400:
                raise RuntimeError(f"{method} {path}: status {response.status}")
            number += 7
        connection.close()
        return times

    with ThreadPoolExecutor(clients) as pool:
        return [each for times in pool.map(client, range(clients)) for each in times]


if __name__ == "__main__":
    sys.exit(main())

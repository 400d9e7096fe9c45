"""The benchmarks of convergence and heartbeats: a small run, and the tables."""

from __future__ import annotations

from benchmarks import convergence
from benchmarks.heartbeats import Rate, table


async def test_consumers_converge() -> None:
    found = await convergence.consumers_join(3, 9)
    assert found.faults == ()


async def test_worker_that_joins_gets_its_tasks() -> None:
    found = await convergence.worker_joins(3, 12)
    assert found.faults == ()


def test_heartbeats_are_compared_with_the_broker() -> None:
    def rate(cpu_s: float) -> list[Rate]:
        return [Rate(count=100, cpu_s=cpu_s, wall_s=1.0, p99_s=0.001, rejected=0)]

    lines = table({"ours": rate(0.5), "Kafka broker": rate(1.0)}).splitlines()
    assert lines[2:] == [
        "| ours | 200 | 2.00x | 5000.0 | 100 | 1.0 |",
        "| Kafka broker | 100 | 1.00x | 10000.0 | 100 | 1.0 |",
    ]

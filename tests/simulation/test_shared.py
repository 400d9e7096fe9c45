"""Several coordinators on one log, simulated (``shared``): F12, F13, F29, F30; D4, D5 and D6 as invariants."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.log import leased
from connectgroup.log.leased import LeasedLog, OwnerRow
from connectgroup.testing.contracts.log import member
from tests.volume import volume

from .loop import Node, SimulatedLoop, simulated
from .shared import Database, SharedRun, SimulatedStore, run_shared

SEEDS = volume(8, 100)


def run_all(seeds: range) -> list[SharedRun]:
    with simulated():
        return [run_shared(seed) for seed in seeds]


def test_coordinators_of_one_log_never_serve_at_the_same_time_and_lose_nothing() -> None:
    """F12, F13, F29, F30."""
    runs = run_all(range(SEEDS))
    assert [(run.seed, run.violations) for run in runs if run.violations] == []
    reached = sum((run.reached for run in runs), Counter[str]())
    rare = {
        "taken over",
        "handed over",
        "batch of a former owner or of a former epoch",
        "answer to append lost",
        "append without an answer",
        "renew without an answer",
    }
    assert rare <= reached.keys(), reached
    assert all(run.acknowledged for run in runs)


class SlowStore(SimulatedStore):
    """A store of which it takes 4 s to fence the former owner and to read the log, before it writes the new one."""

    async def take(self, seen: OwnerRow, **named: Any) -> tuple[int, int] | None:
        await asyncio.sleep(4.0)
        return await super().take(seen, **named)


def test_owner_whose_lease_would_be_over_before_it_is_written_serves() -> None:
    """It would take the log again and again otherwise. The lease is 3 s: others wait from when they see the owner."""
    with simulated():
        loop = SimulatedLoop()
        database = Database(Random(1), lambda what: None, faulty=False)

        async def serve() -> None:
            log = LeasedLog(SlowStore(database, loop))
            await log.open()
            await log.append([member("a")])
            await log.close()

        loop.run_until_complete(loop.create_task(serve(), context=Node("a", "seed 1").context))
        loop.close()
    assert (database.owner.epoch, len(database.rows)) == (1, 1)


def is_found() -> bool:
    """Whether a seed violates an invariant about the coordinator that serves."""
    for first in range(0, 60, 6):
        runs = run_all(range(first, first + 6))
        if any("D5" in violation for run in runs for violation in run.violations):
            return True
    return False


def test_owner_that_takes_its_lease_for_longer_than_the_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased, "DRIFT", -0.5)
    assert is_found()


def test_owner_that_responds_after_its_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is not read again after a response was decided; the epoch in each write does not protect reads."""
    monkeypatch.setattr(LeasedLog, "lease_ends_s", property(lambda log: float("inf")))
    assert is_found()

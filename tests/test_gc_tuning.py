"""Full garbage collections stay short."""

from __future__ import annotations

import asyncio
import gc
import os
import signal

from connectgroup.cli.parser import build_parser
from connectgroup.cli.processes import serve_coordinator
from connectgroup.gc_tuning import FULL_AFTER, collect_all_again, short_collections


def test_survivors_of_a_long_collection_are_left_out_of_later_ones() -> None:
    frozen = gc.get_freeze_count()
    survivors: list[list[int]] = [[] for _ in range(1_001)]
    with short_collections(max_pause_s=0.0):
        gc.collect()
        assert gc.get_freeze_count() > frozen + 1_000
        survivors.clear()
        collect_all_again()
        assert gc.get_freeze_count() == 0
        gc.collect()
    assert gc.get_freeze_count() == 0


def test_after_a_short_collection_nothing_changes() -> None:
    frozen = gc.get_freeze_count()
    with short_collections(max_pause_s=3_600):
        gc.collect()
        assert gc.get_freeze_count() == frozen


async def test_process_of_a_coordinator_keeps_collections_short() -> None:
    """With 100,000 tasks, each full collection took 200 ms, in which no heartbeat was answered."""
    before = gc.get_threshold()
    options = build_parser().parse_args(["coordinator", "--log", "memory:", "--port", "0"])
    running = asyncio.create_task(serve_coordinator(options))
    while gc.get_threshold() == before:
        assert not running.done()
        await asyncio.sleep(0.01)
    assert gc.get_threshold()[2] == FULL_AFTER
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
    assert gc.get_threshold() == before

"""Full garbage collections stay short."""

from __future__ import annotations

import gc

from connectgroup.worker.garbage import collect_all_again, short_collections


def test_survivors_of_a_long_collection_are_left_out_of_later_ones() -> None:
    frozen = gc.get_freeze_count()
    with short_collections(max_pause_s=0.0):
        gc.collect()
        assert gc.get_freeze_count() > frozen + 1_000
        collect_all_again()
        assert gc.get_freeze_count() == 0
        gc.collect()
    assert gc.get_freeze_count() == 0


def test_after_a_short_collection_nothing_changes() -> None:
    frozen = gc.get_freeze_count()
    with short_collections(max_pause_s=3_600):
        gc.collect()
        assert gc.get_freeze_count() == frozen

"""What the offset store promises in passing: each of these could be broken without any other test noticing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectgroup.dataplane.errors import Fenced
from connectgroup.dataplane.offset_store import OffsetStore, Transaction
from connectgroup.dataplane.ownership import Owner, Range


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OffsetStore]:
    opened = OffsetStore(tmp_path / "o.sqlite", busy_timeout_s=0.2)
    yield opened
    opened.close()


def owner(epoch: int, task: int) -> Owner:
    return Owner(connector="c", task=task, tasks=2, fencing_token=epoch, source="d")


BATCH = [Range(slice="a", start=0, end=10)]


def test_a_claim_alone_fences_a_slice_before_its_new_owner_has_written_anything(store: OffsetStore) -> None:
    """X5: fence, then read the positions. What was written in between would be read a second time."""
    store.claim(owner(1, 0), lambda _: True)
    store.commit(owner(1, 0), BATCH)
    assert store.claim(owner(2, 1), lambda _: True) == {"a": 10}
    with pytest.raises(Fenced, match="a belongs to owner epoch 2, ours is 1"):
        store.commit(owner(1, 0), [Range(slice="a", start=10, end=20)])


def test_a_slice_of_a_later_owner_is_not_claimed(store: OffsetStore) -> None:
    """X1: neither the task's own fence nor the layout's would say no."""
    store.claim(owner(5, 1), lambda _: True)
    store.commit(owner(5, 1), BATCH)
    with pytest.raises(Fenced, match="a belongs to owner epoch 5, ours is 3"):
        store.claim(owner(3, 0), lambda _: True)
    assert store.claim(owner(3, 0), lambda _: False) == {}


def test_every_commit_waits_for_the_disk(store: OffsetStore) -> None:
    """NORMAL (1) may lose an acknowledged commit with the machine; FULL is 2. A test cannot pull the plug."""
    assert store.execute("PRAGMA synchronous") == [(2,)]


def test_nobody_else_writes_between_the_look_at_the_fences_and_the_write(store: OffsetStore) -> None:
    """The write lock is taken before the first read, or what was read could be out of date."""
    store.claim(owner(1, 0), lambda _: True)
    other = sqlite3.connect(store.path, isolation_level=None, timeout=0)

    def write(_: Transaction) -> None:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")

    assert store.commit(owner(1, 0), BATCH, write)
    other.execute("BEGIN IMMEDIATE")
    other.close()

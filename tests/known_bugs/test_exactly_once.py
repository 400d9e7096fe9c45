"""Bugs that lost or duplicated rows: inconsistent offsets and data. On real SQLite files, without Spark."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from connectgroup.connector import TaskContext
from connectgroup.dataplane.errors import OffsetConflict, SinkError, TaskFenced
from connectgroup.dataplane.fences import Transaction
from connectgroup.dataplane.offset_store import OffsetStore, SqliteTransaction
from connectgroup.dataplane.ownership import Owner, Range
from connectgroup.protocol.units import Unit
from connectgroup.spark.sources.catalog import is_slice_of
from connectgroup.worker.settings import WorkerSettings
from tests.worker.builders import World


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sink.sqlite"


@pytest.fixture
def open_store(path: Path) -> Iterator[Callable[[], OffsetStore]]:
    """Another connection to the same file, as another worker would open it."""
    opened: list[OffsetStore] = []

    def make(cls: type[OffsetStore] = OffsetStore) -> OffsetStore:
        opened.append(cls(path, busy_timeout_s=0.2))
        opened[-1].execute("CREATE TABLE IF NOT EXISTS rows (slice TEXT, at INTEGER)")
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def owner(epoch: int, task: int = 0, tasks: int = 1) -> Owner:
    return Owner(connector="c", task=task, tasks=tasks, fencing_token=epoch)


def every(_: str) -> bool:
    return True


def mine(who: Owner) -> Callable[[str], bool]:
    return lambda name: is_slice_of(name, who.task, who.tasks)


def put(store: OffsetStore, who: Owner, *ranges: Range) -> bool:
    """Commit a batch with a row for each position of the ranges."""

    def write(connection: Transaction) -> None:
        rows = [(r.slice, at) for r in ranges for at in range(r.start, r.end)]
        connection.execute_many("INSERT INTO rows VALUES (?, ?)", rows)

    return store.commit(who, ranges, write)


def span(start: int, end: int, name: str = "f") -> Range:
    return Range(slice=name, start=start, end=end)


def positions(store: OffsetStore) -> dict[str, int]:
    """The positions of the slices; the rows are exactly those before them."""
    positions = store.positions("c")
    found = store.execute("SELECT slice, at FROM rows ORDER BY slice, at")
    assert found == [(name, at) for name, end in sorted(positions.items()) for at in range(end)]
    return positions


# --------------------------------------------------------------------------------------------------
# Jepsen's report on transactions, KAFKA-17507


class LosesResponses(OffsetStore):
    """The response of a commit is lost, before or after it took effect."""

    lost: str = ""

    @contextmanager
    def _transaction(self) -> Iterator[SqliteTransaction]:
        with super()._transaction() as connection:
            yield connection
            if self.lost == "before the commit":
                raise SinkError("connection reset")
        if self.lost == "after the commit":
            raise SinkError("connection reset")


@pytest.mark.parametrize("again", ["same owner", "next owner"])
@pytest.mark.parametrize("lost", ["before the commit", "after the commit"])
def test_commit_of_unknown_outcome_is_looked_up_before_a_retry(
    open_store: Callable[..., OffsetStore], lost: str, again: str
) -> None:
    """Jepsen Bufstream K-txn: a commit with an unknown outcome was retried and lost writes; here the retrying owner
    reads the position of the sink first, so a batch that is already committed is recognized.
    """
    store = open_store(LosesResponses)
    assert isinstance(store, LosesResponses)
    store.claim(owner(1), every)
    put(store, owner(1), span(0, 5))
    store.lost = lost
    with pytest.raises(SinkError, match="connection reset"):
        put(store, owner(1), span(5, 9))
    store.lost = ""
    if again == "same owner":
        assert put(store, owner(1), span(5, 9)) is (lost == "before the commit")
    else:
        successor = open_store()
        stands = successor.claim(owner(2), every)["f"]
        assert stands == (5 if lost == "before the commit" else 9)
        assert put(successor, owner(2), span(stands, 12))
        for late in (span(5, 9), span(0, 1, "new")):
            with pytest.raises(TaskFenced):
                put(store, owner(1), late)
    positions(store)


def test_delayed_commit_does_not_affect_the_successor(
    open_store: Callable[..., OffsetStore],
) -> None:
    """Jepsen Bufstream K-txn: a delayed commit took effect during a later transaction; here one transaction checks
    the fence and writes: a commit after the successor's claim is rejected, one before it is visible.
    """
    late, successor = open_store(), open_store()
    late.claim(owner(1), every)
    inside, may_end = threading.Event(), threading.Event()

    def slow(connection: Transaction) -> None:
        connection.execute("INSERT INTO rows VALUES ('f', 0)")
        inside.set()
        assert may_end.wait(30)

    outcome: list[object] = []
    commit = threading.Thread(target=lambda: outcome.append(late.commit(owner(1), [span(0, 1)], slow)))
    commit.start()
    assert inside.wait(30)
    with pytest.raises(SinkError, match="locked by another connection"):
        successor.claim(owner(2), every)  # a position that is about to change cannot be read
    may_end.set()
    commit.join()
    assert outcome == [True]
    assert successor.claim(owner(2), every) == {"f": 1}
    with pytest.raises(TaskFenced):
        put(late, owner(1), span(1, 2))
    with pytest.raises(TaskFenced):
        put(late, owner(1), span(0, 3, "new"))
    assert put(successor, owner(2), span(1, 4))
    assert positions(successor) == {"f": 4}


# --------------------------------------------------------------------------------------------------
# KAFKA-13469, KAFKA-12226


def test_batch_is_not_committed_past_one_that_failed(open_store: Callable[..., OffsetStore]) -> None:
    """KAFKA-13469: offsets were committed at the end of a task before all records in flight had been acknowledged.
    KAFKA-12226: one unacknowledged record blocked all commits. Here the position of a slice is the end of its last
    committed batch: a later batch is rejected while an earlier one is missing, and other slices continue.
    """
    store = open_store()
    store.claim(owner(1), every)
    put(store, owner(1), span(0, 5), span(0, 2, "g"))

    def fail(connection: Transaction) -> None:
        connection.execute("INSERT INTO rows VALUES ('f', 5)")
        raise ConnectionError("the sink has failed")

    with pytest.raises(ConnectionError):
        store.commit(owner(1), [span(5, 8)], fail)
    for beyond in (span(8, 9), span(6, 9), span(9, 20)):
        with pytest.raises(OffsetConflict):
            put(store, owner(1), beyond)
    assert put(store, owner(1), span(2, 7, "g"))
    assert store.positions("c") == {"f": 5, "g": 7}
    assert open_store().claim(owner(2), every) == {"f": 5, "g": 7}, "a successor starts here"
    store = open_store()
    assert put(store, owner(2), span(5, 8))
    assert positions(store) == {"f": 8, "g": 7}


# --------------------------------------------------------------------------------------------------
# KAFKA-13472, KAFKA-13927


def test_each_slice_keeps_its_position_while_others_move(open_store: Callable[..., OffsetStore]) -> None:
    """KAFKA-13472: after a part of the partitions was revoked, the offsets of the rest were overwritten.
    KAFKA-13927: after a retry the wrong offsets were rewound. Here each slice has its own row: whatever moves, fails
    or is retried, the others keep their positions.
    """
    names = [f"part-{number}.csv" for number in range(12)]
    chance, stores = random.Random(7), [open_store() for _ in range(3)]
    epoch, tasks, stands = 1, 3, dict.fromkeys(names, 0)
    owners = [owner(epoch, task, tasks) for task in range(tasks)]
    for who in owners:
        stores[who.task].claim(who, mine(who))
    handed = 0
    for turn in range(120):
        who = chance.choice(owners)
        if turn % 10 == 9:  # one task, or all of them, get a new owner
            epoch += 1
            if turn % 40 == 39:
                tasks = 5 - tasks
                owners = [owner(epoch, task, tasks) for task in range(tasks)]
                claims = owners
            else:
                claims = [owner(epoch, who.task, tasks)]
                owners[who.task] = claims[0]
            for claim in claims:
                known = stores[claim.task].claim(claim, mine(claim))
                assert known == {name: at for name, at in stands.items() if at and mine(claim)(name)}
                handed += 1
            continue
        batch = [span(stands[n], stands[n] + chance.randint(1, 3), n) for n in names if mine(who)(n)]
        batch = chance.sample(batch, chance.randint(1, len(batch)))
        if chance.random() < 0.3:
            with pytest.raises(ZeroDivisionError):
                stores[who.task].commit(who, batch, lambda connection: 1 // 0)  # type: ignore[arg-type]
        put(stores[who.task], who, *batch)
        if chance.random() < 0.3:
            assert put(stores[who.task], who, *batch) is False, "a retry has no effect"
        stands.update({r.slice: r.end for r in batch})
        assert stores[0].positions("c") == {name: at for name, at in stands.items() if at}
    assert handed > 12
    positions(stores[0])


# --------------------------------------------------------------------------------------------------
# KAFKA-15800


@pytest.mark.parametrize("own_connection", [False, True])
@pytest.mark.parametrize(
    "bad",
    [
        [span(5, 3)],
        [span(0, 1), span(1, 2)],
        [span(0, 2**63)],
        [span(0, 1, "a lone \ud800")],
        [span(0, 1), span(-4, 2, "g")],
    ],
    ids=["backwards", "twice", "too far", "no text", "before the beginning"],
)
def test_offsets_that_cannot_be_stored_fail_their_own_task_only(
    open_store: Callable[..., OffsetStore], bad: Sequence[Range], own_connection: bool
) -> None:
    """KAFKA-15800: offsets that could not be serialized left the flush half done, and every task after that failed;
    here nothing of such a batch is committed, and the same connection commits the next batch of any task.
    """
    store = open_store()
    other = open_store() if own_connection else store
    good, sound = owner(1, task=0, tasks=2), owner(2, task=1, tasks=2)
    store.claim(good, mine(good))
    other.claim(sound, mine(sound))
    with pytest.raises(Exception) as raised:
        store.commit(good, bad, lambda connection: None)
    assert not isinstance(raised.value, sqlite3.Error)
    assert not store._connection.in_transaction
    assert store.positions("c") == {}
    assert put(other, sound, span(0, 3, "h"))
    assert put(store, good, span(0, 4))
    assert positions(store) == {"f": 4, "h": 3}


# --------------------------------------------------------------------------------------------------
# KAFKA-19242


class Interrupted(OffsetStore):
    """An action runs between the read of the fences and the read of the positions."""

    between: Callable[[], None] | None = None

    @contextmanager
    def _transaction(self) -> Iterator[SqliteTransaction]:
        with super()._transaction() as transaction:
            yield Watched(transaction, self.between) if self.between is not None else transaction


class Watched(SqliteTransaction):
    """A transaction that calls a function before it reads positions."""

    def __init__(self, transaction: SqliteTransaction, before: Callable[[], None]) -> None:
        super().__init__(transaction._connection, Path(transaction.where))
        self._before = before

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        if statement.startswith("SELECT position"):
            self._before()
        return super().execute(statement, *values)


def test_fences_and_positions_are_read_in_one_transaction(open_store: Callable[..., OffsetStore]) -> None:
    """KAFKA-19242: the state that a commit is checked against was read twice and changed in between, so a valid commit
    failed; here one transaction reads both, and no other owner's claim or commit can come between.
    """
    store, successor = open_store(Interrupted), open_store()
    assert isinstance(store, Interrupted)
    store.claim(owner(1), every)
    refused: list[str] = []

    def run_between() -> None:
        for attempt in (lambda: successor.claim(owner(2), every), lambda: put(successor, owner(2), span(0, 1))):
            with pytest.raises(SinkError, match="locked") as raised:
                attempt()
            refused.append(str(raised.value))

    store.between = run_between
    assert put(store, owner(1), span(0, 5)) is True
    assert len(refused) == 2
    assert successor.claim(owner(2), every) == {"f": 5}
    store.between = None
    with pytest.raises(TaskFenced):
        put(store, owner(1), span(5, 6))
    assert positions(store) == {"f": 5}


# --------------------------------------------------------------------------------------------------
# iceberg-kafka-connect#200


async def test_new_owner_fences_the_former_owner_whatever_their_names(
    tmp_path: Path, open_store: Callable[..., OffsetStore]
) -> None:
    """iceberg-kafka-connect#200: transactional ids were random, so the former owner was not fenced; here the fence
    belongs to connector and task, and the token to the grant, independent of process and member id.
    """
    contexts: list[TaskContext] = []
    async with World(tmp_path) as world:
        world.zombies.update(f"worker-{number:08x}" for number in (7, 13, 99))
        await world.add("c", 1)
        for number in (99, 7, 13):
            name = f"worker-{number:08x}"
            actor = world.start(name, times=WorkerSettings(lose_timeout_s=1))
            await world.settled(name, within=40)
            contexts.append(world.contexts[Unit("c", 0)])
            actor.cut()
            await asyncio.sleep(1)
    store = open_store()
    owners = [owner(context.fencing_token) for context in contexts]
    assert len({context.member_id for context in contexts}) == 3
    assert sorted({context.fencing_token for context in contexts}) == [context.fencing_token for context in contexts]
    at = 0
    for number, who in enumerate(owners):
        assert store.claim(who, every) == ({"f": at} if at else {})
        assert put(store, who, span(at, at + 3))
        at += 3
        for zombie in owners[:number]:
            for late in (span(at, at + 1), span(0, 1, "new")):
                with pytest.raises(TaskFenced):
                    put(store, zombie, late)
            with pytest.raises(TaskFenced):
                store.claim(zombie, every)
    assert positions(store) == {"f": 9}

"""The offset store alone, on real SQLite files: fences, positions, and concurrent writers."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from connectgroup.connector import TaskContext
from connectgroup.dataplane.errors import OffsetConflict, SinkError, TaskFenced
from connectgroup.dataplane.fences import TABLES, Transaction
from connectgroup.dataplane.offset_store import OffsetStore
from connectgroup.dataplane.ownership import Owner, Position, Range, metadata_of
from connectgroup.protocol.units import Unit
from connectgroup.spark.sinks.kafka_offsets import Latest, State, slice_records
from connectgroup.spark.sources.catalog import is_slice_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OffsetStore]:
    opened = OffsetStore(tmp_path / "o.sqlite", busy_timeout_s=0.2)
    opened.execute("CREATE TABLE t (v TEXT)")
    yield opened
    opened.close()


def owner(epoch: int, task: int = 0, tasks: int = 1, source: str = "d") -> Owner:
    return Owner(connector="c", task=task, tasks=tasks, fencing_token=epoch, source=source)


def one(slice_: str, start: int, end: int) -> list[Range]:
    return [Range(slice=slice_, start=start, end=end)]


def every(_: str) -> bool:
    return True


def put(store: OffsetStore, who: Owner, ranges: Sequence[Range], value: str = "x") -> bool:
    def write(connection: Transaction) -> None:
        connection.execute("INSERT INTO t VALUES (?)", value)

    return store.commit(who, ranges, write)


def written(store: OffsetStore) -> list[object]:
    return [row[0] for row in store.execute("SELECT v FROM t ORDER BY rowid")]


def test_successor_resumes_at_the_positions_of_its_predecessor(store: OffsetStore) -> None:
    assert store.claim(owner(1), every) == {}
    put(store, owner(1), [*one("a", 0, 10), *one("b", 0, 5)])
    put(store, owner(1), one("a", 10, 12))
    assert store.claim(owner(2), every) == {"a": 12, "b": 5}


def test_predecessor_cannot_write_after_the_claim_of_its_successor(store: OffsetStore) -> None:
    """X1, for a slice that both owners know."""
    store.claim(owner(1), every)
    put(store, owner(1), one("a", 0, 10))
    store.claim(owner(2), every)
    with pytest.raises(TaskFenced, match=r"c-0: task-0 belongs to owner epoch 2, ours is 1"):
        put(store, owner(1), one("a", 10, 20), "zombie")
    assert written(store) == ["x"]
    assert store.positions("c") == {"a": 10}


def test_predecessor_cannot_write_a_new_slice(store: OffsetStore) -> None:
    """X1, where no fence of a slice exists."""
    store.claim(owner(1), every)
    store.claim(owner(2), every)
    with pytest.raises(TaskFenced, match="task-0"):
        put(store, owner(1), one("new", 0, 10), "zombie")
    assert written(store) == []


def test_slice_moved_to_another_task_rejects_the_former_owner(store: OffsetStore) -> None:
    """The fence of the slice: the layout and the task's fence would not reject the old owner."""
    store.claim(owner(1, task=0, tasks=2), every)
    store.claim(owner(2, task=1, tasks=2), every)
    put(store, owner(2, task=1, tasks=2), one("a", 0, 10))
    with pytest.raises(TaskFenced, match="c-0: a belongs to owner epoch 2, ours is 1"):
        put(store, owner(1, task=0, tasks=2), one("a", 10, 20), "zombie")


def test_removed_task_is_fenced_by_the_new_number_of_tasks(store: OffsetStore) -> None:
    """No later owner of task 2 fences it, and its batch has only a new file: the fence of the layout rejects it."""
    store.claim(owner(5, task=2, tasks=3), every)
    store.claim(owner(6, task=0, tasks=2), every)
    with pytest.raises(TaskFenced, match="layout of 2 tasks belongs to owner epoch 6, ours is 5"):
        put(store, owner(5, task=2, tasks=3), one("new", 0, 1), "zombie")


def test_task_of_an_earlier_layout_is_fenced_when_the_number_of_tasks_returns(store: OffsetStore) -> None:
    """3 -> 2 -> 3: the number of tasks alone would not reject task 2 of the first layout."""
    store.claim(owner(5, task=2, tasks=3), every)
    store.claim(owner(6, task=0, tasks=2), every)
    store.claim(owner(8, task=0, tasks=3), every)
    with pytest.raises(TaskFenced):
        put(store, owner(5, task=2, tasks=3), one("new", 0, 1), "zombie")
    with pytest.raises(TaskFenced):
        store.claim(owner(6, task=1, tasks=3), every)


def test_tasks_of_one_layout_may_claim_in_any_order_of_epochs(store: OffsetStore) -> None:
    """A task with epoch 8 that starts later than one with epoch 9 is not a zombie."""
    store.claim(owner(5, task=0, tasks=2), every)
    store.claim(owner(9, task=0, tasks=3), lambda name: is_slice_of(name, 0, 3))
    store.claim(owner(8, task=1, tasks=3), lambda name: is_slice_of(name, 1, 3))
    assert put(store, owner(8, task=1, tasks=3), one("b", 0, 1))


def test_restarted_zombie_cannot_restore_its_layout(store: OffsetStore) -> None:
    store.claim(owner(5, task=0, tasks=3), every)
    store.claim(owner(6, task=0, tasks=2), every)
    with pytest.raises(TaskFenced, match="layout of 2 tasks belongs to owner epoch 6, ours is 5"):
        store.claim(owner(5, task=2, tasks=3), every)
    assert put(store, owner(6, task=0, tasks=2), one("a", 0, 1))


def test_new_layout_fences_the_old_one_in_any_order_of_claims(store: OffsetStore) -> None:
    store.claim(owner(9, task=2, tasks=3), every)
    store.claim(owner(8, task=0, tasks=3), every)
    store.claim(owner(10, task=0, tasks=2), every)
    with pytest.raises(TaskFenced, match="layout of 2 tasks belongs to owner epoch 10, ours is 9"):
        put(store, owner(9, task=2, tasks=3), one("new", 0, 1), "zombie")


def test_claim_takes_only_the_slices_of_its_own_task(store: OffsetStore) -> None:
    """A new owner of one task must not fence its neighbours."""
    store.claim(owner(1, task=0, tasks=2), every)
    put(store, owner(1, task=0, tasks=2), one("a", 0, 1))
    assert store.claim(owner(2, task=1, tasks=2), lambda name: name != "a") == {}
    assert put(store, owner(1, task=0, tasks=2), one("a", 1, 2))


def test_lower_epoch_cannot_claim(store: OffsetStore) -> None:
    store.claim(owner(7), every)
    with pytest.raises(TaskFenced, match="task-0 belongs to owner epoch 7, ours is 6"):
        store.claim(owner(6), every)


def test_task_may_restart_under_its_own_epoch(store: OffsetStore) -> None:
    """The worker restarts a failed task without a new grant."""
    store.claim(owner(1), every)
    put(store, owner(1), one("a", 0, 10))
    assert store.claim(owner(1), every) == {"a": 10}
    assert put(store, owner(1), one("a", 10, 20))


def test_committed_batch_is_not_written_again(store: OffsetStore) -> None:
    """X2; paimon#9667: a batch replayed after a crash between the sink's commit and Spark's commit log."""
    store.claim(owner(1), every)
    batch = [*one("a", 0, 10), *one("b", 0, 5)]
    assert put(store, owner(1), batch) is True
    assert put(store, owner(1), batch) is False
    assert written(store) == ["x"]


@pytest.mark.parametrize(
    "ranges",
    [
        one("a", 0, 12),  # begins before the position, ends after it
        one("a", 9, 12),
        one("a", 11, 12),  # a gap
        one("a", 0, 9),
        [*one("a", 0, 10), *one("new", 0, 5)],  # one slice is committed, the other is not
        [*one("a", 10, 12), *one("new", 3, 5)],
    ],
)
def test_batch_that_does_not_start_at_the_positions_is_rejected_whole(store: OffsetStore, ranges: list[Range]) -> None:
    """X2: another range for a committed batch ends the query; it is not written a second time."""
    store.claim(owner(1), every)
    put(store, owner(1), one("a", 0, 10))
    with pytest.raises(OffsetConflict, match="allowed: a batch that starts where every slice of it stands"):
        put(store, owner(1), ranges, "again")
    assert written(store) == ["x"]
    assert store.positions("c") == {"a": 10}


def test_write_without_a_claim_is_rejected(store: OffsetStore) -> None:
    with pytest.raises(OffsetConflict, match="claim first"):
        put(store, owner(1), one("a", 0, 1))
    store.claim(owner(1), every)
    with pytest.raises(OffsetConflict, match="claim first"):
        put(store, owner(2), one("a", 0, 1))


def test_failed_write_moves_no_position(store: OffsetStore) -> None:
    store.claim(owner(1), every)

    def write(connection: Transaction) -> None:
        connection.execute("INSERT INTO t VALUES ('half')")
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError):
        store.commit(owner(1), one("a", 0, 1), write)
    assert written(store) == []
    assert put(store, owner(1), one("a", 0, 1))


def test_connectors_in_one_file_are_independent(store: OffsetStore) -> None:
    other = Owner(connector="d", task=0, tasks=4, fencing_token=1, source="e")
    store.claim(owner(9), every)
    put(store, owner(9), one("a", 0, 10))
    assert store.claim(other, every) == {}
    assert put(store, other, one("a", 0, 3))
    assert store.positions("c") == {"a": 10}


def test_connector_with_another_source_is_rejected(store: OffsetStore) -> None:
    """X7: positions in one directory mean nothing in another."""
    store.claim(owner(1, source="here"), every)
    with pytest.raises(SinkError, match="has read here, not there; allowed: the same source, or another connector"):
        store.claim(owner(2, source="there"), every)


def test_lock_held_too_long_is_a_one_line_error(store: OffsetStore) -> None:
    store.claim(owner(1), every)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SinkError, match=r"o\.sqlite: locked by another connection for more than 0\.2 s; allowed: "):
        put(store, owner(1), one("a", 0, 1))
    other.execute("ROLLBACK")
    other.close()
    assert put(store, owner(1), one("a", 0, 1))


def test_full_database_is_a_one_line_error_and_loses_nothing(store: OffsetStore) -> None:
    store.claim(owner(1), every)
    store.execute(f"PRAGMA max_page_count = {store.execute('PRAGMA page_count')[0][0]}")
    with pytest.raises(SinkError, match="the database or its disk is full; allowed: free space"):
        put(store, owner(1), one("a", 0, 1), "x" * 100_000)
    assert store.positions("c") == {}
    store.execute("PRAGMA max_page_count = 1000000")
    assert put(store, owner(1), one("a", 0, 1), "x" * 100_000)


def test_file_that_is_no_database_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "o.sqlite").write_text("not a database, and longer than a header " * 20)
    with pytest.raises(SinkError, match="not an SQLite database; allowed"):
        OffsetStore(tmp_path / "o.sqlite")
    with pytest.raises(SinkError, match="cannot be opened; allowed"):
        OffsetStore(tmp_path / "missing" / "o.sqlite")


def test_many_workers_may_open_a_new_file_at_the_same_time(tmp_path: Path) -> None:
    gate, errors = threading.Barrier(8), []

    def work(number: int) -> None:
        gate.wait()
        try:
            mine = OffsetStore(tmp_path / "o.sqlite")
            who = owner(1, task=number, tasks=8)
            mine.claim(who, lambda name: name == str(number))
            for k in range(5):
                mine.commit(who, one(str(number), k, k + 1))
            mine.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    store = OffsetStore(tmp_path / "o.sqlite")
    assert store.positions("c") == {str(n): 5 for n in range(8)}
    store.close()


@pytest.mark.parametrize("seed", range(60))
def test_every_byte_of_every_slice_is_committed_once_in_random_runs(tmp_path: Path, seed: int) -> None:
    """Random grants, layouts, zombies, replays and lost responses: committed is [0, position), once."""
    chance = random.Random(seed)
    store = OffsetStore(tmp_path / "o.sqlite")
    store.execute("CREATE TABLE bytes (slice TEXT, at INTEGER)")
    slices = [f"f{n}" for n in range(6)]
    epoch, tasks = 1, chance.randint(1, 3)
    lives: list[tuple[Owner, dict[str, int]]] = []
    fenced = committed = 0
    for _ in range(150):
        if not lives or chance.random() < 0.15:
            if chance.random() < 0.3:
                tasks = chance.choice([n for n in (1, 2, 3) if n != tasks])
            epoch += 1
            who = owner(epoch, task=chance.randrange(tasks), tasks=tasks)
            mine = store.claim(who, lambda name, who=who: is_slice_of(name, who.task, who.tasks))  # type: ignore[misc]
            lives.append((who, mine))
            continue
        who, at = chance.choice(lives[-6:])
        batch = []
        for name in slices:
            if is_slice_of(name, who.task, who.tasks) and chance.random() < 0.7:
                start = at.get(name, 0)
                batch.append(Range(slice=name, start=start, end=start + chance.randint(1, 4)))
        if not batch:
            continue

        def write(connection: Transaction, batch: list[Range] = batch) -> None:
            rows = [(r.slice, k) for r in batch for k in range(r.start, r.end)]
            connection.execute_many("INSERT INTO bytes VALUES (?, ?)", rows)

        try:
            committed += store.commit(who, batch, write)
        except TaskFenced:
            fenced += 1
            lives.remove((who, at))
        else:
            # A lost response: the owner repeats the same batch.
            if chance.random() < 0.3:
                assert store.commit(who, batch, write) is False
            at.update({r.slice: r.end for r in batch})
    found = store.execute("SELECT slice, at FROM bytes ORDER BY slice, at")
    assert found == [(name, k) for name, end in sorted(store.positions("c").items()) for k in range(end)]
    assert committed > 5, seed
    assert fenced > 0, seed
    store.close()


def test_recreated_group_resumes_at_the_positions_of_the_former_one(store: OffsetStore, tmp_path: Path) -> None:
    """X1, the group's incarnation: its log was lost, so its epochs restart at 1, below every fence in the sink."""

    def token(made_at_s: int, epoch: int) -> int:
        return TaskContext(
            unit=Unit("c", 0),
            owner_epoch=epoch,
            incarnation=made_at_s * 1000 + 7,
            member_id="w",
            scratch=tmp_path,
            progress=lambda rows: None,
            failed=lambda error: None,
        ).fencing_token

    before, after = owner(token(1_700_000_000, 40)), owner(token(1_700_000_001, 1))
    store.claim(before, every)
    put(store, before, one("a", 0, 10))
    assert store.claim(after, every) == {"a": 10}
    put(store, after, one("a", 10, 12))
    with pytest.raises(TaskFenced, match="task-0 belongs to owner epoch 1 of a group made later, ours is 40;"):
        put(store, before, one("a", 12, 14))
    assert after.owner_epoch == 1
    assert token(4_294_967_295 // 2, 2**31 - 1) < 2**63, "it fits SQLite's integers"


def test_claim_fences_the_former_owner_before_the_first_write(store: OffsetStore) -> None:
    """X5: first the fence, then the positions. Rows written in between would be read a second time."""
    store.claim(owner(1, 0, tasks=2), every)
    store.commit(owner(1, 0, tasks=2), one("a", 0, 10))
    assert store.claim(owner(2, 1, tasks=2), every) == {"a": 10}
    with pytest.raises(TaskFenced, match="a belongs to owner epoch 2, ours is 1"):
        store.commit(owner(1, 0, tasks=2), one("a", 10, 20))


def test_slice_of_a_later_owner_cannot_be_claimed(store: OffsetStore) -> None:
    """X1: the fences of the task and of the layout would not reject it."""
    store.claim(owner(5, 1, tasks=2), every)
    store.commit(owner(5, 1, tasks=2), one("a", 0, 10))
    with pytest.raises(TaskFenced, match="a belongs to owner epoch 5, ours is 3"):
        store.claim(owner(3, 0, tasks=2), every)
    assert store.claim(owner(3, 0, tasks=2), lambda _: False) == {}


def test_offset_store_is_opened_with_synchronous_full(store: OffsetStore) -> None:
    """NORMAL (1) may lose an acknowledged commit when the machine fails; FULL is 2. A test cannot cut the power."""
    assert store.execute("PRAGMA synchronous") == [(2,)]


def test_write_lock_is_taken_before_the_fences_are_read(store: OffsetStore) -> None:
    """Fences read without the lock could be outdated."""
    store.claim(owner(1, 0, tasks=2), every)
    other = sqlite3.connect(store.path, isolation_level=None, timeout=0)

    def write(_: Transaction) -> None:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")

    assert store.commit(owner(1, 0, tasks=2), one("a", 0, 10), write)
    other.execute("BEGIN IMMEDIATE")
    other.close()


def test_metadata_of_a_position_are_committed_and_claimed_with_it(store: OffsetStore) -> None:
    store.claim(owner(1), every)
    store.commit(owner(1), [Range(slice="a", start=0, end=Position(10, "fingerprint"))])
    store.commit(owner(1), one("b", 0, 5))
    found = store.claim(owner(2), every)
    assert {name: (at, metadata_of(at)) for name, at in found.items()} == {"a": (10, "fingerprint"), "b": (5, "")}
    assert metadata_of(store.positions("c")["a"]) == "fingerprint"
    store.alter("c", 3, {"a": 3})
    assert metadata_of(store.positions("c")["a"]) == "", "another position has other metadata"


def test_file_from_before_positions_had_metadata_still_loads(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "o.sqlite")
    for name, statement in TABLES.items():
        former = statement.replace(" metadata TEXT NOT NULL DEFAULT '',", "")
        assert (former != statement) == (name == "connectgroup_offsets")
        old.execute(f"{former} WITHOUT ROWID")
    old.execute("INSERT INTO connectgroup_offsets VALUES ('c', 'a', 10, 1)")
    old.commit()
    old.close()
    store = OffsetStore(tmp_path / "o.sqlite")
    assert store.claim(owner(2), every) == {"a": 10}
    store.commit(owner(2), [Range(slice="a", start=10, end=Position(12, "m"))])
    assert metadata_of(store.claim(owner(3), every)["a"]) == "m"
    store.close()


def test_metadata_are_stored_in_postgres_also_in_tables_from_before(database: str) -> None:
    import psycopg

    from connectgroup.dataplane.postgres_store import PostgresOffsetStore

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES["connectgroup_offsets"].replace(" metadata TEXT NOT NULL DEFAULT '',", ""))
        connection.execute("INSERT INTO connectgroup_offsets VALUES ('c', 'a', 10, 1)")
    store = PostgresOffsetStore(database)
    assert store.claim(owner(2), every) == {"a": 10}
    store.commit(owner(2), [Range(slice="a", start=10, end=Position(12, "m"))], lambda _: None)
    assert metadata_of(store.claim(owner(3), every)["a"]) == metadata_of(store.positions("c")["a"]) == "m"
    store.close()


def test_metadata_are_in_the_records_of_the_offsets_topic() -> None:
    state = State()
    range_ = Range(slice="a", start=0, end=Position(10, "m"))
    for key, value in slice_records(owner(1), [range_]):
        _, kind, name = json.loads(key)
        state.apply(kind, name, json.loads(value))
    state.apply("slice", "old", {"position": 3, "token": 1})
    claimed = {json.loads(key)[2]: json.loads(value) for key, value in state.claim_records(owner(2), {}, every)}
    assert claimed["a"] == {"position": 10, "token": 2, "metadata": "m"}
    assert claimed["old"] == {"position": 3, "token": 2}


def test_record_of_another_program_in_the_topic_of_offsets_stops_no_connector() -> None:
    latest = Latest("c")
    for key in b"\xff", b"[" * 100_000, b"text", b"5", b"{}", b'["c"]', b'["d", "slice", "a"]', b"1" * 5_000, None:
        latest.add(key, b"no JSON", 0)
    assert latest.state("topic") == State()
    for name, value in (
        ('["c", "slice", "a"]', b"\xff"),
        ('["c", "slice", "a"]', b"[" * 100_000),
        ('["c", "slice", "a"]', b"5"),
        ('["c", "slice", "a"]', b"{}"),
        ('["c", "slice", "a"]', b'{"position": "x", "token": 1}'),
        ('["c", "slice", "a"]', b'{"position": 1, "token": []}'),
        ('["c", "slice", "a"]', b'{"position": 1e999, "token": 1}'),
        ('["c", "task", "one"]', b'{"token": 1}'),
    ):
        latest = Latest("c")
        latest.add(b'["c", "slice", "b"]', b'{"position": 1, "token": 1}', 6)
        latest.add(name.encode(), value, 7)
        with pytest.raises(SinkError) as error:
            latest.state("topic t")
        assert str(error.value).startswith(
            f"topic t, offset 7: the value of the key {name} is none that the sink kafka"
        )


def test_later_record_of_its_key_mends_a_bad_one_in_the_topic_of_offsets() -> None:
    """Before compaction, too: a task reads the topic from its start."""
    key, good = b'["c", "slice", "a"]', b'{"position": 3, "token": 1}'
    latest = Latest("c")
    latest.add(key, b"bad", 0)
    latest.add(key, good, 1)
    assert latest.state("topic") == State(slices={"a": (3, 1)})
    latest.add(key, None, 2)
    assert latest.state("topic") == State()
    # The source is that of the last layout, in the order of the topic.
    for tasks, source in (1, "old"), (2, "between"), (1, "new"):
        latest.add(f'["c", "layout", {tasks}]'.encode(), json.dumps({"token": 1, "source": source}).encode(), 3)
    assert latest.state("topic").source == "new"

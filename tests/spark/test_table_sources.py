"""The sources of tables: open transactions, keys that begin again, values of every type. No Spark."""

from __future__ import annotations

import contextlib
import datetime
import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.errors import SourceError
from connectgroup.dataplane.offset_store import OffsetStore
from connectgroup.dataplane.ownership import Owner, Range, encoded, ranges_between
from connectgroup.dataplane.source import CommittedPositions
from connectgroup.errors import ConfigError
from connectgroup.spark.sinks.sqlite import SqliteSink
from connectgroup.spark.sources.postgres_table import PostgresTableSettings, PostgresTableSource
from connectgroup.spark.sources.sliced import decode, encode
from connectgroup.spark.sources.table import SqliteTableSettings, SqliteTableSource, TableSource
from tests.volume import ci_only, volume

from .postgres_server import running_standby


class Reader:
    """One task that reads a table; ``at`` are its committed positions."""

    def __init__(self, source: TableSource, at: dict[str, int] | None = None) -> None:
        self.at = at or {}
        self.source = decode(encode(source, self.at))[0]

    def read(self) -> list[dict[str, Any]]:
        """Read and commit one batch."""
        end = self.source.plan({name: int(at) for name, at in self.at.items()})
        rows = [
            row
            for part in ranges_between(self.at, end)
            for batch in self.source.read(part)
            for row in batch.to_pylist()
        ]
        # As the offsets of a sink: JSON.
        self.at = self.source.positions(
            json.loads(
                json.dumps(encoded({**self.at, **{name: at for name, at in end.items() if at != self.at.get(name)}}))
            )
        )
        return rows

    def keys(self) -> list[int]:
        return [row["id"] for row in self.read()]


def table(url: str, name: str = "t", *, column: str = "id", **more: Any) -> PostgresTableSource:
    found = {"url": url, "table": name, "incrementing.column": column} | {
        key.replace("_", "."): value for key, value in more.items()
    }
    return PostgresTableSource.create(PostgresTableSettings.model_validate(found), task=0, tasks=1)


def sqlite(path: Path, name: str = "t", *, column: str = "id", **more: Any) -> SqliteTableSource:
    found = {"path": str(path), "table": name, "incrementing.column": column} | {
        key.replace("_", "."): value for key, value in more.items()
    }
    return SqliteTableSource.create(SqliteTableSettings.model_validate(found), task=0, tasks=1)


def run(url: str, *statements: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def wait_for_statistics(url: str, deleted: int) -> None:
    """Wait until the server has counted the rows of t that were deleted: the session counts them when it ends."""
    import psycopg

    ends_s = time.monotonic() + 120
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute("SELECT pg_stat_get_tuples_deleted('t'::regclass)").fetchone() != (deleted,):
            assert time.monotonic() < ends_s, "the deleted rows are not counted"
            time.sleep(0.01)


def change(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


PLACES = {
    "a view": (("CREATE VIEW v AS SELECT * FROM t",), "v", "t"),
    "a view of a view with a condition": (
        ("CREATE VIEW u AS SELECT * FROM t", "CREATE VIEW v AS SELECT id, v FROM u WHERE id > 0"),
        "v",
        "t",
    ),
    "a view with a function": (
        (
            "CREATE FUNCTION f() RETURNS SETOF t LANGUAGE sql STABLE AS 'SELECT * FROM t'",
            "CREATE VIEW v AS SELECT * FROM f()",
        ),
        "v",
        "t",
    ),
    "a child by inheritance": (("CREATE TABLE c () INHERITS (t)",), "t", "c"),
    "a grandchild": (("CREATE TABLE c () INHERITS (t)", "CREATE TABLE d () INHERITS (c)"), "t", "d"),
    "a view of a parent": (("CREATE TABLE c () INHERITS (t)", "CREATE VIEW v AS SELECT * FROM t"), "v", "c"),
    "the table": ((), "t", "t"),
}


@pytest.mark.parametrize("place", [*PLACES, "a partition", "a partition by itself"])
@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK", "PREPARE TRANSACTION 'p'"])
def test_rows_of_an_open_transaction_are_waited_for(database: str, place: str, ending: str) -> None:
    import psycopg

    if "partition" in place:
        run(
            database,
            "CREATE TABLE t (id BIGSERIAL, v TEXT) PARTITION BY RANGE (id)",
            "CREATE TABLE c PARTITION OF t FOR VALUES FROM (0) TO (100)",
        )
        read, write = ("c", "t") if place == "a partition by itself" else ("t", "c")
    else:
        made, read, write = PLACES[place]
        run(database, "CREATE TABLE t (id BIGSERIAL, v TEXT)", *made)
    run(database, "CREATE TABLE elsewhere (x INT)")
    with psycopg.connect(database) as slow, psycopg.connect(database, autocommit=True) as quick:
        insert = f"INSERT INTO {write} (id, v) VALUES (nextval('t_id_seq'), 'x')"
        slow.execute(insert)
        quick.execute(insert)
        reader = Reader(table(database, read))
        assert reader.keys() == [], "row 1 is not visible yet"
        slow.execute(ending)
        if ending.startswith("PREPARE"):
            assert reader.keys() == [], "row 1 is not visible yet"
            quick.execute("COMMIT PREPARED 'p'")
        slow.rollback()
        found = reader.keys() + reader.keys()
        assert found == ([2] if ending == "ROLLBACK" else [1, 2])


def test_long_transaction_on_another_table_delays_nothing(database: str) -> None:
    import psycopg

    run(database, "CREATE TABLE t (id BIGSERIAL, v TEXT)", "CREATE TABLE other (x INT)", "CREATE VIEW v AS TABLE t")
    with psycopg.connect(database) as slow:
        slow.execute("INSERT INTO other VALUES (1)")
        run(database, "INSERT INTO t (v) VALUES ('x')")
        assert Reader(table(database)).keys() == [1]
        assert Reader(table(database, "v")).keys() == [1]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (
            ("CREATE SEQUENCE s CACHE 20", "CREATE TABLE t (id BIGINT DEFAULT nextval('s'), v TEXT)"),
            "its sequence has CACHE 20: a session inserts keys that it took earlier; allowed: source.settle.ms",
        ),
        (
            ("CREATE TABLE t (id BIGINT GENERATED ALWAYS AS IDENTITY (CACHE 5), v TEXT)",),
            "its sequence has CACHE 5",
        ),
        (
            (
                "CREATE TABLE u (id BIGINT GENERATED ALWAYS AS IDENTITY (CACHE 5), v TEXT)",
                "CREATE VIEW t AS TABLE u",
            ),
            "its sequence has CACHE 5",
        ),
        (
            ("CREATE TABLE u (id BIGINT, v TEXT)", "CREATE MATERIALIZED VIEW t AS TABLE u"),
            "t is a materialized view: a refresh may add rows with keys that were read already; allowed: its tables",
        ),
    ],
)
def test_table_whose_keys_do_not_appear_in_order_is_refused_with_the_reason(
    database: str, made: Sequence[str], reason: str
) -> None:
    run(database, *made)
    with pytest.raises(SourceError) as caught:
        table(database)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    if "settle" in str(caught.value):
        table(database, settle_ms=1)


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_settle_window_waits_for_keys_that_were_reserved(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A program takes a key, and inserts its row after one with a greater key was committed."""
    if kind == "postgres":
        url = request.getfixturevalue("database")
        run(url, "CREATE TABLE t (id BIGINT, v TEXT)", "INSERT INTO t VALUES (2, 'b')")
        reader = Reader(table(url, settle_ms=500))
    else:
        change(tmp_path / "d", "CREATE TABLE t (id INT, v TEXT)", "INSERT INTO t VALUES (2, 'b')")
        reader = Reader(sqlite(tmp_path / "d", settle_ms=500))
    began = time.monotonic()
    found = reader.keys()
    if kind == "postgres":
        run(url, "INSERT INTO t VALUES (1, 'a')")
    else:
        change(tmp_path / "d", "INSERT INTO t VALUES (1, 'a')")
    while not found:
        assert time.monotonic() < began + 60
        time.sleep(0.02)
        found = reader.keys()
    assert found == [1, 2]


def test_settle_window_reads_on_while_rows_keep_coming(tmp_path: Path) -> None:
    change(tmp_path / "d", "CREATE TABLE t (id INTEGER PRIMARY KEY)")
    reader = Reader(sqlite(tmp_path / "d", settle_ms=100))
    found: list[int] = []
    began, key = time.monotonic(), 0
    while not found:
        assert time.monotonic() < began + 60
        key += 1
        change(tmp_path / "d", f"INSERT INTO t VALUES ({key})")
        found += reader.keys()
    assert found == list(range(1, found[-1] + 1))
    assert found[-1] < key


AGAIN = {
    "emptied, its sequence restarted": ("TRUNCATE t RESTART IDENTITY", 50),
    "dropped and created again": ("DROP TABLE t; CREATE TABLE t (id BIGSERIAL PRIMARY KEY, v TEXT)", 50),
    "created again, with more rows": ("DROP TABLE t; CREATE TABLE t (id BIGSERIAL PRIMARY KEY, v TEXT)", 150),
    "emptied, with more rows": ("TRUNCATE t RESTART IDENTITY", 150),
    "sequence set back": ("DELETE FROM t; ALTER SEQUENCE t_id_seq RESTART", 50),
    "sequence set back, with more rows": ("DELETE FROM t; ALTER SEQUENCE t_id_seq RESTART", 150),
}


@pytest.mark.parametrize("how", AGAIN)
@pytest.mark.parametrize("in_view", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_keys_that_begin_again_in_postgres_are_an_error(database: str, how: str, restarts: bool, in_view: bool) -> None:
    def fill(rows: int, text: str) -> str:
        return f"INSERT INTO t (v) SELECT '{text}' FROM generate_series(1, {rows})"

    statement, rows = AGAIN[how]
    run(database, "CREATE TABLE t (id BIGSERIAL PRIMARY KEY, v TEXT)", "CREATE VIEW v AS TABLE t", fill(100, "old"))
    if in_view:
        statement = statement.replace("DROP TABLE t", "DROP TABLE t CASCADE")
    else:
        run(database, "DROP VIEW v")
    reader = Reader(table(database, "v" if in_view else "t"))
    assert len(reader.read()) == 100
    run(database, *statement.split("; "), fill(rows, "new"))
    if in_view and "CASCADE" in statement:
        run(database, "CREATE VIEW v AS TABLE t")
    if restarts:
        reader = Reader(table(database, "v" if in_view else "t"), reader.at)
    with pytest.raises(SourceError, match=r"table .* by id: .*, rows below the key 101 were read; allowed: keys that"):
        reader.read()
    begin = Reader(table(database, "v" if in_view else "t"))
    assert len(begin.read()) == rows, "the offsets were reset"
    on = Reader(table(database, "v" if in_view else "t"), {"keys 0 of 1": 40})
    assert len(on.read()) == rows - 39, "the offset was altered"


@pytest.mark.parametrize("name", ["t", "v"])
@pytest.mark.parametrize("rows", [50, 150])
@pytest.mark.parametrize("restarts", [False, True])
def test_rows_that_were_deleted_and_written_anew_with_chosen_keys_are_an_error(
    database: str, rows: int, restarts: bool, name: str
) -> None:
    """No sequence, no new table: other rows have the keys, and rows were deleted."""

    def fill(count: int, text: str) -> str:
        return f"INSERT INTO t SELECT n, '{text}' FROM generate_series(1, {count}) AS n"

    run(database, "CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)", "CREATE VIEW v AS TABLE t", fill(100, "old"))
    reader = Reader(table(database, name))
    assert len(reader.read()) == 100
    run(database, f"BEGIN; DELETE FROM t; {fill(rows, 'new')}; COMMIT")
    wait_for_statistics(database, deleted=100)
    if restarts:
        reader = Reader(table(database, name), reader.at)
    with pytest.raises(SourceError, match="was emptied and filled again, rows below the key 101 were read; allowed"):
        reader.read()
    assert len(Reader(table(database, name)).read()) == rows, "the offsets were reset"


def test_rows_that_change_or_are_deleted_after_they_were_read_stop_no_task(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill = "INSERT INTO t (v) SELECT 'x' FROM generate_series(1, 100)"
    run(database, "CREATE TABLE t (id BIGSERIAL PRIMARY KEY, v TEXT)", fill)
    reader = Reader(table(database))
    assert len(reader.read()) == 100
    for statement in (
        "UPDATE t SET v = 'all'",
        "UPDATE t SET v = 'others'; DELETE FROM t WHERE id BETWEEN 20 AND 40",
        "DELETE FROM t WHERE id < 10; UPDATE t SET v = 'the last' WHERE id > 90",
        "DELETE FROM t WHERE id > 90",
    ):
        run(database, statement)
        assert reader.keys() == []
        run(database, "INSERT INTO t (v) VALUES ('next')")
        assert len(reader.keys()) == 1
        reader = Reader(table(database), reader.at)
    assert "the row with the key 100 has changed since it was read: such changes are not read" in caplog.text


OTHERS = {
    "a partition": "CREATE TABLE v (LIKE t) PARTITION BY RANGE (id); ALTER TABLE v ATTACH PARTITION t DEFAULT",
    "a child": "CREATE TABLE v (LIKE t); ALTER TABLE t INHERIT v",
    "a view of a view": "CREATE VIEW u AS TABLE t; CREATE VIEW v AS SELECT id, upper(v) AS v FROM u WHERE id > 0",
    "a view with a function": "CREATE FUNCTION f() RETURNS SETOF t LANGUAGE sql AS 'SELECT * FROM t';"
    " CREATE VIEW v AS SELECT * FROM f()",
    "one of two tables": "CREATE TABLE u (LIKE t); CREATE VIEW v AS TABLE t UNION ALL TABLE u",
}


@pytest.mark.parametrize("place", OTHERS)
def test_table_behind_another_one_that_is_filled_again_is_an_error(database: str, place: str) -> None:
    def fill(rows: int, text: str) -> str:
        return f"INSERT INTO t (v) SELECT '{text}' FROM generate_series(1, {rows})"

    run(database, "CREATE TABLE t (id BIGSERIAL PRIMARY KEY, v TEXT)", *OTHERS[place].split("; "), fill(100, "old"))
    reader = Reader(table(database, "v"))
    assert len(reader.read()) == 100
    run(database, "TRUNCATE t RESTART IDENTITY", fill(150, "new"))
    for each in (reader, Reader(table(database, "v"), reader.at)):
        with pytest.raises(
            SourceError, match="was emptied and filled again, rows below the key 101 were read; allowed"
        ):
            each.read()


def test_view_whose_tables_are_reorganized_or_lose_rows_is_read_on(database: str) -> None:
    fill = "INSERT INTO t (v) SELECT 'x' FROM generate_series(1, 10)"
    run(database, "CREATE TABLE t (id BIGSERIAL PRIMARY KEY, v TEXT)", "CREATE VIEW v AS TABLE t", fill)
    reader = Reader(table(database, "v"))
    assert len(reader.read()) == 10
    for statement in ("VACUUM FULL t", "UPDATE t SET v = 'z'", "DELETE FROM t WHERE id < 12", "CREATE INDEX ON t (v)"):
        run(database, statement, "INSERT INTO t (v) VALUES ('y')")
        assert len(reader.keys()) == 1
        reader = Reader(table(database, "v"), reader.at)


@pytest.mark.parametrize("restarts", [True, False])
def test_partition_with_smaller_keys_that_is_attached_is_an_error(database: str, restarts: bool) -> None:
    run(
        database,
        "CREATE TABLE t (id BIGINT, v TEXT) PARTITION BY RANGE (id)",
        "CREATE TABLE c PARTITION OF t FOR VALUES FROM (100) TO (200)",
        "CREATE TABLE old AS SELECT n::bigint AS id, 'x' AS v FROM generate_series(1, 9) AS n",
        "INSERT INTO t SELECT n, 'x' FROM generate_series(100, 150) AS n",
    )
    reader = Reader(table(database))
    assert len(reader.keys()) == 51
    run(database, "ALTER TABLE t ATTACH PARTITION old FOR VALUES FROM (0) TO (100)")
    if restarts:
        reader = Reader(table(database), reader.at)
    with pytest.raises(SourceError, match=r"has a new row with the key 1, rows below the key 151 were read"):
        reader.read()


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize(
    ("kind", "other", "value", "anew"),
    [
        ("numeric(10,2)", "numeric(12,4)", "0.1", "0.2"),
        ("float4", "float8", "0.1", "0.2"),
        ("bool", "text", "true", "false"),
        ("date", "timestamp", "'2024-02-29'", "'2024-03-01'"),
    ],
)
def test_table_whose_column_gets_another_type_is_read_on(
    database: str, kind: str, other: str, value: str, anew: str, restarts: bool
) -> None:
    """PostgreSQL writes all rows anew, with other texts. A task that runs on may have to start again for the type."""
    run(database, f"CREATE TABLE t (id SERIAL PRIMARY KEY, a {kind})", f"INSERT INTO t (a) VALUES ({value}), ({value})")
    reader = Reader(table(database))
    assert reader.keys() == [1, 2]
    run(database, f"ALTER TABLE t ALTER a TYPE {other}", f"INSERT INTO t (a) VALUES ({value})")
    if restarts or kind in ("bool", "date"):
        reader = Reader(table(database), reader.at)
    assert reader.keys() == [3]
    assert reader.keys() == []
    run(database, "TRUNCATE t RESTART IDENTITY", f"INSERT INTO t (a) SELECT {anew} FROM generate_series(1, 9)")
    with pytest.raises(SourceError, match="rows below the key 4 were read; allowed: keys that only grow"):
        reader.read()


@pytest.mark.parametrize("tolerant", [True, False])
def test_row_of_a_type_that_was_altered_while_the_task_runs_is_no_dead_letter(database: str, tolerant: bool) -> None:
    def started() -> Reader:
        source = table(database)
        return Reader(source.tolerant() if tolerant else source, at)

    at: dict[str, int] = {}
    run(database, "CREATE TABLE t (id SERIAL PRIMARY KEY, a INT)", "INSERT INTO t (a) VALUES (1)")
    reader = started()
    assert reader.keys() == [1]
    run(database, "ALTER TABLE t ALTER a TYPE NUMERIC", "INSERT INTO t (a) VALUES (1.5)")
    message = (
        r'"t": the type of a was altered since the task started, from INT to STRING; allowed: the task starts again'
    )
    with pytest.raises(SourceError, match=message):
        reader.read()
    at = reader.at
    assert [(row["id"], row["a"]) for row in started().read()] == [(2, "1.5")]


def test_table_that_is_only_reorganized_or_loses_rows_is_read_on(database: str) -> None:
    fill = "INSERT INTO t (v) SELECT 'x' FROM generate_series(1, 10)"
    run(database, "CREATE TABLE t (id BIGSERIAL PRIMARY KEY, v TEXT)", fill)
    reader = Reader(table(database))
    assert len(reader.read()) == 10
    for statement in (
        "VACUUM FULL t",
        "DELETE FROM t WHERE id = 10",
        "VACUUM FULL t",
        "ALTER TABLE t ADD COLUMN w INT DEFAULT 5",
        "DELETE FROM t",
        "TRUNCATE t",
    ):
        run(database, statement)
        assert reader.keys() == []
        reader = Reader(table(database), reader.at)
        assert reader.keys() == []
        run(database, "INSERT INTO t (v) VALUES ('y')")
        assert len(reader.keys()) == 1


SQLITE_AGAIN = {
    "the greatest key is given again": ("DELETE FROM t WHERE id > 90", 5),
    "emptied": ("DELETE FROM t", 50),
    "dropped and created again": ("DROP TABLE t; CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)", 50),
    "created again, with more rows": ("DROP TABLE t; CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)", 150),
}


SQLITE_VIEWS = {
    "": "SELECT 1",
    "a view": "CREATE VIEW v AS SELECT * FROM t",
    "a view of a view": "CREATE VIEW u AS SELECT id, v FROM t WHERE v <> ''; CREATE VIEW v AS SELECT v, id FROM u",
}


@pytest.mark.parametrize("how", SQLITE_AGAIN)
@pytest.mark.parametrize("view", SQLITE_VIEWS)
@pytest.mark.parametrize("restarts", [False, True])
def test_keys_that_begin_again_in_sqlite_are_an_error(tmp_path: Path, how: str, restarts: bool, view: str) -> None:
    name = "v" if view else "t"
    path = tmp_path / "d"

    def fill(rows: int, text: str) -> Iterator[str]:
        return iter([f"INSERT INTO t (v) VALUES ('{text} {n}')" for n in range(rows)])

    statement, rows = SQLITE_AGAIN[how]
    change(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)", *SQLITE_VIEWS[view].split("; "), *fill(100, "old"))
    reader = Reader(sqlite(path, name))
    assert len(reader.read()) == 100
    change(path, *statement.split("; "), *fill(rows, "new"))
    if restarts:
        reader = Reader(sqlite(path, name), reader.at)
    with pytest.raises(SourceError, match=r"by id: .*, rows below the key 101 were read; allowed: keys that only grow"):
        reader.read()


@pytest.mark.parametrize("rows", [50, 150])
@pytest.mark.parametrize("kind", ["INTEGER PRIMARY KEY AUTOINCREMENT", "INT"])
def test_rows_that_appear_below_the_position_in_an_emptied_table_are_an_error(
    tmp_path: Path, kind: str, rows: int
) -> None:
    path = tmp_path / "d"
    change(path, f"CREATE TABLE t (id {kind}, v TEXT)", *(f"INSERT INTO t VALUES ({n}, 'old')" for n in range(1, 101)))
    reader = Reader(sqlite(path, slices=3))
    assert len(reader.read()) == 100
    change(path, "DELETE FROM t")
    assert reader.read() == []
    change(path, *(f"INSERT INTO t VALUES ({n}, 'new')" for n in range(1, rows + 1)))
    with pytest.raises(SourceError, match=r", rows below the key 101 were read; allowed: keys that only grow"):
        reader.read()


@pytest.mark.parametrize("restarts", [False, True])
def test_row_below_all_others_is_an_error_if_its_key_was_passed(tmp_path: Path, restarts: bool) -> None:
    path = tmp_path / "d"
    change(path, "CREATE TABLE t (id INT, v TEXT)", "INSERT INTO t VALUES (100, 'x'), (101, 'x')")
    reader = Reader(sqlite(path, slices=2))
    assert reader.keys() == [100, 101]
    change(path, "INSERT INTO t VALUES (50, 'y'), (102, 'y')")
    if restarts:
        reader = Reader(sqlite(path, slices=2), reader.at)
    with pytest.raises(SourceError, match="has a new row with the key 50, rows below the key 102 were read"):
        reader.read()


@pytest.mark.parametrize("slices", [1, 3, 4])
def test_offsets_of_another_number_of_slices_are_an_error(tmp_path: Path, slices: int) -> None:
    """Else each row would be read again."""
    path = tmp_path / "d"
    change(path, "CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    reader = Reader(sqlite(path, slices=2))
    assert reader.keys() == [2, 1, 3]
    with pytest.raises(
        SourceError, match=rf"offsets are those of source\.slices=2, with {slices} each row would be read"
    ):
        Reader(sqlite(path, slices=slices), reader.at).read()
    assert len(Reader(sqlite(path, slices=slices)).read()) == 3, "the offsets were reset"


def test_task_without_offsets_of_its_own_knows_those_of_another_number_of_slices(tmp_path: Path) -> None:
    path, sink = tmp_path / "d", tmp_path / "sink"
    change(path, "CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    owner = Owner(connector="c", task=0, tasks=1, fencing_token=1)
    with contextlib.closing(OffsetStore(sink)) as store:
        store.claim(owner, lambda _: True)
        store.commit(owner, [Range(slice="keys 0 of 1", start=0, end=3)])
    found = {"path": str(path), "table": "t", "incrementing.column": "id", "slices": "2"}
    second = SqliteTableSource.create(SqliteTableSettings.model_validate(found), task=1, tasks=2)
    committed = CommittedPositions.of("c", SqliteSink, {"path": str(sink), "table": "x"})
    with pytest.raises(
        SourceError, match=r"offsets are those of source\.slices=1, with 2 each row would be read again"
    ):
        Reader(second.with_committed(committed)).read()


def test_changed_row_of_sqlite_that_was_read_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SQLite does not tell a changed row from one that was deleted and written anew."""
    path = tmp_path / "d"
    rows = [f"INSERT INTO t VALUES ({n}, 'old')" for n in range(1, 11)]
    change(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)", *rows)
    reader = Reader(sqlite(path))
    assert len(reader.read()) == 10
    change(path, "DELETE FROM t", *(f"INSERT INTO t VALUES ({n}, 'new')" for n in range(1, 16)))
    assert reader.keys() == [11, 12, 13, 14, 15]
    assert "row with the key 10 has changed since it was read" in caplog.text
    assert "if the table was emptied and filled again, reset the offsets" in caplog.text


def test_sqlite_table_with_autoincrement_may_lose_its_last_rows(tmp_path: Path) -> None:
    path = tmp_path / "d"
    change(path, "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, v TEXT)", "INSERT INTO t (v) VALUES ('x')")
    reader = Reader(sqlite(path))
    assert reader.keys() == [1]
    change(path, "DELETE FROM t")
    assert reader.keys() == []
    change(path, "VACUUM", "INSERT INTO t (v) VALUES ('y')")
    assert reader.keys() == [2]
    change(path, "DELETE FROM t", "DELETE FROM sqlite_sequence", "INSERT INTO t (v) VALUES ('z')")
    with pytest.raises(SourceError, match="gives the key 2 next: its keys begin again"):
        reader.read()


def test_new_row_below_the_position_of_keys_that_a_program_chooses_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "d"
    change(path, "CREATE TABLE t (id INT, v TEXT)", "INSERT INTO t VALUES (100, 'x')")
    reader = Reader(sqlite(path))
    assert reader.keys() == [100]
    change(path, "DELETE FROM t")
    assert reader.keys() == []
    change(path, "INSERT INTO t VALUES (5, 'y')")
    with pytest.raises(SourceError, match="has a new row with the key 5, rows below the key 101 were read"):
        reader.read()


@pytest.mark.parametrize("key", ["-1", "NULL", "9223372036854775807"])
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_key_that_is_never_read_is_an_error(
    kind: str, key: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    statements = ["CREATE TABLE t (id BIGINT, v TEXT)", "INSERT INTO t VALUES (1, 'a')"]
    if kind == "postgres":
        url = request.getfixturevalue("database")
        run(url, *statements)
        reader = Reader(table(url))
    else:
        change(tmp_path / "d", *statements)
        reader = Reader(sqlite(tmp_path / "d"))
    assert reader.keys() == [1]
    insert = f"INSERT INTO t VALUES ({key}, 'b')"
    if kind == "postgres":
        run(url, insert)
    else:
        change(tmp_path / "d", insert)
    what = (
        "a row has no id; allowed: a key in each row" if key == "NULL" else f"row id {key}: is not read; allowed: keys"
    )
    with pytest.raises(SourceError, match=what):
        reader.read()


TEXTS = {
    "line ends at each distance": "repeat(E'x\\r\\n', 47 + i % 7)",
    "carriage returns": "repeat(E'\\r', i % 3) || 'x' || repeat(E'\\n\\r', i % 5)",
    "quotes and commas": "repeat('\"', i % 4) || ',' || repeat('\"', i % 3)",
}


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_postgres_are_unchanged_at_every_block_boundary(database: str, text: str) -> None:
    import psycopg

    run(database, f"CREATE TABLE t AS SELECT i::bigint AS id, {TEXTS[text]} AS v FROM generate_series(1, 30000) AS i")
    with psycopg.connect(database) as connection:
        expected = connection.execute("SELECT v FROM t ORDER BY id").fetchall()
    rows = Reader(table(database)).read()
    assert [(row["v"],) for row in rows] == expected


def test_texts_of_postgres_may_be_larger_than_a_block(database: str) -> None:
    run(
        database,
        "CREATE TABLE t AS SELECT i::bigint AS id, repeat('x', CASE i % 3 WHEN 1 THEN 3000000 ELSE 3 END) AS v"
        " FROM generate_series(1, 12) AS i",
    )
    rows = Reader(table(database)).read()
    assert [len(row["v"]) for row in rows] == [3, 3_000_000, 3] * 0 + [
        3_000_000 if i % 3 == 1 else 3 for i in range(1, 13)
    ]


BAD = {
    "infinity": ("TIMESTAMPTZ", "at is 'infinity'; allowed: TIMESTAMP or null; years 1 to 9999"),
    "-infinity": ("DATE", "at is '-infinity'; allowed: DATE"),
    "0044-03-15 BC": ("DATE", "at is '0044-03-15 BC'; allowed: DATE"),
    "20231-01-01": ("TIMESTAMP", "at is '20231-01-01 00:00:00'; allowed: TIMESTAMP"),
    "20231-02-03": ("DATE", "at is '20231-02-03'; allowed: DATE"),
}


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("tolerant", [False, True])
def test_value_that_no_type_holds_names_row_and_column(database: str, value: str, tolerant: bool) -> None:
    kind, message = BAD[value]
    run(database, f"CREATE TABLE t (id INT, at {kind})", "INSERT INTO t VALUES (1, '2024-01-01'), (3, NULL)")
    run(database, f"INSERT INTO t VALUES (2, '{value}')")
    source: TableSource = table(database)
    if not tolerant:
        with pytest.raises(SourceError, match=r"table \"t\" of PostgreSQL by id, row id 2: " + message):
            Reader(source).read()
        return
    rows = Reader(source.tolerant()).read()
    assert [row["id"] for row in rows] == [1, 3, None]
    error = json.loads(rows[-1]["connectgroup_error"])
    assert error["place"].endswith("row id 2")
    assert message in error["reason"]
    assert json.loads(error["record"])["id"] == "2"


def test_values_of_postgres_are_those_of_its_own_client(database: str) -> None:
    """A difference by design: what no column type holds exactly is the text that PostgreSQL prints."""
    import psycopg

    columns: dict[str, tuple[str, list[Any]]] = {
        "b": ("BOOL", [True, False, None]),
        "h": ("INT2", [-(2**15), 2**15 - 1, None]),
        "l": ("INT8", [-(2**63), 2**63 - 1, None]),
        "d": ("FLOAT8", [0.1, -1e308, float("inf")]),
        "f": ("FLOAT4", [0.5, -2.0, None]),
        "s": ("TEXT", ["", ' a"b,\r\n\\N', None]),
        "c": ("CHAR(3)", ["a  ", "\u00e9  ", None]),
        "n": ("NUMERIC", ["12345678901234567890.12", "19.90", None]),
        "a": ("INT[]", ["{1,2}", "{}", None]),
        "j": ("JSONB", ['{"x": 1.50}', "null", None]),
        "y": ("BYTEA", ["\\x00ff", "\\x", None]),
        "u": ("UUID", ["11111111-1111-1111-1111-111111111111", None, None]),
        "i": ("INTERVAL", ["1 day 02:03:04", None, None]),
    }
    run(database, f"CREATE TABLE t (id INT, {', '.join(f'{name} {kind}' for name, (kind, _) in columns.items())})")
    with psycopg.connect(database, autocommit=True) as connection:
        marks = ", ".join(["%s"] * (len(columns) + 1))
        for at in range(3):
            values = [found[at] for _, found in columns.values()]
            connection.execute(f"INSERT INTO t VALUES ({marks})", [at, *values])
    rows = Reader(table(database)).read()
    assert rows == [{"id": at, **{name: found[at] for name, (_, found) in columns.items()}} for at in range(3)]


@contextlib.contextmanager
def database_with(url: str, encoding: str) -> Iterator[str]:
    """A database of another encoding until the end of the block; yields its connection string."""
    run(url, f"CREATE DATABASE {encoding} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
    try:
        yield f"{url.rpartition('/')[0]}/{encoding}"
    finally:
        run(url, f"DROP DATABASE {encoding} WITH (FORCE)")


def test_defaults_of_a_database_change_no_value(database: str) -> None:
    """Those of a role count in the same way."""
    name = database.rpartition("/")[2]
    for default in (
        "extra_float_digits = -5",
        "bytea_output = escape",
        "intervalstyle = postgres_verbose",
        "datestyle = 'SQL, DMY'",
        "timezone = 'Asia/Tokyo'",
        "client_encoding = latin1",
    ):
        run(database, f"ALTER DATABASE {name} SET {default}")
    run(database, "CREATE TABLE t (id INT, f FLOAT8, g FLOAT4, b BYTEA, i INTERVAL, s TEXT, at TIMESTAMPTZ)")
    run(
        database,
        "SET extra_float_digits = 3",
        "INSERT INTO t VALUES (1, 0.1::float8 + 0.2::float8, 16777217, '\\x00ff', '1 day 02:00', U&'\\00e9',"
        " '2024-03-05T12:00:00Z')",
    )
    (row,) = Reader(table(database)).read()
    assert row.pop("at").isoformat() == "2024-03-05T12:00:00+00:00"
    assert row == {"id": 1, "f": 0.1 + 0.2, "g": 2.0**24, "b": "\\x00ff", "i": "1 day 02:00:00", "s": "\u00e9"}


def test_texts_of_a_database_in_another_encoding_are_read(postgres: str) -> None:
    with database_with(postgres, "latin1") as url:
        run(url, "CREATE TABLE t (id INT, s TEXT)", "INSERT INTO t VALUES (1, U&'\\00e9')")
        assert Reader(table(url)).read() == [{"id": 1, "s": "\u00e9"}]


@pytest.mark.parametrize("keys", [range(1, 6), [1, 2, 3, 3, 4]])
def test_text_that_the_server_cannot_convert_names_its_row(postgres: str, keys: Sequence[int]) -> None:
    """A database without an encoding takes all bytes. With the keys 3 and 3, it is not known which row it is."""
    is_known = len(set(keys)) == len(keys)
    with database_with(postgres, "sql_ascii") as url:
        run(url, "CREATE TABLE t (id INT, s TEXT)", "INSERT INTO t SELECT n, 'x' FROM generate_series(1, 5) n")
        run(url, *(f"UPDATE t SET id = {key} WHERE id = {at}" for at, key in enumerate(keys, 1) if at > key))
        run(url, "SET client_encoding = sql_ascii", "UPDATE t SET s = convert_from('\\xe9', 'sql_ascii') WHERE id = 3")
        place = "row id 3: invalid byte sequence" if is_known else "invalid byte sequence"
        with pytest.raises(SourceError, match=place):
            Reader(table(url)).read()
        if is_known:
            rows = Reader(table(url).tolerant()).read()
            assert [row["id"] for row in rows] == [1, 2, None, 4, 5]
            assert json.loads(rows[2]["connectgroup_error"])["record"] == '{"id": 3}'


def test_names_with_marks_and_domains_over_domains_are_read(database: str) -> None:
    run(database, "CREATE DOMAIN a AS BIGINT", "CREATE DOMAIN b AS a CHECK (VALUE > 0)")
    run(database, 'CREATE TABLE "t?%s""x" ("id?" b, "a?b" TEXT, "c%d" a, "%s" TEXT)')
    run(database, """INSERT INTO "t?%s""x" VALUES (1, 'x', 2, 'y')""")
    reader = Reader(table(database, 't?%s"x', column="id?"))
    assert reader.read() == [{"id?": 1, "a?b": "x", "c%d": 2, "%s": "y"}]
    assert reader.read() == []
    assert reader.source.lag(reader.at) is not None


VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


@hypothesis_settings(max_examples=volume(40, 300), deadline=None)
@given(values=st.lists(VALUES, min_size=1, max_size=8))
def test_values_of_sqlite_are_those_of_its_own_client(
    values: list[int | float | str | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As Django and Rails declare columns; a difference by design: a number in such a column is its shortest text."""
    path = tmp_path_factory.mktemp("db") / "d"
    change(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, v, w decimal(10, 2), x NUMERIC, y varchar(10))")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        insert = "INSERT INTO t (v, w, x, y) VALUES (?, ?, ?, ?)"
        connection.executemany(insert, [(value,) * 4 for value in values])
        connection.commit()
        stored = connection.execute("SELECT v, w, x, y FROM t ORDER BY id").fetchall()
    rows = Reader(sqlite(path)).read()
    for row, kept in zip(rows, stored, strict=True):
        for text, value in zip([row[name] for name in "vwxy"], kept, strict=True):
            assert (text if isinstance(value, str | None) else type(value)(text)) == value


def test_time_of_sqlite_may_have_zeros_behind_its_microseconds(tmp_path: Path) -> None:
    change(tmp_path / "d", "CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT)")
    change(tmp_path / "d", "INSERT INTO t VALUES (1, '2024-02-29 12:00:00.1230000Z'), (2, '2024-02-29T12:00:00Z')")
    rows = Reader(sqlite(tmp_path / "d", schema="id BIGINT, at TIMESTAMP")).read()
    noon = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    assert [row["at"] for row in rows] == [noon.replace(microsecond=123_000), noon]


@pytest.mark.parametrize("tolerant", [False, True])
def test_value_of_sqlite_that_is_not_of_its_column_names_row_and_column(tmp_path: Path, tolerant: bool) -> None:
    path = tmp_path / "d"
    change(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, n INT, s TEXT, b BLOB)")
    change(path, "INSERT INTO t VALUES (1, 5, 'x', NULL), (2, 'five', 'x', NULL), (4, 6, CAST(x'ff' AS TEXT), NULL)")
    change(path, "INSERT INTO t VALUES (3, 7, 'x', x'00')")
    source: TableSource = sqlite(path)
    if not tolerant:
        with pytest.raises(SourceError, match="row id 2: n is 'five'; allowed: BIGINT or null"):
            Reader(source).read()
        return
    rows = Reader(source.tolerant()).read()
    assert [row["id"] for row in rows] == [1, None, None, None]
    places = [json.loads(row["connectgroup_error"])["place"][-8:] for row in rows[1:]]
    assert places == ["row id 2", "row id 3", "row id 4"]


@pytest.mark.parametrize(
    "insert", ["INSERT INTO t VALUES (1, 5), (2, 1.5), (3, 7)", "INSERT INTO t VALUES (1, 5), (1.5, 6), (3, 7)"]
)
def test_fraction_in_a_column_of_integers_of_sqlite_is_an_error_or_a_dead_letter(tmp_path: Path, insert: str) -> None:
    """Also as a key between whole ones: row 1.5 is no second row 1."""
    change(tmp_path / "d", "CREATE TABLE t (id INTEGER, n INTEGER)", insert)
    with pytest.raises(SourceError, match=r"(n|id) is 1\.5; allowed: BIGINT or null"):
        Reader(sqlite(tmp_path / "d")).read()
    rows = Reader(sqlite(tmp_path / "d").tolerant()).read()
    assert [(row["id"], row["n"]) for row in rows if row["connectgroup_error"] is None] == [(1, 5), (3, 7)]
    assert [row["connectgroup_error"] is None for row in rows].count(False) == 1


def test_column_that_a_table_of_sqlite_lacks_is_an_error_and_no_text(tmp_path: Path) -> None:
    """SQLite takes a name in quotes that is no column for a text."""
    change(tmp_path / "d", "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)", "INSERT INTO t VALUES (1, 'x')")
    change(tmp_path / "d", "CREATE VIEW w AS SELECT id, v FROM t")
    for name in ("t", "w"):
        with pytest.raises(SourceError, match=r"no such column: .*absent"):
            Reader(sqlite(tmp_path / "d", name, schema="id BIGINT, absent STRING")).read()
    with pytest.raises(SourceError, match=r"no such column: .*absent"):
        Reader(sqlite(tmp_path / "d", schema="absent BIGINT, v STRING", column="absent")).read()
    assert Reader(sqlite(tmp_path / "d", schema="ID BIGINT, v STRING", column="ID")).read() == [{"ID": 1, "v": "x"}]


@pytest.mark.parametrize(
    "columns",
    [
        "(id INTEGER PRIMARY KEY, v TEXT) WITHOUT ROWID",
        "(id INTEGER PRIMARY KEY, v TEXT) WITHOUT ROWID, STRICT",
        "(id INTEGER PRIMARY KEY, v TEXT) STRICT, WITHOUT ROWID -- as it is",
        "(id INT PRIMARY KEY, v TEXT /* no AUTOINCREMENT */)",
        '(id INT, v TEXT, "autoincrement" TEXT)',
    ],
)
def test_table_whose_keys_a_program_chooses_may_lose_its_last_rows(tmp_path: Path, columns: str) -> None:
    change(tmp_path / "d", f"CREATE TABLE t {columns}", "INSERT INTO t (id, v) VALUES (1, 'x'), (2, 'x'), (3, 'x')")
    reader = Reader(sqlite(tmp_path / "d"))
    assert reader.keys() == [1, 2, 3]
    change(tmp_path / "d", "DELETE FROM t WHERE id = 3")
    assert reader.keys() == []
    change(tmp_path / "d", "INSERT INTO t (id, v) VALUES (4, 'x')")
    assert reader.keys() == [4]


def test_word_autoincrement_in_a_comment_is_no_sequence(tmp_path: Path) -> None:
    change(tmp_path / "d", "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT /* no AUTOINCREMENT */)")
    change(tmp_path / "d", "INSERT INTO t VALUES (1, 'x')")
    assert Reader(sqlite(tmp_path / "d")).keys() == [1]


def test_generated_columns_of_sqlite_are_read(tmp_path: Path) -> None:
    path = tmp_path / "d"
    columns = "id INTEGER PRIMARY KEY, a TEXT, b TEXT AS (a || '!'), c INT AS (id * 2) STORED"
    change(path, f'CREATE TABLE "t ""x""" ({columns})', """INSERT INTO "t ""x\""" (id, a) VALUES (1, 'x')""")
    assert Reader(sqlite(path, 't "x"')).read() == [{"id": 1, "a": "x", "b": "x!", "c": 2}]


def test_number_of_sqlite_beyond_the_range_of_its_column_names_row_and_column(tmp_path: Path) -> None:
    path = tmp_path / "d"
    change(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, f REAL)")
    change(path, "INSERT INTO t VALUES (1, 0.0), (2, 1e-50), (3, 0.5), (4, 1e300)")
    with pytest.raises(SourceError, match="row id 2: f is 1e-50; allowed: FLOAT or null"):
        Reader(sqlite(path, schema="id BIGINT, f FLOAT")).read()
    assert [row["f"] for row in Reader(sqlite(path)).read()] == [0.0, 1e-50, 0.5, 1e300]


def test_view_of_sqlite_with_expressions_is_read(tmp_path: Path) -> None:
    path = tmp_path / "d"
    change(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, p DECIMAL)", "INSERT INTO t VALUES (1, 19.9), (2, 7)")
    change(path, "CREATE VIEW v AS SELECT id + 0 AS id, p * 2 AS twice, 'x' || id AS name FROM t")
    rows = Reader(sqlite(path, "v")).read()
    assert rows == [{"id": 1, "twice": "39.8", "name": "x1"}, {"id": 2, "twice": "14", "name": "x2"}]


def test_table_without_an_integer_column_says_so(tmp_path: Path) -> None:
    change(tmp_path / "d", "CREATE TABLE t (a TEXT, b REAL)")
    with pytest.raises(ConfigError, match=r"allowed: an integer column; t has none, only a STRING, b DOUBLE"):
        sqlite(tmp_path / "d", column="a")


@pytest.mark.parametrize("value", ["-1", "x", "604800001"])
def test_wrong_settle_window_is_refused_when_the_connector_is_put(value: str) -> None:
    base = {"source": "postgres", "source.table": "t", "source.incrementing.column": "a", "source.settle.ms": value}
    with pytest.raises(ConfigError, match=r"source\.settle\.ms: got .*; allowed: 0 to 604800000"):
        PipelineConnector("c", base | {"sink": "parquet", "sink.path": "/out"})


@ci_only("a copy of the server takes 3 s; the other tests show that sources are refused with a reason")
def test_hot_standby_is_refused_with_the_reason(postgres: str) -> None:
    run(postgres, "CREATE TABLE IF NOT EXISTS on_standby (id BIGSERIAL, v TEXT)")
    with (
        running_standby(postgres) as url,
        pytest.raises(SourceError, match=r"is a hot standby: .*; allowed: the primary"),
    ):
        table(url, "on_standby")


def test_decimals_of_sqlite_are_read_with_all_their_digits_or_are_dead_letters(tmp_path: Path) -> None:
    values = [19.9, "12345678901234567890.12", 7, None, "-0.50", 1e-2, "x", b"1", 1.005]
    with contextlib.closing(sqlite3.connect(tmp_path / "t.db")) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a BLOB)")
        connection.executemany("INSERT INTO t (a) VALUES (?)", [(value,) for value in values])
    source = sqlite(tmp_path / "t.db", schema="id BIGINT, a DECIMAL(30,2)").tolerant()
    rows = [row for batch in source.read(Range(slice="keys 0 of 1", start=0, end=100)) for row in batch.to_pylist()]
    good = [row["a"] for row in rows if row["connectgroup_error"] is None]
    assert [None if value is None else str(value) for value in good] == [
        "19.90", "12345678901234567890.12", "7.00", None, "-0.50", "0.01",
    ]  # fmt: skip
    reasons = [json.loads(row["connectgroup_error"])["reason"] for row in rows if row["connectgroup_error"]]
    assert [reason.partition(";")[0] for reason in reasons] == ["a is 'x'", "a is b'1'", "a is 1.005"]

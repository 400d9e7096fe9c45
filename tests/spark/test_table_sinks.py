"""The sinks into tables, SQLite and PostgreSQL: types, insert modes, tables created and evolved, errors."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.columns import Column, Columns, from_ddl, to_arrow
from connectgroup.dataplane.dead_letters import DeadLetters, DeadLetterSink
from connectgroup.dataplane.errors import SinkError
from connectgroup.dataplane.sink import Sink
from connectgroup.errors import ConfigError
from connectgroup.spark.sinks.postgres import PostgresSettings, PostgresSink
from connectgroup.spark.sinks.sqlite import SqliteSettings, SqliteSink
from connectgroup.testing.contracts.sink import every, owner, span

COLUMNS = from_ddl("id INT, name STRING, gone BOOLEAN")
AT = datetime.datetime(2024, 2, 29, 12, 30, 1, 500, datetime.UTC)


class Database:
    """One of the two databases: creates sinks on it, and queries it."""

    def __init__(self, place: str) -> None:
        self.place = place

    def sink(self, columns: Columns = COLUMNS, **settings: Any) -> Sink:
        settings = {"table": "t"} | {key.replace("_", "."): value for key, value in settings.items()}
        if self.place.startswith("postgresql"):
            return PostgresSink.create(PostgresSettings.model_validate(settings | {"url": self.place}), columns)
        return SqliteSink.create(SqliteSettings.model_validate(settings | {"path": self.place}), columns)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        if self.place.startswith("postgresql"):
            import psycopg

            with psycopg.connect(self.place) as connection:
                cursor = connection.execute(statement)
                return list(cursor.fetchall()) if cursor.description else []
        with sqlite3.connect(self.place) as connection:
            return connection.execute(statement).fetchall()


@pytest.fixture(params=["sqlite", "postgres"])
def database_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Database]:
    if request.param == "sqlite":
        return lambda: Database(str(tmp_path / "out.db"))
    url = request.getfixturevalue("database")
    return lambda: Database(url)


@pytest.fixture
def base(database_of: Callable[[], Database]) -> Database:
    return database_of()


def write(sink: Sink, *batches: list[tuple[int, str | None, bool | None]]) -> None:
    sink.claim(owner(1), every)
    for at, batch in enumerate(batches):
        ids, names, gone = zip(*batch, strict=True)
        rows = pa.table(
            {"id": pa.array(ids, pa.int32()), "name": pa.array(names, pa.string()), "gone": pa.array(gone, pa.bool_())}
        )
        assert sink.commit(owner(1), span(at, at + 1), rows) is True
    sink.close()


def tolerant(base: Database, sink: Sink, rows: pa.Table) -> list[tuple[Any, ...]]:
    """Write a batch twice, and return stage, place, reason and record of its dead letters."""
    assert isinstance(sink, DeadLetterSink)
    sink.open_dead_letters("dead")
    sink.claim(owner(1), every)
    places = pa.chunked_array([[f"place {n}" for n in range(rows.num_rows)]])
    letters = DeadLetters(owner(1), places=places)
    assert sink.commit_all(owner(1), span(0, 1), rows, letters) is True
    assert sink.commit_all(owner(1), span(0, 1), rows, DeadLetters(owner(1))) is False
    sink.close()
    found = base.query("SELECT stage, place, reason, record FROM dead")
    assert len(found) == len(letters)
    assert all("; allowed: " in reason for _, _, reason, _ in found)
    return found


def table_of(rows: list[dict[str, Any]], columns: Columns = COLUMNS) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=to_arrow(columns))


@pytest.mark.parametrize("mode", ["upsert", "delete"])
def test_row_with_a_null_key_is_a_dead_letter_and_overwrites_nothing(base: Database, mode: str) -> None:
    columns = from_ddl("id BIGINT, part STRING, name STRING")
    base.query("CREATE TABLE t (id BIGINT, part TEXT, name TEXT, PRIMARY KEY (id, part))")
    base.query("INSERT INTO t VALUES (1, 'a', 'old'), (2, 'a', 'old')")
    rows: list[dict[str, Any]] = [
        {"id": 1, "part": "a", "name": "n"},
        {"part": "a", "name": "x"},
        {"id": 9, "name": "y"},
        {"name": "z"},
    ]
    found = tolerant(base, base.sink(columns, insert_mode=mode, pk_fields="id,part"), table_of(rows, columns))
    assert [(stage, place, reason.partition(";")[0]) for stage, place, reason, _ in found] == [
        ("sink", "place 1", "id is null"),
        ("sink", "place 2", "part is null"),
        ("sink", "place 3", "id is null"),
    ]
    expected = {"upsert": [(1, "a", "n"), (2, "a", "old")], "delete": [(2, "a", "old")]}
    assert base.query("SELECT * FROM t ORDER BY id") == expected[mode]


def test_null_integer_key_is_an_error_without_tolerance(base: Database) -> None:
    """SQLite makes up a number for it, and a later row with this number would overwrite the row."""
    sink = base.sink(insert_mode="upsert", pk_fields="id")
    sink.claim(owner(1), every)
    with pytest.raises(SinkError, match=r"table t: id is null; allowed: .*; row: .*\"name\": \"x\""):
        sink.commit(owner(1), span(0, 1), table_of([{"id": 1}, {"name": "x"}]))
    assert base.query("SELECT * FROM t") == []
    sink.close()


BAD_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "not null": ("CHECK (id > 0), b TEXT NOT NULL", {"id": 7}),
    "check": ("CHECK (id < 100), b TEXT", {"id": 500, "b": "x"}),
    "unique": ("UNIQUE, b TEXT", {"id": 1, "b": "again"}),
}


@pytest.mark.parametrize("case", BAD_ROWS)
@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_only_rows_that_the_table_rejects_are_dead_letters(base: Database, case: str, mode: str) -> None:
    rule, bad = BAD_ROWS[case]
    columns = from_ddl("id INT, b STRING")
    if case == "unique" and mode == "upsert":
        rule, bad = "PRIMARY KEY, b TEXT UNIQUE", {"id": 90, "b": "5"}
    elif mode == "upsert":
        rule = f"PRIMARY KEY {rule}"
    base.query(f"CREATE TABLE t (id INTEGER {rule})")
    rows: list[dict[str, Any]] = [{"id": n, "b": str(n)} for n in range(1, 50)]
    rows[20:20] = [bad]
    rows.append(bad)
    keys = {"insert_mode": "upsert", "pk_fields": "id"} if mode == "upsert" else {}
    found = tolerant(base, base.sink(columns, **keys), table_of(rows, columns))
    good = [row["id"] for row in rows if row is not bad]
    if mode == "upsert" and case == "not null":
        # Its key is that of a good row, which stays as it was.
        assert base.query("SELECT id, b FROM t WHERE id = 7") == [(7, "7")]
    assert [key for (key,) in base.query("SELECT id FROM t ORDER BY id")] == good
    assert [place for _, place, *_ in found] == ["place 20", "place 50"]
    assert all(json.loads(record) == {"id": bad["id"], "b": bad.get("b")} for *_, record in found)


@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT"])
def test_nan_is_kept_or_is_a_dead_letter_where_the_database_has_none(base: Database, kind: str) -> None:
    columns = from_ddl(f"id INT, f {kind}")
    rows: list[dict[str, Any]] = [
        {"id": 1, "f": 1.5},
        {"id": 2, "f": math.nan},
        {"id": 3, "f": math.inf},
        {"id": 4, "f": None},
    ]
    found = tolerant(base, base.sink(columns), table_of(rows, columns))
    kept = base.query("SELECT id, f FROM t ORDER BY id")
    if found:
        assert [(place, reason) for _, place, reason, _ in found] == [
            ("place 1", "f is NaN, which SQLite has not; allowed: a number or null")
        ]
        del rows[1]
    assert repr(kept) == repr([(row["id"], row["f"]) for row in rows])


def test_text_that_postgresql_refuses_is_a_dead_letter_with_its_column(database: str) -> None:
    base = Database(database)
    columns = from_ddl("id INT, b STRING")
    base.query("CREATE TABLE t (id SMALLINT, b VARCHAR(10))")
    rows: list[dict[str, Any]] = [{"id": n, "b": "good"} for n in range(30)]
    rows[3]["b"], rows[17]["b"], rows[29]["id"] = "nul\0", "x" * 11, 70_000
    found = tolerant(base, base.sink(columns), table_of(rows, columns))
    assert [place for _, place, *_ in found] == ["place 3", "place 17", "place 29"]
    assert ["0x00" in found[0][2], "column b: " in found[1][2], "column id: " in found[2][2]] == [True] * 3
    assert base.query("SELECT count(*) FROM t") == [(27,)]


def test_place_of_a_row_is_its_own_when_rows_before_it_have_no_key(base: Database) -> None:
    columns = from_ddl("id INT, b STRING")
    base.query("CREATE TABLE t (id INTEGER PRIMARY KEY, b TEXT NOT NULL)")
    rows: list[dict[str, Any]] = [{"id": 1, "b": "x"}, {"b": "x"}, {"id": 2}, {"id": 3, "b": "x"}]
    found = tolerant(base, base.sink(columns, insert_mode="upsert", pk_fields="id"), table_of(rows, columns))
    assert [(place, json.loads(record)["id"]) for _, place, _, record in found] == [("place 1", None), ("place 2", 2)]
    assert base.query("SELECT id FROM t ORDER BY id") == [(1,), (3,)]


def test_deferred_constraint_and_trigger_reject_single_rows(database: str) -> None:
    base = Database(database)
    base.query("CREATE TABLE u (id INTEGER PRIMARY KEY)")
    base.query("INSERT INTO u SELECT generate_series(1, 20)")
    base.query("CREATE TABLE t (id INTEGER REFERENCES u DEFERRABLE INITIALLY DEFERRED, b TEXT)")
    base.query(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE x INT; BEGIN"
        " IF NEW.b = 'bad' THEN RAISE EXCEPTION 'refused'; END IF;"
        " IF NEW.b = 'own' THEN RAISE EXCEPTION 'refused' USING ERRCODE = 'MY001'; END IF;"
        " IF NEW.b = 'none' THEN SELECT id INTO STRICT x FROM u WHERE id = 0; END IF;"
        " IF NEW.b = 'many' THEN SELECT id INTO STRICT x FROM u; END IF;"
        " ASSERT NEW.b <> 'assert'; IF NEW.b = 'cast' THEN x := NEW.b; END IF; RETURN NEW; END $$"
    )
    base.query("CREATE TRIGGER r BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()")
    base.query("ALTER TABLE t ADD CHECK (1 / length(nullif(b, 'zero')) >= 0 AND (b <> 'zero' OR 1 / (id - id) = 1))")
    columns = from_ddl("id INT, b STRING")
    rows: list[dict[str, Any]] = [{"id": n, "b": "good"} for n in range(1, 21)]
    rows[4]["id"] = 99
    for at, text in enumerate(("bad", "own", "none", "many", "assert", "cast", "zero"), 11):
        rows[at]["b"] = text
    found = tolerant(base, base.sink(columns), table_of(rows, columns))
    assert [place for _, place, *_ in found] == [f"place {at}" for at in (4, *range(11, 18))]
    # No other type of a column would help.
    assert all(
        "; allowed: rows that fit the table: its types, constraints and triggers" in reason for *_, reason, _ in found
    )
    assert base.query("SELECT count(*) FROM t") == [(12,)]


def test_trigger_that_ends_the_transaction_writes_nothing(tmp_path: Path) -> None:
    """What came after it would be written outside of the transaction."""
    base = Database(str(tmp_path / "out.db"))
    base.query("CREATE TABLE t (id INTEGER, b TEXT)")
    base.query("CREATE TRIGGER r BEFORE INSERT ON t WHEN NEW.b = 'bad' BEGIN SELECT RAISE(ROLLBACK, 'refused'); END")
    sink = base.sink(from_ddl("id INT, b STRING"))
    assert isinstance(sink, DeadLetterSink)
    sink.open_dead_letters("dead")
    sink.claim(owner(1), every)
    rows = table_of([{"id": 1, "b": "good"}, {"id": 2, "b": "bad"}], from_ddl("id INT, b STRING"))
    with pytest.raises(SinkError, match=r"a trigger has ended the transaction \(refused\); allowed: RAISE\(ABORT\)"):
        sink.commit_all(owner(1), span(0, 1), rows, DeadLetters(owner(1)))
    assert base.query("SELECT * FROM t") == base.query("SELECT * FROM dead") == []
    sink.close()


def test_upsert_keeps_the_last_row_of_each_key(base: Database) -> None:
    sink = base.sink(insert_mode="upsert", pk_fields="id")
    write(sink, [(1, "a", None), (2, "b", None), (1, "c", None)], [(2, None, True), (3, "d", None)])
    assert base.query("SELECT id, name FROM t ORDER BY id") == [(1, "c"), (2, None), (3, "d")]


def test_rows_with_the_delete_field_delete_their_key(base: Database) -> None:
    sink = base.sink(insert_mode="upsert", pk_fields="id", delete_field="gone")
    write(
        sink,
        [(1, "a", None), (2, "b", False), (3, "c", False)],
        [(1, None, True), (2, None, True), (2, "again", False), (9, None, True), (4, "d", False), (4, None, True)],
    )
    assert base.query("SELECT * FROM t ORDER BY id") == [(2, "again"), (3, "c")]


@pytest.mark.parametrize("last", [True, False])
def test_keys_that_are_equal_by_their_collation_are_written_in_the_order_of_the_batch(
    base: Database, last: bool
) -> None:
    if base.place.startswith("postgresql"):
        collation = '"any_case"'
        base.query("CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    else:
        collation = "NOCASE"
    base.query(f"CREATE TABLE t (id INT, name TEXT COLLATE {collation} PRIMARY KEY)")
    sink = base.sink(insert_mode="upsert", pk_fields="name", delete_field="gone")
    write(sink, [(1, "a", not last), (2, "B", False), (3, "b", False), (4, "A", last)])
    assert base.query("SELECT id, lower(name) FROM t ORDER BY id") == [(3, "b"), *[(4, "a")] * (not last)]


def test_text_is_the_same_in_a_database_of_another_encoding(database: str) -> None:
    base = Database(database)
    name = database.rpartition("/")[2]
    base.query(f"ALTER DATABASE {name} SET client_encoding = latin1")
    write(base.sink(), [(1, "\u00e9\\n", None)])
    assert base.query("SELECT name = U&'\\00e9\\\\n' FROM t") == [(True,)]


def test_names_of_columns_with_marks_are_those_of_the_rows(base: Database) -> None:
    columns = from_ddl('`id` INT, `a?b` STRING, `c%s` STRING, `d"e` STRING')
    sink = base.sink(columns, insert_mode="upsert", pk_fields="a?b")
    sink.claim(owner(1), every)
    names = [column.name for column in columns]
    rows = pa.Table.from_arrays([pa.array([1], pa.int32()), *[pa.array(["x"])] * 3], names)
    assert sink.commit(owner(1), span(0, 1), rows) is True
    sink.close()
    assert base.query('SELECT id, "a?b", "d""e" FROM t') == [(1, "x", "x")]


def test_column_whose_name_differs_in_case_is_refused_by_postgresql_at_the_start(database: str) -> None:
    base = Database(database)
    base.query("CREATE TABLE t (id INT, name TEXT, gone BOOLEAN)")
    with pytest.raises(SinkError, match="table t has the column name, not Name; allowed: names in the case"):
        base.sink(from_ddl("id INT, Name STRING"), auto_evolve=True)


def test_upsert_writes_keys_of_its_own_into_an_identity_column(database: str) -> None:
    base = Database(database)
    base.query("CREATE TABLE t (id INT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT, gone BOOLEAN)")
    write(base.sink(insert_mode="upsert", pk_fields="id"), [(7, "a", None), (7, "b", None)])
    assert base.query("SELECT id, name FROM t") == [(7, "b")]


def test_delete_mode_deletes_by_key(base: Database) -> None:
    write(base.sink(insert_mode="upsert", pk_fields="id,name"), [(1, "a", None), (2, "b", None)])
    sink = base.sink(insert_mode="delete", pk_fields="id,name")
    sink.claim(owner(2), every)
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", "x"], "gone": pa.nulls(2, pa.bool_())})
    assert sink.commit(owner(2), span(1, 2), rows) is True
    sink.close()
    assert base.query("SELECT id, name FROM t") == [(2, "b")]


def test_table_is_created_and_evolved_on_request(base: Database) -> None:
    with pytest.raises(SinkError, match=r"table t does not exist; allowed: .* sink\.auto\.create true"):
        base.sink(auto_create=False)
    base.sink(from_ddl("id INT")).close()
    with pytest.raises(SinkError, match=r"table t has no column name; allowed: .*sink\.auto\.evolve true"):
        base.sink()
    write(base.sink(auto_evolve=True), [(1, "a", True)])
    assert base.query("SELECT id, name FROM t") == [(1, "a")]


def test_every_type_reaches_the_database(base: Database) -> None:
    columns = (
        *from_ddl("b BOOLEAN, h SMALLINT, l BIGINT, d DOUBLE, f FLOAT, s STRING, day DATE, at TIMESTAMP"),
        Column("raw", "BINARY"),
        Column("n", "DECIMAL(10,2)"),
        Column("nested", "STRUCT<X:INT>"),
        Column("local", "TIMESTAMP_NTZ"),
        Column("m", "MAP<STRING,INT>"),
    )
    rows = pa.table(
        {
            "b": [True, None, False],
            "h": pa.array([-5, None, 1], pa.int16()),
            "l": [1 << 40, None, 0],
            "d": [0.5, None, 1.0],
            "f": pa.array([0.25, None, 1.0], pa.float32()),
            "s": ['a"b,\n\\', None, ""],
            "day": [AT.date(), None, AT.date()],
            "at": pa.array([AT, None, AT], pa.timestamp("us", "UTC")),
            "raw": [b"\0\xff", None, b""],
            "n": [decimal.Decimal("1.20"), None, decimal.Decimal("0.00")],
            "nested": [{"x": 1}, None, {"x": None}],
            "local": pa.array([AT.replace(tzinfo=None), None, AT.replace(tzinfo=None)], pa.timestamp("us")),
            "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        }
    )
    sink = base.sink(columns)
    sink.claim(owner(1), every)
    assert sink.commit(owner(1), span(0, 3), rows) is True
    sink.close()
    first, empty, last = base.query("SELECT * FROM t")
    assert empty == (None,) * len(columns)
    assert (last[5], bytes(last[8])) == ("", b"")
    if base.place.startswith("postgresql"):
        assert first == (
            True,
            -5,
            1 << 40,
            0.5,
            0.25,
            'a"b,\n\\',
            AT.date(),
            AT,
            b"\0\xff",
            decimal.Decimal("1.20"),
            {"x": 1},
            AT.replace(tzinfo=None),
            {"k": 1},
        )
    else:
        assert first[5:] == (
            'a"b,\n\\',
            "2024-02-29",
            "2024-02-29 12:30:01.000500Z",
            b"\0\xff",
            "1.20",
            '{"x": 1}',
            "2024-02-29 12:30:01.000500",
            '{"k": 1}',
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"insert_mode": "upsert"}, r"sink\.pk\.fields: .*columns, for sink\.insert\.mode upsert"),
        ({"insert_mode": "replace"}, r"sink\.insert\.mode: got 'replace'; allowed: insert, upsert, delete"),
        ({"pk_fields": "id"}, r"sink\.pk\.fields: got 'id'; allowed: nothing with sink\.insert\.mode insert"),
        ({"table": "connectgroup_x"}, r"sink\.table: got 'connectgroup_x'"),
        ({"auto_evolve": "perhaps"}, r"sink\.auto\.evolve: got 'perhaps'; allowed: true, false"),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_wrong_settings_are_refused_when_the_connector_is_put(
    kind: str, settings: dict[str, str], message: str
) -> None:
    config = {"source": "files", "source.path": "/in", "source.format": "csv", "sink": kind, "sink.table": "t"}
    place = {"sink.path": "/out"} if kind == "sqlite" else {"sink.url": "postgresql://x"}
    with pytest.raises(ConfigError, match=message):
        PipelineConnector("c", config | place | {f"sink.{k.replace('_', '.')}": v for k, v in settings.items()})


def test_keys_that_are_no_columns_are_refused(base: Database) -> None:
    with pytest.raises(ConfigError, match=r"sink\.pk\.fields: got 'nope'; allowed: columns id, name, gone"):
        base.sink(insert_mode="upsert", pk_fields="nope")
    with pytest.raises(ConfigError, match=r"sink\.delete\.field: got 'name'; allowed: a boolean column: gone"):
        base.sink(insert_mode="upsert", pk_fields="id", delete_field="name")


def test_row_that_violates_a_constraint_is_one_clear_line_and_changes_nothing(database: str) -> None:
    base = Database(database)
    base.query("CREATE TABLE t (id INT CHECK (id < 10), name TEXT, gone BOOLEAN)")
    sink = base.sink()
    sink.claim(owner(1), every)
    rows = pa.table({"id": pa.array([1, 10], pa.int32()), "name": ["a", "b"], "gone": pa.nulls(2, pa.bool_())})
    with pytest.raises(SinkError, match=r"^PostgreSQL .*violates check constraint.*; allowed: rows that fit") as error:
        sink.commit(owner(1), span(0, 2), rows)
    assert "\n" not in str(error.value)
    assert base.query("SELECT count(*) FROM t") == [(0,)]
    assert sink.commit(owner(1), span(0, 2), rows.slice(0, 1)) is True
    sink.close()


def test_server_that_cannot_be_reached_is_one_clear_line() -> None:
    with pytest.raises(SinkError, match=r"^PostgreSQL: .*; allowed: a server that accepts this connection$"):
        Database("postgresql://nobody:hunter2@127.0.0.1:1/none").sink()


def test_password_is_in_no_text_of_the_settings() -> None:
    settings = PostgresSettings.model_validate({"table": "t", "password": "hunter2"})
    assert "hunter2" not in f"{settings!r} {settings}"


def test_connection_string_has_no_option_that_writes_a_file(tmp_path: Path) -> None:
    """libpq would append to it as the worker's user, whatever ``--allowed-path`` is."""
    from connectgroup.dataplane.postgres_store import connect

    with pytest.raises(ConfigError, match=r"url: got 'sslkeylogfile'"):
        connect(f"postgresql://h/d?sslkeylogfile={tmp_path / 'file'}")


def test_name_of_a_column_that_postgres_cuts_off_is_an_error_at_the_first_start(database: str) -> None:
    for name in ("x" * 64, "\u00e9" * 32):
        with pytest.raises(SinkError, match=r"the name .* has 64 bytes; allowed: names of columns of up to 63 bytes"):
            PostgresSink.create(
                PostgresSettings.model_validate({"url": database, "table": "t"}), from_ddl(f"a INT, `{name}` STRING")
            )
    for _ in range(2):
        settings = PostgresSettings.model_validate({"url": database, "table": "t"})
        PostgresSink.create(settings, from_ddl(f"a INT, `{'x' * 63}` STRING")).close()


ALTERED = {
    "a column that is written is gone": (
        ["ALTER TABLE t DROP COLUMN name"],
        "column name is gone|name.* does not exist",
    ),
    "a column that is written has another name": (
        ["ALTER TABLE t RENAME COLUMN id TO number"],
        "column id is gone|id.* does not exist|no column named id",
    ),
    "the columns are others": (
        ["DROP TABLE t", "CREATE TABLE t (gone BOOLEAN, more TEXT, name INTEGER, id INTEGER)"],
        "column name has another type|invalid input syntax",
    ),
    "a type is another one": (
        ["DROP TABLE t", "CREATE TABLE t (id NUMERIC(3, 2), name NUMERIC(6, 2), gone BOOLEAN)"],
        "column (id|name) has another type|invalid input syntax|no unique or exclusion constraint",
    ),
    "the table is gone": (["DROP TABLE t"], "column id is gone|t.* does not exist|no such table"),
}


@pytest.mark.parametrize("case", ALTERED)
@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_batch_after_the_table_was_altered_is_an_error_that_changes_nothing(
    base: Database, case: str, mode: str
) -> None:
    statements, message = ALTERED[case]
    sink = base.sink(insert_mode=mode, pk_fields="id" if mode == "upsert" else "")
    sink.claim(owner(1), every)
    rows = table_of([{"id": 1, "name": "7.005", "gone": None}])
    assert sink.commit(owner(1), span(0, 1), rows) is True
    for statement in statements:
        base.query(statement)
    is_there = case != "the table is gone"
    before = base.query("SELECT * FROM t") if is_there else []
    with pytest.raises(SinkError, match=f"({message}).*; allowed: ") as caught:
        sink.commit(owner(1), span(1, 2), table_of([{"id": 2, "name": "8.005", "gone": None}]))
    if case != "the columns are others":  # a value that does not fit is noticed first
        assert "rows that fit" not in str(caught.value), "the rows are not at fault"
    sink.close()
    assert (base.query("SELECT * FROM t") if is_there else []) == before
    if mode == "insert":  # The next start follows the rules: it creates the table, or adds the columns.
        again = base.sink(auto_evolve="true")
        assert list(again.claim(owner(2), every).values()) == [1]
        again.close()


def test_columns_that_trade_their_names_or_are_added_during_a_task_get_their_own_values(base: Database) -> None:
    columns = from_ddl("a STRING, b STRING")
    sink = base.sink(columns)
    sink.claim(owner(1), every)
    assert sink.commit(owner(1), span(0, 1), table_of([{"a": "a1", "b": "b1"}], columns)) is True
    for statement in ("RENAME COLUMN a TO c", "RENAME COLUMN b TO a", "RENAME COLUMN c TO b", "ADD COLUMN more TEXT"):
        base.query(f"ALTER TABLE t {statement}")
    assert sink.commit(owner(1), span(1, 2), table_of([{"a": "a2", "b": "b2"}], columns)) is True
    sink.close()
    assert sorted(base.query("SELECT a, b FROM t")) == [("a2", "b2"), ("b1", "a1")]


def test_value_that_a_type_changes_since_the_task_started_is_never_written(database: str) -> None:
    base, columns = Database(database), from_ddl("v DOUBLE")
    sink = base.sink(columns)
    sink.claim(owner(1), every)
    assert sink.commit(owner(1), span(0, 1), table_of([{"v": 0.5}], columns)) is True
    base.query("ALTER TABLE t ALTER v TYPE NUMERIC(4, 1)")
    with pytest.raises(SinkError, match=r"table t: was altered since the task started: the column v has another type"):
        sink.commit(owner(1), span(1, 2), table_of([{"v": 1.25}], columns))
    sink.close()
    again = base.sink(columns)
    again.claim(owner(2), every)
    with pytest.raises(SinkError, match=r"column v: type numeric\(4,1\) would store 1.3 instead of 1.25"):
        again.commit(owner(2), span(1, 2), table_of([{"v": 1.25}], columns))
    assert again.commit(owner(2), span(1, 2), table_of([{"v": 1.5}], columns)) is True
    again.close()
    assert [float(v) for (v,) in base.query("SELECT v FROM t")] == [0.5, 1.5]


def test_table_that_was_made_with_another_type_is_to_be_altered_or_dropped(base: Database) -> None:
    """The column was an INT of ``source.schema`` before that was corrected."""
    columns = from_ddl("v STRING")
    base.sink(from_ddl("v INT")).close()
    sink = base.sink(columns)
    sink.claim(owner(1), every)
    with pytest.raises(
        SinkError,
        match=r"; allowed: .*; the table altered or dropped, or another sink\.table, and .* reset to write e.*; row: ",
    ):
        sink.commit(owner(1), span(0, 1), table_of([{"v": "007"}], columns))
    sink.close()


def kept_or_put_aside(
    base: Database, kind: str, declared: str, values: list[Any], extra: str = ""
) -> tuple[list[Any], dict[Any, str]]:
    """Write values into an existing table; return what a client reads, by row, and the reasons of dead letters."""
    columns = from_ddl(f"id INT, v {kind}")
    base.query(f"CREATE TABLE t (id INTEGER, v {declared}){extra}")
    rows = table_of([{"id": at, "v": value} for at, value in enumerate(values)], columns)
    found = tolerant(base, base.sink(columns), rows)
    reasons = {values[int(place.split()[1])]: reason for _, place, reason, _ in found}
    return [v for _, v in base.query("SELECT id, v FROM t ORDER BY id")], reasons


SQLITE_VALUES: dict[str, tuple[str, str, list[Any], list[Any]]] = {
    "text in numeric": (
        "STRING",
        "NUMERIC",
        ["x", "7", "1.5", "", None],
        ["007", "1.10000000000000000001", " 7", "-0"],
    ),
    "text in integer": ("STRING", "INT", ["x", "9007199254740993", "2024-01-01"], ["+7", "1e400", "9" * 25]),
    "text in real": ("STRING", "DOUBLE", ["x", "2.5"], ["07", "9007199254740993"]),
    "long integer in real": ("BIGINT", "REAL", [1, 2**53, -(2**53), None], [2**53 + 1, 2**63 - 1]),
    "long decimal": (
        "DECIMAL(38,18)",
        "DECIMAL(38,18)",
        [decimal.Decimal("1.5"), decimal.Decimal("12345678")],
        [decimal.Decimal("0.123456789012345678"), decimal.Decimal("12345678901234567890")],
    ),
    "number in text": ("DOUBLE", "TEXT", [0.5, 1e300, -2.0], []),
    "whole number in text": ("BIGINT", "VARCHAR(3)", [1, 2**63 - 1], []),
    "number in integer": ("DOUBLE", "INTEGER", [1.0, 1.5, 1e300, 2.0**60], []),
    "text in blob": ("STRING", "BLOB", ["007", "x"], []),
}


@pytest.mark.parametrize(
    ("declared", "is_invented"),
    [
        ("id INTEGER PRIMARY KEY, name TEXT", True),
        ("ID integer, name TEXT, PRIMARY KEY(id)", True),
        ("id INT PRIMARY KEY, name TEXT", False),
        ("id INTEGER, name TEXT, PRIMARY KEY(id, name)", False),
        ("id INTEGER, name TEXT", False),
    ],
)
def test_null_for_which_sqlite_would_choose_a_number_is_a_dead_letter(
    tmp_path: Path, declared: str, is_invented: bool
) -> None:
    base, columns = Database(str(tmp_path / "o.db")), from_ddl("id INT, name STRING")
    base.query(f"CREATE TABLE t ({declared})")
    rows = table_of([{"id": 1, "name": "x"}, {"name": "y"}, {"id": 2, "name": "z"}], columns)
    found = tolerant(base, base.sink(columns), rows)
    assert [place for _, place, _, _ in found] == ["place 1"] * is_invented
    assert all(reason.startswith("id is null, for which SQLite stores a number") for _, _, reason, _ in found)
    kept = [(1, "x"), (2, "z")]
    assert base.query("SELECT * FROM t ORDER BY id") == (kept if is_invented else [(None, "y"), *kept])


@pytest.mark.parametrize("case", SQLITE_VALUES)
def test_value_that_the_type_of_a_column_of_sqlite_changes_is_a_dead_letter(tmp_path: Path, case: str) -> None:
    kind, declared, good, bad = SQLITE_VALUES[case]
    stored, reasons = kept_or_put_aside(Database(str(tmp_path / "o.db")), kind, declared, good + bad)
    assert set(reasons) == set(bad)
    assert all(reason.startswith("v would be stored as ") for reason in reasons.values())
    for value, read in zip(good, stored, strict=True):
        assert read == value or float(read) == float(value)


def test_column_any_of_a_strict_table_keeps_texts(tmp_path: Path) -> None:
    assert kept_or_put_aside(Database(str(tmp_path / "o.db")), "STRING", "ANY", ["007", "7"], " STRICT") == (
        ["007", "7"],
        {},
    )


@pytest.mark.parametrize("declared", ["INTEGER", "NUMERIC", "REAL", "TEXT", "BLOB", "DATETIME", ""])
@pytest.mark.parametrize("kind", ["STRING", "BIGINT", "DOUBLE", "DECIMAL(38,10)"])
def test_each_value_is_read_back_from_sqlite_or_is_a_dead_letter(tmp_path: Path, kind: str, declared: str) -> None:
    """Generated values: what is stored has every digit, whatever the column is declared as."""
    draw = random.Random(f"{kind} {declared}")
    digits = [draw.randrange(-(10 ** draw.randrange(1, 19)), 10**18) for _ in range(60)]
    values: dict[str, list[Any]] = {
        "STRING": [f"{'0' * draw.randrange(2)}{n}{draw.choice(['', '.0', '.25', 'e3', ' ', 'x'])}" for n in digits],
        "BIGINT": digits,
        "DOUBLE": [n / 10 ** draw.randrange(20) for n in digits],
        "DECIMAL(38,10)": [decimal.Decimal(n).scaleb(-10) for n in digits],
    }
    wanted = list(dict.fromkeys(values[kind]))
    stored, reasons = kept_or_put_aside(Database(str(tmp_path / "o.db")), kind, declared, wanted)
    kept = [value for value in wanted if value not in reasons]
    assert len(stored) == len(kept)
    for value, read in zip(kept, stored, strict=True):
        assert read == value or decimal.Decimal(str(read)) == decimal.Decimal(str(value))
        assert read == value or not re.match(r"-?0\d|.*\s", str(value))


D = decimal.Decimal
POSTGRES_VALUES: dict[str, tuple[str, str, list[Any], list[Any]]] = {
    "digits": ("DECIMAL(20,6)", "NUMERIC(10,2)", [D("1.5"), D("-7"), None], [D("1.005"), D("0.001"), D(10**9)]),
    "digits of a double": ("DOUBLE", "NUMERIC(10,2)", [0.5, 0.1], [1.005, 1e-9, -0.0, math.inf]),
    "double in numeric": ("DOUBLE", "NUMERIC", [0.1, 1e300, 5e-324], [-0.0]),
    "double in real": ("DOUBLE", "REAL", [0.5, 16777216.0, -0.0], [1 / 3, 16777217.0, 1e300, 1e-300]),
    "small texts in double": ("STRING", "FLOAT8", ["1e-300", "0e-400"], ["1e-400"]),
    "long in double": ("BIGINT", "DOUBLE PRECISION", [1, 2**53], [2**53 + 1, 2**63 - 1]),
    "int in real": ("INT", "REAL", [2**24, -3], [2**24 + 1]),
    "decimal in double": ("DECIMAL(38,18)", "FLOAT8", [D("0.1")], [D("0.123456789012345678")]),
    "decimal in integer": ("DECIMAL(4,2)", "INTEGER", [], [D("1.50")]),
    "double in integer": ("DOUBLE", "INTEGER", [], [1.5, 1e10]),
    "seconds": (
        "TIMESTAMP",
        "TIMESTAMPTZ(0)",
        [AT.replace(microsecond=0)],
        [AT, AT.replace(microsecond=999_999)],
    ),
    "milliseconds": ("TIMESTAMP", "TIMESTAMP(3)", [AT.replace(microsecond=1000)], [AT]),
    "time in date": ("TIMESTAMP", "DATE", [datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)], [AT]),
    "time of day": ("TIMESTAMP", "TIME", [], [AT]),
    "blanks": ("STRING", "VARCHAR(3)", ["a  ", "abc", "é", "", None], ["abc ", "a   ", "abcd"]),
    "blanks of char": ("STRING", "CHAR(3)", ["abc", "ab"], ["ab ", "abc "]),
    "domain": ("STRING", "short", ["ab"], ["ab ", "abc"]),
    "name": ("STRING", "NAME", ["ab"], ["a" * 64]),
    "zeros": ("STRING", "BIGINT", ["7", "-3"], ["007", "+7", " 7", "-0", "0x10", "1_000", "x"]),
    "texts of numbers": ("STRING", "NUMERIC(6,2)", ["7", "7.5", "1e3"], ["7.505", "1_0", "07"]),
    "texts of doubles": ("STRING", "FLOAT8", ["0.1", "NaN"], ["0.12345678901234567890", "9007199254740993", "inf"]),
    "texts of times": (
        "STRING",
        "TIMESTAMPTZ",
        ["2024-01-02", "2024-01-02T03:04:05.5+02:00", "2024-01-02 03:04:05Z", "2024-01-02T03:04:05.1230000Z"],
        ["2024-01-02T03:04:05.1234567Z", "now", "01/02/2024"],
    ),
    "texts of local times": (
        "STRING",
        "TIMESTAMP",
        ["2024-01-02T03:04:05", "2024-01-02T03:04:05Z"],
        ["2024-01-02T03:04:05+02:00", "today"],
    ),
    "texts of dates": ("STRING", "DATE", ["2024-01-02"], ["2024-01-02T03:04:05", "1/2/2024", "20240102"]),
    "texts of times of day": ("STRING", "TIME(0)", ["03:04", "03:04:05"], ["03:04:05.5", "03:04:05+02"]),
    "booleans": ("STRING", "BOOLEAN", ["true", "F"], ["yes", "1"]),
    "json": (
        "STRING",
        "JSONB",
        ['{"b": 1, "a": [1.0, "x"]}', "7"],
        ['{"a": 1, "a": 2}', '[{"a": {"b": 1, "b": 1}}]', "{", '"\\u0000"'],
    ),
    "json as text": ("STRING", "JSON", ['{"b":1,  "b":2}'], ["{"]),
    "uuid": (
        "STRING",
        "UUID",
        ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
        ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12}"],
    ),
    "address": ("STRING", "INET", ["10.0.0.1", "10.0.0.0/8"], ["10.0.0.1/32"]),
    "array": ("STRING", "NUMERIC(4,1)[]", ["{1.5,2.5}"], ["{1.55}"]),
    "money": ("DECIMAL(6,3)", "MONEY", [], [D("1.005")]),
    "number as text": ("DOUBLE", "TEXT", [0.1, 1e300], []),
    "whole number as boolean": ("INT", "BOOLEAN", [1, 0], [2, -1]),
    "hundreds": ("BIGINT", "NUMERIC(4,-2)", [1200], [1234]),
}


@pytest.mark.parametrize("case", POSTGRES_VALUES)
def test_value_that_the_type_of_a_column_of_postgresql_changes_is_a_dead_letter(database: str, case: str) -> None:
    kind, declared, good, bad = POSTGRES_VALUES[case]
    base = Database(database)
    base.query("CREATE DOMAIN short AS VARCHAR(2)")
    stored, reasons = kept_or_put_aside(base, kind, declared, good + bad)
    assert set(reasons) == set(bad)
    assert all("column v: " in reason for reason in reasons.values()), reasons
    assert len(stored) == len(good)
    if kind not in ("STRING", "TIMESTAMP"):
        for value, read in zip(good, stored, strict=True):
            assert read == value or type(value)(str(read)) == value


@pytest.mark.parametrize(("kind", "declared"), [("STRING", "BYTEA"), ("BIGINT", "BYTEA")])
def test_column_that_would_change_each_value_is_refused_at_the_start(database: str, kind: str, declared: str) -> None:
    base = Database(database)
    base.query(f"CREATE TABLE t (id INTEGER, v {declared})")
    with pytest.raises(SinkError, match=f"column v is bytea, and its values are {kind}; allowed: a column of type"):
        base.sink(from_ddl(f"id INT, v {kind}"))


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_changed_value_is_an_error_of_one_line_without_tolerance(database: str, mode: str) -> None:
    base = Database(database)
    base.query("CREATE TABLE t (id INTEGER PRIMARY KEY, v NUMERIC(10,2))")
    columns = from_ddl("id INT, v DOUBLE")
    sink = base.sink(columns, insert_mode=mode, **({"pk_fields": "id"} if mode == "upsert" else {}))
    sink.claim(owner(1), every)
    with pytest.raises(SinkError, match=r"table t: column v: type numeric\(10,2\) would store 1\.01 instead of 1\.005"):
        sink.commit(owner(1), span(0, 1), table_of([{"id": 1, "v": 0.5}, {"id": 2, "v": 1.005}], columns))
    assert base.query("SELECT * FROM t") == []
    sink.close()

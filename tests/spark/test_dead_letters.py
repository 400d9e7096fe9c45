"""``errors.tolerance=all``: a record that cannot be processed is a dead letter, in the transaction of its batch."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.connectors.transforms import parse_chain
from connectgroup.dataplane.columns import from_ddl, to_arrow
from connectgroup.dataplane.dead_letters import FIELDS, DeadLetterSink, log_dead_letters
from connectgroup.dataplane.errors import BadLine, TaskFenced
from connectgroup.dataplane.ownership import Range, ranges_between
from connectgroup.errors import ConfigError
from connectgroup.spark.sinks.postgres import PostgresSettings, PostgresSink
from connectgroup.spark.sinks.sqlite import SqliteSettings, SqliteSink
from connectgroup.spark.sources.dialect import LineDialect
from connectgroup.spark.sources.parquet import ParquetSource, ParquetSourceSettings
from connectgroup.spark.sources.parts import read_part, read_range
from connectgroup.spark.sources.sliced import decode, encode
from connectgroup.spark.sources.table import SqliteTableSettings, SqliteTableSource
from connectgroup.testing.contracts.sink import every, owner, span

from .conftest import Bench

COLUMNS = from_ddl("a INT, b STRING")
LETTER = {"connector": "c", "task": "0", "stage": "source", "place": "f, line 2", "reason": "r", "record": "x\0"}


@pytest.mark.parametrize(
    ("form", "text", "bad"),
    [
        ("csv", "a,b\n1,x\none,y\n2\n3,z\n", [(3, "one,y"), (4, "2")]),
        ("csv", 'a,b\n1,"x\n2,y\n', [(2, '1,"x')]),
        ("jsonl", '{"a": 1}\n{"a": "x"}\nnull\n{"a": 2}\n', [(2, '{"a": "x"}'), (3, "null")]),
        ("csv", "a,b\n1,x\n", []),
    ],
)
def test_bad_lines_are_rows_with_their_error(
    tmp_path: Path, form: Literal["csv", "jsonl"], text: str, bad: list[tuple[int, str]]
) -> None:
    (tmp_path / "f").write_text(text)
    whole = Range(slice="f", start=0, end=len(text))
    rows = [
        row
        for batch in read_part(tmp_path, whole, COLUMNS, LineDialect(form), tolerant=True)
        for row in batch.to_pylist()
    ]
    errors = [json.loads(row["connectgroup_error"]) for row in rows if row["connectgroup_error"] is not None]
    assert [error["record"] for error in errors] == [record for _, record in bad]
    for error, (line, _) in zip(errors, bad, strict=True):
        assert error["place"].startswith(f"{tmp_path / 'f'}, line {line} (byte ")
        assert "allowed: " in error["reason"]
    lines = text.splitlines()[form == "csv" :]
    assert len(rows) == len(lines)
    if bad:
        with pytest.raises(BadLine):
            read_range(tmp_path, whole, COLUMNS, LineDialect(form))


def test_line_numbers_count_from_the_start_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a,b\n1,x\n2,y\nbad\n")
    wanted = Range(slice="f", start=12, end=16)
    (batch,) = read_part(tmp_path, wanted, COLUMNS, LineDialect("csv"), tolerant=True)
    assert ", line 4 (byte 12)" in batch.to_pylist()[0]["connectgroup_error"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_dead_letters_are_committed_with_the_batch_or_not_at_all(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("database") if kind == "postgres" else str(tmp_path / "out.db")

    def opened() -> DeadLetterSink:
        if kind == "postgres":
            sink: DeadLetterSink = PostgresSink.create(
                PostgresSettings.model_validate({"url": url, "table": "t"}), COLUMNS
            )
        else:
            sink = SqliteSink.create(SqliteSettings(path=url, table="t"), COLUMNS)
        sink.open_dead_letters("dead")
        return sink

    def letters() -> list[tuple[object, ...]]:
        query = f"SELECT {', '.join(FIELDS)} FROM dead"
        if kind == "postgres":
            import psycopg

            with psycopg.connect(url) as connection:
                return list(connection.execute(query).fetchall())
        with sqlite3.connect(url) as connection:
            return connection.execute(query).fetchall()

    nothing = to_arrow(COLUMNS).empty_table()
    zombie, successor = opened(), opened()
    zombie.claim(owner(1), every)
    assert zombie.commit_all(owner(1), span(0, 4), nothing, [LETTER]) is True
    assert zombie.commit_all(owner(1), span(0, 4), nothing, [LETTER]) is False
    successor.claim(owner(2), every)
    with pytest.raises(TaskFenced):
        zombie.commit_all(owner(1), span(4, 8), nothing, [LETTER])
    assert letters() == [("c", "0", "source", "f, line 2", "r", "x\\0")]
    zombie.close()
    successor.close()


def test_record_that_fails_in_or_beside_a_filter_is_one_dead_letter(spark: None) -> None:
    from connectgroup.spark.session import spark_session
    from connectgroup.spark.tolerance import apply_tolerantly

    config = {"transforms": "f,c", "transforms.f.type": "Filter", "transforms.f.condition": "cast(b AS INT) = 20"}
    config |= {"transforms.c.type": "Cast", "transforms.c.spec": "b:int8"}
    texts = ["10", "no number", "20", "300", "30"]
    places = pa.array([f"place {text}" for text in texts])
    table = pa.table({"b": texts, "connectgroup_place": places})
    rows, letters = apply_tolerantly(parse_chain(config, frozenset()), table, spark_session(), owner(1))
    assert rows.to_pylist() == [{"b": 10}, {"b": 30}]
    found = [(each["stage"], each["place"], each["reason"].partition(":")[0], each["record"]) for each in letters]
    assert found == [
        ("transform", "place no number", "transforms.f", '{"b": "no number"}'),
        ("transform", "place 300", "transforms.c", '{"b": "300"}'),
    ]
    assert letters.places is not None
    assert letters.places.to_pylist() == ["place 10", "place 30"]


@pytest.mark.parametrize(
    "others",
    [
        [{"type": "HoistField", "field": "all"}],
        [{"type": "Flatten"}, {"type": "ReplaceField", "include": "b"}],
        [{"type": "ExtractField", "field": "b"}],
        [{"type": "ValueToKey", "fields": "b"}, {"type": "Filter", "predicate": "p"}],
        [{"type": "MaskField", "fields": "b", "predicate": "p"}],
    ],
    ids=lambda others: "-".join(each["type"] for each in others),
)
def test_rows_behind_a_filter_keep_their_places_and_have_no_other_column(
    spark: None, others: list[dict[str, str]]
) -> None:
    from connectgroup.spark.session import spark_session
    from connectgroup.spark.tolerance import apply_tolerantly
    from connectgroup.spark.transforms.chain import columns_after

    steps = [{"type": "Filter", "condition": "b = '20'"}, *others]
    config = {f"transforms.t{at}.{name}": text for at, each in enumerate(steps) for name, text in each.items()}
    config |= {"transforms": ",".join(f"t{at}" for at in range(len(steps)))}
    config |= {"predicates": "p", "predicates.p.type": "RecordIsTombstone"}
    texts = ["10", "20", None, "30"]
    places = pa.array(["place 1", "place 2", "place 3", "place 4"])
    chain, table = parse_chain(config, frozenset()), pa.table({"b": texts, "connectgroup_place": places})
    rows, letters = apply_tolerantly(chain, table, spark_session(), owner(1))
    expected = columns_after(chain, from_ddl("b STRING"), spark_session(), frozenset())
    assert rows.column_names == [column.name for column in expected]
    assert letters.places is not None
    drops_null = any(each.get("predicate") and each["type"] == "Filter" for each in others)
    assert letters.places.to_pylist() == ["place 1", *["place 3"] * (not drops_null), "place 4"]


def test_pipeline_puts_bad_lines_and_failed_transforms_aside(table: Bench, caplog: pytest.LogCaptureFixture) -> None:
    (table.input / "one.csv").write_text("a,b\n1,10\nx,20\n2,no number\n3,30\n")
    run = table.start(
        1,
        errors_tolerance="all",
        errors_deadletterqueue_name="dead",
        errors_log_enable="true",
        transforms="c",
        transforms_c_type="Cast",
        transforms_c_spec="b:int32",
    )
    run.wait(lambda: sum(run.rows) == 2)
    with sqlite3.connect(table.output) as connection:
        assert connection.execute("SELECT a, b FROM t ORDER BY a").fetchall() == [(1, 10), (3, 30)]
        found = connection.execute("SELECT stage, place, reason, record FROM dead ORDER BY stage").fetchall()
    source, transform = found
    assert source[0] == "source"
    assert source[1].startswith(f"{table.input / 'one.csv'}, line 3 (byte ")
    assert source[3] == "x,20"
    assert transform[0] == "transform"
    assert transform[2].startswith("transforms.c: ")
    assert "no number" in transform[2]
    assert transform[1] == f"{table.input / 'one.csv'}, byte 14"
    assert json.loads(transform[3]) == {"a": 2, "b": "no number"}
    logged = [record.getMessage() for record in caplog.records if "dead letter" in record.getMessage()]
    assert len(logged) == 2
    assert f"{table.input / 'one.csv'}, line 3" in logged[0]
    assert "x,20" not in " ".join(logged), "records are logged only with errors.log.include.messages"


@pytest.mark.parametrize(
    ("data", "dialect"),
    [
        (b"a,b\n1,x\n2,y\n", LineDialect("csv")),
        (b"a,b\r\n1,x\r\n\r\n2,y\r\n\n", LineDialect("csv")),
        (b'a,b\n1,"x\n\ny"\nbad,1\n\n2,z\n', LineDialect("csv", multiline=True)),
        ("a,b\n1,ä\n2,ö\n".encode("latin-1"), LineDialect("csv", encoding="iso-8859-1")),
        ("a,b\n1,ä\n\nbad,ö\n3,x\n".encode("utf-16"), LineDialect("csv", encoding="utf-16")),
        (b'\xef\xbb\xbf{"a":1}\n\n{"a":2}\nbad\n{"a":3}\n', LineDialect("jsonl")),
        (b"1\n\n2\n", LineDialect("text")),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_files_have_their_places(tmp_path: Path, data: bytes, dialect: LineDialect, packed: bool) -> None:
    """The place names the file and the byte at which the record begins, of a compressed file that of its content."""
    name = "f.gz" if packed else "f"
    (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    columns = from_ddl({"text": "value STRING", "jsonl": "a INT", "csv": "a INT, b STRING"}[dialect.form])
    whole = Range(slice=name, start=0, end=(tmp_path / name).stat().st_size)
    parts = read_part(tmp_path, whole, columns, dialect, tolerant=True, places=True)
    rows = [row for part in parts for row in part.to_pylist()]
    good = [row for row in rows if row["connectgroup_error"] is None]
    assert good
    for row in good:
        path, _, offset = row["connectgroup_place"].partition(", byte ")
        assert path == str(tmp_path / name)
        wide = "utf-16-le" if dialect.encoding == "utf-16" else dialect.encoding
        assert data[int(offset) :].decode(wide).lstrip('{"a:').startswith(str(row.get("a", row.get("value"))))
        assert all(row["connectgroup_place"] is None for row in rows if row["connectgroup_error"])


@pytest.mark.parametrize("source", ["parquet", "sqlite"])
def test_rows_of_parquet_and_tables_have_their_places(tmp_path: Path, source: str) -> None:
    if source == "parquet":
        pq.write_table(pa.table({"a": pa.array([1, 2**40, 3])}), tmp_path / "x.parquet", row_group_size=1)
        settings = {"path": str(tmp_path), "schema": "a INT"}
        reader: Any = ParquetSource.create(ParquetSourceSettings.model_validate(settings), task=0, tasks=1)
        expected = {1: f"{tmp_path / 'x.parquet'}, row 1", 3: f"{tmp_path / 'x.parquet'}, row 3"}
    else:
        with closing(sqlite3.connect(tmp_path / "d")) as connection, connection:
            connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INT)")
            connection.execute("INSERT INTO t VALUES (10, 1), (20, 'two'), (30, 3)")
        settings = {"path": str(tmp_path / "d"), "table": "t", "incrementing.column": "id"}
        reader = SqliteTableSource.create(SqliteTableSettings.model_validate(settings), task=0, tasks=1)
        expected = {a: f"table t of {tmp_path / 'd'} by id, row id {key}" for a, key in ((1, 10), (3, 30))}
    reader, _ = decode(encode(reader.tolerant().with_places(), {}))
    rows = [
        row
        for part in ranges_between({}, reader.plan({}))
        for batch in reader.read(part)
        for row in batch.select(column.name for column in reader.read_columns).to_pylist()
    ]
    assert {row["a"]: row["connectgroup_place"] for row in rows if row["a"] is not None} == expected
    assert [row["connectgroup_place"] for row in rows if row["connectgroup_error"]] == [None]


TIME = "timestamp_millis(if(b = 'ff', 1700000000000000, 1700000000000))"


@pytest.mark.parametrize("is_tolerant", [True, False])
@pytest.mark.parametrize(
    ("expression", "reason", "shown"),
    [
        ("cast(unhex(b) AS STRING)", "is not UTF-8 after the transforms", "\\xff"),
        (TIME, "is a time outside of the years 1 to 9999", "1700000000000000000 (timestamp[us, tz=UTC])"),
        (f"map('x', array(named_struct('y', {TIME})))", "is a time outside of the years 1 to 9999", ""),
    ],
    ids=["text", "time", "nested time"],
)
def test_value_of_a_transform_that_sinks_do_not_have_is_a_dead_letter_or_an_error(
    table: Bench, is_tolerant: bool, expression: str, reason: str, shown: str
) -> None:
    (table.input / "one.csv").write_text("a,b\n1,6869\n2,ff\n3,6869\n")
    tolerance: dict[str, Any] = (
        {"errors_tolerance": "all", "errors_deadletterqueue_name": "dead"} if is_tolerant else {}
    )
    query = f"SELECT a, {expression} AS b FROM batch"
    run = table.start(1, transforms="q", transforms_q_type="sql", transforms_q_query=query, **tolerance)
    if not is_tolerant:
        assert str(run.failure()).startswith(f"flights: b {reason}; allowed: ")
        return
    run.wait(lambda: sum(run.rows) == 2)
    with sqlite3.connect(table.output) as connection:
        assert connection.execute("SELECT a FROM t ORDER BY a").fetchall() == [(1,), (3,)]
        ((stage, record),) = connection.execute("SELECT stage, record FROM dead").fetchall()
    assert (stage, json.loads(record)["a"]) == ("sink", 2)
    assert shown in json.loads(record)["b"]


@pytest.mark.parametrize("source", ["parquet", "sqlite"])
def test_rows_of_parquet_and_tables_that_do_not_fit_are_dead_letters(table: Bench, source: str) -> None:
    if source == "parquet":
        pq.write_table(pa.table({"a": pa.array([1, 2**40, 3])}), table.input / "x.parquet")
        settings: dict[str, Any] = {
            "source": "parquet",
            "source_path": str(table.input),
            "source_schema": "a INT",
        }
        place = f"{table.input / 'x.parquet'}, row 2"
    else:
        with sqlite3.connect(table.input / "d") as connection:
            connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INT)")
            connection.execute("INSERT INTO t VALUES (1, 1), (2, 'two'), (3, 3)")
        settings = {"source": "sqlite", "source_path": str(table.input / "d"), "source_table": "t"}
        settings |= {"source_incrementing_column": "id"}
        place = f"table t of {table.input / 'd'} by id, row id 2"
    run = table.start(1, errors_tolerance="all", errors_deadletterqueue_name="dead", **settings)
    run.wait(lambda: sum(run.rows) == 2)
    run.task.stop()
    again = table.start(2, errors_tolerance="all", errors_deadletterqueue_name="dead", **settings)
    again.wait(lambda: bool(again.polls))
    with sqlite3.connect(table.output) as connection:
        assert connection.execute("SELECT a FROM t ORDER BY a").fetchall() == [(1,), (3,)]
        assert connection.execute("SELECT stage, place FROM dead").fetchall() == [("source", place)]


@pytest.mark.parametrize("name", ["connectgroup_error", "Connectgroup_Place"])
def test_column_with_a_name_of_dead_letters_is_an_error_if_errors_are_tolerated(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path, "sqlite")
    (bench.input / "a.csv").write_text(f"a,{name}\n1,x\n")
    settings = {"errors.tolerance": "all", "errors.deadletterqueue.name": "dead"}
    settings["source.schema"] = f"a INT, {name} STRING"
    with pytest.raises(ConfigError, match=f"a column: got '{name}'; allowed: names other than connectgroup_error and"):
        bench.start(1, **settings)  # type: ignore[arg-type]


def test_column_with_the_name_of_the_mark_of_values_is_an_error(spark: None) -> None:
    """A column of the source, or of a transform."""
    from connectgroup.spark.session import spark_session
    from connectgroup.spark.transforms.chain import columns_after

    columns = from_ddl("a INT, Connectgroup_Has_Value INT")
    with pytest.raises(ConfigError, match="source: a column: got 'Connectgroup_Has_Value'; allowed: names other than"):
        columns_after((), columns, None, frozenset())
    config = {"transforms": "q", "transforms.q.type": "sql"}
    config["transforms.q.query"] = "SELECT a AS connectgroup_has_value FROM batch"
    with pytest.raises(ConfigError, match="transforms: a column: got 'connectgroup_has_value'; allowed: names other"):
        columns_after(parse_chain(config, frozenset()), from_ddl("a INT"), spark_session(), frozenset())


def test_logged_dead_letters_are_limited_and_contain_the_record_on_request(caplog: pytest.LogCaptureFixture) -> None:
    letters = [{"stage": "source", "place": f"f, line {n}", "reason": "r", "record": f"x\n{n}"} for n in range(103)]
    log_dead_letters("c-0", letters, include_messages=True)
    logged = [record.getMessage() for record in caplog.records]
    assert logged[7] == "c-0: f, line 7 is a dead letter (source): r; record: x\\n7"
    assert logged[100:] == ["c-0: and 3 more dead letters of this batch"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"errors.tolerance": "all"}, r"errors\.deadletterqueue\.name: missing; allowed: a table or topic"),
        ({"errors.deadletterqueue.name": "dead"}, r"errors\.deadletterqueue\.name: got 'dead'"),
        ({"errors.tolerance": "some"}, r"errors\.tolerance: got 'some'; allowed: none, all"),
        (
            {"errors.tolerance": "all", "errors.deadletterqueue.name": "dead"},
            r"errors\.tolerance: got 'all'; allowed: none, or one of the sinks connect, kafka, postgres, sqlite",
        ),
    ],
)
def test_wrong_settings_are_refused_when_the_connector_is_put(settings: dict[str, str], message: str) -> None:
    base = {"source": "files", "source.path": "/in", "source.format": "csv", "sink": "parquet", "sink.path": "/out"}
    with pytest.raises(ConfigError, match=message):
        PipelineConnector("c", base | settings)

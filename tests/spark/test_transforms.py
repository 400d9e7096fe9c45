"""Transforms and predicates: each on real Spark, their settings, and a chain in a pipeline."""

from __future__ import annotations

import datetime
import math
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.connectors.transforms import parse_chain
from connectgroup.dataplane.columns import Column, Columns, from_ddl
from connectgroup.errors import ConfigError
from connectgroup.plugins import available

from .conftest import Bench

Row = dict[str, Any]
SCHEMA = "id INT, name STRING, amount DOUBLE, at TIMESTAMP"
AT = datetime.datetime(2024, 2, 29, 12, 30, 1, 500_000, datetime.UTC)
ROWS = [(1, "ann", 1.5, AT), (2, "bob", None, AT), (3, None, 3.0, None)]
RECORD = "key STRING, value STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
RECORDS = [("k", "v", "orders", 1, 7, AT), ("k2", None, "logs", 0, 9, AT)]
METADATA = frozenset({"key", "topic", "partition", "offset", "timestamp"})


def run(
    settings: Row, rows: list[Any] = ROWS, schema: str = SCHEMA, metadata: frozenset[str] = frozenset()
) -> list[Row]:
    """The rows after one transform ``t``, or after a whole configuration with ``transforms``."""
    from connectgroup.spark.session import spark_session
    from connectgroup.spark.transforms.chain import apply_chain

    config = (
        settings
        if "transforms" in settings
        else {"transforms": "t"} | {f"transforms.t.{k}": v for k, v in settings.items()}
    )
    session = spark_session().newSession()
    frame = apply_chain(parse_chain(config, metadata), session.createDataFrame(rows, schema))
    rows_after: list[Row] = frame.toArrow().to_pylist()
    return rows_after


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        (
            {"type": "InsertField", "static.field": "x", "static.value": "y"},
            {"id": 1, "name": "ann", "amount": 1.5, "at": AT, "x": "y"},
        ),
        ({"type": "ReplaceField", "exclude": "at,amount", "renames": "id:number"}, {"number": 1, "name": "ann"}),
        ({"type": "ReplaceField$Value", "include": "id"}, {"id": 1}),
        (
            {"type": "MaskField", "fields": "id,name,at"},
            {"id": 0, "name": "", "amount": 1.5, "at": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)},
        ),
        (
            {"type": "org.apache.kafka.connect.transforms.MaskField$Value", "fields": "name", "replacement": "x"},
            {"id": 1, "name": "x", "amount": 1.5, "at": AT},
        ),
        ({"type": "Cast", "spec": "id:string,amount:int32"}, {"id": "1", "name": "ann", "amount": 1, "at": AT}),
        ({"type": "HoistField", "field": "all"}, {"all": {"id": 1, "name": "ann", "amount": 1.5, "at": AT}}),
        ({"type": "ExtractField", "field": "name"}, {"name": "ann"}),
        ({"type": "ValueToKey", "fields": "id"}, {"id": 1, "name": "ann", "amount": 1.5, "at": AT, "key": {"id": 1}}),
        (
            {"type": "TimestampConverter", "field": "at", "target.type": "unix"},
            {"id": 1, "name": "ann", "amount": 1.5, "at": 1709209801500},
        ),
        (
            {"type": "TimestampConverter", "field": "at", "target.type": "string", "format": "yyyy-MM-dd HH"},
            {"id": 1, "name": "ann", "amount": 1.5, "at": "2024-02-29 12"},
        ),
        ({"type": "sql", "query": "SELECT sum(id) AS total FROM batch"}, {"total": 6}),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) and "type" in value else "",
)
def test_transform_changes_the_value(spark: None, settings: Row, first: Row) -> None:
    assert run(settings)[0] == first


@pytest.mark.parametrize(
    ("settings", "schema", "setting"),
    [
        ({"type": "ReplaceField", "renames": "id:name"}, SCHEMA, "renames"),
        ({"type": "ReplaceField", "renames": "id:NAME"}, SCHEMA, "renames"),
        ({"type": "ReplaceField", "renames": "id:x,amount:x"}, SCHEMA, "renames"),
        ({"type": "InsertField", "static.field": "name", "static.value": "y"}, SCHEMA, "static.field"),
        ({"type": "InsertField", "static.field": "Name?", "static.value": "y"}, SCHEMA, "static.field"),
        ({"type": "InsertField", "offset.field": "value"}, RECORD, "offset.field"),
        ({"type": "InsertField", "offset.field": "x", "topic.field": "x"}, RECORD, "offset.field"),
        ({"type": "HoistField", "field": "topic"}, RECORD, "field"),
        ({"type": "ValueToKey", "fields": "a"}, "a INT, key STRING", "type"),
        ({"type": "Flatten", "delimiter": ""}, "ke STRUCT<y: INT>, value STRING, key STRING", "delimiter"),
        ({"type": "ExtractField", "field": "s"}, "s STRUCT<topic: STRING>, topic STRING", "field"),
        ({"type": "sql", "query": "SELECT *, trim(name) AS name FROM batch"}, SCHEMA, "query"),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_name_that_is_taken_is_an_error_and_no_value_is_lost(
    spark: None, settings: Row, schema: str, setting: str
) -> None:
    metadata = METADATA - {"key"} if "a INT" in schema else METADATA
    with pytest.raises(ConfigError, match=rf"^transforms\.t\.{setting.replace('.', chr(92) + '.')}: got "):
        run(settings, [], schema, frozenset() if schema == SCHEMA else metadata)


def test_names_may_be_exchanged_and_dropped_names_used_again(spark: None) -> None:
    assert run({"type": "ReplaceField", "exclude": "amount,at", "renames": "id:name,name:id"})[0] == {
        "name": 1,
        "id": "ann",
    }
    assert run({"type": "ReplaceField", "exclude": "name,at,amount", "renames": "id:name"})[0] == {"name": 1}


@pytest.mark.parametrize("text", ["yes", "1", "", " true", "no"])
def test_cast_of_a_text_that_is_no_boolean_is_an_error(spark: None, text: str) -> None:
    """Spark would make true of yes and 1, Kafka Connect false."""
    settings = {"type": "Cast", "spec": "a:boolean"}
    values = [row["a"] for row in run(settings, [("true",), ("FALSE",), (None,)], "a STRING")]
    assert values == [True, False, None]
    with pytest.raises(Exception, match=f"{text} is no boolean; allowed: true, false"):
        run(settings, [(text,)], "a STRING")


@pytest.mark.parametrize(
    ("schema", "spec", "good", "bad"),
    [
        ("a DOUBLE", "float32", [0.0, -0.5, 1e-45, math.inf, None], [1e-50, -1e300]),
        (
            "a STRING",
            "float64",
            ["0", "0e-9", "-1.5", "Infinity", "5e-324", None],
            ["1e-400", "-1e400", "0.007e-399"],
        ),
        ("a STRING", "float32", ["0.0", "1e-30"], ["1e-50", "4e38"]),
        ("a DECIMAL(38,38)", "float32", [Decimal("0"), Decimal("0.25")], []),
    ],
)
def test_cast_beyond_the_range_of_a_type_is_an_error(
    spark: None, schema: str, spec: str, good: list[Any], bad: list[Any]
) -> None:
    settings = {"type": "Cast", "spec": f"a:{spec}"}
    found = [row["a"] for row in run(settings, [(each,) for each in good], schema)]
    assert found == [None if each is None else pytest.approx(float(each), rel=1e-6, abs=1e-45) for each in good]
    for each in bad:
        with pytest.raises(Exception, match=f"is beyond the range of {spec}; allowed: another type"):
            run(settings, [(each,)], schema)


def test_mask_keeps_null(spark: None) -> None:
    rows = run({"type": "MaskField", "fields": "name,amount,at"})
    assert [(row["name"], row["amount"], row["at"] is None) for row in rows] == [
        ("", 0.0, False),
        ("", None, False),
        (None, 0.0, True),
    ]


def test_mask_of_an_array_or_a_map_is_empty_and_that_of_a_struct_or_bytes_null(spark: None) -> None:
    """As in Kafka Connect, which refuses structs and bytes."""
    schema = "a ARRAY<STRUCT<x: INT>>, b MAP<STRING, ARRAY<INT>>, c STRUCT<x: INT>, d BINARY, e ARRAY<INT>"
    rows = run({"type": "MaskField", "fields": "a,b,c,d,e"}, [([(1,)], {"k": [2]}, (3,), b"4", None)], schema)
    assert rows == [{"a": [], "b": [], "c": None, "d": None, "e": None}]


def test_times_without_a_zone_are_times_of_utc(spark: None) -> None:
    """Debezium's columns of timestamps without a zone."""
    rows, schema = [(AT.replace(tzinfo=None),)], "t TIMESTAMP_NTZ"
    converter = {"type": "TimestampConverter", "field": "t", "target.type": "unix"}
    assert run(converter, rows, schema) == [{"t": 1709209801500}]
    assert run({"type": "Cast", "spec": "t:int64"}, rows, schema) == [{"t": 1709209801500}]
    assert run({"type": "MaskField", "fields": "t"}, rows, schema) == [{"t": datetime.datetime(1970, 1, 1)}]


@pytest.mark.parametrize(
    ("value", "kind", "precision", "expected"),
    [
        (1700000000.25, "DOUBLE", "seconds", "2023-11-14T22:13:20.250000"),
        (1700000000.1, "DOUBLE", "seconds", "2023-11-14T22:13:20.100000"),
        (Decimal("1700000000.123456"), "DECIMAL(20,6)", "seconds", "2023-11-14T22:13:20.123456"),
        (1700000000000.5, "DOUBLE", "milliseconds", "2023-11-14T22:13:20.000500"),
        (-0.5, "DOUBLE", "seconds", "1969-12-31T23:59:59.500000"),
        (-1, "BIGINT", "nanoseconds", "1969-12-31T23:59:59.999999"),
        (1700000000123456789, "BIGINT", "nanoseconds", "2023-11-14T22:13:20.123456"),
        (253402300799999, "BIGINT", "milliseconds", "9999-12-31T23:59:59.999000"),
    ],
)
def test_timestamp_converter_keeps_fractions(
    spark: None, value: object, kind: str, precision: str, expected: str
) -> None:
    settings = {"type": "TimestampConverter", "field": "t", "target.type": "Timestamp", "unix.precision": precision}
    (row,) = run(settings, [(value,)], f"t {kind}")
    assert row["t"] == datetime.datetime.fromisoformat(expected).replace(tzinfo=datetime.UTC)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_number_that_is_no_time_is_an_error_and_not_null(spark: None, value: float) -> None:
    settings = {"type": "TimestampConverter", "field": "t", "target.type": "Timestamp"}
    with pytest.raises(Exception, match="is no time; allowed: a finite number"):
        run(settings, [(value,)], "t DOUBLE")


def test_timestamp_converter_reads_text_and_unix_time(spark: None) -> None:
    assert run(
        {"type": "TimestampConverter", "field": "t", "target.type": "Timestamp", "unix.precision": "seconds"},
        [(1709209801,)],
        "t BIGINT",
    ) == [{"t": AT.replace(microsecond=0)}]
    text = {"type": "TimestampConverter", "field": "t", "target.type": "Date", "format": "dd.MM.yyyy"}
    assert run(text, [("29.02.2024",)], "t STRING") == [{"t": AT.date()}]


def test_hoist_extract_and_flatten_leave_record_metadata_alone(spark: None) -> None:
    chain = {
        "transforms": "hoist,flatten,insert",
        "transforms.hoist.type": "HoistField",
        "transforms.hoist.field": "all",
        "transforms.flatten.type": "Flatten",
        "transforms.flatten.delimiter": "_",
        "transforms.insert.type": "InsertField",
        "transforms.insert.offset.field": "position",
    }
    assert run(chain, RECORDS, RECORD, METADATA)[0] == {
        "all": "v",
        "key": "k",
        "topic": "orders",
        "partition": 1,
        "offset": 7,
        "timestamp": AT,
        "position": 7,
    }
    hoisted = {"transforms": "h,x", "transforms.h.type": "HoistField", "transforms.h.field": "all"}
    extract = {"transforms.x.type": "ExtractField", "transforms.x.field": "all"}
    assert set(run(hoisted | extract, RECORDS, RECORD, METADATA)[0]) == {"all"} | METADATA
    two = RECORD.replace("value STRING", "a STRING, value STRUCT<b: INT>")
    rows = [(key, value, (1,), *more) for key, value, *more in RECORDS]
    assert run(hoisted | {"transforms": "h"}, rows, two, METADATA)[0]["all"] == {"a": "v", "value": {"b": 1}}


@pytest.mark.parametrize("value", ["v", None])
def test_hoisted_value_that_is_no_object_is_the_field_itself(spark: None, value: str | None) -> None:
    """Kafka Connect's makes {"line": "v"} of a text, and {"line": null} of a record without a value."""
    (row,) = run({"type": "HoistField", "field": "line"}, [("k", value)], "key STRING, value STRING", METADATA)
    assert row == {"line": value, "key": "k"}


def test_routers_rename_the_topic(spark: None) -> None:
    regex = {"type": "RegexRouter", "regex": "ord(.*)", "replacement": "new-$1"}
    assert [row["topic"] for row in run(regex, RECORDS, RECORD, METADATA)] == ["new-ers", "logs"]
    by_day = {"type": "TimestampRouter", "timestamp.format": "yyyyMMdd"}
    assert run(by_day, RECORDS, RECORD, METADATA)[0]["topic"] == "orders-20240229"
    with pytest.raises(Exception, match="timestamp is null; allowed: a time in each record"):
        run(by_day, [(*RECORDS[0][:-1], None)], RECORD, METADATA)


def test_predicate_limits_a_transform_and_keeps_the_order_of_rows(spark: None) -> None:
    config = {
        "transforms": "mask",
        "transforms.mask.type": "MaskField",
        "transforms.mask.fields": "value",
        "transforms.mask.replacement": "***",
        "transforms.mask.predicate": "p",
        "predicates": "p",
        "predicates.p.type": "TopicNameMatches",
        "predicates.p.pattern": "orders|invoices",
    }
    assert [row["value"] for row in run(config, RECORDS, RECORD, METADATA)] == ["***", None]
    negated = config | {"transforms.mask.negate": "true"}
    assert [row["value"] for row in run(negated, RECORDS, RECORD, METADATA)] == ["v", None]


TYPES_OF_SOME_ROWS: list[tuple[Row, str, list[Any], Any]] = [
    ({"type": "Cast", "spec": "a:int32"}, "a STRING", ["007", "8"], None),
    ({"type": "Cast", "spec": "a:string"}, "a INT", [7, 8], None),
    ({"type": "Cast", "spec": "a:float64"}, "a BIGINT", [2**53 + 1, 1], None),
    ({"type": "Cast", "spec": "a:int64"}, "a DOUBLE", [0.5, 2.0], None),
    ({"type": "TimestampConverter", "field": "a", "target.type": "unix"}, "a TIMESTAMP", [AT, AT], None),
    ({"type": "TimestampConverter", "field": "a", "target.type": "string", "format": "HH"}, "a DATE", [None], None),
    ({"type": "Cast", "spec": "a:int64"}, "a TINYINT", [7, 8], [7, 8]),
    ({"type": "Cast", "spec": "a:int16"}, "a DOUBLE", [0.5, 2.5], [0.5, 2.0]),
    ({"type": "InsertField", "static.field": "b", "static.value": "x"}, "a STRING", ["007"], ["007"]),
]


@pytest.mark.parametrize(("settings", "schema", "values", "after"), TYPES_OF_SOME_ROWS, ids=lambda each: str(each))
def test_rows_that_a_predicate_does_not_select_keep_their_values_or_the_connector_is_refused(
    spark: None, settings: Row, schema: str, values: list[Any], after: list[Any] | None
) -> None:
    """Spark makes the number 7 of the text 007 if other rows of the column are numbers."""
    config = {"transforms": "t", "predicates": "p", "predicates.p.type": "sql", "predicates.p.condition": "id = 1"}
    config |= {f"transforms.t.{name}": value for name, value in {**settings, "predicate": "p"}.items()}
    rows, schema = [*enumerate(values)], f"id INT, {schema}"
    if after is None:
        with pytest.raises(ConfigError, match=r"transforms\.t\.predicate: got 'a \w+ in some rows and \w+ in others'"):
            run(config, rows, schema)
    else:
        assert [row["a"] for row in run(config, rows, schema)] == after


def test_filter_drops_the_rows_its_predicate_selects(spark: None) -> None:
    config = {"transforms": "f", "transforms.f.type": "Filter", "transforms.f.predicate": "p", "predicates": "p"}
    tombstones = config | {"predicates.p.type": "RecordIsTombstone"}
    assert [row["offset"] for row in run(tombstones, RECORDS, RECORD, METADATA)] == [7]
    dotted = "`a.b` INT, `x``y` STRING, offset BIGINT"
    assert run(tombstones, [(1, None, 1), (None, None, 2)], dotted, METADATA) == [{"a.b": 1, "x`y": None, "offset": 1}]
    sql = config | {"predicates.p.type": "sql", "predicates.p.condition": "amount > 2", "transforms.f.negate": "true"}
    assert [row["id"] for row in run(sql)] == [3]
    assert run({"type": "Filter"}) == []
    assert [row["id"] for row in run({"type": "Filter", "condition": "name IS NULL", "filter.type": "include"})] == [3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transforms": "a"}, r"transforms\.a\.type: missing; allowed: Cast, ExtractField, Filter, .*, sql"),
        ({"transforms": "a,a"}, r"transforms: got 'a,a'; allowed: names"),
        ({"transforms.a.type": "Cast"}, r"transforms\.a\.type"),
        ({"transforms": "a", "transforms.a.type": "Nope"}, r"transforms\.a\.type: got 'Nope'; allowed: Cast, "),
        ({"transforms": "a", "transforms.a.type": "MaskField$Key"}, r"MaskField or MaskField\$Value"),
        (
            {"transforms": "a", "transforms.a.type": "MaskField", "transforms.a.field": "x"},
            r"transforms\.a\.fields \(did you mean that",
        ),
        (
            {"transforms": "a", "transforms.a.type": "MaskField"},
            r"transforms\.a\.fields: missing; allowed: fields, separated by commas",
        ),
        (
            {"transforms": "a", "transforms.a.type": "Cast", "transforms.a.spec": "x:int"},
            r"transforms\.a\.spec: got 'x:int'; allowed: pairs field:type",
        ),
        ({"transforms": "a", "transforms.a.type": "InsertField"}, r"at least one field to insert"),
        (
            {"transforms": "a", "transforms.a.type": "Filter", "transforms.a.predicate": "p"},
            r"transforms\.a\.predicate: got 'p'; allowed: a name",
        ),
        (
            {"transforms": "a", "transforms.a.type": "Filter", "transforms.a.negate": "no"},
            r"transforms\.a\.negate: got 'no'; allowed: true, false",
        ),
        (
            {"transforms": "a", "transforms.a.type": "Filter", "transforms.a.negate": "true"},
            r"transforms\.a\.negate: got 'true'; allowed: nothing without transforms\.a\.predicate",
        ),
        ({"predicates": "p", "predicates.p.type": "TopicNameMatches"}, r"predicates\.p\.pattern"),
        (
            {
                "transforms": "a",
                "transforms.a.type": "RegexRouter",
                "transforms.a.regex": "(",
                "transforms.a.replacement": "",
            },
            r"transforms\.a\.regex: got '\('",
        ),
        *(
            (
                {"predicates": "p", "predicates.p.type": "TopicNameMatches", "predicates.p.pattern": pattern},
                r"predicates\.p\.pattern: got .*at most 3 repetitions",
            )
            for pattern in (
                *("(a+)+", "(a|aa)*", "(a?b)*c", "(?:a*){5}", "a?" * 30, "(a|aa)" * 20, "a*" * 4, "a" * 501),
                # Comments, which Java ends at a carriage return and Python does not.
                *("(?x)#\r(a+)+b", "(?xi)a", "(?x:#\u2028(a|aa)*c\n)", "a(?i:(?x:b))"),
            )
        ),
        (
            {"transforms": ",".join(f"a{number}" for number in range(101))},
            "transforms: got .101 names.; allowed: at most 100",
        ),
        (
            {
                "transforms": "a",
                "transforms.a.type": "TimestampConverter",
                "transforms.a.field": "t",
                "transforms.a.target.type": "string",
            },
            r"transforms\.a\.format",
        ),
    ],
)
def test_wrong_transform_settings_are_refused_when_the_connector_is_put(settings: Row, message: str) -> None:
    base = {"source": "files", "source.path": "/in", "source.format": "csv", "sink": "parquet", "sink.path": "/out"}
    with pytest.raises(ConfigError, match=message):
        PipelineConnector("c", base | settings)


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("parse_json(b)", "VARIANT"),
        ("array(named_struct('x', make_dt_interval(1)))", "ARRAY<STRUCT<X:INTERVAL DAY TO SECOND>>"),
        ("make_interval(1)", "INTERVAL"),
        ("to_json(parse_json(b))", "STRING"),
        ("collate(b, 'UTF8_LCASE')", "STRING"),
        ("named_struct('x', array(collate(b, 'UTF8_LCASE')))", "STRUCT<X:ARRAY<STRING>>"),
        ("map(collate(b, 'UTF8_LCASE'), b)", "MAP<STRING,STRING>"),
        ("array(b, null)", "ARRAY<STRING>"),
    ],
)
def test_column_of_a_type_that_sinks_do_not_store_is_refused(spark: None, expression: str, found: str) -> None:
    from connectgroup.spark.session import spark_session
    from connectgroup.spark.transforms.chain import columns_after

    config = {"transforms": "q", "transforms.q.type": "sql"}
    config["transforms.q.query"] = f"SELECT {expression} AS v FROM batch"

    def columns() -> Columns:
        return columns_after(parse_chain(config, frozenset()), from_ddl("b STRING"), spark_session(), frozenset())

    if "VARIANT" in found or "INTERVAL" in found:
        with pytest.raises(ConfigError) as error:
            columns()
        assert f"transforms: got 'the column v {found}'; allowed: types that sinks store" in str(error.value)
    else:
        assert columns() == (Column("v", found),)


def test_time_of_day_is_refused_too() -> None:
    """Spark makes such columns if the operator sets ``spark.sql.timeType.enabled``."""
    from pyspark.sql import types as T

    from connectgroup.spark.transforms.chain import check_stored

    with pytest.raises(ConfigError, match=r"the column t ARRAY<TIME\(6\)>.*cast\(x AS STRING\)"):
        check_stored([T.StructField("t", T.ArrayType(T.TimeType()))], "transforms")


def test_a_column_that_does_not_exist_is_refused_when_the_task_starts(table: Bench) -> None:
    table.write("one.csv", range(4))
    with pytest.raises(ConfigError, match=r"transforms\.m\.fields: got 'nope'; allowed: columns a, b"):
        table.start(1, transforms="m", transforms_m_type="MaskField", transforms_m_fields="nope")
    with pytest.raises(ConfigError, match=r"transforms\.q\.query: got .*nope"):
        table.start(1, transforms="q", transforms_q_type="sql", transforms_q_query="SELECT nope FROM batch")
    with pytest.raises(ConfigError, match=r"transforms\.q\.predicate: .*whole batch"):
        table.start(
            1,
            transforms="q",
            transforms_q_type="sql",
            transforms_q_query="TABLE batch",
            transforms_q_predicate="p",
            predicates="p",
            predicates_p_type="sql",
            predicates_p_condition="a > 1",
        )


def test_pipeline_applies_its_transforms_to_every_batch(table: Bench) -> None:
    table.write("one.csv", range(4))
    run = table.start(
        1,
        transforms="odd,hoist,sum",
        transforms_odd_type="Filter",
        transforms_odd_condition="a % 2 = 0",
        transforms_hoist_type="HoistField",
        transforms_hoist_field="row",
        transforms_sum_type="sql",
        transforms_sum_query="SELECT row.a AS a, row FROM batch",
    )
    run.wait(lambda: sum(run.rows) == 2)
    table.write("one.csv", range(4, 6), mode="a")
    run.wait(lambda: sum(run.rows) == 3)
    with sqlite3.connect(table.output) as connection:
        assert connection.execute("SELECT a, row FROM t ORDER BY a").fetchall() == [
            (1, '{"a": 1, "b": "row 1"}'),
            (3, '{"a": 3, "b": "row 3"}'),
            (5, '{"a": 5, "b": "row 5"}'),
        ]


def test_every_transform_of_connect_is_available() -> None:
    assert set(available("transforms")) >= {
        "Cast",
        "ExtractField",
        "Filter",
        "Flatten",
        "HoistField",
        "InsertField",
        "MaskField",
        "RegexRouter",
        "ReplaceField",
        "TimestampConverter",
        "TimestampRouter",
        "ValueToKey",
        "sql",
    }
    assert set(available("predicates")) >= {"RecordIsTombstone", "TopicNameMatches", "sql"}


PROGRAM = "SELECT TRANSFORM(id) USING 'echo 1' AS (x) FROM batch"
BY_REFLECTION = "java_method('java.lang.System', 'getenv', 'HOME')"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT * FROM text.`{file}`", "the view batch"),
        ("INSERT OVERWRITE LOCAL DIRECTORY '{out}' USING text SELECT name FROM batch", "Syntax error"),
        ("FROM batch INSERT OVERWRITE LOCAL DIRECTORY '{out}' USING text SELECT name", "Syntax error"),
        ("CREATE TABLE t USING text LOCATION '{out}' AS SELECT name FROM batch", "Syntax error"),
        ("ADD JAR '{file}'", "Syntax error"),
        ("SET spark.sql.runSQLOnFiles=true", "Syntax error"),
        ("BEGIN SELECT 1; END", "Syntax error"),
        (PROGRAM, "ScriptTransformation"),
        ("SELECT id FROM (FROM batch MAP id USING 'cat' AS id)", "ScriptTransformation"),
        (f"WITH c AS ({PROGRAM}) SELECT (SELECT max(x) FROM c) AS x FROM batch", "ScriptTransformation"),
        (f"SELECT * FROM batch WHERE id IN (SELECT cast(x AS INT) FROM ({PROGRAM}))", "ScriptTransformation"),
        (f"SELECT {BY_REFLECTION} FROM batch", r"java_method\(\)"),
        (f"SELECT system.builtin.{BY_REFLECTION} FROM batch", r"system.builtin.java_method\(\)"),
        (f"SELECT IDENTIFIER('java_' || 'method'){BY_REFLECTION.removeprefix('java_method')}", "UnresolvedIdentifier"),
        ("SELECT try_reflect('java.lang.System', 'exit', 1) FROM batch", r"try_reflect\(\)"),
    ],
)
def test_query_of_a_transform_reaches_no_file_program_or_java_class(
    spark: None, tmp_path: Path, query: str, reason: str
) -> None:
    """The worker would run it as its own user, whatever ``--allowed-path`` and ``--secret-env`` are."""
    file, out = tmp_path / "secret.txt", tmp_path / "out"
    file.write_text("canary")
    with pytest.raises(ConfigError, match=reason):
        run({"type": "sql", "query": query.format(file=file, out=out)})
    assert not out.exists()


@pytest.mark.parametrize(
    "condition",
    [
        f"id IN (SELECT cast(x AS INT) FROM ({PROGRAM}))",
        f"name = {BY_REFLECTION}",
        "exists(SELECT * FROM text.`{file}`)",
    ],
)
def test_condition_reaches_no_file_program_or_java_class(spark: None, tmp_path: Path, condition: str) -> None:
    from connectgroup.spark.session import spark_session

    file = tmp_path / "secret.txt"
    file.write_text("canary")
    spark_session().createDataFrame(ROWS, SCHEMA).createOrReplaceTempView("batch")
    for settings in (
        {"transforms.t.condition": condition.format(file=file)},
        {"transforms.t.predicate": "p", "predicates": "p", "predicates.p.type": "sql"}
        | {"predicates.p.condition": condition.format(file=file)},
    ):
        with pytest.raises(ConfigError, match=r"condition: got"):
            run({"transforms": "t", "transforms.t.type": "Filter", **settings})


def test_query_may_end_with_a_semicolon_and_names_no_setting_of_spark(spark: None) -> None:
    rows = run({"type": "sql", "query": "SELECT '${spark.app.name}' AS name FROM batch LIMIT 1; "})
    assert rows == [{"name": "${spark.app.name}"}]


@pytest.mark.parametrize("query", ["select canary from batch", "select cast('canary' as int) as n from batch"])
def test_spark_itself_logs_no_query_because_its_text_may_contain_a_secret(
    spark: None, caplog: pytest.LogCaptureFixture, query: str
) -> None:
    """The task reports the error, masked; PySpark's own loggers would print it again as it is."""
    from pyspark.errors.exceptions.base import PySparkException
    from pyspark.logger import PySparkLogger

    from connectgroup.spark.session import spark_session

    spark_session()
    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    for logger in loggers:
        logger.addHandler(caplog.handler)
    try:
        with pytest.raises((ConfigError, PySparkException), match="canary"):
            run({"type": "sql", "query": query})
    finally:
        for logger in loggers:
            logger.removeHandler(caplog.handler)
    assert not caplog.records

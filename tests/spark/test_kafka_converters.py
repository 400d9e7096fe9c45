"""The converters of the source and the sink ``kafka`` against a real broker (KIP-26, KIP-298)."""

from __future__ import annotations

import base64
import datetime
import itertools
import json
import math
import re
import sqlite3
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

import pytest

from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.columns import Column, from_ddl
from connectgroup.dataplane.errors import SinkError, SourceError
from connectgroup.errors import ConfigError
from connectgroup.spark.converters import encoder, headers_of
from connectgroup.spark.sinks.kafka import KafkaSink, KafkaSinkSettings, _check_forms
from connectgroup.spark.sources.kafka_records import KafkaValues

from .conftest import Bench, Run
from .kafka_topics import make_topic, produce


def test_converters_write_what_they_read_and_headers_arrive(kafka: str, table: Bench) -> None:
    """The forms are those of Kafka Connect's converters."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

    origin, target = (f"t{uuid.uuid4().hex}" for _ in range(2))
    for name in (origin, target):
        make_topic(kafka, name, 1)
    types = [("id", "int32", ""), ("at", "int64", "Timestamp"), ("day", "int32", "Date"), ("s", "string", "")]
    fields = []
    for field, kind, logical in types:
        more = {"name": f"org.apache.kafka.connect.data.{logical}", "version": 1} if logical else {}
        fields.append({"type": kind, "optional": True, **more, "field": field})
    schema = {"type": "struct", "optional": False, "fields": fields}
    payload = {"id": 7, "at": 1_700_000_000_123, "day": 19_675, "s": None}
    producer = Producer({"bootstrap.servers": kafka})
    value = json.dumps({"schema": schema, "payload": payload})
    key = '{"schema":{"type":"string","optional":true},"payload":"k"}'
    producer.produce(origin, value, key, headers=[("h", b"\xff"), ("h", b"2"), ("none", None)])
    assert producer.flush(30) == 0
    settings = {
        "source": "kafka",
        "source.bootstrap.servers": kafka,
        "source.topics": origin,
        "source.schema": "id INT, at TIMESTAMP, day DATE, s STRING",
        "source.metadata": "key, headers",
        "source.key.converter": "JsonConverter",
        "sink": "kafka",
        "sink.bootstrap.servers": kafka,
        "sink.topic": target,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        "header.converter": "ByteArrayConverter",
    }
    table.config = lambda **_: {"trigger.ms": "50", **settings}  # type: ignore[method-assign]
    run = table.start(1)
    producer.produce(origin, None, key)
    assert producer.flush(30) == 0
    run.wait(lambda: sum(run.rows) == 2)
    assert {topic for batch in run.batches for topic in batch.topics} == {origin, target}
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": uuid.uuid4().hex})
    consumer.assign([TopicPartition(target, 0, OFFSET_BEGINNING)])
    message = consumer.poll(30)
    assert message is not None
    found = message.value()
    assert isinstance(found, bytes)
    assert json.loads(found) == {"schema": schema, "payload": payload}
    assert (message.key(), message.headers()) == (b"k", [("h", b"\xff"), ("h", b"2"), ("none", None)])
    while (tombstone := consumer.poll(30)) is not None and tombstone.error():
        pass
    assert tombstone is not None
    assert (tombstone.key(), tombstone.value()) == (b"k", None), "a value of nulls would not delete the key"
    consumer.close()
    producer.produce(origin, '{"id": 8}', key)
    assert producer.flush(30) == 0
    assert str(run.failure()) == (
        f"{origin}-0, offset 2: the value is not an object of schema and payload; allowed: what JsonConverter writes"
        " with schemas, or value.converter.schemas.enable=false"
    )


def _tolerant(table: Bench, kafka: str, name: str, **more: str) -> Run:
    settings: dict[str, Any] = {
        "source": "kafka",
        "source_bootstrap_servers": kafka,
        "source_topics": name,
        "errors_tolerance": "all",
        "errors_deadletterqueue_name": "dead",
        **more,
    }
    return table.start(1, **settings)


def _dead(table: Bench) -> list[tuple[str, str, str, str]]:
    """Stage, place, record and reason of the dead letters."""
    with sqlite3.connect(table.output) as connection:
        return connection.execute("SELECT stage, place, record, reason FROM dead ORDER BY place").fetchall()


BAD_VALUES = [
    b"no JSON",
    b'{"a": "x"}',
    b"[1",
    b"[1]",
    b"null",
    b"7",
    b"",
    b" ",
    b'{"a": 99999999999}',
    b'{"a": 1.0}',
    b'{"a": true}',
    b'{"a": 1}{"a": 2}',
    b'{"a": 1},{"a": 2}',
    b'{"a": 1} tail',
    b"{'a': 1}",
    b'{"A": 1}',
    b'{"a": 1, "A": 2}',
    b'{"t": "\xff"}',
    b'{"t": "\\ud800"}',
    b'{"t": {"x\\ud800": 1}}',
    b'{"\xed\xa0\x80": 1}',
    b'{"d": 1e400}',
    b'{"d": NaN}',
    b'{"d": Infinity}',
    b'{"d": "nan"}',
    b'{"f": 1e39}',
    b'{"at": 1700000000000}',
    b'{"at": "2025"}',
    b'{"at": "T05:00"}',
    b'{"at": "2025-01-01T00:00:00"}',
    b'{"day": "2024"}',
    b'{"day": 19000}',
    b'{"day": "2024-02-30"}',
    b'{"x": [{}',
    b"{}]}",
]
COLUMNS = "a INT, t STRING, d DOUBLE, f FLOAT, at TIMESTAMP, day DATE"


def test_value_that_is_not_the_fields_of_the_schema_is_a_dead_letter_and_never_another_row(
    kafka: str, table: Bench
) -> None:
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    # The last two bad values are one object when they are joined, and the one before them is two.
    order = [b'{"a": 1}', *BAD_VALUES[:20], b'{"a": 2, "other": 1e400}', *BAD_VALUES[20:], None, b' {"a":\n3}\n']
    produce(kafka, name, [(0, None, value) for value in order])
    run = _tolerant(table, kafka, name, source_schema=COLUMNS, source_metadata="offset")
    run.wait(lambda: sum(run.rows) == 4)
    with sqlite3.connect(table.output) as connection:
        found = connection.execute("SELECT a, t, d, f, at, day, offset FROM t ORDER BY offset").fetchall()
    nulls = (None,) * 5
    assert found == [(1, *nulls, 0), (2, *nulls, 21), (None, *nulls, len(order) - 2), (3, *nulls, len(order) - 1)]
    expected = {
        f"{name}-0, offset {at}": value.decode(errors="backslashreplace")
        for at, value in enumerate(order)
        if value in BAD_VALUES and value is not None
    }
    dead = _dead(table)
    assert {place: record for _, place, record, _ in dead} == expected
    assert len(dead) == len(expected)
    for stage, _, record, reason in dead:
        assert stage == "source"
        assert "; allowed: " in reason, (record, reason)
        assert "source.schema" in reason or "UTF-8" in reason


def test_value_that_cannot_be_read_is_an_error_with_topic_partition_offset_and_field(kafka: str, table: Bench) -> None:
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    produce(kafka, name, [(0, None, b'{"a": 1}'), (0, None, b'{"a": 19.90}')])
    settings = {"source": "kafka", "source_bootstrap_servers": kafka, "source_topics": name, "source_schema": COLUMNS}
    run = table.start(1, **settings)  # type: ignore[arg-type]
    assert str(run.failure()) == (
        f"{name}-0, offset 1: the value is not JSON with the fields of source.schema: a is 19.90; allowed: INT or null"
    )


EXACT = [
    ("19.90", "19.90"),
    ("12345678901234567890.12", "12345678901234567890.12"),
    ("-0", "-0"),
    ("-0.0", "-0.0"),
    ("1E400", "1E400"),
    ("123456789012345678901234567890", "123456789012345678901234567890"),
    ("true", "true"),
    ('"19.90"', "19.90"),
    ('"\\u0000a"', "\0a"),
    ('{"x": [1.10, {"y": -0.0}], "z": "\\u00e9"}', '{"x":[1.10,{"y":-0.0}],"z":"\u00e9"}'),
    ("null", None),
]


@pytest.mark.parametrize("converter", [None, "JsonConverter"], ids=["json", "with schemas"])
def test_numbers_and_nested_values_are_texts_as_they_are_written(
    kafka: str, table: Bench, converter: str | None
) -> None:
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    form = '{{"t": {}}}' if converter is None else '{{"schema": null, "payload": {{"t": {}}}}}'
    produce(kafka, name, [(0, None, form.format(literal)) for literal, _ in EXACT])
    more = {} if converter is None else {"value_converter": converter}
    run = _tolerant(table, kafka, name, source_schema="t STRING", **more)
    run.wait(lambda: sum(run.rows) == len(EXACT))
    with sqlite3.connect(table.output) as connection:
        assert [t for (t,) in connection.execute("SELECT t FROM t ORDER BY rowid")] == [text for _, text in EXACT]


def test_payload_without_a_schema_setting_is_text_with_its_numbers_as_they_are_written(
    kafka: str, table: Bench
) -> None:
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    produce(kafka, name, [(0, None, f'{{"schema": null, "payload": {literal}}}') for literal, _ in EXACT])
    run = _tolerant(table, kafka, name, value_converter="JsonConverter", source_metadata="")
    run.wait(lambda: sum(run.rows) == len(EXACT))
    with sqlite3.connect(table.output) as connection:
        assert [t for (t,) in connection.execute("SELECT value FROM t ORDER BY rowid")] == [text for _, text in EXACT]


@pytest.mark.parametrize(
    "settings",
    [{}, {"source_metadata": "key, headers, offset"}, {"value_converter": "StringConverter"}],
    ids=["default", "headers", "converter"],
)
def test_bytes_that_are_not_utf8_are_dead_letters_with_topic_partition_and_offset(
    kafka: str, table: Bench, settings: dict[str, str]
) -> None:
    from confluent_kafka import Producer

    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    producer = Producer({"bootstrap.servers": kafka})
    for value, key, header in (
        (b"good", b"k", b"h"),
        (b"a\xffb", b"k", b"h"),
        (b"\xed\xa0\x80", None, None),
        (None, b"k\xc3", b"h"),
        (b"v", b"k", b"\xe9"),
        (b"\xf0\x9f\x98\x80", b"", b""),
    ):
        producer.produce(name, value, key, headers=[("h", header)])
    assert producer.flush(30) == 0
    run = _tolerant(table, kafka, name, **settings)
    with_headers = "headers" in settings.get("source_metadata", "")
    bad = {1: "a\\xffb", 2: "\\xed\\xa0\\x80", 3: "", **({4: "v"} if with_headers else {})}
    run.wait(lambda: sum(run.rows) == 6 - len(bad))
    dead = _dead(table)
    assert [(place, record) for _, place, record, _ in dead] == [
        (f"{name}-0, offset {at}", record) for at, record in sorted(bad.items())
    ]
    assert all("is not UTF-8; allowed: " in reason for *_, reason in dead)
    with sqlite3.connect(table.output) as connection:
        values = [value for (value,) in connection.execute("SELECT value FROM t ORDER BY offset")]
    assert values == ["good", *([] if with_headers else ["v"]), "\U0001f600"]


def _decimal(parameters: object, value: str = "AQ==") -> str:
    schema = {"fields": [{"field": "d", "type": "bytes", "parameters": parameters}]}
    return json.dumps({"schema": schema, "payload": {"d": value}})


@pytest.mark.parametrize(
    "bad",
    [
        ['{"a": 1}', "{", '{"schema": 1, "payload": 2}', '{"schema": 1, "payload": {"a": "x"}}'],
        [
            '{"schema": [1], "payload": {"d": "AQ=="}}',
            '{"schema": {"fields": 7}, "payload": {"d": "AQ=="}}',
            _decimal({"scale": "99999999999"}),
            _decimal({"scale": [2]}),
            _decimal({"scale": "229"}, base64.b64encode((10**229 + 1).to_bytes(97)).decode()),
            _decimal(None, base64.b64encode(b"\1" * 1_000).decode()),
        ],
    ],
    ids=["values", "decimals"],
)
def test_record_that_is_not_json_with_schemas_is_a_dead_letter(kafka: str, table: Bench, bad: list[str]) -> None:
    """KIP-298: ``errors.tolerance=all`` covers the converters."""
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    good = '{{"schema": null, "payload": {{"a": {n}}}}}'
    values = [good.format(n=1), *bad, good.format(n=2)]
    produce(kafka, name, [(0, "k", value) for value in values])
    columns = "a INT, d DECIMAL(10,2)"
    more = {"source_schema": columns, "source_metadata": "offset", "value_converter": "JsonConverter"}
    run = _tolerant(table, kafka, name, **more)
    run.wait(lambda: sum(run.rows) == 2)
    with sqlite3.connect(table.output) as connection:
        assert connection.execute("SELECT a, offset FROM t ORDER BY a").fetchall() == [(1, 0), (2, len(bad) + 1)]
    found = _dead(table)
    assert [each[:3] for each in found] == [
        ("source", f"{name}-0, offset {n}", bad[n - 1]) for n in range(1, len(bad) + 1)
    ]
    assert all("source.schema" in each[3] or "schema and payload" in each[3] for each in found)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"at": 10**15}, "at is a time outside of the years 1 to 9999; allowed: milliseconds since 1970, and days"),
        ({"day": -(10**9)}, "day is a time outside of the years 1 to 9999; allowed: milliseconds since 1970, and days"),
        ({"day": 1 << 40}, "day is a time outside of the years 1 to 9999; allowed: milliseconds since 1970, and days"),
        ({"d": ""}, 'd is ""; allowed: DECIMAL(10,2) or null'),
        ({"at": "2024-02-29T12:30:00Z"}, 'at is "2024-02-29T12:30:00Z"; allowed: milliseconds since 1970, and days'),
        ({"day": True}, "day is true; allowed: milliseconds since 1970, and days"),
    ],
)
def test_value_that_no_column_has_is_an_error_with_its_reason(payload: dict[str, Any], reason: str) -> None:
    """Java has no decimal of no bytes, either."""
    import pyarrow as pa

    columns = from_ddl("at TIMESTAMP, day DATE, d DECIMAL(10,2)")
    values = KafkaValues(
        fields=columns, metadata=(), codec=None, value_schemas=True, key_schemas=False, tolerant=False, timezone=""
    )
    schema = {"fields": [{"field": "d", "type": "bytes", "parameters": {"scale": "2"}}]}
    written = [json.dumps({"schema": schema, "payload": each}).encode() for each in ({"at": -1, "day": -1}, payload)]
    record = {"topic": ["t"] * 2, "partition": [0, 0], "offset": [5, 6], "value": written}
    batch = pa.RecordBatch.from_pydict({f"connectgroup_{name}": part for name, part in record.items()})
    at = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, datetime.UTC)
    assert values.rows(batch.slice(0, 1)).to_pylist() == [{"at": at, "day": at.date(), "d": None}]
    message = f"t-0, offset 6: the value is not JSON with the fields of source.schema: {reason}"
    with pytest.raises(SourceError, match=re.escape(message)):
        values.rows(batch)


def _rows(ddl: str, written: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of values that are JSON with schemas, with their errors."""
    import pyarrow as pa

    values = KafkaValues(
        fields=from_ddl(ddl),
        metadata=(),
        codec=None,
        value_schemas=True,
        key_schemas=False,
        tolerant=True,
        timezone="",
    )
    count = len(written)
    parts = {"value": [each.encode() for each in written], "topic": ["t"] * count, "partition": [0] * count}
    record = {**parts, "offset": [*range(count)]}
    batch = pa.RecordBatch.from_pydict({f"connectgroup_{part}": each for part, each in record.items()})
    rows = values.rows(batch.append_column("connectgroup_error", pa.nulls(count, pa.string())))
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def test_decimal_that_is_written_as_a_number_is_read_with_its_digits() -> None:
    """JsonConverter with decimal.format=NUMERIC (KIP-481) writes 19.90 for what is the text B8Y= otherwise."""
    name = "org.apache.kafka.connect.data.Decimal"
    field = {"field": "d", "type": "bytes", "name": name, "parameters": {"scale": "2"}}
    numbers = ["19.90", "12345678.90", "-0.05", "7", "0.00", "-0", "1.99E+1", "19.999", '"B8Y="', "null"]
    schema = json.dumps({"fields": [field]})
    rows = _rows("d DECIMAL(10,2)", [f'{{"schema": {schema}, "payload": {{"d": {each}}}}}' for each in numbers])
    decimals = [None if each == "null" else Decimal(each) for each in numbers if each not in ("19.999", '"B8Y="')]
    expected = [*decimals[:7], None, Decimal("19.90"), None]
    assert [row["d"] for row in rows] == expected
    reasons = [row["connectgroup_error"] for row in rows if row["connectgroup_error"] is not None]
    why = "the value is not JSON with the fields of source.schema: "
    assert [json.loads(each)["reason"] for each in reasons] == [f"{why}d is 19.999; allowed: DECIMAL(10,2) or null"]
    (other,) = _rows("d DECIMAL(10,2), n INT", [f'{{"schema": {schema}, "payload": {{"d": "B8Y=", "n": 1.50}}}}'])
    assert json.loads(other["connectgroup_error"])["reason"] == f"{why}n is 1.50; allowed: INT or null"


@pytest.mark.parametrize(
    ("kind", "name", "number"),
    [
        ("TIMESTAMP", "org.apache.kafka.connect.data.Date", 19_782),
        ("TIMESTAMP", "org.apache.kafka.connect.data.Time", 45_000_000),
        ("TIMESTAMP", "io.debezium.time.MicroTimestamp", 86_400_000_000),
        ("DATE", "org.apache.kafka.connect.data.Timestamp", 1_000),
        ("DATE", "io.debezium.time.Year", 2024),
    ],
)
def test_number_that_counts_something_else_than_its_column_is_an_error(kind: str, name: str, number: int) -> None:
    """Else a day is a moment of January 1970, and microseconds are years later."""
    own = "Timestamp" if kind == "TIMESTAMP" else "Date"
    names = [name, f"org.apache.kafka.connect.data.{own}", f"io.debezium.time.{own}", "my.Time", None]
    written = [
        json.dumps({"schema": {"fields": [{"field": "x", "name": each}]}, "payload": {"x": value}})
        for each, value in [*((each, number) for each in names), (name, None)]
    ]
    rows = _rows(f"x {kind}", written)
    bad = [row["connectgroup_error"] for row in rows if row["connectgroup_error"] is not None]
    assert [json.loads(each)["reason"] for each in bad] == [
        f"the value is not JSON with the fields of source.schema: x has the schema {name}; allowed: milliseconds since"
        " 1970, and days for a DATE; or another type"
    ]
    assert (rows[0]["x"], rows[-1]["x"]) == (None, None)
    assert len({row["x"] for row in rows[1:-1]}) == 1
    assert rows[1]["x"] is not None


def test_json_converter_writes_the_types_of_kafka_connect() -> None:
    import pyarrow as pa

    nested = pa.struct({"m": pa.map_(pa.string(), pa.int16()), "l": pa.list_(pa.binary()), "f": pa.float32()})
    kind = pa.struct({"d": pa.decimal128(5, 2), "n": nested, "b": pa.bool_()})
    row = {"d": Decimal("-1.5"), "n": {"m": [("x", 1)], "l": [b"\x01", None], "f": math.nan}, "b": True}
    written = encoder(kind, "json", schemas=False)(row)
    assert json.loads(written) == {"d": "/2o=", "n": {"m": {"x": 1}, "l": ["AQ==", None], "f": "NaN"}, "b": True}
    schema = json.loads(encoder(kind, "json", schemas=True)(row))["schema"]
    assert schema["fields"][0] == {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2"},
        "field": "d",
    }
    assert [field["type"] for field in schema["fields"][1]["fields"]] == ["map", "array", "float"]
    assert encoder(pa.string(), "json", schemas=False)("x") == '"x"'
    to_number = encoder(pa.timestamp("us", "UTC"), "json", schemas=False)
    assert to_number(datetime.datetime(1969, 12, 31, 23, 59, 59, 1_000, datetime.UTC)) == "-999"
    with pytest.raises(SinkError, match=r"00:00\.000001 has a fraction of a millisecond; allowed: whole milliseconds"):
        to_number(datetime.datetime(2024, 1, 1, 0, 0, 0, 1, datetime.UTC))
    for schemas in (False, True):
        assert encoder(pa.string(), "json", schemas=schemas)(None) is None, "a tombstone, or no key"


def test_key_of_json_converter_has_the_bytes_of_kafka_connect() -> None:
    """Others would be in another partition, and another key of a compacted topic."""
    import pyarrow as pa

    inner = pa.struct({"x": pa.int32(), "day": pa.date32()})
    kind = pa.struct({"name": pa.string(), "m": pa.map_(pa.string(), pa.int16()), "s": inner})
    key = {"name": "José", "m": [("k", 1)], "s": {"x": 5, "day": None}}
    # What JsonConverter 4.3.1 has written.
    payload = '{"name":"José","m":{"k":1},"s":{"x":5,"day":null}}'
    schema = (
        '{"type":"struct","fields":[{"type":"string","optional":true,"field":"name"},'
        '{"type":"map","keys":{"type":"string","optional":false},"values":{"type":"int16","optional":true},'
        '"optional":true,"field":"m"},'
        '{"type":"struct","fields":[{"type":"int32","optional":true,"field":"x"},'
        '{"type":"int32","optional":true,"name":"org.apache.kafka.connect.data.Date","version":1,"field":"day"}],'
        '"optional":true,"field":"s"}],"optional":false}'
    )
    assert encoder(kind, "json", schemas=False)(key) == payload
    written = encoder(kind, "json", schemas=True, optional=False)(key)
    assert written == f'{{"schema":{schema},"payload":{payload}}}'


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        ("double", 1e10, "1.0E10"),
        ("double", 12345678.9, "1.23456789E7"),
        ("double", 9999999.5, "9999999.5"),
        ("double", 0.001, "0.001"),
        ("double", -9.99e-4, "-9.99E-4"),
        ("double", 123456789012345680.0, "1.2345678901234568E17"),
        ("double", 5e-324, "4.9E-324"),
        ("double", -0.0, "-0.0"),
        ("double", -math.inf, '"-Infinity"'),
        ("float", 0.10000000149011612, "0.1"),
        ("float", 1e10, "1.0E10"),
        ("float", 2**-149, "1.4E-45"),
        ("decimal128(5, 2)", Decimal("-1.28"), '"gA=="'),
        ("decimal128(5, 2)", Decimal("1.28"), '"AIA="'),
        ("string", '\0\b\x0b\x1f\x7f\x80 "\\ é \u2028\uffff/', r'"\u0000\b\u000B\u001F%s \"\\ é %s/"'),
        ("string", "\U0001f600\U0010ffff", r'"\uD83D\uDE00\uDBFF\uDFFF"'),
        ("map<string, double>", [("\U0001f600\x1f", 1e10)], r'{"\uD83D\uDE00\u001F":1.0E10}'),
        ("map<int32, double>", [(1, 1e10)], "[[1,1.0E10]]"),
    ],
    ids=itertools.count(),
)
def test_json_converter_writes_numbers_and_texts_as_java(kind: str, value: Any, written: str) -> None:
    """What JsonConverter 4.3.1 has written: the bytes of a key choose its partition."""
    import pyarrow as pa

    kinds = {"decimal128(5, 2)": pa.decimal128(5, 2), "map<string, double>": pa.map_(pa.string(), pa.float64())}
    kinds["map<int32, double>"] = pa.map_(pa.int32(), pa.float64())
    write = encoder(kinds.get(kind) or pa.type_for_alias(kind), "json", schemas=False)
    assert write(value) == (written % ("\x7f\x80", "\u2028\uffff") if "%s" in written else written)


def test_name_of_a_field_has_the_escapes_of_kafka_connect() -> None:
    import pyarrow as pa

    written = encoder(pa.struct({"n\x1f\U0001f600": pa.string()}), "json", schemas=True, optional=False)
    assert written({"n\x1f\U0001f600": None}) == (
        r'{"schema":{"type":"struct","fields":[{"type":"string","optional":true,"field":"n\u001F\uD83D\uDE00"}],'
        r'"optional":false},"payload":{"n\u001F\uD83D\uDE00":null}}'
    )


@pytest.mark.parametrize("form", ["", "string"])
def test_string_converter_writes_numbers_as_java(form: Literal["", "string"]) -> None:
    import pyarrow as pa

    numbers = [1e10, 0.1, 1e-4, 100.0]
    for kind in (pa.float32(), pa.float64()):
        write = encoder(kind, form, schemas=False)
        assert list(map(write, pa.array(numbers, kind).to_pylist())) == ["1.0E10", "0.1", "1.0E-4", "100.0"]
    assert headers_of({"h": 1e10}) == [("h", "1.0E10")]


@pytest.mark.parametrize(
    ("converter", "kind", "fitting"),
    [
        ("ByteArrayConverter", "ARRAY<STRUCT<key: STRING, value: STRING>>", "StringConverter"),
        ("ByteArrayConverter", "MAP<BINARY,STRING>", "StringConverter"),
        ("StringConverter", "ARRAY<STRUCT<KEY:STRING,VALUE:BINARY>>", "ByteArrayConverter"),
        ("StringConverter", "MAP<STRING,BINARY>", "ByteArrayConverter"),
        ("ByteArrayConverter", "MAP<STRING,BINARY>", None),
        ("StringConverter", "ARRAY<STRUCT<key: STRING, value: STRING>>", None),
        ("", "MAP<STRING,BINARY>", None),
    ],
)
def test_header_converter_of_a_sink_must_fit_the_headers(converter: str, kind: str, fitting: str | None) -> None:
    """It had no effect."""
    columns = (Column("value", "STRING"), Column("headers", kind, metadata=True))
    values = {"bootstrap.servers": "localhost:1", "topic": "t", "header.converter": converter}
    settings = KafkaSinkSettings.model_validate(values)
    if fitting is None:
        _check_forms(settings, columns, frozenset({"headers"}))
        return
    with pytest.raises(
        ConfigError, match=rf"sink\.header\.converter: got '{converter}'; allowed: {fitting}: the column"
    ):
        KafkaSink.create(settings, columns)


@pytest.mark.parametrize("part", ["value", "key"])
def test_json_that_the_source_hands_on_as_text_is_not_encoded_again(part: str) -> None:
    """It would arrive as a JSON string, with one more level of quotes for each copy."""
    config = {
        "connector.class": "pipeline",
        "source": "kafka",
        "source.bootstrap.servers": "localhost:1",
        "source.topics": "t",
        f"source.{part}.converter": "JsonConverter",
        "sink": "kafka",
        "sink.bootstrap.servers": "localhost:2",
        "sink.topic": "u",
        f"sink.{part}.converter": "JsonConverter",
    }
    message = rf"sink\.{part}\.converter: got 'JsonConverter'; allowed: StringConverter: the source hands on"
    with pytest.raises(ConfigError, match=message):
        PipelineConnector("c", config)
    PipelineConnector("c", config | {"source.schema": "a BIGINT"})
    PipelineConnector("c", config | {f"sink.{part}.converter": "StringConverter"})


@pytest.mark.parametrize("bad", [{"key": None, "value": b"x"}, (None, "x"), None])
def test_header_without_a_name_is_an_error_and_no_header_called_none(bad: Any) -> None:
    assert headers_of([{"key": "a", "value": None}, ("", "x")]) == [("a", None), ("", "x")]
    assert headers_of({"a": 0.1, "": "x"}) == [("a", "0.1"), ("", "x")]
    with pytest.raises(SinkError, match="headers has one without a name; allowed: "):
        headers_of([{"key": "a", "value": b"x"}, bad])

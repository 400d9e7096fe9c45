"""Avro values of Kafka records. The expected bytes are written by hand after Avro's specification."""

from __future__ import annotations

import copy
import datetime
import decimal
import json
import math
import uuid

import pytest

from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.columns import Column
from connectgroup.dataplane.errors import SinkError
from connectgroup.errors import ConfigError
from connectgroup.spark.avro import AvroCodec, Encoding, columns_of

from .conftest import Bench
from .kafka_topics import make_topic

pytest.importorskip("fastavro", reason="the extra avro")

AT = {"type": "long", "logicalType": "timestamp-millis"}
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "a", "type": "int"},
            {"name": "s", "type": ["null", "string"], "default": None},
            {"name": "at", "type": ["null", AT], "default": None},
        ],
    }
)
ROW = b"\x0e\x02\x04xy\x02\xe8\x07"
"""7, the text xy, 500 ms after the epoch."""
NULLS = b"\x10\x00\x00"
"""8, and two nulls."""


def test_values_are_avro_of_the_specification() -> None:
    codec = AvroCodec(SCHEMA, "binary").prepare("schema")
    at = datetime.datetime(1970, 1, 1, 0, 0, 0, 500_000)
    assert codec.encode({"a": 7, "s": "xy", "at": at}) == ROW
    assert codec.encode({"a": 8}) == NULLS
    for each in (codec, copy.copy(codec)):
        assert each.decode(ROW) == {"a": 7, "s": "xy", "at": at.replace(tzinfo=datetime.UTC)}
    with pytest.raises(SinkError, match=r"^a is 'text'; allowed: whole numbers of 32 bits, or a field of type long$"):
        codec.encode({"a": "text"})


@pytest.mark.parametrize("value", [1e-50, 1e300, 0.1])
def test_number_that_avro_has_only_as_another_is_an_error(value: float) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": ["null", "float"]}]}
    codec = AvroCodec(json.dumps(schema), "binary").prepare("schema")
    for kept in (0.5, 0.0, math.inf, 1.401298464324817e-45, None):
        assert codec.decode(codec.encode({"f": kept})) == {"f": kept}
    with pytest.raises(SinkError, match=r"f is .*; allowed: values of Avro's float, or a field of type double"):
        codec.encode({"f": value})


DATE = {"type": "int", "logicalType": "date"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
UUID = {"type": "string", "logicalType": "uuid"}
NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
VALUES: list[tuple[object, list[object], list[object]]] = [
    ("boolean", [True, False], [1, 0, "true", None]),
    ("int", [2**31 - 1, -(2**31), 0], [2**31, -(2**31) - 1, 2**40, 3.0, 3.7, True, decimal.Decimal(3), "7", None]),
    ("long", [2**63 - 1, -(2**63)], [2**63, -(2**63) - 1, 1.5, False, decimal.Decimal("1.5"), "7"]),
    ("float", [0.5, math.inf, 2**24], [2**24 + 1, 0.1, True, decimal.Decimal("0.1"), "1"]),
    ("double", [0.1, -math.inf, 2**53], [2**53 + 1, 10**400, True, decimal.Decimal("0.1"), "1"]),
    ("string", ["", "ü"], [5, b"x", None]),
    ("bytes", [b"", b"\xff"], ["x", 5]),
    ({"type": "fixed", "name": "f", "size": 2}, [b"ab"], [b"a", b"abc", "ab"]),
    ({"type": "enum", "name": "e", "symbols": ["a", "b"]}, ["a"], ["c", "", 1]),
    (DATE, [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)], [NOON, 5, "2024-01-01"]),
    (AT, [NOON, NOON.replace(microsecond=1000)], [NOON.replace(microsecond=1), NOON.date(), 5]),
    (MICROS, [NOON.replace(microsecond=1)], [NOON.date(), 5, "x"]),
    (DECIMAL, [decimal.Decimal("-99.99")], [decimal.Decimal("1.234"), decimal.Decimal("123.45"), 5, 1.5, b"x"]),
    (UUID, ["00000000-0000-0000-0000-000000000001", "ABcdef00-0000-0000-0000-00000000000F"], ["1", "no uuid", 5]),
]


@pytest.mark.parametrize(("kind", "kept", "others"), VALUES, ids=[json.dumps(kind) for kind, _, _ in VALUES])
@pytest.mark.parametrize("nullable", [False, True])
def test_value_that_a_field_does_not_keep_is_an_error_with_field_and_value(
    kind: object, kept: list[object], others: list[object], nullable: bool
) -> None:
    """fastavro writes 2**40 into an int, 3.7 as 3, null as false, and a time as its day."""
    field = {"name": "x", "type": ["null", kind] if nullable else kind}
    codec = AvroCodec(json.dumps({"type": "record", "name": "R", "fields": [field]}), "binary").prepare("schema")
    for value in kept:
        assert codec.decode(codec.encode({"x": value})) == {"x": value}
    for value in others:
        if value is None and nullable:
            assert codec.decode(codec.encode({"x": value})) == {"x": None}
            continue
        with pytest.raises(SinkError, match=r"^x is .*; allowed: ") as caught:
            codec.encode({"x": value})
        shown = "null" if value is None else str(value)
        assert shown[:20] in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "data"),
    [("int", b"\x80\x80\x80\x80\x10"), (DECIMAL, b"\x06\x01\x86\xa0"), (DECIMAL, b"\x06\xfe\x1d\xc1")],
    ids=["2**31", "1000.00", "-1234.55"],
)
def test_number_that_its_type_does_not_have_is_not_read(kind: object, data: bytes) -> None:
    field = {"name": "x", "type": ["null", kind]}
    codec = AvroCodec(json.dumps({"type": "record", "name": "R", "fields": [field]}), "binary").prepare("schema")
    with pytest.raises(ValueError, match=r"^the value has x -?[0-9.]+; it has to be "):
        codec.decode(b"\x02" + data)


def test_row_without_a_field_takes_its_default_or_is_an_error() -> None:
    fields = [{"name": "x", "type": "boolean"}, {"name": "y", "type": "int", "default": 5}]
    codec = AvroCodec(json.dumps({"type": "record", "name": "R", "fields": fields}), "binary").prepare("schema")
    assert codec.decode(codec.encode({"x": True})) == {"x": True, "y": 5}
    with pytest.raises(SinkError, match="x is null; allowed: a value, or a union with null as the type of this field"):
        codec.encode({"y": 1})


@pytest.mark.parametrize("prefix", ["", "source."])
def test_converter_of_the_connector_may_be_avro(kafka: str, prefix: str) -> None:
    """With the schema as a setting of the converter, or of the source."""
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    config = {
        "source": "kafka",
        "source.bootstrap.servers": kafka,
        "source.topics": name,
        "value.converter": "AvroConverter",
        f"{prefix}value.converter.avro.schema": SCHEMA,
        "sink": "parquet",
        "sink.path": "/out",
    }
    connector = PipelineConnector("c", config)
    assert len(connector.task_configs(2)) == 2
    assert not connector.check_access(1).keys() & {"source"}


def test_single_object_encoding_begins_with_the_fingerprint_of_the_schema() -> None:
    """CRC-64-AVRO, little endian. That of the schema "null" is 63dd24e7cc258f8a in Avro's own tests."""
    table = []
    for byte in range(256):
        rest = byte
        for _ in range(8):
            rest = (rest >> 1) ^ (0xC15D213AA4D7A795 if rest & 1 else 0)
        table.append(rest)

    def fingerprint(data: bytes) -> int:
        found = 0xC15D213AA4D7A795
        for byte in data:
            found = (found >> 8) ^ table[(found ^ byte) & 0xFF]
        return found

    assert fingerprint(b'"null"') == 0x63DD_24E7_CC25_8F8A
    plain = '{"name":"r","type":"record","fields":[{"name":"a","type":"int"}]}'
    codec = AvroCodec(plain, "single-object").prepare("schema")
    assert codec.encode({"a": 7}) == b"\xc3\x01" + fingerprint(plain.encode()).to_bytes(8, "little") + b"\x0e"
    assert codec.decode(codec.encode({"a": 7})) == {"a": 7}


@pytest.mark.parametrize("encoding", ["binary", "single-object"])
def test_bytes_that_are_no_record_of_the_schema_have_a_reason(encoding: Encoding) -> None:
    codec = AvroCodec(SCHEMA, encoding).prepare("schema")
    good = codec.encode({"a": 7, "s": "xy"})
    assert codec.decode(good) == {"a": 7, "s": "xy", "at": None}
    for bad in (b"", b"no Avro", good[:-1], good + b"x", b"\x00\x00\x00\x00\x01" + good):
        with pytest.raises(ValueError, match="the value "):
            codec.decode(bad)


def test_fields_of_the_schema_are_columns() -> None:
    assert columns_of(SCHEMA, "schema") == (Column("a", "INT"), Column("s", "STRING"), Column("at", "TIMESTAMP"))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("source", {"value.converter.avro.schema": ""}, "avro.schema: missing; allowed: an Avro record"),
        ("source", {"value.converter.avro.schema": '"int"'}, "allowed: an Avro record"),
        ("source", {"value.converter.avro.schema": SCHEMA.replace("\"int\"", "[]")}, "allowed: an Avro record"),
        ("source", {"schema": "a INT"}, "source.schema: got 'a INT'; allowed: nothing: the fields of the Avro schema"),
        ("source", {"value.converter.avro.encoding": "confluent"}, "allowed: binary, single-object"),
        ("source", {"key.converter": "AvroConverter"}, "source.key.converter: got 'AvroConverter'"),
        ("sink", {"value.converter": "io.confluent.connect.avro.AvroConverter"}, "there is no schema registry"),
        ("sink", {"value.converter": "JsonConverter"}, "nothing without AvroConverter"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_rejected(kind: str, change: dict[str, str], message: str) -> None:
    config = config_of("localhost:1", "t", "u")
    PipelineConnector("c", config)
    with pytest.raises(ConfigError) as caught:
        PipelineConnector("c", config | {f"{kind}.{name}": value for name, value in change.items()})
    assert message in str(caught.value)


def config_of(servers: str, source: str, sink: str) -> dict[str, str]:
    return {
        "source": "kafka",
        "source.bootstrap.servers": servers,
        "source.topics": source,
        "source.value.converter": "AvroConverter",
        "source.value.converter.avro.schema": SCHEMA,
        "sink": "kafka",
        "sink.bootstrap.servers": servers,
        "sink.topic": sink,
        "sink.offsets.topic": f"offsets-{sink}",  # other tests of this broker have a connector of the same name
        "sink.value.converter": "AvroConverter",
        "sink.value.converter.avro.schema": SCHEMA,
        "sink.value.converter.avro.encoding": "single-object",
    }


def test_records_pass_through_and_those_that_do_not_decode_are_dead_letters(kafka: str, table: Bench) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

    origin, target, dead = (f"t{uuid.uuid4().hex}" for _ in range(3))
    for name in (origin, target, dead):
        make_topic(kafka, name, 1)
    producer = Producer({"bootstrap.servers": kafka})
    bad = [b"{}", ROW + b"x"]
    for value in (ROW, *bad, NULLS):
        producer.produce(origin, value)
    assert producer.flush(30) == 0
    settings = config_of(kafka, origin, target)
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.name": dead}
    table.config = lambda **_: {"trigger.ms": "50", **settings, **letters}  # type: ignore[method-assign]
    run = table.start(1)
    run.wait(lambda: sum(run.rows) == 2)
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": uuid.uuid4().hex})
    found: dict[str, list[bytes]] = {target: [], dead: []}
    for name, values in found.items():
        consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
        while len(values) < 2:
            message = consumer.poll(30)
            assert message is not None
            body = message.value()
            assert isinstance(body, bytes)
            values.append(body)
    consumer.close()
    assert [value[10:] for value in found[target]] == [ROW, NULLS]
    assert {value[:2] for value in found[target]} == {b"\xc3\x01"}
    for n, value in enumerate(found[dead], start=1):
        letter = json.loads(value)
        assert (letter["stage"], letter["place"]) == ("source", f"{origin}-0, offset {n}")
        assert "the value" in letter["reason"]

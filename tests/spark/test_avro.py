"""Avro values of Kafka records. The expected bytes are written by hand after Avro's specification."""

from __future__ import annotations

import copy
import datetime
import json
import math
import uuid

import pytest

from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.columns import Column
from connectgroup.dataplane.errors import SinkError
from connectgroup.errors import ConfigError
from connectgroup.spark.avro import AvroCodec, Encoding, Fields, columns_of

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
    with pytest.raises(SinkError, match="a row does not fit the Avro schema"):
        codec.encode({"a": "text"})


@pytest.mark.parametrize("value", [1e-50, 1e300, 0.1])
def test_number_that_avro_has_only_as_another_is_an_error(value: float) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": ["null", "float"]}]}
    codec = AvroCodec(json.dumps(schema), "binary").prepare("schema")
    for kept in (0.5, 0.0, math.inf, 1.401298464324817e-45, None):
        assert codec.decode(codec.encode({"f": kept})) == {"f": kept}
    with pytest.raises(SinkError, match=r"f is .*; allowed: values of Avro's float, or a field of type double"):
        codec.encode({"f": value})


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
    decode = Fields(codec, ("s", "a"))
    assert decode(good) == ("xy", 7, None)
    assert decode(None) is None, "a tombstone"
    for bad in (b"", b"no Avro", good[:-1], good + b"x", b"\x00\x00\x00\x00\x01" + good):
        found = decode(bad)
        assert found is not None
        assert found[:2] == (None, None)
        assert found[2]


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

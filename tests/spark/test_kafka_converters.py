"""The converters of the source and the sink ``kafka`` against a real broker (KIP-26, KIP-298)."""

from __future__ import annotations

import json
import math
import sqlite3
import uuid
from decimal import Decimal
from typing import Any

import pytest

from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.columns import Column
from connectgroup.errors import ConfigError
from connectgroup.spark.converters import encoder
from connectgroup.spark.sinks.kafka import KafkaSink, KafkaSinkSettings, _check_forms

from .conftest import Bench
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
    run.wait(lambda: sum(run.rows) == 1)
    assert {topic for batch in run.batches for topic in batch.topics} == {origin, target}
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": uuid.uuid4().hex})
    consumer.assign([TopicPartition(target, 0, OFFSET_BEGINNING)])
    message = consumer.poll(30)
    assert message is not None
    found = message.value()
    assert isinstance(found, bytes)
    assert json.loads(found) == {"schema": schema, "payload": payload}
    assert (message.key(), message.headers()) == (b"k", [("h", b"\xff"), ("h", b"2"), ("none", None)])
    consumer.close()
    producer.produce(origin, '{"id": 8}', key)
    assert producer.flush(30) == 0
    assert str(run.failure()) == (
        f"{origin}-0, offset 1: the value is not an object of schema and payload; allowed: what JsonConverter writes"
        " with schemas, or value.converter.schemas.enable=false"
    )


@pytest.mark.parametrize(
    ("converter", "good", "bad"),
    [
        (None, '{{"a": {n}}}', ["no JSON", '{"a": "x"}', "[1", '{"a": 99999999999}']),
        (
            "JsonConverter",
            '{{"schema": null, "payload": {{"a": {n}}}}}',
            ['{"a": 1}', "{", '{"schema": 1, "payload": 2}'],
        ),
    ],
)
def test_record_that_the_converter_cannot_read_is_a_dead_letter(
    kafka: str, table: Bench, converter: str | None, good: str, bad: list[str]
) -> None:
    """KIP-298: ``errors.tolerance=all`` covers the converters."""
    name = f"t{uuid.uuid4().hex}"
    make_topic(kafka, name, 1)
    values = [good.format(n=1), *bad, good.format(n=2)]
    produce(kafka, name, [(0, "k", value) for value in values])
    more: Any = {} if converter is None else {"value_converter": converter}
    run = table.start(
        1,
        source="kafka",
        source_bootstrap_servers=kafka,
        source_topics=name,
        source_schema="a INT",
        source_metadata="offset",
        errors_tolerance="all",
        errors_deadletterqueue_name="dead",
        **more,
    )
    run.wait(lambda: sum(run.rows) == 2)
    with sqlite3.connect(table.output) as connection:
        assert connection.execute("SELECT a, offset FROM t ORDER BY a").fetchall() == [(1, 0), (2, len(bad) + 1)]
        found = connection.execute("SELECT stage, place, record, reason FROM dead ORDER BY place").fetchall()
    assert [each[:3] for each in found] == [
        ("source", f"{name}-0, offset {n}", bad[n - 1]) for n in range(1, len(bad) + 1)
    ]
    assert all("source.schema" in each[3] or "schema and payload" in each[3] for each in found)


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
    for schemas in (False, True):
        assert encoder(pa.string(), "json", schemas=schemas)(None) is None, "a tombstone, or no key"


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
    columns = (Column("value", "STRING"), Column("headers", kind))
    values = {"bootstrap.servers": "localhost:1", "topic": "t", "header.converter": converter}
    settings = KafkaSinkSettings.model_validate(values)
    if fitting is None:
        _check_forms(settings, columns)
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
        "sink.bootstrap.servers": "localhost:1",
        "sink.topic": "u",
        f"sink.{part}.converter": "JsonConverter",
    }
    message = rf"sink\.{part}\.converter: got 'JsonConverter'; allowed: StringConverter: the source hands on"
    with pytest.raises(ConfigError, match=message):
        PipelineConnector("c", config)
    PipelineConnector("c", config | {"source.schema": "a BIGINT"})
    PipelineConnector("c", config | {f"sink.{part}.converter": "StringConverter"})

"""``connectgroup connectors translate``: connectors of Kafka Connect as pipelines that the product itself accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connectgroup.cli.command import main
from connectgroup.config.connector_validation import validate

BROKERS = ("--bootstrap-servers", "kafka:9092")


class Translate:
    """Runs the command on a connector's settings."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file, self._capsys = folder / "connector.json", capsys

    def __call__(self, config: dict[str, str], *options: str) -> tuple[int, Any, list[str]]:
        """The exit code, the printed JSON, and the lines of the standard error."""
        self._file.write_text(json.dumps({"name": "orders", "config": config}))
        code = main(["connectors", "translate", str(self._file), *options])
        printed = self._capsys.readouterr()
        return code, json.loads(printed.out or "null"), printed.err.splitlines()


@pytest.fixture
def translate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Translate:
    return Translate(tmp_path, capsys)


FILE_SOURCE = {
    "connector.class": "FileStreamSource",
    "tasks.max": "1",
    "file": "/var/log/app[1].log",
    "topic": "log",
    "batch.size": "2000",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}
FILE_SINK = {
    "consumer.override.group.id": "tailed",
    "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
    "topics": "log",
    "file": "/out/log.txt",
}
JDBC_SOURCE = {
    "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
    "connection.url": "jdbc:postgresql://db:5432/shop?user=app&sslmode=require&currentSchema=sales&tcpKeepAlive=true",
    "connection.password": "${file:/run/secrets/db:password}",
    "mode": "incrementing",
    "incrementing.column.name": "id",
    "table.whitelist": "orders,returns",
    "topic.prefix": "shop-",
    "poll.interval.ms": "5000",
    "batch.max.rows": "500",
    "numeric.mapping": "best_fit",
    "transforms": "route",
    "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.route.regex": "(.*)",
    "transforms.route.replacement": "eu-$1",
}
JDBC_SINK = {
    "connector.class": "io.aiven.connect.jdbc.JdbcSinkConnector",
    "connection.url": "jdbc:postgresql://db/shop",
    "connection.user": "app",
    "connection.password": "secret",
    "topics": "orders",
    "insert.mode": "upsert",
    "pk.mode": "record_value",
    "pk.fields": "id",
    "auto.create": "true",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "true",
    "consumer.override.isolation.level": "read_uncommitted",
    "errors.tolerance": "all",
    "errors.deadletterqueue.topic.name": "bad_orders",
    "errors.deadletterqueue.topic.replication.factor": "1",
}
S3_SINK = {
    "connector.class": "io.confluent.connect.s3.S3SinkConnector",
    "topics": "orders,returns",
    "s3.bucket.name": "lake",
    "s3.region": "eu-central-1",
    "flush.size": "1000",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "format.class": "io.confluent.connect.s3.format.parquet.ParquetFormat",
    "partitioner.class": "io.confluent.connect.storage.partitioner.DefaultPartitioner",
}
DEBEZIUM = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "database.hostname": "db",
    "database.port": "5433",
    "database.user": "cdc",
    "database.password": "secret",
    "database.dbname": "shop",
    "topic.prefix": "cdc",
    "table.include.list": "public.orders",
    "plugin.name": "pgoutput",
}


@pytest.mark.parametrize(
    ("config", "pipelines"),
    [(FILE_SOURCE, 1), (FILE_SINK, 1), (JDBC_SOURCE, 2), (JDBC_SINK, 1), (S3_SINK, 2)],
    ids=["file-source", "file-sink", "jdbc-source", "jdbc-sink", "s3-sink"],
)
def test_translated_pipeline_is_valid(translate: Translate, config: dict[str, str], pipelines: int) -> None:
    code, printed, _ = translate(config, *BROKERS)
    found = printed if isinstance(printed, list) else [printed]
    assert (code, len(found)) == (0, pipelines)
    assert [list(validate(each["config"]).errors) for each in found] == [[]] * pipelines
    assert [each["name"] for each in found] == [each["config"]["name"] for each in found]


def test_file_source(translate: Translate) -> None:
    _, printed, notes = translate(FILE_SOURCE, *BROKERS)
    assert printed["config"] == {
        "name": "orders",
        "connector.class": "pipeline",
        "tasks.max": "1",
        "source": "files",
        "source.format": "text",
        "source.path": "/var/log",
        "source.file.pattern": "app[[]1].log",
        "sink": "kafka",
        "sink.topic": "log",
        "sink.bootstrap.servers": "kafka:9092",
        "sink.value.converter": "StringConverter",
    }
    assert notes == ["connectgroup: batch.size: left out: a batch is limited in bytes: source.max.bytes.per.batch"]


def test_jdbc_source_is_one_pipeline_for_each_table(translate: Translate) -> None:
    _, (orders, returns), notes = translate(JDBC_SOURCE, *BROKERS)
    assert (orders["name"], returns["name"]) == ("orders-orders", "orders-returns")
    assert orders["config"] == {
        **{key: value for key, value in JDBC_SOURCE.items() if key.startswith("transforms")},
        "name": "orders-orders",
        "connector.class": "pipeline",
        "source": "postgres",
        "source.url": "postgresql://app@db:5432/shop?sslmode=require",
        "source.password": "${file:/run/secrets/db:password}",
        "source.schema": "sales",
        "source.incrementing.column": "id",
        "source.table": "orders",
        "source.max.rows.per.batch": "500",
        "trigger.ms": "5000",
        "sink": "kafka",
        "sink.topic": "shop-orders",
        "sink.bootstrap.servers": "kafka:9092",
    }
    assert returns["config"]["sink.topic"] == "shop-returns"
    assert any("tcpKeepAlive" in note for note in notes)
    assert any("numeric.mapping: left out" in note for note in notes)


def test_jdbc_sink(translate: Translate) -> None:
    _, printed, notes = translate(JDBC_SINK, *BROKERS)
    assert printed["config"] == {
        "name": "orders",
        "connector.class": "pipeline",
        "source": "kafka",
        "source.topics": "orders",
        "source.bootstrap.servers": "kafka:9092",
        "source.isolation.level": "read_uncommitted",
        "source.value.converter": "JsonConverter",
        "source.value.converter.schemas.enable": "true",
        "sink": "postgres",
        "sink.url": "postgresql://app@db/shop",
        "sink.password": "secret",
        "sink.table": "orders",
        "sink.insert.mode": "upsert",
        "sink.pk.fields": "id",
        "sink.auto.create": "true",
        "sink.auto.evolve": "false",
        "errors.tolerance": "all",
        "errors.deadletterqueue.name": "bad_orders",
    }
    assert not any("secret" in note for note in notes)


@pytest.mark.parametrize(
    ("config", "options", "missing"),
    [
        (FILE_SOURCE, (), "sink.bootstrap.servers: missing"),
        ({**FILE_SOURCE, "file": ""}, BROKERS, "source.path: missing"),
        (
            {**JDBC_SOURCE, "mode": "timestamp", "incrementing.column.name": ""},
            BROKERS,
            "source.incrementing.column: mis",
        ),
        ({**JDBC_SOURCE, "transforms.route.type": "com.acme.Route"}, BROKERS, "com.acme.Route is not installed"),
        ({**JDBC_SINK, "value.converter": ""}, BROKERS, "source.schema: missing"),
        ({**S3_SINK, "value.converter": ""}, BROKERS, "source.schema: missing"),
        (DEBEZIUM, BROKERS, "source.incrementing.column: missing"),
    ],
)
def test_what_the_file_does_not_say_is_missing(
    translate: Translate, config: dict[str, str], options: tuple[str, ...], missing: str
) -> None:
    code, printed, lines = translate(config, *options)
    assert code == 1
    assert any(missing in line for line in lines)
    assert printed
    code, shown, more = translate(config, *options, "--json")
    assert (code, more) == (1, [])
    assert shown["connectors"] == (printed if isinstance(printed, list) else [printed])
    assert [f"connectgroup: {each}" for each in (*shown["notes"], *shown["missing"])] == lines


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"connector.class": "com.acme.Magic"}, "config.connector.class: got 'com.acme.Magic'; allowed: "),
        (
            {**JDBC_SOURCE, "connection.url": "jdbc:oracle:thin:@db"},
            "config.connection.url: got 'jdbc:oracle:thin:@db'",
        ),
    ],
)
def test_what_cannot_be_translated_is_one_line(translate: Translate, config: dict[str, str], message: str) -> None:
    code, printed, lines = translate(config)
    assert (code, printed, len(lines)) == (2, None, 1)
    assert message in lines[0]


@pytest.mark.parametrize("config", [FILE_SOURCE, FILE_SINK, JDBC_SOURCE, JDBC_SINK, S3_SINK, DEBEZIUM])
def test_no_setting_is_dropped_without_a_note(translate: Translate, config: dict[str, str]) -> None:
    _, _, notes = translate({**config, "no.such.setting": "1"}, *BROKERS)
    assert "connectgroup: no.such.setting: left out: no setting here has its meaning" in notes


@pytest.mark.parametrize("config", [JDBC_SINK, DEBEZIUM])
def test_a_password_in_the_file_has_a_note(translate: Translate, config: dict[str, str]) -> None:
    _, _, notes = translate(config, *BROKERS)
    assert any("password: a reference such as ${file:/path:key} keeps it out of the conf" in note for note in notes)


def test_unknown_class_of_kafka_connect_points_to_the_translation() -> None:
    (error,) = validate({"name": "a", "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector"}).errors
    assert "connectgroup connectors translate" in str(error)

"""Configurations of connectors that people run on Kafka Connect, as pipelines: ``connectgroup connectors translate``.

One function for each connector class. It takes the settings that it knows from a ``Translation``, which notes what has
another meaning here; what is left in the end is in the notes as well. Nothing is dropped without a note.

Sources: the documentation of the connectors: Kafka's FileStream, Confluent's and Aiven's JDBC and S3, Debezium.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from ..errors import ConfigError
from ..plugins import available
from ..protocol.units import printable

MOUNT: Final = "/mnt"
"""Where a bucket is assumed to be mounted: sinks of files write to directories."""

LEFT_OUT: Final[Mapping[str, str]] = {
    "dead letters are rows with place and reason in the sink's own database or cluster": (
        "errors.deadletterqueue.topic.replication.factor errors.deadletterqueue.context.headers.enable"
    ),
    "always: positions are committed with the rows, in the sink": (
        "exactly.once.support offsets.storage.topic transaction.boundary transaction.boundary.interval.ms"
    ),
    "a batch is limited in bytes: source.max.bytes.per.batch": "batch.size",
    "the database is known from the URL": "dialect.name catalog.pattern",
    "a failed batch is tried again with its task: errors.retry.timeout": (
        "connection.attempts connection.backoff.ms max.retries retry.backoff.ms"
    ),
    "tables are named: source.table": (
        "table.blacklist table.exclude.list table.types table.poll.interval.ms tables schema.pattern"
    ),
    "columns keep the types of the database": "numeric.mapping numeric.precision.mapping db.timezone",
    "a growing column that is null is an error": "validate.non.null",
    "names are always quoted": "quote.sql.identifiers",
    "a batch becomes a file, and small files are compacted": (
        "flush.size rotate.interval.ms rotate.schedule.interval.ms file.max.records s3.part.size"
    ),
    "only the sink delta has directories by column: sink.partition.by": (
        "path.format partition.duration.ms partition.field.name timestamp.extractor locale timezone timestamp.field"
    ),
    "of the object store": (
        "s3.region storage.class store.url aws.access.key.id aws.secret.access.key aws.s3.region aws.s3.endpoint "
        "s3.compression.type"
    ),
    "of logical decoding": (
        "plugin.name slot.name slot.drop.on.stop publication.name publication.autocreate.mode snapshot.mode "
        "heartbeat.interval.ms tombstones.on.delete decimal.handling.mode"
    ),
}
"""Settings that have no equal here, and why that is right."""


@dataclass(frozen=True, slots=True)
class Translated:
    """One pipeline.

    Attributes:
        config: its settings, ``name`` among them.
        missing: settings that it needs and the given configuration does not have, each with what to write.
    """

    config: Mapping[str, str]
    missing: tuple[str, ...]


@dataclass(slots=True)
class Translation:
    """One connector of Kafka Connect while it is translated.

    Attributes:
        left: its settings that no function has taken yet. Changed by ``take`` and its siblings.
        common: settings of each of its pipelines. Changed by the functions of this module.
        notes: what is different here, a line each. Changed by the functions of this module.
        missing: see ``Translated``. Changed by the functions of this module.
        pipelines: the suffix of each pipeline's name, and its own settings. Changed by the functions of this module.
    """

    left: dict[str, str]
    common: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    pipelines: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def take(self, name: str, default: str = "") -> str:
        """The value of a setting."""
        return self.left.pop(name, default).strip()

    def keep(self, *names: str, prefix: str = "") -> None:
        """Keep settings that have the same meaning here."""
        for name in names:
            if name in self.left:
                self.common[prefix + name] = self.left.pop(name)

    def need(self, setting: str, what: str) -> None:
        """Note a setting without which the pipeline cannot run."""
        self.missing.append(f"{setting}: missing: {what}")


def translate(config: Mapping[str, str], *, bootstrap_servers: str = "") -> tuple[list[Translated], list[str]]:
    """Translate the configuration of a connector of Kafka Connect.

    Args:
        config: the settings, ``name`` and ``connector.class`` among them.
        bootstrap_servers: the brokers of the Connect cluster (``bootstrap.servers`` of its workers). In Kafka Connect
            they are no setting of the connector.

    Returns:
        The pipelines, one for each table if the connector has several, and notes, a line each.

    Raises:
        ConfigError: there is no translation of its class, or the connector cannot run as a pipeline.
    """
    name = config.get("connector.class", "")
    found = _translator(name)
    if found is None:
        allowed = ", ".join(sorted({each.rpartition(".")[2] for each in TRANSLATED}))
        raise ConfigError("connector.class", name, f"{allowed}, with or without their packages")
    given = Translation({key: value for key, value in config.items() if key != "connector.class"})
    connector = given.take("name", "connector")
    _common(given)
    found(given)
    _kafka(given, bootstrap_servers)
    given.notes += [f"{printable(name)}: left out: {_reason(name)}" for name in sorted(given.left)]
    pipelines = [
        Translated(
            {"name": f"{connector}{suffix}", "connector.class": "pipeline", **own, **given.common},
            tuple(given.missing),
        )
        for suffix, own in given.pipelines
    ]
    return pipelines, given.notes


def _reason(name: str) -> str:
    """Why a setting has no equal here."""
    if name.startswith("topic.creation."):
        return "topics are created beforehand"
    known = (reason for reason, names in LEFT_OUT.items() if name in names.split())
    return next(known, "no setting here has its meaning")


def _translator(name: str) -> Callable[[Translation], None] | None:
    if name in TRANSLATED:
        return TRANSLATED[name]
    simple = {known.rpartition(".")[2]: translator for known, translator in TRANSLATED.items()}
    return simple.get(name) or simple.get(f"{name}Connector")


# ---------------------------------------------------------------------------------------------- common settings


def _common(given: Translation) -> None:
    given.keep("tasks.max", "errors.tolerance", "errors.log.enable", "errors.log.include.messages")
    given.keep("errors.retry.timeout", "errors.retry.delay.max.ms", "transforms", "predicates")
    dead_letters = given.take("errors.deadletterqueue.topic.name")
    if dead_letters:
        given.common["errors.deadletterqueue.name"] = dead_letters
    _transforms(given)


def _transforms(given: Translation) -> None:
    """Keep transforms and predicates: their settings are the same."""
    for kind, plural in (("transforms", "transforms"), ("predicates", "predicates")):
        names = [each.strip() for each in given.common.get(plural, "").split(",") if each.strip()]
        for name in names:
            prefix = f"{kind}.{name}."
            own = [key for key in given.left if key.startswith(prefix)]
            of_class = given.left.get(f"{prefix}type", "")
            short = of_class.rpartition(".")[2].partition("$")[0]
            if short not in available("transforms" if kind == "transforms" else "predicates"):
                given.missing.append(
                    f"{prefix}type: {printable(of_class)} is not installed here; see connectgroup plugins list"
                )
            given.keep(*own)


CONVERTERS: Final = frozenset({"StringConverter", "ByteArrayConverter", "JsonConverter"})


def _converters(given: Translation, end: str) -> None:
    """The converters of the end that is Kafka."""
    for role in ("key", "value", "header"):
        setting = f"{role}.converter"
        of_class = given.take(setting)
        short = of_class.rpartition(".")[2]
        if short in CONVERTERS and (role != "header" or short != "JsonConverter"):
            given.common[f"{end}.{setting}"] = short
            schemas = f"{setting}.schemas.enable"
            if short == "JsonConverter" and role != "header":
                given.keep(schemas, prefix=f"{end}.")
        elif of_class:
            given.notes.append(
                f"{setting}: left out: {printable(of_class)} has no equal: there is no schema registry. "
                f"AvroConverter with {end}.value.converter.avro.schema reads and writes Avro without one"
            )
        for key in [key for key in given.left if key.startswith(f"{setting}.")]:
            del given.left[key]


def _kafka(given: Translation, bootstrap_servers: str) -> None:
    """The end of each pipeline that is Kafka: brokers, converters, client settings."""
    ends = {end for _, own in given.pipelines for end in ("source", "sink") if own.get(end) == "kafka"}
    for end in sorted(ends):
        if bootstrap_servers:
            given.common[f"{end}.bootstrap.servers"] = bootstrap_servers
        else:
            given.need(f"{end}.bootstrap.servers", "bootstrap.servers of Kafka Connect's workers (--bootstrap-servers)")
        _converters(given, end)
        prefix = "consumer.override." if end == "source" else "producer.override."
        client = {key.removeprefix(prefix): given.left.pop(key) for key in list(given.left) if key.startswith(prefix)}
        if end == "source" and client.pop("group.id", None) is not None:
            given.notes.append(
                "consumer.override.group.id: left out: positions are in the sink, and published to the consumer group"
                " connect-NAME (source.publish.offsets)"
            )
        if end == "source" and "isolation.level" in client:
            given.common["source.isolation.level"] = client.pop("isolation.level")
        if end == "source" and "auto.offset.reset" in client:
            given.common["source.starting.offsets"] = client.pop("auto.offset.reset")
        if client:
            given.common[f"{end}.client"] = json.dumps(client)
            given.notes.append(f"{end}.client: settings of Java's client: connectors validate tells which differ here")


def _read_topics(given: Translation) -> dict[str, str]:
    """The source of a sink connector."""
    source = {"source": "kafka"}
    topics, regex = given.take("topics"), given.take("topics.regex")
    if topics:
        source["source.topics"] = topics
    elif regex:
        source["source.topics.regex"] = regex
        given.notes.append("source.topics.regex: an expression of RE2: no look-around and no back references")
    else:
        given.need("source.topics", "the topics to read")
    given.notes.append(
        "source.starting.offsets: a new pipeline reads each topic from its beginning, not from where the consumer "
        "group of the connector in Kafka Connect is; connectgroup connectors offsets NAME --alter sets the offsets"
    )
    return source


# ---------------------------------------------------------------------------------------------- FileStream


def _file_source(given: Translation) -> None:
    file, topic = PurePosixPath(given.take("file")), given.take("topic")
    own = {"source": "files", "source.format": "text", "sink": "kafka"}
    if not file.is_absolute():
        given.need("source.path", "the directory of the file, as an absolute path; standard input cannot be read")
    else:
        own["source.path"] = str(file.parent)
        own["source.file.pattern"] = glob.escape(file.name)
    if topic:
        own["sink.topic"] = topic
    else:
        given.need("sink.topic", "the topic to write")
    given.pipelines.append(("", own))


def _file_sink(given: Translation) -> None:
    file = PurePosixPath(given.take("file"))
    own = {**_read_topics(given), "sink": "jsonl"}
    if file.is_absolute():
        own["sink.path"] = str(file.parent / file.stem)
        given.notes.append(
            "sink.path: a directory of JSON lines files, whose rows appear with the commit, not one file"
        )
    else:
        given.need("sink.path", "a directory, as an absolute path; standard output is the sink console")
    given.pipelines.append(("", own))


# ---------------------------------------------------------------------------------------------- JDBC


def _database(given: Translation, end: str) -> dict[str, str]:
    """The settings of a source or sink for a JDBC URL.

    Raises:
        ConfigError: there is none for that database.
    """
    url, user, password = (given.take(f"connection.{name}") for name in ("url", "user", "password"))
    kind, _, rest = url.removeprefix("jdbc:").partition(":")
    if kind == "sqlite":
        path = unquote(rest.partition("?")[0])
        if not path.startswith("/"):
            given.need(f"{end}.path", f"the database file as an absolute path; got {printable(path)!r}")
            return {end: "sqlite"}
        return {end: "sqlite", f"{end}.path": path}
    if kind != "postgresql":
        raise ConfigError(
            "connection.url", url, "jdbc:postgresql://... or jdbc:sqlite:/..., the databases with an own connector"
        )
    parts = urlsplit(f"postgresql:{rest}")
    query = dict(parse_qsl(parts.query))
    user, password = user or query.pop("user", ""), password or query.pop("password", "")
    options = {}
    for java, here in (
        ("sslmode", "sslmode"),
        ("connectTimeout", "connect_timeout"),
        ("ApplicationName", "application_name"),
    ):
        if java in query:
            options[here] = query.pop(java)
    own = {end: "postgres"}
    if "currentSchema" in query:
        own[f"{end}.schema"] = query.pop("currentSchema")
    for name in sorted(query):
        given.notes.append(f"connection.url: {printable(name)} left out: a parameter of the JDBC driver")
    login = f"{quote(user, safe='')}@" if user else ""
    tail = f"?{urlencode(options)}" if options else ""
    own[f"{end}.url"] = f"postgresql://{login}{parts.netloc}{parts.path}{tail}"
    return own | _password(given, end, password)


def _password(given: Translation, end: str, password: str) -> dict[str, str]:
    if not password:
        return {}
    if "${" not in password:
        given.notes.append(f"{end}.password: a reference such as ${{file:/path:key}} keeps it out of the configuration")
    return {f"{end}.password": password}


def _jdbc_source(given: Translation) -> None:
    database = _database(given, "source")
    mode, column = given.take("mode"), given.take("incrementing.column.name")
    if mode != "incrementing":
        given.notes.append(
            f"mode: {printable(mode) or 'none'} has no equal: rows are read once, by a column that grows "
            "(source.incrementing.column); rows that are updated later are not read again"
        )
        given.take("timestamp.column.name")
        given.take("timestamp.initial")
    delay = given.take("timestamp.delay.interval.ms")
    if delay not in ("", "0"):
        database["source.settle.ms"] = delay
    if column:
        database["source.incrementing.column"] = column
    else:
        given.need("source.incrementing.column", "an integer column, unique and growing from 0, with an index")
    for theirs, ours in (("poll.interval.ms", "trigger.ms"), ("batch.max.rows", "source.max.rows.per.batch")):
        if value := given.take(theirs):
            database[ours] = value
    if given.take("query"):
        given.notes.append("query: left out: make it a view of the database, and name that as source.table")
    prefix = given.take("topic.prefix")
    tables = _names(given.take("table.whitelist") or given.take("table.include.list"))
    if not tables:
        given.need("source.table", "the table or view to read; one pipeline reads one")
        tables = [""]
    for table in tables:
        own = {**database, "sink": "kafka", "sink.topic": f"{prefix}{table.rpartition('.')[2]}"}
        if table:
            own["source.table"] = table.rpartition(".")[2].strip('"')
            if "." in table and database["source"] == "postgres":
                own["source.schema"] = table.split(".")[-2].strip('"')
        given.pipelines.append((f"-{own['source.table']}" if len(tables) > 1 else "", own))


def _jdbc_sink(given: Translation) -> None:
    database = _database(given, "sink")
    mode, key, keys = (
        given.take("insert.mode", "insert").lower(),
        given.take("pk.mode", "none"),
        given.take("pk.fields"),
    )
    if mode == "update":
        given.notes.append("insert.mode: update has no equal: upsert inserts the row where it is missing")
        mode = "upsert"
    database["sink.insert.mode"] = mode
    if keys and key in ("record_value", "record_key"):
        database["sink.pk.fields"] = keys
    elif mode != "insert":
        given.need("sink.pk.fields", "the columns of the key, separated by commas")
    if key == "record_key":
        given.notes.append(
            "pk.mode: record_key: sink.pk.fields are columns of the row; a transform sql can make them of the key"
        )
    elif key == "kafka":
        given.notes.append("pk.mode: kafka: source.metadata=topic,partition,offset adds these columns to the rows")
    if given.take("delete.enabled", "false").lower() == "true":
        given.notes.append(
            "delete.enabled: rows that sink.delete.field marks are deleted; a tombstone has no columns to find its row"
        )
    for name in ("auto.create", "auto.evolve"):
        database[f"sink.{name}"] = given.take(name, "false").lower()
    if size := given.take("batch.size"):
        database["source.max.rows.per.batch"] = size
    if given.take("fields.whitelist"):
        given.notes.append("fields.whitelist: left out: the transform ReplaceField with include selects columns")
    if not given.left.get("value.converter", "").endswith("JsonConverter"):
        given.need("source.schema", "the fields of the values as NAME TYPE, unless a converter's schema names them")
    name_format = given.take("table.name.format", "${topic}")
    source = _read_topics(given)
    topics = _names(source.get("source.topics", ""))
    if "${topic}" not in name_format:
        given.pipelines.append(("", {**source, **database, **_table(given, name_format, database)}))
        return
    for topic in topics or [""]:
        table = name_format.replace("${topic}", topic)
        own = {**source, **database, **({"source.topics": topic} if topic else {})}
        if topic:
            own |= _table(given, table, database)
        else:
            given.need("sink.table", "one pipeline writes one table: one pipeline for each topic of the expression")
        given.pipelines.append((f"-{topic}" if len(topics) > 1 else "", own))


def _table(given: Translation, name: str, database: Mapping[str, str]) -> dict[str, str]:
    schema, _, table = name.rpartition(".")
    own = {"sink.table": re.sub(r"[^A-Za-z0-9_]", "_", table)}
    if schema and database["sink"] == "postgres":
        own["sink.schema"] = schema
    if own["sink.table"] != table:
        given.notes.append(f"sink.table: {own['sink.table']} for {printable(table)}: letters, digits and _ are allowed")
    return own


# ---------------------------------------------------------------------------------------------- S3


def _s3_sink(given: Translation) -> None:
    bucket = given.take("s3.bucket.name") or given.take("aws.s3.bucket.name")
    folder = given.take("topics.dir", "topics") if "aws.s3.prefix" not in given.left else given.take("aws.s3.prefix")
    form = (given.take("format.class") or given.take("format.output.type")).lower()
    source = _read_topics(given)
    sink = "parquet" if "parquet" in form else "jsonl" if "json" in form else "csv" if "csv" in form else ""
    if not sink:
        given.notes.append(
            f"format.class: {printable(form) or 'none'} has no equal: parquet, jsonl, csv or delta; parquet is taken"
        )
        sink = "parquet"
    given.notes.append(
        f"sink.path: an object store is not written directly: mount the bucket at {MOUNT}/{printable(bucket)}, or name "
        "another directory"
    )
    partitioner = given.take("partitioner.class")
    if partitioner and not partitioner.endswith("DefaultPartitioner"):
        given.notes.append("partitioner.class: only the sink delta has directories by column: sink.partition.by")
    if not given.left.get("value.converter", "").endswith("JsonConverter"):
        given.need("source.schema", "the fields of the values as NAME TYPE, unless a converter's schema names them")
    topics = _names(source.get("source.topics", ""))
    for topic in topics or [""]:
        own = {**source, **({"source.topics": topic} if topic else {}), "sink": sink}
        own["sink.path"] = "/".join(each.strip("/") for each in (MOUNT, bucket, folder, topic) if each).join(("/", ""))
        given.pipelines.append((f"-{topic}" if len(topics) > 1 else "", own))


# ---------------------------------------------------------------------------------------------- Debezium


def _debezium_postgres(given: Translation) -> None:
    host, port = given.take("database.hostname"), given.take("database.port", "5432")
    user, password, database = (given.take(f"database.{name}") for name in ("user", "password", "dbname"))
    own = {
        "source": "postgres",
        "source.url": f"postgresql://{quote(user, safe='')}@{host}:{port}/{quote(database, safe='')}",
    }
    own |= _password(given, "source", password)
    given.notes.append(
        "source.incrementing.column: new rows of a table are read, by a column that grows; updates and deletes are "
        "not, and no replication slot is used"
    )
    prefix = given.take("topic.prefix") or given.take("database.server.name")
    tables = _names(given.take("table.include.list") or given.take("table.whitelist"))
    given.need("source.incrementing.column", "an integer column, unique and growing from 0, with an index")
    if not tables:
        given.need("source.table", "the table or view to read; one pipeline reads one")
    for table in tables or [""]:
        schema, _, name = table.rpartition(".")
        pipeline = {**own, "sink": "kafka", "sink.topic": ".".join(each for each in (prefix, schema, name) if each)}
        if name:
            pipeline["source.table"] = name
        if schema:
            pipeline["source.schema"] = schema
        given.pipelines.append((f"-{name}" if len(tables) > 1 else "", pipeline))


def _names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _under(
    package: Iterable[str], name: str, translator: Callable[[Translation], None]
) -> dict[str, Callable[[Translation], None]]:
    return {f"{each}.{name}": translator for each in package}


TRANSLATED: Final[Mapping[str, Callable[[Translation], None]]] = {
    "org.apache.kafka.connect.file.FileStreamSourceConnector": _file_source,
    "org.apache.kafka.connect.file.FileStreamSinkConnector": _file_sink,
    **_under(("io.confluent.connect.jdbc", "io.aiven.connect.jdbc"), "JdbcSourceConnector", _jdbc_source),
    **_under(("io.confluent.connect.jdbc", "io.aiven.connect.jdbc"), "JdbcSinkConnector", _jdbc_sink),
    "io.confluent.connect.s3.S3SinkConnector": _s3_sink,
    "io.aiven.kafka.connect.s3.AivenKafkaConnectS3SinkConnector": _s3_sink,
    "io.debezium.connector.postgresql.PostgresConnector": _debezium_postgres,
}
"""By the class that ``connector.class`` names."""

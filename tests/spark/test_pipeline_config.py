"""The pipeline's settings: which are rejected, and the error messages. No Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.errors import ConfigError

GOOD = {
    "connector.class": "pipeline",
    "name": "c",
    "tasks.max": "3",
    "source": "files",
    "source.path": "/data/in",
    "source.format": "csv",
    "sink": "sqlite",
    "sink.path": "/data/out.db",
    "sink.table": "t",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": None}, "source: missing; allowed: "),
        ({"source": "nope"}, "source: got 'nope'; allowed: "),
        ({"source.path": ""}, "source.path: got ''; allowed: a directory"),
        ({"source.path": "in"}, "source.path: got 'in'; allowed: a directory, as an absolute path"),
        ({"sink.path": "../out.db"}, "sink.path: got '../out.db'; allowed: a database file"),
        ({"source.format": "xml"}, "source.format: got 'xml'; allowed: csv, jsonl"),
        ({"source.schema": "a WORD"}, "source.schema: got 'a WORD'; allowed: types BOOLEAN"),
        ({"source.max.bytes.per.batch": "10"}, "source.max.bytes.per.batch: got '10'; allowed: 1024 to 268435456"),
        ({"source.max.bytes.per.batch": "1 MB"}, "source.max.bytes.per.batch: got '1 MB'; allowed: 1024 to"),
        ({"trigger.ms": "0"}, "trigger.ms: got '0'; allowed: 10 to 3600000"),
        ({"sink": "nope"}, "sink: got 'nope'; allowed: "),
        ({"sink.table": None}, "sink.table: missing; allowed: a name of letters"),
        ({"sink.table": "t; DROP TABLE x"}, "sink.table: got 't; DROP TABLE x'; allowed: a name of letters"),
        ({"sink.table": "connectgroup_offsets"}, "sink.table: got 'connectgroup_offsets'; allowed: a name of letters"),
        (
            {"sink": "parquet"},
            "sink.table is a setting of sink postgres and sink sqlite",
        ),
        ({"source.pth": "x"}, "source.pth: unknown; allowed: source.path (did you mean that?)"),
        ({"sink.host": "x"}, "sink.host: unknown; allowed: sink.auto.create, sink.auto.evolve, "),
        ({"source_path": "x"}, "source_path: unknown; allowed: source.path (did you mean that?)"),
        ({"layout": "x"}, "layout: unknown; allowed: nothing: the pipeline sets it for its tasks"),
        ({"zzz\n": "x"}, "zzz"),
    ],
)
def test_invalid_setting_is_a_one_line_error(change: dict[str, str | None], message: str) -> None:
    config = {key: value for key, value in (GOOD | change).items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        PipelineConnector("c", config)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_error_for_an_unknown_setting_lists_no_key_of_the_framework() -> None:
    with pytest.raises(ConfigError) as caught:
        PipelineConnector("c", GOOD | {"zzz": "x"})
    allowed = caught.value.allowed.split(", ")
    assert "trigger.ms" in allowed
    assert not {"name", "task", "tasks", "layout"} & set(allowed)


TOPICS = {
    "transforms": "f,g",
    "transforms.f.type": "Filter",
    "transforms.f.condition": "true",
    "transforms.g.type": "Filter",
    "transforms.g.predicate": "p",
    "predicates": "p",
    "predicates.p.type": "TopicNameMatches",
    "predicates.p.pattern": "a.*",
}


@pytest.mark.parametrize(
    "source",
    [
        {"source.schema": "a INT, b STRING"},
        {"source.format": "text"},
        {"source": "kafka", "source.bootstrap.servers": "b:9092", "source.topics": "t", "source.schema": "a INT"},
        {"source": "datagen", "source.schema": "a INT"},
        {"source": "spark", "source.format": "rate", "source.path": None},
    ],
)
def test_topic_predicate_without_a_column_topic_is_rejected(source: dict[str, str | None]) -> None:
    own = {k: v for k, v in GOOD.items() if not k.startswith("source.") or source.get("source", "files") == "files"}
    config = {key: value for key, value in (own | TOPICS | source).items() if value is not None}
    with pytest.raises(ConfigError, match=r"predicates\.p\.type: .*TopicNameMatches.*column topic"):
        PipelineConnector("c", config)


def test_topic_predicate_is_accepted_where_there_is_or_may_be_a_column_topic(tmp_path: Path) -> None:
    kafka = {"source": "kafka", "source.bootstrap.servers": "b:9092", "source.topics": "t"}
    sink = {key: value for key, value in GOOD.items() if not key.startswith("source")}
    PipelineConnector("c", sink | TOPICS | kafka)
    PipelineConnector("c", GOOD | TOPICS | {"source.schema": "a INT, topic STRING"})
    inserts = {
        "transforms.f.type": "InsertField",
        "transforms.f.static.field": "topic",
        "transforms.f.static.value": "a",
    }
    added = GOOD | {"source.schema": "a INT"} | TOPICS | inserts
    del added["transforms.f.condition"]
    PipelineConnector("c", added)
    # The columns of a file's header: only validate reads the file.
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    inferred = PipelineConnector("c", GOOD | TOPICS | {"source.path": str(tmp_path)})
    assert "predicates.p.type" in inferred.check_access(1)
    (tmp_path / "x.csv").write_text("a,topic\n1,2\n")
    assert "predicates.p.type" not in inferred.check_access(1)


def test_division_depends_on_settings_and_number_of_tasks_only() -> None:
    """A task whose configuration changed would be restarted."""
    connector = PipelineConnector("c", GOOD)
    assert (
        connector.task_configs(2)
        == connector.task_configs(2)
        == [
            {**GOOD, "task": "0", "tasks": "2"},
            {**GOOD, "task": "1", "tasks": "2"},
        ]
    )


def test_importing_the_connector_does_not_import_spark() -> None:
    code = (
        "import sys, connectgroup.connectors.pipeline as p;"
        f"p.PipelineConnector('c', {GOOD!r}).task_configs(1);"
        "print(sorted({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment()
    )
    assert finished.stdout.strip() == "[]"


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("source", ["files", "parquet"])
@pytest.mark.parametrize("sink", ["csv", "jsonl", "parquet", "delta", "sqlite"])
@pytest.mark.parametrize("how", ["below", "deep", "equal", "above", "linked source", "linked sink", "dots"])
def test_sink_below_the_directory_of_the_source_is_rejected(tmp_path: Path, source: str, sink: str, how: str) -> None:
    inner = tmp_path / "in"
    inner.mkdir()
    (tmp_path / "link").symlink_to(inner)
    read, written = {
        "below": (inner, inner / "out"),
        "deep": (inner, inner / "a" / "b" / "out"),
        "equal": (inner, inner),
        "above": (inner, tmp_path),
        "linked source": (tmp_path / "link", inner / "out"),
        "linked sink": (inner, tmp_path / "link" / "out"),
        "dots": (inner, tmp_path / "other" / ".." / "in" / "out"),
    }[how]
    config = {"source": source, "source.path": str(read), "sink": sink, "sink.path": str(written)}
    config |= {"source.format": "text"} if source == "files" else {"source.schema": "value STRING"}
    config |= {"sink.table": "t"} if sink == "sqlite" else {}
    if sink == "sqlite" and (how in ("equal", "above") or source == "parquet"):
        PipelineConnector("c", config)  # a file, which the source does not list
        return
    with pytest.raises(ConfigError, match=rf"sink\.path: got '{written}'; allowed: a path that is neither below"):
        PipelineConnector("c", config)
    for other in (tmp_path / "out", inner / "_out", inner.parent / "in2"):
        PipelineConnector("c", config | {"sink.path": str(other)})
    if source == "files":
        PipelineConnector("c", config | {"sink.path": str(tmp_path / "out"), "source.file.pattern": "*.csv"})


def test_directory_that_is_mounted_in_two_places_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bind mount: another real path with the device and the inode of the directory."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **more: stat(first if path == second else path, **more))
    config = {"source": "files", "source.path": str(first), "source.format": "text", "sink": "csv"}
    with pytest.raises(ConfigError, match=r"sink\.path: got .*; allowed: a path that is neither below"):
        PipelineConnector("c", config | {"sink.path": str(second / "out")})


def test_sink_that_writes_the_table_of_the_source_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    table = {"source": "sqlite", "source.path": str(tmp_path / "a.db"), "source.table": "t", "sink": "sqlite"}
    table |= {"source.incrementing.column": "id", "sink.path": str(tmp_path / "link.db")}
    with pytest.raises(ConfigError, match=r"sink\.table: got 't'; allowed: another table than source\.table"):
        PipelineConnector("c", table | {"sink.table": "t"})
    PipelineConnector("c", table | {"sink.table": "u"})
    with pytest.raises(ConfigError, match=r"sink\.table: got 'T'; allowed: another table than source\.table"):
        PipelineConnector("c", table | {"sink.table": "T"})
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.name": "t"}
    with pytest.raises(ConfigError, match=r"deadletterqueue\.name: got 't'; allowed: another table than source\.table"):
        PipelineConnector("c", table | letters | {"sink.table": "u"})
    server = {"source": "postgres", "source.table": "t", "source.incrementing.column": "id", "sink": "postgres"}
    with pytest.raises(ConfigError, match=r"sink\.table: got 't'; allowed: another table than source\.table"):
        PipelineConnector("c", server | {"sink.table": "t"})
    PipelineConnector("c", server | {"sink.table": "t", "sink.schema": "other"})


@pytest.mark.parametrize(("sink", "name"), [("sqlite", "t"), ("sqlite", "T"), ("postgres", "t")])
def test_dead_letters_in_the_table_of_the_rows_are_rejected(sink: str, name: str) -> None:
    config = {"source": "datagen", "sink": sink, "sink.table": "t", "errors.tolerance": "all"}
    config |= {"sink.path": "/out/x.db"} if sink == "sqlite" else {}
    with pytest.raises(ConfigError, match=rf"queue\.name: got '{name}'; allowed: another table than sink\.table: dead"):
        PipelineConnector("c", config | {"errors.deadletterqueue.name": name})
    PipelineConnector("c", config | {"errors.deadletterqueue.name": "u"})


@pytest.mark.parametrize(
    ("read", "written", "is_same"),
    [
        ("postgresql://reader@db/shop", "postgresql://writer:x@DB:5432/shop?sslmode=require", True),
        ("postgresql://reader@db/shop", "host=db dbname=shop user=writer", True),
        ("postgresql://shop@db", "postgresql://writer@db/shop", True),
        ("postgresql://reader@db/shop", "postgresql://writer@db/other", False),
        ("postgresql://reader@db/shop", "postgresql://writer@db:5433/shop", False),
        ("postgresql://reader@db/shop", "postgresql://writer@db2/shop", False),
        ("${env:URL}", "${env:URL}", True),
        ("${env:URL}", "${env:OTHER}", False),
    ],
)
@pytest.mark.parametrize("schemas", [("", ""), ("", "public"), ("a", "a"), ("a", "b")])
def test_table_of_one_server_is_the_same_for_every_user(
    read: str, written: str, is_same: bool, schemas: tuple[str, str]
) -> None:
    config = {"source": "postgres", "source.table": "t", "source.incrementing.column": "id", "sink": "postgres"}
    config |= {"source.url": read, "sink.url": written, "sink.table": "t"}
    config |= {f"{part}.schema": name for part, name in zip(("source", "sink"), schemas, strict=True) if name}
    if is_same and schemas != ("a", "b"):
        with pytest.raises(ConfigError, match=r"sink\.table: got 't'; allowed: another table than source\.table"):
            PipelineConnector("c", config)
    else:
        PipelineConnector("c", config)


KAFKA = {"source": "kafka", "source.bootstrap.servers": "a:1,b:1", "sink": "kafka", "sink.bootstrap.servers": "B:1"}
LETTERS = {"errors.tolerance": "all", "errors.deadletterqueue.name": "t"}
ROUTER = {
    "transforms": "r",
    "transforms.r.type": "RegexRouter",
    "transforms.r.regex": "t",
    "transforms.r.replacement": "u",
}
MASK = {"transforms": "m", "transforms.m.type": "MaskField", "transforms.m.fields": "value"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"source.topics": "s,t", "source.schema": "a INT", "sink.topic": "t"},
            r"sink\.topic: got 't'; allowed: anoth",
        ),
        (
            {"source.topics": "s,t", "source.metadata": "key", "sink.topic": "t"},
            r"sink\.topic: got 't'; allowed: anoth",
        ),
        ({"source.topics": "t", "sink.topic": "u"}, r"sink\.metadata: missing; allowed: names without topic, so that"),
        ({"source.topics": "t", "sink.topic": "u", **MASK}, r"sink\.metadata: missing; allowed: names without topic"),
        (
            {"source.topics": "t", "sink.metadata": "key,topic"},
            r"sink\.metadata: got 'key,topic'; allowed: names witho",
        ),
        ({"source.topics.regex": "s|t", "sink.metadata": "key", "sink.topic": "t"}, r"sink\.topic: got 't'; allowed"),
        (
            {"source.topics.regex": "[a-z-]+", "sink.metadata": "", "sink.topic": "T"},
            r"source\.topics\.regex: got .*wit",
        ),
        (
            {"source.topics": "t", "sink.metadata": "", "sink.topic": "u", "sink.offsets.topic": "t"},
            r"source\.topics: ",
        ),
        (
            {"source.topics": "t", "sink.metadata": "", "sink.topic": "u", **LETTERS},
            r"deadletterqueue\.name: got 't'; a",
        ),
    ],
)
def test_sink_that_writes_to_a_topic_of_the_source_is_rejected(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PipelineConnector("c", KAFKA | settings)
    PipelineConnector("c", KAFKA | {"sink.topic": "v"} | settings | {"sink.bootstrap.servers": "c:1"})


@pytest.mark.parametrize(
    "settings",
    [
        {"source.topics": "t", "source.schema": "a INT", "sink.topic": "u"},
        {"source.topics": "t", "source.metadata": "key,timestamp", "sink.topic": "u"},
        {"source.topics": "t", "sink.metadata": "key", "sink.topic": "u"},
        {"source.topics": "t", **ROUTER},
        {"source.topics.regex": "s|t", "sink.metadata": "key", "sink.topic": "u"},
        {
            "source.topics": "t",
            "sink.metadata": "key",
            "sink.topic": "t",
            "transforms": "f",
            "transforms.f.type": "Filter",
            "transforms.f.condition": "value IS NULL",
        },
    ],
)
def test_sink_that_writes_to_another_topic_is_accepted(settings: dict[str, str]) -> None:
    PipelineConnector("c", KAFKA | settings)


def test_sink_below_the_directory_of_a_source_of_spark_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTGROUP_SPARK_FORMATS", "parquet")
    config = {"source": "spark", "source.format": "parquet", "sink": "parquet"}
    for path in (str(tmp_path / "in"), f"file://{tmp_path}/in"):
        config["source.options"] = json.dumps({"PATH": path})
        with pytest.raises(ConfigError, match=r"sink\.path: got .*; allowed: a path that is neither below the path in"):
            PipelineConnector("c", config | {"sink.path": str(tmp_path / "in" / "out")})
        PipelineConnector("c", config | {"sink.path": str(tmp_path / "out")})


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("SMALLINT", ["0", "-32768", " 7 ", "1e2"], ["40000", "x", "1.5", "nan", "1e9", "1_000", "\u0661"]),
        ("BIGINT", ["9223372036854775807"], ["9223372036854775808", "0x10", "inf"]),
        ("DECIMAL(38,2)", [f"{'1' * 36}.5", "-.5", "1.500", "1e3"], ["1" * 37, "0.125", "1_0.5", "1e999999999"]),
        ("FLOAT", ["0.5"], ["1e39", "NaN", "1e999999", "-1e999999"]),
        ("DOUBLE", ["-1.5e300"], ["1e400", "one"]),
        ("STRING", ["x", "5"], []),
        ("DATE", [], ["2024-01-01"]),
        ("BOOLEAN", [], ["true"]),
    ],
)
def test_replacement_that_does_not_fit_its_column_is_rejected(kind: str, good: list[str], bad: list[str]) -> None:
    config = {"source": "files", "source.path": "/in", "source.format": "csv", "source.schema": f"a {kind}, b STRING"}
    config |= {"sink": "sqlite", "sink.path": "/out.db", "sink.table": "t", "transforms": "f,m"}
    config |= {"transforms.f.type": "Filter", "transforms.f.condition": "b = 'x'"}
    config |= {"transforms.m.type": "MaskField", "transforms.m.fields": "b,a"}
    for text in good:
        PipelineConnector("c", config | {"transforms.m.replacement": text})
    for text in bad:
        with pytest.raises(
            ConfigError, match=r"transforms\.m\.replacement: got .*; allowed: (a number|none), for the field a"
        ):
            PipelineConnector("c", config | {"transforms.m.replacement": text})

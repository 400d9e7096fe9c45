"""``validate`` tries to reach the source and the sink, and changes nothing there."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connectgroup.config.connector_offsets import Permissions
from connectgroup.config.connector_validation import Validation, validate
from connectgroup.config.secrets import Secrets

from .postgres_server import WITH_PASSWORD

DATAGEN = {"source": "datagen"}
CONSOLE = {"sink": "console"}


def validated(*parts: Mapping[str, str], secrets: Secrets | None = None, paths: tuple[Path, ...] | None = None) -> Any:
    config = {"name": "c", "connector.class": "pipeline", "tasks.max": " 1 "}
    for part in parts:
        config.update(part)
    return validate(config, access=Permissions(secrets=secrets or Secrets(), paths=paths))


def errors(*parts: Mapping[str, str], **options: Any) -> dict[str, str]:
    found: Validation = validated(*parts, **options)
    assert found.access == "", "the source and the sink were tried"
    return {setting: message for setting, (message,) in found.errors_of.items()}


def files(path: Path) -> dict[str, str]:
    return {"source": "files", "source.path": str(path), "source.format": "text"}


def test_missing_places_are_errors_of_both_ends_and_nothing_is_created(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    database = {"sink": "sqlite", "sink.path": str(nowhere / "out.db"), "sink.table": "t"}
    found = errors(files(nowhere / "in"), database)
    assert found.keys() == {"source.path", "sink.path"}
    assert found["source.path"].startswith(str(nowhere))
    assert found["sink.path"] == f"{nowhere}: does not exist; allowed: a directory"
    for sink in ("parquet", "csv", "jsonl", "delta"):
        assert errors(DATAGEN, {"sink": sink, "sink.path": str(nowhere / "out")}).keys() == {"sink.path"}
        # A task creates the directory itself, but not its parent.
        assert errors(DATAGEN, {"sink": sink, "sink.path": str(tmp_path / "out")}) == {}
    assert errors(DATAGEN, CONSOLE, {"sink.offsets": str(nowhere / "o.db")}).keys() == {"sink.offsets"}
    assert errors(DATAGEN, CONSOLE) == {}
    (tmp_path / "in").mkdir()
    assert errors(files(tmp_path / "in"), {**database, "sink.path": str(tmp_path / "out.db")}) == {}
    (tmp_path / "in").rmdir()
    table = {"source": "sqlite", "source.path": str(tmp_path / "in.db"), "source.table": "t"}
    table["source.incrementing.column"] = "id"
    assert "in.db" in errors(table, CONSOLE)["source.path"]
    assert "in.db" in errors(table, CONSOLE, {"source.schema": "id BIGINT"})["source.path"], (
        "a schema opens nothing itself"
    )
    assert list(tmp_path.iterdir()) == []


def test_header_that_contradicts_the_schema_is_an_error_as_when_it_is_read(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    source = {**files(place), "source.format": "csv", "source.schema": "id INT, nme STRING"}
    assert errors(source, CONSOLE) == {}, "there is no file yet"
    (place / "a.csv").write_text("id,name\n1,x\n")
    found = errors(source, CONSOLE)
    told = f"{place}/a.csv, line 1 (byte 0): header 'id,name'; allowed: exactly the columns 'id,nme', in this order"
    assert found == {"source": told}
    ignoring = {**source, "source.schema.drift": "ignore"}
    assert errors(ignoring, CONSOLE) == {}, "a column that a file lacks is null"
    assert errors({**source, "source.schema": "id INT, name STRING"}, CONSOLE) == {}
    letters = {"sink": "sqlite", "sink.path": f"{tmp_path}/o.db", "sink.table": "t", "errors.tolerance": "all"}
    assert errors(source, letters, {"errors.deadletterqueue.name": "bad"}) == {}, "its rows are dead letters"
    (place / "b.csv").write_text("id,nme\n1,x\n")
    assert errors(source, CONSOLE) == {}, "the other file may have been read before the schema was changed"


def test_a_file_that_is_no_database_or_has_another_table(tmp_path: Path) -> None:
    place = tmp_path / "some.db"
    place.write_text("no database" * 100)
    sink = {"sink": "sqlite", "sink.path": str(place), "sink.table": "t"}
    assert "not an SQLite database" in errors(DATAGEN, sink)["sink"]
    place.unlink()
    with sqlite3.connect(place) as connection:
        connection.execute("CREATE TABLE t (id INTEGER, name TEXT)")
    before = place.read_bytes()
    assert errors(DATAGEN, sink) == {}
    source = {"source": "sqlite", "source.path": str(place), "source.incrementing.column": "name"}
    assert "table other does not exist" in errors(source, CONSOLE, {"source.table": "other"})["source"]
    assert errors(source, CONSOLE, {"source.table": "t"}).keys() == {"source.incrementing.column"}
    assert place.read_bytes() == before, "no table of offsets"


def test_postgresql_with_another_password_port_table_or_schema(database: str) -> None:
    import psycopg

    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE t (id BIGINT)")
        connection.execute(f"DROP ROLE IF EXISTS {WITH_PASSWORD}")
        connection.execute(f"CREATE ROLE {WITH_PASSWORD} LOGIN PASSWORD 'right-password'")
    source = {"source": "postgres", "source.url": database, "source.incrementing.column": "id"}
    sink = {"sink": "postgres", "sink.url": database, "sink.table": "written"}
    assert errors({**source, "source.table": "t"}, sink) == {}
    assert "table other does not exist" in errors({**source, "source.table": "other"}, sink)["source"]
    assert "has no schema nosuch" in errors(DATAGEN, sink, {"sink.schema": "nosuch"})["sink"]
    assert "PostgreSQL" in errors(DATAGEN, {**sink, "sink.url": "postgresql://127.0.0.1:1/d"})["sink"]
    login = {"sink.url": database.replace("//test@", f"//{WITH_PASSWORD}@"), "sink.password": "wrong-password"}
    refused = errors(DATAGEN, sink, login)["sink"]
    assert "password authentication failed" in refused
    assert "wrong-password" not in refused
    assert errors(DATAGEN, sink, {**login, "sink.password": "right-password"}) == {}
    with psycopg.connect(database) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    assert tables == [("t",)], "nothing was created"


def test_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    source = {"source": "kafka", "source.bootstrap.servers": "127.0.0.1:1", "source.topics": "t"}
    assert "127.0.0.1:1" in errors(source, CONSOLE)["source"]


def test_a_topic_that_does_not_exist(kafka: str) -> None:
    source = {"source": "kafka", "source.bootstrap.servers": kafka, "source.topics": "no-such-topic"}
    source |= {"source.metadata": "key"}
    sink = {"sink": "kafka", "sink.bootstrap.servers": kafka, "sink.topic": "t"}
    assert errors(source, sink).keys() == {"source"}
    assert "topic no-such-topic does not exist" in errors(source, sink)["source"]


def test_without_permission_nothing_is_tried_and_the_reason_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "postgresql://u:canary-of-a-test@127.0.0.1:1/d")
    sink = {"sink": "postgres", "sink.url": "${env:CANARY}", "sink.table": "t"}
    found = validated(DATAGEN, sink)
    assert found.errors == []
    assert "CANARY" in found.access
    assert "canary-of-a-test" not in found.access
    found = validated(DATAGEN, sink, secrets=Secrets(env=("CANARY",)))
    assert found.access == ""
    assert "127.0.0.1" in found.errors[0]
    assert "canary-of-a-test" not in found.errors[0]
    found = validated(files(tmp_path / "nowhere"), CONSOLE, paths=())
    assert (found.errors, "allowed_paths" in found.access) == ([], True)

"""A plug-in path with Kafka Connect's plug-ins: Kafka's FileStream, one of the tests' own, and Debezium's."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Final

import pytest

from connectgroup.spark.java import CONNECT_JARS
from tests.consumer.broker import KAFKA, Unavailable, fetched_jars_of, fetched_with_dependencies

DEBEZIUM: Final = "io.debezium.connector.postgresql.PostgresConnector"
DEBEZIUM_MARIADB: Final = "io.debezium.connector.mariadb.MariaDbConnector"
DEBEZIUM_JDBC: Final = "io.debezium.connector.jdbc.JdbcSinkConnector"
TEST_PLUGIN: Final = "tests.TestPlugin"
TEST_SINK: Final = "tests.TestSinkPlugin"
FILE_STREAM: Final = "org.apache.kafka.connect.file.FileStreamSourceConnector"


@pytest.fixture(scope="session")
def java_plugin_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plug-in path with Kafka's own FileStream."""
    path = tmp_path_factory.mktemp("plugins")
    try:
        jars = fetched_jars_of("connect-file", [f"org.apache.kafka:connect-file:{KAFKA}"])
    except Unavailable as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"continuous integration has no plug-in of Kafka Connect: {missing}")
        pytest.skip(str(missing))
    shutil.copytree(jars, path / "file-stream")
    _compile_test_plugin(path / "test-plugin")
    return path


def _compile_test_plugin(folder: Path) -> None:
    """Write a plug-in of ``TestPlugin.java`` and ``TestSinkPlugin.java``: a jar that declares their connectors."""
    classes = folder / "classes"
    classes.mkdir(parents=True)
    programs = [str(Path(__file__).with_name(f"{name}.java")) for name in ("TestPlugin", "TestSinkPlugin")]
    jars = os.pathsep.join(map(str, CONNECT_JARS.fetched()))
    compiler = ["javac", "-nowarn", "-cp", jars, "-d", str(classes), *programs]
    subprocess.run(compiler, check=True, capture_output=True, timeout=120)
    with zipfile.ZipFile(folder / "test-plugin-7.jar", "w") as archive:
        for path in classes.rglob("*.class"):
            archive.write(path, path.relative_to(classes))
        archive.writestr("META-INF/services/org.apache.kafka.connect.source.SourceConnector", TEST_PLUGIN)
        archive.writestr("META-INF/services/org.apache.kafka.connect.sink.SinkConnector", TEST_SINK)
    shutil.rmtree(classes)


@pytest.fixture(scope="session")
def debezium(java_plugin_path: Path) -> Path:
    """The plug-in path with Debezium's connector for PostgreSQL."""
    return _with_plugin(java_plugin_path, "debezium-postgres-3.6.1", "debezium-connector-postgres:3.6.1.Final")


@pytest.fixture(scope="session")
def debezium_mariadb(java_plugin_path: Path) -> Path:
    """The plug-in path with Debezium's connector for MariaDB."""
    return _with_plugin(java_plugin_path, "debezium-mariadb-3.2.0", "debezium-connector-mariadb:3.2.0.Final")


@pytest.fixture(scope="session")
def debezium_jdbc(java_plugin_path: Path) -> Path:
    """The plug-in path with Debezium's sink connector for JDBC."""
    return _with_plugin(java_plugin_path, "debezium-jdbc-3.2.0", "debezium-connector-jdbc:3.2.0.Final")


def _with_plugin(path: Path, name: str, artifact: str) -> Path:
    """Add a plug-in of Debezium's to a plug-in path."""
    try:
        jars = fetched_with_dependencies(name, [f"io.debezium:{artifact}"])
    except Unavailable as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"continuous integration has no Debezium: {missing}")
        pytest.skip(str(missing))
    shutil.copytree(jars, path / name, dirs_exist_ok=True)
    return path


def debezium_settings(url: str, table: str) -> dict[str, str]:
    """The settings of Debezium's connector for a table of a database; its slot and publication are named after both."""
    database = url.rpartition("/")[2]
    return {
        "tasks.max": "1",
        "database.hostname": "127.0.0.1",
        "database.port": url.rpartition(":")[2].partition("/")[0],
        "database.user": "test",
        "database.password": "never-shown",
        "database.dbname": database,
        "topic.prefix": "shop",
        "plugin.name": "pgoutput",
        "slot.name": f"s_{database}_{table}",
        "publication.name": f"p_{database}_{table}",
        "publication.autocreate.mode": "filtered",
        "table.include.list": f"public.{table}",
    }

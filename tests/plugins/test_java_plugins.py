"""Kafka Connect's Java plug-ins on the plug-in path: how they are found without Java, and how they are installed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from connectgroup.config.worker import WorkerConfig
from connectgroup.dataplane.java_plugins import java_classes, set_plugin_path
from connectgroup.errors import ConfigError
from connectgroup.plugins import load_connector_class
from tests.cli.live import Done, command
from tests.consumer.broker import Unavailable, fetched_jars_of, fetched_transforms

SOURCE: dict[str, str | bytes] = {
    "META-INF/services/org.apache.kafka.connect.source.SourceConnector": "org.acme.Source\n"
}
FILE = "org.apache.kafka:connect-file:4.3.1"
OLD = {
    "acme/Base.java": """
        package acme;
        import java.util.*;
        import org.apache.kafka.connect.connector.Task;
        public abstract class Base extends org.apache.kafka.connect.source.SourceConnector {
            public void start(Map<String, String> p) {}
            public Class<? extends Task> taskClass() { return null; }
            public List<Map<String, String>> taskConfigs(int n) { return null; }
            public void stop() {}
            public org.apache.kafka.common.config.ConfigDef config() { return null; }
            public String version() { return "1"; }
        }""",
    "acme/Tables.java": "package acme; public class Tables extends Base { static final long LONG = 1L << 40; }",
    "acme/Hidden.java": "package acme; class Hidden extends Base {}",
    "acme/Other.java": 'package acme; public class Other { String text = "acme/Base"; }',
}
"""Classes of a plug-in from the time before ServiceLoader: one that extends another one of the plug-in."""


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plug-in path of this process."""
    monkeypatch.setenv("CONNECTGROUP_PLUGIN_PATH", "")
    set_plugin_path((tmp_path / "plugins",))
    return tmp_path / "plugins"


def run_here(*arguments: str) -> Done:
    return asyncio.run(command(*arguments))


def write_jar(jar: Path, files: dict[str, str | bytes]) -> None:
    jar.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(jar, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


@pytest.fixture(scope="module")
def old_classes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The class files of ``OLD``."""
    try:
        jars = fetched_transforms()
    except Unavailable as missing:
        pytest.skip(str(missing))
    root = tmp_path_factory.mktemp("old")
    for name, text in OLD.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    sources = [str(root / name) for name in OLD]
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(root / "out"), *sources], check=True)
    return {str(each.relative_to(root / "out")): each.read_bytes() for each in (root / "out").rglob("*.class")}


def test_classes_of_a_plugin_that_declares_none_are_found_in_its_class_files(
    path: Path, old_classes: dict[str, bytes]
) -> None:
    """Concrete, public ones; also where the class above is in another jar, beside a jar that declares a transform."""
    base = {"acme/Base.class": old_classes["acme/Base.class"]}
    write_jar(path / "old" / "acme-base.jar", {**base, "META-INF/versions/9/acme/Tables.class": b"\0"})
    rest = {name: content for name, content in old_classes.items() if name not in base}
    write_jar(path / "old" / "acme-7.5.jar", {**rest, "acme/Broken.class": b"\xca\xfe\xba\xbeacme/Base"})
    service = "META-INF/services/org.apache.kafka.connect.transforms.Transformation"
    write_jar(path / "old" / "bundled-2.jar", {service: "# ours\norg.acme.Upper\n"})
    (path / "old" / "broken.jar").write_bytes(b"PK no jar")
    found = [(each.name, each.kind, each.version, each.plugin.name) for each in java_classes()]
    assert found == [("acme.Tables", "source", "7.5", "old"), ("org.acme.Upper", "transformation", "2", "old")]


def test_worker_has_a_label_of_each_connector_class_in_java_if_they_fit(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = "META-INF/services/org.apache.kafka.connect.source.SourceConnector"
    write_jar(
        path / "one" / "one-1.jar",
        {
            service: "acme.OneConnector",
            "META-INF/services/org.apache.kafka.connect.transforms.Transformation": "acme.T",
        },
    )
    config = WorkerConfig(group="g", scratch=path, labels=("zone=a",))
    assert config.traits().labels == (("plugin.acme.OneConnector", "true"), ("zone", "a"))
    write_jar(path / "many" / "many-1.jar", {service: "\n".join(f"acme.Many{number}" for number in range(99))})
    assert config.traits().labels == (("zone", "a"),)
    assert "no labels of its 100 connector classes in Java" in caplog.text


@pytest.mark.parametrize(
    ("name", "command_"),
    [
        ("io.debezium.connector.postgresql.PostgresConnector", "io.debezium:debezium-connector-postgres:VERSION"),
        ("acme.Nothing", "GROUP:ARTIFACT:VERSION"),
    ],
)
def test_error_about_a_missing_plugin_says_how_to_install_it(path: Path, name: str, command_: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_connector_class(name)
    assert f"got '{name}'" in str(raised.value)
    assert f"connectgroup plugins install {command_} on each worker" in str(raised.value)


def test_plugin_that_declares_a_connector_is_not_searched(path: Path, old_classes: dict[str, bytes]) -> None:
    service: dict[str, str | bytes] = {
        "META-INF/services/org.apache.kafka.connect.source.SourceConnector": "acme.Declared\n"
    }
    write_jar(path / "new.jar", {**service, **old_classes})
    assert [each.name for each in java_classes()] == ["acme.Declared"]


def test_damaged_jar_has_no_classes_and_those_of_others_are_listed(path: Path) -> None:
    """One that is still copied, or whose bytes are others."""
    service = "META-INF/services/org.apache.kafka.connect.source.SourceConnector"
    write_jar(path / "whole.jar", {service: "acme.Whole"})
    write_jar(path / "packed.jar", {service: "acme.Packed"})
    entry = zipfile.ZipFile(path / "packed.jar").getinfo(service)
    whole = (path / "packed.jar").read_bytes()
    data, listed = 30 + len(service), whole.index(b"PK\x01\x02")
    for name, at, damage in (
        ("cut.jar", len(whole) // 2, b""),
        ("content.jar", data, b"\xff" * entry.compress_size),
        ("secret.jar", listed + 8, b"\x01\x00"),  # encrypted
        ("method.jar", listed + 10, b"\x63\x00"),  # an unknown way of compression
        ("deflated.jar", listed + 10, b"\x08\x00"),  # what is stored is no stream of zlib
    ):
        (path / name).write_bytes(whole[:at] + damage + (whole[at + len(damage) :] if damage else b""))
    assert [each.name for each in java_classes()] == ["acme.Packed", "acme.Whole"]


def test_listing_has_class_type_version_and_location(path: Path) -> None:
    service: dict[str, str | bytes] = {"META-INF/services/org.apache.kafka.connect.sink.SinkConnector": "acme.Sink\n"}
    write_jar(path / "first" / "acme-1.0.jar", service)
    write_jar(path / "second" / "acme-2.0.jar", service)
    listed = run_here("plugins", "list", "--plugin-path", str(path))
    assert [line.split() for line in listed.out.splitlines() if line.startswith("Java")] == [
        ["Java", "sink", "acme.Sink", "1.0", str(path / "first")],
        ["Java", "sink", "acme.Sink", "2.0", str(path / "second")],
    ]
    assert f"acme.Sink is in {path / 'first'}, which runs, and in {path / 'second'}\n" in listed.err
    java = json.loads((run_here("plugins", "list", "--json")).out)["java"]
    assert java[0] == {"class": "acme.Sink", "type": "sink", "version": "1.0", "location": str(path / "first")}


# ---------------------------------------------------------------------------------------------- install


def test_plugin_is_installed_whole_with_licence_and_without_what_workers_have(path: Path) -> None:
    try:
        fetched_jars_of("connect-file", [FILE])
    except Unavailable as missing:
        pytest.skip(str(missing))
    done = run_here("plugins", "install", FILE, "--plugin-path", str(path))
    assert (done.code, done.err) == (0, "")
    head, jar, *rest = done.out.splitlines()
    assert head.split() == ["FETCHED", "KB", "LICENCE"]
    assert jar.startswith(FILE)
    assert jar.endswith("The Apache License, Version 2.0")
    assert rest[0] == f"{FILE}: installed in {path / 'connect-file'}"
    assert [each.name.rpartition(".")[2] for each in java_classes()] == [
        "FileStreamSinkConnector",
        "FileStreamSourceConnector",
    ]
    assert [each.name for each in path.rglob("*.jar")] == ["connect-file-4.3.1.jar"]


REPOSITORY = "org/acme/{0}/1.0/{0}-1.0"


class Maven:
    """A program ``mvn`` that says what Maven says, and a local repository."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.repository = root / "repository"
        self._program = root / "bin" / "mvn"
        self._program.parent.mkdir()
        monkeypatch.setenv("PATH", f"{self._program.parent}{os.pathsep}{os.environ['PATH']}")

    def artifact(self, name: str, files: dict[str, str | bytes], licences: str = "") -> Path:
        jar = self.repository / (REPOSITORY.format(name) + ".jar")
        write_jar(jar, files)
        jar.with_suffix(".pom").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><parent><groupId>org.acme</groupId>'
            f"<artifactId>parent</artifactId><version>1.0</version></parent><artifactId>{name}</artifactId>"
            f"{licences}</project>"
        )
        return jar

    def resolves(self, jars: Sequence[Path]) -> None:
        paths = os.pathsep.join(map(str, jars))
        self._script(f'for a; do case "$a" in -Dmdep.outputFile=*) printf %s "{paths}" >"${{a#*=}}";; esac; done')

    def fails(self, text: str) -> None:
        self._script(f"echo '[ERROR] {text} -> [Help 1]'; echo '[ERROR] '; exit 1")

    def _script(self, body: str) -> None:
        self._program.write_text(f"#!/bin/sh\n{body}\n")
        self._program.chmod(0o755)


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maven:
    return Maven(tmp_path, monkeypatch)


def install(coordinates: str, *more: str) -> Done:
    return run_here("plugins", "install", coordinates, *more)


def test_licence_of_a_parent_counts_and_another_version_is_replaced_only_when_asked(maven: Maven, path: Path) -> None:
    parent = maven.repository / "org/acme/parent/1.0/parent-1.0.pom"
    parent.parent.mkdir(parents=True)
    parent.write_text("<project><licenses><license><name> Old \n Licence </name></license></licenses></project>")
    first = maven.artifact("tables", SOURCE)
    own = "<licenses><license><name>MIT</name></license><license><name>BSD</name></license></licenses>"
    maven.resolves([first, maven.artifact("driver", {"a": ""}, own)])
    done = install("org.acme:tables:1.0")
    assert (done.code, done.err) == (0, "")
    assert [line.split()[0] + " " + line.split(maxsplit=2)[2] for line in done.out.splitlines()[1:3]] == [
        "org.acme:tables:1.0 Old Licence",
        "org.acme:driver:1.0 MIT, BSD",
    ]
    again = json.loads(install("org.acme:tables:1.0", "--json").out)
    assert (again["installed"], again["location"]) == (False, str(path / "tables"))
    assert again["classes"] == [{"class": "org.acme.Source", "type": "source", "version": "1.0"}]
    # A jar that was damaged or removed is not what was installed.
    (path / "tables" / "driver-1.0.jar").unlink()
    assert "allowed: --replace, to replace" in install("org.acme:tables:1.0").err
    other = install("org.acme:tables:2.0")
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert f"allowed: --replace, to replace {path / 'tables'} with org.acme:tables:1.0" in other.err
    maven.resolves([maven.artifact("tables", {**SOURCE, "new": ""})])
    assert (install("org.acme:tables:2.0", "--replace")).code == 0
    assert [each.name for each in sorted((path / "tables").iterdir())] == [
        "connectgroup-plugin.json",
        "tables-1.0.jar",
    ]
    assert [each.name for each in path.iterdir()] == ["tables"]


def test_half_an_installation_is_no_plugin_and_the_next_one_removes_it(maven: Maven, path: Path) -> None:
    write_jar(path / ".installing-killed" / "new" / "tables-1.0.jar", SOURCE)
    assert java_classes() == []
    maven.resolves([maven.artifact("tables", SOURCE)])
    assert (install("org.acme:tables:1.0")).code == 0
    assert [each.name for each in path.iterdir()] == ["tables"]
    assert [each.name for each in java_classes()] == ["org.acme.Source"]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (
            "Failed to execute goal on project plugin: Could not resolve dependencies for project connectgroup:plugin:"
            "pom:1: Could not find artifact org.acme:tables:jar:1.0 in central (https://repo)",
            "no repository of Maven has it; allowed: a published artifact and version",
        ),
        (
            "Could not resolve dependencies: Could not find artifact org.acme:driver:jar:3 in central (https://repo)",
            "no repository of Maven has org.acme:driver:3, which it needs; allowed: a published artifact and version",
        ),
        (
            "Could not resolve dependencies: Failed to collect dependencies: Could not transfer artifact "
            "org.acme:tables:pom:1.0 from/to central (https://repo): Unknown host repo",
            "Maven cannot reach its repositories: Could not resolve dependencies: Failed",
        ),
        (
            "Could not resolve dependencies: Could not transfer artifact org.acme:tables:jar:1.0 from/to central "
            "(https://repo): Checksum validation failed, expected 1 but is 2",
            "a checksum does not fit: ",
        ),
        ("Something else", "Maven has failed: Something else"),
    ],
    ids=["unknown", "unknown-dependency", "no-network", "checksum", "other"],
)
def test_failures_of_maven_are_one_line_and_leave_nothing(maven: Maven, path: Path, said: str, error: str) -> None:
    maven.fails(said)
    done = install("org.acme:tables:1.0")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(f"connectgroup: org.acme:tables:1.0: {error}")
    assert not path.exists()


def test_what_is_no_plugin_or_damaged_is_not_installed(maven: Maven, path: Path) -> None:
    jar = maven.artifact("driver", {"a": ""})
    maven.resolves([jar])
    none = install("org.acme:driver:1.0")
    assert none.err == (
        "connectgroup: org.acme:driver:1.0: has no connector, transformation, predicate or converter; allowed: a "
        "plug-in of Kafka Connect\n"
    )
    jar.with_name(f"{jar.name}.sha1").write_text(f"{'0' * 40}  driver\n")
    assert "differs from its checksum driver-1.0.jar.sha1; allowed: " in (install("org.acme:driver:1.0")).err
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("text", ["a:b", "a:b:c:d", "a:b:LATEST", "a:b:[1,2)", "a:b:../c", "a:b:1 -x", "-a:b:1"])
def test_coordinates_are_checked_before_anything_runs(text: str, path: Path) -> None:
    done = run_here("plugins", "install", "--", text)
    assert (done.code, done.err.startswith("connectgroup: plugin: got ")) == (2, True)


def test_without_maven_or_a_plugin_path_the_error_says_what_to_do(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    no_maven = install(FILE)
    assert no_maven.err.startswith("connectgroup: mvn: got 'no such program'; allowed: Maven installed, or the plug-in")
    monkeypatch.setenv("CONNECTGROUP_PLUGIN_PATH", "")
    nowhere = install(FILE)
    assert nowhere.err.startswith(
        "connectgroup: --plugin-path: missing; allowed: a directory for plug-ins, here or in "
    )

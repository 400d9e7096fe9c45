"""Settings of the clients of Kafka, PostgreSQL and Spark: those that a connector may have, and those it may not."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from connectgroup.config.paths import check_paths
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.errors import SinkError
from connectgroup.dataplane.postgres_store import FILES, OPTIONS, connect
from connectgroup.dataplane.settings import ALLOWED_SETTINGS
from connectgroup.errors import ConfigError
from connectgroup.spark.kafka_client import SETTINGS

KAFKA = {"source": "kafka", "source.bootstrap.servers": "x:1", "source.topics": "t", "sink": "console"}
POSTGRES = {"source": "datagen", "sink": "postgres", "sink.table": "t"}
CANARY = "canary-of-a-file"

REFUSED_OF_KAFKA = {
    # Programs and code.
    "plugin.library.paths": "/tmp/x.so",
    "ssl.engine.location": "/tmp/x.so",
    "ssl.engine.factory.class": "a.B",
    "ssl.providers": "legacy",
    "security.providers": "a.B",
    "sasl.kerberos.kinit.cmd": "touch /tmp/x",
    "sasl.kerberos.principal": "a; touch /tmp/x",
    "sasl.kerberos.keytab": "/etc/krb5.keytab",
    "sasl.kerberos.service.name": "kafka",
    "sasl.jaas.config": "com.sun.security.auth.module.JndiLoginModule required;",
    "sasl.login.callback.handler.class": "a.B",
    "sasl.client.callback.handler.class": "a.B",
    "sasl.login.class": "a.B",
    "interceptor.classes": "a.B",
    "metric.reporters": "a.B",
    "key.deserializer": "a.B",
    "partition.assignment.strategy": "a.B",
    "config.providers": "file",
    "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    # Requests of their own, with files and with the identity of the machine.
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.config": "x",
    "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/",
    "sasl.oauthbearer.jwks.endpoint.url": "file:///etc/passwd",
    "sasl.oauthbearer.assertion.file": "/etc/passwd",
    "sasl.oauthbearer.assertion.private.key.file": "/etc/passwd",
    "sasl.oauthbearer.metadata.authentication.type": "azure_imds",
    "https.ca.location": "/etc/passwd",
    "enable.sasl.oauthbearer.unsecure.jwt": "true",
    # Files, and what fills disks.
    "offset.store.path": "/tmp/x",
    "debug": "all",
    # Checks and fences.
    "transactional.id": "x",
    "enable.idempotence": "false",
    "group.id": "x",
    "bootstrap.servers": "y:1",
    "allow.everything": "true",
    " ssl.ca.location": "/etc/passwd",
    "SSL.CA.LOCATION": "/etc/passwd",
}
REFUSED_VALUES_OF_KAFKA = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.mechanisms": "GSSAPI",
    "enable.ssl.certificate.verification": "false",
    "ssl.endpoint.identification.algorithm": "none",
    "ssl.ca.location": "certificates/ca.pem",
}
ALLOWED_OF_KAFKA = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "u",
    "sasl.password": "p",
    "ssl.ca.pem": "-----BEGIN CERTIFICATE-----",
    "compression.type": "zstd",
    "linger.ms": "5",
    "fetch.max.bytes": "1000000",
    "client.id": "me",
    "socket.keepalive.enable": "true",
}


@pytest.mark.parametrize("part", ["source", "sink"])
@pytest.mark.parametrize("setting", [*REFUSED_OF_KAFKA.items(), *REFUSED_VALUES_OF_KAFKA.items()])
def test_setting_of_a_kafka_client_that_is_not_on_the_list_is_refused(part: str, setting: tuple[str, str]) -> None:
    name, value = setting
    sink = {"sink": "kafka", "sink.bootstrap.servers": "x:1", "sink.topic": "t"} if part == "sink" else {}
    config = {**KAFKA, **sink, f"{part}.client": json.dumps({name: value})}
    with pytest.raises(ConfigError, match=rf"^{part}\.client: .*; allowed: ") as failed:
        PipelineConnector("c", config)
    assert name.strip() in str(failed.value)


def test_usual_settings_of_kafka_clients_are_accepted() -> None:
    PipelineConnector("c", {**KAFKA, "source.client": json.dumps(ALLOWED_OF_KAFKA)})
    sink = {"sink": "kafka", "sink.bootstrap.servers": "x:1", "sink.topic": "copy", "sink.metadata": ""}
    PipelineConnector("c", {**KAFKA, **sink, "sink.client": json.dumps(ALLOWED_OF_KAFKA)})


@pytest.mark.parametrize("name", sorted(name for name in SETTINGS if name.endswith(".location")))
def test_file_of_a_kafka_client_is_one_of_the_allowed_paths(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to("/etc/passwd")
    for path in "/etc/passwd", tmp_path / "in" / "link", tmp_path / "in" / ".." / "x":
        config = {**KAFKA, "source.client": json.dumps({name: str(path)})}
        what = re.escape(f"source.client: got '{name}={path}'; allowed: a path at or below one of allowed_paths")
        with pytest.raises(ConfigError, match=what):
            check_paths(PipelineConnector, config, [tmp_path / "in"])
    config = {**KAFKA, "source.client": json.dumps({name: f"{tmp_path}/in/ca.pem"})}
    assert check_paths(PipelineConnector, config, [tmp_path / "in"]) == config


def test_operator_allows_further_settings_and_their_files_are_checked_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.assertion.file": "/etc/passwd"}
    config = {**KAFKA, "source.client": json.dumps(settings)}
    allowed = "kafka.sasl.mechanism=OAUTHBEARER, kafka.sasl.oauthbearer.assertion.file,postgres.service"
    monkeypatch.setenv(ALLOWED_SETTINGS, allowed)
    PipelineConnector("c", config)
    with pytest.raises(ConfigError, match=r"assertion\.file=/etc/passwd'; allowed: .*allowed_paths"):
        check_paths(PipelineConnector, config, [tmp_path])
    with pytest.raises(ConfigError, match=f"adds \\(kafka.SETTING\\)|{ALLOWED_SETTINGS}"):
        PipelineConnector("c", {**KAFKA, "source.client": '{"sasl.oauthbearer.method": "oidc"}'})
    PipelineConnector("c", {**POSTGRES, "sink.url": "postgresql://h/d?service=s"})


REFUSED_OF_POSTGRES = (
    "passfile=/etc/passwd", "service=x", "servicefile=/etc/passwd", "options=-c%20x=1", "hostaddr=127.0.0.1",
    "gssdelegation=1", "krbsrvname=x", "gssencmode=require", "replication=true", "oauth_issuer=https://x",
    "oauth_client_id=x", "sslkeylogfile=/tmp/x", "requirepeer=x", "scram_client_key=x", "gsslib=gssapi",
)  # fmt: skip


@pytest.mark.parametrize("option", REFUSED_OF_POSTGRES)
@pytest.mark.parametrize("part", ["source", "sink"])
def test_option_of_a_connection_string_that_is_not_on_the_list_is_refused(part: str, option: str) -> None:
    name, _, value = option.partition("=")
    value = value.replace("%20", " ")
    source = {"source": "postgres", "source.table": "t", "source.incrementing.column": "id"}
    base = {**source, "sink": "console"} if part == "source" else POSTGRES
    for url in f"postgresql://u:secret@h/d?{option}", f"host=h dbname=d password=secret {name}='{value}'":
        with pytest.raises(ConfigError, match=rf"^{part}\.url: (got '{name}'|.*libpq)") as failed:
            PipelineConnector("c", {**base, f"{part}.url": url})
        assert "secret" not in str(failed.value)
        with pytest.raises((ConfigError, SinkError), match=f"{name}|libpq|host"):
            connect(url)


@pytest.mark.parametrize("url", [
    "postgresql://u@h:5432/d", "postgresql://u:p@a:1,b:2/d?target_session_attrs=read-write&sslmode=verify-full",
    "host=h user=u dbname=d connect_timeout=3 application_name=x", "postgresql://u:${env:PASSWORD}@h/d", "",
    "postgresql://h/d?sslrootcert=system",
])  # fmt: skip
def test_usual_connection_strings_are_accepted(url: str, tmp_path: Path) -> None:
    PipelineConnector("c", {**POSTGRES, "sink.url": url})
    check_paths(PipelineConnector, {**POSTGRES, "sink.url": url}, [])


@pytest.mark.parametrize("option", [*(f"{name}=/etc/passwd" for name in sorted(FILES)), "host=/var/run/postgresql"])
def test_file_or_socket_of_a_connection_string_is_one_of_the_allowed_paths(tmp_path: Path, option: str) -> None:
    name, _, path = option.partition("=")
    config = {**POSTGRES, "sink.url": f"host=h {option}" if name != "host" else option}
    for allowed in ([], [tmp_path]):
        with pytest.raises(ConfigError, match=rf"sink\.url: got '{name}={path}'; allowed: .*allowed_paths"):
            check_paths(PipelineConnector, config, allowed)
    check_paths(PipelineConnector, config, [Path(path).parent])
    for url in "postgresql://%2Fvar%2Frun/d", "host=a,/var/run", "host='@abstract'":
        with pytest.raises(ConfigError, match=r"sink\.url: got 'host( 2)?="):
            check_paths(PipelineConnector, {**POSTGRES, "sink.url": url}, [tmp_path])


@pytest.fixture
def greedy() -> Iterator[tuple[int, list[bytes]]]:
    """A server that asks each client for its password in plain text: its port, and what it got."""
    got: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client:
                client.settimeout(5)
                data = client.recv(4096)
                if data[4:8] == struct.pack(">i", 80877103) or data[4:8] == struct.pack(">i", 80877104):
                    client.sendall(b"N")
                    data = client.recv(4096)
                client.sendall(b"R" + struct.pack(">ii", 8, 3))
                got.append(client.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1], got
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_password_of_the_workers_environment_is_sent_to_no_server_that_a_connector_names(
    greedy: tuple[int, list[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    port, got = greedy
    monkeypatch.setenv("PGPASSWORD", CANARY)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    with pytest.raises(SinkError):
        connect(f"postgresql://u@127.0.0.1:{port}/d")
    assert not any(CANARY.encode() in each for each in got)
    with pytest.raises(SinkError):
        connect(f"postgresql://u@127.0.0.1:{port}/d", password="of-the-connector")
    assert any(b"of-the-connector" in each for each in got)
    # A connector that names no server uses that of the environment, and its password.
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", str(port))
    with pytest.raises(SinkError):
        connect("postgresql://u@/d")
    assert any(CANARY.encode() in each for each in got)


def test_connector_without_a_server_does_not_log_in_as_the_workers_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """libpq's default is a local socket, where PostgreSQL may ask the system for the user."""
    for name in "PGHOST", "PGHOSTADDR", "PGSERVICE":
        monkeypatch.delenv(name, raising=False)
    for url in "", "dbname=d", "postgresql:///d":
        with pytest.raises(ConfigError, match="url: got 'no host'; allowed: a host, or one of PGHOST"):
            connect(url)
    # Of several hosts, an empty one is that socket.
    for url in "postgresql://h:1,:2/d", "host=h,", "host=,h", "host=,", "host=h,,i":
        with pytest.raises(ConfigError, match=r"sink\.url: got 'host=.*'; allowed: a host on each side of a comma"):
            PipelineConnector("c", {**POSTGRES, "sink.url": url})
        with pytest.raises(ConfigError, match="a host on each side of a comma"):
            connect(url)


SPARK = {"source": "spark", "sink": "console"}
REFUSED_OF_SPARK = (
    ("rate", {"path": "/etc"}),
    ("rate", {"rowsPerSecond": "1", "checkpointLocation": "/tmp"}),
    ("text", {"path": "http://127.0.0.1:1/"}),
    ("text", {"path": "hdfs://h/x"}),
    ("text", {"path": "relative"}),
    ("text", {"path": "/srv/{a,../../etc/passwd}"}),
    ("text", {"path": "/srv/data", "cleanSource": "archive", "sourceArchiveDir": "/tmp"}),
    ("xml", {"path": "/srv/data", "rowValidationXSDPath": "/etc/passwd"}),
    ("json", {"path": "/srv/data", "ROWVALIDATIONXSDPATH": "/etc/passwd"}),
    ("avro", {"path": "/srv/link/../../etc"}),
    ("avro", {"path": "file:/srv/{a,../../etc}"}),
    ("delta", {"PATH": "File:///srv/../etc"}),
    ("delta", {"path": "srv/data"}),
    ("kafka", {"kafka.sasl.jaas.config": "x"}),
    ("kafka", {"kafka.key.serializer.class": "x"}),
    ("kafka", {"kafka.ssl.truststore.location": "relative"}),
)


@pytest.mark.parametrize(("form", "options"), REFUSED_OF_SPARK)
def test_option_of_a_format_of_spark_that_is_not_on_the_list_is_refused(form: str, options: Mapping[str, str]) -> None:
    config = {**SPARK, "source.format": form, "source.options": json.dumps(options)}
    with pytest.raises(ConfigError, match=r"^source\.options.*; allowed: "):
        PipelineConnector("c", config)


@pytest.mark.parametrize("path", ["/etc/passwd", "file:/etc/passwd", "file:///etc/passwd", "FILE:/etc/passwd"])
@pytest.mark.parametrize("key", ["path", "PATH"])
@pytest.mark.parametrize("form", ["text", "avro"])
def test_path_of_a_format_of_spark_is_one_of_the_allowed_paths(tmp_path: Path, form: str, key: str, path: str) -> None:
    config = {**SPARK, "source.format": form, "source.options": json.dumps({key: path})}
    PipelineConnector("c", config)
    with pytest.raises(ConfigError, match=r"source\.options: got '(path|PATH)=/etc/passwd'; allowed: .*allowed_paths"):
        check_paths(PipelineConnector, config, [tmp_path])
    check_paths(PipelineConnector, config, [Path("/etc")])


@pytest.mark.parametrize("path", ["s3a://bucket/a/../b", "hdfs:/srv/*", "catalog.table"])
def test_path_that_is_none_of_this_machine_is_for_a_format_of_another_package(path: str) -> None:
    config = {**SPARK, "source.format": "delta", "source.options": json.dumps({"path": path})}
    PipelineConnector("c", config)
    check_paths(PipelineConnector, config, [])


def test_documentation_lists_what_is_allowed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    missing = [name for name in sorted(SETTINGS | OPTIONS) if f"`{name}`" not in text]
    assert missing == []

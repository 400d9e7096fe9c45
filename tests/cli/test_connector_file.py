"""The settings of a connector that the framework reads, whatever its class."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from connectgroup.config.connector_file import read_connector
from connectgroup.errors import ConfigError
from tests.integration.processes import Program, run_command

FROM_0, FROM_1 = (f"a whole number from {least} to 86400000" for least in (0, 1))
WRONG = [
    ({"task": "1"}, "task: unknown; allowed: tasks.max (did you mean that?)"),
    ({"tasks": "2"}, "tasks: unknown; allowed: tasks.max (did you mean that?)"),
    ({"task.max": "2"}, "task.max: unknown; allowed: tasks.max (did you mean that?)"),
    ({"taskss.max": "2"}, "taskss.max: unknown; allowed: tasks.max (did you mean that?)"),
    ({"tasks_max": "2"}, "tasks_max: unknown; allowed: tasks.max (did you mean that?)"),
    ({"max.tasks": "2"}, "max.tasks: unknown; allowed: tasks.max (did you mean that?)"),
    ({"name": "other"}, "name: got 'other'; allowed: naps, the name of the connector"),
    ({"tasks.max": "0"}, "tasks.max: got '0'; allowed: a whole number from 1 to 100000"),
    (
        {"errors.retry.timeout": "-2"},
        f"errors.retry.timeout: got '-2'; allowed: -1, or {FROM_0}",
    ),
    (
        {"errors.retry.timeout": "1 s"},
        f"errors.retry.timeout: got '1 s'; allowed: -1, or {FROM_0}",
    ),
    (
        {"errors.retry.delay.max.ms": "0"},
        f"errors.retry.delay.max.ms: got '0'; allowed: {FROM_1}",
    ),
    ({"assignment.lables": "a=b"}, "assignment.lables: unknown; allowed: assignment.labels (did you mean that?)"),
]


@pytest.mark.parametrize(("setting", "message"), WRONG)
def test_a_file_with_a_reserved_or_misspelt_setting_is_refused(
    tmp_path: Path, setting: dict[str, str], message: str
) -> None:
    file = tmp_path / "naps.json"
    file.write_text(json.dumps({"name": "naps", "config": {"connector.class": "idle", **setting}}))
    with pytest.raises(ConfigError) as caught:
        read_connector(file)
    assert str(caught.value) == f"{file}: config.{message}"


def test_the_name_may_be_repeated_in_the_config(tmp_path: Path) -> None:
    file = tmp_path / "naps.json"
    file.write_text(json.dumps({"name": "naps", "config": {"connector.class": "idle", "name": "naps"}}))
    assert read_connector(file).config["name"] == "naps"


def test_placement_settings_are_accepted_without_workers(tmp_path: Path) -> None:
    """``assignment.*`` is read by the framework, not by connector classes."""
    file = tmp_path / "rows.json"
    config = {
        "connector.class": "pipeline",
        "assignment.labels": "gpu=true",
        "source": "files",
        "source.path": "/data/in",
        "source.format": "csv",
        "sink": "sqlite",
        "sink.path": "/data/out.db",
        "sink.table": "t",
    }
    file.write_text(json.dumps({"name": "rows", "config": config}))
    with Program("coordinator", "--port", 0, "--data", tmp_path / "data") as coordinator:
        address = coordinator.line_with("coordinator at ").removeprefix("coordinator at ")
        done = run_command("connectors", "put", file, "--coordinator", address)
    assert (done.code, done.err) == (0, "note: group workers has no worker: rows runs when one joins\n")


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("name=c\nconnector.class=idle\n", {}),
        ("\ufeffname = c\r\n  connector.class : idle  \r\n", {"connector.class": "idle  "}),
        ("# comment\n! comment\n\nname c\nconnector.class\tidle\nempty=\nalone\n", {"empty": "", "alone": ""}),
        ("name=c\nconnector.class=idle\nlist=a,\\\n     b,\\\n\tc\n", {"list": "a,b,c"}),
        ("name=c\nconnector.class=idle\nurl=jdbc:x://h:1/d?a=b#c\n", {"url": "jdbc:x://h:1/d?a=b#c"}),
        ("name=c\nconnector.class=idle\na\\ b\\=c=d\\te\\\\\n", {"a b=c": "d\te\\"}),
        ("name=c\nconnector.class=idle\nu=\\u00e4\\ud83d\\ude42\n", {"u": "ä🙂"}),
        ("name=c\nconnector.class=idle\nlast=a\\", {"last": "a"}),
        ("name=c\nconnector.class=idle\nd=\\ ,\\ \n", {"d": " , "}),
        ("name=c\rconnector.class=idle\rx=a\u2028b=c\x85d\ve\n", {"x": "a\u2028b=c\x85d\ve"}),
    ],
)
def test_properties_are_read_as_java_reads_them(tmp_path: Path, text: str, config: dict[str, str]) -> None:
    file = tmp_path / "c.properties"
    file.write_bytes(text.encode())
    connector = read_connector(file)
    assert connector.name == "c"
    assert connector.config == {"name": "c", "connector.class": "idle", **config}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name=c\nname=d\n", "c.properties:2: got 'name'; allowed: key=value on each line, each key once"),
        ("=c\n", "c.properties:1: got 'no key'"),
        ("name=c\na=\\u12\n", "c.properties:2: got 'an escape'; allowed: \\uXXXX"),
        ("connector.class=idle\n", "name"),
        ("name=c\n", "config"),
    ],
)
def test_invalid_properties_name_the_file_and_the_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.properties"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_connector(file)


def test_a_missing_properties_file_is_reported_by_its_reason(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^file: got '.*/c.properties'; allowed: a readable file \(No such file or directory\)$"
    ):
        read_connector(tmp_path / "c.properties")


def test_json_may_be_the_configuration_alone_with_numbers_and_booleans(tmp_path: Path) -> None:
    """The form of ``PUT /connectors/{name}/config``, and of ``config/*.json`` of other tools."""
    file = tmp_path / "c.json"
    file.write_text('{"name": "c", "connector.class": "idle", "tasks.max": 2, "flag": true}')
    assert read_connector(file).config == {"name": "c", "connector.class": "idle", "tasks.max": "2", "flag": "true"}
    file.write_text('{"name": "c", "config": {"connector.class": "idle"}, "initial_state": "PAUSED"}')
    assert read_connector(file).initial_state == "PAUSED"
    file.write_text('{"name": "c", "config": {"connector.class": "idle"}, "initial_state": "RUN"}')
    with pytest.raises(ConfigError, match="initial_state"):
        read_connector(file)


def test_json_may_have_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('\ufeff{"name": "c", "config": {"connector.class": "idle"}}')
    assert read_connector(file).config == {"connector.class": "idle"}


@pytest.mark.parametrize(("value", "shown"), [("null", "null"), ('["a"]', "an array")])
def test_value_that_is_no_text_is_an_error(tmp_path: Path, value: str, shown: str) -> None:
    """Null as well, as in a body for REST and in Kafka Connect."""
    file = tmp_path / "c.json"
    file.write_text(f'{{"name": "c", "config": {{"connector.class": "idle", "log": {value}}}}}')
    with pytest.raises(ConfigError, match=rf"config\.log: got '{shown}'; allowed: text$"):
        read_connector(file)

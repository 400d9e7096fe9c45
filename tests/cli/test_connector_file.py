"""The settings of a connector that the framework reads, whatever its class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectgroup.config.connector_file import read_connector
from connectgroup.errors import ConfigError
from tests.integration.processes import Program, run_command

WRONG = [
    ({"task": "1"}, "task: unknown; allowed: tasks.max (did you mean that?)"),
    ({"tasks": "2"}, "tasks: unknown; allowed: tasks.max (did you mean that?)"),
    ({"task.max": "2"}, "task.max: unknown; allowed: tasks.max (did you mean that?)"),
    ({"max.tasks": "2"}, "max.tasks: unknown; allowed: tasks.max (did you mean that?)"),
    ({"name": "other"}, "name: got 'other'; allowed: naps, the name of the connector"),
    ({"tasks.max": "0"}, "tasks.max: got '0'; allowed: a whole number from 1 to 100000"),
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
    """``assignment.*`` belongs to the framework: no connector class has to know it."""
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
    assert (done.code, done.err) == (0, "")

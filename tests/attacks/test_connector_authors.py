"""A user who may write connectors, over REST, and nothing else, reaches no file of the worker's user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.coordinator.builders import serving
from tests.rest.conftest import rest_server

KAFKA = {"source": "kafka", "source.bootstrap.servers": "127.0.0.1:1", "source.topics": "t", "sink": "console"}
POSTGRES = {"source": "datagen", "sink": "postgres", "sink.table": "t"}
SPARK = {"source": "spark", "sink": "console", "source.format": "text"}
CONFIGS = (
    ({**KAFKA, "source.client": json.dumps({"sasl.oauthbearer.assertion.file": "{file}"})}, "source.client"),
    ({**KAFKA, "source.client": json.dumps({"ssl.key.location": "{file}"})}, "source.client"),
    ({**KAFKA, "source.client": json.dumps({"plugin.library.paths": "{file}"})}, "source.client"),
    ({**POSTGRES, "sink.url": "postgresql://127.0.0.1:1/d?passfile={file}"}, "sink.url"),
    ({**POSTGRES, "sink.url": "postgresql://127.0.0.1:1/d?sslkey={file}"}, "sink.url"),
    ({**POSTGRES, "sink.url": "host=/var/run/postgresql"}, "sink.url"),
    ({**SPARK, "source.options": json.dumps({"path": "{file}"})}, "source.options"),
    (
        {**SPARK, "source.format": "xml", "source.options": json.dumps({"rowValidationXSDPath": "{file}"})},
        "source.options",
    ),
    ({**SPARK, "source.options": json.dumps({"path": "{in}/link/../../secret"})}, "source.options"),
    ({**SPARK, "source.options": "[" * 5_000}, "source.options"),
    ({"source": "files", "source.path": "{file}", "source.format": "text", "sink": "console"}, "source.path"),
)


@pytest.mark.parametrize(("config", "setting"), CONFIGS)
async def test_configuration_that_reaches_a_file_of_the_worker_is_rejected(
    tmp_path: Path, config: dict[str, str], setting: str
) -> None:
    (tmp_path / "in" / "a" / "b").mkdir(parents=True)
    (tmp_path / "in" / "link").symlink_to(tmp_path / "in" / "a" / "b")
    (tmp_path / "secret").write_text("canary")
    places = {"{file}": str(tmp_path / "secret"), "{in}": str(tmp_path / "in")}
    texts = dict(config)
    for name, place in places.items():
        texts = {key: value.replace(name, place) for key, value in texts.items()}
    async with serving() as coordinator, rest_server(coordinator, allowed_paths=(tmp_path / "in",)) as api:
        body: Any = {"name": "c", "config": {"connector.class": "pipeline", **texts}}
        message = await api("POST", "/connectors", 400, body)
        assert f"1 error(s):\n{setting}: got " in message
        assert "allowed: " in message
        assert "canary" not in message
        assert await api("GET", "/connectors", 200) == []
        validated = await api(
            "PUT", "/connector-plugins/pipeline/config/validate", 200, {**body["config"], "name": "c"}
        )
        assert [each["value"]["name"] for each in validated["configs"] if each["value"]["errors"]] == [setting]

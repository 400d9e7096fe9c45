"""Random connector files: a connector, or a one-line error that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectgroup.config.connector_file import read_connector
from connectgroup.errors import ConfigError
from tests.fuzzing import INPUTS, attack, folder_in_memory, one_line

VALID = [
    json.dumps({"name": "c", "config": {"connector.class": "idle", "tasks.max": "2"}}),
    '{"name": "gr\\u00f6\\u00dfe \\ud83d\\ude42", "config": {"connector.class": "pipeline", "path": "/data/*.csv"}}',
    '\n{ "config" : {"connector.class":"x", "a":"1e400", "b":"NaN", "":"" } , "name":"\\u0000" }\n',
]
ODD = [
    *(
        value.join(('{"name": "c", "config": ', "}"))
        for value in ("[]", "null", "1e400", "NaN", "-Infinity", "0" * 5000)
    ),
    "[" * 100_000,
    '{"a":' * 100_000,
    '"\\ud800"',
    '{"name\\ud83d": {"connector.class": "pipeline"}}',
    "﻿{}",
    "{'name': 1}",
]


def test_any_file_makes_a_connector_or_a_config_error() -> None:
    with folder_in_memory() as folder:
        read_them_all(folder / "connector.json")


def read_them_all(path: Path) -> None:
    def read(data: bytes) -> object:
        path.write_bytes(data)
        try:
            return read_connector(path)
        except ConfigError as error:
            one_line(error, str(path))
            raise

    attack(read, None, [text.encode() for text in VALID], INPUTS, ConfigError)
    for text in ODD:
        with pytest.raises(ConfigError):
            read(text.encode())

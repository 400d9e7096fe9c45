"""References to secrets: their forms and their allow-lists (KIP-297, KIP-421, KIP-993)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectgroup.config.connector_check import check_connector
from connectgroup.config.secrets import Secrets, check_references, restored
from connectgroup.errors import ConfigError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with secrets, and another one that is not allowed."""
    monkeypatch.setenv("CANARY_ENV", "env-canary")
    monkeypatch.setenv("OTHER", "other-canary")
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    for directory in (allowed, outside):
        directory.mkdir()
        (directory / "password").write_text("dir-canary\n")
        (directory / "db.properties").write_text("user=u\npassword=file=canary\n")
    (allowed / "inside").symlink_to(allowed / "password")
    (allowed / "leak").symlink_to(outside / "password")
    (allowed / "bytes").write_bytes(b"\xff\xfe\xfd canary")
    (allowed / "big").write_bytes(b"x" * (1 << 20) + b"xx")
    os.mkfifo(allowed / "fifo")
    return allowed


def secrets(place: Path) -> Secrets:
    return Secrets(env=("CANARY_*",), paths=(place,))


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ("${env:CANARY_ENV}", "env-canary"),
        ("${file:PLACE/db.properties:password}", "file=canary"),
        ("${dir:PLACE:password}", "dir-canary"),
        ("${dir:PLACE:inside}", "dir-canary"),
        ("jdbc://u:${env:CANARY_ENV}@h?a=${dir:PLACE:password}", "jdbc://u:env-canary@h?a=dir-canary"),
        ("${dir:PLACE/../allowed:password}", "dir-canary"),
        ("no reference: $1 ${name} {a:b} $", "no reference: $1 ${name} {a:b} $"),
    ],
)
def test_references_become_secrets(place: Path, value: str, resolved: str) -> None:
    found: dict[str, str] = {}
    config = {"a": value.replace("PLACE", str(place))}
    assert secrets(place).resolve(config, found) == {"a": resolved}
    assert set(found.values()) == {s for s in ("env-canary", "file=canary", "dir-canary") if s in resolved}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${env:OTHER}", "allowed: a variable that secret_env allows"),
        ("${env:CANARY_UNSET}", "allowed: a variable that is set for the worker"),
        ("${env:canary_env}", "allowed: a variable that secret_env allows"),
        ("${dir:PLACE/../outside:password}", "allowed: a file at or below a path that secret_paths allows"),
        ("${dir:PLACE:leak}", "allowed: a file at or below a path that secret_paths allows"),
        ("${dir:/etc:passwd}", "allowed: a file at or below a path that secret_paths allows"),
        ("${file:/proc/self/environ:x}", "allowed: a file at or below a path that secret_paths allows"),
        ("${dir:PLACE:nosuch}", "allowed: a readable file (No such file or directory)"),
        ("${dir:PLACE:..}", "allowed: the name of a file in the directory"),
        ("${dir:PLACE:fifo}", "allowed: a readable file (not a regular file)"),
        ("${dir:PLACE:big}", "allowed: a regular file of at most 1048576 bytes"),
        ("${dir:PLACE:bytes}", "allowed: a file in UTF-8"),
        ("${file:PLACE/db.properties:nosuch}", "allowed: a key of the file"),
    ],
)
def test_a_reference_that_is_not_allowed_names_itself_and_no_secret(place: Path, value: str, message: str) -> None:
    found: dict[str, str] = {}
    with pytest.raises(ConfigError) as caught:
        secrets(place).resolve({"sink.password": value.replace("PLACE", str(place))}, found)
    text = str(caught.value)
    assert message in text
    assert "sink.password: got '${" in text
    assert "canary" not in text.replace("canary_env", "")
    assert "CANARY_*" not in text, "the list names other secrets"
    assert found == {}


@pytest.mark.parametrize("value", ["${dir:PLACE/below:password}", "${file:PLACE/below/db.properties:password}"])
def test_directory_that_becomes_a_link_after_the_check_is_not_followed(
    place: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    below, real = place / "below", os.path.realpath
    below.mkdir()

    def swapped(path: str | Path) -> str:
        found = real(path)
        if Path(path) == place:  # the list is compared after the path of the secret
            below.rmdir()
            below.symlink_to(place.parent / "outside")
        return found

    monkeypatch.setattr(os.path, "realpath", swapped)
    with pytest.raises(ConfigError, match=r"allowed: a readable file \(a component is a symbolic link\)$"):
        secrets(place).resolve({"a": value.replace("PLACE", str(place))}, {})


def test_nothing_is_allowed_by_default(place: Path) -> None:
    for value in ("${env:CANARY_ENV}", f"${{dir:{place}:password}}", f"${{file:{place}/db.properties:user}}"):
        with pytest.raises(ConfigError, match="none"):
            Secrets().resolve({"a": value}, {})


@pytest.mark.parametrize(
    "value",
    [
        "${env:}",
        "${env:A B}",
        "${env:A",
        "x${env:${env:A}}",
        "${vault:path:key}",
        "${file:relative:key}",
        "${file:/path}",
        "${dir:/path:a/b}",
        "${dir:/path:a:b}",
    ],
)
def test_a_malformed_reference_is_rejected_before_it_is_written(value: str) -> None:
    with pytest.raises(ConfigError, match="allowed: "):
        check_references({"a": value})
    with pytest.raises(ConfigError, match="allowed: "):
        check_connector("c", {"connector.class": "idle", "log": value})


def test_a_secret_is_not_resolved_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_ENV", "${env:CANARY_2}")
    assert secrets(place).resolve({"a": "${env:CANARY_ENV}"}, {}) == {"a": "${env:CANARY_2}"}


def test_configurations_of_tasks_get_their_references_back(place: Path) -> None:
    found: dict[str, str] = {}
    config = {"a": "${env:CANARY_ENV}", "b": "u:${env:CANARY_ENV}@h", "c": "plain"}
    resolved = secrets(place).resolve(config, found)
    assert restored([{**resolved, "task": "1"}], config, found) == [{**config, "task": "1"}]
    with pytest.raises(ConfigError, match="allowed: secrets in the connector's own settings only") as caught:
        restored([{"new": "env-canary"}], config, found)
    assert "env-canary" not in str(caught.value)

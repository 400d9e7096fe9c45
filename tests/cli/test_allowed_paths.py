"""``--allowed-path``: what a user sees of the files that connectors may use."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path

import pytest

from ..integration.processes import Program, call_command, wait
from .connector_files import connector_file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, without the default of the tests; notes have time on a busy machine."""
    monkeypatch.delenv("CONNECTGROUP_ALLOWED_PATHS")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setattr("connectgroup.cli.connectors.NOTE_TIMEOUT_S", 60.0)
    return home


def idle(path: Path, log: Path) -> Path:
    return connector_file(path, **{"connector.class": "idle", "tasks.max": "1", "log": str(log)})


def test_up_allows_the_current_directory_and_says_so(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("up", "--data", tmp_path / "data", "--port", "0", "--workers", "1")
    outside = tmp_path / "outside.log"
    refused = call_command(*arguments, "--connector", idle(tmp_path / "a.json", outside))
    assert refused.code == 2
    assert f"config.log: got '{outside}'; allowed: a path at or below one of --allowed-path ({home})" in refused.err
    with Program(*arguments, "--connector", idle(tmp_path / "b.json", home / "log"), cwd=home) as up:
        address = up.line_with("coordinator at ").split()[2].rstrip(",")
        up.line_with(f"connectors may use files in {home} (--allowed-path)")
        up.line_with("| 1 worker | 2/2 units |")
        # The workers report their lists.
        group = ("--coordinator", address)
        command = ("connectors", "validate", idle(tmp_path / "a.json", outside), *group)
        wait("the worker has reported its list", lambda: call_command(*command).code == 1, up.output)
        rejected = f"log: got '{outside}'; allowed: a path at or below one of --allowed-path ({home})"
        assert rejected in call_command(*command).out
        assert call_command(*command, "--offline").code == 0
        assert call_command(*command, "--allowed-path", tmp_path).code == 0
        with pytest.MonkeyPatch.context() as elsewhere:
            elsewhere.setattr(socket, "gethostname", lambda: "elsewhere")
            done = call_command(*command)
            assert done.code == 0, "links may lead elsewhere on the machine of the worker"
            assert rejected in done.err
            (note,) = json.loads(call_command(*command, "--json").out)["notes"]
            assert note.startswith(f"no worker lists a path: {rejected}")
        # Only the worker can tell for sure: it rejects the connector, and the command says so.
        config = {"connector.class": "idle", "log": str(outside)}
        stopped = tmp_path / "stopped.json"
        stopped.write_text(json.dumps({"name": "late", "initial_state": "STOPPED", "config": config}))
        changes = (
            (0, ("put", stopped)),
            (1, ("put", tmp_path / "a.json")),
            (0, ("patch", "naps", "tasks.max=2")),
            (0, ("put", tmp_path / "b.json")),
            (1, ("patch", "naps", f"log={outside}")),
            (0, ("patch", "naps", f"log={home / 'log'}")),
            (1, ("edit", "naps")),
        )
        editor = tmp_path / "editor"
        editor.write_text(f"#!/bin/sh\nsed -i 's|{home / 'log'}|{outside}|' \"$1\"\n")
        editor.chmod(0o700)
        monkeypatch.setenv("EDITOR", str(editor))
        monkeypatch.delenv("VISUAL", raising=False)
        for notes, words in changes:
            done = call_command("connectors", *words, *group)
            assert done.code == 0, done
            assert done.err.count("note: ") == notes, (words, done.err)
            assert done.err.count(rejected) == notes
        up.signal(signal.SIGTERM)
        assert up.ended() == 0, up.output()
    assert not outside.exists()


def test_validation_does_not_wait_long_for_a_coordinator_that_is_silent(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectgroup.cli.connectors.NOTE_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = ("connectors", "validate", idle(tmp_path / "a.json", tmp_path / "log"))
        began = time.monotonic()
        done = call_command(*command, "--coordinator", f"127.0.0.1:{silent.getsockname()[1]}")
        assert done.code == 0
        assert time.monotonic() - began < 8, "other requests wait for 10 s"


@pytest.mark.parametrize("command", [("worker", "--group", "g"), ("up",), ("rest",)], ids=lambda words: words[0])
def test_relative_path_in_the_list_is_rejected(home: Path, command: tuple[str, ...]) -> None:
    done = call_command(*command, "--allowed-path", "data")
    assert done.code == 2
    assert "--allowed-path: got 'data'; allowed: an absolute path" in done.err

"""``connectgroup connectors``: the command against a coordinator in this process, over TCP."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from connectgroup import Connections, MemberSettings, RunnerSettings, TaskRunner, Worker, load_assignor
from connectgroup.cli.command import main
from connectgroup.cli.waiting import wait_for
from connectgroup.client.admin import Admin
from connectgroup.config import connector_validation
from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.connector import Config, Connector
from connectgroup.connectors.idle import IdleConnector
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.dataplane.java_plugins import PLUGIN_PATH
from connectgroup.plugins import load_connector_class
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.describe import (
    DescribedConnector,
    DescribedGroup,
    DescribedUnit,
    DescribeResponse,
)
from connectgroup.transport.tcp_client import TcpClient

from ..integration.processes import Finished
from .connector_files import connector_file, with_plugin

Command = Callable[..., Coroutine[Any, Any, Finished]]


@pytest.fixture
async def server() -> AsyncIterator[CoordinatorServer]:
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0}))
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def worker(server: CoordinatorServer, tmp_path: Path) -> AsyncIterator[None]:
    """A worker named ``w`` of the group ``workers``."""
    host, _, port = server.address.rpartition(":")
    heartbeats, control = (TcpClient(host, int(port), "w") for _ in range(2))
    member = MemberSettings(group_id="workers", member_id="w")
    worker = Worker(member, Connections(heartbeats=heartbeats, control=control), assignors=[load_assignor("balanced")])
    worker.set_runner(
        TaskRunner(
            "w",
            RunnerSettings(scratch=tmp_path / "scratch", group_id="workers", allowed_paths=[tmp_path]),
            load_class=load_connector_class,
            publish=worker.publish_tasks,
            report=worker.report,
        )
    )
    running = asyncio.create_task(worker.run())
    yield
    worker.stop()
    await running
    await heartbeats.close()
    await control.close()


@pytest.fixture
def command(server: CoordinatorServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run one command; ``CONNECTGROUP_COORDINATOR`` has its address."""
    monkeypatch.setenv("CONNECTGROUP_COORDINATOR", server.address)

    async def run(*arguments: str | Path) -> Finished:
        capsys.readouterr()
        code = await asyncio.to_thread(main, [str(word) for word in arguments])
        out, err = capsys.readouterr()
        return Finished(code=code, out=out, err=err)

    return run


async def test_offset_of_a_slice_that_the_source_cannot_have_is_rejected(command: Command, tmp_path: Path) -> None:
    file, changes = tmp_path / "g.json", tmp_path / "offsets.json"
    sink = {"sink": "sqlite", "sink.path": str(tmp_path / "out.db"), "sink.table": "t"}
    config = {"connector.class": "pipeline", "source": "datagen", **sink}
    file.write_text(json.dumps({"name": "g", "config": config}))
    assert (await command("connectors", "put", file)).code == 0
    await command("connectors", "stop", "g")
    for name, code in (("nosuch", 2), ("slice-1", 0)):
        changes.write_text(json.dumps({"offsets": [{"partition": {"slice": name}, "offset": {"position": 7}}]}))
        done = await command("connectors", "offsets", "g", "--alter", changes)
        assert done.code == code, done
        assert code == 0 or "partition.slice: got 'nosuch'; allowed: slice-0, slice-1, ..." in done.err


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """The file of a connector ``c`` from files to SQLite."""
    path = tmp_path / "c.json"
    config = {
        "connector.class": "pipeline",
        "source": "files",
        "source.path": str(tmp_path / "in"),
        "source.format": "csv",
        "source.schema": "a INT",
        "sink": "sqlite",
        "sink.path": str(tmp_path / "out.db"),
        "sink.table": "t",
    }
    path.write_text(json.dumps({"name": "c", "config": config}))
    return path


async def test_configuration_that_is_written_is_checked_once(
    command: Command, pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One class is loaded and one connector is created, which has parsed the settings."""
    created: list[str] = []

    class Counted(PipelineConnector):
        def __init__(self, name: str, config: Config) -> None:
            created.append(name)
            super().__init__(name, config)

    monkeypatch.setattr(connector_validation, "load_connector_class", lambda name: Counted)
    assert (await command("connectors", "put", pipeline)).code == 0
    assert created == ["c"]


async def test_value_that_only_the_model_of_the_settings_rejects_is_not_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class may look at fewer settings than its model describes."""

    class Lax(IdleConnector):
        def __init__(self, name: str, config: Config) -> None:
            Connector.__init__(self, name, config)

    monkeypatch.setattr(connector_validation, "load_connector_class", lambda name: Lax)
    path = connector_file(tmp_path / "c.json", **{"connector.class": "idle", "stop.ms": "soon"})
    done = await command("connectors", "put", path)
    assert done.code == 2, done
    assert done.err == (f"connectgroup: {path}: config.stop.ms: got 'soon'; allowed: a whole number of milliseconds\n")


async def test_offsets_are_shown_altered_from_a_file_and_reset(command: Command, pipeline: Path) -> None:
    """KIP-875."""
    assert (await command("connectors", "put", pipeline)).code == 0
    changes = pipeline.parent / "offsets.json"
    changes.write_text('{"offsets": [{"partition": {"slice": "a.csv"}, "offset": {"position": 7}}]}')
    refused = await command("connectors", "offsets", "c", "--alter", changes)
    assert refused.code == 2
    assert "Connectors must be in the STOPPED state" in refused.err
    await command("connectors", "stop", "c")
    assert (await command("connectors", "offsets", "c", "--alter", changes)).out == (
        "connector c: offsets of 1 partition altered\n"
    )
    shown = await command("connectors", "offsets", "c", "--json")
    assert json.loads(shown.out) == json.loads(changes.read_text())
    assert [line.split() for line in (await command("connectors", "offsets", "c")).out.splitlines()] == [
        ["SLICE", "POSITION"],
        ["a.csv", "7"],
    ]
    reset = await command("connectors", "offsets", "c", "--reset")
    assert reset.out == "connector c: offsets reset\n"
    note = "the rows that its sink has stay there: those that are read again will be there twice"
    assert reset.err == f"note: {note}\n"
    again = await command("connectors", "offsets", "c", "--reset", "--json")
    assert (json.loads(again.out), again.err) == ({"name": "c", "reset": True, "notes": [note]}, "")
    assert (await command("connectors", "patch", "c", "sink.insert.mode=upsert", "sink.pk.fields=a")).code == 0
    assert (await command("connectors", "offsets", "c", "--reset")).err == ""
    assert json.loads((await command("connectors", "offsets", "c", "--json")).out) == {"offsets": []}
    none = await command("connectors", "offsets", "c")
    assert (none.out, none.err) == ("", "no offsets: the connector has committed none\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "Partitions / offsets need to be provided"),
        ("[]", "offsets.json: body: got 'an array'; allowed: an object"),
        ('{"offsets": [], "offsets": []}', "has the key 'offsets' twice"),
        ("no json", "allowed: JSON"),
    ],
)
async def test_an_invalid_file_of_offsets_is_one_line(
    command: Command, pipeline: Path, content: str, message: str
) -> None:
    await command("connectors", "put", pipeline)
    await command("connectors", "stop", "c")
    changes = pipeline.parent / "offsets.json"
    changes.write_text(content)
    done = await command("connectors", "offsets", "c", "--alter", changes)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


# ---- the other actions


@pytest.fixture
def idle(tmp_path: Path) -> Path:
    """The file of a connector ``naps``, as properties."""
    path = tmp_path / "naps.properties"
    path.write_text("# naps\nname=naps\nconnector.class=idle\ntasks.max=2\n")
    return path


async def test_create_update_and_patch_change_what_list_and_status_show(command: Command, idle: Path) -> None:
    missing = await command("connectors", "update", idle)
    assert (missing.code, missing.err) == (3, "connectgroup: no such group 'workers'; groups here: none\n")
    assert (await command("connectors", "create", idle)).out.startswith("connector naps: created, version ")
    again = await command("connectors", "create", idle)
    assert (again.code, again.out) == (4, "")
    assert "connector naps already exists" in again.err
    assert (await command("connectors", "patch", "naps", "stop.ms=5", "tasks.max=3")).code == 0
    assert (await command("connectors", "patch", "naps", "--remove", "stop.ms")).code == 0
    (listed,) = json.loads((await command("connectors", "list", "--json")).out)
    assert listed == {"name": "naps", "config": {"connector.class": "idle", "name": "naps", "tasks.max": "3"}}
    head, row = (await command("connectors", "list")).out.splitlines()
    assert head.split() == ["NAME", "CLASS", "STATE", "TASKS", "RUNNING", "FAILED"]
    assert row.split() == ["naps", "idle", "UNASSIGNED", "0", "0", "0"]
    await command("connectors", "update", idle)
    assert json.loads((await command("connectors", "list", "--json")).out)[0]["config"]["tasks.max"] == "2"
    status = await command("connectors", "status", "naps")
    assert status.out.splitlines()[0].startswith("connector naps: UNASSIGNED (wanted: RUNNING), version ")
    assert json.loads((await command("connectors", "status", "naps", "--json")).out)["name"] == "naps"
    assert json.loads((await command("connectors", "delete", "naps", "--json")).out) == {
        "name": "naps",
        "deleted": True,
    }


async def test_a_connector_is_created_from_standard_input(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"name": "c", "config": {"connector.class": "idle"}}'))
    assert (await command("connectors", "create", "-")).out.startswith("connector c: created, version ")
    monkeypatch.setattr("sys.stdin", io.StringIO("name=d"))
    rejected = await command("connectors", "create", "-")
    assert (rejected.code, rejected.err.count("\n")) == (2, 1)
    assert "properties in a file whose name ends in .properties" in rejected.err


async def test_what_list_prints_is_put_again(
    command: Command, idle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await command("connectors", "put", idle)
    config = {"connector.class": "idle", "log": "${env:LOG}", "stop.ms": "5"}
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"name": "other", "config": config, "initial_state": "STOPPED"}))
    await command("connectors", "put", other)
    listed = (await command("connectors", "list", "--json")).out
    assert json.loads(listed)[1] == {
        "name": "other",
        "config": config,
        "initial_state": "STOPPED",
    }
    for name in ("naps", "other"):
        assert (await command("connectors", "delete", name)).code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(listed))
    done = await command("connectors", "put", "-", "--json")
    assert [each["name"] for each in json.loads(done.out)] == ["naps", "other"]
    assert (await command("connectors", "list", "--json")).out == listed
    monkeypatch.setattr("sys.stdin", io.StringIO(listed))
    assert (await command("connectors", "put", "-")).out.count(": not changed, version ") == 2
    one = (await command("connectors", "config", "other")).out
    assert json.loads(one) == {**config, "name": "other"}
    monkeypatch.setattr("sys.stdin", io.StringIO(one))
    assert (await command("connectors", "update", "-")).code == 0


async def test_put_and_patch_say_when_a_configuration_stays_as_it_is(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "naps.json"
    file.write_text(json.dumps({"name": "naps", "config": {"connector.class": "idle", "tasks.max": 2}}))
    assert (await command("connectors", "put", file)).out.startswith("connector naps: created, version ")
    before = json.loads((await command("connectors", "describe", "naps", "--json")).out)
    for action in ("put", "update"):
        assert (await command("connectors", action, file)).out.startswith("connector naps: not changed, version ")
        done = json.loads((await command("connectors", action, file, "--json")).out)
        assert (done["version"], done["changed"]) == (before["version"], False)
    assert (await command("connectors", "patch", "naps", "tasks.max=2")).out.startswith("connector naps: not changed, ")
    done = json.loads((await command("connectors", "patch", "naps", "tasks.max=3", "--json")).out)
    assert done["changed"]
    assert (await command("connectors", "put", file)).out.startswith("connector naps: updated, version ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "-: got 'an empty array'; allowed: connectors"),
        ([{"name": "a", "config": {"connector.class": "idle"}}, 3], "-[1]: got 'a number'; allowed: an object: "),
        (
            [{"name": "a", "config": {"connector.class": "idle"}}] * 2,
            "-[1]: name: got 'a'; allowed: each connector once",
        ),
        (
            [
                {"name": "a", "config": {"connector.class": "idle"}},
                {"name": "b", "config": {"connector.class": "idel"}},
            ],
            "-[1]: config.connector.class: got 'idel'; allowed: ",
        ),
        (
            [{"name": "a", "config": {"connector.class": "idle", "api.key": "[hidden]"}}],
            "-[0]: config.api.key: got '[hidden]'; allowed: the real value, which is not shown",
        ),
    ],
)
async def test_nothing_is_put_if_one_of_several_connectors_is_wrong(
    command: Command, content: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(content)))
    done = await command("connectors", "put", "-")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(f"connectgroup: {message}")
    assert json.loads((await command("groups", "list", "--json")).out) == []


async def test_what_was_made_before_an_error_is_shown_also_as_json(
    command: Command, idle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await command("connectors", "put", idle)
    content = [{"name": name, "config": {"connector.class": "idle"}} for name in ("a", "b", "naps", "c")]
    for more in ((), ("--json",)):
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(content)))
        done = await command("connectors", "create", "-", *more)
        assert done.code == 4
        assert "naps" in done.err
        if more:
            assert [(each["name"], each["changed"]) for each in json.loads(done.out)] == [("a", True), ("b", True)]
        else:
            assert [line.partition(",")[0] for line in done.out.splitlines()] == [
                "connector a: created",
                "connector b: created",
            ]
            await command("connectors", "delete", "a")
            await command("connectors", "delete", "b")


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


async def test_group_with_connectors_is_deleted_when_that_is_confirmed(
    command: Command, idle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await command("connectors", "put", idle)
    for words, begin in (
        (("describe",), "group workers: "),
        (("explain",), "epoch 1 | connector naps added | "),
        (("plan", "--add-workers", "1"), "group workers at epoch 1: "),
    ):
        assert (await command("groups", *words)).out.startswith(begin), "of the group that commands have by default"
    assert "required: group" in (await command("groups", "delete")).err, "what is deleted is named"
    what = "group workers has 1 connector with 0 tasks: naps"
    refused = await command("groups", "delete", "workers")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == f"connectgroup: {what}; allowed: --yes, to delete them too\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", Terminal("\n"))
    refused = await command("groups", "delete", "workers")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == f"{what}. Delete them too? [y/N] connectgroup: nothing was deleted\n"
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert (await command("groups", "delete", "workers")).out == "group workers: deleted\n"
    await command("connectors", "put", idle)
    assert (await command("groups", "delete", "workers", "--yes")).out == "group workers: deleted\n"


async def test_create_honours_the_initial_state(command: Command, tmp_path: Path) -> None:
    """KIP-980."""
    file = tmp_path / "c.json"
    file.write_text('{"name": "c", "config": {"connector.class": "idle"}, "initial_state": "STOPPED"}')
    assert (await command("connectors", "create", file, "--wait")).code == 0
    assert (await command("connectors", "status", "c")).out.startswith("connector c: STOPPED")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("patch", "naps"), "SETTING=VALUE: got 'nothing'; allowed: settings to change"),
        (("patch", "naps", "=1"), "SETTING=VALUE: got '=1'; allowed: a name, =, and a value"),
        (("patch", "naps", "a=1", "a=2"), "each name once"),
        (("patch", "naps", "tasks.max=0"), "tasks.max: got '0'"),
        (("patch", "nosuch", "a=1"), "connector nosuch does not exist; connectors of this group: naps"),
        (("status", "nosuch"), "connector nosuch does not exist; connectors of this group: naps"),
        (("topics", "nosuch"), "connector nosuch does not exist; connectors of this group: naps"),
        (("offsets", "nosuch"), "connector nosuch does not exist; connectors of this group: naps"),
        (("restart", "naps-0"), "for task 0 of connector naps: connectors restart naps --task 0"),
        (("offsets", "naps", "--reset"), "endpoint, or: connectgroup connectors stop naps"),
    ],
)
async def test_errors_are_one_line(command: Command, idle: Path, words: tuple[str, ...], message: str) -> None:
    await command("connectors", "create", idle)
    done = await command("connectors", *words)
    assert (done.code, done.out) == (3 if "for task 0" in message or "does not exist" in message else 2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("..", "1", "name: got '..'; allowed: printable characters, no blanks at the ends, not '.' or '..'"),
        ("a", "soon", "config.stop.ms: got 'soon'; allowed: a whole number of milliseconds"),
    ],
)
async def test_error_of_a_file_names_the_file(
    command: Command, tmp_path: Path, name: str, setting: str, message: str
) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"name": name, "config": {"connector.class": "idle", "stop.ms": setting}}))
    done = await command("connectors", "create", file)
    assert (done.code, done.out, done.err) == (2, "", f"connectgroup: {file}: {message}\n")


async def test_validate_prints_all_errors(command: Command, idle: Path) -> None:
    assert (await command("connectors", "validate", idle)).out == f"{idle}: connector naps is valid\n"
    bad = idle.with_name("bad.properties")
    bad.write_text("name=bad\nconnector.class=pipeline\nsource=files\nsink=sqlite\nsink.table=1\nsource.format=x\n")
    done = await command("connectors", "validate", bad)
    assert done.code == 1
    for setting in ("source.path", "sink.path", "source.format"):
        assert setting in done.out
    assert json.loads((await command("connectors", "validate", bad, "--json")).out)["error_count"] > 2
    bad.write_text("name=bad\nconnector.class=pipeline\nsource=filez\n")
    lines = (await command("connectors", "validate", bad)).out.splitlines()
    assert all(line.startswith(f"{bad}: ") for line in lines)
    source, sink = (line.removeprefix(f"{bad}: ") for line in lines)
    assert source.startswith("source: got 'filez'; allowed: connect, datagen, files, ")
    assert sink == 'Missing required configuration "sink" which has no default value.'
    # Errors of the common settings do not hide those of the class.
    bad.write_text("name=bad\nconnector.class=idle\ntasks.max=0\nstop.ms=x\n")
    done = await command("connectors", "validate", bad)
    assert (done.code, done.err) == (1, "")
    assert [line.split(": ")[1] for line in done.out.splitlines()] == ["tasks.max", "stop.ms"]
    renamed = bad.with_suffix(".json")
    renamed.write_text('{"name": "bad", "config": {"name": "other", "connector.class": "idle"}}')
    done = await command("connectors", "validate", renamed)
    assert (done.code, done.out) == (2, "")
    assert "config.name: got 'other'; allowed: bad, the name of the connector" in done.err


def write_with(file: Path, setting: str, value: str) -> None:
    content = json.loads(file.read_text())
    content["config"][setting] = value
    file.write_text(json.dumps(content))


async def test_validate_tries_the_source_and_the_sink_unless_it_is_offline(command: Command, pipeline: Path) -> None:
    missing = pipeline.parent / "in"
    done = await command("connectors", "validate", pipeline)
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith(f"{pipeline}: {missing}: ")
    valid = f"{pipeline}: connector c is valid\n"
    assert (await command("connectors", "validate", pipeline, "--offline")).out == valid
    missing.mkdir()
    assert (await command("connectors", "validate", pipeline)).out == valid
    assert not (pipeline.parent / "out.db").exists()
    write_with(pipeline, "source.file.pattern", "${env:PATTERN}")
    done = await command("connectors", "validate", pipeline)
    assert done.out.startswith(f"{valid}{pipeline}: its source and sink were not tried: source.file.pattern: ")
    (note,) = json.loads((await command("connectors", "validate", pipeline, "--json")).out)["notes"]
    assert note.startswith("its source and sink were not tried: source.file.pattern: ")


async def test_validate_says_that_a_sink_is_at_least_once(command: Command, pipeline: Path) -> None:
    file = pipeline.with_name("shown.properties")
    file.write_text("name=c\nconnector.class=pipeline\nsource=datagen\nsource.rows=5\nsink=console\n")
    done = await command("connectors", "validate", file, "--offline")
    valid, note = done.out.splitlines()
    assert (done.code, valid) == (0, f"{file}: connector c is valid")
    assert "at least once" in note
    (shown,) = json.loads((await command("connectors", "validate", file, "--offline", "--json")).out)["notes"]
    assert note == f"{file}: {shown}"


async def test_global_options_may_stand_before_the_subcommand(command: Command, idle: Path) -> None:
    assert (await command("--group", "g", "connectors", "create", idle)).code == 0
    assert json.loads((await command("--json", "--group=g", "connectors", "list")).out)[0]["name"] == "naps"
    assert json.loads((await command("connectors", "list", "--json", "--group", "g", "--verbose")).out)
    assert json.loads((await command("--group", "g", "connectors", "--json", "list")).out)
    assert (await command("--json", "up")).code == 2, "up has no JSON"


async def test_wait_returns_when_the_state_is_reached(command: Command, worker: None, idle: Path) -> None:
    created = await command("connectors", "create", idle, "--wait")
    assert created.code == 0
    assert created.err.endswith("connector naps: 3 of 3 RUNNING\n"), "the last line is the state that was reached"
    status = json.loads((await command("connectors", "status", "naps", "--json")).out)
    assert [task["state"] for task in status["tasks"]] == ["RUNNING", "RUNNING"]
    for words, reached in (
        (("pause",), "2 of 2 tasks PAUSED"),
        (("resume",), "3 of 3 RUNNING"),
        (("stop",), "3 of 3 STOPPED"),
        (("resume",), "3 of 3 RUNNING"),
        (("restart", "--include-tasks"), "3 of 3 RUNNING"),
    ):
        done = await command("connectors", words[0], "naps", *words[1:], "--wait")
        assert (done.code, done.err.splitlines()[-1]) == (0, f"connector naps: {reached}")
        units = json.loads((await command("connectors", "status", "naps", "--json")).out)
        running = [task["state"] for task in units["tasks"]].count("RUNNING")
        assert running == (0 if words[0] in ("pause", "stop") else 2), (words, units)


@pytest.mark.parametrize(("action", "reached"), [("stop", "3 of 3 STOPPED"), ("pause", "2 of 2 tasks PAUSED")])
async def test_wait_after_a_change_of_a_connector_that_does_not_run(
    command: Command, worker: None, idle: Path, action: str, reached: str
) -> None:
    """A change of its configuration leaves its target state as it is, and so does the wait."""
    await command("connectors", "create", idle, "--wait")
    await command("connectors", action, "naps", "--wait")
    for words in (("put", idle), ("patch", "naps", "tasks.max=2")):
        done = await command("connectors", *words, "--wait", "--timeout", "20")
        assert (done.code, done.err.splitlines()[-1]) == (0, f"connector naps: {reached}")


async def test_connector_without_tasks_runs(
    command: Command, worker: None, idle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Kafka Connect: it has nothing to do yet."""
    monkeypatch.setattr(IdleConnector, "task_configs", lambda self, max_tasks: [])
    done = await command("connectors", "create", idle, "--wait", "--timeout", "20")
    assert (done.code, done.err.splitlines()[-1]) == (0, "connector naps: 1 of 1 RUNNING")
    shown = json.loads((await command("connectors", "status", "naps", "--json")).out)
    assert (shown["connector"]["state"], shown["tasks"]) == ("RUNNING", [])


async def test_wait_sees_tasks_that_are_published_after_the_connector_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """As by the runner of a program; until then it is described as a connector that has no tasks."""

    class Described(TcpClient):
        polls = 0

        async def call(self, request: Request, *, timeout_s: float) -> Response:
            self.polls += 1
            tasks = {5: ["STARTING"], 6: ["RUNNING"]}.get(self.polls, [])
            units = [DescribedUnit(task=number, state=each) for number, each in enumerate(["RUNNING", *tasks], -1)]
            connector = DescribedConnector(connector="c", target_state="RUNNING", units=tuple(units))
            return DescribeResponse(groups=(DescribedGroup(state="Stable", connectors=(connector,)),))

    client = Described("127.0.0.1", 1)
    options = argparse.Namespace(wait=True, json=False, timeout=60, group="workers")
    await wait_for(Admin([client]), options, "c")
    assert client.polls == 6
    assert capsys.readouterr().err.splitlines()[-1] == "connector c: 2 of 2 RUNNING"


async def test_restart_names_the_connector_and_its_tasks(command: Command, worker: None, idle: Path) -> None:
    await command("connectors", "create", idle, "--wait")
    restarted = await command("connectors", "restart", "naps", "--include-tasks", "--json")
    assert json.loads(restarted.out) == {"name": "naps", "restarted": ["naps", "naps-0", "naps-1"]}
    unknown = await command("connectors", "restart", "naps", "--task", "7")
    assert (unknown.code, unknown.err) == (3, "connectgroup: connector naps has no task 7: it has 2 tasks\n")
    both = await command("connectors", "restart", "naps", "--task", "1", "--only-failed")
    assert (both.code, "argument --task: not allowed with argument --only-failed; see " in both.err) == (2, True)


async def test_restart_of_nothing_says_why(command: Command, worker: None, idle: Path) -> None:
    await command("connectors", "create", idle, "--wait")
    assert (await command("connectors", "restart", "naps", "--only-failed")).out == (
        "connector naps: nothing restarted: nothing has failed\n"
    )
    await command("connectors", "stop", "naps", "--wait")
    for words, unit in (((), "naps"), (("--task", "1"), "naps-1")):
        done = await command("connectors", "restart", "naps", *words)
        assert done.out == f"connector naps: nothing restarted: {unit} is STOPPED, and no worker has it\n", done


async def test_wait_reports_a_failed_task(command: Command, worker: None, idle: Path, tmp_path: Path) -> None:
    with idle.open("a") as file:
        file.write(f"log={tmp_path}/nosuch/log\n")
    failed = await command("connectors", "create", idle, "--wait")
    assert failed.code == 7
    assert "No such file or directory" in failed.err.splitlines()[-1]


async def test_wait_that_times_out_names_the_command_that_explains(command: Command, idle: Path) -> None:
    """The group has no worker."""
    done = await command("connectors", "create", idle, "--wait", "--timeout", "1")
    assert done.code == 7
    explain = "connectgroup groups explain workers --task naps"
    assert done.err.splitlines()[-1] == f"connectgroup: connector naps: not RUNNING within 1 s; see {explain}"


def test_unknown_option_refers_to_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connectors", "delete", "naps", "--state"]) == 2
    leaf = "connectgroup connectors delete"
    assert capsys.readouterr().err == f"{leaf}: unrecognized arguments: --state; see {leaf} --help\n"


def test_misspelt_option_suggests_the_one_that_may_be_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--wokers", "3"]) == 2
    told = "connectgroup up: unrecognized arguments: --wokers 3 (--workers; did you mean that?)"
    assert capsys.readouterr().err == f"{told}; see connectgroup up --help\n"


async def test_create_reports_all_errors_of_a_configuration(command: Command, tmp_path: Path) -> None:
    settings = {"connector.class": "pipeline", "tasks.max": "x", "sourc": "datagen", "sink": "nosuch"}
    file = connector_file(tmp_path / "bad.json", **settings)
    done = await command("connectors", "create", file)
    assert done.code == 2
    first, *errors = done.err.splitlines()
    assert first == f"connectgroup: {file}: 4 errors"
    assert [error.removeprefix(f"{file}: ").partition(";")[0] for error in errors] == [
        "tasks.max: got 'x'",
        'Missing required configuration "source" which has no default value.',
        "sink: got 'nosuch'",
        "sourc: unknown",
    ]
    failed = await command("connectors", "create", file, "--json")
    assert json.loads(failed.err)["message"] == done.err.removeprefix("connectgroup: ").rstrip()


async def test_list_shows_a_connector_that_failed_to_start(
    command: Command, worker: None, idle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STATE is that of Kafka Connect's status: a connector that should run and has failed is FAILED."""
    monkeypatch.setattr("connectgroup.cli.connectors.NOTE_TIMEOUT_S", 60.0)
    with idle.open("a") as file:
        file.write("log=${env:NOT_ALLOWED}\n")
    done = await command("connectors", "create", idle, "--wait")
    assert (done.code, "note: worker" in done.err) == (7, False)
    noted = (await command("connectors", "put", idle)).err
    assert noted.startswith("note: worker w does not run naps: ")
    assert "log: got '${env:NOT_ALLOWED}'; allowed: a variable that --secret-env allows: none" in noted
    _, row = (await command("connectors", "list")).out.splitlines()
    assert row.split() == ["naps", "idle", "FAILED", "0", "0", "0"]


async def test_without_a_worker_references_to_secrets_are_noted(command: Command, idle: Path) -> None:
    with idle.open("a") as file:
        file.write("log=${env:LOG}\n")
    done = await command("connectors", "put", idle)
    assert done.code == 0
    assert done.err.startswith("note: log: only a worker can tell whether it may resolve the references; --wait or ")


async def test_changes_of_a_group_without_workers_say_so_in_json_too(
    command: Command, idle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "sed -i s/RUN/run/")
    monkeypatch.delenv("VISUAL", raising=False)
    for words in (
        ("put", idle),
        ("put", idle),
        ("patch", "naps", "log=RUN"),
        ("edit", "naps"),
        ("resume", "naps"),
    ):
        done = await command("connectors", *words, "--json")
        assert (done.code, done.err) == (0, ""), done
        assert json.loads(done.out)["notes"] == ["group workers has no worker: naps runs when one joins"], done
    assert "notes" not in json.loads((await command("connectors", "stop", "naps", "--json")).out)
    patched = json.loads((await command("connectors", "patch", "naps", "log=x", "--json")).out)
    assert "notes" not in patched, "it is not to run"


async def test_commands_that_check_a_java_class_have_the_option_that_their_errors_name(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_plugin(tmp_path, monkeypatch, "source.SourceConnector", "acme.Own")
    table = {"sink": "sqlite", "sink.path": str(tmp_path / "o.db"), "sink.table": "t"}
    path = connector_file(tmp_path / "c.json", **{"connector.class": "acme.Own", **table})
    monkeypatch.setenv("EDITOR", "sed -i s/acme-1/acme-2/")
    monkeypatch.delenv("VISUAL", raising=False)
    for words in (
        ("connectors", "validate", path, "--offline"),
        *(("connectors", action, path) for action in ("create", "update", "put")),
        ("connectors", "patch", "naps", "tables=acme-1"),
        ("connectors", "edit", "naps"),
        ("connectors", "stop", "naps"),
        ("connectors", "offsets", "naps", "--reset"),
        ("plugins", "describe", "acme.Own"),
    ):
        if words[1] == "stop":
            await command(*words)
            continue
        monkeypatch.setenv(PLUGIN_PATH, "")
        unknown = await command(*words)
        assert "on the plug-in path (--plugin-path, " in f"{unknown.err}{unknown.out}", words
        done = await command(*words, "--plugin-path", tmp_path)
        assert done.code == 0, (words, done)
        assert ("read again will be there twice" in done.err) == (words[1] == "offsets")


async def test_plugins_are_listed_and_described(command: Command) -> None:
    assert "connector  idle" in (await command("plugins", "list")).out
    assert "sqlite" in json.loads((await command("plugins", "list", "--json")).out)["sinks"]
    described = (await command("plugins", "describe", "pipeline", "--with", "source=files")).out
    assert {"source.path", "tasks.max"} <= {line.split()[0] for line in described.splitlines()}
    assert "whether a record that cannot be processed fails the task or is a dead letter\n" in described
    misspelt = await command("plugins", "describe", "pipeline", "--with", "sorce=files")
    assert (misspelt.code, misspelt.out) == (2, "")
    assert misspelt.err == "connectgroup: sorce: unknown; allowed: source (did you mean that?)\n"
    wrong = await command("plugins", "describe", "pipeline", "--with", "source=filez")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.startswith("connectgroup: source: got 'filez'; allowed: connect, datagen, files, ")
    transform = json.loads((await command("plugins", "describe", "RegexRouter", "--json")).out)
    assert {"regex", "replacement"} <= {each["name"] for each in transform}
    source = json.loads((await command("plugins", "describe", "files", "--json")).out)
    assert "source.path" in {each["name"] for each in source}
    assert {each["name"].split(".")[0] for each in source} == {"source"}
    both = json.loads((await command("plugins", "describe", "sqlite", "--json")).out)
    assert {each["name"].split(".")[0] for each in both} == {"source", "sink"}
    other = await command("plugins", "describe", "files", "--with", "source.format=csv")
    assert (other.code, other.out) == (2, "")
    assert other.err.endswith("see connectgroup plugins describe pipeline --with source=files\n")
    similar = await command("plugins", "describe", "filse")
    assert (similar.code, similar.err.endswith(" (did you mean files?)\n")) == (2, True)
    unknown = await command("plugins", "describe", "nosuch")
    assert (unknown.code, unknown.err.count("\n")) == (2, 1)
    for each in ("connectors idle, ", "; sources connect, ", "; sinks connect, ", "; transforms Cast, ", "RegexRouter"):
        assert each in unknown.err


async def test_groups_and_workers_are_listed_as_json(command: Command, worker: None, idle: Path) -> None:
    await command("connectors", "create", idle, "--wait")
    assert [group["group_id"] for group in json.loads((await command("groups", "list", "--json")).out)] == ["workers"]
    described = json.loads((await command("groups", "describe", "workers", "--json")).out)
    assert [each["worker_id"] for each in described["workers"]] == ["w"]
    assert described["workers"] == json.loads((await command("workers", "list", "--json")).out)
    head, row = (await command("workers", "list")).out.splitlines()
    assert head.split() == ["NAME", "STATE", "EPOCH", "UNITS", "UPTIME", "MEMORY", "HOST", "ADDRESS"]
    assert row.split()[:2] == ["w", "STABLE"]
    unknown = await command("groups", "describe", "nosuch")
    assert unknown.err == "connectgroup: no such group 'nosuch'; groups here: workers\n"


async def test_a_misspelt_group_is_not_created(command: Command, idle: Path) -> None:
    assert (await command("connectors", "put", idle)).code == 0
    for action in ("put", "create"):
        refused = await command("connectors", action, idle, "--group", "wrokers")
        assert (refused.out, refused.code) == ("", 2)
        allowed = "workers; --new-group creates another group"
        assert refused.err == f"connectgroup: --group: got 'wrokers'; allowed: {allowed}\n"
    assert len((await command("groups", "list")).out.splitlines()) == 2, "a header and one group"
    assert (await command("connectors", "put", idle, "--group", "others", "--new-group")).code == 0
    assert "others" in (await command("groups", "list")).out


# ---- edit


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Set an editor that writes each of these texts in turn, and returns the file with what it was shown each time."""

    def use(*texts: str) -> Path:
        seen, script = tmp_path / "seen", tmp_path / "editor.py"
        script.write_text(
            "import pathlib, sys\n"
            f"path, seen, texts = pathlib.Path(sys.argv[1]), pathlib.Path({str(seen)!r}), {list(texts)!r}\n"
            "done = seen.read_text().split('\\f') if seen.exists() else []\n"
            "seen.write_text('\\f'.join([*done, path.read_text()]))\n"
            "text = texts[min(len(done), len(texts) - 1)]\n"
            "if text: path.write_text(text)\n"
        )
        monkeypatch.delenv("VISUAL", raising=False)
        monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
        return seen

    return use


async def test_edit_opens_a_file_with_errors_again_and_says_what_is_wrong(
    command: Command, idle: Path, editor: Callable[..., Path]
) -> None:
    await command("connectors", "put", idle)
    await command("connectors", "patch", "naps", "password=secret")
    shown = json.loads((await command("connectors", "config", "naps")).out)
    del shown["name"]
    seen = editor("no json", json.dumps({**shown, "tasks.max": "many"}), json.dumps({**shown, "tasks.max": 3}))
    done = await command("connectors", "edit", "naps")
    assert done.code == 0, done.err
    assert done.out.startswith("connector naps: updated, version ")
    assert done.out.rstrip().endswith(": 1 setting changed")
    first, second, third = seen.read_text().split("\f")
    assert first.startswith("# connector naps: ")
    assert '"password": "[hidden]"' in first
    assert "secret" not in first
    assert "# configuration: is not JSON: " in second
    assert second.endswith("no json\n"), "what was typed is not lost"
    assert "tasks.max" in third.partition("{")[0]
    assert "tasks.max" in done.err
    changed = json.loads((await command("connectors", "config", "naps")).out)
    assert changed == {**shown, "tasks.max": "3", "name": "naps"}
    for is_changed, texts in ((False, ("",)), (True, (json.dumps({**shown, "tasks.max": "2"}),))):
        editor(*texts)
        seen.unlink(missing_ok=True)
        as_json = json.loads((await command("connectors", "edit", "naps", "--json")).out)
        assert as_json["changed"] is is_changed, "as put and patch say it"
        assert as_json.get("settings", []) == ["tasks.max"] * is_changed


async def test_ctrl_c_while_the_editor_has_the_terminal_is_a_key_of_the_editor(
    command: Command, idle: Path, tmp_path: Path
) -> None:
    """The terminal sends it to both; in Emacs, for one, C-g sends it."""
    await command("connectors", "put", idle)
    editor = tmp_path / "editor.sh"
    editor.write_text('kill -INT $PPID\nsed -i \'s/"2"/"3"/\' "$1"\n')
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell ignore it, and so their children
    try:
        edit = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "connectgroup", "connectors", "edit", "naps"),
            stdout=subprocess.PIPE,
            env={**os.environ, "VISUAL": "", "EDITOR": f"sh {editor}"},
        )
    finally:
        signal.signal(signal.SIGINT, before)
    out, _ = await edit.communicate()
    assert (edit.returncode, b"1 setting changed" in out) == (0, True), out
    assert json.loads((await command("connectors", "config", "naps")).out)["tasks.max"] == "3"


async def test_edit_changes_nothing_unless_a_valid_change_is_saved(
    command: Command, idle: Path, editor: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    await command("connectors", "put", idle)
    before = (await command("connectors", "config", "naps")).out
    editor("")
    done = await command("connectors", "edit", "naps")
    assert (done.code, done.out) == (0, "connector naps: not changed\n")
    editor('{"connector.class": "nosuch"}')
    wrong = await command("connectors", "edit", "naps")
    assert wrong.code == 2, "saved unchanged a second time"
    assert "nothing was changed: " in wrong.err
    editor('{"connector.class": "idle", "password": "x[hidden]"}')
    masked = await command("connectors", "edit", "naps")
    assert (masked.code, "the real value" in masked.err) == (2, True)
    for program in ("/nonexistent", "false", 'vi "'):
        monkeypatch.setenv("EDITOR", program)
        failed = await command("connectors", "edit", "naps")
        assert (failed.code, failed.err.count("\n")) == (2, 1)
    monkeypatch.delenv("EDITOR")
    alone = await command("connectors", "edit", "naps")
    assert (alone.code, alone.out) == (2, "")
    assert alone.err.startswith("connectgroup: there is no terminal for an editor; allowed: a program in EDITOR")
    monkeypatch.setenv("EDITOR", "true")
    monkeypatch.setattr(tempfile, "tempdir", str(idle / "below"))
    full = await command("connectors", "edit", "naps")
    assert (full.code, full.err.count("\n"), "TMPDIR: got" in full.err or "TMPDIR: missing" in full.err) == (2, 1, True)
    assert (await command("connectors", "config", "naps")).out == before
    assert (await command("connectors", "edit", "nosuch")).code == 3


# ---- several connectors in a file


@pytest.mark.parametrize("more", [(), ("--offline",)])
async def test_validate_knows_the_paths_that_the_workers_allow_if_they_are_given(
    command: Command, pipeline: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    other = tmp_path / "other"
    (tmp_path / "in").mkdir()
    done = await command("connectors", "validate", pipeline, "--allowed-path", other, *more)
    assert done.code == 1
    assert f"allowed: a path at or below one of --allowed-path ({other})" in done.out
    assert (await command("connectors", "validate", pipeline, "--allowed-path", tmp_path, *more)).code == 0
    done = await command("connectors", "validate", pipeline, "--allowed-path", "data", *more)
    assert (done.code, "--allowed-path" in done.err) == (2, True)


async def test_validate_takes_what_translate_prints_for_several_tables(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "several.json"
    good = {"name": "good", "config": {"connector.class": "idle"}}
    bad = {"name": "bad", "config": {"connector.class": "idle", "tasks.max": "many"}}
    path.write_text(json.dumps([good, bad]))
    done = await command("connectors", "validate", path, "--offline")
    assert done.code == 1
    first, second = done.out.splitlines()
    assert first == f"{path}[0]: connector good is valid"
    assert second.startswith(f"{path}[1]: tasks.max: ")
    shown = json.loads((await command("connectors", "validate", path, "--offline", "--json")).out)
    assert [each["error_count"] for each in shown] == [0, 1]
    path.write_text(json.dumps([good]))
    assert (await command("connectors", "validate", path, "--offline")).code == 0

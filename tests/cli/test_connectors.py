"""``connectgroup connectors``: the command against a coordinator in this process, over TCP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from connectgroup.cli.command import main
from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.coordinator.server import CoordinatorServer

from ..integration.processes import Finished

Command = Callable[..., Coroutine[Any, Any, Finished]]


@pytest.fixture
async def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Command]:
    """Run one command against a coordinator without workers; ``CONNECTGROUP_COORDINATOR`` has its address."""
    server = CoordinatorServer(checked(CoordinatorConfig, {"port": 0}))
    await server.start()
    monkeypatch.setenv("CONNECTGROUP_COORDINATOR", server.address)

    async def run(*words: str | Path) -> Finished:
        capsys.readouterr()
        code = await asyncio.to_thread(main, [str(word) for word in words])
        out, err = capsys.readouterr()
        return Finished(code=code, out=out, err=err)

    yield run
    await server.close()


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
        "connector c: offsets of 1 partitions altered\n"
    )
    shown = await command("connectors", "offsets", "c")
    assert json.loads(shown.out) == json.loads(changes.read_text())
    assert (await command("connectors", "offsets", "c", "--reset")).out == "connector c: offsets reset\n"
    assert json.loads((await command("connectors", "offsets", "c")).out) == {"offsets": []}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "Partitions / offsets need to be provided"),
        ("[]", "body: got 'list'; allowed: an object"),
        ('{"offsets": [], "offsets": []}', "duplicate key 'offsets'"),
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

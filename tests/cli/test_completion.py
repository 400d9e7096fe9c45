"""``connectgroup completion``: what bash completes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from .live import GROUP, command, live_group

BASH = """
eval "$(connectgroup completion bash)"
COMP_WORDS=({line}) COMP_LINE='{line}' COMP_POINT={point} COMP_CWORD={word} COMP_TYPE=9
_python_argcomplete connectgroup
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


async def completed(line: str, **environment: str) -> list[str]:
    """The words that bash offers at the end of a line."""
    bash = shutil.which("bash")
    assert bash is not None
    script = BASH.format(line=line, point=len(line), word=len(line.split(" ")) - 1)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        bash,
        "--norc",
        "-c",
        script,
        env={**os.environ, "PATH": path, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert err == b""
    return [word.strip() for word in out.decode().splitlines() if word.strip()]


async def test_names_of_the_running_group_are_completed(tmp_path: Path) -> None:
    async with live_group(tmp_path, workers={"ada": None, "bea": None}, connectors={"naps": {}, "nods": {}}) as group:
        await group.settled(workers=2, units=4)
        address = {"CONNECTGROUP_COORDINATOR": group.server.address}
        assert await completed(f"connectgroup connectors pause --group {GROUP} ", **address) == ["naps", "nods"]
        assert await completed(f"connectgroup workers drain --group {GROUP} b", **address) == ["bea"]
        assert await completed("connectgroup groups explain ", **address) == [GROUP]
        assert await completed("connectgroup connectors pause --group nosuch ", **address) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("connectgroup conn", ["connectors"]),
        ("connectgroup connectors re", ["resume", "restart"]),
        ("connectgroup up --assignor b", ["balanced"]),
        ("connectgroup plugins describe pi", ["pipeline"]),
        ("connectgroup plugins describe da", ["datagen"]),
        ("connectgroup coordinator --max-connections-per-a", ["--max-connections-per-address"]),
        ("connectgroup connectors status ", []),  # no coordinator
    ],
)
async def test_words_are_completed_without_a_coordinator(line: str, words: list[str]) -> None:
    assert await completed(line, CONNECTGROUP_COORDINATOR="127.0.0.1:1") == words


async def test_completion_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    done = await command("completion", "bash")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("pip install 'connectgroup[cli]'\n")

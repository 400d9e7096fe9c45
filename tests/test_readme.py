"""README's first screen as a user types it: real processes, real Spark, a worker killed, every row counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.volume import ci_only

from .guides import ROOT, blocks
from .integration.processes import COMMAND, START_PATIENCE_S, Program, free_ports, marked, wait

ROWS = 20_000


def first_screen() -> tuple[str, str, list[str]]:
    """The commands of the section: what installs, what starts the group, what is typed in the second terminal."""
    section = re.split(r"^## ", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1]
    first, second, *_ = [block.text for block in blocks(section)]
    install, up = first.splitlines()
    # A command ends where the next line is not indented.
    return install, up, re.split(r"\n(?=\S)", second.strip())


def test_install_command_names_extras_that_exist() -> None:
    install, _, _ = first_screen()
    extras = re.fullmatch(r"pip install 'connectgroup\[([a-z,]+)\]'", install)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert extras is not None
    assert all(f"\n{extra} = [" in project for extra in extras[1].split(","))


@ci_only("a minute of a core; in a user's run, test_faults kills workers with Spark; make demo has all of it")
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_first_screen_counts_every_row_although_a_worker_is_killed(tmp_path: Path) -> None:
    _, up, (create, status, kill, explain, count) = first_screen()
    port, rest_port = free_ports(2)
    folder = tmp_path / "a folder"
    folder.mkdir()
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "CONNECTGROUP_COORDINATOR": f"127.0.0.1:{port}",
    }

    def typed(line: str) -> str:
        """Run a line in a shell; return its output."""
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
            timeout=60, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    def running_tasks() -> set[str]:
        return set(re.findall(r"^\s*(numbers-\d)\s.*RUNNING", typed(status), re.MULTILINE))

    def counted() -> list[int]:
        return [int(number) for number in re.findall(r"\d+", typed(count))]

    words = up.replace("8083", str(rest_port)).split()
    assert words[0] == "connectgroup"
    # The ports of the page may be in use; and the rows of the page outlast its reader.
    create = create.replace("8083", str(rest_port)).replace('"100000"', f'"{ROWS}"').replace('"500"', '"1000"')
    with marked(), Program(*words[1:], "--port", port, command=COMMAND, environment=environment, cwd=folder) as group:
        group.line_with("REST at ")
        assert '"name":"numbers"' in typed(create)
        wait("three tasks to run", lambda: len(running_tasks()) == 3, group.output, START_PATIENCE_S)
        wait("a task on worker-2", lambda: "worker-2" in typed(status), group.output, START_PATIENCE_S)
        typed(kill)
        wait("all rows", lambda: counted()[0] >= ROWS, group.output, START_PATIENCE_S)
        assert counted() == [ROWS, ROWS], "rows, and distinct numbers"
        wait(
            "the worker to be back",
            lambda: len(re.findall("worker-2 (?:died|joined)", typed(explain))) >= 2,
            group.output,
            START_PATIENCE_S,
        )
        wait("three tasks to run again", lambda: len(running_tasks()) == 3, group.output, START_PATIENCE_S)

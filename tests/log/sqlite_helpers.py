"""Helpers for the tests of the SQLite log: processes that append, the states of a log, and changes to its file."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import connectgroup
from connectgroup.errors import LogError
from connectgroup.log.base import Loaded
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.protocol.records.base import Key
from connectgroup.protocol.records.connect import MemberRecord, Record
from connectgroup.testing.contracts.log import contents, member, newest, opened

State = dict[Key, Record] | LogError
CHILD = [sys.executable, str(Path(__file__).with_name("appending_process.py"))]
PATHS = os.environ.get("PYTHONPATH"), str(Path(connectgroup.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, PATHS))}


def start_appending(path: Path, first: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*CHILD, "append", str(path), str(first)], stdout=subprocess.PIPE, env=ENVIRONMENT)


def killed_after(records: int, path: Path) -> int:
    """Have a process append to a new log until it has reported this many records, and kill it; return the last one."""
    with start_appending(path, 0) as child:
        assert child.stdout is not None
        last = [int(child.stdout.readline()) for _ in range(records)][-1]
        child.kill()
    return last


def run_process(what: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CHILD, what, str(path)], capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT
    )


async def parts_in(path: Path) -> dict[int, set[str]]:
    async with opened(SqliteLog(path)) as log:
        parts: dict[int, set[str]] = {}
        for record in await contents(log):
            assert isinstance(record, MemberRecord)
            if record.member_id != "counter":
                number, part = record.member_id.split("-")
                parts.setdefault(int(number), set()).add(part)
        return parts


async def filled_log(path: Path) -> dict[str, State]:
    """A closed log of two groups with 20 records each, of which the last replaces the first, and its states."""
    async with opened(SqliteLog(path)) as log:
        for number in (*range(19), 0):
            await log.append([member(f"m{number}", group="g", host="10.0.0.1"), member(f"m{number}", group="h")])
        return _states_or_errors(await log.load())


async def states_of(path: Path) -> dict[str, State]:
    """The state of each group of a closed log, or its error. Opening the log compacts it."""
    async with opened(SqliteLog(path)) as log:
        states = _states_or_errors(await log.load())
        # By the index: it may be damaged where the table is not, or the reverse.
        for group in states.keys() & {"g", "h"}:
            alone = _states_or_errors(await log.load(group))[group]
            if isinstance(states[group], LogError) or isinstance(alone, LogError):
                states[group] = alone
            else:
                assert alone == states[group]
        return states


def _states_or_errors(loaded: dict[str, Loaded]) -> dict[str, State]:
    return {group: found if isinstance(found, LogError) else newest(found) for group, found in loaded.items()}


def alter(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()

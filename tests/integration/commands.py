"""A group started by the commands a user types: a coordinator, workers, and a connector ``naps`` with idle tasks.

The coordinator and each worker are processes of their own. The tasks log their starts and stops; ``runs``, ``starts``
and ``stops`` come from this log, not from the group's description.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from benchmarks.task_log import TaskLog

from .processes import COMMAND, Finished, Program, call_command

GROUP = "sleepers"
CONNECTOR = "naps"


class CommandGroup:
    """One data directory, one port, and the log of all tasks. With ``with``, the coordinator and ``naps`` are started.

    Args:
        root: a directory of the test.
        options: more options of ``connectgroup coordinator``.
        tasks: number of tasks of ``naps``.
        prefix: a command that starts the coordinator's, with other limits for example.
        name: of the group.
    """

    def __init__(
        self, root: Path, *options: str | int, tasks: int = 5, prefix: Sequence[str] = (), name: str = GROUP
    ) -> None:
        self.root, self.name = root, name
        self.log = TaskLog(root / "tasks.log")
        self.tasks = tasks
        self.address = ""
        self.access: tuple[str, ...] = ()
        """Options of each command about credentials and TLS."""
        self._options, self._prefix = options, prefix
        self._port = "0"

    def __enter__(self) -> Self:
        self.first_coordinator = self.coordinator()
        self.put(CONNECTOR, self.tasks)
        return self

    def __exit__(self, *error: object) -> None:
        self.first_coordinator.__exit__(*error)

    # ---- processes

    def coordinator(self) -> Program:
        """Start a coordinator; a later one has the same port and data directory."""
        words = ("coordinator", "--data", self.root / "data", "--port", self._port, *self._options)
        program = Program(*words, command=(*self._prefix, *COMMAND))
        self.address = program.line_with("coordinator at ").removeprefix("coordinator at ")
        self._port = self.address.rpartition(":")[2]
        return program

    def worker(
        self, name: str = "", *options: str | Path, address: str = "", environment: Mapping[str, str] | None = None
    ) -> Program:
        """Start a worker; without a name, it generates one; without an address, it uses that of the coordinator."""
        named = ("--name", name) if name else ()
        words = "--scratch", self.root / "scratch", "--coordinator", address or self.address, *options
        return Program("worker", "--group", self.name, *named, *words, environment=environment)

    def run(self, what: str, action: str, *arguments: str | Path | int) -> Finished:
        """Run ``connectgroup WHAT ACTION``, for this group, in this process."""
        group = (self.name,) if what == "groups" else ("--group", self.name)
        return call_command(what, action, *group, "--coordinator", self.address, *self.access, *arguments)

    def put(self, name: str, tasks: int, **config: str) -> None:
        """Create or change a connector of idle tasks; the command must succeed."""
        lines = {"connector.class": "idle", "tasks.max": str(tasks), "log": str(self.log.path), **config}
        self.put_config(name, lines)

    def put_config(self, name: str, config: Mapping[str, str]) -> None:
        """Create or change a connector; the command must succeed."""
        file = self.root / f"{name}.json"
        file.write_text(json.dumps({"name": name, "config": dict(config)}))
        done = self.run("connectors", "put", file)
        assert done.code == 0, done.err

    def restart(self, name: str, *options: str | int) -> Finished:
        """``connectgroup workers restart``."""
        return self.run("workers", "restart", name, *options)

    # ---- the group, as described

    def described(self) -> str:
        """What ``groups describe`` prints."""
        done = self.run("groups", "describe")
        return done.out + done.err

    def explained(self, *options: str | int) -> list[str]:
        """The lines of ``groups explain``."""
        return self.run("groups", "explain", *options).out.splitlines()

    def epoch(self) -> int:
        """The group epoch."""
        found = re.search(r"epoch (\d+)", self.described())
        assert found is not None, self.described()
        return int(found[1])

    def placement(self) -> dict[str, str]:
        """The worker of each unit that is described as RUNNING."""
        return dict(re.findall(r"^  (\S+): RUNNING on (\S+)", self.described(), re.MULTILINE))

    def is_stable(self, *workers: str, units: int | None = None) -> bool:
        """Whether the group is stable, and all units run, on exactly these workers if they are given."""
        shown = self.described()
        members = re.findall(r"^worker (\S+) .*: STABLE", shown, re.MULTILINE)
        running = dict(re.findall(r"^  (\S+): RUNNING on (\S+)", shown, re.MULTILINE))
        return (
            ": Stable, " in shown
            and len(running) == (self.tasks + 1 if units is None else units)
            and (not workers or (set(members) == set(workers) == set(running.values())))
        )

    # ---- the group, by the log of its tasks

    def runs(self) -> dict[str, list[str]]:
        """The workers that run each task."""
        self.log.poll()
        runs: dict[str, list[str]] = {}
        for run in self.log.runs:
            if run.end_ns is None:
                runs.setdefault(run.unit, []).append(run.member_id)
        return runs

    def starts(self) -> list[tuple[str, str]]:
        """Each start so far: worker and task."""
        self.log.poll()
        return [(event.member_id, event.unit) for event in self.log.events if event.starts]

    def stops(self) -> list[tuple[str, str]]:
        """Each stop so far: worker and task."""
        self.log.poll()
        return [(event.member_id, event.unit) for event in self.log.events if not event.starts]

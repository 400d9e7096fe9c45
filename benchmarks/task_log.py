"""The log written by idle tasks, and what it implies: which task ran on which worker, from when to when, and downtimes.

The tasks themselves write the log (``connectgroup.connectors.idle``), one line for each start and each stop. Neither a
coordinator nor a status page is queried: those have been observed to report RUNNING for tasks that did not run for
minutes. A killed process writes no STOP, so the process that killed it records the time.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line: a task has started, or its stop is complete.

    Attributes:
        at_ns: wall clock, nanoseconds.
        starts: false for a stop.
        member_id: the worker.
        unit: ``<connector>-<task>``.
        owner_epoch: of the grant.
    """

    at_ns: int
    starts: bool
    member_id: str
    unit: str
    owner_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A worker was killed: none of its tasks runs after ``at_ns``."""

    at_ns: int
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A task on one worker, from its start to its stop or its worker's death; ``end_ns`` is ``None`` while it runs."""

    unit: str
    member_id: str
    owner_epoch: int
    begin_ns: int
    end_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDowntime:
    """The downtime of a task that stopped and started again."""

    unit: str
    source: str
    target: str
    seconds: float


def runs_of(events: Iterable[Event], deaths: Iterable[Death] = ()) -> list[Run]:
    """Match starts and stops, in the order of the starts.

    A stop belongs to the start of the same grant on the same worker. A stop without a start is a failed start.
    """
    happened: list[Event | Death] = sorted([*events, *deaths], key=lambda event: event.at_ns)
    runs: list[Run] = []
    open_runs: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for event in happened:
        if isinstance(event, Death):
            ended = [index for key, found in open_runs.items() if key[0] == event.member_id for index in found]
            open_runs = defaultdict(list, {k: v for k, v in open_runs.items() if k[0] != event.member_id})
        else:
            key = (event.member_id, event.unit, event.owner_epoch)
            if event.starts:
                open_runs[key].append(len(runs))
                runs.append(
                    Run(
                        unit=event.unit,
                        member_id=event.member_id,
                        owner_epoch=event.owner_epoch,
                        begin_ns=event.at_ns,
                    )
                )
                continue
            ended = [open_runs[key].pop()] if open_runs[key] else []
        for index in ended:
            runs[index] = replace(runs[index], end_ns=event.at_ns)
    return runs


def by_unit(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Each unit's runs, in order."""
    units: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        units[run.unit].append(run)
    return units


def overlaps(runs: Iterable[Run]) -> list[str]:
    """Describe every start of a task that was still running, one sentence each: the violation of single ownership."""
    found = []
    for unit, its in sorted(by_unit(runs).items()):
        for index, later in enumerate(its):
            for earlier in its[:index]:
                if earlier.end_ns is None or earlier.end_ns > later.begin_ns:
                    both_ns = None if earlier.end_ns is None else earlier.end_ns - later.begin_ns
                    until = "for good" if both_ns is None else f"for {both_ns / 1e6:.3f} ms"
                    found.append(
                        f"{unit}: started on {later.member_id} (epoch {later.owner_epoch}) while it ran on "
                        f"{earlier.member_id} (epoch {earlier.owner_epoch}), {until}"
                    )
    return found


def running(runs: Iterable[Run]) -> dict[str, list[str]]:
    """The workers on which each unit runs at the end of the log; more than one is an overlap."""
    places: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        if run.end_ns is None:
            places[run.unit].append(run.member_id)
    return places


def downtimes(runs: Iterable[Run], *, since_ns: int) -> list[TaskDowntime]:
    """Each stop at or after a point in time that was followed by a start of the same task, on any worker."""
    found = []
    for unit, its in sorted(by_unit(runs).items()):
        for earlier, later in itertools.pairwise(its):
            if earlier.end_ns is not None and earlier.end_ns >= since_ns:
                seconds = (later.begin_ns - earlier.end_ns) / 1e9
                found.append(TaskDowntime(unit=unit, source=earlier.member_id, target=later.member_id, seconds=seconds))
    return found


def last_start_ns(runs: Iterable[Run], *, since_ns: int) -> int | None:
    """The time of the last start at or after a point in time."""
    return max((run.begin_ns for run in runs if run.begin_ns >= since_ns), default=None)


def parse(lines: Iterable[str]) -> list[Event]:
    """Parse lines as ``IdleConnector`` writes them.

    Raises:
        ValueError: a line has another format.
    """
    events = []
    for line in lines:
        at_ns, what, member_id, unit, owner_epoch = line.split()
        if what not in ("START", "STOP"):
            raise ValueError(f"task log: got {what!r}; allowed: START, STOP")
        events.append(
            Event(
                at_ns=int(at_ns),
                starts=what == "START",
                member_id=member_id,
                unit=unit,
                owner_epoch=int(owner_epoch),
            )
        )
    return events


class TaskLog:
    """A task log that is being written, read incrementally."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self.deaths: list[Death] = []
        self._read = 0
        self._rest = b""

    def poll(self) -> bool:
        """Read new lines; return whether there were any."""
        if not self.path.exists():
            return False
        with self.path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        new = parse(line.decode() for line in lines)
        self.events += new
        return bool(new)

    @property
    def runs(self) -> list[Run]:
        """All events read so far, as runs."""
        return runs_of(self.events, self.deaths)

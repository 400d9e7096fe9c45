"""What ran where and when, and the check that no unit ever ran on two workers at the same time (S2).

A run is *live* from its start until its stop has returned. Two exceptions: a run that its sink fences
(``Connector.fenced``) can write nothing more once its worker has been removed from the group and a successor has
claimed the unit, so it is live until the removal; and a paused worker runs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from .virtual_time import NODE

RESUMED_S = 5.0
"""Seconds that a worker has after a pause to notice that its lease has expired, and to stop its units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One unit on one worker, from the grant to the end of its stop.

    Attributes:
        unit: ``name`` of a connector, ``name-0`` of its first task.
        started_s: the group's clock just before the start.
        ended_s: the group's clock just after the stop, or when the worker was killed; ``None`` while it runs.
        fenced_s: when the group removed the worker of this run, which has not stopped; ``None``: it did not. A newer
            owner may run the unit from then on.
        fenced: whether the sink rejects what this run still writes when a successor has claimed the unit
            (``Connector.fenced``). A connector itself is fenced: it only writes task lists.
        pauses: when its worker was paused and resumed; ``None``: it is paused still.
    """

    unit: str
    worker: str
    owner_epoch: int
    started_s: float
    ended_s: float | None = None
    fenced_s: float | None = None
    fenced: bool = False
    pauses: tuple[tuple[float, float | None], ...] = ()

    @property
    def until_s(self) -> float:
        """The time up to which this run had the unit for itself."""
        removed_s = self.fenced_s if self.fenced else None
        return min(float("inf") if end is None else end for end in (self.ended_s, removed_s))

    def live(self) -> Iterator[tuple[float, float]]:
        """The intervals in which this run could write."""
        start_s = self.started_s
        for paused_s, resumed_s in self.pauses:
            yield start_s, min(paused_s, self.until_s)
            start_s = float("inf") if resumed_s is None else resumed_s + RESUMED_S
        yield start_s, self.until_s

    def overlaps(self, other: Run) -> bool:
        """Whether both runs could write at the same time."""
        return any(
            max(start_s, its_start_s) < min(end_s, its_end_s)
            for start_s, end_s in self.live()
            for its_start_s, its_end_s in other.live()
        )

    def __str__(self) -> str:
        end = "..." if self.ended_s is None else f"{self.ended_s:.3f}"
        removed = "" if self.fenced_s is None else f", its worker was removed at {self.fenced_s:.3f} s"
        fenced = "" if self.fenced else ", not fenced"
        return f"{self.unit}@{self.owner_epoch} on {self.worker} from {self.started_s:.3f} to {end} s{removed}{fenced}"


class History:
    """All runs of a group, in the order of their starts.

    Attributes:
        runs: ended runs and those that continue.
        events: one line for each start, stop, fault and operator action.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._open: dict[tuple[str, str], int] = {}
        self._paused: dict[str, float] = {}
        self._stops = threading.Lock()
        self.runs: list[Run] = []
        self.events: list[str] = []

    def note(self, text: str, at_s: float | None = None) -> None:
        """Add an event."""
        self.events.append(f"{self._now() if at_s is None else at_s:10.3f} s  {text}")

    def started(
        self, worker: str, unit: str, owner_epoch: int, at_s: float | None = None, *, fenced: bool = False
    ) -> None:
        """A worker is about to start a unit; ``fenced``: see ``Run``."""
        at_s = self._now() if at_s is None else at_s
        self.stopped(worker, unit, at_s, quietly=True)
        self._open[worker, unit] = len(self.runs)
        self.runs.append(Run(unit=unit, worker=worker, owner_epoch=owner_epoch, started_s=at_s, fenced=fenced))
        self.note(f"{worker} starts {unit} at owner epoch {owner_epoch}", at_s)

    def fences(self, worker: str, unit: str) -> None:
        """The sink of a unit that a worker runs rejects what the run still writes when a successor has claimed it."""
        index = self._open.get((worker, unit))
        if index is not None:
            self.runs[index] = replace(self.runs[index], fenced=True)

    def paused(self, worker: str, at_s: float | None = None) -> None:
        """A worker process is suspended: nothing of it runs until it resumes."""
        self._paused.setdefault(worker, self._now() if at_s is None else at_s)
        self._pause(worker, None)

    def resumed(self, worker: str) -> None:
        """A suspended worker process continues."""
        self._pause(worker, self._now())

    def _pause(self, worker: str, resumed_s: float | None) -> None:
        paused_s = self._paused.setdefault(worker, self._now())
        if resumed_s is not None:
            del self._paused[worker]
        for index in [index for key, index in self._open.items() if key[0] == worker]:
            run = self.runs[index]
            before = run.pauses if run.pauses[-1:] != ((paused_s, None),) else run.pauses[:-1]
            self.runs[index] = replace(run, pauses=(*before, (paused_s, resumed_s)))

    def stopped(self, worker: str, unit: str, at_s: float | None = None, *, quietly: bool = False) -> None:
        """A worker has stopped a unit."""
        index = self._open.pop((worker, unit), None)
        if index is not None:
            at_s = self._now() if at_s is None else at_s
            self.runs[index] = replace(self.runs[index], ended_s=at_s)
            if not quietly:
                self._note_stop(f"{at_s:10.3f} s  {worker} has stopped {unit}", f"{at_s:10.3f} s  ")

    def _note_stop(self, line: str, time: str) -> None:
        """Add the event of a stop, sorted among those of the same time.

        Tasks stop in threads, whose order in one instant of virtual time differs from run to run; one seed has one
        history.
        """
        with self._stops:
            at = len(self.events)
            while at and self.events[at - 1].startswith(time) and " has stopped " in self.events[at - 1]:
                at -= 1
            self.events[at:] = sorted([*self.events[at:], line])

    def ended(self, worker: str, at_s: float | None = None) -> None:
        """A worker process has died: none of its units runs any more."""
        for _, unit in [key for key in self._open if key[0] == worker]:
            self.stopped(worker, unit, at_s, quietly=True)

    def fenced(self, worker: str, at_s: float | None = None) -> None:
        """The group has removed a worker: its open runs have lost their units, and their sinks fence them."""
        at_s = self._now() if at_s is None else at_s
        for index in [index for key, index in self._open.items() if key[0] == worker]:
            if self.runs[index].fenced_s is None:
                self.runs[index] = replace(self.runs[index], fenced_s=at_s)

    def not_fenced(self, worker: str) -> None:
        """A worker that might have been removed is still a member: its open runs still have their units."""
        for index in [index for key, index in self._open.items() if key[0] == worker]:
            self.runs[index] = replace(self.runs[index], fenced_s=None)

    def running(self, worker: str) -> list[str]:
        """The units that a worker runs now, sorted."""
        return sorted(unit for name, unit in self._open if name == worker)

    def owners(self, workers: Iterable[str]) -> dict[str, str]:
        """Each running unit and its worker, for these workers."""
        return {unit: worker for worker in workers for unit in self.running(worker)}

    def overlaps(self) -> list[tuple[Run, Run]]:
        """All pairs of runs of one unit on two workers whose times overlap."""
        by_unit: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: run.started_s):
            by_unit.setdefault(run.unit, []).append(run)
        return [
            (earlier, later)
            for runs in by_unit.values()
            for index, later in enumerate(runs)
            for earlier in runs[:index]
            if earlier.worker != later.worker and earlier.overlaps(later)
        ]

    def assert_one_owner(self) -> None:
        """Assert that no unit ever ran on two workers at the same time.

        A run counts until its stop has returned. If its sink fences it, it counts until the group had removed its
        worker: from then on its fencing token is stale.
        """
        found = self.overlaps()
        lines = [f"  {earlier}\n  {later}" for earlier, later in found[:5]]
        assert not found, "\n".join([f"{len(found)} times one unit ran on two workers:", *lines])

    def story(self, limit: int = 30) -> str:
        """The last events, for a failure report."""
        return "\n".join(self.events[-limit:])


def counts(owners: Mapping[str, str]) -> dict[str, int]:
    """The number of units of each worker."""
    found: dict[str, int] = {}
    for worker in owners.values():
        found[worker] = found.get(worker, 0) + 1
    return dict(sorted(found.items()))


# --------------------------------------------------------------------------------------------------
# The errors that the coordinator and the workers of a simulated group log, as events of the group's story.
#
# The log has what their messages to each other omit: file and line of a plug-in that raises, and failed stops.


class _Noting(logging.Handler):
    """Adds each error that is logged on an event loop to a history."""

    def __init__(self, history: History, loop: asyncio.AbstractEventLoop, mask: Callable[[str], str]) -> None:
        super().__init__(logging.ERROR)
        self._history, self._loop, self._mask = history, loop, mask

    def emit(self, record: logging.LogRecord) -> None:
        node = NODE.get()
        with contextlib.suppress(RuntimeError):  # not on an event loop
            # Other groups of the same test have event loops of their own.
            if node is not None and asyncio.get_running_loop() is self._loop:
                self._history.note(f"{node.name}: {self._mask(record.getMessage())}")


@contextlib.contextmanager
def noted_errors(history: History, loop: asyncio.AbstractEventLoop, mask: Callable[[str], str]) -> Iterator[None]:
    """Add the errors that are logged on this event loop to the history.

    Args:
        mask: removes credentials from a message.
    """
    logger = logging.getLogger(__package__.partition(".")[0])
    handler = _Noting(history, loop, mask)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)

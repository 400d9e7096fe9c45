"""The run of one test under one seed: after a failure, runs with fewer faults, and the report of the smallest.

Each run sets up the fixtures of the test anew, as plug-ins that repeat failed tests do.

A list of faults is made smaller by delta debugging, for the seeds of the pytest plug-in and for the simulator.

Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (ddmin).
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pytest
from _pytest.runner import runtestprotocol

from .faults import Fault, format_ids

MAX_LINES = 40
"""Faults that a report lists."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How a run failed.

    Attributes:
        place: phase, type of the exception and line of the test; two runs with the same place fail in the same way.
        faults: the faults that occurred, of all groups; ``None`` if the faults cannot be chosen (real processes).
    """

    place: tuple[str, str, int]
    faults: tuple[Fault, ...] | None


ONLY = pytest.StashKey["frozenset[str] | None"]()
"""The ids of the faults that may occur in the test's next run."""

FAILURE = pytest.StashKey[Failure]()
"""How the test's last run failed."""


def place_of(item: pytest.Item, call: pytest.CallInfo[object]) -> tuple[str, str, int]:
    """See ``Failure.place``."""
    assert call.excinfo is not None
    lines = [entry.lineno for entry in call.excinfo.traceback if str(entry.path) == str(item.path)]
    return call.when, call.excinfo.typename, lines[-1] if lines else 0


class SeededRun:
    """The runs of one test under one seed.

    Attributes:
        failed: whether the first run has failed.
    """

    def __init__(
        self, item: pytest.Item, nextitem: pytest.Item | None, seed: int, write: Callable[[str], None]
    ) -> None:
        """Prepare the runs.

        Args:
            write: writes a line about progress.
        """
        self._item, self._nextitem, self._seed, self._write = item, nextitem, seed, write
        self._runs = 0
        self.failed = False

    def run(self, *, shrink_for_s: float) -> list[pytest.TestReport]:
        """Run the test; if it fails, look this long for fewer faults, in seconds of real time.

        Returns:
            The reports of the smallest run that fails, or of the only run.
        """
        reports, failure = self._run(self._item.stash.get(ONLY, None))
        if failure is None:
            return reports
        self.failed = True
        if failure.faults is None:
            self._describe(reports, failure, "")
        elif shrink_for_s <= 0:
            self._describe(reports, failure, _counted(len(failure.faults)))
        else:
            what = f"{self._item.name} fails with {_counted(len(failure.faults))}"
            self._write(f"{what}; running it with fewer, for up to {shrink_for_s:g} s")
            self._shrink(reports, failure, shrink_for_s)
            reports = self._smallest
        return reports

    def _run(self, only: frozenset[str] | None) -> tuple[list[pytest.TestReport], Failure | None]:
        """Run the test with all faults of the seed, or with these alone."""
        item = self._item
        item.stash[ONLY] = only
        if FAILURE in item.stash:
            del item.stash[FAILURE]
        item._report_sections.clear()
        self._runs += 1
        reports = runtestprotocol(item, log=False, nextitem=self._nextitem)
        return reports, item.stash.get(FAILURE, None)

    def _shrink(self, reports: list[pytest.TestReport], first: Failure, seconds: float) -> None:
        assert first.faults is not None
        ends = time.monotonic() + seconds
        self._smallest, smallest = reports, first
        kinds = {fault.id: fault.kind for fault in first.faults}

        def fails(ids: tuple[str, ...]) -> bool:
            nonlocal smallest
            reports, failure = self._run(frozenset(ids))
            if failure is None or failure.place != first.place:
                return False
            self._smallest, smallest = reports, failure
            return True

        def is_late() -> bool:
            return time.monotonic() >= ends

        if not fails(tuple(kinds)):
            why = "the test reads the real clock or unseeded randomness, or keeps state between runs"
            said = f"{_counted(len(first.faults))}. A second run with the same faults did not fail: {why}"
            self._describe(reports, first, said)
            return
        left = () if not kinds or fails(()) else without_kinds(tuple(kinds), kinds.__getitem__, fails, is_late)
        left = shrink(left, fails, is_late)
        # Of those that are left, some may not occur any more in the smallest run: it takes another course.
        count = len(smallest.faults or ())
        said = f"faults left: {count} of {len(first.faults)}, after {self._runs} runs"
        said += "; the time limit (--connectgroup-shrink-seconds) was reached" if is_late() else ""
        self._describe(self._smallest, smallest, said if count else f"{said}: the test fails also without faults")

    def _describe(self, reports: Sequence[pytest.TestReport], failure: Failure, said: str) -> None:
        """Add seed, faults and the command that repeats the run to the report of the failure."""
        lines = [f"seed {self._seed}{': ' if said else ''}{said}"]
        faults = failure.faults or ()
        lines += [str(fault) for fault in faults[:MAX_LINES]]
        if len(faults) > MAX_LINES:
            lines.append(f"{'':13} ... and {len(faults) - MAX_LINES} more")
        words = ["pytest", self._node_id(), "--connectgroup-seed", str(self._seed)]
        if self._item.stash[ONLY] is not None or self._runs > 1:
            words += ["--connectgroup-faults", format_ids([fault.id for fault in faults])]
        lines.append(f"run it again: {shlex.join(words)}")
        self._write(lines[-1])
        next(report for report in reports if report.failed).sections.append(("seed", "\n".join(lines)))

    def _node_id(self) -> str:
        """Without the seed, which the command's option gives, unless the test has other parameters too.

        The path is relative to the directory where pytest was started; that of pytest's own id is relative to its
        rootdir.
        """
        parameters: dict[str, object] = self._item.callspec.params  # type: ignore[attr-defined]
        name = self._item.nodeid.partition("::")[2]
        path = os.path.relpath(self._item.path, self._item.config.invocation_params.dir)
        return f"{path}::{name if len(parameters) > 1 else name.partition('[')[0]}"


def _counted(faults: int) -> str:
    return f"{faults} fault" if faults == 1 else f"{faults} faults"


T = TypeVar("T")


def shrink(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool], is_late: Callable[[], bool]) -> tuple[T, ...]:
    """The smallest part of the items found for which the run still fails; the items keep their order.

    Without a time limit, the run passes if any single item of the result is left out.

    Args:
        items: a run with all of them fails.
        fails: whether a run with only these items fails in the same way.
        is_late: whether to stop here, with the smallest part found so far.
    """
    left, parts = tuple(items), 2
    while left and not is_late():
        size = max(1, len(left) // parts)
        for start in range(0, len(left), size):
            fewer = left[:start] + left[start + size :]
            if fails(fewer):
                left = fewer
                break
            if is_late():
                return left
        else:
            if size == 1:
                return left
            parts = min(2 * parts, len(left))
            continue
        parts = max(2, parts - 1)
    return left


def without_kinds(
    items: Sequence[T],
    kind: Callable[[T], Hashable],
    fails: Callable[[tuple[T, ...]], bool],
    is_late: Callable[[], bool],
) -> tuple[T, ...]:
    """The items without each kind that the failure does not need; most failures need one kind, so this goes first."""
    left = tuple(items)
    for each in dict.fromkeys(map(kind, items)):
        fewer = tuple(item for item in left if kind(item) != each)
        if is_late():
            break
        if fails(fewer):
            left = fewer
    return left

"""One scenario: rows flow from growing files through connectors, faults are injected, and all rows are compared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from connectgroup.protocol.units import Unit
from tests.volume import SIZE

from .cluster import LocalGroup
from .flow import Feeder, Pipe, compare

SINKS = ("sqlite",) if SIZE == "user" else ("sqlite", "parquet")


class Scenario:
    """A directory of growing files, and one connector per sink that reads it."""

    def __init__(self, cluster: LocalGroup, root: Path, name: str) -> None:
        self.cluster, self.root, self.name = cluster, root, name
        self.pipes: list[Pipe] = []
        self._feeder: Feeder | None = None

    @property
    def feeder(self) -> Feeder:
        assert self._feeder is not None, "feed first"
        return self._feeder

    def feed(self, form: str = "csv") -> Feeder:
        """Create the source directory; the feeder starts paused."""
        self._feeder = Feeder(self.root / "source", form=form)
        return self._feeder

    def pipe(
        self, sink: str, *, tasks: int = 2, output: Path | None = None, settings: Mapping[str, str] | None = None
    ) -> Pipe:
        """A connector with a sink; created by ``run``."""
        made = Pipe(
            f"{self.name}-{sink}", self.root / "source", output or self.root, sink, tasks=tasks, settings=settings
        )
        self.pipes.append(made)
        return made

    def run(self, *, tasks: int = 2, sinks: Sequence[str] = SINKS, settings: Mapping[str, str] | None = None) -> None:
        """Create the connectors, start the feeder, and wait until rows have arrived in every sink."""
        for sink in sinks:
            self.pipe(sink, tasks=tasks, settings=settings)
        feeder = self.feed()
        self.cluster.run(*self.pipes)
        feeder.flow()
        self.wait_for_rows()

    def wait_for_rows(self, rows: int = 1_000) -> None:
        """Wait until this number of further rows has been written, and all of them are in every sink."""
        self.feeder.flow()
        due = self.feeder.written + rows
        self.cluster.wait(f"{due} rows written", lambda: self.feeder.written >= due)
        self.arrived()

    def arrived(self) -> None:
        """Wait until every row written so far is in every sink."""
        due = self.feeder.written
        for pipe in self.pipes:
            count = pipe.count()
            self.cluster.wait(f"{due} rows in {pipe.name}, where {count} were", partial(self._are_in, pipe, due))

    @staticmethod
    def _are_in(pipe: Pipe, rows: int) -> bool:
        return pipe.count() >= rows

    @contextlib.contextmanager
    def blocked_commits(self, worker: str) -> Iterator[dict[Unit, int]]:
        """Bring a worker to the point where it has read a batch for each of its tasks and waits for the sink's lock.

        Another connection locks the sinks until the end of the block; the feeder writes. Needs the connector
        ``witnessed-pipeline``.

        Yields:
            The worker's tasks with their owner epochs.
        """
        pipes = {pipe.name: pipe for pipe in self.pipes}
        self.feeder.pause()
        self.arrived()
        grants = self.cluster.tasks_of(worker, *pipes)
        assert {unit.connector for unit in grants} == set(pipes), f"{worker} should have a task of every sink: {grants}"

        def tried(unit: Unit) -> int:
            return len(pipes[unit.connector].witness_lines("TRY", unit.task, grants[unit]))

        def returned(unit: Unit) -> int:
            words = ("IN", "KNOWN", "REFUSED", "FAILED")
            return sum(len(pipes[unit.connector].witness_lines(word, unit.task, grants[unit])) for word in words)

        self.cluster.wait("every commit returned", lambda: all(tried(unit) == returned(unit) for unit in grants))
        with contextlib.ExitStack() as locks:
            for pipe in self.pipes:
                locks.enter_context(pipe.locked())
            # From here on no commit succeeds, so the next attempt of each task blocks.
            before = {unit: tried(unit) for unit in grants}
            self.feeder.flow()
            self.cluster.wait(
                f"a batch of each of {sorted(grants)} in hand",
                lambda: all(tried(unit) > before[unit] for unit in grants),
            )
            yield grants

    def finish(self) -> None:
        """Wait until all rows arrive, delete the connectors, and compare every sink with the written rows."""
        self.feeder.close()
        self.arrived()
        for pipe in self.pipes:
            self.cluster.delete(pipe.name)
        for pipe in self.pipes:
            compare(pipe, self.feeder.written)

    def close(self) -> None:
        """Delete what is left, also after a failure."""
        if self._feeder is not None:
            self._feeder.close()
        there = {connector.connector for connector in self.cluster.describe().connectors}
        for pipe in self.pipes:
            if pipe.name in there:
                self.cluster.delete(pipe.name)

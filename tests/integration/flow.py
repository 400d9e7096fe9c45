"""Rows with unique ids, written to growing files while connectors read them, and the comparison at the end."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from connectgroup.dataplane.ownership import EPOCH_BITS
from connectgroup.spark.sinks.parquet import MANIFEST, read_committed

Row = tuple[int, str]

FILES = 12
ROWS_A_TURN = 25
TURN_S = 0.02
TRIGGER_MS = "250"
"""At a shorter interval, batches of a few rows follow each other without a pause and take all processors."""

PARTS = 3
"""Number of pieces in which a turn's bytes are written, cut anywhere: readers must see whole lines only."""


def row(number: int) -> Row:
    """The row of an id; its text is unique."""
    return number, f"row {number} {zlib.crc32(str(number).encode()):08x}"


class Feeder:
    """Writes rows 0, 1, 2, ... to the files of a directory, from its own thread, until it is closed."""

    def __init__(self, directory: Path, *, form: str = "csv") -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.written = 0
        """Number of complete rows on disk."""
        self.turn_s = TURN_S
        """Time between two turns; the feeder's thread reads it after each."""
        self._form = form
        self._turn = 0
        self._flowing = threading.Event()
        self._paused = threading.Event()
        self._paused.set()
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def flow(self) -> None:
        """Resume writing."""
        self._paused.clear()
        self._flowing.set()

    @property
    def is_flowing(self) -> bool:
        """Whether rows are written."""
        return self._flowing.is_set()

    def pause(self) -> None:
        """Pause writing; every row begun is complete when this returns."""
        self._flowing.clear()
        assert self._paused.wait(30), f"the feeder did not pause: {self._error}"
        assert self._error is None, self._error

    def close(self) -> None:
        """Stop writing."""
        self.pause()
        self._ended = True
        self._flowing.set()
        self._thread.join(30)

    def write(self, rows: int) -> None:
        """Write this number of rows, in the caller's thread; only while the feeder is paused."""
        assert self._paused.is_set()
        for begin in range(0, rows, ROWS_A_TURN):
            self._write(min(ROWS_A_TURN, rows - begin))

    def lines(self, begin: int, end: int) -> bytes:
        """The rows as formatted in a file."""
        form = "{},{}\n" if self._form == "csv" else '{{"id": {}, "text": "{}"}}\n'
        return "".join(form.format(*row(number)) for number in range(begin, end)).encode()

    def _run(self) -> None:
        pace = threading.Event()
        try:
            while True:
                if not self._flowing.is_set():
                    self._paused.set()
                self._flowing.wait()
                if self._ended:
                    return
                self._write(ROWS_A_TURN)
                pace.wait(self.turn_s)
        except BaseException as error:
            self._error = error
            self._paused.set()

    def _write(self, rows: int) -> None:
        # A few files that grow for long, and a new file every tenth turn.
        name = f"late-{self._turn}" if self._turn % 10 == 9 else f"file-{self._turn % FILES}"
        self._turn += 1
        path = self.directory / f"{name}.{self._form}"
        data = self.lines(self.written, self.written + rows)
        if self._form == "csv" and not path.exists():
            data = b"id,text\n" + data
        size = len(data) // PARTS + 1
        with path.open("ab", buffering=0) as file:
            for begin in range(0, len(data), size):
                os.write(file.fileno(), data[begin : begin + size])
        self.written += rows


class Pipe:
    """One connector's configuration, and the rows in its sink."""

    def __init__(
        self,
        name: str,
        source: Path,
        output: Path,
        sink: str,
        *,
        tasks: int = 2,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Create the pipe without running it.

        Args:
            sink: ``sqlite`` or ``parquet``.
            settings: more of the configuration.
        """
        self.name, self.sink, self.tasks = name, sink, tasks
        self.output = output / (f"{name}.db" if sink == "sqlite" else name)
        self.config = {
            "connector.class": "pipeline",
            "tasks.max": str(tasks),
            "source": "files",
            "source.path": str(source),
            "source.format": "csv",
            "source.schema": "id BIGINT, text STRING",
            "sink": sink,
            "sink.path": str(self.output),
            "trigger.ms": TRIGGER_MS,
            **({"sink.table": "rows"} if sink == "sqlite" else {}),
            **(settings or {}),
        }

    @property
    def database(self) -> Path:
        """The SQLite file that a commit writes to."""
        return self.output if self.sink == "sqlite" else self.output / MANIFEST

    @property
    def witness(self) -> Path:
        """The file to which the connector ``witnessed-pipeline`` writes its lines."""
        return Path(f"{self.output}.witness")

    def count(self) -> int:
        """Number of rows in the sink."""
        table = ("SELECT count(*) FROM rows", "SELECT coalesce(sum(rows), 0) FROM connectgroup_manifest")
        return self._query(table[self.sink == "parquet"])

    def rows(self) -> Counter[Row]:
        """Every row in the sink, as a user would read it."""
        if not self.database.exists():
            return Counter()
        if self.sink == "sqlite":
            with contextlib.closing(sqlite3.connect(self.output)) as connection:
                return Counter(connection.execute("SELECT id, text FROM rows"))
        import pyarrow.parquet

        tables = [pyarrow.parquet.read_table(file) for file in read_committed(self.output)]
        return Counter(pair for t in tables for pair in zip(t["id"].to_pylist(), t["text"].to_pylist(), strict=True))

    def fence(self, task: int) -> int:
        """The highest owner epoch of a task that the sink has recorded."""
        token = self._query(
            "SELECT coalesce(max(epoch), -1) FROM connectgroup_fences WHERE connector = ? AND task = ?", self.name, task
        )
        return token & EPOCH_BITS if token >= 0 else token

    def witness_lines(self, word: str, task: int, epoch: int) -> list[str]:
        """The witness's lines of one kind for one grant."""
        if not self.witness.exists():
            return []
        begin = f"{word} {self.name}-{task} {epoch}"
        return [line for line in self.witness.read_text().splitlines() if line == begin or line.startswith(f"{begin} ")]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the sink's write lock, so that no commit succeeds."""
        with contextlib.closing(sqlite3.connect(self.database, timeout=60, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")

    def is_locked(self, patience_s: float = 1.0) -> bool:
        """Whether the sink's write lock is held for longer than a live writer holds it, less than a session."""
        try:
            with contextlib.closing(
                sqlite3.connect(self.database, timeout=patience_s, isolation_level=None)
            ) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                return True
            raise
        return False

    def _query(self, statement: str, *values: object) -> int:
        if not self.database.exists():
            return 0
        try:
            with contextlib.closing(sqlite3.connect(self.database, timeout=60)) as connection:
                return int(connection.execute(statement, values).fetchone()[0])
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return 0
            raise


class Readable(Protocol):
    """A sink whose rows can be read back."""

    name: str

    def rows(self) -> Counter[Row]:
        """Every row in the sink."""


def compare(pipe: Readable, written: int, row_of: Callable[[int], Row] = row) -> None:
    """Fail unless the sink has exactly the rows 0 to ``written``, each once."""
    expected, found = Counter(map(row_of, range(written))), pipe.rows()
    lost, doubled = expected - found, found - expected
    some = {"lost": sorted(lost)[:5], "doubled or foreign": sorted(doubled)[:5]}
    assert not lost, f"{pipe.name}: {lost.total()} of {written} rows lost, {doubled.total()} doubled: {some}"
    assert not doubled, f"{pipe.name}: {doubled.total()} rows doubled or foreign of {written}: {some}"

"""A sink of your own in one file: all tasks append to one text file.

A distribution registers it; a connector names it as ``sink``:

    [project.entry-points."connectgroup.sinks"]
    journal = "own_sink:JournalSink"

Fences, positions and the committed length of the file are in a database next to it. A batch is appended behind the
committed length, and the transaction that advances the positions advances the length. So what a crash leaves behind the
committed length is overwritten, and readers stop there. ``own_pipeline.py`` runs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from connectgroup import Sink
from connectgroup.dataplane.columns import Columns
from connectgroup.dataplane.fences import Transaction
from connectgroup.dataplane.offset_store import FilePositions, OffsetStore
from connectgroup.dataplane.ownership import Owner, Range
from connectgroup.dataplane.settings import PluginSettings
from connectgroup.dataplane.sink import PositionStore

if TYPE_CHECKING:
    import pyarrow as pa


class JournalSettings(PluginSettings):
    """Settings, each with the prefix ``sink.``."""

    path: Annotated[str, Field(min_length=1, description="a text file, as an absolute path")]


class JournalSink(Sink):
    """Appends each row as one line of values, separated by tabs."""

    Settings = JournalSettings

    def __init__(self, path: Path) -> None:
        self.path, self.store = path, OffsetStore(database(path))
        self.store.execute("CREATE TABLE IF NOT EXISTS journal (length INTEGER NOT NULL)")

    @classmethod
    def create(cls, settings: Any, columns: Columns) -> Sink:
        return cls(Path(settings.path))

    @classmethod
    def open_positions(cls, settings: Any) -> PositionStore:
        """Let operators show and alter the offsets."""
        return FilePositions(database(Path(settings.path)))

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        return self.store.claim(owner, is_mine)

    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        text = "".join("\t".join(map(str, row.values())) + "\n" for row in rows.to_pylist()).encode()

        def append(transaction: Transaction) -> None:
            found = transaction.execute("SELECT length FROM journal")
            length: int = found[0][0] if found else 0
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                os.ftruncate(file, length)
                os.pwrite(file, text, length)
                os.fsync(file)
            finally:
                os.close(file)
            transaction.execute("DELETE FROM journal")
            transaction.execute("INSERT INTO journal VALUES (?)", length + len(text))

        return self.store.commit(owner, ranges, append)

    def close(self) -> None:
        self.store.close()


def database(path: Path) -> Path:
    """The database next to the file."""
    return path.with_name(path.name + ".positions")


def read_committed(path: Path) -> list[str]:
    """The lines of the journal up to its committed length."""
    store = OffsetStore(database(path))
    try:
        found = store.execute("SELECT length FROM journal")
    finally:
        store.close()
    return path.read_bytes()[: found[0][0]].decode().splitlines() if found else []

"""The sink ``console``: rows on the worker's standard output, for trials.

Printed lines cannot be taken back, so a row may be printed twice: after a worker was killed between printing and the
commit of the offsets. Without ``offsets`` the positions are in memory alone, and a task that starts prints all rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from ...connector import LocalPath
from ...dataplane.columns import Columns, as_objects, json_encoder
from ...dataplane.fences import Transaction
from ...dataplane.offset_store import FilePositions, OffsetStore
from ...dataplane.ownership import Owner, Range
from ...dataplane.settings import PluginSettings, require_absolute
from ...dataplane.sink import Sink

if TYPE_CHECKING:
    import pyarrow as pa

_JSON: Final = json_encoder(compact=False)


class ConsoleSettings(PluginSettings):
    """Settings of the sink ``console``, each with the prefix ``sink.``."""

    offsets: Annotated[
        str, LocalPath(), Field(description="an SQLite file for the offsets, as an absolute path; in memory by default")
    ] = ""
    max_rows: Annotated[int, Field(ge=0, description="rows to print of each batch, from 0")] = 20

    def model_post_init(self, _: Any) -> None:
        """Check the path.

        Raises:
            ConfigError: the path is relative.
        """
        if self.offsets:
            require_absolute("sink.offsets", self.offsets, "an SQLite file, as an absolute path")


class ConsoleSink(Sink):
    """Prints each row as a JSON object."""

    Settings = ConsoleSettings
    fenced = False

    def __init__(self, settings: ConsoleSettings) -> None:
        """Open the store of the offsets.

        Raises:
            SinkError: the file cannot be opened.
        """
        self._settings = settings
        self._store = OffsetStore(Path(settings.offsets or ":memory:"), is_real=True)

    @classmethod
    def create(cls, settings: ConsoleSettings, columns: Columns) -> ConsoleSink:
        return cls(settings)

    @classmethod
    def open_positions(cls, settings: ConsoleSettings) -> FilePositions | None:
        return FilePositions(Path(settings.offsets), is_real=True) if settings.offsets else None

    @classmethod
    def check_access(cls, settings: ConsoleSettings) -> None:
        if (positions := cls.open_positions(settings)) is not None:
            positions.check_access()

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        return self._store.claim(owner, is_mine)

    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        import pyarrow as pa

        def write(_: Transaction) -> None:
            shown = as_objects(rows.slice(0, self._settings.max_rows).to_pylist(), pa.struct(rows.schema))
            lines = [_JSON(row) for row in shown]
            if rows.num_rows > len(lines):
                lines.append(f"... and {rows.num_rows - len(lines)} more rows")
            sys.stdout.write("".join(f"{owner.connector}-{owner.task}: {line}\n" for line in lines))
            sys.stdout.flush()

        return self._store.commit(owner, ranges, write)

    def close(self) -> None:
        self._store.close()

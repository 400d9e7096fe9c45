"""The sink ``sqlite``: writes rows to a table of the SQLite file that also stores the offsets.

Rows become visible with the transaction that checks the fencing tokens and advances the offsets
(``dataplane.offset_store``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from ...dataplane.columns import Columns, sqlite_type
from ...dataplane.errors import SinkError
from ...dataplane.offset_store import BUSY_TIMEOUT_S, OffsetStore, Transaction
from ...dataplane.ownership import Owner, Range
from ...dataplane.settings import PluginSettings, require_absolute
from ...dataplane.sink import Sink
from ...errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_NAMES: Final = "a name of letters, digits and _, not starting with connectgroup_ or sqlite_"
_TABLE: Final = re.compile(r"(?!connectgroup_|sqlite_)[A-Za-z_]\w{0,62}", re.IGNORECASE | re.ASCII)


class SqliteSettings(PluginSettings):
    """Settings of the sink ``sqlite``, each with the prefix ``sink.``."""

    path: Annotated[str, Field(min_length=1, description="a database file, as an absolute path")]
    table: Annotated[str, Field(description=TABLE_NAMES)]
    busy_timeout_ms: Annotated[int, Field(ge=1, le=60_000, description="1 to 60000")] = 5_000

    def model_post_init(self, _: Any) -> None:
        """Check the path and the table name.

        Raises:
            ConfigError: the path is relative, or the table name is not allowed.
        """
        if not _TABLE.fullmatch(self.table):
            raise ConfigError("sink.table", self.table, TABLE_NAMES)
        require_absolute("sink.path", self.path, "a database file, as an absolute path")


class SqliteSink(Sink):
    """Writes rows to a table of the SQLite file that stores the offsets; creates the table if it is missing."""

    Settings = SqliteSettings

    def __init__(self, path: Path, table: str, columns: Columns, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        """Open the file; create the table or check its columns.

        Raises:
            SinkError: the file cannot be opened, or the table lacks a column of the source.
        """
        self._store = OffsetStore(path, busy_timeout_s=busy_timeout_s)
        self._columns = columns
        names = ", ".join(_quoted(column.name) for column in columns)
        self._insert = f"INSERT INTO {_quoted(table)} ({names}) VALUES ({', '.join('?' * len(columns))})"
        try:
            self._make_table(path, table)
        except BaseException:
            self._store.close()
            raise

    @classmethod
    def create(cls, settings: SqliteSettings, columns: Columns) -> SqliteSink:
        return cls(Path(settings.path), settings.table, columns, busy_timeout_s=settings.busy_timeout_ms / 1000)

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        return self._store.claim(owner, is_mine)

    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        # Convert before the transaction: while it is open, every other task that writes to this file waits.
        values = list(_rows(rows, self._columns))

        def write(transaction: Transaction) -> None:
            transaction.execute_many(self._insert, values)

        return self._store.commit(owner, ranges, write)

    def close(self) -> None:
        self._store.close()

    def _make_table(self, path: Path, table: str) -> None:
        found = [row[1] for row in self._store.execute(f"PRAGMA table_info({_quoted(table)})")]
        if not found:
            columns = ", ".join(f"{_quoted(column.name)} {sqlite_type(column)}" for column in self._columns)
            self._store.execute(f"CREATE TABLE IF NOT EXISTS {_quoted(table)} ({columns})")
            return
        known = {str(name).lower() for name in found}
        for column in self._columns:
            if column.name.lower() not in known:
                raise SinkError(
                    f"{path}: table {table} has no column {column.name};"
                    f" allowed: a table with all columns of the source, or a name that is not taken"
                )


def _rows(table: pa.Table, columns: Columns) -> Iterator[tuple[Any, ...]]:
    """Convert rows to SQLite values: booleans to 0 and 1, dates and times to ISO text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = []
    for column, array in zip(columns, table.select([column.name for column in columns]).columns, strict=True):
        if column.type == "TIMESTAMP":
            # A cast that keeps the time zone gives the same text and takes six times as long.
            array = pc.binary_join_element_wise(array.cast(pa.timestamp("us")).cast(pa.string()), "Z", "")
        elif column.type == "DATE":
            array = array.cast(pa.string())
        elif column.type == "BOOLEAN":
            array = array.cast(pa.int8())
        elif pa.types.is_nested(array.type):
            array = pa.array(as_json(array))
        elif pa.types.is_decimal(array.type):
            array = array.cast(pa.string())
        values.append(array.to_pylist())
    return zip(*values, strict=True)


def as_json(values: pa.ChunkedArray) -> list[str | None]:
    """Return structs, arrays and maps as JSON text."""
    return [None if value is None else json.dumps(value, default=str) for value in values.to_pylist()]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

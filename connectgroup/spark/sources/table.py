"""The sources ``sqlite`` and ``postgres``: the rows of a table, in the order of an incrementing integer column.

A slice is a part of the key space (the keys that are *k* modulo ``slices``). Its position is the next key to read: all
rows with smaller keys have been read. Rows are expected to be inserted with growing keys and not to change.
``postgres_table`` has the part that is special to PostgreSQL.
"""

from __future__ import annotations

import re
import sqlite3
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import Field

from ...connector import Lag, LocalPath
from ...dataplane.columns import Column, Columns, check_names, from_ddl, sql_name, to_arrow
from ...dataplane.errors import SourceError
from ...dataplane.offset_store import connect_to
from ...dataplane.ownership import Range
from ...dataplane.settings import PluginSettings, require_absolute
from ...errors import ConfigError
from .sliced import SlicedSource

if TYPE_CHECKING:
    import pyarrow as pa


MAX_COUNTED: Final = 100_000
"""A query for the lag counts at most this many rows; with more, the lag is not known."""


class TableSettings(PluginSettings):
    """Settings of a source that reads a table, each with the prefix ``source.``."""

    table: Annotated[str, Field(min_length=1, description="the name of a table or view")]
    incrementing_column: Annotated[
        str, Field(min_length=1, description="an integer column, unique and growing, with an index")
    ]
    slices: Annotated[
        int, Field(ge=1, le=1000, description="1 to 1000: parts of the key space; a task reads whole")
    ] = 1
    max_rows_per_batch: Annotated[int, Field(ge=1, le=10_000_000, description="1 to 10000000")] = 100_000


class TableSource(SlicedSource):
    """The rows of one table, read by one task; a subclass for each database."""

    settings: Any
    slice_form: ClassVar[tuple[str, str]] = (r"keys (\d{1,9}) of (\d{1,9})", "keys K of N, as the offsets show them")

    def __init__(self, settings: TableSettings, columns: Columns, *, task: int, tasks: int) -> None:
        """Store the arguments; check the incrementing column.

        Raises:
            ConfigError: the incrementing column does not exist or is no integer.
        """
        self.settings, self.columns, self.task, self.tasks = settings, columns, task, tasks
        integers = [column.name for column in columns if column.type in ("SMALLINT", "INT", "BIGINT")]
        if settings.incrementing_column not in integers:
            raise ConfigError(
                "source.incrementing.column", settings.incrementing_column, f"an integer column: {', '.join(integers)}"
            )

    def owns(self, slice_name: str) -> bool:
        match = re.fullmatch(self.slice_form[0], slice_name)
        return match is not None and int(match[1]) % self.tasks == self.task

    def plan(self, start: Mapping[str, int]) -> dict[str, int]:
        end = dict(start)
        numbers = range(self.task, self.settings.slices, self.tasks)
        limit = self.highest_key() if numbers else None
        if limit is None:
            return end
        for number in numbers:
            name = f"keys {number} of {self.settings.slices}"
            last = self.last_key(number, start.get(name, 0), limit)
            if last is not None:
                end[name] = last + 1
        return end

    @abstractmethod
    def highest_key(self) -> int | None:
        """Return a key such that no row with this key or a smaller one will be inserted any more; None without one."""

    @abstractmethod
    def last_key(self, number: int, start: int, limit: int) -> int | None:
        """Return the last key of a slice's next batch: at least ``start``, at most ``limit``; None without rows."""

    def lag(self, positions: Mapping[str, int]) -> Lag | None:
        left = 0
        for number in range(self.task, self.settings.slices, self.tasks):
            left += self.count_rows(number, positions.get(f"keys {number} of {self.settings.slices}", 0))
            if left > MAX_COUNTED:
                return None
        return Lag(records=left)

    @abstractmethod
    def count_rows(self, number: int, start: int) -> int:
        """Return the rows of a slice from this key on; if there are more than ``MAX_COUNTED``, one more than that."""

    def count_query(self, key: str, table: str) -> str:
        """Return the query for ``count_rows``; its parameters are the start, ``slices``, the number and a count."""
        condition = f"{key} >= ? AND {key} % ? = ?"
        return f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {condition} LIMIT ?) AS rest"

    def last_key_query(self, key: str, table: str) -> str:
        """Return the query for ``last_key``; its parameters are ``_parameters(number, start, limit)`` and a count."""
        condition = f"{key} >= ? AND {key} <= ? AND {key} % ? = ?"
        return f"SELECT max(k) FROM (SELECT {key} AS k FROM {table} WHERE {condition} ORDER BY {key} LIMIT ?) AS batch"


class SqliteTableSettings(TableSettings):
    """Settings of the source ``sqlite``, each with the prefix ``source.``."""

    path: Annotated[str, LocalPath(), Field(min_length=1, description="a database file, as an absolute path")]
    schema_: Annotated[
        str | None,
        Field(alias="schema", description="columns as NAME TYPE, separated by commas; those of the table by default"),
    ] = None

    def model_post_init(self, _: Any) -> None:
        """Check the path and the schema.

        Raises:
            ConfigError: the path is relative, or the schema is not valid.
        """
        require_absolute("source.path", self.path, "a database file, as an absolute path")
        if self.schema_ is not None:
            from_ddl(self.schema_)


class SqliteTableSource(TableSource):
    """The rows of a table in an SQLite file. Writers of SQLite are serialized, so keys appear in their order."""

    Settings = SqliteTableSettings
    settings: SqliteTableSettings

    @classmethod
    def create(cls, settings: SqliteTableSettings, *, task: int, tasks: int) -> SqliteTableSource:
        if settings.schema_ is not None:
            return cls(settings, from_ddl(settings.schema_), task=task, tasks=tasks)
        with _opened(settings.path) as connection:
            found = connection.execute(f"PRAGMA table_info({sql_name(settings.table)})").fetchall()
        if not found:
            raise SourceError(f"{settings.path}: table {settings.table} does not exist; allowed: a table or view")
        columns = [Column(str(row[1]), _type_of(str(row[2]))) for row in found]
        return cls(settings, check_names(columns, field="source.table"), task=task, tasks=tasks)

    @classmethod
    def check_access(cls, settings: SqliteTableSettings, *, tasks: int) -> None:
        # With a schema, create does not open the file.
        cls.create(settings.model_copy(update={"schema_": None}), task=0, tasks=tasks)

    @property
    def description(self) -> str:
        return f"table {self.settings.table} of {self.settings.path} by {self.settings.incrementing_column}"

    def highest_key(self) -> int | None:
        key, table = sql_name(self.settings.incrementing_column), sql_name(self.settings.table)
        return self._one(f"SELECT max({key}) FROM {table}", ())

    def last_key(self, number: int, start: int, limit: int) -> int | None:
        query = self.last_key_query(sql_name(self.settings.incrementing_column), sql_name(self.settings.table))
        return self._one(query, (start, limit, self.settings.slices, number, self.settings.max_rows_per_batch))

    def count_rows(self, number: int, start: int) -> int:
        query = self.count_query(sql_name(self.settings.incrementing_column), sql_name(self.settings.table))
        return self._one(query, (start, self.settings.slices, number, MAX_COUNTED + 1)) or 0

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        number = int(wanted.slice.split()[1])
        key = sql_name(self.settings.incrementing_column)
        names = ", ".join(sql_name(column.name) for column in self.columns)
        with _opened(self.settings.path) as connection:
            rows = connection.execute(
                f"SELECT {names} FROM {sql_name(self.settings.table)} WHERE {key} >= ? AND {key} < ? AND {key} % ? = ?"
                f" ORDER BY {key}",
                (wanted.start, wanted.end, self.settings.slices, number),
            ).fetchall()
        values: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [[] for _ in self.columns]
        schema = to_arrow(self.columns)
        arrays = [
            self._array(column, list(items), field.type)
            for column, items, field in zip(self.columns, values, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _array(self, column: Column, values: list[Any], kind: pa.DataType) -> pa.Array:
        import pyarrow as pa

        try:
            if column.type in ("DATE", "TIMESTAMP"):
                return pa.array(values, pa.string()).cast(kind)
            if column.type == "BOOLEAN":
                return pa.array(values, pa.int64()).cast(kind)
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SourceError(
                f"{self.settings.path}: table {self.settings.table}: a value of column {column.name} is not"
                f" {column.type} ({error}); allowed: values of the declared type, or another type in source.schema"
            ) from error

    def _one(self, query: str, values: tuple[int, ...]) -> int | None:
        with _opened(self.settings.path) as connection:
            found: int | None = connection.execute(query, values).fetchone()[0]
        return found


@contextmanager
def _opened(path: str) -> Iterator[sqlite3.Connection]:
    """A connection that only reads; errors of SQLite become ``SourceError``."""
    try:
        with closing(connect_to(Path(path), f"{Path(path).as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise SourceError(f"{path}: SQLite says {str(error)!r}; allowed: a database with this table") from error


def _type_of(declared: str) -> str:
    """Return the column type for a declared type, by SQLite's rules of affinity."""
    upper = declared.upper()
    if "INT" in upper or upper.startswith("BOOL"):
        return "BIGINT"
    return "DOUBLE" if any(word in upper for word in ("REAL", "FLOA", "DOUB")) else "STRING"

"""The source ``postgres``: the rows of a table of PostgreSQL, in the order of an incrementing integer column.

Transactions commit in another order than they take their keys. A key counts as read only when no transaction that may
still insert a smaller key is running: the source notes the highest key, then the transactions that hold a lock for
writing the table; once all of these have ended, every row up to the noted key is visible (CREATE INDEX CONCURRENTLY
waits in the same way). This holds for keys that the table's default or identity column generates while it inserts, not
for keys that a program has reserved earlier.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, SecretStr

from ...dataplane.columns import Column, Columns, check_names, sql_name, to_arrow
from ...dataplane.errors import SinkError, SourceError
from ...dataplane.ownership import Range
from ...dataplane.postgres_store import connect, run, told_as, where
from .table import MAX_COUNTED, TableSettings, TableSource

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

_TYPES: Final = {
    "bool": "BOOLEAN",
    "int2": "SMALLINT",
    "int4": "INT",
    "int8": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "date": "DATE",
    "timestamptz": "TIMESTAMP",
    "timestamp": "TIMESTAMP",
}
"""Types by name in PostgreSQL; all others are read as text, numbers of type numeric too."""


class PostgresTableSettings(TableSettings):
    """Settings of the source ``postgres``, each with the prefix ``source.``."""

    url: Annotated[
        str, Field(description="a connection string of libpq, such as postgresql://user@host:5432/database")
    ] = ""
    password: Annotated[SecretStr | None, Field(description="the password, if not in libpq's password file")] = None
    schema_: Annotated[str, Field(alias="schema", description="a schema; the search path by default")] = ""


class PostgresTableSource(TableSource):
    """The rows of a table of PostgreSQL, by a growing integer column. Timestamps without a time zone count as UTC."""

    Settings = PostgresTableSettings
    settings: PostgresTableSettings

    def __init__(self, settings: PostgresTableSettings, columns: Columns, *, task: int, tasks: int) -> None:
        super().__init__(settings, columns, task=task, tasks=tasks)
        self._connection: psycopg.Connection | None = None
        self._safe: int | None = None
        self._candidate: tuple[int, frozenset[str]] | None = None

    @classmethod
    def create(cls, settings: PostgresTableSettings, *, task: int, tasks: int) -> PostgresTableSource:
        with _connected(settings) as connection:
            found = _run(
                connection,
                "SELECT a.attname, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
                " WHERE a.attrelid = to_regclass(?) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
                _table(settings),
            )
            if not found:
                place = where(connection)
                raise SourceError(f"{place}: table {settings.table} does not exist; allowed: a table or view")
        columns = [Column(name, _TYPES.get(kind, "STRING")) for name, kind in found]
        return cls(settings, check_names(columns, field="source.table"), task=task, tasks=tasks)

    @property
    def description(self) -> str:
        return f"table {_table(self.settings)} of PostgreSQL by {self.settings.incrementing_column}"

    def highest_key(self) -> int | None:
        connection = self._kept()
        if self._candidate is None:
            key = sql_name(self.settings.incrementing_column)
            ((highest,),) = _run(connection, f"SELECT max({key}) FROM {_table(self.settings)}")
            if highest is not None and highest != self._safe:
                self._candidate = highest, self._writers(connection)
        if self._candidate is not None:
            highest, writers = self._candidate
            # The writers may have ended since; those that began later take larger keys.
            if not writers or not writers & self._writers(connection):
                self._safe, self._candidate = highest, None
        return self._safe

    def last_key(self, number: int, start: int, limit: int) -> int | None:
        query = self.last_key_query(sql_name(self.settings.incrementing_column), _table(self.settings))
        values = (start, limit, self.settings.slices, number, self.settings.max_rows_per_batch)
        ((last,),) = _run(self._kept(), query, *values)
        return None if last is None else int(last)

    def count_rows(self, number: int, start: int) -> int:
        query = self.count_query(sql_name(self.settings.incrementing_column), _table(self.settings))
        with _connected(self.settings) as connection:
            ((count,),) = _run(connection, query, start, self.settings.slices, number, MAX_COUNTED + 1)
        return int(count)

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        number = int(wanted.slice.split()[1])
        key = sql_name(self.settings.incrementing_column)
        query: Any = (
            f"COPY (SELECT {', '.join(sql_name(column.name) for column in self.columns)} FROM {_table(self.settings)}"
            f" WHERE {key} >= {wanted.start} AND {key} < {wanted.end} AND {key} % {self.settings.slices} = {number}"
            f" ORDER BY {key}) TO STDOUT WITH (FORMAT csv, FORCE_QUOTE *)"
        )
        with (
            _connected(self.settings) as connection,
            told_as(SourceError, where(connection)),
            connection.cursor() as cursor,
            cursor.copy(query) as stream,
        ):
            text = b"".join(bytes(block) for block in stream)
        if text:
            yield from _parsed(text, self.columns)

    def _writers(self, connection: psycopg.Connection) -> frozenset[str]:
        """Return the transactions that may insert into the table."""
        rows = _run(
            connection,
            "SELECT DISTINCT virtualtransaction FROM pg_locks WHERE relation = to_regclass(?)"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND mode IN"
            " ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')",
            _table(self.settings),
        )
        return frozenset(str(name) for (name,) in rows)

    def _kept(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = _connected(self.settings)
        return self._connection


def _connected(settings: PostgresTableSettings) -> psycopg.Connection:
    try:
        return connect(settings.url, password=settings.password.get_secret_value() if settings.password else None)
    except SinkError as error:
        raise SourceError(str(error)) from error


def _run(connection: psycopg.Connection, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with told_as(SourceError, where(connection)):
        return run(connection, statement, *values)


def _table(settings: PostgresTableSettings) -> str:
    return ".".join(sql_name(name) for name in (settings.schema_, settings.table) if name)


def _parsed(text: bytes, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Parse the CSV of COPY: every value has quotes, null is an empty field without."""
    import pyarrow as pa
    import pyarrow.csv

    schema = to_arrow(columns)
    # A time without zone is read as it is and then called UTC.
    table = pyarrow.csv.read_csv(
        io.BytesIO(text),
        read_options=pyarrow.csv.ReadOptions(column_names=schema.names, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={f.name: pa.string() if pa.types.is_timestamp(f.type) else f.type for f in schema},
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    for at, field in enumerate(schema):
        if pa.types.is_timestamp(field.type):
            import pyarrow.compute as pc

            times = pc.replace_substring_regex(table.column(at), r"\+00$", "").cast(pa.timestamp("us"))
            table = table.set_column(at, field.name, pc.assume_timezone(times, "UTC"))
    yield from table.cast(schema).combine_chunks().to_batches()

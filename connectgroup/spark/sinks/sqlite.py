"""The sink ``sqlite``: writes rows to a table of the SQLite file that also stores the offsets.

Rows become visible with the transaction that checks the fencing tokens and advances the offsets
(``dataplane.offset_store``).
"""

from __future__ import annotations

import decimal
import itertools
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from ...connector import LocalPath
from ...dataplane.columns import Column, Columns, sql_name, sqlite_type
from ...dataplane.dead_letters import DeadLetter, DeadLetterSink, reject, values_of, write_rows
from ...dataplane.fences import Transaction
from ...dataplane.offset_store import BUSY_TIMEOUT_S, FilePositions, OffsetStore, SqliteTransaction
from ...dataplane.ownership import Owner, Range
from ...dataplane.settings import require_absolute
from ...protocol.units import printable
from .tables import (
    NUMBER,
    OTHER_TABLE,
    ROWS_THAT_FIT,
    TableSinkSettings,
    check_dead_letters,
    check_unaltered,
    dead_letter_columns,
    insert_dead_letter,
    missing_columns,
    no_table,
    null_keys,
    plain_values,
    without,
)

if TYPE_CHECKING:
    import pyarrow as pa


_FAULTS: Final = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError, UnicodeError)
"""Errors of SQLite and its driver that are those of a row."""
_VERSION: Final = "PRAGMA schema_version"
"""A number that changes with each table of the file."""
_NUMBER: Final = re.compile(NUMBER)
_DIGITS: Final = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


class SqliteSettings(TableSinkSettings):
    """Settings of the sink ``sqlite``, each with the prefix ``sink.``."""

    path: Annotated[str, LocalPath(), Field(min_length=1, description="a database file, as an absolute path")]
    busy_timeout_ms: Annotated[int, Field(ge=1, le=60_000, description="1 to 60000")] = 5_000

    def model_post_init(self, context: Any) -> None:
        """Check the path and the table name.

        Raises:
            ConfigError: the path is relative, or the table name is not allowed.
        """
        super().model_post_init(context)
        require_absolute("sink.path", self.path, "a database file, as an absolute path")


class SqliteSink(DeadLetterSink):
    """Writes rows to a table of the SQLite file that stores the offsets: inserts, upserts or deletes. A row with NaN,
    which SQLite would make null, or with a value that the type of its column in an existing table would change, such as
    the text 007 in a column NUMERIC or null in a column INTEGER PRIMARY KEY, is an error or, with
    `errors.tolerance=all`, a dead letter. SQLite has no negative zero: it is stored as 0. The ON CONFLICT clauses and
    the triggers of an existing table apply: a row that they ignore counts as written. If a column that is written is
    altered while a task runs, the next batch is an error, and the task starts again on the new columns.
    """

    Settings = SqliteSettings

    def __init__(
        self, path: Path, settings: TableSinkSettings, columns: Columns, *, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        """Open the file; create the table or check its columns.

        Raises:
            ConfigError: a setting names a column that does not exist.
            SinkError: the file cannot be opened, or the table lacks a column of the source.
        """
        self._settings = settings
        self._dead_letters = ""
        self._columns = settings.written(columns)
        # Set by _make_table: what the table may change, its columns that are written, the version of the schema.
        self._checked: tuple[tuple[Column, str], ...] = ()
        self._found: dict[str, str] = {}
        self._version: list[tuple[Any, ...]] = []
        # The column that is the number of the row (INTEGER PRIMARY KEY), if it is written. Set by _look.
        self._row_number = ""
        self._store = OffsetStore(path, busy_timeout_s=busy_timeout_s, is_real=True)
        try:
            self._make_table()
        except BaseException:
            self._store.close()
            raise

    @classmethod
    def create(cls, settings: SqliteSettings, columns: Columns) -> SqliteSink:
        return cls(Path(settings.path), settings, columns, busy_timeout_s=settings.busy_timeout_ms / 1000)

    @classmethod
    def open_positions(cls, settings: SqliteSettings) -> FilePositions:
        return FilePositions(Path(settings.path), busy_timeout_s=settings.busy_timeout_ms / 1000, is_real=True)

    @classmethod
    def check_access(cls, settings: SqliteSettings) -> None:
        cls.open_positions(settings).check_access()

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        return self._store.claim(owner, is_mine)

    def open_dead_letters(self, name: str) -> None:
        check_dead_letters(name)
        self._store.execute(f"CREATE TABLE IF NOT EXISTS {sql_name(name)} ({dead_letter_columns()})")
        self._dead_letters = insert_dead_letter(name)

    def commit_all(
        self, owner: Owner, ranges: Sequence[Range], rows: pa.Table, dead_letters: Sequence[DeadLetter]
    ) -> bool:
        bad = _changed(rows, self._checked) | _not_numbers(rows, self._columns) | self._null_numbers(rows)
        bad |= null_keys(self._settings, rows)
        bad = dict(sorted(bad.items()))
        where = f"{self._store.path}, table {self._settings.table}"
        # Convert before the transaction: while it is open, every other task that writes to this file waits.
        kept = [at for at in range(rows.num_rows) if at not in bad] if bad else range(rows.num_rows)
        good = without(rows, bad)
        values = list(_rows(good, self._columns))
        deleted = good[self._settings.delete_field].to_pylist() if self._settings.delete_field else []

        def write(transaction: SqliteTransaction) -> None:
            version = transaction.execute(_VERSION)
            if version != self._version:
                check_unaltered(where, self._found, self._look(transaction.execute))
                self._version = version
            for at, reason in bad.items():
                reject(dead_letters, where, rows, at, reason)
            write_rows(
                len(values),
                lambda start, end: self._write(transaction, values[start:end], deleted[start:end]),
                transaction.savepoint,
                _FAULTS,
                lambda at, error: reject(dead_letters, where, rows, kept[at], f"{error}; allowed: {ROWS_THAT_FIT}"),
            )
            if dead_letters:
                transaction.execute_many(self._dead_letters, map(values_of, dead_letters))

        return self._store.commit(owner, ranges, write)

    def close(self) -> None:
        self._store.close()

    def _null_numbers(self, rows: pa.Table) -> dict[int, str]:
        """Return the numbers of the rows for whose null SQLite would store a number that it chooses."""
        import pyarrow.compute as pc

        if not self._row_number or not rows.column(self._row_number).null_count:
            return {}
        reason = (
            f"{self._row_number} is null, for which SQLite stores a number that it chooses; allowed: a value, or rows"
            " without this column"
        )
        return dict.fromkeys(pc.indices_nonzero(pc.is_null(rows.column(self._row_number))).to_pylist(), reason)

    def _write(self, transaction: Transaction, values: list[tuple[Any, ...]], deleted: list[bool | None]) -> None:
        if self._settings.insert_mode == "insert":
            transaction.execute_many(self._insert_statement(), values)
        else:
            self._change(transaction, values, deleted)

    def _insert_statement(self) -> str:
        names = ", ".join(sql_name(column.name) for column in self._columns)
        return f"INSERT INTO {sql_name(self._settings.table)} ({names}) VALUES ({', '.join('?' * len(self._columns))})"

    def _change(self, transaction: Transaction, values: list[tuple[Any, ...]], deleted: list[bool | None]) -> None:
        """Upsert or delete by key. Of several rows with one key, the last one of the batch counts."""
        names = [column.name for column in self._columns]
        keys = self._settings.keys
        at = [names.index(key) for key in keys]
        flags = deleted or [self._settings.insert_mode == "delete"] * len(values)
        last: dict[tuple[Any, ...], tuple[tuple[Any, ...], bool]] = {}
        for row, flag in zip(values, flags, strict=True):
            key = tuple(row[n] for n in at)
            last.pop(key, None)
            last[key] = row, bool(flag)
        same = " AND ".join(f"{sql_name(key)} = ?" for key in keys)
        update = ", ".join(f"{sql_name(name)} = excluded.{sql_name(name)}" for name in names if name not in keys)
        upsert = (
            f"{self._insert_statement()} ON CONFLICT ({', '.join(map(sql_name, keys))})"
            f" DO {f'UPDATE SET {update}' if update else 'NOTHING'}"
        )
        # In the order of the batch: by the collation or the type of its column, a key may be equal to one that differs
        # here, such as a to A.
        for is_gone, changes in itertools.groupby(last.items(), key=lambda each: each[1][1]):
            if is_gone:
                deleting = f"DELETE FROM {sql_name(self._settings.table)} WHERE {same}"
                transaction.execute_many(deleting, [key for key, _ in changes])
            else:
                transaction.execute_many(upsert, [row for _, (row, _) in changes])

    def _make_table(self) -> None:
        settings, table = self._settings, sql_name(self._settings.table)
        if found := [str(row[1]) for row in self._store.execute(f"PRAGMA table_info({table})")]:
            for column in missing_columns(str(self._store.path), settings, found, self._columns):
                self._store.execute(f"ALTER TABLE {table} ADD COLUMN {sql_name(column.name)} {sqlite_type(column)}")
        elif settings.auto_create:
            parts = [f"{sql_name(column.name)} {sqlite_type(column)}" for column in self._columns]
            if settings.keys:
                parts.append(f"PRIMARY KEY ({', '.join(map(sql_name, settings.keys))})")
            self._store.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(parts)})")
        else:
            raise no_table(str(self._store.path), settings)
        # The version first: what is altered after it is noticed with the next batch.
        self._version = self._store.execute(_VERSION)
        self._found = self._look(self._store.execute)
        self._checked = tuple(
            (column, affinity)
            for column in self._columns
            if (affinity := self._found.get(column.name)) and _may_change(column, affinity)
        )

    def _look(self, execute: Callable[..., list[tuple[Any, ...]]]) -> dict[str, str]:
        """Return the affinity of the columns that are written, by their names; set ``_row_number``."""
        names, table = {column.name.lower(): column.name for column in self._columns}, sql_name(self._settings.table)
        tables = execute(f"PRAGMA table_list({table})")
        is_strict, has_numbers = any(row[5] for row in tables), not any(row[4] for row in tables)
        info = execute(f"PRAGMA table_info({table})")
        keys = [(names.get(str(row[1]).lower(), ""), str(row[2]).upper()) for row in info if row[5]]
        self._row_number = keys[0][0] if has_numbers and [kind for _, kind in keys] == ["INTEGER"] else ""
        return {
            names[name.lower()]: "BLOB" if is_strict and declared.upper() == "ANY" else _affinity(declared)
            for _, name, declared, *_ in info
            if name.lower() in names
        }


def _affinity(declared: str) -> str:
    """Return the affinity of a declared type, by SQLite's rules."""
    for affinity, words in (
        ("INTEGER", "INT"),
        ("TEXT", "CHAR CLOB TEXT"),
        ("BLOB", "BLOB"),
        ("REAL", "REAL FLOA DOUB"),
    ):
        if any(word in declared.upper() for word in words.split()):
            return affinity
    return "NUMERIC" if declared else "BLOB"


def _may_change(column: Column, affinity: str) -> bool:
    """Return whether a column of this affinity may store another value than the one that is written."""
    if affinity == "TEXT":
        return column.type in ("FLOAT", "DOUBLE")
    if affinity == "REAL" and column.type == "BIGINT":
        return True
    return affinity != "BLOB" and (column.type == "STRING" or column.type.startswith("DECIMAL("))


def _changed(rows: pa.Table, checked: Sequence[tuple[Column, str]]) -> dict[int, str]:
    """Return the numbers of the rows with a value that the type of its column would change, with the reason."""
    found: dict[int, str] = {}
    if not checked or not rows.num_rows:
        return found
    # SQLite itself converts the values, outside the transaction that other tasks wait for.
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as scratch:
        for column, affinity in checked:
            values = [value for (value,) in _rows(rows, (column,))]
            scratch.execute(f"CREATE TABLE stored (id INTEGER PRIMARY KEY, value {affinity})")
            scratch.execute("BEGIN")
            scratch.executemany("INSERT INTO stored VALUES (?, ?)", enumerate(values))
            for at, stored in scratch.execute("SELECT id, value FROM stored"):
                if values[at] != stored and not _is_same(values[at], stored, is_text=column.type == "STRING"):
                    found.setdefault(
                        at,
                        f"{column.name} would be stored as {printable(repr(stored), limit=100)} instead of"
                        f" {printable(repr(values[at]), limit=100)}; allowed: values that a column of affinity"
                        f" {affinity} keeps, or a column of type {sqlite_type(column)}; {OTHER_TABLE}",
                    )
            scratch.execute("COMMIT")
            scratch.execute("DROP TABLE stored")
    return found


def _is_same(value: Any, stored: Any, *, is_text: bool) -> bool:
    if isinstance(value, str) == isinstance(stored, str):
        return bool(value == stored) or value != value  # NaN has a reason of its own.
    if isinstance(value, float):
        return float(stored) == value
    if is_text and not _NUMBER.fullmatch(value):
        return False
    number = _DIGITS.create_decimal(value)
    return number == decimal.Decimal(repr(stored)) and (number != 0 or not number.is_signed())


def _not_numbers(rows: pa.Table, columns: Columns) -> dict[int, str]:
    """Return the numbers of the rows with NaN, with the reason why they cannot be written."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[int, str] = {}
    for column in columns:
        values = rows.column(column.name)
        if pa.types.is_floating(values.type):
            is_nan = pc.is_nan(values.cast(pa.float64()))
            if pc.any(is_nan).as_py():
                for at in pc.indices_nonzero(is_nan).to_pylist():
                    found.setdefault(at, f"{column.name} is NaN, which SQLite has not; allowed: a number or null")
    return found


def _rows(table: pa.Table, columns: Columns) -> Iterator[tuple[Any, ...]]:
    """Convert rows to SQLite values: booleans to 0 and 1, dates and times to ISO text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = []
    chosen = plain_values(table.select([column.name for column in columns]))
    for array in chosen.columns:
        if pa.types.is_timestamp(array.type):
            # A cast that keeps the time zone gives the same text and takes six times as long.
            texts = array.cast(pa.timestamp("us")).cast(pa.string())
            array = texts if array.type.tz is None else pc.binary_join_element_wise(texts, "Z", "")
        elif pa.types.is_date(array.type):
            array = array.cast(pa.string())
        elif pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        values.append(array.to_pylist())
    return zip(*values, strict=True)

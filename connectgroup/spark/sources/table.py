"""The sources ``sqlite`` and ``postgres``: the rows of a table, in the order of an incrementing integer column.

A slice is a part of the key space (the keys that are *k* modulo ``slices``). Its position is the next key to read: all
rows with smaller keys have been read. Rows are expected to be inserted with growing keys and not to change;
``table_keys`` decides which keys may be read. ``postgres_table`` has the part that is special to PostgreSQL.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import Field

from ...connector import Lag, LocalPath
from ...dataplane.columns import Column, Columns, check_names, check_range, decimals, from_ddl, sql_name, to_arrow
from ...dataplane.dead_letters import error_text
from ...dataplane.errors import SourceError
from ...dataplane.offset_store import connect_to
from ...dataplane.ownership import Range
from ...dataplane.settings import PluginSettings, require_absolute
from ...errors import ConfigError
from ...protocol.units import printable
from .json_values import check_years, timestamps
from .lines import with_error
from .sliced import SlicedSource
from .table_keys import Keys, Seen

if TYPE_CHECKING:
    import pyarrow as pa

MAX_COUNTED: Final = 100_000
"""A query for the lag counts at most this many rows; with more, the lag is not known."""


class TableSourceSettings(PluginSettings):
    """Settings of a source that reads a table, each with the prefix ``source.``."""

    table: Annotated[str, Field(min_length=1, description="the name of a table or view")]
    incrementing_column: Annotated[
        str, Field(min_length=1, description="an integer column, unique and growing from 0, with an index")
    ]
    slices: Annotated[
        int,
        Field(
            ge=1,
            le=1000,
            description="1 to 1000: parts of the key space; a task reads whole ones. The offsets are those of one"
            " number: with another one, the tasks fail until they are reset, and the table is read from its start",
        ),
    ] = 1
    max_rows_per_batch: Annotated[int, Field(ge=1, le=10_000_000, description="1 to 10000000")] = 100_000
    settle_ms: Annotated[
        int,
        Field(
            ge=0,
            le=604_800_000,
            description="0 to 604800000: the settle window: a key is read this long after the source has first seen it"
            " or a greater one. For writers that insert a row some time after they have got its key: a sequence with"
            " CACHE above 1, keys that a program reserves with nextval or chooses itself, a table that a subscription"
            " fills. Longer than from getting a key to the commit; a row that is later still is not read",
        ),
    ] = 0


class TableSource(SlicedSource):
    """The rows of one table, read by one task; a subclass for each database."""

    settings: Any
    slice_form: ClassVar[tuple[str, str]] = (r"keys (\d{1,9}) of (\d{1,9})", "keys K of N, as the offsets show them")

    def __init__(self, settings: TableSourceSettings, columns: Columns, *, task: int, tasks: int) -> None:
        """Store the arguments; check the incrementing column.

        Raises:
            ConfigError: the incrementing column does not exist or is no integer.
        """
        self.settings, self.columns, self.task, self.tasks = settings, columns, task, tasks
        integers = [column.name for column in columns if column.type in ("TINYINT", "SMALLINT", "INT", "BIGINT")]
        if settings.incrementing_column not in integers:
            raise ConfigError(
                "source.incrementing.column",
                settings.incrementing_column,
                f"an integer column: {', '.join(integers)}"
                if integers
                else f"an integer column; {printable(settings.table)} has none, only "
                + printable(", ".join(f"{column.name} {column.type}" for column in columns)),
            )
        self._keys: Keys | None = None

    @classmethod
    def reopened(cls, settings: Any, columns: Columns, *, task: int, tasks: int) -> TableSource:
        return cls(settings, columns, task=task, tasks=tasks)

    def tolerant(self) -> TableSource:
        self.is_tolerant = True
        return self

    def owns(self, slice_name: str) -> bool:
        match = re.fullmatch(self.slice_form[0], slice_name)
        return match is not None and int(match[1]) % self.tasks == self.task

    def plan(self, start: Mapping[str, int]) -> dict[str, int]:
        end = dict(start)
        numbers = range(self.task, self.settings.slices, self.tasks)
        if not numbers:
            return end
        if self._keys is None:
            self._check_slices()
            self._keys = Keys(self)
        seen, keys = self.look(), self._keys
        keys.check_keys(seen)
        keys.check_table(seen, start)
        limit = keys.safe_key(seen.highest)
        if limit is None:
            return end
        for number in numbers:
            name = f"keys {number} of {self.settings.slices}"
            last = self.last_key(number, start.get(name, 0), limit)
            if last is not None:
                end[name] = keys.reached(name, last, seen)
        return end

    def _check_slices(self) -> None:
        """Raise an error if the offsets are those of another number of slices: each row would be read again."""
        slices = self.settings.slices
        for name in self.claimed if self.committed is None else self.committed.read():
            match = re.fullmatch(self.slice_form[0], name)
            if match is not None and int(match[2]) != slices:
                raise SourceError(
                    f"{self.description}: its offsets are those of source.slices={match[2]}, with {slices} each row"
                    f" would be read again; allowed: source.slices={match[2]}, or the offsets reset to read the table"
                    " from its start"
                )

    @abstractmethod
    def look(self) -> Seen:
        """Return what the table shows of its keys now.

        Raises:
            SourceError: the table cannot be read, or its rows do not appear in an order that the source can follow.
        """

    def writers(self) -> Collection[str]:
        """Return the transactions that may insert a row with a smaller key than one that is visible already."""
        return ()

    @abstractmethod
    def digest(self, key: int) -> str | None:
        """Return a digest of the row with a key; None without one."""

    def types(self) -> str:
        """Return a text that differs if a column has another type in the database; empty: not known."""
        return ""

    def deleted(self) -> int | None:
        """Return how many rows of the table were deleted so far; None if it is not known."""
        return None

    def has_at_most(self, rows: int, key: int) -> bool:
        """Return whether there are at most so many rows up to a key; for sources with ``deleted``."""
        raise NotImplementedError

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

    def place_of(self, key: object) -> str:
        """Return the place of a row, for errors."""
        return f"{self.description}, row {self.settings.incrementing_column} {key}"

    def bad_row(self, key: object, reason: str, record: Mapping[str, Any]) -> pa.RecordBatch:
        """Return the row for one that does not fit the columns: nulls, and the error.

        Raises:
            SourceError: bad rows are not tolerated.
        """
        import pyarrow as pa

        if not self.is_tolerant:
            raise SourceError(f"{self.place_of(key)}: {reason}")
        text = error_text(
            place=self.place_of(key), reason=reason, record=json.dumps(record, default=str, ensure_ascii=False)
        )
        nulls = pa.RecordBatch.from_pylist([{}], schema=to_arrow(self.columns))
        return with_error(nulls, text, pa.nulls(1, pa.string()) if self.has_places else None)

    def good_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as ``read`` yields them: if bad ones are tolerated, with the columns of place and error."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.is_tolerant:
            return batch
        places = None
        if self.has_places:
            keys = batch.column(self.settings.incrementing_column).cast(pa.string())
            places = pc.binary_join_element_wise(self.place_of(""), keys, "")
        return with_error(batch, None, places)


class SqliteTableSettings(TableSourceSettings):
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
    """The rows of a table in an SQLite file. Writers of SQLite are serialized, so keys that SQLite chooses appear in
    their order. Without AUTOINCREMENT, SQLite gives the greatest key again after its row was deleted: that is an error
    if the row was read, as are keys that begin again, also behind a view of one table, and a new row below the others
    whose key was passed. Rows that are deleted and written anew with the same keys, or more, between two looks at the
    table look like rows that change: the task logs that the last row that it read has changed, and goes on.
    Reset the offsets after such a reload. A column that is declared as
    something else than an integer, boolean or floating-point number is STRING: its values as text. With
    `errors.tolerance=all`, a row that does not fit its columns is a dead letter.
    """

    Settings = SqliteTableSettings
    settings: SqliteTableSettings

    @classmethod
    def create(cls, settings: SqliteTableSettings, *, task: int, tasks: int) -> SqliteTableSource:
        if settings.schema_ is not None:
            return cls(settings, from_ddl(settings.schema_), task=task, tasks=tasks)
        with _opened(settings.path) as connection:
            # table_info leaves out generated columns; 1 is a hidden column of a virtual table, which * leaves out, too.
            found = connection.execute(f"PRAGMA table_xinfo({sql_name(settings.table)})").fetchall()
            found = [row for row in found if row[6] != 1]
            if not found:
                raise SourceError(f"{settings.path}: table {settings.table} does not exist; allowed: a table or view")
            columns = [Column(str(row[1]), _type_of(str(row[2]))) for row in found]
            for at, column in enumerate(columns):
                # An expression of a view has no declared type.
                if column.name == settings.incrementing_column and column.type == "STRING":
                    name, table = sql_name(column.name), sql_name(settings.table)
                    kinds = connection.execute(f"SELECT typeof(min({name})), typeof(max({name})) FROM {table}")
                    if kinds.fetchone() == ("integer", "integer"):
                        columns[at] = Column(column.name, "BIGINT")
        return cls(settings, check_names(columns, field="source.table"), task=task, tasks=tasks)

    @classmethod
    def check_access(cls, settings: SqliteTableSettings, *, tasks: int) -> None:
        # With a schema, create does not open the file.
        cls.create(settings.model_copy(update={"schema_": None}), task=0, tasks=tasks)

    @property
    def description(self) -> str:
        return f"table {self.settings.table} of {self.settings.path} by {self.settings.incrementing_column}"

    def _named(self, column: str) -> str:
        """Return a column of the table as SQL has it. Without the table, SQLite takes a quoted name that is no column
        for a text, and each row would have it as its value."""
        return f"{sql_name(self.settings.table)}.{sql_name(column)}"

    def look(self) -> Seen:
        key, table = self._named(self.settings.incrementing_column), sql_name(self.settings.table)
        with _opened(self.settings.path) as connection:
            query = (
                f"SELECT (SELECT min({key}) FROM {table}), (SELECT max({key}) FROM {table}),"
                f" EXISTS(SELECT 1 FROM {table} WHERE {key} IS NULL)"
            )
            lowest, highest, has_null = connection.execute(query).fetchone()
            for value in (lowest, highest):
                if not isinstance(value, int | None):
                    raise SourceError(f"{self.place_of(repr(value))}: is no integer; allowed: integers")
            (version,) = connection.execute("PRAGMA schema_version").fetchone()
            next_key = self._next_key(connection, highest)
        inode = Path(self.settings.path).stat().st_ino
        return Seen(
            lowest=lowest,
            highest=highest,
            has_null=bool(has_null),
            next_key=next_key,
            table=self.settings.table.lower(),
            storage=f"{inode}.{version}",
        )

    def _next_key(self, connection: sqlite3.Connection, highest: int | None) -> int | None:
        """Return a key such that SQLite chooses no smaller one for a new row; None if it chooses none."""
        column = self.settings.incrementing_column
        table = self._base_table(connection)
        keys = [row for row in connection.execute(f"PRAGMA table_info({sql_name(table)})") if row[5]]
        if [(row[1].lower(), str(row[2]).upper()) for row in keys] != [(column.lower(), "INTEGER")]:
            return None
        found = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(?)", (table,)
        ).fetchone()
        if found is None:
            return None
        if any(row[4] for row in connection.execute(f"PRAGMA table_list({sql_name(table)})")):
            return None  # WITHOUT ROWID
        if table != self.settings.table:
            (highest,) = connection.execute(f"SELECT max({sql_name(keys[0][1])}) FROM {sql_name(table)}").fetchone()
        last = highest or 0
        has_sequences = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'sqlite_sequence'"
        # Without the table, the word is a name or a comment.
        if "autoincrement" in (found[1] or "").lower() and connection.execute(has_sequences).fetchone():
            given = connection.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = ?", (found[0],)).fetchone()
            last = max(last, given[0] or 0)
        return last + 1

    def _base_table(self, connection: sqlite3.Connection) -> str:
        """Return the table whose keys a view shows; the name in the settings if that is no view, or one of several."""
        name, column = self.settings.table, self.settings.incrementing_column
        is_view = "SELECT 1 FROM sqlite_master WHERE type = 'view' AND lower(name) = lower(?)"
        if connection.execute(is_view, (name,)).fetchone() is None:
            return str(name)
        read = set[tuple[str, str]]()

        def note(action: int, table: str | None, read_column: str | None, *_: object) -> int:
            if action == sqlite3.SQLITE_READ and table and read_column:
                read.add((table, read_column.lower()))
            return sqlite3.SQLITE_OK

        connection.set_authorizer(note)
        try:
            connection.execute(f"SELECT {self._named(column)} FROM {sql_name(name)} LIMIT 0")
        finally:
            connection.set_authorizer(None)
        tables = {table for table, _ in read if connection.execute(is_view, (table,)).fetchone() is None}
        has_column = [table for table in tables if (table, column.lower()) in read]
        return has_column[0] if len(tables) == 1 and has_column else str(name)

    def digest(self, key: int) -> str | None:
        names = ", ".join(self._named(column.name) for column in self.columns)
        column, table = self._named(self.settings.incrementing_column), sql_name(self.settings.table)
        with _opened(self.settings.path) as connection:
            connection.text_factory = bytes
            row = connection.execute(f"SELECT {names} FROM {table} WHERE {column} = ?", (key,)).fetchone()
        return None if row is None else hashlib.blake2b(repr(row).encode(), digest_size=12).hexdigest()

    def last_key(self, number: int, start: int, limit: int) -> int | None:
        query = self.last_key_query(self._named(self.settings.incrementing_column), sql_name(self.settings.table))
        return self._one(query, (start, limit, self.settings.slices, number, self.settings.max_rows_per_batch))

    def count_rows(self, number: int, start: int) -> int:
        query = self.count_query(self._named(self.settings.incrementing_column), sql_name(self.settings.table))
        return self._one(query, (start, self.settings.slices, number, MAX_COUNTED + 1)) or 0

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        number = int(wanted.slice.split()[1])
        key = self._named(self.settings.incrementing_column)
        names = ", ".join(self._named(column.name) for column in self.columns)
        query = (
            f"SELECT {names} FROM {sql_name(self.settings.table)} WHERE {key} >= ? AND {key} < ? AND {key} % ? = ?"
            f" ORDER BY {key}"
        )
        bounds = (int(wanted.start), int(wanted.end), self.settings.slices, number)
        with _opened(self.settings.path) as connection:
            try:
                rows = connection.execute(query, bounds).fetchall()
            except sqlite3.OperationalError as error:
                if "decode" not in str(error):
                    raise
                connection.text_factory = _text_or_bytes
                rows = connection.execute(query, bounds).fetchall()
        values: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [[] for _ in self.columns]
        schema = to_arrow(self.columns)
        try:
            arrays = [_array(column, items) for column, items in zip(self.columns, values, strict=True)]
        except _MISFITS:
            yield from self._rows_and_errors(rows)
            return
        yield self.good_rows(pa.RecordBatch.from_arrays(arrays, schema=schema))

    def _rows_and_errors(self, rows: Sequence[Sequence[Any]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that fit the columns, then the errors of the others."""
        import pyarrow as pa

        good, bad = [], []
        key = [column.name for column in self.columns].index(self.settings.incrementing_column)
        for row in rows:
            for column, value in zip(self.columns, row, strict=True):
                try:
                    _array(column, [value])
                except _MISFITS:
                    reason = (
                        f"{printable(column.name)} is {printable(repr(value), limit=100)}; allowed: {column.type} or"
                        " null, or another type in source.schema"
                    )
                    record = {other.name: item for other, item in zip(self.columns, row, strict=True)}
                    bad.append(self.bad_row(row[key], reason, record))
                    break
            else:
                good.append(row)
        values: Sequence[Sequence[Any]] = list(zip(*good, strict=True)) or [[] for _ in self.columns]
        arrays = [_array(column, items) for column, items in zip(self.columns, values, strict=True)]
        yield self.good_rows(pa.RecordBatch.from_arrays(arrays, schema=to_arrow(self.columns)))
        yield from bad

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
        raise SourceError(
            f"{path}: SQLite says {str(error)!r}; allowed: a database with this table and its columns"
        ) from error


_MISFITS: Final = (sqlite3.DataError, ArithmeticError, TypeError, ValueError)
"""Errors of ``_array``; those of Arrow are a ``ValueError`` or a ``TypeError``."""


def _array(column: Column, values: Sequence[Any]) -> pa.Array:
    """Return values of SQLite as an array of the column's type, each exactly."""
    import pyarrow as pa

    kind = to_arrow((column,)).field(0).type
    if column.type in ("DATE", "TIMESTAMP"):
        texts = pa.array(values, pa.string())
        found = timestamps(texts, "") if column.type == "TIMESTAMP" else texts.cast(kind)
        check_years(found)
        return found
    if column.type == "BOOLEAN":
        if not {0, 1, None}.issuperset(values):
            raise ValueError("no boolean")
        return pa.array(values, pa.int64()).cast(kind)
    if column.type.startswith("DECIMAL"):
        return decimals(pa.array([None if each is None else _digits(each) for each in values], pa.string()), kind)
    if column.type != "STRING":
        if pa.types.is_integer(kind) and float in map(type, values):
            raise TypeError("no integer")  # Arrow cuts the fraction off.
        found = pa.array(values, kind)
        if column.type == "FLOAT":
            check_range(pa.array(values, pa.float64()), found)
        return found
    if not {str, type(None)}.issuperset(map(type, values)):
        # The shortest text that is the same number again; SQLite's own has 15 digits.
        values = [repr(value) if isinstance(value, int | float) else value for value in values]
        if bytes in map(type, values):
            raise TypeError("bytes")
    return pa.array(values, kind)


def _digits(value: object) -> str:
    """Return a number of SQLite, or its text, as a decimal."""
    if isinstance(value, bytes):
        raise TypeError("bytes")
    return value if isinstance(value, str) else repr(value)


def _text_or_bytes(data: bytes) -> str | bytes:
    """Return a text of SQLite; bytes that are not UTF-8 stay bytes, which no column takes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _type_of(declared: str) -> str:
    """Return the column type for a declared type, by SQLite's rules of affinity."""
    upper = declared.upper()
    if "INT" in upper or upper.startswith("BOOL"):
        return "BIGINT"
    return "DOUBLE" if any(word in upper for word in ("REAL", "FLOA", "DOUB")) else "STRING"

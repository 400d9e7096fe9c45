"""The source ``postgres``: the rows of a table of PostgreSQL, in the order of an incrementing integer column.

Transactions commit in another order than they take their keys. A key counts as read only when no transaction that may
still insert a smaller key is running: the source notes the highest key, then the transactions that hold a lock for
writing the table; once all of these have ended, every row up to the noted key is visible (CREATE INDEX CONCURRENTLY
waits in the same way). A view, a partitioned table and a parent show the rows of other tables: their writers count,
and those of their parents, which lock a partition after they have taken a key. This holds for keys that a default or
an identity column generates while it inserts, not for keys that a program has reserved earlier (``settle_ms``).

Not a horizon of transaction ids (``pg_snapshot_xmin``): a transaction gets its id after the key, in between triggers
run; and a long transaction on another table, also of another database, would hold the source up.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, SecretStr

from ...connector import LocalPath
from ...dataplane.columns import Column, Columns, check_names, sql_name, to_arrow
from ...dataplane.errors import SinkError, SourceError
from ...dataplane.ownership import Range
from ...dataplane.postgres_store import connect, driver_errors, files_in_url, one_line, parse_url, run, where
from ...protocol.units import printable
from .json_values import check_years
from .table import MAX_COUNTED, TableSource, TableSourceSettings
from .table_keys import Seen

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


_COLUMNS: Final = (
    "WITH RECURSIVE found(num, name, type) AS ("
    " SELECT attnum, attname, atttypid FROM pg_attribute"
    " WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped"
    " UNION ALL SELECT num, name, typbasetype FROM found JOIN pg_type ON oid = type WHERE typtype = 'd')"
    " SELECT name, CASE WHEN typnamespace = 'pg_catalog'::regnamespace THEN typname ELSE '' END"
    " FROM found JOIN pg_type ON oid = type WHERE typtype <> 'd' ORDER BY num"
)
"""Names and types of the columns of a table; those of a domain, also of one over another one, are those below it."""
_CHUNK_BYTES: Final = 16 << 20
"""Rows that are parsed at once; a row may be longer."""
_READ: Final = (
    "WITH RECURSIVE read(id) AS (SELECT to_regclass(?)::oid UNION SELECT other.id FROM read CROSS JOIN LATERAL ("
    " SELECT inhrelid AS id FROM pg_inherits WHERE inhparent = read.id"
    " UNION ALL SELECT inhparent FROM pg_inherits WHERE inhrelid = read.id"
    " UNION ALL SELECT d.refobjid FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass"
    " AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass WHERE r.ev_class = read.id) AS other)"
)
"""Begins a query with the table, those whose rows it shows, and their parents; its parameter is the table."""
_SEQUENCES: Final = (
    "SELECT seqrelid, seqcache FROM pg_sequence WHERE seqrelid IN ("
    "SELECT CASE d.classid WHEN 'pg_class'::regclass THEN d.objid ELSE used.refobjid END"
    " FROM read JOIN pg_attribute a ON a.attrelid = read.id JOIN pg_depend d"
    " ON d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum"
    " LEFT JOIN pg_depend used ON d.classid = 'pg_attrdef'::regclass AND used.classid = d.classid"
    " AND used.objid = d.objid AND used.refclassid = 'pg_class'::regclass WHERE a.attname = ?)"
)
"""The sequences of a column, after ``_READ``: its own ones, and those of its default; its parameter is the column."""
_FUNCTIONS: Final = (
    "SELECT 1 FROM read JOIN pg_rewrite r ON r.ev_class = read.id JOIN pg_depend d"
    " ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_proc'::regclass"
)
"""Whether one of them is a view with a function that is not part of PostgreSQL, after ``_READ``."""
_MISFITS: Final = (ValueError, TypeError, NotImplementedError)
"""Errors of a value that is not of its column's type; those of Arrow are among them."""


class PostgresTableSettings(TableSourceSettings):
    """Settings of the source ``postgres``, each with the prefix ``source.``."""

    url: Annotated[
        str,
        LocalPath(within=files_in_url),
        Field(description="a connection string of libpq, such as postgresql://user@host:5432/database"),
    ] = ""
    password: Annotated[SecretStr | None, Field(description="the password, if not in libpq's password file")] = None
    schema_: Annotated[str, Field(alias="schema", description="a schema; the search path by default")] = ""

    def model_post_init(self, _: Any) -> None:
        """Check the connection string.

        Raises:
            ConfigError: it has an option that is not allowed.
        """
        parse_url("source.url", self.url)


class PostgresTableSource(TableSource):
    """The rows of a table of PostgreSQL, by a growing integer column, in the order of the keys: a row that is committed
    late, because its transaction was open for long, delays the rows behind it. A table, its partitions and children, or
    a view of these; not a hot standby, whose writers are on another server, nor a materialized view. Keys that begin
    again, and a table that was emptied or made anew and filled again, also behind a view, are errors; if rows were only
    deleted and others inserted with their keys, the first row and the last one that was read must differ from the
    former ones. A row that changes after it was read is not read again, and one that a view shows only later, when
    greater keys were read, is not read. A sequence with CACHE above 1, a foreign table and a table that a subscription
    fills need `source.settle.ms`. Numbers of type numeric, arrays and all other types that the table of types lacks are
    STRING. Timestamps without a time zone count as UTC; years are 1 to 9999. A task reads columns with the types that
    they had when it started: if one is altered, a value that does not fit is an error, and the task starts again on the
    new type. With `errors.tolerance=all`, a row that does not fit its columns, such as one with the date infinity, is a
    dead letter.
    """

    Settings = PostgresTableSettings
    settings: PostgresTableSettings

    def __init__(self, settings: PostgresTableSettings, columns: Columns, *, task: int, tasks: int) -> None:
        super().__init__(settings, columns, task=task, tasks=tasks)
        self._connection: psycopg.Connection | None = None
        self._sequences: tuple[int, Sequence[int]] = 0, ()
        self._storage: tuple[tuple[int, int | None], str] | None = None

    @classmethod
    def create(cls, settings: PostgresTableSettings, *, task: int, tasks: int) -> PostgresTableSource:
        with _connected(settings) as connection:
            columns = _columns_in(connection, settings)
            if not columns:
                place = where(connection)
                raise SourceError(f"{place}: table {settings.table} does not exist; allowed: a table or view")
            source = cls(settings, check_names(columns, field="source.table"), task=task, tasks=tasks)
            source._check_order(connection)
        return source

    @property
    def description(self) -> str:
        return f"table {_table(self.settings)} of PostgreSQL by {self.settings.incrementing_column}"

    def look(self) -> Seen:
        connection, key, table = self._kept(), sql_name(self.settings.incrementing_column), _table(self.settings)
        query = (
            f"SELECT (SELECT min({key}) FROM {table}), (SELECT max({key}) FROM {table}),"
            f" EXISTS(SELECT 1 FROM {table} WHERE {key} IS NULL), to_regclass(?)::oid, pg_is_in_recovery()"
        )
        ((lowest, highest, has_null, oid, is_standby),) = _run(connection, query, table)
        if is_standby:
            raise self._standby(connection)
        if self._storage is None or self._storage[0] != (oid, highest):
            self._storage = (oid, highest), self._storage_now(connection)
        return Seen(
            lowest=lowest,
            highest=highest,
            has_null=has_null,
            next_key=self._next_key(connection, oid),
            table=str(oid),
            storage=self._storage[1],
        )

    def _storage_now(self, connection: psycopg.Connection) -> str:
        """Return a text that differs if a table whose rows are shown was emptied, made anew or written anew, or a
        sequence of the column was set back; for a view whose tables are not known, it differs each time."""
        query = (
            f"{_READ} SELECT coalesce(md5(string_agg(file, ',' ORDER BY file)), ''),"
            f" EXISTS({_FUNCTIONS}) OR EXISTS(SELECT 1 FROM read JOIN pg_class c ON c.oid = read.id"
            " WHERE c.relkind = 'f'), clock_timestamp()::text FROM ("
            "SELECT format('%s.%s', id, pg_relation_filenode(id)) AS file FROM read"
            f" UNION SELECT format('%s.%s', seqrelid, pg_relation_filenode(seqrelid)) FROM ({_SEQUENCES}) AS sequences"
            ") AS files"
        )
        column = self.settings.incrementing_column
        ((files, is_unknown, now),) = _run(connection, query, _table(self.settings), column)
        return f"{files} {now}" if is_unknown else str(files)

    def _next_key(self, connection: psycopg.Connection, oid: int) -> int | None:
        """Return a key such that the sequences of the column give no smaller one; None if there is none to be read."""
        if self._sequences[0] != oid:
            rows = _run(
                connection,
                f"{_READ} {_SEQUENCES} AND seqincrement > 0 AND has_sequence_privilege(seqrelid, 'SELECT, USAGE')",
                _table(self.settings),
                self.settings.incrementing_column,
            )
            self._sequences = oid, [sequence for sequence, _ in rows]
        if not self._sequences[1]:
            return None
        # Before its first key, a sequence has no last value.
        values = "coalesce(pg_sequence_last_value(seqrelid) + seqincrement, seqstart)"
        query = f"SELECT max({values}) FROM pg_sequence WHERE seqrelid = ANY(?::oid[])"
        ((found,),) = _run(connection, query, self._sequences[1])
        return None if found is None else int(found)

    def digest(self, key: int) -> str | None:
        names, column = ", ".join(sql_name(each.name) for each in self.columns), self.settings.incrementing_column
        query = f"SELECT md5(ROW({names})::text) FROM {_table(self.settings)} WHERE {sql_name(column)} = ? LIMIT 1"
        found = _run(self._kept(), query, key)
        return str(found[0][0]) if found else None

    def types(self) -> str:
        query = (
            "SELECT coalesce(md5(string_agg(format_type(atttypid, atttypmod), ',' ORDER BY attnum)), '')"
            " FROM pg_attribute WHERE attrelid = to_regclass(?) AND attnum > 0 AND attname = ANY(?::text[])"
        )
        names = [column.name for column in self.columns]
        return str(_run(self._kept(), query, _table(self.settings), names)[0][0])

    def deleted(self) -> int:
        # A session reports what it has done when it is idle or ends; a snapshot of the statistics would hide it.
        query = f"{_READ} SELECT coalesce(sum(pg_stat_get_tuples_deleted(id)), 0) FROM read"
        ((count,),) = _run(self._kept(), query, _table(self.settings))
        return int(count)

    def has_at_most(self, rows: int, key: int) -> bool:
        column, table = sql_name(self.settings.incrementing_column), _table(self.settings)
        query = f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {column} <= ? LIMIT ?) AS read"
        ((count,),) = _run(self._kept(), query, key, rows + 1)
        return int(count) <= rows

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
        import psycopg

        number, key = int(wanted.slice.split()[1]), sql_name(self.settings.incrementing_column)
        start, end = int(wanted.start), int(wanted.end)
        with _connected(self.settings) as connection, driver_errors(SourceError, where(connection)):
            while start < end:
                part = f"{key} >= {start} AND {key} < {end} AND {key} % {self.settings.slices} = {number}"
                # The server sends each row in a message of its own.
                rows, size, count = list[bytes](), 0, 0
                try:
                    for row in self._copied(connection, part):
                        rows.append(row)
                        size, count = size + len(row), count + 1
                        if size >= _CHUNK_BYTES:
                            yield from self._parsed(rows)
                            rows, size = [], 0
                except (psycopg.errors.CharacterNotInRepertoire, psycopg.errors.UntranslatableCharacter) as error:
                    failed = self._failed(connection, part, count)
                    if failed is None:
                        raise
                    if rows:
                        yield from self._parsed(rows)
                    column = self.settings.incrementing_column
                    reason = f"{one_line(error)}; allowed: text that the server can convert to UTF-8"
                    yield self.bad_row(failed, reason, {column: failed})
                    start = failed + 1
                    continue
                if rows:
                    yield from self._parsed(rows)
                return

    def _copied(self, connection: psycopg.Connection, part: str) -> Iterator[bytes]:
        """Yield the rows of a part of the table, as the CSV of COPY.

        Args:
            part: a condition.
        """
        names, key = ", ".join(sql_name(column.name) for column in self.columns), self.settings.incrementing_column
        query: Any = (
            f"COPY (SELECT {names} FROM {_table(self.settings)} WHERE {part} ORDER BY {sql_name(key)})"
            " TO STDOUT WITH (FORMAT csv, FORCE_QUOTE *)"
        )
        with connection.cursor() as cursor, cursor.copy(query) as stream:
            yield from map(bytes, stream)

    def _failed(self, connection: psycopg.Connection, part: str, count: int) -> int | None:
        """Return the key of the row that the server cannot send, after it has sent others; None if it is not that one
        alone."""
        import psycopg

        key, table = sql_name(self.settings.incrementing_column), _table(self.settings)
        query = f"SELECT {key} FROM {table} WHERE {part} ORDER BY {key} LIMIT 2 OFFSET {count}"
        found = [int(row[0]) for row in run(connection, query)]
        if len(set(found)) < len(found) or not found:
            return None
        try:
            list(self._copied(connection, f"{key} = {found[0]}"))
        except psycopg.DataError:
            return found[0]
        return None

    def writers(self) -> frozenset[str]:
        rows = _run(
            self._kept(),
            f"{_READ} SELECT DISTINCT virtualtransaction FROM pg_locks"
            " WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND mode IN"
            " ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
            # A view with a function shows the rows of tables that the catalog does not name: each may be one.
            f" AND (relation IN (SELECT id FROM read) OR relation >= 16384 AND EXISTS({_FUNCTIONS}))",
            _table(self.settings),
        )
        return frozenset(str(name) for (name,) in rows)

    def _check_order(self, connection: psycopg.Connection) -> None:
        """Raise an error if rows appear in an order that the writers' locks do not show."""
        ((is_standby,),) = _run(connection, "SELECT pg_is_in_recovery()")
        if is_standby:
            raise self._standby(connection)
        kinds = _run(
            connection,
            f"{_READ} SELECT relname, relkind::text, EXISTS(SELECT 1 FROM pg_subscription_rel WHERE srrelid = c.oid)"
            " FROM pg_class c WHERE oid IN (SELECT id FROM read) ORDER BY relname",
            _table(self.settings),
        )
        table, column = _table(self.settings), self.settings.incrementing_column
        why = [f"{name} is filled by a subscription, in another server's order" for name, _, is_sub in kinds if is_sub]
        why += [f"{name} is a foreign table, with writers on another server" for name, kind, _ in kinds if kind == "f"]
        cached = _run(connection, f"{_READ} {_SEQUENCES} AND seqcache > 1", table, column)
        why += [f"its sequence has CACHE {cache}: a session inserts keys that it took earlier" for _, cache in cached]
        if why and not self.settings.settle_ms:
            raise SourceError(
                f"{where(connection)}: {table}: {why[0]}; allowed: source.settle.ms, above the time from taking a key"
                " to its commit"
            )
        views = [name for name, kind, _ in kinds if kind == "m"]
        if views:
            raise SourceError(
                f"{where(connection)}: {table}: {views[0]} is a materialized view: a refresh may add rows with keys"
                " that were read already; allowed: its tables, or a view"
            )

    def _standby(self, connection: psycopg.Connection) -> SourceError:
        return SourceError(
            f"{where(connection)}: is a hot standby: it does not show the open transactions of its primary, which may"
            " commit smaller keys later; allowed: the primary"
        )

    def _parsed(self, rows: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield rows in the CSV of COPY; bad ones after the others."""
        try:
            batch = _parse(rows, self.columns)
        except _MISFITS:
            self._check_types()
            good, bad = self._divided(rows)
            if good:
                yield self.good_rows(_parse(good, self.columns))
            yield from bad
        else:
            yield self.good_rows(batch)

    def _check_types(self) -> None:
        """Raise an error if the type of a column was altered since the task started: then no row is a bad one."""
        with _connected(self.settings) as connection:
            found = {column.name: column.type for column in _columns_in(connection, self.settings)}
            for column in self.columns:
                if (kind := found.get(column.name, column.type)) != column.type:
                    raise SourceError(
                        f"{where(connection)}: {_table(self.settings)}: the type of {printable(column.name)} was"
                        f" altered since the task started, from {column.type} to {kind}; allowed: the task starts"
                        " again, on the new type"
                    )

    def _divided(self, rows: Sequence[bytes]) -> tuple[list[bytes], list[pa.RecordBatch]]:
        """Return the rows that fit the columns, and the errors of the others, by halving."""
        try:
            _parse(rows, self.columns)
        except _MISFITS:
            pass
        else:
            return list(rows), []
        if len(rows) > 1:
            half = len(rows) // 2
            parts = self._divided(rows[:half]), self._divided(rows[half:])
            return [row for good, _ in parts for row in good], [batch for _, bad in parts for batch in bad]
        as_text = [replace(column, type="STRING") for column in self.columns]
        (record,) = _parse(rows, tuple(as_text)).to_pylist()
        reason = "the row does not fit its columns"
        for column in self.columns:
            value = record[column.name]
            try:
                # An empty line is no row, so a null stays one with a second field.
                _parse([_quoted(value) + b',"x"\n'], (column, Column("connectgroup other", "STRING")))
            except _MISFITS:
                years = "; years 1 to 9999" if column.type in ("DATE", "TIMESTAMP") else ""
                reason = (
                    f"{printable(column.name)} is {printable(value)!r}; allowed: {column.type} or null{years}; or a"
                    " view that casts it to text as source.table"
                )
                break
        return [], [self.bad_row(record[self.settings.incrementing_column], reason, record)]

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
    with driver_errors(SourceError, where(connection)):
        return run(connection, statement, *values)


def _columns_in(connection: psycopg.Connection, settings: PostgresTableSettings) -> list[Column]:
    """The columns of the table as they are now; none: there is no such table."""
    found = _run(connection, _COLUMNS, _table(settings))
    return [Column(name, _TYPES.get(kind, "STRING")) for name, kind in found]


def _table(settings: PostgresTableSettings) -> str:
    return ".".join(sql_name(name) for name in (settings.schema_, settings.table) if name)


def _quoted(value: str | None) -> bytes:
    return b"" if value is None else b'"' + value.replace('"', '""').encode() + b'"'


def _parse(rows: Sequence[bytes], columns: Columns) -> pa.RecordBatch:
    """Parse the CSV of COPY: every value has quotes, null is an empty field without.

    Raises:
        Exception: one of ``_MISFITS``: a value is not of its column's type.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    schema, text = to_arrow(columns), b"".join(rows)
    # A time without zone is read as it is and then called UTC.
    table = pyarrow.csv.read_csv(
        io.BytesIO(text),
        # One block: at the boundary of two, Arrow loses the line feed of a line end inside quotes.
        read_options=pyarrow.csv.ReadOptions(column_names=schema.names, use_threads=False, block_size=len(text) + 1),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
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
            times = pc.replace_substring_regex(table.column(at), r"\+00$", "").cast(pa.timestamp("us"))
            table = table.set_column(at, field.name, pc.assume_timezone(times, "UTC"))
    if table.num_rows != len(rows):
        raise SourceError(f"{len(rows)} rows of COPY are {table.num_rows}; allowed: a message for each row")
    (batch,) = table.cast(schema).combine_chunks().to_batches()
    for values in batch.columns:
        check_years(values)
    return batch

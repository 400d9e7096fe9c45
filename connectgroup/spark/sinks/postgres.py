"""The sink ``postgres``: writes rows to a table of a PostgreSQL database that also stores the offsets.

Rows become visible with the transaction that checks the fencing tokens and advances the offsets
(``dataplane.postgres_store``). They travel by COPY.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, SecretStr

from ...connector import LocalPath
from ...dataplane.columns import Column, Columns, sql_name
from ...dataplane.dead_letters import DeadLetter, DeadLetters, DeadLetterSink, reject, values_of, write_rows
from ...dataplane.errors import SinkError
from ...dataplane.ownership import Owner, Range
from ...dataplane.postgres_store import (
    PostgresOffsetStore,
    PostgresTransaction,
    connect,
    files_in_url,
    one_line,
    parse_url,
    run,
    where,
)
from ...errors import ConfigError
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
    import psycopg
    import pyarrow as pa

_TYPES: Final = {
    "BOOLEAN": "BOOLEAN",
    "TINYINT": "SMALLINT",
    "SMALLINT": "SMALLINT",
    "INT": "INTEGER",
    "BIGINT": "BIGINT",
    "FLOAT": "REAL",
    "DOUBLE": "DOUBLE PRECISION",
    "STRING": "TEXT",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMPTZ",
    "BINARY": "BYTEA",
    "TIMESTAMP_NTZ": "TIMESTAMP",
}
_SCHEMA_NAMES: Final = "a name of letters, digits and _"
_STAGE: Final = "connectgroup_stage"
_CHECK: Final = "connectgroup_check"


_MAX_NAME_BYTES: Final = 63
_TEXTS: Final = frozenset({"text", "varchar", "bpchar"})
_NUMBERS: Final = frozenset({"int2", "int4", "int8", "float4", "float8", "numeric"})
_TIMES: Final = frozenset({"date", "timestamp", "timestamptz"})
_BLANKS: Final = "{stored}::text = {value}"
"""For VARCHAR(N), which cuts blanks at the end, and CHAR(N), whose text is without those that it adds."""
_PLACE: Final = re.compile(r"\{(stored|shown|value)\}")
_TIME_OF_DAY: Final = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6}0*)?)?"
_TIME: Final = rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([T ]{_TIME_OF_DAY}(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)?)?"
_KEPT: Final = {
    "BOOLEAN": "bool",
    "TINYINT": "int2 int4 int8 float4 float8",
    "SMALLINT": "int2 int4 int8 float4 float8",
    "INT": "int2 int4 int8 float8",
    "BIGINT": "int2 int4 int8",
    "FLOAT": "float4 float8",
    "DOUBLE": "float8",
    "DATE": "date timestamp timestamptz",
    "TIMESTAMP": "timestamp timestamptz",
    "BINARY": "bytea",
}
"""The types without a length that keep each value of a type, or reject it."""
_FIND_COLUMNS: Final = """
WITH RECURSIVE found(num, name, declared, type, modifier) AS (
    SELECT attnum, attname, format_type(atttypid, atttypmod), atttypid, atttypmod FROM pg_attribute
    WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped
  UNION ALL
    SELECT num, name, declared, typbasetype, typtypmod FROM found JOIN pg_type ON oid = type WHERE typtype = 'd'
)
SELECT name, declared, typname, modifier, typnamespace = 'pg_catalog'::regnamespace
FROM found JOIN pg_type ON oid = type
WHERE typtype <> 'd' ORDER BY num
"""
"""Name, type, base type, length or precision of it (-1: none), and whether it is one of PostgreSQL's own."""


class PostgresSettings(TableSinkSettings):
    """Settings of the sink ``postgres``, each with the prefix ``sink.``."""

    url: Annotated[
        str,
        LocalPath(within=files_in_url),
        Field(description="a connection string of libpq, such as postgresql://user@host:5432/database"),
    ] = ""
    password: Annotated[SecretStr | None, Field(description="the password, if not in libpq's password file")] = None
    schema_: Annotated[
        str, Field(alias="schema", description=f"{_SCHEMA_NAMES}; the first of the search path by default")
    ] = ""

    def model_post_init(self, context: Any) -> None:
        """Check the names and the connection string.

        Raises:
            ConfigError: the name of the table or of the schema, or an option of the string, is not allowed.
        """
        super().model_post_init(context)
        if self.schema_ and not re.fullmatch(r"[A-Za-z_]\w{0,62}", self.schema_, re.ASCII):
            raise ConfigError("sink.schema", self.schema_, _SCHEMA_NAMES)
        parse_url("sink.url", self.url)


class PostgresSink(DeadLetterSink):
    """Writes rows to a table of the database that stores the offsets: inserts, upserts or deletes. A row with a value
    that the type of its column in an existing table would change (rounded, cut, the text 007 as a number, a key of JSON
    twice in JSONB) is an error or, with `errors.tolerance=all`, a dead letter. Not a change: the blanks that CHAR(N)
    adds, another notation of the same time or the same JSON, a number as its text. Texts count as times in the form of
    ISO 8601, in UTC without an offset. A column BYTEA takes BINARY alone, and BINARY goes to no other column. Types of
    extensions are not checked. A row that a trigger leaves out counts as written. If a column that is written is
    altered while a task runs, the next batch is an error, and the task starts again on the new columns.
    """

    Settings = PostgresSettings

    def __init__(self, settings: PostgresSettings, columns: Columns) -> None:
        """Connect; create the table, or check its columns.

        Raises:
            ConfigError: the driver is not installed, or a setting names a column that does not exist.
            SinkError: the server cannot be reached, or the table lacks a column of the source.
        """
        self._settings = settings
        self._dead_letters = ""
        self._columns = settings.written(columns)
        # Set by _make_table: what the table may change, and the columns of the table that are written.
        self._checked: dict[str, tuple[str, str]] = {}
        self._found: dict[str, tuple[Any, ...]] = {}
        self._store = self.open_positions(settings)
        try:
            self._make_table()
        except BaseException:
            self._store.close()
            raise

    @classmethod
    def create(cls, settings: PostgresSettings, columns: Columns) -> PostgresSink:
        return cls(settings, columns)

    @classmethod
    def open_positions(cls, settings: PostgresSettings) -> PostgresOffsetStore:
        password = settings.password.get_secret_value() if settings.password else None
        return PostgresOffsetStore(settings.url, schema=settings.schema_, password=password)

    @classmethod
    def check_access(cls, settings: PostgresSettings) -> None:
        password = settings.password.get_secret_value() if settings.password else None
        # Not open_positions: it creates the tables of the offsets.
        with closing(connect(settings.url, schema=settings.schema_, password=password)) as connection:
            ((schema,),) = run(connection, "SELECT current_schema()")
            if schema is None:
                raise SinkError(f"{where(connection)}: has no schema {settings.schema_}; allowed: a schema that exists")

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        return self._store.claim(owner, is_mine)

    def open_dead_letters(self, name: str) -> None:
        check_dead_letters(name)
        with self._store.transaction(f"table {self._settings.schema_}.{name}") as transaction:
            if transaction.execute("SELECT to_regclass(?)", sql_name(name)) == [(None,)]:
                transaction.execute(f"CREATE TABLE {sql_name(name)} ({dead_letter_columns()})")
        self._dead_letters = insert_dead_letter(name)

    def commit_all(
        self, owner: Owner, ranges: Sequence[Range], rows: pa.Table, dead_letters: Sequence[DeadLetter]
    ) -> bool:
        import psycopg

        bad, where = null_keys(self._settings, rows), f"{self._store.where}, table {self._settings.table}"
        kept = [at for at in range(rows.num_rows) if at not in bad] if bad else range(rows.num_rows)
        good = without(rows, bad)
        names = [column.name for column in self._columns]
        deleted = self._settings.delete_field
        chosen = good.select([*names, deleted] if deleted else names)
        # Encode before the transaction: a claim waits for it.
        whole = as_csv(chosen)

        def write(transaction: PostgresTransaction) -> None:
            def write_some(start: int, end: int) -> None:
                try:
                    write_all(start, end)
                except psycopg.DatabaseError as error:
                    if _is_of_a_row(error):
                        raise _RejectedRow(one_line(error)) from error
                    raise

            def write_all(start: int, end: int) -> None:
                text = whole if end - start == chosen.num_rows else as_csv(chosen.slice(start, end - start))
                if self._checked:
                    self._check(transaction, chosen.slice(start, end - start))
                if self._settings.insert_mode == "insert":
                    copy(transaction, self._settings.table, names, text)
                else:
                    self._change(transaction, names, text)
                if isinstance(dead_letters, DeadLetters):
                    # A deferred constraint would fail at the end of the transaction, for all rows.
                    transaction.execute("SET CONSTRAINTS ALL IMMEDIATE")

            for at, reason in bad.items():
                reject(dead_letters, where, rows, at, reason)
            write_rows(
                chosen.num_rows,
                write_some,
                transaction.connection.transaction,
                (_RejectedRow,),
                lambda at, error: reject(dead_letters, where, rows, kept[at], f"{error}; allowed: {_allowed(error)}"),
            )
            # Afterwards: what has written holds the lock of the table, so that none of these changes any more.
            check_unaltered(where, self._found, self._look(transaction))
            if dead_letters:
                transaction.execute_many(self._dead_letters, [values_of(letter) for letter in dead_letters])

        return self._store.commit(owner, ranges, write)

    def close(self) -> None:
        self._store.close()

    def _change(self, transaction: PostgresTransaction, names: Sequence[str], text: bytes) -> None:
        """Upsert or delete by key. Of several rows with one key, the last one of the batch counts."""
        table, keys, deleted = sql_name(self._settings.table), self._settings.keys, self._settings.delete_field
        key_list = ", ".join(map(sql_name, keys))
        flag = f", false AS {sql_name(deleted)}" if deleted else ""
        transaction.execute(f"DROP TABLE IF EXISTS pg_temp.{_STAGE}")
        transaction.execute(
            f"CREATE TEMPORARY TABLE {_STAGE} ON COMMIT DROP AS"
            f" SELECT {', '.join(map(sql_name, names))}{flag} FROM {table} WITH NO DATA"
        )
        # The order of the rows of the batch.
        transaction.execute(f"ALTER TABLE {_STAGE} ADD connectgroup_order BIGSERIAL")
        copy(transaction, _STAGE, [*names, deleted] if deleted else names, text)
        last = f"(SELECT DISTINCT ON ({key_list}) * FROM {_STAGE} ORDER BY {key_list}, connectgroup_order DESC) AS last"
        same = " AND ".join(f"t.{sql_name(key)} = last.{sql_name(key)}" for key in keys)
        if self._settings.insert_mode == "delete":
            transaction.execute(f"DELETE FROM {table} AS t USING {last} WHERE {same}")
            return
        if deleted:
            transaction.execute(f"DELETE FROM {table} AS t USING {last} WHERE {same} AND last.{sql_name(deleted)}")
        changed = [name for name in names if name not in keys]
        update = ", ".join(f"{sql_name(name)} = excluded.{sql_name(name)}" for name in changed)
        name_list = ", ".join(map(sql_name, names))
        transaction.execute(
            f"INSERT INTO {table} ({name_list}) OVERRIDING SYSTEM VALUE SELECT {name_list} FROM {last}"
            + (f" WHERE {sql_name(deleted)} IS NOT TRUE" if deleted else "")
            + f" ON CONFLICT ({key_list}) DO "
            + (f"UPDATE SET {update}" if update else "NOTHING")
        )

    def _check(self, transaction: PostgresTransaction, rows: pa.Table) -> None:
        """Let the server convert the values, and compare.

        Raises:
            psycopg.DataError: a value would be changed, or does not fit its column.
        """
        import psycopg
        import pyarrow.compute as pc

        names = [
            name
            for name, (_, test) in self._checked.items()
            if test != _BLANKS or pc.any(pc.ends_with(rows.column(name), " ")).as_py()
        ]
        if not names:
            return
        transaction.execute(f"DROP TABLE IF EXISTS pg_temp.{_CHECK}")
        written = [f"connectgroup_value_{at}" for at in range(len(names))]
        parts = [f"{sql_name(name)} {self._checked[name][0]}" for name in names] + [f"{each} TEXT" for each in written]
        transaction.execute(f"CREATE TEMPORARY TABLE {_CHECK} ({', '.join(parts)}) ON COMMIT DROP")
        twice, chosen = [*names, *written], rows.select(names)
        copy(transaction, _CHECK, twice, as_csv(type(rows).from_arrays([*chosen.columns, *chosen.columns], twice)))
        for name, value in zip(names, written, strict=True):
            declared, test = self._checked[name]
            stored = sql_name(name)
            shown = f"format('%s', {stored})"
            condition = _condition(test, {"stored": stored, "shown": shown, "value": value})
            statement: Any = (
                f"SELECT left({value}, 200), left({shown}, 200) FROM {_CHECK}"
                f" WHERE {value} IS NOT NULL AND NOT coalesce(({condition}), false) LIMIT 1"
            )
            try:
                # Not transaction.execute: the ? of the patterns is no place of a value.
                found = transaction.connection.execute(statement).fetchall()
            except psycopg.DataError as error:
                raise psycopg.DataError(f"column {name}: type {declared}: {one_line(error)}") from error
            texts = rows.column(name).to_pylist() if declared == "jsonb" else []
            found = found or [(text, "one of its keys") for text in texts if text is not None and _has_key_twice(text)]
            for before, after in found[:1]:
                raise psycopg.DataError(
                    f"column {name}: type {declared} would store {printable(after, limit=60)} instead of"
                    f" {printable(before, limit=60)}"
                )

    def _make_table(self) -> None:
        settings, table = self._settings, sql_name(self._settings.table)
        for column in self._columns:
            if (size := len(column.name.encode())) > _MAX_NAME_BYTES:
                raise SinkError(
                    f"{self._store.where}: table {settings.table}: the name {printable(column.name)} has {size} bytes;"
                    f" allowed: names of columns of up to {_MAX_NAME_BYTES} bytes: PostgreSQL cuts longer ones off"
                )
        # One lock for all tasks: two that start at once must not both create the table.
        with self._store.transaction(f"table {settings.schema_}.{settings.table}") as transaction:
            if found := transaction.execute(_FIND_COLUMNS, table):
                self._check_case({str(name) for name, *_ in found})
                for column in missing_columns(self._store.where, settings, [name for name, *_ in found], self._columns):
                    transaction.execute(f"ALTER TABLE {table} ADD COLUMN {_definition(column)}")
            elif settings.auto_create:
                parts = [_definition(column) for column in self._columns]
                if settings.keys:
                    parts.append(f"PRIMARY KEY ({', '.join(map(sql_name, settings.keys))})")
                transaction.execute(f"CREATE TABLE {table} ({', '.join(parts)})")
            else:
                raise no_table(self._store.where, settings)
            self._found = self._look(transaction)
        for column in self._columns:
            if (kind := self._found.get(column.name)) and (test := self._test_of(column, *kind)):
                self._checked[column.name] = kind[0], test

    def _check_case(self, found: Set[str]) -> None:
        """Raise an error if the table has a column under a name that differs in case: for PostgreSQL, it is another."""
        known = {name.lower(): name for name in found}
        for column in self._columns:
            other = known.get(column.name.lower(), column.name)
            if column.name not in found and other != column.name:
                raise SinkError(
                    f"{self._store.where}: table {self._settings.table} has the column {printable(other)}, not"
                    f" {printable(column.name)}; allowed: names in the case of the table; ReplaceField renames columns"
                )

    def _look(self, transaction: PostgresTransaction) -> dict[str, tuple[Any, ...]]:
        """Return what ``_FIND_COLUMNS`` tells of the columns that are written, by their names."""
        names = {column.name for column in self._columns}
        found = transaction.execute(_FIND_COLUMNS, sql_name(self._settings.table))
        return {name: tuple(kind) for name, *kind in found if name in names}

    def _test_of(self, column: Column, declared: str, base: str, modifier: int, is_own: bool) -> str:
        """Return the condition that a stored value is the one that was written; none if no value may be changed.

        Raises:
            SinkError: each value would be changed.
        """
        if (base == "bytea") != (column.type == "BINARY"):
            raise SinkError(
                f"{self._store.where}: table {self._settings.table}: column {column.name} is {declared}, and its values"
                f" are {column.type}; allowed: a column of type {postgres_type(column)}; {OTHER_TABLE}"
            )
        return _kept_if(column, base, modifier) if is_own else ""


class _RejectedRow(Exception):
    """The server rejects a row; carries the reason."""


def _is_of_a_row(error: psycopg.DatabaseError) -> bool:
    """Whether a statement has failed because of a value in a row: also where an index has no room for a text, or where
    a trigger has raised an error, of PL/pgSQL's classes or under a code of its own."""
    from psycopg import errors

    of_values = (errors.DataError, errors.IntegrityError, errors.ProgramLimitExceeded)
    of_triggers = (errors.RaiseException, errors.NoDataFound, errors.TooManyRows, errors.AssertFailure)
    # psycopg has no class for a code that PostgreSQL itself does not use.
    has_own_code = type(error) is errors.DatabaseError and error.sqlstate is not None
    return has_own_code or isinstance(error, of_values + of_triggers)


def _allowed(error: Exception) -> str:
    """What is allowed instead of a row that the server rejects."""
    from psycopg import errors

    cause = error.__cause__
    # Types divide nothing, and call no function: a constraint or a trigger does.
    is_of_type = isinstance(cause, errors.DataError) and not (
        isinstance(cause, errors.DivisionByZero) or "PL/pgSQL" in (cause.diag.context or "")
    )
    return f"values that the types of the table keep; {OTHER_TABLE}" if is_of_type else ROWS_THAT_FIT


def _condition(test: str, places: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda place: places[place[1]], test)


def _kept_if(column: Column, base: str, modifier: int) -> str:
    """Return a condition on ``{stored}``, ``{shown}`` (its text) and ``{value}`` (the text that was written)."""
    kind = column.type
    is_text = postgres_type(column) in ("TEXT", "JSONB")
    if base in _TEXTS:
        return _BLANKS if kind == "STRING" and (base == "bpchar" or modifier != -1) else ""
    if modifier == -1 and base in _KEPT.get(kind, "").split():
        return ""
    if kind.startswith("DECIMAL(") and base == "numeric":
        scale = int(kind[:-1].partition(",")[2])
        # As PostgreSQL packs them: eleven bits of a signed scale.
        if modifier == -1 or scale <= (((modifier - 4) & 0x7FF) ^ 1024) - 1024:
            return ""
    # Of whole numbers, a boolean takes 0 and 1 alone.
    if base in ("numeric", "bool") and modifier == -1 and kind in ("TINYINT", "SMALLINT", "INT", "BIGINT"):
        return ""
    if base == "json" or (base == "jsonb" and not is_text):
        return ""
    if base == "jsonb":
        return "true" if kind == "STRING" else ""
    if not is_text:
        own = postgres_type(column).partition("(")[0]
        if own in ("SMALLINT", "INTEGER", "BIGINT"):
            own = "NUMERIC"
        if own == "DATE" or kind == "TIMESTAMP_NTZ":
            own = "TIMESTAMPTZ"
        same = f"{{shown}}::{own} = {{value}}::{own}"
        is_number = own in ("NUMERIC", "REAL", "DOUBLE PRECISION")
        return f"{same} AND (left({{shown}}, 1) = '-') = (left({{value}}, 1) = '-')" if is_number else same
    form, same = "", ""
    if base in _NUMBERS:
        form = NUMBER
        same = "{shown}::numeric = {value}::numeric AND (left({shown}, 1) = '-') = (left({value}, 1) = '-')"
    elif base in _TIMES:
        form, same = _TIME, "{shown}::timestamptz = {value}::timestamptz"
    elif base == "time":
        form, same = _TIME_OF_DAY, "{shown}::time = {value}::time"
    elif base == "bool":
        form, same = "([Tt]|[Ff]|[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])", "true"
    elif base == "uuid":
        form, same = "[0-9A-Fa-f-]{36}", "{shown} = lower({value})"
    if not form:
        return "{shown} = {value}"
    return f"CASE WHEN {{shown}} = {{value}} THEN true WHEN {{value}} ~ '^({form})$' THEN {same} ELSE false END"


def _has_key_twice(text: str) -> bool:
    def check(pairs: list[tuple[str, object]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            raise KeyError

    try:
        json.loads(text, object_pairs_hook=check, parse_int=str, parse_float=str)
    except KeyError:
        return True
    except (ValueError, RecursionError):
        return False  # The server has read it, or rejects it.
    return False


def postgres_type(column: Column) -> str:
    """Return the type of a column in PostgreSQL; structs, arrays and maps are JSONB."""
    if column.type.startswith("DECIMAL("):
        return column.type.replace("DECIMAL", "NUMERIC")
    return _TYPES.get(column.type, "JSONB")


def copy(transaction: PostgresTransaction, table: str, names: Sequence[str], text: bytes) -> None:
    """Append rows of CSV to a table."""
    columns = ", ".join(map(sql_name, names))
    statement: Any = f"COPY {sql_name(table)} ({columns}) FROM STDIN WITH (FORMAT csv)"
    with transaction.connection.cursor() as cursor, cursor.copy(statement) as stream:
        stream.write(text)


def as_csv(rows: pa.Table) -> bytes:
    """Return rows as the CSV that COPY reads: null is an empty field, an empty text has quotes."""
    import pyarrow as pa
    import pyarrow.csv

    rows = plain_values(rows)
    for at, field in enumerate(rows.schema):
        if pa.types.is_binary(field.type):
            texts = [None if value is None else "\\x" + value.hex() for value in rows.column(at).to_pylist()]
            rows = rows.set_column(at, field.name, pa.chunked_array([pa.array(texts, pa.string())]))
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(rows, buffer, pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed"))
    return buffer.getvalue()


def _definition(column: Column) -> str:
    return f"{sql_name(column.name)} {postgres_type(column)}"

"""The columns of a source: parsed from Spark's DDL, and converted to Arrow and SQLite types.

The list of types is closed, so that a value has the same meaning in a CSV file, a JSON line, Spark, Parquet and
SQLite, and so that a schema can be checked where Spark is not installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

SQLITE_TYPES: Final = {
    "BOOLEAN": "INTEGER",
    "SMALLINT": "INTEGER",
    "INT": "INTEGER",
    "BIGINT": "INTEGER",
    "FLOAT": "REAL",
    "DOUBLE": "REAL",
    "STRING": "TEXT",
    "DATE": "TEXT",
    "TIMESTAMP": "TEXT",
}
_OTHER_SQLITE_TYPES: Final = {"BINARY": "BLOB", "TINYINT": "INTEGER"}
_ALIASES: Final = {"INTEGER": "INT", "LONG": "BIGINT", "SHORT": "SMALLINT", "REAL": "FLOAT", "VARCHAR": "STRING"}
_COLUMN: Final = re.compile(r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[A-Za-z_]\w*))(?:\s*:\s*|\s+)(?P<type>\w+)\s*")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, and its type. Every column may be null.

    A source's types are keys of ``SQLITE_TYPES``. Transforms may add columns of any other type of Spark, in upper case
    (``BINARY``, ``STRUCT<A:INT>``).

    Attributes:
        metadata: in the columns that a sink gets: whether it is record metadata (``dataplane.transform``).
    """

    name: str
    type: str
    metadata: bool = False


Columns = tuple[Column, ...]


def sqlite_type(column: Column) -> str:
    """Return the type of a column in SQLite; a type that SQLite lacks is stored as text, structs and arrays as JSON."""
    return SQLITE_TYPES.get(column.type, _OTHER_SQLITE_TYPES.get(column.type, "TEXT"))


def from_ddl(ddl: str, *, field: str = "source.schema") -> Columns:
    """Parse a list such as ``"a INT, b STRING"``.

    Raises:
        ConfigError: the text is not a list of names and types, a type is unknown, or a name occurs twice (names are
            compared without case).
    """
    columns = []
    for part in _parts(ddl):
        match = _COLUMN.fullmatch(part)
        if match is None:
            raise ConfigError(field, part.strip() or ddl, "columns as NAME TYPE, separated by commas")
        kind = match["type"].upper()
        kind = _ALIASES.get(kind, kind)
        if kind not in SQLITE_TYPES:
            raise ConfigError(field, part.strip(), f"types {', '.join(SQLITE_TYPES)}")
        columns.append(Column((match["quoted"] or "").replace("``", "`") or match["plain"], kind))
    return check_names(columns, field=field)


def _parts(ddl: str) -> list[str]:
    """Split at the commas outside backticks, in one pass: the text may be long."""
    parts: list[list[str]] = [[]]
    for number, text in enumerate(ddl.split("`")):
        if number % 2:
            parts[-1] += ("`", text, "`")
        else:
            first, *others = text.split(",")
            parts[-1].append(first)
            parts += ([other] for other in others)
    return ["".join(part) for part in parts]


def check_names(columns: list[Column], *, field: str) -> Columns:
    """Return the columns if every name is non-empty and occurs once.

    Raises:
        ConfigError: a name is empty or occurs twice.
    """
    seen: set[str] = set()
    for column in columns:
        # Spark and SQLite do not distinguish a from A.
        if column.name.lower() in seen or not column.name:
            raise ConfigError(field, column.name, "column names that are not empty and stand once")
        seen.add(column.name.lower())
    return tuple(columns)


def to_ddl(columns: Columns) -> str:
    """Return the columns in Spark's DDL, with every name quoted."""
    return ", ".join(f"`{column.name.replace('`', '``')}` {column.type}" for column in columns)


def to_arrow(columns: Columns) -> pa.Schema:
    """Return the columns as an Arrow schema; timestamps are UTC microseconds, as in Spark."""
    import pyarrow as pa

    types = {
        "BOOLEAN": pa.bool_(),
        "SMALLINT": pa.int16(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "STRING": pa.string(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([pa.field(column.name, types[column.type]) for column in columns])


def sql_name(name: str) -> str:
    """Return a table or column name as SQL expects it."""
    return '"' + name.replace('"', '""') + '"'

"""The columns of a source: parsed from Spark's DDL, converted to Arrow and SQLite types, and written as JSON.

The list of types is closed, so that a value has the same meaning in a CSV file, a JSON line, Spark, Parquet and
SQLite, and so that a schema can be checked where Spark is not installed.

JSON has no NaN and no infinity: they are the texts NaN, Infinity and -Infinity, as Kafka
Connect's and Spark's writers have them, and the sources read these texts as numbers. A FLOAT is written with the digits
that tell it from every other one, as there: Python has it with 64 bits, and 0.1 would be 0.10000000149011612.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from ..protocol.units import printable

if TYPE_CHECKING:
    import pyarrow as pa

SQLITE_TYPES: Final = {
    "BOOLEAN": "INTEGER",
    "TINYINT": "INTEGER",
    "SMALLINT": "INTEGER",
    "INT": "INTEGER",
    "BIGINT": "INTEGER",
    "FLOAT": "REAL",
    "DOUBLE": "REAL",
    "STRING": "TEXT",
    "DATE": "TEXT",
    "TIMESTAMP": "TEXT",
}
_OTHER_SQLITE_TYPES: Final = {"BINARY": "BLOB"}
_ALIASES: Final = {
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "SHORT": "SMALLINT",
    "BYTE": "TINYINT",
    "REAL": "FLOAT",
    "VARCHAR": "STRING",
    "TIMESTAMP_LTZ": "TIMESTAMP",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
}
_COLUMN: Final = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[A-Za-z_]\w*))(?:\s*:\s*|\s+)"
    r"(?P<type>\w+)\s*(?:\(\s*(?P<precision>\d{1,9})\s*(?:,\s*(?P<scale>\d{1,9})\s*)?\)\s*)?"
)
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+), ?(\d+)\)")
MAX_PRECISION: Final = 38
NUMBER_TEXT: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, and its type. Every column may be null.

    A source's types are keys of ``SQLITE_TYPES``, and ``DECIMAL(P,S)`` with up to 38 digits, S of them behind the
    point. Transforms may add columns of any other type of Spark, in upper case (``BINARY``, ``STRUCT<A:INT>``).

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


def from_ddl(ddl: str) -> Columns:
    """Parse a list such as ``"a INT, b STRING"``.

    Raises:
        ConfigError: the text is not a list of names and types, a type is unknown, or a name occurs twice (names are
            compared without case).
    """
    columns = []
    for part in _parts(ddl):
        match = _COLUMN.fullmatch(part)
        if match is None:
            raise ConfigError("source.schema", part.strip() or ddl, "columns as NAME TYPE, separated by commas")
        kind = match["type"].upper()
        kind = _ALIASES.get(kind, kind)
        if kind == "DECIMAL":
            # As in Spark, without both: DECIMAL(10,0).
            precision, scale = int(match["precision"] or 10), int(match["scale"] or 0)
            if not 1 <= precision <= MAX_PRECISION or scale > precision:
                raise ConfigError(
                    "source.schema", part.strip(), f"DECIMAL(P,S): P from 1 to {MAX_PRECISION}, S from 0 to P"
                )
            kind = f"DECIMAL({precision},{scale})"
        elif kind not in SQLITE_TYPES or match["precision"]:
            raise ConfigError("source.schema", part.strip(), f"types {', '.join(SQLITE_TYPES)}, DECIMAL(P,S)")
        columns.append(Column((match["quoted"] or "").replace("``", "`") or match["plain"], kind))
    return check_names(columns, field="source.schema")


def _parts(ddl: str) -> list[str]:
    """Split at the commas outside backticks and parentheses, in one pass: the text may be long."""
    parts: list[list[str]] = [[]]
    is_inside = False
    for number, text in enumerate(ddl.split("`")):
        if number % 2:
            parts[-1] += ("`", text, "`")
            continue
        first, *others = text.split(",")
        for at, piece in enumerate((first, *others)):
            if at and is_inside:
                parts[-1].append(",")
            elif at:
                parts.append([])
            parts[-1].append(piece)
            is_inside = piece.rfind("(") > piece.rfind(")") or (is_inside and ")" not in piece)
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
    """Return the columns as an Arrow schema; timestamps are UTC microseconds, as in Spark.

    Raises:
        KeyError: a column is a struct, an array or a map.
    """
    import pyarrow as pa

    types = {
        "BOOLEAN": pa.bool_(),
        "TINYINT": pa.int8(),
        "SMALLINT": pa.int16(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "STRING": pa.string(),
        "BINARY": pa.binary(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "TIMESTAMP_NTZ": pa.timestamp("us"),
    }

    def type_of(column: Column) -> pa.DataType:
        if match := _DECIMAL.fullmatch(column.type):
            return pa.decimal128(int(match[1]), int(match[2]))
        return types[column.type]

    return pa.schema([pa.field(column.name, type_of(column)) for column in columns])


def decimals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts as decimals.

    Raises:
        ArrowInvalid: a text is no number, or has more digits than the type before or behind the point.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_long = (pc.max(pc.binary_length(texts)).as_py() or 0) > MAX_PRECISION
    if is_long or pc.any(pc.match_substring_regex(texts, "[eE]")).as_py():
        return pa.array([_decimal(text, kind) for text in texts.to_pylist()], kind)
    try:
        found = texts.cast(kind)
    except pa.ArrowInvalid:
        # Zeros at the end are no digits that are lost.
        short = pc.replace_substring_regex(texts, r"^([^.]+)\.0*$", r"\1")
        found = pc.replace_substring_regex(short, r"^([^.]*\.[0-9]*[1-9])0+$", r"\1").cast(kind)
    found.validate(full=True)  # Arrow 26 makes 1 a DECIMAL(1,1), and looks at its digits afterwards at the earliest.
    return found


def _decimal(text: str | None, kind: pa.DataType) -> Decimal | None:
    """One text. Arrow 26 loses digits of long texts and of exponents: it makes 3E-39 a DECIMAL(38,0) of 0."""
    import pyarrow as pa

    if text is None:
        return None
    if not NUMBER_TEXT.fullmatch(text):
        raise pa.ArrowInvalid(f"no number: {printable(text)}")
    try:
        value = Decimal(text)
        exact = value.quantize(Decimal(1).scaleb(-kind.scale), context=Context(prec=kind.precision))
    except InvalidOperation as error:
        raise pa.ArrowInvalid(f"too many digits: {printable(text)}") from error
    if exact != value:
        raise pa.ArrowInvalid(f"too many digits behind the point: {printable(text)}")
    return exact


def decimal_texts(values: pa.Array) -> pa.Array:
    """Return decimals as texts with all their digits, without an exponent."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = values.cast(pa.string())
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    found = [None if value is None else format(value, "f") for value in values.to_pylist()]
    return (
        pa.chunked_array([found], pa.string()) if isinstance(values, pa.ChunkedArray) else pa.array(found, pa.string())
    )


def check_range(numbers: pa.Array, stored: pa.Array) -> None:
    """Check that floating-point numbers are in the range of the type that they are stored as. Arrow makes others 0 or
    infinite.

    Raises:
        OverflowError: one is not.
    """
    import pyarrow.compute as pc

    for is_other in (pc.is_inf, lambda values: pc.equal(values, 0)):
        if (pc.sum(is_other(numbers)).as_py() or 0) != (pc.sum(is_other(stored)).as_py() or 0):
            raise OverflowError(f"a number beyond the range of {stored.type}")


def sql_name(name: str) -> str:
    """Return a table or column name as SQL expects it."""
    return '"' + name.replace('"', '""') + '"'


def json_encoder(
    default: Callable[[Any], Any] | None = None, *, ensure_ascii: bool = False, compact: bool = True
) -> Callable[[Any], str]:
    """Return a function that writes a value as JSON.

    Args:
        default: converts a value that JSON does not have; by default bytes to base64 and others with ``str``.
        ensure_ascii: whether other characters are escaped.
        compact: whether there are no blanks.
    """
    separators = (",", ":") if compact else None
    encode = json.JSONEncoder(
        ensure_ascii=ensure_ascii, separators=separators, default=default or plain, allow_nan=False
    ).encode

    def text(value: Any) -> str:
        try:
            return encode(value)
        except ValueError:
            return encode(finite(value))

    return text


def plain(value: Any) -> str:
    """Return bytes in base64, decimals with all digits and no exponent, and any other value as ``str`` has it."""
    if isinstance(value, Decimal):
        return format(value, "f")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def as_objects(values: list[Any], kind: pa.DataType) -> list[Any]:
    """Return values of Arrow for JSON: maps whose keys are texts as dicts, and numbers of 32 bits as ``shortest``.
    Arrow has lists of pairs; other maps stay that, as Kafka Connect writes them."""
    convert = to_objects(kind)
    return values if convert is None else [convert(value) for value in values]


def to_objects(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that does it with a value of a type; ``None`` if its values stay as they are."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        fields = {field.name: each for field in kind if (each := to_objects(field.type)) is not None}
        if not fields:
            return None
        return lambda value: (
            None if value is None else {**value, **{name: each(value[name]) for name, each in fields.items()}}
        )
    if pa.types.is_float32(kind):
        return shortest
    if pa.types.is_map(kind):
        name, item = to_objects(kind.key_type), to_objects(kind.item_type)
        pairs = dict if pa.types.is_string(kind.key_type) else list
        if name is None and item is None:
            return lambda value: None if value is None else pairs(value)
        name, item = name or _same, item or _same
        return lambda value: None if value is None else pairs((name(key), item(each)) for key, each in value)
    convert = to_objects(kind.value_type) if pa.types.is_nested(kind) else None
    return convert and (lambda value: None if value is None else [convert(each) for each in value])


def shortest(value: float | None) -> float | None:
    """Return a number of 32 bits as the one of 64 bits whose text is the shortest that is the same 32 bits again."""
    if value is None or not math.isfinite(value):
        return value
    # Six digits of a normal number are those of one number alone, so that no shorter text than the first is the same.
    for digits in range(6 if abs(value) >= _NORMAL else 1, 10):
        found = float(f"{value:.{digits}g}")
        if _FLOAT.unpack(_FLOAT.pack(found))[0] == value:
            return found
    return value


def _same(value: Any) -> Any:
    return value


_FLOAT: Final = struct.Struct("<f")
_NORMAL: Final = 2.0**-126
"""The smallest number of 32 bits that has all its digits."""


def finite(value: Any) -> Any:
    """Return a value in which NaN and infinities are texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value

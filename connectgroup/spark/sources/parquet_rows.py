"""Reads Parquet as the columns of a source: each value exactly, or an error that names the column."""

from __future__ import annotations

import base64
import datetime
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...dataplane.columns import (
    Column,
    Columns,
    check_names,
    decimal_texts,
    decimals,
    json_encoder,
    plain,
    shortest,
    to_arrow,
)
from ...dataplane.errors import SourceError
from ...dataplane.real_paths import open_below
from ...protocol.units import printable
from .dialect import Drift
from .json_values import check_years, times_in

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet

_TYPES: Final = {
    "bool": "BOOLEAN",
    "int8": "SMALLINT",
    "uint8": "SMALLINT",
    "int16": "SMALLINT",
    "uint16": "INT",
    "int32": "INT",
    "uint32": "BIGINT",
    "int64": "BIGINT",
    "halffloat": "FLOAT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date32[day]": "DATE",
    "date64[ms]": "DATE",
}
"""Types of columns by those of Arrow. Timestamps are TIMESTAMP, all others STRING."""
_READABLE: Final = {
    "BOOLEAN": ("bool",),
    "TINYINT": ("int", "uint", "decimal"),
    "SMALLINT": ("int", "uint", "decimal"),
    "INT": ("int", "uint", "decimal"),
    "BIGINT": ("int", "uint", "decimal"),
    "FLOAT": ("halffloat", "float", "int", "uint"),
    "DOUBLE": ("halffloat", "float", "double", "int", "uint"),
    "DATE": ("date",),
    "TIMESTAMP": ("timestamp",),
}
"""Beginnings of the types of Arrow that a column can have in a file. A value that does not fit exactly is an error."""
_FIRST_EXACT_US: Final = -(1 << 63) // 1000
"""Timestamps that nanoseconds can hold, in microseconds."""


class Misfit(SourceError):
    """All rows of a file do not fit the columns, or the file is damaged."""


class BadValue(Exception):
    """A value does not fit its column.

    Attributes:
        reason: the column, the violation and what is allowed.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def opened(path: Path, descriptor: int, *, unit: str = "us") -> pyarrow.parquet.ParquetFile:
    """Return an open file as Parquet.

    Args:
        path: the file, for errors.
        descriptor: the file. Arrow opens it again, not its name: another process may have replaced it by a link.
        unit: the unit of timestamps in Spark's and Hive's old form (INT96).

    Raises:
        Misfit: it is no complete Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(pa.OSFile(f"/dev/fd/{descriptor}"), coerce_int96_timestamp_unit=unit)
    except (pa.ArrowException, OSError) as error:
        raise Misfit(f"{path}: cannot be read; allowed: a complete Parquet file") from error


def columns_of(root: Path, name: str) -> Columns:
    """Return the columns of a file.

    Raises:
        ConfigError: two names differ only in case, or a name is empty.
        SourceError: the file cannot be read.
    """
    try:
        with open_below(root, name) as file:
            schema = opened(root / name, file.fileno()).schema_arrow
    except OSError as error:
        raise SourceError(f"{root / name}: cannot be read ({error.strerror}); allowed: files") from error
    return check_names(
        [Column(field.name, _type_of(field.type)) for field in schema], field=f"columns of {root / name}"
    )


def check_columns(path: Path, found: pa.Schema, columns: Columns, *, others: Drift, lacks_columns: bool) -> None:
    """Check the columns of a file.

    Args:
        path: the file, for errors.
        found: its columns.
        columns: those of the source.
        others: what becomes of columns of the file that the source does not have.
        lacks_columns: whether the file may lack columns.

    Raises:
        Misfit: the columns do not fit.
        SourceError: there are new columns, which the task adds when it starts again.
    """
    wanted = {column.name: column for column in columns}
    names = printable(", ".join(wanted))
    new = [name for name in found.names if name not in wanted]
    missing = [name for name in wanted if name not in found.names]
    known = {name.lower(): name for name in wanted}
    for name in new:
        if others != "error" and name.lower() in known and known[name.lower()] in missing:
            raise Misfit(
                f"{path}: column {printable(name)} differs from {printable(known[name.lower()])} only in case;"
                f" allowed: the columns {names}, and others"
            )
    if new and others == "evolve":
        raise SourceError(
            f"{path}: has the new columns {printable(', '.join(new))}; allowed: the task starts again and adds them"
        )
    if new and others == "error":
        raise Misfit(
            f"{path}: has the column {printable(new[0])}; allowed: the columns {names}, or source.schema.drift ignore"
            " or evolve"
        )
    if missing and (not lacks_columns or len(missing) == len(wanted)):
        raise Misfit(
            f"{path}: lacks the column {printable(missing[0])}; allowed: the columns {names}, or"
            " source.schema.drift=ignore and one of them"
        )
    for field in found:
        column = wanted.get(field.name)
        if column is not None and not _is_readable(field.type, column.type):
            raise Misfit(
                f"{path}: column {printable(field.name)} is {field.type}; allowed: {column.type}, or source.schema with"
                f" {printable(field.name)} {_type_of(field.type)}"
            )


def rows_of(
    path: Path, descriptor: int, file: pyarrow.parquet.ParquetFile, columns: Columns, start: int, end: int
) -> Iterator[pa.Table]:
    """Yield the rows ``[start, end)`` of a file as it has them, with the columns of the source that it has.

    Raises:
        Misfit: the file is damaged, has a timestamp with nanoseconds in the form INT96, or one of the Julian calendar.
    """
    import pyarrow as pa

    first = 0
    names = [column.name for column in columns if column.name in file.schema_arrow.names]
    old = [name for name in names if name in _int96_columns(file)]
    exact = opened(path, descriptor, unit="ns") if old else None
    for group in range(file.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        begin, stop = max(start - first, 0), min(end - first, count)
        first += count
        if begin >= stop:
            continue
        try:
            rows = file.read_row_group(group, columns=names).select(names).slice(begin, stop - begin)
            if exact is not None:
                for name in old:
                    values = exact.read_row_group(group, columns=[name]).column(name).slice(begin, stop - begin)
                    rows = rows.set_column(names.index(name), name, _exact(rows.column(name), values))
        except (pa.ArrowException, KeyError, OSError) as error:
            raise Misfit(
                f"{path}: cannot be read ({' '.join(str(error).split())[:200]}); allowed: a complete Parquet file"
            ) from error
        yield _gregorian(path, file, _with_intervals(file, rows))


def converted(rows: pa.Table, columns: Columns) -> pa.RecordBatch:
    """Return rows with the types of the columns; null for a column that they lack.

    Raises:
        BadValue: a value does not fit its column exactly.
    """
    import pyarrow as pa

    schema, arrays = to_arrow(columns), []
    for column, field in zip(columns, schema, strict=True):
        if column.name not in rows.column_names:
            arrays.append(pa.nulls(rows.num_rows, field.type))
            continue
        values = rows.column(column.name).combine_chunks()
        try:
            arrays.append(_converted(values, column, field.type))
            check_years(arrays[-1])
            if pa.types.is_string(field.type):
                arrays[-1].validate(full=True)  # No writer is forced to write UTF-8.
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            why, name = " ".join(str(error).split())[:200], printable(column.name)
            other = f"without {name}" if column.type == "STRING" else f"with {name} STRING"
            raise BadValue(
                f"column {name} is {values.type} ({printable(why)}); allowed: {column.type}, each value exactly, or"
                f" source.schema {other}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def converted_or_bad(rows: pa.Table, columns: Columns) -> tuple[list[pa.RecordBatch], list[tuple[int, str]]]:
    """Return the rows that fit the columns, and index and reason of the others. Halves the rows to find them."""
    try:
        return [converted(rows, columns)], []
    except BadValue as error:
        if rows.num_rows == 1:
            return [], [(0, error.reason)]
    half = rows.num_rows // 2
    good, bad = converted_or_bad(rows.slice(0, half), columns)
    more, worse = converted_or_bad(rows.slice(half), columns)
    return [*good, *more], [*bad, *((half + at, reason) for at, reason in worse)]


def shown(rows: pa.Table, index: int) -> dict[str, str | None]:
    """Return the values of a row as texts, for a dead letter."""
    found: dict[str, str | None] = {}
    for name in rows.column_names:
        value = rows.slice(index, 1).column(name).combine_chunks()
        try:
            found[name] = _texts(value.dictionary_decode() if hasattr(value, "dictionary_decode") else value)[0].as_py()
        except (ValueError, TypeError, OverflowError, NotImplementedError):
            found[name] = str(value)
    return found


def _type_of(kind: pa.DataType) -> str:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return "TIMESTAMP" if pa.types.is_timestamp(kind) else _TYPES.get(str(kind), "STRING")


def _is_readable(kind: pa.DataType, wanted: str) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    readable = ("int", "uint", "decimal") if wanted.startswith("DECIMAL") else _READABLE.get(wanted, ("string",))
    return wanted == "STRING" or pa.types.is_null(kind) or str(kind).startswith(readable)


def _converted(values: pa.Array, column: Column, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.type == kind:
        return values
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), kind)
    if pa.types.is_decimal(kind) and pa.types.is_integer(values.type):
        # Arrow wants room for all integers of the type, not for these.
        return decimals(values.cast(pa.string()), kind)
    return _texts(values) if column.type == "STRING" else values.cast(kind)


def _texts(values: pa.Array) -> pa.Array:
    """Return values of any type as texts that show them exactly."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if pa.types.is_timestamp(kind):
        local = values.cast(pa.timestamp(kind.unit)).cast(pa.string())
        if pc.any(pc.starts_with(local, "<")).as_py():
            raise OverflowError("a year that has no text")  # Arrow writes <value out of range: 1>.
        texts = pc.replace_substring(local, " ", "T", max_replacements=1)
        return texts if kind.tz is None else pc.binary_join_element_wise(texts, pa.scalar("Z"), "")
    if pa.types.is_decimal(kind):
        return decimal_texts(values)
    if pa.types.is_duration(kind):
        return values.cast(pa.int64()).cast(pa.string())
    if str(kind) == "extension<arrow.uuid>":  # a cast would make texts of its bytes
        return pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())
    if not pa.types.is_nested(kind):
        return values.cast(pa.string())
    texts = [None if value is None else _JSON(_plain(value, kind)) for value in values.to_pylist()]
    return pa.array(texts, pa.string())


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a nested value with its maps as objects, as Spark writes them: Arrow has lists of pairs."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_map(kind):
        found = {_key(_plain(key, kind.key_type)): _plain(item, kind.item_type) for key, item in value}
        if len(found) < len(value):
            raise ValueError("a map has a key twice")
        return found
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind):
        return [_plain(item, kind.value_type) for item in value]
    return shortest(value) if pa.types.is_float32(kind) else value


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=_text).strip('"')


def _text(value: Any) -> str:
    """Return a value that JSON lacks: bytes as base64, times in ISO 8601, decimals and others as their text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value.isoformat()) if hasattr(value, "isoformat") else plain(value)


_JSON: Final = json_encoder(_text)


def _int96_columns(file: pyarrow.parquet.ParquetFile) -> frozenset[str]:
    """Return the columns with timestamps in the form INT96, also inside of structs, lists and maps."""
    leaves = [file.schema.column(at) for at in range(len(file.schema))]
    paths = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
    return frozenset(
        name for name in file.schema_arrow.names if any(path == name or path.startswith(f"{name}.") for path in paths)
    )


def _exact(rough: pa.ChunkedArray, exact: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return timestamps in nanoseconds where these hold all of them, else in microseconds.

    Arrow reads INT96 as either. A timestamp of another century does not fit into nanoseconds, and wraps around.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # A nested column keeps its form, with one unit for all of its timestamps.
    pairs = [(r, e) for r, e in zip(times_in(rough), times_in(exact), strict=True) if r.type != e.type]
    us = pa.chunked_array([each for r, _ in pairs for each in _chunks(r)], pa.timestamp("us")).cast(pa.int64())
    ns = pa.chunked_array([each for _, e in pairs for each in _chunks(e)], pa.timestamp("ns")).cast(pa.int64())
    is_held = pc.and_(pc.greater(us, _FIRST_EXACT_US + 1), pc.less(us, -_FIRST_EXACT_US - 1))
    if pc.all(is_held).as_py() is not False:
        return exact
    rest = pc.subtract(ns, pc.multiply(pc.if_else(is_held, us, 0), 1000))
    if pc.any(pc.and_(is_held, pc.not_equal(rest, 0))).as_py():
        raise pa.ArrowInvalid("timestamps with nanoseconds beside some of other centuries")
    return rough


def _with_intervals(file: pyarrow.parquet.ParquetFile, rows: pa.Table) -> pa.Table:
    """Return rows with the columns INTERVAL as texts of ISO 8601, such as P1M2DT3.004S: Arrow has their bytes."""
    import pyarrow as pa

    leaves = [file.schema.column(at) for at in range(len(file.schema))]
    for name in {leaf.path for leaf in leaves if leaf.converted_type == "INTERVAL"}.intersection(rows.column_names):
        texts: list[str | None] = []
        for value in rows.column(name).to_pylist():
            months, days, ms = (0, 0, 0) if value is None else _INTERVAL.unpack(value)
            texts.append(None if value is None else f"P{months}M{days}DT{ms // 1000}.{ms % 1000:03}S")
        rows = rows.set_column(rows.column_names.index(name), name, pa.chunked_array([texts], pa.string()))
    return rows


_INTERVAL: Final = struct.Struct("<III")


def _gregorian(path: Path, file: pyarrow.parquet.ParquetFile, rows: pa.Table) -> pa.Table:
    """Return rows with the dates that their writer had: Spark before 3.0, and later with its setting LEGACY, counts the
    days before 1582-10-15 in the Julian calendar, and says so in the file.

    Raises:
        Misfit: there is such a timestamp, which also depends on the writer's time zone, or a date in a nested value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    said = file.metadata.metadata or {}
    version = said.get(b"org.apache.spark.version", b"4")
    is_julian = version < b"3.0.0" or b"org.apache.spark.legacyDateTime" in said
    is_julian_int96 = version < b"3.1.0" or b"org.apache.spark.legacyINT96" in said
    if not is_julian and not is_julian_int96:
        return rows
    old = _int96_columns(file)
    for at, name in enumerate(rows.column_names):
        values = rows.column(at)
        if not (is_julian_int96 if name in old else is_julian):
            continue
        if pa.types.is_date32(values.type):
            rows = rows.set_column(at, name, pa.chunked_array(map(_from_julian, values.chunks), values.type))
            continue
        for times in times_in(values):
            # Nanoseconds hold no such time.
            if pa.types.is_date(times.type) or (pa.types.is_timestamp(times.type) and times.type.unit != "ns"):
                first = pa.scalar(datetime.datetime(1582, 10, 15), times.type)
                if pc.any(pc.less(times, first)).as_py():
                    shown = printable(name)
                    raise Misfit(
                        f"{path}: column {shown} has a time before 1582-10-15 in the Julian calendar, as Spark before"
                        f" 3.0 writes it; allowed: a file that a later one writes again, or source.schema without"
                        f" {shown}"
                    )
    return rows


def _from_julian(dates: pa.Array) -> pa.Array:
    """Return the dates that have the year, month and day of those of the Julian calendar; 1500-02-29 is 03-01."""
    import pyarrow as pa
    import pyarrow.compute as pc

    days = dates.cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64)
    # Years from March on, so that the day of a leap year is the last one.
    since = days + _JULIAN_EPOCH
    year = (4 * since + 3) // 1461
    day_of_year = since - 1461 * year // 4
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5
    months = (year - 4800 - 1970) * 12 + month + 2
    found = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) + day
    found = pa.array(np.where(days < _FIRST_GREGORIAN, found, days).astype(np.int32))
    return pc.if_else(pc.is_valid(dates), found, pa.scalar(None, pa.int32())).cast(dates.type)


_FIRST_GREGORIAN: Final = -141_427
"""1582-10-15, in days since 1970."""
_JULIAN_EPOCH: Final = 2_440_588 + 32_082
"""Days from March 1 of the year -4800 in the Julian calendar to 1970-01-01."""


def _chunks(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    import pyarrow as pa

    return values.chunks if isinstance(values, pa.ChunkedArray) else [values]

"""Parses bytes of whole lines into typed columns; an error describes the first invalid line.

Parsing is strict and identical on every worker: a value that is not of its column's type is an error, never a
null, because a row that silently loses a value is a lost row. A whole range is parsed in one call; only if that
fails are the lines searched for the invalid one.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.csv

from ...dataplane.columns import Column, Columns, check_names, to_arrow
from ...dataplane.dead_letters import ERROR_COLUMN, error_text
from ...dataplane.errors import BadLine
from ...dataplane.ownership import Range
from ...errors import ConfigError
from ...protocol.units import printable
from .listing import list_files, read_bytes

Format = Literal["csv", "jsonl", "text"]

_FAULTS: Final = (pa.ArrowException, ValueError, OverflowError, TypeError, RecursionError)
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_SOME_VALUE: Final = {"BOOLEAN": b"true", "DATE": b"2000-01-01", "TIMESTAMP": b"2000-01-01T00:00:00Z"}
_JSON_TYPES: Final[dict[str, frozenset[type]]] = {
    "BOOLEAN": frozenset({bool}),
    "SMALLINT": frozenset({int}),
    "INT": frozenset({int}),
    "BIGINT": frozenset({int}),
    "FLOAT": frozenset({int, float}),
    "DOUBLE": frozenset({int, float}),
    "STRING": frozenset({str}),
    "DATE": frozenset({str}),
    "TIMESTAMP": frozenset({str}),
}


def read_range(root: Path, wanted: Range, columns: Columns, form: Format, null: str = "") -> pa.RecordBatch:
    """Return the rows of one range of one file.

    Args:
        root: the source's directory.
        wanted: bytes ``[start, end)`` of whole lines. A CSV file's first line is its header, never a row.
        columns: names and types; a CSV header must be exactly these names in this order. A JSON line may omit
            columns (null) and have others (dropped).
        form: ``csv``, ``jsonl`` or ``text`` (each line is the column ``value``).
        null: a word that means null in an unquoted CSV field, in addition to the empty field (for example ``NA``).

    Returns:
        One row per line that is not blank, in the order of the file.

    Raises:
        BadLine: a line is invalid; names file, line number, byte offset, violation and what is allowed, of the first.
        SourceError: the file cannot be read.
    """
    data = read_bytes(root, wanted)
    skipped = 0
    if wanted.start == 0:
        skipped = len(_BYTE_ORDER_MARK) if data.startswith(_BYTE_ORDER_MARK) else 0
        if form == "csv":
            skipped = _check_header(root / wanted.slice, data, skipped, columns)
    body = data[skipped:]
    try:
        return _parse(body, columns, form, null)
    except _FAULTS:
        at, why = _first_fault(body, columns, form, null)
    offset = wanted.start + skipped + at
    before = read_bytes(root, Range(slice=wanted.slice, start=0, end=offset)) if offset else b""
    where = f"{root / wanted.slice}, line {before.count(10) + 1} (byte {offset})"
    raise BadLine(f"{where}: {why}")


def read_tolerantly(
    root: Path, wanted: Range, columns: Columns, form: Format, null: str = ""
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one range with the column ``connectgroup_error``, in the order of the file.

    A line that is invalid is a row of nulls with its error (``dead_letters.error_text``).

    Raises:
        BadLine: the header of a CSV file is invalid; then every row would be.
        SourceError: the file cannot be read.
    """
    path, data, at = root / wanted.slice, read_bytes(root, wanted), 0
    if wanted.start == 0:
        at = len(_BYTE_ORDER_MARK) if data.startswith(_BYTE_ORDER_MARK) else 0
        if form == "csv":
            at = _check_header(path, data, at, columns)
    before = read_bytes(root, Range(slice=wanted.slice, start=0, end=wanted.start)) if wanted.start else b""
    lines_before = before.count(b"\n")
    while at < len(data):
        try:
            yield _with_error(_parse(data[at:], columns, form, null), None)
            return
        except _FAULTS:
            offset, why = _first_fault(data[at:], columns, form, null)
        if offset:
            yield _with_error(_parse(data[at : at + offset], columns, form, null), None)
        at += offset
        line = data[at : data.index(b"\n", at) + 1]
        place = f"{path}, line {lines_before + data[:at].count(10) + 1} (byte {wanted.start + at})"
        text = line.decode(errors="backslashreplace").rstrip("\r\n")
        nulls = pa.RecordBatch.from_pylist([{}], schema=to_arrow(columns))
        yield _with_error(nulls, error_text(place=place, reason=why, record=text))
        at += len(line)


def _with_error(rows: pa.RecordBatch, error: str | None) -> pa.RecordBatch:
    errors = pa.array([error] * rows.num_rows, pa.string())
    return rows.append_column(pa.field(ERROR_COLUMN, pa.string()), errors)


def columns_from_header(root: Path) -> Columns | None:
    """Return the columns of the first CSV file with a complete header line, all strings; None without such a file.

    Raises:
        ConfigError: the header has an empty or duplicate column name.
        SourceError: the directory or the file cannot be read.
    """
    for name in list_files(root):
        with (root / name).open("rb") as file:
            first = file.readline()
        if first.endswith(b"\n"):
            names = _header_names(root / name, first)
            return check_names([Column(n, "STRING") for n in names], field=f"header of {root / name}")
    return None


def _parse(data: bytes, columns: Columns, form: Format, null: str) -> pa.RecordBatch:
    """Parse all lines of ``data``; an invalid line raises one of ``_FAULTS``."""
    if form == "text":
        values = [line.decode().removesuffix("\r") for line in data.split(b"\n")[:-1]]
        return pa.RecordBatch.from_arrays([pa.array(values, pa.string())], schema=to_arrow(columns))
    return _parse_csv(data, columns, null) if form == "csv" else _parse_jsonl(data, columns)


def _parse_csv(data: bytes, columns: Columns, null: str) -> pa.RecordBatch:
    if data.count(b"\r") != data.count(b"\r\n"):
        raise ValueError("a carriage return alone")
    # Append a line: a quote left open on the last line would otherwise run to the end of the data unnoticed. It
    # swallows the appended line instead, and the row count shows that.
    lines = data.count(b"\n") + 1
    data += _SOME_VALUE.get(columns[0].type, b"0") + b"," * (len(columns) - 1) + b"\n"
    rows = _read_csv(data, to_arrow(columns), null)
    if rows.num_rows != lines and rows.num_rows != len(_lines(data)):
        raise ValueError("a line break inside quotes")
    return rows.slice(0, rows.num_rows - 1)


def _read_csv(data: bytes, schema: pa.Schema, null: str) -> pa.RecordBatch:
    table = pyarrow.csv.read_csv(
        io.BytesIO(data),
        # One block: a line may be longer than the default block; it also keeps the row order of the file.
        read_options=pyarrow.csv.ReadOptions(column_names=schema.names, block_size=len(data) + 1, use_threads=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=schema,
            null_values=["", null],
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
            # The second field of a,,b is null; that of a,"",b is an empty string.
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return table.combine_chunks().to_batches()[0]


def _parse_jsonl(data: bytes, columns: Columns) -> pa.RecordBatch:
    # Do not use Arrow's JSON reader: version 26 ends the process on the line ``null``.
    lines = _lines(data)
    if not all(line.lstrip()[:1] == b"{" and line.rstrip()[-1:] == b"}" for line in lines):
        raise ValueError("a line is not an object")
    text = (b"[" + b",".join(lines) + b"]").decode()
    objects = json.loads(text, parse_constant=_refuse_constant)
    if len(objects) != len(lines):
        raise ValueError("a line is not one object")
    schema = to_arrow(columns)
    arrays = []
    for column, field in zip(columns, schema, strict=True):
        values = [item.get(column.name) for item in objects]
        if not set(map(type, values)) <= _JSON_TYPES[column.type] | {type(None)}:
            raise TypeError(f"{column.name} is not {column.type}")
        arrays.append(_to_array(values, column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _to_array(values: Sequence[Any], column: Column, kind: pa.DataType) -> pa.Array:
    if column.type in ("DATE", "TIMESTAMP"):
        if column.type == "TIMESTAMP" and any(v is not None and not _has_zone(v) for v in values):
            raise ValueError("no zone")
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)


def _has_zone(value: str) -> bool:
    tail = value[10:]
    return tail.endswith("Z") or "+" in tail or "-" in tail


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _lines(data: bytes) -> list[bytes]:
    """Return the lines that are not blank, without their line feeds."""
    return [line for line in data.split(b"\n") if line.strip(b"\r")]


def _first_fault(data: bytes, columns: Columns, form: Format, null: str) -> tuple[int, str]:
    """Return the offset of the first invalid line, and the reason. Uses a binary search."""
    lines = data.splitlines(keepends=True) if b"\r" not in data else [x + b"\n" for x in data.split(b"\n")[:-1]]
    low, high = 0, len(lines)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _parse(b"".join(lines[low:middle]), columns, form, null)
        except _FAULTS:
            high = middle
        else:
            low = middle
    if form == "text":
        return sum(map(len, lines[:low])), "not UTF-8; allowed: UTF-8 text"
    why = _explain_csv(lines[low], columns, null) if form == "csv" else _explain_jsonl(lines[low], columns)
    return sum(map(len, lines[:low])), why


def _explain_csv(line: bytes, columns: Columns, null: str) -> str:
    try:
        fields = next(csv.reader([line.decode().rstrip("\r\n")], strict=True), [])
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} of the line is not UTF-8; allowed: UTF-8 text"
    except csv.Error as error:
        return f"not CSV ({error}); allowed: quotes that end on the line they began on"
    if len(fields) != len(columns):
        names = printable(", ".join(column.name for column in columns))
        return f"{len(fields)} fields; allowed: {len(columns)} ({names})"
    for value, column in zip(fields, columns, strict=True):
        try:
            quoted = '"' + value.replace('"', '""') + '"'
            _parse_csv((quoted if column.type == "STRING" else value).encode() + b"\n", (column,), null)
        except _FAULTS:
            return f"{column.name} is {printable(value)!r}; allowed: {_allowed(column)}"
    return "not a CSV record; allowed: one record a line, no line breaks inside quotes"


def _explain_jsonl(line: bytes, columns: Columns) -> str:
    try:
        found = json.loads(line.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} of the line is not UTF-8; allowed: UTF-8 text"
    except json.JSONDecodeError as error:
        return f"not JSON ({error.msg} at column {error.colno}); allowed: one JSON object a line"
    except (ValueError, RecursionError) as error:
        return f"not JSON ({printable(error)}); allowed: one JSON object a line"
    if not isinstance(found, dict):
        return f"{printable(line.decode().strip(), limit=40)} is not an object; allowed: one JSON object a line"
    for column in columns:
        try:
            _parse_jsonl(json.dumps({column.name: found.get(column.name)}).encode(), (column,))
        except _FAULTS:
            value = printable(json.dumps(found.get(column.name)))
            return f"{column.name} is {value}; allowed: {_allowed(column)}"
    return "not a JSON object a line; allowed: one JSON object a line"


def _allowed(column: Column) -> str:
    form = {"TIMESTAMP": " (ISO 8601 with a zone)", "DATE": " (YYYY-MM-DD)", "BOOLEAN": " (true or false)"}
    return f"{column.type}{form.get(column.type, '')} or null"


def _check_header(path: Path, data: bytes, skipped: int, columns: Columns) -> int:
    """Return the offset of the first row of a CSV file.

    Raises:
        BadLine: the first line is not exactly the names of the columns.
    """
    end = data.index(b"\n", skipped) + 1
    names = _header_names(path, data[:end])
    if names != [column.name for column in columns]:
        allowed = ",".join(column.name for column in columns)
        raise BadLine(
            f"{path}, line 1 (byte 0): header {printable(','.join(names))!r};"
            f" allowed: exactly the columns {printable(allowed)!r}, in this order"
        )
    return end


def _header_names(path: Path, line: bytes) -> list[str]:
    text = line.removeprefix(_BYTE_ORDER_MARK).decode("utf-8", "replace").rstrip("\r\n")
    try:
        return next(csv.reader([text]), [])
    except csv.Error as error:  # a carriage return inside the line, a field of more than 128 KiB
        raise BadLine(f"{path}, line 1 (byte 0): header is not CSV ({error}); allowed: column names") from error


__all__ = ["BadLine", "ConfigError", "Format", "columns_from_header", "read_range"]

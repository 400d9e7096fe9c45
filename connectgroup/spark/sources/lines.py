"""Parses bytes of whole lines into typed columns; an error describes the first invalid line.

Parsing is strict and identical on every worker: a value that is not of its column's type is an error, never a
null, because a row that silently loses a value is a lost row. All lines are parsed in one call; only if that
fails are they searched for the invalid one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ...dataplane.columns import Column, Columns, decimals, to_arrow
from ...dataplane.dead_letters import ERROR_COLUMN, PLACE_COLUMN, error_text
from ...gc_tuning import no_collections
from ...protocol.units import printable
from .dialect import BYTE_ORDER_MARK, LineDialect, new_fields, records_of
from .json_values import (
    FAULTS,
    NANOSECONDS,
    JsonColumns,
    check_case,
    check_years,
    exactly,
    loads,
    may_be_small,
    objects_of,
    timestamps,
)

_SOME_VALUE: Final = {"BOOLEAN": b"true", "DATE": b"2000-01-01", "TIMESTAMP": b"2000-01-01T00:00:00Z"}
_INFINITY: Final = r"(?i)^\s*[+-]?inf(inity)?\s*$"
_ZERO: Final = r"^[^1-9eE]*([eE].*)?$"
_NANOSECONDS: Final = re.compile(NANOSECONDS.encode())
_DECIMAL: Final = r"^\s*[+-]?[0-9]+\s*$"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlace:
    """A place in a file, for errors.

    Attributes:
        path: the file.
        offset: bytes before it.
        line: lines before it.
        encoding: the file's encoding, if it is a wide one: ``after`` gets its text in UTF-8.
    """

    path: Path
    offset: int = 0
    line: int = 0
    encoding: str = ""

    def after(self, data: bytes) -> LinePlace:
        """Return the place after some bytes."""
        size = len(data)
        if self.encoding:
            size = len(data.decode("utf-8", "surrogatepass").encode(self.encoding, "surrogatepass"))
        return replace(self, offset=self.offset + size, line=self.line + data.count(b"\n"))

    def __str__(self) -> str:
        return f"{self.path}, line {self.line + 1} (byte {self.offset})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineParser:
    """Parses the lines of one file.

    Attributes:
        columns: names and types of the rows. A JSON line may omit columns (null).
        dialect: how the lines are written.
        names: CSV: the names of the fields of the file, in their order; by default those of the columns.
        places: whether rows with the column of errors have that of places, too.
    """

    columns: Columns
    dialect: LineDialect
    names: Sequence[str] | None = None
    places: bool = False

    def rows(self, data: bytes) -> pa.RecordBatch:
        """Return one row for each line that is not blank.

        Raises:
            InvalidLine: a line is invalid.
            NewFields: the schema evolves, and a line has other fields.
        """
        try:
            return self._parse(data)
        except FAULTS:
            at, why = self._first_fault(data)
        raise InvalidLine(at, why)

    def rows_and_errors(self, data: bytes, place: LinePlace) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the column ``connectgroup_error``, in the order of the file.

        A line that is invalid is a row of nulls with its error (``dead_letters.error_text``).
        """
        # Halves of halves, down to the invalid lines: to begin again behind each of them would take quadratic time if
        # all are invalid.
        left = [records_of(data, self.dialect.separator)]
        while left:
            lines = left.pop()
            part = b"".join(lines)
            try:
                rows = self.placed(self._parse(part), part, place)
            except FAULTS:
                if len(lines) > 1:
                    middle = len(lines) // 2
                    left += (lines[middle:], lines[:middle])
                    continue
                _, why = self._first_fault(part)
                text = part.decode(self.dialect.encoding, errors="backslashreplace").rstrip("\r\n")
                rows = self.error(str(place), why, text)
            yield rows
            place = place.after(part)

    def error(self, place: str, reason: str, record: str) -> pa.RecordBatch:
        """Return the row for a record that cannot be read: nulls, and the error."""
        nulls = pa.RecordBatch.from_pylist([{}], schema=to_arrow(self.columns))
        places = pa.nulls(1, pa.string()) if self.places else None
        return with_error(nulls, error_text(place=place, reason=reason, record=record), places)

    def placed(self, rows: pa.RecordBatch, data: bytes, place: LinePlace) -> pa.RecordBatch:
        """Return the rows of some records with the column of errors and, if they are to have it, that of places."""
        if not self.places or not rows.num_rows:
            return with_error(rows, None, pa.array([], pa.string()) if self.places else None)
        feeds = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        starts = np.concatenate([[0], feeds[:-1] + 1])
        if len(starts) != rows.num_rows or place.encoding:
            # Blank lines, records of several lines, or characters of two or four bytes.
            records = records_of(data, self.dialect.separator)
            sizes = [place.after(record).offset - place.offset for record in records]
            starts = np.cumsum([0, *sizes[:-1]])
            if self.dialect.form != "text":
                starts = starts[[bool(record.strip(b"\r\n")) for record in records]]
        offsets = pa.array(starts.astype(np.int64) + place.offset).cast(pa.string())
        return with_error(rows, None, pc.binary_join_element_wise(f"{place.path}, byte ", offsets, ""))

    def _parse(self, data: bytes) -> pa.RecordBatch:
        """Parse all lines of ``data``; an invalid line raises one of ``FAULTS``."""
        if self.dialect.encoding != "utf-8":
            data = data.decode(self.dialect.encoding).encode()
        if self.dialect.form == "text":
            return pa.RecordBatch.from_arrays([_texts(data)], schema=to_arrow(self.columns))
        return self._parse_csv(data) if self.dialect.form == "csv" else self._parse_jsonl(data)

    def _parse_csv(self, data: bytes) -> pa.RecordBatch:
        separator = self.dialect.separator
        has_returns = b"\r" in data and data.count(b"\r") != data.count(b"\r\n")
        if separator is None and has_returns:
            raise ValueError("a carriage return alone")
        _check_quotes(data, self.dialect, has_returns=has_returns)
        names = self._field_names()
        types = {column.name: column.type for column in self.columns}
        # Append a record: a quote left open in the last one would otherwise run to the end of the data unnoticed. It
        # swallows the appended record instead, and the row count shows that.
        more = _SOME_VALUE.get(types.get(names[0], ""), b"0") + self.dialect.delimiter.encode() * (len(names) - 1)
        whole = b"%b%b\n" % (data, more)
        schema = to_arrow(self.columns)
        try:
            rows = self._read_csv(whole, names, schema)
        except pa.ArrowInvalid:
            if self.dialect.timezone or "TIMESTAMP" not in types.values() or not _NANOSECONDS.search(data):
                raise
            rows = self._read_csv(whole, names, schema, times_are_texts=True)
        self._check_numbers(rows, whole, names)
        count = rows.num_rows - 1
        # Without blank lines, the most frequent case, the number of line feeds is enough.
        if count != _count(data, b"\n") and count != _not_blank(records_of(data, separator)):
            raise ValueError("a line break inside quotes")
        return rows.slice(0, count)

    def _check_numbers(self, rows: pa.RecordBatch, data: bytes, names: Sequence[str]) -> None:
        """Raise an error if Arrow reads a number as another: one too large for its column as infinity, one too small as
        0, 0x10 as 16; or if a time is in the year 0."""
        is_small = may_be_small(data)
        may_have_hex = any(map(pa.types.is_integer, rows.schema.types)) and _has_hex(data)
        for field in rows.schema:
            check_years(rows.column(field.name))
            if pa.types.is_floating(field.type):
                values = rows.column(field.name)
                suspect, allowed = pc.is_inf(values), _INFINITY
                if is_small and pc.any(zero := pc.equal(values, 0)).as_py():
                    suspect, allowed = pc.or_(suspect, zero), f"{_INFINITY}|{_ZERO}"
            elif pa.types.is_integer(field.type) and may_have_hex:
                suspect, allowed = pc.is_valid(rows.column(field.name)), _DECIMAL
            else:
                continue
            if pc.any(suspect).as_py():
                texts = self._read_csv(data, names, pa.schema([pa.field(field.name, pa.string())])).column(0)
                if pc.all(pc.match_substring_regex(texts.filter(suspect), allowed)).as_py() is False:
                    raise OverflowError(f"{field.name} is another number")

    def _read_csv(
        self, data: bytes, names: Sequence[str], schema: pa.Schema, *, times_are_texts: bool = False
    ) -> pa.RecordBatch:
        dialect = self.dialect
        if data.startswith(BYTE_ORDER_MARK):
            data = (
                BYTE_ORDER_MARK + data
            )  # Arrow takes the first one for the mark of a file, and these are rows of one.
        times_are_texts = times_are_texts or bool(dialect.timezone)
        read_types = pa.schema([_type_to_read(field, times_are_texts=times_are_texts) for field in schema])
        # Not ``read_csv``: it reads in a thread, for which a few lines wait six times as long as they take.
        reader = pyarrow.csv.open_csv(
            pa.BufferReader(data),
            # One block: a line may be longer than the default block; it also keeps the row order of the file.
            read_options=pyarrow.csv.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=False),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=dialect.delimiter,
                quote_char=dialect.quote or False,
                newlines_in_values=dialect.separator is not None,
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=read_types,
                include_columns=schema.names,
                include_missing_columns=True,
                null_values=["", dialect.null],
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
                decimal_point=dialect.decimal,
                # The second field of a,,b is null; that of a,"",b is an empty string.
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        rows = reader.read_all().combine_chunks().to_batches()[0]
        if read_types == schema:
            return rows
        arrays = [
            rows.column(at) if kind == schema.types[at] else self._from_texts(rows.column(at), schema.types[at])
            for at, kind in enumerate(read_types.types)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _from_texts(self, texts: pa.Array, kind: pa.DataType) -> pa.Array:
        if pa.types.is_timestamp(kind):
            return timestamps(texts, self.dialect.timezone)
        if self.dialect.decimal != ".":
            if pc.any(pc.match_substring(texts, ".")).as_py():
                raise ValueError("another decimal point")
            texts = pc.replace_substring(texts, self.dialect.decimal, ".")
        return decimals(pc.ascii_trim(texts, " \t"), kind)

    def _field_names(self) -> Sequence[str]:
        return [column.name for column in self.columns] if self.names is None else self.names

    def _parse_jsonl(self, data: bytes) -> pa.RecordBatch:
        with no_collections():
            return self._rows_of_objects(data)

    def _rows_of_objects(self, data: bytes) -> pa.RecordBatch:
        # Do not use Arrow's JSON reader: version 26 ends the process on the line ``null``.
        lines = _lines(data)
        objects = objects_of(lines)
        names = frozenset(column.name for column in self.columns)
        if not self.dialect.ignores_others:
            if not set().union(*objects) <= names:
                raise ValueError("a field that the schema does not have")
        elif self.dialect.drift == "evolve" and (new := new_fields(objects, self.columns)):
            raise NewFields(new)
        else:
            check_case(objects, names)
        arrays = self._json.arrays(objects, lambda: exactly(lines, objects), may_be_small=may_be_small(data))
        return pa.RecordBatch.from_arrays(arrays, schema=to_arrow(self.columns))

    @property
    def _json(self) -> JsonColumns:
        return JsonColumns(columns=self.columns, timezone=self.dialect.timezone)

    def _first_fault(self, data: bytes) -> tuple[int, str]:
        """Return the offset of the first invalid line, and the reason. Uses a binary search."""
        lines = records_of(data, self.dialect.separator)
        low, high = 0, len(lines)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self._parse(b"".join(lines[low:middle]))
            except FAULTS:
                high = middle
            else:
                low = middle
        offset, line = sum(map(len, lines[:low])), lines[low]
        try:
            text = line.decode(self.dialect.encoding)
        except UnicodeDecodeError as error:
            at = "" if self.dialect.form == "text" else f"byte {error.start + 1} of the line is "
            encoding = "UTF-8" if self.dialect.encoding == "utf-8" else self.dialect.encoding
            return offset, f"{at}not {encoding}; allowed: {encoding} text"
        return offset, self._explain_csv(text) if self.dialect.form == "csv" else self._explain_jsonl(text)

    def _explain_csv(self, line: str) -> str:
        names, dialect = self._field_names(), self.dialect
        outside = line.removesuffix("\n").removesuffix("\r")
        if dialect.separator is not None:
            outside = "".join(outside.split(dialect.quote)[::2])
        if "\r" in outside:
            allowed = "one before the line feed, or inside quotes with source.multiline=true"
            return f"not CSV (a carriage return in the line); allowed: {allowed}"
        try:
            fields = dialect.fields(line.rstrip("\r\n"), strict=True)
        except csv.Error as error:
            allowed = "quotes that end" if dialect.multiline else "quotes that end on the line they began on"
            if "expected after" in str(error):
                allowed = "a quote inside quotes is written twice; or source.quote=none"
            return f"not CSV ({error}); allowed: {allowed}"
        if len(fields) != len(names):
            hint = ", without a delimiter at the end of the line" if [*fields[:-1]] and fields[-1] == "" else ""
            return f"{len(fields)} fields; allowed: {len(names)} ({printable(', '.join(names))}){hint}"
        columns = {column.name: column for column in self.columns}
        for name, value in zip(names, fields, strict=True):
            column = columns.get(name, Column(name, "STRING"))
            quote = dialect.quote if column.type == "STRING" else ""
            text = quote + (value.replace(quote, 2 * quote) if quote else value) + quote
            try:
                one = LineParser(columns=(column,), dialect=replace(dialect, encoding="utf-8"))
                one._parse_csv(text.encode() + b"\n")
            except FAULTS:
                return f"{printable(name)} is {printable(value)!r}; allowed: {self._json.allowed(column)}"
        for name, value in zip(names, fields, strict=True):
            quoted = f"{dialect.quote}{value}{dialect.quote}"
            is_null = value in ("", dialect.null) and quoted in line
            if is_null and name in columns and columns[name].type != "STRING":
                allowed = f"{self._json.allowed(columns[name])}, null without quotes"
                return f"{printable(name)} is {printable(quoted)}; allowed: {allowed}"
        return "not a CSV record; allowed: one record a line, no line breaks inside quotes"

    def _explain_jsonl(self, line: str) -> str:
        whole = "one JSON object a line"
        reason = self._json.explain(line, whole=whole)
        if reason == f"not JSON; allowed: {whole}" and not self.dialect.ignores_others:
            names = [column.name for column in self.columns]
            others = [name for name in loads(line) if name not in names]
            if others:
                allowed = f"{printable(', '.join(names))}, or source.schema.drift=ignore"
                return f"field {printable(others[0])}; allowed: {allowed}"
        return reason


class NewFields(Exception):
    """Some lines have fields that the schema does not have, and the schema evolves.

    Attributes:
        names: the names of the fields.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self.names = names


class InvalidLine(ValueError):
    """The first invalid line of some lines.

    Attributes:
        offset: bytes before the line.
        reason: the violation and what is allowed.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset, self.reason = offset, reason


def _type_to_read(field: pa.Field, *, times_are_texts: bool) -> pa.Field:
    """Arrow reads timestamps with a zone, or without, but not both, with at most six digits of a second, and not each
    decimal: they are read as text."""
    is_text = pa.types.is_decimal(field.type) or (times_are_texts and pa.types.is_timestamp(field.type))
    return pa.field(field.name, pa.string()) if is_text else field


def with_error(rows: pa.RecordBatch, error: str | None = None, places: pa.Array | None = None) -> pa.RecordBatch:
    """Return rows with the column of the error and, before it, that of the places, if there are any."""
    if places is not None:
        rows = rows.append_column(pa.field(PLACE_COLUMN, pa.string()), places)
    errors = pa.array([error] * rows.num_rows, pa.string())
    return rows.append_column(pa.field(ERROR_COLUMN, pa.string()), errors)


def _check_quotes(data: bytes, dialect: LineDialect, *, has_returns: bool) -> None:
    """Raise an error if a field in quotes goes on after its closing quote: Arrow drops the quote, and reads on. Also if
    there is a carriage return outside of quotes without a line feed: it ends a record for Arrow, but not here.

    Args:
        data: whole records, in UTF-8.
        has_returns: whether there are carriage returns without a line feed.
    """
    quote, delimiter = dialect.quote.encode(), dialect.delimiter.encode()
    if not quote or not (has_returns or quote in data):
        return
    text = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(text == quote[0])
    if not has_returns and len(quotes) % 2 == 0:
        # They open and close in turns, if none is inside a field without quotes; a doubled one closes and opens.
        before, after = text[quotes[::2] - 1], text[quotes[1::2] + 1]
        if quotes[0] == 0:
            before[0] = quote[0]
        if _are(b"\n" + delimiter + quote, before) and _are(b"\r\n" + delimiter + quote, after):
            return
    whole = _record_pattern(quote, delimiter)
    for record in records_of(data, dialect.separator):
        if (has_returns or quote in record) and not whole.fullmatch(record):
            raise ValueError("text after a closing quote")


def _are(characters: bytes, found: np.ndarray[Any, Any]) -> bool:
    """Whether only these characters are among some bytes."""
    is_one = np.zeros(256, bool)
    is_one[[*characters]] = True
    return bool(is_one[found].all())


def _count(data: bytes, character: bytes) -> int:
    """Return how often a character is there; ``bytes.count`` takes ten times longer if it is often."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == character[0]))


def _has_hex(data: bytes) -> bool:
    """Whether there is a 0x or 0X."""
    text = np.frombuffer(data, np.uint8)
    return bool(((text[:-1] == ord("0")) & ((text[1:] | 32) == ord("x"))).any())


@cache
def _record_pattern(quote: bytes, delimiter: bytes) -> re.Pattern[bytes]:
    q, d = re.escape(quote), re.escape(delimiter)
    field = b"(?:%b[^%b]*(?:%b%b[^%b]*)*%b|[^%b%b\\r\\n][^%b\\r\\n]*)?" % (q, q, q, q, q, q, q, d, d)
    return re.compile(b"%b(?:%b%b)*\\r?\\n" % (field, d, field))


def _texts(data: bytes) -> pa.Array:
    """Return each line without its line end."""
    lines = pc.split_pattern(pa.scalar(data, pa.large_binary()), pattern=b"\n").values
    lines = lines.slice(0, len(lines) - 1)  # Data end in a line feed.
    if b"\r\n" in data:
        lines = pc.if_else(pc.ends_with(lines, pattern=b"\r"), pc.binary_slice(lines, 0, -1), lines)
    return lines.cast(pa.string())


def _lines(data: bytes) -> list[bytes]:
    """Return the lines that are not blank, without their line feeds."""
    lines = data.split(b"\n")
    return [line for line in lines if line.strip(b"\r")] if b"\r" in data else [*filter(None, lines)]


def _not_blank(records: Sequence[bytes]) -> int:
    return sum(1 for record in records if record.strip(b"\r\n"))

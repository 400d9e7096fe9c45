"""The header of a CSV file: the names of its fields."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...dataplane.columns import Column, Columns, check_names
from ...dataplane.errors import BadLine, SourceError
from ...errors import ConfigError
from ...protocol.units import printable
from .dialect import LineDialect

_TRAILING: Final = ". A delimiter ends the header: without it, or with "
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def header_end(data: bytes, dialect: LineDialect) -> int:
    """Return the offset of the first row of a file that begins with ``data``; 0 if the header is not complete."""
    quote = dialect.separator
    if quote is None:
        return data.find(b"\n") + 1
    at, is_open = 0, False
    while (end := data.find(quote, at)) >= 0:
        if not is_open and (found := data.find(b"\n", at, end)) >= 0:
            return found + 1
        at, is_open = end + len(quote), not is_open
    return 0 if is_open else data.find(b"\n", at) + 1


def names_in(path: Path, header: bytes, dialect: LineDialect) -> list[str]:
    """Return the names in a header.

    Raises:
        BadLine: the header is not text or not CSV, or has a name that Spark cannot use.
    """
    try:
        text = header.removeprefix(BYTE_ORDER_MARK).decode(dialect.encoding).rstrip("\r\n")
    except UnicodeDecodeError as error:
        encoding = "UTF-8" if dialect.encoding == "utf-8" else dialect.encoding
        raise _bad(path, f"byte {error.start + 1} of the header is not {encoding}", f"{encoding} text") from error
    try:
        names = dialect.fields(text, strict=True)
    except csv.Error as error:  # a carriage return inside the line, a field of more than 128 KiB
        raise _bad(path, f"header is not CSV ({error})", "column names") from error
    if not names:
        raise _bad(path, "header ''", "column names; a blank line is none")
    unusable = [name for name in names if not name.isprintable()]
    if unusable:
        raise _bad(path, f"column {printable(unusable[0])!r}", "column names without control characters")
    return names


def check_header(path: Path, names: Sequence[str], columns: Columns, dialect: LineDialect) -> None:
    """Check the names of a file against the columns.

    Raises:
        BadLine: they are not exactly the names of the columns or, where others are ignored, a name stands twice.
        SourceError: the schema evolves, and a name is new.
    """
    wanted = [column.name for column in columns]
    if dialect.drift == "evolve":
        known = {name.lower() for name in wanted}
        new = printable(", ".join(name for name in names if name.lower() not in known))
        if new:
            raise SourceError(f"{path}: has the new columns {new}; allowed: the task starts again and adds them")
    if dialect.ignores_others:
        missing = {name.lower(): name for name in set(wanted) - set(names)}
        for name in names:
            if name.lower() in missing:
                raise _bad(path, f"column {printable(name)!r}", f"{printable(missing[name.lower()])}, in this case")
    else:
        if list(names) != wanted:
            found, allowed = printable(dialect.delimiter.join(names)), printable(dialect.delimiter.join(wanted))
            hint = f"{_TRAILING}source.schema.drift=ignore" if list(names) == [*wanted, ""] else ""
            raise _bad(path, f"header {found!r}", f"exactly the columns {allowed!r}, in this order{hint}")
        return
    if not set(names) & set(wanted):
        raise _bad(path, f"header {printable(','.join(names))!r}", f"at least one of {printable(', '.join(wanted))}")
    counts = Counter(names)
    twice = [name for name in wanted if counts[name] > 1]
    if twice:
        raise _bad(path, f"column {printable(twice[0])!r} stands twice", "each column once")


def columns_of(path: Path, header: bytes, dialect: LineDialect) -> Columns:
    """Return the columns of a header, all strings.

    Raises:
        BadLine: the header is not CSV.
        ConfigError: a name is empty or stands twice.
    """
    names = names_in(path, header, dialect)
    if len(names) > 1 and names[-1] == "" and "" not in names[:-1]:
        allowed = f"column names that are not empty{_TRAILING}source.schema and source.schema.drift=ignore"
        raise ConfigError(f"header of {path}", printable(dialect.delimiter.join(names)), allowed)
    return check_names([Column(name, "STRING") for name in names], field=f"header of {path}")


def _bad(path: Path, found: str, allowed: str) -> BadLine:
    return BadLine(f"{path}, line 1 (byte 0): {found}; allowed: {allowed}")

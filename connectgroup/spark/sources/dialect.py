"""How the lines of a file are written: format, delimiters, decimal point, time zone, encoding; and their columns.

The header of a CSV file names them; a source of JSON lines without a schema infers them from the objects.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ...dataplane.columns import MAX_PRECISION, Column, Columns, check_names
from ...dataplane.errors import BadLine, SourceError
from ...errors import ConfigError
from ...protocol.units import printable

Format = Literal["csv", "jsonl", "text"]
Drift = Literal["error", "ignore", "evolve"]

EVOLVE_BYTES: Final = 4 << 20
"""Upper bound on the bytes of a batch of JSON lines if the schema evolves."""
ENCODINGS: Final = (
    "the name of a codec of Python that has the bytes of ASCII, such as utf-8, iso-8859-1, windows-1252, gb18030,"
    " shift_jis; or utf-16, utf-32, by their byte order mark, utf-16-le, utf-16-be, utf-32-le, utf-32-be"
)
NO_TEXT: Final = "connectgroup.no_text"
"""Error handler of decoders: bytes that are no text become a lone surrogate, which is not UTF-8."""
codecs.register_error(NO_TEXT, lambda error: ("\ud800", getattr(error, "end", 0)))
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_MARKS: Final = {
    codecs.BOM_UTF16_LE: "begins with the byte order mark of UTF-16; allowed: source.encoding=utf-16",
    codecs.BOM_UTF16_BE: "begins with the byte order mark of UTF-16; allowed: source.encoding=utf-16",
    codecs.BOM_UTF32_BE: "begins with the byte order mark of UTF-32; allowed: source.encoding=utf-32",
    b"\x1f\x8b": "is compressed with gzip; allowed: a name that ends in .gz",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; allowed: a name that ends in .zst",
    b"PK\x03\x04": "is a ZIP archive; allowed: text, or .gz and .zst",
    b"BZh": "is compressed with bzip2; allowed: text, or .gz and .zst",
    b"\xfd7zXZ": "is compressed with xz; allowed: text, or .gz and .zst",
    b"\x04\x22\x4d\x18": "is compressed with lz4; allowed: text, or .gz and .zst",
    b"7z\xbc\xaf": "is an archive of 7z; allowed: text, or .gz and .zst",
    b"PAR1\x15": "is Parquet; allowed: text, or the source parquet",
    b"Obj\x01": "is Avro; allowed: text",
    b"SQLite format 3\0": "is a database of SQLite; allowed: text, or the source sqlite",
}
_TAR: Final = b"ustar\0", b"ustar  \0"
_TAR_AT: Final = 257
MARK_BYTES: Final = 512
"""Of the beginning of a file, as many as show that it is no text."""
_WIDE: Final[dict[tuple[bool, ...], str]] = {
    (False, True, False, True): "UTF-16-LE",
    (True, False, True, False): "UTF-16-BE",
    (False, True, True, True): "UTF-32-LE",
    (True, True, True, False): "UTF-32-BE",
}
"""Encodings by which of the first four bytes are zero, if the text begins with characters of ASCII."""
_MAX_ENCODING: Final = 100
"""Characters of a name: Python remembers each one that it has not found."""
_NO_CHARSETS: Final = ("unicode-escape", "raw-unicode-escape", "punycode", "idna", "utf-7", "hz", "iso2022_kr")
"""The last one names its characters at the start of a file alone: without it, its lines are other letters."""
_ASCII: Final = "\n\r\t ,;|\"'{}[]:.0123456789ABCabc"
_TRAILING: Final = ". A delimiter ends the header: without it, or with "
_TYPES: Final[dict[type, str]] = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}
_LARGE: Final = f"DECIMAL({MAX_PRECISION},0)"
"""Whole numbers beyond 64 bits, such as unsigned ones: DOUBLE has not all of their digits."""


@dataclass(frozen=True, slots=True)
class LineDialect:
    """How the lines of a file are written.

    Attributes:
        form: ``csv``, ``jsonl`` or ``text``: each line is the column ``value``.
        null: a word that means null in an unquoted CSV field, in addition to the empty field (for example ``NA``).
        delimiter: the character between CSV fields.
        quote: the character around CSV fields; empty: quotes are ordinary characters.
        multiline: whether a quoted CSV field may contain line feeds.
        decimal: the decimal point of CSV numbers.
        timezone: the zone of timestamps that have none; empty: such a timestamp is an error.
        encoding: as ``checked_encoding`` returns it.
        drift: whether fields and columns that the schema does not have are an error, are ignored, or are added to the
            schema when the task starts again.
    """

    form: Format
    null: str = ""
    delimiter: str = ","
    quote: str = '"'
    multiline: bool = False
    decimal: str = "."
    timezone: str = ""
    encoding: str = "utf-8"
    drift: Drift | None = None

    @property
    def ignores_others(self) -> bool:
        """Whether a file may have other columns than the schema: by default in JSON lines, not in CSV."""
        return self.drift in ("ignore", "evolve") or (self.drift is None and self.form == "jsonl")

    @property
    def separator(self) -> bytes | None:
        """The quote character between which line feeds do not end a record; None without such fields."""
        return self.quote.encode() if self.form == "csv" and self.multiline and self.quote else None

    def fields(self, line: str, *, strict: bool = False) -> list[str]:
        """Split a line of CSV into its fields.

        Args:
            strict: whether a field that is not quoted correctly is an error.

        Raises:
            csv.Error: the line is not CSV.
        """
        if self.quote:
            reader = csv.reader([line], delimiter=self.delimiter, quotechar=self.quote, strict=strict)
        else:
            reader = csv.reader([line], delimiter=self.delimiter, quoting=csv.QUOTE_NONE, strict=strict)
        return next(reader, [])


def checked_encoding(name: str) -> str:
    """Return the name of an encoding as ``LineDialect`` has it.

    Raises:
        ValueError: it is not one of ``ENCODINGS``.
    """
    if len(name) > _MAX_ENCODING:
        raise ValueError("a name of a codec")
    try:
        found = codecs.lookup(name)
        if found.name in ("utf-8", "utf-8-sig"):
            return "utf-8"
        if is_wide(found.name):
            return found.name
        if found.name in _NO_CHARSETS or _ASCII.encode(name) != _ASCII.encode():
            raise ValueError(name)
    except (LookupError, UnicodeError) as error:
        raise ValueError(name) from error
    return name.lower()


def is_wide(encoding: str) -> bool:
    """Whether each character has two or four bytes, so that a line feed is not one byte."""
    return encoding.startswith(("utf-16", "utf-32"))


def with_byte_order(encoding: str, head: bytes) -> str:
    """Return a wide encoding with the byte order of a file, by its first four bytes; without a mark, the lower."""
    if not encoding.endswith(("-16", "-32")):
        return encoding
    big = codecs.BOM_UTF16_BE if encoding.endswith("16") else codecs.BOM_UTF32_BE
    return f"{encoding}-{'be' if head.startswith(big) else 'le'}"


def no_text(head: bytes) -> str:
    """Return what a file is that begins with bytes with which no text in UTF-8 begins, and what is allowed; empty if it
    may be text."""
    if head.startswith(_TAR, _TAR_AT):
        # Behind the name of each file, its lines look like those of a text. A short name looks like UTF-32.
        return "is a TAR archive; allowed: its files, as text or compressed with .gz and .zst"
    wide = _WIDE.get(tuple(byte == 0 for byte in head[:4]))
    if wide is not None:
        return f"begins like text in {wide} without a byte order mark; allowed: source.encoding={wide.lower()}"
    return next((what for mark, what in _MARKS.items() if head.startswith(mark)), "")


def in_utf8(data: bytes, encoding: str) -> bytes:
    """Return text of a wide encoding in UTF-8. What is no text is not UTF-8 then, either."""
    return data.decode(encoding, NO_TEXT).encode("utf-8", "surrogatepass")


def wide_line_end(data: bytes, encoding: str) -> int:
    """Return the offset after the last line feed of text in a wide encoding; 0 without one."""
    line_feed = "\n".encode(encoding)
    at = data.rfind(line_feed)
    while at % len(line_feed) and at > 0:
        at = data.rfind(line_feed, 0, at + len(line_feed) - 1)
    return at + len(line_feed) if at >= 0 and at % len(line_feed) == 0 else 0


def ends_line(data: bytes, wide: str) -> bool:
    """Whether text ends with a line feed.

    Args:
        data: its last four bytes, or more.
        wide: the encoding, if it is a wide one, with any byte order.
    """
    orders = (f"{wide.removesuffix('-le').removesuffix('-be')}-{order}" for order in ("le", "be"))
    return data.endswith(tuple("\n".encode(order) for order in orders) if wide else b"\n")


def last_record_end(data: bytes, quote: bytes | None) -> int:
    """Return the offset after the last line feed that ends a record; 0 without one.

    Args:
        data: bytes from the start of a record.
        quote: the quote character between which line feeds do not end a record, if any.
    """
    if quote is None:
        return data.rfind(b"\n") + 1
    end = at = 0
    for number, part in enumerate(data.split(quote)):
        if number % 2 == 0 and (found := part.rfind(b"\n")) >= 0:
            end = at + found + 1
        at += len(part) + 1
    return end


def records_of(data: bytes, quote: bytes | None) -> list[bytes]:
    """Return the records, each with its line feed; ``data`` ends with one.

    Args:
        data: bytes of whole records.
        quote: the quote character between which line feeds do not end a record, if any.
    """
    lines = [line + b"\n" for line in data.split(b"\n")[:-1]]
    if quote is None:
        return lines
    records: list[bytes] = []
    part: list[bytes] = []
    is_open = False
    for line in lines:
        part.append(line)
        is_open ^= line.count(quote) % 2 == 1
        if not is_open:
            records.append(b"".join(part))
            part.clear()
    return [*records, *part]


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


def new_fields(objects: Iterable[dict[str, Any]], columns: Columns) -> list[str]:
    """Return the names of fields that are not columns; an empty name, one that differs only in case, and one with a
    lone surrogate, which is not UTF-8, is none."""
    known = {"", *(column.name.lower() for column in columns)}
    found = {name: None for item in objects for name in item if name.lower() not in known and _is_text(name)}
    return list({name.lower(): name for name in reversed(found)}.values())[::-1]


def columns_to_add(lines: bytes) -> Columns:
    """Return the columns of ``columns_of_objects`` without those that cannot be added: see ``new_fields``."""
    columns = _columns_of(lines)
    first = {column.name.lower(): column for column in reversed(columns) if column.name}
    return tuple(column for column in columns if first.get(column.name.lower()) is column)


def columns_of_objects(path: Path, lines: bytes) -> Columns:
    """Return the fields of the objects in some lines, in the order in which they first appear.

    A field is BOOLEAN, BIGINT or DOUBLE if all its values are; integers and other numbers together are DOUBLE, whole
    numbers of which some are beyond 64 bits DECIMAL(38,0). Everything else is STRING: also dates, nested values, which
    are read as JSON text, and fields that are always null.

    Args:
        path: the file, for errors.
        lines: whole lines; those that are not JSON objects do not count.

    Raises:
        ConfigError: two names differ only in case, or a name is empty.
    """
    return check_names(_columns_of(lines), field=f"fields of {path}")


def _columns_of(lines: bytes) -> list[Column]:
    found: dict[str, set[str]] = {}
    for line in lines.split(b"\n"):
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            continue  # Reported when the line is read.
        for name, value in item.items() if isinstance(item, dict) else ():
            if not _is_text(name):
                continue
            types = found.setdefault(name, set())
            if value is not None:
                types.add(_type_of(value))
    return [Column(name, _common(types)) for name, types in found.items()]


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _type_of(value: Any) -> str:
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return _LARGE if abs(value) < 10**MAX_PRECISION else "DOUBLE"
    return _TYPES.get(type(value), "STRING")


def _common(types: set[str]) -> str:
    if types == {"BIGINT", _LARGE}:
        return _LARGE
    if "DOUBLE" in types and types <= {"BIGINT", "DOUBLE", _LARGE}:
        return "DOUBLE"
    return next(iter(types)) if len(types) == 1 else "STRING"

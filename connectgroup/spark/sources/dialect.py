"""How the lines of a file are written: format, delimiters, decimal point, time zone, encoding."""

from __future__ import annotations

import codecs
import csv
from dataclasses import dataclass
from typing import Final, Literal

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
_NO_CHARSETS: Final = ("unicode-escape", "raw-unicode-escape", "punycode", "idna", "utf-7", "hz")
_ASCII: Final = "\n\r\t ,;|\"'{}[]:.0123456789ABCabc"


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

"""How the lines of a file are written: format, delimiters, decimal point, time zone, encoding."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Final, Literal

Format = Literal["csv", "jsonl", "text"]
Drift = Literal["error", "ignore", "evolve"]

EVOLVE_BYTES: Final = 4 << 20
"""Upper bound on the bytes of a batch of JSON lines if the schema evolves."""
COMPRESSED: Final = {".gz": "gzip", ".zst": "zstd"}
"""Codecs by the end of a file's name."""
ENCODINGS: Final = ("utf-8", "iso-8859-1", "iso-8859-15", "windows-1252")
"""Encodings in which a line feed is one byte, and each byte is a character or (UTF-8) part of one."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the lines of a file are written.

    Attributes:
        form: ``csv``, ``jsonl`` or ``text``: each line is the column ``value``.
        null: a word that means null in an unquoted CSV field, in addition to the empty field (for example ``NA``).
        delimiter: the character between CSV fields.
        quote: the character around CSV fields; empty: quotes are ordinary characters.
        multiline: whether a quoted CSV field may contain line feeds.
        decimal: the decimal point of CSV numbers.
        timezone: the zone of timestamps that have none; empty: such a timestamp is an error.
        encoding: one of ``ENCODINGS``.
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


def codec_of(file: str) -> str | None:
    """Return the codec of a compressed file, by the end of its name; None for other files."""
    return next((codec for end, codec in COMPRESSED.items() if file.lower().endswith(end)), None)


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

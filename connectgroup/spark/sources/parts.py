"""Reads one range of one file: whole lines of a plain file, or a whole compressed file."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from ...dataplane.columns import Columns
from ...dataplane.errors import BadLine, SourceError
from ...dataplane.ownership import Range, metadata_of
from ...dataplane.real_paths import open_below
from ...errors import ConfigError
from ...protocol.units import printable
from .dialect import (
    BYTE_ORDER_MARK,
    EVOLVE_BYTES,
    MARK_BYTES,
    NO_TEXT,
    LineDialect,
    check_header,
    columns_of,
    columns_of_objects,
    columns_to_add,
    header_end,
    in_utf8,
    is_wide,
    last_record_end,
    names_in,
    no_text,
    with_byte_order,
)
from .identity import Identity, identities_in
from .lines import InvalidLine, LineParser, LinePlace, NewFields
from .listing import list_inodes, read_bytes_of, unreadable
from .packed import DamagedFile, Unpacked, codec_of, decompressed_head

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES: Final = 16 << 20
"""Bytes of a compressed file that are parsed at once."""
_SHOWN_BYTES: Final = 1024
_HEADER_BYTES: Final = 64 << 10
_SAMPLE_BYTES: Final = 1 << 20
MAX_HEADER_BYTES: Final = 8 << 20
"""Upper bound on the header of a CSV file. A file without a line feed may be as large as a disk, or take none."""
MAX_PACKED_LINE_BYTES: Final = 256 << 20
"""Upper bound on a line of a compressed file: the largest source.max.bytes.per.batch, which is that of other files. A
kilobyte may be a gigabyte when it is decompressed."""
_EVOLVE_TOTAL_BYTES: Final = 256 << 20
_MAX_PLACES: Final = 1_000
_last_places: Final[dict[tuple[int, int], tuple[int, int, bytes]]] = {}
"""Of files with bad lines, by device and inode: an offset, the lines before it and the last bytes before it. To count
all lines again for each batch with a bad one would take quadratic time. Changed by ``_Part``."""


def read_range(root: Path, wanted: Range, columns: Columns, dialect: LineDialect) -> pa.RecordBatch:
    """Return the rows of one range of a plain file. See ``read_part``."""
    (rows,) = read_part(root, wanted, columns, dialect)
    return rows


def read_part(
    root: Path,
    wanted: Range,
    columns: Columns,
    dialect: LineDialect,
    *,
    tolerant: bool = False,
    places: bool = False,
    max_bytes: int = 1 << 62,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one range of one file, in their order.

    Args:
        root: the source's directory.
        wanted: its slice is the file's path below the directory; bytes ``[start, end)`` are whole lines, or a whole
            compressed file. The metadata of the end identify the file. A CSV file's first line is its header.
        columns: names and types of the rows.
        dialect: how the lines are written.
        tolerant: whether the rows have the column ``connectgroup_error``: a line that is invalid, and a file whose
            header does not fit or that cannot be decompressed, is a row of nulls with its error.
        places: whether they have the column ``connectgroup_place``, too: the file and the offset of each line.
        max_bytes: if bad lines are tolerated, a longer range is one line that is too long: it is a row of nulls too.

    Yields:
        One row for each line that is not blank.

    Raises:
        BadLine: a line is invalid; names file, line number, byte offset, violation and what is allowed, of the first.
        SourceError: the file cannot be read or decompressed, or the schema evolves, and a line has other fields.
    """
    with opened_range(root, wanted) as (path, file):
        wide = ""
        if is_wide(dialect.encoding):
            packed = codec_of(wanted.slice)
            head = decompressed_head(file, packed, 4) if packed else os.pread(file.fileno(), 4, 0)
            wide = with_byte_order(dialect.encoding, head)
        parser = LineParser(columns=columns, dialect=_of_text(dialect), places=places)
        part = _Part(path=path, file=file, wanted=wanted, parser=parser, wide=wide)
        try:
            if codec := codec_of(wanted.slice):
                yield from part.compressed(codec, tolerant)
            elif tolerant and wanted.end - wanted.start > max_bytes:
                yield part.too_long(max_bytes)
            else:
                yield from part.plain(tolerant)
        except NewFields as error:
            names = printable(", ".join(error.names))
            raise SourceError(
                f"{path}: has the new fields {names}; allowed: the task starts again and adds them"
            ) from None


@dataclass(slots=True, kw_only=True)
class _Part:
    path: Path
    file: BinaryIO
    wanted: Range
    parser: LineParser
    wide: str

    def plain(self, tolerant: bool) -> Iterator[pa.RecordBatch]:
        start, descriptor = self.wanted.start, self.file.fileno()
        data = read_bytes_of(descriptor, self.path, start, self.wanted.end)
        if self.wide:
            data = in_utf8(data, self.wide)
        if not data.endswith(b"\n"):
            data += b"\n"  # source.final.newline=accept
        size = len(data)
        if start and not self.wide and os.pread(descriptor, 1, start - 1) != b"\n":
            # The line before was accepted without its line feed, which has come since.
            data = data.removeprefix(b"\r").removeprefix(b"\n")
        skipped = 0
        try:
            if start == 0:
                skipped = self._prepare(data)
            elif self.parser.dialect.form == "csv":
                self._prepare(self._head())
            elif not self.wide:
                self._prepare(os.pread(descriptor, MARK_BYTES, 0))
        except BadLine as error:
            if not tolerant:
                raise
            yield self._dead_letter(str(error))
            return
        body = data[skipped:]
        try:
            rows = self.parser.rows(body)
        except InvalidLine as error:
            place = self._place_of(start).after(data[:skipped])
            if not tolerant:
                raise BadLine(f"{place.after(body[: error.offset])}: {error.reason}") from None
            yield from self.parser.rows_and_errors(body, place)
        else:
            begin = LinePlace(path=self.path, offset=start + size - len(data), encoding=self.wide)
            yield self.parser.placed(rows, body, begin.after(data[:skipped])) if tolerant else rows

    def too_long(self, max_bytes: int) -> pa.RecordBatch:
        """Return the row for a line that is longer than a batch."""
        start, encoding = int(self.wanted.start), self.parser.dialect.encoding
        reason = f"the line has {self.wanted.end - start} bytes; allowed: {max_bytes} (source.max.bytes.per.batch)"
        text = os.pread(self.file.fileno(), min(_SHOWN_BYTES, max_bytes), start).decode(encoding, "backslashreplace")
        return self.parser.error(str(self._place_of(start)), reason, f"{text}...")

    def _place_of(self, offset: int) -> LinePlace:
        """Return a place with its number of lines: those behind the last place that this process has looked for."""
        descriptor = self.file.fileno()
        found = os.fstat(descriptor)
        place, file = LinePlace(path=self.path, encoding=self.wide), (found.st_dev, found.st_ino)
        at, line, before = _last_places.get(file, (0, 0, b""))
        # A file may be written anew, and an inode is used again.
        if at <= offset and _bytes_before(descriptor, at) == before:
            place = replace(place, offset=at, line=line)
        while place.offset < offset:
            end = min(offset, place.offset + CHUNK_BYTES)
            data = read_bytes_of(descriptor, self.path, place.offset, end)
            place = place.after(in_utf8(data, self.wide) if self.wide else data)
        if len(_last_places) >= _MAX_PLACES:
            _last_places.clear()
        _last_places[file] = offset, place.line, _bytes_before(descriptor, offset)
        return place

    def compressed(self, codec: str, tolerant: bool) -> Iterator[pa.RecordBatch]:
        start, rest, is_first = int(self.wanted.start), b"", self.wanted.start == 0
        # Lines count from where a file ended when it was read before.
        named = self.path if is_first else Path(f"{self.path}, from byte {start} on")
        place = LinePlace(path=named, encoding=self.wide)
        identity = Identity.from_metadata(metadata_of(self.wanted.end))
        skip = 0 if identity is None else identity.skip
        separator, is_csv = self.parser.dialect.separator, self.parser.dialect.form == "csv"
        is_skipping = False
        try:
            if not is_first and is_csv:
                self._prepare(self._packed_head(codec))
            for block in self._blocks(codec):
                if is_skipping:  # the rest of a line that is too long
                    end = block.find(b"\n") + 1
                    is_skipping = not end
                    place = place.after(block[: end or len(block)])
                    block = block[end:] if end else b""
                data = rest + block
                end = last_record_end(data, separator) if block else len(data)
                if block and not end:
                    rest = data
                    if is_first and is_csv and len(data) > MAX_HEADER_BYTES:
                        self._prepare(data)  # raises an error
                    elif len(data) > MAX_PACKED_LINE_BYTES:
                        if place.offset >= skip:
                            yield self._too_long_to_unpack(place, data, tolerant)
                        place, rest, is_first, is_skipping = place.after(data), b"", False, True
                    continue
                data, rest = data[:end], data[end:]
                if data and not data.endswith(b"\n"):
                    data += b"\n"
                if is_first and data:
                    skipped, is_first = self._prepare(data), False
                    place, data = place.after(data[:skipped]), data[skipped:]
                if place.offset < skip:
                    # What was read of the file before it was compressed.
                    read = self._first_bytes(data, skip - place.offset)
                    place, data = place.after(read), data[len(read) :]
                yield from self._chunk(data, place, tolerant)
                place = place.after(data)
        except BadLine as error:
            if not tolerant:
                raise
            yield self._dead_letter(str(error))
        except DamagedFile as error:
            at = self.wanted.start if error.offset is None else error.offset
            what = "" if at == self.wanted.start else f"from byte {at} on: "
            reason = f"cannot be decompressed ({what}{error.reason}); allowed: a complete {codec} file"
            if not tolerant:
                raise SourceError(f"{self.path}: {reason}") from error
            # The line that the next member may have continued.
            yield self._dead_letter(reason, at, rest)

    def _too_long_to_unpack(self, place: LinePlace, data: bytes, tolerant: bool) -> pa.RecordBatch:
        """Return the row for a line that begins with so many bytes; BadLine if that is not tolerated."""
        reason = f"the line has more than {MAX_PACKED_LINE_BYTES} bytes; allowed: so many in a compressed file"
        if not tolerant:
            raise BadLine(f"{place}: {reason}")
        text = data[:_SHOWN_BYTES].decode(self.parser.dialect.encoding, "backslashreplace")
        return self.parser.error(str(place), reason, f"{text}...")

    def _packed_head(self, codec: str) -> bytes:
        """Return the beginning of the decompressed text, with its header if that is complete."""
        size = _HEADER_BYTES
        while True:
            self.file.seek(0)
            data = decompressed_head(self.file, codec, size)
            text = in_utf8(data, self.wide) if self.wide else data
            if header_end(text, self.parser.dialect) or len(data) < size or size > MAX_HEADER_BYTES:
                return text
            size *= 2

    def _first_bytes(self, data: bytes, count: int) -> bytes:
        """Return the beginning of some text in UTF-8 that has so many bytes in the file's encoding."""
        if not self.wide:
            return data[:count]
        whole = data.decode("utf-8", "surrogatepass").encode(self.wide, "surrogatepass")
        return in_utf8(whole[:count], self.wide)

    def _blocks(self, codec: str) -> Iterator[bytes]:
        """Yield the decompressed blocks of the range, then an empty one, also before an error of what follows them."""
        self.file.seek(self.wanted.start)
        stream = Unpacked(self.file, codec, int(self.wanted.end))
        decoder = codecs.getincrementaldecoder(self.wide)(NO_TEXT) if self.wide else None
        while True:
            damage: DamagedFile | None = None
            try:
                block = stream.read(CHUNK_BYTES)
            except DamagedFile as error:
                if not error.follows:
                    raise
                block, damage = b"", error
            if decoder is not None:
                block = decoder.decode(block, final=not block).encode("utf-8", "surrogatepass")
            yield block
            if damage is not None:
                raise damage
            if not block:
                return

    def _chunk(self, data: bytes, place: LinePlace, tolerant: bool) -> Iterator[pa.RecordBatch]:
        if not data:
            return
        if tolerant:
            yield from self.parser.rows_and_errors(data, place)
            return
        try:
            yield self.parser.rows(data)
        except InvalidLine as error:
            raise BadLine(f"{place.after(data[: error.offset])}: {error.reason}") from None

    def _prepare(self, data: bytes) -> int:
        """Check the head of a file; return the offset of its first row.

        Raises:
            BadLine: the header of a CSV file does not fit the columns.
        """
        parser = self.parser
        dialect = parser.dialect
        if dialect.encoding == "utf-8":
            _check_text(self.path, data)
        if dialect.form == "csv":
            end = header_end(data[: MAX_HEADER_BYTES + 1], dialect)
            if not end and len(data) > MAX_HEADER_BYTES:
                what = f"the header has more than {MAX_HEADER_BYTES} bytes; allowed: so many"
                raise BadLine(f"{self.path}, line 1 (byte 0): {what}")
            names = names_in(self.path, data[:end], dialect)
            check_header(self.path, names, parser.columns, dialect)
            self.parser = replace(parser, names=names)
            return end
        has_mark = dialect.encoding == "utf-8" and data.startswith(BYTE_ORDER_MARK)
        return len(BYTE_ORDER_MARK) if has_mark else 0

    def _head(self) -> bytes:
        dialect = self.parser.dialect
        return head_of(self.file.fileno(), replace(dialect, encoding=self.wide) if self.wide else dialect)

    def _dead_letter(self, error: str, start: int | None = None, unfinished: bytes = b"") -> pa.RecordBatch:
        """Return the row for a range of which nothing can be read, or nothing from an offset on."""
        reason = error.removeprefix(str(self.path)).lstrip(", ").removeprefix(": ")
        place = f"{self.path}, bytes {self.wanted.start if start is None else start} to {int(self.wanted.end)}"
        head = unfinished if codec_of(self.wanted.slice) else self._head()
        text = printable(head.decode(errors="replace").strip(), limit=200)
        return self.parser.error(place, reason, text)


def _bytes_before(descriptor: int, offset: int) -> bytes:
    start = max(0, offset - _SHOWN_BYTES)
    return os.pread(descriptor, offset - start, start)


def _of_text(dialect: LineDialect) -> LineDialect:
    """Return the dialect of the text of a file: that of a wide encoding is parsed in UTF-8."""
    return replace(dialect, encoding="utf-8") if is_wide(dialect.encoding) else dialect


def _check_text(path: Path, data: bytes) -> None:
    """Raise an error if a file begins with bytes that only a file of another kind begins with."""
    if what := no_text(data):
        raise BadLine(f"{path}, line 1 (byte 0): {what}")


def head_of(descriptor: int, dialect: LineDialect) -> bytes:
    """Return the beginning of an open file, with its header if that is complete, up to ``MAX_HEADER_BYTES``."""
    data = os.pread(descriptor, _HEADER_BYTES, 0)
    if is_wide(dialect.encoding):
        text = in_utf8(data, with_byte_order(dialect.encoding, data))
        return text[: header_end(text, dialect) or None]
    while not (end := header_end(data, dialect)) and len(data) <= MAX_HEADER_BYTES:
        more = os.pread(descriptor, len(data) or 1, len(data))
        if not more:
            return data
        data += more
    return data[:end] if end else data


def inferred_columns(root: Path, dialect: LineDialect, pattern: str = "") -> Columns | None:
    """Return the columns of the first file that shows them; None without such a file.

    CSV: those of the first complete header, all strings. JSON lines: the fields of the first lines (up to 1 MiB).

    Raises:
        BadLine: no file has a header that is CSV.
        ConfigError: in no file each name is not empty and stands once.
        SourceError: the directory cannot be read.
    """
    first: BadLine | ConfigError | None = None
    for path, head in _heads(root, dialect, pattern):
        try:
            _check_text(path, head)
            is_csv = dialect.form == "csv"
            found = columns_of(path, head, _of_text(dialect)) if is_csv else columns_of_objects(path, head)
        except (BadLine, ConfigError) as error:  # Reported by the task that owns the file, if others are good.
            first = first or error
            continue
        if found:
            return found
    if first is not None:
        raise first
    return None


def check_headers(root: Path, columns: Columns, dialect: LineDialect, pattern: str = "") -> None:
    """Check that a CSV file has a header for these columns, unless none has a complete one yet.

    Raises:
        BadLine: that of the first file, if none has.
        SourceError: the directory cannot be read.
    """
    first: BadLine | None = None
    for path, head in _heads(root, dialect, pattern):
        try:
            _check_text(path, head)
            check_header(path, names_in(path, head, _of_text(dialect)), columns, dialect)
            return
        except BadLine as error:
            first = first or error
    if first is not None:
        raise first


def all_headers(root: Path, dialect: LineDialect, pattern: str = "") -> Iterator[Columns]:
    """Yield the columns of each CSV file with a complete and valid header, all strings.

    Raises:
        SourceError: the directory cannot be read.
    """
    for path, head in _heads(root, dialect, pattern):
        with suppress(BadLine, ConfigError):  # Reported when the file is read.
            yield columns_of(path, head, _of_text(dialect))


def next_fields(root: Path, positions: Mapping[str, int], pattern: str = "") -> Iterator[Columns]:
    """Yield the fields of the lines that are read next of each file of JSON lines.

    These are ``EVOLVE_BYTES`` of each file, and all of a compressed one; as no batch has more, they include each line
    that fails the next batch. Reading ends after ``_EVOLVE_TOTAL_BYTES``, in the order in which batches take the files.

    Args:
        positions: the committed positions of all tasks.

    Raises:
        SourceError: the directory cannot be read.
    """
    inodes, left = list_inodes(root, pattern, {}), _EVOLVE_TOTAL_BYTES
    identities = identities_in(positions)
    by_inode = {identity.inode: identity for identity in identities.values()}
    for name in sorted(inodes):
        known, codec = by_inode.get(inodes[name], identities.get(name)), codec_of(name)
        try:
            with open_below(root, name) as file:
                # An inode is used again, and a file may be rewritten in place: such a file is read from its start.
                start = known.read if known is not None and known.has_content_of(file.fileno()) else 0
                if os.fstat(file.fileno()).st_size <= start:
                    continue
                parts = _unpacked(file, start, codec) if codec else [os.pread(file.fileno(), EVOLVE_BYTES, start)]
                for lines in parts:
                    yield columns_to_add(lines)
                    left -= len(lines)
                    if left <= 0:
                        return
        except OSError:
            continue  # The task that owns the file reports it.


def _unpacked(file: BinaryIO, start: int, codec: str) -> Iterator[bytes]:
    """Yield the lines of a compressed file, some megabytes at a time: it may be large, or a bomb."""
    file.seek(start)
    stream, rest = Unpacked(file, codec), b""
    while data := stream.read(EVOLVE_BYTES):
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end]
            rest = data[end:]
        else:
            # A line this long is no line of a batch.
            rest = (rest + data)[: 2 * EVOLVE_BYTES]
    if rest:
        yield rest


def _heads(root: Path, dialect: LineDialect, pattern: str) -> Iterator[tuple[Path, bytes]]:
    """Yield the complete header or, of JSON lines, the first lines of files, in the order of their names."""
    is_csv = dialect.form == "csv"
    for name in sorted(list_inodes(root, pattern, {})):  # The planner reports links that lead out of it.
        path, codec = root / name, codec_of(name)
        try:
            with open_below(root, name) as file:
                if codec:
                    data = decompressed_head(file, codec, _SAMPLE_BYTES)
                else:
                    data = head_of(file.fileno(), dialect) if is_csv else os.pread(file.fileno(), _SAMPLE_BYTES, 0)
                if is_wide(dialect.encoding) and (codec or not is_csv):
                    data = in_utf8(data, with_byte_order(dialect.encoding, data))
                elif dialect.encoding != "utf-8" and not is_csv:
                    data = data.decode(dialect.encoding, "replace").encode()
        except OSError:
            continue  # Deleted, or not complete, damaged or unreadable: the task that owns the file reports it.
        head = data[: header_end(data, dialect) if is_csv else last_record_end(data, None)]
        if head:
            yield path, head


@contextmanager
def opened_range(root: Path, wanted: Range) -> Iterator[tuple[Path, BinaryIO]]:
    """Open the file of a range; it may have been renamed since the range was chosen.

    Raises:
        SourceError: the file cannot be opened, or has been replaced.
    """
    identity = Identity.from_metadata(metadata_of(wanted.end))
    path = root / wanted.slice
    file = _open_if_same(root, wanted.slice, identity)
    if file is None and identity is not None:
        for name, inode in list_inodes(root, "", {}).items():
            if inode == identity.inode and (file := _open_if_same(root, name, identity)) is not None:
                path = root / name
                break
    if file is None:
        raise SourceError(f"{path}: was replaced while it was read; allowed: the task starts again")
    with file:
        yield path, file


def _open_if_same(root: Path, name: str, identity: Identity | None) -> BinaryIO | None:
    """Open a file if it is the one that was planned; what is read later is what was compared."""
    try:
        file = open_below(root, name)
        try:
            if identity is None or identity.has_content_of(file.fileno()):
                return file
        except BaseException:
            file.close()
            raise
        file.close()
    except FileNotFoundError as error:
        if identity is None:
            raise unreadable(root / name, error) from error
    except OSError as error:
        raise unreadable(root / name, error) from error
    return None

"""Divides a directory of growing files into slices and ranges of whole lines.

A slice is a file; its position is the number of bytes read. Only lines that end in a line feed are read; the text after
the last line feed is still being written. A compressed file is read as a whole when it is complete.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from ...connector import Lag
from ...dataplane.errors import SourceError
from ...dataplane.ownership import Position
from ...dataplane.real_paths import open_below
from .catalog import Catalog, is_slice_of
from .dialect import ends_line, in_utf8, last_record_end, no_text, wide_line_end, with_byte_order
from .identity import Identity, IdentityMode
from .listing import last_line_end, list_inodes, unreadable, without_second_names
from .packed import DamagedFile, Unpacked, codec_of

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1 << 20
FIRST_BATCH_BYTES: Final = 16 << 20
"""Upper bound on the bytes of the first batch, so that its rows arrive soon; it grows fourfold with each batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """Which files are read, and what becomes of unusual ones.

    Attributes:
        pattern: a glob for the names of files; empty: all.
        identity: what makes a file the one that was read before.
        on_rewrite: ``fail``: a file that no longer begins with what was read of it is an error; ``read``: it is a new
            file.
        final_newline: ``wait``: a last line without a line feed is not read; ``accept``: it is, ``final_newline_ms``
            after the file was last modified.
        final_newline_ms: in milliseconds.
        quote: the quote character between which line feeds do not end a record; ``None``: each line feed does.
        wide: the encoding, if its line feed has two or four bytes; empty: it has one byte.
        is_utf8: whether the text is in UTF-8.
        skips_bad: whether a file that cannot be read is left out, or is an error of the task.
        settle_ms: how long a new file waits after its last change if another file begins with all of it: it may be the
            copy of a log that is truncated next. In milliseconds.
        has_header: whether the first line of a file is no row.
        schema: the inferred schema, to commit with the positions; empty: it was configured.
    """

    pattern: str = ""
    identity: IdentityMode = "content"
    on_rewrite: Literal["fail", "read"] = "fail"
    final_newline: Literal["wait", "accept"] = "wait"
    final_newline_ms: int = 60_000
    quote: bytes | None = None
    wide: str = ""
    is_utf8: bool = True
    skips_bad: bool = False
    settle_ms: int = 0
    has_header: bool = False
    schema: str = ""


Version = tuple[int, int, int]
"""Inode, size and time of the last change of a file."""


@dataclass(slots=True, kw_only=True)
class Planner:
    """Chooses the ranges of the next batch.

    Attributes:
        root: the directory.
        task, tasks: the task's number and the number of tasks; they determine the files of this task.
        max_bytes: upper bound on the bytes of one batch, and on the length of a line. A compressed file may exceed it.
        rules: which files are read, and what becomes of unusual ones.
        positions: the position of each slice when the task started.
        others: returns the committed positions of all tasks; ``None``: this task is the only one.
        unpacked, incomplete: the versions of compressed files that ``lag`` has unpacked, and of the incomplete ones
            among them. Changed by ``lag``; a source passes them on from one measurement to the next.
        problems: the files that the last call could not read, and why.
        skipped: how many files and directories the last call left out by their names.
    """

    root: Path
    task: int
    tasks: int
    max_bytes: int
    rules: FileRules = field(default_factory=FileRules)
    positions: Mapping[str, int] = field(default_factory=dict)
    others: Callable[[], Mapping[str, int]] | None = None
    unpacked: dict[str, Version] = field(default_factory=dict)
    incomplete: dict[str, Version] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    skipped: int = 0
    _batch_bytes: int = FIRST_BATCH_BYTES
    _last_served: str = ""
    _catalog: Catalog | None = None
    _incomplete: dict[str, Version] = field(default_factory=dict)
    _cut: dict[str, Version] = field(default_factory=dict)
    _has_unpacked: bool = False

    def advance(self, start: Mapping[str, int]) -> dict[str, int]:
        """Return the end of the next batch, given its start; equal to ``start`` if there is nothing to read.

        Raises:
            SourceError: the directory or a file cannot be read, a file was rewritten, or a line is too long.
        """
        end = dict(start)
        left = min(self.max_bytes, self._batch_bytes)
        self._batch_bytes = 4 * left
        inodes = self._list()
        if self.problems and not self.rules.skips_bad:
            raise SourceError(self.problems[min(self.problems)])
        slices, names = self._files().slices(inodes), sorted(inodes)
        # Round robin: begin after the file read last, so that a fast-growing file cannot starve the others.
        for name in _rotated(names, self._last_served):
            if left <= 0:
                break
            if name not in slices or self._is_read(name, slices[name], start):
                continue
            try:
                found = self._next(name, slices[name], start, left)
            except SourceError as error:
                if not self.rules.skips_bad:
                    raise
                self.problems[name] = str(error)
                continue
            if found is not None:
                slice_, position = found
                left -= position - start.get(slice_, 0)
                end[slice_] = position
                self._last_served = name
        return end

    def file_of(self, slice_: str) -> str:
        """Return the file of a slice."""
        identity = self._files().identity(slice_)
        return slice_ if identity is None else identity.file

    def lag(self, positions: Mapping[str, int]) -> Lag:
        """Return the files of the task that are not read to their end, and the bytes after the positions.

        An unfinished last line and an incomplete compressed file count: they are not read yet.

        Raises:
            SourceError: the directory cannot be read.
        """
        files = left = unfinished = 0
        catalog = Catalog(self.root, positions, self._owns, self.others, self.rules.identity)
        for name, slice_ in catalog.slices(self._list()).items():
            found = catalog.stats.get(name)
            is_rewritten = name in catalog.rewritten and self.rules.on_rewrite == "fail"
            if found is None or is_rewritten or not os.access(self.root / name, os.R_OK):
                if os.path.lexists(self.root / name):
                    self.problems[name] = "was rewritten" if is_rewritten else "cannot be read"
                continue
            position = positions.get(slice_, 0)
            if found.st_size <= position or (position == 0 and catalog.belongs_to_another(name)):
                continue
            files, left = files + 1, left + found.st_size - position
            try:
                unfinished += self._is_unfinished(name, position, found)
            except SourceError as error:
                self.problems[name] = str(error).removeprefix(str(self.root / name)).lstrip(":, ")
        return Lag(
            bytes=left,
            files=files,
            unfinished_files=unfinished,
            unreadable_files=len(self.problems),
            skipped_files=self.skipped,
        )

    def _list(self) -> Mapping[str, int]:
        """Return the inodes of all files by name; note the names of this task that cannot be read or are left out."""
        problems, skipped = dict[str, str](), list[str]()
        inodes: Mapping[str, int] = list_inodes(self.root, self.rules.pattern, problems, skipped)
        if self.rules.identity != "name":
            inodes = without_second_names(self.root, inodes, skipped)
        self.skipped = sum(map(self._owns, skipped))
        self.problems = {name: problem for name, problem in problems.items() if self._owns(name)}
        return inodes

    def _files(self) -> Catalog:
        if self._catalog is None:
            self._catalog = Catalog(
                self.root,
                self.positions,
                self._owns,
                self.others,
                self.rules.identity,
                settle_ms=self.rules.settle_ms,
                has_header=self.rules.has_header,
            )
        return self._catalog

    def _is_read(self, name: str, slice_: str, start: Mapping[str, int]) -> bool:
        """Whether all of a file has been read: the most frequent case."""
        found = self._files().stats.get(name)
        return found is not None and 0 < start.get(slice_, 0) == found.st_size and stat.S_ISREG(found.st_mode)

    def _owns(self, slice_: str) -> bool:
        return is_slice_of(slice_, self.task, self.tasks)

    def _next(self, name: str, slice_: str, start: Mapping[str, int], left: int) -> tuple[str, Position] | None:
        """Return the slice of a file and the end of its next range; None if there is nothing to read now.

        Raises:
            SourceError: the file cannot be read, was rewritten, or has a line that is too long.
        """
        catalog = self._files()
        former = catalog.identity(catalog.rewritten[name]) if name in catalog.rewritten else None
        try:
            found = catalog.stats.get(name) or (self.root / name).stat()
            if not stat.S_ISREG(found.st_mode):
                raise SourceError(f"{self.root / name}: not a regular file; allowed: files")
            if start.get(slice_, 0) == 0 and catalog.may_be_copy(name):
                return None
            if former is not None and self.rules.on_rewrite == "fail":
                raise _rewritten(self.root / name, found.st_size, former.read, catalog.copy_of(catalog.rewritten[name]))
            if found.st_size < start.get(slice_, 0):
                if self.rules.on_rewrite == "fail":
                    raise _rewritten(self.root / name, found.st_size, start[slice_])
                slice_ = catalog.new_slice(name)
            position = start.get(slice_, 0)
            if found.st_size == position or (position == 0 and catalog.belongs_to_another(name)):
                return None
            known = catalog.identity(slice_)
            if position and known is not None and known.is_cut:
                raise SourceError(
                    f"{self.root / name}: byte {position} is not the start of a line: the line before was read without"
                    " its line feed, as the file was complete; allowed: compressed files that grow by whole lines, or a"
                    " new file"
                )
            with open_below(self.root, name) as file:
                if not os.path.samestat(os.fstat(file.fileno()), found):
                    return None  # Replaced since it was looked at: the next batch looks again.
                opened = os.fstat(file.fileno())
                end = self._end(file.fileno(), name, position, left, opened)
                if end == position:
                    return None
                if former is not None and position == 0 and (copy := catalog.copy_of(catalog.rewritten[name])):
                    logger.warning(
                        "%s: was truncated, and %s begins with what was read of it: if that is its copy, its rows were"
                        " read twice; allowed: source.settle.ms above the time from a copy to the truncation",
                        self.root / name,
                        self.root / copy,
                    )
                codec = codec_of(name)
                packed = catalog.packed(name, codec) if codec and position == 0 else None
                from_, skip = packed or ("", 0)
                is_cut = self._cut.get(name) == (opened.st_ino, opened.st_size, opened.st_mtime_ns)
                before = known if position else None
                identity = Identity.of(
                    file.fileno(), name, end, before=before, packed_from=from_, skip=skip, is_cut=is_cut
                )
        except FileNotFoundError as error:
            if (self.root / name).is_symlink():
                raise unreadable(self.root / name, error) from error
            return None  # Deleted since the listing; the part already read stays committed.
        except OSError as error:
            raise unreadable(self.root / name, error) from error
        catalog.remember(slice_, identity)
        schema = {"schema": self.rules.schema} if self.rules.schema else {}
        return slice_, Position(end, identity.metadata(**schema))

    def _end(self, descriptor: int, name: str, position: int, max_bytes: int, found: os.stat_result) -> int:
        """Return the end of what can be read of an open file after ``position``, within ``max_bytes``."""
        may_accept = self.rules.final_newline == "accept" and self._age_ms(found) >= self.rules.final_newline_ms
        if codec := codec_of(name):
            # Asked in any case: it notes a last line without its line feed.
            return found.st_size if self._is_complete(name, codec, position, found) or may_accept else position
        stop = min(found.st_size, position + max_bytes)
        if self.rules.wide:
            encoding = with_byte_order(self.rules.wide, os.pread(descriptor, 4, 0))
            unit = len("\n".encode(encoding))
            data = os.pread(descriptor, (stop - position) // unit * unit, position)
            end = position + wide_line_end(data, encoding)
            if self.rules.quote is not None:
                text = in_utf8(data[: end - position], encoding)
                text = text[: last_record_end(text, self.rules.quote)]
                end = position + len(text.decode("utf-8", "surrogatepass").encode(encoding, "surrogatepass"))
        elif position and not _continues(descriptor, position):
            raise SourceError(
                f"{self.root / name}: byte {position} is not the start of a line: the line before was read without its"
                " line feed (source.final.newline=accept); allowed: complete lines, or a new file"
            )
        elif self.rules.quote is None:
            end = last_line_end(descriptor, position, stop)
        else:
            data = os.pread(descriptor, stop - position, position)
            end = position + last_record_end(data, self.rules.quote)
            last = position + data.rfind(b"\n") + 1
            is_at_rest = stop == found.st_size and self._age_ms(found) >= self.rules.final_newline_ms
            if end == position and last > end and is_at_rest:
                if self.rules.skips_bad:
                    return last  # The reader puts the line aside, and goes on behind it.
                raise SourceError(
                    f"{self.root / name}, line {_lines_before(descriptor, end) + 1} (byte {end}): a quote that is not"
                    f" closed in {last - end} bytes; allowed: quotes that end, or source.quote=none"
                )
        if end == position and stop == found.st_size and may_accept:
            return stop
        if end == position and max_bytes == self.max_bytes and stop - position == max_bytes:
            is_put_aside = self.rules.skips_bad and not self.rules.wide
            if is_put_aside and (line_end := _next_line_end(descriptor, stop, found.st_size)):
                return line_end  # by the reader
            raise SourceError(
                f"{self.root / name}: the line at byte {position} is longer than {max_bytes} bytes;"
                " allowed: lines up to source.max.bytes.per.batch"
            )
        return end

    def _age_ms(self, found: os.stat_result) -> float:
        return time.time() * 1000 - found.st_mtime_ns / 1_000_000

    def _is_unfinished(self, name: str, position: int, found: os.stat_result) -> bool:
        """Whether nothing of a file can be read now: a last line has no line feed, or it is compressed and incomplete.

        Raises:
            SourceError: the file is not read on: a line is too long, a quote is not closed, or no line feed will come.
        """
        if codec := codec_of(name):
            version = found.st_ino, found.st_size, found.st_mtime_ns
            if self.unpacked.get(name) != version and not self._has_unpacked:
                # To unpack all files that wait for their turn would cost as much as to read them: one a measurement.
                self._has_unpacked, self.unpacked[name] = True, version
                if not self._is_complete(name, codec, position, found):
                    self.incomplete[name] = version
            return version in (self.incomplete.get(name), self._incomplete.get(name))
        start = max(position, found.st_size - _CHUNK_BYTES)
        try:
            with open_below(self.root, name) as file:
                if self.rules.quote is not None or self.rules.wide or found.st_size - position >= self.max_bytes:
                    opened = os.fstat(file.fileno())
                    is_unfinished = self._end(file.fileno(), name, position, self.max_bytes, opened) == position
                else:
                    is_unfinished = b"\n" not in os.pread(file.fileno(), found.st_size - start, start)
                if is_unfinished and not position:
                    self._check_lines(file.fileno(), name, found)
                return is_unfinished
        except OSError:
            return False

    def _check_lines(self, descriptor: int, name: str, found: os.stat_result) -> None:
        """Raise an error if a file without a whole line looks as if it never gets one."""
        data = os.pread(descriptor, _CHUNK_BYTES, 0)
        what = no_text(data) if self.rules.is_utf8 else ""
        # One at the end may be the half of a line end.
        waits = self.rules.final_newline == "wait" and not self.rules.wide
        is_at_rest = waits and self._age_ms(found) >= self.rules.final_newline_ms
        if not what and is_at_rest and b"\r" in data[:-1] and b"\n" not in data:
            what = "its lines end with carriage returns alone; allowed: a line feed at the end of each line"
        if what:
            raise SourceError(f"{self.root / name}: {what}")

    def _is_complete(self, name: str, codec: str, position: int, found: os.stat_result) -> bool:
        """Whether a compressed file is complete. One that is damaged is, too: the reader reports it."""
        version = found.st_ino, found.st_size, found.st_mtime_ns
        if self._incomplete.get(name) == version:
            return False
        try:
            with open_below(self.root, name) as file:
                file.seek(position)
                stream, last = Unpacked(file, codec, found.st_size), b""
                while block := stream.read(_CHUNK_BYTES):
                    last = (last + block)[-4:]
                if last and not ends_line(last, self.rules.wide):
                    self._cut[name] = version
        except DamagedFile as error:
            if error.is_truncated:
                self._incomplete[name] = version
                return False
        except OSError:
            pass
        self._incomplete.pop(name, None)
        return True


def _lines_before(descriptor: int, offset: int) -> int:
    """Return the number of line feeds before an offset."""
    starts = range(0, offset, _CHUNK_BYTES)
    return sum(os.pread(descriptor, min(_CHUNK_BYTES, offset - at), at).count(b"\n") for at in starts)


def _next_line_end(descriptor: int, start: int, end: int) -> int:
    """Return the offset after the first line feed in ``[start, end)``; 0 without one."""
    for at in range(start, end, _CHUNK_BYTES):
        found = os.pread(descriptor, min(_CHUNK_BYTES, end - at), at).find(b"\n")
        if found >= 0:
            return at + found + 1
    return 0


def _continues(descriptor: int, position: int) -> bool:
    """Whether a line starts at a position, or the end of the line before."""
    around = os.pread(descriptor, 3, position - 1)
    return around[:1] == b"\n" or around[1:2] in (b"\n", b"") or around[1:3] == b"\r\n"


def _rewritten(path: Path, size: int, read: int, copy: str = "") -> SourceError:
    what = (
        f"has {size} bytes, {read} were read already"
        if size < read
        else f"was rewritten: it no longer begins with the {read} bytes that were read of it"
    )
    if copy:
        what += f" (as {copy} does: if that is its copy, its rows were read twice, see source.settle.ms)"
    return SourceError(
        f"{path}: {what}; allowed: files that only grow (write a new file instead), or source.on.rewrite=read"
    )


def _rotated(names: Sequence[str], last: str) -> list[str]:
    """Return names so that those after the last one come first."""
    return [name for name in names if name > last] + [name for name in names if name <= last]

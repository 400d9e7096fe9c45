"""Compressed files: their codecs, and their bytes as far as they are complete.

A file of gzip is a sequence of members, one of zstd of frames. What follows the last one is no part of it: bytes that
are zero, behind gzip, are padding, as for Python and gzip itself; all others are damage. Python and Hadoop, and so
Spark, end with an error there; gzip warns, and Java's ``GZIPInputStream`` says nothing.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO, Final

COMPRESSED: Final = {".gz": "gzip", ".zst": "zstd"}
"""Codecs by the end of a file's name."""
_INPUT_BYTES: Final = 256 << 10
_BLOCK_BYTES: Final = 4 << 20
_FIRST_BYTES: Final = 16 << 10
"""Of the first block; each further one has four times as many, up to ``_BLOCK_BYTES``. Often only a head is read."""
_GZIP: Final = 31
"""zlib's number for the window of a member of gzip, with its header and its checksum."""
_MAGIC: Final = b"\x1f\x8b"
_NO_FRAME: Final = "Unknown frame descriptor"
"""What zstd says of bytes that are no frame."""


def codec_of(file: str) -> str | None:
    """Return the codec of a compressed file, by the end of its name; None for other files."""
    return next((codec for end, codec in COMPRESSED.items() if file.lower().endswith(end)), None)


class DamagedFile(OSError):
    """A file cannot be decompressed any further.

    Attributes:
        reason: in a few words.
        offset: of the member that is damaged, or of what follows the last one, in the file; ``None``: not known.
        is_truncated: whether the file ends within a member, which may still be written.
        follows: whether all members are complete, and something else follows them.
    """

    def __init__(
        self, reason: str, *, offset: int | None = None, is_truncated: bool = False, follows: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason, self.offset, self.is_truncated, self.follows = reason, offset, is_truncated, follows


class Unpacked:
    """The decompressed bytes of an open file, from its position on. The caller closes the file."""

    def __init__(self, file: BinaryIO, codec: str, end: int | None = None) -> None:
        """Store the arguments; nothing is read.

        Args:
            end: offset in the file at which it counts as ended: others may append members meanwhile. Null: its end now.
        """
        opened = partial(_opened, file.fileno(), file.tell(), os.fstat(file.fileno()).st_size if end is None else end)
        self._blocks = _gzip_blocks(opened()) if codec == "gzip" else _arrow_blocks(opened, codec)
        self._rest = b""
        self._error: DamagedFile | None = None

    def read(self, size: int) -> bytes:
        """Return the next bytes; fewer before damage and at the end, none behind that.

        Raises:
            DamagedFile: all bytes of complete members have been returned, and what follows is damaged. Of a damaged
                member, only what was returned before the call that has met the damage.
        """
        parts, length, complete = [self._rest], len(self._rest), len(self._rest)
        while length < size and self._error is None:
            try:
                block, ends_member = next(self._blocks)
            except StopIteration:
                break
            except DamagedFile as error:
                self._error = error
                length = length if error.follows else complete
                break
            parts.append(block)
            length += len(block)
            complete = length if ends_member else complete
        found = b"".join(parts)[:length]
        found, self._rest = found[:size], found[size:]
        if self._error is not None and not found:
            raise self._error
        return found


class _Bounded(io.RawIOBase):
    """The bytes of an open file from one offset to another. To close it leaves the file open."""

    def __init__(self, descriptor: int, start: int, end: int) -> None:
        self._descriptor, self._at, self._end = descriptor, start, end

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._descriptor, max(0, min(len(buffer), self._end - self._at)), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _opened(descriptor: int, start: int, end: int) -> BinaryIO:
    return io.BufferedReader(_Bounded(descriptor, start, end), _INPUT_BYTES)


def decompressed_head(file: BinaryIO, codec: str, size: int) -> bytes:
    """Return the first bytes of a compressed file, decompressed; fewer if it has not more, or is damaged."""
    try:
        return Unpacked(file, codec).read(size)
    except DamagedFile:
        return b""


def _gzip_blocks(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yield blocks, each with whether a member ends behind it."""
    start = offset = file.tell()
    member, data, size = zlib.decompressobj(_GZIP), b"", _FIRST_BYTES
    while data := data or file.read(_INPUT_BYTES):
        if member.eof:
            data = data.lstrip(b"\0")
            if not data:
                continue
            offset, member = file.tell() - len(data), zlib.decompressobj(_GZIP)
            if not _MAGIC.startswith(data[: len(_MAGIC)]):
                raise DamagedFile("no gzip follows the last member", offset=offset, follows=offset > start)
        try:
            block = member.decompress(data, size)
        except zlib.error as error:
            raise DamagedFile(str(error).partition(": ")[2], offset=offset) from error
        data = member.unused_data if member.eof else member.unconsumed_tail
        size = min(4 * size, _BLOCK_BYTES)
        yield block, member.eof
    if not member.eof and file.tell() > offset:
        raise DamagedFile("truncated", offset=offset, is_truncated=True)


def _arrow_blocks(opened: Callable[[], BinaryIO], codec: str) -> Iterator[tuple[bytes, bool]]:
    """The same with a codec of Arrow, which shows no ends of members, and loses what it read in the call that fails."""
    import pyarrow as pa

    found, size, is_again = 0, _FIRST_BYTES, False
    while True:
        with opened() as file:  # Arrow closes it.
            stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)
            try:
                passed = 0
                while passed < found and (block := stream.read(min(_BLOCK_BYTES, found - passed))):
                    passed += len(block)
                while block := stream.read(size):
                    found += len(block)
                    size = size if is_again else min(4 * size, _BLOCK_BYTES)
                    yield block, False
                return
            except (OSError, pa.ArrowException) as error:
                reason = " ".join(str(error).split())[:120]
                follows = found + size > 1 and _NO_FRAME in reason
                if not follows or size == 1:
                    truncated = "runcated" in reason
                    raise DamagedFile(reason, is_truncated=truncated, follows=follows and found > 0) from error
        # Read again up to the end of the last frame, in smaller steps.
        size, is_again = max(1, size // 1024), True

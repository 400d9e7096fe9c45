"""Recognizes a file by what was read of it, and by its name or inode, as the user chooses (``IdentityMode``).

The identity of a file has a fingerprint: a digest of the first KiB and of the last 4 KiB of what was read, and a
checksum of all of it. It is committed with the position, as its metadata. A renamed file has the same fingerprint; a
file that was rewritten in place has another one. Equal inodes and times of the last change save reading the file again.
So does growth of a long file: to read a log whole whenever it has grown would take quadratic time. Of such a file, only
the beginning and the end of what was read are compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

from ...dataplane.ownership import metadata_of
from ...dataplane.real_paths import open_below
from .packed import Unpacked

IdentityMode = Literal["content", "name", "inode"]
"""What makes a file the one that was read before, beside that it begins with what was read.

``content``: nothing else, if it has its name; under another name its inode, or its time of change.
``name``: its name. A file of another name is new, also one that was renamed.
``inode``: its inode. A file of another inode is new, also one with the same name and the same beginning.
"""
HEAD_BYTES: Final = 1024
TAIL_BYTES: Final = 4096
_BLOCK_BYTES: Final = 1 << 20
_SHORT_BYTES: Final = 4 << 20
"""Of a file of which no more was read, all of that is compared whenever it has changed."""
_MAX_COMPARED: Final = 1 << 17
_compared: Final[dict[tuple[int, ...], bool]] = {}
"""Whether a version of a file begins with all that was read. Changed by ``Identity.has_all_of``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What is known of a file after some bytes of it have been read.

    Attributes:
        file: its path below the directory of the source.
        inode: its inode.
        mtime_ns: when it was last modified, in nanoseconds since 1970.
        read: number of bytes read, from the start.
        head: digest of the first ``HEAD_BYTES`` of them.
        tail: digest of the last ``TAIL_BYTES`` of them.
        whole: CRC-32 of all of them; ``None``: not known.
        packed_from: the slice of the file that this compressed file was made of; empty: not known.
        skip: the decompressed bytes that were read of that file, before it was compressed.
        is_cut: whether it is compressed, and its last line was read without a line feed.
    """

    file: str
    inode: int
    mtime_ns: int
    read: int
    head: str
    tail: str
    whole: int | None = None
    packed_from: str = ""
    skip: int = 0
    is_cut: bool = False

    @classmethod
    def of(
        cls,
        descriptor: int,
        file: str,
        read: int,
        *,
        before: Identity | None = None,
        packed_from: str = "",
        skip: int = 0,
        is_cut: bool = False,
    ) -> Identity:
        """Return the identity of an open file of which ``read`` bytes have been read.

        Args:
            before: the identity that it had when fewer bytes had been read.
        """
        found = os.fstat(descriptor)
        start, whole = 0, 0
        if before is not None and before.whole is not None and before.read <= read:
            start, whole = before.read, before.whole
        return cls(
            file=file,
            inode=found.st_ino,
            mtime_ns=found.st_mtime_ns,
            read=read,
            head=_digest(os.pread(descriptor, min(read, HEAD_BYTES), 0)),
            tail=_tail(descriptor, read),
            whole=_checksum(descriptor, start, read, whole),
            packed_from=packed_from,
            skip=skip,
            is_cut=is_cut,
        )

    @classmethod
    def from_metadata(cls, text: str) -> Identity | None:
        """Decode the metadata of a position; None if it has no identity."""
        try:
            return cls(**json.loads(text)["identity"]) if text else None
        except (ValueError, RecursionError, KeyError, TypeError):
            return None

    def metadata(self, **more: str) -> str:
        """Return the identity as metadata of a position."""
        # Without a copy of each value: a directory may have 20,000 files.
        plain: dict[str, str | int | bool] = {
            "file": self.file,
            "inode": self.inode,
            "mtime_ns": self.mtime_ns,
            "read": self.read,
            "head": self.head,
            "tail": self.tail,
        }
        if self.whole is not None:
            plain |= {"whole": self.whole}
        if self.packed_from:
            plain |= {"packed_from": self.packed_from}
        if self.skip:
            plain |= {"skip": self.skip}
        if self.is_cut:
            plain |= {"is_cut": True}
        return json.dumps({"identity": plain, **more}, separators=(",", ":"))

    def has_content_of(self, descriptor: int) -> bool:
        """Whether an open file begins with what was read, by the beginning and the end of that."""
        return (
            os.fstat(descriptor).st_size >= self.read
            and _digest(os.pread(descriptor, min(self.read, HEAD_BYTES), 0)) == self.head
            and _tail(descriptor, self.read) == self.tail
        )

    def has_all_of(self, descriptor: int) -> bool:
        """Whether an open file begins with what was read, by all of that."""
        if not self.has_content_of(descriptor):
            return False
        if self.whole is None:
            return True
        found = os.fstat(descriptor)
        version = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, self.read, self.whole
        has_all = _compared.get(version)
        if has_all is None:
            if len(_compared) >= _MAX_COMPARED:
                _compared.clear()
            has_all = _compared[version] = _checksum(descriptor, 0, self.read) == self.whole
        return has_all

    def is_unchanged(self, found: os.stat_result) -> bool:
        """Whether a file has the inode, the size and the time of change that it had when all of it was read."""
        return (found.st_size, found.st_mtime_ns, found.st_ino) == (self.read, self.mtime_ns, self.inode)

    def is_in(self, root: Path, name: str, found: os.stat_result) -> bool:
        """Whether a file still begins with what was read. One that cannot be opened is assumed to."""
        if found.st_size < self.read:
            return False
        try:
            with open_below(root, name) as file:
                may_be_log = found.st_ino == self.inode and found.st_size > self.read > _SHORT_BYTES
                return self.has_content_of(file.fileno()) if may_be_log else self.has_all_of(file.fileno())
        except OSError:
            return True  # The planner reports the error when it opens the file.

    def begins_with(self, head: bytes) -> bool:
        """Whether the first KiB of a file is that of what was read."""
        length = min(self.read, HEAD_BYTES)
        return len(head) >= length and _digest(head[:length]) == self.head

    def has_content_of_packed(self, file: BinaryIO, codec: str) -> bool:
        """Whether a compressed file begins, when it is decompressed, with what was read."""
        try:
            stream = Unpacked(file, codec)
            head = stream.read(min(self.read, HEAD_BYTES))
            if len(head) < min(self.read, HEAD_BYTES) or _digest(head) != self.head:
                return False
            at, tail, whole = len(head), head, zlib.crc32(head)
            while at < self.read and (block := stream.read(min(_BLOCK_BYTES, self.read - at))):
                at += len(block)
                whole = zlib.crc32(block, whole)
                tail = (tail + block)[-TAIL_BYTES:]
        except OSError:
            return False  # Damaged, or not complete: the reader reports it.
        return at == self.read and _digest(tail) == self.tail and self.whole in (None, whole)

    def may_be_renamed_to(self, found: os.stat_result, mode: IdentityMode, *, was_truncated: bool = False) -> bool:
        """Whether a file of another name, with the same content, counts as this one and not as a new file.

        It has its inode; or, as it was moved from another disk, the time of change of a file of which everything was
        read. A file with only the same content is new: a status file that is written each day, an export with the rows
        of yesterday and more.

        Args:
            found: the status of the other file.
            mode: what makes a file the same.
            was_truncated: whether this file still has its name, and other content: then the other one is the copy that
                was made before (logrotate's ``copytruncate``).
        """
        if found.st_ino == self.inode and found.st_size >= self.read:
            # An inode is used again: a new file has another time of change.
            return mode == "inode" or found.st_size > self.read or found.st_mtime_ns == self.mtime_ns
        if mode == "inode":
            return False
        return (found.st_size == self.read and found.st_mtime_ns == self.mtime_ns) or (
            was_truncated and found.st_size >= self.read
        )


class Index:
    """Finds the slice of a file among many identities, by reading the file's first KiB once."""

    def __init__(self, identities: Iterable[tuple[str, Identity]]) -> None:
        """Store pairs of slice and identity."""
        self._by_head: dict[tuple[int, str], dict[str, Identity]] = {}
        for name, identity in identities:
            self._by_head.setdefault((min(identity.read, HEAD_BYTES), identity.head), {})[name] = identity
        self._lengths = sorted({length for length, _ in self._by_head}, reverse=True)

    def find(
        self, root: Path, file_name: str, accepts: Callable[[str, Identity], bool]
    ) -> Iterator[tuple[str, Identity]]:
        """Yield the slices whose content a file below a directory has, longest first; none if it cannot be opened.

        Args:
            root: the directory.
            file_name: the file.
            accepts: whether a slice comes into question.
        """
        try:
            with open_below(root, file_name) as file:
                head, inode = os.pread(file.fileno(), HEAD_BYTES, 0), os.fstat(file.fileno()).st_ino
                for length in self._lengths:
                    if length > len(head):
                        continue
                    for name, identity in self._by_head.get((length, _digest(head[:length])), {}).items():
                        if not accepts(name, identity):
                            continue
                        is_moved = identity.inode == inode
                        if identity.has_content_of(file.fileno()) and (is_moved or identity.has_all_of(file.fileno())):
                            yield name, identity
        except OSError:
            return


def identities_in(positions: Mapping[str, int]) -> dict[str, Identity]:
    """Return the identity of each slice whose position has one."""
    found = ((name, Identity.from_metadata(metadata_of(at))) for name, at in positions.items())
    return {name: identity for name, identity in found if identity is not None}


def stats_of(root: Path, names: Sequence[str]) -> dict[str, os.stat_result]:
    """Return the status of files; those that do not exist or cannot be looked at are left out."""
    stats = {}
    for name in names:
        try:
            stats[name] = os.stat(f"{root}/{name}")
        except OSError:
            continue
    return stats


def _tail(descriptor: int, read: int) -> str:
    start = max(0, read - TAIL_BYTES)
    return _digest(os.pread(descriptor, read - start, start))


def _checksum(descriptor: int, start: int, end: int, before: int = 0) -> int:
    """Return the checksum of the bytes of an open file up to ``end``, given that of those before ``start``."""
    while start < end and (block := os.pread(descriptor, min(_BLOCK_BYTES, end - start), start)):
        start, before = start + len(block), zlib.crc32(block, before)
    return before


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()

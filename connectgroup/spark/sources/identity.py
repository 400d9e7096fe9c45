"""Recognizes a file by what was read of it, not by its name.

The identity of a file is a fingerprint: a digest of the first KiB and of the last 4 KiB of what was read. It is
committed with the position, as its metadata. A renamed file has the same fingerprint; a file that was rewritten in
place has another one. Inode and time of the last change are hints: equal ones save reading the file again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ...dataplane.ownership import metadata_of
from ...dataplane.real_paths import open_below

HEAD_BYTES: Final = 1024
TAIL_BYTES: Final = 4096


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
    """

    file: str
    inode: int
    mtime_ns: int
    read: int
    head: str
    tail: str

    @classmethod
    def of(cls, descriptor: int, file: str, read: int) -> Identity:
        """Return the identity of an open file of which ``read`` bytes have been read."""
        found = os.fstat(descriptor)
        return cls(
            file=file,
            inode=found.st_ino,
            mtime_ns=found.st_mtime_ns,
            read=read,
            head=_digest(os.pread(descriptor, min(read, HEAD_BYTES), 0)),
            tail=_tail(descriptor, read),
        )

    @classmethod
    def from_metadata(cls, text: str) -> Identity | None:
        """Decode the metadata of a position; None if it has no identity."""
        try:
            return cls(**json.loads(text)["identity"]) if text else None
        except (ValueError, KeyError, TypeError):
            return None

    def metadata(self, **more: str) -> str:
        """Return the identity as metadata of a position."""
        return json.dumps({"identity": asdict(self), **more}, separators=(",", ":"))

    def has_content_of(self, descriptor: int) -> bool:
        """Whether an open file begins with what was read."""
        return (
            os.fstat(descriptor).st_size >= self.read
            and _digest(os.pread(descriptor, min(self.read, HEAD_BYTES), 0)) == self.head
            and _tail(descriptor, self.read) == self.tail
        )

    def is_unchanged(self, found: os.stat_result) -> bool:
        """Whether a file has the inode, the size and the time of change that it had when all of it was read."""
        return (found.st_size, found.st_mtime_ns, found.st_ino) == (self.read, self.mtime_ns, self.inode)

    def is_in(self, root: Path, name: str, found: os.stat_result) -> bool:
        """Whether a file still begins with what was read. One that cannot be opened is assumed to."""
        if found.st_size < self.read:
            return False
        try:
            with open_below(root, name) as file:
                return self.has_content_of(file.fileno())
        except OSError:
            return True  # The planner reports the error when it opens the file.

    def may_be_renamed_to(self, found: os.stat_result) -> bool:
        """Whether a file of another name, with the same content, counts as this one and not as a new file.

        A file of which everything was read must have its time of change too: a new file with the content of a deleted
        one, as a status file that is written each day, is new. A file that has grown must have its inode, or be one of
        which at least a KiB was read.
        """
        if found.st_size == self.read:
            return found.st_mtime_ns == self.mtime_ns
        return found.st_size > self.read and (found.st_ino == self.inode or self.read >= HEAD_BYTES)


class Index:
    """Finds the slice of a file among many identities, by reading the file's first KiB once."""

    def __init__(self, identities: Iterable[tuple[str, Identity]]) -> None:
        """Store pairs of slice and identity."""
        self._by_head: dict[tuple[int, str], dict[str, Identity]] = {}
        for name, identity in identities:
            self._by_head.setdefault((min(identity.read, HEAD_BYTES), identity.head), {})[name] = identity
        self._lengths = sorted({length for length, _ in self._by_head}, reverse=True)

    def find(self, root: Path, file_name: str, found: os.stat_result) -> Iterator[tuple[str, Identity]]:
        """Yield the slices that a file below a directory may be, longest first; none if it cannot be opened."""
        try:
            with open_below(root, file_name) as file:
                head = os.pread(file.fileno(), HEAD_BYTES, 0)
                for length in self._lengths:
                    if length > len(head):
                        continue
                    for name, identity in self._by_head.get((length, _digest(head[:length])), {}).items():
                        if identity.may_be_renamed_to(found) and identity.has_content_of(file.fileno()):
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


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()

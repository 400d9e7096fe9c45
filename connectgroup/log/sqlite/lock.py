"""A lock file next to the log, which names the process that holds it. One process at a time may open the log.

The lock is an operating system lock (``flock``), so it is released when the holder ends, however it ends. The next
process reads the text in the file: the id of the last holder, its state when it ended, and its mark: the coordinator
epoch and the offset of the last record that it has acknowledged. The file is never removed: otherwise a second process
could lock a new file of that name while the first process still holds the old file.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import NamedTuple

from ...errors import LogError
from ...protocol.units import printable


class Mark(NamedTuple):
    """How far a log goes at least.

    Attributes:
        epoch: the coordinator epoch of the last holder.
        offset: of the last record that it has acknowledged.
    """

    epoch: int = 0
    offset: int = 0


class LockFile:
    """A lock file.

    Attributes:
        left_by: the last text that the previous holder wrote, without its mark.
        mark: the last mark that was written.
        last_alive_ms: when the file was last written or touched before ``acquire``: its holder was alive then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left_by = self._doing = ""
        self.mark = Mark()
        self.last_alive_ms = 0
        self._descriptor = -1

    def acquire(self, what: Path) -> None:
        """Take the lock, or raise ``LogError`` naming the process that holds it.

        Args:
            what: the guarded file, for the error message.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise LogError(f"{what}: its lock file {self.path} cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = printable(os.pread(descriptor, 64, 0).decode("ascii", "replace").partition(" ")[0])
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise LogError(f"{what}: its lock file {self.path} cannot be locked: {error.strerror}") from error
            raise LogError(f"{what}: in use by process {holder or 'unknown'}; allowed: one process at a time") from None
        self._descriptor = descriptor
        self.last_alive_ms = os.fstat(descriptor).st_mtime_ns // 1_000_000
        words = os.pread(descriptor, 64, 0).decode("ascii", "replace").split()
        self.left_by, numbers = " ".join(words[:2]), words[2:]
        if len(numbers) == 2 and all(each.isascii() and each.isdigit() for each in numbers):
            self.mark = Mark(*map(int, numbers))

    def touch(self) -> None:
        """Show the next holder that this one is alive: a killed process cannot say when it ended.

        Raises:
            OSError: the times of the file cannot be changed.
        """
        os.utime(self._descriptor)

    def note(self, mark: Mark) -> None:
        """Write a mark, after its records are durable; the mark itself is not synced.

        After a power loss, the mark may be an earlier one, never a later one than the log.

        Raises:
            OSError: the file cannot be written.
        """
        self.mark = mark
        os.pwrite(self._descriptor, self._text(), 0)

    def write(self, doing: str) -> None:
        """Write the holder's state; durable on return.

        The next holder compares the state with the files it finds, also after a power loss: the state must reach the
        disk before the changes that are made in this state.

        Raises:
            OSError: the file cannot be written.
        """
        self._doing = doing
        try:
            self._put()
        except OSError:
            # Retry once: otherwise the stale state would make the next ``open`` reject a log that was closed cleanly.
            self._put()

    def _put(self) -> None:
        os.pwrite(self._descriptor, self._text(), 0)
        os.fsync(self._descriptor)

    def _text(self) -> bytes:
        # Fixed length: the text is overwritten in one piece, and a full disk cannot make the write fail.
        return f"{os.getpid()} {self._doing} {self.mark.epoch} {self.mark.offset}".ljust(63).encode() + b"\n"

    def in_place(self) -> bool:
        """Whether the file at the path is still the locked file."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock. A second call has no effect."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

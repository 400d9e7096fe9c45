"""One process at a time: a lock file beside the log, held for the life of the log, that names its holder.

The lock is the operating system's (``flock``), so it is gone the moment its holder is, however it ended. The text
in the file is for the next one to read: which process has it, and what that process was doing when it died.
The file is never removed: a second process could then lock a new file of that name while the first has the old one.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ...errors import LogError
from ...protocol.units import printable


class LockFile:
    """A lock file. ``left_by`` is what the previous holder had last written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left_by = ""
        self._descriptor = -1

    def acquire(self, what: Path) -> None:
        """Take the lock, or raise ``LogError`` naming the process that has it.

        Args:
            what: the file that is guarded, for the error.
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
        self.left_by = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()

    def write(self, doing: str) -> None:
        """Say what the holder is doing; durable on return.

        The next one compares it with the files it finds, also after the power was lost: what it says must not reach
        the disk later than what is done under it.

        Raises:
            OSError: the file cannot be written.
        """
        # Always as long, so that it is written over in one piece and no full disk can be in the way.
        text = f"{os.getpid()} {doing}".ljust(63).encode() + b"\n"
        try:
            self._put(text)
        except OSError:
            # Once more: a log that was closed in good order would be refused for what is left here from before.
            self._put(text)

    def _put(self, text: bytes) -> None:
        os.pwrite(self._descriptor, text, 0)
        os.fsync(self._descriptor)

    def in_place(self) -> bool:
        """Whether the file of that name is still the one that is locked."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except OSError:
            return False

    def release(self) -> None:
        """Let go. A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

"""Finds the files that may be copies of logs which are truncated next (logrotate's ``copytruncate``).

While a log is copied, and until it is truncated, the copy begins with rows that are read from the log as well: nothing
but the truncation shows that both are one. So a new file waits for the settle window if another file begins with all
of it. The log that was truncated meanwhile is found by its slice (``Catalog``), and the copy goes on where that was.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ...dataplane.real_paths import open_below
from .identity import HEAD_BYTES, TAIL_BYTES, stats_of
from .packed import codec_of, decompressed_head

logger = logging.getLogger(__name__)

_WARN_AFTER_S: Final = 60.0


class Copies:
    """The new files of a directory that may be copies, as one task sees them."""

    def __init__(self, root: Path, settle_ms: int, *, has_header: bool, has_read_before: Callable[[], bool]) -> None:
        """Store the arguments.

        Args:
            root: the directory.
            settle_ms: how long a file that may be a copy waits after its last change, in milliseconds; 0: not at all.
            has_header: whether the first line of a file is no row.
            has_read_before: whether the connector had read any file when the task started. If not, the files that are
                there then are not new: they may be alike, and are read at once.
        """
        self._root, self._settle_ms, self._lines = root, settle_ms, 2 if has_header else 1
        self._has_read_before = has_read_before
        self._first: frozenset[str] | None = None
        self._old: frozenset[str] = frozenset()
        self._new: set[str] = set()
        self._listed: Mapping[str, int] = {}
        self._versions: dict[str, tuple[tuple[int, int, int], float]] = {}
        self._missed: set[str] = set()
        self._since_s: dict[str, float] = {}
        self._starts: dict[str, tuple[tuple[int, int, int], bytes]] = {}
        self._by_start: dict[bytes, set[str]] = {}
        self._has_looked = self._has_changed = False

    def note(self, inodes: Mapping[str, int]) -> None:
        """Note the files that are there."""
        if not self._settle_ms:
            return
        if self._first is None:
            self._first = self._old = frozenset(inodes)
        else:
            self._old = frozenset(self._listed)
            self._new = (self._new | (inodes.keys() - self._old)) & inodes.keys()
        self._listed = inodes
        self._missed &= inodes.keys()
        for each in (self._versions, self._since_s):
            for name in each.keys() - inodes.keys():
                del each[name]

    def may_be(self, name: str, found: os.stat_result, *, is_rewritten: bool) -> bool:
        """Whether a file that is not read yet is new, and has changed in the settle window: by its clock and by ours.

        Args:
            name: the file.
            found: its status.
            is_rewritten: whether another file had this name.
        """
        if not self._settle_ms or not (is_rewritten or self._is_new(name) or self._related(name)):
            return False
        version = found.st_ino, found.st_size, found.st_mtime_ns
        known, since_s = self._versions.get(name, (None, 0.0))
        if known != version:
            since_s = time.monotonic()
            self._versions[name] = version, since_s
        # Not the time of the last write: a copy may get that of the log.
        age_ms = (time.time() - found.st_ctime) * 1000
        if known is None and age_ms >= self._settle_ms:
            self._missed.add(name)
        return age_ms < self._settle_ms and (time.monotonic() - since_s) * 1000 < self._settle_ms

    def was_missed(self, name: str) -> bool:
        """Whether ``may_be`` saw a file for the first time after its settle window, as a batch took longer than that: a
        log may have been truncated meanwhile. True once for each file."""
        was_missed = name in self._missed
        self._missed.discard(name)
        return was_missed

    def has_original(self, name: str, found: os.stat_result) -> bool:
        """Whether another file begins with all of a file, or this one has no row yet.

        Args:
            name: the file.
            found: its status.
        """
        codec = codec_of(name)
        try:
            with open_below(self._root, name) as file:
                descriptor = file.fileno()
                head = os.pread(descriptor, HEAD_BYTES, 0)
                tail_at = max(0, found.st_size - TAIL_BYTES)
                tail = os.pread(descriptor, found.st_size - tail_at, tail_at)
                if codec:
                    head = decompressed_head(file, codec, HEAD_BYTES)
        except OSError:
            return False  # The planner reports it.
        start = self._start(head)
        if start is None:
            return True
        self._look()
        for other in [*self._related(name), *sorted(self._by_start.get(start, ()))]:
            if other != name and self._begins_with(other, head, b"" if codec else tail, 0 if codec else tail_at):
                self._warn(name, other)
                return True
        return False

    def has_changed_start(self) -> bool:
        """Whether a file may have been truncated since the last call, or this is the first one."""
        self._look()
        changed, self._has_changed = self._has_changed, False
        return changed

    def _is_new(self, name: str) -> bool:
        if name in self._new:
            return True
        return self._first is not None and name in self._first and self._has_read_before()

    def _related(self, name: str) -> list[str]:
        """Return the files with whose names a name begins, such as app.log of app.log.1."""
        return [name[:end] for end in range(len(name) - 1, 0, -1) if name[:end] in self._listed]

    def _look(self) -> None:
        """Read the starts of the files that have changed; note whether one has another start than before."""
        changed, self._has_looked = self._has_changed or not self._has_looked, True
        names = [name for name in self._old if codec_of(name) is None]
        found = stats_of(self._root, names)
        for name in self._starts.keys() - found.keys():
            self._forget(name)
        for name, status in found.items():
            version = status.st_ino, status.st_size, status.st_mtime_ns
            before = self._starts.get(name)
            if before is not None and before[0] == version:
                continue
            try:
                with open_below(self._root, name) as file:
                    start = self._start(os.pread(file.fileno(), HEAD_BYTES, 0)) or b""
            except OSError:
                continue
            if before is not None and before[0][0] == status.st_ino and status.st_size < before[0][1]:
                changed = True  # truncated, and it begins as before
            if before is not None and before[1] != start:
                changed = changed or bool(before[1])
                self._forget(name)
            self._starts[name] = version, start
            if start:
                self._by_start.setdefault(start, set()).add(name)
        self._has_changed = changed

    def _forget(self, name: str) -> None:
        _, start = self._starts.pop(name)
        names = self._by_start.get(start, set())
        names.discard(name)
        if not names:
            self._by_start.pop(start, None)

    def _start(self, head: bytes) -> bytes | None:
        """Return the first lines of a file that have a row; None if it has none."""
        end = 0
        for _ in range(self._lines):
            end = head.find(b"\n", end) + 1
            if not end:
                return head if len(head) == HEAD_BYTES else None
        return head[:end]

    def _begins_with(self, other: str, head: bytes, tail: bytes, tail_at: int) -> bool:
        try:
            with open_below(self._root, other) as file:
                descriptor = file.fileno()
                return os.pread(descriptor, len(head), 0) == head and os.pread(descriptor, len(tail), tail_at) == tail
        except OSError:
            return False

    def _warn(self, name: str, other: str) -> None:
        since_s = self._since_s.setdefault(name, time.monotonic())
        if time.monotonic() - since_s >= _WARN_AFTER_S:
            self._since_s[name] = float("inf")
            logger.warning(
                "%s: grows, and %s begins with all of it; it is read when it has not changed for source.settle.ms"
                " (%d ms), or when it differs",
                self._root / name,
                self._root / other,
                self._settle_ms,
            )

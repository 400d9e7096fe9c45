"""The files of a log: file system, mode, and whether a file is a log of connectgroup."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

APPLICATION_ID: Final = 0x434E4752
"""'CNGR' in the file's header: distinguishes a connectgroup log from other databases."""


def file_system(folder: Path) -> str:
    """Return the type of a directory's file system, as Linux names it; empty if it cannot be determined."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real = folder.resolve()
    best = ("", "")
    for line in mounts:
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        # A later mount on the same mount point hides the earlier ones.
        if real.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def make_private(path: Path) -> None:
    """Create the file with mode 0600 unless it exists.

    SQLite would create it readable by all users. SQLite gives its WAL and shared-memory files the mode of the database.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def is_connectgroup_log(path: Path) -> bool:
    """Whether the file itself, without its WAL, has connectgroup's application id."""
    try:
        with path.open("rb") as file:
            return file.read(72)[68:] == APPLICATION_ID.to_bytes(4, "big")
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

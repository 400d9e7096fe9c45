"""The possible contents of a disk after a power loss: what was synced, and any part of what was written since.

``VolatileDisk`` records each call on the files of a folder, in order. Each sector of 512 bytes of an unsynced write may
have arrived or not; if none has, the file may still be longer, with zeros there. Names appear and disappear in the
order in which they were created and removed, up to any point, and reliably once the folder was synced, as SQLite does
when it first syncs a write-ahead log or a rollback journal that it has created.

Source: sqlite.org, "Atomic Commit In SQLite", section 2, hardware assumptions; Pillai et al., "All File Systems Are
Not Created Equal" (OSDI 2014). A failed sync: Rebello et al., "Can Applications Recover from fsync Failures?" (2020).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Literal

from .faulty_vfs import Call

SECTOR: Final = 512
Image = dict[str, bytes]
"""The files of the folder, by name."""

Arrived = Literal["nothing", "everything"] | Random


@dataclass(slots=True, eq=False)
class _File:
    """The bytes on the disk, and the operations since: bytes at an offset, or a truncation (``None``)."""

    names_folder: bool
    safe: bytearray = field(default_factory=bytearray)
    since: list[tuple[int, bytes | None]] = field(default_factory=list)

    def sync(self) -> None:
        self.safe = bytearray(self.image("everything"))
        self.since.clear()

    def lose(self, generator: Random) -> None:
        """A failed sync: writes that did not arrive stay lost, even after later syncs, until they are written again."""
        self.safe = bytearray(self.image(generator))
        self.since.clear()

    def image(self, arrived: Arrived) -> bytes:
        data = bytearray(self.safe)
        for at, written in self.since:
            for start, part in _pieces(at, written, arrived):
                if part is None:
                    del data[start:]
                    continue
                data.extend(bytes(max(0, start + len(part) - len(data))))
                data[start : start + len(part)] = part
        return bytes(data)


def _pieces(at: int, written: bytes | None, arrived: Arrived) -> Iterator[tuple[int, bytes | None]]:
    """The part of one write or truncation that arrived."""
    if arrived == "nothing":
        return
    chance = 0.0 if arrived == "everything" else arrived.random()
    if chance < 0.4:
        yield at, written
    elif chance < 0.7 and written is not None and isinstance(arrived, Random):
        yield at + len(written), b""  # the file system records the length of the file separately
        for start in range(at - at % SECTOR, at + len(written), SECTOR):
            if arrived.random() < 0.5:
                first = max(start, at)
                yield first, written[first - at : start + SECTOR - at]


class VolatileDisk:
    """The files of one folder, between their processes and the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._names: dict[str, _File] = {}
        self._safe_names: dict[str, _File] = {}
        self._since: list[tuple[str, _File | None]] = []

    def take(self, call: Call, *, failed_sync: Random | None = None) -> bool:
        """Record a call; return whether it can make a difference."""
        if call.file == self._folder:
            assert call.what in ("open", "sync"), call
            if call.what == "sync":
                self._sync_names()
            return call.what == "sync"
        name = os.path.relpath(call.file, self._folder)
        file = self._names.get(name)
        match call.what:
            case "open" if file is None:
                file = self._names[name] = _File(names_folder=name.endswith(("-wal", "-journal")))
                self._since.append((name, file))
            case "delete" if file is not None:
                del self._names[name]
                self._since.append((name, None))
                if call.flag:
                    self._sync_names()
            case "write":
                assert file is not None
                file.since.append((call.at, call.data))
            case "truncate":
                assert file is not None
                file.since.append((call.at, None))
            case "sync":
                assert file is not None
                if failed_sync is not None:
                    file.lose(failed_sync)
                    return True
                file.sync()
                if file.names_folder:
                    self._sync_names()
                    file.names_folder = False
            case _:
                return False
        return True

    def _sync_names(self) -> None:
        self._safe_names = dict(self._names)
        self._since.clear()

    def image(self, arrived: Arrived) -> Image:
        """The contents of the folder after a power loss."""
        names = dict(self._safe_names)
        done = {"nothing": 0, "everything": len(self._since)}
        upto = arrived.randint(0, len(self._since)) if isinstance(arrived, Random) else done[arrived]
        for name, file in self._since[:upto]:
            if file is None:
                names.pop(name, None)
            else:
                names[name] = file
        return {name: file.image(arrived) for name, file in sorted(names.items())}

"""A layer below SQLite's file functions that can fail a call, execute half of it, or kill the process.

SQLite accesses files through a table of functions, its "VFS". While a ``FaultyVfs`` is entered, a copy of the default
VFS is the default for all new connections of this process, and each of its functions on files consults ``decide``. So
do the three functions of ``os`` by which the log itself accesses files. Nothing is compiled: the copy is made with
ctypes, in the same library that Python's ``sqlite3`` module uses. Not covered: the shared memory beside the write-ahead
log, which SQLite recreates after a crash.

Source: sqlite.org, "The SQLite OS Interface or VFS"; ``sqlite3_vfs`` and ``sqlite3_io_methods`` in its C reference.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import os
import signal
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pytest

SQLITE_OK: Final = 0
SQLITE_FULL: Final = 13
FAILS_WITH: Final[dict[str, int]] = {  # the error code of SQLite's own file layer when the call fails
    "open": 14,  # SQLITE_CANTOPEN
    "read": 266,  # SQLITE_IOERR_... from here on
    "write": 778,
    "sync": 1034,
    "truncate": 1546,
    "size": 1802,
    "delete": 2570,
    "access": 3338,
    "lock": 3850,
    "unlock": 2058,
    "map": 5386,
    "lock_map": 5130,
}
"""All intercepted calls, by the names of the tables below; the last two are those of the shared memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that is about to be executed.

    Attributes:
        number: from 1, counting all calls.
        what: a key of ``FAILS_WITH``.
        file: full path; empty for a temporary file, which has no name.
        at: offset of the read, write or truncation.
        data: the bytes to write.
        flag: of a ``delete``: also sync the folder.
    """

    number: int
    what: str
    file: str
    at: int = 0
    data: bytes = b""
    flag: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFault:
    """The effect on a call: it is not executed and ``code`` is returned, or the process is killed.

    ``half``: the first half of a write is executed all the same; of any other call but ``open``, all of it.
    """

    code: int = SQLITE_OK
    kill: bool = False
    half: bool = False


class FaultyVfs:
    """While entered, ``decide`` is consulted before each call; ``None`` lets the call be executed.

    Covered are the calls of connections opened meanwhile, and those of Python on files in ``folder``.
    """

    def __init__(self, folder: Path, decide: Callable[[Call], DiskFault | None]) -> None:
        self.calls = 0
        self._python = _Python(str(folder), self._ask)
        self._decide = decide
        self._library = _library()
        self._files: dict[int, str] = {}
        self._tables: dict[int, _Methods] = {}
        self._kept: list[Any] = []  # ctypes does not keep the functions that C points to
        self._real = self._library.sqlite3_vfs_find(None)
        self._vfs = _Vfs()
        ctypes.memmove(byref(self._vfs), self._real, ctypes.sizeof(_Vfs))
        self._vfs.name = b"faulty"
        self._vfs.next = None
        self._vfs.open = self._pointer(_OPEN(self._open))
        self._wrap(self._vfs, "delete", lambda _, name, flag: {"file": _path(name), "flag": bool(flag)})
        self._wrap(self._vfs, "access", lambda _, name, *__: {"file": _path(name)})

    def __enter__(self) -> FaultyVfs:
        assert self._library.sqlite3_vfs_register(byref(self._vfs), 1) == SQLITE_OK
        self._python.replace()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Connections that are still open continue to call ``decide``; this object must be kept for them."""
        self._python.restore()
        self._library.sqlite3_vfs_unregister(byref(self._vfs))
        self._library.sqlite3_vfs_register(self._real, 1)

    def _open(self, vfs: int, name: int | None, file: int, flags: int, flags_out: int) -> int:
        path = _path(name)
        methods = ctypes.cast(file, POINTER(c_void_p))
        methods[0] = None  # a file without methods is not open
        code = self._ask("open", {"file": path}, lambda: None)
        if code == SQLITE_OK:
            code = _OPEN(self._real.contents.open)(vfs, name, file, flags, flags_out)
        if methods[0]:
            self._files[file] = path
            methods[0] = ctypes.addressof(self._table_instead_of(methods[0]))
        return code

    def _table_instead_of(self, address: int) -> _Methods:
        """The functions of an open file, wrapped."""
        if address not in self._tables:
            table = self._tables[address] = _Methods()
            ctypes.memmove(byref(table), address, _Methods.fetch.offset)
            table.version = min(table.version, 2)  # version 3 would read from mapped memory, unseen
            of = self._files
            self._wrap(table, "read", lambda file, _, __, at: {"file": of[file], "at": at})
            self._wrap(
                table,
                "write",
                lambda file, data, size, at: {"file": of[file], "at": at, "data": ctypes.string_at(data, size)},
            )
            self._wrap(table, "truncate", lambda file, at: {"file": of[file], "at": at})
            for name in ("sync", "size", "lock", "unlock", "map", "lock_map"):
                self._wrap(table, name, lambda file, *_: {"file": of[file]})
        return self._tables[address]

    def _wrap(self, table: Any, what: str, describe: Callable[..., dict[str, Any]]) -> None:
        """Wrap a function of the table: consult ``decide``, then call it."""
        kind = _KINDS[what]
        address = getattr(table, what)
        if not address:
            return
        real = kind(address)

        def call(*arguments: Any) -> int:
            def half() -> None:
                if what == "write":
                    file, data, size, at = arguments
                    real(file, data, size // 2, at)
                else:
                    real(*arguments)

            code = self._ask(what, describe(*arguments), half)
            return real(*arguments) if code == SQLITE_OK else code

        setattr(table, what, self._pointer(kind(call)))

    def _ask(self, what: str, described: dict[str, Any], half: Callable[[], object]) -> int:
        self.calls += 1
        fault = self._decide(Call(number=self.calls, what=what, **described))
        if fault is None:
            return SQLITE_OK
        if fault.half:
            half()
        if fault.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return fault.code

    def _pointer(self, function: Any) -> int | None:
        self._kept.append(function)
        return ctypes.cast(function, c_void_p).value


class _Python:
    """The same for ``os.open``, ``os.pwrite`` and ``os.fsync``; a sync of a folder makes its files' names durable."""

    def __init__(self, folder: str, ask: Callable[[str, dict[str, Any], Callable[[], object]], int]) -> None:
        self._folder = folder
        self._ask = ask
        self._files: dict[int, str] = {}
        self._real = os.open, os.pwrite, os.fsync

    def replace(self) -> None:
        setattr(os, "open", self._open)  # noqa: B010 - mypy does not expect these functions to be replaced
        setattr(os, "pwrite", self._pwrite)  # noqa: B010
        setattr(os, "fsync", self._fsync)  # noqa: B010

    def restore(self) -> None:
        for function in self._real:
            setattr(os, function.__name__, function)

    def _open(self, path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        file = os.fsdecode(path)
        ours = file.startswith(self._folder)
        if ours:
            self._or_error("open", file)
        descriptor = self._real[0](path, flags, *arguments, **named)
        self._files.pop(descriptor, None)
        if ours:
            self._files[descriptor] = file
        return descriptor

    def _pwrite(self, descriptor: int, data: bytes, at: int) -> int:
        if descriptor in self._files:
            half = data[: len(data) // 2]
            file = self._files[descriptor]
            self._or_error("write", file, lambda: self._real[1](descriptor, half, at), at=at, data=data)
        return self._real[1](descriptor, data, at)

    def _fsync(self, descriptor: int) -> None:
        if descriptor in self._files:
            self._or_error("sync", self._files[descriptor], lambda: self._real[2](descriptor))
        self._real[2](descriptor)

    def _or_error(self, what: str, file: str, half: Callable[[], object] = lambda: None, **described: Any) -> None:
        code = self._ask(what, {"file": file, **described}, half)
        if code != SQLITE_OK:
            number = errno.ENOSPC if code == SQLITE_FULL else errno.EIO
            raise OSError(number, os.strerror(number))


def _library() -> ctypes.CDLL:
    """The SQLite library of Python's module, found through that module, whatever its name."""
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    try:
        library.sqlite3_vfs_find.restype = POINTER(_Vfs)
    except AttributeError:
        pytest.skip("this Python does not export the functions of its SQLite")
    return library


def _path(name: int | None) -> str:
    return os.fsdecode(ctypes.string_at(name)) if name else ""


# A name stays a pointer: SQLite keeps it, and reads further data behind the text.
_OPEN: Final = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_TRANSFER: Final = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_FLAG: Final = CFUNCTYPE(c_int, c_void_p, c_int)
_KINDS: Final = {
    "delete": CFUNCTYPE(c_int, c_void_p, c_void_p, c_int),
    "access": CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_void_p),
    "read": _TRANSFER,
    "write": _TRANSFER,
    "truncate": CFUNCTYPE(c_int, c_void_p, c_int64),
    "sync": _FLAG,
    "size": CFUNCTYPE(c_int, c_void_p, c_void_p),
    "lock": _FLAG,
    "unlock": _FLAG,
    "map": CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int, c_void_p),
    "lock_map": CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int),
}


class _Vfs(ctypes.Structure):
    """``sqlite3_vfs`` as of version 3, which SQLite has had since 2011."""

    _fields_ = (
        *((name, c_int) for name in ("version", "size_of_file", "longest_path")),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        *((name, c_void_p) for name in ("open", "delete", "access", "full_path")),
        *((f"library_{name}", c_void_p) for name in ("open", "error", "symbol", "close")),
        *((name, c_void_p) for name in ("randomness", "sleep", "time", "last_error", "time_int64")),
        *((f"system_call_{name}", c_void_p) for name in ("set", "get", "next")),
    )


class _Methods(ctypes.Structure):
    """``sqlite3_io_methods`` as of version 3."""

    _fields_ = (
        ("version", c_int),
        *((name, c_void_p) for name in ("close", "read", "write", "truncate", "sync", "size", "lock", "unlock")),
        *((name, c_void_p) for name in ("is_locked", "control", "sector_size", "characteristics")),
        *((name, c_void_p) for name in ("map", "lock_map", "barrier", "unmap", "fetch", "unfetch")),
    )

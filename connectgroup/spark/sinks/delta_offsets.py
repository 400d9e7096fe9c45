"""The positions and fences of the connectors that write to a Delta table, changed by the table's own commits.

Delta has one place for what a writer must remember: an application transaction, an id and one number, which a commit
sets atomically with its rows, which checkpoints keep, and which makes two commits that set the same id a conflict
(the protocol's section "Transaction Identifiers"). A position with metadata, and the fences, do not fit into a number.
So the state of a connector is a small file of its own, an ``OffsetStore``, and the number says which file it is:

    _connectgroup/CONNECTOR/VERSION.sqlite    written and synced first, never changed afterwards
    txn {appId: connectgroup/CONNECTOR, version: VERSION}    in the commit of the batch's rows

A change copies the current file, applies the rules of ``fences`` to the copy, and commits rows and number. The copy is
current if and only if the rows are in the table. A writer that lost a race (another task of the connector, a successor,
a zombie) reads the new state and applies the rules again: it is fenced, it has been committed, or it goes on.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, unquote

from ...dataplane.errors import SinkError
from ...dataplane.offset_store import FilePositions, OffsetStore, require_writable_directory
from ...dataplane.ownership import Owner, Range
from ...dataplane.real_paths import create_file, make_directory, open_below, open_to_append, opened_directory
from ...errors import ConfigError
from .new_files import sync, sync_directory

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_STATES: Final = "_connectgroup"
"""The directory of the states. Delta's readers and VACUUM omit directories whose names start with _."""
_RANDOM_BITS: Final = 20
"""Lower bits of a version: two writers that race for the same next number have different files."""
_KEPT: Final = 8
"""Earlier states that are kept: a reader that has just read an earlier number finds its file."""
_MAX_PAUSE_S: Final = 0.1
_MAX_TURN_S: Final = 2.0
"""Seconds to wait for another writer's turn: longer than a commit takes; it may be that of a suspended process."""

_Result = TypeVar("_Result")
_Write = Callable[["DeltaTable", "CommitProperties"], None]


class DeltaOffsets:
    """Implements ``dataplane.sink.PositionStore`` in the directory of a Delta table; one thread uses it at a time.

    Attributes:
        path: the table's directory.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float) -> None:
        """Store the arguments.

        Args:
            path: the table's directory.
            busy_timeout_s: how long a change is tried again while other writers commit, in seconds.

        Raises:
            ConfigError: the package deltalake is not installed.
        """
        require_deltalake()
        self.path, self._busy_timeout_s = path, busy_timeout_s
        self._opened: DeltaTable | None = None

    def exists(self) -> bool:
        """Whether the directory has a Delta table."""
        from deltalake import DeltaTable

        return self.path.is_dir() and DeltaTable.is_deltatable(str(self.path))

    def table(self) -> DeltaTable:
        """Return the table in its latest version.

        Raises:
            SinkError: there is none, or it cannot be read.
        """
        from deltalake import DeltaTable

        self._check_directory()
        try:
            if self._opened is None:
                self._opened = DeltaTable(str(self.path))
            else:
                self._opened.update_incremental()
        except Exception as error:
            self._opened = None
            raise SinkError(f"{self.path}: {reason(error)}; allowed: a Delta table") from error
        return self._opened

    def _check_directory(self) -> None:
        """Check that the table is not reached through a link: delta-rs opens its files by their names.

        Raises:
            SinkError: it is.
        """
        try:
            with opened_directory(self.path / "_delta_log"):
                pass
        except FileNotFoundError:
            pass  # There is no table, which delta-rs reports.
        except OSError as error:
            raise SinkError(f"{self.path}: cannot be used ({error.strerror}); allowed: a directory, no link") from error

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        """See ``fences.claim_task``. The fences are raised by a commit without rows."""
        return self._change(owner.connector, lambda store: store.claim(owner, is_mine), _write_nothing)

    def commit(self, owner: Owner, ranges: Sequence[Range], write: _Write | None) -> bool:
        """Write one batch and advance its slices, or change nothing.

        Args:
            owner: the task that writes.
            ranges: the ranges that were read.
            write: writes the rows to this version of the table, in one commit with these properties; may be called
                again after a conflict. None: there are no rows.

        Returns:
            True if the batch was written now; False if it was already committed.

        Raises:
            Fenced: a task with a higher owner epoch has claimed the slice, the task or the layout.
            OffsetConflict: a slice's position is not the start of its range.
            SinkError: the table cannot be written.
        """
        return self._change(owner.connector, lambda store: store.commit(owner, ranges), write or _write_nothing)

    def positions(self, connector: str) -> dict[str, int]:
        """Return the positions of all slices; none if there is no table yet."""
        if not self.exists():
            return {}
        while True:
            version = self._version(connector)
            if version is None:
                return {}
            path = self._state(connector, version)
            if path.exists():
                return FilePositions(path, is_real=True).positions(connector)
            # Either the state is lost, or commits have replaced it many times since its number was read.
            if self._version(connector) == version:
                raise self._lost(path)

    def alter(self, connector: str, fencing_token: int, positions: Mapping[str, int | None] | None) -> None:
        """Change the positions of a connector that runs no task. See ``fences.alter_positions``."""
        if not self.exists():
            raise SinkError(
                f"{self.path}: is no Delta table yet, so it has no positions; allowed: a table, which the first start"
                " of the connector creates"
            )
        self._change(connector, lambda store: store.alter(connector, fencing_token, positions), _write_nothing)

    def check_access(self) -> None:
        """Check that the table can be read and its directory written, or created; change nothing.

        Raises:
            SinkError: it cannot.
        """
        if not self.path.exists():
            require_writable_directory(self.path.parent)
            return
        require_writable_directory(self.path)
        if self.exists():
            self.table()

    def close(self) -> None:
        """Forget the table. Idempotent."""
        self._opened = None

    def _change(self, connector: str, change: Callable[[OffsetStore], _Result], write: _Write) -> _Result:
        """Change a connector's state and commit it with the rows; again, from the new state, after each conflict."""
        give_up = time.monotonic() + self._busy_timeout_s
        while True:
            with self._turn(connector):
                version = self._version(connector)
                try:
                    return self._attempt(connector, version, change, write)
                except SinkError as error:
                    # No conflict: the state may have been replaced, and deleted, while it was read.
                    if not isinstance(error, _Conflict) and self._version(connector) == version:
                        raise
                    if time.monotonic() > give_up:
                        raise SinkError(
                            f"{self.path}: other writers committed first for more than {self._busy_timeout_s:g} s"
                            f" ({reason(error)}); allowed: fewer writers, or a longer sink.busy.timeout.ms"
                        ) from error
            # Of writers that started together, each conflict would let only one commit.
            time.sleep(random.uniform(0, _MAX_PAUSE_S))

    @contextmanager
    def _turn(self, connector: str) -> Iterator[None]:
        """Let the writers of a connector on this machine commit one after the other.

        A commit that conflicts has written files in vain, which stay until VACUUM. This lock is no fence: a writer that
        has waited for long goes on without it.
        """
        path = self._state(connector, 0).with_name("lock")
        try:
            make_directory(path.parent.parent)
            make_directory(path.parent)
            file = os.fdopen(open_to_append(path), "ab")
        except OSError as error:
            raise _unwritable(path.parent, error) from error
        with file:
            give_up = time.monotonic() + _MAX_TURN_S
            while time.monotonic() < give_up:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.005)
                except OSError:  # A file system without locks.
                    break
            yield

    def _attempt(
        self, connector: str, version: int | None, change: Callable[[OffsetStore], _Result], write: _Write
    ) -> _Result:
        from deltalake import CommitProperties, Transaction

        table = self._opened
        assert table is not None, "_version has opened it"
        new, path = self._copy(connector, version)
        try:
            with closing(OffsetStore(path, is_real=True)) as store:
                result = change(store)
        except Exception:
            _delete(path)
            raise
        if result is False:  # The batch was committed before.
            _delete(path)
            return result
        if Path(f"{path}-wal").exists():
            raise SinkError(f"{path}: SQLite did not complete the file; allowed: a disk in working order")
        sync_directory(path.parent)
        transaction = Transaction(_app_id(connector), new)
        before = table.version()
        self._check_directory()
        try:
            write(table, CommitProperties(app_transactions=[transaction]))
        except Exception as error:
            # The commit may have succeeded, and what follows it failed (a checkpoint).
            if self._version(connector) != new:
                _delete(path)
                raise _storage_error(self.path, error) from error
        self._sync_commits(since=before)
        self._delete_replaced(connector, new)
        return result

    def _copy(self, connector: str, version: int | None) -> tuple[int, Path]:
        """Copy the current state to the file of a new version; without one the file is empty."""
        directory = self._state(connector, 0).parent
        try:
            if version is None:
                if any(_number(found) > 1 for found in _versions(directory)):
                    raise SinkError(
                        f"{directory}: has positions, and the table has no transaction {_app_id(connector)};"
                        " allowed: a table without delta.setTransactionRetentionDuration, or a new, empty directory"
                    )
                data = b""
            else:
                current = self._state(connector, version)
                with open_below(current.parent, current.name) as opened:
                    data = opened.read()
            while True:
                new = _number(version or 0) + 1 << _RANDOM_BITS | random.getrandbits(_RANDOM_BITS)
                path = self._state(connector, new)
                with suppress(FileExistsError), create_file(path) as file:
                    file.write(data)
                    return new, path
        except FileNotFoundError as error:
            raise self._lost(directory / Path(error.filename).name) from error
        except OSError as error:
            raise _unwritable(directory, error) from error

    def _sync_commits(self, *, since: int) -> None:
        """Make the commits after a version of the table durable: the files of their rows, then the commits. delta-rs
        leaves that to the operating system."""
        log = self.path / "_delta_log"
        commits = [log / f"{version:020d}.json" for version in range(since + 1, self.table().version() + 1)]
        files = []
        for commit in commits:
            with suppress(FileNotFoundError):  # Cleaned up by another writer after a checkpoint.
                # Not splitlines: a value in the statistics of a file may have U+2028.
                actions = map(json.loads, filter(None, commit.read_bytes().split(b"\n")))
                files += [self.path / unquote(action["add"]["path"]) for action in actions if "add" in action]
        for path in (*files, *{file.parent for file in files}, *commits, log):
            with suppress(FileNotFoundError):
                sync(path)

    def _delete_replaced(self, connector: str, version: int) -> None:
        """Delete states long replaced, and those of writers that lost: a commit conflicts with every later one of the
        same connector, so a file whose number has been passed can no longer become current."""
        directory = self._state(connector, 0).parent
        for found in _versions(directory):
            if _number(found) < _number(version) - _KEPT:
                _delete(self._state(connector, found))

    def _version(self, connector: str) -> int | None:
        """Return the version of a connector's state in the latest version of the table."""
        return self.table().transaction_version(_app_id(connector))

    def _state(self, connector: str, version: int) -> Path:
        # A dot alone would be the directory itself.
        name = quote(connector, safe="").replace(".", "%2E")
        return self.path / _STATES / name / f"{version}.sqlite"

    def _lost(self, path: Path) -> SinkError:
        return SinkError(f"{path}: does not exist; allowed: the table's directory with the {_STATES} of its backup")


def _unwritable(directory: Path, error: OSError) -> SinkError:
    return SinkError(f"{directory}: cannot be written ({error.strerror}); allowed: a directory with free space")


class _Conflict(SinkError):
    """Another commit came first; nothing of this one was written."""


def require_deltalake() -> None:
    """Check that the package is installed.

    Raises:
        ConfigError: it is not.
    """
    try:
        import deltalake  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            "delta", f"no package {error.name}", "pip install 'connectgroup[delta]' on each worker"
        ) from error


def reason(error: Exception) -> str:
    """Return what delta-rs says, on one line."""
    return " ".join(str(error).split())


def _storage_error(path: Path, error: Exception) -> SinkError:
    from deltalake.exceptions import CommitFailedError

    if isinstance(error, SinkError):
        return error
    kind = _Conflict if isinstance(error, CommitFailedError) else SinkError
    return kind(f"{path}: {reason(error)}; allowed: rows that fit the Delta table, on a disk in working order")


def _write_nothing(table: DeltaTable, properties: CommitProperties) -> None:
    table.create_write_transaction([], "append", table.schema(), commit_properties=properties)


def _app_id(connector: str) -> str:
    return f"connectgroup/{connector}"


def _number(version: int) -> int:
    return version >> _RANDOM_BITS


def _versions(directory: Path) -> Iterator[int]:
    return (int(path.stem) for path in directory.glob("*.sqlite") if path.stem.isdecimal())


def _delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with suppress(OSError):
            os.unlink(f"{path}{suffix}")

"""Compaction of small files in a sink of files: consecutive files of a task become one, by one more manifest change.

The task compacts after a commit, in the same thread. It writes the new file, then replaces the rows of the old files in
the manifest by one row, in a transaction that checks its fencing token. So each row is in exactly one committed file at
any time, and a zombie changes nothing. A crash in between leaves a file that the manifest does not list, as after an
unfinished batch.

Readers take the list of committed files first and open the files later. So an old file is deleted only
``retention_ms`` after it was replaced, by a later compaction or claim: a reader has this time from the list to its last
``open``, or takes the list again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...dataplane.fences import Transaction
from ...dataplane.offset_store import OffsetStore
from ...dataplane.ownership import Owner
from ...dataplane.real_paths import remove_file

REPLACED_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS connectgroup_replaced (file TEXT PRIMARY KEY, connector TEXT NOT NULL,"
    " replaced_ms INTEGER NOT NULL)"
)
"""Files that compaction has replaced and that are not deleted yet; the time is that of the worker's clock."""
_MOST_FILES: Final = 1000
"""Upper bound on the number of files that become one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When files are compacted.

    Attributes:
        files: number of small files that become one; 0: never.
        max_bytes: upper bound on the bytes of the files that become one.
        retention_ms: milliseconds for which a replaced file is kept.
    """

    files: int = 0
    max_bytes: int = 128 << 20
    retention_ms: int = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRun:
    """Consecutive files of one task in the manifest.

    Attributes:
        files: their names, in the order in which they were committed.
        row: the row of the manifest of the last one.
        rows: the number of their rows.
        ranges: start and end of each slice.
    """

    files: tuple[str, ...]
    row: int
    rows: int
    ranges: dict[str, list[int]]


def run_to_compact(
    store: OffsetStore, owner: Owner, rules: Compaction, head: Callable[[str], bytes | None]
) -> FileRun | None:
    """Return the latest files of a task if they are to become one; None if they are not.

    A file larger than its share of ``max_bytes`` is written again only together with as many bytes of later files, so
    each row is written a number of times that grows with the logarithm of the file's size. Only files of the current
    layout count: in an earlier one, another task may have written later rows of the same slice.

    Args:
        head: returns what files must have in common to become one, given a name; None: the file stays as it is.
    """
    if rules.files == 0:
        return None
    # LIMIT: to read a whole manifest after each batch would be slow.
    found = store.execute(
        "SELECT rowid, file, rows, bytes, ranges FROM connectgroup_manifest WHERE connector = ? AND task = ?"
        " AND epoch > ? ORDER BY rowid DESC LIMIT ?",
        *(owner.connector, owner.task, store.superseded(owner), max(_MOST_FILES, rules.files)),
    )
    count = total = 0
    for *_, size, _ in found:
        if size > max(total, rules.max_bytes // rules.files) or total + size > rules.max_bytes:
            break
        count, total = count + 1, total + size
    if count < rules.files:
        return None
    common = head(found[0][1])
    ranges: dict[str, list[int]] = {}
    taken: list[tuple[int, str, int]] = []
    for row, name, rows, _, text in found[:count]:
        before: dict[str, list[int]] = json.loads(text)
        # A batch without rows has no file, so a range may be missing in between. After offsets were altered to earlier
        # ones, the ranges of a slice do not follow each other.
        follows = all(part[1] <= ranges[slice_][0] for slice_, part in before.items() if slice_ in ranges)
        if common is None or not follows or head(name) != common:
            break
        for slice_, (start, end) in before.items():
            ranges[slice_] = [start, ranges[slice_][1] if slice_ in ranges else end]
        taken.append((row, name, rows))
    # With fewer, each further batch would write the same rows again.
    if len(taken) < max(2, rules.files):
        return None
    names = tuple(name for _, name, _ in reversed(taken))
    return FileRun(files=names, row=taken[0][0], rows=sum(rows for _, _, rows in taken), ranges=ranges)


def replace(store: OffsetStore, owner: Owner, run: FileRun, name: str, size: int) -> None:
    """Commit a compacted file in place of the files of a run.

    Raises:
        Fenced: a task with a higher owner epoch has claimed the task or the layout.
        SinkError: the manifest cannot be written. The change may have become durable if its commit failed.
    """
    now_ms = int(time.time() * 1000)

    def write(transaction: Transaction) -> None:
        transaction.execute_many("DELETE FROM connectgroup_manifest WHERE file = ?", [(file,) for file in run.files])
        transaction.execute_many(
            "INSERT OR REPLACE INTO connectgroup_replaced VALUES (?, ?, ?)",
            [(file, owner.connector, now_ms) for file in run.files],
        )
        # The row of the last file keeps the order of commits.
        transaction.execute(
            "INSERT INTO connectgroup_manifest (rowid, file, rows, bytes, connector, task, epoch, ranges)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *(run.row, name, run.rows, size, owner.connector, owner.task, owner.fencing_token, json.dumps(run.ranges)),
        )

    store.commit(owner, [], write)


def delete_replaced(store: OffsetStore, directory: Path, owner: Owner, retention_ms: int) -> None:
    """Delete the files of a connector that were replaced longer ago than ``retention_ms``."""
    limit_ms = int(time.time() * 1000) - retention_ms
    found = store.execute(
        "SELECT file FROM connectgroup_replaced WHERE connector = ? AND replaced_ms <= ?", owner.connector, limit_ms
    )
    for (name,) in found:
        if Path(name).name == name:  # others can write the manifest: a path would lead out of the directory
            remove_file(directory / name)
        store.execute("DELETE FROM connectgroup_replaced WHERE file = ?", name)

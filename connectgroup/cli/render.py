"""Output of the command line: JSON, and tables of text."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from ..protocol.messages.progress import UNKNOWN, Progress
from ..protocol.units import counted, escaped, printable


def print_json(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2))


def print_line(line: str, *, is_error: bool = False, flush: bool = False) -> None:
    """Print a line, on standard error if it is one.

    Others choose names and texts in it: none of them begins a line of its own, or commands the terminal.
    """
    print(escaped(line), file=sys.stderr if is_error else sys.stdout, flush=flush)


def rate_text(numbers: Progress) -> str:
    """Format the records that a task makes durable per second."""
    return f"{numbers.records_per_minute / 60:,.1f}"


def lag_text(numbers: Progress) -> str:
    """Format what a task has not read yet: ``1,200 records``, ``3 files, 2.5 MB``; empty if it is not known.

    Files that are not read for a reason are added: ``1 unfinished``, ``1 unreadable``,
    ``1 skipped``.
    """
    parts = [
        f"{count:,} {noun if count == 1 else noun + 's'}"
        for noun, count in (("record", numbers.records_lag), ("file", numbers.files_left))
        if count != UNKNOWN
    ]
    if numbers.bytes_lag != UNKNOWN:
        parts.append(bytes_text(numbers.bytes_lag))
    # The hint for an operator who wonders why the lag stays: source.final.newline.
    if numbers.unfinished_files > 0:
        parts.append(f"{numbers.unfinished_files:,} unfinished")
    if numbers.unreadable_files > 0:
        parts.append(f"{numbers.unreadable_files:,} unreadable")
    if numbers.skipped_files > 0:
        parts.append(f"{numbers.skipped_files:,} skipped")
    return ", ".join(parts)


def dead_letters_text(numbers: Progress) -> str:
    """Format the dead letters of a task: ``3 dead letters, the last: a.csv, line 7: ...``; empty if there are none."""
    if not numbers.dead_letters:
        return ""
    return f"{counted(numbers.dead_letters, 'dead letter')}, the last: {numbers.last_dead_letter}"


def bytes_text(count: float) -> str:
    """Format a number of bytes in decimal units: ``2.5 MB``."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:,.1f} TB"


def time_text(at_ms: int) -> str:
    """Format a time in milliseconds since 1970, in UTC to the second; empty for 0."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if at_ms else ""


def ago_text(at_ms: int, now_ms: int | None = None) -> str:
    """Format a time in milliseconds since 1970 as the time since: ``3 s ago``, ``5 min ago``; empty for 0.

    Args:
        now_ms: the clock of this machine by default; a time after it is ``now``.
    """
    if not at_ms:
        return ""
    age_s = ((time.time_ns() // 1_000_000 if now_ms is None else now_ms) - at_ms) // 1000
    return f"{age_text(age_s)} ago" if age_s > 0 else "now"


def age_text(seconds: float) -> str:
    """Format a duration in its largest unit: ``3 s``, ``5 min``, ``2 h``, ``4 d``."""
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * length or (length == 60 and seconds >= length):
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, limit: int = 60) -> None:
    """Print a table with a line of headings; columns are as wide as their widest cell, at most ``limit`` characters.

    The last column is not aligned, and is at most 500 characters wide.
    """
    last = len(head) - 1
    texts = [
        [printable(each, limit=limit) for each in head],
        *([printable(cell, limit=500 if column == last else limit) for column, cell in enumerate(row)] for row in rows),
    ]
    widths = [max(len(row[column]) for row in texts) for column in range(len(head))]
    for row in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

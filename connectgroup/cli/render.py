"""Output of the command line: JSON, and tables of text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..protocol.units import printable


def print_json(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2))


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with a line of headings; columns are as wide as their widest cell, at most 60 characters.

    The last column is not aligned, and is at most 500 characters wide.
    """
    last = len(head) - 1
    texts = [
        list(head),
        *([printable(cell, limit=500 if column == last else 60) for column, cell in enumerate(row)] for row in rows),
    ]
    widths = [max(len(row[column]) for row in texts) for column in range(len(head))]
    for row in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

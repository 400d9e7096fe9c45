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
    """Print a table with a line of headings; columns are as wide as their widest cell, at most 60 characters."""
    texts = [list(head), *([printable(cell, limit=60) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(head))]
    for row in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

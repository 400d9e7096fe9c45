"""A source that is a Python iterator: the rows of ``flow.row`` up to a number that a test writes to a file.

A third-party plug-in, found by its entry point (the folder beside this file stands for an installed distribution).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from connectgroup import IteratorSource
from connectgroup.dataplane.columns import from_ddl
from connectgroup.dataplane.settings import PluginSettings

SLICES = 5


class CountedSettings(PluginSettings):
    path: Annotated[str, Field(description="a file with the number of rows, as an absolute path")]


class CountedRows(IteratorSource):
    """Slice *s* has the rows whose number modulo ``SLICES`` is *s*; its position is a count of them."""

    Settings = CountedSettings
    columns = from_ddl("id BIGINT, text STRING")

    def slices(self) -> list[str]:
        return [str(number) for number in range(SLICES)]

    def owns(self, slice_name: str) -> bool:
        return int(slice_name) % self.tasks == self.task

    def rows(self, slice_name: str, position: int) -> Iterator[dict[str, Any]]:
        for number in range(position * SLICES + int(slice_name), int(Path(self.settings.path).read_text()), SLICES):
            yield {"id": number, "text": f"row {number} {zlib.crc32(str(number).encode()):08x}"}

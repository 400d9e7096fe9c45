"""The interface for sink authors: one class, found by the entry point ``connectgroup.sinks``.

A commit checks the fencing token, writes the rows and advances the positions atomically. So a reader never sees half a
batch, a batch is never written twice, and a zombie cannot write. ``offset_store.OffsetStore`` implements this for
sinks whose data are stored in a SQLite database or listed in one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .columns import Columns
from .ownership import Owner, Range
from .settings import PluginSettings

if TYPE_CHECKING:
    import pyarrow as pa


class Sink(ABC):
    """One task's writer to a sink. The task creates and closes it; one thread uses it at a time.

    Attributes:
        Settings: the settings under ``sink.``; each field's description states the allowed values.
    """

    Settings: ClassVar[type[PluginSettings]]

    @classmethod
    @abstractmethod
    def create(cls, settings: Any, columns: Columns) -> Sink:
        """Open the sink for rows of these columns.

        Args:
            settings: an instance of ``Settings``.

        Raises:
            SinkError: the sink cannot be opened, or does not match the columns.
        """

    @abstractmethod
    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        """Fence every earlier owner, then read the positions of the owner's slices.

        Returns:
            Position by slice name.

        Raises:
            Fenced: a higher fencing token has claimed this task or one of its slices.
        """

    @abstractmethod
    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        """Write the rows of ``ranges`` and advance the positions, or change nothing.

        Returns:
            True if the batch was written now, false if it was committed before (a replay).

        Raises:
            Fenced: a higher fencing token has claimed this task or one of its slices.
            OffsetConflict: a range does not start at the position of its slice.
            SinkError: the batch cannot be written.
        """

    @abstractmethod
    def close(self) -> None:
        """Release open files and connections. Idempotent."""

"""What a source author writes against: one class, found by the entry point ``connectgroup.sources``.

A source is cut into *slices*: pieces that are read in order (a file, a topic partition, a key range). The position of
a slice is a number that grows (bytes, a Kafka offset). The name of a slice decides which task reads it, on every worker
alike. Positions are stored by the sink, in the transaction that writes the rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .columns import Columns
from .ownership import Range, ranges_between
from .settings import PluginSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Source(ABC):
    """What one task reads.

    Attributes:
        Settings: the settings under ``source.``; each field's description says what is allowed.
        columns: names and types of the rows.
    """

    Settings: ClassVar[type[PluginSettings]]
    columns: Columns

    @classmethod
    @abstractmethod
    def create(cls, settings: Any, *, task: int, tasks: int) -> Source:
        """Open the source for one task. Called on the worker that runs the task, each time the task starts.

        Args:
            settings: an instance of ``Settings``.
            task: the task's number, 0 to ``tasks`` - 1.
            tasks: how many tasks the connector has.

        Raises:
            ConfigError: a setting cannot be used.
            SourceError: the source cannot be read.
        """

    @property
    @abstractmethod
    def description(self) -> str:
        """What is read, for people, equal on all workers (``csv files in /data``).

        A connector is bound to it: positions in one source mean nothing in another, so a sink refuses a connector
        that has read something else.
        """

    @abstractmethod
    def owns(self, slice_name: str) -> bool:
        """Whether a slice belongs to this task. Depends on the name, ``task`` and ``tasks`` alone."""

    @abstractmethod
    def stream(self, session: SparkSession, positions: Mapping[str, int]) -> DataFrame:
        """The rows from these positions on, as a streaming DataFrame. Nothing is read until a query starts.

        The offset of the stream, as Spark logs it, must be a JSON object of slice name to position.

        Args:
            session: the worker's session.
            positions: where each known slice of this task stands; a slice that is missing stands at 0.
        """

    def ranges(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[Range]:
        """What a batch between two offsets reads, sorted by slice; slices that did not move are left out."""
        return list(ranges_between(start, end))

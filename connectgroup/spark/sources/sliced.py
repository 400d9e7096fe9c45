"""A source that is read by Python code: the base class for sources that Spark itself does not have.

Spark runs the code in processes of its own: one of a query plans the batches (``plan``), Spark's workers read the
ranges (``read``), or the parts that they are divided into (``parts_of``). Over Spark Connect, and for a sink of files
without transforms (``spark.writing``), a thread of the worker plans instead. ``sliced_reader`` is what Spark calls;
``driving.open_stream`` registers it.

Spark's offset is a JSON object of slice names and positions. Spark writes the end of a batch to the query's offset log
before it reads the batch, so a retry within a query reads the same rows again. The first batch starts from the
positions that the task claimed in the sink, never from a checkpoint.
"""

from __future__ import annotations

import importlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import SecretStr

from ...dataplane.columns import Column, Columns, to_ddl
from ...dataplane.dead_letters import read_columns
from ...dataplane.ownership import Position, Range, encoded, metadata_of
from ...dataplane.settings import PluginSettings
from ...dataplane.source import BatchReader, CommittedPositions, PartReader, Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DATA_SOURCE: Final = "connectgroup-slices"
"""Name of the data source in Spark."""

PLAN: Final = "plan"
"""The option that carries the source. ``session.settings`` redacts it: it may contain a password."""


class SlicedSource(Source):
    """A source whose batches are planned and read by Python code. ``create`` is called again in Spark's processes.

    Attributes:
        settings: the settings the source was created with.
        task, tasks: the task's number and the number of tasks.
        claimed: the position of each slice when the task started; set by ``decode``, before the first call of ``plan``.
        committed: where the positions of all tasks are; set by ``with_committed``; ``None``: this task is the only one.
        is_tolerant: whether a bad row has an error (``tolerant``); only sources that define ``tolerant`` set it.
        has_places: whether rows have their places too; set by ``with_places`` of a tolerant source.
    """

    reads_remotely = True
    settings: PluginSettings
    task: int
    tasks: int
    claimed: Mapping[str, int] = MappingProxyType({})
    committed: CommittedPositions | None = None
    is_tolerant: bool = False
    has_places: bool = False

    @classmethod
    def starts_without_spark(cls, settings: Mapping[str, str], *, is_tolerant: bool) -> bool:
        return True

    @classmethod
    def reopened(cls, settings: Any, columns: Columns, *, task: int, tasks: int) -> SlicedSource:
        """Return the source that ``create`` returned in the task's process, in one of Spark's processes.

        Args:
            columns: those of that source. What it reads may have got others since; a task has the same ones to its end.
        """
        source = cls.create(settings, task=task, tasks=tasks)
        assert isinstance(source, SlicedSource)
        return source

    @abstractmethod
    def plan(self, start: Mapping[str, int]) -> dict[str, int]:
        """Return the end of the next batch, given its start; equal to ``start`` if there is nothing to read.

        One instance plans all batches of a query, so it may keep connections and caches.

        Raises:
            SourceError: the source cannot be read.
        """

    def parts_of(self, planned: Range) -> Sequence[Range]:
        """Divide a range that this instance has planned into parts, in order, that Spark's workers read side by side.

        By default the range is one part. The slice of a part is for ``read`` alone.

        Raises:
            SourceError: the source cannot be read.
        """
        return (planned,)

    @abstractmethod
    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part of a range, the same ones each time.

        Raises:
            SourceError: the source cannot be read.
        """

    @property
    def read_columns(self) -> Columns:
        """The columns that ``read`` yields: those of the rows and, if bad rows are tolerated, place and error."""
        return read_columns(self.columns, is_tolerant=self.is_tolerant, has_places=self.has_places)

    def with_places(self) -> Self:
        self.has_places = self.is_tolerant
        return self

    def with_committed(self, committed: CommittedPositions) -> Self:
        self.committed = committed if self.tasks > 1 else None
        return self

    def stream(self, session: SparkSession, positions: Mapping[str, int]) -> DataFrame:
        return (
            session.readStream.format(DATA_SOURCE)
            .schema(to_ddl(self.read_columns))
            .option(PLAN, encode(self, positions))
            .load()
        )

    def batches(self, positions: Mapping[str, int]) -> BatchReader:
        return SlicedBatches(self, positions)

    def part_batches(self, positions: Mapping[str, int]) -> PartReader:
        return SlicedBatches(self, positions)


class SlicedBatches(PartReader):
    """Batches that are planned in this process, and whose parts Spark's workers read, for a DataFrame or for a sink."""

    def __init__(self, source: SlicedSource, positions: Mapping[str, int]) -> None:
        """Store the source as text."""
        self.columns, self._plan = source.read_columns, encode(source, positions)
        # Without the positions, which only the planner needs: a directory may have 20,000 files.
        self.read_part = ReadSlice(encode(source, {}))
        self._planner: SlicedSource | None = None

    def plan(self, start: Mapping[str, int]) -> Mapping[str, int]:
        return self._decoded().plan(start)

    def parts(self, ranges: Sequence[Range]) -> list[tuple[str, Range]]:
        return [(each.slice, part) for each in ranges for part in self._decoded().parts_of(each)]

    def read(self, session: SparkSession, ranges: Sequence[Range]) -> DataFrame:
        """Map a DataFrame of the parts to their rows, several parts at once.

        Unlike with a Python data source, Spark runs no Python to analyze it, and its warm Python workers read one batch
        after the other.
        """
        import pyarrow as pa

        parts, read = [part for _, part in self.parts(ranges)], self.read_part
        table = pa.table(
            {
                "slice": pa.array([each.slice for each in parts], pa.string()),
                "start": pa.array([int(each.start) for each in parts], pa.int64()),
                "end": pa.array([int(each.end) for each in parts], pa.int64()),
                "metadata": pa.array([metadata_of(each.end) for each in parts], pa.string()),
            }
        )

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for each in batch.to_pylist():
                    end = Position(each["end"], each["metadata"])
                    yield from read(Range(slice=each["slice"], start=each["start"], end=end))

        return session.createDataFrame(table).mapInArrow(rows, to_ddl(self.columns))

    def _decoded(self) -> SlicedSource:
        if self._planner is None:
            # In the thread of the batches, and an instance of its own: another thread measures the lag.
            self._planner = decode(self._plan)[0]
        return self._planner


@dataclass(frozen=True, slots=True)
class ReadSlice:
    """Reads a range in one of Spark's workers."""

    plan: str

    def __call__(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        return decode(self.plan)[0].read(wanted)


def encode(source: SlicedSource, positions: Mapping[str, int]) -> str:
    """Return a source and its positions as text, for Spark's processes."""
    cls = type(source)
    return json.dumps(
        {
            "class": [cls.__module__, cls.__qualname__],
            "settings": source.settings.model_dump(by_alias=True, exclude_unset=True),
            "task": source.task,
            "tasks": source.tasks,
            "columns": [asdict(column) for column in source.columns],
            "committed": None if source.committed is None else asdict(source.committed),
            "is_tolerant": source.is_tolerant,
            "has_places": source.has_places,
            "positions": encoded(positions),
        },
        default=_plain,
    )


def decode(text: str) -> tuple[SlicedSource, dict[str, int]]:
    """Return the source and the positions of ``encode``."""
    plan = json.loads(text)
    module, name = plan["class"]
    cls: Any = getattr(importlib.import_module(module), name)
    columns = tuple(Column(**column) for column in plan["columns"])
    settings = cls.Settings.model_validate(plan["settings"])
    source = cls.reopened(settings, columns, task=plan["task"], tasks=plan["tasks"])
    committed = plan["committed"]
    source.committed = None if committed is None else CommittedPositions(**committed)
    source.is_tolerant, source.has_places = plan["is_tolerant"], plan["has_places"]
    source.claimed = source.positions(plan["positions"])
    return source, dict(source.claimed)


def _plain(value: object) -> object:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)

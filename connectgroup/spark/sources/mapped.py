"""Reads ranges in Spark's workers as a DataFrame, over Spark Connect.

A DataFrame of the ranges is mapped to their rows: unlike a Python data source, Spark runs no Python to analyze it, and
its warm Python workers read one batch after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...dataplane.columns import Columns, to_ddl
from ...dataplane.ownership import Position, Range, metadata_of
from ...dataplane.source import PartReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def mapped(
    session: SparkSession, ranges: Sequence[Range], read: Callable[[Range], Iterator[pa.RecordBatch]], columns: Columns
) -> DataFrame:
    """Return the rows of ranges. Spark's workers read them, several at once.

    Args:
        read: an object that the workers can import.
    """
    import pyarrow as pa

    table = pa.table(
        {
            "slice": pa.array([each.slice for each in ranges], pa.string()),
            "start": pa.array([int(each.start) for each in ranges], pa.int64()),
            "end": pa.array([int(each.end) for each in ranges], pa.int64()),
            "metadata": pa.array([metadata_of(each.end) for each in ranges], pa.string()),
        }
    )

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for each in batch.to_pylist():
                end = Position(each["end"], each["metadata"])
                yield from read(Range(slice=each["slice"], start=each["start"], end=end))

    return session.createDataFrame(table).mapInArrow(rows, to_ddl(columns))


class MappedBatches(PartReader):
    """Batches whose parts Spark's workers read, for a DataFrame or for a sink."""

    def read(self, session: SparkSession, ranges: Sequence[Range]) -> DataFrame:
        return mapped(session, [part for _, part in self.parts(ranges)], self.read_part, self.columns)

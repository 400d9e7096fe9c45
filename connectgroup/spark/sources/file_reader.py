"""The Spark side of the source ``files``: a streaming Python data source.

Spark's offset is a JSON object that maps file names to bytes read. Spark writes the end of a batch to the query's
offset log before it plans the batch, so a retry within a query reads the same bytes again. The first batch starts from
the positions that the task claimed in the sink, never from a checkpoint.

Spark's Python workers import this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from ...dataplane.columns import to_ddl
from ...dataplane.ownership import Range, ranges_between
from .files import DATA_SOURCE, FileSource
from .listing import Planner

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class FilesDataSource(DataSource):
    """Spark creates it in a separate Python process, from the option ``plan``."""

    @classmethod
    def name(cls) -> str:
        return DATA_SOURCE

    def schema(self) -> str:
        source, _ = FileSource.from_json(self.options["plan"])
        return to_ddl(source.read_columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return FilesReader(*FileSource.from_json(self.options["plan"]))


@dataclass
class LineRange(InputPartition):
    """One range of one file, read by one Spark task."""

    slice: str
    start: int
    end: int


class FilesReader(DataSourceStreamReader):
    """Plans batches in the query's own Python process; ``read`` runs in Spark's workers."""

    def __init__(self, source: FileSource, positions: dict[str, int]) -> None:
        self._source = source
        self._positions = positions
        self._planner = Planner(root=source.root, task=source.task, tasks=source.tasks, most_bytes=source.most_bytes)

    def initialOffset(self) -> dict[str, int]:
        return self._positions

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return self._planner.advance(start)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [LineRange(r.slice, r.start, r.end) for r in ranges_between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from .lines import read_range, read_tolerantly

        assert isinstance(partition, LineRange)
        wanted = Range(slice=partition.slice, start=partition.start, end=partition.end)
        source = self._source
        if source.is_tolerant:
            yield from read_tolerantly(source.root, wanted, source.columns, source.form, source.null)
        else:
            yield read_range(source.root, wanted, source.columns, source.form, source.null)

"""The Spark side of the source ``files``: a streaming Python data source.

Spark's offset is a JSON object that maps slices to bytes read, or to bytes and metadata. Spark writes the end of a
batch to the query's offset log before it plans the batch, so a retry within a query reads the same bytes again. The
first batch starts from the positions that the task claimed in the sink, never from a checkpoint.

Spark's Python workers import this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, InputPartition

from ...dataplane.columns import to_ddl
from ...dataplane.ownership import Position, Range, encoded, metadata_of, ranges_between
from .files import DATA_SOURCE, FileSource
from .planner import Planner
from .reader import Reader

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

    def streamReader(self, schema: StructType) -> Reader:
        return FilesReader(*FileSource.from_json(self.options["plan"]))


@dataclass
class LineRange(InputPartition):
    """One range of one file, read by one Spark task; ``metadata`` identify the file."""

    file: str
    start: int
    end: int
    metadata: str


class FilesReader(Reader):
    """Plans batches in the query's own Python process; ``read`` runs in Spark's workers."""

    def __init__(self, source: FileSource, positions: dict[str, int]) -> None:
        self._source = source
        self._positions = positions
        self._planner: Planner | None = source.planner(positions)

    def initialOffset(self) -> dict[str, Any]:
        return {name: int(at) for name, at in self._positions.items()}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        assert self._planner is not None
        before = {name: int(at) for name, at in self._source.positions(start).items()}
        after = self._planner.advance(before)
        # Only positions that change have metadata: the offsets of 20,000 files are logged with each batch.
        return start if after == before else encoded(after)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        assert self._planner is not None
        before, after = self._source.positions(start), self._source.positions(end)
        return [
            LineRange(part.slice, int(part.start), int(part.end), metadata_of(part.end))
            for each in ranges_between(before, after)
            for part in self._source.parts_of(each, self._planner.file_of(each.slice))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LineRange)
        end = Position(partition.end, partition.metadata)
        yield from self._source.read_part(Range(slice=partition.file, start=partition.start, end=end))

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for its workers after it has planned; the planner knows every file.
        return {"_source": self._source, "_positions": {}, "_planner": None}

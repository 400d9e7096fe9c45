"""The Spark side of ``sliced``: a streaming Python data source. Spark's Python workers import this module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, InputPartition

from ...dataplane.columns import to_ddl
from ...dataplane.ownership import Position, Range, encoded, metadata_of, ranges_between
from .reader import Reader
from .sliced import DATA_SOURCE, PLAN, SlicedSource, decode

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class SlicesDataSource(DataSource):
    """Spark creates it in a separate Python process, from the option ``plan``."""

    @classmethod
    def name(cls) -> str:
        return DATA_SOURCE

    def schema(self) -> str:
        return to_ddl(decode(self.options[PLAN])[0].read_columns)

    def streamReader(self, schema: StructType) -> Reader:
        return SlicesReader(self.options[PLAN])


@dataclass
class SliceRange(InputPartition):
    """One range of one slice, read by one Spark task; ``metadata`` are those of its end."""

    slice: str
    start: int
    end: int
    metadata: str


class SlicesReader(Reader):
    """Plans batches in the query's own Python process; ``read`` runs in Spark's workers."""

    def __init__(self, plan: str) -> None:
        self._plan = plan
        self._planner: SlicedSource | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {name: int(at) for name, at in decode(self._plan)[1].items()}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        planner = self._decoded()
        before = {name: int(at) for name, at in planner.positions(start).items()}
        after = planner.plan(before)
        # Only positions that change have metadata.
        return start if after == before else encoded(after)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planner = self._decoded()
        ranges = ranges_between(planner.positions(start), planner.positions(end))
        return [SliceRange(r.slice, int(r.start), int(r.end), metadata_of(r.end)) for r in ranges]

    def _decoded(self) -> SlicedSource:
        if self._planner is None:
            self._planner = decode(self._plan)[0]
        return self._planner

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SliceRange)
        source, _ = decode(self._plan)
        end = Position(partition.end, partition.metadata)
        return source.read(Range(slice=partition.slice, start=partition.start, end=end))

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for its workers after it has planned; a planner may have connections.
        return {"_plan": self._plan, "_planner": None}

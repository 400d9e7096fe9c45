"""The Spark side of ``sliced``: a streaming Python data source. Spark's Python workers import this module."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from ...dataplane.columns import to_ddl
from ...dataplane.ownership import Position, Range, encoded, metadata_of, ranges_between
from .sliced import DATA_SOURCE, PLAN, SlicedSource, decode, encode

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class Reader(DataSourceStreamReader):
    """A stream reader whose planning process ends without output when its query has stopped.

    Java closes the connection to that process and then kills it. If the process notices the first before the second,
    PySpark 4.2 tries to send the end of the connection through the connection, and prints a traceback.
    """

    def stop(self) -> None:
        error = sys.exception()
        if not isinstance(error, EOFError) or error.__traceback__ is None:
            return
        called = error.__traceback__.tb_next  # by PySpark's loop, which waits for the next call
        if (
            called is not None
            and called.tb_next is None
            and called.tb_frame.f_globals["__name__"].startswith("pyspark.")
        ):
            os._exit(0)


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
    """A part of a range of one slice, read by one Spark task; ``metadata`` are those of its end."""

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
        # Only positions that change have metadata: the offsets of 20,000 files are logged with each batch.
        return start if after == before else encoded(after)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planner = self._decoded()
        return [
            SliceRange(part.slice, int(part.start), int(part.end), metadata_of(part.end))
            for each in ranges_between(planner.positions(start), planner.positions(end))
            for part in planner.parts_of(each)
        ]

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
        # Spark pickles the reader for its workers after it has planned: they need neither the planner, which may have
        # connections and know each of 20,000 files, nor the positions.
        return {"_plan": encode(self._decoded(), {}), "_planner": None}

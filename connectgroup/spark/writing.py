"""Batches whose rows Spark's workers write to the sink's files themselves.

If Python code reads the rows of a source, a sink of files takes them, and nothing transforms them in between, the
Python process that reads a range writes its rows as well. Java passes on what to read and what was written, not the
rows: it would convert each row twice, which takes longer than to read and write it. The task commits the parts of a
batch as it commits rows (``PartSink``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..dataplane.columns import to_arrow
from ..dataplane.errors import SourceError
from ..dataplane.ownership import Owner, Range
from ..dataplane.sink import Part, PartSink, PartWriter
from ..protocol.units import printable
from .errors import SparkError
from .session import runs_here

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from ..dataplane.sink import Sink
    from ..dataplane.source import BatchPlanner, PartReader
    from .transforms.chain import Chain


def direct_batches(
    source: BatchPlanner, positions: Mapping[str, int], chain: Chain, sink: Sink, owner: Owner
) -> tuple[PartReader, PartWriter] | None:
    """Return what reads and writes the batches of a task whose rows do not pass through Java; None if they do.

    Spark's workers are on this machine then: those of a cluster may not have the sink's directory.
    """
    if chain or not isinstance(sink, PartSink) or not runs_here():
        return None
    write = sink.part_writer(owner)
    reader = None if write is None else source.part_batches(positions)
    return None if write is None or reader is None else (reader, write)


def write_parts(session: SparkSession, reader: PartReader, ranges: Sequence[Range], write: PartWriter) -> list[Part]:
    """Have Spark's workers write the rows of ranges, several at once; return the parts in the order of the ranges.

    Raises:
        SparkError: Spark has ended before it has returned all parts.
    """
    wanted, read, columns = reader.parts(ranges), reader.read_part, reader.columns

    def parts(some: Iterable[tuple[str, Range]]) -> Iterator[list[Part]]:
        schema = to_arrow(columns)
        for name, part in some:
            rows = (fitting(batch, schema, name) for batch in read(part))
            yield list(write(replace(part, slice=name), rows))

    context = session.sparkContext
    # An RDD: a DataFrame of the ranges would be analyzed and compiled for each batch, which takes 0.1 s.
    found = context.parallelize(wanted, min(len(wanted), context.defaultParallelism)).mapPartitions(parts).collect()
    # PySpark takes the end of the connection for the end of the result.
    if len(found) != len(wanted):
        raise SparkError(f"Spark has returned {len(found)} of {len(wanted)} parts; allowed: a Java that runs on")
    return [part for some in found for part in some]


def read_here(reader: PartReader, ranges: Sequence[Range], is_stopping: Callable[[], bool]) -> pa.Table | None:
    """Return the rows of ranges, read in this process; ``None`` if the task is to stop meanwhile.

    Raises:
        SourceError: the source cannot be read.
    """
    import pyarrow as pa

    schema, batches = to_arrow(reader.columns), list[pa.RecordBatch]()
    for name, rows in reader.read_here(ranges):
        if is_stopping():
            return None
        batches.append(fitting(rows, schema, name))
    return pa.Table.from_batches(batches, schema)


def fitting(batch: pa.RecordBatch, schema: pa.Schema, slice_name: str) -> pa.RecordBatch:
    """Return the rows of a source with the types of its columns.

    Raises:
        SourceError: the names are others, or a value does not fit.
    """
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    try:
        return batch.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        found = ", ".join(f"{each.name} {each.type}" for each in batch.schema)
        allowed = ", ".join(f"{each.name} {each.type}" for each in schema)
        raise SourceError(f"slice {printable(slice_name)}: rows of {printable(found)}; allowed: {allowed}") from error

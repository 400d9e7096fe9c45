"""Batches whose rows Spark's workers write to the sink's files themselves.

If Python code reads the rows of a source, a sink of files takes them, and nothing transforms them in between, the
Python process that reads a range writes its rows as well. Java passes on what to read and what was written, not the
rows: it would convert each row twice, which takes longer than to read and write it. The task commits the parts of a
batch as it commits rows (``PartSink``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..dataplane.ownership import Range
from ..dataplane.sink import Part, PartSink, PartWriter
from .session import runs_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..dataplane.sink import Sink
    from ..dataplane.source import PartReader, Source
    from .transforms.chain import Chain


def part_reader(source: Source, positions: Mapping[str, int], chain: Chain, sink: Sink) -> PartReader | None:
    """Return what plans and reads the batches of a task whose rows do not pass through Java; None if they do.

    Spark's workers are on this machine then: those of a cluster may not have the sink's directory.
    """
    if chain or not isinstance(sink, PartSink) or not runs_here():
        return None
    return source.part_batches(positions)


def write_parts(session: SparkSession, reader: PartReader, ranges: Sequence[Range], write: PartWriter) -> list[Part]:
    """Have Spark's workers write the rows of ranges, several at once; return the parts in the order of the ranges."""
    wanted, read = reader.parts(ranges), reader.read_part

    def parts(some: Iterable[tuple[str, Range]]) -> Iterator[Part]:
        for name, part in some:
            yield from write(replace(part, slice=name), read(part))

    context = session.sparkContext
    # An RDD: a DataFrame of the ranges would be analyzed and compiled for each batch, which takes 0.1 s.
    return context.parallelize(wanted, min(len(wanted), context.defaultParallelism)).mapPartitions(parts).collect()

"""The contract of every source, as tests on real Spark: inherit ``SourceContract``, define two methods, and run pytest.

An ``IteratorSource`` is polled as by a task, without Spark.

class TestMySource(SourceContract):
    def make_source(self, place: Path, *, task: int = 0, tasks: int = 1) -> Source:
        return MySource(place / "in", task=task, tasks=tasks)

    def write(self, place: Path, numbers: range) -> None:
        ...  # append rows with these numbers in the column a; they go to several slices
"""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from ...dataplane.iterator import IteratorSource
from ...dataplane.ownership import Range
from ...dataplane.polling import Polling
from ...dataplane.source import Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class SourceContract(ABC):
    """What a pipeline relies on: slices that belong to one task each, positions from which reading continues.

    Attributes:
        number: the column with the number of each row.
    """

    contract_requires: ClassVar[tuple[str, ...]] = ("make_source", "write")
    number: ClassVar[str] = "a"

    @abstractmethod
    def make_source(self, place: Path, *, task: int = 0, tasks: int = 1) -> Source:
        """Open the same source for one of its tasks.

        Args:
            place: a directory, new for each test; a source elsewhere uses it as a name.
        """

    @abstractmethod
    def write(self, place: Path, numbers: range) -> None:
        """Append rows with these numbers, to several slices."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        return tmp_path

    def test_rows_are_read_once_and_reading_continues_at_the_positions(self, place: Path) -> None:
        self.write(place, range(20))
        rows, positions = read(self.make_source(place), {}, self.number)
        assert sorted(rows) == [*range(20)]
        assert all(isinstance(position, int) and position > 0 for position in positions.values())
        self.write(place, range(20, 30))
        again, _ = read(self.make_source(place), positions, self.number)
        assert sorted(again) == [*range(20, 30)]

    def test_each_slice_belongs_to_one_task(self, place: Path) -> None:
        self.write(place, range(20))
        sources = [self.make_source(place, task=task, tasks=2) for task in range(2)]
        assert len({source.description for source in sources}) == 1
        parts = [read(source, {}, self.number) for source in sources]
        assert sorted(number for rows, _ in parts for number in rows) == [*range(20)]
        for _, positions in parts:
            for name in positions:
                assert sum(source.owns(name) for source in sources) == 1
        for source, (_, positions) in zip(sources, parts, strict=True):
            assert all(source.owns(name) for name in positions)

    def test_lag_is_what_follows_the_positions(self, place: Path) -> None:
        """A source that does not measure its lag returns ``None``."""
        self.write(place, range(20))
        source = self.make_source(place)
        before = source.lag({})
        _, positions = read(source, {}, self.number)
        after = self.make_source(place).lag(positions)
        if before is None or after is None:
            assert before is after
            return
        known = [name for name in ("records", "bytes", "files") if getattr(before, name) is not None]
        assert known
        assert all(getattr(before, name) > 0 for name in known)
        assert {name: getattr(after, name) for name in known} == dict.fromkeys(known, 0)
        assert before.records in (None, 20)
        self.write(place, range(20, 30))
        grown = self.make_source(place).lag(positions)
        assert grown is not None
        assert grown.records in (None, 10)
        assert all(getattr(grown, name) > 0 for name in known)
        parts = [self.make_source(place, task=task, tasks=2).lag({}) for task in range(2)]
        whole = self.make_source(place).lag({})
        for name in known:
            assert sum(getattr(part, name) for part in parts) == getattr(whole, name)


def read(source: Source, positions: Mapping[str, int], number: str) -> tuple[list[int], dict[str, int]]:
    """Read everything that is available after some positions; return the rows' numbers in order, and the new positions.

    The ranges of the batches must follow one another without a gap.
    """
    if isinstance(source, IteratorSource):
        return _poll(source, positions, number)
    from ...spark.driving import open_stream
    from ...spark.session import spark_session

    rows: list[int] = []
    reached = dict(positions)
    with tempfile.TemporaryDirectory() as checkpoint:

        def offset(batch_id: int) -> dict[str, int]:
            if batch_id < 0:
                return dict(positions)
            text = Path(checkpoint, "offsets", str(batch_id)).read_text()
            return source.positions(json.loads(text.splitlines()[2]))

        def take(frame: DataFrame, batch_id: int) -> None:
            _advance(reached, source.ranges(offset(batch_id - 1), offset(batch_id)))
            rows.extend(frame.toArrow()[number].to_pylist())

        stream = open_stream(source, spark_session(), positions)
        writer = stream.writeStream.option("checkpointLocation", checkpoint)
        query = writer.foreachBatch(take).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    return rows, reached


def _poll(source: IteratorSource, positions: Mapping[str, int], number: str) -> tuple[list[int], dict[str, int]]:
    rows: list[int] = []
    reached = dict(positions)

    def take(table: pa.Table, ranges: Sequence[Range]) -> None:
        _advance(reached, ranges)
        rows.extend(table[number].to_pylist())

    query = Polling("contract", source, positions, take, interval_ms=10)
    query.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return rows, reached


def _advance(reached: dict[str, int], ranges: Sequence[Range]) -> None:
    """Advance the positions; the ranges of a batch must begin at them."""
    for part in ranges:
        assert part.start == reached.get(part.slice, 0)
        assert part.start < part.end or (part.start, part.end) == (0, 0)
        reached[part.slice] = part.end

"""A source that is any Python iterator, polled in the worker: a class with one generator, ``rows``.

A batch is what the iterator has yielded, and its positions are committed with its rows: so the iterator does not have
to yield the same rows each time. It only has to continue where the committed position says. ``polling`` runs it.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias, Union

from ..protocol.units import printable
from .columns import Column, Columns, check_range, to_arrow
from .dead_letters import ERROR_COLUMN, error_text
from .errors import SourceError
from .settings import PluginSettings
from .source import MAX_POSITION, Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Row: TypeAlias = Mapping[str, Any]
"""One row: values by column name. A missing column is null."""

Rows: TypeAlias = Union[Row, Sequence[Row], "pa.RecordBatch", "pa.Table"]
"""One row or several."""

Item: TypeAlias = Rows | tuple[Rows, int] | None
"""What ``IteratorSource.rows`` yields."""

ONLY_SLICE: Final = "rows"
"""Name of the slice of a source that has only one."""


class NoSettings(PluginSettings):
    """The settings of a source that has none."""


class IteratorSource(Source):
    """The rows that a Python iterator yields in the worker's process. A plug-in defines ``columns`` and ``rows``.

    Attributes:
        settings: the settings the source was created with.
        task, tasks: the task's number and the number of tasks.
        max_rows_per_batch: the largest number of rows in a batch, unless one item has more; also the number of rows
            that are read ahead of the commits, for each slice.
    """

    Settings: ClassVar[type[PluginSettings]] = NoSettings
    max_rows_per_batch: int = 50_000
    is_tolerant: bool = False
    reads_remotely = True

    def __init__(self, settings: Any, *, task: int, tasks: int) -> None:
        """Store the arguments."""
        self.settings, self.task, self.tasks = settings, task, tasks

    @classmethod
    def starts_without_spark(cls, settings: Mapping[str, str], *, is_tolerant: bool) -> bool:
        return True

    @classmethod
    def create(cls, settings: Any, *, task: int, tasks: int) -> Self:
        return cls(settings, task=task, tasks=tasks)

    @property
    def description(self) -> str:
        """The name of the class. Override it if settings determine which rows there are."""
        return type(self).__name__

    def slices(self) -> Iterable[str]:
        """Return the names of all slices, of all tasks. Called at each trigger: new ones are read without a restart.

        Raises:
            SourceError: they cannot be determined.
        """
        return (ONLY_SLICE,)

    def owns(self, slice_name: str) -> bool:
        return zlib.crc32(slice_name.encode()) % self.tasks == self.task

    @abstractmethod
    def rows(self, slice_name: str, position: int) -> Iterator[Item]:
        """Yield the rows of a slice from a position on, in order.

        Runs in a thread of its own for each slice, ahead of the commits, and may block. When it returns, it is called
        again at the next trigger. When the task stops, the iterator is closed at its next item.

        Args:
            slice_name: one of ``slices``.
            position: where to continue: 0, or the position that follows the last committed item.

        Yields:
            A row (a dict), several (a list of dicts, a ``pyarrow.RecordBatch`` or ``Table``), or a pair of these and
            the position that follows them, which must grow. Without a position, each row counts as one. ``None``:
            nothing to read now; the iterator continues at the next trigger. What was yielded must not be changed.

        Raises:
            SourceError: the source cannot be read. What was yielded before is committed.
        """

    def stream(self, session: SparkSession, positions: Mapping[str, int]) -> DataFrame:
        """Raise an error: the worker polls ``rows``, there is no stream of Spark's."""
        raise SourceError(f"{self.description}: has no stream of Spark; allowed: a task, which polls it")

    def tolerant(self) -> Self:
        """Return this source so that a row that does not fit the columns is a dead letter."""
        self.is_tolerant = True
        return self


def count_rows(rows: Rows) -> int:
    """Return the number of rows in a part of an item.

    Raises:
        SourceError: it is neither a row nor rows.
    """
    if isinstance(rows, Mapping):
        return 1
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return len(rows)
    number = getattr(rows, "num_rows", None)
    if not isinstance(number, int):
        raise SourceError(
            f"got {printable(repr(rows), limit=100)}; allowed: a dict, a list of dicts, a pyarrow.RecordBatch or Table,"
            " a pair of these and the next position, or None"
        )
    return number


def next_position(name: str, position: int, item: Rows | tuple[Rows, int]) -> tuple[Rows, int]:
    """Return the rows of an item and the position that follows them.

    Raises:
        SourceError: the item has another form, or the position does not grow.
    """
    if not isinstance(item, tuple):
        return item, position + count_rows(item)
    rows, following = item if len(item) == 2 else (item, None)
    if not isinstance(following, int) or isinstance(following, bool) or not position < following <= MAX_POSITION:
        raise SourceError(
            f"slice {name}: position {printable(repr(following), limit=100)} follows {position}; allowed: a pair of"
            f" rows and a whole number above {position}"
        )
    count_rows(rows)
    return rows, following


class TableBuilder:
    """Makes one Arrow table of the rows of a batch."""

    def __init__(self, columns: Columns, *, is_tolerant: bool) -> None:
        """Start with no rows.

        Args:
            is_tolerant: whether a row that does not fit the columns is a row with an error, not an error.
        """
        import pyarrow as pa

        self._columns, self._is_tolerant = columns, is_tolerant
        self._names = frozenset(column.name for column in columns)
        self._schema = to_arrow(columns)
        self._cut = [
            (field.name, field.type)
            for field in self._schema
            if pa.types.is_integer(field.type) or pa.types.is_temporal(field.type)
        ]
        self._narrow = [column.name for column in columns if column.type == "FLOAT"]
        self._parts: list[pa.Table] = []
        self._failed: list[str] = []

    def add(self, place: str, rows: Rows) -> None:
        """Append rows.

        Args:
            place: the slice and the position, for an error.

        Raises:
            SourceError: a row does not fit the columns; names the place, the column, the value and what is allowed.
        """
        if isinstance(rows, Mapping):
            rows = [rows]
        if isinstance(rows, Sequence):
            self.add_all(rows, lambda at: f"{place}, row {at}" if len(rows) > 1 else place)
        else:
            self._parts.append(self._conform(place, rows))

    def add_all(self, rows: Sequence[Row], place: Callable[[int], str]) -> None:
        """Append rows; ``place`` is a function of a row's index that returns its place.

        Raises:
            SourceError: a row does not fit the columns.
        """
        import pyarrow as pa

        names = self._names
        try:
            if not all(map(names.issuperset, rows)):
                raise TypeError("unknown column")
            for name, kind in self._cut:
                check_whole([row.get(name) for row in rows], kind)
            table = pa.Table.from_pylist(rows, schema=self._schema)
            for name in self._narrow:
                check_range(pa.array([row.get(name) for row in rows], pa.float64()), table.column(name))
            self._parts.append(table)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
            self._add_one_by_one(rows, place)

    def table(self) -> pa.Table:
        """Return all rows, with the column of errors if bad rows are tolerated."""
        import pyarrow as pa

        whole = pa.concat_tables([*self._parts, self._schema.empty_table()])
        if not self._is_tolerant:
            return whole
        whole = whole.append_column(ERROR_COLUMN, pa.nulls(whole.num_rows, pa.string()))
        bad = pa.Table.from_pylist([{ERROR_COLUMN: text} for text in self._failed], schema=whole.schema)
        return pa.concat_tables([whole, bad])

    def _add_one_by_one(self, rows: Sequence[Row], place: Callable[[int], str]) -> None:
        import pyarrow as pa

        good = []
        for at, row in enumerate(rows):
            reason = self._violation(row)
            if reason is None:
                good.append(row)
            elif self._is_tolerant:
                self._failed.append(error_text(place=place(at), reason=reason, record=repr(row)))
            else:
                raise SourceError(f"{place(at)}: {reason}")
        self._parts.append(pa.Table.from_pylist(good, schema=self._schema))

    def _violation(self, row: object) -> str | None:
        """Return why a row does not fit the columns; None if it does."""
        import pyarrow as pa

        if not isinstance(row, Mapping):
            return f"got {printable(repr(row), limit=100)}; allowed: a dict"
        for name in row:
            if name not in self._names:
                return f"unknown column {printable(str(name))}; allowed: {self._allowed}"
        for column, field in zip(self._columns, self._schema, strict=True):
            try:
                if (column.name, field.type) in self._cut:
                    check_whole([row.get(column.name)], field.type)
                found = pa.array([row.get(column.name)], field.type)
                if column.name in self._narrow:
                    check_range(pa.array([row.get(column.name)], pa.float64()), found)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                value = printable(repr(row.get(column.name)), limit=100)
                return f"{column.name} is {value}; allowed: {column.type} or null"
        return None

    def _conform(self, place: str, rows: Any) -> pa.Table:
        """Return an Arrow batch or table with exactly the columns, in their order and types."""
        import pyarrow as pa

        if rows.schema == self._schema:
            return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        for name in rows.schema.names:
            if name not in self._names:
                raise SourceError(f"{place}: unknown column {printable(name)}; allowed: {self._allowed}")
        arrays = []
        for field in self._schema:
            if field.name not in rows.schema.names:
                arrays.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
                continue
            found = rows.column(field.name)
            try:
                is_text = pa.types.is_string(found.type) or pa.types.is_large_string(found.type)
                keeps = (
                    pa.types.is_string(field.type) or pa.types.is_binary(field.type) or pa.types.is_temporal(field.type)
                )
                if is_text and not keeps:
                    raise pa.ArrowInvalid("texts are no numbers")  # Arrow reads 007 as 7.
                cast = found.cast(field.type)
                if pa.types.is_date(field.type) and not cast.cast(found.type).equals(found):
                    raise pa.ArrowInvalid("has a time of day")
                if pa.types.is_float64(found.type) and pa.types.is_float32(field.type):
                    check_range(found, cast)
            except (pa.ArrowException, OverflowError) as error:
                raise SourceError(
                    f"{place}: column {field.name} is {found.type} ({error}); allowed: values of type {field.type}"
                ) from error
            arrays.append(cast if isinstance(cast, pa.ChunkedArray) else pa.chunked_array([cast]))
        return pa.Table.from_arrays(arrays, schema=self._schema)

    @property
    def _allowed(self) -> str:
        return ", ".join(_shown(column) for column in self._columns)


def check_whole(values: Sequence[Any], kind: pa.DataType) -> None:
    """Check that Arrow cuts nothing off: it makes 1.5 the integer 1, and a time the date of its day.

    Args:
        values: of a column.
        kind: the type of its numbers, dates or times.

    Raises:
        ValueError: a value has a part that the type does not hold.
    """
    import pyarrow as pa

    is_day = pa.types.is_date(kind)
    if set(map(type, values)) <= (_WHOLE if is_day else _WHOLE_OR_TIME):
        return
    value: Any
    for value in values:
        is_number, is_time = isinstance(value, Real | Decimal), isinstance(value, datetime)
        if is_number and value != int(value):
            raise ValueError("a fraction")
        if is_time and is_day and value.time() != time():
            raise ValueError("a time of day")
        if is_time and getattr(value, "nanosecond", None):
            raise ValueError("nanoseconds")  # of pandas


_WHOLE: Final = frozenset({int, date, type(None)})
_WHOLE_OR_TIME: Final = _WHOLE | {datetime}


def _shown(column: Column) -> str:
    return f"{column.name} {column.type}"

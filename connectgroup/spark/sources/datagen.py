"""The source ``datagen``: rows that are a function of seed, slice and number, for trials and measurements.

The same range gives the same rows on every worker, so a pipeline that reads it can be checked row by row.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
from pydantic import Field

from ...dataplane.columns import Column, Columns, check_names, from_ddl, to_arrow
from ...dataplane.ownership import Range
from ...dataplane.settings import PluginSettings
from .sliced import SlicedSource

if TYPE_CHECKING:
    import pyarrow as pa

_WORDS: Final = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")
_START_OF_2024_S: Final = 1_704_067_200
_BLOCK_ROWS: Final = 65_536


class DatagenSettings(PluginSettings):
    """Settings of the source ``datagen``, each with the prefix ``source.``."""

    rows: Annotated[int | None, Field(ge=0, description="the number of rows, from 0; without end by default")] = None
    rows_per_second: Annotated[
        float | None, Field(gt=0, description="rows per second of the connector, above 0; no limit by default")
    ] = None
    schema_: Annotated[
        str, Field(alias="schema", description="columns as NAME TYPE, separated by commas, after the column id BIGINT")
    ] = "word STRING, amount DOUBLE, at TIMESTAMP"
    seed: Annotated[int, Field(ge=0, lt=1 << 32, description="0 to 4294967295")] = 0
    slices: Annotated[int, Field(ge=1, le=10_000, description="1 to 10000; a task reads whole slices")] = 8
    max_rows_per_batch: Annotated[int, Field(ge=1, le=10_000_000, description="1 to 10000000")] = 100_000

    def model_post_init(self, _: Any) -> None:
        """Check the schema.

        Raises:
            ConfigError: the schema is not valid, or has a column ``id``.
        """
        _columns(self)


class DatagenSource(SlicedSource):
    """Rows with a number ``id``, 0 to ``rows`` - 1. Slice *s* of *n* has the rows whose ``id`` modulo *n* is *s*."""

    Settings = DatagenSettings
    slice_form = (r"slice-(\d{1,9})", "slice-0, slice-1, ...")
    settings: DatagenSettings

    def __init__(self, settings: DatagenSettings, *, task: int, tasks: int) -> None:
        self.settings, self.task, self.tasks = settings, task, tasks
        self.columns = _columns(settings)
        self._started: tuple[float, int] | None = None

    @classmethod
    def known_columns(cls, settings: DatagenSettings, *, reads: bool = False) -> frozenset[str]:
        return frozenset(column.name for column in _columns(settings))

    @classmethod
    def create(cls, settings: DatagenSettings, *, task: int, tasks: int) -> DatagenSource:
        return cls(settings, task=task, tasks=tasks)

    @property
    def description(self) -> str:
        return f"generated rows of seed {self.settings.seed} in {self.settings.slices} slices"

    def owns(self, slice_name: str) -> bool:
        match = re.fullmatch(self.slice_form[0], slice_name)
        return match is not None and int(match[1]) % self.tasks == self.task

    def plan(self, start: Mapping[str, int]) -> dict[str, int]:
        slices = self.settings.slices
        mine = range(self.task, slices, self.tasks)
        end = dict(start)
        if not mine:
            return end
        # All ids of this task that are smaller than this one have been read.
        first = min(start.get(f"slice-{number}", 0) * slices + number for number in mine)
        if self._started is None:
            self._started = time.monotonic(), first
        began_s, began_id = self._started
        # One bound for all slices: a batch without a smaller id than one of an earlier batch fills a table in the order
        # that its readers need.
        bounds = [first + max(1, self.settings.max_rows_per_batch // len(mine)) * slices]
        if self.settings.rows is not None:
            bounds.append(self.settings.rows)
        if self.settings.rows_per_second is not None:
            bounds.append(began_id + int((time.monotonic() - began_s) * self.settings.rows_per_second))
        for number in mine:
            name = f"slice-{number}"
            position = (min(bounds) - number + slices - 1) // slices
            if position > start.get(name, 0):
                end[name] = position
        return end

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        number = int(wanted.slice.removeprefix("slice-"))
        schema = to_arrow(self.columns)
        for start in range(wanted.start, wanted.end, _BLOCK_ROWS):
            index = np.arange(start, min(wanted.end, start + _BLOCK_ROWS), dtype=np.uint64)
            ids = index * np.uint64(self.settings.slices) + np.uint64(number)
            arrays = [pa.array(ids.astype(np.int64))]
            for at, column in enumerate(self.columns[1:], start=1):
                arrays.append(_values(column, ids, _mixed(ids, self.settings.seed, at)).cast(schema.field(at).type))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns(settings: DatagenSettings) -> Columns:
    return check_names([Column("id", "BIGINT"), *from_ddl(settings.schema_)], field="source.schema")


def _mixed(ids: Any, seed: int, column: int) -> Any:
    """Return 64 random bits for each id: splitmix64, a function of id, seed and column alone."""
    with np.errstate(over="ignore"):
        z = ids + np.uint64((seed << 32 | column) + 1) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _values(column: Column, ids: Any, bits: Any) -> Any:
    """Return an Arrow array of a column's type: timestamps are one second apart, all other values random."""
    import pyarrow as pa

    if column.type == "TIMESTAMP":
        return pa.array((_START_OF_2024_S + ids.astype(np.int64)) * 1_000_000).cast(pa.timestamp("us", "UTC"))
    if column.type == "DATE":
        return pa.array((19_723 + bits % np.uint64(366)).astype(np.int32)).cast(pa.date32())
    if column.type == "STRING":
        chosen = pa.array((bits % np.uint64(len(_WORDS))).astype(np.int32))
        return pa.DictionaryArray.from_arrays(chosen, pa.array(_WORDS)).cast(pa.string())
    if column.type == "BOOLEAN":
        return pa.array((bits & np.uint64(1)).astype(bool))
    if column.type in ("FLOAT", "DOUBLE"):
        return pa.array((bits >> np.uint64(11)).astype(np.float64) / 2**53 * 1000).cast(pa.float64())
    if column.type.startswith("DECIMAL"):
        kind = to_arrow((column,)).field(0).type
        words = np.zeros((len(ids), 2), np.int64)
        words[:, 0] = (bits % np.uint64(10 ** min(kind.precision, 18))).astype(np.int64)
        return pa.Array.from_buffers(kind, len(ids), [None, pa.py_buffer(words.tobytes())])
    width = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}[column.type]
    return pa.array((bits >> np.uint64(64 - width)).astype(np.int64))

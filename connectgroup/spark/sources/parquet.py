"""The source ``parquet``: the rows of Parquet files in a directory.

A slice is a file; its position is the number of rows read. Files appear under their final name when they are complete
(a writer renames them); hidden files and those that end in ``.tmp`` or ``.part`` are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from ...connector import Lag, LocalPath
from ...dataplane.columns import Column, Columns, check_names, from_ddl, to_arrow
from ...dataplane.errors import SourceError
from ...dataplane.ownership import Range
from ...dataplane.real_paths import open_below
from ...dataplane.settings import PluginSettings, require_absolute
from .catalog import is_slice_of
from .listing import list_inodes
from .sliced import SlicedSource

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet

_TYPES: Final = {
    "bool": "BOOLEAN",
    "int8": "SMALLINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "large_string": "STRING",
    "date32[day]": "DATE",
}


class ParquetSourceSettings(PluginSettings):
    """Settings of the source ``parquet``, each with the prefix ``source.``."""

    path: Annotated[str, LocalPath(), Field(min_length=1, description="a directory, as an absolute path")]
    schema_: Annotated[
        str | None,
        Field(alias="schema", description="columns as NAME TYPE, separated by commas; by default those of a file"),
    ] = None
    max_rows_per_batch: Annotated[int, Field(ge=1, le=10_000_000, description="1 to 10000000")] = 100_000

    def model_post_init(self, _: Any) -> None:
        """Check the path and the schema.

        Raises:
            ConfigError: the path is relative, or the schema is not valid.
        """
        require_absolute("source.path", self.path, "a directory, as an absolute path")
        if self.schema_ is not None:
            from_ddl(self.schema_)


class ParquetSource(SlicedSource):
    """The rows of a directory of Parquet files, each read by one task."""

    Settings = ParquetSourceSettings
    settings: ParquetSourceSettings

    def __init__(self, settings: ParquetSourceSettings, columns: Columns, *, task: int, tasks: int) -> None:
        self.settings, self.columns, self.task, self.tasks = settings, columns, task, tasks
        self._root = Path(settings.path)
        self._rows: dict[str, tuple[int, int]] = {}

    @classmethod
    def create(cls, settings: ParquetSourceSettings, *, task: int, tasks: int) -> ParquetSource:
        # The task that owns the name of a link that leads out of the directory, or of a damaged file, reports it.
        names = _files(Path(settings.path), {})
        if settings.schema_ is not None:
            columns = from_ddl(settings.schema_)
        elif names:
            columns = _columns_of_first(Path(settings.path), names)
        else:
            raise SourceError(f"{settings.path}: has no Parquet file; allowed: one file, or source.schema")
        return cls(settings, columns, task=task, tasks=tasks)

    @property
    def description(self) -> str:
        return f"parquet files in {self._root}"

    def owns(self, slice_name: str) -> bool:
        return is_slice_of(slice_name, self.task, self.tasks)

    def plan(self, start: Mapping[str, int]) -> dict[str, int]:
        end, left = dict(start), self.settings.max_rows_per_batch
        problems: dict[str, str] = {}
        names = _files(self._root, problems)
        for name in sorted(problems):
            if self.owns(name):
                raise SourceError(problems[name])
        for name in names:
            if not self.owns(name) or left <= 0:
                continue
            position, rows = start.get(name, 0), self._count(name)
            if rows < position:
                raise SourceError(
                    f"{self._root / name}: has {rows} rows, {position} were read already; allowed: new files"
                )
            if rows > position:
                end[name] = min(rows, position + left)
                left -= end[name] - position
        return end

    def lag(self, positions: Mapping[str, int]) -> Lag:
        """Return the files and rows that are not read yet, and the bytes of these files."""
        files = rows_left = bytes_left = 0
        for name in _files(self._root, {}):
            if not self.owns(name):
                continue
            try:
                size, rows = (self._root / name).stat().st_size, self._count(name) - positions.get(name, 0)
            except (OSError, SourceError):
                continue  # deleted since the listing, or damaged: the task itself reports that
            if rows > 0:
                files, rows_left, bytes_left = files + 1, rows_left + rows, bytes_left + size
        return Lag(records=rows_left, bytes=bytes_left, files=files)

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        schema, first = to_arrow(self.columns), 0
        file = _opened(self._root, wanted.slice)
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            start, stop = max(wanted.start - first, 0), min(wanted.end - first, count)
            if start < stop:
                try:
                    rows = file.read_row_group(group, columns=schema.names).select(schema.names).cast(schema)
                except (pa.ArrowException, KeyError, OSError) as error:
                    raise SourceError(
                        f"{self._root / wanted.slice}: {' '.join(str(error).split())[:200]};"
                        f" allowed: the columns {', '.join(schema.names)}"
                    ) from error
                yield from rows.slice(start, stop - start).combine_chunks().to_batches()
            first += count

    def _count(self, name: str) -> int:
        size = (self._root / name).stat().st_size
        if self._rows.get(name, (0, -1))[1] != size:
            self._rows[name] = int(_opened(self._root, name).metadata.num_rows), size
        return self._rows[name][0]


def _files(root: Path, problems: dict[str, str]) -> list[str]:
    """Return the sorted names of the Parquet files; see ``list_inodes`` for ``problems``."""
    return sorted(name for name in list_inodes(root, "", problems) if name.endswith(".parquet"))


def _opened(root: Path, name: str) -> pyarrow.parquet.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with open_below(root, name) as file:
            # Arrow opens the open file again, not the name: another process may have replaced it by a link.
            return pyarrow.parquet.ParquetFile(pa.OSFile(f"/dev/fd/{file.fileno()}"))
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{root / name}: cannot be read; allowed: a complete Parquet file") from error


def _columns_of_first(root: Path, names: Sequence[str]) -> Columns:
    """Return the columns of the first file that can be read; raises the error of the last one if none can."""
    for name in names[:-1]:
        with suppress(SourceError):
            return _columns(root, name)
    return _columns(root, names[-1])


def _columns(root: Path, name: str) -> Columns:
    columns, path = [], root / name
    for field in _opened(root, name).schema_arrow:
        kind = "TIMESTAMP" if str(field.type).startswith("timestamp") else _TYPES.get(str(field.type))
        if kind is None:
            raise SourceError(
                f"{path}: column {field.name} is {field.type}; allowed: plain types, or source.schema without it"
            )
        columns.append(Column(field.name, kind))
    return check_names(columns, field=f"columns of {path}")

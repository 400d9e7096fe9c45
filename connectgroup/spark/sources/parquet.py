"""The source ``parquet``: the rows of Parquet files in a directory.

A slice is a file; its position is the number of rows read. Files appear under their final name when they are complete
(a writer renames them); hidden files and those that end in ``.tmp`` or ``.part`` are not read. ``parquet_rows`` reads
the rows of a file as the source's columns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field

from ...connector import Lag, LocalPath
from ...dataplane.columns import Columns, from_ddl, to_arrow, to_ddl
from ...dataplane.dead_letters import error_text
from ...dataplane.errors import SourceError
from ...dataplane.ownership import Position, Range, metadata_of
from ...dataplane.real_paths import open_below
from ...dataplane.settings import PluginSettings, require_absolute
from ...dataplane.source import CommittedPositions
from .catalog import Catalog
from .dialect import Drift
from .file_settings import IDENTITY, MAX_PATTERN, ON_REWRITE
from .files import DirectorySource, merged, stored_columns
from .identity import Identity, IdentityMode
from .lines import with_error
from .listing import list_inodes, without_second_names
from .parquet_rows import (
    BadValue,
    Misfit,
    check_columns,
    columns_of,
    converted,
    converted_or_bad,
    opened,
    rows_of,
    shown,
)
from .parts import opened_range

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetSourceSettings(PluginSettings):
    """Settings of the source ``parquet``, each with the prefix ``source.``."""

    path: Annotated[str, LocalPath(), Field(min_length=1, description="a directory, as an absolute path")]
    schema_: Annotated[
        str | None,
        Field(
            alias="schema",
            description="columns as NAME TYPE, separated by commas; by default those of a file, taken once and stored"
            " with the offsets. STRING reads a value of each type as its text",
        ),
    ] = None
    schema_drift: Annotated[
        Drift | None,
        Field(
            description="error, ignore, evolve: columns of a file that the schema does not have, and those that a file"
            " lacks. error: a file with other columns is an error; ignore: others are left out, missing ones are null;"
            " evolve: new ones are added, and the task starts again. By default error; with source.schema, columns that"
            " it does not list are left out"
        ),
    ] = None
    file_pattern: Annotated[
        str,
        Field(
            max_length=MAX_PATTERN,
            description="a glob for names of files, such as *.parquet, or with a / for paths below the directory; at"
            f" most {MAX_PATTERN} characters",
        ),
    ] = ""
    identity: Annotated[IdentityMode, Field(description=IDENTITY)] = "content"
    on_rewrite: Annotated[Literal["fail", "read"], Field(description=ON_REWRITE)] = "fail"
    max_rows_per_batch: Annotated[int, Field(ge=1, le=10_000_000, description="1 to 10000000")] = 100_000

    def model_post_init(self, _: Any) -> None:
        """Check the path and the schema.

        Raises:
            ConfigError: the path is relative, or the schema is not valid.
        """
        require_absolute("source.path", self.path, "a directory, as an absolute path")
        if self.schema_ is not None:
            from_ddl(self.schema_)


class ParquetSource(DirectorySource):
    """The rows of a directory of Parquet files, each read by one task when it is complete. A slice is a file; which
    files are read is as with the source `files`, and names that do not end in .parquet are left out too. Without
    `source.schema`, columns of decimals, lists, structs, maps, times and unsigned 64-bit integers are STRING: numbers
    as they are, nested values as JSON. Timestamps without a zone count as UTC. Dates before 1582-10-15 are those that
    Spark before 3.0 has written (it counts their days in the Julian calendar, and says so in the file); such a
    timestamp is an error. A value that does not fit its column exactly (a text in a column of numbers, a time with
    nanoseconds) is an error with file and column. With `errors.tolerance=all`, a row with such a value is a dead
    letter, and the rows of a batch of a file with other columns are one; a file that is damaged or was rewritten is
    left out, logged and counted in the status.
    """

    Settings = ParquetSourceSettings
    settings: ParquetSourceSettings

    def __init__(self, settings: ParquetSourceSettings, columns: Columns, *, task: int, tasks: int) -> None:
        super().__init__(settings, columns, task=task, tasks=tasks)
        self._rows: dict[str, tuple[tuple[int, int, int], int]] = {}
        self._catalog: Catalog | None = None

    @classmethod
    def create(cls, settings: ParquetSourceSettings, *, task: int, tasks: int) -> ParquetSource:
        # The task that owns the name of a link that leads out of the directory, or of a damaged file, reports it.
        root = Path(settings.path)
        names = sorted(_inodes(settings, {}))
        if settings.schema_ is not None:
            return cls(settings, from_ddl(settings.schema_), task=task, tasks=tasks)
        failed: SourceError | None = None
        for name in names:
            try:
                return cls(settings, columns_of(root, name), task=task, tasks=tasks)
            except SourceError as error:
                failed = error
        raise failed or SourceError(f"{settings.path}: has no Parquet file; allowed: one file, or source.schema")

    def with_committed(self, committed: CommittedPositions) -> Self:
        super().with_committed(committed)
        if self.settings.schema_ is None:
            stored = merged((), *stored_columns(committed.read()))
            self.columns = stored or self.columns
        if self.settings.schema_drift == "evolve":
            for name in sorted(_inodes(self.settings, {})):
                try:
                    self.columns = merged(self.columns, columns_of(self.root, name))
                except SourceError:
                    continue  # The task that owns the file reports it.
        return self

    @property
    def description(self) -> str:
        return f"parquet files in {self.root}"

    def plan(self, start: Mapping[str, int]) -> dict[str, int]:
        if self._catalog is None:
            self._catalog = self._new_catalog(self.claimed)
        end, left = dict(start), self.settings.max_rows_per_batch
        problems: dict[str, str] = {}
        inodes = _inodes(self.settings, problems)
        problems = {name: why for name, why in problems.items() if self.owns(name)}
        for name, slice_ in sorted(self._catalog.slices(inodes).items()):
            if left <= 0:
                break
            try:
                found = self._next(name, slice_, start, left)
            except SourceError as error:
                # The other files are read first.
                problems[name] = str(error)
                continue
            if found is not None:
                slice_, position = found
                left -= position - start.get(slice_, 0)
                end[slice_] = position
        if problems and end == start and not self.is_tolerant:
            raise SourceError(problems[min(problems)])
        return end

    def _next(self, name: str, slice_: str, start: Mapping[str, int], left: int) -> tuple[str, Position] | None:
        """Return the slice of a file and the end of its next range; None if there is nothing to read now.

        Raises:
            SourceError: the file cannot be read, or was rewritten.
        """
        catalog = self._catalog
        assert catalog is not None
        position = start.get(slice_, 0)
        if name in catalog.rewritten and self.settings.on_rewrite == "fail":
            raise self._rewritten(name)
        try:
            if position == 0 and catalog.belongs_to_another(name):
                return None
            rows = self._count(name)
            if rows < position:
                if self.settings.on_rewrite == "fail":
                    raise self._rewritten(name)
                slice_ = catalog.new_slice(name)
                position = start.get(slice_, 0)
            if rows == position:
                return None
            with open_below(self.root, name) as file:
                before, size = catalog.identity(slice_) if position else None, os.fstat(file.fileno()).st_size
                identity = Identity.of(file.fileno(), name, size, before=before)
        except FileNotFoundError:
            return None  # Deleted since the listing.
        except OSError as error:
            raise SourceError(f"{self.root / name}: cannot be read ({error.strerror}); allowed: files") from error
        catalog.remember(slice_, identity)
        schema = {} if self.settings.schema_ is not None else {"schema": to_ddl(self.columns)}
        return slice_, Position(min(rows, position + left), identity.metadata(**schema))

    def lag(self, positions: Mapping[str, int]) -> Lag:
        """Return the files and rows that are not read yet, the bytes of these files, and the files with a problem."""
        files = rows_left = bytes_left = 0
        problems, skipped = dict[str, str](), list[str]()
        catalog = self._new_catalog(positions)
        slices = catalog.slices(_inodes(self.settings, problems, skipped))
        problems = {name: why for name, why in problems.items() if self.owns(name)}
        for name, slice_ in slices.items():
            try:
                if name in catalog.rewritten and self.settings.on_rewrite == "fail":
                    raise self._rewritten(name)
                position = positions.get(slice_, 0)
                if position == 0 and catalog.belongs_to_another(name):
                    continue
                size, rows = catalog.stats[name].st_size, self._count(name) - position
            except SourceError as error:
                problems[name] = str(error)
                continue
            except (OSError, KeyError):
                continue  # deleted since the listing
            if rows > 0:
                files, rows_left, bytes_left = files + 1, rows_left + rows, bytes_left + size
        count = sum(map(self.owns, skipped))
        self._reports.log(self.root, problems, count)
        return Lag(
            records=rows_left,
            bytes=bytes_left,
            files=files,
            unreadable_files=len(problems),
            skipped_files=count,
        )

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        identity = Identity.from_metadata(metadata_of(wanted.end))
        named = wanted if identity is None else replace(wanted, slice=identity.file)
        with opened_range(self.root, named) as (path, source):
            if identity is not None and os.fstat(source.fileno()).st_size != identity.read:
                raise SourceError(f"{path}: was replaced while it was read; allowed: the task starts again")
            drift = self.settings.schema_drift
            try:
                file = opened(path, source.fileno())
                others: Drift = drift or ("error" if self.settings.schema_ is None else "ignore")
                lacks = drift in ("ignore", "evolve")
                check_columns(path, file.schema_arrow, self.columns, others=others, lacks_columns=lacks)
                parts = rows_of(path, source.fileno(), file, self.columns, int(wanted.start), int(wanted.end))
                # A damaged file has a dead letter for all rows of the range, or none.
                yield from self._converted(path, list(parts) if self.is_tolerant else parts, int(wanted.start))
            except Misfit as error:
                if not self.is_tolerant:
                    raise SourceError(str(error)) from error
                yield self._bad(f"{path}, rows {wanted.start + 1} to {int(wanted.end)}", str(error), path, {})

    def _converted(self, path: Path, parts: Iterable[pa.Table], at: int) -> Iterator[pa.RecordBatch]:
        for rows in parts:
            if self.is_tolerant:
                good, bad = converted_or_bad(rows, self.columns)
                numbers = np.delete(np.arange(rows.num_rows), [index for index, _ in bad]) + at + 1
                for batch in good:
                    places = _places(f"{path}, row ", numbers[: batch.num_rows]) if self.has_places else None
                    numbers = numbers[batch.num_rows :]
                    yield with_error(batch, None, places)
                for index, reason in bad:
                    yield self._bad(f"{path}, row {at + index + 1}", reason, path, shown(rows, index))
            else:
                try:
                    yield converted(rows, self.columns)
                except BadValue as error:
                    raise SourceError(f"{path}: {error.reason}") from error
            at += rows.num_rows

    def _bad(self, place: str, reason: str, path: Path, record: Mapping[str, str | None]) -> pa.RecordBatch:
        import pyarrow as pa

        nulls = pa.RecordBatch.from_pylist([{}], schema=to_arrow(self.columns))
        text = json.dumps(record, ensure_ascii=False) if record else ""
        error = error_text(place=place, reason=reason.removeprefix(f"{path}: "), record=text)
        return with_error(nulls, error, pa.nulls(1, pa.string()) if self.has_places else None)

    def _rewritten(self, name: str) -> SourceError:
        return SourceError(
            f"{self.root / name}: was replaced by another file; allowed: a new name for a new file, or"
            " source.on.rewrite=read"
        )

    def _new_catalog(self, positions: Mapping[str, int]) -> Catalog:
        others = None if self.committed is None else self.committed.read
        return Catalog(self.root, positions, self.owns, others, self.settings.identity)

    def _count(self, name: str) -> int:
        """Return the number of rows of a file.

        Raises:
            OSError: it cannot be opened.
            SourceError: it is no complete Parquet file.
        """
        with open_below(self.root, name) as file:
            found = os.fstat(file.fileno())
            version = found.st_ino, found.st_size, found.st_mtime_ns
            if name not in self._rows or self._rows[name][0] != version:
                self._rows[name] = version, int(opened(self.root / name, file.fileno()).metadata.num_rows)
        return self._rows[name][1]


def _inodes(
    settings: ParquetSourceSettings, problems: dict[str, str], skipped: list[str] | None = None
) -> Mapping[str, int]:
    """Return the inodes of the Parquet files by name; see ``list_inodes`` for ``problems`` and ``skipped``."""
    skipped = [] if skipped is None else skipped
    root = Path(settings.path)
    found = list_inodes(root, settings.file_pattern, problems, skipped)
    skipped += (name for name in found if not name.lower().endswith(".parquet"))
    files: Mapping[str, int] = {name: inode for name, inode in found.items() if name.lower().endswith(".parquet")}
    return files if settings.identity == "name" else without_second_names(root, files, skipped)


def _places(prefix: str, numbers: np.ndarray[Any, Any]) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(prefix, pa.array(numbers.astype(np.int64)).cast(pa.string()), "")

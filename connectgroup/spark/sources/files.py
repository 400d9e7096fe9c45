"""The source ``files``: a directory of growing CSV, JSON-lines or text files.

A slice is a file; its position is the number of bytes read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ...connector import Lag
from ...dataplane.columns import Column, Columns, from_ddl, to_ddl
from ...dataplane.ownership import Position, Range, metadata_of
from ...dataplane.source import CommittedPositions, PartReader
from ...errors import NO_VALUE, ConfigError
from .catalog import is_slice_of
from .dialect import EVOLVE_BYTES, is_wide
from .file_settings import FileSettings
from .identity import Identity
from .listing import FileReports, divided, list_inodes
from .packed import codec_of
from .planner import Planner, Version
from .sliced import SlicedSource

if TYPE_CHECKING:
    import pyarrow as pa

PART_BYTES: Final = 16 << 20
"""Upper bound on the bytes that one of Spark's workers reads at once, unless a line is longer."""
WRITTEN_BYTES: Final = 128 << 20
"""The default of ``source.max.bytes.per.batch`` where no process has all rows of a batch in memory. Other tasks wait
for a batch if it has all of Spark's processors."""


class DirectorySource(SlicedSource):
    """A source whose slices are the files of one directory, each read by the task that owns its name.

    Attributes:
        root: the directory.
    """

    def __init__(self, settings: Any, columns: Columns, *, task: int, tasks: int) -> None:
        self.settings, self.columns, self.task, self.tasks = settings, columns, task, tasks
        self.root = Path(settings.path)
        self._reports = FileReports()

    @classmethod
    def reopened(cls, settings: Any, columns: Columns, *, task: int, tasks: int) -> Self:
        return cls(settings, columns, task=task, tasks=tasks)

    @classmethod
    def partition_of(cls, slice_name: str, position: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """With the file, if it has another name than the slice."""
        identity = Identity.from_metadata(metadata_of(position))
        offset: dict[str, Any] = {"position": int(position)}
        if identity is not None and identity.file != slice_name:
            offset["file"] = identity.file
        if identity is not None and identity.packed_from:
            offset["packed.from"] = identity.packed_from
        return {"slice": slice_name}, offset

    @classmethod
    def slice_of(cls, partition: Mapping[str, Any], offset: Mapping[str, Any] | None) -> tuple[str, int | None]:
        shown = ("file", "packed.from")  # by ``partition_of``; they change nothing
        if offset is not None:
            offset = {name: value for name, value in offset.items() if name not in shown}
        return super().slice_of(partition, offset)

    def owns(self, slice_name: str) -> bool:
        return is_slice_of(slice_name, self.task, self.tasks)

    def tolerant(self) -> Self:
        self.is_tolerant = True
        return self


class FileSource(DirectorySource):
    """The rows of a directory of growing files and of the directories below it, each read by one task. A slice is a
    file, its position the bytes read. A file is known by a fingerprint of what was read of it, and by
    ``source.identity``: by default a renamed file is not read again. Not read are files and directories whose names
    begin with . or _, files that end in .tmp or .part, directories that are links, second names of a file, and files
    without the form of ``source.file.pattern``: the status and the metrics have their number (``skipped_files``). A
    link to a file outside of the directory, and a name that is not UTF-8, are errors. A line that does not fit is an
    error with file, line, column and value. With ``errors.tolerance=all``, it is a dead letter, also one that is
    longer than a batch; the rows of a file with another header are one dead letter for each 16 MiB; a compressed file
    is read up to the first damaged member, and the rest is one dead letter; a file that cannot be opened or was
    rewritten is left out, logged and counted in the status as unreadable. A file without a line feed waits for one; if
    it begins like an archive, or has carriage returns alone, it is logged and counted as unreadable, too. A log that is
    copied and truncated (copytruncate) is read once if it is truncated within ``source.settle.ms`` of the copy's last
    byte; so is one that is compressed after it was read.
    """

    Settings = FileSettings
    settings: FileSettings

    def __init__(self, settings: FileSettings, columns: Columns, *, task: int, tasks: int) -> None:
        super().__init__(settings, columns, task=task, tasks=tasks)
        # Of compressed files; changed by ``Planner.lag``.
        self._unpacked: dict[str, Version] = {}
        self._incomplete: dict[str, Version] = {}
        self._planner: Planner | None = None

    @classmethod
    def known_columns(cls, settings: FileSettings, *, reads: bool = False) -> frozenset[str] | None:
        is_given = settings.format == "text" or settings.schema_ is not None
        if settings.schema_drift == "evolve" or not (is_given or reads):
            return None
        # Without a file there are none yet.
        return frozenset(column.name for column in _columns(settings, Path(settings.path))) or None

    @classmethod
    def create(cls, settings: FileSettings, *, task: int, tasks: int) -> FileSource:
        root = Path(settings.path)
        list_inodes(root, "", {})
        return cls(settings, _columns(settings, root), task=task, tasks=tasks)

    @classmethod
    def check_access(cls, settings: FileSettings, *, tasks: int) -> None:
        source = cls.create(settings, task=0, tasks=tasks)
        if settings.format == "csv" and settings.schema_ is not None and settings.schema_drift != "evolve":
            from .parts import check_headers

            check_headers(source.root, source.columns, settings.dialect, settings.file_pattern)

    @property
    def description(self) -> str:
        return f"{self.settings.format} files in {self.root}"

    def part_batches(self, positions: Mapping[str, int]) -> PartReader:
        # Records with line feeds are not divided into parts.
        dialect = self.settings.dialect
        is_whole = dialect.separator is not None or is_wide(dialect.encoding)
        if "max_bytes_per_batch" in self.settings.model_fields_set or is_whole:
            return super().part_batches(positions)
        larger = copy(self)
        larger.settings = self.settings.model_copy(update={"max_bytes_per_batch": WRITTEN_BYTES})
        return super(FileSource, larger).part_batches(positions)

    def plan(self, start: Mapping[str, int]) -> dict[str, int]:
        return self._claimed_planner().advance({name: int(at) for name, at in start.items()})

    def lag(self, positions: Mapping[str, int]) -> Lag:
        planner = self._new_planner(positions)
        planner.unpacked, planner.incomplete = self._unpacked, self._incomplete
        lag = planner.lag(positions)
        self._reports.log(self.root, planner.problems, planner.skipped)
        return lag

    def size_of(self, ranges: Sequence[Range]) -> int:
        return sum(each.end - each.start for each in ranges)

    def with_committed(self, committed: CommittedPositions) -> Self:
        super().with_committed(committed)
        columns = self.columns
        positions: Mapping[str, int] = {}
        if self._infers:
            positions = committed.read()
            stored = merged((), *stored_columns(positions))
            columns = stored if stored and self.settings.schema_ is None else merged(columns, stored)
        if self.settings.schema_drift == "evolve":
            from .parts import all_headers, next_fields

            pattern = self.settings.file_pattern
            if self.settings.format == "csv":
                columns = merged(columns, *all_headers(self.root, self.settings.dialect, pattern))
            else:
                columns = merged(columns, *next_fields(self.root, positions, pattern))
        if not columns:
            raise ConfigError("source.schema", NO_VALUE, f"a schema, or {self._example} in {self.root}")
        self.columns = columns
        return self

    @property
    def _infers(self) -> bool:
        """Whether the columns come from files, not from the settings."""
        settings = self.settings
        return settings.format != "text" and (settings.schema_ is None or settings.schema_drift == "evolve")

    @property
    def _example(self) -> str:
        return "a CSV file with a header" if self.settings.format == "csv" else "a file with a JSON object"

    @property
    def _max_bytes(self) -> int:
        """Upper bound on the bytes of a batch."""
        evolves_by_line = self.settings.schema_drift == "evolve" and self.settings.format == "jsonl"
        return min(self.settings.max_bytes_per_batch, EVOLVE_BYTES if evolves_by_line else 1 << 62)

    def parts_of(self, planned: Range) -> list[Range]:
        """Divide a range at ends of lines; the slice of each part is the name of the file."""
        file = self._claimed_planner().file_of(planned.slice)
        dialect = self.settings.dialect
        if codec_of(file) or dialect.separator is not None or is_wide(dialect.encoding):
            return [replace(planned, slice=file)]
        metadata = metadata_of(planned.end)
        identity = Identity.from_metadata(metadata)
        is_file = identity.has_content_of if identity is not None else lambda descriptor: True
        parts = divided(self.root, file, planned.start, planned.end, PART_BYTES, is_file)
        return [Range(slice=file, start=start, end=Position(end, metadata)) for start, end in parts]

    def read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        from .parts import read_part

        return read_part(
            self.root,
            wanted,
            self.columns,
            self.settings.dialect,
            tolerant=self.is_tolerant,
            places=self.has_places,
            max_bytes=self._max_bytes,
        )

    def _claimed_planner(self) -> Planner:
        if self._planner is None:
            self._planner = self._new_planner(self.claimed)
        return self._planner

    def _new_planner(self, positions: Mapping[str, int]) -> Planner:
        """Return a planner of this task's batches, given the positions at its start."""
        schema = to_ddl(self.columns) if self._infers else ""
        return Planner(
            root=self.root,
            task=self.task,
            tasks=self.tasks,
            max_bytes=self._max_bytes,
            rules=replace(self.settings.rules, skips_bad=self.is_tolerant, schema=schema),
            positions=positions,
            others=None if self.committed is None else self.committed.read,
        )


def merged(columns: Columns, *others: Columns) -> Columns:
    """Return columns and, after them, those of others that have other names; names are compared without case."""
    found = {column.name.lower(): column for column in columns}
    for column in chain.from_iterable(others):
        found.setdefault(column.name.lower(), column)
    return tuple(found.values())


def _columns(settings: FileSettings, root: Path) -> Columns:
    """Return the columns of the schema setting or, without one, of a file; none if there is neither."""
    if settings.format == "text":
        return (Column("value", "STRING"),)
    if settings.schema_ is not None:
        return from_ddl(settings.schema_)
    from .parts import inferred_columns

    return inferred_columns(root, settings.dialect, settings.file_pattern) or ()


def stored_columns(positions: Mapping[str, int]) -> list[Columns]:
    """Return the inferred columns that were committed with the positions, each schema once."""
    found: dict[str, None] = {}
    for name in sorted(positions):
        if (text := metadata_of(positions[name])) and (schema := json.loads(text).get("schema")):
            found[schema] = None
    return [from_ddl(schema) for schema in found]

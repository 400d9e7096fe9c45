"""The source ``files``: a directory of growing CSV or JSON-lines files.

A slice is a file; its position is the number of bytes read. ``file_reader`` is the Spark side of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from ...connector import Lag
from ...dataplane.columns import Column, Columns, from_ddl, to_ddl
from ...dataplane.dead_letters import ERROR_COLUMN
from ...dataplane.ownership import Range
from ...dataplane.settings import PluginSettings, require_absolute
from ...dataplane.source import Source
from ...errors import NO_VALUE, ConfigError
from .listing import files_left, is_slice_of, list_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA_SOURCE: Final = "connectgroup-files"
"""Name of the data source in Spark."""

Format = Literal["csv", "jsonl", "text"]


class FileSettings(PluginSettings):
    """Settings of the source ``files``, each with the prefix ``source.``."""

    path: Annotated[str, Field(min_length=1, description="a directory, as an absolute path")]
    format: Annotated[Format, Field(description="csv, jsonl, text: each line is the column value")]
    schema_: Annotated[
        str | None,
        Field(alias="schema", description="columns as NAME TYPE, separated by commas (csv: may be left out)"),
    ] = None
    null: Annotated[
        str, Field(description="a word that means null in a csv field without quotes, beside the empty field")
    ] = ""
    max_bytes_per_batch: Annotated[int, Field(ge=1024, le=256 << 20, description="1024 to 268435456")] = 16 << 20

    def model_post_init(self, _: Any) -> None:
        """Check the path, the schema and their combination with the format.

        Raises:
            ConfigError: the path is relative, the schema is not valid, or ``jsonl`` has no schema.
        """
        require_absolute("source.path", self.path, "a directory, as an absolute path")
        if self.schema_ is not None:
            if self.format == "text":
                raise ConfigError("source.schema", self.schema_, "nothing with source.format text")
            from_ddl(self.schema_)
        elif self.format == "jsonl":
            raise ConfigError("source.schema", NO_VALUE, "columns as NAME TYPE, separated by commas (jsonl needs them)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource(Source):
    """The rows of a directory of growing files, each read by one task. A slice is a file, its position the bytes read.

    Attributes:
        root: the directory.
        form: ``csv``, ``jsonl`` or ``text``.
        columns: names and types of the columns.
        task, tasks: the task's number and the number of tasks; they determine the files of this task.
        most_bytes: upper bound on the bytes of one batch.
        null: a word that means null in CSV, in addition to the empty field.
        is_tolerant: whether a bad line is a row with an error.
    """

    Settings = FileSettings

    root: Path
    form: Format
    columns: Columns
    task: int
    tasks: int
    most_bytes: int
    null: str = ""
    is_tolerant: bool = False

    @classmethod
    def create(cls, settings: FileSettings, *, task: int, tasks: int) -> FileSource:
        root = Path(settings.path)
        list_files(root)
        return cls(
            root=root,
            form=settings.format,
            columns=_columns(settings, root),
            task=task,
            tasks=tasks,
            most_bytes=settings.max_bytes_per_batch,
            null=settings.null,
        )

    @property
    def description(self) -> str:
        return f"{self.form} files in {self.root}"

    def owns(self, slice_name: str) -> bool:
        return is_slice_of(slice_name, self.task, self.tasks)

    def stream(self, session: SparkSession, positions: Mapping[str, int]) -> DataFrame:
        from .file_reader import FilesDataSource

        session.dataSource.register(FilesDataSource)
        plain = asdict(self) | {"root": str(self.root), "positions": dict(positions)}
        ddl = to_ddl(self.read_columns)
        return session.readStream.format(DATA_SOURCE).schema(ddl).option("plan", json.dumps(plain)).load()

    def lag(self, positions: Mapping[str, int]) -> Lag:
        return files_left(self.root, positions, self.task, self.tasks)

    def size_of(self, ranges: Sequence[Range]) -> int:
        return sum(each.end - each.start for each in ranges)

    def tolerant(self) -> FileSource:
        return replace(self, is_tolerant=True)

    @property
    def read_columns(self) -> Columns:
        """The columns of the stream: those of the rows and, if bad lines are tolerated, their error."""
        return (*self.columns, Column(ERROR_COLUMN, "STRING")) if self.is_tolerant else self.columns

    @classmethod
    def from_json(cls, text: str) -> tuple[FileSource, dict[str, int]]:
        """Decode the source and the positions that ``stream`` passed to Spark."""
        plain = json.loads(text)
        positions = plain.pop("positions")
        columns = tuple(Column(**column) for column in plain.pop("columns"))
        return cls(root=Path(plain.pop("root")), columns=columns, **plain), positions


def _columns(settings: FileSettings, root: Path) -> Columns:
    """Return the columns of the schema setting or, without one, of a CSV header.

    Raises:
        ConfigError: there is no schema and no CSV file with a header.
    """
    if settings.format == "text":
        return (Column("value", "STRING"),)
    if settings.schema_ is not None:
        return from_ddl(settings.schema_)
    from .lines import columns_from_header

    columns = columns_from_header(root)
    if columns is None:
        raise ConfigError("source.schema", NO_VALUE, f"a schema, or a CSV file with a header in {root}")
    return columns

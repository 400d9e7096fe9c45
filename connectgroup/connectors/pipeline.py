"""The connector ``pipeline``: growing files in, a table or Parquet files out, exactly once, on Spark.

Its work is cut by file: task *i* of *n* reads the files whose name's CRC-32 leaves *i*. So the cut does not
change as files arrive, and a new number of tasks shares the same files anew from where they stand.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..connector import Config, Connector, Task, TaskContext
from ..errors import UNKNOWN_SETTING, ConfigError
from ..names import printable
from ..spark.columns import Columns, from_ddl

if TYPE_CHECKING:
    from ..spark.sinks import Sink
    from ..spark.source import FileSource


class PipelineConnector(Connector):
    """Entry point ``pipeline``. See ``PipelineConfig`` for the settings."""

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        parse_config(config)

    def task_configs(self, most: int) -> Sequence[Config]:
        return [{**self.config, "task": str(task), "tasks": str(most)} for task in range(most)]

    def task(self, config: Config, context: TaskContext) -> Task:
        from ..spark.query import SparkTask

        settings = parse_config(config)
        return SparkTask(
            context=context,
            source=lambda: make_source(settings),
            sink=lambda source: make_sink(settings, source),
            trigger_ms=settings.trigger_ms,
        )

    @classmethod
    def warm_up(cls) -> None:
        from ..spark.session import warm_up

        warm_up()


class PipelineConfig(BaseModel):
    """The settings of a pipeline; ``_`` reads ``.`` in a configuration."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, alias_generator=lambda name: name.replace("_", ".")
    )

    source: Literal["files"]
    source_path: Annotated[str, Field(min_length=1)]
    source_format: Literal["csv", "jsonl"]
    source_schema: str | None = None
    source_null: str = ""
    source_max_bytes_per_batch: Annotated[int, Field(ge=1024, le=256 << 20)] = 16 << 20
    sink: Literal["sqlite", "parquet"]
    sink_path: Annotated[str, Field(min_length=1)]
    sink_table: str | None = None
    sink_busy_timeout_ms: Annotated[int, Field(ge=1, le=60_000)] = 5_000
    trigger_ms: Annotated[int, Field(ge=10, le=3_600_000)] = 200
    # Of the framework, or added by task_configs.
    connector_class: str | None = None
    name: str | None = None
    tasks_max: str | None = None
    task: Annotated[int, Field(ge=0)] = 0
    tasks: Annotated[int, Field(ge=1)] = 1


ALLOWED: Final = {
    "source": "files",
    "source.path": "a directory, as an absolute path",
    "source.format": "csv, jsonl",
    "source.schema": "columns as NAME TYPE, separated by commas (csv: may be left out)",
    "source.null": "a word that means null in a csv field without quotes, beside the empty field",
    "source.max.bytes.per.batch": "1024 to 268435456",
    "sink": "sqlite, parquet",
    "sink.path": "a database file (sqlite) or a directory (parquet), as an absolute path",
    "sink.table": "a name of letters, digits and _, not starting with connectgroup_ or sqlite_",
    "sink.busy.timeout.ms": "1 to 60000",
    "trigger.ms": "10 to 3600000",
    "connector.class": "pipeline",
    "name": "the connector's name",
    "tasks.max": "a number from 1",
}
_TABLE: Final = re.compile(r"(?!connectgroup_|sqlite_)[A-Za-z_]\w{0,62}", re.IGNORECASE | re.ASCII)


def parse_config(config: Config) -> PipelineConfig:
    """The settings, checked against each other.

    Raises:
        ConfigError: the first setting that is missing, unknown or not allowed.
    """
    try:
        settings = PipelineConfig.model_validate(dict(config))
    except ValidationError as error:
        raise _told(error, config) from error
    for field, path in (("source.path", settings.source_path), ("sink.path", settings.sink_path)):
        # Each worker has a working directory of its own; a relative path would be another place on each.
        if not Path(path).is_absolute():
            raise ConfigError(field, path, ALLOWED[field])
    if settings.source_schema is not None:
        from_ddl(settings.source_schema)
    elif settings.source_format == "jsonl":
        raise ConfigError("source.schema", "nothing", "columns as NAME TYPE, separated by commas (jsonl needs them)")
    if settings.sink == "sqlite" and not _TABLE.fullmatch(settings.sink_table or ""):
        raise ConfigError("sink.table", settings.sink_table or "nothing", ALLOWED["sink.table"])
    if settings.sink == "parquet" and settings.sink_table is not None:
        raise ConfigError("sink.table", settings.sink_table, "nothing (sink parquet has no tables)")
    return settings


def make_source(settings: PipelineConfig) -> FileSource:
    """The source of one task; looks into the directory for a CSV header if no schema was given.

    Raises:
        ConfigError: there is no schema and no file to take it from.
        SourceError: the directory cannot be read.
    """
    from ..spark.files import list_files
    from ..spark.source import FileSource

    root = Path(settings.source_path)
    list_files(root)
    return FileSource(
        root=root,
        form=settings.source_format,
        columns=_columns(settings, root),
        task=settings.task,
        tasks=settings.tasks,
        most_bytes=settings.source_max_bytes_per_batch,
        null=settings.source_null,
    )


def make_sink(settings: PipelineConfig, source: FileSource) -> Sink:
    """Open the sink of one task.

    Raises:
        SinkError: it cannot be opened, or does not fit the source.
    """
    from ..spark.sinks import ParquetSink, SqliteSink

    path, busy_timeout_s = Path(settings.sink_path), settings.sink_busy_timeout_ms / 1000
    if settings.sink == "parquet":
        return ParquetSink(path, busy_timeout_s=busy_timeout_s)
    assert settings.sink_table is not None  # parse_config has seen to it
    return SqliteSink(path, settings.sink_table, source.columns, busy_timeout_s=busy_timeout_s)


def _columns(settings: PipelineConfig, root: Path) -> Columns:
    if settings.source_schema is not None:
        return from_ddl(settings.source_schema)
    from ..spark.lines import columns_from_header

    columns = columns_from_header(root)
    if columns is None:
        raise ConfigError("source.schema", "nothing", f"a schema, or a CSV file with a header in {root}")
    return columns


def _told(error: ValidationError, config: Config) -> ConfigError:
    """The first offence as one line; for an unknown key, with the known one that is most like it."""
    offence = error.errors()[0]
    key = ".".join(str(part) for part in offence["loc"])
    if offence["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, ALLOWED, n=1)
        allowed = f"{near[0]} (did you mean that?)" if near else ", ".join(sorted(ALLOWED))
        return ConfigError(printable(key), UNKNOWN_SETTING, allowed)
    return ConfigError(key, config.get(key, "nothing"), ALLOWED.get(key, offence["msg"]))

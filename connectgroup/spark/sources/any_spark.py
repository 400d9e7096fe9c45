"""The source ``spark``: any source of Spark's Structured Streaming, by the name of its format.

Such a source has offsets that only Spark understands. The one slice is the stream; its position is the number of
committed batches. The metadata of the position are what a query needs to continue: the last entry of the query's offset
log, and the log of the source itself (``rate`` keeps its start there). A new query gets a checkpoint made from them. So
rows and offsets are committed together, and a batch that was not committed is planned anew.

A format may be the name of a Java class, and options may name files. So only formats on a list are allowed: ``rate``
and ``rate-micro-batch``, and those in the worker's environment variable ``CONNECTGROUP_SPARK_FORMATS``.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import unquote

from pydantic import Field

from ...connector import LocalPath
from ...dataplane.columns import Column, Columns, check_names
from ...dataplane.errors import SourceError
from ...dataplane.ownership import Position, metadata_of
from ...dataplane.settings import ALLOWED_SETTINGS, PluginSettings, is_allowed
from ...dataplane.source import Source
from ...dataplane.transform import listed
from ...errors import ConfigError
from ...protocol.units import printable
from ..kafka_client import check_client_setting, is_file_setting
from ..transforms.chain import check_stored, type_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

FORMATS_VARIABLE: Final = "CONNECTGROUP_SPARK_FORMATS"
"""Environment variable of a worker: more formats, separated by commas."""
_FORMATS: Final = ("rate", "rate-micro-batch")
_SLICE: Final = "stream"
_LOG_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MAX_METADATA_BYTES: Final = 64 * 1024
"""Upper bound on what is committed of the logs with each batch. The log of a source of files exceeds it soon."""
_FILE_OPTIONS: Final = frozenset({
    "path", "maxFilesPerTrigger", "maxBytesPerTrigger", "latestFirst", "maxFileAge", "fileNameOnly", "pathGlobFilter",
    "recursiveFileLookup", "modifiedBefore", "modifiedAfter", "ignoreCorruptFiles", "ignoreMissingFiles",
    "mergeSchema", "encoding", "charset", "lineSep", "locale", "mode", "columnNameOfCorruptRecord", "dateFormat",
    "timestampFormat", "timestampNTZFormat", "enableDateTimeParsingFallback", "timeZone", "multiLine", "samplingRatio",
    "prefersDecimal", "preferDate", "inferSchema",
})  # fmt: skip
"""Not: ``cleanSource`` with ``sourceArchiveDir``, which delete and move files; ``rowValidationXSDPath`` of ``xml``."""
_SPARK_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "rate": frozenset({"rowsPerSecond", "rampUpTime", "numPartitions"}),
    "rate-micro-batch": frozenset({"rowsPerBatch", "numPartitions", "startTimestamp", "advanceMillisPerBatch"}),
    "socket": frozenset({"host", "port", "includeTimestamp", "numPartitions"}),
    "kafka": frozenset({
        "assign", "subscribe", "subscribePattern", "startingTimestamp", "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy", "startingOffsets", "failOnDataLoss", "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "maxOffsetsPerTrigger", "minOffsetsPerTrigger",
        "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "groupIdPrefix", "includeHeaders",
    }),
    "text": _FILE_OPTIONS | {"wholetext"},
    "csv": _FILE_OPTIONS | {
        "sep", "delimiter", "quote", "escape", "comment", "header", "enforceSchema", "ignoreLeadingWhiteSpace",
        "ignoreTrailingWhiteSpace", "nullValue", "nanValue", "positiveInf", "negativeInf", "maxColumns",
        "maxCharsPerColumn", "unescapedQuoteHandling", "charToEscapeQuoteEscaping", "emptyValue",
    },
    "json": _FILE_OPTIONS | {
        "primitivesAsString", "allowComments", "allowUnquotedFieldNames", "allowSingleQuotes",
        "allowNumericLeadingZeros", "allowBackslashEscapingAnyCharacter", "allowUnquotedControlChars",
        "allowNonNumericNumbers", "dropFieldIfAllNull",
    },
    "xml": _FILE_OPTIONS | {
        "rowTag", "excludeAttribute", "nullValue", "attributePrefix", "valueTag", "ignoreSurroundingSpaces",
        "ignoreNamespace", "wildcardColName",
    },
    "parquet": _FILE_OPTIONS | {"datetimeRebaseMode", "int96RebaseMode"},
    "orc": _FILE_OPTIONS,
    "binaryfile": _FILE_OPTIONS,
}  # fmt: skip
"""The options of Spark's own formats, by the name of the format in lower case."""
_PLAIN: Final = "an absolute local path without wildcards and .."
_WILDCARD: Final = re.compile(r"[][{}*?\\]")
_OTHER_SCHEME: Final = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_OPTIONS: Final = 'options of the format as a JSON object of texts, such as {"rowsPerSecond": "10"}'
_EACH: Final = (
    ". rate has rowsPerSecond (1), rampUpTime (0s), numPartitions; rate-micro-batch has rowsPerBatch, numPartitions,"
    " startTimestamp (0, milliseconds), advanceMillisPerBatch (1000); those of other formats are in Spark's manual"
)


class SparkSourceSettings(PluginSettings):
    """Settings of the source ``spark``, each with the prefix ``source.``."""

    format: Annotated[
        str,
        Field(min_length=1, description=f"{', '.join(_FORMATS)}, or a format in a worker's {FORMATS_VARIABLE}"),
    ]
    options: Annotated[str, LocalPath(within=lambda text: _files_in(text)), Field(description=_OPTIONS + _EACH)] = ""

    def model_post_init(self, _: Any) -> None:
        """Check the options.

        Raises:
            ConfigError: they are not a JSON object of texts.
        """
        _ = self.parsed_options

    @property
    def parsed_options(self) -> dict[str, str]:
        """The options of the format."""
        try:
            found = json.loads(self.options) if self.options else {}
        except (ValueError, RecursionError) as error:
            raise ConfigError("source.options", "a text", _OPTIONS) from error
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise ConfigError("source.options", "a text", _OPTIONS)
        for name, value in found.items():
            _check_option(self.format, name.lower(), name, value)
        return found


class AnySparkSource(Source):
    """The rows of a source of Spark's Structured Streaming, read by one task (``tasks.max`` 1). A format that is not
    listed here needs the permission of each worker, and its offsets must fit into 64 KiB.
    """

    Settings = SparkSourceSettings
    slice_form = (_SLICE, _SLICE)

    def __init__(self, settings: SparkSourceSettings) -> None:
        self._settings = settings

    @classmethod
    def known_columns(cls, settings: SparkSourceSettings, *, reads: bool = False) -> frozenset[str] | None:
        # Only a session of Spark knows those of other formats.
        return frozenset({"timestamp", "value"}) if settings.format in _FORMATS else None

    @classmethod
    def create(cls, settings: SparkSourceSettings, *, task: int, tasks: int) -> AnySparkSource:
        allowed = (*_FORMATS, *listed(os.environ.get(FORMATS_VARIABLE, "")))
        if settings.format not in allowed:
            raise ConfigError("source.format", settings.format, f"{', '.join(allowed)} ({FORMATS_VARIABLE})")
        if tasks != 1:
            raise ConfigError("tasks.max", str(tasks), "1 with source spark")
        return cls(settings)

    @property
    def description(self) -> str:
        return f"Spark's source {self._settings.format}"

    @cached_property
    def columns(self) -> Columns:  # type: ignore[override]
        """The columns of the format."""
        columns = [Column(field.name, type_of(field.dataType)) for field in self._fields]
        return check_names(columns, field="source.format")

    @cached_property
    def _fields(self) -> list[StructField]:
        from ..session import spark_session

        return self._load(spark_session()).schema.fields

    def check_stored(self) -> None:
        check_stored(self._fields, "source.format")

    def owns(self, slice_name: str) -> bool:
        return slice_name == _SLICE

    def stream(self, session: SparkSession, positions: Mapping[str, int]) -> DataFrame:
        return self._load(session)

    def restore(self, checkpoint: Path, positions: Mapping[str, int]) -> None:
        position = positions.get(_SLICE, 0)
        if not position:
            return
        logs = _logs_of(metadata_of(position))
        if logs is None:
            raise SourceError(
                f"{self.description}: offset {int(position)} has no log of Spark; allowed: offsets of this source, or a"
                " reset"
            )
        batch, offset = int(position) - 1, logs.pop("offset")
        files = {
            "metadata": json.dumps({"id": str(uuid.uuid4())}),
            # Spark reads the entry before the latest one too, and does nothing with it if the latest is committed.
            f"offsets/{max(batch - 1, 0)}": offset,
            f"offsets/{batch}": offset,
            f"commits/{batch}": 'v1\n{"nextBatchWatermarkMs":0}',
            **{f"sources/0/{name}": text for name, text in logs.items()},
        }
        for name, text in files.items():
            path = checkpoint / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def logged(self, checkpoint: Path, batch_id: int) -> dict[str, int]:
        logs = {"offset": (checkpoint / "offsets" / str(batch_id)).read_text()}
        before = checkpoint / "offsets" / str(batch_id - 1)
        first = _log_offset(before.read_text()) if before.exists() else -1
        # A file of an earlier batch may be moved now, with a link left: its rows have been committed.
        is_new = partial(_is_between, first, _log_offset(logs["offset"]))
        own = checkpoint / "sources" / "0"
        for path in sorted(own.iterdir()) if own.is_dir() else ():
            if path.is_file() and not path.name.startswith("."):
                logs[path.name] = path.read_text()
                self._check_files(logs[path.name], is_new)
        metadata = json.dumps(logs, separators=(",", ":"))
        if len(metadata) > _MAX_METADATA_BYTES:
            raise SourceError(
                f"{self.description}: offsets of {len(metadata)} bytes; allowed: up to {_MAX_METADATA_BYTES} bytes"
            )
        return {_SLICE: Position(batch_id + 1, metadata)}

    def _check_files(self, log: str, is_new: Callable[[object], bool]) -> None:
        """Check that no file that Spark has read is a link which leads out of the directory: who may write there could
        copy any file of the worker's user.

        Args:
            log: of the source itself. That of a source of files has a JSON object for each file.
            is_new: whether the rows of this number in the log are those of the batch.

        Raises:
            SourceError: one is.
        """
        named = [path for name, path in _files_in(self._settings.options).items() if name.lower() == "path"]
        # With the operator's permission, a path has wildcards, and .. as Hadoop reads them: without looking at links.
        roots = [_before_wildcards(form) for path in named for form in (path, os.path.normpath(path))]
        for line in log.splitlines() if roots else ():
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue  # v1
            path = _plain_path(str(entry.get("path"))) if isinstance(entry, dict) else ""
            if not path.startswith("/") or not is_new(entry.get("batchId")):
                continue
            real = Path(os.path.realpath(unquote(path)))
            if not any(Path(os.path.realpath(each)) in (real, *real.parents) for each in roots):
                link = f"{printable(unquote(path), limit=200)} links to {printable(real, limit=200)}"
                raise SourceError(f"{self.description}: {link}; allowed: links to files below {roots[0]}")

    def _load(self, session: SparkSession) -> DataFrame:
        return session.readStream.format(self._settings.format).options(**self._settings.parsed_options).load()


def _check_option(form: str, key: str, name: str, value: str) -> None:
    """Check an option of a format of Spark. Those of a format that another package brings are the operator's choice,
    but for a path of this machine, which the worker compares with its list.

    Raises:
        ConfigError: the option, or its value, is not allowed.
    """
    known = _SPARK_OPTIONS.get(form.lower())
    if is_allowed("spark", f"{form}.{name}"):
        return
    if known is None:
        if key == "path" and "/" in value and not _OTHER_SCHEME.match(value) and not _is_plain(value):
            allowed = f"{_PLAIN}, or a URL of another file system"
            raise ConfigError("source.options", f"path={value}", allowed, is_path=True)
        return
    if form.lower() == "kafka" and key.startswith("kafka."):
        if key not in ("kafka.bootstrap.servers", "kafka.group.id"):
            check_client_setting("source.options", name.removeprefix("kafka."), value)
        return
    if key not in {each.lower() for each in known}:
        allowed = f"{', '.join(sorted(known))}, and what the worker's {ALLOWED_SETTINGS} adds (spark.{form}.OPTION)"
        raise ConfigError("source.options", name, allowed)
    if key == "path" and not _is_plain(value):
        raise ConfigError("source.options", f"path={value}", _PLAIN, is_path=True)


def _is_plain(value: str) -> bool:
    """Whether a path is the same for Hadoop and for the system, by which the worker compares paths: behind a link, ..
    is another directory for Hadoop."""
    return _plain_path(value).startswith("/") and not _WILDCARD.search(value) and ".." not in value.split("/")


def _before_wildcards(path: str) -> str:
    """Return the last directory above the first wildcard; without wildcards, the path."""
    found = _WILDCARD.search(path)
    return path if found is None else path[: found.start()].rpartition("/")[0] or "/"


def _log_offset(text: str) -> int | None:
    """Return the number of the last entries of a source's own log that an entry of the offset log covers.

    Returns:
        ``None``: the source has another kind of offset.
    """
    try:
        return int(json.loads(text.split("\n")[2])["logOffset"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _is_between(first: int | None, last: int | None, number: object) -> bool:
    """Whether entries with a number are those after the first one, up to the last; also if that is not known."""
    if first is None or last is None or not isinstance(number, int):
        return True
    return first < number <= last


def _plain_path(value: str) -> str:
    return re.sub(r"^file:(//(?=/))?", "", value, flags=re.IGNORECASE)


def _files_in(text: str) -> dict[str, str]:
    """Return the files that options of a format name: Spark's are named ``path`` and those of a Kafka client."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    files: dict[str, str] = {}
    for name, value in found.items() if isinstance(found, dict) else ():
        if not isinstance(value, str):
            continue
        if name.lower() == "path" and _plain_path(value).startswith("/"):
            files[name] = _plain_path(value)
        elif name.lower().startswith("kafka.") and is_file_setting(name[6:], value):
            files[name] = value
    return files


def _logs_of(metadata: str) -> dict[str, str] | None:
    """Decode the logs in the metadata of a position; None if they are not what ``logged`` returns.

    The metadata come from the sink, and their keys become names of files: a path would lead out of the checkpoint.
    """
    try:
        logs = json.loads(metadata)
    except (ValueError, RecursionError):
        return None
    if not isinstance(logs, dict) or "offset" not in logs or not all(isinstance(text, str) for text in logs.values()):
        return None
    return logs if all(_LOG_NAME.fullmatch(name) for name in logs) else None

"""The source ``connect``: a source connector of Kafka Connect, which runs in the Java process of the worker's Spark.

A slice is a source partition of the connector, named by its JSON text. Its position counts the records that have been
committed, and the metadata of the position are the source offset, so that rows and offsets are committed together.
Which task reads a partition is the plug-in's choice (``taskConfigs``): a task claims the partition in the sink when it
has its first record. Offsets belong to the connector, not to a task: another number of tasks continues with them.

``spark.connect_runtime`` runs the plug-in, and ``spark.connect_task`` its tasks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from ...dataplane.columns import Columns
from ...dataplane.errors import SourceError
from ...dataplane.java_plugins import require_java_class
from ...dataplane.ownership import Position, metadata_of
from ...dataplane.settings import PluginSettings, settings_below, unknown_setting
from ...dataplane.source import Division, Source
from ...dataplane.transform import listed
from ...errors import ConfigError
from ...masking import is_credential

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ...dataplane.source import CommittedPositions
    from ..connect_runtime import JavaConnector, JavaTransform

METADATA: Final = ("key", "topic", "partition", "timestamp", "headers")
CONFIG: Final = "config."
"""Prefix of the plug-in's own settings."""
MAX_METADATA_BYTES: Final = 64 * 1024
"""Upper bound on a source offset, as JSON."""
_CONVERTERS: Final[Mapping[str, str]] = {
    name: name.rpartition(".")[2]
    for name in ("org.apache.kafka.connect.json.JsonConverter", "org.apache.kafka.connect.storage.StringConverter")
}
_NO_CONVERTER: Final = (
    "JsonConverter, StringConverter, which write what they do in Kafka Connect, or nothing: texts as they are, and JSON"
    " without schemas; where the record's fields are columns, no converter is needed"
)
_SCHEMAS: Final = "with JsonConverter: true, false: whether the JSON is an object of schema and payload"

_BOUNDARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "transaction.boundary": ("poll", "interval", "connector"),
    "exactly.once.support": ("requested", "required"),
}
"""Settings of the plug-in that this package reads, too, as Kafka Connect does: their values, the default first."""
_OF_SINK_TASKS: Final = (
    *("topics", "key.converter", "value.converter", "header.converter"),
    *("errors.", "consumer.override."),
)

logger = logging.getLogger(__name__)


class ConnectSettings(PluginSettings):
    """Settings of the source ``connect``, each with the prefix ``source.``; the plug-in's own begin with
    ``source.config.``."""

    # Only the plug-in knows its settings.
    model_config = ConfigDict(extra="allow")

    connector_class: Annotated[
        str,
        Field(min_length=1, description="the Java class of a source connector in a jar on the worker's plug-in path"),
    ]
    value_form: Annotated[
        Literal["columns", "json"],
        Field(
            description="columns, json: whether a record's fields are columns, or the whole value is a column value"
            " with Kafka Connect's JSON. By default columns, and json with the sink kafka, which may get records of"
            " several forms"
        ),
    ] = "columns"
    metadata: Annotated[
        str,
        Field(
            description=f"columns of the record to read beside the value: {', '.join(METADATA)}. By default none; with"
            " the sink kafka all of them, but partition only if sink.metadata is absent or lists it"
        ),
    ] = ""
    max_rows_per_batch: Annotated[int, Field(ge=1, le=1_000_000, description="1 to 1000000")] = 10_000
    snapshot_max_bytes: Annotated[
        int,
        Field(
            ge=0,
            le=1 << 34,
            description="0 to 17179869184: a snapshot of a Debezium connector up to this size is committed as one"
            " batch, because Debezium begins an interrupted one anew. Rows of a larger one are repeated then: upsert"
            " them, or use Debezium's incremental snapshots",
        ),
    ] = 256 << 20
    key_converter: Annotated[str, Field(description=_NO_CONVERTER)] = ""
    key_converter_schemas_enable: Annotated[bool, Field(description=_SCHEMAS)] = True
    value_converter: Annotated[str, Field(description=_NO_CONVERTER)] = ""
    value_converter_schemas_enable: Annotated[bool, Field(description=_SCHEMAS)] = True
    header_converter: Annotated[str, Field(description=_NO_CONVERTER)] = ""

    def model_post_init(self, _: Any) -> None:
        """Check the names.

        Raises:
            ConfigError: there is no such setting, column or converter.
        """
        for name in self.model_extra or {}:
            if not name.startswith(CONFIG):
                known = [str(field.alias or name) for name, field in type(self).model_fields.items()]
                raise unknown_setting(f"source.{name}", [f"source.{each}" for each in (*known, f"{CONFIG}NAME")])
        for name in listed(self.metadata):
            if name not in METADATA:
                raise ConfigError("source.metadata", name, ", ".join(METADATA))
        for part, converter in (
            ("key", self.key_converter),
            ("value", self.value_converter),
            ("header", self.header_converter),
        ):
            if part == "header" and converter.rpartition(".")[2] == "SimpleHeaderConverter":
                continue  # what Kafka Connect has by default, and this source, too
            if converter and converter not in (*_CONVERTERS, *_CONVERTERS.values()):
                raise ConfigError(f"{part}.converter", converter, _NO_CONVERTER)
        for name, allowed in _BOUNDARIES.items():
            value = self.plugin_config.get(name, allowed[0])
            if value.lower() not in allowed:
                raise ConfigError(name, value, ", ".join(allowed))

    @property
    def plugin_config(self) -> dict[str, str]:
        """The settings of the plug-in."""
        return settings_below({name: str(value) for name, value in (self.model_extra or {}).items()}, CONFIG)

    def row_options(self, *, is_tolerant: bool) -> dict[str, Any]:
        """How rows are made of records: the options of ``connect_runtime.JavaTask``.

        Args:
            is_tolerant: whether a record that cannot be processed is a dead letter.
        """
        return {
            "metadata": list(listed(self.metadata)),
            "json": self.value_form == "json",
            "converters": {
                "key": self._converter("key", self.key_converter, schemas=self.key_converter_schemas_enable),
                "value": self._converter("value", self.value_converter, schemas=self.value_converter_schemas_enable),
                "header": self._converter("header", self.header_converter),
            },
            "tolerant": is_tolerant,
            "records": self.max_rows_per_batch,
        }

    def _converter(self, part: str, name: str, *, schemas: bool = True) -> tuple[str, dict[str, str]]:
        """The simple name of a converter, empty without one, and its settings: also those that only it knows."""
        if not name:
            return "", {"schemas.enable": "false"}
        own = settings_below(self.plugin_config, f"{part}.converter.")
        return name.rpartition(".")[2], {"schemas.enable": str(schemas).lower(), **own}


class ConnectDivision(Division):
    """The plug-in's connector, which divides its work among tasks. It runs from the first call until ``stop``."""

    def __init__(
        self,
        cls: str,
        config: Mapping[str, str],
        positions: Callable[[], Mapping[str, int]],
        kind: Literal["source", "sink"] = "source",
        *,
        transforms: Sequence[JavaTransform] = (),
    ) -> None:
        """Store the arguments.

        Args:
            cls: the Java class.
            config: its settings.
            positions: reads the committed positions.
            kind: of the connector.
            transforms: the transformations of its tasks.
        """
        self._cls, self._config, self._positions = cls, {"connector.class": cls, **config}, positions
        self._kind: Literal["source", "sink"] = kind
        self.transforms = transforms
        # Changed by task_settings and stop.
        self._connector: JavaConnector | None = None
        self._found: list[dict[str, str]] = []

    def task_settings(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        from ..connect_runtime import JavaConnector

        if self._connector is not None and not self._connector.is_alive():
            self._connector = None
        if self._connector is None:
            read = self._positions
            self._connector = JavaConnector(
                self._cls,
                self._config,
                lambda: decoded_offsets(read()),
                self._kind,
                transforms=self.transforms,
                on_passwords=self._learn,
            )
        elif not self._connector.wants_tasks():
            return self._found
        found = self._connector.task_configs(max_tasks)
        self._found = [
            {f"{CONFIG}{name}": value for name, value in {**self._framework(), **each}.items()} for each in found
        ]
        return self._found

    def _learn(self, own: Sequence[str], others: Sequence[str]) -> None:
        """Keep the names of passwords, in the form of a pipeline's settings, that do not say so themselves."""
        names = [*(f"{self._kind}.{CONFIG}{name}" for name in own), *others]
        self.credential_names = [name for name in names if not is_credential(name)]

    def stop(self) -> None:
        connector, self._connector = self._connector, None
        if connector is not None and connector.is_alive():
            connector.stop()

    def _framework(self) -> dict[str, str]:
        """The settings that Kafka Connect gives each task, whether the plug-in does or not: some plug-ins read them,
        and a sink's worker reads its topics and converters there."""
        words = _OF_SINK_TASKS if self._kind == "sink" else tuple(_BOUNDARIES)
        names = ("name", "connector.class", "tasks.max")
        return {name: value for name, value in self._config.items() if name in names or name.startswith(words)}


class ConnectSource(Source):
    """A source connector of Kafka Connect, such as Debezium's: the plug-in runs unchanged, in the Java process of the
    worker's Spark, in a class loader of its own. `source.connector.class` is its Java class, in a jar on the worker's
    `--plugin-path`; its own settings begin with `source.config.`. In Kafka Connect's own form, `connector.class` is
    the Java class and all settings are the plug-in's, except those of the sink, the transforms and the pipeline. The
    source offsets are committed with the rows, and the plug-in's `commit` follows. Types keep their values: decimals,
    dates, times with and without a zone, bytes, arrays, maps and structs; a time of day is a text. A null in a column
    stays one, also if its field has a default, which Kafka Connect's converters write to JSON instead. A record without
    a value (a tombstone) makes no row, and a heartbeat of Debezium none, except with `source.value.form=json`. With
    `transaction.boundary=connector` in the plug-in's settings, the plug-in defines transactions (KIP-618): a batch has
    whole ones, which must fit in the memory of Java, and one that is aborted has no rows.
    """

    Settings = ConnectSettings
    metadata = frozenset(METADATA)
    columns: Columns = ()

    def __init__(self, settings: ConnectSettings, *, task: int, tasks: int) -> None:
        """Store the arguments; the plug-in starts with the task."""
        self.settings, self.task, self.tasks = settings, task, tasks
        # A field of the value may have the name of another one.
        self.metadata = frozenset(listed(settings.metadata))

    @classmethod
    def create(cls, settings: ConnectSettings, *, task: int, tasks: int) -> ConnectSource:
        require_java_class("source.connector.class", settings.connector_class, "source")
        return cls(settings, task=task, tasks=tasks)

    @classmethod
    def known_columns(cls, settings: ConnectSettings, *, reads: bool = False) -> frozenset[str] | None:
        # Those of records are known when there is one.
        return frozenset({*listed(settings.metadata), "value"}) if settings.value_form == "json" else None

    @classmethod
    def divide(cls, settings: ConnectSettings, committed: CommittedPositions) -> ConnectDivision:
        return ConnectDivision(settings.connector_class, settings.plugin_config, committed.read)

    @classmethod
    def partition_of(cls, slice_name: str, position: int) -> tuple[dict[str, Any], dict[str, Any]]:
        ((partition, offset),) = decoded_offsets({slice_name: position})
        return partition or {}, offset or {}

    @classmethod
    def slice_of(cls, partition: Mapping[str, Any], offset: Mapping[str, Any] | None) -> tuple[str, int | None]:
        name = encoded(partition)
        if offset is None:
            return name, None
        text = encoded(offset)
        if len(text) > MAX_METADATA_BYTES:
            raise ConfigError("offset", f"{len(text)} bytes", f"at most {MAX_METADATA_BYTES} bytes")
        # The number only counts records; it begins anew.
        return name, Position(1, text)

    @property
    def description(self) -> str:
        return f"Kafka Connect's {self.settings.connector_class}"

    def owns(self, slice_name: str) -> bool:
        return self.tasks == 1

    def stream(self, session: SparkSession, positions: Mapping[str, int]) -> DataFrame:
        """Raise an error: the plug-in is polled, there is no stream of Spark's."""
        raise SourceError(f"{self.description}: has no stream of Spark; allowed: a task, which polls it")


def encoded(value: Any) -> str:
    """Return a source partition or offset as the JSON text that names it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def is_within_snapshot(offset: Any) -> bool:
    """Whether a source offset is one in the middle of a snapshot of Debezium."""
    if not isinstance(offset, dict):
        return False
    return offset.get("snapshot") not in (None, False, "false") and offset.get("snapshot_completed") is not True


def decoded_offsets(positions: Mapping[str, int]) -> list[tuple[Any, Any]]:
    """Return the source partitions and offsets of positions.

    Raises:
        SourceError: a position is not one of this source.
    """
    return list(_decoded(positions.items()))


def _decoded(positions: Iterable[tuple[str, int]]) -> Iterable[tuple[Any, Any]]:
    for name, position in positions:
        try:
            yield json.loads(name), json.loads(metadata_of(position))
        except (ValueError, RecursionError):
            raise SourceError(
                f"slice {name}: position {int(position)} has no source offset; allowed: offsets of this source, or a"
                " reset"
            ) from None

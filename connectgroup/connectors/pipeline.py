"""The connector ``pipeline``: rows from one source into one sink, exactly once, on Spark.

Source and sink are plug-ins (``dataplane.source``, ``dataplane.sink``), found by entry point; the settings ``source``
and ``sink`` name them. Transforms (``connectors.transforms``) change the rows in between. Every task reads the slices
that the source assigns to it (``Source.owns``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, field_validator
from pydantic_core import PydanticCustomError

from ..assign.placement import RESERVED
from ..config.paths import path_settings
from ..connector import Config, Connector, PartitionOffset, Task, TaskContext
from ..dataplane.columns import Columns, from_ddl
from ..dataplane.dead_letters import DeadLetterSink
from ..dataplane.errors import BadLine, SourceError
from ..dataplane.settings import (
    NOT_INSTALLED,
    PluginSettings,
    parse_settings,
    setting_names,
    settings_below,
    unknown_setting,
)
from ..dataplane.sink import PositionStore, Sink
from ..dataplane.source import CommittedPositions, Division, Source
from ..dataplane.transform import listed
from ..errors import NO_VALUE, UNKNOWN_SETTING, ConfigError, ConnectGroupError, PluginError
from ..plugins import available, load_sink_class, load_source_class
from ..spark.converters import CONVERTERS, check_pair
from ..spark.remote import REMOTE, remote_address
from ..spark.sinks.connect import TOPICS, ConnectSink
from ..spark.sources.connect import CONFIG, ConnectDivision, ConnectSource
from .loops import check_apart
from .transforms import PREDICATES, TRANSFORMS, check_predicates, check_types, parse_chain, split_java

if TYPE_CHECKING:
    from ..spark.connect_runtime import JavaTransform
    from ..spark.query import Pipeline
    from ..spark.transforms.chain import Chain

LAYOUT: Final = "layout"
SOURCE: Final = "source."
SINK: Final = "sink."
_CONVERTED: Final = "the setting of the source and of the sink that have it, if they lack it"
_DDL: Final = ("files", "parquet", "sqlite", "kafka")
"""Sources whose schema is a list of columns."""
_PREFIXES: Final = (SOURCE, SINK, TRANSFORMS, PREDICATES)


class PipelineConnector(Connector):
    """The connector of the entry point ``pipeline``. ``PipelineSettings`` lists the settings."""

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        if LAYOUT in config:
            raise ConfigError(LAYOUT, UNKNOWN_SETTING, "nothing: the pipeline sets it for its tasks")
        self._parsed = _parse(config)
        self._division: Division | None = None

    @classmethod
    def settings_models(cls, config: Config) -> Mapping[str, type[BaseModel]]:
        """The pipeline's own settings, and those of the source and the sink that it names."""
        models: dict[str, type[BaseModel]] = {"": PipelineSettings}
        # A plug-in that cannot be loaded has no settings to list; the check of the configuration reports it.
        with suppress(ConfigError, PluginError):
            models[SOURCE] = load_source_class(config.get("source", "")).Settings
        with suppress(ConfigError, PluginError):
            models[SINK] = load_sink_class(config.get("sink", "")).Settings
        return models

    def task_configs(self, max_tasks: int) -> Sequence[Config]:
        parsed = self._parsed
        if self._division is None:
            self._division = parsed.division(self.name)
        configs: Sequence[Config]
        if self._division is not None:
            prefix = SINK if issubclass(parsed.sink, ConnectSink) else SOURCE
            configs = _divided(parsed.config, prefix, self._division.task_settings(max_tasks))
        else:
            common = {**self.config, "tasks": str(max_tasks)}
            configs = [{**common, "task": str(task)} for task in range(max_tasks)]
        layout = parsed.source.task_layout(parsed.source_settings)
        return [{**config, LAYOUT: layout} for config in configs] if layout else configs

    def stop(self) -> None:
        if self._division is not None:
            self._division.stop()

    def task(self, config: Config, context: TaskContext) -> Task:
        from ..spark.query import SparkTask

        parsed = _parse(config)
        if issubclass(parsed.source, ConnectSource):
            from ..spark.connect_task import ConnectTask

            return ConnectTask(context, parsed.pipeline(), parsed.java_transforms)
        return SparkTask(context, parsed.pipeline())

    def offsets(self) -> Sequence[PartitionOffset]:
        source = self._parsed.source
        with self._positions() as store:
            found = store.positions(self.name) if store is not None else {}
        shown = (source.partition_of(name, position) for name, position in found.items())
        return [PartitionOffset(partition=partition, offset=offset) for partition, offset in shown]

    def alter_offsets(self, fencing_token: int, changes: Sequence[PartitionOffset] | None) -> bool:
        source, is_complete = self._parsed.source, True
        positions: dict[str, int | None] | None = None
        if changes is not None:
            positions = {}
            for change in changes:
                name, position = source.slice_of(change.partition, change.offset)
                if name in positions:
                    raise ConfigError("partition", name, "each partition once")
                positions[name] = position
        with self._positions() as store:
            if store is None:
                raise PluginError(
                    "the connector doesn't support external modification of offsets: its sink stores none outside of "
                    "the task; allowed: another sink, or a file as sink.offsets"
                )
            if issubclass(source, ConnectSource) or issubclass(self._parsed.sink, ConnectSink):
                is_complete = self._check_java(changes or [replace(each, offset=None) for each in self.offsets()])
            store.alter(self.name, fencing_token, positions)
        return is_complete

    def _check_java(self, changes: Sequence[PartitionOffset]) -> bool:
        """Ask the plug-in about new offsets; return its answer. Raises ``PluginError`` with its objection."""
        from ..spark.connect_runtime import check_offsets

        parsed = self._parsed
        is_source = issubclass(parsed.source, ConnectSource)
        settings = parsed.source_settings if is_source else parsed.sink_settings
        config = {"name": self.name, "connector.class": settings.connector_class, **settings.plugin_config}
        asked: list[tuple[Any, ...]] = [(dict(each.partition), each.offset) for each in changes]
        if not is_source:
            asked = [
                (at["kafka_topic"], at["kafka_partition"], offset and offset["kafka_offset"]) for at, offset in asked
            ]
        return check_offsets(settings.connector_class, "source" if is_source else "sink", config, asked)

    @property
    def credential_names(self) -> Sequence[str]:
        return self._division.credential_names if self._division is not None else ()

    @property
    def fenced(self) -> bool:
        return self._parsed.sink.fenced

    def check_access(self, max_tasks: int) -> Mapping[str, ConnectGroupError]:
        parsed = self._parsed
        checks: dict[str, Callable[[], None]] = {
            "source": lambda: parsed.source.check_access(parsed.source_settings, tasks=max_tasks),
            "sink": lambda: parsed.sink.check_access(parsed.sink_settings),
        }
        if any(step.predicate is not None and step.predicate.requires for step in parsed.chain):
            checks["predicates"] = self._check_predicates
        errors: dict[str, ConnectGroupError] = {}
        for part, check in checks.items():
            try:
                check()
            except ConnectGroupError as error:
                is_tolerant = parsed.settings.errors_tolerance == "all"
                if isinstance(error, BadLine) and is_tolerant and "source.schema" in parsed.config:
                    continue  # its rows are dead letters; without a schema there are no columns
                errors[error.field if isinstance(error, ConfigError) else self._setting_of(part, error)] = error
        return errors

    def _setting_of(self, part: str, error: ConnectGroupError) -> str:
        """The setting that an error belongs to: that of a path that cannot be read, or else the source or sink."""
        where = str(error).partition(": ")[0]
        for setting in path_settings(type(self), self.config):
            path = Path(self.config.get(setting, ""))
            if setting.startswith(f"{part}.") and where in map(str, (path, *path.parents)):
                return part if os.access(where, os.R_OK) else setting
        return part

    def _check_predicates(self) -> None:
        with suppress(SourceError):  # the check of the source reports it
            columns = self._parsed.source.known_columns(self._parsed.source_settings, reads=True)
            if columns is not None:
                check_predicates(self._parsed.chain, columns, self.config["source"])

    @contextmanager
    def _positions(self) -> Iterator[PositionStore | None]:
        """The positions that the sink stores; None if the sink does not offer them."""
        store = self._parsed.sink.open_positions(self._parsed.sink_settings)
        try:
            yield store
        finally:
            if store is not None:
                store.close()

    @classmethod
    def warm_up(cls) -> None:
        from ..spark.warm_up import warm_up

        warm_up()

    @classmethod
    def starts_cold(cls, config: Config) -> bool:
        if remote_address():
            return False
        from ..spark.session import check_spark

        check_spark()
        try:
            source = load_source_class(config.get("source", ""))
        except (ConfigError, PluginError):
            return False  # its tasks report that
        return not config.get("transforms", "").strip() and _starts_without_spark(source, config)


class PipelineSettings(PluginSettings):
    """The settings of the pipeline itself. Those of its source and sink are prefixed ``source.`` and ``sink.``."""

    source: Annotated[str, Field(description="the name of an installed source")]
    sink: Annotated[str, Field(description="the name of an installed sink")]
    trigger_ms: Annotated[int, Field(ge=10, le=3_600_000, description="10 to 3600000")] = 200
    transforms: Annotated[str, Field(description="names of transforms, separated by commas")] = ""
    predicates: Annotated[str, Field(description="names of predicates, separated by commas")] = ""
    errors_tolerance: Annotated[
        Literal["none", "all"],
        Field(description="none, all: whether a record that cannot be processed fails the task or is a dead letter"),
    ] = "none"
    errors_deadletterqueue_name: Annotated[
        str, Field(description="the table or topic of dead letters, in the sink's database or cluster")
    ] = ""
    key_converter: Annotated[str | None, Field(description=_CONVERTED)] = None
    key_converter_schemas_enable: Annotated[str | None, Field(description=_CONVERTED)] = None
    value_converter: Annotated[str | None, Field(description=_CONVERTED)] = None
    value_converter_schemas_enable: Annotated[str | None, Field(description=_CONVERTED)] = None
    value_converter_avro_schema: Annotated[str | None, Field(description=_CONVERTED)] = None
    value_converter_avro_encoding: Annotated[str | None, Field(description=_CONVERTED)] = None
    header_converter: Annotated[str | None, Field(description=_CONVERTED)] = None
    errors_log_enable: Annotated[
        bool, Field(description="true, false: whether each dead letter is logged as one line, with place and reason")
    ] = False
    errors_log_include_messages: Annotated[
        bool, Field(description="true, false: whether that line contains the record, which may be confidential")
    ] = False
    # Settings of the framework, or added by task_configs.
    connector_class: Annotated[str | None, Field(description="pipeline")] = None
    name: Annotated[str | None, Field(description="the connector's name")] = None
    tasks_max: Annotated[str | None, Field(description="a number from 1")] = None
    task: Annotated[int, Field(ge=0, exclude=True, description="the task's number, from 0")] = 0
    layout: Annotated[str, Field(exclude=True, description="the slices of the source")] = ""
    tasks: Annotated[int, Field(ge=1, exclude=True, description="the number of tasks, from 1")] = 1

    @field_validator("source")
    @classmethod
    def _source_is_installed(cls, name: str) -> str:
        return _installed("sources", name)

    @field_validator("sink")
    @classmethod
    def _sink_is_installed(cls, name: str) -> str:
        return _installed("sinks", name)


def _installed(kind: Literal["sources", "sinks"], name: str) -> str:
    """Check the name of a plug-in; the message of the pydantic error lists the allowed names."""
    names = available(kind)
    if name not in names:
        raise PydanticCustomError(NOT_INSTALLED, "{names}", {"names": ", ".join(names)})
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parsed:
    """A configuration with its classes and settings, checked.

    Attributes:
        chained: the configuration without the transformations of Java.
    """

    config: Config
    settings: PipelineSettings
    source: type[Source]
    source_settings: Any
    sink: type[Sink]
    sink_settings: Any
    chain: Chain
    chained: Config
    java_transforms: Sequence[JavaTransform]

    def division(self, connector: str) -> Division | None:
        """Return what divides the work among tasks, if the source or the sink does that while it runs."""
        if issubclass(self.sink, ConnectSink):
            settings = self.sink_settings
            return ConnectDivision(
                settings.connector_class, settings.plugin_config, dict, "sink", transforms=self.java_transforms
            )
        division = self.source.divide(self.source_settings, self.committed(connector))
        if isinstance(division, ConnectDivision):
            division.transforms = self.java_transforms
        return division

    def open_sink(self, columns: Columns) -> Sink:
        """Open the sink for rows of these columns."""
        if issubclass(self.sink, ConnectSink):
            return self.sink(self.sink_settings, columns, self.java_transforms)
        return self.sink.create(self.sink_settings, columns)

    def committed(self, connector: str) -> CommittedPositions:
        """Return where the positions of a connector are."""
        return CommittedPositions.of(connector, self.sink, settings_below(self.config, SINK))

    def pipeline(self) -> Pipeline:
        """Return what a task runs."""
        from ..spark.query import Pipeline

        settings, source = self.settings, self.source
        return Pipeline(
            source=lambda: source.create(self.source_settings, task=settings.task, tasks=settings.tasks),
            chain=lambda opened: parse_chain(self.chained, opened.metadata),
            sink=self.open_sink,
            committed=self.committed,
            starts_without_spark=not self.chain and _starts_without_spark(source, self.config),
            tasks=settings.tasks,
            trigger_ms=settings.trigger_ms,
            dead_letters=settings.errors_deadletterqueue_name,
            logs_dead_letters=settings.errors_log_enable,
            logs_records=settings.errors_log_include_messages,
        )


def parse_config(config: Config) -> Pipeline:
    """Check a configuration. Imports the plug-ins of the source and the sink, and opens nothing.

    Raises:
        ConfigError: a setting is missing, unknown or not allowed; carries the first one.
        PluginError: the source or the sink cannot be loaded.
    """
    return _parse(config).pipeline()


def _parse(config: Config) -> _Parsed:
    """Check a configuration, as ``parse_config``."""
    own = setting_names(PipelineSettings)
    if not (config.get("source") and config.get("sink")):
        # A misspelt one is also a missing one, and the misspelling is what must be corrected.
        for key in config:
            if key not in own and not key.startswith(_PREFIXES):
                raise _unknown(key, own)
    if not config.get("source"):
        raise ConfigError("source", config.get("source", NO_VALUE), ", ".join(available("sources")))
    if not config.get("sink"):
        raise ConfigError("sink", config.get("sink", NO_VALUE), ", ".join(available("sinks")))
    source, sink = load_source_class(config["source"]), load_sink_class(config["sink"])
    config = _with_connect_defaults(_with_converters(config, source, sink))
    known = [
        *own,
        *setting_names(source.Settings, SOURCE),
        *setting_names(sink.Settings, SINK),
    ]
    for key in config:
        if key not in known and not key.startswith((TRANSFORMS, PREDICATES, *_free_prefixes(source, sink))):
            raise _unknown(key, known)
    settings = parse_settings(
        PipelineSettings, {key: value for key, value in config.items() if not key.startswith(_PREFIXES)}
    )
    _check_remote(settings, source)
    _check_dead_letters(settings, sink)
    is_java = issubclass(source, ConnectSource) or issubclass(sink, ConnectSink)
    chained, java_transforms = split_java(config, is_sink=issubclass(sink, ConnectSink)) if is_java else (config, ())
    chain = parse_chain(chained, source.metadata)
    source_settings = parse_settings(source.Settings, settings_below(config, SOURCE), prefix=SOURCE)
    sink_settings = parse_settings(sink.Settings, settings_below(config, SINK), prefix=SINK)
    if (columns := source.known_columns(source_settings)) is not None:
        check_predicates(chain, columns, config["source"])
    ddl = getattr(source_settings, "schema_", None)
    if config["source"] in _DDL and isinstance(ddl, str):
        check_types(chain, {column.name: column.type for column in from_ddl(ddl)})
    if not settings.transforms:  # they may make other columns of it
        check_pair(source_settings, sink_settings)
    sink_paths = [setting for setting in path_settings(PipelineConnector, config) if setting.startswith(SINK)]
    check_apart(config, source_settings, sink_settings, chain, sink_paths)
    return _Parsed(
        config=config,
        settings=settings,
        source=source,
        source_settings=source_settings,
        sink=sink,
        sink_settings=sink_settings,
        chain=chain,
        chained=chained,
        java_transforms=java_transforms,
    )


def _starts_without_spark(source: type[Source], config: Config) -> bool:
    is_tolerant = bool(config.get("errors.deadletterqueue.name", "").strip())
    return source.starts_without_spark(settings_below(config, SOURCE), is_tolerant=is_tolerant)


def _divided(config: Config, prefix: str, settings: Sequence[Mapping[str, str]]) -> Sequence[Config]:
    """Return the configurations of tasks whose source or sink has settings of each task's own."""
    found = []
    for task, own in enumerate(settings):
        words = tuple({f"{prefix}{name.partition('.')[0]}." for name in own})
        common = {key: value for key, value in config.items() if not key.startswith(words)}
        numbers = {"tasks": str(len(settings)), "task": str(task)}
        found.append({**common, **{prefix + name: value for name, value in own.items()}, **numbers})
    return found


def _free_prefixes(source: type[Source], sink: type[Sink]) -> tuple[str, ...]:
    """Return the prefixes of settings of which only a plug-in in Java knows which there are."""
    free = (SOURCE, issubclass(source, ConnectSource)), (SINK, issubclass(sink, ConnectSink))
    return tuple(f"{prefix}{CONFIG}" for prefix, is_java in free if is_java)


def _with_connect_defaults(config: Config) -> Config:
    """Return a configuration in which the source ``connect`` makes the records that the sink ``kafka`` writes, or the
    sink ``connect`` has the topics and the offsets of the source ``kafka``.
    """
    if config["source"] == "kafka" and config["sink"] == "connect":
        named = {f"{SINK}{CONFIG}{name}": config.get(f"{SOURCE}{name}", "") for name in TOPICS}
        topics = {name: value for name, value in named.items() if value}
        # The source would publish its positions to the group that has the offsets of the sink.
        shared = {**topics, f"{SOURCE}publish.offsets": "false"}
        return {name: value for name, value in config.items() if name not in named} | shared
    if config["source"] != "connect" or config["sink"] != "kafka":
        return config
    defaults = {f"{SOURCE}value.form": "json"}
    if config.get(f"{SOURCE}value.form", "json") == "json":
        # Where sink.metadata does not list it, a column partition would be a field of the value.
        own = config.get(f"{SINK}metadata")
        keeps = own is None or "partition" in listed(own)
        defaults[f"{SOURCE}metadata"] = f"key,topic,{'partition,' if keeps else ''}timestamp,headers"
    defaults[f"{SINK}keep.partitions"] = "true"
    return {**defaults, **config}


def _with_converters(config: Config, source: type[Source], sink: type[Sink]) -> Config:
    """Return a configuration in which the converters are settings of the source and of the sink.

    Raises:
        ConfigError: neither source nor sink has converters.
    """
    result = dict(config)
    for name in CONVERTERS:
        if name not in config:
            continue
        ends = [
            prefix + name
            for prefix, plugin in ((SOURCE, source), (SINK, sink))
            if prefix + name in setting_names(plugin.Settings, prefix)
        ]
        if issubclass(source, ConnectSource):
            ends = ends[:1]  # It makes the text; the sink writes it as it is.
        if not ends:
            raise ConfigError(name, config[name], "nothing: neither the source nor the sink has converters")
        result.update({end: config[name] for end in ends if end not in config})
    return result


def _unknown(key: str, known: Sequence[str]) -> ConfigError:
    """Return the error for an unknown setting; it names the other sources or sinks that have this setting."""
    shown = [name for name in known if name not in ("name", LAYOUT, *RESERVED)]
    if key.startswith(SOURCE):
        owners = [f"source {name}" for name in available("sources") if key in _settings_of("sources", name)]
    else:
        owners = [f"sink {name}" for name in available("sinks") if key in _settings_of("sinks", name)]
    if not owners:
        return unknown_setting(key, shown)
    prefix = key.partition(".")[0] + "."
    allowed = ", ".join(name for name in shown if name.startswith(prefix))
    return ConfigError(key, UNKNOWN_SETTING, f"{allowed}; {key} is a setting of {' and '.join(owners)}")


def _settings_of(kind: Literal["sources", "sinks"], name: str) -> list[str]:
    """Return the settings of an installed source or sink; none if it cannot be loaded."""
    try:
        if kind == "sources":
            return setting_names(load_source_class(name).Settings, SOURCE)
        return setting_names(load_sink_class(name).Settings, SINK)
    except ConnectGroupError:
        return []


def _check_remote(settings: PipelineSettings, source: type[Source]) -> None:
    """Reject a source that a worker on Spark Connect cannot read."""
    if remote_address() and not source.reads_remotely:
        names = [other for other in available("sources") if load_source_class(other).reads_remotely]
        raise ConfigError(
            "source",
            settings.source,
            f"with Spark Connect ({REMOTE}) the sources {', '.join(names)}, or a worker with its own Spark",
        )


def _check_dead_letters(settings: PipelineSettings, sink: type[Sink]) -> None:
    name = settings.errors_deadletterqueue_name
    if (settings.errors_tolerance == "all") != bool(name):
        raise ConfigError(
            "errors.deadletterqueue.name", name or NO_VALUE, "a table or topic with errors.tolerance all, else nothing"
        )
    if name and not issubclass(sink, DeadLetterSink):
        names = [other for other in available("sinks") if issubclass(load_sink_class(other), DeadLetterSink)]
        raise ConfigError("errors.tolerance", "all", f"none, or one of the sinks {', '.join(names)}")

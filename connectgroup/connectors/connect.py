"""Connectors of Kafka Connect in Kafka Connect's own form: ``connector.class`` is the Java class.

Such a configuration is a pipeline from the source ``connect``, or to the sink ``connect``: the settings of the other
end, of the transforms and of the pipeline itself are its own, and all settings but those of the other end are the
plug-in's, as in Kafka Connect. Without a sink, the records of a source go to Kafka; those of a sink come from there.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Final

from pydantic import BaseModel, Field

from ..assign.placement import RESERVED
from ..connector import Config, LocalPath, Task, TaskContext
from ..dataplane.java_plugins import (
    CONSUMER_OVERRIDES,
    CONVERTERS_OF_SINKS,
    converter_plugin,
    java_class_name,
    require_java_class,
)
from ..dataplane.settings import PluginSettings, setting_names, unknown_setting
from ..errors import NO_VALUE, ConfigError, PluginError
from ..plugins import load_sink_class
from ..spark.converters import CONVERTERS
from ..spark.kafka_client import client_files
from ..spark.sources.connect import CONFIG, ConnectSettings
from .pipeline import LAYOUT, SINK, SOURCE, PipelineConnector, PipelineSettings
from .transforms import PREDICATES, TRANSFORMS

_OWN: Final = frozenset(setting_names(PipelineSettings)) - {"source"}
_OF_SOURCE: Final = frozenset(setting_names(ConnectSettings, SOURCE)) - {f"{SOURCE}connector.class"}
_NOT_THE_PLUGINS: Final = frozenset({"sink", "trigger.ms", LAYOUT, *RESERVED})
_PLUGIN: Final = f"{SOURCE}{CONFIG}"
_DEAD_LETTERS: Final = "errors.deadletterqueue.name"
_CONNECTS_DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"


class JavaSettings(PipelineSettings):
    """The settings of the pipeline of a source connector of Kafka Connect."""

    source: Annotated[str, Field(exclude=True, description="connect")] = "connect"
    sink: Annotated[str, Field(description="the name of an installed sink")] = "kafka"


class JavaSourceSettings(ConnectSettings):
    """The settings of the source ``connect`` beside ``connector.class``."""

    connector_class: Annotated[str, Field(exclude=True, description="a Java class")] = ""


class JavaSourceConnector(PipelineConnector):
    """A pipeline from a source connector of Kafka Connect, whose Java class is ``connector.class``."""

    def __init__(self, name: str, config: Config) -> None:
        require_java_class("connector.class", java_class_name(config.get("connector.class", "")), "source")
        for key in config:
            near = difflib.get_close_matches(key, _OF_SOURCE, n=1, cutoff=0.85)
            if key.startswith(SOURCE) and near and key not in _OF_SOURCE:
                raise unknown_setting(key, _OF_SOURCE)
        super().__init__(name, pipeline_form({"name": name, **config}))
        self.config = config

    @classmethod
    def settings_models(cls, config: Config) -> Mapping[str, type[BaseModel]]:
        models: dict[str, type[BaseModel]] = {"": JavaSettings, SOURCE: JavaSourceSettings}
        # A plug-in that cannot be loaded has no settings to list; the check of the configuration reports it.
        with suppress(ConfigError, PluginError):
            models[SINK] = load_sink_class(config.get("sink", "kafka")).Settings
        return models

    def task_configs(self, max_tasks: int) -> Sequence[Config]:
        return [connect_form(config) for config in super().task_configs(max_tasks)]

    @property
    def credential_names(self) -> Sequence[str]:
        return [name.removeprefix(_PLUGIN) for name in super().credential_names]

    def task(self, config: Config, context: TaskContext) -> Task:
        return super().task(pipeline_form(config), context)


def pipeline_form(config: Config) -> dict[str, str]:
    """Return a configuration in Kafka Connect's form as that of a pipeline."""
    cls = java_class_name(config.get("connector.class", ""))
    config = {**config, "connector.class": cls}
    result = {"sink": "kafka", "source": "connect", f"{SOURCE}connector.class": cls}
    for key, value in config.items():
        if key in _OF_SOURCE or key.startswith(SINK):
            result[key] = value
            continue
        if key in _OWN or key.startswith((TRANSFORMS, PREDICATES)):
            result[key] = value
        if key not in _NOT_THE_PLUGINS:
            result[_PLUGIN + key] = value
    return result


def connect_form(config: Config) -> dict[str, str]:
    """Return the configuration of a pipeline's task in Kafka Connect's form; the inverse of ``pipeline_form``."""
    plugin = {key.removeprefix(_PLUGIN): value for key, value in config.items() if key.startswith(_PLUGIN)}
    dropped = ("source", f"{SOURCE}connector.class")
    return plugin | {key: value for key, value in config.items() if not key.startswith(_PLUGIN) and key not in dropped}


class JavaSinkPipelineSettings(PipelineSettings):
    """The settings of the pipeline of a sink connector of Kafka Connect."""

    source: Annotated[str, Field(exclude=True, description="kafka")] = "kafka"
    sink: Annotated[str, Field(exclude=True, description="connect")] = "connect"


class JavaSinkSourceSettings(PluginSettings):
    """The settings of the source ``kafka`` that a sink connector may have; the source itself checks them."""

    bootstrap_servers: Annotated[str, Field(min_length=1, description="host:port, separated by commas")]
    client: Annotated[
        str,
        LocalPath(within=client_files),
        Field(description="settings of the Kafka client as a JSON object, such as security.protocol"),
    ] = ""
    starting_offsets: Annotated[str, Field(description="earliest, latest")] = "earliest"
    isolation_level: Annotated[str, Field(description="read_committed, read_uncommitted")] = "read_committed"
    max_rows_per_batch: Annotated[str, Field(description="1 to 10000000")] = "100000"


_SINKS_SOURCE: Final = frozenset(setting_names(JavaSinkSourceSettings, SOURCE))


class JavaSinkConnector(PipelineConnector):
    """A pipeline from the source ``kafka`` to a sink connector of Kafka Connect, whose Java class is
    ``connector.class``; ``topics`` or ``topics.regex``, and ``source.bootstrap.servers``, say what it reads."""

    def __init__(self, name: str, config: Config) -> None:
        for setting in ("key.converter", "value.converter"):
            if not config.get(setting):
                raise ConfigError(
                    setting, NO_VALUE, "the Java class of a converter: workers have none for all connectors"
                )
        plugin = require_java_class("connector.class", java_class_name(config.get("connector.class", "")), "sink")
        for setting in CONVERTERS_OF_SINKS:
            if config.get(setting):
                converter_plugin(setting, config[setting], plugin)
        super().__init__(name, sink_pipeline_form({"name": name, **config}))
        self.config = config

    @classmethod
    def settings_models(cls, config: Config) -> Mapping[str, type[BaseModel]]:
        return {"": JavaSinkPipelineSettings, SOURCE: JavaSinkSourceSettings}

    def task_configs(self, max_tasks: int) -> Sequence[Config]:
        plugin = f"{SINK}{CONFIG}"
        return [
            {key.removeprefix(plugin): value for key, value in config.items() if key.startswith(plugin)}
            | {key: value for key, value in config.items() if key in _NOT_THE_PLUGINS or key in self.config}
            for config in super().task_configs(max_tasks)
        ]

    @property
    def credential_names(self) -> Sequence[str]:
        return [name.removeprefix(f"{SINK}{CONFIG}") for name in super().credential_names]

    def task(self, config: Config, context: TaskContext) -> Task:
        return super().task(sink_pipeline_form(config), context)


def sink_pipeline_form(config: Config) -> dict[str, str]:
    """Return the configuration of a sink connector in Kafka Connect's form as that of a pipeline.

    Raises:
        ConfigError: the brokers are missing.
    """
    cls = java_class_name(config.get("connector.class", ""))
    if not config.get(f"{SOURCE}bootstrap.servers"):
        raise ConfigError(f"{SOURCE}bootstrap.servers", NO_VALUE, "host:port of the cluster with the topics")
    bytes_ = "org.apache.kafka.connect.converters.ByteArrayConverter"
    result = {
        "source": "kafka",
        f"{SOURCE}metadata": "key,topic,partition,offset,timestamp,timestamp_type,headers",
        **{f"{SOURCE}{part}.converter": bytes_ for part in ("key", "value", "header")},
        f"{SOURCE}publish.offsets": "false",
        "sink": "connect",
        f"{SINK}connector.class": cls,
        f"{SINK}bootstrap.servers": config[f"{SOURCE}bootstrap.servers"],
    }
    for key in ("topics", "topics.regex"):
        if config.get(key):
            result[SOURCE + key] = config[key]
    result |= {SOURCE + name: config[key] for key, name in CONSUMER_OVERRIDES.items() if key in config}
    if config.get("errors.tolerance") == "all" and config.get(_CONNECTS_DEAD_LETTERS):
        result[_DEAD_LETTERS] = config[_CONNECTS_DEAD_LETTERS]
    if f"{SOURCE}client" in config:
        result[f"{SINK}client"] = config[f"{SOURCE}client"]
    for key, value in {**config, "connector.class": cls}.items():
        if key in _SINKS_SOURCE:
            result[key] = value
            continue
        if (key in _OWN or key.startswith((TRANSFORMS, PREDICATES))) and key not in CONVERTERS:
            result[key] = value
        if key not in _NOT_THE_PLUGINS:
            result[f"{SINK}{CONFIG}{key}"] = value
    return result

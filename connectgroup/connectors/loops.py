"""Rejects a pipeline that reads what it writes: its rows would be read again and again, without end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from ..config.paths import within
from ..connector import Config
from ..dataplane.postgres_store import parse_url
from ..dataplane.transform import listed
from ..errors import NO_VALUE, ConfigError
from ..protocol.units import printable
from ..spark.sources.listing import is_listed
from ..spark.transforms.chain import Chain
from ..topics import matching_topics

if TYPE_CHECKING:
    from ..spark.sinks.kafka import KafkaSinkSettings
    from ..spark.sources.kafka import KafkaSourceSettings

_DIRECTORIES: Final = ("files", "parquet", "spark")
"""Sources that may read all files of a directory."""
_FILES: Final = ("sqlite", "console")
"""Sinks whose paths are files, not directories."""
_KEEPS_TOPIC: Final = frozenset({
    "Cast", "ExtractField", "Flatten", "HoistField", "InsertField", "MaskField", "TimestampConverter", "ValueToKey",
})  # fmt: skip
"""Transforms after which there are as many rows, each with its topic. Others may end a loop."""


def check_apart(config: Config, source: Any, sink: Any, chain: Chain, sink_paths: Iterable[str]) -> None:
    """Check that a sink does not write what the source reads, nor rows where dead letters belong.

    Args:
        config: the settings of the connector.
        source, sink: the settings of its source and of its sink.
        chain: its transforms.
        sink_paths: the settings of the sink that are local paths.

    Raises:
        ConfigError: the sink, or its dead letters, would be written to a table, to a topic or below a directory that
            the source reads; carries the setting.
    """
    letters = config.get("errors.deadletterqueue.name", "")
    if config["sink"] in ("sqlite", "postgres") and letters and _is_same_table(config, letters, "sink.table"):
        allowed = "another table than sink.table: dead letters have columns of their own"
        raise ConfigError("errors.deadletterqueue.name", letters, allowed)
    if config["source"] == config["sink"] and config["source"] in ("sqlite", "postgres"):
        _check_tables(config)
    if config["source"] == "kafka":
        _check_topics(config, source, sink, chain)
    directory = config.get("source.path", "")
    if config["source"] == "spark":
        options = {name.lower(): value for name, value in source.parsed_options.items()}
        directory = options.get("path", "").removeprefix("file:")
    if config["source"] in _DIRECTORIES and os.path.isabs(directory) and "\0" not in directory:
        _check_directories(config, directory, getattr(source, "file_pattern", ""), sink_paths)


def _is_same_table(config: Config, name: str, setting: str) -> bool:
    other = config.get(setting, "")
    # SQLite does not distinguish a from A.
    return name.lower() == other.lower() if config["sink"] == "sqlite" else name == other


def _check_tables(config: Config) -> None:
    if config["sink"] == "sqlite":
        is_same = within(config.get("sink.path", ""), config.get("source.path", "")) == ()
    else:
        is_same = _server(config, "source") == _server(config, "sink")
    for setting in ("sink.table", "errors.deadletterqueue.name") if is_same else ():
        if _is_same_table(config, config.get(setting, ""), "source.table"):
            raise ConfigError(setting, config[setting], "another table than source.table")


def _server(config: Config, part: str) -> tuple[str, ...]:
    """Return the server, the database and the schema of a source or sink of PostgreSQL. Not the user: that of a source
    may have fewer rights."""
    url = config.get(f"{part}.url", "")
    options = parse_url(f"{part}.url", url)
    place = (
        (options.get("host", "").lower(), options.get("port", "5432"), options.get("dbname") or options.get("user", ""))
        if options
        else (url,)
    )
    return (*place, config.get(f"{part}.schema") or "public")


def _check_topics(config: Config, source: KafkaSourceSettings, sink: Any, chain: Chain) -> None:
    if config["sink"] == "kafka" and not _servers(source) & _servers(sink):
        return
    topics = listed(source.topics)
    # A process that only checks configurations may lack RE2.
    expression = source.topics_regex if find_spec("re2") is not None else ""

    def is_read(topic: str) -> bool:
        return topic in topics or bool(expression and matching_topics(expression, (topic,)))

    letters = config.get("errors.deadletterqueue.name", "")
    if config["sink"] in ("kafka", "connect") and letters and is_read(letters):
        raise ConfigError("errors.deadletterqueue.name", letters, "another topic than those that the source reads")
    if config["sink"] != "kafka":
        return
    if is_read(sink.offsets_topic):
        setting, found = ("source.topics", source.topics) if topics else ("source.topics.regex", source.topics_regex)
        allowed = f"topics without {sink.offsets_topic} (sink.offsets.topic), which each batch is written to"
        raise ConfigError(setting, printable(found), allowed)
    if not all(type(step.transform).__name__ in _KEEPS_TOPIC for step in chain):
        return
    reads_topic = (source.metadata is None and not source.has_fields) or "topic" in listed(source.metadata or "")
    if reads_topic and (sink.metadata is None or "topic" in listed(sink.metadata)):
        allowed = (
            "names without topic, so that sink.topic counts, or a transform of the topic such as RegexRouter: each"
            " record would be written to the topic that it is read from"
        )
        raise ConfigError("sink.metadata", NO_VALUE if sink.metadata is None else sink.metadata, allowed)
    if is_read(sink.topic):
        raise ConfigError("sink.topic", sink.topic, "another topic than those that the source reads")


def _servers(settings: KafkaSourceSettings | KafkaSinkSettings) -> frozenset[str]:
    return frozenset(each.lower() for each in listed(settings.bootstrap_servers))


def _check_directories(config: Mapping[str, str], directory: str, pattern: str, sink_paths: Iterable[str]) -> None:
    for setting in sink_paths:
        path = config.get(setting, "")
        if not os.path.isabs(path) or "\0" in path:
            continue
        below, above = within(path, directory), within(directory, path)
        if config["sink"] in _FILES:
            above = None
            name = "/".join(below or ())
            is_parquet = config["source"] == "parquet"
            if not name or not is_listed(name, pattern) or (is_parquet and not name.endswith(".parquet")):
                continue
        elif below and any(part.startswith(("_", ".")) for part in below):
            continue  # Hidden from the source.
        if below is not None or above is not None:
            where = "source.path" if config["source"] != "spark" else "the path in source.options"
            what = f"a path that is neither below {where} ({directory}) nor above it: the source would read the rows"
            raise ConfigError(setting, path, f"{what} again", is_path=True)

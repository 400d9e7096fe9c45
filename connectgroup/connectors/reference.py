"""The reference of all sources, sinks, transforms and predicates: names, purpose, settings.

``python -m connectgroup.connectors.reference`` prints it. The text comes from the classes: the first paragraph of each
docstring, and the settings models with their descriptions. docs/connectors.md of the repository is this text.
"""

from __future__ import annotations

import inspect
from typing import Final

from pydantic_core import PydanticUndefined

from ..config.connector_validation import common_definitions
from ..dataplane.settings import PluginSettings
from ..plugins import (
    available,
    load_predicate_class,
    load_sink_class,
    load_source_class,
    load_transform_class,
)
from .pipeline import PipelineSettings

_FRAMEWORK: Final = ("connector.class", "name", "tasks.max", "task", "tasks", "layout")
_HEAD: Final = """\
# Sources, sinks and transforms of the connector `pipeline`

`source` and `sink` of a connector's configuration name one source and one sink; their settings have the prefixes
`source.` and `sink.`. `transforms` names transforms, in the order in which they change each batch of rows:
`"transforms": "a", "transforms.a.type": "MaskField", "transforms.a.fields": "name"`. A transform with a predicate
applies to some rows only: `"transforms.a.predicate": "p", "predicates": "p", "predicates.p.type": "TopicNameMatches"`;
`"transforms.a.negate": "true"` selects the others. Names and settings are Kafka Connect's. What a source or a sink
needs is installed by an [extra](operations.md#install). This page is generated:
`python -m connectgroup.connectors.reference > docs/connectors.md`.
"""
_CHOICES: Final = """\
## Types of columns

`source.schema` lists columns: ``id BIGINT, price DECIMAL(10,2), `unit price` STRING``. Each column may be null. A value
that does not fit its type exactly is an error that names place, column and value or, with `errors.tolerance=all`, a dead
letter; no value is changed to fit.

| type, other names | values in text and JSON |
|---|---|
| `BOOLEAN` | true, false; csv also True, TRUE, False, FALSE |
| `TINYINT` `BYTE`, `SMALLINT` `SHORT`, `INT` `INTEGER`, `BIGINT` `LONG` | whole numbers of 8, 16, 32 and 64 bits; 1.0 and 1e3 are none |
| `FLOAT` `REAL`, `DOUBLE` | numbers, and the texts NaN, Infinity and -Infinity. A number that the type has only as infinite or as 0 (1e400, 1e-400) is an error, in JSON also a whole number above 2^53 (`FLOAT`: 2^24) |
| `DECIMAL(P,S)` `DEC`, `NUMERIC` | numbers with up to P digits, at most 38, S of them behind the point; in JSON also as texts. Without P and S: 10 and 0 |
| `STRING` `VARCHAR` | text; of JSON also numbers, booleans, objects and arrays, as their text, with numbers as they are written. Of two fields of an object with one name, the last one counts |
| `DATE` | 2024-02-29; years 1 to 9999 |
| `TIMESTAMP` `TIMESTAMP_LTZ` | ISO 8601 with a zone, or in `source.timezone`, where an hour that a clock shows twice is the first one, and in one that it omits, 02:30 is 03:30; up to microseconds, and zeros behind them; years 1 to 9999 in UTC; no leap second 23:59:60 |

## Which file is which

A source of files reads each file once, and goes on where it was when the file has grown. `source.identity` decides which file
is the one that was read before:

| what happens to a file that was read | `content` (default) | `name` | `inode` |
|---|---|---|---|
| it grows | the new lines are read | the new lines are read | the new lines are read |
| it is renamed: app.log to app.log.1 | not read again | read again | not read again |
| it is compressed: app.log.1 to app.log.1.gz | only lines that were not read yet | read again | read again |
| a file that begins with all that was read takes its name | the rest is read | the rest is read | read from its start |
| other content takes its name | `source.on.rewrite`: an error, or read from its start | as `content` | a new file: read from its start; the same file: as `content` |
| it is copied, and truncated (copytruncate) | only lines that were not read yet, if it is truncated within `source.settle.ms` after the copy; later, as other content | the copy is read again; as other content | the copy is read again; as other content |
| another file has the same content | read; if the first one begins with all of it, `source.settle.ms` after its last change | read | read |
| it has a second name in the directory: a link, hard or symbolic | read once | read under each name | read once |

A file that has changed is compared with all that was read of it, by a checksum. A file of which more than 4 MiB were read, and
that has grown in place, is compared with the first KiB and the last 4 KiB of that alone: if a program also changes its middle,
that is not noticed.

The offsets (`GET /connectors/{c}/offsets`) show for each slice the file that it is now, if that has another name. `source.encoding`
says how bytes become text: bytes that are no text in it are an error with line and byte, a byte order mark is no part of the
first line, and a file that begins with the mark of another encoding, or like an archive, is an error that says what it is.

A compressed file may have several members of gzip, or frames of zstd, one behind the other; zero bytes behind a member of gzip are
padding. Other bytes there are damage, as a member with a wrong checksum is: an error with the byte from which on the file cannot be
read or, with `errors.tolerance=all`, a dead letter for the rest, and the rows of the complete members are read. Spark and Python end
with an error there, too, after they have returned these rows; gzip ignores the rest with a warning, and Java without one.
A file that grows by members is read on behind those that were read: they continue its lines and, in CSV, have no header. If its last
line was read without a line feed, growth is an error. A line of a compressed file may have 256 MiB: a longer one, which may be a
few kilobytes of the file, is an error or a dead letter. So is a CSV file whose header has more than 8 MiB.

## Dead letters

With `errors.tolerance=all`, a dead letter has connector, task, stage (`source`, `transform` or `sink`), place (file and line
or byte, table and key, or topic, partition and offset), reason and record: what was read, or the row as JSON. In a topic, it is
one JSON object. Key and headers of a record of Kafka are in the row as columns (`source.metadata`) or not at all; the place
says where the record itself is. What a transformation or a sink connector in Java rejects has `key` and `headers` too, in a topic.

## What waits, and for how long

| what | until | why |
|---|---|---|
| the last line of a file without a line feed | its line feed, or with `source.final.newline=accept` `source.final.newline.ms` after the last change | a program may be writing it |
| a compressed or Parquet file | it is complete | the same |
| a new file with which another one begins | `source.settle.ms` (5000) after its last change, or the other one differs | it may be the copy of a log that is truncated next |
| a row of PostgreSQL | all transactions have ended that may insert a smaller key | rows are read in the order of their keys |
| a row of a table with `source.settle.ms` (0) | so long after its key, or a greater one, was seen first | a program may insert a key that it took earlier |
"""  # noqa: E501
_TABLE: Final = ("| setting | default | allowed |", "|---|---|---|")
_UNFENCED: Final = " Its tasks are not fenced: a former owner of a task may still write."


def reference() -> str:
    """Return the reference in Markdown."""
    parts = [_HEAD, _common(), "## Settings of the pipeline\n\n" + _table(PipelineSettings, ""), _CHOICES]
    sources = {name: load_source_class(name) for name in available("sources")}
    sinks = {name: load_sink_class(name) for name in available("sinks")}
    transforms = {name: load_transform_class(name, "type") for name in available("transforms")}
    predicates = {name: load_predicate_class(name, "type") for name in available("predicates")}
    for title, kind, prefix, plugins in (
        ("Sources", "Source", "source.", sources),
        ("Sinks", "Sink", "sink.", sinks),
        ("Transforms", "Transform", "", transforms),
        ("Predicates", "Predicate", "", predicates),
    ):
        parts.append(f"## {title}\n")
        for name, cls in plugins.items():
            settings: type[PluginSettings] = cls.Settings
            unfenced = "" if getattr(cls, "fenced", True) else _UNFENCED
            parts.append(f"### {kind} `{name}`\n\n{_purpose(cls)}{unfenced}\n\n{_table(settings, prefix)}")
    return "\n".join(parts)


def _common() -> str:
    rows = []
    for each in common_definitions():
        default = "required" if each.required else f"`{each.default}`" if each.default else ""
        rows.append(_row(each.name, default, each.documentation))
    return "\n".join(["## Settings of every connector", "", *_TABLE, *rows]) + "\n"


def _row(name: str, default: str, allowed: str) -> str:
    escaped = allowed.replace("|", "\\|")
    return f"| `{name}` | {default} | {escaped} |"


def _table(settings: type[PluginSettings], prefix: str) -> str:
    rows = []
    for key, field in settings.model_fields.items():
        name = str(field.alias or key)
        if name in _FRAMEWORK:
            continue
        if field.is_required():
            default = "required"
        else:
            value = None if field.default is PydanticUndefined else field.default
            default = f"`{str(value).lower() if isinstance(value, bool) else value}`" if value not in (None, "") else ""
        rows.append(_row(prefix + name, default, field.description or f"the name of a {name}"))
    if not rows:
        return "No settings.\n"
    return "\n".join([*_TABLE, *rows]) + "\n"


def _purpose(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].replace("``", "`").split())


if __name__ == "__main__":
    print(reference(), end="")

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
_TABLE: Final = ("| setting | default | allowed |", "|---|---|---|")
_UNFENCED: Final = " Its tasks are not fenced: a former owner of a task may still write."


def reference() -> str:
    """Return the reference in Markdown."""
    parts = [_HEAD, _common(), "## Settings of the pipeline\n\n" + _table(PipelineSettings, "")]
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

"""Transforms of the record's topic, the column ``topic``: ``RegexRouter`` and ``TimestampRouter``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from ...dataplane.settings import PluginSettings
from ...dataplane.transform import Place, RowTransform
from ...errors import ConfigError
from .fields import unchanged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PLACEHOLDER: Final = re.compile(r"(\$\{topic\}|\$\{timestamp\})")


class RegexRouterSettings(PluginSettings):
    """Settings of ``RegexRouter``."""

    regex: Annotated[str, Field(min_length=1, description="a regular expression for the whole topic name")]
    replacement: Annotated[str, Field(description="the new topic; $1 is the first group")]


class RegexRouter(RowTransform):
    """Renames the topic where the expression matches the whole name."""

    Settings = RegexRouterSettings
    adds_metadata = ("topic",)

    def __init__(self, settings: RegexRouterSettings, place: Place) -> None:
        super().__init__(settings, place)
        try:
            re.compile(settings.regex)
        except re.error as error:
            raise ConfigError(f"{place.prefix}regex", settings.regex, f"a regular expression ({error})") from error

    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        from pyspark.sql import functions as F

        self.require(frame, "regex", ["topic"])
        regex = f"^(?:{self.settings.regex})$"
        return unchanged(frame) | {"topic": F.regexp_replace(frame["topic"], regex, self.settings.replacement)}


class TimestampRouterSettings(PluginSettings):
    """Settings of ``TimestampRouter``."""

    topic_format: Annotated[str, Field(description="the new topic, with ${topic} and ${timestamp}")] = (
        "${topic}-${timestamp}"
    )
    timestamp_format: Annotated[str, Field(min_length=1, description="a date pattern such as yyyyMMdd")] = "yyyyMMdd"


class TimestampRouter(RowTransform):
    """Renames the topic by the record's timestamp, in UTC."""

    Settings = TimestampRouterSettings
    adds_metadata = ("topic",)

    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        from pyspark.sql import functions as F

        self.require(frame, "topic.format", ["topic", "timestamp"])
        values = {
            "${topic}": frame["topic"],
            "${timestamp}": F.date_format(frame["timestamp"], self.settings.timestamp_format),
        }
        parts = [values.get(part) for part in _PLACEHOLDER.split(self.settings.topic_format)]
        texts = _PLACEHOLDER.split(self.settings.topic_format)
        return unchanged(frame) | {
            "topic": F.concat(*(F.lit(text) if part is None else part for part, text in zip(parts, texts, strict=True)))
        }

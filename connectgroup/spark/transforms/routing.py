"""Transforms of the record's topic, the column ``topic``: ``RegexRouter`` and ``TimestampRouter``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from ...dataplane.settings import PluginSettings
from ...dataplane.transform import Place, RowTransform
from ...errors import ConfigError
from ...protocol.units import printable
from .fields import unchanged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PLACEHOLDER: Final = re.compile(r"(\$\{topic\}|\$\{timestamp\})")


_PARSER: Any = vars(re)["_parser"]
"""Parses an expression into its operations; Python has it under this name alone."""
MAX_PATTERN: Final = 500
"""Characters of a regular expression."""
MAX_TOPIC: Final = 249
"""Characters of a topic's name, as in Kafka. A longer text is no topic and matches no expression."""
MAX_REPEATS: Final = 3
MAX_CHOICES: Final = 1_000
_REPEATS: Final = frozenset(("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"))
ALLOWED: Final = (
    f"at most {MAX_PATTERN} characters, at most {MAX_REPEATS} repetitions (* + {{n,m}}), no repetition or choice inside"
    f" a repetition, at most {MAX_CHOICES} combinations of choices (| ?), and no flag x"
)


def check_pattern(setting: str, pattern: str) -> None:
    """Check a regular expression for names of topics.

    Java's engine, which Spark uses, tries all ways in which an expression may match, and cannot be stopped: with
    ``(a+)+`` they grow exponentially with the length of a name, and other people choose names. Within these limits they
    grow with its third power at most, and a name is short.

    Raises:
        ConfigError: the expression is invalid, or exceeds a limit.
    """
    try:
        parsed = _PARSER.parse(pattern[: MAX_PATTERN + 1])
        operations = list(_operations(parsed))
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(setting, printable(pattern), f"a regular expression ({error})") from error
    repeats, choices, is_nested = 0, 1, False
    # With comments, Java reads another expression than Python: there, a carriage return ends a comment, too.
    has_comments = bool(parsed.state.flags & re.VERBOSE)
    for name, argument in operations:
        has_comments |= name == "SUBPATTERN" and bool(argument[1] & re.VERBOSE)
        if name == "BRANCH":
            choices *= len(argument[1])
        elif name in _REPEATS and argument[1] <= 1:
            choices *= 2
        elif name in _REPEATS:
            repeats += argument[0] != argument[1]
            is_nested = is_nested or any(map(_is_choice, _operations(argument[2])))
    if len(pattern) > MAX_PATTERN or has_comments or is_nested or repeats > MAX_REPEATS or choices > MAX_CHOICES:
        raise ConfigError(setting, printable(pattern), f"a regular expression with {ALLOWED}")


def _is_choice(operation: tuple[str, Any]) -> bool:
    """Whether there are several ways to match: a choice, or a repetition that is not of a fixed number."""
    name, argument = operation
    return name == "BRANCH" or (name in _REPEATS and argument[0] != argument[1])


def _operations(part: Any) -> Iterator[tuple[str, Any]]:
    """All operations of a parsed expression, with those inside of others: name and argument."""
    for operation, argument in part:
        yield str(operation), argument
        for inner in argument if isinstance(argument, tuple) else (argument,):
            for each in inner if isinstance(inner, list) else (inner,):
                if isinstance(each, _PARSER.SubPattern):
                    yield from _operations(each)


def is_topic(frame: DataFrame) -> Column:
    """Whether the column ``topic`` is short enough for an expression."""
    from pyspark.sql import functions as F

    return F.length(frame["topic"]) <= MAX_TOPIC


class RegexRouterSettings(PluginSettings):
    """Settings of ``RegexRouter``."""

    regex: Annotated[str, Field(min_length=1, description=f"a regular expression for the whole topic name: {ALLOWED}")]
    replacement: Annotated[str, Field(description="the new topic; $1 is the first group")]


class RegexRouter(RowTransform):
    """Renames the topic where the expression matches the whole name."""

    Settings = RegexRouterSettings
    adds_metadata = ("topic",)

    def __init__(self, settings: RegexRouterSettings, place: Place) -> None:
        super().__init__(settings, place)
        check_pattern(f"{place.prefix}regex", settings.regex)

    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        from pyspark.sql import functions as F

        self.require(frame, "regex", ["topic"])
        regex = f"^(?:{self.settings.regex})$"
        renamed = F.regexp_replace(frame["topic"], regex, self.settings.replacement)
        return unchanged(frame) | {"topic": F.when(is_topic(frame), renamed).otherwise(frame["topic"])}


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
        # As in Kafka Connect: without an error, a record without a time would be written to the topic of the sink.
        no_time = F.raise_error(F.lit("timestamp is null; allowed: a time in each record, for the name of its topic"))
        at = F.when(frame["timestamp"].isNull(), no_time.cast("timestamp")).otherwise(frame["timestamp"])
        values = {
            "${topic}": frame["topic"],
            "${timestamp}": F.date_format(at, self.settings.timestamp_format),
        }
        parts = [values.get(part) for part in _PLACEHOLDER.split(self.settings.topic_format)]
        texts = _PLACEHOLDER.split(self.settings.topic_format)
        return unchanged(frame) | {
            "topic": F.concat(*(F.lit(text) if part is None else part for part, text in zip(parts, texts, strict=True)))
        }

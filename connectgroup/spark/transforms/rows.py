"""Transforms of the set of rows: ``Filter`` and ``sql``; and the predicates."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ...dataplane.dead_letters import HAS_VALUE_COLUMN
from ...dataplane.settings import PluginSettings
from ...dataplane.transform import Place, Predicate, Transform, quoted
from ...errors import ConfigError
from ...protocol.units import printable
from .expressions import checked, condition, query
from .routing import ALLOWED, check_pattern, is_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class FilterSettings(PluginSettings):
    """Settings of ``Filter``. Kafka Connect's has none, and drops each record that its predicate selects."""

    condition: Annotated[str | None, Field(description="a condition in Spark SQL, instead of a predicate")] = None
    type_: Annotated[
        Literal["exclude", "include"],
        Field(alias="filter.type", description="exclude, include: what becomes of rows that match the condition"),
    ] = "exclude"


class Filter(Transform):
    """Drops rows: those that the predicate selects, or those that match (do not match) a condition."""

    Settings = FilterSettings
    keeps_columns = True

    def apply(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        text = self.settings.condition
        matches = F.coalesce(F.lit(True) if text is None else condition(frame, text, self.place), F.lit(False))
        return checked(frame, frame.where, self.place, matches if self.settings.type_ == "include" else ~matches)

    def apply_where(self, frame: DataFrame, condition: Column) -> DataFrame:
        if self.settings.condition is not None:
            raise ConfigError(f"{self.place.prefix}predicate", "a predicate", "a predicate or a condition, not both")
        return frame.where(~condition if self.settings.type_ == "exclude" else condition)


class SqlSettings(PluginSettings):
    """Settings of ``sql``."""

    query: Annotated[
        str,
        Field(
            min_length=1, description="a query in Spark SQL over the view batch; it uses no files and runs no programs"
        ),
    ]


class Sql(Transform):
    """Replaces the rows of a batch by the result of a query; the view ``batch`` has the rows. Two columns of one name,
    as of ``SELECT *, trim(name) AS name FROM batch``, are an error.
    """

    Settings = SqlSettings

    def apply(self, frame: DataFrame) -> DataFrame:
        # The session of a batch belongs to one query, so the view is not shared with other tasks.
        frame.createOrReplaceTempView("batch")
        found = query(frame, self.settings.query, self.place, "query")
        # A row of a sink has one value for each name: the other one would be lost.
        for name, count in Counter(found.columns).items():
            if count > 1:
                allowed = "a query with one column of each name; ReplaceField drops the former one"
                raise ConfigError(f"{self.place.prefix}query", f"{count} columns {printable(name)}", allowed)
        return found


class TopicNameMatchesSettings(PluginSettings):
    """Settings of ``TopicNameMatches``."""

    pattern: Annotated[
        str, Field(min_length=1, description=f"a regular expression for the whole topic name: {ALLOWED}")
    ]


class TopicNameMatches(Predicate):
    """True for records whose topic matches."""

    Settings = TopicNameMatchesSettings
    requires = ("topic",)

    def __init__(self, settings: TopicNameMatchesSettings, place: Place) -> None:
        super().__init__(settings, place)
        check_pattern(f"{place.prefix}pattern", settings.pattern)

    def condition(self, frame: DataFrame) -> Column:
        if "topic" not in frame.columns:
            raise ConfigError(f"{self.place.prefix}type", "TopicNameMatches", "a source with a column topic")
        from pyspark.sql import functions as F

        # CASE, unlike AND, never evaluates the expression for a longer text.
        return F.when(~is_topic(frame), False).otherwise(frame["topic"].rlike(f"^(?:{self.settings.pattern})$"))


class RecordIsTombstoneSettings(PluginSettings):
    """``RecordIsTombstone`` has no settings."""


class RecordIsTombstone(Predicate):
    """True for records without a value: every column that is not record metadata is null. From a topic to a topic, with
    ``source.schema`` and without ``sql`` or transforms of other packages, a value whose fields are null or missing is a
    value.
    """

    Settings = RecordIsTombstoneSettings

    def condition(self, frame: DataFrame) -> Column:
        from pyspark.sql import functions as F

        empty = frame[HAS_VALUE_COLUMN].isNull() if HAS_VALUE_COLUMN in frame.columns else F.lit(True)
        for field in frame.columns:
            if field not in self.place.metadata:
                empty = empty & frame[quoted(field)].isNull()
        return empty


class ConditionSettings(PluginSettings):
    """Settings of the predicate ``sql``."""

    condition: Annotated[str, Field(min_length=1, description="a condition in Spark SQL over the columns")]


class SqlCondition(Predicate):
    """True for rows that match a condition in Spark SQL."""

    Settings = ConditionSettings

    def condition(self, frame: DataFrame) -> Column:
        matches = condition(frame, self.settings.condition, self.place)
        checked(frame, frame.where, self.place, matches)
        return matches

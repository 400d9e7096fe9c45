"""The interfaces for authors of transforms and predicates.

A *transform* changes the rows of a batch between source and sink: DataFrame in, DataFrame out. A *predicate* selects
the rows that a transform applies to. Both are found by entry point (``connectgroup.transforms``,
``connectgroup.predicates``). Names and configuration keys are Kafka Connect's:
``transforms=a,b``, ``transforms.a.type=MaskField``, ``transforms.a.predicate=p``, ``transforms.a.negate=true``,
``predicates=p``, ``predicates.p.type=TopicNameMatches``.

*Record metadata* are the columns of a record that are not part of its value (``key``, ``topic``, ``timestamp`` of a
Kafka record). Transforms of the whole value (``HoistField``, ``Flatten``) leave them alone.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..errors import ConfigError
from .settings import PluginSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_CONNECT_CLASS: Final = re.compile(r"org\.apache\.kafka\.connect\.transforms\.(?:predicates\.)?(\w+(?:\$\w+)?)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a transform or a predicate stands in a connector's configuration.

    Attributes:
        prefix: prefix of its settings, for errors (``transforms.a.``).
        metadata: names of the columns that are record metadata at this place of the chain.
    """

    prefix: str
    metadata: frozenset[str] = frozenset()


class Transform(ABC):
    """One transform of a connector, on the worker that runs the task.

    Attributes:
        Settings: the settings under ``transforms.<name>.``; each field's description states the allowed values.
        adds_metadata: the columns that this transform adds as record metadata.
        keeps_columns: whether the rows have the same columns afterwards.
    """

    Settings: ClassVar[type[PluginSettings]]
    keeps_columns: ClassVar[bool] = False
    adds_metadata: ClassVar[tuple[str, ...]] = ()

    def check_columns(self, types: Mapping[str, str]) -> None:  # noqa: B027 (to do nothing is the usual case)
        """Check the settings with the columns that the transform will get, when the connector is written.

        Args:
            types: the types of the columns by their names, such as ``BIGINT``. Called only if the source's schema is a
                setting, and the transforms before keep it.

        Raises:
            ConfigError: a setting does not fit a column.
        """

    def __init__(self, settings: Any, place: Place) -> None:
        """Store the settings, an instance of ``Settings``.

        Raises:
            ConfigError: the settings do not fit each other.
        """
        self.settings = settings
        self.place = place

    @abstractmethod
    def apply(self, frame: DataFrame) -> DataFrame:
        """Return the rows of a batch, transformed. Nothing is computed yet.

        Also called with an empty DataFrame when the task starts, so that a wrong column name fails there.

        Raises:
            ConfigError: a column that a setting names does not exist.
        """

    def apply_where(self, frame: DataFrame, condition: Column) -> DataFrame:
        """Return the rows of a batch, with those transformed for which the condition is true.

        Raises:
            ConfigError: this transform works on whole batches and takes no predicate.
        """
        raise ConfigError(
            f"{self.place.prefix}predicate", "a predicate", "no predicate: this transform works on the whole batch"
        )

    def require(self, frame: DataFrame, setting: str, names: Iterable[str]) -> None:
        """Check that columns exist.

        Raises:
            ConfigError: the first name that is not a column of the frame.
        """
        columns = frame.columns  # Spark is asked once
        known = frozenset(columns)
        for name in names:
            if name not in known:
                raise ConfigError(f"{self.place.prefix}{setting}", name, f"columns {', '.join(columns)}")


class RowTransform(Transform):
    """A transform of each row by itself: it names the columns of its output and how each is computed."""

    @abstractmethod
    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        """Return the output's columns in order: name and expression over the frame's columns.

        Raises:
            ConfigError: a column that a setting names does not exist.
        """

    def apply(self, frame: DataFrame) -> DataFrame:
        return _selected(frame, self.select(frame))

    def apply_where(self, frame: DataFrame, condition: Column) -> DataFrame:
        from pyspark.sql import functions as F

        # One pass with a choice for each column: two filtered branches would read the source twice and lose the order.
        changed = self.select(frame)
        if not self.keeps_columns:
            self._check_types(frame, changed)
        columns = []
        for name in dict.fromkeys([*changed, *frame.columns]):
            otherwise = frame[quoted(name)] if name in frame.columns else F.lit(None)
            then = changed.get(name, F.lit(None))
            columns.append(F.when(condition, then).otherwise(otherwise).alias(name))
        return frame.select(columns)

    def _check_types(self, frame: DataFrame, changed: Mapping[str, Column]) -> None:
        """Check that each column can hold the values of the rows that are transformed and of the others. Spark makes a
        number of a text to have one type for both: 7 of 007.

        Raises:
            ConfigError: one cannot.
        """
        before = {field.name: field.dataType for field in frame.schema.fields}
        for field in _selected(frame, changed).schema.fields:
            if (found := before.get(field.name)) is not None and not _holds_both(found, field.dataType):
                what = f"{field.name} {found.simpleString()} in some rows and {field.dataType.simpleString()} in others"
                allowed = "none, or a transform that keeps the type of each column: a column has one type"
                raise ConfigError(f"{self.place.prefix}predicate", what, allowed)


def _selected(frame: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    return frame.select([column.alias(name) for name, column in columns.items()])


def _holds_both(one: DataType, other: DataType) -> bool:
    """Whether the type that Spark chooses for values of two types keeps each of them."""
    from pyspark.sql import types as T

    pair = (one, other)
    if one.simpleString() == other.simpleString() or any(isinstance(kind, T.NullType) for kind in pair):
        return True
    if all(isinstance(kind, T.NumericType) for kind in pair):
        is_float = any(isinstance(kind, T.FloatType | T.DoubleType) for kind in pair)
        return not (is_float and any(isinstance(kind, T.LongType | T.DecimalType) for kind in pair))
    return all(isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType) for kind in pair)


class Predicate(ABC):
    """A condition on records.

    Attributes:
        Settings: the settings under ``predicates.<name>.``; each field's description states the allowed values.
        requires: columns without which the predicate cannot be used.
    """

    Settings: ClassVar[type[PluginSettings]]
    requires: ClassVar[tuple[str, ...]] = ()

    def __init__(self, settings: Any, place: Place) -> None:
        """Store the settings, an instance of ``Settings``."""
        self.settings = settings
        self.place = place

    @abstractmethod
    def condition(self, frame: DataFrame) -> Column:
        """Return a boolean expression over the frame's columns; null counts as false.

        Raises:
            ConfigError: the frame lacks a column that the predicate needs.
        """


def entry_point_name(name: str, setting: str) -> str:
    """Return the entry point's name of a transform or predicate, which may be written as Kafka Connect's class.

    Raises:
        ConfigError: a class for keys; ``setting`` is its field.
    """
    match = _CONNECT_CLASS.fullmatch(name)
    short, _, part = (match[1] if match else name).partition("$")
    if part not in ("", "Value"):
        raise ConfigError(setting, name, f"{short} or {short}$Value: keys are transformed as the column key")
    return short


def quoted(name: str) -> str:
    """Return a column name as Spark expects it in an expression, so that a dot in it is no path."""
    return "`" + name.replace("`", "``") + "`"


def listed(text: str) -> tuple[str, ...]:
    """Split a comma-separated setting; blanks around the parts do not count."""
    return tuple(part.strip() for part in text.split(",") if part.strip())

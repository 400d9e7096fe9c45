"""The transforms of a connector, applied in order to each batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ...dataplane.columns import Column, Columns, to_ddl
from ...dataplane.dead_letters import check_reserved
from ...dataplane.transform import Predicate, RowTransform, Transform
from ...errors import ConfigError
from ...protocol.units import printable
from ..remote import own_session
from .rows import Filter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession, types as T


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One transform; with a predicate it applies to the rows that match, or, negated, to the others."""

    transform: Transform
    predicate: Predicate | None = None
    negate: bool = False

    def apply(self, frame: DataFrame) -> DataFrame:
        """Return the rows of a batch after this step.

        Raises:
            ConfigError: a setting does not fit the columns.
        """
        from pyspark.sql import functions as F

        if self.predicate is None:
            return self.transform.apply(frame)
        selected = F.coalesce(self.predicate.condition(frame), F.lit(False))
        return self.transform.apply_where(frame, ~selected if self.negate else selected)


Chain = tuple[ChainStep, ...]

_PACKAGE: Final = f"{__package__}."


def apply_chain(chain: Chain, frame: DataFrame) -> DataFrame:
    """Return the rows of a batch after all steps.

    Raises:
        ConfigError: a setting does not fit the columns.
    """
    for step in chain:
        frame = step.apply(frame)
    return frame


def passes_on(chain: Chain) -> bool:
    """Whether all steps leave columns alone that no setting names: those which tell of each row where it comes from, or
    that its record has a value. They count as record metadata (``parse_chain``). Transforms of other packages may take
    them for fields, and a query names the columns of its result."""
    parts = [part for step in chain for part in (step.transform, step.predicate) if part is not None]
    is_own = all(type(part).__module__.startswith(_PACKAGE) for part in parts)
    return is_own and all(isinstance(step.transform, RowTransform | Filter) for step in chain)


def columns_after(chain: Chain, columns: Columns, session: SparkSession | None, metadata: frozenset[str]) -> Columns:
    """Return the columns after all steps, computed on an empty batch. Structs, arrays and maps keep Spark's type.

    Args:
        session: ``None``: only without steps.
        metadata: the columns of the source that are record metadata; those that the steps add are, too.

    Raises:
        ConfigError: a setting does not fit the columns, or a column has a type that sinks do not store or a reserved
            name.
    """
    check_reserved(columns)
    names = metadata.union(*(step.transform.adds_metadata for step in chain))
    if not chain:
        return tuple(replace(column, metadata=column.name in names) for column in columns)
    assert session is not None
    # A session of its own: the view of an sql step is visible in the whole session.
    empty = own_session(session).createDataFrame([], to_ddl(columns))
    fields = apply_chain(chain, empty).schema.fields
    check_stored(fields, "transforms")
    found = tuple(Column(field.name, type_of(field.dataType), metadata=field.name in names) for field in fields)
    check_reserved(found, stage="transforms")
    return found


def check_stored(fields: Sequence[T.StructField], setting: str) -> None:
    """Check that sinks store the types of the columns that they get.

    Args:
        setting: that makes the columns, for the error.

    Raises:
        ConfigError: sinks do not store a type. They would write its inner form (of VARIANT two binary values, of an
            interval a number), or fail with the first row (TIME).
    """
    from pyspark.sql import types as T

    texts = T.StringType, T.CharType, T.VarcharType, T.BinaryType
    times = T.DateType, T.TimestampType, T.TimestampNTZType
    stored = *texts, *times, T.BooleanType, T.NumericType, T.NullType

    def is_stored(kind: T.DataType) -> bool:
        if isinstance(kind, T.StructType):
            return all(is_stored(each.dataType) for each in kind.fields)
        if isinstance(kind, T.MapType):
            return is_stored(kind.keyType) and is_stored(kind.valueType)
        return is_stored(kind.elementType) if isinstance(kind, T.ArrayType) else isinstance(kind, stored)

    for field in fields:
        if not is_stored(field.dataType):
            raise ConfigError(
                setting,
                f"the column {printable(field.name)} {field.dataType.simpleString().upper()}",
                "types that sinks store: text, bytes, booleans, numbers, dates, timestamps, and structs, arrays and"
                " maps of these; the transform sql has to_json(x) and cast(x AS STRING)",
            )


def type_of(kind: T.DataType) -> str:
    """Return a type of Spark as a column has it, without collations, which are no part of a value."""
    from pyspark.sql import types as T

    def plain(kind: T.DataType) -> T.DataType:
        if isinstance(kind, T.StructType):
            return T.StructType([T.StructField(each.name, plain(each.dataType)) for each in kind.fields])
        if isinstance(kind, T.MapType):
            return T.MapType(plain(kind.keyType), plain(kind.valueType))
        if isinstance(kind, T.ArrayType):
            return T.ArrayType(plain(kind.elementType))
        return T.StringType() if isinstance(kind, T.StringType) else kind

    return plain(kind).simpleString().upper()

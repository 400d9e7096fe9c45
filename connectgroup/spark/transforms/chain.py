"""The transforms of a connector, applied in order to each batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ...dataplane.columns import Column, Columns, to_ddl
from ...dataplane.transform import Predicate, RowTransform, Transform
from ..remote import own_session
from .rows import Filter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        ConfigError: a setting does not fit the columns.
    """
    names = metadata.union(*(step.transform.adds_metadata for step in chain))
    if not chain:
        return tuple(replace(column, metadata=column.name in names) for column in columns)
    assert session is not None
    # A session of its own: the view of an sql step is visible in the whole session.
    empty = own_session(session).createDataFrame([], to_ddl(columns))
    fields = apply_chain(chain, empty).schema.fields
    return tuple(
        Column(field.name, field.dataType.simpleString().upper(), metadata=field.name in names) for field in fields
    )

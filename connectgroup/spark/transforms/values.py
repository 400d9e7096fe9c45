"""Transforms of values: ``Cast`` and ``TimestampConverter``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from ...dataplane.settings import PluginSettings
from ...dataplane.transform import Place, RowTransform, quoted
from ...errors import NO_VALUE, ConfigError
from .fields import parse_pairs, unchanged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, types as T

_SPARK_TYPES: Final = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
}
_UNITS_PER_SECOND: Final = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}


class CastSettings(PluginSettings):
    """Settings of ``Cast``."""

    spec: Annotated[str, Field(min_length=1, description=f"pairs field:type; types {', '.join(_SPARK_TYPES)}")]


class Cast(RowTransform):
    """Casts fields. A value that cannot be cast is an error, never a null; so is a number that the type does not hold,
    which Kafka Connect's makes another one of, and a text as boolean that is not true or false. Whole numbers have no
    fraction: it is cut off, as there. Bytes as a text are base64, as there. A timestamp is a number of milliseconds, a
    date one of days; their texts are Spark's (``2024-02-29 12:30:01.5``): TimestampConverter has a format.
    """

    Settings = CastSettings

    def __init__(self, settings: CastSettings, place: Place) -> None:
        super().__init__(settings, place)
        allowed = f"pairs field:type, separated by commas; types {', '.join(_SPARK_TYPES)}"
        self._types = parse_pairs(f"{place.prefix}spec", settings.spec, allowed)
        for field, kind in self._types.items():
            if kind not in _SPARK_TYPES:
                raise ConfigError(f"{place.prefix}spec", f"{field}:{kind}", allowed)

    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        self.require(frame, "spec", self._types)
        types = {field.name: field.dataType for field in frame.schema.fields}
        return unchanged(frame) | {
            field: _cast(_number(frame[quoted(field)], types[field], kind), types[field], kind)
            for field, kind in self._types.items()
        }


def _cast(column: Column, found: T.DataType, kind: str) -> Column:
    """Cast a value. A number that Spark would make 0 or infinite is an error; so is a text as boolean that is neither
    true nor false: Spark has yes and 1 for true, Kafka Connect for false. Bytes that are no text have one in base64.
    """
    from pyspark.sql import functions as F, types as T

    if kind == "string" and isinstance(found, T.BinaryType):
        return F.translate(F.base64(column), "\r\n", "")  # Spark breaks it into lines.
    cast = column.cast(_SPARK_TYPES[kind])
    if kind == "boolean" and isinstance(found, T.StringType):
        is_boolean = column.isNull() | F.lower(column).isin("true", "false")
        wrong = F.concat(column, F.lit(" is no boolean; allowed: true, false"))
        return F.when(is_boolean, cast).otherwise(F.raise_error(wrong).cast("boolean"))
    if not kind.startswith("float"):
        return cast
    if isinstance(found, T.StringType):
        is_zero, is_infinite = ~column.rlike("^[^1-9eE]*[1-9]"), column.rlike("(?i)inf")
    elif isinstance(found, T.DoubleType | T.DecimalType):
        is_zero, is_infinite = column == 0, column.cast("double").isin(math.inf, -math.inf)
    else:
        return cast
    is_other = ((cast == 0) & ~is_zero) | (cast.isin(math.inf, -math.inf) & ~is_infinite)
    wrong = F.concat(column.cast("string"), F.lit(f" is beyond the range of {kind}; allowed: another type"))
    return F.when(is_other, F.raise_error(wrong).cast(_SPARK_TYPES[kind])).otherwise(cast)


def _number(column: Column, found: T.DataType, kind: str) -> Column:
    """Return a time as the number that Kafka Connect has for it, if it is cast to a number: milliseconds, or days."""
    from pyspark.sql import functions as F, types as T

    if kind.startswith(("int", "float")) and isinstance(found, T.TimestampType | T.TimestampNTZType):
        return F.unix_millis(column.cast("timestamp"))
    if kind.startswith(("int", "float")) and isinstance(found, T.DateType):
        return F.unix_date(column)
    return column


class TimestampConverterSettings(PluginSettings):
    """Settings of ``TimestampConverter``."""

    field: Annotated[str, Field(min_length=1, description="the name of a field")]
    target_type: Annotated[
        Literal["string", "unix", "Date", "Timestamp"], Field(description="string, unix, Date, Timestamp")
    ]
    format: Annotated[str | None, Field(description="a date pattern such as yyyy-MM-dd HH:mm:ss, for texts")] = None
    unix_precision: Annotated[
        Literal["seconds", "milliseconds", "microseconds", "nanoseconds"],
        Field(description="seconds, milliseconds, microseconds, nanoseconds"),
    ] = "milliseconds"


class TimestampConverter(RowTransform):
    """Converts a field between text, unix time and timestamps. Times without a zone are UTC. The patterns are Spark's:
    each S is a digit of the fraction of a second (``.5`` with ``.S`` is half of one), and yy is a year from 2000 to
    2099. Kafka Connect's reads ``.5`` as 5 milliseconds, six digits as minutes of them, and the year 70 as 1970.
    """

    Settings = TimestampConverterSettings

    def __init__(self, settings: TimestampConverterSettings, place: Place) -> None:
        super().__init__(settings, place)
        if settings.target_type == "string":
            self._require_format()

    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        field = self.settings.field
        self.require(frame, "field", [field])
        at = self._timestamp(frame[quoted(field)], frame.schema[field].dataType)
        return unchanged(frame) | {field: self._converted(at)}

    def _timestamp(self, column: Column, kind: T.DataType) -> Column:
        from pyspark.sql import functions as F, types as T

        if isinstance(kind, T.TimestampType | T.TimestampNTZType | T.DateType):
            return column.cast("timestamp")
        if isinstance(kind, T.StringType):
            return F.to_timestamp(column, self._require_format())
        if isinstance(kind, T.NumericType):
            if isinstance(kind, T.FractionalType) and not isinstance(kind, T.DecimalType):
                # A cast would make null of them.
                is_time = column.isNull() | (F.abs(column) < F.lit(float("inf")))
                wrong = F.concat(column.cast("string"), F.lit(" is no time; allowed: a finite number"))
                column = F.when(is_time, column).otherwise(F.raise_error(wrong).cast(kind))
            # Whole microseconds, rounded down, as a time before 1970 is later than its fraction says.
            micros = column.cast("decimal(38,9)") * 10**6 / _UNITS_PER_SECOND[self.settings.unix_precision]
            return F.timestamp_micros(F.floor(micros).cast("bigint"))
        allowed = "a field of type text, number, date or timestamp"
        raise ConfigError(f"{self.place.prefix}field", self.settings.field, allowed)

    def _converted(self, at: Column) -> Column:
        from pyspark.sql import functions as F

        target = self.settings.target_type
        if target == "string":
            return F.date_format(at, self._require_format())
        if target == "unix":
            micros = F.unix_micros(at).cast("decimal(38,0)")
            return F.floor(micros * _UNITS_PER_SECOND[self.settings.unix_precision] / 10**6).cast("bigint")
        return at.cast("date" if target == "Date" else "timestamp")

    def _require_format(self) -> str:
        if self.settings.format is None:
            raise ConfigError(f"{self.place.prefix}format", NO_VALUE, "a date pattern such as yyyy-MM-dd HH:mm:ss")
        return str(self.settings.format)

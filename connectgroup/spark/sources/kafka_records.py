"""Reads the records of Spark's Kafka source as rows: converters, the fields of JSON values, metadata and headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...dataplane.columns import Columns
from ..converters import HEADERS_TYPE, ConverterSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FAIL: Final = {"mode": "FAILFAST"}
"""A value that is no JSON object of the schema is an error, never a row of nulls."""
_WRITTEN: Final = {"TIMESTAMP": "BIGINT", "DATE": "INT"}
"""Types of the logical types in JSON with schemas."""


def rows_of(records: DataFrame, settings: ConverterSettings, fields: Columns, metadata: Columns) -> DataFrame:
    """Return the columns of a source of Kafka.

    Args:
        records: as Spark's Kafka source reads them.
        settings: the converters.
        fields: the fields of the value; none: the value is the column ``value``.
        metadata: the other columns.
    """
    from pyspark.sql import functions as F

    chosen = []
    for column in metadata:
        if column.name == "key":
            key = F.col("key") if settings.key_form == "bytes" else F.col("key").cast("string")
            with_schema = settings.key_form == "json" and settings.key_converter_schemas_enable
            chosen.append((_payload(key, "key") if with_schema else key).alias("key"))
        elif column.name == "headers":
            chosen.append(F.col("headers").cast(HEADERS_TYPE.format(settings.header_type)).alias("headers"))
        else:
            chosen.append(F.col(column.name))
    with_schema = settings.value_form == "json" and settings.value_converter_schemas_enable
    value = F.col("value") if settings.value_form == "bytes" else F.col("value").cast("string")
    if not fields:
        return records.select([(_payload(value, "value") if with_schema else value).alias("value"), *chosen])
    types = [(f, _WRITTEN.get(f.type, f.type) if with_schema else f.type) for f in fields]
    ddl = ", ".join(f"`{field.name.replace('`', '``')}` {kind}" for field, kind in types)
    if with_schema:
        parsed = F.from_json(_checked(value, "value"), f"payload STRUCT<{ddl}>", _FAIL)["payload"]
    else:
        parsed = F.from_json(value, ddl, _FAIL)
    values = [_typed(F.col("connectgroup_value")[f.name], f.type, with_schema).alias(f.name) for f in fields]
    return records.withColumn("connectgroup_value", parsed).select([*values, *chosen])


def _typed(value: Column, kind: str, with_schema: bool) -> Column:
    """Return a field; the logical types of JSON with schemas are numbers."""
    from pyspark.sql import functions as F

    if with_schema and kind == "TIMESTAMP":
        return F.timestamp_millis(value)
    return F.date_from_unix_date(value) if with_schema and kind == "DATE" else value


def _payload(text: Column, name: str) -> Column:
    """Return the payload of JSON with schemas: a text as it is, everything else as JSON."""
    from pyspark.sql import functions as F

    return F.get_json_object(_checked(text, name), "$.payload")


def _checked(text: Column, name: str) -> Column:
    """Return JSON with schemas; anything else is an error, never a row of nulls."""
    from pyspark.sql import functions as F

    keys = F.sort_array(F.json_object_keys(text))
    where = F.concat(F.col("topic"), F.lit("-"), F.col("partition"), F.lit(", offset "), F.col("offset"))
    error = F.concat(
        F.lit("connectgroup.dataplane.errors.SourceError: "),
        where,
        F.lit(
            f": the {name} is not an object of schema and payload; allowed: what JsonConverter writes with schemas, or"
            f" {name}.converter.schemas.enable=false\n"
        ),
    )
    is_right = F.coalesce(keys == F.array(F.lit("payload"), F.lit("schema")), F.lit(False))
    return F.when(text.isNull() | is_right, text).otherwise(F.raise_error(error).cast("string"))

"""Reads the records of Spark's Kafka source as rows: converters, the fields of JSON values, metadata and headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...dataplane.columns import Columns
from ...dataplane.dead_letters import ERROR_COLUMN
from ..avro import Fields
from ..converters import HEADERS_TYPE, ConverterSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BAD: Final = "connectgroup_bad"
_MODES: Final = {
    False: {"mode": "FAILFAST"},
    True: {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD},
}
"""By whether bad records are tolerated. A value that is no JSON object of the schema is an error or a bad record, never
a row of nulls."""
_WRITTEN: Final = {"TIMESTAMP": "BIGINT", "DATE": "INT"}
"""Types of the logical types in JSON with schemas."""
_NO_SCHEMA: Final = (
    "the {name} is not an object of schema and payload; allowed: what JsonConverter writes with schemas, or"
    " {name}.converter.schemas.enable=false"
)
_SOURCE_ERROR: Final = "connectgroup.dataplane.errors.SourceError: "
_AVRO: Final = "allowed: values of value.converter.avro.schema in its encoding, or errors.tolerance=all"
_NOT_THE_FIELDS: Final = "the value is not JSON with the fields of source.schema"


def rows_of(
    records: DataFrame, settings: ConverterSettings, fields: Columns, metadata: Columns, *, tolerant: bool = False
) -> DataFrame:
    """Return the columns of a source of Kafka.

    Args:
        records: as Spark's Kafka source reads them.
        settings: the converters.
        fields: the fields of the value; none: the value is the column ``value``.
        metadata: the other columns.
        tolerant: whether a record that the converters cannot read is a row with an error (``dead_letters``).
    """
    from pyspark.sql import functions as F

    problems: list[Column] = []

    def checked(text: Column, name: str) -> Column:
        if not tolerant:
            return _checked(text, name)
        problems.append(F.when(~_is_with_schema(text), F.lit(_NO_SCHEMA.format(name=name))))
        return text

    chosen = []
    for column in metadata:
        if column.name == "key":
            key = F.col("key") if settings.key_form == "bytes" else F.col("key").cast("string")
            with_schema = settings.key_form == "json" and settings.key_converter_schemas_enable
            chosen.append((_payload(checked(key, "key")) if with_schema else key).alias("key"))
        elif column.name == "headers":
            chosen.append(F.col("headers").cast(HEADERS_TYPE.format(settings.header_type)).alias("headers"))
        else:
            chosen.append(F.col(column.name))
    with_schema = settings.value_form == "json" and settings.value_converter_schemas_enable
    is_binary = settings.value_form in ("bytes", "avro")
    value = F.col("value") if is_binary else F.col("value").cast("string")
    if with_schema:
        value = checked(value, "value")
    if not fields:
        values = [(_payload(value) if with_schema else value).alias("value")]
    elif settings.value_form == "avro":
        ddl = ", ".join(f"`{field.name}` {field.type}" for field in fields)
        decode = F.udf(Fields(settings.avro("source."), tuple(f.name for f in fields)), f"{ddl}, {_BAD} STRING")
        records = records.withColumn("connectgroup_value", decode(value))
        parsed = F.col("connectgroup_value")
        problem = F.when(parsed[_BAD].isNotNull(), parsed[_BAD])
        if tolerant:
            problems.append(problem)
            values = [parsed[f.name].alias(f.name) for f in fields]
        else:
            error = F.concat(F.lit(_SOURCE_ERROR), _place(), F.lit(": "), problem, F.lit(f"; {_AVRO}\n"))
            # Whatever columns are read, a bad record is an error.
            checked_value = F.when(problem.isNull(), parsed).otherwise(F.raise_error(error).cast(f"{_struct(ddl)}"))
            values = [checked_value[f.name].alias(f.name) for f in fields]
    else:
        types = [(f, _WRITTEN.get(f.type, f.type) if with_schema else f.type) for f in fields]
        ddl = ", ".join(f"`{field.name.replace('`', '``')}` {kind}" for field, kind in types)
        whole = (f"payload STRUCT<{ddl}>" if with_schema else ddl) + (f", {_BAD} STRING" if tolerant else "")
        records = records.withColumn("connectgroup_value", F.from_json(value, whole, _MODES[tolerant]))
        parsed = F.col("connectgroup_value")
        if tolerant:
            problems.append(F.when(parsed[_BAD].isNotNull(), F.lit(_NOT_THE_FIELDS)))
        inner = parsed["payload"] if with_schema else parsed
        values = [_typed(inner[f.name], f.type, with_schema).alias(f.name) for f in fields]
    if not problems:
        return records.select([*values, *chosen])
    record = F.base64(F.col("value")) if settings.value_form == "avro" else F.col("value").cast("string")
    return records.select([*values, *chosen, _error(F.coalesce(*problems), record).alias(ERROR_COLUMN)])


def _struct(ddl: str) -> str:
    return f"STRUCT<{ddl}, {_BAD}: STRING>"


def _error(reason: Column, record: Column) -> Column:
    """Return the value of ``ERROR_COLUMN``, as ``dead_letters.error_text`` does; null without a reason."""
    from pyspark.sql import functions as F

    context = F.to_json(
        F.struct(
            F.lit("source").alias("stage"),
            _place().alias("place"),
            reason.alias("reason"),
            F.coalesce(record, F.lit("")).alias("record"),
        )
    )
    return F.when(reason.isNotNull(), context)


def _place() -> Column:
    from pyspark.sql import functions as F

    return F.concat(F.col("topic"), F.lit("-"), F.col("partition"), F.lit(", offset "), F.col("offset"))


def _typed(value: Column, kind: str, with_schema: bool) -> Column:
    """Return a field; the logical types of JSON with schemas are numbers."""
    from pyspark.sql import functions as F

    if with_schema and kind == "TIMESTAMP":
        return F.timestamp_millis(value)
    return F.date_from_unix_date(value) if with_schema and kind == "DATE" else value


def _payload(text: Column) -> Column:
    """Return the payload of JSON with schemas: a text as it is, everything else as JSON."""
    from pyspark.sql import functions as F

    return F.get_json_object(text, "$.payload")


def _is_with_schema(text: Column) -> Column:
    """Whether a text is JSON with schemas, or null."""
    from pyspark.sql import functions as F

    keys = F.sort_array(F.json_object_keys(text))
    return text.isNull() | F.coalesce(keys == F.array(F.lit("payload"), F.lit("schema")), F.lit(False))


def _checked(text: Column, name: str) -> Column:
    """Return JSON with schemas; anything else is an error, never a row of nulls."""
    from pyspark.sql import functions as F

    reason = F.lit(f": {_NO_SCHEMA.format(name=name)}\n")
    error = F.concat(F.lit(_SOURCE_ERROR), _place(), reason)
    return F.when(_is_with_schema(text), text).otherwise(F.raise_error(error).cast("string"))

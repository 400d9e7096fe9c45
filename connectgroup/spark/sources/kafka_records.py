"""Reads the records of Spark's Kafka source as rows: converters, the fields of values, metadata and headers.

Java hands on keys, headers and values that are texts or bytes. Python code parses JSON and Avro (``KafkaValues``), as
it parses the lines of files: what is no value for its column is an error, never null and never another value.
"""

from __future__ import annotations

import base64
import decimal
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...dataplane.columns import Column as FieldColumn, Columns, to_arrow, to_ddl
from ...dataplane.dead_letters import ERROR_COLUMN, HAS_VALUE_COLUMN, PLACE_COLUMN, error_text
from ...dataplane.errors import SourceError
from ...gc_tuning import no_collections
from ...protocol.units import printable
from ..avro import AvroCodec
from ..converters import HEADERS_TYPE, ConverterSettings
from .json_values import (
    FAULTS,
    JsonColumns,
    check_case,
    check_years,
    exactly,
    is_number_as_text,
    loads,
    may_be_small,
    objects_of,
    texts_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_VALUE: Final = "connectgroup_value"
_KEY: Final = "connectgroup_key"
_PLACE: Final = ("topic", "partition", "offset")
_NO_SCHEMA: Final = (
    "the {name} is not an object of schema and payload; allowed: what JsonConverter writes with schemas, or"
    " {name}.converter.schemas.enable=false"
)
NOT_UTF8: Final = "the {name} is not UTF-8; allowed: UTF-8 text, or ByteArrayConverter"
_AVRO: Final = "allowed: values of value.converter.avro.schema in its encoding, or errors.tolerance=all"
_NOT_THE_FIELDS: Final = "the value is not JSON with the fields of source.schema: "
_SOURCE_ERROR: Final = "connectgroup.dataplane.errors.SourceError: "
_NOTHING: Final[Mapping[str, Any]] = {}
_LOGICAL: Final = ("org.apache.kafka.connect.data.", "io.debezium.time.")
"""Names of schemas that tell what a number counts begin with one of these, and end with one of ``_COUNTED``."""
_COUNTED: Final = {"TIMESTAMP": "Timestamp", "DATE": "Date"}
"""What is read as a column of a type: milliseconds, and days. Others, such as ``MicroTimestamp``, are other times."""
_MAX_DIGITS: Final = 1_000
"""Characters of the base64 of a decimal, and the greatest scale."""


def rows_of(
    records: DataFrame,
    settings: ConverterSettings,
    fields: Columns,
    metadata: Columns,
    *,
    tolerant: bool,
    timezone: str,
    marks: bool = False,
) -> DataFrame:
    """Return the columns of a source of Kafka.

    Args:
        records: as Spark's Kafka source reads them.
        settings: the converters.
        fields: the fields of the value; none: the value is the column ``value``.
        metadata: the other columns.
        tolerant: whether a record that the converters cannot read is a row with an error (``dead_letters``).
        timezone: the zone of timestamps without one in JSON; empty: they are an error.
        marks: whether rows of fields say that their record has a value (``HAS_VALUE_COLUMN``).
    """
    from pyspark.sql import functions as F

    problems: list[Column] = []

    def text(name: str, is_valid: Callable[[Column], Column], kind: str = "string") -> Column:
        """A text, or the error of its record."""
        read = F.col(name).cast(kind)
        reason = F.lit(NOT_UTF8.format(name=name))
        bad = ~F.coalesce(is_valid(F.col(name)), F.lit(True))
        if tolerant:
            problems.append(F.when(bad, reason))
            return read
        error = F.concat(F.lit(_SOURCE_ERROR), _place(), F.lit(": "), reason, F.lit("\n"))
        return F.when(bad, F.raise_error(error).cast(kind)).otherwise(read)

    values = values_of(settings, fields, metadata, tolerant=tolerant, timezone=timezone, marks=marks)
    value_schemas, key_schemas = (False, False) if values is None else (values.value_schemas, values.key_schemas)
    chosen: dict[str, Column] = {}
    if not fields and not value_schemas:
        is_text = settings.value_form != "bytes"
        chosen["value"] = text("value", _is_utf8) if is_text else F.col("value")
    for column in metadata:
        if column.name == "key" and not key_schemas:
            is_text = settings.key_form != "bytes"
            chosen["key"] = text("key", _is_utf8) if is_text else F.col("key")
        elif column.name == "headers":
            kind = HEADERS_TYPE.format(settings.header_type)
            is_text = settings.header_type == "STRING"
            chosen["headers"] = text("headers", _are_utf8, kind) if is_text else F.col("headers").cast(kind)
        elif column.name == "timestamp":
            # -1 ms: the record has none, as for Kafka Connect.
            chosen["timestamp"] = F.when(F.unix_millis(F.col("timestamp")) != -1, F.col("timestamp"))
        elif column.name == "timestamp_type":
            stamped = F.col("timestampType")
            chosen["timestamp_type"] = F.when(stamped == 0, F.lit("CreateTime")).when(
                stamped == 1, F.lit("LogAppendTime")
            )
        elif column.name != "key":
            chosen[column.name] = F.col(column.name)
    selected = [column.alias(name) for name, column in chosen.items()]
    problem = F.coalesce(*problems) if problems else F.lit(None).cast("string")
    if values is None:
        if not tolerant:
            return records.select(selected)
        return records.select([*selected, _place().alias(PLACE_COLUMN), _error(problem).alias(ERROR_COLUMN)])
    raw = {_VALUE: F.col("value"), **({_KEY: F.col("key")} if key_schemas else {})}
    raw |= {f"connectgroup_{name}": F.col(name) for name in _PLACE}
    with_raw = [*selected, *(column.alias(name) for name, column in raw.items())]
    with_error = [_error(problem).alias(ERROR_COLUMN)] if tolerant else []
    return records.select([*with_raw, *with_error]).mapInArrow(values, values.ddl)


def values_of(
    settings: ConverterSettings,
    fields: Columns,
    metadata: Columns,
    *,
    tolerant: bool,
    timezone: str,
    marks: bool = False,
) -> KafkaValues | None:
    """Return what parses the values of records with Python code; ``None``: nothing to parse. See ``rows_of``."""
    value_schemas = settings.value_form == "json" and settings.value_converter_schemas_enable
    key_schemas = settings.key_form == "json" and settings.key_converter_schemas_enable
    key_schemas = key_schemas and "key" in {column.name for column in metadata}
    if not fields and not value_schemas and not key_schemas:
        return None
    return KafkaValues(
        fields=fields,
        metadata=metadata,
        codec=settings.avro("source.") if settings.value_form == "avro" else None,
        value_schemas=value_schemas,
        key_schemas=key_schemas,
        tolerant=tolerant,
        timezone=timezone,
        marks=marks and bool(fields),
    )


def _is_utf8(value: Column) -> Column:
    from pyspark.sql import functions as F

    return F.is_valid_utf8(value.cast("string"))


def _are_utf8(headers: Column) -> Column:
    from pyspark.sql import functions as F

    return F.forall(headers, lambda each: F.coalesce(_is_utf8(each["value"]), F.lit(True)) & _is_utf8(each["key"]))


def _place() -> Column:
    from pyspark.sql import functions as F

    return F.concat(F.col("topic"), F.lit("-"), F.col("partition"), F.lit(", offset "), F.col("offset"))


def _error(reason: Column) -> Column:
    """Return the value of ``ERROR_COLUMN``; null without a reason. The record may be no text, and is in base64."""
    from pyspark.sql import functions as F

    context = F.to_json(
        F.struct(
            F.lit("source").alias("stage"),
            _place().alias("place"),
            reason.alias("reason"),
            F.coalesce(F.base64(F.col("value")), F.lit("")).alias("base64"),
        )
    )
    return F.when(reason.isNotNull(), context)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaValues:
    """Parses the values of records, and keys that are JSON with schemas; a function for Spark's ``mapInArrow``.

    Attributes:
        fields: the fields of the value; none: its payload is the column ``value``.
        metadata: the other columns.
        codec: reads Avro; None: values are JSON.
        value_schemas, key_schemas: whether value and key are JSON with schemas.
        tolerant, timezone, marks: see ``rows_of``.
    """

    fields: Columns
    metadata: Columns
    codec: AvroCodec | None
    value_schemas: bool
    key_schemas: bool
    tolerant: bool
    timezone: str
    marks: bool = False

    @property
    def ddl(self) -> str:
        """The columns of the rows, as Spark's DDL."""
        columns = [*(self.fields or (FieldColumn("value", "STRING"),)), *self.metadata]
        if self.marks:
            columns.append(FieldColumn(HAS_VALUE_COLUMN, "BOOLEAN"))
        if self.tolerant:
            columns += [FieldColumn(PLACE_COLUMN, "STRING"), FieldColumn(ERROR_COLUMN, "STRING")]
        return to_ddl(tuple(columns))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                with no_collections():
                    rows = self.rows(batch)
                yield rows

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of some records.

        Raises:
            SourceError: a record cannot be read, and errors are not tolerated.
        """
        import pyarrow as pa

        values, errors = batch.column(_VALUE).to_pylist(), dict[int, str]()
        if self.fields or self.value_schemas:
            arrays = self._read(values, errors, self._fields if self.fields else _payloads("value"))
        else:
            arrays = [batch.column("value")]
        marks = [arrays.pop()] if self.marks else []
        names = [column.name for column in self.fields] or ["value"]
        for column in self.metadata:
            names.append(column.name)
            if column.name == "key" and self.key_schemas:
                arrays += self._read(batch.column(_KEY).to_pylist(), errors, _payloads("key"))
            else:
                arrays.append(batch.column(column.name))
        names += [HAS_VALUE_COLUMN] * len(marks)
        arrays += marks
        if errors and not self.tolerant:
            at = min(errors)
            raise SourceError(f"{_places(batch.slice(at, 1))[0].as_py()}: {errors[at]}")
        if self.tolerant:
            places = _places(batch)
            found = batch.column(ERROR_COLUMN)
            if errors:
                texts = found.to_pylist()
                for at, reason in errors.items():
                    record = self._shown(values[at] or b"")
                    texts[at] = error_text(place=places[at].as_py(), reason=reason, record=record)
                found = pa.array(texts, pa.string())
            names += [PLACE_COLUMN, ERROR_COLUMN]
            arrays += [places, found]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def _read(
        self,
        values: Sequence[bytes | None],
        errors: dict[int, str],
        parse: Callable[[Sequence[bytes | None]], list[pa.Array]],
    ) -> list[pa.Array]:
        """Return the columns of all values. One that cannot be parsed is null; its reason is added to ``errors``."""
        import pyarrow as pa

        def read(start: int, end: int) -> list[list[pa.Array]]:
            try:
                return [parse(values[start:end])]
            except FAULTS as error:
                if end - start > 1:
                    middle = (start + end) // 2
                    return [*read(start, middle), *read(middle, end)]
                errors.setdefault(start, self._explained(values[start] or b"", error))
                return [parse([None])]

        parts = read(0, len(values))
        return parts[0] if len(parts) == 1 else [pa.concat_arrays(each) for each in zip(*parts, strict=True)]

    def _fields(self, values: Sequence[bytes | None]) -> list[pa.Array]:
        """Return the fields of values, all null for a null value; and, with ``marks``, which values there are."""
        import pyarrow as pa

        present = [value for value in values if value is not None]
        if self.codec is not None:
            found = iter([self.codec.decode(value) for value in present])
        elif self.value_schemas:
            return self._fields_of_payloads(values)
        else:
            objects = objects_of(present)
            found = iter(objects)
        rows = [_NOTHING if value is None else next(found) for value in values]
        if self.codec is not None:
            schema = to_arrow(self.fields)
            return self._marked([pa.array([row.get(field.name) for row in rows], field.type) for field in schema], rows)
        check_case(rows, frozenset(column.name for column in self.fields))

        def again() -> list[Mapping[str, Any]]:
            exact = iter(exactly(present, objects))
            return [_NOTHING if value is None else next(exact) for value in values]

        return self._marked(self._json.arrays(rows, again, may_be_small=may_be_small(b"\n".join(present))), rows)

    def _marked(self, arrays: list[pa.Array], rows: Sequence[Mapping[str, Any]]) -> list[pa.Array]:
        """Return the fields of values; with ``marks``, also true for each value, else null.

        Args:
            rows: the values; ``_NOTHING`` is none. A value without fields is another object.
        """
        import pyarrow as pa

        if not self.marks:
            return arrays
        return [*arrays, pa.array([None if row is _NOTHING else True for row in rows], pa.bool_())]

    @property
    def _json(self) -> JsonColumns:
        return JsonColumns(columns=self.fields, timezone=self.timezone)

    @property
    def _written(self) -> JsonColumns:
        """The fields as JsonConverter writes them with schemas: dates and times are numbers."""
        kinds = {"TIMESTAMP": "BIGINT", "DATE": "BIGINT"}
        columns = tuple(FieldColumn(each.name, kinds.get(each.type, each.type)) for each in self.fields)
        return JsonColumns(columns=columns, timezone=self.timezone)

    def _fields_of_payloads(self, values: Sequence[bytes | None]) -> list[pa.Array]:
        """Return the fields of JSON with schemas, as ``_fields``: dates, times and decimals are as Kafka Connect writes
        them. A payload of null is no value, as for Kafka Connect."""
        import pyarrow as pa

        present = [value for value in values if value is not None]
        times = {column.name: _COUNTED[column.type] for column in self.fields if column.type in _COUNTED}

        def payloads(*, exact: bool) -> list[Mapping[str, Any]]:
            objects = objects_of(present)
            found = iter(exactly(present, objects) if exact else objects)
            wholes = [None if value is None else next(found) for value in values]
            rows = []
            for whole in wholes:
                payload = None if whole is None else _payload(whole)
                if payload is None:
                    payload = _NOTHING
                elif not isinstance(payload, dict):
                    raise _NoSchema
                schema = (whole or _NOTHING).get("schema")
                if times and payload and not exact:
                    _check_times(payload, schema, times)
                rows.append(self._plain(payload, schema))
            return rows

        rows = payloads(exact=False)
        check_case(rows, frozenset(column.name for column in self.fields))
        small = may_be_small(b"\n".join(present))
        arrays = self._written.arrays(rows, lambda: payloads(exact=True), may_be_small=small)
        for at, column in enumerate(self.fields):
            try:
                if column.type == "TIMESTAMP":
                    arrays[at] = arrays[at].cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
                elif column.type == "DATE":
                    arrays[at] = arrays[at].cast(pa.int32()).cast(pa.date32())
                check_years(arrays[at])
            except (pa.ArrowException, OverflowError) as error:
                raise _NoTime(f"{printable(column.name)} is a time outside of the years 1 to 9999") from error
        return self._marked(arrays, rows)

    def _plain(self, payload: Mapping[str, Any], schema: Any) -> Mapping[str, Any]:
        """Return a payload in which decimals are texts of numbers, not the bytes of their unscaled values."""
        names = [column.name for column in self.fields if column.type.startswith("DECIMAL")]
        if not names or not payload:
            return payload
        kinds = _kinds(schema)
        return {**payload, **{name: _number(payload.get(name), kinds.get(name, {})) for name in names}}

    def _shown(self, value: bytes) -> str:
        if self.codec is not None:
            return base64.b64encode(value).decode()
        return value.decode(errors="backslashreplace")

    def _explained(self, value: bytes, error: BaseException) -> str:
        """Return why a record cannot be read, and what is allowed."""
        if isinstance(error, _NoSchema):
            return _NO_SCHEMA.format(name=error.name)
        if isinstance(error, _NoTime):
            return f"{_NOT_THE_FIELDS}{error}; allowed: milliseconds since 1970, and days for a DATE; or another type"
        if self.codec is not None:
            return f"{error}; {_AVRO}"
        try:
            text = value.decode()
        except UnicodeDecodeError as wrong:
            return f"byte {wrong.start + 1} of the value is not UTF-8; allowed: UTF-8 text"
        if not self.value_schemas:
            return _NOT_THE_FIELDS + self._json.explain(text)
        try:
            whole = loads(text, exact=True)
            payload = _payload(whole)
        except (ValueError, RecursionError, AttributeError):
            return _NO_SCHEMA.format(name="value")
        if not isinstance(payload, dict):
            return _NOT_THE_FIELDS + self._written.explain(json.dumps(loads(text)["payload"]))
        with suppress(*FAULTS):  # of a decimal, which is explained
            fields = self._plain(payload, whole["schema"]).items()
            payload = {name: f"{each:f}" if isinstance(each, decimal.Decimal) else each for name, each in fields}
        return _NOT_THE_FIELDS + self._written.explain(str(texts_of([payload])[0]))


class _NoSchema(ValueError):
    """JSON without schemas.

    Attributes:
        name: of the part of the record.
    """

    def __init__(self, name: str = "value") -> None:
        super().__init__(name)
        self.name = name


class _NoTime(ValueError):
    """A value is no time of its column; carries the column's name, and what the value is."""


def _payload(whole: Mapping[str, Any], name: str = "value") -> Any:
    if whole.keys() != {"schema", "payload"}:
        raise _NoSchema(name)
    return whole["payload"]


def _payloads(name: str) -> Callable[[Sequence[bytes | None]], list[pa.Array]]:
    """Return what parses keys or values of JSON with schemas into texts: a text as it is, everything else as JSON."""

    def parse(values: Sequence[bytes | None]) -> list[pa.Array]:
        import pyarrow as pa

        present = [value for value in values if value is not None]
        try:
            found = iter(texts_of(_payload(whole, name) for whole in exactly(present, objects_of(present))))
        except (ValueError, RecursionError) as error:
            raise _NoSchema(name) from error
        return [pa.array([None if value is None else next(found) for value in values], pa.string())]

    return parse


def _listed(schema: Any, name: str) -> list[Any]:
    """Return a list that is a member of a schema; empty without it. A schema is as the writer of the record likes."""
    found = schema.get(name) if isinstance(schema, dict) else None
    return found if isinstance(found, list) else []


def _kinds(schema: Any) -> dict[str, Mapping[str, Any]]:
    """Return the schema of each field, by its name."""
    return {str(each.get("field")): each for each in _listed(schema, "fields") if isinstance(each, dict)}


def _check_times(payload: Mapping[str, Any], schema: Any, times: Mapping[str, str]) -> None:
    """Check that values are numbers of what their columns count: a day would be a moment in January 1970.

    Args:
        times: the columns that are times, and the end of the name of their schema.

    Raises:
        _NoTime: one is not.
    """
    kinds = _kinds(schema)
    for name, counted in times.items():
        value, written = payload.get(name), str(kinds.get(name, _NOTHING).get("name"))
        if value is None:
            continue
        if written.startswith(_LOGICAL) and written.rpartition(".")[2] != counted:
            raise _NoTime(f"{printable(name)} has the schema {printable(written)}")
        if type(value) is not int:
            raise _NoTime(f"{printable(name)} is {printable(json.dumps(value), limit=200)}")


def _number(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a decimal of Kafka Connect; a number, as ``decimal.format=NUMERIC`` writes it, as it is.

    Raises:
        ValueError: the value is no base64, or has more digits than any decimal.
    """
    if not isinstance(value, str) or schema.get("type") != "bytes" or is_number_as_text(value):
        return value
    parameters = schema.get("parameters")
    scale = int(parameters.get("scale", 0)) if isinstance(parameters, dict) else 0
    # A longer text or a larger scale costs time, and no column holds it.
    if len(value) > _MAX_DIGITS or abs(scale) > _MAX_DIGITS:
        raise ValueError("too many digits")
    data = base64.b64decode(value, validate=True)
    if not data:
        raise ValueError("a number without bytes")
    unscaled = int.from_bytes(data, "big", signed=True)
    return decimal.Decimal(unscaled).scaleb(-scale, decimal.Context(prec=10 * _MAX_DIGITS))


def _places(batch: pa.RecordBatch) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    topic, partition, offset = (batch.column(f"connectgroup_{name}") for name in _PLACE)
    return pc.binary_join_element_wise(
        topic, "-", partition.cast(pa.string()), ", offset ", offset.cast(pa.string()), ""
    )

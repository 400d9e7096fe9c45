"""Avro values of Kafka records: the columns of a schema, and the bytes of a record.

The schema is a setting of the connector; there is no schema registry, so the form of Confluent's ``AvroConverter`` (a
zero byte and the number of a schema) is not read. The bytes are Avro's binary encoding alone, or its single-object
encoding, which begins with a fingerprint of the schema. fastavro encodes and decodes.
"""

from __future__ import annotations

import datetime
import io
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from ..dataplane.columns import MAX_PRECISION, Column, Columns, check_names
from ..dataplane.errors import SinkError
from ..errors import NO_VALUE, ConfigError
from ..protocol.units import printable

if TYPE_CHECKING:
    from fastavro.types import Schema

Encoding = Literal["binary", "single-object"]

_TYPES: Final[Mapping[str, str]] = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "enum": "STRING",
    "bytes": "BINARY",
    "fixed": "BINARY",
}
_LOGICAL: Final[Mapping[tuple[str, str], str]] = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("string", "uuid"): "STRING",
}
_ALLOWED: Final = (
    f"an Avro record as JSON; its fields have the types {', '.join(_TYPES)}, the logical types"
    f" {', '.join(name for _, name in _LOGICAL)}, decimal of up to {MAX_PRECISION} digits, or a union of null and one"
    " of them"
)
_MAGIC: Final = b"\xc3\x01"


def columns_of(schema: str, setting: str) -> Columns:
    """Return the columns of the fields of a record's schema.

    Raises:
        ConfigError: the text is not the schema of a record, or a field has a type that is no column type.
    """
    try:
        found = json.loads(schema) if schema else None
    except (ValueError, RecursionError) as error:
        raise ConfigError(setting, printable(schema, limit=100), _ALLOWED) from error
    if not isinstance(found, dict) or found.get("type") != "record" or not isinstance(found.get("fields"), list):
        raise ConfigError(setting, printable(schema, limit=100) if schema else NO_VALUE, _ALLOWED)
    columns = []
    for each in found["fields"]:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise ConfigError(setting, printable(json.dumps(each), limit=100), _ALLOWED)
        kind = _type_of(each.get("type"))
        if kind is None:
            raise ConfigError(setting, printable(json.dumps(each), limit=100), _ALLOWED)
        columns.append(Column(each["name"], kind))
    return check_names(columns, field=setting)


def _type_of(found: object) -> str | None:
    """Return the column type of a field; null if there is none."""
    if isinstance(found, list):
        others = [each for each in found if each != "null"]
        # A union has no unions in it.
        return _type_of(others[0]) if len(others) == 1 and not isinstance(others[0], list) else None
    if isinstance(found, str):
        return _TYPES.get(found)
    if not isinstance(found, dict):
        return None
    logical = found.get("logicalType")
    name = found.get("type")
    if not isinstance(name, str):
        return None
    if logical == "decimal" and name in ("bytes", "fixed"):
        precision, scale = found.get("precision"), found.get("scale", 0)
        is_held = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= MAX_PRECISION
        return f"DECIMAL({precision},{scale})" if is_held and precision else None
    return _TYPES.get(name) if logical is None else _LOGICAL.get((name, str(logical)))


@dataclass(slots=True)
class AvroCodec:
    """Reads and writes the values of one schema. It is sent to Spark's Python processes without the parsed schema.

    Attributes:
        schema: the schema as JSON.
        encoding: ``binary``, or ``single-object``.
    """

    schema: str
    encoding: Encoding
    _parsed: Schema | None = field(default=None, compare=False)
    _header: bytes = b""
    _narrow: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[type[AvroCodec], tuple[str, Encoding]]:
        return AvroCodec, (self.schema, self.encoding)

    def prepare(self, setting: str) -> AvroCodec:
        """Parse the schema; return this object.

        Raises:
            ConfigError: fastavro is not installed, or rejects the schema.
        """
        try:
            from fastavro.schema import SchemaParseException, UnknownType
        except ModuleNotFoundError as error:
            raise ConfigError(
                "avro", f"no package {error.name}", "pip install 'connectgroup[avro]' on each worker"
            ) from error
        try:
            self._parse()
        except (SchemaParseException, UnknownType, KeyError, ValueError, RecursionError) as error:
            raise ConfigError(setting, printable(str(error), limit=200), _ALLOWED) from error
        return self

    def decode(self, value: bytes) -> dict[str, Any]:
        """Return the fields of a record.

        Raises:
            ValueError: the bytes are not a record of the schema; carries the reason.
        """
        from fastavro import schemaless_reader

        schema = self._parse()
        if self.encoding == "single-object":
            if value[: len(_MAGIC)] != _MAGIC:
                raise ValueError("the value does not begin with the marker C3 01 of Avro's single-object encoding")
            if not value.startswith(self._header):
                raise ValueError(f"the value has a schema with the fingerprint {value[2:10].hex()}, not this one")
        data = io.BytesIO(value)
        data.seek(len(self._header))
        try:
            found = schemaless_reader(data, schema, None)
        except Exception as error:  # fastavro raises many types of errors for wrong bytes
            raise ValueError(f"the value is not Avro of the schema ({type(error).__name__}: {error})") from error
        if data.read(1):
            raise ValueError(f"the value has {len(value)} bytes, the record of the schema ends before")
        assert isinstance(found, dict)
        return found

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        """Return the bytes of a record.

        Raises:
            SinkError: the fields do not fit the schema.
        """
        from fastavro import schemaless_writer

        schema, data = self._parse(), io.BytesIO()
        data.write(self._header)
        for name in self._narrow:
            value = fields.get(name)
            # Avro's float has 32 bits: fastavro rounds, and makes 1e-50 a 0.
            if isinstance(value, float) and math.isfinite(value) and not _is_float32(value):
                raise SinkError(
                    f"{printable(name)} is {value}; allowed: values of Avro's float, or a field of type double"
                )
        try:
            schemaless_writer(data, schema, {name: _utc(value) for name, value in fields.items()}, strict=False)
        except Exception as error:
            reason = printable(f"{type(error).__name__}: {error}", limit=200)
            raise SinkError(f"a row does not fit the Avro schema ({reason}); allowed: values of its fields") from error
        return data.getvalue()

    def _parse(self) -> Schema:
        if self._parsed is None:
            from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

            plain = json.loads(self.schema)
            if self.encoding == "single-object":
                # fastavro returns the bytes in the order of the encoding.
                self._header = _MAGIC + bytes.fromhex(fingerprint(to_parsing_canonical_form(plain), "CRC-64-AVRO"))
            self._narrow = tuple(each.name for each in columns_of(self.schema, "avro.schema") if each.type == "FLOAT")
            self._parsed = parse_schema(plain)
        return self._parsed


def _is_float32(value: float) -> bool:
    try:
        return bool(struct.unpack("<f", struct.pack("<f", value)) == (value,))
    except OverflowError:
        return False


def _utc(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=datetime.UTC)  # fastavro would take it for local time
    return value


@dataclass(frozen=True, slots=True)
class Fields:
    """Decodes a value into fields and, last, the reason why it cannot be decoded; for Spark's ``udf``."""

    codec: AvroCodec
    names: tuple[str, ...]

    def __call__(self, value: bytes | None) -> tuple[Any, ...] | None:
        if value is None:
            return None
        try:
            found = self.codec.decode(bytes(value))
        except ValueError as error:
            return (*(None for _ in self.names), str(error))
        return (*(found.get(name) for name in self.names), None)

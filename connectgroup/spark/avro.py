"""Avro values of Kafka records: the columns of a schema, and the bytes of a record.

The schema is a setting of the connector; there is no schema registry, so the form of Confluent's ``AvroConverter`` (a
zero byte and the number of a schema) is not read. The bytes are Avro's binary encoding alone, or its single-object
encoding, which begins with a fingerprint of the schema. fastavro encodes and decodes.
"""

from __future__ import annotations

import datetime
import decimal
import io
import json
import math
import re
import struct
import uuid
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
    """Return the column type of a field; ``None`` if there is none."""
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
    _plain: Schema | None = field(default=None, compare=False)  # in which decimals are bytes
    _header: bytes = b""
    _kinds: tuple[_Kind, ...] = ()
    _bounded: tuple[_Kind, ...] = ()

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
            found = schemaless_reader(data, self._plain or schema, None)
        except Exception as error:  # fastavro raises many types of errors for wrong bytes
            raise ValueError(f"the value is not Avro of the schema ({type(error).__name__}: {error})") from error
        if data.read(1):
            raise ValueError(f"the value has {len(value)} bytes, the record of the schema ends before")
        assert isinstance(found, dict)
        for kind in self._bounded:
            field = found[kind.name]
            if field is not None and kind.form == "uuid":
                kind.check_uuid(field)
            elif field is not None and kind.form == "decimal":
                field = found[kind.name] = kind.decimal_of(field)
            elif field is not None and not kind.keeps(field):
                raise ValueError(kind.beyond(field))
        return found

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        """Return the bytes of a record.

        Raises:
            SinkError: the fields do not fit the schema.
        """
        from fastavro import schemaless_writer

        schema, data = self._parse(), io.BytesIO()
        data.write(self._header)
        for kind in self._kinds:
            if (allowed := kind.misfit(fields)) is not None:
                shown = _shown(fields.get(kind.name))
                raise SinkError(f"{printable(kind.name)} is {shown}; allowed: {allowed}")
        try:
            schemaless_writer(data, schema, {name: _utc(value) for name, value in fields.items()}, strict=False)
        except Exception as error:
            reason = printable(f"{type(error).__name__}: {error}", limit=200)
            what = f"{self._failing(fields)} does not fit the Avro schema ({reason})"
            raise SinkError(f"{what}; allowed: values of its fields") from error
        return data.getvalue()

    def _failing(self, fields: Mapping[str, Any]) -> str:
        """Return the first field that cannot be written, with its value."""
        from fastavro import parse_schema, schemaless_writer

        for each in json.loads(self.schema)["fields"]:
            alone = parse_schema({"type": "record", "name": "alone", "fields": [each]})
            value = fields.get(each["name"])
            try:
                schemaless_writer(io.BytesIO(), alone, {each["name"]: _utc(value)}, strict=False)
            except Exception:
                return f"{printable(each['name'])} is {_shown(value)}: it"
        return "a row"

    def _parse(self) -> Schema:
        if self._parsed is None:
            from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

            plain = json.loads(self.schema)
            if self.encoding == "single-object":
                # fastavro returns the bytes in the order of the encoding.
                self._header = _MAGIC + bytes.fromhex(fingerprint(to_parsing_canonical_form(plain), "CRC-64-AVRO"))
            self._kinds = tuple(_Kind.of(each) for each in plain["fields"])
            # The encoding of these holds other values, too.
            self._bounded = tuple(each for each in self._kinds if each.form in ("int", "decimal", "uuid"))
            self._parsed = parse_schema(plain)
            # fastavro makes a number of all bytes of a decimal, in time quadratic in their count, and rounds it; and a
            # UUID of a text: its own text has small letters, and hyphens.
            self._plain = parse_schema({**plain, "fields": [_without_types(each) for each in plain["fields"]]})
        return self._parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """The values that a field keeps. fastavro writes some others, too, as something else: 3.7 as the int 3, null as
    false, 2**40 as an int that no other reader takes.

    Attributes:
        form: the logical type, or the type; ``schema``: all of it.
        takes_null: whether the type is a union with null; ``may_lack``: whether the row may be without the field.
    """

    name: str
    form: str
    schema: Mapping[str, Any]
    takes_null: bool
    may_lack: bool

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> _Kind:
        """Return the kind of a field of a record's schema."""
        kind = written["type"]
        takes_null = isinstance(kind, list) and "null" in kind
        if isinstance(kind, list):
            (kind,) = (each for each in kind if each != "null")
        schema = kind if isinstance(kind, dict) else {"type": kind}
        form = str(schema.get("logicalType") or schema["type"])
        lacks = "default" in written or takes_null
        return cls(name=written["name"], form=form, schema=schema, takes_null=takes_null, may_lack=lacks)

    def misfit(self, fields: Mapping[str, Any]) -> str | None:
        """Return what is allowed, if a row's value is not; None if the value is kept as it is."""
        value = fields.get(self.name)
        if value is None:
            if self.takes_null or (self.may_lack and self.name not in fields):
                return None
            return f"a value, or a union with null as the type of this field in the schema, not {self.schema['type']}"
        return None if self.keeps(value) else self.allowed()

    def decimal_of(self, data: bytes) -> decimal.Decimal:
        """Return the decimal that some bytes are.

        Raises:
            ValueError: it has more digits than the type.
        """
        scale = self.schema.get("scale", 0)
        unscaled = int.from_bytes(data, "big", signed=True)
        # Compared as an integer: to make a decimal of many digits takes quadratic time.
        if abs(unscaled) >= 10 ** self.schema["precision"]:
            is_short = len(data) <= _SHOWN_BYTES
            shown = decimal.Decimal(unscaled).scaleb(-scale, _EXACT) if is_short else f"of {len(data)} bytes"
            raise ValueError(self.beyond(shown))
        return decimal.Decimal(unscaled).scaleb(-scale, _EXACT)

    def check_uuid(self, text: str) -> None:
        """Check that a text is a UUID.

        Raises:
            ValueError: it is none.
        """
        try:
            uuid.UUID(text)
        except ValueError as error:
            raise ValueError(self.beyond(text)) from error

    def beyond(self, value: object) -> str:
        """Return the error for a value that was read and is not of the type."""
        return f"the value has {printable(self.name)} {_shown(value)}; it has to be {self.allowed()}"

    def keeps(self, value: Any) -> bool:
        """Whether the type has a value as it is."""
        match self.form:
            case "boolean":
                return isinstance(value, bool)
            case "int" | "long":
                limit = _LIMITS[self.form]
                return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
            case "float" | "double":
                return isinstance(value, float | int | decimal.Decimal) and _is_kept(value, _PACKED[self.form])
            case "string":
                return isinstance(value, str)
            case "enum":
                return value in self.schema["symbols"]
            case "bytes":
                return isinstance(value, bytes)
            case "fixed":
                return isinstance(value, bytes) and len(value) == self.schema["size"]
            case "date":
                return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
            case "timestamp-millis":
                return isinstance(value, datetime.datetime) and value.microsecond % 1000 == 0
            case "timestamp-micros":
                return isinstance(value, datetime.datetime)
            case "uuid":
                return isinstance(value, str) and _UUID.fullmatch(value) is not None
            case "decimal":
                return isinstance(value, decimal.Decimal)  # fastavro checks the digits
        raise AssertionError(self.form)

    def allowed(self) -> str:
        """Return the values that are kept."""
        match self.form:
            case "int" | "long":
                wider = " or a field of type long" if self.form == "int" else " or a field of type string"
                return f"{_WHOLE[self.form]},{wider}"
            case "float":
                return "values of Avro's float, or a field of type double"
            case "double":
                return "values of Avro's double, or a field of type decimal or string"
            case "enum":
                return f"the symbols {printable(', '.join(map(str, self.schema['symbols'])), limit=200)}"
            case "fixed":
                return f"{self.schema['size']} bytes"
            case "timestamp-millis":
                return "a timestamp of whole milliseconds, or a field of type timestamp-micros"
            case "decimal":
                return f"a decimal of {self.schema['precision']} digits, {self.schema.get('scale', 0)} after the point"
        return f"a value of Avro's type {self.form}"


_SHOWN_BYTES: Final = 32
_EXACT: Final = decimal.Context(prec=100)
"""Has all digits of a number of ``_SHOWN_BYTES``."""
_LIMITS: Final = {"int": 1 << 31, "long": 1 << 63}
_WHOLE: Final = {"int": "whole numbers of 32 bits", "long": "whole numbers of 64 bits"}
_PACKED: Final = {"float": "<f", "double": "<d"}
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _without_types(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field whose decimals are plain bytes, and UUIDs texts."""

    def plain(kind: Any) -> Any:
        if isinstance(kind, list):
            return [plain(each) for each in kind]
        is_other = isinstance(kind, dict) and kind.get("logicalType") in ("decimal", "uuid")
        return {name: value for name, value in kind.items() if name != "logicalType"} if is_other else kind

    return {**written, "type": plain(written["type"])}


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return printable(repr(value) if isinstance(value, str | bytes) else str(value), limit=100)


def _is_kept(value: float | decimal.Decimal, packed: str) -> bool:
    """Whether a number is the same one with fewer bits; a boolean is none."""
    if isinstance(value, bool):
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return True
    try:
        (found,) = struct.unpack(packed, struct.pack(packed, value))
    except (OverflowError, struct.error):
        return False
    return bool(found == value)


def _utc(value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=datetime.UTC)  # fastavro would take it for local time
    return value

"""Converters of Kafka Connect: how keys and values of records are written in Kafka.

The names and the form of the bytes are those of Kafka Connect's own converters: ``StringConverter``,
``ByteArrayConverter`` and ``JsonConverter`` with and without ``schemas.enable``, including its logical types: a
timestamp is a number of milliseconds, a date a number of days, a decimal its unscaled value in base64. Bytes are
base64.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from ..dataplane.columns import Columns, finite, json_encoder, shortest, to_objects
from ..dataplane.errors import SinkError
from ..dataplane.settings import PluginSettings
from ..errors import ConfigError
from ..protocol.units import printable
from .avro import AvroCodec, Encoding, columns_of

if TYPE_CHECKING:
    import pyarrow as pa

Form = Literal["", "string", "bytes", "json", "avro"]

_CLASSES: Final[Mapping[str, Form]] = {
    "org.apache.kafka.connect.storage.StringConverter": "string",
    "org.apache.kafka.connect.converters.ByteArrayConverter": "bytes",
    "org.apache.kafka.connect.json.JsonConverter": "json",
}
_FORMS: Final[Mapping[str, Form]] = {
    "": "",
    **_CLASSES,
    **{name.rpartition(".")[2]: f for name, f in _CLASSES.items()},
    "AvroConverter": "avro",
}
_ALLOWED: Final = "StringConverter, ByteArrayConverter, JsonConverter, each also with Kafka Connect's package"
_ALLOWED_VALUES: Final = f"{_ALLOWED}; AvroConverter with value.converter.avro.schema, for there is no schema registry"
CONVERTERS: Final = (
    "key.converter",
    "key.converter.schemas.enable",
    "value.converter",
    "value.converter.schemas.enable",
    "value.converter.avro.schema",
    "value.converter.avro.encoding",
    "header.converter",
)
"""Settings of a source or sink of Kafka that a connector may also have without the prefix, as in Kafka Connect."""
HEADERS_TYPE: Final = "ARRAY<STRUCT<key: STRING, value: {}>>"
"""Spark's type of the headers of a record."""
_SCHEMAS: Final = "with JsonConverter: true, false: whether the JSON is an object of schema and payload"


class ConverterSettings(PluginSettings):
    """Settings of the converters of a source or sink of Kafka."""

    key_converter: Annotated[str, Field(description=f"{_ALLOWED}; by default StringConverter")] = ""
    key_converter_schemas_enable: Annotated[bool, Field(description=_SCHEMAS)] = True
    value_converter: Annotated[
        str,
        Field(
            description=f"{_ALLOWED_VALUES}; by default a column value is text, other columns are JSON without schemas"
        ),
    ] = ""
    value_converter_schemas_enable: Annotated[bool, Field(description=_SCHEMAS)] = True
    value_converter_avro_schema: Annotated[
        str,
        Field(
            description="with AvroConverter: the schema of the values, an Avro record as JSON. Its fields are columns."
            " There is no schema registry"
        ),
    ] = ""
    value_converter_avro_encoding: Annotated[
        Encoding,
        Field(
            description="binary, single-object: whether a value begins with the fingerprint of its schema (Avro's"
            " single-object encoding). Confluent's form with the number of a schema is not read"
        ),
    ] = "binary"
    header_converter: Annotated[
        str,
        Field(
            description="StringConverter, ByteArrayConverter: the values of headers. A source reads them as texts, or"
            " with ByteArrayConverter as bytes; a sink writes those it gets, and rejects a converter that does not fit"
        ),
    ] = ""

    def check_converters(self, prefix: str) -> None:
        """Check the names of the converters.

        Args:
            prefix: ``source.`` or ``sink.``, for the error.

        Raises:
            ConfigError: there is no such converter.
        """
        for part, name in (("key", self.key_converter), ("value", self.value_converter)):
            if name not in _FORMS or (part == "key" and name == "AvroConverter"):
                raise ConfigError(f"{prefix}{part}.converter", name, _ALLOWED if part == "key" else _ALLOWED_VALUES)
        if _FORMS.get(self.header_converter, "json") in ("json", "avro"):
            raise ConfigError(f"{prefix}header.converter", self.header_converter, "StringConverter, ByteArrayConverter")
        setting = f"{prefix}value.converter.avro.schema"
        if self.value_form == "avro":
            columns_of(self.value_converter_avro_schema, setting)
        elif self.value_converter_avro_schema:
            raise ConfigError(setting, "a schema", "nothing without AvroConverter")

    def avro(self, prefix: str) -> AvroCodec:
        """Return what reads and writes the values.

        Raises:
            ConfigError: fastavro is not installed, or rejects the schema.
        """
        codec = AvroCodec(self.value_converter_avro_schema, self.value_converter_avro_encoding)
        return codec.prepare(f"{prefix}value.converter.avro.schema")

    @property
    def avro_columns(self) -> Columns:
        """The columns of the Avro schema; none with another converter."""
        return columns_of(self.value_converter_avro_schema, "avro.schema") if self.value_form == "avro" else ()

    @property
    def json_texts(self) -> frozenset[str]:
        """Which of ``key`` and ``value`` a source reads as JSON and hands on as text."""
        return frozenset()

    @property
    def key_form(self) -> Form:
        """How a key is written."""
        return _FORMS[self.key_converter]

    @property
    def value_form(self) -> Form:
        """How a value is written."""
        return _FORMS[self.value_converter]

    @property
    def header_type(self) -> str:
        """Spark's type of the value of a header."""
        return "BINARY" if _FORMS[self.header_converter] == "bytes" else "STRING"


def check_pair(source: object, sink: object) -> None:
    """Check that JSON which a source of Kafka hands on as text is not encoded again by a sink of Kafka.

    Args:
        source, sink: their settings; those of other sources and sinks are not checked.

    Raises:
        ConfigError: both have JsonConverter, and the source does not parse what it reads.
    """
    if not isinstance(source, ConverterSettings) or not isinstance(sink, ConverterSettings):
        return
    if sink.value_form == "json" and "value" in source.json_texts:
        allowed = "StringConverter: the source hands on JSON as text; or source.schema for its fields"
        raise ConfigError("sink.value.converter", sink.value_converter, allowed)
    if sink.key_form == "json" and "key" in source.json_texts:
        allowed = "StringConverter: the source hands on the key as text"
        raise ConfigError("sink.key.converter", sink.key_converter, allowed)


def encoder(kind: pa.DataType, form: Form, *, schemas: bool, optional: bool = True) -> Callable[[Any], Any]:
    """Return the function that writes a value as the bytes or the text of a record.

    Args:
        kind: the type of the values.
        form: the converter.
        schemas: JSON: whether the value is written with its schema.
        optional: whether the schema allows null.
    """
    import pyarrow as pa

    if form != "json":
        if pa.types.is_floating(kind):
            return lambda value: None if value is None else _number_text(value, kind)
        convert = to_objects(kind)
        return text_of if convert is None else lambda value: text_of(convert(value))
    # In the order and with the characters of Kafka Connect: the bytes of a key choose the partition, and what a
    # compacted topic keeps.
    schema, write = _schema_text(_schema(kind, optional=optional)), _writer(kind)

    def encode(value: Any) -> str | None:
        # A tombstone, or no key: a value with the schema of a null would be neither.
        if value is None:
            return None
        return f'{{"schema":{schema},"payload":{write(value)}}}' if schemas else write(value)

    return encode


def text_of(value: Any) -> bytes | str | None:
    """Return texts and bytes as they are, structs, arrays and maps as JSON, and other values as text."""
    if value is None or isinstance(value, str | bytes):
        return value
    if isinstance(value, dict | list):
        return _JSON(value)
    if isinstance(value, float):
        return _number_text(value)
    return _JSON(value) if isinstance(value, bool) else str(value)


def headers_of(value: Any) -> list[tuple[str, bytes | str | None]]:
    """Return the headers of a record for confluent-kafka, in their order.

    Raises:
        SinkError: a header is null, or its name is, or has a null character.
    """
    found = value.items() if isinstance(value, dict) else value or ()
    pairs = [(item["key"], item["value"]) if isinstance(item, dict) else item for item in found]
    if not all(pair is not None and pair[0] is not None for pair in pairs):
        raise SinkError("headers has one without a name; allowed: names that are not null")
    for name, _ in pairs:
        if "\0" in str(name):  # The client would cut the name off there.
            raise SinkError(f"headers has the name {printable(name)}; allowed: names without a null character")
    return [(str(name), text_of(text)) for name, text in pairs]


def _schema(kind: pa.DataType, *, optional: bool = True) -> dict[str, Any]:
    """Return a type as the schema of Kafka Connect's ``JsonConverter``."""
    import pyarrow as pa

    types = pa.types
    inner: dict[str, Any] = {}
    more: dict[str, Any] = {}
    name = {"bool": "boolean", "large_string": "string", "binary": "bytes", "large_binary": "bytes"}.get(str(kind))
    if types.is_struct(kind):
        name = "struct"
        inner["fields"] = [{**_schema(field.type), "field": field.name} for field in kind]
    elif types.is_map(kind):
        name = "map"
        inner = {"keys": _schema(kind.key_type, optional=False), "values": _schema(kind.item_type)}
    elif types.is_list(kind) or types.is_large_list(kind):
        name, inner["items"] = "array", _schema(kind.value_type)
    elif types.is_date(kind):
        name, more = "int32", {"name": "org.apache.kafka.connect.data.Date", "version": 1}
    elif types.is_timestamp(kind):
        name, more = "int64", {"name": "org.apache.kafka.connect.data.Timestamp", "version": 1}
    elif types.is_decimal(kind):
        scale = {"scale": str(kind.scale)}
        name, more = "bytes", {"name": "org.apache.kafka.connect.data.Decimal", "version": 1, "parameters": scale}
    return {"type": name or str(kind), **inner, "optional": optional, **more}


def _schema_text(part: Any) -> str:
    """Return a part of a schema as JSON."""
    if isinstance(part, dict):
        return f"{{{','.join(f'{_quoted(name)}:{_schema_text(item)}' for name, item in part.items())}}}"
    if isinstance(part, list):
        return f"[{','.join(map(_schema_text, part))}]"
    return _quoted(part) if isinstance(part, str) else json.dumps(part)


def _writer(kind: pa.DataType) -> Callable[[Any], str]:
    """Return the function that writes a value of a type as Kafka Connect's ``JsonConverter`` does."""
    write = _writer_of_values(kind)
    return lambda value: "null" if value is None else write(value)


def _writer_of_values(kind: pa.DataType) -> Callable[[Any], str]:
    """``_writer`` of values that are not null."""
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        fields = [(field.name, f"{_quoted(field.name)}:", _writer(field.type)) for field in kind]
        return lambda value: f"{{{','.join([start + write(value[name]) for name, start, write in fields])}}}"
    if types.is_map(kind):
        key, item = _writer(kind.key_type), _writer(kind.item_type)
        if types.is_string(kind.key_type):
            return lambda value: f"{{{','.join([f'{key(name)}:{item(each)}' for name, each in dict(value).items()])}}}"
        return lambda value: f"[{','.join([f'[{key(name)},{item(each)}]' for name, each in value])}]"
    if types.is_list(kind) or types.is_large_list(kind):
        write = _writer(kind.value_type)
        return lambda value: f"[{','.join([write(item) for item in value])}]"
    return lambda value: _scalar(value, kind)


def _scalar(value: Any, kind: pa.DataType) -> str:
    """Return a value that is no struct, map or list as JSON."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        text = _number_text(value, kind)
        return text if math.isfinite(value) else f'"{text}"'
    if isinstance(value, datetime.datetime):
        at = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        if at.microsecond % 1000:
            raise SinkError(
                f"the timestamp {at:%Y-%m-%dT%H:%M:%S.%f} has a fraction of a millisecond; allowed: whole milliseconds,"
                " as JsonConverter writes timestamps as their number; or a transform that rounds it"
            )
        return str((at - _EPOCH) // datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.date):
        return str((value - _EPOCH.date()).days)
    if isinstance(value, decimal.Decimal):
        unscaled = int(value.scaleb(kind.scale, _EXACT))
        # The fewest bytes, as in Java: those of -128 are one, of 128 two.
        bits = (~unscaled if unscaled < 0 else unscaled).bit_length()
        value = unscaled.to_bytes(bits // 8 + 1, "big", signed=True)
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    return json.dumps(value)


def _quoted(text: str) -> str:
    """Return a text as JSON with the escapes of Kafka Connect: characters of UTF-16's surrogates are escaped, too."""
    return f'"{_SPECIAL.sub(_escaped, text)}"'


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if (short := _SHORT.get(character)) is not None:
        return short
    units = character.encode("utf-16-be").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _number_text(value: float, kind: pa.DataType | None = None) -> str:
    """Return a number as Java 19 and later have it: 1.0E10, and 0.1 for one of 32 bits. Earlier ones write some numbers
    with more digits than they need, 2.0E23 as 1.9999999999999998E23.

    Args:
        kind: the type of the value; without one it has 64 bits.
    """
    if not math.isfinite(value):
        return str(finite(value))
    number = shortest(value) or value if str(kind) == "float" else value
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    digits = decimal.Decimal(repr(number)).normalize().as_tuple().digits
    # Two digits at least, the next ones to the value: the smallest number is 4.9E-324, not 5.0E-324.
    mantissa, _, exponent = f"{value:.{max(len(digits) - 1, 1)}e}".partition("e")
    return f"{mantissa}E{int(exponent)}"


_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EXACT: Final = decimal.Context(prec=80)
_JSON: Final = json_encoder(ensure_ascii=True)
_SPECIAL: Final = re.compile(r'[\x00-\x1f"\\\U00010000-\U0010ffff]')
_SHORT: Final = {character: json.dumps(character)[1:-1] for character in '"\\\b\f\n\r\t'}

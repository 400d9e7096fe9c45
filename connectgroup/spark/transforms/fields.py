"""Transforms of fields: ``InsertField``, ``ReplaceField``, ``MaskField``, ``HoistField``, ``ExtractField``,
``ValueToKey`` and ``Flatten``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from ...dataplane.columns import NUMBER_TEXT
from ...dataplane.dead_letters import HAS_VALUE_COLUMN
from ...dataplane.settings import PluginSettings
from ...dataplane.transform import Place, RowTransform, listed, quoted
from ...errors import NO_VALUE, ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, types as T


def unchanged(frame: DataFrame) -> dict[str, Column]:
    """Return all columns of a frame as they are, by name."""
    return {name: frame[quoted(name)] for name in frame.columns}


def add(columns: dict[str, Column], name: str, column: Column, setting: str) -> None:
    """Add a column that the rows do not have.

    Args:
        setting: the setting that names it, for the error.

    Raises:
        ConfigError: they have it; Spark and databases do not distinguish a from A.
    """
    if name.lower() in {known.lower() for known in columns}:
        raise ConfigError(setting, name, f"a name that is not one of the columns {', '.join(columns)}")
    columns[name] = column


class InsertFieldSettings(PluginSettings):
    """Settings of ``InsertField``. At least one field must be named."""

    topic_field: Annotated[str | None, Field(description="a new field for the record's topic")] = None
    partition_field: Annotated[str | None, Field(description="a new field for the record's partition")] = None
    offset_field: Annotated[str | None, Field(description="a new field for the record's offset")] = None
    timestamp_field: Annotated[str | None, Field(description="a new field for the record's timestamp")] = None
    static_field: Annotated[str | None, Field(description="a new field for static.value")] = None
    static_value: Annotated[str | None, Field(description="the text of static.field")] = None


class InsertField(RowTransform):
    """Adds record metadata or a constant text as fields. A field that the rows have already is an error. From a topic
    to a topic, with ``source.schema`` and without ``sql`` or transforms of other packages, a record without a value (a
    tombstone) stays one, as in Kafka Connect; otherwise it becomes an object with the field.

    Topic, partition, offset and timestamp come from the columns of these names, which Kafka records have.
    """

    Settings = InsertFieldSettings

    def __init__(self, settings: InsertFieldSettings, place: Place) -> None:
        super().__init__(settings, place)
        pairs = {
            "topic": settings.topic_field,
            "partition": settings.partition_field,
            "offset": settings.offset_field,
            "timestamp": settings.timestamp_field,
        }
        # Connect marks a field as optional or required with a trailing ? or !; here every column may be null.
        self._copies = {source: field.rstrip("?!") for source, field in pairs.items() if field}
        self._static = settings.static_field.rstrip("?!") if settings.static_field else None
        if (self._static is None) != (settings.static_value is None):
            missing = "static.field" if self._static is None else "static.value"
            raise ConfigError(f"{place.prefix}{missing}", NO_VALUE, "static.field and static.value together")
        if not self._copies and self._static is None:
            raise ConfigError(f"{place.prefix}static.field", NO_VALUE, "at least one field to insert")

    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        from pyspark.sql import functions as F

        columns, has_marks = unchanged(frame), HAS_VALUE_COLUMN in frame.columns

        def insert(field: str, column: Column, setting: str) -> None:
            inserted = F.when(frame[HAS_VALUE_COLUMN], column) if has_marks else column
            add(columns, field, inserted, f"{self.place.prefix}{setting}")

        for source, field in self._copies.items():
            self.require(frame, f"{source}.field", [source])
            insert(field, frame[quoted(source)], f"{source}.field")
        if self._static is not None:
            insert(self._static, F.lit(self.settings.static_value), "static.field")
        return columns


class ReplaceFieldSettings(PluginSettings):
    """Settings of ``ReplaceField``."""

    include: Annotated[str, Field(description="fields to keep, separated by commas; all by default")] = ""
    exclude: Annotated[str, Field(description="fields to drop, separated by commas")] = ""
    renames: Annotated[str, Field(description="pairs old:new, separated by commas")] = ""


class ReplaceField(RowTransform):
    """Keeps, drops and renames fields. A field that does not exist is ignored, as in Kafka Connect; a new name that
    another field has is an error.
    """

    Settings = ReplaceFieldSettings

    def __init__(self, settings: ReplaceFieldSettings, place: Place) -> None:
        super().__init__(settings, place)
        self._include, self._exclude = frozenset(listed(settings.include)), frozenset(listed(settings.exclude))
        self._renames = parse_pairs(f"{place.prefix}renames", settings.renames, "pairs old:new, separated by commas")

    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        columns: dict[str, Column] = {}
        for name, column in unchanged(frame).items():
            kept = name not in self._exclude and (not self._include or name in self._include)
            if kept or name in self.place.metadata - self._exclude:
                add(columns, self._renames.get(name, name), column, f"{self.place.prefix}renames")
        if not columns:
            raise ConfigError(f"{self.place.prefix}include", self.settings.include, "at least one field to keep")
        return columns


class MaskFieldSettings(PluginSettings):
    """Settings of ``MaskField``."""

    fields_: Annotated[str, Field(alias="fields", min_length=1, description="fields, separated by commas")]
    replacement: Annotated[
        str | None, Field(description="a text or number that the fields hold; 0, false or an empty text by default")
    ] = None


class MaskField(RowTransform):
    """Replaces fields by the zero of their type, an empty text, array or map, or by ``replacement``; structs and bytes
    by null. Null stays null.
    """

    Settings = MaskFieldSettings
    keeps_columns = True

    def check_columns(self, types: Mapping[str, str]) -> None:
        for name in listed(self.settings.fields_):
            if name in types:
                self._check(name, types[name].lower())

    def _check(self, name: str, kind: str) -> None:
        """Reject a replacement that is no value of a field.

        Args:
            kind: the type, as Spark's ``simpleString``.
        """
        text = self.settings.replacement
        if not text or kind == "string":
            return
        if not _fits(text, kind):
            is_number = kind in _BITS or kind.startswith(("float", "double", "decimal"))
            allowed = f"a number, for the field {name} of type {kind}" if is_number else f"none, for the field {name}"
            raise ConfigError(f"{self.place.prefix}replacement", text, allowed)

    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        names = listed(self.settings.fields_)
        self.require(frame, "fields", names)
        types = {field.name: field.dataType for field in frame.schema.fields}
        return unchanged(frame) | {name: self._masked(frame, name, types[name]) for name in dict.fromkeys(names)}

    def _masked(self, frame: DataFrame, name: str, kind: T.DataType) -> Column:
        from pyspark.sql import functions as F

        return F.when(frame[quoted(name)].isNotNull(), self._mask(name, kind)).otherwise(F.lit(None).cast(kind))

    def _mask(self, name: str, kind: T.DataType) -> Column:
        from pyspark.sql import functions as F, types as T

        text = self.settings.replacement
        if isinstance(kind, T.StringType):
            return F.lit(text or "")
        if isinstance(kind, T.NumericType):
            self._check(name, kind.simpleString())
            whole = isinstance(kind, T.IntegralType) and text
            return F.lit(str(int(Decimal(text or 0))) if whole else text or "0").cast(kind)
        if text is None and isinstance(kind, T.BooleanType | T.DateType | T.TimestampType | T.TimestampNTZType):
            return F.lit(False) if isinstance(kind, T.BooleanType) else F.lit("1970-01-01").cast(kind)
        if text is None and isinstance(kind, T.ArrayType | T.MapType):
            return (F.array() if isinstance(kind, T.ArrayType) else F.create_map()).cast(kind)
        if text is None:
            return F.lit(None).cast(kind)
        raise ConfigError(f"{self.place.prefix}replacement", text, f"none, for the field {name} of this type")


_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_MIN_FLOAT: Final = 1.4e-45
_MAX_FLOAT: Final = 3.4028235e38


def _fits(text: str, kind: str) -> bool:
    """Whether a text is a number of a type of Spark."""
    if not NUMBER_TEXT.fullmatch(text.strip()):
        return False  # Python reads more, such as 1_000.
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return False  # an exponent that is too large
    if kind in _BITS:
        return number == number.to_integral_value() and -(1 << _BITS[kind] - 1) <= number < 1 << _BITS[kind] - 1
    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
        precision, scale = int(found[1]), int(found[2])
        try:
            return number == number.quantize(Decimal(1).scaleb(-scale), context=Context(prec=precision))
        except InvalidOperation:
            return False
    if kind == "double":
        return math.isfinite(float(number)) and (float(number) != 0 or number == 0)
    return kind == "float" and (number == 0 or _MIN_FLOAT <= number.copy_abs() <= _MAX_FLOAT)


class OneFieldSettings(PluginSettings):
    """Settings of ``HoistField`` and ``ExtractField``."""

    field: Annotated[str, Field(min_length=1, description="the name of a field")]


class HoistField(RowTransform):
    """Wraps the whole value in one field: a struct of all columns, or a single column ``value`` as it is."""

    Settings = OneFieldSettings

    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        from pyspark.sql import functions as F

        value = unchanged(frame)
        columns = {name: value.pop(name) for name in frame.columns if name in self.place.metadata}
        # A record of Kafka, or a line, that is no object: the value itself, as the sink ``kafka`` writes it.
        is_whole = list(value) == ["value"]
        hoisted = value["value"] if is_whole else F.struct(*(column.alias(name) for name, column in value.items()))
        add(columns, self.settings.field, hoisted, f"{self.place.prefix}field")
        return {self.settings.field: columns.pop(self.settings.field)} | columns


class ExtractField(RowTransform):
    """Replaces the value by one of its fields: a struct by its fields, any other field by a column of its name. The
    sink ``kafka`` writes that as an object of one field; Kafka Connect's would write what the field has, as of a single
    column ``value``, to which ReplaceField renames it.
    """

    Settings = OneFieldSettings

    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        from pyspark.sql import types as T

        field = self.settings.field
        self.require(frame, "field", [field])
        kind, column = frame.schema[field].dataType, frame[quoted(field)]
        # Not that the record has a value: the field is the value now, and may be null.
        names = self.place.metadata - {field, HAS_VALUE_COLUMN}
        metadata = {name: frame[quoted(name)] for name in frame.columns if name in names}
        setting = f"{self.place.prefix}field"
        columns = {inner: column.getField(inner) for inner in kind.names} if isinstance(kind, T.StructType) else {}
        columns = columns or {field: column}
        for name, kept in metadata.items():
            add(columns, name, kept, setting)
        return columns


class ValueToKeySettings(PluginSettings):
    """Settings of ``ValueToKey``."""

    fields_: Annotated[str, Field(alias="fields", min_length=1, description="fields, separated by commas")]


class ValueToKey(RowTransform):
    """Sets the record's key, the column ``key``, to a struct of fields of the value. From a topic to a topic, with
    ``source.schema`` and without ``sql`` or transforms of other packages, a record without a value (a tombstone) is an
    error, as in Kafka Connect: its key would be one of nulls.
    """

    Settings = ValueToKeySettings
    adds_metadata = ("key",)

    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        from pyspark.sql import functions as F

        names = listed(self.settings.fields_)
        self.require(frame, "fields", names)
        if "key" in frame.columns and "key" not in self.place.metadata:
            allowed = "rows without a field key, which would be lost; ReplaceField renames it"
            raise ConfigError(f"{self.place.prefix}type", "ValueToKey", allowed)
        key = F.struct(*(frame[quoted(name)].alias(name) for name in names))
        if HAS_VALUE_COLUMN in frame.columns:
            wrong = "the record has no value; allowed: one with the fields, or the predicate RecordIsTombstone, negated"
            error = F.raise_error(F.lit(wrong)).cast(frame.select(key).schema.fields[0].dataType)
            key = F.when(frame[HAS_VALUE_COLUMN], key).otherwise(error)
        return unchanged(frame) | {"key": key}


class FlattenSettings(PluginSettings):
    """Settings of ``Flatten``."""

    delimiter: Annotated[str, Field(description="the text between the names of a path")] = "."


class Flatten(RowTransform):
    """Replaces structs by their fields; names are joined with the delimiter. Arrays and maps stay as they are."""

    Settings = FlattenSettings

    def select(self, frame: DataFrame) -> Mapping[str, Column]:
        from pyspark.sql import types as T

        columns: dict[str, Column] = {}

        def flatten(name: str, column: Column, kind: T.DataType) -> None:
            if isinstance(kind, T.StructType) and name not in self.place.metadata:
                for field in kind.fields:
                    inner = column.getField(field.name)
                    flatten(f"{name}{self.settings.delimiter}{field.name}", inner, field.dataType)
            else:
                add(columns, name, column, f"{self.place.prefix}delimiter")

        for field in frame.schema.fields:
            flatten(field.name, frame[quoted(field.name)], field.dataType)
        return columns


def parse_pairs(setting: str, text: str, allowed: str) -> dict[str, str]:
    """Parse ``a:b,c:d``.

    Raises:
        ConfigError: a part is not two non-empty texts with a colon between them, or two parts begin alike.
    """
    pairs: dict[str, Any] = {}
    for part in listed(text):
        left, colon, right = (piece.strip() for piece in part.partition(":"))
        if not (left and colon and right) or left in pairs:
            raise ConfigError(setting, part, allowed)
        pairs[left] = right
    return pairs

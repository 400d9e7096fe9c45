"""Reads a message definition and checks it against the class that the rest of the package uses.

A definition is one JSON file in the form Kafka uses for its own messages: a name, the valid versions, the versions from
which it is flexible, and its fields in wire order. The class defines the meaning of a field; the definition defines its
encoding. A pair that disagrees is rejected when the message is first used, naming message and field, and not as a
decoding error; a test uses every message.

Beyond Kafka's form, a field may declare limits, which the decoder checks before it allocates: ``maxLength`` (bytes of a
string or bytes value), ``maxElements`` (of one array) and ``maxTotal`` (of all arrays of the field in one message).

A bool with ``"versions": "none"`` and ``"trueIn": "4+"`` is not on the wire: the decoder sets it to whether the request
has one of these versions. So the rules of a group need not know versions.

Source: the README next to Kafka's ``clients/src/main/resources/common/message``.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct as packing
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, partial
from importlib import resources
from typing import Any, Final

from .primitives import UUID_BYTES

INTEGERS: Final[Mapping[str, str]] = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}
"""Integer types and their ``struct`` letters."""

LATEST: Final = 32767
"""The end of an open range of versions (``3+``): a version is an int16."""

NEVER: Final = range(0)

OWN_TAGS: Final = 20480
"""The first tag of this package's fields in Kafka's own messages, as for API keys: a later Kafka uses low tags."""

NO_UUID: Final = "0" * 32
"""The UUID of 16 zero bytes, which means none. A UUID is text of 32 hexadecimal digits."""

_ROOT_KEYS = frozenset(("apiKey", "type", "name", "validVersions", "flexibleVersions", "commonStructs", "fields"))
_FIELD_KEYS = frozenset(
    (
        *("name", "type", "versions", "nullableVersions", "taggedVersions", "tag"),
        *("default", "ignorable", "about", "fields", "attribute"),
        *("maxLength", "maxElements", "maxTotal", "trueIn"),
    )
)
_PYTHON_TYPE = {"string": str, "bytes": bytes, "uuid": str, "bool": bool, **dict.fromkeys(INTEGERS, int)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a struct.

    Attributes:
        attribute: its name in the class: the definition's name in snake case, or the definition's ``attribute``.
        wire_type: ``bool``, ``int8`` ... ``int64``, ``string``, ``bytes``, ``uuid`` or ``struct``; of the element, if
            an array.
        array: whether it is an array of that type.
        struct: the struct of a field of type ``struct``.
        versions: the versions that have the field.
        nullable: the versions in which it may be null.
        tagged: the versions in which it is a tagged field.
        tag: its tag in those versions.
        default: its value if it is absent.
        ignorable: whether a value other than the default may be omitted in a version that lacks the field.
        choices: the valid numbers and their names, if its class is an ``IntEnum``.
        max_length: maximum bytes in a string or bytes value (each element, if an array); ``None`` for no limit except
            the frame's.
        max_elements: maximum elements in one array of this field; ``None`` for no limit except the frame's.
        max_total: maximum elements in all arrays of this field in one message; ``None`` for no limit.
        true_in: of a field that is not on the wire, the versions in which the decoder sets it to true.
    """

    attribute: str
    wire_type: str
    array: bool
    struct: Struct | None
    versions: range
    nullable: range
    tagged: range
    tag: int | None
    default: object
    ignorable: bool
    choices: type[IntEnum] | None
    max_length: int | None = None
    max_elements: int | None = None
    max_total: int | None = None
    true_in: range = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct:
    """Fields in wire order, and the class that holds them."""

    name: str
    cls: type[Any]
    fields: tuple[Field, ...]


@dataclass(frozen=True, kw_only=True)
class Message:
    """A complete definition: the outermost struct and the attributes of the message.

    Attributes:
        name: its name.
        kind: ``request``, ``response`` or ``data``.
        api_key: its API key; None for ``data``.
        versions: its versions.
        flexible: those of them with compact lengths and tagged fields.
        bind: checks the definition's fields against the class, and returns the outermost struct.
    """

    name: str
    kind: str
    api_key: int | None
    versions: range
    flexible: range
    bind: Callable[[], Struct]

    @cached_property
    def body(self) -> Struct:
        """The outermost struct, bound when it is first used: a program uses few of the messages.

        Raises:
            AssertionError: the definition and the class disagree; names message and field.
        """
        return self.bind()


def load(name: str, cls: type[Any], *, folder: str = "messages") -> Message:
    """Load the definition ``<folder>/<name>.json``; its fields are checked against ``cls`` when ``body`` is first used.

    Raises:
        AssertionError: the file is not a definition.
    """
    text = resources.files(__package__).joinpath(folder, f"{name}.json").read_text("utf-8")
    return _message(json.loads(text), cls)


def bind(definition: Mapping[str, Any], cls: type[Any]) -> Message:
    """Check a definition that is parsed already, and its fields against ``cls``.

    Raises:
        AssertionError: it is not a definition, or it and the class disagree; names message and field.
    """
    message = _message(definition, cls)
    message.body  # noqa: B018  # raises
    return message


def _message(definition: Mapping[str, Any], cls: type[Any]) -> Message:
    where = definition["name"]
    _only(definition, _ROOT_KEYS, where)
    common = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", ())}
    flexible = _versions(definition["flexibleVersions"])
    message = Message(
        name=where,
        kind=definition["type"],
        api_key=definition.get("apiKey"),
        versions=_versions(definition["validVersions"]),
        flexible=flexible,
        bind=partial(_struct, where, where, definition["fields"], cls, common, flexible),
    )
    if message.versions.stop > LATEST or message.kind not in ("request", "response", "data"):
        raise AssertionError(f"{where}: validVersions must end, and type be request, response or data")
    return message


def smallest(field: Field, version: int, flexible: bool) -> int:
    """Minimum size in bytes of one element (or of a field that is no array): it limits the count of an array."""
    if field.wire_type == "struct":
        assert field.struct is not None
        present = [f for f in field.struct.fields if version in f.versions and version not in f.tagged]
        return sum(_smallest_whole(f, version, flexible) for f in present) + flexible
    if field.wire_type in ("string", "bytes"):
        return 1 if flexible else 2 if field.wire_type == "string" else 4
    if field.wire_type == "uuid":
        return UUID_BYTES
    return 1 if field.wire_type == "bool" else packing.calcsize(">" + INTEGERS[field.wire_type])


def _smallest_whole(field: Field, version: int, flexible: bool) -> int:
    if field.array:
        return 1 if flexible else 4
    if field.wire_type == "struct" and version in field.nullable:
        return 1
    return smallest(field, version, flexible)


def _struct(
    where: str, name: str, listed: list[dict[str, Any]], cls: type[Any], common: Mapping[str, Any], flexible: range
) -> Struct:
    if not dataclasses.is_dataclass(cls) or hasattr(cls, "__post_init__") or not hasattr(cls, "__slots__"):
        # The decoder fills slots without calling __init__: checks or derived fields there would be bypassed.
        raise AssertionError(f"{where}: {cls.__name__} must be a slotted dataclass without __post_init__")
    hints = typing.get_type_hints(cls)
    of_class = {field.name: field for field in dataclasses.fields(cls)}
    fields = []
    for entry in listed:
        attribute = entry.get("attribute") or _snake_case(entry["name"])
        at = f"{where}.{attribute}"
        _only(entry, _FIELD_KEYS, at)
        if attribute not in of_class:
            raise AssertionError(f"{at}: in the definition, not in {cls.__name__}")
        fields.append(_field(at, attribute, entry, hints[attribute], common, flexible))
        _agree_on_default(at, fields[-1], of_class[attribute], "default" in entry)
    defined = [field.attribute for field in fields]
    if missing := [attribute for attribute in of_class if attribute not in defined]:
        raise AssertionError(f"{where}.{missing[0]}: in {cls.__name__}, not in the definition")
    if len(set(defined)) < len(defined):
        raise AssertionError(f"{where}: {defined} names a field twice")
    tags = [field.tag for field in fields if field.tag is not None]
    if tags not in (list(range(len(tags))), list(range(OWN_TAGS, OWN_TAGS + len(tags)))):
        raise AssertionError(f"{where}: tags are {tags}; allowed: 0, 1, ... in the order of the fields")
    return Struct(name=name, cls=cls, fields=tuple(fields))


def _field(
    at: str, attribute: str, entry: Mapping[str, Any], hint: object, common: Mapping[str, Any], flexible: range
) -> Field:
    written: str = entry["type"]
    array, type_name = written.startswith("[]"), written.removeprefix("[]")
    versions, nullable = _versions(entry["versions"]), _versions(entry.get("nullableVersions", "none"))
    tagged = _versions(entry.get("taggedVersions", "none"))
    hint, may_be_none = _without_none(hint)
    if may_be_none != bool(nullable):
        raise AssertionError(f"{at}: nullable in one of class and definition only")
    if array:
        if typing.get_origin(hint) is not tuple or typing.get_args(hint)[1:] != (Ellipsis,):
            raise AssertionError(f"{at}: {written} in the definition, {hint} in the class")
        hint = typing.get_args(hint)[0]
    choices, struct = None, None
    if type_name in _PYTHON_TYPE:
        if isinstance(hint, type) and issubclass(hint, IntEnum):
            choices, hint = hint, int
        if hint is not _PYTHON_TYPE[type_name]:
            raise AssertionError(f"{at}: {written} in the definition, {hint} in the class")
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        struct = _struct(at, type_name, entry.get("fields") or common[type_name], hint, common, flexible)
        type_name = "struct"
    else:
        raise AssertionError(f"{at}: {written} in the definition, {hint} in the class")
    if ("tag" in entry) != bool(tagged) or not _within(tagged, versions) or not _within(tagged, flexible):
        raise AssertionError(f"{at}: needs both tag and taggedVersions, within its own and the flexible versions")
    if (choices is not None and (array or tagged)) or (tagged and type_name == "struct" and not array):
        raise AssertionError(f"{at}: the codec has no tagged struct, and no tagged or repeated choice")
    return Field(
        attribute=attribute,
        wire_type=type_name,
        array=array,
        struct=struct,
        versions=versions,
        nullable=nullable,
        tagged=tagged,
        tag=entry.get("tag"),
        default=_default(entry, type_name, array, struct),
        ignorable=entry.get("ignorable", False),
        choices=choices,
        max_length=_limit(at, entry, "maxLength", type_name in ("string", "bytes")),
        max_elements=_limit(at, entry, "maxElements", array),
        max_total=_limit(at, entry, "maxTotal", array),
        true_in=_true_in(at, entry, versions),
    )


def _true_in(at: str, entry: Mapping[str, Any], versions: range) -> range:
    """The versions in which a field that is not on the wire is true."""
    true_in = _versions(entry.get("trueIn", "none"))
    if bool(true_in) == bool(versions) or (true_in and entry["type"] != "bool"):
        raise AssertionError(f"{at}: needs either versions, or trueIn and the type bool")
    return true_in


def _limit(at: str, entry: Mapping[str, Any], key: str, applies: bool) -> int | None:
    """One of the limits of a field, or ``None``."""
    limit = entry.get(key)
    if limit is not None and (not applies or type(limit) is not int or limit < 1):
        raise AssertionError(f"{at}: {key} is {limit!r}; allowed: 1 or more, on a field that has lengths of that kind")
    return limit


def _default(entry: Mapping[str, Any], type_name: str, array: bool, struct: Struct | None) -> object:
    """The definition's default, or the implied default of Kafka's form: zero, false, empty."""
    written = entry.get("default")
    if written == "null":
        return None
    if array:
        return ()
    if struct is not None:
        # A struct's default is the struct of its fields' defaults. If a field has no default, the struct must be
        # present.
        try:
            return struct.cls()
        except TypeError:
            return dataclasses.MISSING
    if type_name in INTEGERS:
        return int(written or 0)
    if type_name == "bool":
        return str(written).lower() == "true"
    if type_name == "uuid":
        return NO_UUID
    return written or "" if type_name == "string" else b""


def _agree_on_default(at: str, field: Field, of_class: dataclasses.Field[Any], written: bool) -> None:
    if of_class.default is dataclasses.MISSING:
        if field.tag is not None or written:
            raise AssertionError(f"{at}: has a default in the definition, none in the class")
    elif not isinstance(of_class.default, type(field.default)) or of_class.default != field.default:
        raise AssertionError(f"{at}: default {field.default!r} in the definition, {of_class.default!r} in the class")


def _without_none(hint: object) -> tuple[object, bool]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        others = [each for each in typing.get_args(hint) if each is not type(None)]
        return (others[0] if len(others) == 1 else hint), True
    return hint, False


def _versions(text: str) -> range:
    """``0``, ``0-3``, ``3+`` or ``none`` as a range."""
    if text == "none":
        return NEVER
    first, dash, last = text.partition("-")
    if first.endswith("+"):
        return range(int(first[:-1]), LATEST + 1)
    return range(int(first), int(last if dash else first) + 1)


def _within(inner: range, outer: range) -> bool:
    return not inner or (outer.start <= inner.start and inner.stop <= outer.stop)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _only(entry: Mapping[str, Any], allowed: frozenset[str], at: str) -> None:
    if unknown := sorted(set(entry) - allowed):
        raise AssertionError(f"{at}: unknown key {unknown[0]!r}; allowed: {', '.join(sorted(allowed))}")

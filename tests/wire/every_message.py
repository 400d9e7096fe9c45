"""Every message and record in every version, with random values: for hypothesis, and from a seed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from typing import Any, Final

from hypothesis import strategies as st

from connectgroup import wire
from connectgroup.wire import record_codec
from connectgroup.wire.codec import Codec
from connectgroup.wire.definition import INTEGERS, Field, Message, Struct, load

UNICODE: Final = st.text(st.characters(codec="utf-8"), max_size=20)
BITS: Final = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
TEXTS: Final = ("", "a", "worker-1", "größe", "数据", "x" * 126, "x" * 127, "y" * 300, "\0", "🙂")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One message in one version."""

    definition: Message
    version: int
    codec: Codec

    def __str__(self) -> str:
        return f"{self.definition.name}-v{self.version}"


def _cases() -> list[Case]:
    cases = []
    for api in wire.APIS.values():
        for end, cls, codecs in (
            ("Request", api.request_class, api.requests),
            ("Response", api.response_class, api.responses),
        ):
            definition = load(api.name + end, cls)
            cases += [Case(definition=definition, version=v, codec=codec) for v, codec in codecs.items()]
    for kind, record_codecs in record_codec.CODECS.items():
        cls = record_codec.CLASSES[kind]
        definition = load(cls.__name__, cls)
        cases += [Case(definition=definition, version=v, codec=codec) for v, codec in record_codecs.items()]
    return cases


CASES: Final = _cases()


def raw_definition(name: str) -> dict[str, Any]:
    """The definition file as written, with common structs expanded where they are used."""
    text = resources.files("connectgroup.wire").joinpath("messages", f"{name}.json").read_text("utf-8")
    definition: dict[str, Any] = json.loads(text)
    common = {each["name"]: each["fields"] for each in definition.pop("commonStructs", ())}

    def fill(fields: list[dict[str, Any]]) -> None:
        for field in fields:
            if (name := field["type"].removeprefix("[]")) in common:
                field["fields"] = json.loads(json.dumps(common[name]))
            fill(field.get("fields", []))

    fill(definition["fields"])
    return definition


def messages(of: Struct, version: int) -> st.SearchStrategy[Any]:
    """Any value of the struct that the version can encode."""
    values = {f.attribute: _values(f, version) for f in of.fields if version in f.versions}
    return st.builds(of.cls, **values, **{f.attribute: st.just(version in f.true_in) for f in of.fields if f.true_in})


def _values(field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.choices is not None:
        one: st.SearchStrategy[Any] = st.sampled_from(list(field.choices))
    elif field.wire_type in INTEGERS:
        limit = 1 << BITS[field.wire_type]
        one = st.integers(-limit, limit - 1) | st.sampled_from([-1, 0, 1, -limit, limit - 1])
    elif field.wire_type == "bool":
        one = st.booleans()
    elif field.wire_type == "bytes":
        one = st.binary(max_size=200)
    elif field.wire_type == "uuid":
        one = st.binary(min_size=16, max_size=16).map(bytes.hex)
    elif field.wire_type == "string":
        one = UNICODE | st.sampled_from(_texts(field))
    else:
        assert field.struct is not None
        one = messages(field.struct, version)
    if field.array:
        one = st.lists(one, max_size=3).map(tuple)
    return st.none() | one if version in field.nullable else one


def _texts(field: Field) -> list[str]:
    """Texts within the field's declared limit."""
    return [text for text in TEXTS if field.max_length is None or len(text.encode()) <= field.max_length]


def without_nested_tags(message: Any, of: Struct, version: int, *, in_tagged: bool = False) -> Any:
    """The message without tagged fields of structs that are themselves in a tagged field: kafka-python has none."""
    changes: dict[str, Any] = {}
    for field in of.fields:
        if version not in field.versions:
            continue
        value, is_tagged = getattr(message, field.attribute), version in field.tagged
        if is_tagged and in_tagged:
            changes[field.attribute] = of.cls.__dataclass_fields__[field.attribute].default
        elif field.struct is not None and value is not None:
            each = partial(without_nested_tags, of=field.struct, version=version, in_tagged=in_tagged or is_tagged)
            changes[field.attribute] = tuple(each(one) for one in value) if field.array else each(value)
    return replace(message, **changes)


def random_value(of: Struct, version: int, rng: random.Random, *, full: bool = False) -> Any:
    """A random value of the struct from a seed; ``full``: no null, no empty value, every tagged field set."""
    values: dict[str, Any] = {}
    for field in of.fields:
        if field.true_in:
            values[field.attribute] = version in field.true_in
        if version not in field.versions or (not full and version in field.tagged and rng.random() < 0.5):
            continue
        if version in field.nullable and not full and rng.random() < 0.4:
            values[field.attribute] = None
        elif field.array:
            length = rng.randrange(1 if full else 0, 3)
            values[field.attribute] = tuple(_random_value(field, version, rng, full) for _ in range(length))
        else:
            values[field.attribute] = _random_value(field, version, rng, full)
    return of.cls(**values)


def _random_value(field: Field, version: int, rng: random.Random, full: bool) -> Any:
    if field.choices is not None:
        return rng.choice(list(field.choices))
    if field.wire_type in INTEGERS:
        limit = 1 << BITS[field.wire_type]
        return rng.choice([2, 3, limit - 1, -limit, rng.randrange(-limit, -2)])
    if field.wire_type == "bool":
        return full or rng.random() < 0.5
    if field.wire_type == "bytes":
        return rng.randbytes(rng.randrange(1, 9))
    if field.wire_type == "uuid":
        return rng.randbytes(16).hex()
    if field.wire_type == "string":
        return rng.choice(_texts(field)[1:])
    assert field.struct is not None
    return random_value(field.struct, version, rng, full=full)

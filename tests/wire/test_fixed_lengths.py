"""Inflexible versions (lengths of fixed size), and invalid definitions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import pytest

from connectgroup.errors import WireError
from connectgroup.wire.codec import Codec, compile_codec
from connectgroup.wire.definition import bind


class Colour(IntEnum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """A message without flexible versions."""

    names: tuple[str, ...] = ()
    blob: bytes = b""
    maybe: str | None = None
    colour: Colour = Colour.RED


DEFINITION: Final[dict[str, Any]] = {
    "type": "data",
    "name": "Old",
    "validVersions": "0-1",
    "flexibleVersions": "none",
    "fields": [
        {"name": "Names", "type": "[]string", "versions": "0+"},
        {"name": "Blob", "type": "bytes", "versions": "0+"},
        {"name": "Maybe", "type": "string", "versions": "0+", "nullableVersions": "0+", "default": "null"},
        {"name": "Colour", "type": "int8", "versions": "0+", "default": "1"},
    ],
}


@pytest.fixture
def old() -> Codec:
    return compile_codec(bind(DEFINITION, Old), 0)


def test_inflexible_version_has_lengths_of_fixed_size(old: Codec) -> None:
    value = Old(names=("a", "größe"), blob=b"\0\1", maybe="m", colour=Colour.BLUE)
    data = old.encode(value)
    assert data.hex(" ") == "00 00 00 02 00 01 61 00 07 67 72 c3 b6 c3 9f 65 00 00 00 02 00 01 00 01 6d 02"
    assert old.decode(data, 0) == value
    assert old.encode(Old()).hex(" ") == "00 00 00 00 00 00 00 00 ff ff 01"
    assert old.decode(old.encode(Old()), 0) == Old()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("7f ff ff ff", "names at byte 4: got 2147483647 elements; allowed: 0 to 0: 0 bytes remain, 2 or more each"),
        ("ff ff ff ff", "names at byte 4: got null"),
        ("00 00 00 01 7f ff", "names at byte 4: got length 32767; allowed: 0 to the 0 bytes that remain"),
        ("00 00 00 01 ff ff", "names at byte 4: got null"),
        ("00 00 00 01 00", "names"),
        ("00 00 00 00 7f ff ff ff", "blob at byte 8: got length 2147483647"),
        ("00 00 00 00 00 00 00 00 00 05 61", "maybe at byte 10: got length 5"),
        ("00 00 00 00 00 00 00 00 ff ff 03", "colour at byte 11: got 3; allowed: 1, 2"),
    ],
)
def test_fixed_size_lengths_are_checked_against_the_remaining_bytes(old: Codec, data: str, message: str) -> None:
    with pytest.raises(WireError) as caught:
        old.decode(bytes.fromhex(data), 0)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Old(names=("x" * 40_000,)), "names: got a string of 40000 bytes; allowed: a string"),
        (Old(maybe=5), "maybe: got 5; allowed: a string without lone surrogates, at most 32767 bytes or None"),  # type: ignore[arg-type]
        (Old(colour=7), "colour: got 7; allowed: 1 (RED), 2 (BLUE)"),  # type: ignore[arg-type]
        (Old(blob=None), "blob: got None; allowed: bytes"),  # type: ignore[arg-type]
    ],
)
def test_value_that_cannot_be_encoded_is_rejected_by_field_name(old: Codec, value: Old, message: str) -> None:
    with pytest.raises(WireError) as caught:
        old.encode(value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validVersions": "0+"}, "validVersions must end"),
        ({"type": "header"}, "type be request, response or data"),
    ],
)
def test_definition_with_open_versions_or_of_an_unknown_type_is_rejected(changes: dict[str, str], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        bind({**DEFINITION, **changes}, Old)


def test_unknown_version_is_not_compiled() -> None:
    with pytest.raises(AssertionError, match="Old: no version 2"):
        compile_codec(bind(DEFINITION, Old), 2)

"""What the wire promises in passing: versions of old, definitions that cannot be, calls that are the same in both."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import pytest

from connectgroup import wire
from connectgroup.errors import WireError
from connectgroup.protocol.messages.cluster import ApiVersionsRequest, FindCoordinatorRequest
from connectgroup.wire import kafka_apis
from connectgroup.wire.codec import Codec, compile_codec
from connectgroup.wire.definition import bind
from connectgroup.wire.primitives import MAX_LENGTH, Fault, uvarint


class Colour(IntEnum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """A message of the time before flexible versions."""

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


def test_a_version_that_is_not_flexible_has_lengths_of_a_fixed_size(old: Codec) -> None:
    value = Old(names=("a", "größe"), blob=b"\0\1", maybe="m", colour=Colour.BLUE)
    data = old.encode(value)
    assert data.hex(" ") == "00 00 00 02 00 01 61 00 07 67 72 c3 b6 c3 9f 65 00 00 00 02 00 01 00 01 6d 02"
    assert old.decode(data, 0) == value
    assert old.encode(Old()).hex(" ") == "00 00 00 00 00 00 00 00 ff ff 01"
    assert old.decode(old.encode(Old()), 0) == Old()


@pytest.mark.parametrize(
    ("data", "says"),
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
def test_its_lengths_are_held_against_what_remains_as_well(old: Codec, data: str, says: str) -> None:
    with pytest.raises(WireError) as caught:
        old.decode(bytes.fromhex(data), 0)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Old(names=("x" * 40_000,)), "names: got a string of 40000 bytes; allowed: a string"),
        (Old(maybe=5), "maybe: got 5; allowed: a string without lone surrogates, at most 32767 bytes or None"),  # type: ignore[arg-type]
        (Old(colour=7), "colour: got 7; allowed: 1 (RED), 2 (BLUE)"),  # type: ignore[arg-type]
        (Old(blob=None), "blob: got None; allowed: bytes"),  # type: ignore[arg-type]
    ],
)
def test_what_it_cannot_hold_is_refused_by_the_fields_name(old: Codec, value: Old, says: str) -> None:
    with pytest.raises(WireError) as caught:
        old.encode(value)
    assert says in str(caught.value)


@pytest.mark.parametrize("length", [-1, MAX_LENGTH + 1])
def test_no_length_is_written_that_nobody_would_read(length: int) -> None:
    assert len(uvarint(MAX_LENGTH)) == 5
    with pytest.raises(Fault, match=f"got length {length}; allowed: 0 to {MAX_LENGTH}"):
        uvarint(length)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"validVersions": "0+"}, "validVersions must end"),
        ({"type": "header"}, "type be request, response or data"),
    ],
)
def test_a_definition_without_an_end_or_of_another_kind_is_refused(changes: dict[str, str], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        bind({**DEFINITION, **changes}, Old)


def test_a_version_that_a_message_has_not_is_not_compiled() -> None:
    with pytest.raises(AssertionError, match="Old: no version 2"):
        compile_codec(bind(DEFINITION, Old), 2)


@pytest.mark.parametrize("api", wire.APIS.values(), ids=lambda api: api.name)
def test_every_request_can_be_answered_with_an_error(api: wire.Api) -> None:
    """Some answers have an error for each of what was asked for, and none of their own."""
    for version in api.versions:
        answer = wire.error_response(api.key, version, 7, 42, "no")
        assert answer is not None
        correlation_id, response = wire.decode_response(answer, api_key=api.key, version=version)
        assert correlation_id == 7
        inside = [getattr(response, name, ()) for name in ("groups", "results", "coordinators")]
        told = [each.error_code for some in inside for each in some] or [getattr(response, "error_code", None)]
        assert told == [42]


@pytest.mark.parametrize(
    "request_",
    [
        ApiVersionsRequest(client_software_name="c", client_software_version="1"),
        FindCoordinatorRequest(coordinator_keys=("g",)),
    ],
    ids=lambda request: type(request).__name__,
)
def test_what_brokers_and_we_both_serve_is_asked_in_the_same_words(
    request_: ApiVersionsRequest | FindCoordinatorRequest,
) -> None:
    for version in kafka_apis.BROKER_APIS[type(request_)].versions:
        if isinstance(request_, FindCoordinatorRequest) and version < 4:
            continue  # one key only, in another field
        sent = kafka_apis.encode_call(request_, version=version, correlation_id=5, client_id="c")
        assert sent == wire.encode_request(request_, version=version, correlation_id=5, client_id="c")
        assert wire.decode_request(sent).request == request_ or version < 3

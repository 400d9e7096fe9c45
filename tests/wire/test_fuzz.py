"""Any bytes are either a valid message or a ``WireError`` (KAFKA-20570); see ``tests.fuzzing``.

A decoder is a message or a record of one name: its versions share the inputs.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest

from connectgroup import wire
from connectgroup.errors import WireError
from connectgroup.protocol.records.base import Kind
from tests.fuzzing import INPUTS, LENGTHS, SEED, attack, cut_after, enlarged, inputs_each, mutated, peak_memory
from tests.volume import volume

from .every_message import CASES, Case, random_value

MESSAGES: Final = sorted({case.definition.name for case in CASES if case.definition.kind != "data"})


def made(case: Case, count: int = 8) -> list[Any]:
    """Values of a message; the first has every field set."""
    return [random_value(case.definition.body, case.version, random.Random(n), full=n == 0) for n in range(count)]


def cases_of(name: str) -> list[Case]:
    return [case for case in CASES if case.definition.name == name]


@pytest.mark.parametrize("name", MESSAGES)
def test_any_bytes_make_a_message_or_a_wire_error(name: str) -> None:
    cases = cases_of(name)
    for case in cases:
        valid = [case.codec.encode(value) for value in made(case)]

        def decode(data: bytes, case: Case = case) -> Any:
            return case.codec.decode(data, 0)

        attack(decode, case.codec.encode, valid, inputs_each(len(cases)), WireError)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_any_bytes_make_a_record_or_a_wire_error(kind: Kind) -> None:
    """With the version in front, under the record's own key."""
    (case,) = cases_of(wire.record_codec.CLASSES[kind].__name__)
    every = made(case, 100)
    key = min((value.key for value in every), key=lambda key: len(key.group_id) + len(key.name))
    # All under one key: under another key a record is rejected as a whole.
    keyed = [value for value in every if value.key == key]

    def decode(data: bytes) -> Any:
        return wire.decode_record(key, data)

    def encode(decoded: Any) -> bytes:
        return wire.encode_record(decoded) or b""

    attack(decode, encode, [encode(value) for value in keyed], INPUTS, WireError)


def test_any_bytes_make_a_request_or_a_decode_failure() -> None:
    valid = [
        wire.encode_request(made(case, 2)[1], version=case.version, correlation_id=5, client_id=client_id)
        for case in CASES
        if case.definition.kind == "request"
        for client_id in (None, "client")
    ]

    def decode(data: bytes) -> wire.DecodedRequest:
        try:
            return wire.decode_request(data)
        except wire.DecodeFailure as failure:
            if failure.header is not None:
                refused = wire.response_to(failure)
                if refused is not None:
                    wire.encode_response(refused, **failure.header._asdict())
            elif len(data) >= 8:
                raise RuntimeError("a complete header was not reported") from failure
            raise

    def encode(decoded: wire.DecodedRequest) -> bytes:
        _, version, correlation_id, client_id, request = decoded
        return wire.encode_request(request, version=version, correlation_id=correlation_id, client_id=client_id)

    attack(decode, encode, valid, INPUTS, WireError)


def test_any_bytes_make_a_response_or_a_wire_error() -> None:
    responses = [(api, version) for api in wire.APIS.values() for version in api.versions]
    for api, version in responses:
        case = next(case for case in cases_of(f"{api.name}Response") if case.version == version)

        def encode(decoded: Any, key: int = api.key, version: int = version) -> bytes:
            correlation_id, response = decoded
            return wire.encode_response(response, api_key=key, version=version, correlation_id=correlation_id)

        def decode(data: bytes, key: int = api.key, version: int = version) -> Any:
            return wire.decode_response(data, api_key=key, version=version)

        attack(
            decode,
            encode,
            [encode((n, value)) for n, value in enumerate(made(case))],
            inputs_each(len(responses)),
            WireError,
        )


def test_any_stream_makes_frames_or_a_wire_error() -> None:
    rng = random.Random(SEED)
    valid = [wire.frame(b"abc") + wire.frame(b"defgh"), wire.frame(bytes(100)), wire.frame(b"x" * 90) * 2]
    for number in range(INPUTS):
        reader = wire.FrameReader(max_bytes=100)
        stream = mutated(valid[number % len(valid)], valid, rng)
        try:
            frames = reader.feed(stream[:5]) + reader.feed(stream[5:])
        except WireError:
            continue
        assert b"".join(map(wire.frame, frames)) == stream[: sum(len(frame) + 4 for frame in frames)]


# ------------------------------------------------------------------------------------------- memory

MEMORY_INPUTS: Final = volume(50, 600)
"""Inputs of a message, drawn from all, whose memory is measured."""

MAX_HELD: Final = 5_000, 80
"""Limit of memory while a message is read: a constant, and bytes per input byte. An empty string takes 16."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_length_is_checked_against_the_input_before_any_allocation(case: Case) -> None:
    """Lengths up to 2^32 - 1, at all positions of a message."""
    inputs = enlarged(case.codec.encode(made(case, 1)[0]))
    base, each = MAX_HELD
    tracemalloc.start()
    try:
        for data in random.Random(SEED).sample(inputs, min(MEMORY_INPUTS, len(inputs))):
            peak = peak_memory(lambda data: case.codec.decode(data, 0), data, WireError)
            assert peak <= base + each * len(data), f"{len(data)} bytes made it hold {peak}: {data.hex()}"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_message_with_a_count_of_two_thousand_million_is_rejected_cheaply(case: Case) -> None:
    """Decoding ends where the elements would begin; a list allocated for them would take 16 GiB."""
    inputs = cut_after(case.codec.encode(made(case, 1)[0]))
    tracemalloc.start()
    try:
        for data in random.Random(SEED).sample(inputs, min(MEMORY_INPUTS, len(inputs))):
            peak = peak_memory(lambda data: case.codec.decode(data, 0), data, WireError)
            # The memory of the fields read before, and a traceback; none for the claimed elements.
            assert peak <= 20_000 + 80 * len(data), f"{len(data)} bytes made it hold {peak}: {data.hex()}"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("end", ["request", "response"])
def test_frame_with_a_count_of_two_thousand_million_allocates_nothing(end: str) -> None:
    """As from a socket: a header, followed by the largest possible counts, as in KAFKA-20570."""
    tracemalloc.start()
    try:
        for api in wire.APIS.values():
            for version in api.versions:
                decode = whole_frame(end, api.key, version)
                with suppress(WireError):
                    decode(b"")  # a codec is compiled when it is first used
                for length in LENGTHS:
                    peak = peak_memory(decode, length, WireError)
                    assert peak < 20_000, f"{api.name} v{version}: {len(length)} bytes made it hold {peak}"
    finally:
        tracemalloc.stop()


def whole_frame(end: str, api_key: int, version: int) -> Callable[[bytes], Any]:
    """Decode a header followed by these bytes."""
    header = struct.pack(">hhihb", api_key, version, 5, -1, 0) if end == "request" else struct.pack(">ib", 5, 0)

    def decode(body: bytes) -> Any:
        if end == "request":
            return wire.decode_request(header + body)
        return wire.decode_response(header + body, api_key=api_key, version=version)

    return decode


def test_frames_are_buffered_as_they_arrive_whatever_their_claimed_length() -> None:
    tracemalloc.start()
    try:
        for claimed in (1, 1 << 20, (1 << 20) + 1, 0x7FFFFFFF, -1, -0x80000000):
            data = struct.pack(">i", claimed) + bytes(100)
            peak = peak_memory(lambda data: wire.FrameReader().feed(data), data, WireError)
            assert peak < 5_000, f"a frame of {claimed} bytes made it hold {peak}"
    finally:
        tracemalloc.stop()

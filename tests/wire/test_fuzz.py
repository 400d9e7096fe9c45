"""Any bytes whatever make a message or a ``WireError``, and nothing else (KAFKA-20570).

``FUZZ_INPUTS`` sets the number of inputs a decoder (default 20,000); ``FUZZ_SEED`` the seed. A failure prints both
the seed and the input.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from connectgroup import wire
from connectgroup.errors import WireError
from connectgroup.records import Key, Kind

from .every_message import CASES, Case, made_up

INPUTS = int(os.environ.get("FUZZ_INPUTS", "20000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
TELLING = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF, 0x40, 0x0F, 0x10, 0xC0)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, cut out, put in or doubled; now and then nothing but noise."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(60))
    out = bytearray(data)
    for _ in range(1 + int(rng.random() * 3)):
        at = int(rng.random() * (len(out) + 1))
        match int(rng.random() * 6):
            case 0 | 1:
                out[at : at + 1] = bytes((TELLING[int(rng.random() * len(TELLING))],))
            case 2:
                out[at : at + 1] = bytes((int(rng.random() * 256),))
            case 3:
                del out[at : at + 1 + int(rng.random() * 8)]
            case 4:
                out[at:at] = rng.randbytes(1 + int(rng.random() * 5))
            case _:
                out[at:at] = out[at : at + 1 + int(rng.random() * 20)]
    return bytes(out)


def attack(decode: Callable[[bytes], Any], encode: Callable[[Any], Any], valid: list[bytes], inputs: int) -> None:
    """Whatever is accepted must also survive being written and read again."""
    rng = random.Random(SEED)
    accepted = refused = 0
    for number in range(inputs):
        data = mutated(valid[number % len(valid)], rng)
        try:
            decoded = decode(data)
        except WireError:
            refused += 1
            continue
        except BaseException as error:
            raise AssertionError(f"FUZZ_SEED={SEED}: {data.hex()} ended in {error!r}") from error
        accepted += 1
        assert decode(encode(decoded)) == decoded, f"FUZZ_SEED={SEED}: {data.hex()} is not what it was read as"
    # Noise that is always refused, or always accepted, tests nothing.
    assert refused > 0 or not any(valid)
    assert accepted > 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_bytes_make_a_message_or_a_wire_error(case: Case) -> None:
    body, version = case.definition.body, case.version
    valid = [case.codec.encode(made_up(body, version, random.Random(n), full=n == 0)) for n in range(8)]
    attack(lambda data: case.codec.decode(data, 0), case.codec.encode, valid, INPUTS)


def test_any_bytes_make_a_request_or_a_decode_failure() -> None:
    valid = [
        wire.encode_request(
            made_up(case.definition.body, case.version, random.Random(1)),
            version=case.version,
            correlation_id=5,
            client_id=client_id,
        )
        for case in CASES
        if case.definition.kind == "request"
        for client_id in (None, "client")
    ]

    def decode(data: bytes) -> wire.DecodedRequest:
        try:
            return wire.decode_request(data)
        except wire.DecodeFailure as failure:
            if failure.header is not None:
                wire.error_response(*failure.header, failure.code, str(failure))
            elif len(data) >= 8:
                raise RuntimeError("a header that is whole was not told") from failure
            raise

    def encode(decoded: wire.DecodedRequest) -> bytes:
        _, version, correlation_id, client_id, request = decoded
        return wire.encode_request(request, version=version, correlation_id=correlation_id, client_id=client_id)

    attack(decode, encode, valid, INPUTS * 2)


@pytest.mark.parametrize("api", wire.APIS.values(), ids=lambda api: api.name)
def test_any_bytes_make_a_response_or_a_wire_error(api: wire.Api) -> None:
    for version in api.versions:
        case = next(c for c in CASES if c.definition.name == f"{api.name}Response" and c.version == version)
        valid = [
            wire.encode_response(
                made_up(case.definition.body, version, random.Random(n)),
                api_key=api.key,
                version=version,
                correlation_id=n,
            )
            for n in range(4)
        ]

        def decode(data: bytes, version: int = version) -> Any:
            return wire.decode_response(data, api_key=api.key, version=version)

        def encode(decoded: Any, version: int = version) -> bytes:
            return wire.encode_response(decoded[1], api_key=api.key, version=version, correlation_id=decoded[0])

        attack(decode, encode, valid, INPUTS // 10)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_any_bytes_make_a_record_or_a_wire_error(kind: Kind) -> None:
    cls = wire.record_codec.CLASSES[kind]
    case = next(case for case in CASES if case.definition.name == cls.__name__)
    record = made_up(case.definition.body, 0, random.Random(1))
    key: Key = record.key

    def decode(data: bytes) -> Any:
        return wire.decode_record(key, data)

    attack(decode, wire.encode_record, [wire.encode_record(record) or b""], INPUTS // 10)


def test_any_stream_makes_frames_or_a_wire_error() -> None:
    rng = random.Random(SEED)
    for _ in range(INPUTS):
        reader = wire.FrameReader(max_bytes=100)
        stream = mutated(wire.frame(b"abc") + wire.frame(b"defgh"), rng)
        try:
            frames = reader.feed(stream[:5]) + reader.feed(stream[5:])
        except WireError:
            continue
        assert b"".join(map(wire.frame, frames)) == stream[: sum(len(frame) + 4 for frame in frames)]

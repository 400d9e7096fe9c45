"""Any bytes from a broker are either a valid message or a ``WireError``; see ``tests.fuzzing`` and ``test_fuzz``."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any, Final

import pytest

from connectgroup.errors import WireError
from connectgroup.wire.apis import Api
from connectgroup.wire.kafka_apis import BROKER_APIS, decode_kafka_response
from tests.fuzzing import LENGTHS, SEED, attack, cut_after, enlarged, inputs_each, peak_memory
from tests.volume import volume

from .every_message import random_value
from .test_kafka_oracle import CASES, Spoken

MEMORY_INPUTS: Final = volume(50, 600)
ANSWERS = [
    (api, case) for api in BROKER_APIS.values() for case in CASES if case.definition.name == f"{api.name}Response"
]


def valid(case: Spoken) -> list[bytes]:
    """Responses with a header; the first has every field set."""
    header = struct.pack(">ib", 5, 0)
    body = case.definition.body
    return [
        header + case.codec.encode(random_value(body, case.version, random.Random(n), full=n == 0)) for n in range(8)
    ]


@pytest.mark.parametrize("name", sorted({api.name for api, _ in ANSWERS}))
def test_any_bytes_of_a_broker_decode_or_raise_wire_error(name: str) -> None:
    versions = [(api, case) for api, case in ANSWERS if api.name == name]
    for api, case in versions:

        def decode(data: bytes, api: Api = api, case: Spoken = case) -> Any:
            return decode_kafka_response(data, to=api.request_class, version=case.version)

        def encode(decoded: Any, case: Spoken = case) -> bytes:
            correlation_id, response = decoded
            return struct.pack(">ib", correlation_id, 0) + case.codec.encode(response)

        attack(decode, encode, valid(case), inputs_each(len(versions)), WireError)


@pytest.mark.parametrize(("api", "case"), ANSWERS, ids=[str(case) for _, case in ANSWERS])
def test_length_in_a_broker_response_is_checked_before_any_allocation(api: Api, case: Spoken) -> None:
    whole = valid(case)[0]
    inputs = [*(whole[:5] + length for length in LENGTHS), *enlarged(whole), *cut_after(whole)]
    tracemalloc.start()
    try:
        for data in random.Random(SEED).sample(inputs, min(MEMORY_INPUTS, len(inputs))):
            peak = peak_memory(
                lambda data: decode_kafka_response(data, to=api.request_class, version=case.version), data, WireError
            )
            assert peak <= 10_000 + 80 * len(data), f"{len(data)} bytes made it hold {peak}: {data.hex()}"
    finally:
        tracemalloc.stop()

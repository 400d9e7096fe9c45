"""A consumer's messages to a broker equal those of kafka-python, byte for byte, with its copies of the definitions."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from importlib import resources
from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as st
from kafka.protocol import consumer, metadata

from connectgroup.errors import WireError
from connectgroup.protocol.messages import classic
from connectgroup.protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse, FoundCoordinator
from connectgroup.wire import kafka_apis
from connectgroup.wire.apis import APIS, encode_response
from connectgroup.wire.codec import Codec
from connectgroup.wire.definition import Message, load

from .every_message import random_value
from .test_oracles import in_kafka_words

SEEDS = 40


class Spoken(NamedTuple):
    """One message in one version, and kafka-python's class for it."""

    definition: Message
    version: int
    codec: Codec
    theirs: Any

    def __str__(self) -> str:
        return f"{self.definition.name}-v{self.version}"

    @property
    def listed(self) -> list[dict[str, Any]]:
        """The fields of our definition file."""
        file = resources.files("connectgroup.wire").joinpath("kafka", f"{self.definition.name}.json")
        fields: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))["fields"]
        return fields


def _spoken() -> Iterator[Spoken]:
    for api in kafka_apis.BROKER_APIS.values():
        if api.key in APIS:
            continue  # covered in test_oracles
        for end, cls, codecs in (
            ("Request", api.request_class, api.requests),
            ("Response", api.response_class, api.responses),
        ):
            definition = load(api.name + end, cls, folder="kafka")
            theirs = getattr(metadata if api.name == "Metadata" else consumer, api.name + end)
            assert api.key == theirs.API_KEY
            yield from (Spoken(definition, version, codec, theirs) for version, codec in codecs.items())


CASES = list(_spoken())


def with_sets(value: Any) -> Any:
    """Authorized operations are 32 bits; kafka-python has them as a set of bit positions, under another name."""
    if isinstance(value, list):
        return [with_sets(each) for each in value]
    if not isinstance(value, dict):
        return value
    ours = {name: with_sets(value) for name, value in value.items()}
    for name in ("topic_authorized_operations", "cluster_authorized_operations"):
        if name in ours:
            bits = ours.pop(name)
            ours["authorized_operations"] = {bit for bit in range(32) if bits >> bit & 1}
    return ours


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kafka_python_writes_the_same_bytes(case: Spoken) -> None:
    for seed in range(SEEDS):
        message = random_value(case.definition.body, case.version, random.Random(seed), full=seed == 0)
        value = with_sets(in_kafka_words(message, case.definition.body, case.listed, case.version))
        theirs = case.theirs._struct.encode(value, version=case.version, compact=True, tagged=True)
        assert theirs == case.codec.encode(message), f"seed {seed}: {message}"
        assert case.codec.decode(theirs, 0) == message


def test_every_definition_file_is_used() -> None:
    files = {file.name for file in resources.files("connectgroup.wire").joinpath("kafka").iterdir()}
    assert files == {f"{case.definition.name}.json" for case in CASES}


def test_request_with_header_is_the_one_of_kafka_python() -> None:
    """Request header v2 and response header v1, as in all flexible versions."""
    theirs = consumer.HeartbeatRequest[4](group_id="g", generation_id=3, member_id="m", group_instance_id=None)
    theirs.with_header(correlation_id=77, client_id="c")
    ours = classic.GroupHeartbeatRequest(group_id="g", generation_id=3, member_id="m")
    sent = kafka_apis.encode_call(ours, version=4, correlation_id=77, client_id="c")
    assert sent == theirs.encode(header=True)

    response = consumer.HeartbeatResponse[4](throttle_time_ms=5, error_code=27)
    response.with_header(correlation_id=77)
    read = kafka_apis.decode_kafka_response(response.encode(header=True), to=classic.GroupHeartbeatRequest, version=4)
    assert read == (77, classic.GroupHeartbeatResponse(throttle_time_ms=5, error_code=27))


def test_find_coordinator_has_one_definition_for_both_sides() -> None:
    found = FoundCoordinator(key="g", node_id=1, host="h", port=9)
    response = encode_response(FindCoordinatorResponse(coordinators=(found,)), api_key=10, version=4, correlation_id=5)
    read = kafka_apis.decode_kafka_response(response, to=FindCoordinatorRequest, version=4)
    assert read == (5, FindCoordinatorResponse(coordinators=(found,)))


def test_unknown_version_is_rejected_by_name() -> None:
    request = classic.GroupHeartbeatRequest(group_id="g", generation_id=3, member_id="m")
    with pytest.raises(WireError, match=r"^Heartbeat: got v3; allowed: v4 to v4$"):
        kafka_apis.encode_call(request, version=3, correlation_id=1, client_id="c")
    with pytest.raises(WireError, match=r"^Heartbeat: got v0; allowed: v4 to v4$"):
        kafka_apis.decode_kafka_response(b"\0\0\0\1\0\0\0", to=classic.GroupHeartbeatRequest, version=0)


@given(data=st.binary(max_size=200), case=st.sampled_from(CASES))
def test_any_bytes_are_a_response_or_a_wire_error(data: bytes, case: Spoken) -> None:
    for api in kafka_apis.BROKER_APIS.values():
        if api.name + "Response" == case.definition.name:
            with contextlib.suppress(WireError):
                kafka_apis.decode_kafka_response(data, to=api.request_class, version=case.version)

"""Other implementations produce the same bytes.

kafka-python reads definitions in Kafka's JSON format: its own copies for ApiVersions and FindCoordinator, as a
reference for Kafka's protocol, and ours for the other APIs, as a reference for the format. Both directions: each side
reads the other's bytes, and the bytes are equal.
"""

from __future__ import annotations

import random
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol import admin, consumer, metadata
from kafka.protocol.schemas.fields import StructField

from connectgroup import wire
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse, FindCoordinatorRequest
from connectgroup.wire import kafka_apis
from connectgroup.wire.definition import Struct

from .every_message import CASES, Case, random_value, raw_definition, without_nested_tags

SEEDS = 40
KAFKA_OWN = {
    "ApiVersionsRequest": metadata.ApiVersionsRequest,
    "ApiVersionsResponse": metadata.ApiVersionsResponse,
    "FindCoordinatorRequest": metadata.FindCoordinatorRequest,
    "FindCoordinatorResponse": metadata.FindCoordinatorResponse,
    "OffsetCommitRequest": consumer.OffsetCommitRequest,
    "OffsetCommitResponse": consumer.OffsetCommitResponse,
    "OffsetFetchRequest": consumer.OffsetFetchRequest,
    "OffsetFetchResponse": consumer.OffsetFetchResponse,
    # JoinGroup, SyncGroup, Heartbeat and LeaveGroupRequest have tagged fields of ours.
    "LeaveGroupResponse": consumer.LeaveGroupResponse,
    "ListGroupsRequest": admin.ListGroupsRequest,
    "ListGroupsResponse": admin.ListGroupsResponse,
    "DeleteGroupsRequest": admin.DeleteGroupsRequest,
    "DeleteGroupsResponse": admin.DeleteGroupsResponse,
}


def in_kafka_words(
    message: Any, of: Struct, listed: list[dict[str, Any]], version: int, *, in_tagged: bool = False
) -> dict[str, Any]:
    """Our message as kafka-python takes it: a dict with its names of the definition's fields.

    kafka-python does not know tagged fields of structs that are themselves in a tagged field (``in_tagged``).
    """
    words: dict[str, Any] = {}
    for field, entry in zip(of.fields, listed, strict=True):
        is_tagged = version in field.tagged
        if version not in field.versions or (is_tagged and in_tagged):
            continue
        value = getattr(message, field.attribute)
        if field.struct is not None and value is not None:
            inner, entries, within = field.struct, entry["fields"], in_tagged or is_tagged
            if field.array:
                value = [in_kafka_words(each, inner, entries, version, in_tagged=within) for each in value]
            else:
                value = in_kafka_words(value, inner, entries, version, in_tagged=within)
        elif field.array and value is not None:
            value = list(value)
        elif field.choices is not None:
            value = int(value)
        if is_tagged and field.wire_type == "uuid" and value == field.default:
            continue  # kafka-python would write it
        words[StructField.underscore_name(entry["name"])] = value
    return words


def by_kafka(case: Case) -> tuple[StructField, dict[str, Any], list[dict[str, Any]]]:
    """kafka-python's codec of the message, its flags for the version, and our list of fields."""
    raw = raw_definition(case.definition.name)
    own = KAFKA_OWN.get(case.definition.name)
    struct = StructField(raw) if own is None else own._struct
    flexible = case.version in case.definition.flexible
    return struct, {"version": case.version, "compact": flexible, "tagged": flexible}, raw["fields"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kafka_python_writes_the_same_bytes(case: Case) -> None:
    struct, flags, listed = by_kafka(case)
    for seed in range(SEEDS):
        message = random_value(case.definition.body, case.version, random.Random(seed), full=seed == 0)
        message = without_nested_tags(message, case.definition.body, case.version)
        theirs = struct.encode(in_kafka_words(message, case.definition.body, listed, case.version), **flags)
        assert theirs == case.codec.encode(message), f"seed {seed}: {message}"
        assert case.codec.decode(theirs, 0) == message


def plain(value: Any) -> Any:
    """A value decoded by kafka-python, as nested dicts without fields at their defaults."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, UUID):
        return value.hex
    fields = getattr(value, "fields", None)
    if fields is None:
        fields = value if isinstance(value, dict) else None
    if fields is None:
        return value
    return {name: plain(value[name] if isinstance(value, dict) else getattr(value, name)) for name in fields}


@pytest.mark.parametrize("case", [case for case in CASES if case.definition.name not in KAFKA_OWN], ids=str)
def test_kafka_python_reads_what_we_write(case: Case) -> None:
    struct, flags, listed = by_kafka(case)
    for seed in range(SEEDS):
        # Every tagged field set: kafka-python omits absent ones from its dicts.
        message = random_value(case.definition.body, case.version, random.Random(seed), full=True)
        message = without_nested_tags(message, case.definition.body, case.version)
        data = BytesIO(case.codec.encode(message))
        theirs = struct.decode(data, **flags)
        assert data.read() == b""
        assert plain(theirs) == in_kafka_words(message, case.definition.body, listed, case.version)


@pytest.mark.parametrize("client_id", ["client", None, ""])
@pytest.mark.parametrize("api_key", [10, 18])
def test_headers_are_those_of_kafka(api_key: int, client_id: str | None) -> None:
    """Request header v1 or v2; response header v0 or v1, for ApiVersions v0 always (KIP-511)."""
    api = wire.APIS[api_key]
    for version in api.versions:
        name = api.name + "Request"
        own = KAFKA_OWN[name][version]
        theirs = own(**{"key": "g"} if api_key == 10 and version < 4 else {})
        theirs.with_header(correlation_id=77, client_id=client_id)
        key = "g" if version < 4 else ""
        ours = FindCoordinatorRequest(key=key) if api_key == 10 else ApiVersionsRequest()
        sent = wire.encode_request(ours, version=version, correlation_id=77, client_id=client_id)
        assert sent == theirs.encode(header=True)

        response: Response = ApiVersionsResponse(api_keys=wire.served())
        if api_key == 10:
            response = wire.refusal(api_key, 42, "no")
        response_bytes = wire.encode_response(response, api_key=api_key, version=version, correlation_id=77)
        read = KAFKA_OWN[api.name + "Response"].decode(response_bytes, version=version, header=True)
        assert read.header.correlation_id == 77
        if api_key == 18:
            assert [(each.api_key, each.min_version, each.max_version) for each in read.api_keys] == [
                (each.api_key, each.min_version, each.max_version) for each in wire.served()
            ]
        else:
            where = read.coordinators[0] if version >= 4 else read
            assert (where.error_code, where.host, where.port) == (42, "", -1)


def test_rejection_of_an_unsupported_version_is_understood() -> None:
    """A client requests version 5, gets a response in version 0, and finds the supported versions in it."""
    response_bytes = wire.encode_response(wire.refusal(18, 35, "no"), api_key=18, version=5, correlation_id=77)
    read = KAFKA_OWN["ApiVersionsResponse"].decode(response_bytes, version=0, header=True)
    assert (read.header.correlation_id, read.error_code) == (77, 35)
    assert [each.max_version for each in read.api_keys if each.api_key == 18] == [4]


def test_features_of_a_broker_are_read() -> None:
    """A Kafka broker's ApiVersions v3 response has tagged fields."""
    theirs = KAFKA_OWN["ApiVersionsResponse"][3](
        error_code=0, throttle_time_ms=5, finalized_features_epoch=9, zk_migration_ready=True
    )
    theirs.api_keys = []
    theirs.supported_features = []
    theirs.with_header(correlation_id=3)
    response_bytes = theirs.encode(header=True)
    assert len(response_bytes) > 12
    features = ApiVersionsResponse(throttle_time_ms=5, finalized_features_epoch=9, zk_migration_ready=True)
    assert wire.decode_response(response_bytes, api_key=18, version=3) == (3, features)


@pytest.mark.parametrize(
    "request_",
    [
        ApiVersionsRequest(client_software_name="c", client_software_version="1"),
        FindCoordinatorRequest(coordinator_keys=("g",)),
    ],
    ids=lambda request: type(request).__name__,
)
def test_requests_that_brokers_also_serve_are_encoded_alike(
    request_: ApiVersionsRequest | FindCoordinatorRequest,
) -> None:
    for version in kafka_apis.BROKER_APIS[type(request_)].versions:
        if isinstance(request_, FindCoordinatorRequest) and version < 4:
            continue  # one key only, in another field
        sent = kafka_apis.encode_call(request_, version=version, correlation_id=5, client_id="c")
        assert sent == wire.encode_request(request_, version=version, correlation_id=5, client_id="c")
        assert wire.decode_request(sent).request == request_ or version < 3

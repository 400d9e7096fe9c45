"""Limits on strings and arrays in the message definitions: checked before any allocation.

Identifiers have at most 249 bytes, as in Kafka's topic names; every array has a limit (reliability, section 4,
wire 4, 6, 9 and 12).
"""

from __future__ import annotations

import re
import time
import tracemalloc
from typing import Any

import pytest

from connectgroup import wire
from connectgroup.errors import InvalidRequest
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.assignment import InstalledMember, InstallRequest, PrepareRequest
from connectgroup.protocol.messages.cluster import ApiVersionsRequest, FindCoordinatorRequest, FindCoordinatorResponse
from connectgroup.protocol.messages.common import AssignorInfo, ConfigEntry, ConnectorTasks, entries
from connectgroup.protocol.messages.connectors import ConnectorChange, TaskConfig, UpdateConnectorsRequest
from connectgroup.protocol.messages.consumer import (
    ConsumerDescribeRequest,
    ConsumerHeartbeatRequest,
    ConsumerInstallRequest,
    InstalledConsumer,
    TopicPartitions,
)
from connectgroup.protocol.messages.describe import DeleteRequest, DescribeRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, TaskStatus
from connectgroup.protocol.messages.offsets import (
    GroupToFetch,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TopicCommit,
)
from connectgroup.wire import primitives
from connectgroup.wire.apis import MAX_SENT
from connectgroup.wire.definition import Struct, bind, load
from connectgroup.wire.primitives import MAX_LENGTH, WireFault, uvarint

LONG = "x" * 250
FITS = "x" * 249
FRAME = 8 << 20
"""Maximum frame size that a server accepts, in bytes."""


def sent(request: Request, *, client_id: str | None = None) -> bytes:
    key, version = next((k, a.versions[-1]) for k, a in wire.APIS.items() if a.request_class is type(request))
    version = MAX_SENT.get(key, version)
    return wire.encode_request(request, version=version, correlation_id=7, client_id=client_id)


def refusal_of(data: bytes) -> str:
    with pytest.raises(wire.DecodeFailure) as caught:
        wire.decode_request(data)
    assert caught.value.code == InvalidRequest.code
    assert caught.value.header is not None
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 300
    return re.sub(r" at byte \d+", "", text)


def assignor(name: str = "a", metadata: bytes = b"") -> AssignorInfo:
    return AssignorInfo(name=name, metadata=metadata)


def status(connector: str = "c", message: str = "") -> TaskStatus:
    return TaskStatus(connector=connector, task=0, owner_epoch=1, state=1, message=message)


def change(name: str = "c", **values: Any) -> UpdateConnectorsRequest:
    return UpdateConnectorsRequest(group_id="g", changes=(ConnectorChange(connector=name, **values),))


def install(*, units: tuple[ConnectorTasks, ...] = (), member_id: str = "m", **values: Any) -> InstallRequest:
    member = InstalledMember(member_id=member_id, units=units)
    return InstallRequest(group_id="g", member_id="m", member_epoch=1, group_epoch=1, members=(member,), **values)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (HeartbeatRequest(group_id=LONG, member_id="m"), "group_id"),
        (HeartbeatRequest(group_id="g", member_id=LONG), "member_id"),
        (HeartbeatRequest(group_id="g", member_id="é" * 125), "member_id"),
        (HeartbeatRequest(group_id="g", member_id="m", instance_id=LONG), "instance_id"),
        (HeartbeatRequest(group_id="g", member_id="m", server_assignor=LONG), "server_assignor"),
        (HeartbeatRequest(group_id="g", member_id="m", client_assignors=(assignor(LONG),)), "client_assignors.name"),
        (HeartbeatRequest(group_id="g", member_id="m", owned=(ConnectorTasks(connector=LONG),)), "owned.connector"),
        (HeartbeatRequest(group_id="g", member_id="m", statuses=(status(LONG),)), "statuses.connector"),
        (HeartbeatRequest(group_id="g", member_id="m", traceparent=LONG), "traceparent"),
        (ConsumerHeartbeatRequest(group_id=LONG, member_id="m", member_epoch=1), "group_id"),
        (ConsumerHeartbeatRequest(group_id="g", member_id=LONG, member_epoch=1), "member_id"),
        (ConsumerHeartbeatRequest(group_id="g", member_id="m", member_epoch=1, rack_id=LONG), "rack_id"),
        (
            ConsumerHeartbeatRequest(group_id="g", member_id="m", member_epoch=1, subscribed_topic_names=(LONG,)),
            "subscribed_topic_names",
        ),
        (ConsumerDescribeRequest(group_ids=(LONG,)), "group_ids"),
        (
            OffsetCommitRequest(group_id="g", member_id="m", topics=(TopicCommit(name=LONG, partitions=()),)),
            "topics.name",
        ),
        (OffsetFetchRequest(groups=(GroupToFetch(group_id=LONG, topics=None),)), "groups.group_id"),
        (PrepareRequest(group_id=LONG, member_id="m", member_epoch=1), "group_id"),
        (PrepareRequest(group_id="g", member_id=LONG, member_epoch=1), "member_id"),
        (install(member_id=LONG), "members.member_id"),
        (install(units=(ConnectorTasks(connector=LONG),)), "members.units.connector"),
        (install(delayed=(ConnectorTasks(connector=LONG),)), "delayed.connector"),
        (change(LONG), "changes.connector"),
        (change(config=(ConfigEntry(name=LONG, value="v"),)), "changes.config.name"),
        (UpdateConnectorsRequest(group_id="g", member_id=LONG), "member_id"),
        (DescribeRequest(group_ids=("g", LONG)), "group_ids"),
        (DeleteRequest(group_ids=(LONG,)), "group_ids"),
        (FindCoordinatorRequest(coordinator_keys=(LONG,)), "coordinator_keys"),
        (ApiVersionsRequest(client_software_name=LONG), "client_software_name"),
        (ApiVersionsRequest(client_software_version=LONG), "client_software_version"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_identifier_of_more_than_249_bytes_is_rejected(request_: Request, field: str) -> None:
    text = refusal_of(sent(request_))
    assert text.endswith(f" {field}: got length 250; allowed: at most 249 bytes")


def test_identifier_of_249_bytes_is_accepted() -> None:
    request = HeartbeatRequest(
        group_id=FITS,
        member_id="é" * 124,
        instance_id=FITS,
        client_assignors=(assignor(FITS),),
        owned=(ConnectorTasks(connector=FITS),),
    )
    assert wire.decode_request(sent(request, client_id=FITS)).request == request


def test_client_id_of_more_than_249_bytes_is_rejected() -> None:
    text = refusal_of(sent(HeartbeatRequest(group_id="g", member_id="m"), client_id=LONG))
    assert text == "request header: got client_id of length 250; allowed: at most 249 bytes"


def test_key_of_an_inflexible_version_is_limited_too() -> None:
    data = wire.encode_request(FindCoordinatorRequest(key=LONG), version=2, correlation_id=7, client_id=None)
    assert "key: got length 250; allowed: at most 249 bytes" in refusal_of(data)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            HeartbeatRequest(group_id="g", member_id="m", client_assignors=(assignor(metadata=bytes(65_537)),)),
            "client_assignors.metadata: got length 65537; allowed: at most 65536 bytes",
        ),
        (
            HeartbeatRequest(group_id="g", member_id="m", statuses=(status(message="x" * 4_097),)),
            "got length 4097; allowed: at most 4096 bytes",
        ),
        (HeartbeatRequest(group_id="g", member_id="m", cause="x" * 4_097), "allowed: at most 4096 bytes"),
        (change(config=(ConfigEntry(name="a", value="x" * ((1 << 20) + 1)),)), "allowed: at most 1048576 bytes"),
        (
            HeartbeatRequest(group_id="g", member_id="m", client_assignors=(assignor(),) * 101),
            "client_assignors: got 101 elements; allowed: at most 100",
        ),
        (HeartbeatRequest(group_id="g", member_id="m", statuses=(status(),) * 10_001), "allowed: at most 10000"),
        (
            HeartbeatRequest(group_id="g", member_id="m", owned=(ConnectorTasks(connector=""),) * 200_001),
            "owned: got 200001 elements; allowed: at most 200000",
        ),
        (
            HeartbeatRequest(
                group_id="g",
                member_id="m",
                owned=(ConnectorTasks(connector="c", tasks=tuple(range(100_001))),) * 2,
            ),
            "got 200002 elements in the whole message; allowed: at most 200000",
        ),
        (
            install(units=(ConnectorTasks(connector=""),) * 200_001),
            "members.units: got 200001 elements; allowed: at most 200000",
        ),
        (
            InstallRequest(
                group_id="g",
                member_id="m",
                member_epoch=1,
                group_epoch=1,
                members=(InstalledMember(member_id="m", units=(ConnectorTasks(connector=""),) * 101),) * 2_000,
            ),
            "elements in the whole message; allowed: at most 200000",
        ),
        (
            InstallRequest(
                group_id="g",
                member_id="m",
                member_epoch=1,
                group_epoch=1,
                members=(InstalledMember(member_id=""),) * 10_001,
            ),
            "members: got 10001 elements; allowed: at most 10000",
        ),
        (
            UpdateConnectorsRequest(group_id="g", changes=(ConnectorChange(connector=""),) * 1_001),
            "changes: got 1001 elements; allowed: at most 1000",
        ),
        (change(config=(ConfigEntry(name="", value=""),) * 1_001), "got 1001 elements; allowed: at most 1000"),
        (
            change(task_configs=(TaskConfig(),) * 100_001),
            "changes.task_configs: got 100001 elements; allowed: at most 100000",
        ),
        (
            change(task_configs=(TaskConfig(config=(ConfigEntry(name="", value=""),) * 501),) * 1_000),
            "got 500499 elements in the whole message; allowed: at most 500000",
        ),
        (
            ConsumerHeartbeatRequest(group_id="g", member_id="m", member_epoch=1, subscribed_topic_regex="x" * 4_097),
            "subscribed_topic_regex: got length 4097; allowed: at most 4096 bytes",
        ),
        (
            ConsumerHeartbeatRequest(
                group_id="g", member_id="m", member_epoch=1, subscribed_topic_names=("",) * 10_001
            ),
            "subscribed_topic_names: got 10001 elements; allowed: at most 10000",
        ),
        (
            ConsumerHeartbeatRequest(
                group_id="g",
                member_id="m",
                member_epoch=1,
                owned=(TopicPartitions(topic_id="0" * 32, partitions=tuple(range(100_001))),) * 2,
            ),
            "got 200002 elements in the whole message; allowed: at most 200000",
        ),
        (
            ConsumerInstallRequest(
                group_id="g",
                member_id="m",
                member_epoch=1,
                group_epoch=1,
                members=(InstalledConsumer(member_id=""),) * 10_001,
            ),
            "members: got 10001 elements; allowed: at most 10000",
        ),
        (
            OffsetFetchRequest(groups=(GroupToFetch(group_id="", topics=None),) * 1_001),
            "groups: got 1001 elements; allowed: at most 1000",
        ),
        (DescribeRequest(group_ids=("g",) * 1_001), "group_ids: got 1001 elements; allowed: at most 1000"),
        (DeleteRequest(group_ids=("",) * 1_001), "group_ids: got 1001 elements; allowed: at most 1000"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else type(value).__name__,
)
def test_value_above_its_limit_is_rejected(request_: Request, message: str) -> None:
    data = sent(request_)
    assert len(data) < FRAME
    assert message in refusal_of(data)


def test_largest_legal_group_fits() -> None:
    """1,000 members and 100,000 units: an Install, a heartbeat of one member that owns all units, and its task list."""
    share = tuple(range(100))
    members = tuple(
        InstalledMember(member_id=f"worker-{number:040}", units=(ConnectorTasks(connector=FITS, tasks=share),))
        for number in range(1_000)
    )
    request: Request = InstallRequest(group_id="g", member_id="m", member_epoch=1, group_epoch=1, members=members)
    for each in (
        request,
        HeartbeatRequest(
            group_id="g", member_id="m", owned=(ConnectorTasks(connector=FITS, tasks=tuple(range(100_000))),)
        ),
        HeartbeatRequest(
            group_id="g",
            member_id="m",
            owned=tuple(ConnectorTasks(connector=f"connector-{number}", tasks=(0,)) for number in range(50_000)),
        ),
        change(task_configs=tuple(TaskConfig(config=entries({"task": str(task)})) for task in range(100_000))),
    ):
        data = sent(each)
        assert len(data) < FRAME
        assert wire.decode_request(data).request == each


def test_count_above_its_limit_is_rejected_before_any_allocation() -> None:
    """Four million coordinator keys blocked the server for ten seconds."""
    few = sent(FindCoordinatorRequest(coordinator_keys=("", "")))
    count = 4_000_000
    keys = primitives.uvarint(count + 1) + b"\1" * count
    data = few.replace(b"\3\1\1", keys)
    assert len(data) > count
    tracemalloc.start()
    started = time.process_time()
    try:
        assert "coordinator_keys: got 4000000 elements; allowed: at most 1000" in refusal_of(data)
        _, limit = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 1.0
    assert limit < 1 << 20


@pytest.mark.parametrize("api", wire.APIS.values(), ids=lambda api: api.name)
def test_every_string_and_array_of_a_request_declares_its_limit(api: wire.Api) -> None:
    without: list[str] = []

    def look(of: Struct, path: str) -> None:
        for field in of.fields:
            at = f"{path}.{field.attribute}"
            if field.wire_type in ("string", "bytes") and field.max_length is None:
                without.append(at)
            if field.array and field.max_elements is None:
                without.append(at)
            if field.struct is not None:
                look(field.struct, at)

    look(load(f"{api.name}Request", api.request_class).body, api.name)
    assert without == []


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"type": "[]string", "maxElements": True}, "maxElements is True"),
        ({"type": "[]string", "maxLength": 0}, "maxLength is 0; allowed: 1 or more"),
        ({"type": "[]string", "maxTotal": "9"}, "maxTotal is '9'"),
    ],
)
def test_limit_that_cannot_apply_is_an_error_of_the_definition(limits: dict[str, Any], message: str) -> None:
    field = {"name": "GroupIds", "versions": "0+", **limits}
    definition = {
        "type": "data",
        "name": "DescribeRequest",
        "validVersions": "0",
        "flexibleVersions": "0+",
        "fields": [field],
    }
    with pytest.raises(AssertionError, match=message):
        bind(definition, DescribeRequest)


def test_responses_and_records_are_limited_by_the_frame_only() -> None:
    response = FindCoordinatorResponse(error_message=LONG)
    data = wire.encode_response(response, api_key=10, version=3, correlation_id=1)
    assert wire.decode_response(data, api_key=10, version=3) == (1, response)


@pytest.mark.parametrize("length", [-1, MAX_LENGTH + 1])
def test_length_that_no_decoder_accepts_is_not_encoded(length: int) -> None:
    assert len(uvarint(MAX_LENGTH)) == 5
    with pytest.raises(WireFault, match=f"got length {length}; allowed: 0 to {MAX_LENGTH}"):
        uvarint(length)

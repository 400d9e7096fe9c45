"""Messages survive a round trip in every version; truncated or extended bytes are rejected."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from connectgroup import wire
from connectgroup.errors import WireError
from connectgroup.protocol.messages.classic import OfferedProtocol
from connectgroup.protocol.messages.cluster import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
)
from connectgroup.protocol.messages.common import AssignorInfo, ConnectorTasks
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.protocol.messages.heartbeat import (
    HeartbeatAssignment,
    HeartbeatRequest,
    HeartbeatResponse,
    TaskStatus,
)
from connectgroup.protocol.records.base import Kind, Tombstone
from connectgroup.protocol.records.consumer import ClassicMemberRecord, ConsumerMemberRecord
from connectgroup.wire import record_codec
from connectgroup.wire.definition import load
from tests.volume import volume

from .every_message import CASES, UNICODE, Case, messages, random_value

RELAXED = settings(max_examples=volume(2, 8, 36), deadline=None, suppress_health_check=list(HealthCheck))
RECORDS = sorted(record_codec.CLASSES.items())


@pytest.mark.parametrize("case", CASES, ids=str)
@RELAXED
@given(data=st.data())
def test_every_message_round_trips_with_its_class(case: Case, data: st.DataObject) -> None:
    message = data.draw(messages(case.definition.body, case.version))
    encoded = case.codec.encode(message)
    decoded = case.codec.decode(encoded, 0)
    assert decoded == message
    assert type(decoded) is type(message)
    assert case.codec.encode(decoded) == encoded


@pytest.mark.parametrize("case", CASES, ids=str)
def test_decoded_message_equals_a_constructed_one(case: Case) -> None:
    """The decoder fills slots without ``__init__``; the object is still frozen, hashable, with every slot filled."""
    message = random_value(case.definition.body, case.version, random.Random(1))
    decoded = case.codec.decode(case.codec.encode(message), 0)
    assert hash(decoded) == hash(message)
    assert repr(decoded) == repr(message)
    with pytest.raises(AttributeError):
        setattr(decoded, case.definition.body.cls.__slots__[0], 1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_truncation_and_every_extension_is_rejected(case: Case) -> None:
    """Reliability, section 4, wire 8."""
    for seed, full in ((1, True), (2, False), (3, False)):
        encoded = case.codec.encode(random_value(case.definition.body, case.version, random.Random(seed), full=full))
        for length in range(len(encoded)):
            with pytest.raises(WireError):
                case.codec.decode(encoded[:length], 0)
        for extra in (b"\0", b"\1", encoded):
            if extra:
                with pytest.raises(WireError, match="bytes too many"):
                    case.codec.decode(encoded + extra, 0)


@pytest.mark.parametrize("api", wire.APIS.values(), ids=lambda api: api.name)
@RELAXED
@given(data=st.data(), correlation_id=st.integers(-(1 << 31), (1 << 31) - 1))
def test_requests_and_responses_round_trip_with_their_headers(
    api: wire.Api, data: st.DataObject, correlation_id: int
) -> None:
    client_id = data.draw(st.none() | UNICODE)
    for version in api.versions:
        request = data.draw(messages(load(f"{api.name}Request", api.request_class).body, version))
        sent = wire.encode_request(request, version=version, correlation_id=correlation_id, client_id=client_id)
        assert wire.decode_request(memoryview(sent)) == (api.key, version, correlation_id, client_id, request)

        response = data.draw(messages(load(f"{api.name}Response", api.response_class).body, version))
        sent = wire.encode_response(response, api_key=api.key, version=version, correlation_id=correlation_id)
        received = wire.decode_response(memoryview(sent), api_key=api.key, version=version)
        assert received == (correlation_id, response)


@pytest.mark.parametrize(("kind", "cls"), RECORDS, ids=lambda value: getattr(value, "__name__", ""))
@RELAXED
@given(data=st.data())
def test_records_round_trip_under_their_own_key(kind: Kind, cls: type[Any], data: st.DataObject) -> None:
    record = data.draw(messages(load(cls.__name__, cls).body, 0))
    stored = wire.encode_record(record)
    assert stored is not None
    assert stored[:2] == b"\0\0"  # the version
    assert wire.decode_record(record.key, stored) == record
    assert wire.encode_record(Tombstone(record.key)) is None
    assert wire.decode_record(record.key, None) == Tombstone(record.key)


def test_records_of_classic_members_without_versions_of_their_metadata_are_loaded() -> None:
    """The log of an earlier program: it has none of the tagged fields."""
    offered = (OfferedProtocol(name="range", metadata=b"m", assignor_version=2),)
    classic = ClassicMemberRecord(
        group_id="g",
        member_id="m",
        number=3,
        client_id="c",
        client_host="h",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=9_000,
        protocols=offered,
        assignment=b"a",
        former_epoch=4,
    )
    stored = "0000 0267 026d 00000003 00 0263 0268 00001770 00002328 02 0672616e6765 026d 01 00 04 00000002 0261"
    assert wire.decode_record(classic.key, bytes.fromhex(stored + "01 00 04 00000004")) == classic
    consumer = ConsumerMemberRecord(
        group_id="g", member_id="m", classic_protocols=offered, classic_session_timeout_ms=6_000
    )
    stored = "0000 0267 026d 00000000 00 00 01 01 00000000 01 01 00 01 02 00 0e 02 0672616e6765 026d 00000002 00"
    assert wire.decode_record(consumer.key, bytes.fromhex(stored + "01 04 00001770")) == consumer


def test_null_and_empty_are_different_bytes() -> None:
    """Null means "unchanged", empty means "no units": confusing them has made servers assign units twice."""
    as_before = HeartbeatRequest(group_id="g", member_id="m")
    nothing = HeartbeatRequest(group_id="g", member_id="m", owned=())
    codec = wire.APIS[20480].requests[0]
    assert codec.decode(codec.encode(as_before), 0).owned is None
    assert codec.decode(codec.encode(nothing), 0).owned == ()


def test_golden_bytes_of_a_steady_heartbeat() -> None:
    """Written by hand from the KIP's schema and Kafka's protocol guide."""
    request = HeartbeatRequest(group_id="g1", member_id="w-7", member_epoch=5, max_wait_ms=3000)
    encoded = wire.encode_request(request, version=0, correlation_id=9, client_id="c")
    assert encoded == bytes.fromhex(
        "5000 0000 00000009 0001 63 00"  # API 20480, version 0, correlation id 9, client id "c", no tagged fields
        "03 6731"  # group_id "g1": compact, length + 1
        "04 772d37"  # member_id "w-7"
        "00000005"  # member_epoch
        "00"  # instance_id null
        "ffffffff"  # rebalance_timeout_ms unchanged
        "00 00 00"  # server_assignor, client_assignors, owned: null
        "01 00 04 00000bb8"  # one tagged field: tag 0, 4 bytes, max_wait_ms 3000
    )


def test_golden_bytes_of_a_joining_heartbeat() -> None:
    case = next(case for case in CASES if case.definition.name == "ConnectGroupHeartbeatRequest")
    request = HeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        instance_id="i",
        rebalance_timeout_ms=60000,
        server_assignor="",
        client_assignors=(AssignorInfo(name="a", minimum_version=-1, maximum_version=2, reason=3, metadata=b"\xff"),),
        owned=(ConnectorTasks(connector="c", owns_connector=True, tasks=(0, 258)),),
        sequence=1,
        statuses=(TaskStatus(connector="c", task=-1, owner_epoch=4, state=2, message="no"),),
        cause="x",
        traceparent="t",
    )
    assert case.codec.encode(request) == bytes.fromhex(
        "02 67  02 6d  00000000  02 69  0000ea60  01"
        "02  02 61  ffff  0002  03  0000  02 ff  00"  # one assignor, its empty tagged fields last
        "02  02 63  01  03 00000000 00000102  00"  # one connector, itself, tasks 0 and 258
        "04"  # four tagged fields
        "01 08 0000000000000001"
        "02 10  02  02 63  ffffffff  00000004  02  03 6e6f  00"
        "03 02  02 78"
        "04 02  02 74"
    )


def test_golden_bytes_of_heartbeat_responses() -> None:
    steady = HeartbeatResponse(member_epoch=5, heartbeat_interval_ms=3000, coordinator_epoch=2)
    assert wire.encode_response(steady, api_key=20480, version=0, correlation_id=9) == bytes.fromhex(
        "00000009 00"  # correlation id 9, no tagged fields
        "00000000 0000 00"  # throttle_time_ms, error_code, error_message null
        "00000005 00000bb8"  # member_epoch, heartbeat_interval_ms
        "ff"  # assignment null
        "01 01 08 0000000000000002"  # one tagged field: tag 1, 8 bytes, coordinator_epoch 2
    )
    assignment = HeartbeatAssignment(units=(ConnectorTasks(connector="c", tasks=(1,)),), version=1, metadata=b"z")
    with_assignment = HeartbeatResponse(error_code=110, error_message="no", assignment=assignment)
    assert wire.encode_response(with_assignment, api_key=20480, version=0, correlation_id=-1) == bytes.fromhex(
        "ffffffff 00  00000000 006e 03 6e6f  00000000 00000000"
        "01  00  02 02 63 00 02 00000001 00  0001  02 7a  00"  # present; error, units, version, metadata, tagged
        "00"
    )


def test_field_that_a_version_lacks_is_rejected_unless_ignorable() -> None:
    """A key must not be lost silently; a client's name may be."""
    request = FindCoordinatorRequest(key="g")
    with pytest.raises(WireError, match=r"FindCoordinatorRequest v4: key: got g; allowed: its default in version 4"):
        wire.encode_request(request, version=4, correlation_id=1, client_id=None)
    with pytest.raises(WireError, match=r"coordinator_keys: got \('g',\)"):
        wire.encode_request(
            FindCoordinatorRequest(coordinator_keys=("g",)), version=3, correlation_id=1, client_id=None
        )
    named = ApiVersionsRequest(client_software_name="c")
    assert wire.APIS[18].requests[0].encode(named) == b""
    assert wire.APIS[18].requests[0].decode(b"", 0) == ApiVersionsRequest()


def test_coordinator_is_named_in_the_form_of_each_version() -> None:
    """The sender of the response does not know the version of the request, so both forms may be set."""
    found = FoundCoordinator(key="g", node_id=1, host="h", port=2)
    both = FindCoordinatorResponse(node_id=1, host="h", port=2, coordinators=(found,))
    for version in range(5):
        encoded = wire.encode_response(both, api_key=10, version=version, correlation_id=1)
        _, response = wire.decode_response(encoded, api_key=10, version=version)
        single = FindCoordinatorResponse(node_id=1, host="h", port=2)
        assert response == (single if version < 4 else FindCoordinatorResponse(coordinators=(found,)))


def test_equal_messages_have_equal_bytes() -> None:
    """Lists and subclasses of int are accepted; decoding returns tuples."""
    codec = wire.APIS[20483].requests[0]
    listed = DescribeRequest(group_ids=["a", "b"])  # type: ignore[arg-type]
    assert codec.decode(codec.encode(listed), 0) == DescribeRequest(group_ids=("a", "b"))


@pytest.mark.parametrize("api", wire.APIS.values(), ids=lambda api: api.name)
def test_every_request_has_an_error_response(api: wire.Api) -> None:
    """Some responses have one error per requested item, and none of their own."""
    for version in api.versions:
        refused = wire.refusal(api.key, 42, "no")
        response_bytes = wire.encode_response(refused, api_key=api.key, version=version, correlation_id=7)
        correlation_id, response = wire.decode_response(response_bytes, api_key=api.key, version=version)
        assert correlation_id == 7
        inside = [getattr(response, name, ()) for name in ("groups", "results", "coordinators")]
        codes = [each.error_code for some in inside for each in some] or [getattr(response, "error_code", 0)]
        partitions = [each for topic in getattr(response, "topics", ()) for each in topic.partitions]
        assert [code for code in codes if code] or [each.error_code for each in partitions] == [42]

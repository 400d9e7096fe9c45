"""Invalid input to the wire (reliability, section 4, wire 4 to 10), one test per violation.

Every error is one line that names the field, the value and what is allowed.
"""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest

from connectgroup import wire
from connectgroup.errors import WireError
from connectgroup.protocol.messages.assignment import InstalledMember, InstallRequest, PrepareResponse
from connectgroup.protocol.messages.cluster import ApiVersionsResponse, FindCoordinatorRequest, FindCoordinatorResponse
from connectgroup.protocol.messages.common import AssignorInfo, ConfigEntry, ConnectorTasks
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse, MemberAssignment, TaskStatus
from connectgroup.protocol.records.base import Key, Kind, Tombstone
from connectgroup.protocol.records.connect import (
    ComputationRecord,
    CurrentRecord,
    GroupRecord,
    MemberState,
    OwnedTasks,
    StatusRecord,
)

HEARTBEAT = wire.APIS[20480].requests[0]
HEARTBEAT_RESPONSE = wire.APIS[20480].responses[0]
DESCRIBE = wire.APIS[20483].requests[0]
DELETE = wire.APIS[20485].requests[0]
FIND_V1 = wire.APIS[10].requests[1]
FIND_V1_RESPONSE = wire.APIS[10].responses[1]
VERSIONS_V0_RESPONSE = wire.APIS[18].responses[0]

BEFORE_INSTANCE = bytes.fromhex("02 67  02 6d  00000000")
BEFORE_OWNED = BEFORE_INSTANCE + bytes.fromhex("00  ffffffff  00 00")
BEFORE_TAGS = BEFORE_OWNED + b"\0"


def refused(codec: Any, data: bytes | str, match: str) -> None:
    data = bytes.fromhex(data) if isinstance(data, str) else data
    with pytest.raises(WireError, match=match) as caught:
        codec.decode(data, 0)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


# 4: lengths


def test_null_in_a_non_nullable_field_is_rejected() -> None:
    refused(HEARTBEAT, "00", r"group_id at byte 1: got null; allowed: 0 to the 0 bytes that remain")
    refused(DESCRIBE, "00 00", r"group_ids at byte 1: got null; allowed: 0 to 1")
    refused(FIND_V1, "ffff 00", r"key at byte 2: got null")
    refused(VERSIONS_V0_RESPONSE, "0000 ffffffff", r"api_keys at byte 6: got null")


def test_negative_length_is_rejected_in_nullable_fields_too() -> None:
    refused(FIND_V1_RESPONSE, "00000000 0000 fffe 00000000", r"error_message at byte 8: got length -2")
    refused(FIND_V1, "8000 00", r"key at byte 2: got length -32768")
    refused(VERSIONS_V0_RESPONSE, "0000 80000000 0000", r"api_keys at byte 6: got -2147483648 elements")


def test_length_beyond_the_end_is_rejected() -> None:
    refused(HEARTBEAT, "05 67", r"group_id at byte 1: got length 4; allowed: 0 to the 1 bytes that remain")
    refused(HEARTBEAT, "ff ff ff ff 07", r"group_id at byte 5: got length 2147483646; allowed: 0 to the 0 bytes")
    refused(FIND_V1, "7fff 67 00", r"key at byte 2: got length 32767")
    refused(HEARTBEAT, BEFORE_TAGS + bytes.fromhex("01 03 02 09 78"), r"cause at byte \d+: got length 8")


def test_length_of_a_string_in_an_array_is_checked() -> None:
    refused(DESCRIBE, "02 09 78 00", r"group_ids at byte 1: got length 8; allowed: 0 to the 2 bytes that remain")
    refused(DESCRIBE, "02 00 00", r"group_ids at byte 1: got null")
    refused(DESCRIBE, "02 ffffffff0f 00", r"group_ids at byte 1: got length 4294967294")


def test_count_beyond_the_end_is_rejected() -> None:
    refused(DESCRIBE, "ff ff ff ff 0f 00", r"group_ids at byte 5: got 4294967294 elements; allowed: 0 to 1: 1 bytes")
    refused(VERSIONS_V0_RESPONSE, "0000 7fffffff 0000 0000 0000", r"api_keys .*: got 2147483647 elements")
    owned = BEFORE_OWNED + bytes.fromhex("02  02 63  00") + b"\x7f" + bytes(100)
    refused(HEARTBEAT, owned, r"owned.tasks at byte \d+: got 126 elements; allowed: 0 to 25: 100 bytes remain, 4 or")


# 5: varints


@pytest.mark.parametrize(
    ("varint", "match"),
    [
        ("8000", "zero byte at its end"),
        ("8200", "zero byte at its end"),
        ("808080808000", "more than 5 bytes"),
        ("8080808000", "zero byte at its end"),
        ("ffffffff10", "varint 4563402751; allowed: at most 4294967295"),
        ("ffffffff7f", "at most 4294967295"),
        ("ffffffffff01", "more than 5 bytes"),
        ("ffffffffffffffffffff01", "more than 5 bytes"),
        ("ff", "end before the value does"),
    ],
)
def test_invalid_varint_is_rejected(varint: str, match: str) -> None:
    """At every place with a varint: a length, a count, a number of tags, a tag, a tag's size."""
    refused(HEARTBEAT, bytes.fromhex(varint), match)
    refused(DESCRIBE, bytes.fromhex(varint), match)
    for before in ("", "01", "01 7f"):
        refused(HEARTBEAT, BEFORE_TAGS + bytes.fromhex(before) + bytes.fromhex(varint), f"{match}|at most 64")
        refused(DESCRIBE, "01" + before + varint, match)


# 6: amplification


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex("8180 40") + bytes(1000),  # 2^20 strings
        bytes.fromhex("ffff ffff 0f") + bytes(1000),
    ],
)
def test_huge_count_allocates_nothing(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="elements"):
            DESCRIBE.decode(data, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_count_is_checked_against_the_minimum_size_of_its_elements() -> None:
    """2^20 task lists need at least two bytes each: half as many bytes are too few."""
    update = wire.APIS[20484].requests[0]
    change = bytes.fromhex("02 67 00  02  02 63 ffffffff 00 00 00")
    refused(update, change + bytes.fromhex("818040") + bytes(1 << 20), r"got 1048576 elements; allowed: 0 to 524288")


# 7: tagged fields


@pytest.mark.parametrize(
    ("tags", "match"),
    [
        ("02 00 04 00000001 00 04 00000001", "tag 0 after tag 0; allowed: each tag once, ascending"),
        ("02 01 08 0000000000000001 00 04 00000001", "tag 0 after tag 1"),
        ("02 63 00 63 00", "tag 99 after tag 99"),
        ("02 8101 00 8001 00", "tag 128 after tag 129"),
        ("01 63 05 00000000", "tag 99 of 5 bytes; allowed: at most the 4 that remain"),
        ("01 63 ffffffff0f 00", "tag 99 of 4294967295 bytes"),
        ("01 00 05 0000000100", "tag 0 of 5 bytes whose value takes 4"),
        ("01 00 03 000000", "end before the value does"),
        ("01 00 03 00000000", "tag 0 of 3 bytes whose value takes 4"),
        ("01 04 00", "end before the value does"),
        ("01 04 00 01", "tag 4 of 0 bytes whose value takes 1"),
        ("41", "65 tagged fields; allowed: at most 64"),
        ("904e", "10000 tagged fields; allowed: at most 64"),
    ],
)
def test_invalid_tagged_fields_are_rejected(tags: str, match: str) -> None:
    refused(HEARTBEAT, BEFORE_TAGS + bytes.fromhex(tags), match)


@pytest.mark.parametrize(
    ("tags", "match"),
    [
        ("02 00 00 00 00", "tag 0 after tag 0"),
        ("02 01 00 00 00", "tag 0 after tag 1"),
        ("01 00 02 00", "tag 0 of 2 bytes; allowed: at most the 1 that remain"),
        ("41" + "00" * 200, "65 tagged fields"),
        ("904e" + "00" * 200, "10000 tagged fields"),
    ],
)
def test_tagged_fields_are_checked_in_header_and_unknown_places(tags: str, match: str) -> None:
    refused(DELETE, "01" + tags, match)
    header = bytes.fromhex("5003 0000 00000001 ffff")
    with pytest.raises(wire.DecodeFailure, match=match) as caught:
        wire.decode_request(header + bytes.fromhex(tags))
    assert caught.value.header == (20483, 0, 1)
    with pytest.raises(WireError, match=match):
        wire.decode_response(bytes.fromhex("00000001" + tags), api_key=20483, version=0)


def test_unknown_tagged_fields_are_skipped_everywhere() -> None:
    """WC-03, F24: an older peer skips the additions of a newer one, in header, message or nested struct."""
    unknown = "02 28 00 8a01 03 616263"
    header = "5000 0000 00000001 ffff" + unknown
    body = "02 67 02 6d 00000000 00 ffffffff 00 00  02 02 63 01 01" + unknown + "03 00 04 00000007" + unknown[2:]
    request = wire.decode_request(bytes.fromhex(header + body)).request
    assert request == HeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        owned=(ConnectorTasks(connector="c", owns_connector=True),),
        max_wait_ms=7,
    )
    response = "00000001" + unknown + "00000000 0000 00 00000000 00000000 ff" + unknown
    assert wire.decode_response(bytes.fromhex(response), api_key=20480, version=0) == (1, HeartbeatResponse())


def test_sixty_four_tagged_fields_are_accepted() -> None:
    tags = b"".join(bytes((64 + n, 0)) for n in range(63)) + b"\x80\x01\0"
    assert DESCRIBE.decode(b"\x01" + b"\x40" + tags, 0) == DescribeRequest()


# 9: text


@pytest.mark.parametrize("text", ["ff", "c080", "eda080", "f4908080", "e282", "80"])
def test_invalid_utf8_is_rejected(text: str) -> None:
    raw = bytes.fromhex(text)
    length = bytes((len(raw) + 1,))
    refused(HEARTBEAT, length + raw + bytes(30), "group_id at byte 1: got bytes that are not UTF-8")
    refused(DESCRIBE, b"\x02" + length + raw + b"\0", "group_ids at byte 1: got bytes that are not UTF-8")
    header = struct.pack(">hhih", 20483, 0, 1, len(raw)) + raw + b"\0\x01\0"
    with pytest.raises(wire.DecodeFailure, match="request header: got bytes that are not UTF-8"):
        wire.decode_request(header)


def test_invalid_struct_marker_is_rejected() -> None:
    before = bytes.fromhex("00000000 0000 00 00000000 00000000")
    for mark in (0, 2, 127, 254):
        refused(
            HEARTBEAT_RESPONSE, before + bytes((mark,)) + bytes(20), f"assignment at byte 16: got struct mark {mark}"
        )


# 8, 10: the frame around it


def test_request_without_a_complete_header_has_none() -> None:
    for length in range(8):
        with pytest.raises(wire.DecodeFailure, match=f"got {length} bytes; allowed: 8 or more") as caught:
            wire.decode_request(bytes(length))
        assert caught.value.header is None


@pytest.mark.parametrize("head", ["5003 0000 00000007", "0012 0000 00000007", "000a 0001 00000007"])
def test_length_of_the_client_id_is_checked(head: str) -> None:
    for length, message in (
        ("fffe", "length -2"),
        ("8000", "length -32768"),
        ("0005", "length 5"),
        ("7fff", "length 327"),
    ):
        with pytest.raises(
            wire.DecodeFailure, match=f"request header: got client_id of {message}.*; allowed: -1 to the 4 bytes"
        ) as caught:
            wire.decode_request(bytes.fromhex(head + length + "01010100"))
        assert caught.value.header is not None


def test_unknown_api_closes_the_connection() -> None:
    """As in Kafka: ``RequestHeader.parse`` throws and the socket server closes the connection."""
    with pytest.raises(wire.DecodeFailure, match=r"got API 3; allowed: 10, 18, 20480, 20481") as caught:
        wire.decode_request(bytes.fromhex("0003 0001 00000007 ffff 00"))
    assert (caught.value.header, caught.value.code) == ((3, 1, 7), 35)
    assert wire.error_response(3, 1, 7, 35, str(caught.value)) is None


def test_unsupported_version_closes_the_connection() -> None:
    with pytest.raises(wire.DecodeFailure, match=r"got ConnectGroupHeartbeat v1; allowed: v0 to v0") as caught:
        wire.decode_request(bytes.fromhex("5000 0001 00000007 ffff 00"))
    assert caught.value.code == 35
    assert wire.error_response(20480, 1, 7, 35, "") is None
    with pytest.raises(WireError, match="got FindCoordinator v5; allowed: v0 to v4"):
        wire.encode_request(FindCoordinatorRequest(), version=5, correlation_id=1, client_id=None)
    for version in (-1, 5):
        with pytest.raises(WireError, match="allowed: v0 to v4"):
            wire.decode_response(bytes(20), api_key=10, version=version)


@pytest.mark.parametrize("version", [4, 5, 32767, -1])
def test_unsupported_api_versions_is_answered_in_version_0(version: int) -> None:
    """KIP-511; the connection stays open. The body is not read, because its format is unknown."""
    with pytest.raises(wire.DecodeFailure, match="got ApiVersions v") as caught:
        wire.decode_request(struct.pack(">hhi", 18, version, 7) + b"\xff\xff whatever")
    assert caught.value.header is not None
    response = wire.error_response(*caught.value.header, caught.value.code, str(caught.value))
    assert response is not None
    assert response == wire.error_response(18, version, 7, 42, "ignored")
    assert response[:14] == bytes.fromhex("00000007 0023 00000009 000a 0000")  # header v0, error 35, 9 APIs, the first
    assert wire.decode_response(response, api_key=18, version=version) == (
        7,
        ApiVersionsResponse(error_code=35, api_keys=wire.served()),
    )
    assert wire.encode_response(ApiVersionsResponse(error_code=35), api_key=18, version=version, correlation_id=7) == (
        bytes.fromhex("00000007 0023 00000000")
    )


def test_client_that_asks_for_version_3_reads_the_response_in_version_0() -> None:
    old_server = bytes.fromhex("00000007 0023 00000001 0012 0000 0002")
    _, response = wire.decode_response(old_server, api_key=18, version=3)
    assert isinstance(response, ApiVersionsResponse)
    assert (response.error_code, response.api_keys[0].max_version) == (35, 2)


def test_api_versions_has_a_response_header_without_tagged_fields() -> None:
    response = wire.encode_response(ApiVersionsResponse(), api_key=18, version=3, correlation_id=7)
    assert response == bytes.fromhex("00000007 0000 01 00000000 00")


@pytest.mark.parametrize("api", wire.APIS.values(), ids=lambda api: api.name)
def test_error_after_the_header_is_answered_and_the_connection_stays_open(api: wire.Api) -> None:
    for version in api.versions:
        head = struct.pack(">hhi", api.key, version, 7)
        for rest in (b"", b"\xff", b"\xff\xfe", b"\x7f\xff", b"\xff\xff\xff\xff", b"\xff\xff\0" + bytes(200)):
            with pytest.raises(wire.DecodeFailure) as caught:
                wire.decode_request(head + rest)
            assert (caught.value.header, caught.value.code) == ((api.key, version, 7), 42)
        encoded = wire.error_response(api.key, version, 7, 42, str(caught.value))
        assert encoded is not None
        correlation_id, response = wire.decode_response(encoded, api_key=api.key, version=version)
        assert correlation_id == 7
        assert type(response) is api.response_class
        assert "error_code=42" in repr(response)


def test_error_message_is_escaped_before_it_is_sent() -> None:
    encoded = wire.error_response(20480, 0, 1, 42, "bad \ud800 \n" + "x" * 100_000)
    assert encoded is not None
    _, response = wire.decode_response(encoded, api_key=20480, version=0)
    assert isinstance(response, HeartbeatResponse)
    assert response.error_message is not None
    assert response.error_message.startswith("bad \\ud800 \\nxxx")
    assert len(response.error_message) == 1000


# records (D7, KAFKA-18672)


def test_record_of_an_unknown_kind_is_rejected_by_name() -> None:
    with pytest.raises(WireError, match=r"record of group g: got kind 77; allowed: 1 \(GROUP\), 2 \(MEMBER\)"):
        wire.decode_record(Key(77, "g"), b"\0\0")  # type: ignore[arg-type]
    with pytest.raises(WireError, match="kind 77"):
        wire.decode_record(Key(77, "g"), None)  # type: ignore[arg-type]


def test_record_of_a_newer_version_is_rejected_by_name() -> None:
    """F24."""
    for version in (1, 32767, -1):
        stored = struct.pack(">h", version) + bytes(40)
        with pytest.raises(WireError, match=rf"record STATUS c\\n0 of group g: got version {version}; allowed: 0 to 0"):
            wire.decode_record(Key(Kind.STATUS, "g", "c\n0"), stored)
    for stored in (b"", b"\0"):
        with pytest.raises(WireError, match="allowed: 2 or more"):
            wire.decode_record(Key(Kind.GROUP, "g"), stored)


def test_record_under_the_key_of_another_is_rejected() -> None:
    stored = wire.encode_record(GroupRecord(group_id="g", epoch=3))
    with pytest.raises(WireError, match="record GROUP of group h: got the record of record GROUP of group g"):
        wire.decode_record(Key(Kind.GROUP, "h"), stored)
    with pytest.raises(WireError):
        wire.decode_record(Key(Kind.TARGET, "g"), stored)


def test_unknown_tagged_field_in_a_record_is_skipped() -> None:
    stored = wire.encode_record(GroupRecord(group_id="g", epoch=3))
    assert stored is not None
    newer = stored[:-1] + bytes.fromhex("01 64 02 abcd")
    assert wire.decode_record(Key(Kind.GROUP, "g"), newer) == GroupRecord(group_id="g", epoch=3)


def test_record_in_an_unknown_state_is_rejected() -> None:
    record = CurrentRecord(group_id="g", member_id="m", epoch=1, previous_epoch=0)
    stored = bytearray(wire.encode_record(record) or b"")
    assert stored[14] == MemberState.STABLE
    stored[14] = 77
    with pytest.raises(
        WireError, match=r"CURRENT m of group g: CurrentRecord v0: state at .* got 77; allowed: 0, 1, 2"
    ):
        wire.decode_record(record.key, bytes(stored))


def test_non_record_is_not_stored() -> None:
    with pytest.raises(WireError, match="record: got HeartbeatRequest"):
        wire.encode_record(HeartbeatRequest(group_id="g", member_id="m"))  # type: ignore[arg-type]
    assert wire.encode_record(Tombstone(Key(Kind.GROUP, "g"))) is None


# values that do not fit their fields


def heartbeat(**fields: Any) -> HeartbeatRequest:
    return HeartbeatRequest(**{"group_id": "g", "member_id": "m", **fields})


@pytest.mark.parametrize(
    ("message", "message_"),
    [
        (heartbeat(member_epoch=1 << 31), "member_epoch: got 2147483648; allowed: int32, -2147483648 to 2147483647"),
        (heartbeat(member_epoch=-(1 << 31) - 1), "member_epoch: got -2147483649"),
        (heartbeat(member_epoch=1.0), "member_epoch: got 1.0; allowed: int32"),
        (heartbeat(member_epoch=None), "member_epoch: got None; allowed: int32"),
        (heartbeat(sequence=1 << 63), "sequence: got 9223372036854775808; allowed: int64"),
        (heartbeat(max_wait_ms=None), "max_wait_ms: got None; allowed: int32"),
        (heartbeat(group_id=None), "group_id: got None; allowed: a string"),
        (heartbeat(group_id=b"g"), "group_id: got bytes; allowed: a string"),
        (
            heartbeat(member_id="m\ud800"),
            "member_id: got a string with U+D800 at character 1; allowed: a string without lone surrogates",
        ),
        (heartbeat(instance_id=5), "instance_id: got 5; allowed: a string without lone surrogates or None"),
        (heartbeat(cause=None), "cause: got None; allowed: a string"),
        (heartbeat(cause="\udfff"), "cause: got a string with U+DFFF at character 0"),
        (heartbeat(statuses=None), "statuses: got None; allowed: a tuple"),
        (heartbeat(owned=5), "owned: got 5; allowed: a tuple or None"),
        (heartbeat(owned=(None,)), "owned: got NoneType; allowed: something with connector"),
        (heartbeat(owned=("c",)), "owned: got str; allowed: something with connector"),
        (
            heartbeat(owned=(ConnectorTasks(connector="c", tasks=(1, 1 << 31)),)),
            "owned.tasks: got 2147483648; allowed: int32",
        ),
        (heartbeat(owned=(ConnectorTasks(connector="c", tasks=(None,)),)), "owned.tasks: got None"),  # type: ignore[arg-type]
        (heartbeat(owned=(ConnectorTasks(connector="c", tasks=None),)), "owned.tasks: got None"),  # type: ignore[arg-type]
        (
            heartbeat(owned=(ConnectorTasks(connector="c", owns_connector=None),)),  # type: ignore[arg-type]
            "owned.owns_connector: got None; allowed: bool",
        ),
        (
            heartbeat(client_assignors=(AssignorInfo(name="a", reason=128, maximum_version=40000),)),
            "client_assignors.maximum_version: got 40000; allowed: int16, -32768 to 32767",
        ),
        (heartbeat(client_assignors=(AssignorInfo(name="a", reason=128),)), "client_assignors.reason: got 128"),
        (
            heartbeat(client_assignors=(AssignorInfo(name="a", metadata="text"),)),  # type: ignore[arg-type]
            "client_assignors.metadata: got a string of 4 bytes; allowed: bytes",
        ),
        (
            heartbeat(statuses=(TaskStatus(connector="c", task=0, owner_epoch=1, state=200),)),
            "statuses.state: got 200; allowed: int8, -128 to 127",
        ),
        (HeartbeatResponse(assignment=MemberAssignment(metadata=None)), "assignment.metadata: got None"),  # type: ignore[arg-type]
        (DescribeRequest(group_ids=("a", None)), "group_ids: got None; allowed: a string"),  # type: ignore[arg-type]
        (PrepareResponse(assignor_name=None), "assignor_name: got None"),  # type: ignore[arg-type]
        (
            InstallRequest(
                group_id="g",
                member_id="m",
                member_epoch=1,
                group_epoch=1,
                members=(InstalledMember(member_id="m", error=-129),),
            ),
            "members.error: got -129; allowed: int8",
        ),
        (
            UpdateConnectorsRequest(group_id="g", changes=(ConnectorChange(connector="c", config=({},)),)),  # type: ignore[arg-type]
            "changes.config: got dict; allowed: something with name",
        ),
    ],
)
def test_value_outside_its_field_is_rejected_by_field_name(message: Any, message_: str) -> None:
    api = next(api for api in wire.APIS.values() if type(message) in (api.request_class, api.response_class))
    codec = api.requests[0] if type(message) is api.request_class else api.responses[0]
    with pytest.raises(WireError) as caught:
        codec.encode(message)
    assert message_ in str(caught.value)
    assert "\n" not in str(caught.value)


def test_error_repeats_no_text_of_the_message() -> None:
    """The value may be a password in a connector's configuration, and errors are logged."""
    for secret in ("hunter2\udc00", b"hunter2", ("hunter2",), {"hunter2": 1}):
        entry = ConfigEntry(name="password", value=secret)  # type: ignore[arg-type]
        request = UpdateConnectorsRequest(group_id="g", changes=(ConnectorChange(connector="c", config=(entry,)),))
        with pytest.raises(WireError, match=r"changes\.config\.value: got") as caught:
            wire.encode_request(request, version=0, correlation_id=1, client_id=None)
        assert "hunter2" not in str(caught.value)


def test_length_of_a_string_is_limited_by_its_encoding() -> None:
    """A classic length is an int16; a compact one is limited by the declared limit or the frame."""
    long = FindCoordinatorRequest(key="é" * 16384)  # 32,768 bytes
    with pytest.raises(WireError, match=r"key: got a string of 32768 bytes; allowed: .* at most 32767 bytes"):
        wire.encode_request(long, version=2, correlation_id=1, client_id=None)
    response = FindCoordinatorResponse(error_message="é" * 16384)
    data = wire.encode_response(response, api_key=10, version=3, correlation_id=1)
    assert wire.decode_response(data, api_key=10, version=3) == (1, response)
    # ... so a long name beside an invalid value is not the cause.
    bad = heartbeat(client_assignors=(AssignorInfo(name="x" * 40000, metadata="text"),))  # type: ignore[arg-type]
    with pytest.raises(WireError, match=r"client_assignors\.metadata: got a string of 4 bytes; allowed: bytes"):
        wire.encode_request(bad, version=0, correlation_id=1, client_id=None)
    for client_id in ("x" * 32768, "\ud800"):
        with pytest.raises(WireError, match="request header: got correlation_id 1, client_id"):
            wire.encode_request(long, version=3, correlation_id=1, client_id=client_id)
    with pytest.raises(WireError, match="correlation_id 2147483648"):
        wire.encode_request(long, version=3, correlation_id=1 << 31, client_id=None)
    with pytest.raises(WireError, match="correlation_id 2147483648"):
        wire.encode_response(HeartbeatResponse(), api_key=20480, version=0, correlation_id=1 << 31)


def test_record_with_an_invalid_enum_value_is_not_written() -> None:
    record = CurrentRecord(group_id="g", member_id="m", epoch=1, previous_epoch=0, state=5)  # type: ignore[arg-type]
    with pytest.raises(WireError, match=r"state: got 5; allowed: 0 \(STABLE\), 1 \(UNREVOKED\)"):
        wire.encode_record(record)
    with pytest.raises(WireError, match=r"state: got 3; allowed: 1 \(RUNNING\), 2 \(FAILED\)"):
        wire.encode_record(StatusRecord(group_id="g", connector="c", state=3))  # type: ignore[arg-type]
    peak = OwnedTasks(connector="c", tasks=(1,), owner_epochs=(1 << 31,))
    current = CurrentRecord(group_id="g", member_id="m", epoch=1, previous_epoch=0, assigned=(peak,))
    with pytest.raises(WireError, match=r"assigned\.owner_epochs: got 2147483648"):
        wire.encode_record(current)
    with pytest.raises(WireError, match="prepared: got 2; allowed: bool"):
        wire.encode_record(ComputationRecord(group_id="g", epoch=1, prepared=2))  # type: ignore[arg-type]


def test_response_of_another_api_is_not_sent() -> None:
    with pytest.raises(WireError, match="response: got HeartbeatResponse; allowed: PrepareResponse"):
        wire.encode_response(HeartbeatResponse(), api_key=20481, version=0, correlation_id=1)
    with pytest.raises(WireError, match="got API 3"):
        wire.encode_response(HeartbeatResponse(), api_key=3, version=0, correlation_id=1)
    with pytest.raises(WireError, match="request: got HeartbeatResponse; allowed: FindCoordinatorRequest"):
        wire.encode_request(HeartbeatResponse(), version=0, correlation_id=1, client_id=None)  # type: ignore[arg-type]

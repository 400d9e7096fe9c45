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
from connectgroup.protocol.messages.cluster import ApiVersionsResponse, FindCoordinatorRequest
from connectgroup.protocol.messages.common import ConnectorTasks
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

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
    with pytest.raises(wire.DecodeFailure, match=r"got API 3; allowed: .*20480, 20481") as caught:
        wire.decode_request(bytes.fromhex("0003 0001 00000007 ffff 00"))
    assert (caught.value.header, caught.value.code) == ((3, 1, 7), 35)
    assert wire.response_to(caught.value) is None


def test_unsupported_version_closes_the_connection() -> None:
    with pytest.raises(wire.DecodeFailure, match=r"got ConnectGroupHeartbeat v1; allowed: v0 to v0") as caught:
        wire.decode_request(bytes.fromhex("5000 0001 00000007 ffff 00"))
    assert caught.value.code == 35
    assert wire.response_to(caught.value) is None
    with pytest.raises(WireError, match="got FindCoordinator v7; allowed: v0 to v6"):
        wire.encode_request(FindCoordinatorRequest(), version=7, correlation_id=1, client_id=None)
    for version in (-1, 7):
        with pytest.raises(WireError, match="allowed: v0 to v6"):
            wire.decode_response(bytes(20), api_key=10, version=version)


@pytest.mark.parametrize("version", [5, 32767, -1])
def test_unsupported_api_versions_gets_a_response_in_version_0(version: int) -> None:
    """KIP-511; the connection stays open. The body is not read, because its format is unknown."""
    with pytest.raises(wire.DecodeFailure, match="got ApiVersions v") as caught:
        wire.decode_request(struct.pack(">hhi", 18, version, 7) + b"\xff\xff whatever")
    assert caught.value.header is not None
    refused = wire.response_to(caught.value)
    assert refused is not None
    response = wire.encode_response(refused, **caught.value.header._asdict())
    # Header v0, error 35, the number of APIs, the first of them.
    first = wire.served()[0]
    assert response[:14] == struct.pack(">ihihh", 7, 35, len(wire.served()), first.api_key, first.min_version)
    assert wire.decode_response(response, api_key=18, version=version) == (
        7,
        ApiVersionsResponse(error_code=35, api_keys=wire.served()),
    )
    assert wire.encode_response(ApiVersionsResponse(error_code=35), api_key=18, version=version, correlation_id=7) == (
        bytes.fromhex("00000007 0023 00000000")
    )


def test_client_that_requests_version_3_reads_the_response_in_version_0() -> None:
    old_server = bytes.fromhex("00000007 0023 00000001 0012 0000 0002")
    _, response = wire.decode_response(old_server, api_key=18, version=3)
    assert isinstance(response, ApiVersionsResponse)
    assert (response.error_code, response.api_keys[0].max_version) == (35, 2)


def test_api_versions_has_a_response_header_without_tagged_fields() -> None:
    response = wire.encode_response(ApiVersionsResponse(), api_key=18, version=3, correlation_id=7)
    assert response == bytes.fromhex("00000007 0000 01 00000000 00")


@pytest.mark.parametrize("api", wire.APIS.values(), ids=lambda api: api.name)
def test_error_after_the_header_gets_a_response_and_the_connection_stays_open(api: wire.Api) -> None:
    for version in api.versions:
        head = struct.pack(">hhi", api.key, version, 7)
        for rest in (b"", b"\xff", b"\xff\xfe", b"\x7f\xff", b"\xff\xff\xff\xff", b"\xff\xff\0" + bytes(200)):
            with pytest.raises(wire.DecodeFailure) as caught:
                wire.decode_request(head + rest)
            assert (caught.value.header, caught.value.code) == ((api.key, version, 7), 42)
        refused = wire.response_to(caught.value)
        assert refused is not None
        encoded = wire.encode_response(refused, api_key=api.key, version=version, correlation_id=7)
        correlation_id, response = wire.decode_response(encoded, api_key=api.key, version=version)
        assert correlation_id == 7
        assert type(response) is api.response_class
        assert "error_code=42" in repr(response)


def test_error_message_is_escaped_before_it_is_sent() -> None:
    refused = wire.refusal(20480, 42, "bad \ud800 \n" + "x" * 100_000)
    encoded = wire.encode_response(refused, api_key=20480, version=0, correlation_id=1)
    _, response = wire.decode_response(encoded, api_key=20480, version=0)
    assert isinstance(response, HeartbeatResponse)
    assert response.error_message is not None
    assert response.error_message.startswith("bad \\ud800 \\nxxx")
    assert len(response.error_message) == 1000

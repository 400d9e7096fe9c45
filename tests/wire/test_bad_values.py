"""Invalid records, and values that do not fit their fields: rejected by field name (D7)."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from connectgroup import wire
from connectgroup.errors import WireError
from connectgroup.protocol.messages.assignment import InstalledMember, InstallRequest, PrepareResponse
from connectgroup.protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from connectgroup.protocol.messages.common import AssignorInfo, ConfigEntry, ConnectorTasks
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.protocol.messages.heartbeat import (
    HeartbeatAssignment,
    HeartbeatRequest,
    HeartbeatResponse,
    TaskStatus,
)
from connectgroup.protocol.records.base import Key, Kind, Tombstone
from connectgroup.protocol.records.connect import (
    ComputationRecord,
    CurrentRecord,
    GroupRecord,
    MemberState,
    OwnedTasks,
    StatusRecord,
)


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
        (HeartbeatResponse(assignment=HeartbeatAssignment(metadata=None)), "assignment.metadata: got None"),  # type: ignore[arg-type]
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
    with pytest.raises(WireError, match=r"state: got 9; allowed: 1 \(RUNNING\), 2 \(FAILED\), 3 \(STALLED\)"):
        wire.encode_record(StatusRecord(group_id="g", connector="c", state=9))  # type: ignore[arg-type]
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
    with pytest.raises(WireError, match=r"request: got HeartbeatResponse; allowed: .*FindCoordinatorRequest"):
        wire.encode_request(HeartbeatResponse(), version=0, correlation_id=1, client_id=None)  # type: ignore[arg-type]

"""What workers of the classic protocol exchange in JoinGroup and SyncGroup: round trip and invalid bytes."""

from __future__ import annotations

import pytest

from connectgroup.errors import WireError
from connectgroup.protocol.messages.common import ConnectorTasks
from connectgroup.protocol.messages.heartbeat import HeartbeatAssignment, HeartbeatRequest, HeartbeatResponse, UnitGrant
from connectgroup.wire.embedded import decode_request, decode_response, encode_request, encode_response
from tests.fuzzing import INPUTS, attack

UNITS = (ConnectorTasks(connector="c", owns_connector=True, tasks=(0, 2)),)
REQUEST = HeartbeatRequest(
    group_id="g", member_id="w", member_epoch=3, rebalance_timeout_ms=60_000, owned=UNITS, sequence=9, classic=True
)
RESPONSE = HeartbeatResponse(
    member_epoch=4,
    assignment=HeartbeatAssignment(units=UNITS, grants=(UnitGrant(connector="c", task=0, owner_epoch=4),)),
)


def test_messages_survive_a_round_trip() -> None:
    assert decode_request(encode_request(REQUEST)) == REQUEST
    assert decode_response(encode_response(RESPONSE)) == RESPONSE


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\x63", b"\xff\xff", encode_request(REQUEST) + b"\0"])
def test_bytes_that_are_no_message_are_rejected(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_request(data)


def test_any_bytes_are_decoded_or_rejected() -> None:
    attack(decode_request, encode_request, [encode_request(REQUEST)], INPUTS // 10, WireError)
    attack(decode_response, encode_response, [encode_response(RESPONSE)], INPUTS // 10, WireError)

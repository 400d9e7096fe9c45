"""The data that a worker of the classic protocol exchanges with its coordinator in JoinGroup, SyncGroup and LeaveGroup.

The metadata in JoinGroup and LeaveGroup is a ConnectGroupHeartbeat request, the assignment in a SyncGroup response is
a ConnectGroupHeartbeat response. Each begins with the version of that API in two bytes; the rest is the body. As in
``apis``, bytes that are not exactly one message are rejected, and every length is checked before it is used.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from ..errors import WireError
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from .apis import APIS, HEARTBEAT
from .codec import Codec

_API: Final = APIS[HEARTBEAT]
_VERSION: Final = struct.Struct(">h")


def encode_request(request: HeartbeatRequest) -> bytes:
    """Encode a heartbeat as the metadata of a JoinGroup or LeaveGroup.

    Raises:
        WireError: a value that its field cannot hold.
    """
    return _encoded(_API.requests, request)


def decode_request(data: bytes) -> HeartbeatRequest:
    """Decode the metadata of a JoinGroup or LeaveGroup.

    Raises:
        WireError: not a heartbeat of a version known here.
    """
    request = _decoded("JoinGroup metadata", _API.requests, data)
    assert isinstance(request, HeartbeatRequest)
    return request


def encode_response(response: HeartbeatResponse) -> bytes:
    """Encode the response to a heartbeat as the assignment of a SyncGroup response. Raises as ``encode_request``."""
    return _encoded(_API.responses, response)


def decode_response(data: bytes) -> HeartbeatResponse:
    """Decode the assignment of a SyncGroup response. Raises as ``decode_request``."""
    response = _decoded("SyncGroup assignment", _API.responses, data)
    assert isinstance(response, HeartbeatResponse)
    return response


def _encoded(codecs: dict[int, Codec], message: HeartbeatRequest | HeartbeatResponse) -> bytes:
    version = max(codecs)
    return _VERSION.pack(version) + codecs[version].encode(message)


def _decoded(name: str, codecs: dict[int, Codec], data: bytes) -> Any:
    if len(data) < _VERSION.size:
        raise WireError(f"{name}: got {len(data)} bytes; allowed: {_VERSION.size} or more")
    (version,) = _VERSION.unpack_from(data)
    codec = codecs.get(version)
    if codec is None:
        raise WireError(f"{name}: version: got {version}; allowed: {min(codecs)} to {max(codecs)}")
    return codec.decode(data, _VERSION.size)

"""The client side of a consumer's connection to a broker or a coordinator: encodes requests and decodes responses.

The counterpart of ``apis``, which has the APIs served here. ApiVersions and FindCoordinator are the same in both. The
versions are those of brokers from Kafka 2.5 on, up to 4.x; all of them are flexible.

Source: Kafka's protocol guide; ``definition`` for the form of ``kafka/*.json``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from ..errors import WireError
from ..protocol.messages.classic import GroupRequest
from ..protocol.messages.cluster import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from ..protocol.messages.consumer import (
    ConsumerHeartbeatRequest,
    ConsumerInstallRequest,
    ConsumerPrepareRequest,
)
from ..protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from . import apis
from .codec import Codec
from .table import Entry, Party, sent_by

OffsetRequest = OffsetCommitRequest | OffsetFetchRequest
ConsumerRequest = ConsumerHeartbeatRequest | ConsumerPrepareRequest | ConsumerInstallRequest
BrokerRequest = (
    MetadataRequest | OffsetRequest | GroupRequest | ConsumerRequest | ApiVersionsRequest | FindCoordinatorRequest
)

_SENT_FROM: Final = {
    "OffsetCommit": 8,
    "OffsetFetch": 7,
    "JoinGroup": 7,
    "SyncGroup": 5,
    "Heartbeat": 4,
    "LeaveGroup": 4,
}
"""The lowest version that the client sends of an API that the coordinator serves in lower versions, too."""


def encode_call(request: BrokerRequest, *, version: int, correlation_id: int, client_id: str) -> bytes:
    """Encode header and body, without the length prefix.

    Raises:
        WireError: a value that its field cannot hold, or an unsupported version.
    """
    api = BROKER_APIS[type(request)]
    _codec(api, api.requests, version)
    if not isinstance(request, MetadataRequest):
        return apis.encode_request(request, version=version, correlation_id=correlation_id, client_id=client_id)
    header = apis.encode_header(api.key, version, correlation_id, client_id, flexible=True)
    return header + _codec(api, api.requests, version).encode(request)


def decode_kafka_response(data: bytes, *, to: type[Any], version: int) -> tuple[int, Any]:
    """Decode the correlation id and the response to a request of that class and version.

    Raises:
        WireError: the bytes are not exactly such a response.
    """
    api = BROKER_APIS[to]
    codec = _codec(api, api.responses, version)
    if api.key in apis.APIS:
        return apis.decode_response(data, api_key=api.key, version=version)
    correlation_id, pos = apis.decode_response_header(data, codec.name, flexible=True)
    return correlation_id, codec.decode(data, pos)


def _codec(api: apis.Api, codecs: dict[int, Codec], version: int) -> Codec:
    if version not in codecs:
        raise WireError(f"{api.name}: got v{version}; allowed: v{api.versions[0]} to v{api.versions[-1]}")
    return codecs[version]


def _api(entry: Entry) -> apis.Api:
    if Party.COORDINATOR in entry.servers:
        return _shared(entry.key)
    api = apis.compiled(entry, folder="kafka")
    if any(version not in api.flexible for version in api.versions):
        raise AssertionError(f"{entry.name}: a version is not flexible")
    return api


def _shared(key: int) -> apis.Api:
    api = apis.APIS[key]
    stop = min(api.versions.stop, apis.MAX_SENT.get(key, api.versions[-1]) + 1)
    versions = range(max(api.versions.start, _SENT_FROM.get(api.name, 0)), stop)
    return replace(
        api,
        versions=versions,
        requests={version: api.requests[version] for version in versions},
        responses={version: api.responses[version] for version in versions},
    )


BROKER_APIS: Final[dict[type[Any], apis.Api]] = {entry.request_class: _api(entry) for entry in sent_by(Party.CONSUMER)}
"""Every API that the client supports, by the class of its request."""

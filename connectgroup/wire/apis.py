"""Requests and responses in Kafka's format: header, then body, in a version that both sides support.

A server calls ``decode_request`` and ``encode_response``; a client does the reverse. The reaction of a server to bytes
that it cannot decode depends on where decoding stopped, and is decided here only:

====================================================  ==========================================================
bytes                                                  response (``response_to``)
====================================================  ==========================================================
shorter than the 8 bytes up to the correlation id      none: close. There is no correlation id to respond to.
an API that is not supported                           none: close, as Kafka does: the two sides share no format of a
                                                       response
ApiVersions in a version too high                      version 0: error 35 and the list of supported APIs
another API in an unsupported version                  none: close, as Kafka does
anything invalid after that                            that API's own response with INVALID_REQUEST; the frame was
                                                       complete, so the connection stays open
====================================================  ==========================================================

A framing error (``primitives``) also closes the connection.

Source: Kafka's protocol guide; ``RequestHeader.parse``, ``RequestContext.parseRequest``; KIP-511 for ApiVersions.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..errors import InvalidRequest, UnsupportedVersion, WireError
from ..protocol.messages.api import Request, Response
from ..protocol.messages.cluster import (
    ApiVersion,
    ApiVersionsResponse,
)
from ..protocol.messages.rejected import rejected_unread
from ..protocol.units import printable
from .codec import Codec, compile_codec
from .definition import load
from .primitives import WireFault, skip_tags
from .table import Entry, Party, key_of, served_by

FIND_COORDINATOR: Final = key_of("FindCoordinator")
API_VERSIONS: Final = key_of("ApiVersions")
SASL_HANDSHAKE: Final = key_of("SaslHandshake")
SASL_AUTHENTICATE: Final = key_of("SaslAuthenticate")
OFFSET_COMMIT: Final = key_of("OffsetCommit")
OFFSET_FETCH: Final = key_of("OffsetFetch")
TXN_OFFSET_COMMIT: Final = key_of("TxnOffsetCommit")
HEARTBEAT: Final = key_of("ConnectGroupHeartbeat")
DESCRIBE: Final = key_of("ConnectGroupDescribe")
UPDATE_CONNECTORS: Final = key_of("ConnectGroupUpdateConnectors")
DELETE: Final = key_of("ConnectGroupDelete")


MAX_SENT: Final = {OFFSET_COMMIT: 9, OFFSET_FETCH: 9}
"""The highest versions that this package's clients send: later ones name topics by their ids, not by their names."""

MAX_CLIENT_ID: Final = 249
"""Limit in bytes on the client id in a request header, as for every other identifier."""

_ANSWERABLE: Final = struct.Struct(">hhi")  # API key, version, correlation id
_HEADER: Final = struct.Struct(">hhih")  # and the length of the client id, which is never compact
_CORRELATION_ID: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")


class DecodedRequest(NamedTuple):
    """A request and the fields of its header."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    request: Request


class RequestHeader(NamedTuple):
    """The fields of a request's header that a response needs."""

    api_key: int
    version: int
    correlation_id: int


class DecodeFailure(WireError):
    """A request that cannot be decoded.

    Attributes:
        header: the fields that a response needs; ``None`` if the bytes end before them.
        code: the error code of the response, if there is one (``response_to`` decides).
    """

    def __init__(self, message: str, *, header: RequestHeader | None, code: int) -> None:
        super().__init__(message)
        self.header, self.code = header, code


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One supported API.

    Attributes:
        key: its API key on the wire.
        name: its name without Request and Response.
        request_class: the class of decoded requests.
        response_class: the class of decoded responses.
        versions: the supported versions.
        flexible: the flexible ones of them, with compact lengths and tagged fields.
        requests: the codec of each version's request.
        responses: the codec of each version's response.
    """

    key: int
    name: str
    request_class: type[Request]
    response_class: type[Response]
    versions: range
    flexible: range
    requests: dict[int, Codec]
    responses: dict[int, Codec]


def encode_request(request: Request, *, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode header and body, without the length prefix.

    Raises:
        WireError: a value that its field cannot hold, or an unsupported version.
    """
    codec, key, flexible = _TO_SEND.get((type(request), version)) or _refuse_to_send(request, version)
    return encode_header(key, version, correlation_id, client_id, flexible=flexible) + codec.encode(request)


def encode_header(key: int, version: int, correlation_id: int, client_id: str | None, *, flexible: bool) -> bytes:
    """Encode the header of a request.

    Raises:
        WireError: a value that its field cannot hold.
    """
    end = b"\0" if flexible else b""
    try:
        if client_id is None:
            return _HEADER.pack(key, version, correlation_id, -1) + end
        encoded_id = client_id.encode()
        return _HEADER.pack(key, version, correlation_id, len(encoded_id)) + encoded_id + end
    except (struct.error, ValueError, AttributeError) as error:
        found = f"correlation_id {correlation_id!r}, client_id {client_id!r}"
        allowed = "an int32, and None or a string of at most 32767 bytes"
        raise WireError(f"request header: got {printable(found)}; allowed: {allowed}") from error


def header_of(data: bytes) -> RequestHeader | None:
    """The fields of a request that a response needs; ``None`` if the bytes end before them."""
    return RequestHeader(*_ANSWERABLE.unpack_from(data)) if len(data) >= _ANSWERABLE.size else None


def decode_request(data: bytes | memoryview) -> DecodedRequest:
    """Decode one complete request, without the length prefix.

    Raises:
        DecodeFailure: anything else, with the header if it could be decoded; the table above gives the response.
    """
    data = bytes(data)  # no copy if the argument is bytes already
    size = len(data)
    if size < _ANSWERABLE.size:
        found = f"got {size} bytes; allowed: {_ANSWERABLE.size} or more"
        raise DecodeFailure(f"request header: {found}", header=None, code=InvalidRequest.code)
    api_key, version, correlation_id = _ANSWERABLE.unpack_from(data)
    known = _TO_READ.get((api_key, version))
    if known is None:
        header = RequestHeader(api_key, version, correlation_id)
        raise DecodeFailure(_not_served(api_key, version), header=header, code=UnsupportedVersion.code)
    codec, flexible = known
    try:
        (length,) = _INT16.unpack_from(data, 8)
        pos, client_id = 10, None
        if length != -1:
            pos = 10 + length
            if not 10 <= pos <= size:
                raise WireFault(f"client_id of length {length}", f"-1 to the {size - 10} bytes that remain")
            if length > MAX_CLIENT_ID:
                raise WireFault(f"client_id of length {length}", f"at most {MAX_CLIENT_ID} bytes")
            client_id = data[10:pos].decode()
        if flexible:
            # Tagged fields of the header: none are defined; those of a newer client are skipped.
            pos = skip_tags(data, pos, size) if data[pos] else pos + 1
        return DecodedRequest(api_key, version, correlation_id, client_id, codec.decode(data, pos))
    except WireError as error:
        header, reason, cause = RequestHeader(api_key, version, correlation_id), str(error), error.__cause__
    except (WireFault, struct.error, IndexError, UnicodeDecodeError) as error:
        header, cause = RequestHeader(api_key, version, correlation_id), error
        reason = f"request header: {_reason(error)}"
    raise DecodeFailure(reason, header=header, code=InvalidRequest.code) from cause


def encode_response(response: Response, *, api_key: int, version: int, correlation_id: int) -> bytes:
    """Encode header and body, without the length prefix.

    ``version`` is the request's. The response to ApiVersions in a version too high has version 0 (KIP-511).

    Raises:
        WireError: a value that its field cannot hold, or not a response of that API.
    """
    codec, header_end, response_class = _TO_ANSWER.get((api_key, version)) or _refusal_for_version(api_key, version)
    if type(response) is not response_class:
        raise WireError(f"response: got {type(response).__name__}; allowed: {response_class.__name__}")
    try:
        header = _CORRELATION_ID.pack(correlation_id)
    except struct.error as error:
        raise WireError(f"response header: got correlation_id {correlation_id!r}; allowed: an int32") from error
    return b"".join((header, header_end, codec.encode(response)))


def decode_response(data: bytes | memoryview, *, api_key: int, version: int) -> tuple[int, Response]:
    """Decode the correlation id and the response to a request of ``api_key`` and ``version``.

    Raises:
        WireError: the bytes are not exactly such a response.
    """
    data = bytes(data)  # no copy if the argument is bytes already
    codec, header_end, _ = _TO_ANSWER.get((api_key, version)) or _refusal_for_version(api_key, version)
    correlation_id, pos = decode_response_header(data, codec.name, flexible=bool(header_end))
    try:
        return correlation_id, codec.decode(data, pos)
    except WireError:
        # A server that does not support the version responds to ApiVersions in version 0 with error 35 (KIP-511).
        if api_key == API_VERSIONS and data[4:6] == _INT16.pack(UnsupportedVersion.code):
            return correlation_id, APIS[API_VERSIONS].responses[0].decode(data, 4)
        raise


def decode_response_header(data: bytes, name: str, *, flexible: bool) -> tuple[int, int]:
    """Decode the correlation id and the start of the body.

    Raises:
        WireError: the bytes are not such a header; ``name`` is the message named in the error.
    """
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(data)
        return correlation_id, skip_tags(data, 4, len(data)) if flexible else 4
    except (WireFault, struct.error, IndexError) as error:
        raise WireError(f"{name} header: {_reason(error)}") from error


def response_to(failure: DecodeFailure) -> Response | None:
    """The response to a request that cannot be decoded; ``None`` if the client can decode none: disconnect."""
    header = failure.header
    if header is None or (header.api_key != API_VERSIONS and header[:2] not in _TO_ANSWER):
        return None
    return refusal(header.api_key, failure.code, str(failure))


def refusal(api_key: int, code: int, message: str) -> Response:
    """The response of an API that carries only an error, without what the request names (``rejected``)."""
    if api_key == API_VERSIONS:
        return ApiVersionsResponse(error_code=code, api_keys=served())
    message = printable(message, limit=1000).encode("utf-8", "replace").decode()
    return rejected_unread(APIS[api_key].request_class, code, message)


def served(*, sasl: bool = False) -> tuple[ApiVersion, ...]:
    """The supported APIs in the response to ApiVersions, by API key.

    Args:
        sasl: whether the server authenticates its clients, so that SaslHandshake and SaslAuthenticate are among them.
    """
    return tuple(
        ApiVersion(api_key=key, min_version=api.versions[0], max_version=api.versions[-1])
        for key, api in sorted(APIS.items())
        # Transactions are a broker's: the proxy lists the API (``proxy.relay.merged``).
        if key != TXN_OFFSET_COMMIT and (sasl or key not in (SASL_HANDSHAKE, SASL_AUTHENTICATE))
    )


def compiled(entry: Entry, folder: str = "messages") -> Api:
    """The API of an entry, from its two definitions in a folder.

    Raises:
        AssertionError: they are not the request and the response of one API.
    """
    key, name, request_class, response_class = entry[:4]
    request = load(f"{name}Request", request_class, folder=folder)
    response = load(f"{name}Response", response_class, folder=folder)
    for message, kind in ((request, "request"), (response, "response")):
        if (message.kind, message.api_key) != (kind, key):
            raise AssertionError(f"{message.name}: {message.kind} of API {message.api_key}, expected {kind} of {key}")
    if (request.versions, request.flexible) != (response.versions, response.flexible):
        raise AssertionError(f"{name}: request and response differ in validVersions or flexibleVersions")
    return Api(
        key=key,
        name=name,
        request_class=request_class,
        response_class=response_class,
        versions=request.versions,
        flexible=request.flexible,
        requests={version: compile_codec(request, version) for version in request.versions},
        responses={version: compile_codec(response, version) for version in response.versions},
    )


APIS: Final[dict[int, Api]] = {entry.key: compiled(entry) for entry in served_by(Party.COORDINATOR)}
"""Every supported API, by key."""

# Precomputed tables, one look-up per request. A response to ApiVersions has a header without tagged fields in every
# version, because the client does not know yet what the server supports (KIP-511).
_TO_SEND: Final = {
    (api.request_class, version): (codec, api.key, version in api.flexible)
    for api in APIS.values()
    for version, codec in api.requests.items()
}
_TO_READ: Final = {
    (api.key, version): (codec, version in api.flexible)
    for api in APIS.values()
    for version, codec in api.requests.items()
}
_TO_ANSWER: Final[dict[tuple[int, int], tuple[Codec, bytes, type[Response]]]] = {
    (api.key, version): (
        codec,
        b"\0" if version in api.flexible and api.key != API_VERSIONS else b"",
        api.response_class,
    )
    for api in APIS.values()
    for version, codec in api.responses.items()
}


def _refusal_for_version(api_key: int, version: int) -> tuple[Codec, bytes, type[Response]]:
    if api_key == API_VERSIONS:
        return _TO_ANSWER[API_VERSIONS, 0]
    raise WireError(_not_served(api_key, version))


def _refuse_to_send(request: object, version: int) -> Any:
    for api in APIS.values():
        if type(request) is api.request_class:
            raise WireError(_not_served(api.key, version))
    allowed = ", ".join(api.request_class.__name__ for api in APIS.values())
    raise WireError(f"request: got {type(request).__name__}; allowed: {allowed}")


def _reason(error: Exception) -> str:
    if isinstance(error, WireFault):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return "got bytes that are not UTF-8; allowed: UTF-8"
    return "the bytes end before the value does"


def _not_served(api_key: int, version: int) -> str:
    if api_key not in APIS:
        return f"request header: got API {api_key}; allowed: {', '.join(map(str, sorted(APIS)))}"
    versions = APIS[api_key].versions
    return f"request header: got {APIS[api_key].name} v{version}; allowed: v{versions[0]} to v{versions[-1]}"

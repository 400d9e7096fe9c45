"""One connection of the server: frames, requests, responses in request order, and the limits for its peer.

Large requests of all connections are decoded one after the other, so that heartbeats need not wait for them.

Decoding a megabyte takes up to 300 ms. A connection has one request decoded at a time, and reads no further ones
meanwhile: they wait in the buffer of its socket. So the connections that send large requests share the time fairly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any, Final, Protocol, cast

from ..errors import (
    CoordinatorNotAvailable,
    IllegalSaslState,
    SaslAuthenticationFailed,
    UnknownServerError,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
    WireError,
)
from ..protocol.messages.api import Handler, Request, Response
from ..protocol.messages.classic import GroupHeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from ..protocol.messages.cluster import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ..protocol.messages.consumer import ConsumerHeartbeatRequest
from ..protocol.messages.describe import DescribeResponse
from ..protocol.messages.heartbeat import HeartbeatRequest
from ..protocol.messages.offsets import (
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
)
from ..protocol.messages.rejected import rejected
from ..protocol.units import printable
from ..sasl import MECHANISMS, Authenticator, Login, SaslError
from ..threads import NoThread, off_loop
from ..wire.apis import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    DecodedRequest,
    DecodeFailure,
    RequestHeader,
    decode_request,
    encode_response,
    header_of,
    refusal,
    response_to,
)
from ..wire.primitives import DEFAULT_MAX_BYTES, FrameReader, frame
from .access import name_in
from .base import Conversation, Relay
from .limits import Limits, descriptor_of
from .quotas import RequestQuotas

logger = logging.getLogger(__name__)

_FORWARDED: Final = RequestHeader(-1, -1, -1)
"""In place of the header of a request that is forwarded: its response is not encoded here."""


# Tuples: each evaluation of ``A | B`` creates an object, and both are checked for each request.
_SASL: Final = (SaslHandshakeRequest, SaslAuthenticateRequest)
_LOCAL: Final = (ApiVersionsRequest, FindCoordinatorRequest)
_OF_MEMBERS: Final = (
    HeartbeatRequest, ConsumerHeartbeatRequest, JoinGroupRequest, SyncGroupRequest, GroupHeartbeatRequest
)  # fmt: skip


SMALL_BYTES: Final = 64 * 1024
"""Incomplete requests of up to so many bytes are not counted: the limits on connections bound them."""


BEGUN_TOGETHER: Final = 8
"""Requests that a connection begins before the others have their turn. A login takes five turns of the event loop."""

BEGIN_S: Final = 0.01
"""Seconds in one turn of the event loop after which each connection begins one request only: many connections that send
many requests do not delay a heartbeat on another one."""


class BeginBudget:
    """How long all connections of a server have begun requests in this turn of the event loop."""

    def __init__(self) -> None:
        self._ends_at: float | None = None  # on the loop's clock; None: no connection had a second request in this turn

    def is_over(self) -> bool:
        """Whether a connection that has begun a request is to leave its next one for a later turn."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._ends_at is None:
            self._ends_at = now + BEGIN_S
            loop.call_soon(self._forget)  # it is called before the next turn's reads
            return False
        return now >= self._ends_at

    def _forget(self) -> None:
        self._ends_at = None


MANY_UNITS: Final = 5_000
"""Encoding a response about so many units or partitions takes 20 ms."""


def units_in(response: Response) -> int:
    """The connectors and tasks that a response describes, or the partitions that it is about; and the groups, members
    and topics, each of which takes as long."""
    if isinstance(response, OffsetCommitResponse | OffsetDeleteResponse):
        return sum(1 + len(topic.partitions) for topic in response.topics)
    if isinstance(response, OffsetFetchResponse):
        topics = chain(response.topics, *(group.topics for group in response.groups))
        return len(response.groups) + sum(1 + len(topic.partitions) for topic in topics)
    if not isinstance(response, DescribeResponse):
        return 0
    units = sum(len(connector.units) for group in response.groups for connector in group.connectors)
    members = [member for group in response.groups for member in group.members]
    assigned = sum(len(each.tasks) for member in members for each in member.assigned)
    return len(response.groups) + len(members) + max(units, assigned)


class Server(Protocol):
    """What a connection needs of its server."""

    limits: Limits
    authenticator: Authenticator | None
    large_requests: LargeRequests
    quotas: RequestQuotas
    begin_budget: BeginBudget
    on_connection_lost: Callable[[Request, str], None]

    @property
    def is_closing(self) -> bool: ...

    def admit(self, connection: Connection) -> str: ...

    def admit_refused(self, connection: Connection) -> bool: ...

    def admit_authenticated(self, connection: Connection) -> str: ...

    def release(self, connection: Connection) -> None: ...

    def count_incomplete(self, connection: Connection, size: int) -> None: ...

    def count_unsent(self, connection: Connection, size: int) -> None: ...

    def log_complaint(self, host: str, what: str) -> None: ...

    def handler_for(self, connection: Connection) -> Handler: ...

    def handle_locally(self, request: ApiVersionsRequest | FindCoordinatorRequest) -> Response: ...

    def without_denied(self, request: Request, found: Response, connection: Connection) -> Response: ...

    def new_relay(self, on_writable: Callable[[], None], connection: Connection) -> Relay | None: ...

    def send_soon(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """One connection: decodes frames and requests, encodes responses, and enforces the limits for its peer."""

    def __init__(self, server: Server) -> None:
        self._server, self._limits = server, server.limits
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(server.limits.max_frame_bytes)
        self._frames: deque[bytes] = deque()  # complete frames that have not begun
        self._out: list[bytes] = []  # responses of this turn of the event loop, sent together
        self._lost = False  # the connection is closed
        self._stopped = False  # no further request is read: an error, a refusal, or the server closes
        self._hanging_up = False  # closed once all responses are sent
        self._paused = False  # reading is paused, because enough requests wait
        # On the loop's clock: the connection, the last bytes, and the incomplete frame began.
        self._began_at = self._heard_at = self._frame_began_at = self._loop.time()
        self._waits_for_frame = True  # a frame is incomplete; at first, none has begun
        self._goes_on = False  # requests are left for the next turn of the event loop
        self._begins = False  # responses that arrive now are sent when the last of these requests has begun
        self._incomplete = 0  # bytes of a large incomplete frame, as the server counts them
        self._decodes = False  # a large request; the later ones wait
        self._choked_at: float | None = None  # since when the peer does not read
        self._closing_at: float | None = None  # since when only what is unsent keeps the connection open
        self._muted_until: float | None = None  # above a quota; changed by _throttle and _unmute
        self._relay: Relay | None = None  # of a proxy: forwards requests to a broker
        # Names the member, should the connection be lost: a worker asks for the other coordinators on it, too.
        self._last_request: Request | None = None
        self._group_id: str | None = None  # of its requests; empty: they are about several groups
        self._refused = ""  # above a limit: the error message for its first request
        self.admission = Admission(server.authenticator)
        self.client_host = self._certificate_name = ""  # ``connection_made`` sets these and the next
        self.descriptor = -1

    @property
    def principal(self) -> str:
        """The authenticated user, or else the name in the client's certificate; empty without authentication."""
        return self.admission.principal or self._certificate_name

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else "unknown"
        self.descriptor = descriptor_of(transport)
        self._certificate_name = name_in(transport.get_extra_info("peercert"))
        self.conversation: Conversation[RequestHeader] = Conversation(
            self._server.handler_for(self),
            client_host=self.client_host,
            response=self._answer,
            encode=self._encode_if_large,
        )
        if self._server.is_closing:
            self._stopped = True
            self._server.log_complaint(self.client_host, "the server is closing")
            self._transport.abort()
            return
        if refused := self._server.admit(self):
            self._server.log_complaint(self.client_host, refused)
            if not self._server.admit_refused(self):
                self._stopped = True
                self._transport.abort()
                return
            self._refused = refused
            self._reader = FrameReader(min(DEFAULT_MAX_BYTES, self._limits.max_frame_bytes))
        else:
            self._relay = self._server.new_relay(self._work, self)
            if not self.admission.is_open:
                self._reader = FrameReader(min(MAX_FRAME_BYTES, self._limits.max_frame_bytes))
        self._transport.set_write_buffer_limits(high=self._limits.max_unsent_bytes)

    def data_received(self, data: bytes) -> None:
        if self._stopped:
            return
        try:
            frames = self._reader.feed(data)
        except WireError as error:
            self._refuse(str(error))
            return
        self._heard_at = now = self._loop.time()
        if frames or not self._waits_for_frame:
            self._frame_began_at = now
        self._waits_for_frame = self._reader.mid_frame
        self._frames += frames
        if not self._decodes and (self._incomplete or self._reader.size):
            self._count_incomplete(self._reader.size)
        self._work()

    def _work(self) -> None:
        """Begin requests within the limits; resume reading only when no complete frame is left."""
        sends = self._begins = not self._out  # otherwise responses are sent later in this turn of the event loop
        for begun in range(BEGUN_TOGETHER):
            if not self._frames or not self._may_begin() or (begun and self._server.begin_budget.is_over()):
                break
            self._begin(self._frames.popleft())
        self._begins = False
        may_begin = self._may_begin()
        pause = bool(self._frames) or not may_begin
        if self._frames and may_begin and not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on)
        if pause and not self._paused:
            self._transport.pause_reading()
        elif self._paused and not pause:
            self._frame_began_at = self._loop.time()  # the deadline does not run while reading is paused
            self._transport.resume_reading()
        self._paused = pause
        if sends and self._out:
            self._send()

    def _go_on(self) -> None:
        self._goes_on = False
        self._work()

    def _may_begin(self) -> bool:
        if self._stopped or self._decodes or self._choked_at is not None or self._muted_until is not None:
            return False
        if len(self.conversation) >= self._limits.max_in_flight:
            return False
        return self._relay is None or self._relay.is_writable

    def _begin(self, data: bytes) -> None:
        if self._relay is not None and self.admission.is_open and self._relay.forward(data, self._defer):
            return
        if not self.admission.is_open and (asked := header_of(data)) and self.admission.refuses(asked.api_key):
            # Not decoded: that takes long for a large request.
            self._refuse_request(DecodeFailure(REQUIRED, header=asked, code=SaslAuthenticationFailed.code))
            return
        if len(data) > LARGE_BYTES:
            self._decodes = True
            self._count_incomplete(len(data))
            prepare = None if self._relay is None else self._relay.prepare
            self._server.large_requests.decode(self, data, self._on_decoded, prepare)
        else:
            self._handle(decoded(data))

    def _on_decoded(self, decoded: Decoded) -> None:
        """A large request has been decoded."""
        self._decodes = False
        if self._stopped:
            return
        try:
            self._count_incomplete(self._reader.size)
            self._handle(decoded)
            self._work()
        except Exception:
            logger.exception("%s: closed: its request cannot be handled", self.client_host)
            self.abort()

    def _count_incomplete(self, size: int) -> None:
        """Note how many bytes of a request that is not whole, or not decoded, this connection holds."""
        size = size if size > SMALL_BYTES else 0
        if size != self._incomplete:
            self._incomplete = size
            self._server.count_incomplete(self, size)

    def _handle(self, decoded: Decoded) -> None:
        """Handle a request."""
        if self.admission.is_open and not self._refused:
            self._throttle()
        if isinstance(decoded, DecodeFailure):
            self._refuse_request(decoded)
            return
        header = RequestHeader(decoded.api_key, decoded.version, decoded.correlation_id)
        request = decoded.request
        if self._refused and not isinstance(request, ApiVersionsRequest):
            # Respond to ApiVersions: its response has no field for an error message, but that of the next request has.
            self._stopped = True
            self.conversation.put(header, rejected(request, CoordinatorNotAvailable.code, self._refused))
            self.conversation.put(header, None)
        elif isinstance(request, _SASL):
            self._authenticate(header, request)
        elif isinstance(request, _LOCAL):
            response = self._server.handle_locally(request)
            self.conversation.put(header, self._server.without_denied(request, response, self))
        elif self._relay is not None and isinstance(request, TxnOffsetCommitRequest):
            self._relay.commit_in_transaction(decoded, self._defer())
        else:
            if self._last_request is None or isinstance(request, _OF_MEMBERS):
                self._last_request = request
            group_id = getattr(request, "group_id", None)
            if group_id != self._group_id and group_id is not None:
                self._group_id = group_id if self._group_id is None else ""
            self.conversation.begin(header, request, client_id=decoded.client_id or "", principal=self.principal)

    def _throttle(self) -> None:
        """Count a request; above the quota of the principal, begin no further one for a while (KIP-219)."""
        delay_s = self._server.quotas.take(self.principal)
        if delay_s > 0:
            self._muted_until = self._loop.time() + delay_s
            self._loop.call_at(self._muted_until, self._unmute)

    def _unmute(self) -> None:
        self._muted_until = None
        if not self._stopped:
            self._work()

    def _with_throttle_time(self, response: Response) -> Response:
        """The response with the time for which the connection is still muted."""
        if self._muted_until is None or not hasattr(response, "throttle_time_ms"):
            return response
        left_ms = max(1, math.ceil((self._muted_until - self._loop.time()) * 1000))
        throttled: Response = replace(cast(Any, response), throttle_time_ms=left_ms)
        return throttled

    def _authenticate(self, header: RequestHeader, request: SaslHandshakeRequest | SaslAuthenticateRequest) -> None:
        """Respond to a SASL request; a failed authentication ends the connection."""
        was_open, response = self.admission.is_open, self.admission.answer(request)
        if getattr(response, "error_code", 0):
            self._server.log_complaint(self.client_host, f"not authenticated: {printable(response, limit=150)}")
            self._reject(header, response)
            return
        if self.admission.is_open and not was_open:
            self._reader.allow(self._limits.max_frame_bytes)
            self._refused = self._server.admit_authenticated(self)
        self.conversation.put(header, response)

    def _reject(self, header: RequestHeader, response: Response) -> None:
        """Respond with an error after a delay, which slows down attempts to guess a password; then close."""
        self._stopped = True
        self._frames.clear()
        respond = self.conversation.defer(header)

        def close() -> None:
            respond(response)
            self.conversation.put(header, None)

        self._loop.call_later(FAILURE_DELAY_S, close)

    def _defer(self) -> Callable[[bytes | None], None]:
        return self.conversation.defer(_FORWARDED)

    def _refuse_request(self, failure: DecodeFailure) -> None:
        """Respond, in request order, to a request that cannot be decoded.

        If the client could not decode the response either, close the connection instead, in request order. A client
        that is not authenticated yet loses its connection, except that it may ask for another version of ApiVersions.
        """
        header = failure.header
        if header is None:
            self._refuse(str(failure))
        elif (response := response_to(failure)) is not None:
            if self.admission.is_open or failure.code == UnsupportedVersion.code:
                self.conversation.put(header, response)
            else:
                self._reject(header, response)
        else:
            self._server.log_complaint(self.client_host, str(failure))
            self._stopped = True
            self.conversation.put(header, None)

    def _refuse(self, why: str) -> None:
        """Framing is lost: close the connection, because no later bytes can be interpreted."""
        self._server.log_complaint(self.client_host, f"closed: {why}")
        self._stopped = True
        self._frames.clear()
        self._close()

    # ------------------------------------------------------------------------------------------ responses

    def _answer(self, header: RequestHeader, response: Response | bytes | None) -> None:
        if self._lost:
            self._release_if_done()
            return
        if not (self._out or self._begins):
            self._server.send_soon(self)
        if response is None:
            self._hanging_up = True
            self._out.append(b"")
            return
        if isinstance(response, bytes):
            self._out.append(frame(response))
            return
        self._out.append(frame(self._encoded(header, self._with_throttle_time(response))))

    def _encoded(self, header: RequestHeader, response: Response) -> bytes:
        api_key, version, correlation_id = header
        try:
            return encode_response(response, api_key=api_key, version=version, correlation_id=correlation_id)
        except WireError as error:
            logger.error("%s: a response cannot be sent: %s", self.client_host, printable(error, limit=300))
            failed = refusal(api_key, UnknownServerError.code, "the server failed: a response that cannot be sent")
            return encode_response(failed, api_key=api_key, version=version, correlation_id=correlation_id)

    async def _encode_if_large(self, header: RequestHeader, response: Response) -> Response | bytes:
        """Encode a long response in a thread: other connections are served meanwhile."""
        if units_in(response) <= MANY_UNITS:
            return response
        with contextlib.suppress(NoThread):
            return await off_loop("encode a response", self._encoded, header, self._with_throttle_time(response))
        return response

    def send(self) -> None:
        """Send the responses of this turn of the event loop."""
        self._send()
        if not (self._hanging_up or self._lost) and (self._frames or self._paused) and not self._goes_on:
            self._work()

    def _send(self) -> None:
        out, self._out = self._out, []
        if self._lost:
            return
        if out:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            if self._choked_at is not None:
                self._count_unsent()
        if self._hanging_up:
            self._close()

    def _close(self) -> None:
        """Close as soon as the peer has read what is unsent."""
        if self._closing_at is None:
            self._closing_at = self._loop.time()
        self._transport.close()

    def _count_unsent(self) -> None:
        """Note what waits for a client that does not read; not what a proxy forwards, which it stops reading."""
        if self._relay is None and not self._lost:
            self._server.count_unsent(self, self.unsent_bytes)

    @property
    def unsent_bytes(self) -> int:
        """How much waits for a peer that does not read fast enough, else 0."""
        return self._transport.get_write_buffer_size() if self._choked_at is not None else 0

    def pause_writing(self) -> None:
        self._choked_at = self._loop.time()
        if self._relay is not None:
            self._relay.pause()
        self._count_unsent()
        self._work()

    def resume_writing(self) -> None:
        self._choked_at = None
        if self._relay is not None:
            self._relay.resume()
        self._count_unsent()
        self._work()

    # ------------------------------------------------------------------------------------------ closing

    @property
    def frame_began_at(self) -> float:
        """When the first byte of the incomplete frame arrived, on the loop's clock."""
        return self._frame_began_at

    def idle_s(self, now: float) -> float:
        """Seconds since the last byte arrived; -1 while a request is under way or a response is unread."""
        busy = len(self.conversation) or self._frames or self._decodes or self._choked_at is not None
        return -1.0 if busy else now - self._heard_at

    def overdue(self, now: float) -> str:
        """Return the reason to close the connection; empty if there is none."""
        limits = self._limits
        if self._refused:
            late = now - self._began_at > limits.refused_deadline_s
            return f"closed: {self._refused}" if late else ""
        if not self.admission.is_open and now - self._began_at > limits.authentication_deadline_s:
            return f"closed: not authenticated within {limits.authentication_deadline_s:g} s"
        unread_since = self._closing_at if self._choked_at is None else self._choked_at
        if unread_since is not None:
            late = now - unread_since > limits.unsent_deadline_s
            return f"closed: did not read its responses for {limits.unsent_deadline_s:g} s" if late else ""
        if self._paused or len(self.conversation):
            return ""
        if self._waits_for_frame and now - self._frame_began_at > limits.frame_deadline_s:
            return f"closed: no whole frame within {limits.frame_deadline_s:g} s"
        if now - self._heard_at > limits.idle_deadline_s:
            return f"closed: idle for {limits.idle_deadline_s:g} s"
        return ""

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._stopped = True
        self._choked_at = self._closing_at = None
        self._frames.clear()
        self._reader.discard()
        self._count_incomplete(0)  # a request that is under way may be parked for long
        self._server.count_unsent(self, 0)
        self._server.large_requests.forget(self)
        if self._relay is not None:
            self._relay.close()
        self._release_if_done()
        if self._last_request is not None:
            self._server.on_connection_lost(self._last_request, self.principal)

    def _release_if_done(self) -> None:
        """Stop counting a lost connection whose last request is done, and free its buffers now, not at a collection."""
        if not self.conversation:
            self._server.release(self)
            self.conversation.close()

    def is_about(self, is_concerned: Callable[[str], bool]) -> bool:
        """Whether all its requests so far are about one group, for which the function is true."""
        return bool(self._group_id) and is_concerned(self._group_id or "")

    def stop_reading(self) -> None:
        """Begin no more requests; requests under way still get their responses."""
        self._stopped = True
        self._frames.clear()
        self._transport.pause_reading()

    def hang_up(self) -> None:
        """Send the pending responses, then close."""
        self._hanging_up = True
        self.send()

    def abort(self) -> None:
        """Close immediately; discard unsent responses."""
        self._stopped = True
        self._reader.discard()
        self._transport.abort()


MAX_FRAME_BYTES: Final = 16 * 1024
"""Maximum size of a request before authentication. Kafka's ``sasl.server.max.receive.size`` is 512 KiB, for mechanisms
with larger tokens than those here."""

FAILURE_DELAY_S: Final = 0.1
"""Delay of the response to a failed authentication: Kafka's ``connection.failed.authentication.delay.ms``."""

REQUIRED: Final = "authentication is required: a user of the coordinator's file of credentials"
"""The error message for a request before authentication."""


class Admission:
    """Whether the client of a connection is authenticated. Without an authenticator every client is."""

    def __init__(self, authenticator: Authenticator | None) -> None:
        self._login = Login(authenticator) if authenticator is not None else None

    @property
    def is_open(self) -> bool:
        """Whether the client may send any request."""
        return self._login is None or bool(self._login.principal)

    @property
    def principal(self) -> str:
        """The authenticated user; empty before, and without an authenticator."""
        return "" if self._login is None else self._login.principal

    def refuses(self, api_key: int) -> bool:
        """Whether a request of this API must wait for authentication."""
        return not self.is_open and api_key not in (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)

    def answer(self, request: SaslHandshakeRequest | SaslAuthenticateRequest) -> Response:
        """Respond to a SASL request. After a response with an error the connection is to be closed."""
        if isinstance(request, SaslHandshakeRequest):
            return self._handshake(request)
        if self._login is None:
            return SaslAuthenticateResponse(
                error_code=IllegalSaslState.code, error_message="this server does not authenticate its clients"
            )
        try:
            return SaslAuthenticateResponse(auth_bytes=self._login.answer(request.auth_bytes))
        except SaslError as error:
            return SaslAuthenticateResponse(error_code=SaslAuthenticationFailed.code, error_message=str(error))

    def _handshake(self, request: SaslHandshakeRequest) -> Response:
        code = IllegalSaslState.code
        if self._login is not None:
            try:
                code = 0 if self._login.choose(request.mechanism) else UnsupportedSaslMechanism.code
            except SaslError:
                code = IllegalSaslState.code
        return SaslHandshakeResponse(error_code=code, mechanisms=MECHANISMS if self._login is not None else ())


LARGE_BYTES: Final = 4 * 1024
"""Smaller requests are decoded on arrival, which takes less than a millisecond."""

IN_THREAD_BYTES: Final = 64 * 1024
"""Larger ones are decoded in a thread: they take more than 10 ms."""

MAX_TOGETHER_S: Final = 0.005
"""Seconds of decoding in one turn of the event loop, after which everything else has its turn."""

Decoded = DecodedRequest | DecodeFailure

Prepare = Callable[[DecodedRequest], None]


def decoded(data: bytes) -> Decoded:
    """The request in a frame, or why there is none."""
    try:
        return decode_request(data)
    except DecodeFailure as failure:
        return failure


class LargeRequests:
    """The large requests of one server that are to be decoded. Users take turns, so that none delays the heartbeats of
    another; those of one user are decoded in the order of their arrival."""

    def __init__(self) -> None:
        # By user, in the order of their turns, and by connection.
        self._waiting: dict[str, dict[Connection, tuple[bytes, Callable[[Decoded], None], Prepare | None]]] = {}
        self._task: asyncio.Task[None] | None = None  # decodes them, while there are any

    def decode(
        self, connection: Connection, data: bytes, then: Callable[[Decoded], None], prepare: Prepare | None = None
    ) -> None:
        """Decode a request of a connection that has none here; ``then`` is called with it, in a later turn of the loop.

        ``then`` must not raise. ``prepare`` is called before it, in the thread, if the request is decoded in one.
        """
        self._waiting.setdefault(connection.principal, {})[connection] = data, then, prepare
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="decoding large requests")

    def forget(self, connection: Connection) -> None:
        """A connection is lost: its request is not decoded any more."""
        own = self._waiting.get(connection.principal, {})
        own.pop(connection, None)
        if not own:
            self._waiting.pop(connection.principal, None)

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            while self._waiting:
                data, then, prepare = self._take()
                then(await _decoded_in_thread(data, prepare) if len(data) > IN_THREAD_BYTES else decoded(data))
                if clock() - began_s > MAX_TOGETHER_S:
                    await asyncio.sleep(0)
                    began_s = clock()
        finally:
            self._task = None

    def _take(self) -> tuple[bytes, Callable[[Decoded], None], Prepare | None]:
        principal = next(iter(self._waiting))
        own = self._waiting.pop(principal)
        taken = own.pop(next(iter(own)))
        if own:
            self._waiting[principal] = own  # it has its next turn after all others
        return taken


async def _decoded_in_thread(data: bytes, prepare: Prepare | None) -> Decoded:
    def decode() -> Decoded:
        found = decoded(data)
        if prepare is not None and not isinstance(found, DecodeFailure):
            with contextlib.suppress(Exception):  # raised again where the request is handled
                prepare(found)
        return found

    try:
        return await off_loop("decode a request", decode)
    except NoThread:
        return decode()

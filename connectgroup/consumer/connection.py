"""One connection to one Kafka broker, one request at a time.

A broker processes a connection's requests in order and starts none before it has answered the previous one; a JoinGroup
waits for the slowest member. A commit during that time therefore needs a second connection. Requests are not pipelined,
which makes a lost response simple: any failure or timeout closes the connection, and the next call opens a new one.

A broker gets TLS and SASL by librdkafka's settings (``security``). A coordinator of connectgroup that authenticates its
clients gets the credentials that any client of this user finds (``transport.credentials``).

Source: Kafka's protocol guide, "Network"; KIP-35 and KIP-511 for the versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import struct
from typing import Any, Final

from ..errors import ConfigError, NotAuthenticated, TransportError, WireError
from ..protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from ..protocol.messages.sasl import SaslHandshakeRequest
from ..protocol.units import printable
from ..sasl.scram import MECHANISM
from ..transport.base import name_lookup_errors, reason
from ..transport.credentials import VARIABLE, Credentials, find_credentials
from ..transport.login import credentials_missing, log_in
from ..wire.framing import frame
from ..wire.kafka_apis import BROKER_APIS, BrokerRequest, decode_kafka_response, encode_call
from .security import PLAINTEXT, BrokerSecurity

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
CONNECT_TIMEOUT_S: Final = 10.0
PRODUCE: Final = 0
"""The key of an API that brokers serve and coordinators of connectgroup do not."""
APIS_REQUEST: Final = ApiVersionsRequest(client_software_name="connectgroup", client_software_version="0")

FILE_ALLOWED: Final = f"{VARIABLE} with the coordinator's file of credentials"
SHARE_OF_SESSION: Final = 0.9
"""A connection is used for this part of the session lifetime that the broker grants."""

_LENGTH: Final = struct.Struct(">i")


class BrokerConnection:
    """The connection is opened by the first ``call``.

    Args:
        host: name or address.
        port: TCP port.
        client_id: sent to the broker with each request, for its logs and quotas.
        security: TLS and SASL.
    """

    def __init__(self, host: str, port: int, client_id: str, security: BrokerSecurity = PLAINTEXT) -> None:
        self._host, self._port, self._client_id, self._security = host, port, client_id, security
        self._lives_until = math.inf
        self._turn = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._versions: dict[type[Any], int] = {}
        self._correlation_id = 0

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def busy(self) -> bool:
        """Whether a call is in flight."""
        return self._turn.locked()

    async def call(self, request: BrokerRequest, *, timeout_s: float) -> Any:
        """Return the broker's response, with any error code.

        Args:
            request: of ``kafka_messages``.
            timeout_s: for the whole call: waiting for its turn, connecting, sending, waiting for the response.

        Raises:
            TransportError: no response; the request may have been executed.
        """
        name = type(request).__name__
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                try:
                    if asyncio.get_running_loop().time() >= self._lives_until:
                        self._drop()
                    if self._streams is None:
                        await self._connect()
                    return await self._exchange(request, self._version_of(type(request)))
                except BaseException:
                    self._drop()  # a late response could not be matched to its request
                    raise
        except TimeoutError:
            raise TransportError(f"{self.address}: no response to {name} within {timeout_s:g} s") from None
        except (OSError, EOFError, WireError, UnicodeError, OverflowError) as error:
            raise TransportError(f"{self.address}: {name}: {_error_text(error)}") from error

    async def serves(self, request_class: type[BrokerRequest], *, timeout_s: float) -> bool:
        """Whether the server serves an API in a version known here; connects if necessary.

        Raises:
            TransportError: no connection.
        """
        if self._streams is None:
            await self.call(APIS_REQUEST, timeout_s=timeout_s)
        return request_class in self._versions

    async def close(self) -> None:
        """Close the connection; a call in flight fails."""
        self._drop()

    def _drop(self) -> None:
        if self._streams is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._streams[1].transport.abort()
        self._streams = None

    async def _connect(self) -> None:
        """Connect, and select the highest version of each API that both sides support."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            with name_lookup_errors(self._host):
                self._streams = await asyncio.open_connection(self._host, self._port, ssl=self._security.tls)
            self._lives_until = math.inf
            try:
                response: ApiVersionsResponse = await self._exchange(
                    APIS_REQUEST, BROKER_APIS[ApiVersionsRequest].versions[-1]
                )
            except (EOFError, WireError) as error:
                listener = self._security.protocol.upper()
                hint = f"is it a Kafka broker's {listener} listener? allowed: another security.protocol in ``fetch``"
                raise WireError(f"{_error_text(error)} at ApiVersions; {hint}") from error
        theirs = {api.api_key: range(api.min_version, api.max_version + 1) for api in response.api_keys}
        self._versions = {
            asked_with: max(both)
            for asked_with, api in BROKER_APIS.items()
            if (both := [version for version in api.versions if version in theirs.get(api.key, ())])
        }
        if self._security.credentials is not None:
            allowed = "sasl.username and sasl.password in ``fetch`` that the brokers know"
            lifetime_ms = await self._authenticate(self._security.credentials, self._security.mechanism, allowed)
            if lifetime_ms:
                # Connecting anew is simpler than authenticating again between two requests (KIP-368).
                self._lives_until = asyncio.get_running_loop().time() + lifetime_ms / 1000 * SHARE_OF_SESSION
        # Every broker lists SaslHandshake, also at a listener that needs no login; a coordinator only if it needs one.
        elif SaslHandshakeRequest in self._versions and PRODUCE not in theirs:
            await self._authenticate(self._found_credentials())

    def _found_credentials(self) -> Credentials:
        """The credentials for a coordinator of connectgroup.

        Raises:
            NotAuthenticated: there are none, or they cannot be used.
        """
        try:
            credentials = find_credentials(self._host, self._port)
        except ConfigError as error:
            raise NotAuthenticated(f"{self.address}: {error}") from error
        if credentials is None:
            raise credentials_missing(self.address, allowed=FILE_ALLOWED)
        return credentials

    async def _authenticate(
        self, credentials: Credentials, mechanism: str = MECHANISM, allowed: str = FILE_ALLOWED
    ) -> int:
        """Log in; returns the lifetime of the session in milliseconds, 0 for no limit."""

        def send(request: Any) -> asyncio.Future[Any]:
            return asyncio.ensure_future(self._exchange(request, self._version_of(type(request))))

        return await log_in(self.address, credentials, send, mechanism=mechanism, allowed=allowed)

    def _version_of(self, asked_with: type[BrokerRequest]) -> int:
        version = self._versions.get(asked_with)
        if version is None:
            api = BROKER_APIS[asked_with]
            allowed = f"v{api.versions[0]} to v{api.versions[-1]}"
            raise WireError(f"the broker does not serve {api.name} in a version known here ({allowed}); Kafka 2.5 does")
        return version

    async def _exchange(self, request: BrokerRequest, version: int) -> Any:
        assert self._streams is not None
        reader, writer = self._streams
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        data = encode_call(request, version=version, correlation_id=self._correlation_id, client_id=self._client_id)
        writer.write(frame(data))
        await writer.drain()
        (length,) = _LENGTH.unpack(await reader.readexactly(4))
        if not 4 <= length <= MAX_ANSWER_BYTES:
            raise WireError(f"a response of {length} bytes; allowed: 4 to {MAX_ANSWER_BYTES}")
        correlation_id, response = decode_kafka_response(
            await reader.readexactly(length), to=type(request), version=version
        )
        if correlation_id != self._correlation_id:
            raise WireError(f"a response to request {correlation_id}, not to {self._correlation_id}")
        return response


def _error_text(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the broker closed the connection"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {reason(error)}; allowed: the broker's listener for TLS, and its authority as ssl.ca.location"
    return reason(error) if isinstance(error, OSError) else printable(error, limit=300)

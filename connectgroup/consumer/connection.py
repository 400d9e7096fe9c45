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
from typing import Any, Final

from ..errors import ConfigError, NotAuthenticated, TransportError, WireError
from ..protocol.messages.cluster import SaslHandshakeRequest
from ..protocol.units import printable
from ..transport.base import reason
from ..transport.credentials import VARIABLE, Credentials, find_credentials
from ..transport.login import credentials_missing, log_in
from ..transport.tcp_client import API_VERSIONS_REQUEST, Dialect, Link
from ..wire.forwarded import PRODUCE
from ..wire.kafka_apis import BROKER_APIS, BrokerRequest, decode_kafka_response, encode_call
from .security import PLAINTEXT, BrokerSecurity

CONNECT_TIMEOUT_S: Final = 10.0

FILE_ALLOWED: Final = f"{VARIABLE} with the coordinator's file of credentials"
SHARE_OF_SESSION: Final = 0.9
"""A connection is used for this part of the session lifetime that the broker grants."""

BROKER: Final = Dialect("a Kafka broker", BROKER_APIS, encode_call, decode_kafka_response)


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
        self._link: Link | None = None

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
            request: of ``protocol.messages``.
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
                    link = self._link
                    if link is None or link.lost:
                        link = await self._connect()
                    return await link.send(request)
                except BaseException:
                    self._drop()  # a late response could not be matched to its request
                    raise
        except TimeoutError:
            raise TransportError(f"{self.address}: no response to {name} within {timeout_s:g} s") from None
        except (OSError, WireError, UnicodeError, OverflowError) as error:
            raise TransportError(f"{self.address}: {name}: {_error_text(error)}") from error

    async def serves(self, request_class: type[BrokerRequest], *, timeout_s: float) -> bool:
        """Whether the server serves an API in a version known here; connects if necessary.

        Raises:
            TransportError: no connection.
        """
        if self._link is None or self._link.lost:
            await self.call(API_VERSIONS_REQUEST, timeout_s=timeout_s)
        return self._link is not None and request_class in self._link.versions

    async def close(self) -> None:
        """Close the connection; a call in flight fails."""
        self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._link.abandon("closed")
        self._link = None

    async def _connect(self) -> Link:
        """Connect, and log in."""
        listener = self._security.protocol.upper()
        hint = f"is it a Kafka broker's {listener} listener? allowed: another security.protocol in ``fetch``"
        link = self._link = Link(self.address, self._client_id, BROKER, hint=hint)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            theirs = await link.connect(self._host, self._port, self._security.tls)
        self._lives_until = math.inf
        if self._security.credentials is not None:
            allowed = "sasl.username and sasl.password in ``fetch`` that the brokers know"
            credentials, mechanism = self._security.credentials, self._security.mechanism
            lifetime_ms = await log_in(self.address, credentials, link.send, mechanism=mechanism, allowed=allowed)
            if lifetime_ms:
                # Connecting anew is simpler than authenticating again between two requests (KIP-368).
                self._lives_until = asyncio.get_running_loop().time() + lifetime_ms / 1000 * SHARE_OF_SESSION
        # Every broker lists SaslHandshake, also at a listener that needs no login; a coordinator only if it needs one.
        elif SaslHandshakeRequest in link.versions and PRODUCE not in theirs:
            await log_in(self.address, self._found_credentials(), link.send, allowed=FILE_ALLOWED)
        return link

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


def _error_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS: {reason(error)}; allowed: the broker's listener for TLS, and its authority as ssl.ca.location"
    return reason(error) if isinstance(error, OSError) else printable(error, limit=300)

"""Authentication of one connection of the server: what a client may send before it, and the two SASL requests."""

from __future__ import annotations

from typing import Final

from ..errors import IllegalSaslState, SaslAuthenticationFailed, UnsupportedSaslMechanism
from ..protocol.messages.api import Response
from ..protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ..sasl.scram import SaslError
from ..sasl.server import MECHANISMS, Authenticator, Login
from ..wire.apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE

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

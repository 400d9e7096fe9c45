"""SaslHandshake and SaslAuthenticate (KIP-43, KIP-152): authentication of a connection before any other request."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeRequest:
    """Choose the mechanism."""

    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeResponse:
    """Whether the server supports the mechanism, and those that it supports."""

    error_code: int = 0
    mechanisms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateRequest:
    """One message of the mechanism. Its ``repr`` does not show the message, which may be a password."""

    auth_bytes: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateResponse:
    """The server's message.

    Attributes:
        session_lifetime_ms: 0: the authentication does not expire before the connection.
    """

    error_code: int = 0
    error_message: str | None = None
    auth_bytes: bytes = field(default=b"", repr=False)
    session_lifetime_ms: int = 0

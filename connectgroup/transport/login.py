"""The client's login on a new connection, by SaslHandshake and SaslAuthenticate: SCRAM, or PLAIN if it is asked for."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, TypeVar

from ..errors import CoordinatorNotAvailable, NotAuthenticated, TransportError
from ..protocol.messages.api import Request, Response
from ..protocol.messages.cluster import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ..protocol.units import printable
from ..sasl import DIGESTS, MECHANISM, PLAIN, SaslError, ScramClient
from .credentials import VARIABLE, Credentials

Send = Callable[[Request], asyncio.Future[Response]]

R = TypeVar("R", bound=Response)

MECHANISMS: Final = (*DIGESTS, PLAIN)
"""What a client supports."""

ALLOWED: Final = f"access=Access(credentials=...), or {VARIABLE}, with a user of the coordinator's file of credentials"


async def log_in(
    address: str, credentials: Credentials, send: Send, *, mechanism: str = MECHANISM, allowed: str = ALLOWED
) -> int:
    """Prove the password to the server; by SCRAM, check that the server knows it too.

    By SCRAM, the password is not sent: a process that listens at the server's address does not learn it.

    Args:
        address: of the server, for errors.
        mechanism: of ``MECHANISMS``.
        allowed: how a user gives other credentials, for errors.

    Returns:
        Milliseconds until the server closes the connection unless the client authenticates again (KIP-368); 0: never.

    Raises:
        NotAuthenticated: one of the two failed.
        TransportError: the connection was lost, or the server takes no more connections for now.
    """
    chosen = await _send(send, SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
    if chosen.error_code == CoordinatorNotAvailable.code:
        # The response to the first request of a connection above a limit; this one has no field for the reason.
        raise TransportError(f"{address}: takes no more connections now (its log says why)")
    if chosen.error_code:
        offered = printable(", ".join(chosen.mechanisms))
        raise NotAuthenticated(f"{address}: does not support {mechanism}; it offers {offered or 'no mechanism'}")

    async def answer(token: bytes) -> SaslAuthenticateResponse:
        found = await _send(send, SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
        if found.error_code == CoordinatorNotAvailable.code:
            raise TransportError(f"{address}: {printable(found.error_message or 'not available')}")
        if found.error_code:
            name, text = printable(credentials.name), printable(found.error_message or "")
            raise NotAuthenticated(f"{address}: rejects user {name!r}: {text}; allowed: {allowed}")
        return found

    if mechanism == PLAIN:
        return (await answer(f"\0{credentials.name}\0{credentials.password}".encode())).session_lifetime_ms
    nonce = secrets.token_urlsafe(18)
    exchange = ScramClient(credentials.name, credentials.password, nonce=nonce, mechanism=mechanism)
    try:
        last = await answer(exchange.final((await answer(exchange.first())).auth_bytes))
        exchange.finish(last.auth_bytes)
    except SaslError as error:
        raise NotAuthenticated(f"{address}: authentication failed: {error}") from error
    return last.session_lifetime_ms


async def _send(send: Send, request: Request, expected: type[R]) -> R:
    response = await send(request)
    assert isinstance(response, expected)
    return response


def credentials_missing(address: str, *, allowed: str = ALLOWED) -> NotAuthenticated:
    """The error of a client without credentials, whose server requires them.

    Args:
        allowed: how a user gives credentials to this client.
    """
    return NotAuthenticated(
        f"{address}: requires authentication, and no credentials were found for it on this machine; allowed: {allowed}"
    )


def server_unauthenticated(address: str) -> NotAuthenticated:
    """The error of a client that has or had credentials, whose server does not ask for them: it may be any process."""
    return NotAuthenticated(
        f"{address}: does not authenticate its clients, but there are or were credentials for it; is another program "
        f"listening there? allowed: no credentials and no {VARIABLE} for a coordinator without authentication"
    )

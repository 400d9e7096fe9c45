"""The client's login on a new connection: SCRAM-SHA-256, by SaslHandshake and SaslAuthenticate."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TypeVar

from ..errors import NotAuthenticated
from ..protocol.messages.api import Request, Response
from ..protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ..protocol.units import printable
from ..sasl.scram import MECHANISM, SaslError, ScramClient
from .credentials import VARIABLE, Credentials

Send = Callable[[Request], asyncio.Future[Response]]

R = TypeVar("R", bound=Response)


async def log_in(address: str, credentials: Credentials, send: Send) -> None:
    """Prove the password to the server, and check that the server knows it too.

    The password is not sent: a process that listens at the coordinator's address does not learn it.

    Raises:
        NotAuthenticated: one of the two failed.
        TransportError: the connection was lost.
    """
    chosen = await _send(send, SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse)
    if chosen.error_code:
        offered = printable(", ".join(chosen.mechanisms))
        raise NotAuthenticated(f"{address}: does not support {MECHANISM}; it offers {offered or 'no mechanism'}")
    exchange = ScramClient(credentials.name, credentials.password, nonce=secrets.token_urlsafe(18))
    try:
        final = exchange.final(await _answer(address, credentials, send, exchange.first()))
        exchange.finish(await _answer(address, credentials, send, final))
    except SaslError as error:
        raise NotAuthenticated(f"{address}: authentication failed: {error}") from error


async def _answer(address: str, credentials: Credentials, send: Send, token: bytes) -> bytes:
    answer = await _send(send, SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
    if answer.error_code:
        raise NotAuthenticated(
            f"{address}: rejects user {printable(credentials.name)!r}: {printable(answer.error_message or '')}; "
            f"allowed: --credentials FILE, or {VARIABLE}, with the coordinator's file of credentials"
        )
    return answer.auth_bytes


async def _send(send: Send, request: Request, expected: type[R]) -> R:
    response = await send(request)
    assert isinstance(response, expected)
    return response


def credentials_missing(address: str, *, allowed: str = f"--credentials FILE, or {VARIABLE}, with") -> NotAuthenticated:
    """The error of a client without credentials, whose server requires them.

    Args:
        allowed: how a file is named to this client.
    """
    return NotAuthenticated(
        f"{address}: requires authentication, and no credentials were found for it on this machine; "
        f"allowed: {allowed} the coordinator's file of credentials"
    )


def server_unauthenticated(address: str) -> NotAuthenticated:
    """The error of a client that has or had credentials, whose server does not ask for them: it may be any process."""
    return NotAuthenticated(
        f"{address}: does not authenticate its clients, but there are or were credentials for it; is another program "
        f"listening there? allowed: no --credentials and no {VARIABLE} for a coordinator with --no-authentication"
    )

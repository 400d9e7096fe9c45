"""The server's side of SASL on one connection, independent of the mechanism: who may connect, and one login."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from .scram import MECHANISM as SCRAM, SaslError, ScramServer, Verifier, verifier_of

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (SCRAM, PLAIN)
"""Supported mechanisms, the preferred one first."""

MAX_TOKEN_BYTES: Final = 4_096
"""Maximum size of one message of an exchange."""


class Authenticator:
    """The users that may connect. Holds verifiers, not passwords."""

    def __init__(self, users: Mapping[str, str]) -> None:
        """``users``: password by name."""
        self._key = secrets.token_bytes(32)
        self._digests = {name: self._digest(word) for name, word in users.items()}
        self._verifiers = {name: verifier_of(word, salt=secrets.token_bytes(16)) for name, word in users.items()}
        self._unknown = verifier_of(secrets.token_urlsafe(32), salt=secrets.token_bytes(16))

    def verifier(self, name: str) -> Verifier:
        """The verifier of a user; one that no password matches for an unknown name.

        An unknown name has a salt of its own, the same at each attempt, as a user has, and fails at the proof: a
        client cannot find out which names exist.
        """
        found = self._verifiers.get(name)
        return found or replace(self._unknown, salt=hmac.digest(self._key, b"salt" + name.encode(), "sha256")[:16])

    def is_password(self, name: str, password: str) -> bool:
        """Whether the user has this password.

        The passwords are compared as keyed digests: deriving a verifier would take a millisecond for each attempt.
        """
        return hmac.compare_digest(self._digests.get(name, b""), self._digest(password))

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")


class Login:
    """The login of one connection: a handshake that chooses the mechanism, then the messages of the mechanism.

    Attributes:
        principal: the authenticated user; empty before.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._mechanism = self._name = ""
        self._scram: ScramServer | None = None
        self.principal = ""

    def choose(self, mechanism: str) -> bool:
        """Choose the mechanism; returns whether it is supported.

        Raises:
            SaslError: a mechanism has been chosen before.
        """
        if self._mechanism:
            raise SaslError("a second handshake")
        self._mechanism = mechanism if mechanism in MECHANISMS else ""
        return bool(self._mechanism)

    def answer(self, token: bytes) -> bytes:
        """Process a message of the client; returns the server's. ``principal`` is set once the client has proved it.

        Raises:
            SaslError: the client is not authenticated.
        """
        if not self._mechanism or self.principal:
            raise SaslError("a token without a handshake" if not self.principal else "already authenticated")
        if len(token) > MAX_TOKEN_BYTES:
            raise SaslError(f"a token of {len(token)} bytes; allowed: at most {MAX_TOKEN_BYTES}")
        if self._mechanism == PLAIN:
            return self._plain(token)
        if self._scram is None:
            self._scram = ScramServer(nonce=secrets.token_urlsafe(18))
            self._name = self._scram.name(token)
            return self._scram.first(self._authenticator.verifier(self._name))
        final = self._scram.final(token)
        self.principal = self._name
        return final

    def _plain(self, token: bytes) -> bytes:
        """RFC 4616: authorization id (empty, or the name), NUL, name, NUL, password."""
        parts = token.split(b"\0")
        if len(parts) != 3 or parts[0] not in (b"", parts[1]):
            raise SaslError("not a message of PLAIN")
        try:
            name, password = parts[1].decode(), parts[2].decode()
        except UnicodeDecodeError as error:
            raise SaslError("a message is not UTF-8") from error
        if not self._authenticator.is_password(name, password):
            raise SaslError("wrong name or password")
        self.principal = name
        return b""

"""SASL: PLAIN and SCRAM-SHA-256, both sides, as bytes in and bytes out. No I/O.

With SCRAM, a client proves that it knows a password, and the server that it knows the password's verifier. Neither the
password nor anything that could be used in its place is sent. The server keeps a ``Verifier``, not the password.
Channel binding is not used: over TLS, the certificate authenticates the server.

Servers here support SCRAM-SHA-256; clients SCRAM-SHA-512 as well, which Kafka's brokers offer too.

Source: RFC 5802 (SCRAM), RFC 7677 (SHA-256), KIP-84. User names are ASCII here, so SASLprep (RFC 4013) changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

MECHANISM: Final = "SCRAM-SHA-256"

DIGESTS: Final = {MECHANISM: "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash function of each mechanism that a client supports, by ``hashlib``'s name."""

MIN_ITERATIONS: Final = 4_096
"""Iterations that RFC 7677 requires at least; a client rejects fewer."""

MAX_ITERATIONS: Final = 1_000_000
"""Iterations that a client accepts at most: a false server must not keep it busy for long."""

MIN_NONCE: Final = 16
"""Characters of a nonce, at least."""


class SaslError(Exception):
    """A message of the exchange is malformed, or the proof is wrong. The text contains no secret."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a server stores of a password; its ``repr`` shows nothing of it."""

    salt: bytes = field(repr=False)
    iterations: int = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def verifier_of(password: str, *, salt: bytes) -> Verifier:
    """Derive the verifier of a password. Takes some milliseconds of processor time."""
    client_key, server_key = _keys(password, salt, MIN_ITERATIONS)
    return Verifier(salt, MIN_ITERATIONS, hashlib.sha256(client_key).digest(), server_key)


class ScramClient:
    """The client's side of one exchange: ``first``, ``final``, ``finish``, in this order."""

    def __init__(self, name: str, password: str, *, nonce: str, mechanism: str = MECHANISM) -> None:
        """``nonce``: random, at least 16 printable ASCII characters without a comma."""
        self._password, self._nonce, self._digest = password, nonce, DIGESTS[mechanism]
        self._first_bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """The first message: name and nonce."""
        return f"n,,{self._first_bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The second message: the proof.

        Raises:
            SaslError: the server's message is malformed, or is not the answer to ``first``.
        """
        fields = _fields(server_first)
        nonce, salt, iterations = _get(fields, "r"), _decode(_get(fields, "s")), _number(_get(fields, "i"))
        if not nonce.startswith(self._nonce) or len(nonce) < len(self._nonce) + MIN_NONCE:
            raise SaslError("the server's nonce does not extend the client's")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise SaslError(f"iterations: got {iterations}; allowed: {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._first_bare},{server_first.decode()},{without_proof}".encode()
        client_key, server_key = _keys(self._password, salt, iterations, self._digest)
        stored_key = hashlib.new(self._digest, client_key).digest()
        proof = _xor(client_key, _hmac(stored_key, message, self._digest))
        self._server_signature = _hmac(server_key, message, self._digest)
        return f"{without_proof},p={_encode(proof)}".encode()

    def finish(self, server_final: bytes) -> None:
        """Check that the server knows the verifier of the password.

        Raises:
            SaslError: it does not.
        """
        signature = _decode(_get(_fields(server_final), "v"))
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise SaslError("the server does not know the password's verifier")


class ScramServer:
    """The server's side of one exchange: ``first``, then ``final``."""

    def __init__(self, *, nonce: str) -> None:
        """``nonce``: random, at least 16 printable ASCII characters without a comma."""
        self._nonce = nonce
        self._client_first_bare = self._server_first = ""
        self._verifier: Verifier | None = None

    def name(self, client_first: bytes) -> str:
        """The user that a client's first message names.

        Raises:
            SaslError: the message is malformed.
        """
        text = _text(client_first)
        header, _, bare = text.partition(",,")
        if header not in ("n", "y"):
            raise SaslError("channel binding and authorization ids are not supported")
        fields = _fields(bare.encode())
        if len(_get(fields, "r")) < MIN_NONCE:
            raise SaslError(f"the client's nonce has fewer than {MIN_NONCE} characters")
        self._client_first_bare, self._nonce = bare, _get(fields, "r") + self._nonce
        self._channel = base64.b64encode(f"{header},,".encode()).decode()
        return _get(fields, "n").replace("=2C", ",").replace("=3D", "=")

    def first(self, verifier: Verifier) -> bytes:
        """The server's first message, after ``name``: nonce, salt and iterations."""
        self._verifier = verifier
        self._server_first = f"r={self._nonce},s={_encode(verifier.salt)},i={verifier.iterations}"
        return self._server_first.encode()

    def final(self, client_final: bytes) -> bytes:
        """The server's last message, if the client's proof is right.

        Raises:
            SaslError: it is wrong, or the message is malformed.
        """
        verifier = self._verifier
        assert verifier is not None, "final before first"
        without_proof, found, proof = _text(client_final).rpartition(",p=")
        fields = _fields(without_proof.encode())
        if not found or _get(fields, "c") != self._channel or _get(fields, "r") != self._nonce:
            raise SaslError("the client's final message does not belong to this exchange")
        message = f"{self._client_first_bare},{self._server_first},{without_proof}".encode()
        client_key = _xor(_decode(proof), _hmac(verifier.stored_key, message))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key):
            raise SaslError("the proof is wrong")
        return f"v={_encode(_hmac(verifier.server_key, message))}".encode()


@functools.lru_cache(maxsize=64)
def _keys(password: str, salt: bytes, iterations: int, digest: str = "sha256") -> tuple[bytes, bytes]:
    """Client key and server key. Cached: each connection of a process needs them."""
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    return _hmac(salted, b"Client Key", digest), _hmac(salted, b"Server Key", digest)


def _hmac(key: bytes, message: bytes, digest: str = "sha256") -> bytes:
    return hmac.digest(key, message, digest)


def _xor(left: bytes, right: bytes) -> bytes:
    if len(left) != len(right):
        raise SaslError("a proof of the wrong length")
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise SaslError("a value is not base64") from error


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise SaslError("a message is not UTF-8") from error


def _fields(message: bytes) -> dict[str, str]:
    fields = {part[:1]: part[2:] for part in _text(message).split(",") if part[1:2] == "="}
    if "m" in fields:
        # RFC 5802, section 5.1: a mandatory extension that is not understood ends the exchange.
        raise SaslError("mandatory extensions (m=) are not supported")
    return fields


def _get(fields: dict[str, str], name: str) -> str:
    if name not in fields:
        raise SaslError(f"a message without the attribute {name}")
    return fields[name]


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise SaslError("iterations is not a number")
    return int(text)


PLAIN: Final = "PLAIN"
MECHANISMS: Final = (MECHANISM, PLAIN)
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

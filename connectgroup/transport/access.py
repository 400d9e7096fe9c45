"""How the two sides of a connection identify each other: SASL for the client, TLS certificates for one or both."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from ..sasl import Authenticator
from .base import reason
from .credentials import Credentials

logger = logging.getLogger(__name__)

_SHORT: Final = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU"}
_ESCAPED: Final = str.maketrans({",": r"\,", "=": r"\=", "\\": r"\\"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a client needs to connect.

    Attributes:
        credentials: name and password; ``None``: those of the file in ``CONNECTGROUP_CREDENTIALS``, or of a coordinator
            of this user on this machine, looked up whenever a connection is opened (``credentials.find_credentials``).
        tls: ``None`` for plain text.
    """

    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What a server demands of its clients.

    Attributes:
        authenticator: the users that may connect (SASL); ``None``: every client may.
        tls: ``None`` for plain text.
        certificate: what ``tls`` is of, if it is to be read again when its files change.
    """

    authenticator: Authenticator | None = None
    tls: ssl.SSLContext | None = None
    certificate: Certificate | None = None

    @property
    def is_reachable(self) -> bool:
        """Whether the server may listen on an address that other machines reach: with TLS and authentication."""
        if self.tls is None:
            return False
        return self.authenticator is not None or self.tls.verify_mode is ssl.CERT_REQUIRED


def server_tls(setting: str, certificate: Path, key: Path, ca: Path | None = None) -> ssl.SSLContext:
    """The TLS settings of a server.

    Args:
        setting: the name of the setting of ``certificate``, for errors.
        certificate: PEM file with the server's certificate chain.
        key: PEM file with its private key.
        ca: PEM file with the authorities of client certificates, which are required then (mutual TLS).

    Raises:
        ConfigError: a file cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, setting, certificate, key)
    if ca is not None:
        load_authorities(context, ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Certificate:
    """The certificate of a server, read again when one of its files has changed.

    Connections keep what they began with. A new file that cannot be used changes nothing: the former certificate stays.

    Attributes:
        context: for the next handshake; changed by ``refresh``.
    """

    def __init__(self, setting: str, certificate: Path, key: Path, ca: Path | None = None) -> None:
        """Read the files; see ``server_tls``.

        Raises:
            ConfigError: a file cannot be used.
        """
        self._arguments = (setting, certificate, key, ca)
        self._seen = self._stats()  # changed by refresh
        self.context = server_tls(*self._arguments)

    def refresh(self) -> None:
        """Look whether a file has changed, and if so, read all of them. Call it now and then."""
        found = self._stats()
        if found == self._seen:
            return
        self._seen = found
        try:
            self.context = server_tls(*self._arguments)
        except ConfigError as error:
            # Certificate and key may be replaced one after the other: the next change is looked at, too.
            logger.error("%s; the former certificate stays in use", error)
        else:
            logger.info("%s: %s was read again", self._arguments[0], self._arguments[1])

    def _stats(self) -> list[tuple[int, int, int] | None]:
        return [state_of(path) for path in self._arguments[1:] if path is not None]


def state_of(path: Path) -> tuple[int, int, int] | None:
    """What changes with the content of a file, or with what a link leads to."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def client_context() -> ssl.SSLContext:
    """The TLS settings of a client that trusts no authority yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def client_tls(ca: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """The TLS settings of a client.

    Args:
        ca: PEM file with the authorities of the server's certificate.
        certificate: PEM file with the client's own certificate (mutual TLS), together with ``key``.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = client_context()
    load_authorities(context, ca)
    if certificate is not None and key is not None:
        load_certificate(context, "tls_cert", certificate, key)
    return context


def client_tls_to(server: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """The TLS settings of a client that knows its server's certificate: its issuer and its names do not matter.

    Args:
        server: PEM file that begins with the server's certificate.
        certificate, key: see ``client_tls``.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = client_context()
    # Only who has the key of this very certificate passes, so a name would prove nothing more.
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    end = "-----END CERTIFICATE-----"
    try:
        first, found, _ = server.read_text(encoding="ascii").partition(end)
        context.load_verify_locations(cadata=first[first.index("-----BEGIN CERTIFICATE-----") :] + found)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError("tls_server", f"{server} ({reason(error)})", "a PEM file of a certificate") from error
    if certificate is not None and key is not None:
        load_certificate(context, "tls_cert", certificate, key)
    return context


def name_in(certificate: Mapping[str, Any] | None) -> str:
    """The name in a client's certificate, as its principal: the subject, or else the alternative names.

    A renewed certificate has the same name.

    Args:
        certificate: as ``ssl.SSLSocket.getpeercert`` returns it; ``None`` or empty: the client has sent none.

    Returns:
        As ``CN=worker,O=example``; empty without a certificate.
    """
    if not certificate:
        return ""
    parts = [each for several in certificate.get("subject", ()) for each in several]
    parts = parts or list(certificate.get("subjectAltName", ()))
    return ",".join(f"{_SHORT.get(kind, kind)}={value.translate(_ESCAPED)}" for kind, value in parts)


def load_certificate(
    context: ssl.SSLContext, setting: str, certificate: Path, key: Path, *, password: str = ""
) -> None:
    """Use a certificate and its key. Raises ConfigError: a file cannot be used."""
    try:
        # Without the callback OpenSSL would ask at the terminal for the password of an encrypted key.
        context.load_cert_chain(certificate, key, password=lambda: password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(
            setting, f"{certificate} ({reason(error)})", "PEM files of a certificate and its key"
        ) from error


def load_authorities(context: ssl.SSLContext, ca: Path, *, setting: str = "tls_ca") -> None:
    """Trust the authorities in a PEM file. Raises ConfigError: it cannot be used."""
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(setting, f"{ca} ({reason(error)})", "a PEM file of certificates") from error

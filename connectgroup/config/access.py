"""Settings of the connection of a worker or a command to its coordinator."""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator

from ..errors import NO_VALUE, ConfigError
from ..transport.access import Access, client_tls, client_tls_to
from ..transport.credentials import named_credentials, read_credentials
from .base import ProgramSettings


class AccessConfig(ProgramSettings):
    """How a client authenticates, and TLS.

    Attributes:
        credentials: file with ``name=password``; ``None``: found by itself on the coordinator's machine.
        tls_ca: PEM file with the authorities of the coordinator's certificate; ``None``: plain text.
        tls_server: PEM file that begins with the coordinator's certificate; instead of ``tls_ca``. The name in the
            certificate does not matter. A supervisor passes it to its workers.
        tls_cert: PEM file with the certificate of this client, if the coordinator requires one.
        tls_key: PEM file with its private key.
    """

    credentials: Path | None = None
    tls_ca: Path | None = None
    tls_server: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @model_validator(mode="after")
    def _complete(self) -> AccessConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ConfigError(missing, NO_VALUE, "tls_cert and tls_key together")
        if self.tls_ca is not None and self.tls_server is not None:
            raise ConfigError("tls_server", self.tls_server, "tls_ca or tls_server, not both", is_path=True)
        if self.tls_cert is not None and self.tls_ca is None and self.tls_server is None:
            raise ConfigError(
                "tls_ca", NO_VALUE, "with tls_cert, the file of the authorities of the coordinator's certificate"
            )
        return self

    def access(self) -> Access:
        """Read the files.

        Raises:
            ConfigError: a file cannot be used.
        """
        credentials = None
        if self.credentials is not None:
            credentials = read_credentials("credentials", self.credentials)
        else:
            named_credentials()  # only to report an unusable file now: the client reads it for each connection
        own = self.tls_cert, self.tls_key
        tls = None
        if self.tls_server is not None:
            tls = client_tls_to(self.tls_server, *own)
        elif self.tls_ca is not None:
            tls = client_tls(self.tls_ca, *own)
        return Access(credentials=credentials, tls=tls)

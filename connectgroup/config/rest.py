"""Settings of the REST API, and the file of its users."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ..errors import NO_VALUE, ConfigError
from ..protocol import DEFAULT_REST_PORT
from ..transport.credentials import read_passwords
from .base import Name, Port, PrincipalQuota, Settings
from .paths import require_absolute_paths
from .secrets import Secrets


class RestConfig(Settings):
    """Settings of one REST server.

    Attributes:
        host: address to listen on. Any address but a loopback address requires ``users`` and TLS.
        port: 0 for any.
        group: the group whose connectors ``/connectors`` shows: what a cluster is in Kafka Connect.
        users: file with one ``name=password`` per line (basic authentication, as Kafka Connect's); ``None``: no
            authentication. The file must be accessible to its owner only.
        readers: a file of the same form with the users that may only read.
        certificate: PEM file with the certificate chain of the server; ``None``: plain text.
        key: PEM file with its private key.
        allowed_hosts: names by which clients may address the server (``Host``), besides ``host`` and the names of the
            loopback addresses. Other requests are rejected: they may come from a web page (DNS rebinding). ``Origin``
            must be the server's own: the same name and port as ``Host``, or, behind a reverse proxy, a name from this
            list with the port of its scheme or, as ``name:port``, the port there.
        connector_classes: the values of ``connector.class`` that clients may use; empty: every installed class.
        allowed_paths: the paths that connectors may use (``WorkerConfig.allowed_paths``): other configurations are
            rejected. ``None``: only the workers check them, and requests about offsets in a file are rejected, because
            this server would open the file itself.
        secret_env, secret_paths: the secrets that connectors may refer to (``WorkerConfig.secret_env``): configurations
            with other references are rejected. ``None``, both: only the workers check them. This server reads none.
        requests_per_second: maximum for each client address; further requests get 429.
        requests_per_second_per_principal: quota of each user (``CoordinatorConfig.requests_per_second_per_principal``);
            further requests get 429. Lines ``quota`` of ``access_rules`` take precedence. 0: none.
        max_connections: maximum number of open connections. Each takes a file descriptor.
        max_connections_per_address: maximum number of connections from one address.
        idle_timeout_s: a connection without a request for this long is closed, as in Kafka Connect (Jetty). A shorter
            time resets connections that clients of a busy server are about to use again.
        new_group: whether the first connector creates the group if the coordinator serves other worker groups only;
            otherwise the request is rejected, because the name of the group is rather a typing error.
        access_rules: file of rules about what users may do (``CoordinatorConfig.access_rules``); without ``users``,
            every client is ``ANONYMOUS``. ``None``: everything.
        audit_log: file with a JSON line for each change and each denied request (``CoordinatorConfig.audit_log``).
    """

    host: Name = "127.0.0.1"
    port: Port = DEFAULT_REST_PORT
    group: Name = "workers"
    users: Path | None = None
    readers: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    allowed_hosts: tuple[Name, ...] = Field(default=())
    connector_classes: tuple[Name, ...] = ()
    allowed_paths: tuple[Path, ...] | None = None
    secret_env: tuple[str, ...] | None = None
    secret_paths: tuple[Path, ...] | None = None
    requests_per_second: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000
    requests_per_second_per_principal: PrincipalQuota = 0
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    max_connections_per_address: Annotated[int, Field(ge=1, le=100_000)] = 500
    idle_timeout_s: Annotated[int, Field(ge=1, le=86_400)] = 30
    new_group: bool = False
    access_rules: Path | None = None
    audit_log: Path | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> RestConfig:
        if (self.certificate is None) != (self.key is None):
            missing = "key" if self.key is None else "certificate"
            raise ConfigError(missing, NO_VALUE, "certificate and key together")
        require_absolute_paths("allowed_paths", self.allowed_paths or ())
        require_absolute_paths("secret_paths", self.secret_paths or ())
        return self

    def secrets(self) -> Secrets | None:
        """The secrets that connectors may refer to; ``None`` if only the workers know."""
        if self.secret_env is None and self.secret_paths is None:
            return None
        return Secrets(env=self.secret_env or (), paths=self.secret_paths or ())


def read_users(path: Path, setting: str = "users") -> dict[str, str]:
    """Read the users of the REST API: password by name.

    Args:
        setting: the one that names the file, for errors.

    Raises:
        ConfigError: the file cannot be read, is accessible to other users of this machine, or has an invalid line.
    """
    return read_passwords(setting, path)

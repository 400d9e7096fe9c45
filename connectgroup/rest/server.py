"""Serves the REST API on a TCP port with uvicorn."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from importlib.metadata import version
from typing import Final, cast

import uvicorn

from ..client.admin import Admin
from ..config.rest import RestConfig, read_users
from ..errors import ConfigError, TransportError
from ..telemetry.metrics import register, unregister
from ..threads import NoThread, off_loop
from ..transport.acceptor import Acceptor, bind, cannot_listen
from ..transport.access import Certificate
from ..transport.access_rules import AccessRules
from ..transport.audit import AuditLog, audit_log
from ..transport.base import reason
from ..transport.group_access import Authorization
from ..transport.limits import is_loopback, resolve
from ..transport.quotas import RequestQuotas, quotas_of
from .app import RestContext, create_app
from .connections import HttpConnection, HttpConnections, RestLimits
from .events import Feeds, Rates
from .guard import LOOPBACK_NAMES, MAX_HEADER_BYTES

STOP_TIMEOUT_S: Final = 5


class RestServer:
    """Serves one group from ``start`` to ``close``. The admin client belongs to the caller."""

    def __init__(self, admin: Admin | None, config: RestConfig, *, rates: Rates | None = None) -> None:
        """Store the arguments.

        Args:
            admin: sends the requests to the coordinator; ``None``: serve only the metrics of this process.
            rates: rows per second by connector of a group, for the live page; ``None``: those of tasks in this process.
        """
        self.config, self.port, self._rates = config, config.port, rates
        self._admin = admin
        # What the files of the settings say; replaced by open.
        self._users: dict[str, str] | None = None
        self._readers: frozenset[str] = frozenset()
        self._rules: AccessRules | None = None
        self._certificate: Certificate | None = None
        self._server: uvicorn.Server | None = None
        self._sockets: list[socket.socket] = []
        self._serving: asyncio.Task[None] | None = None
        self._feeds: Feeds | None = None
        self._connections: HttpConnections | None = None
        self._audit: AuditLog | None = None
        self._quotas = RequestQuotas()  # replaced by start

    @property
    def url(self) -> str:
        """``http://host:port`` or ``https://host:port``."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http{'s' if self.config.certificate else ''}://{host}:{self.port}"

    async def open(self) -> None:
        """Read the files and take the port, so that what is wrong is known early; nothing is served before ``start``.

        Raises:
            ConfigError: the host is not a loopback address and there are no users or no certificate; or one of their
                files cannot be used.
            TransportError: the port is in use, or the host is not an address of this machine.
        """
        config = self.config
        self._users, self._readers = _users(config)
        self._rules = AccessRules(config.access_rules) if config.access_rules is not None else None
        self._certificate = _certificate(config)
        try:
            addresses = await resolve(config.host)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread for a name lookup
            raise TransportError(f"{config.host}: cannot be resolved: {reason(error)}") from error
        if not all(map(is_loopback, addresses)) and (self._users is None or self._certificate is None):
            raise ConfigError(
                "host",
                config.host,
                "a loopback address (127.0.0.1, ::1, localhost); others require users (basic authentication), and "
                "certificate and key (TLS)",
            )
        self._sockets = self._bound(addresses)

    def release(self) -> None:
        """Give the port back; for a server that was opened and not started."""
        for each in self._sockets:
            each.close()

    async def start(self) -> None:
        """Serve; ``open`` was called, or is.

        Raises:
            ConfigError, TransportError: as ``open``; or the audit log cannot be written.
        """
        if not self._sockets:
            await self.open()
        config, rules = self.config, self._rules
        self._quotas = quotas_of(rules, config.requests_per_second_per_principal, server="rest")
        allowed_hosts = LOOPBACK_NAMES | {host.lower() for host in (config.host, *config.allowed_hosts)}
        context = None
        if self._admin is not None:
            self._audit = audit_log(config.audit_log, source="rest")
            if self._audit is not None:
                self._audit.start()
            register(self._quotas)
            self._feeds = Feeds(self._admin, self._rates)
            context = RestContext(
                admin=self._admin,
                feeds=self._feeds,
                group_id=config.group,
                commit=version("connectgroup"),
                connector_classes=config.connector_classes,
                allowed_paths=config.allowed_paths,
                secrets=config.secrets(),
                may_create_group=config.new_group,
                access=Authorization(rules=rules, whose="the REST server"),
                audit=self._audit,
                quotas=self._quotas,
            )
        app = create_app(
            context,
            allowed_hosts=allowed_hosts,
            users=self._users,
            readers=self._readers,
            requests_per_second=config.requests_per_second,
        )
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",  # as ``HttpConnection``
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_graceful_shutdown=STOP_TIMEOUT_S,
                timeout_keep_alive=config.idle_timeout_s,
            )
        )
        # The steps of ``Server.serve``, without its signal handlers: signals belong to the embedding process.
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)

        def new_protocol(connections: HttpConnections) -> HttpConnection:
            return HttpConnection(
                connections, config=server.config, server_state=server.server_state, app_state=server.lifespan.state
            )

        self._connections = HttpConnections(_limits(config), self._certificate, new_protocol)
        acceptor = Acceptor(self._sockets, self._connections.accept)
        try:
            acceptor.start()
        except OSError as error:  # another process has bound the port, too, and listens
            raise cannot_listen(config.host, self.port, error) from error
        server.servers = [cast(asyncio.Server, acceptor)]  # only closed
        server.started = True
        self._connections.start()
        self._server = server
        self._serving = asyncio.create_task(server.main_loop(), name=f"REST at {self.url}")

    async def close(self) -> None:
        """End the streams, finish the requests under way, at most ``STOP_TIMEOUT_S``, and close the port."""
        if self._feeds is not None:
            await self._feeds.close()
        if self._connections is not None:
            self._connections.close()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
            await self._server.shutdown(sockets=self._sockets)
        unregister(self._quotas)
        if self._audit is not None:
            with suppress(NoThread):
                await off_loop("close the audit log", self._audit.close)

    def _bound(self, addresses: list[str]) -> list[socket.socket]:
        try:
            sockets = bind(addresses, self.port)
        except OSError as error:
            raise cannot_listen(self.config.host, self.port, error) from error
        self.port = sockets[0].getsockname()[1]
        return sockets


def _users(config: RestConfig) -> tuple[dict[str, str] | None, frozenset[str]]:
    """Password by name of all users, ``None`` without authentication; and the names of those that may only read."""
    users = read_users(config.users) if config.users is not None else None
    if config.readers is None:
        return users, frozenset()
    readers = read_users(config.readers, "readers")
    if twice := sorted(readers.keys() & (users or {}).keys()):
        raise ConfigError("readers", twice[0], "names that the file of users does not have")
    return {**readers, **(users or {})}, frozenset(readers)


def _certificate(config: RestConfig) -> Certificate | None:
    if config.certificate is None or config.key is None:
        return None
    return Certificate("certificate", config.certificate, config.key)


def _limits(config: RestConfig) -> RestLimits:
    return RestLimits(
        max_connections=config.max_connections,
        max_connections_per_address=config.max_connections_per_address,
        idle_deadline_s=config.idle_timeout_s,
    )

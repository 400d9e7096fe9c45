"""A coordinator with a TCP port: combines log, group rules, server, authentication and server-side assignors."""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..config.coordinator import CoordinatorConfig
from ..errors import ConfigError, LogError
from ..log.base import Log, SharedLog, SignsOfLife
from ..log.registry import log_from_url
from ..sasl import Authenticator
from ..topics import BrokerTopics, TopicSource
from ..transport.access import Access, Certificate, Security, load_authorities, load_certificate
from ..transport.credentials import (
    FILE_NAME,
    announce,
    create_credentials,
    fingerprint,
    own_file,
    read_credentials,
    read_passwords,
    withdraw,
)
from ..transport.tcp_server import TcpServer
from .compute import group_assignors
from .listing import ConsumerGroups, with_group_assignors
from .metrics import SharedLogMetrics
from .partitions import PartitionedCoordinator
from .runtime import Coordinator
from .transactions import BrokerOffsets

logger = logging.getLogger(__name__)


class ConfiguredServer(TcpServer):
    """The TCP port of a coordinator, as its settings say."""

    def __init__(
        self,
        coordinator: Coordinator | PartitionedCoordinator,
        config: CoordinatorConfig,
        *,
        source: str = "coordinator",
        advertised_host: str | None = None,
        advertised_port: int | None = None,
    ) -> None:
        """Create the server.

        Args:
            source: see ``CoordinatorConfig.access``.
            advertised_host, advertised_port: see ``TcpServer``.

        Raises:
            ConfigError: the certificate, or a file of rules or of the audit log, cannot be used.
        """
        certificate = certificate_of(config)
        access, quotas, audit = config.access(source=source)
        super().__init__(
            coordinator,
            config.host,
            config.port,
            advertised_host=advertised_host,
            advertised_port=advertised_port,
            limits=config.limits(),
            # The users are read when the server starts: until then their file may not exist.
            security=Security(
                authenticator=Authenticator({}) if config.authenticates else None,
                tls=certificate.context if certificate is not None else None,
                certificate=certificate,
            ),
            group_access=access,
            quotas=quotas,
            audit=audit,
            loopback_only=True,
            on_connection_lost=coordinator.on_connection_lost,
        )


SIGN_S: Final = 1.0
"""Interval of the signs of life in a log that can have them: downtimes across a kill are exact to it."""


class GroupServer:
    """A coordinator and its TCP port, from ``start`` to ``close``.

    Attributes:
        config: the settings.
        coordinator: what serves the groups, or stands by if others share the log.
    """

    config: CoordinatorConfig
    _server: TcpServer  # set by the constructors of derived classes

    def __init__(
        self,
        config: CoordinatorConfig,
        topics: Callable[[], TopicSource | None],
        *,
        broker_offsets: BrokerOffsets | None = None,
        max_partitions: int | None = None,
    ) -> None:
        """Create the coordinator; ``start`` opens the log.

        Args:
            config: the settings.
            topics: the topics for consumer groups, called for each term.
            broker_offsets: see ``Coordinator``.
            max_partitions: see ``PartitionedCoordinator``.

        Raises:
            ConfigError: the log's URL is invalid.
            ConfigError, PluginError: the assignor does not exist or cannot be created.
        """
        self.config = config
        log = log_from_url(config.log_url)
        assignors = group_assignors(config.assignor, config.group_assignors)

        def make(log: Log) -> Coordinator:
            return Coordinator(
                log,
                config.group_settings(assignors),
                consumers=ConsumerGroups(
                    topics(),
                    with_group_assignors(config.consumer_settings(), config.group_assignors),
                    classic=config.classic_settings(),
                ),
                broker_offsets=broker_offsets,
            )

        self._shared: tuple[SharedLog, PartitionedCoordinator, SharedLogMetrics] | None = None
        self.coordinator: Coordinator | PartitionedCoordinator
        if isinstance(log, SharedLog):
            if config.partitions is not None:
                log.expect_partitions(config.partitions)
            self.coordinator = shared = PartitionedCoordinator(log, make, max_partitions=max_partitions)
            metrics = SharedLogMetrics(shared.ownerships, shared.served)
            self._shared = log, shared, metrics
        else:
            self.coordinator = make(log)
        self._signs = log if isinstance(log, SignsOfLife) else None
        self._showing: asyncio.Task[None] | None = None  # ``start`` sets it, ``close`` ends it

    @property
    def address(self) -> str:
        """The ``host:port`` to configure in workers and clients."""
        return f"{self.config.host}:{self._server.port}"

    async def start(self) -> None:
        """Open the log, then the port. A log that coordinators share is opened later, by one of them.

        Raises:
            ConfigError, LogError, TransportError: each a one-line message: what failed, where, what is allowed.
        """
        if self._shared is not None:
            await self._start_shared(*self._shared)
            return
        await self.coordinator.start()
        if self._signs is not None and isinstance(self.coordinator, Coordinator):
            self.coordinator.not_heard_since(self._signs.last_alive_ms)
        try:
            await self._server.start()
        except BaseException:
            await self.coordinator.close()
            raise
        if self._signs is not None:
            self._showing = asyncio.create_task(self._show_alive(self._signs), name="signs of life")

    async def _show_alive(self, signs: SignsOfLife) -> None:
        while True:
            try:
                await signs.show_alive()
            except LogError as error:
                logger.debug("no sign of life is left: %s", error)  # it only makes downtimes exact
            await asyncio.sleep(SIGN_S)

    async def _start_shared(self, log: SharedLog, shared: PartitionedCoordinator, metrics: SharedLogMetrics) -> None:
        """Open the port, then take part in the election: the other coordinators are told the port."""
        await self._server.start()
        log.address, log.credentials = self._advertised, self._fingerprint
        self._server.find_coordinator = shared.find
        shared.on_term_end = self._server.hang_up_all
        try:
            await shared.start()
        except BaseException:
            await self.close()
            raise
        metrics.begin()

    @property
    def _advertised(self) -> str:
        """The ``host:port`` at which clients and the other coordinators of the log reach this one."""
        return self.config.advertised or self.address

    @property
    def _fingerprint(self) -> str:
        """See ``SharedLog.credentials``."""
        return ""

    async def close(self) -> None:
        """Reject parked requests, release the log, close the port."""
        if self._shared is not None:
            self._shared[2].end()
        if self._showing is not None:
            self._showing.cancel()
        try:
            await self.coordinator.close()
        finally:
            await self._server.close()


def certificate_of(config: CoordinatorConfig) -> Certificate | None:
    """The certificate of a server; ``None`` for plain text.

    Raises:
        ConfigError: a file cannot be used.
    """
    if config.tls_cert is None or config.tls_key is None:
        return None
    return Certificate("tls_cert", config.tls_cert, config.tls_key, config.tls_ca)


def authenticator_of(config: CoordinatorConfig, path: Path) -> Authenticator:
    """The users in a file of credentials, which must have those of ``group_users``.

    Raises:
        ConfigError: the file cannot be used, or lacks a user.
    """
    passwords = read_passwords("credentials", path)
    for user in itertools.chain.from_iterable(config.group_users.values()):
        if user not in passwords:
            raise ConfigError("group_users", user, f"users of {path}: {', '.join(passwords)}")
    return Authenticator(passwords)


class CoordinatorServer(GroupServer):
    """Serves groups on one TCP port until it is closed.

    Attributes:
        config: the settings.
        credentials: the file of the users; ``None`` without authentication, and before ``start``.
    """

    def __init__(self, config: CoordinatorConfig) -> None:
        """Create a server; ``start`` opens the log and the port.

        Raises:
            ConfigError: the log's URL is invalid, or a file of rules or of the audit log cannot be used.
            ConfigError, PluginError: the assignor does not exist or cannot be created.
        """
        super().__init__(config, lambda: None if config.topics_from is None else BrokerTopics(config.topics_from))
        self.credentials: Path | None = None
        self._temporary: Path | None = None
        self._server = ConfiguredServer(self.coordinator, config)

    async def start(self) -> None:
        """Create the file of credentials if necessary; then as ``GroupServer.start``."""
        config = self.config
        path = config.credentials
        if path is None and config.data is not None:
            path = config.data.parent / FILE_NAME
        if config.authentication and path is not None:
            self._use(path)
        await super().start()
        port = self._server.port
        if not config.authentication:
            withdraw(port)
            logger.warning(
                "no authentication: any process that can connect to %s may add connectors, whose tasks read and write "
                "files as the user of the workers, and may read all configurations, credentials included",
                self.address,
            )
            return
        if path is None:
            if self._shared is not None:
                logger.warning(
                    "no file of credentials: clients on other machines cannot follow from one coordinator to another; "
                    "allowed: --credentials FILE, the same for all coordinators of the log"
                )
            try:
                path = self._use_temporary(port)
            except BaseException:
                await self.close()
                raise
        if not announce(port, path):
            logger.warning(
                "clients need the file of credentials %s: it cannot be announced to those on this machine", path
            )

    @property
    def access_to_others(self) -> Access | None:
        """How this process connects to the other coordinators of its log; ``None`` if it shares none.

        Raises:
            ConfigError: a file cannot be used.
        """
        config = self.config
        if self._shared is None:
            return None
        credentials = None if config.credentials is None else read_credentials("credentials", config.credentials)
        if config.tls_cert is None or config.tls_key is None:
            return Access(credentials=credentials)
        tls = ssl.create_default_context()
        load_authorities(tls, config.tls_ca or config.tls_cert)
        load_certificate(tls, "tls_cert", config.tls_cert, config.tls_key)
        return Access(credentials=credentials, tls=tls)

    @property
    def _fingerprint(self) -> str:
        """Empty: this process makes up a user."""
        if not self.config.authentication:
            return "none"
        return fingerprint(read_passwords("credentials", self.credentials)) if self.credentials is not None else ""

    def _use_temporary(self, port: int) -> Path:
        path = own_file(port)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            allowed = f"a file that can be replaced ({error.strerror})"
            raise ConfigError("credentials", path, allowed, is_path=True) from error
        self._temporary = path
        self._use(path)
        return path

    def _use(self, path: Path) -> None:
        if self.config.credentials is None:
            create_credentials(path)
        self._server.authenticator = authenticator_of(self.config, path)
        self.credentials = path

    async def close(self) -> None:
        """As ``GroupServer.close``; a temporary file of credentials is removed.

        The note for a configured port stays: until the coordinator runs again, another user's program may listen there.
        """
        try:
            await super().close()
        finally:
            if self.credentials is not None and self.config.port == 0:
                withdraw(self._server.port)
            if self._temporary is not None:
                self._temporary.unlink(missing_ok=True)

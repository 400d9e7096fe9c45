"""A coordinator with a TCP port: combines log, group rules, server and server-side assignors."""

from __future__ import annotations

from ..config.coordinator import CoordinatorConfig
from ..log.registry import log_from_url
from ..topics.broker import BrokerTopics
from ..transport.limits import Limits
from ..transport.tcp_server import TcpServer
from .consumer_groups import ConsumerGroups
from .own_assignors import server_assignors
from .runtime import Coordinator


class GroupServer:
    """A coordinator and its TCP port, from ``start`` to ``close``."""

    def __init__(self, coordinator: Coordinator, server: TcpServer, host: str) -> None:
        """``host``: as configured, for ``address``."""
        self.coordinator, self._server, self._host = coordinator, server, host

    @property
    def address(self) -> str:
        """The ``host:port`` to configure in workers and clients."""
        return f"{self._host}:{self._server.port}"

    async def start(self) -> None:
        """Open the log, then the port.

        Raises:
            ConfigError, LogError, TransportError: each a one-line message: what failed, where, what is allowed.
        """
        await self.coordinator.start()
        try:
            await self._server.start()
        except BaseException:
            await self.coordinator.close()
            raise

    async def close(self) -> None:
        """Reject parked requests, release the log, close the port."""
        try:
            await self.coordinator.close()
        finally:
            await self._server.close()


class CoordinatorServer(GroupServer):
    """Serves groups on one TCP port until it is closed."""

    def __init__(self, config: CoordinatorConfig) -> None:
        """Create a server; ``start`` opens the log and the port.

        Raises:
            ConfigError: the log's URL is invalid, or ``topics_from`` needs a package that is not installed.
            ConfigError, PluginError: the assignor does not exist or cannot be created.
        """
        self.config = config
        log = log_from_url(config.log_url)
        topics = BrokerTopics(config.topics_from) if config.topics_from is not None else None
        coordinator = Coordinator(
            log,
            config.group_settings(server_assignors([config.assignor])),
            consumers=ConsumerGroups(topics, config.consumer_settings()),
        )
        limits = Limits(
            max_connections=config.max_connections, max_connections_per_address=config.max_connections_per_address
        )
        # There is no authentication yet.
        server = TcpServer(coordinator, host=config.host, port=config.port, limits=limits, loopback_only=True)
        super().__init__(coordinator, server, config.host)

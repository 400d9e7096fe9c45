"""The proxy: a coordinator's server that forwards all requests that are not about groups to Kafka's brokers.

Clients keep a connection for each node id and send it what the broker of that id is to get. So each broker of a cluster
has a port of its own here, once there are several; all of them serve the groups.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from ..config.coordinator import ProxyConfig
from ..consumer.security import PLAINTEXT, BrokerSecurity, broker_security, check_security
from ..coordinator.partitions import PartitionedCoordinator
from ..coordinator.runtime import Coordinator
from ..coordinator.server import ConfiguredServer, GroupServer, authenticator_of
from ..errors import ConfigError, NotCoordinator, TransportError, WireError
from ..properties import read_properties
from ..protocol.messages.api import Response
from ..protocol.messages.cluster import ApiVersionsRequest, FindCoordinatorRequest, FindCoordinatorResponse
from ..protocol.messages.offsets import CommitInTransaction, TxnOffsetCommitRequest, TxnOffsetCommitResponse
from ..protocol.messages.rejected import rejected
from ..topics import BrokerTopics, TopicSource
from ..transport.acceptor import Acceptor, bind
from ..transport.credentials import announce, fingerprint, read_passwords, withdraw
from ..transport.tcp_connection import Connection
from ..wire.forwarded import Address
from .broker import Broker, Cluster
from .relay import BrokerRelay, merged

CHANGED_FOR_S: Final = 2.0
"""How long the topics are watched closely after a client has changed them through the proxy."""

PORT_RETRY_S: Final = 60.0
"""After how long a port of a broker that could not be opened is tried again: without one, its clients reach others."""

MAX_PORT: Final = 65_535

MAX_TO_FORWARD_BYTES: Final = 64 << 20
"""Maximum size of the requests of all clients that wait until a connection to a broker is open."""

logger = logging.getLogger(__name__)


class _Server(ConfiguredServer):
    """Serves the coordinator, and forwards the rest.

    Attributes:
        cluster: the brokers behind it.
    """

    def __init__(
        self,
        coordinator: Coordinator | PartitionedCoordinator,
        cluster: Cluster,
        config: ProxyConfig,
        topics: TopicSource,
    ) -> None:
        super().__init__(
            coordinator,
            config,
            source="proxy",
            advertised_host=config.advertised_host,
            advertised_port=config.advertised_port,
        )
        self.cluster = cluster
        self._coordinator, self._config, self._topics = coordinator, config, topics
        self._has_offsets = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._to_forward: dict[BrokerRelay, int] = {}  # bytes that wait, by relay; changed by count_to_forward
        self._to_forward_bytes = 0  # their sum
        self._ports: dict[int, _NodePort] = {}  # by node id; changed by _open
        # When ports that could not be opened are tried again, by node id, on the loop's clock; changed by _open.
        self._retry_at: dict[int, float] = {}

    @property
    def authenticates(self) -> bool:
        """Whether the proxy authenticates its clients itself."""
        return self.authenticator is not None

    @property
    def advertised(self) -> Address:
        """Host and port that clients are sent to."""
        return self._config.advertised_host or self.host, self._config.advertised_port or self.port

    def address_of(self, node_id: int) -> Address:
        """Host and port that clients of a broker are sent to."""
        host, port = self.advertised
        if not self.cluster.has_several:
            return host, port
        at = self._ports.get(node_id) or self._open(node_id)
        if at is None:
            return host, port
        return host, port + at.offset if self._config.advertised_port else at.port

    def _open(self, node_id: int) -> _NodePort | None:
        """Open the port of a broker: that of the proxy, 1, and the distance to the lowest node id."""
        now = asyncio.get_running_loop().time()
        if self._retry_at.get(node_id, now) > now or self.is_closing:
            return None
        lowest = min((*self.cluster.nodes, *self._ports))
        offset = 1 + node_id - lowest
        taken = {each.offset for each in self._ports.values()}
        if offset < 1 or offset in taken:
            offset = max(taken, default=0) + 1
        port = self.port + offset if self._config.port else 0
        try:
            if port > MAX_PORT:
                raise OSError(f"there is no port {port}")
            sockets = bind(self.addresses, port)
            opened = _NodePort(self, node_id, offset, sockets[0].getsockname()[1])
            opened.acceptor = acceptor = Acceptor(sockets, lambda: self._new_protocol(opened))
            try:
                acceptor.start()
            except OSError:  # another process has bound the port, too, and listens
                acceptor.close()
                raise
        except OSError as error:
            level = logging.DEBUG if node_id in self._retry_at else logging.ERROR  # said once
            logger.log(level, "no port for broker %d at %s:%d: %s", node_id, self.host, port, error)
            self._retry_at[node_id] = now + PORT_RETRY_S
            return None
        self._retry_at.pop(node_id, None)
        self._ports[node_id] = opened
        logger.info("broker %d is at port %d", node_id, opened.port)
        return opened

    async def start(self) -> None:
        await super().start()
        self.on_brokers({})

    def new_relay(self, on_writable: Callable[[], None], connection: Connection) -> BrokerRelay:
        return BrokerRelay(self, self.cluster.bootstrap, on_writable, connection)

    def relay_to(self, node_id: int, on_writable: Callable[[], None], connection: Connection) -> BrokerRelay:
        """The relay of a connection to the port of a broker."""
        return BrokerRelay(self, self.cluster.nodes.get(node_id, self.cluster.bootstrap), on_writable, connection)

    def handle_locally(self, request: ApiVersionsRequest | FindCoordinatorRequest) -> Response:
        if isinstance(request, ApiVersionsRequest):
            return merged(self.cluster.api_versions, authenticates=self.authenticates)
        found = super().handle_locally(request)
        assert isinstance(found, FindCoordinatorResponse)
        if found.error_code or (found.host, found.port) != self.advertised:
            return found  # another proxy serves the groups: it has a node id of its own, that of no broker
        # A node id that Metadata lists: clients keep connections by node id.
        node_id = self.cluster.node_id
        host, port = self.address_of(node_id)
        coordinators = tuple(
            replace(each, node_id=node_id, host=host, port=port) for each in found.coordinators if not each.error_code
        )
        return replace(found, node_id=node_id, host=host, port=port, coordinators=coordinators or found.coordinators)

    def on_brokers(self, brokers: Mapping[int, Address]) -> None:
        if brokers:
            self.cluster.on_brokers(brokers)
        if self.cluster.has_several:
            for node_id in sorted(self.cluster.nodes):
                self.address_of(node_id)

    def on_topics_changed(self) -> None:
        # The broker responds when its controller has the change, and knows it itself a little later.
        self._topics.expect_change(CHANGED_FOR_S)

    def on_transactions(self) -> None:
        if not self._has_offsets:
            self._has_offsets = True
            self.spawn(self._create_offsets())

    async def _create_offsets(self) -> None:
        try:
            await self.cluster.create_offsets()
        except (TransportError, TimeoutError, ConnectionError, WireError) as error:
            self._has_offsets = False
            logger.debug("the broker's topic of offsets is not known to exist: %s", error)

    @property
    def _serving(self) -> Coordinator | None:
        """The coordinator that serves the groups; ``None`` while another proxy does."""
        return self._coordinator if isinstance(self._coordinator, Coordinator) else self._coordinator.parts[0].serving

    def on_transaction_ended(self) -> None:
        serving = self._serving
        if serving is not None and serving.transactions is not None:
            serving.transactions.on_end()

    def refuses_commit(self, request: TxnOffsetCommitRequest, connection: Connection) -> Response | None:
        if (denied := self.denied(request, connection)) is not None:
            return denied
        return rejected(request, NotCoordinator.code) if self._serving is None else None

    async def commit_in_transaction(self, commit: CommitInTransaction) -> TxnOffsetCommitResponse:
        serving = self._serving
        if serving is None:
            refused = rejected(commit.request, NotCoordinator.code)
            assert isinstance(refused, TxnOffsetCommitResponse)
            return refused
        return await serving.commit_in_transaction(commit, client_host="")

    def count_to_forward(self, relay: BrokerRelay, size: int) -> None:
        self._to_forward_bytes += size - self._to_forward.pop(relay, 0)
        if size:
            self._to_forward[relay] = size
        # A request alone may be larger than the limit.
        while self._to_forward_bytes > MAX_TO_FORWARD_BYTES and len(self._to_forward) > 1:
            largest = max(self._to_forward, key=self._to_forward.__getitem__)
            self._to_forward_bytes -= self._to_forward.pop(largest)
            why = "closed: too many requests wait for a connection to the broker"
            self.log_complaint(largest.connection.client_host, why)
            largest.connection.abort()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, *, grace_s: float = 1.0) -> None:
        for each in self._ports.values():
            each.acceptor.close()
        await super().close(grace_s=grace_s)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _NodePort:
    """The port of one broker: a server that forwards to this broker, and is the proxy in everything else.

    Attributes:
        offset: its distance to the port of the proxy.
        acceptor: accepts its connections; set when it is opened.
    """

    acceptor: Acceptor

    def __init__(self, server: _Server, node_id: int, offset: int, port: int) -> None:
        self._server, self._node_id, self.offset, self.port = server, node_id, offset, port

    def new_relay(self, on_writable: Callable[[], None], connection: Connection) -> BrokerRelay:
        """See ``TcpServer``."""
        return self._server.relay_to(self._node_id, on_writable, connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


class ProxyServer(GroupServer):
    """A coordinator and a proxy on one TCP port, and one for each broker if there are several.

    Attributes:
        cluster: the brokers behind it.
    """

    config: ProxyConfig

    def __init__(self, config: ProxyConfig, *, topics: TopicSource | None = None) -> None:
        """Create a proxy; ``start`` opens the log and the port.

        Args:
            topics: the topics for consumer groups; those of the brokers if ``None``.

        Raises:
            ConfigError: the log's URL, the brokers' addresses or a file is invalid.
            ConfigError, PluginError: the assignor does not exist or cannot be created.
        """
        self.cluster = cluster = Cluster(config.broker_addresses, _security_of(config))
        if topics is None:
            named = config.topics_from
            if named is None:
                topics = BrokerTopics(config.broker, setting="broker", connect=cluster.bootstrap.streams)
            else:
                topics = BrokerTopics(named)
        super().__init__(config, lambda: topics, broker_offsets=cluster, max_partitions=1)
        self._server: _Server = _Server(self.coordinator, cluster, config, topics)

    @property
    def broker(self) -> Broker:
        """The broker at the configured addresses."""
        return self.cluster.bootstrap

    async def start(self) -> None:
        """Reach a broker, open the log, then the ports; raises as ``GroupServer.start``."""
        config = self.config
        if config.credentials is not None:
            self._server.authenticator = authenticator_of(config, config.credentials)
        await self.cluster.ask()
        await super().start()
        if config.credentials is not None:
            announce(self._server.port, config.credentials)
        else:
            # Left by a coordinator that was killed: clients with its credentials would refuse to talk to the proxy.
            withdraw(self._server.port)

    @property
    def _advertised(self) -> str:
        host, port = self._server.advertised
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def _fingerprint(self) -> str:
        """Empty: the broker has the users."""
        path = self.config.credentials
        return "" if path is None else fingerprint(read_passwords("credentials", path))


def _security_of(config: ProxyConfig) -> BrokerSecurity:
    """TLS and SASL to the brokers, by the settings of librdkafka in a file.

    Raises:
        ConfigError: the file, or a setting in it, cannot be used.
    """
    path = config.broker_config
    if path is None:
        return PLAINTEXT
    settings = read_properties(path, "broker_config")
    if "sasl.password" in settings and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigError("broker_config", path, "a file that only its owner may read (chmod 600)", is_path=True)
    try:
        check_security(settings)
        return broker_security(settings)
    except ConfigError as error:
        name = error.field.removeprefix("fetch.")
        raise ConfigError(f"broker_config: {path}: {name}", error.value, error.allowed.replace("fetch.", "")) from error

"""The proxy: a coordinator's server that forwards all requests that are not about groups to a Kafka broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from ..config.coordinator import ProxyConfig
from ..coordinator.compute import group_assignors
from ..coordinator.listing import ConsumerGroups, with_group_assignors
from ..coordinator.runtime import Coordinator
from ..coordinator.server import GroupServer
from ..errors import TransportError, WireError
from ..log.registry import log_from_url
from ..protocol.messages.api import Response
from ..protocol.messages.cluster import ApiVersionsRequest, FindCoordinatorRequest, FindCoordinatorResponse
from ..protocol.messages.offsets import CommitInTransaction, TxnOffsetCommitResponse
from ..topics.base import TopicSource
from ..topics.broker import BrokerTopics
from ..transport.credentials import withdraw
from ..transport.tcp_server import TcpServer
from .broker import Broker
from .relay import BrokerRelay, merged

MAX_FRAME_BYTES: Final = 100 << 20
"""Kafka's ``socket.request.max.bytes``: a Produce may be large."""

CHANGED_FOR_S: Final = 2.0
"""How long the topics are watched closely after a client has changed them through the proxy."""

logger = logging.getLogger(__name__)


class _Server(TcpServer):
    """Serves the coordinator, and forwards the rest."""

    def __init__(self, coordinator: Coordinator, broker: Broker, config: ProxyConfig, topics: TopicSource) -> None:
        limits = replace(config.limits(), max_frame_bytes=MAX_FRAME_BYTES)
        super().__init__(
            coordinator,
            config.host,
            config.port,
            advertised_host=config.advertised_host,
            advertised_port=config.advertised_port,
            limits=limits,
            loopback_only=True,
            on_connection_lost=coordinator.on_connection_lost,
        )
        self.broker = broker
        self._coordinator, self._config, self._topics = coordinator, config, topics
        self._has_offsets = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned = False

    @property
    def advertised(self) -> tuple[str, int]:
        """Host and port that clients are sent to."""
        return self._config.advertised_host or self.host, self._config.advertised_port or self.port

    def new_relay(self, on_writable: Callable[[], None]) -> BrokerRelay:
        return BrokerRelay(self, on_writable)

    def handle_locally(self, request: ApiVersionsRequest | FindCoordinatorRequest) -> Response:
        if isinstance(request, ApiVersionsRequest):
            return merged(self.broker.api_versions)
        found = super().handle_locally(request)
        assert isinstance(found, FindCoordinatorResponse)
        # A node id that Metadata lists: clients keep connections by node id.
        node_id = self.broker.node_id
        coordinators = tuple(replace(each, node_id=node_id) for each in found.coordinators if not each.error_code)
        return replace(found, node_id=node_id, coordinators=coordinators or found.coordinators)

    def on_brokers(self, brokers: Mapping[int, bytes]) -> None:
        self.broker.endpoints = tuple(brokers.values())
        if len(brokers) > 1 and not self._warned:
            self._warned = True
            logger.error("the cluster has %d brokers; the proxy serves one, %s", len(brokers), self.broker.address)

    def on_topics_changed(self) -> None:
        # The broker responds when its controller has the change, and knows it itself a little later.
        self._topics.expect_change(CHANGED_FOR_S)

    def on_transactions(self) -> None:
        if not self._has_offsets:
            self._has_offsets = True
            self.spawn(self._create_offsets())

    async def _create_offsets(self) -> None:
        try:
            await self.broker.create_offsets()
        except (TransportError, TimeoutError, ConnectionError, WireError) as error:
            self._has_offsets = False
            logger.debug("the broker's topic of offsets is not known to exist: %s", error)

    def on_transaction_ended(self) -> None:
        assert self._coordinator.transactions is not None
        self._coordinator.transactions.on_end()

    async def commit_in_transaction(self, commit: CommitInTransaction) -> TxnOffsetCommitResponse:
        return await self._coordinator.commit_in_transaction(commit, client_host="")

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, *, grace_s: float = 1.0) -> None:
        await super().close(grace_s=grace_s)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class ProxyServer(GroupServer):
    """A coordinator and a proxy on one TCP port."""

    def __init__(self, config: ProxyConfig, *, topics: TopicSource | None = None) -> None:
        """Create a proxy; ``start`` opens the log and the port.

        Args:
            topics: the topics for consumer groups; those of the broker if ``None``.

        Raises:
            ConfigError: the log's URL or the broker's address is invalid.
            ConfigError, PluginError: the assignor does not exist or cannot be created.
        """
        self.config = config
        if topics is None:
            named = config.topics_from
            topics = BrokerTopics(config.broker, setting="broker") if named is None else BrokerTopics(named)
        self.broker = Broker(*config.broker_address)
        coordinator = Coordinator(
            log_from_url(config.log_url),
            config.group_settings(group_assignors(config.assignor, config.group_assignors)),
            consumers=ConsumerGroups(
                topics,
                with_group_assignors(config.consumer_settings(), config.group_assignors),
                classic=config.classic_settings(),
            ),
            broker_offsets=self.broker,
        )
        super().__init__(coordinator, _Server(coordinator, self.broker, config, topics), config.host)

    async def start(self) -> None:
        """Reach the broker, open the log, then the port; raises as ``GroupServer.start``."""
        await self.broker.ask()
        await super().start()
        # Left by a coordinator that was killed: clients with its credentials would refuse to talk to the proxy.
        withdraw(self._server.port)

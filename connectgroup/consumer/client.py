"""Cluster access for a group member: any broker for metadata, and the coordinator of the group.

``send_to_coordinator`` finds the coordinator and sends the request. If the coordinator has moved, is loading or does
not respond, it is looked up again and the request retried until the timeout. There are two connections to the
coordinator: JoinGroup may wait for minutes on one while offsets are committed on the other.

Source: KIP-62 for the requests sent during a rebalance; Kafka's ``AbstractCoordinator``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from ..assign.members import TopicSpec
from ..backoff import Attempts, BackOff
from ..checks import parse_address
from ..errors import ConfigError, NotAuthenticated, TransportError
from ..protocol.messages.cluster import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    TopicName,
)
from ..protocol.units import printable
from ..wire.kafka_apis import BrokerRequest
from .connection import BrokerConnection
from .errors import ASK_AGAIN, COORDINATOR_MOVED, BrokerError, Code, Problems, error_name
from .security import PLAINTEXT, BrokerSecurity, CoordinatorAddress

Line = Literal["group", "offsets", "assignor"]

REQUEST_TIMEOUT_S = 30.0
COORDINATOR = "coordinator"
BROKERS = "brokers"
"""The subjects of problems."""

BACK_OFF = BackOff(first_s=0.2, max_s=2.0)


FIND_TIMEOUT_S: Final = 2.0
"""How long one of several coordinators may take to say which one serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Cluster metadata of some topics.

    Attributes:
        there: topics that exist, with partition counts and racks.
        missing: all others, with the error code of each.
    """

    there: tuple[TopicSpec, ...]
    missing: dict[str, int]


class TopicSeen(NamedTuple):
    """A topic as the cluster's metadata had it at one time.

    Attributes:
        topic_id: a topic that is deleted and created again gets another one.
        partitions: how many it had.
    """

    topic_id: str
    partitions: int


class _NoBroker(TransportError):
    """No broker responded; reported already."""


class GroupClient:
    """Access to the brokers, for one group.

    Args:
        bootstrap: ``host:port``, several separated by commas; any broker of the cluster.
        group_id: the group.
        client_id: sent to the brokers.
        coordinator: a coordinator that is not one of the brokers; ``None`` looks the group's up.
        security: TLS and SASL of the brokers.

    Attributes:
        problems: of this consumer.
        rejected: why the brokers or the coordinator do not authenticate this client; ``None`` if they do.
    """

    def __init__(
        self,
        bootstrap: str,
        group_id: str,
        client_id: str,
        *,
        coordinator: CoordinatorAddress | None = None,
        security: BrokerSecurity = PLAINTEXT,
    ) -> None:
        self._bootstrap = addresses(bootstrap)
        self._fixed = coordinator
        self.problems = Problems(group_id)
        self.rejected: NotAuthenticated | None = None
        self._group_id, self._client_id, self._security = group_id, client_id, security
        self._known: tuple[tuple[str, int], ...] = ()
        self._any: BrokerConnection | None = None
        self._coordinator: tuple[str, int] | None = None
        # Whether the named coordinator has said that another one has the group. Set by ``send_to_coordinator``.
        self._has_moved = False
        self._lines: dict[Line, BrokerConnection] = {}
        self._finding = asyncio.Lock()

    async def topics(self, names: Collection[str]) -> Topics:
        """Return partition counts and racks of topics.

        Raises:
            TransportError: no broker responded.
        """
        topics, racks = await self._metadata(tuple(TopicName(name=name) for name in sorted(names)))
        missing = {topic.name or "": topic.error_code for topic in topics if topic.error_code != Code.NONE}
        for name in names:
            subject = f"topic {printable(name)}"
            if name in missing:
                self.problems.met(subject, f"{subject}: {error_name(missing[name])}")
            else:
                self.problems.solved(subject)
        return Topics(
            there=tuple(_spec(topic, racks) for topic in topics if topic.error_code == Code.NONE), missing=missing
        )

    async def all_topics(self) -> frozenset[str]:
        """Return the names of all topics but Kafka's own.

        Raises:
            TransportError: no broker responded.
        """
        topics, _ = await self._metadata(None)
        return frozenset(topic.name for topic in topics if topic.name and not topic.is_internal)

    async def seen(self, names: Collection[str] | None) -> dict[str, TopicSeen]:
        """Return ids and partition counts of topics that exist, by name.

        Args:
            names: ``None`` for all topics of the cluster.

        Raises:
            TransportError: no broker responded.
        """
        topics, _ = await self._metadata(
            None if names is None else tuple(TopicName(name=each) for each in sorted(names))
        )
        return {
            topic.name: TopicSeen(topic.topic_id, len(topic.partitions))
            for topic in topics
            if topic.name and topic.error_code == Code.NONE
        }

    async def topic_names(self, topic_ids: Collection[str]) -> dict[str, str]:
        """Return the names of topics by their ids; those that do not exist are omitted.

        Raises:
            TransportError: no broker responded.
        """
        topics, _ = await self._metadata(tuple(TopicName(topic_id=each, name=None) for each in sorted(topic_ids)))
        return {topic.topic_id: topic.name for topic in topics if topic.name and topic.error_code == Code.NONE}

    async def _metadata(
        self, topics: tuple[TopicName, ...] | None
    ) -> tuple[tuple[MetadataTopic, ...], dict[int, str | None]]:
        """Query topics, and the rack of each broker."""
        requested = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        response: MetadataResponse = await self._send_to_any_broker(requested)
        self._known = tuple((broker.host, broker.port) for broker in response.brokers)
        return response.topics, {broker.node_id: broker.rack for broker in response.brokers}

    async def coordinator_serves(self, request_class: type[BrokerRequest]) -> bool:
        """Whether the coordinator serves an API. Raises TransportError: it does not respond."""
        return await (await self._line("group")).serves(request_class, timeout_s=REQUEST_TIMEOUT_S)

    async def send_to_coordinator(
        self,
        request: BrokerRequest,
        *,
        line: Line = "group",
        timeout_s: float = REQUEST_TIMEOUT_S,
        each_s: float = math.inf,
        once: bool = False,
        codes: Callable[[Any], Collection[int]] = lambda response: (response.error_code,),
    ) -> Any:
        """Return the coordinator's response, with any error code that is not retriable.

        Args:
            request: must be idempotent, unless ``once``.
            line: which of the connections to use.
            timeout_s: for all attempts together.
            each_s: for one attempt; after it, the coordinator is looked up again.
            once: not idempotent: it is not sent again, not even if the coordinator has failed to store it.
            codes: returns the error codes in a response.

        Raises:
            TransportError: no response in time; carries the last reason.
        """
        loop = asyncio.get_running_loop()
        give_up, attempts = loop.time() + timeout_s, Attempts(BACK_OFF, for_s=timeout_s)
        problem = ""
        while True:
            try:
                connection = await self._line(line)
                response = await self._call(connection, request, min(each_s, give_up - loop.time()))
            except TransportError as error:
                self.forget_coordinator()
                found = str(error)
                if not isinstance(error, _NoBroker):
                    self.problems.met(COORDINATOR, f"{found}; trying again")
            else:
                passing = ASK_AGAIN.intersection(codes(response))
                if not passing:
                    self.problems.solved(COORDINATOR)
                    return response
                if passing & COORDINATOR_MOVED:
                    self._has_moved = True
                    self.forget_coordinator()
                found = f"{connection.address}: {', '.join(sorted(Code(code).name for code in passing))}"
                self.problems.met(COORDINATOR, f"{found}; trying again")
            problem = found
            if once:
                raise TransportError(f"{type(request).__name__}: {problem}")
            if not await attempts.pause():
                raise TransportError(f"{type(request).__name__}: given up after {timeout_s:g} s: {problem}")

    async def _call(self, connection: BrokerConnection, request: BrokerRequest, timeout_s: float) -> Any:
        try:
            response = await connection.call(request, timeout_s=timeout_s)
        except NotAuthenticated as error:
            self.rejected = error
            raise
        self.rejected = None
        return response

    def forget_coordinator(self) -> None:
        """Discard the coordinator's address, because it moved or does not respond: the next request looks it up."""
        self._coordinator = None

    async def close(self) -> None:
        """Close all connections."""
        for connection in (*self._lines.values(), self._any):
            if connection is not None:
                await connection.close()

    async def _line(self, line: Line) -> BrokerConnection:
        """Return the connection to the coordinator; look the coordinator up if necessary."""
        async with self._finding:
            if self._coordinator is None:
                self._coordinator = await self._find() if self._fixed is None else await self._find_among(self._fixed)
        host, port = self._coordinator
        connection = self._lines.get(line)
        if connection is None or connection.address != f"{host}:{port}":
            if connection is not None:
                await connection.close()
            security = self._security if self._fixed is None else self._fixed.security
            connection = self._lines[line] = BrokerConnection(host, port, self._client_id, security)
        return connection

    async def _find_among(self, coordinators: CoordinatorAddress) -> tuple[str, int]:
        """The address of the coordinator that serves, of those that share a log."""
        if not (coordinators.others or self._has_moved):
            return coordinators.host, coordinators.port
        problem = ""
        for host, port in ((coordinators.host, coordinators.port), *coordinators.others):
            connection = BrokerConnection(host, port, self._client_id, coordinators.security)
            try:
                request = FindCoordinatorRequest(coordinator_keys=(self._group_id,))
                response = await self._call(connection, request, FIND_TIMEOUT_S)
            except TransportError as error:
                problem = str(error)
                continue
            finally:
                await connection.close()
            found = response.coordinators[0] if response.coordinators else response
            if found.error_code == Code.NONE:
                return found.host, found.port
            problem = f"{host}:{port}: {found.error_message or Code(found.error_code).name}"
        raise TransportError(f"no coordinator serves yet: {problem}")

    async def _find(self) -> tuple[str, int]:
        response: FindCoordinatorResponse = await self._send_to_any_broker(
            FindCoordinatorRequest(coordinator_keys=(self._group_id,))
        )
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code == Code.NONE:
            return found.host, found.port
        if found.error_code in ASK_AGAIN:
            # The offsets topic is created when the first group looks up its coordinator.
            raise TransportError(f"no coordinator yet: {Code(found.error_code).name}")
        raise BrokerError(f"coordinator of group {self._group_id!r}", found.error_code)

    async def _send_to_any_broker(self, request: BrokerRequest) -> Any:
        """Return the response of the last used broker, or of the first that responds."""
        problem = "no broker"
        if self._any is not None:
            try:
                response = await self._call(self._any, request, REQUEST_TIMEOUT_S)
                self.problems.solved(BROKERS)
                return response
            except TransportError as error:
                problem = str(error)
        # Brokers from the cluster's metadata first, then the bootstrap brokers: the former may all be gone.
        for host, port in dict.fromkeys((*self._known, *self._bootstrap)):
            connection = BrokerConnection(host, port, self._client_id, self._security)
            try:
                response = await self._call(connection, request, REQUEST_TIMEOUT_S)
            except TransportError as error:
                problem = str(error)
                continue
            if self._any is not None:
                await self._any.close()
            self._any = connection
            self.problems.solved(BROKERS)
            return response
        self.problems.met(BROKERS, f"{problem}; trying again")
        raise _NoBroker(problem)


def addresses(bootstrap: str) -> tuple[tuple[str, int], ...]:
    """Parse the bootstrap setting.

    Raises:
        ConfigError: an entry is not ``host:port``.
    """
    named = [each.strip() for each in bootstrap.split(",") if each.strip()]
    if not named:
        raise ConfigError("bootstrap", bootstrap, "host:port, several with commas")
    return tuple(parse_address("bootstrap", each) for each in named)


def _spec(topic: MetadataTopic, racks: dict[int, str | None]) -> TopicSpec:
    """A topic with the racks of its replicas; without racks if no broker reports one."""
    ordered = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    places = tuple(
        frozenset(rack for node in partition.replica_nodes if (rack := racks.get(node)) is not None)
        for partition in ordered
    )
    count = ordered[-1].partition_index + 1 if ordered else 0
    return TopicSpec(name=topic.name or "", num_partitions=count, racks=places if any(places) else ())

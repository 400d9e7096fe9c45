"""Cluster access for a group member: any broker for metadata, and the coordinator of the group.

``send_to_coordinator`` finds the coordinator and sends the request. If the coordinator has moved, is loading or does
not respond, it is looked up again and the request retried until the timeout. There are two connections to the
coordinator: JoinGroup may wait for minutes on one while offsets are committed on the other.

A broker processes a connection's requests in order and starts none before it has answered the previous one; a JoinGroup
waits for the slowest member. A commit during that time therefore needs a second connection. Requests are not pipelined,
which makes a lost response simple: any failure or timeout closes the connection, and the next call opens a new one.

A broker gets TLS and SASL by librdkafka's settings (``security``). A coordinator of connectgroup that authenticates its
clients gets the credentials that any client of this user finds (``transport.credentials``).

Source: KIP-62 for the requests sent during a rebalance; Kafka's ``AbstractCoordinator``; Kafka's protocol guide,
"Network"; KIP-35 and KIP-511 for the versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from ..assign.members import TopicSpec
from ..backoff import Attempts, BackOff
from ..checks import parse_address
from ..errors import ConfigError, NotAuthenticated, TransportError, WireError
from ..protocol.messages.cluster import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    SaslHandshakeRequest,
    TopicName,
)
from ..protocol.units import printable
from ..transport.base import reason
from ..transport.credentials import VARIABLE, Credentials, credentials_missing, find_credentials, log_in
from ..transport.tcp_client import API_VERSIONS_REQUEST, Dialect, Link
from ..wire.forwarded import PRODUCE
from ..wire.kafka_apis import BROKER_APIS, BrokerRequest, decode_kafka_response, encode_call
from .errors import ASK_AGAIN, COORDINATOR_MOVED, BrokerError, Code, Problems, error_name
from .security import PLAINTEXT, BrokerSecurity, CoordinatorAddress

CONNECT_TIMEOUT_S: Final = 10.0

FILE_ALLOWED: Final = f"{VARIABLE} with the coordinator's file of credentials"
SHARE_OF_SESSION: Final = 0.9
"""A connection is used for this part of the session lifetime that the broker grants."""

BROKER: Final = Dialect("a Kafka broker", BROKER_APIS, encode_call, decode_kafka_response)


class BrokerConnection:
    """The connection is opened by the first ``call``.

    Args:
        host: name or address.
        port: TCP port.
        client_id: sent to the broker with each request, for its logs and quotas.
        security: TLS and SASL.
    """

    def __init__(self, host: str, port: int, client_id: str, security: BrokerSecurity = PLAINTEXT) -> None:
        self._host, self._port, self._client_id, self._security = host, port, client_id, security
        self._lives_until = math.inf
        self._turn = asyncio.Lock()
        self._link: Link | None = None  # while connected; a failure or timeout of a call closes it

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def busy(self) -> bool:
        """Whether a call is in flight."""
        return self._turn.locked()

    async def call(self, request: BrokerRequest, *, timeout_s: float) -> Any:
        """Return the broker's response, with any error code.

        Args:
            request: of ``protocol.messages``.
            timeout_s: for the whole call: waiting for its turn, connecting, sending, waiting for the response.

        Raises:
            TransportError: no response; the request may have been executed.
        """
        name = type(request).__name__
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                try:
                    if asyncio.get_running_loop().time() >= self._lives_until:
                        self._drop()
                    link = self._link
                    if link is None or link.lost:
                        link = await self._connect()
                    return await link.send(request)
                except BaseException:
                    self._drop()  # a late response could not be matched to its request
                    raise
        except TimeoutError:
            raise TransportError(f"{self.address}: no response to {name} within {timeout_s:g} s") from None
        except (OSError, WireError, UnicodeError, OverflowError) as error:
            raise TransportError(f"{self.address}: {name}: {_error_text(error)}") from error

    async def serves(self, request_class: type[BrokerRequest], *, timeout_s: float) -> bool:
        """Whether the server serves an API in a version known here; connects if necessary.

        Raises:
            TransportError: no connection.
        """
        if self._link is None or self._link.lost:
            await self.call(API_VERSIONS_REQUEST, timeout_s=timeout_s)
        return self._link is not None and request_class in self._link.versions

    async def close(self) -> None:
        """Close the connection; a call in flight fails."""
        self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._link.abandon("closed")
        self._link = None

    async def _connect(self) -> Link:
        """Connect, and log in."""
        listener = self._security.protocol.upper()
        hint = f"is it a Kafka broker's {listener} listener? allowed: another security.protocol in ``fetch``"
        link = self._link = Link(self.address, self._client_id, BROKER, hint=hint)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            theirs = await link.connect(self._host, self._port, self._security.tls)
        self._lives_until = math.inf
        if self._security.credentials is not None:
            allowed = "sasl.username and sasl.password in ``fetch`` that the brokers know"
            credentials, mechanism = self._security.credentials, self._security.mechanism
            lifetime_ms = await log_in(self.address, credentials, link.send, mechanism=mechanism, allowed=allowed)
            if lifetime_ms:
                # Connecting anew is simpler than authenticating again between two requests (KIP-368).
                self._lives_until = asyncio.get_running_loop().time() + lifetime_ms / 1000 * SHARE_OF_SESSION
        # Every broker lists SaslHandshake, also at a listener that needs no login; a coordinator only if it needs one.
        elif SaslHandshakeRequest in link.versions and PRODUCE not in theirs:
            await log_in(self.address, self._found_credentials(), link.send, allowed=FILE_ALLOWED)
        return link

    def _found_credentials(self) -> Credentials:
        """The credentials for a coordinator of connectgroup.

        Raises:
            NotAuthenticated: there are none, or they cannot be used.
        """
        try:
            credentials = find_credentials(self._host, self._port)
        except ConfigError as error:
            raise NotAuthenticated(f"{self.address}: {error}") from error
        if credentials is None:
            raise credentials_missing(self.address, allowed=FILE_ALLOWED)
        return credentials


def _error_text(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS: {reason(error)}; allowed: the broker's listener for TLS, and its authority as ssl.ca.location"
    return reason(error) if isinstance(error, OSError) else printable(error, limit=300)


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
        # Whether the named coordinator has responded that another one owns the group. Set by ``send_to_coordinator``.
        self._has_moved = False
        self._failed: tuple[str, int] | None = None  # the coordinator that has not responded last; set likewise
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
                self._failed = self._coordinator or self._failed
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
        """The address of the coordinator that serves, of those that share a log. One that has not responded counts only
        if all name it: one that is cut off from the log names the owner that it has seen last."""
        if not (coordinators.others or self._has_moved):
            return coordinators.host, coordinators.port
        problem, failed = "", None
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
            if found.error_code != Code.NONE:
                problem = f"{host}:{port}: {found.error_message or Code(found.error_code).name}"
            elif (found.host, found.port) != self._failed:
                return found.host, found.port
            else:
                failed = found.host, found.port
        if failed is not None:
            return failed
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

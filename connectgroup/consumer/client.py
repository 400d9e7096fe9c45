"""A cluster as a group's member sees it: any broker for questions, and the one that coordinates the group.

``ask_coordinator`` finds the coordinator, asks, and where it has moved, is loading or does not answer, finds it again
and asks again, until the time is up. It has two lines to it: JoinGroup may wait for minutes on one while offsets are
committed on the other.

Source: KIP-62 for what goes on beside a rebalance; Kafka's ``AbstractCoordinator``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from ..assign.api import TopicSpec
from ..config.base import parse_address
from ..errors import ConfigError, TransportError
from ..protocol.messages.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from ..protocol.units import printable
from ..wire.kafka_apis import BrokerRequest
from ..wire.kafka_messages import MetadataRequest, MetadataResponse, TopicMetadata, TopicName
from .connection import BrokerConnection
from .errors import ASK_AGAIN, COORDINATOR_MOVED, BrokerError, Code

Line = Literal["group", "offsets"]

REQUEST_TIMEOUT_S = 30.0
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """What the cluster says of some topics.

    Attributes:
        there: those that exist, with partition counts and racks.
        missing: the others, and the error code of each.
    """

    there: tuple[TopicSpec, ...]
    missing: dict[str, int]


class GroupClient:
    """The brokers, for one group.

    Args:
        bootstrap: ``host:port``, several with commas; any broker of the cluster.
        group_id: the group.
        client_id: told to the brokers.
    """

    def __init__(self, bootstrap: str, group_id: str, client_id: str) -> None:
        self._bootstrap = addresses(bootstrap)
        self._group_id, self._client_id = group_id, client_id
        self._known: tuple[tuple[str, int], ...] = ()
        self._any: BrokerConnection | None = None
        self._coordinator: tuple[str, int] | None = None
        self._lines: dict[Line, BrokerConnection] = {}
        self._finding = asyncio.Lock()

    async def topics(self, names: Collection[str]) -> Topics:
        """Partition counts and racks of topics.

        Raises:
            TransportError: no broker answered.
        """
        asked = MetadataRequest(
            topics=tuple(TopicName(name=name) for name in sorted(names)), allow_auto_topic_creation=False
        )
        answer: MetadataResponse = await self._ask_anybody(asked)
        self._known = tuple((broker.host, broker.port) for broker in answer.brokers)
        racks = {broker.node_id: broker.rack for broker in answer.brokers}
        return Topics(
            there=tuple(_spec(topic, racks) for topic in answer.topics if topic.error_code == Code.NONE),
            missing={topic.name: topic.error_code for topic in answer.topics if topic.error_code != Code.NONE},
        )

    async def ask_coordinator(
        self,
        request: BrokerRequest,
        *,
        line: Line = "group",
        timeout_s: float = REQUEST_TIMEOUT_S,
        each_s: float = math.inf,
        codes: Callable[[Any], Collection[int]] = lambda answer: (answer.error_code,),
    ) -> Any:
        """The coordinator's answer, whatever error code it carries that is not one to ask again for.

        Args:
            request: one that may be carried out twice without harm.
            line: which of the connections to take.
            timeout_s: for all tries together.
            each_s: for one of them; after that the coordinator is looked for anew.
            codes: the error codes in an answer.

        Raises:
            TransportError: no answer in time; the last reason.
        """
        loop = asyncio.get_running_loop()
        give_up, wait_s = loop.time() + timeout_s, FIRST_WAIT_S
        problem = ""
        while True:
            try:
                connection = await self._line(line)
                answer = await connection.call(request, timeout_s=min(each_s, give_up - loop.time()))
            except TransportError as error:
                self.forget_coordinator()
                found = str(error)
            else:
                passing = ASK_AGAIN.intersection(codes(answer))
                if not passing:
                    return answer
                if passing & COORDINATOR_MOVED:
                    self.forget_coordinator()
                found = f"{connection.address}: {', '.join(sorted(Code(code).name for code in passing))}"
            if found != problem:
                logger.warning("group %s: %s; trying again", printable(self._group_id), found)
            problem = found
            if loop.time() + wait_s >= give_up:
                raise TransportError(f"{type(request).__name__}: given up after {timeout_s:g} s: {problem}")
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def forget_coordinator(self) -> None:
        """It has moved or does not answer: the next request finds it anew."""
        self._coordinator = None

    async def close(self) -> None:
        """Let go of all connections."""
        for connection in (*self._lines.values(), self._any):
            if connection is not None:
                await connection.close()

    async def _line(self, line: Line) -> BrokerConnection:
        """The connection to the coordinator, found if need be."""
        async with self._finding:
            if self._coordinator is None:
                self._coordinator = await self._find()
        host, port = self._coordinator
        connection = self._lines.get(line)
        if connection is None or connection.address != f"{host}:{port}":
            if connection is not None:
                await connection.close()
            connection = self._lines[line] = BrokerConnection(host, port, self._client_id)
        return connection

    async def _find(self) -> tuple[str, int]:
        answer: FindCoordinatorResponse = await self._ask_anybody(
            FindCoordinatorRequest(coordinator_keys=(self._group_id,))
        )
        found = answer.coordinators[0] if answer.coordinators else answer
        if found.error_code == Code.NONE:
            return found.host, found.port
        if found.error_code in ASK_AGAIN:
            # The topic of the offsets is made when the first group asks for it.
            raise TransportError(f"no coordinator yet: {Code(found.error_code).name}")
        raise BrokerError(f"coordinator of group {self._group_id!r}", found.error_code)

    async def _ask_anybody(self, request: BrokerRequest) -> Any:
        """The answer of the broker asked last, or of the first that answers."""
        problem = "no broker"
        if self._any is not None:
            try:
                return await self._any.call(request, timeout_s=REQUEST_TIMEOUT_S)
            except TransportError as error:
                problem = str(error)
        # Those the cluster told us of, and those we were told at the start: the former may all be gone.
        for host, port in dict.fromkeys((*self._known, *self._bootstrap)):
            connection = BrokerConnection(host, port, self._client_id)
            try:
                answer = await connection.call(request, timeout_s=REQUEST_TIMEOUT_S)
            except TransportError as error:
                problem = str(error)
                continue
            if self._any is not None:
                await self._any.close()
            self._any = connection
            return answer
        raise TransportError(problem)


def addresses(bootstrap: str) -> tuple[tuple[str, int], ...]:
    """The brokers named in a setting.

    Raises:
        ConfigError: one of them is not ``host:port``.
    """
    named = [each.strip() for each in bootstrap.split(",") if each.strip()]
    if not named:
        raise ConfigError("bootstrap", bootstrap, "host:port, several with commas")
    return tuple(parse_address("bootstrap", each) for each in named)


def _spec(topic: TopicMetadata, racks: dict[int, str | None]) -> TopicSpec:
    """A topic with its replicas' racks; without where no broker says its rack."""
    ordered = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    places = tuple(
        frozenset(rack for node in partition.replica_nodes if (rack := racks.get(node)) is not None)
        for partition in ordered
    )
    count = ordered[-1].partition_index + 1 if ordered else 0
    return TopicSpec(name=topic.name, num_partitions=count, racks=places if any(places) else ())

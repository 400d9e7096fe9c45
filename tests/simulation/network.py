"""The network between workers and coordinators: it loses, duplicates, delays, reorders, partitions and resets.

Messages belong to no node, so they travel while their sender is paused or dead. A copy of a message only ever reaches
the coordinator that its connection led to: a connection does not outlive the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from connectgroup.errors import TransportError
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.assignment import InstallRequest
from connectgroup.protocol.messages.classic import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.common import ConnectorTasks
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.messages.offsets import OffsetCommitRequest
from connectgroup.protocol.units import JOIN_EPOCH
from connectgroup.transport.base import Client

from .loop import NOWHERE, Node
from .setting import NetworkFaults

if TYPE_CHECKING:
    from .base import BaseCluster, CoordinatorNode

ResponseFuture = asyncio.Future[Response]


class Network:
    """Carries messages, subject to the network faults."""

    def __init__(self, cluster: BaseCluster, random: Random) -> None:
        self.cluster = cluster
        self.random = random
        self.network_faults = NetworkFaults()
        self.cut_out: set[str] = set()
        self.cut_in: set[str] = set()
        self.clogged: dict[str, list[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
        self.last_join_s = 0.0
        """When the last join that is on its way arrives."""

    def calm(self) -> None:
        """From now on every message arrives."""
        self.network_faults = NetworkFaults()
        self.cut_in.clear()
        self.cut_out.clear()
        for name in sorted(self.clogged):
            self.unclog(name)

    def unclog(self, name: str) -> None:
        """Deliver the delayed messages of a worker, in any order."""
        held = self.clogged.pop(name, [])
        self.random.shuffle(held)
        for deliver, args in held:
            deliver(*args)

    # ----------------------------------------------------------------------------------------------

    def send(self, client: SimulatedClient, request: Request, future: ResponseFuture) -> None:
        """Send a request, perhaps more than once."""
        peer = client.peer = self._peer_of(client)
        loop, random, network_faults = self.cluster.loop, self.random, self.network_faults
        if peer is None:
            loop.call_later(random.uniform(0.001, 0.05), _fail, future, "connection refused", context=NOWHERE)
            return
        client.outstanding[future] = None
        name = client.node.name
        # A change that does not name the version it expects could undo a later one.
        max_s = 0.5 if _is_careless(request) else 1e9
        lost = happens(random, network_faults.lose_request)
        cut = name in self.cut_out
        if lost or cut:
            self.cluster.hit("request lost" if lost else "partition")
            self.cluster.say("lost", name, type(request).__name__)
            self._break(client, future)
        else:
            delay_s = min(self._delay_s(), max_s)
            self._carry(name, delay_s, self._arrive, client, peer, request, future)
            self._see_join(request, delay_s)
        if happens(random, network_faults.copy) and not cut and not client.is_stream:
            self.cluster.hit("message copied")
            late_s = min(random.random() * random.random() * 2 * self.cluster.session_s, max_s)
            self._carry(name, late_s, self._arrive, client, peer, request, future, True)
            self._see_join(request, late_s)

    def _break(self, client: SimulatedClient, future: ResponseFuture) -> None:
        """A message of a stream was lost: the connection breaks after a while."""
        if not client.is_stream:
            return

        def reset() -> None:
            if not future.done():
                client.reset("a message was lost")

        after_s = self.random.uniform(0.1, self.cluster.session_s)
        self.cluster.loop.call_later(after_s, reset, context=NOWHERE)

    def _see_join(self, request: Request, delay_s: float) -> None:
        if _joins(request):
            self.last_join_s = max(self.last_join_s, self.cluster.loop.now + delay_s)

    def _peer_of(self, client: SimulatedClient) -> CoordinatorNode | None:
        """The coordinator of the client's connection; a new connection leads to a live one, mostly the newest."""
        if client.peer is not None and not client.peer.dead:
            return client.peer
        alive = [node for node in self.cluster.coordinators if not node.dead and node.coordinator is not None]
        if not alive:
            return None
        return alive[-1] if self.random.random() < 0.9 else self.random.choice(alive)

    def _delay_s(self) -> float:
        random, network_faults = self.random, self.network_faults
        if happens(random, network_faults.late):
            self.cluster.hit("message delayed")
            return random.random() * random.random() * network_faults.max_late_s
        return random.uniform(network_faults.min_s, network_faults.max_usual_s)

    def _carry(self, name: str, delay_s: float, deliver: Callable[..., None], *args: Any) -> None:
        self.cluster.loop.call_later(delay_s, self._land, name, deliver, args, context=NOWHERE)

    def _land(self, name: str, deliver: Callable[..., None], args: tuple[Any, ...]) -> None:
        if name in self.clogged:
            self.cluster.hit("clog")
            self.clogged[name].append((deliver, args))
        else:
            deliver(*args)

    def _arrive(
        self,
        client: SimulatedClient,
        peer: CoordinatorNode,
        request: Request,
        future: ResponseFuture,
        copy: bool = False,
    ) -> None:
        if client.is_stream and future.done():
            return
        if not peer.dead:
            peer.enter(self._begin, _Arrival(client, peer, request, future, copy))
        elif not copy:
            _fail(future, "connection reset: the coordinator has died")

    def _begin(self, arrival: _Arrival) -> None:
        cluster = self.cluster
        arrival.at_s = cluster.loop.now
        cluster.handling[arrival] = arrival
        cluster.loop.create_task(self._serve(arrival))

    async def _serve(self, arrival: _Arrival) -> None:
        """Do what a server does with a request, except for the encoding."""
        peer, request, client = arrival.peer, arrival.request, arrival.client
        assert peer.coordinator is not None
        try:
            response = await peer.coordinator.handle(request, client_host=client.node.name, client_id=client.client_id)
        except Exception as error:
            self.cluster.violated("D8", f"{type(request).__name__} raised {error!r}")
            return
        finally:
            del self.cluster.handling[arrival]
        if peer.dead:
            return
        self.cluster.on_response(peer, request, response, arrival.at_s, arrival.copy)
        random, network_faults, name = self.random, self.network_faults, client.node.name
        if arrival.copy and random.random() < 0.5:
            return
        lost = happens(random, network_faults.lose_response)
        if lost or name in self.cut_in:
            self.cluster.hit("response lost" if lost else "partition")
            self._break(client, arrival.future)
            return
        self._carry(name, self._delay_s(), self._deliver_response, arrival, response)

    def _deliver_response(self, arrival: _Arrival, response: Response) -> None:
        future = arrival.future
        if arrival.peer.dead:
            _fail(future, "connection reset: the coordinator has died")
        elif not future.done():
            future.set_result(response)
        elif isinstance(response, HeartbeatResponse) and response.assignment and response.assignment.grants:
            self.cluster.sometimes.reach("the response to an abandoned heartbeat assigned units")


@dataclass(slots=True, eq=False)
class _Arrival:
    client: SimulatedClient
    peer: CoordinatorNode
    request: Request
    future: ResponseFuture
    copy: bool
    at_s: float = 0.0


class SimulatedClient(Client):
    """A node's connection to a coordinator.

    Attributes:
        client_id: sent with each request.
        is_stream: whether messages are those of one TCP connection: none arrives twice, and none after a reset. The
            clients of Kafka's protocols send no sequence numbers, so no coordinator can recognize such a message.
    """

    def __init__(
        self, network: Network, node: Node, label: str, *, client_id: str = "", is_stream: bool = False
    ) -> None:
        self.network, self.node, self.label = network, node, label
        self.client_id, self.is_stream = client_id, is_stream
        self.peer: CoordinatorNode | None = None
        self.outstanding: dict[ResponseFuture, None] = {}

    @property
    def address(self) -> str:
        return f"{self.label} of {self.node.name}"

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        """See ``Client.call``."""
        loop = asyncio.get_running_loop()
        future: ResponseFuture = loop.create_future()
        if isinstance(request, InstallRequest):
            request = self.network.cluster.spoil_install(self.node, request)
        self.network.cluster.on_request(self.node, request)
        self.network.send(self, request, future)
        timer = loop.call_later(timeout_s, self._time_out, future)
        try:
            return await future
        finally:
            timer.cancel()
            self.outstanding.pop(future, None)

    def _time_out(self, future: ResponseFuture) -> None:
        if not future.done():
            self.reset("no response in time")
            _fail(future, "no response in time")

    def reset(self, why: str) -> None:
        """The connection breaks, and with it all outstanding responses."""
        self.peer = None
        outstanding, self.outstanding = self.outstanding, {}
        for future in outstanding:
            _fail(future, f"connection lost: {why}")

    async def close(self) -> None:
        self.reset("closed")


def _joins(request: Request) -> bool:
    if isinstance(request, HeartbeatRequest | ConsumerHeartbeatRequest):
        return request.member_epoch == JOIN_EPOCH
    return isinstance(request, JoinGroupRequest)


def _is_careless(request: Request) -> bool:
    return (
        isinstance(request, UpdateConnectorsRequest)
        and request.member_id is None
        and any(change.expected_version < 0 for change in request.changes)
    )


def happens(random: Random, chance: float) -> bool:
    """Draw with this chance; a chance of 0 draws no random number."""
    return chance > 0.0 and random.random() < chance


def _fail(future: Any, why: str) -> None:
    if not future.done():
        future.set_exception(TransportError(why))


def invalid_install(request: InstallRequest, random: Random) -> InstallRequest:
    """An invalid assignment: a unit is missing, assigned twice, invented, or assigned to an unknown member."""
    members = [member for member in request.members if member.units]
    if request.error or not members:
        return request
    member = random.choice(members)
    others = [other for other in request.members if other is not member]
    match random.randrange(4):
        case 0:
            return replace(request, members=(*others, replace(member, units=member.units[1:])))
        case 1:
            return replace(request, members=(*request.members, replace(member, member_id="stranger")))
        case 2:
            extra = replace(member.units[0], connector="nowhere")
            return replace(request, members=(*others, replace(member, units=(*member.units, extra))))
        case _:
            return replace(request, members=tuple(request.members) * 2)


def sender_of(request: Request) -> str:
    """The sender, for the trace."""
    return str(getattr(request, "member_id", "") or "operator")


def summary(request: Request) -> tuple[object, ...]:
    """A summary of a request, for the trace."""
    if isinstance(request, ConsumerHeartbeatRequest):
        count = -1 if request.owned is None else sum(len(each.partitions) for each in request.owned)
        return "heartbeat", "epoch", request.member_epoch, "owned", count
    if isinstance(request, JoinGroupRequest | LeaveGroupRequest):
        return (type(request).__name__.removesuffix("Request").lower(),)
    if isinstance(request, SyncGroupRequest | GroupHeartbeatRequest):
        return type(request).__name__.removesuffix("Request").lower(), "generation", request.generation_id
    if isinstance(request, OffsetCommitRequest):
        return "commit", "epoch", request.generation_id_or_member_epoch
    if isinstance(request, HeartbeatRequest):
        owned = "-" if request.owned is None else _count(request.owned)
        return "heartbeat", request.sequence, "epoch", request.member_epoch, "owned", owned, "wait", request.max_wait_ms
    return (type(request).__name__.removesuffix("Request").lower(),)


def _count(owned: Sequence[ConnectorTasks]) -> int:
    return sum(len(group.tasks) + group.owns_connector for group in owned)

"""Between workers and coordinators: a network that loses, doubles, delays, reorders, parts and resets.

Nothing here belongs to a node, so a message is on its way while its sender is paused or dead. A copy of a message is
never heard by another coordinator than the one its connection led to: a connection does not outlive the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from connectgroup.errors import TransportError
from connectgroup.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    InstallRequest,
    Request,
    Response,
    units_of,
)
from connectgroup.transport.base import Client

from .loop import NOWHERE, Node

if TYPE_CHECKING:
    from .cluster import Cluster, CoordinatorNode

Answer = asyncio.Future[Response]


@dataclass(slots=True)
class Weather:
    """How bad the network is. Times in seconds, the rest are chances."""

    lose_request: float = 0.0
    lose_answer: float = 0.0
    copy: float = 0.0
    late: float = 0.0
    latest_s: float = 0.0
    nearest_s: float = 0.0005
    usual_s: float = 0.01


class Network:
    """Carries messages, as well as the weather lets it."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self.cluster = cluster
        self.random = random
        self.weather = Weather()
        self.cut_out: set[str] = set()
        self.cut_in: set[str] = set()
        self.clogged: dict[str, list[Callable[[], None]]] = {}

    def calm(self) -> None:
        """From now on everything arrives."""
        self.weather = Weather()
        self.cut_in.clear()
        self.cut_out.clear()
        for name in sorted(self.clogged):
            self.unclog(name)

    def unclog(self, name: str) -> None:
        """Let go of what was held up, in any order."""
        held = self.clogged.pop(name, [])
        self.random.shuffle(held)
        for deliver in held:
            deliver()

    # ----------------------------------------------------------------------------------------------

    def send(self, client: SimulatedClient, request: Request, answer: Answer) -> None:
        """A request sets out, perhaps more than once."""
        peer = client.peer = self._peer_of(client)
        loop, random, weather = self.cluster.loop, self.random, self.weather
        if peer is None:
            loop.call_later(random.uniform(0.001, 0.05), _fail, answer, "connection refused", context=NOWHERE)
            return
        client.outstanding[answer] = None
        name = client.node.name
        if client.node is self.cluster.operator:
            # An operator's order has no number, and means something else a minute later.
            delay_s = random.uniform(0.001, 0.01)
            self._carry(name, delay_s, lambda: self._arrive(client, peer, request, answer))
            return
        lost = random.random() < weather.lose_request
        cut = name in self.cut_out
        if lost or cut:
            self.cluster.hit("request lost" if lost else "partition")
            self.cluster.say("lost", name, type(request).__name__)
        else:
            self._carry(name, self._delay_s(), lambda: self._arrive(client, peer, request, answer))
        if random.random() < weather.copy and not cut:
            self.cluster.hit("message copied")
            late_s = random.random() * random.random() * 2 * self.cluster.session_s
            self._carry(name, late_s, lambda: self._arrive(client, peer, request, answer, copy=True))

    def _peer_of(self, client: SimulatedClient) -> CoordinatorNode | None:
        """Where the client's connection leads; a new one leads to a coordinator that lives, mostly the newest."""
        if client.peer is not None and not client.peer.dead:
            return client.peer
        alive = [node for node in self.cluster.coordinators if not node.dead and node.coordinator is not None]
        if not alive:
            return None
        return alive[-1] if self.random.random() < 0.9 else self.random.choice(alive)

    def _delay_s(self) -> float:
        random, weather = self.random, self.weather
        if random.random() < weather.late:
            self.cluster.hit("message delayed")
            return random.random() * random.random() * weather.latest_s
        return random.uniform(weather.nearest_s, weather.usual_s)

    def _carry(self, name: str, delay_s: float, deliver: Callable[[], None]) -> None:
        def arrive() -> None:
            if name in self.clogged:
                self.cluster.hit("clog")
                self.clogged[name].append(deliver)
            else:
                deliver()

        self.cluster.loop.call_later(delay_s, arrive, context=NOWHERE)

    def _arrive(
        self, client: SimulatedClient, peer: CoordinatorNode, request: Request, answer: Answer, *, copy: bool = False
    ) -> None:
        if peer.dead:
            if not copy:
                _fail(answer, "connection reset: the coordinator is gone")
            return
        arrival = _Arrival(client, peer, request, answer, self.cluster.loop.time(), copy)
        self.cluster.loop.call_soon(self._begin, arrival, context=peer.context)

    def _begin(self, arrival: _Arrival) -> None:
        coordinator = arrival.peer.coordinator
        assert coordinator is not None
        arrival.at_s = self.cluster.loop.time()
        work = coordinator.handle(arrival.request, client_host=arrival.client.node.name)
        task = self.cluster.loop.create_task(work)
        self.cluster.handling[task] = arrival
        task.add_done_callback(self._handled, context=NOWHERE)

    def _handled(self, task: asyncio.Task[Response]) -> None:
        arrival = self.cluster.handling.pop(task)
        if task.cancelled() or arrival.peer.dead:
            return
        response = task.result()
        self.cluster.on_response(arrival.peer, arrival.request, response, arrival.at_s, arrival.copy)
        random, weather, name = self.random, self.weather, arrival.client.node.name
        if arrival.copy and random.random() < 0.5:
            return
        lost = random.random() < weather.lose_answer
        if lost or name in self.cut_in:
            self.cluster.hit("answer lost" if lost else "partition")
            return
        self._carry(name, self._delay_s(), lambda: self._answer(arrival, response))

    def _answer(self, arrival: _Arrival, response: Response) -> None:
        answer = arrival.answer
        if arrival.peer.dead:
            _fail(answer, "connection reset: the coordinator is gone")
        elif not answer.done():
            answer.set_result(response)
        elif isinstance(response, HeartbeatResponse) and response.assignment and response.assignment.grants:
            self.cluster.sometimes.reach("a heartbeat was given up whose answer granted something")


@dataclass(slots=True)
class _Arrival:
    client: SimulatedClient
    peer: CoordinatorNode
    request: Request
    answer: Answer
    at_s: float
    copy: bool


class SimulatedClient(Client):
    """A node's connection."""

    def __init__(self, network: Network, node: Node, label: str) -> None:
        self.network, self.node, self.label = network, node, label
        self.peer: CoordinatorNode | None = None
        self.outstanding: dict[Answer, None] = {}

    @property
    def address(self) -> str:
        return f"{self.label} of {self.node.name}"

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        """See ``Client.call``."""
        loop = asyncio.get_running_loop()
        answer: Answer = loop.create_future()
        if isinstance(request, InstallRequest):
            request = self.network.cluster.meddle(self.node, request)
        self.network.cluster.on_request(self.node, request)
        self.network.send(self, request, answer)
        timer = loop.call_later(timeout_s, self._time_is_up, answer)
        try:
            return await answer
        finally:
            timer.cancel()
            self.outstanding.pop(answer, None)

    def _time_is_up(self, answer: Answer) -> None:
        if not answer.done():
            self.reset("no answer in time")
            _fail(answer, "no answer in time")

    def reset(self, why: str) -> None:
        """The connection is gone, and with it the answers that were to come."""
        self.peer = None
        outstanding, self.outstanding = self.outstanding, {}
        for answer in outstanding:
            _fail(answer, f"connection lost: {why}")

    async def close(self) -> None:
        self.reset("closed")


def _fail(answer: Any, why: str) -> None:
    if not answer.done():
        answer.set_exception(TransportError(why))


def spoilt(request: InstallRequest, random: Random) -> InstallRequest:
    """An assignment that no assignor of ours would send: a unit left out, given twice, made up, or to a stranger."""
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


def names_member(request: Request) -> str:
    """Who speaks, for the trace."""
    return str(getattr(request, "member_id", "") or "operator")


def shows(request: Request) -> str:
    """A request in few words."""
    if isinstance(request, HeartbeatRequest):
        owned = "-" if request.owned is None else len(units_of(request.owned))
        return f"heartbeat {request.sequence} epoch={request.member_epoch} owned={owned} wait={request.max_wait_ms}"
    return type(request).__name__.removesuffix("Request").lower()

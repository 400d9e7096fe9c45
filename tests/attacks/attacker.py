"""The attacks, each in a process of its own:
``python -m tests.attacks.attacker ATTACK ADDRESS CREDENTIALS SECONDS [REST_ADDRESS]``.

The attacker has the credentials of the coordinator, except where that would make an attack weaker: a client that may
connect must not be able to harm the others either. Prints how many of its operations were performed, as JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.assignment import InstallRequest
from connectgroup.protocol.messages.classic import JoinGroupRequest, OfferedProtocol
from connectgroup.protocol.messages.cluster import SaslAuthenticateRequest, SaslHandshakeRequest
from connectgroup.protocol.messages.common import ConnectorTasks
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.messages.describe import DeleteRequest, DescribeGroupsRequest, ListGroupsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.messages.offsets import OffsetCommitRequest, PartitionCommit, TopicCommit
from connectgroup.wire.apis import APIS, HEARTBEAT, encode_request
from connectgroup.wire.primitives import frame

GROUP: Final = "sleepers"
MEMBER: Final = "w1"
KEYS: Final = {api.request_class: api.key for api in APIS.values()}
LOST: Final = (OSError, asyncio.IncompleteReadError)
"""The coordinator has closed the connection, which is its right."""


@dataclass
class Target:
    """The coordinator, and what was done to it so far."""

    host: str
    port: int
    name: str
    password: str
    rest: tuple[str, int] = ("", 0)
    done: Counter[str] = field(default_factory=Counter)

    async def connect(self) -> Peer:
        """A connection that has not authenticated."""
        return Peer(*await asyncio.open_connection(self.host, self.port))

    async def log_in(self) -> Peer:
        """A connection that has authenticated, by PLAIN, which costs a client nothing."""
        peer = await self.connect()
        await peer.call(SaslHandshakeRequest(mechanism="PLAIN"))
        await peer.call(SaslAuthenticateRequest(auth_bytes=f"\0{self.name}\0{self.password}".encode()))
        return peer


def _framed(request: Request) -> bytes:
    key = KEYS[type(request)]
    return frame(encode_request(request, version=max(APIS[key].versions), correlation_id=1, client_id="attacker"))


class Peer:
    """One connection, which follows no rule."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, request: Request) -> None:
        self.writer.write(_framed(request))

    async def receive(self) -> bytes:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def call(self, request: Request) -> bytes:
        self.send(request)
        return await self.receive()

    def close(self) -> None:
        self.writer.close()


Attack = Callable[[Target, int], Awaitable[None]]
"""One of several attackers that run side by side, given its number; runs until it is cancelled."""


async def _pipelined(target: Target, what: str, requests: Callable[[], Request]) -> None:
    """Send requests as fast as the coordinator reads them."""
    peer = await target.log_in()

    async def drain() -> None:
        while True:
            await peer.receive()
            target.done[what] += 1

    draining = asyncio.create_task(drain())
    try:
        while not draining.done():
            for _ in range(50):
                peer.send(requests())
            await peer.writer.drain()
            await asyncio.sleep(0)
        draining.result()
    finally:
        draining.cancel()
        peer.close()


async def unknown_members(target: Target, number: int) -> None:
    """Heartbeats of members that do not exist, each with another name; in turn of this group and of groups without."""
    ids = itertools.count()

    def request() -> Request:
        name = f"{number}-{next(ids)}".ljust(200, "x")
        group = GROUP if number % 2 else name
        return HeartbeatRequest(group_id=group, member_id=name, member_epoch=7, sequence=1, max_wait_ms=3_000)

    await _pipelined(target, "heartbeats", request)


async def ghost_joins(target: Target, number: int) -> None:
    """Joins of ever other members to one group, as many connections as the coordinator allows for one user."""
    ids = itertools.count()

    def request() -> Request:
        name = f"{number}-{next(ids)}"
        return HeartbeatRequest(
            group_id="ghosts", member_id=name, member_epoch=0, sequence=1, owned=(), rebalance_timeout_ms=60_000,
            server_assignor="balanced",
        )  # fmt: skip

    await _pipelined(target, "joins", request)


async def impostors(target: Target, number: int) -> None:
    """Requests of a process that uses the name of another process's member."""
    numbers = itertools.count()

    def request() -> Request:
        n = next(numbers)
        process, sequence = 1_000 + number, (1 << 60) + n
        if n % 4 == 3:
            return InstallRequest(group_id=GROUP, member_id=MEMBER, member_epoch=n % 7, group_epoch=n % 9)
        epoch = (0, -1, n % 9 + 1)[n % 4]
        return HeartbeatRequest(
            group_id=GROUP, member_id=MEMBER, member_epoch=epoch, owned=(), sequence=sequence, process_id=process
        )

    await _pipelined(target, "requests", request)


async def group_creation(target: Target, number: int) -> None:
    """Groups that are created, by a join or by a connector, and left or deleted, each with another name."""
    peer = await target.log_in()
    for n in itertools.count():
        group = f"{number}-{n}".ljust(200, "g")
        if n % 2:
            join = HeartbeatRequest(
                group_id=group, member_id="m", member_epoch=0, sequence=1, owned=(), rebalance_timeout_ms=1_000,
                server_assignor="balanced",
            )  # fmt: skip
            await peer.call(join)
            await peer.call(HeartbeatRequest(group_id=group, member_id="m", member_epoch=-1, sequence=2))
        else:
            change = ConnectorChange(connector="c", config=())
            await peer.call(UpdateConnectorsRequest(group_id=group, changes=(change,)))
            await peer.call(DeleteRequest(group_ids=(group,)))
        target.done["groups"] += 1


async def kafka_groups(target: Target, number: int) -> None:
    """Large JoinGroups and commits of Kafka's clients, for groups of ever other names; and requests for all groups."""
    ids = itertools.count()
    offered = OfferedProtocol(name="range", metadata=bytes(60_000))
    commits = tuple([PartitionCommit(partition_index=n, committed_offset=n, committed_metadata="x") for n in range(50)])

    def request() -> Request:
        n = next(ids)
        group = f"{number}-{n}".ljust(200, "k")
        if number % 2 == 0:  # each is parked: the responses to later requests wait
            return JoinGroupRequest(
                group_id=group, session_timeout_ms=6_000, rebalance_timeout_ms=6_000, member_id="",
                group_instance_id="i", protocol_type="consumer", protocols=(offered,),
            )  # fmt: skip
        if n % 8 == 1:
            return ConsumerHeartbeatRequest(
                group_id=group, member_id="m", member_epoch=0, rebalance_timeout_ms=6_000, owned=(),
                subscribed_topic_regex="(" * 1_000 + "a+" + ")+" * 1_000,
            )  # fmt: skip
        if n % 8 == 2:
            return DescribeGroupsRequest(groups=(group, GROUP, group))
        if n % 50 == 3:
            return ListGroupsRequest()
        topic = TopicCommit(name="t".ljust(200, "t"), partitions=commits)
        return OffsetCommitRequest(group_id=group, member_id="", topics=(topic,))

    await _pipelined(target, "joins" if number % 2 == 0 else "requests", request)


async def connections(target: Target, number: int) -> None:
    """More connections than the coordinator accepts, with and without a login, each idle; closed ones are replaced."""
    opened: list[Peer] = []
    for n in itertools.count():
        with suppress(*LOST):
            opened.append(await (target.log_in() if n % 2 else target.connect()))
            target.done["connections"] += 1
        for peer in [peer for peer in opened if peer.reader.at_eof()]:
            peer.close()
            opened.remove(peer)
        await asyncio.sleep(0 if len(opened) < 100 else 0.02)


async def giant_frames(target: Target, number: int) -> None:
    """Frames with impossible lengths, arrays of a million elements, and large frames whose end never arrives."""
    lengths = b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"
    held: list[Peer] = []
    for n in itertools.count():
        with suppress(*LOST):
            peer = await (target.log_in() if n % 2 else target.connect())
            if n % 4 == 1 and len(held) < 40:
                # All but the last byte of the largest frame.
                held.append(peer)
                peer.writer.write(struct.pack(">i", 8 << 20) + bytes((8 << 20) - 1))
                await peer.writer.drain()
                target.done["held frames"] += 1
                continue
            if n % 4 == 3:
                # A heartbeat whose array of units claims 2^31 - 1 elements; and one of a million empty ones.
                header = struct.pack(">hhih", HEARTBEAT, max(APIS[HEARTBEAT].versions), 1, -1) + b"\0"
                for body in (b"\xff\xff\xff\xff\x07" * 8, b"\x81\x80\x40" + bytes(1 << 20)):
                    peer.writer.write(frame(header + body))
                    await peer.receive()
            else:
                peer.writer.write(lengths[n // 2 % len(lengths)] + bytes(64))
                await peer.reader.read(1)
            target.done["frames"] += 1
            peer.close()


@cache
def large_frames() -> list[bytes]:
    """Valid requests up to the limit on frames. To encode them takes seconds."""
    commit = PartitionCommit(partition_index=1, committed_offset=1, committed_metadata="")
    topic = TopicCommit(name="t", partitions=(commit,) * 400_000)
    requests: list[Request] = [
        HeartbeatRequest(
            group_id=GROUP,
            member_id="stranger",
            member_epoch=1,
            owned=(ConnectorTasks(connector="c", tasks=(1,)),) * count,
        )
        for count in (100_000, 5_000)
    ]
    requests.append(
        OffsetCommitRequest(group_id="nowhere", member_id="stranger", generation_id_or_member_epoch=1, topics=(topic,))
    )
    return [_framed(request) for request in requests]


async def large_requests(target: Target, number: int) -> None:
    """Valid requests up to the limit on frames, one behind the other, from a sender that is no member."""
    peer = await target.log_in()

    async def drain() -> None:
        while True:
            await peer.receive()
            target.done["requests"] += 1

    draining = asyncio.create_task(drain())
    try:
        for data in itertools.cycle(large_frames()):
            peer.writer.write(data)
            await peer.writer.drain()
            if draining.done():
                break
        draining.result()
    finally:
        draining.cancel()
        peer.close()


async def half_open_tls(target: Target, number: int) -> None:
    """TCP connections whose TLS handshake stops half-way, and some that never begin it."""
    opened: list[asyncio.StreamWriter] = []
    context = ssl.create_default_context()
    for n in itertools.count():
        with suppress(*LOST):
            _, writer = await asyncio.open_connection(target.host, target.port)
            opened.append(writer)
            if n % 4:
                outgoing = ssl.MemoryBIO()
                handshake = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
                with suppress(ssl.SSLWantReadError):
                    handshake.do_handshake()
                writer.write(outgoing.read())
            target.done["handshakes"] += 1
        if len(opened) > 600:
            opened.pop(0).close()
        await asyncio.sleep(0.001)


REST_HEAD: Final = b"HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BEGUN: Final = (
    b"",
    b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n",
    b"POST /connectors " + REST_HEAD + b"Content-Length: 1000\r\n\r\n{",
    b"GET /connectors " + REST_HEAD + b"Content-Length: 1000\r\n\r\n{",
    b"GET /groups/sleepers/events " + REST_HEAD + b"\r\n",
    b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400,
    b"not HTTP\r\n\r\n",
)
"""What a client of REST sends before it goes silent: nothing, half a request, one whose response it never reads."""


async def rest_connections(target: Target, number: int) -> None:
    """Connections of REST that send nothing, or stop in the middle; closed ones are replaced, and some send a byte."""
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    for n in itertools.count():
        with suppress(*LOST):
            reader, writer = await asyncio.open_connection(*target.rest, limit=1)
            opened.append((reader, writer))
            writer.write(BEGUN[(n + number) % len(BEGUN)])
            target.done["connections"] += 1
        if len(opened) > 300:
            for reader, writer in [each for each in opened if each[1].is_closing() or each[0].at_eof()]:
                writer.close()
                opened.remove((reader, writer))
            if n % 20 == 0 and opened:
                opened[n % len(opened)][1].write(b"a")
            while len(opened) > 600:
                opened.pop(0)[1].close()
        await asyncio.sleep(0 if len(opened) < 200 else 0.002)


def _chunked(body: bytes) -> bytes:
    return b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % each for each in body) + b"0\r\n\r\n"


async def rest_bodies(target: Target, number: int) -> None:
    """Bodies that a careless parser reads in quadratic time, and forged hosts and origins."""
    pipeline = {"connector.class": "pipeline", "name": "c", "source": "files", "source.path": "/in", "sink": "console"}
    pipeline["source.format"] = "csv"
    configs = (
        {"source.schema": "," * 120_000},
        {"source.schema": "`" * 120_000},
        {"transforms": ",".join(f"a{n}" for n in range(100_000))},
        {f"source.unknown.{n}": "x" for n in range(900)},
        {"password": "${env:" * 20_000, "topic": "password=" * 20_000},
        {"predicates": "p", "predicates.p.type": "TopicNameMatches", "predicates.p.pattern": "(" * 100_000},
    )
    validate = "PUT /connector-plugins/pipeline/config/validate "
    requests = [
        *((validate, json.dumps(pipeline | config).encode()) for config in configs),
        *(
            ("POST /connectors ", part * (1_000_000 // len(part)))
            for part in (b'\\"', b'"', b"[", b'{"a":', b"9", b"[],")
        ),
        ("POST /connectors ", b'"' + b'\\"' * 400_000),
        ("POST /connectors ", None),
        ("GET /" + "a/" * 7_000 + " ", b""),
        ("GET /connectors?" + "a=b&" * 3_500 + " ", b""),
    ]
    for n in itertools.count():
        what, body = requests[(n + number) % len(requests)]
        sent = _chunked(b" " * 100_000) if body is None else b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        forged = (b"", b"Origin: http://localhost:1\r\n", b"X-Forwarded-Host: evil\r\n")[n % 3]
        with suppress(*LOST):
            reader, writer = await asyncio.open_connection(*target.rest)
            writer.write(what.encode() + REST_HEAD + b"Connection: close\r\n" + forged + sent)
            target.done["requests"] += 1
            answer = await reader.read()
            assert b" 201 " not in answer[:20], (what, forged)
            assert not forged.startswith(b"Origin") or b" 200 " not in answer[:20], (what, forged)
            target.done["responses"] += 1
            writer.close()


ATTACKS: Final[dict[str, tuple[Attack, int]]] = {
    "unknown_members": (unknown_members, 4),
    "ghost_joins": (ghost_joins, 80),
    "impostors": (impostors, 2),
    "group_creation": (group_creation, 4),
    "kafka_groups": (kafka_groups, 2),
    "connections": (connections, 2),
    "giant_frames": (giant_frames, 2),
    "large_requests": (large_requests, 1),
    "half_open_tls": (half_open_tls, 1),
    "rest_connections": (rest_connections, 2),
    "rest_bodies": (rest_bodies, 2),
}
"""Each attack, and how many attackers run it side by side."""


async def _attack(name: str, target: Target, seconds: float) -> None:
    attack, count = ATTACKS[name]

    async def repeatedly(number: int) -> None:
        while True:
            with suppress(*LOST):
                await attack(target, number)
            await asyncio.sleep(0.05)

    attackers = [asyncio.create_task(repeatedly(number)) for number in range(count)]
    done, running = await asyncio.wait(attackers, timeout=seconds)
    for _ in range(60):
        if target.done or not running:
            break
        done, running = await asyncio.wait(attackers, timeout=1)  # on a busy machine, it has hardly begun
    for attacker in running:
        attacker.cancel()
    await asyncio.wait(attackers)
    for attacker in done:
        attacker.result()  # a fault of the attack itself


def main(name: str, address: str, credentials: str, seconds: str, rest: str = "") -> None:
    host, _, port = address.rpartition(":")
    user, _, password = Path(credentials).read_text().splitlines()[0].partition("=")
    target = Target(host, int(port), user, password)
    if rest:
        target.rest = rest.rpartition(":")[0], int(rest.rpartition(":")[2])
    if name == "large_requests":
        large_frames()
    asyncio.run(_attack(name, target, float(seconds)))
    print(json.dumps(target.done))


if __name__ == "__main__":
    main(*sys.argv[1:])

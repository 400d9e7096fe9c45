"""Heartbeats per second of a server's CPU time: connectgroup's coordinator beside a Kafka broker, with the same load.

    python benchmarks/heartbeats.py [--members 1000] [--connections 64] [--seconds 2] [--rounds 3] [--no-broker]

Members of groups of 100 send heartbeats with nothing to report, each connection one at a time, as fast as the server
answers. The servers take turns. The first table has medians: heartbeats per CPU second of the server's process, per
second of the clock, and p99 of the round trip. The second one has the cost of a heartbeat for groups of 10 to 5,000
members. The generator of the load is written in Python too, and runs in this process: it limits the rate by the clock,
which shares the machine with it, but not the heartbeats per CPU second of the server. Exit code 1 if a heartbeat was
rejected; no time affects it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Run as a script from any directory: the modules next to this file are imported as benchmarks.NAME.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from connectgroup.cli.command import new_event_loop
from connectgroup.consumer.client import GroupClient
from connectgroup.consumer.offsets import committed
from connectgroup.coordinator.compute import server_assignors
from connectgroup.coordinator.listing import ConsumerGroups
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.consumer.settings import ConsumerSettings
from connectgroup.log.memory import MemoryLog
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.topics import StaticTopics
from connectgroup.transport.limits import Limits
from connectgroup.transport.tcp_server import TcpServer
from connectgroup.wire.apis import APIS, decode_response, encode_request
from connectgroup.wire.primitives import frame
from connectgroup.wire.table import key_of

GROUP_SIZES = (10, 100, 1_000, 5_000)
TICKS = os.sysconf("SC_CLK_TCK")
HOUR_MS = 3_600_000
JOINED_TOGETHER = 64
"""Connections on which members join: their joins share the coordinator's computations of a target assignment."""
_LENGTH = struct.Struct(">i")
_ERROR = struct.Struct(">h")
ERROR_AT = 4 + 4 + 1 + 4
"""Of the error code in a frame: after the length, correlation id, tags, and throttle time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One run.

    Attributes:
        count: heartbeats.
        cpu_s: CPU time of the server's process.
        wall_s: by the clock.
        p99_s: of the round trips.
        rejected: heartbeats whose response had an error.
    """

    count: int
    cpu_s: float
    wall_s: float
    p99_s: float
    rejected: int


# --------------------------------------------------------------------------------------------------
# Members


class Kind:
    """A group type: its requests.

    Args:
        name: ``connect`` or ``consumer``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = key_of("ConnectGroupHeartbeat" if name == "connect" else "ConsumerGroupHeartbeat")
        self.version = max(APIS[self.key].versions)

    def join(self, group_id: str, member_id: str, epoch: int) -> Any:
        """A heartbeat with all fields. The topic has no partitions (on the broker: does not exist), and there is
        no connector: nothing is assigned."""
        if self.name == "connect":
            return HeartbeatRequest(
                group_id=group_id,
                member_id=member_id,
                member_epoch=epoch,
                rebalance_timeout_ms=60_000,
                server_assignor="balanced",
                owned=(),
                process_id=1,
            )
        return ConsumerHeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=("absent",),
            owned=(),
        )

    def steady(self, group_id: str, member_id: str, epoch: int) -> Any:
        """A heartbeat with nothing to report."""
        if self.name == "connect":
            return HeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=epoch, process_id=1)
        return ConsumerHeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=epoch)

    def encoded(self, request: Any) -> bytes:
        """A frame."""
        return frame(encode_request(request, version=self.version, correlation_id=1, client_id="bench"))


class Line:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: Kind) -> None:
        self._reader, self._writer, self._kind = reader, writer, kind

    async def ask(self, request: Any) -> Any:
        """The response to a request."""
        self._writer.write(self._kind.encoded(request))
        (length,) = _LENGTH.unpack(await self._reader.readexactly(4))
        data = await self._reader.readexactly(length)
        return decode_response(data, api_key=self._kind.key, version=self._kind.version)[1]

    async def join(self, left: Iterator[tuple[dict[tuple[str, str], int], str, str]]) -> None:
        """Send full heartbeats of the members that are left, shared with other connections; note their epochs."""
        for epochs, group_id, member_id in left:
            response = await self.ask(self._kind.join(group_id, member_id, epochs[group_id, member_id]))
            if response.error_code:
                raise RuntimeError(f"{self._kind.name}: {response.error_code} {response.error_message}")
            epochs[group_id, member_id] = response.member_epoch

    def close(self) -> None:
        self._writer.close()


class Beater(asyncio.Protocol):
    """One connection that sends prepared heartbeats in turn, the next one when a response has arrived."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames, self._next = frames, 0
        self._data = b""
        self._sent_s = 0.0
        self.trips: list[float] = []
        self.rejected = 0
        self.stopped = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def beat(self) -> None:
        """Send the next heartbeat."""
        data = self._frames[self._next]
        self._next = (self._next + 1) % len(self._frames)
        self._sent_s = time.perf_counter()
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        data = self._data = self._data + data
        if len(data) < 4 or len(data) < 4 + _LENGTH.unpack_from(data)[0]:
            return
        self.trips.append(time.perf_counter() - self._sent_s)
        self.rejected += _ERROR.unpack_from(data, ERROR_AT)[0] != 0
        self._data = b""
        if not self.stopped:
            self.beat()

    def close(self) -> None:
        self._transport.close()


async def joined(address: str, kind: Kind, members: int, size: int) -> list[bytes]:
    """Join all members in groups of a size, until no epoch changes; return their steady heartbeats."""
    host, _, port = address.rpartition(":")
    client = GroupClient(address, "bench", "bench")
    await committed(client, "bench", ())  # a new broker has no coordinator before the first request for one
    await client.close()
    lines = [Line(*await asyncio.open_connection(host, int(port)), kind) for _ in range(JOINED_TOGETHER)]
    run = uuid.uuid4().hex[:8]
    groups = [
        {(f"bench-{run}-{first}", f"member-{number}-{run}"): 0 for number in range(min(size, members - first))}
        for first in range(0, members, size)
    ]
    quiet = 0
    while quiet < 2:  # Kafka computes a target assignment up to a second after the change
        before = [dict(epochs) for epochs in groups]
        left = iter([(epochs, *member) for epochs in groups for member in epochs])
        await asyncio.gather(*(line.join(left) for line in lines))
        still = groups == before and all(len(set(each.values())) == 1 and min(each.values()) > 0 for each in groups)
        quiet = quiet + 1 if still else 0
        await asyncio.sleep(1.5 if still else 0.1)
    frames = [
        kind.encoded(kind.steady(group_id, member_id, epoch))
        for epochs in groups
        for (group_id, member_id), epoch in epochs.items()
    ]
    for line in lines:
        line.close()
    return frames


async def load(address: str, pid: int, frames: Sequence[bytes], connections: int, seconds: float) -> Rate:
    """Send heartbeats on all connections for some seconds; the first tenth is not counted."""
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    step = min(connections, len(frames))
    beaters = [Beater(frames[number::step]) for number in range(step)]
    for beater in beaters:
        await loop.create_connection(partial(_same, beater), host, int(port))
    for beater in beaters:
        beater.beat()
    await asyncio.sleep(seconds / 10)
    for beater in beaters:
        beater.trips.clear()
    cpu_s, began_s = cpu_of(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    cpu_s, wall_s = cpu_of(pid) - cpu_s, time.perf_counter() - began_s
    trips = sorted(trip for beater in beaters for trip in beater.trips)
    for beater in beaters:
        beater.stopped = True
        beater.close()
    return Rate(
        count=len(trips),
        cpu_s=cpu_s,
        wall_s=wall_s,
        p99_s=trips[len(trips) * 99 // 100] if trips else 0.0,
        rejected=sum(beater.rejected for beater in beaters),
    )


def _same(beater: Beater) -> Beater:
    return beater


def cpu_of(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


# --------------------------------------------------------------------------------------------------
# Servers


@contextlib.contextmanager
def coordinator(*options: str) -> Iterator[tuple[str, int]]:
    """A coordinator as a process of its own; yields its address and process id."""
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@contextlib.contextmanager
def broker() -> Iterator[tuple[str, int]]:
    """A Kafka broker, as for the tests; yields its address and process id."""
    from tests.consumer.broker import running_broker

    with running_broker() as running:
        port = running.bootstrap.rpartition(":")[2]
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if words[0].endswith(b"java") and b"kafka.Kafka" in words and _listens(int(path.parent.name), port):
                    yield running.bootstrap, int(path.parent.name)
                    return
        raise RuntimeError("the broker's process was not found")


def _listens(pid: int, port: str) -> bool:
    """Whether the settings of a broker's process have this port."""
    settings = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2].decode()
    return f"PLAINTEXT://127.0.0.1:{port}," in Path(settings).read_text()


async def serve(profile: str | None) -> None:
    """Run a coordinator until SIGINT; print its address."""
    settings = GroupSettings(
        session_timeout_ms=HOUR_MS, server_assignors=server_assignors(["balanced"]), max_members=10_000
    )
    consumers = ConsumerGroups(
        StaticTopics({"absent": 0}), ConsumerSettings(session_timeout_ms=HOUR_MS, max_members=10_000)
    )
    server_of = Coordinator(MemoryLog(), settings, consumers=consumers)
    server = TcpServer(server_of, host="127.0.0.1", port=0, limits=Limits(), loopback_only=True)
    await server_of.start()
    await server.start()
    print(f"127.0.0.1:{server.port}", flush=True)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopped.set)
    if profile:
        import cProfile

        profiler = cProfile.Profile()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, profiler.enable)
        await stopped.wait()
        profiler.disable()
        profiler.dump_stats(profile)
    else:
        await stopped.wait()
    await server_of.close()
    await server.close()


# --------------------------------------------------------------------------------------------------
# The command line


async def measure(options: argparse.Namespace) -> int:
    """Measure, print; return the exit code."""
    kinds = {name: Kind(name) for name in ("connect", "consumer")}
    loops = {"asyncio": (), "uvloop": ("--uvloop",)} if has_uvloop() else {"asyncio": ()}
    if not has_uvloop():
        print("uvloop is not installed: pip install 'connectgroup[uvloop]'")
    profile = ("--profile", options.profile) if options.profile else ()
    rates: dict[str, list[Rate]] = {}
    with contextlib.ExitStack() as stack:
        targets = []
        for loop, more in loops.items():
            where = stack.enter_context(coordinator(*more, *profile))
            targets += [(f"connectgroup, type {name}, {loop}", kind, *where) for name, kind in kinds.items()]
        if not options.no_broker:
            targets.append(("Kafka broker, type consumer", kinds["consumer"], *stack.enter_context(broker())))
        prepared = {name: await joined(address, kind, options.members, 100) for name, kind, address, _ in targets}
        for *_, pid in targets if options.profile else ():
            os.kill(pid, signal.SIGUSR1)  # profile from here on: not how members join
        for _ in range(options.rounds):
            for name, _, address, pid in targets:
                rate = await load(address, pid, prepared[name], options.connections, options.seconds)
                rates.setdefault(name, []).append(rate)
        print(f"{options.members} members in groups of 100, {options.connections} connections\n")
        print(table(rates))
        sizes: dict[str, list[Rate]] = {}
        address, pid = targets[0][2:]
        for size in options.sizes:
            for name, kind in kinds.items():
                frames = await joined(address, kind, size, size)
                rate = await load(address, pid, frames, options.connections, options.seconds)
                sizes.setdefault(f"type {name}, one group of {size}", []).append(rate)
        if sizes:
            print("\n" + table(sizes))
    rejected = sum(each.rejected for of_it in (*rates.values(), *sizes.values()) for each in of_it)
    print(f"\n{rejected} heartbeats rejected")
    return 1 if rejected else 0


def table(rates: dict[str, list[Rate]]) -> str:
    """Format the medians, one line for each server or size; ratios are to the line of Kafka, if there is one."""
    per_cpu = {
        name: statistics.median(each.count / max(each.cpu_s, 1 / TICKS) for each in of_it)
        for name, of_it in rates.items()
    }
    base = next((value for name, value in per_cpu.items() if name.startswith("Kafka")), 0.0)
    lines = ["| server | per CPU s | ratio | us CPU each | per s | p99 ms |", "|---|---|---|---|---|---|"]
    for name, of_it in rates.items():
        per_s = statistics.median(each.count / each.wall_s for each in of_it)
        p99_ms = statistics.median(each.p99_s for each in of_it) * 1e3
        ratio = f"{per_cpu[name] / base:.2f}x" if base else ""
        each_us = 1e6 / max(per_cpu[name], 1e-9)
        lines.append(f"| {name} | {per_cpu[name]:,.0f} | {ratio} | {each_us:.1f} | {per_s:,.0f} | {p99_ms:.1f} |")
    return "\n".join(lines)


def has_uvloop() -> bool:
    """Whether the extra ``uvloop`` is installed."""
    from importlib.util import find_spec

    return find_spec("uvloop") is not None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure heartbeats per CPU second of a server.")
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run (default 2)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(GROUP_SIZES), help="of groups in the second table")
    parser.add_argument("--no-broker", action="store_true", help="measure connectgroup alone")
    parser.add_argument("--profile", metavar="FILE", help="profile the coordinator, and write the statistics here")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--uvloop", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        with asyncio.Runner(loop_factory=new_event_loop("uvloop" if options.uvloop else "asyncio")) as runner:
            runner.run(serve(options.profile))
        return 0
    return asyncio.run(measure(options))


if __name__ == "__main__":
    sys.exit(main())

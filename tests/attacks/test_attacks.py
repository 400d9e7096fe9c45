"""The coordinator under attack: bounded memory, no member loses its lease, honest clients are served.

A coordinator, two workers with idle tasks and each attacker are processes of their own. Honest clients are commands as
users type them: each connects, authenticates, asks, and ends.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from connectgroup.client.admin import Admin
from connectgroup.config.access import AccessConfig
from connectgroup.config.base import checked
from connectgroup.log.registry import LOG_FILE
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.transport.credentials import FILE_NAME
from connectgroup.transport.tcp_client import TcpClient
from tests.integration.commands import GROUP, CommandGroup
from tests.integration.processes import PATIENCE_S, Program, wait
from tests.volume import volume

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("attacks")]

SECONDS = volume(user=1, ci=3, soak=60)
"""Duration of each attack."""

MAX_MB = 160
"""Largest resident memory of the coordinator, at any time."""

CLASSES_MB = 40
"""Memory of the classes of connectors, which the first check of a configuration by REST loads, an attack or not."""

MAX_MB_WITH_CLASSES = MAX_MB + CLASSES_MB

MAX_GROWTH_MB = 64
"""By how much its resident memory may grow during an attack: strangers cost so much at most, however long they send."""

TASKS = 4
LIMITS = ("--max-connections", 100, "--max-connections-per-address", 100, "--max-unauthenticated", 50)


MAX_HEARTBEAT_MS = 1_000
"""How much processor time the coordinator may use between a heartbeat and its response, whatever it is sent besides;
``P99_HEARTBEAT_MS``: of nearly all heartbeats. The time on the clock also tells how busy the machine is."""

P99_HEARTBEAT_MS = 200

LEASE_S = 5.0
"""The lease of a worker with idle tasks, which no sink fences."""

MAX_LINES = 100 + 50 * SECONDS
"""Lines of the log that an attack causes at most."""


@dataclass(frozen=True)
class Scheduled:
    """What the kernel has given the main thread of a process, in seconds: of the processors, and in the queue for them.

    A coordinator and a worker serve in their main thread.
    """

    ran_s: float
    waited_s: float

    @classmethod
    def of(cls, pid: int) -> Scheduled:
        """The times so far (Linux: proc_pid_schedstat)."""
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return cls(int(ran) / 1e9, int(waited) / 1e9)


@dataclass
class Honest:
    """Clients one after the other, each of which describes the group, as ``connectgroup groups describe`` does.

    Besides, a member sends heartbeats, and a client of REST asks for the groups.
    """

    address: str
    access: AccessConfig
    pid: int
    rest: str = ""
    times_ms: list[float] = field(default_factory=list)
    heartbeats_ms: list[float] = field(default_factory=list)
    used_ms: list[float] = field(default_factory=list)
    """Processor time of the coordinator between each heartbeat and its response."""
    rest_ms: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __enter__(self) -> Honest:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="honest clients")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as clients:
            clients.create_task(self._describe())
            clients.create_task(self._beat())
            if self.rest:
                clients.create_task(self._ask_rest())

    async def _beat(self) -> None:
        """Heartbeats of a member of a group of its own, over one connection, as a worker's."""
        host, _, port = self.address.rpartition(":")
        client = TcpClient(host, int(port), access=self.access.access())
        member, epoch, sequence = f"m{time.monotonic_ns()}", 0, 0
        while not self._stop.is_set():
            began, sequence = time.monotonic(), sequence + 1
            ran_s = Scheduled.of(self.pid).ran_s
            first: dict[str, Any] = (
                {"owned": (), "rebalance_timeout_ms": 60_000, "server_assignor": "balanced"} if not epoch else {}
            )
            request = HeartbeatRequest(
                group_id="probe", member_id=member, member_epoch=epoch, sequence=sequence, process_id=7, **first
            )
            try:
                response = await client.call(request, timeout_s=PATIENCE_S)
                assert isinstance(response, HeartbeatResponse)
                assert response.error_code == 0, response
                epoch = response.member_epoch
            except Exception as error:
                self.failures.append(f"heartbeat: {type(error).__name__}: {error}")
            self.heartbeats_ms.append((time.monotonic() - began) * 1000)
            self.used_ms.append((Scheduled.of(self.pid).ran_s - ran_s) * 1000)
            await asyncio.sleep(0.02)
        await client.call(
            HeartbeatRequest(group_id="probe", member_id=member, member_epoch=-1, sequence=sequence + 1, process_id=7),
            timeout_s=PATIENCE_S,
        )
        await client.close()

    async def _ask_rest(self) -> None:
        """Each request on a new connection; at a limit, the server says when to retry."""
        while not self._stop.is_set():
            began = time.monotonic()
            for _ in range(40):
                status = await self._rest_status()
                if status == 200:
                    break
                await asyncio.sleep(0.1)
            else:
                self.failures.append(f"REST: {status}")
            self.rest_ms.append((time.monotonic() - began) * 1000)
            await asyncio.sleep(0.05)

    async def _rest_status(self) -> int:
        """The status of a response; 0 if the connection was closed."""
        try:
            async with httpx.AsyncClient(base_url=self.rest, timeout=PATIENCE_S) as http:
                return (await http.get("/groups")).status_code
        except httpx.TransportError:
            return 0

    async def _describe(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                async with Admin.connect([self.address], retry_for_s=2.0, access=self.access.access()) as admin:
                    described = await admin.describe(GROUP)
                assert {member.member_id for member in described.members} == {"w1", "w2"}
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            self.times_ms.append((time.monotonic() - began) * 1000)
            await asyncio.sleep(0.02)

    def percentile(self, share: float) -> float:
        return percentile(self.times_ms, share)


def percentile(times: list[float], share: float) -> float:
    """The time that this share of the times does not exceed; 0 without any."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))] if times else 0.0


class Beating:
    """Members of a group of their own that send a heartbeat several times a second, on one connection each."""

    def __init__(self, address: str, access: AccessConfig, count: int = 8) -> None:
        self._address, self._access, self._count = address, access, count
        self.times_ms: list[float] = []
        self.failures: list[str] = []

    def __enter__(self) -> Beating:
        self._stop = threading.Event()
        self._all_joined = threading.Barrier(2)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="members")
        self._thread.start()
        self._all_joined.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    async def _run(self) -> None:
        joined, began_ns = asyncio.Barrier(self._count + 1), time.monotonic_ns()
        members = [asyncio.create_task(self._member(f"beating-{began_ns}-{n}", joined)) for n in range(self._count)]
        await joined.wait()
        await asyncio.to_thread(self._all_joined.wait, PATIENCE_S)
        await asyncio.gather(*members)

    async def _member(self, name: str, joined: asyncio.Barrier) -> None:
        host, _, port = self._address.rpartition(":")
        client = TcpClient(host, int(port), name, access=self._access.access())
        epoch, sequence, is_new = 0, 0, True
        while not self._stop.is_set():
            sequence += 1
            joins: dict[str, Any] = (
                {} if epoch else {"owned": (), "rebalance_timeout_ms": 60_000, "server_assignor": "balanced"}
            )
            request = HeartbeatRequest(
                group_id="beating", member_id=name, member_epoch=epoch, sequence=sequence, process_id=1, **joins
            )  # fmt: skip
            began = time.monotonic()
            response = await client.call(request, timeout_s=PATIENCE_S)
            assert isinstance(response, HeartbeatResponse)
            if response.error_code:
                self.failures.append(f"{name}: {response.error_code} {response.error_message}")
            epoch = max(epoch, response.member_epoch)
            if not is_new:
                self.times_ms.append((time.monotonic() - began) * 1000)
            elif epoch:
                is_new = False
                await joined.wait()
            await asyncio.sleep(0.1)
        await client.close()


@dataclass
class Attacked:
    """A coordinator with two workers that run all tasks, and honest clients.

    Attributes:
        max_mb: the largest resident memory of the coordinator that an attack may cause. Set by the test.
        max_growth_mb: by how much an attack may make it grow. Set by the test.
        starved: what waited for a processor, and not for the coordinator, for half a lease and half of the last attack
            or longer, in seconds: the machine was too busy, and a lease that was lost then tells nothing. Set by
            ``attack``.
    """

    group: CommandGroup
    coordinator: Program
    access: AccessConfig
    workers: Mapping[str, Program]
    rest: str = ""
    max_mb: int = MAX_MB
    max_growth_mb: int = MAX_GROWTH_MB
    starved: dict[str, float] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.group.root / "data"

    def attack(self, name: str) -> dict[str, int]:
        """Run an attack; check memory, leases and honest clients. Returns how often the attacker did what."""
        if self.starved:  # a lease may have been lost in the attack before
            wait("all tasks run", lambda: self.group.is_stable("w1", "w2"), self.group.described)
        ran, before_mb = (self.group.starts(), self.group.stops()), self._begin_peak()
        lines = len(self.coordinator.lines)
        processes = {"the coordinator": self.coordinator, **self.workers}
        waited_s = {name: Scheduled.of(each.pid).waited_s for name, each in processes.items()}
        with Honest(self.group.address, self.access, self.coordinator.pid, self.rest) as honest:
            command = (sys.executable, "-m", "tests.attacks.attacker", name, self.group.address)
            rest = self.rest.partition("://")[2]
            done = subprocess.run(
                [*command, str(self.data / FILE_NAME), str(SECONDS), rest],
                capture_output=True,
                text=True,
                timeout=SECONDS + PATIENCE_S,
                check=False,
            )
        assert done.returncode == 0, done.stderr[-3_000:]
        done_of: dict[str, int] = json.loads(done.stdout)
        print(f"{name}: {done_of}, {before_mb} MB before, {self.megabytes()} MB at most")
        shown = f"honest clients: {len(honest.times_ms)} requests, "
        print(shown + f"median {honest.percentile(0.5):.0f} ms, p99 {honest.percentile(0.99):.0f} ms")
        print(
            f"heartbeats: {len(honest.heartbeats_ms)}, median {percentile(honest.heartbeats_ms, 0.5):.0f} ms, "
            f"p99 {percentile(honest.heartbeats_ms, 0.99):.0f} ms, "
            f"at most {percentile(honest.heartbeats_ms, 1):.0f} ms; of the "
            f"coordinator's processor time p99 {percentile(honest.used_ms, 0.99):.0f} ms, at most "
            f"{percentile(honest.used_ms, 1):.0f} ms; REST: {len(honest.rest_ms)}, "
            f"p99 {percentile(honest.rest_ms, 0.99):.0f} ms; {len(self.coordinator.lines) - lines} lines of the log"
        )
        assert len(self.coordinator.lines) - lines <= MAX_LINES, self.coordinator.output()[-3_000:]
        assert sum(done_of.values()) > 0, "the attack has begun"
        assert honest.failures == []
        assert honest.percentile(0.99) < 5_000, honest.times_ms
        if len(honest.used_ms) >= 300:
            assert percentile(honest.used_ms, 0.99) <= P99_HEARTBEAT_MS, "heartbeats come first"
        assert percentile(honest.used_ms, 1) <= MAX_HEARTBEAT_MS, "heartbeats come first"
        self.starved = {
            name: waited
            for name, each in processes.items()
            if (waited := Scheduled.of(each.pid).waited_s - waited_s[name]) >= max(LEASE_S, SECONDS) / 2
        }
        max_s = percentile(honest.heartbeats_ms, 1) / 1000
        if max_s >= LEASE_S / 2:  # little of it was the coordinator's time, as just asserted
            self.starved["a heartbeat"] = max_s
        print(f"waited for a processor: {self.starved or 'no process for long'}")
        if not self.starved:
            of_group = "\n".join([line for line in self.coordinator.lines if f"group {GROUP}" in line][-20:])
            moved = f"no member has lost its lease: no task was moved\n{of_group}"
            assert (self.group.starts(), self.group.stops()) == ran, moved
        assert self.megabytes() <= self.max_mb
        assert self.megabytes() - before_mb <= self.max_growth_mb
        return done_of

    def _begin_peak(self) -> int:
        """Forget the peaks of former attacks, which may hide this one's; returns the resident memory in MB."""
        assert self.megabytes() <= self.max_mb
        Path(f"/proc/{self.coordinator.pid}/clear_refs").write_text("5")  # VmHWM becomes VmRSS (man 5 proc)
        return self.megabytes("VmRSS")

    def megabytes(self, size: str = "VmHWM") -> int:
        """A size of the coordinator's memory in MB: ``VmHWM`` is the largest resident memory since the attack began."""
        status = Path(f"/proc/{self.coordinator.pid}/status").read_text()
        found = re.search(rf"{size}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) >> 10


def attacked(
    root: Path, *options: str | int, with_rest: bool = False, max_files: int = 0, **access: Path
) -> Iterator[Attacked]:
    """Start the processes; at the end the coordinator has logged no failure of its own.

    Args:
        max_files: how many files the coordinator may open; 0: as many as this process.
    """
    if with_rest:
        options = (*options, "--rest-port", 0)
    root.mkdir(exist_ok=True)
    limited = ("sh", "-c", f'ulimit -n {max_files} && exec "$@"', "sh") if max_files else ()
    group = CommandGroup(root, *LIMITS, *options, tasks=TASKS, prefix=limited)
    with group.coordinator() as coordinator:
        files = {"credentials": group.root / "data" / FILE_NAME, **access}
        words = tuple(word for name, file in files.items() for word in (f"--{name.replace('_', '-')}", str(file)))
        group.access = words
        group.put("naps", TASKS)
        with group.worker("w1", *words) as first, group.worker("w2", *words) as second:
            wait("all tasks run", lambda: group.is_stable("w1", "w2"), group.described)
            rest = coordinator.line_with("REST at ").partition("REST at ")[2] if with_rest else ""
            workers = {"w1": first, "w2": second}
            yield Attacked(group, coordinator, checked(AccessConfig, files), workers, rest)
        assert coordinator.code is None, coordinator.output()
        assert not any("Traceback" in line for line in coordinator.lines), coordinator.output()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    yield from attacked(tmp_path_factory.mktemp("attacked"))


@pytest.mark.parametrize("name", ["unknown_members", "impostors", "connections", "giant_frames", "kafka_groups"])
def test_attack_harms_neither_members_nor_other_clients(plain: Attacked, name: str) -> None:
    plain.attack(name)


def test_ghosts_that_join_a_group_cost_no_member_of_another_its_lease(plain: Attacked) -> None:
    """A user with all connections that one may have, each with as many joins as the coordinator reads at a time."""
    with Beating(plain.group.address, plain.access) as members:
        done = plain.attack("ghost_joins")
    times_ms = sorted(members.times_ms)
    print(f"{len(times_ms)} heartbeats, p99 {times_ms[int(0.99 * len(times_ms))]:.0f} ms")
    assert members.failures == [], "no member was fenced, and none had to wait"
    assert times_ms
    assert done["joins"] > 0
    silent = [line for line in plain.coordinator.lines if "silent" in line and f"group {GROUP}" in line]
    assert silent == [] or plain.starved, "the ghosts are removed for their silence, and no worker is"


def test_large_requests_of_one_connection_delay_no_heartbeat(plain: Attacked) -> None:
    """Of up to 8 MiB, the limit: their decoding alone takes a second of a shared core."""
    with Beating(plain.group.address, plain.access) as members:
        done = plain.attack("large_requests")
    print(f"{len(members.times_ms)} heartbeats, p99 {percentile(members.times_ms, 0.99):.0f} ms")
    assert members.failures == [], "no member was fenced, and none had to wait"
    assert members.times_ms
    assert done["requests"] > 0


def test_flood_of_created_groups_leaves_a_bounded_log(plain: Attacked) -> None:
    done = plain.attack("group_creation")
    with closing(sqlite3.connect(f"file:{plain.data / LOG_FILE}?mode=ro", uri=True)) as log:
        counted = log.execute("SELECT group_id LIKE '%g', count(*) FROM records GROUP BY 1").fetchall()
    rows = dict(counted)
    # Groups are compacted when 10,000 records were added, or as many as are live: other attacks leave groups, too.
    assert rows.get(1, 0) < 20_000 + rows.get(0, 0), done


@pytest.fixture(scope="module")
def over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    root = tmp_path_factory.mktemp("attacked-tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=coordinator", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", root / "key.pem", "-out", root / "cert.pem"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    options = ("--tls-cert", str(root / "cert.pem"), "--tls-key", str(root / "key.pem"))
    yield from attacked(root / "group", *options, tls_ca=root / "cert.pem")


def test_half_open_tls_handshakes_harm_no_client(over_tls: Attacked) -> None:
    over_tls.attack("half_open_tls")


@pytest.fixture(scope="module")
def with_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    limits = ("--rest-max-connections", 100, "--rest-max-connections-per-address", 100)
    yield from attacked(tmp_path_factory.mktemp("attacked-rest"), *limits, with_rest=True)


@pytest.mark.parametrize("name", ["rest_connections", "rest_bodies"])
def test_attack_on_rest_harms_neither_members_nor_other_clients(with_rest: Attacked, name: str) -> None:
    with_rest.max_mb, with_rest.max_growth_mb = MAX_MB_WITH_CLASSES, MAX_GROWTH_MB + CLASSES_MB
    with_rest.attack(name)


FEW_FILES = 320


@pytest.fixture(scope="module")
def with_few_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A coordinator that may open fewer files than its limits on connections allow."""
    limits = ("--rest-max-connections", 10_000, "--rest-max-connections-per-address", 10_000)
    yield from attacked(tmp_path_factory.mktemp("attacked-files"), *limits, with_rest=True, max_files=FEW_FILES)


def test_connections_of_rest_leave_descriptors_to_workers(with_few_files: Attacked) -> None:
    address = httpx.URL(with_few_files.rest)
    descriptors = Path(f"/proc/{with_few_files.coordinator.pid}/fd")
    with ExitStack() as held:
        # As they arrive, idle ones are closed for them: those that stay must not be more and more.
        for _ in range(FEW_FILES * 3):
            held.enter_context(socket.create_connection((address.host, address.port or 80)))
            time.sleep(0.001)
        wait("REST to answer one more client", partial(_is_served, f"{with_few_files.rest}/groups"))
        # REST may use three quarters of all, and 16 more for the answers to those that are refused.
        assert len(list(descriptors.iterdir())) <= FEW_FILES * 3 // 4 + 16 + 8, "the others are left for workers"
        with_few_files.attack("rest_connections")
    assert not any("Too many open files" in line for line in with_few_files.coordinator.lines)


def _is_served(url: str) -> bool:
    """Whether a request is answered; a connection may be refused while many others arrive."""
    try:
        return httpx.get(url, timeout=PATIENCE_S).status_code == 200
    except httpx.TransportError:
        return False

"""Two or three coordinators on one shared log, under one seed, in virtual time: election, lease, epochs (D4-D6).

The shipped ``LeasedLog`` and ``ElectedCoordinator`` run on a simulated database. Its calls are late, lost before or
after they took effect, and hang; the processes are paused for longer than their lease, killed and started again; their
clocks drift apart. Clients write and read at any of the coordinators, without coordinator epochs, as Kafka's do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from connectgroup.coordinator.election import ElectedCoordinator
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import LogError
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log.base import LogNotWritable, Ownership
from connectgroup.log.leased import LeasedLog, LeasedStore, OwnerRow
from connectgroup.log.rows import Sums, Values
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest, UpdateConnectorsResponse
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse

from .cluster import SERVER_ASSIGNORS
from .loop import NOWHERE, Node, SimulatedLoop

T = TypeVar("T")

GROUP = "g"
FAULTY_S = 60.0
"""Simulated seconds with faults."""

FAILOVER_S = 5.0
"""A coordinator that is killed is replaced within this time."""

DRIFT = 0.02
"""By how much each clock is too fast or too slow; ``leased.DRIFT`` is more than the difference of two."""

COMPACT_AFTER = 20
"""Rows: so few that groups are compacted now and then."""


@dataclass
class Database:
    """What outlives the coordinators.

    Attributes:
        owner, rows, sums: the log. ``SimulatedStore`` changes them.
        faulty: whether calls fail. ``run`` clears it.
    """

    random: Random
    reach: Callable[[str], None]
    owner: OwnerRow = field(
        default_factory=lambda: OwnerRow(
            epoch=0, renewals=0, last=0, holder="", address="", lease_ms=0, server="s", current="s"
        )
    )
    rows: list[Values] = field(default_factory=list)
    sums: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    faulty: bool = True


class SimulatedStore(LeasedStore):
    """One process's connection to the database."""

    name = "shared log"

    def __init__(self, database: Database, loop: SimulatedLoop) -> None:
        self._database, self._loop = database, loop

    async def _call(self, what: str, effect: Callable[[], T]) -> T:
        """Perform an effect at the database, which is late or lost, and return its result, which is, too."""
        database, loop = self._database, self._loop
        random = database.random
        answer: asyncio.Future[T] = loop.create_future()
        fault = random.random() if database.faulty else 1.0
        if fault < 0.01:
            raise LogNotWritable("no connection")
        sent_s = random.uniform(0.000_5, 0.01)
        if fault < 0.03:
            sent_s = random.uniform(0.5, 8.0)  # a delayed request: the caller may have given up
        loses_answer = 0.03 <= fault < 0.05
        hangs = 0.05 <= fault < 0.06

        def arrive() -> None:
            result = effect()
            if hangs:
                return
            loop.call_later(random.uniform(0.000_5, 0.01), respond, result, context=NOWHERE)

        def respond(result: T) -> None:
            if answer.done():
                return
            if loses_answer:
                database.reach(f"answer to {what} lost")
                answer.set_exception(LogError("the connection was lost"))
            else:
                answer.set_result(result)

        def give_up() -> None:
            if not answer.done():
                database.reach(f"{what} without an answer")
                answer.set_exception(LogError("the connection was lost"))

        loop.call_later(sent_s, arrive, context=NOWHERE)
        if hangs or fault < 0.03:
            loop.call_later(random.uniform(0.1, 4.0), give_up, context=NOWHERE)
        return await answer

    async def connect(self) -> None:
        await self._call("connect", lambda: None)

    async def look(self, process: str, address: str) -> OwnerRow:
        return await self._call("look", lambda: self._database.owner)

    async def take(
        self, seen: OwnerRow, *, holder: str, address: str, lease_ms: int, epochs: int, credentials: str = ""
    ) -> tuple[int, int] | None:
        def effect() -> tuple[int, int] | None:
            owner = self._database.owner
            if (owner.epoch, owner.renewals, owner.holder) != (seen.epoch, seen.renewals, seen.holder):
                return None
            self._database.reach("handed over" if not owner.holder else "taken over")
            self._database.owner = owner = replace(
                owner,
                epoch=owner.epoch + epochs,
                renewals=owner.renewals + 1,
                holder=holder,
                address=address,
                lease_ms=lease_ms,
            )
            return owner.epoch, owner.last

        return await self._call("take", effect)

    async def retake(self, holder: str) -> tuple[int, int] | None:
        def effect() -> tuple[int, int] | None:
            if self._database.owner.holder != holder:
                return None
            self._database.owner = owner = replace(self._database.owner, epoch=self._database.owner.epoch + 1)
            return owner.epoch, owner.last

        return await self._call("retake", effect)

    async def renew(self, holder: str, last: int) -> bool:
        def effect() -> bool:
            owner = self._database.owner
            if owner.holder != holder or owner.last < last:
                return False
            self._database.owner = replace(owner, renewals=owner.renewals + 1)
            return True

        return await self._call("renew", effect)

    async def mark_serving(self, holder: str) -> bool:
        return await self._call("mark_serving", lambda: self._database.owner.holder == holder)

    async def release(self, holder: str, last: int, successor: str | None = None) -> None:
        def effect() -> None:
            if self._database.owner.holder == holder:
                self._database.owner = replace(self._database.owner, holder="")

        await self._call("release", effect)

    async def leave(self, process: str) -> None:
        await self._call("leave", lambda: None)

    async def append(self, epoch: int, last: int, rows: Sequence[Values], sums: Sums) -> bool:
        def effect() -> bool:
            database = self._database
            if (database.owner.epoch, database.owner.last) != (epoch, last):
                database.reach("batch of a former owner or of a former epoch")
                return False
            database.owner = replace(database.owner, last=last + len(rows))
            database.rows += rows
            for group, (count, total) in sums.items():
                before = database.sums.get(group.encode(), (0, 0))
                database.sums[group.encode()] = before[0] + count, before[1] + total & 0xFFFFFFFF
            return True

        return await self._call("append", effect)

    async def compact(
        self, epoch: int, offsets: Sequence[int], group: bytes, stored: tuple[int, int], kept: tuple[int, int]
    ) -> bool:
        def effect() -> bool:
            database = self._database
            if database.owner.epoch != epoch:
                return False
            if database.sums[group] != stored:
                database.reach("compaction of rows that are not there")
                return False
            if database.faulty and database.random.random() < 0.5:
                database.reach("compaction lost")  # with the server that has acknowledged it, and nothing else
                return True
            gone = set(offsets)
            database.rows = [row for row in database.rows if row[0] not in gone]
            database.sums[group] = kept
            return True

        return await self._call("compact", effect)

    async def read(self, groups: Sequence[bytes] | None) -> tuple[list[Values], list[tuple[bytes, int, int]]]:
        def effect() -> tuple[list[Values], list[tuple[bytes, int, int]]]:
            rows = [row for row in self._database.rows if groups is None or row[4] in groups]
            sums = [(name, *sums) for name, sums in self._database.sums.items() if groups is None or name in groups]
            return rows, sums

        return await self._call("read", effect)

    async def ownership(self) -> Ownership:
        return Ownership(coordinators=())

    async def close(self) -> None:
        return


class SharedNode(Node):
    """A coordinator process."""

    def __init__(self, name: str, run: SharedRun) -> None:
        super().__init__(name, f"seed {run.seed}", drift=DRIFT)
        store = SimulatedStore(run.database, run.loop)
        self.log = LeasedLog(store, address=f"{name}:1", process=name, compact_after=COMPACT_AFTER)
        settings = GroupSettings(server_assignor="balanced", server_assignors=SERVER_ASSIGNORS)
        self.elected: ElectedCoordinator = self.context.run(
            ElectedCoordinator, self.log, lambda: Coordinator(self.log, settings, wall_clock_ms=run.wall_clock_ms)
        )
        self.main = run.loop.create_task(self._start(), context=self.context)

    async def _start(self) -> None:
        while True:
            try:
                return await self.elected.start()
            except LogError:
                await asyncio.sleep(0.5)

    def owns_at(self, now: float) -> bool:
        """Whether the process believes that it owns the log; its clock runs on while it is paused."""
        return not self.dead and self.log.lease_ends_s > now * self.rate


class SharedRun:
    """One seed.

    Attributes:
        violations: what did not hold; empty if all did.
        reached: rare states, with their numbers.
        acknowledged: the connectors whose creation was acknowledged. ``_write`` adds to it.
        served: the highest coordinator epoch that has responded. ``_ask`` raises it.
    """

    def __init__(self, seed: int, loop: SimulatedLoop) -> None:
        self.seed, self.loop, self.random = seed, loop, Random(f"{seed} shared")
        loop.drifts = True
        self.violations: list[str] = []
        self.reached: Counter[str] = Counter()
        self.database = Database(Random(f"{seed} database"), self._reach)
        self.acknowledged: set[str] = set()
        self.served = 0
        self._lives = self._names = 0
        self.nodes: list[SharedNode] = []
        self.dead: list[SharedNode] = []

    def _reach(self, what: str) -> None:
        self.reached[what] += 1

    def wall_clock_ms(self) -> int:
        return 1_700_000_000_000 + int(self.loop.now * 1000)

    def start(self) -> None:
        self._lives += 1
        self.nodes.append(SharedNode(f"c{self._lives}", self))

    def kill(self, node: SharedNode) -> None:
        node.kill()
        self.nodes.remove(node)
        self.dead.append(node)

    async def run(self) -> None:
        for _ in range(self.random.choice([2, 3])):
            self.start()
        clients = [self.loop.create_task(self._client(), context=NOWHERE) for _ in range(3)]
        faults = self.loop.create_task(self._faults(), context=NOWHERE)
        await faults
        self.database.faulty = False
        await asyncio.sleep(20)
        await self._failover()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        found = await self._read()
        if found is None or not self.acknowledged <= found:
            self.violations.append(f"D3: acknowledged and gone: {sorted(self.acknowledged - (found or set()))}")
        for node in list(self.nodes):
            self.kill(node)

    async def _faults(self) -> None:
        while self.loop.now < FAULTY_S:
            await asyncio.sleep(self.random.expovariate(1 / 4))
            owners = [node for node in self.nodes if node.elected.serving is not None]
            node = self.random.choice(owners or self.nodes)
            match self.random.choice(["pause", "pause", "kill", "stop"]):
                case "pause" if not node.stopped:
                    node.pause()
                    after_s = self.random.choice([0.5, 2.9, 3.1, 6.0, 10.0]) + self.random.random()
                    self.loop.call_later(after_s, node.resume, self.loop, context=NOWHERE)
                case "kill":
                    self.kill(node)
                    self.start()
                case "stop" if not node.stopped:
                    await self._stop(node)
                    self.start()
        for node in self.nodes:
            node.resume(self.loop)

    async def _stop(self, node: SharedNode) -> None:
        """A clean stop; the process ends by itself, or is killed after a while."""
        closing = self.loop.create_task(node.elected.close(), context=node.context)
        await asyncio.wait({closing}, timeout=3)
        self.kill(node)

    async def _failover(self) -> None:
        """A killed owner is replaced in time; nothing else fails meanwhile."""
        owner = next((node for node in self.nodes if node.elected.serving is not None), None)
        if owner is None:
            self.violations.append("L: no coordinator serves, without faults")
            return
        self.kill(owner)
        self.start()
        killed_s = self.loop.now
        while await self._read() is None:
            if self.loop.now > killed_s + FAILOVER_S:
                self.violations.append(f"L: not served again {self.loop.now - killed_s:.1f} s after the owner died")
                return
            await asyncio.sleep(0.05)

    # ---- clients

    async def _client(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.01, 0.5))
            if self.random.random() < 0.3:
                await self._write()
            else:
                await self._read()

    async def _write(self) -> None:
        self._names += 1
        name = f"n{self._names}"
        change = ConnectorChange(connector=name, config=(), expected_version=0)
        response = await self._ask(UpdateConnectorsRequest(group_id=GROUP, changes=(change,)))
        if isinstance(response, UpdateConnectorsResponse) and not response.error_code:
            self.acknowledged.add(name)

    async def _read(self) -> set[str] | None:
        """The connectors; null: no coordinator has responded."""
        before = set(self.acknowledged)
        response = await self._ask(DescribeRequest(group_ids=(GROUP,)))
        if not isinstance(response, DescribeResponse) or response.groups[0].error_code:
            return None
        found = {each.connector for each in response.groups[0].connectors}
        if not before <= found:
            self.violations.append(
                f"D5, D10: a read at {self.loop.now:.3f} s lacks what was acknowledged before: {sorted(before - found)}"
            )
        return found

    async def _ask(self, request: Request) -> Any:
        """Send a request to the coordinators in some order; return the first response without an error."""
        for node in self.random.sample(self.nodes, len(self.nodes)):
            if node.dead or (node.main.done() is False and node.elected.serving is None):
                continue
            asked = self.loop.create_task(self._handled(node, request), context=node.context)
            await asyncio.wait({asked}, timeout=8)
            if asked.done() and not asked.cancelled():
                response = asked.result()
                if not _code(response):
                    return response
        return None

    async def _handled(self, node: SharedNode, request: Request) -> Any:
        """Runs in the process of the coordinator; what it returns is sent at this moment."""
        try:
            response = await node.elected.handle(request, client_host="client")
        except Exception as error:
            self.violations.append(f"D8: {type(error).__name__}: {error}")
            raise
        if not _code(response):
            self._served(node, response)
        return response

    def _served(self, node: SharedNode, response: Any) -> None:
        now, epoch = self.loop.now, node.log.epoch
        owners = [each.name for each in self.nodes if each.owns_at(now)]
        if owners != [node.name]:
            self.violations.append(f"D4, D5: {node.name} responds at {now:.3f} s, owners are {owners}")
        if epoch < self.served:
            self.violations.append(
                f"D5: {node.name} responds at {now:.3f} s at epoch {epoch}, but epoch {self.served} has served"
            )
        self.served = max(self.served, epoch)


def _code(response: Any) -> int:
    if isinstance(response, DescribeResponse):
        return response.groups[0].error_code if response.groups else 0
    return int(response.error_code)


def run_shared(seed: int) -> SharedRun:
    """Run one seed; within ``loop.simulated``."""
    loop = SimulatedLoop()
    run = SharedRun(seed, loop)
    loop.set_exception_handler(
        lambda _, context: run.violations.append(f"D8: {context.get('message')}: {context.get('exception')!r}")
    )
    try:
        loop.run_until_complete(run.run())
        loop.set_exception_handler(lambda *_: None)
        run.database.faulty = False
        for node in (*run.dead, *run.nodes):
            node.thaw(loop)
        for _ in range(20):
            left = asyncio.all_tasks(loop)
            if not left:
                break
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=100))
    finally:
        loop.close()
    return run

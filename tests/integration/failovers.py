"""Coordinators of one log as processes, and many fail-overs of them, counted.

    python -m tests.integration.failovers --rounds 100 [--log kafka]

Three coordinators share a log in PostgreSQL, or in Kafka; two workers run idle tasks, which log each start and stop,
and a pipeline on Spark. Each round acknowledges a change, makes the coordinator that serves fail in one of the ways of
``KINDS``, and waits until one serves again. Counted are rows that are missing or doubled, changes that were
acknowledged and lost, and tasks that were started again or run on two workers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from connectgroup.testing.real_group import TcpProxy
from tests.spark.postgres_server import RestartableServer

from .commands import CONNECTOR, CommandGroup
from .processes import COMMAND, START_PATIENCE_S, Program, call_command, free_ports, marked, wait

if TYPE_CHECKING:
    from tests.consumer.broker import Broker

KINDS: Final = ("kill", "suspend", "stop", "cut", "database")
"""The coordinator that serves gets SIGKILL, or SIGSTOP and back, or SIGTERM, or loses its network to the database; or
the database (the broker) is killed and started again."""

SLICES: Final = 8
"""Slices of the source ``datagen``: the ids of slice n are n, n + 8, n + 16, ..."""


class Group(CommandGroup):
    """Repeats a change that no coordinator has served: a busy machine may cost the one that serves its lease."""

    def put_config(self, name: str, config: Mapping[str, str]) -> None:
        file = self.root / f"{name}.json"
        file.write_text(json.dumps({"name": name, "config": dict(config)}))
        wait(f"the change of connector {name}", lambda: self.run("connectors", "put", file).code == 0)


class Coordinators:
    """Coordinators of one log, by address. Each has a port that it keeps when it is started again.

    Args:
        logs: the URL of the log, as each of them reaches it.
        session_timeout_ms: of their groups.
        options: more options of ``connectgroup coordinator``.
    """

    def __init__(
        self, logs: Sequence[str], stack: ExitStack, *, session_timeout_ms: int, options: Sequence[str | int] = ()
    ) -> None:
        self._stack, self._session_timeout_ms, self._options = stack, session_timeout_ms, options
        self.running: dict[str, Program] = {}
        self._logs = {f"127.0.0.1:{port}": log for port, log in zip(free_ports(len(logs)), logs, strict=True)}
        for address in self._logs:
            self.start(address)

    def start(self, address: str) -> None:
        port = address.rpartition(":")[2]
        options = "--session-timeout-ms", self._session_timeout_ms, "--heartbeat-interval-ms", 1_000
        words = "coordinator", "--log", self._logs[address], "--port", port, *options, *self._options
        self.running[address] = program = self._stack.enter_context(Program(*words, command=COMMAND))
        program.line_with("coordinator at ")

    @property
    def addresses(self) -> str:
        return ",".join(self.running)

    def described(self) -> dict[str, Any]:
        """What ``coordinators list`` has; nothing if it fails."""
        done = call_command("coordinators", "list", "--json", "--coordinator", self.addresses)
        return dict(json.loads(done.out)) if not done.code else {"coordinators": [], "last_failover": None}

    def roles(self) -> dict[str, str]:
        """By address, of the coordinators that ``coordinators list`` has."""
        return {each["address"]: each["role"] for each in self.described()["coordinators"]}

    def owner(self) -> str:
        """The address of the one that serves."""
        return wait("one that serves", lambda: next((at for at, role in self.roles().items() if role == "serves"), ""))

    def owners(self) -> list[str]:
        """The addresses of the owners of all partitions of the log; empty: of one that has none."""
        found = self.described()
        owners = {each["partition"]: each["address"] for each in found["coordinators"] if each["role"] == "serves"}
        return [owners.get(number, "") for number in range(found.get("partitions", 0))]

    def wait_for_all(self) -> None:
        """Wait until one serves and all others stand by."""
        wait(
            "all coordinators",
            lambda: sorted(self.roles().values()) == ["serves"] + ["stands by"] * (len(self.running) - 1),
            self.output,
        )

    def said(self, before: dict[str, int], what: str) -> bool:
        """Whether one of them has logged what the expression matches, after so many lines."""
        lines = (line for address, program in self.running.items() for line in program.lines[before[address] :])
        return any(re.search(what, line) for line in lines)

    def output(self) -> str:
        return "\n".join(f"{address}:\n{program.output()}" for address, program in self.running.items())


class Cable:
    """The network between one coordinator and the database; ``cut`` loses all bytes until ``heal``."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._proxy = TcpProxy("127.0.0.1", port)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._proxy.start(), self._loop).result(60)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def port(self) -> int:
        return self._proxy.port

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.cut)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.heal)


class Failovers:
    """Three coordinators behind cables, a database, and a group of two workers with idle tasks; with ``with``.

    Attributes:
        group: its connector ``naps`` has the idle tasks that are counted, ``changes`` one task, which each change of
            its setting ``number`` restarts.
        took_ms: how long the fail-overs of each kind took; ``fail`` adds to it.
    """

    def __init__(
        self, root: Path, *, tasks: int, has_pipeline: bool, session_timeout_ms: int, log: str = "postgresql"
    ) -> None:
        self.root, self._has_pipeline, self._session_timeout_ms = root, has_pipeline, session_timeout_ms
        self._log = log
        self.group = Group(root, tasks=tasks)
        self.table = root / "rows.sqlite"
        self.took_ms: dict[str, list[int]] = {}
        self._changes = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        cables = self._start_on_kafka() if self._log == "kafka" else self._start_on_postgres()
        logs = list(cables)
        self.coordinators = Coordinators(logs, self._stack, session_timeout_ms=self._session_timeout_ms)
        self._cables = dict(zip(self.coordinators.running, cables.values(), strict=True))
        self.group.address = self.coordinators.addresses
        self.coordinators.wait_for_all()
        self.group.put(CONNECTOR, self.group.tasks)
        units = self.group.tasks + 1
        if self._has_pipeline:
            rows = {"source": "datagen", "source.rows.per.second": "500"}
            table = {"sink": "sqlite", "sink.path": str(self.table), "sink.table": "rows"}
            self.group.put_config("rows", {"connector.class": "pipeline", "tasks.max": "2", **rows, **table})
            units += 3
        options = "--allowed-path", self.root
        self.workers = [self._stack.enter_context(self.group.worker(name, *options)) for name in "ab"]
        stable = lambda: self.group.is_stable("a", "b", units=units)  # noqa: E731
        wait("all tasks on two workers", stable, self.output, START_PATIENCE_S)
        if self._has_pipeline:
            wait("rows", lambda: self.rows() > 1_000, self.output, START_PATIENCE_S)
        self._before = self._events()

    def _start_on_postgres(self) -> dict[str, Cable]:
        """Start a server; the cables to it by the URL of the log behind each."""
        self._server: RestartableServer | Broker = self._stack.enter_context(RestartableServer())
        head, port, database = re.fullmatch(r"(.*:)(\d+)(/.*)", self._server.url).groups()  # type: ignore[union-attr]
        cables = [self._stack.enter_context(Cable(int(port))) for _ in range(3)]
        return {f"{head}{cable.port}{database}": cable for cable in cables}

    def _start_on_kafka(self) -> dict[str, Cable]:
        """As ``_start_on_postgres``; the broker names the cable itself to the clients that come through it."""
        from tests.consumer.broker import running_broker

        cables = {port: self._stack.enter_context(Cable(port)) for port in free_ports(3)}
        proxied = {port: cable.port for port, cable in cables.items()}
        # A broker that is started again is let in when its former session has ended, after 9 s by default.
        more = "broker.session.timeout.ms=2000\nbroker.heartbeat.interval.ms=500\n"
        self._server = self._stack.enter_context(running_broker(more, proxied=proxied))
        return {f"kafka://127.0.0.1:{cable.port}/connectgroup-log": cable for cable in cables.values()}

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def output(self) -> str:
        workers = [line for each in self.workers for line in (f"worker {each.arguments}:", each.output())]
        return "\n".join([self.group.described(), *workers, self.coordinators.output()])

    def rows(self) -> int:
        """How many rows the pipeline has written."""
        return len(self._ids())

    def _ids(self) -> list[int]:
        with (
            contextlib.suppress(sqlite3.OperationalError),  # it does not exist yet
            contextlib.closing(sqlite3.connect(f"file:{self.table}?mode=ro", uri=True, timeout=60)) as database,
        ):
            return [row[0] for row in database.execute("SELECT id FROM rows")]
        return []

    def fail(self, kind: str) -> None:
        """One fail-over; returns when all coordinators are there again and the group is as it was."""
        self._changes += 1
        self.group.put("changes", 1, number=str(self._changes))
        owner, rows = self.coordinators.owner(), self.rows() if self._has_pipeline else 0
        program = self.coordinators.running[owner]
        with self._failed(kind, owner, program):
            if kind == "database":
                self.coordinators.wait_for_all()
            else:
                other = lambda: self.coordinators.owner() not in ("", owner)  # noqa: E731
                wait("another coordinator", other, self.output)
                took = wait("its groups", lambda: self.coordinators.described()["last_failover"], self.output)
                self.took_ms.setdefault(kind, []).append(took["took_ms"])
            wait("the change that was acknowledged", self._has_last_change, self.output)
            if self._has_pipeline:
                wait("more rows", lambda: self.rows() > rows, self.output)
        self.coordinators.wait_for_all()

    @contextlib.contextmanager
    def _failed(self, kind: str, owner: str, program: Program) -> Iterator[None]:
        """The fault begins; at the end of the block, what has failed is there again."""
        match kind:
            case "kill" | "stop":
                program.signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
                program.ended()
                yield
                self.coordinators.start(owner)
            case "suspend":
                program.signal(signal.SIGSTOP)
                yield
                program.signal(signal.SIGCONT)
            case "cut":
                self._cables[owner].cut()
                yield
                self._cables[owner].heal()
            case "database":
                self._server.kill()
                self._server.start()
                yield
            case _:
                raise AssertionError(kind)

    def _has_last_change(self) -> bool:
        done = self.group.run("connectors", "list", "--json")
        configs = {each["name"]: each["config"] for each in json.loads(done.out)} if not done.code else {}
        if done.code:
            return False
        found = configs.get("changes", {}).get("number")
        assert found == str(self._changes), f"the change {self._changes} is lost: {found}\n{self.output()}"
        return True

    def check(self) -> dict[str, int]:
        """Counts of what must not have happened since the beginning."""
        starts, stops = self._events()
        runs, ids = self.group.runs(), self._ids()
        slices = [[each for each in ids if each % SLICES == number] for number in range(SLICES)] if ids else []
        return {
            "rows missing": sum(max(each) // SLICES + 1 - len(set(each)) for each in slices if each),
            "rows doubled": len(ids) - len(set(ids)),
            "tasks started again": starts - self._before[0],
            "tasks stopped": stops - self._before[1],
            "tasks on two workers": sum(len(workers) > 1 for workers in runs.values()),
        }

    def _events(self) -> tuple[int, int]:
        """How often tasks of ``naps`` have started and stopped."""
        events = self.group.starts(), self.group.stops()
        starts, stops = (sum(unit.rpartition("-")[0] == CONNECTOR for _, unit in each) for each in events)
        return starts, stops

    def stop(self) -> None:
        """Stop the workers; then no more rows are written."""
        for worker in self.workers:
            worker.signal(signal.SIGTERM)
        for worker in self.workers:
            worker.ended()


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Run and count; 1 if anything was counted that must not happen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=300, help="idle tasks (300)")
    parser.add_argument("--log", choices=("postgresql", "kafka"), default="postgresql")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"in turn ({','.join(KINDS)})")
    parser.add_argument("--no-pipeline", action="store_true", help="idle tasks alone, without Spark")
    parser.add_argument("--session-timeout-ms", type=int, default=20_000, help="as docs/several-machines.md says")
    options = parser.parse_args(arguments)
    kinds = options.kinds.split(",")
    timeout = options.session_timeout_ms
    with (
        tempfile.TemporaryDirectory(prefix="connectgroup-failovers-") as root,
        marked(),
        Failovers(
            Path(root),
            tasks=options.tasks,
            has_pipeline=not options.no_pipeline,
            session_timeout_ms=timeout,
            log=options.log,
        ) as failovers,
    ):
        last: dict[str, int] = {}
        for number in range(options.rounds):
            kind, began = kinds[number % len(kinds)], time.monotonic()
            failovers.fail(kind)
            counted = failovers.check()
            bad = {what: count for what, count in counted.items() if count and what != "rows missing"}
            say(f"round {number + 1}: {kind}, {time.monotonic() - began:.1f} s, {bad or 'nothing'} to complain of")
            if bad != last:
                say(failovers.coordinators.output())
            last = bad
        counted = failovers.check()  # before the workers stop the tasks
        failovers.stop()
        rows = {what: count for what, count in failovers.check().items() if what.startswith("rows")}
        for kind, took in failovers.took_ms.items():
            middle, longest = statistics.median(took), max(took)
            say(f"{kind}: {len(took)} fail-overs, median {middle / 1000:.1f} s, at most {longest / 1000:.1f} s")
        result = {**counted, **rows}
        say(f"{failovers.rows():,} rows; " + ", ".join(f"{count} {what}" for what, count in result.items()))
    return 1 if any(result.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

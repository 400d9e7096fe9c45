"""Several coordinators on a log in PostgreSQL or Kafka: fail-overs leave all tasks where they run (D4, D5, F12, F13).

Every process is one that a user would start. The tasks are idle and log each start and stop, so that any interruption
is detected. Sessions are longer than the tests: a task that stops was stopped by a fail-over, not by its duration.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.postgres_server import RestartableServer, Unavailable, programs
from tests.volume import ci_only

from .commands import CommandGroup
from .processes import COMMAND, Program, call_command, free_ports, marked, wait
from .test_coordinator_restart import LOST, SESSION_TIMEOUT_MS

if TYPE_CHECKING:
    from tests.consumer.broker import Broker

pytest.importorskip("psycopg")
pytestmark = pytest.mark.processes

TASKS = 6
EXAMPLE = Path(__file__).parents[2] / "examples" / "ha.py"


@pytest.fixture(autouse=True)
def no_process_is_left_over() -> Iterator[None]:
    with marked():
        yield


class Group(CommandGroup):
    """Repeats a change that no coordinator has served: a busy machine may cost the one that serves its lease."""

    def put_config(self, name: str, config: Mapping[str, str]) -> None:
        file = self.root / f"{name}.json"
        file.write_text(json.dumps({"name": name, "config": dict(config)}))
        wait(f"the change of connector {name}", lambda: self.run("connectors", "put", file).code == 0)


class Coordinators:
    """Coordinators of one log, by address. Each has a port that it keeps when it is started again."""

    def __init__(self, log: str, count: int, stack: ExitStack) -> None:
        self._log, self._stack = log, stack
        self.running: dict[str, Program] = {}
        for port in free_ports(count):
            self.start(f"127.0.0.1:{port}")

    def start(self, address: str) -> None:
        port = address.rpartition(":")[2]
        options = "--session-timeout-ms", SESSION_TIMEOUT_MS, "--heartbeat-interval-ms", 1_000
        program = Program("coordinator", "--log", self._log, "--port", port, *options, command=COMMAND)
        self.running[address] = self._stack.enter_context(program)
        program.line_with("coordinator at ")

    @property
    def addresses(self) -> str:
        return ",".join(self.running)

    def roles(self) -> dict[str, str]:
        """By address, of the coordinators that ``coordinators list`` has."""
        done = call_command("coordinators", "list", "--json", "--coordinator", self.addresses)
        return {each["address"]: each["role"] for each in json.loads(done.out)["coordinators"]} if not done.code else {}

    def owner(self) -> str:
        """The address of the one that serves."""
        return wait("one that serves", lambda: next((at for at, role in self.roles().items() if role == "serves"), ""))

    def wait_for_all(self) -> None:
        """Wait until one serves and all others stand by."""
        wait(
            "all coordinators",
            lambda: sorted(self.roles().values()) == ["serves"] + ["stands by"] * (len(self.running) - 1),
        )

    def said(self, before: dict[str, int], what: str) -> bool:
        """Whether one of them has logged what the expression matches, after so many lines."""
        lines = (line for address, program in self.running.items() for line in program.lines[before[address] :])
        return any(re.search(what, line) for line in lines)

    def output(self) -> str:
        return "\n".join(f"{address}:\n{program.output()}" for address, program in self.running.items())


def test_tasks_run_on_through_every_kind_of_failover(tmp_path: Path, database: str) -> None:
    """SIGKILL, SIGSTOP and back, a clean stop; changes are possible after each."""
    run_through_every_kind_of_failover(tmp_path, database)


@ci_only("40 s of processor time; in a user's run, tests/log/test_kafka.py, and the same test on PostgreSQL")
def test_tasks_run_on_through_every_kind_of_failover_on_kafka(tmp_path: Path, broker: Broker) -> None:
    run_through_every_kind_of_failover(tmp_path, f"kafka://{broker.bootstrap}/log-{uuid.uuid4().hex}")


def run_through_every_kind_of_failover(tmp_path: Path, log: str) -> None:
    with ExitStack() as stack:
        coordinators = Coordinators(log, 3, stack)
        group = Group(tmp_path, tasks=TASKS)
        group.address = coordinators.addresses
        coordinators.wait_for_all()
        group.put("naps", TASKS)
        a, b = (stack.enter_context(group.worker(name)) for name in "ab")

        def output() -> str:
            return "\n".join(
                [group.described(), "worker a:", a.output(), "worker b:", b.output(), coordinators.output()]
            )

        wait("all tasks on two workers", lambda: group.is_stable("a", "b"), output)
        starts, stops, units = group.starts(), group.stops(), TASKS + 1
        for number, kind in enumerate((signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)):
            shown, explained = group.described(), group.explained()
            owner = coordinators.owner()
            program = coordinators.running[owner]
            program.signal(kind)
            if kind is not signal.SIGSTOP:
                assert program.ended() == (-signal.SIGKILL if kind is signal.SIGKILL else 0), output()
            wait("the group as it was", partial(same, group, shown), output)
            successor = coordinators.owner()
            assert successor != owner, kind
            wait("the history of rebalances, which is kept", partial(is_explained, group, explained), output)

            # The workers are connected to the new one: a change reaches both.
            group.put(f"more-{number}", 2)
            units += 3
            wait("the new tasks", partial(group.is_stable, "a", "b", units=units), output)
            if kind is signal.SIGSTOP:
                program.signal(signal.SIGCONT)
                program.line_with("no longer the coordinator, stands by: ")
            else:
                coordinators.start(owner)
            coordinators.wait_for_all()

        moved = [unit for _, unit in group.starts()[len(starts) :] if unit.startswith("naps")]
        assert moved == [], output()
        assert group.stops() == stops, "not one task stopped"
        assert all(len(workers) == 1 for workers in group.runs().values()), "no task runs twice"
        assert not [line for line in a.lines + b.lines if LOST.search(line)], output()
        for worker in a, b:
            worker.signal(signal.SIGTERM)
        for worker in a, b:
            assert worker.ended() == 0, output()


def is_explained(group: CommandGroup, lines: list[str]) -> bool:
    """Whether the rebalances of a group are explained as before."""
    return group.explained() == lines


def same(group: CommandGroup, shown: str) -> bool:
    """Whether a group is described as it was."""
    return group.described() == shown


def test_tasks_run_on_while_the_database_is_away(tmp_path: Path) -> None:
    """Nothing can be changed meanwhile, and a command says so; afterwards, one of the coordinators serves again."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(RestartableServer())
        except Unavailable as missing:
            pytest.skip(str(missing))
        run_while_the_database_is_away(tmp_path, server.url, server, "cannot connect")


@ci_only("30 s of processor time; in a user's run, tests/log/test_kafka.py, and the same test on PostgreSQL")
def test_tasks_run_on_while_the_broker_is_away(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
    from tests.consumer import broker as kafka

    with ExitStack() as stack:
        try:
            broker = stack.enter_context(kafka.running_broker())
        except kafka.Unavailable as missing:
            pytest.skip(str(missing))
        log = f"kafka://{broker.bootstrap}/connectgroup-log"
        run_while_the_database_is_away(tmp_path, log, broker, "lease has expired")


def run_while_the_database_is_away(tmp_path: Path, log: str, server: RestartableServer | Broker, problem: str) -> None:
    """``problem``: what the coordinator that served says, as a regular expression."""
    with ExitStack() as stack:
        coordinators = Coordinators(log, 2, stack)
        group = Group(tmp_path, tasks=TASKS)
        group.address = coordinators.addresses
        coordinators.wait_for_all()
        group.put("naps", TASKS)
        a = stack.enter_context(group.worker("a"))

        def output() -> str:
            return "\n".join([group.described(), "worker a:", a.output(), coordinators.output()])

        wait("all tasks", lambda: group.is_stable("a"), output)
        shown, starts = group.described(), group.starts()
        before = {address: len(program.lines) for address, program in coordinators.running.items()}
        server.kill()
        # Of whichever serves then: the lease may have changed hands on a busy machine.
        said = partial(coordinators.said, before, "no longer the coordinator, stands by: .*" + problem)
        wait("the one that served to stand by, and why", said, output)
        refused = group.run("connectors", "pause", "naps")
        assert refused.code != 0, refused.out
        server.start()

        wait("the group as it was", lambda: same(group, shown), output)
        group.put("more", 2)
        wait("the new tasks", lambda: group.is_stable("a", units=TASKS + 4), output)
        assert [unit for _, unit in group.starts()[len(starts) :] if unit.startswith("naps")] == [], output()
        assert group.stops() == []
        assert not [line for line in a.lines if LOST.search(line)], output()


@ci_only("two Spark sessions, a minute of processor time; the tests above have the fail-overs under idle tasks")
def test_example_counts_every_row_of_a_pipeline_through_failovers(tmp_path: Path) -> None:
    try:
        programs()
    except Unavailable as missing:
        pytest.skip(str(missing))
    words = "--workers", "2", "--kills", "2", "--data", str(tmp_path / "data")
    with Program(EXAMPLE, *words, command=[sys.executable]) as example:
        assert example.ended() == 0, example.output()
        assert example.line_with("no task was moved or started again")
        assert example.line_with(" rows: 0 missing, 0 doubled")

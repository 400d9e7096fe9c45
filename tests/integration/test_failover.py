"""Several coordinators on a log in PostgreSQL or Kafka: fail-overs leave all tasks where they run (D4, D5, F12, F13).

Every process is one that a user would start. The tasks are idle and log each start and stop, so that any interruption
is detected. Sessions are longer than the tests: a task that stops was stopped by a fail-over, not by its duration.
"""

from __future__ import annotations

import signal
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connectgroup.protocol.units import partition_of
from tests.spark.postgres_server import RestartableServer, Unavailable, programs
from tests.volume import ci_only

from .commands import CommandGroup
from .failovers import Coordinators, Failovers, Group
from .processes import START_PATIENCE_S, Program, call_command, marked, wait
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


def test_tasks_run_on_through_every_kind_of_failover(tmp_path: Path, database: str) -> None:
    """SIGKILL, SIGSTOP and back, a clean stop; changes are possible after each."""
    run_through_every_kind_of_failover(tmp_path, database)


@ci_only("40 s of processor time; in a user's run, tests/log/test_kafka.py, and the same test on PostgreSQL")
def test_tasks_run_on_through_every_kind_of_failover_on_kafka(tmp_path: Path, broker: Broker) -> None:
    run_through_every_kind_of_failover(tmp_path, f"kafka://{broker.bootstrap}/log-{uuid.uuid4().hex}")


def run_through_every_kind_of_failover(tmp_path: Path, log: str) -> None:
    with ExitStack() as stack:
        coordinators = Coordinators([log] * 3, stack, session_timeout_ms=SESSION_TIMEOUT_MS)
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


@ci_only("10 s of processor time; in a user's run, tests/log/test_partitions.py has the coordinators in one process")
def test_coordinators_serve_the_partitions_of_a_log_together_and_for_each_other(tmp_path: Path, database: str) -> None:
    """A coordinator is killed, comes back, and another one stops: all groups are served, and no task is started
    again."""
    run_with_partitions(tmp_path, database, 8)


@ci_only("30 s of processor time; in a user's run, tests/log/test_kafka.py and tests/log/test_partitions.py")
def test_coordinators_serve_the_partitions_of_a_topic_together(tmp_path: Path, broker: Broker) -> None:
    run_with_partitions(tmp_path, f"kafka://{broker.bootstrap}/log-{uuid.uuid4().hex}", 4)


def run_with_partitions(tmp_path: Path, log: str, partitions: int) -> None:
    with ExitStack() as stack:
        options = "--partitions", partitions
        coordinators = Coordinators([log] * 2, stack, session_timeout_ms=SESSION_TIMEOUT_MS, options=options)

        def are_balanced() -> bool:
            counts = Counter(coordinators.owners())
            return [counts[address] for address in coordinators.running] == [partitions // 2] * 2

        wait("both own as many partitions", are_balanced, coordinators.output, START_PATIENCE_S)
        owners = coordinators.owners()
        names = [f"sleepers-{number}" for number in range(100)]
        groups, workers = [], []
        for address in coordinators.running:  # a group of each
            name = next(each for each in names if owners[partition_of(each, partitions)] == address)
            root = tmp_path / name
            root.mkdir()
            group = Group(root, tasks=TASKS, name=name)
            group.address = coordinators.addresses
            workers.append(stack.enter_context(group.worker("a")))  # creates the group
            wait("the group", partial(exists, group), coordinators.output)
            group.put("naps", TASKS)
            groups.append(group)

        def output() -> str:
            shown = [group.described() for group in groups] + [worker.output() for worker in workers]
            return "\n".join([*shown, coordinators.output()])

        for group in groups:
            wait("all tasks", partial(group.is_stable, "a"), output)
        starts = [group.starts() for group in groups]
        first, second = coordinators.running
        for number, (address, kind) in enumerate(((first, signal.SIGKILL), (second, signal.SIGTERM))):
            program, other = coordinators.running[address], second if address == first else first
            program.signal(kind)
            assert program.ended() == (-signal.SIGKILL if kind is signal.SIGKILL else 0), output()
            wait("one that owns all", partial(owns_all, coordinators, other), output)
            for group in groups:
                group.put(f"more-{number}", 1)
                wait("the new task", partial(group.is_stable, "a", units=TASKS + 3 + 2 * number), output)
            listed = call_command("groups", "list", "--coordinator", coordinators.addresses)
            assert all(group.name in listed.out for group in groups), listed
            coordinators.start(address)
            wait("both own as many partitions again", are_balanced, output, START_PATIENCE_S)

        for group, before, worker in zip(groups, starts, workers, strict=True):
            wait("all tasks", partial(group.is_stable, "a", units=TASKS + 5), output)
            assert [unit for _, unit in group.starts()[len(before) :] if unit.startswith("naps")] == [], output()
            assert group.stops() == [], "not one task stopped"
            assert not [line for line in worker.lines if LOST.search(line)], output()
            worker.signal(signal.SIGTERM)
        for worker in workers:
            assert worker.ended() == 0, output()


def exists(group: CommandGroup) -> bool:
    return group.run("groups", "describe").code == 0


def owns_all(coordinators: Coordinators, address: str) -> bool:
    return set(coordinators.owners()) == {address}


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
        coordinators = Coordinators([log] * 2, stack, session_timeout_ms=SESSION_TIMEOUT_MS)
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


@ci_only("10 s of processor time; in a user's run, the other faults above, and tests/log/test_election.py")
def test_tasks_run_on_when_the_owner_is_cut_off_from_the_database(tmp_path: Path) -> None:
    """``python -m tests.integration.failovers`` does it, and each other kind, many times under a pipeline."""
    try:
        programs()
    except Unavailable as missing:
        pytest.skip(str(missing))
    with Failovers(tmp_path, tasks=TASKS, has_pipeline=False, session_timeout_ms=SESSION_TIMEOUT_MS) as failovers:
        failovers.fail("cut")
        assert not any(failovers.check().values()), failovers.output()


@ci_only("two Spark sessions, a minute of processor time; the tests above have the fail-overs under idle tasks")
def test_example_counts_every_row_of_a_pipeline_through_failovers(tmp_path: Path) -> None:
    try:
        programs()
    except Unavailable as missing:
        pytest.skip(str(missing))
    words = "--workers", "2", "--kills", "2", "--data", str(tmp_path / "data")
    with Program(EXAMPLE, *words, command=[sys.executable]) as example:
        assert example.ended(400) == 0, example.output()
        assert example.line_with("no task was moved or started again")
        assert example.line_with(" rows: 0 missing, 0 doubled")

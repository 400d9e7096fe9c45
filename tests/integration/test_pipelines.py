"""Pipelines between all kinds of systems under faults of real processes: every row is in the sink once (X1-X4, X8).

A coordinator and two workers run as a user would start them; each worker connects through a proxy. In each round of a
pipeline a worker that runs one of its tasks is killed, suspended beyond its session, cut off from the coordinator, or
restarted; or its Java process is killed; or none of its files can be written; or the number of tasks changes; or
the coordinator is killed and started again. Rows flow all the time, hard texts and records that must be dead letters
among them. The soak has 100 rounds.

Beside it run tasks that are not fenced: none of them ever runs on two workers at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.task_log import Death, overlaps
from connectgroup.dataplane.java_plugins import PLUGIN_PATH as JAVA_PLUGINS
from connectgroup.testing.real_group import TcpProxy
from connectgroup.transport.credentials import FILE_NAME
from tests.spark.conftest import kafka as kafka
from tests.spark.java_plugins import debezium as debezium, java_plugin_path as java_plugin_path
from tests.volume import SIZE, ci_only, volume

from . import pipelines as kinds
from .cluster import PLUGINS, plugin_path, thread_states
from .commands import CONNECTOR, CommandGroup
from .flow import compare
from .processes import MARK, START_PATIENCE_S, Program, family, marked, programs, wait

pytestmark = [
    pytest.mark.processes,
    ci_only("minutes of a core; in a user's run, test_faults and test_coordinator_restart have these faults"),
]

FAULTS = ("SIGKILL", "SIGSTOP", "bounce", "rescale", "coordinator", "java", "network", "disk")
PIPELINES = (
    "files-postgres",
    "postgres-files",
    "kafka-kafka",
    "kafka-sqlite",
    "kafka-files",
    "iterator-files",
    "debezium-postgres",
    # In the soak alone: the sinks are those of other pipelines, and the source that of the one above.
    *(("debezium-files", "debezium-kafka", "filestream-sqlite") if SIZE == "soak" else ()),
)
SNAPSHOT_ROWS = volume(0, 0, 30_000)
"""Rows of a table before Debezium reads it."""
ROUNDS = int(os.environ.get("CONNECTGROUP_ROUNDS") or volume(1, 1, 20))


class Proxies:
    """A proxy between each worker and the coordinator, on an event loop of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        self._proxies: dict[str, TcpProxy] = {}

    def add(self, worker: str, address: str) -> str:
        """Start the proxy of a worker; return its address."""
        host, _, port = address.rpartition(":")
        self._proxies[worker] = proxy = TcpProxy(host, int(port))
        asyncio.run_coroutine_threadsafe(proxy.start(), self._loop).result(30)
        return f"127.0.0.1:{proxy.port}"

    def cut(self, worker: str) -> None:
        """Lose all bytes of this worker."""
        self._loop.call_soon_threadsafe(self._proxies[worker].cut)

    def heal(self, worker: str) -> None:
        """Undo ``cut``."""
        self._loop.call_soon_threadsafe(self._proxies[worker].heal)

    def close(self) -> None:
        for proxy in self._proxies.values():
            asyncio.run_coroutine_threadsafe(proxy.close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)


class Group:
    """The processes of a group with two workers."""

    def __init__(self, root: Path) -> None:
        settings = ("--session-timeout-ms", 4_000, "--heartbeat-interval-ms", 1_000, "--rebalance-delay-ms", 1_000)
        self.commands = CommandGroup(root, *settings)
        self.workers: dict[str, Program] = {}
        self._started = 0
        self._processes = contextlib.ExitStack()
        self.proxies = Proxies()
        self._processes.callback(self.proxies.close)
        self.coordinator = self._processes.enter_context(self.commands.coordinator())
        # No weight, which the assignor ``weighted`` obeys: both workers have tasks of the pipeline.
        self.commands.put(CONNECTOR, self.commands.tasks, **{"assignment.task.weight": "0"})

    def start_worker(self) -> str:
        """Start a worker; return its name. It joins when its Spark session has started."""
        self._started += 1
        name = f"w{self._started}"
        # There is no note with the credentials for the port of a proxy.
        options = ("--credentials", self.commands.root / "data" / FILE_NAME, "--assignor", "weighted")
        through = self.proxies.add(name, self.commands.address)
        self.workers[name] = self._processes.enter_context(self.commands.worker(name, *options, address=through))
        return name

    def wait(self, what: str, until: Callable[[], object]) -> None:
        wait(what, until, self.output, START_PATIENCE_S)

    def tasks_of(self, connector: str) -> dict[str, str]:
        """The worker of each task of a connector that is RUNNING."""
        placed = self.commands.placement()
        return {unit: worker for unit, worker in placed.items() if re.fullmatch(rf"{connector}-\d+", unit)}

    def is_member(self, worker: str) -> bool:
        return re.search(rf"^worker {worker} ", self.commands.described(), re.MULTILINE) is not None

    def restart_coordinator(self) -> None:
        """SIGKILL, and a new process with the same data and port."""
        self.coordinator.signal(signal.SIGKILL)
        self.coordinator.ended()
        self.coordinator = self._processes.enter_context(self.commands.coordinator())

    def overlaps(self) -> list[str]:
        """The starts of tasks without fencing that still ran on another worker."""
        self.commands.log.poll()
        return overlaps(self.commands.log.runs)

    def has_stopped(self, worker: str) -> None:
        """A worker is about to be killed, or is suspended and will stop its tasks once it is resumed: none runs now."""
        self.commands.log.deaths.append(Death(at_ns=time.time_ns(), member_id=worker))

    def output(self) -> str:
        lines = [f"{name} | {line}" for name, worker in self.workers.items() for line in worker.lines[-15:]]
        return "\n".join([self.commands.described(), *lines])

    def close(self) -> None:
        self._processes.close()


@pytest.fixture(scope="module")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with pytest.MonkeyPatch.context() as patched, marked():
        patched.setenv("PYTHONPATH", plugin_path())
        patched.setenv(JAVA_PLUGINS, str(tmp_path_factory.mktemp("java-plugins")))
        patched.setattr(sys, "path", [*sys.path, str(PLUGINS)])
        made = Group(tmp_path_factory.mktemp("pipelines"))
        try:
            yield made
        finally:
            made.close()


def server(name: str, request: pytest.FixtureRequest) -> str:
    """The address of a server, which lives longer than the group's processes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv(MARK)
        return str(request.getfixturevalue(name))


def make_flow(name: str, root: Path, request: pytest.FixtureRequest) -> kinds.Flow:
    """A pipeline by its name; servers are started for those that need them."""
    source, _, sink = name.partition("-")
    feeder: kinds.Feeding
    match source:
        case "files":
            feeder = kinds.FileFeeder(root / "source")
            settings = kinds.from_files(feeder)
        case "postgres":
            url = server("postgres", request)
            feeder = kinds.TableFeeder(root / "source", url, "source_rows")
            settings = kinds.from_table(url, "source_rows")
        case "debezium":
            url = server("postgres", request)
            jars = Path(server("debezium", request), "debezium-postgres-3.6.1")
            shutil.copytree(jars, Path(os.environ[JAVA_PLUGINS], jars.name), dirs_exist_ok=True)
            table = f"changes_{sink}"
            feeder = kinds.TableFeeder(root / "source", url, table)
            settings = kinds.from_changes(url, table)
            if sink == "kafka":
                settings["metadata"] = "key"  # not the topic that Debezium names
        case "filestream":
            shutil.copytree(
                Path(server("java_plugin_path", request), "file-stream"),
                Path(os.environ[JAVA_PLUGINS], "file-stream"),
                dirs_exist_ok=True,
            )
            lines = kinds.LineFeeder(root / "source")
            feeder, settings = lines, kinds.from_lines(lines.path)
        case "kafka":
            bootstrap = server("kafka", request)
            # Without dead letters, files of records are written without Java.
            feeder = kinds.TopicFeeder(root / "source", bootstrap, f"in-{name}", with_bad=sink != "files")
            settings = kinds.from_topic(bootstrap, f"in-{name}")
        case _:
            counts = kinds.CountFeeder(root / "source")
            feeder, settings = counts, {"": "counted", "path": str(counts.path)}
    match sink:
        case "postgres":
            flow: kinds.Flow = kinds.IntoPostgres(name, root, server("postgres", request), feeder, settings)
        case "kafka":
            flow = kinds.IntoKafka(name, root, server("kafka", request), feeder, settings)
        case _:
            flow = kinds.Flow(name, root, "parquet" if sink == "files" else sink, feeder, settings)
    if source in ("files", "kafka") and name != "kafka-files":
        flow.tolerate(f"dead_{name.replace('-', '_')}")
    return flow


@pytest.mark.timeout(300 + 120 * ROUNDS)
@pytest.mark.parametrize("name", PIPELINES)
def test_pipeline_loses_and_duplicates_no_row(
    process_group: Group, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With TEST_VOLUME=ci, ``CONNECTGROUP_ROUNDS`` sets the number of rounds of each pipeline."""
    group = process_group
    faults = faults_of(name)
    flow = make_flow(name, tmp_path, request)
    feeder = flow.feeder
    if source_of(name) == "debezium":
        feeder.write(SNAPSHOT_ROWS)
    group.commands.put_config(name, flow.config)
    while len(group.workers) < 2:
        group.start_worker()
    try:
        # Rows of a snapshot are in the sink when it is complete; it begins anew after each fault but the last.
        while SNAPSHOT_ROWS and source_of(name) == "debezium":
            group.wait("the task", lambda: group.tasks_of(name))
            if flow.count():
                break
            fault = next(faults)
            print(f"in the snapshot: {fault}")
            inject(fault, group, flow, group.tasks_of(name)[f"{name}-0"])
        feeder.flow()
        wait_for_rows(group, flow, 1_000)
        for number in range(ROUNDS):
            fault = next(faults)
            on_both = min(2, flow.tasks)
            group.wait("tasks on both workers", lambda: len(set(group.tasks_of(name).values())) == on_both)  # noqa: B023
            victim = random.Random(number).choice(sorted(group.tasks_of(name).values()))
            print(f"round {number + 1} of {ROUNDS}: {fault}, {victim}, {feeder.written} rows written")
            inject(fault, group, flow, victim)
            wait_for_rows(group, flow, 500)
        feeder.close()
        group.wait("all rows", lambda: flow.count() >= feeder.written)
        assert group.commands.run("connectors", "delete", name, "--wait").code == 0
        compare(flow, feeder.written, feeder.row)
        assert (flow.dead_letters() if feeder.bad else 0) == feeder.bad
        assert group.overlaps() == []
        print(f"{name}: {ROUNDS} rounds, {feeder.written} rows: 0 lost, 0 duplicated; {feeder.bad} dead letters")
    finally:
        feeder.close()
        flow.close()


def source_of(name: str) -> str:
    """The kind of the source of a pipeline."""
    return name.partition("-")[0]


def faults_of(name: str) -> Iterator[str]:
    """The faults of a pipeline: all of them in a random order, and again. Pipelines begin with different ones."""
    order = random.Random(os.environ.get("CONNECTGROUP_SEED", "1"))
    kinds = list(FAULTS[PIPELINES.index(name) :] + FAULTS[: PIPELINES.index(name)])
    while True:
        yield from kinds
        order.shuffle(kinds)


def inject(fault: str, group: Group, flow: kinds.Flow, victim: str) -> None:
    """Inject one fault; return when two workers are members and the tasks are assigned again."""
    worker = group.workers[victim]
    match fault:
        case "SIGKILL":
            group.has_stopped(victim)
            worker.kill()
            del group.workers[victim]
            group.start_worker()
        case "SIGSTOP":
            suspend(group, worker)
            group.has_stopped(victim)
            # A process that is suspended in a transaction of SQLite blocks every other writer, which is another test.
            # Its session may end while this looks; what it runs between two of these signals is the test's doing.
            while flow.is_locked():
                worker.signal(signal.SIGCONT)
                time.sleep(0.05)
                suspend(group, worker)
                group.has_stopped(victim)
            group.wait(f"the end of {victim}'s session", lambda: not group.is_member(victim))
            flow_on(group, flow)
            worker.signal(signal.SIGCONT)
        case "bounce":
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0, worker.output()
            del group.workers[victim]
            group.start_worker()
        case "rescale" if flow.tasks > 1:
            flow.tasks = 5 - flow.tasks
            group.commands.put_config(flow.name, flow.config | {"tasks.max": str(flow.tasks)})
        case "java":
            processes = java_of(worker)
            assert processes or flow.name == "iterator-files"
            for pid in processes:
                os.kill(pid, signal.SIGKILL)
        case "network":
            group.proxies.cut(victim)
            group.wait(f"the end of {victim}'s session", lambda: not group.is_member(victim))
            flow_on(group, flow)
            group.proxies.heal(victim)
        case "disk":
            full_disk(group, worker)
        case _:
            group.restart_coordinator()
    group.wait("two workers", lambda: all(map(group.is_member, group.workers)))
    group.wait(f"{flow.tasks} tasks", lambda: len(group.tasks_of(flow.name)) == flow.tasks)


def java_of(worker: Program) -> list[int]:
    """The Java processes of a worker; none if its tasks need no Spark."""
    return [pid for pid, command in programs(worker.pid).items() if re.match(r"\S*java ", command)]


def full_disk(group: Group, worker: Program) -> None:
    """No file of the worker, its Java process or its Python processes can be written, until a task has failed."""
    before = len(worker.lines)
    try:
        for pid in (worker.pid, *family(worker.pid)):
            limit_files(pid, 0)
        group.wait("a task that fails", lambda: any(" failed: " in line for line in worker.lines[before:]))
    finally:
        # A process that has been started meanwhile has inherited the limit.
        for _ in range(2):
            for pid in (worker.pid, *family(worker.pid)):
                limit_files(pid, None)


def limit_files(pid: int, size: int | None) -> None:
    """Set the largest size of the files that a process writes; none if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most if size is None else size, most))


def suspend(group: Group, worker: Program) -> None:
    """SIGSTOP; return when all threads have stopped."""
    worker.signal(signal.SIGSTOP)
    group.wait("the process to stop", lambda: thread_states(worker.pid) == {"T"})


def flow_on(group: Group, flow: kinds.Flow) -> None:
    """Wait until the other worker has committed rows, or a snapshot if none are being written."""
    if flow.feeder.is_flowing:
        wait_for_rows(group, flow, 200)
    else:
        group.wait("the snapshot", flow.count)


def wait_for_rows(group: Group, flow: kinds.Flow, rows: int) -> None:
    """Wait until this number of further rows has been written, and all of them are in the sink."""
    due = flow.feeder.written + rows
    group.wait(f"{due} rows written", lambda: flow.feeder.written >= due)
    group.wait(f"{due} rows in the sink", lambda: flow.count() >= due)

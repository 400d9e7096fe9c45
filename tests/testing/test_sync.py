"""``connectgroup.sync``: groups in programs without asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

import connectgroup
from connectgroup import (
    ConfigError,
    Grant,
    GroupIdNotFound,
    MemberSettings,
    TcpClient,
    Unit,
    Units,
    WorkerRebalanceListener,
    load_assignor,
)
from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.coordinator.server import CoordinatorServer

from .test_worker_group import Echo

IDLE = {"connector.class": "idle", "tasks.max": "4"}


class Recorder(WorkerRebalanceListener):
    """Records the units that its worker owns."""

    def __init__(self) -> None:
        self.units: set[str] = set()

    def on_assigned(self, units: Units, epoch: int) -> None:
        self.units |= set(map(str, units))

    def on_revoked(self, units: Units, epoch: int) -> None:
        self.units -= set(map(str, units))


def running(group: connectgroup.sync.Group, units: int) -> dict[str, str]:
    """Wait until this many units run; return their workers."""

    def all_run(described: connectgroup.DescribedGroup) -> bool:
        states = [unit.state for connector in described.connectors for unit in connector.units]
        return described.state == "Stable" and states.count("RUNNING") == units

    described = group.admin.wait_until(group.group_id, all_run, what="running")
    return {f"{c.connector}-{unit.task}": unit.member_id for c in described.connectors for unit in c.units}


def test_group_runs_while_the_block_runs_and_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    recorders = {name: Recorder() for name in ("ann", "bob")}
    with connectgroup.sync.worker_group(
        "mine", workers=["ann", "bob"], connectors={"letters": IDLE}, listeners=lambda name: [recorders[name]]
    ) as group:
        assert group.workers == ("ann", "bob")
        assert set(running(group, 5).values()) == {"ann", "bob"}
        group.stop_worker("ann")
        assert set(running(group, 5).values()) == {"bob"}
        assert recorders["ann"].units == set()
        assert len(recorders["bob"].units) == 5
        group.add_worker("cid", assignors=["weighted", "balanced"])
        group.admin.add_connector("mine", "numbers", IDLE)
        assert set(running(group, 10).values()) == {"bob", "cid"}
        assert group.describe().group_id == "mine"
    assert recorders["bob"].units == set()
    assert not [thread for thread in set(threading.enumerate()) - before if "group mine" in thread.name]
    with pytest.raises(RuntimeError, match="the block has ended"):
        group.describe()


def test_several_groups_in_one_process_are_independent() -> None:
    with (
        connectgroup.sync.worker_group("one", connectors={"letters": IDLE}) as one,
        connectgroup.sync.worker_group("two", connectors={"numbers": IDLE}) as two,
    ):
        assert [c.connector for c in one.wait_stable().connectors] == ["letters"]
        assert [c.connector for c in two.wait_stable().connectors] == ["numbers"]
        with pytest.raises(GroupIdNotFound):
            one.admin.describe("two")


def test_error_of_the_block_stops_the_group_and_is_raised() -> None:
    recorder = Recorder()

    def program() -> None:
        with connectgroup.sync.worker_group("mine", connectors={"a": IDLE}, listeners=lambda name: [recorder]) as group:
            running(group, 5)
            raise KeyError("the program")

    with pytest.raises(KeyError, match="the program"):
        program()
    assert recorder.units == set()


def test_error_at_the_start_is_raised_by_the_with_statement() -> None:
    with pytest.raises(ConfigError, match="nosuch"), connectgroup.sync.worker_group("mine", assignors=["nosuch"]):
        pytest.fail("the block must not run")


@contextmanager
def served() -> Iterator[str]:
    """A coordinator with a TCP port in a thread of its own; yields its address."""
    ready: Future[tuple[str, Callable[[], object]]] = Future()

    async def serve() -> None:
        server, stop = CoordinatorServer(checked(CoordinatorConfig, {"port": 0})), asyncio.Event()
        await server.start()
        loop = asyncio.get_running_loop()
        ready.set_result((server.address, lambda: loop.call_soon_threadsafe(stop.set)))
        await stop.wait()
        await server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    address, stop = ready.result(60)
    try:
        yield address
    finally:
        stop()
        thread.join()


def test_admin_and_worker_of_a_coordinator_elsewhere() -> None:
    recorder = Recorder()
    with served() as address, connectgroup.sync.admin(address) as admin:
        admin.add_connector("g", "letters", IDLE)
        host, _, port = address.rpartition(":")
        with connectgroup.sync.worker(
            MemberSettings(group_id="g", member_id="w"),
            lambda: TcpClient(host, int(port)),
            assignors=[load_assignor("balanced")],
            listeners=[recorder],
        ):
            admin.wait_until("g", lambda group: bool(recorder.units), what="assigned")
        assert recorder.units == set()
        assert admin.wait_stable("g").members == ()


def test_call_on_the_event_loop_is_an_error_and_does_not_hang() -> None:
    errors: list[str] = []

    class Runner:
        async def start(self, grants: Sequence[Grant]) -> None:
            try:
                group.describe()
            except RuntimeError as error:
                errors.append(str(error))

        async def stop(self, units: frozenset[Unit]) -> None:
            pass

    with connectgroup.sync.worker_group("mine", workers=0, connectors={"letters": IDLE}) as group:
        group.add_worker("w", runner=Runner())
        group.wait_stable()
        group.admin.wait_until("mine", lambda _: bool(errors), what="called")
    assert "would wait for itself" in errors[0]


def test_connector_may_be_a_class_of_the_program() -> None:
    with connectgroup.sync.worker_group(
        "mine", connectors={"mine": {"connector.class": Echo, "tasks.max": 1}}
    ) as group:
        described = group.admin.wait_running("mine", "mine")
    assert [unit.state for unit in described.units] == ["RUNNING", "RUNNING"]


class Blocking:
    """A runner with plain methods; it publishes two tasks and reports what runs."""

    def __init__(self, worker: connectgroup.sync.Worker) -> None:
        self.worker, self.running = worker, set[Unit]()

    def start(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            if grant.unit.is_connector:
                self.worker.publish_tasks(grant.unit.connector, grant.owner_epoch, [{}, {}])
            self.running.add(grant.unit)
            status = connectgroup.TaskStatus(
                connector=grant.unit.connector,
                task=grant.unit.task,
                owner_epoch=grant.owner_epoch,
                state=connectgroup.UnitState.RUNNING,
            )
            self.worker.report(status)

    def stop(self, units: Units) -> None:
        self.running -= units


def test_worker_with_a_blocking_runner_reports_publishes_and_tells_its_end() -> None:
    runners: list[Blocking] = []

    def make(worker: connectgroup.sync.Worker) -> Blocking:
        runners.append(Blocking(worker))
        return runners[-1]

    settings = MemberSettings(group_id="g", member_id="w")
    times = connectgroup.WorkerSettings(call_timeout_s=10)
    with served() as address, connectgroup.sync.admin(address, access=connectgroup.Access()) as admin:
        admin.add_connector("g", "letters", IDLE)
        with connectgroup.sync.worker(
            settings,
            address,
            assignors=[load_assignor("balanced")],
            runner=make,
            times=times,
            access=connectgroup.Access(),
        ) as worker:
            assert len(admin.wait_running("g", "letters").units) == 3
            assert worker.member_id == "w"
            assert worker.state.joined
            assert worker.state.owned == runners[0].running == {Unit("letters"), Unit("letters", 0), Unit("letters", 1)}
            with pytest.raises(connectgroup.TimedOut, match=r"worker w: has not ended within 0.01 s"):
                worker.wait_stopped(timeout_s=0.01)
            admin.drain_worker("g", "w")
            with connectgroup.sync.worker(settings_of("x"), address, assignors=[load_assignor("balanced")]):
                assert worker.wait_stopped(timeout_s=60) is connectgroup.StopReason.DRAINED
            assert worker.wait_stopped() is connectgroup.StopReason.DRAINED
        assert worker.state.ended is connectgroup.StopReason.DRAINED
        assert not runners[0].running


def settings_of(name: str) -> MemberSettings:
    return MemberSettings(group_id="g", member_id=name)


def test_served_worker_is_restarted_and_stopped_from_another_thread() -> None:
    class Printer(connectgroup.ThreadUnitRunner):
        def start_unit(self, grant: Grant) -> None:
            if grant.unit.is_connector:
                self.publish(grant.unit.connector, [{}])

        def stop_unit(self, unit: Unit) -> None:
            pass

    workers: list[connectgroup.sync.Worker] = []
    ended: list[connectgroup.StopReason] = []

    def serve(address: str) -> None:
        ended.append(
            connectgroup.sync.serve_worker(
                settings_of("w"),
                address,
                assignors=[load_assignor("balanced")],
                runner=Printer(),
                on_start=workers.append,
            )
        )

    with served() as address, connectgroup.sync.admin(address) as admin:
        admin.add_connector("g", "letters", IDLE)
        thread = threading.Thread(target=serve, args=(address,))
        thread.start()
        assert len(admin.wait_running("g", "letters").units) == 2
        admin.restart_worker("g", "w")
        admin.wait_until("g", lambda group: len(workers) == 2 and workers[1].state.joined, what="restarted")
        workers[1].stop()
        thread.join()
        assert ended == [connectgroup.StopReason.STOPPED]
        assert admin.describe("g").members == ()


def test_runner_of_the_wrong_kind_is_an_error_at_once() -> None:
    class NoStop:
        def start(self, grants: Sequence[Grant]) -> None:
            pass

    for runner in (NoStop(), Blocking, "runner"):
        with (
            pytest.raises(ConfigError, match=r"^runner: got "),
            connectgroup.sync.worker(settings_of("w"), "127.0.0.1:1", runner=runner),  # type: ignore[arg-type]
        ):
            pytest.fail("the block must not run")

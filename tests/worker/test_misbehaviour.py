"""Listeners, assignors and connectors that raise, hang or return invalid results: one log line each."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from connectgroup.assign.api import ConnectAssignment, ConnectGroup
from connectgroup.assign.members import ConnectMemberAssignment
from connectgroup.errors import Fenced
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.assignment import InstallRequest, PrepareRequest
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.units import Unit, Units
from connectgroup.threads import off_loop
from connectgroup.worker.settings import WorkerSettings

from .builders import GROUP, RecordingListener, Spread, World
from .virtual_time import Gate


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def hook() -> NoReturn:
        raise error

    return hook


class Odd(BaseException):
    """Not an Exception."""


# --------------------------------------------------------------------------------------------------
# Listeners


@pytest.mark.parametrize("error", [ValueError("disk full"), SystemExit(3), Odd("odd"), asyncio.CancelledError()])
async def test_listener_that_raises_in_on_assigned_is_logged_and_the_units_start(
    tmp_path: Path, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async with World(tmp_path) as world:
        world.hook["a on_assigned c"] = raising(error)
        await world.add("c", 2)
        a = world.start("a")
        await world.settled()
        assert a.worker.lost == 0
    lines = [record.getMessage() for record in caplog.records if "on_assigned of c " in record.getMessage()]
    assert len(lines) == 1
    assert "listener RecordingListener" in lines[0]
    assert type(error).__name__ in lines[0]
    assert "\n" not in lines[0]
    if isinstance(error, ValueError):
        assert re.search(rf" \(at {re.escape(str(Path(__file__).parent))}/\w+\.py:\d+\)$", lines[0])


async def test_revocation_that_a_listener_rejects_is_never_acknowledged(tmp_path: Path) -> None:
    """F18: the units are reassigned only after the worker was removed at its rebalance timeout."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", rebalance_timeout_ms=20_000)
        await world.settled()
        world.hook["a on_revoked c-1, c-2"] = raising(ValueError("offsets not committed"))
        started = world.now
        world.start("b")
        await world.until(lambda: world.count("a on_revoked"))
        await asyncio.sleep(15)
        assert world.count("b start") == 0
        assert a.worker.member.owned.keys() == {Unit("c"), Unit("c", 0), Unit("c", 1), Unit("c", 2)}
        await world.until(lambda: world.count("a on_lost c, c-0, c-1, c-2"), within=10)
        assert 20 <= world.now - started < 25
        await world.settled()
        assert a.worker.lost == 1


@pytest.mark.parametrize("point", ["on_assigned d", "on_revoked c-1, c-2"])
async def test_tasks_are_stopped_when_the_lease_ends_although_a_listener_hangs(tmp_path: Path, point: str) -> None:
    """KAFKA-9184 with F18: no user code may keep tasks running past the time when other members may own them."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", times=WorkerSettings(lose_timeout_s=5))
        await world.settled()
        gate = world.gate()
        world.hook[f"a {point}"] = gate.wait
        if point == "on_assigned d":
            await world.add("d", 1)
        else:
            world.start("b")
        await world.until(lambda: gate.entered)
        a.cut()
        cut = world.now
        await world.until(lambda: world.count("a stop c-0"), within=9)
        assert world.now - cut <= 8.1
        await asyncio.sleep(20)
        a.heal()
        await asyncio.sleep(20)
        assert world.count("a on_lost") == 0, "calls never overlap, so on_lost is not called while it hangs"
        assert a.worker.member.epoch > 0, "the worker has rejoined"
        gate.open()


async def test_exception_of_an_abandoned_listener_call_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The call was abandoned, so its exception would otherwise be lost."""
    async with World(tmp_path) as world:
        a = world.start("a", times=WorkerSettings(lose_timeout_s=5))
        await world.settled()
        gate = world.gate()

        def late() -> NoReturn:
            gate.wait()
            raise ValueError("too late")

        world.hook["a on_assigned d"] = late
        await world.add("d", 1)
        await world.until(lambda: gate.entered)
        a.cut()
        await world.until(lambda: a.worker.lost)
        await asyncio.sleep(20)
        del world.hook["a on_assigned d"]
        gate.open()
        a.heal()
        await world.settled()
    lines = [record.getMessage() for record in caplog.records if "too late" in record.getMessage()]
    assert lines == ["listener RecordingListener: on_assigned of d had been abandoned, and raised ValueError: too late"]


async def test_listener_that_hangs_in_on_revoked_costs_its_worker_the_units_only(tmp_path: Path) -> None:
    """F18, L4: fenced at the rebalance timeout, all units run elsewhere, the worker rejoins without the listener."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", rebalance_timeout_ms=10_000, times=WorkerSettings(lose_timeout_s=5))
        await world.settled()
        gate = world.gate()
        world.hook["a on_revoked c-1, c-2"] = gate.wait
        world.start("b")
        await world.until(lambda: gate.entered)
        sent, started = a.heartbeats.heartbeats, world.now
        await world.until(lambda: a.worker.lost, within=18)
        assert a.heartbeats.heartbeats - sent < 12, "heartbeats continued at their interval"
        await world.settled(within=12)
        assert world.now - started < 25


async def test_units_lost_during_on_assigned_do_not_start(tmp_path: Path) -> None:
    """KAFKA-16375: actions decided before the loss end with their current step."""
    async with World(tmp_path) as world:
        a = world.start("a")
        await world.until(lambda: a.worker.member.epoch)
        world.hook["a on_assigned c"] = world.slow(15)
        await world.add("c", 1)
        await world.until(lambda: world.count("a on_assigned c"))
        a.cut()
        await asyncio.sleep(25)
        assert world.count("construct") == 0
        assert world.count("a on_lost c") == 1


async def test_each_unit_is_lost_or_revoked_but_never_both(tmp_path: Path) -> None:
    """S11, F17: the member is fenced during on_revoked; the listener counts its calls per unit."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", rebalance_timeout_ms=5_000, times=WorkerSettings(lose_timeout_s=30))
        await world.settled()
        world.hook["a on_revoked c-1, c-2"] = world.slow(12)
        world.start("b")
        await world.until(lambda: a.worker.lost, within=20)
        await world.until(lambda: world.count("a on_lost"), within=20)
        assert world.count("a on_lost c, c-0") == 1
        assert world.count("a on_lost c, c-0, c-1") == 0
        await world.settled()


async def test_stop_slower_than_the_rebalance_timeout_ends_in_on_lost(tmp_path: Path) -> None:
    """F17, WC-08: the late acknowledgement is not sent, it would be fenced. Only the sink can fence the task itself."""
    async with World(tmp_path) as world:
        world.zombies.add("a")
        await world.add("c", 3)
        a = world.start("a", rebalance_timeout_ms=5_000)
        await world.settled()
        world.hook["a stop c-2"] = world.slow(12)
        world.start("b")
        await world.until(lambda: world.count("a on_lost"), within=20)
        assert world.count("a on_lost c, c-0, c-1, c-2") == 1
        assert world.count("a on_revoked") == 0
        assert world.count("b start c-2") == 1
        assert a.worker.lost == 1
        await world.settled()


async def test_task_that_never_stops_does_not_keep_its_worker_out_of_the_group(tmp_path: Path) -> None:
    """L4: the task is fenced by the sink; the worker rejoins within its timeout for lost units."""
    async with World(tmp_path) as world:
        world.zombies.add("a")
        await world.add("c", 3)
        a = world.start("a", rebalance_timeout_ms=5_000, times=WorkerSettings(lose_timeout_s=10))
        await world.settled()
        world.hook["a stop c-2"] = world.gate().wait
        world.start("b")
        await world.until(lambda: world.count("a on_lost"), within=30)
        del world.hook["a stop c-2"]
        await world.settled(within=20)
        assert a.worker.lost == 1


class SelfCancelling(WorkerRebalanceListener):
    """Asynchronous; cancels itself."""

    async def on_assigned(self, units: Units, epoch: int) -> None:
        raise asyncio.CancelledError

    async def on_revoked(self, units: Units, epoch: int) -> None:
        sys.exit(1)


async def test_async_listener_cannot_end_the_worker(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", listeners=[SelfCancelling()], rebalance_timeout_ms=5_000)
        await world.settled()
        world.start("b")
        await world.settled()
        assert a.worker.lost == 1


# --------------------------------------------------------------------------------------------------
# Assignors


def nonsense(group: ConnectGroup) -> ConnectAssignment:
    return ConnectAssignment(members=[ConnectMemberAssignment(member_id="nobody", units=frozenset(group.units))])


def half(group: ConnectGroup) -> ConnectAssignment:
    return ConnectAssignment(members=[])


BAD: dict[str, Callable[[ConnectGroup], Any]] = {
    "raises": lambda group: 1 / 0,
    "exits": lambda group: sys.exit(7),
    "odd": lambda group: (_ for _ in ()).throw(Odd("odd")),
    "nonsense": nonsense,
    "half": half,
    "wrong type": lambda group: 17,
    "error": lambda group: ConnectAssignment(error=5, message="will not"),
}


@pytest.mark.parametrize("bad", BAD)
async def test_failing_assignor_is_one_line_and_another_member_computes(
    tmp_path: Path, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F19, F21: the group goes on, and describe shows the error."""
    async with World(tmp_path) as world:
        broken, whole = Spread(), Spread()
        broken.before = BAD[bad]
        await world.add("c", 3)
        world.start("a", assignors=[broken])
        await world.settled()
        assert broken.calls >= 3, "the only member is chosen until the fallback"
        caplog.clear()
        world.start("b", assignors=[whole])
        await world.settled(within=1.5)
        assert whole.calls >= 1
        lines = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert lines
        assert all("spread" in line.getMessage() or "will not" in line.getMessage() for line in lines)
        assert all("\n" not in line.getMessage() and line.exc_info is None for line in lines)
        assert "a:" in (await world.describe()).assignor_error


async def test_exception_of_an_assignor_is_logged_with_file_and_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the source location; the group gets the error message only."""

    def raises(group: ConnectGroup) -> None:
        raise RuntimeError("no assignment")

    async with World(tmp_path) as world:
        assignor = Spread()
        assignor.before = raises
        await world.add("c", 1)
        world.start("a", assignors=[assignor])
        await world.settled()
        lines = [record.getMessage() for record in caplog.records if "assign raised" in record.getMessage()]
        assert lines
        at = f" (at {__file__}:{raises.__code__.co_firstlineno + 1})"
        assert all(line.endswith(f"assign raised RuntimeError: no assignment{at}") for line in lines)
        assert (await world.describe()).assignor_error.endswith("assign raised RuntimeError: no assignment")


async def test_exception_of_a_task_is_logged_with_file_and_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with World(tmp_path) as world:
        world.hook["a start c-0"] = raising(ValueError("no such file"))
        await world.add("c", 1)
        world.start("a")
        await world.until(lambda: any("c-0 failed: " in record.getMessage() for record in caplog.records))
    [line, *_] = [record.getMessage() for record in caplog.records if "c-0 failed: " in record.getMessage()]
    assert re.search(rf" \(at {re.escape(str(Path(__file__).parent))}/\w+\.py:\d+\)$", line)


async def test_result_that_only_the_group_rejects_is_logged_as_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A delay that this group does not allow; the worker cannot check it."""
    async with World(tmp_path) as world:
        assignor = Spread()
        assignor.before = lambda group: ConnectAssignment(
            members=[ConnectMemberAssignment(member_id="a", units=frozenset(group.units))], delay_ms=3_600_001
        )
        await world.add("c", 1)
        world.start("a", assignors=[assignor])
        await world.settled()
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert lines
        assert all(
            line.startswith("assignment not installed: ") and "a delay of 3600001 ms; allowed: 0 to 3600000" in line
            for line in lines
        )


async def test_server_assignor_computes_after_three_failures(tmp_path: Path) -> None:
    """L5: a failing plug-in cannot stop a group."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        assignors = [Spread() for _ in "abc"]
        for name, assignor in zip("abc", assignors, strict=True):
            assignor.before = BAD["raises"]
            world.start(name, assignors=[assignor])
        await world.settled()
        assert (await world.describe()).rebalances[-1].computed_by == "coordinator"


def hanging(world: World) -> tuple[Gate, Spread]:
    """An assignor that does not return before the gate is opened."""
    gate, slow = world.gate(), Spread()
    slow.before = lambda group: gate.wait()
    return gate, slow


async def test_assignor_that_hangs_is_abandoned_and_heartbeats_continue(tmp_path: Path) -> None:
    """F20: at most two heartbeats per interval, although the member is chosen to compute again."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        gate, slow = hanging(world)
        a = world.start("a", assignors=[slow], times=WorkerSettings(assignor_timeout_s=12))
        await world.until(lambda: gate.entered)
        world.start("b", assignors=[Spread()])
        sent, lost = a.heartbeats.heartbeats, a.worker.lost
        await asyncio.sleep(10)
        assert 3 <= a.heartbeats.heartbeats - sent <= 8
        await world.settled(within=20)
        assert a.worker.lost == lost == 0
        gate.open()


async def test_assignor_that_hangs_is_not_called_a_second_time(tmp_path: Path) -> None:
    """F20: of the three failures before the fallback to the server-side assignor, only the first takes its timeout."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        gate, slow = hanging(world)
        started = world.now
        a = world.start("a", assignors=[slow], times=WorkerSettings(assignor_timeout_s=12))
        await world.settled(within=20)
        assert slow.calls == 1
        assert 12 <= world.now - started < 20
        gate.open()
        await asyncio.sleep(1)
        slow.before = lambda group: None
        await world.add("d", 1)
        await world.settled()
        assert slow.calls > 1, "it is called again once it has returned"
        assert a.worker.lost == 0


async def test_error_of_an_assignor_is_one_line_that_names_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with World(tmp_path) as world:
        full = Spread()
        full.before = lambda group: ConnectAssignment(error=5, message="no room\nat all " + "x" * 9_000)
        world.start("a", assignors=[full])
        await world.add("c", 1)
        await world.settled()
        [line, *_] = [record.getMessage() for record in caplog.records if "no room" in record.getMessage()]
        assert line.startswith("assignor 'spread' (tests.worker.builders.Spread): no room\\nat all xxx")
        assert len(line) <= 500
        assert "\n" not in line


async def test_computing_member_backs_off_while_its_prepare_gets_no_response(tmp_path: Path) -> None:
    """L2, KAFKA-20253: the control connection hangs; every heartbeat gets COMPUTE_ASSIGNMENT."""
    async with World(tmp_path) as world:
        await world.add("c", 1)
        a = world.make("a", assignors=[Spread()])
        a.control.cut()
        a.task = asyncio.create_task(a.worker.run())
        await asyncio.sleep(30)
        assert a.heartbeats.heartbeats <= 20
        a.control.heal()
        await world.settled(within=10)


async def test_computing_member_gets_its_own_units_at_once(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 3)
        for name in "abc":
            world.start(name, assignors=[Spread()])
        started = world.now
        await world.settled()
        assert world.now - started < 1
        for number in range(3):
            started = world.now
            await world.add("c", 4 + number)
            await world.settled()
            assert world.now - started < 1.5, "refresh of the connector included"


async def test_changes_during_a_computation_lead_to_one_more_computation(
    tmp_path: Path,
) -> None:
    """F23: several changes during a computation lead to one more, begun when the first is over."""
    async with World(tmp_path) as world:
        await world.add("c", 1)
        began: list[float] = []
        loop, slow = asyncio.get_running_loop(), Spread()
        pause = world.slow(5)

        def compute_slowly(group: ConnectGroup) -> None:
            began.append(loop.time())
            pause()

        slow.before = compute_slowly
        a = world.start("a", assignors=[slow])
        await world.until(lambda: began)
        for name in "bd":
            await asyncio.sleep(0.7)
            # Any member may compute next: a's connector publishes its task list before a has sent Prepare.
            world.start(name, assignors=[slow])
        await world.until(lambda: len(began) == 2, within=10)
        assert began[1] - began[0] < 5.5
        await world.until(lambda: world.actors["b"].units or world.actors["d"].units, within=10)
        assert a.worker.lost == 0


async def test_heartbeats_continue_as_soon_as_prepare_is_answered(tmp_path: Path) -> None:
    """Not after an interval: the member should get new revocations while it computes."""
    async with World(tmp_path) as world:
        gate, slow = hanging(world)
        a = world.start("a", assignors=[slow])
        await world.until(lambda: gate.entered)
        assert 2 <= a.heartbeats.heartbeats <= 3, "the join, and one that may be parked"


async def test_failed_control_connection_fails_the_computation_and_not_the_worker(tmp_path: Path) -> None:
    """F22: Install gets no response; another member is chosen after the rebalance timeout."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.make("a", assignors=[Spread()], rebalance_timeout_ms=8_000)

        async def lose_installs(request: Request) -> Response | None:
            if isinstance(request, InstallRequest):
                await asyncio.sleep(100)
            return None

        a.control.instead = lose_installs
        a.task = asyncio.create_task(a.worker.run())
        await asyncio.sleep(1)
        b = world.start("b", assignors=[Spread()], rebalance_timeout_ms=8_000)
        await world.until(lambda: b.units, within=20)
        assert a.worker.lost == 0


async def test_prepare_is_repeated_until_the_timeout_by_the_clock_of_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Prepare is repeated until the assignor's timeout, by the loop's clock, so that a simulated loop works too."""
    caplog.set_level(logging.INFO)
    async with World(tmp_path) as world:
        await world.add("c", 1)
        a = world.make("a", assignors=[Spread()], times=WorkerSettings(assignor_timeout_s=6, call_timeout_s=1))
        a.control.cut()
        a.task = asyncio.create_task(a.worker.run())
        await world.until(lambda: a.control.requests)
        started = world.now
        await world.until(lambda: "not installed: given up after 6 s" in caplog.text, within=9)
        assert 5 < world.now - started < 9
        assert all(isinstance(request, PrepareRequest) for _, request in a.control.requests)


async def test_on_assignment_precedes_the_listener(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 1)
        assignor = Spread()
        world.hook["a on_assigned c"] = lambda: assert_on_assignment_called(assignor)
        world.start("a", assignors=[assignor])
        await world.settled()
        assert assignor.assignments[-1].units == {Unit("c"), Unit("c", 0)}


def assert_on_assignment_called(assignor: Spread) -> None:
    assert assignor.assignments, "on_assignment precedes on_assigned"


# --------------------------------------------------------------------------------------------------
# Connectors


async def status_of(world: World, unit: Unit) -> tuple[str, str]:
    group = await world.describe()
    found = [u for c in group.connectors if c.connector == unit.connector for u in c.units if u.task == unit.task]
    return found[0].state, found[0].message


async def until_status(world: World, unit: Unit, state: str) -> str:
    for _ in range(600):  # a minute: twice the maximum back-off
        if (await status_of(world, unit))[0] == state:
            return (await status_of(world, unit))[1]
        await asyncio.sleep(0.1)
    raise AssertionError(f"{unit} is {await status_of(world, unit)}")


async def test_unknown_connector_class_is_one_failed_connector(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("bad", 1, cls="os.system")
        await world.add("good", 2)
        a = world.start("a")
        await world.until(lambda: world.count("start good-1"))
        message = await until_status(world, Unit("bad"), "FAILED")
        assert message.endswith(", last error: connector.class: got 'os.system'; allowed: scripted")
        await world.update_class("bad", "scripted")
        await world.settled()
        assert a.worker.lost == 0


@pytest.mark.parametrize(
    ("point", "unit"),
    [
        ("construct c", Unit("c")),
        ("task_configs c", Unit("c")),
        ("start c-0", Unit("c", 0)),
    ],
)
@pytest.mark.parametrize(
    "error", [RuntimeError("boom\nand more"), SystemExit(2), Odd("boom")], ids=lambda e: type(e).__name__
)
async def test_connector_that_raises_fails_with_one_line_and_is_retried(
    tmp_path: Path, point: str, unit: Unit, error: BaseException
) -> None:
    """KAFKA-13586: one connector is FAILED, the worker and the others run; it recovers without an operator."""
    async with World(tmp_path) as world:
        world.hook[point] = raising(error)
        await world.add("c", 2)
        await world.add("good", 1)
        a = world.start("a")
        await world.until(lambda: world.count("start good-0"))
        message = await until_status(world, unit, "FAILED")
        assert "\n" not in message
        assert "boom" in message or "SystemExit" in message
        await asyncio.sleep(90)
        others = 3 if point == "construct c" else 0  # its tasks are created from the connector too
        assert 4 <= world.count(point) <= 30 + others * 30, "retried with exponential back-off"
        message = await until_status(world, unit, "FAILED")
        attempt, delay = re.findall(r"^RETRYING, attempt (\d+), next in (\d+) s, last error: ", message)[0]
        assert int(attempt) >= 4
        assert 1 < int(delay) <= 60
        del world.hook[point]
        await world.settled(within=40)
        await until_status(world, unit, "RUNNING")
        assert a.worker.lost == 0


async def test_failed_task_is_restarted_under_the_same_grant(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 2)
        world.start("a")
        await world.settled()
        context = world.contexts[Unit("c", 0)]
        context.failed(OSError("source is gone"))
        retrying = "RETRYING, attempt 1, next in 1 s, last error: source is gone (OSError)"
        assert await until_status(world, Unit("c", 0), "FAILED") == retrying
        await world.until(lambda: world.count("a start c-0") == 2)
        assert await until_status(world, Unit("c", 0), "RUNNING") == ""
        assert world.contexts[Unit("c", 0)].owner_epoch == context.owner_epoch
        assert world.count("a stop c-0") == 1
        assert world.count("a start c-1") == 1


@pytest.mark.parametrize("stop_fails", [False, True])
@pytest.mark.parametrize("when", ["start", "later"])
async def test_fenced_task_is_not_restarted(tmp_path: Path, when: str, stop_fails: bool) -> None:
    """A newer owner runs it: no retry, whether or not its stop fails."""
    async with World(tmp_path) as world:
        await world.add("c", 2)
        if stop_fails:
            world.hook["a stop c-0"] = raising(RuntimeError("cannot stop"))
        if when == "start":
            world.hook["a start c-0"] = raising(Fenced("a later grant has written"))
        world.start("a")
        await world.until(lambda: world.count("a start c-0"))
        await asyncio.sleep(1)
        if when == "later":
            world.contexts[Unit("c", 0)].failed(Fenced("a later grant has written"))
        message = await until_status(world, Unit("c", 0), "FAILED")
        assert message.startswith("a later grant has written")
        await asyncio.sleep(100)
        assert world.count("a start c-0") == 1
        assert world.count("a stop c-0") == 1


async def test_stop_that_raises_is_not_acknowledged(tmp_path: Path) -> None:
    """X6, F18: the task may still write, so it is reassigned only after this worker has been removed."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a")
        await world.settled()
        world.hook["a stop c-2"] = raising(RuntimeError("cannot stop"))
        world.start("b")
        await world.settled(within=150)
        assert a.worker.lost == 1, "fenced at its rebalance timeout"
        assert world.now > 60, "after its rebalance timeout"


async def test_former_owner_cannot_write_a_task_list(tmp_path: Path) -> None:
    """The owner computes its task list slowly, and the connector moves meanwhile: the list is rejected."""
    async with World(tmp_path) as world:
        await world.add("c", 1)
        a = world.start("a")
        await world.settled()
        published = sum(isinstance(request, UpdateConnectorsRequest) for _, request in a.control.requests)
        await asyncio.sleep(60)
        assert sum(isinstance(r, UpdateConnectorsRequest) for _, r in a.control.requests) == published, "no message"


async def test_status_of_an_earlier_grant_does_not_hide_the_present_one(tmp_path: Path) -> None:
    """KAFKA-12525: a slow task fails long after its unit returned under another grant."""
    async with World(tmp_path) as world:
        world.zombies.add("a")
        await world.add("c", 1)
        a = world.start("a", times=WorkerSettings(lose_timeout_s=2))
        gate = world.gate()
        world.hook["a start c-0"] = gate.wait
        await world.until(lambda: gate.entered)
        a.cut()
        await world.until(lambda: world.count("a on_lost"), within=20)
        del world.hook["a start c-0"]
        a.heal()
        await until_status(world, Unit("c", 0), "RUNNING")
        world.hook["a start c-0"] = raising(RuntimeError("too late"))
        gate.open()
        await asyncio.sleep(10)
        assert (await status_of(world, Unit("c", 0)))[0] == "RUNNING"


# --------------------------------------------------------------------------------------------------
# Off the loop


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), StopIteration(), asyncio.CancelledError(), Odd("x")]
)
async def test_anything_raised_in_a_thread_is_returned_as_an_exception(error: BaseException) -> None:
    with pytest.raises(RuntimeError, match=type(error).__name__):
        await off_loop("test", raising(error))


async def test_ordinary_exception_is_returned_unchanged() -> None:
    error = ValueError("this one")
    with pytest.raises(ValueError) as caught:
        await off_loop("test", raising(error))
    assert caught.value is error


@pytest.mark.parametrize("event", ["on_assigned", "on_revoked", "on_lost"])
async def test_listener_that_raises_does_not_stop_the_next_listener(tmp_path: Path, event: str) -> None:
    class Raises(WorkerRebalanceListener):
        def on_assigned(self, units: Units, epoch: int) -> None:
            self.fail("on_assigned")

        def on_revoked(self, units: Units, epoch: int) -> None:
            self.fail("on_revoked")

        def on_lost(self, units: Units, epoch: int) -> None:
            self.fail("on_lost")

        def fail(self, event_now: str) -> None:
            if event_now == event:
                raise ValueError(f"not {event_now}")

    async with World(tmp_path) as world:
        await world.add("c", 1)
        a = world.make("a", listeners=[Raises(), RecordingListener(world, "a")], rebalance_timeout_ms=1_000)
        a.task = asyncio.create_task(a.worker.run())
        await world.settled()
        if event == "on_revoked":
            world.start("b")
        elif event == "on_lost":
            leave = HeartbeatRequest(group_id=GROUP, member_id="a", member_epoch=-1)
            await world.coordinator.handle(leave, client_host="operator")
        await world.until(lambda: world.count(f"a {event} "))

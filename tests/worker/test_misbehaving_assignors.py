"""Assignors that raise, hang or return invalid results: one log line each, and another member computes."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectgroup.assign.api import ConnectAssignment, ConnectAssignorInput
from connectgroup.assign.members import ConnectMemberAssignment
from connectgroup.coordinator.compute import as_server_assignor
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.assignment import InstallRequest, PrepareRequest
from connectgroup.protocol.units import Unit
from connectgroup.testing.virtual_time import Gate
from connectgroup.worker.settings import WorkerSettings

from .builders import Spread, World, settings
from .errors import Odd, raising


def nonsense(group: ConnectAssignorInput) -> ConnectAssignment:
    return ConnectAssignment(members=[ConnectMemberAssignment(member_id="unknown", units=frozenset(group.units))])


def half(group: ConnectAssignorInput) -> ConnectAssignment:
    return ConnectAssignment(members=[])


BAD: dict[str, Callable[[ConnectAssignorInput], Any]] = {
    "raises": lambda group: 1 / 0,
    "exits": lambda group: sys.exit(7),
    "odd": lambda group: (_ for _ in ()).throw(Odd("odd")),
    "nonsense": nonsense,
    "half": half,
    "wrong type": lambda group: 17,
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
        assert all("spread" in line.getMessage() for line in lines)
        assert all("\n" not in line.getMessage() and line.exc_info is None for line in lines)
        assert "a:" in (await world.describe()).assignor_error


async def test_error_of_an_assignor_keeps_the_target_and_no_other_member_computes(tmp_path: Path) -> None:
    """A veto is not a failure: neither another member nor the coordinator computes."""
    async with World(tmp_path) as world:
        vetoing, other = Spread(), Spread()
        await world.add("c", 3)
        a = world.start("a", assignors=[vetoing])
        await world.settled()
        before = await world.describe()
        vetoing.before = other.before = lambda group: ConnectAssignment(error=5, message="will not")
        world.start("b", assignors=[other])
        await world.until(lambda: vetoing.calls + other.calls == 2)
        await asyncio.sleep(5)
        kept = await world.describe()
        assert kept.assignment_epoch == before.assignment_epoch
        assert {member.member_id: member.assigned for member in kept.members if member.assigned} == {
            member.member_id: member.assigned for member in before.members
        }
        assert a.worker.lost == 0
        assert "will not" in kept.assignor_error
        calls = vetoing.calls + other.calls
        assert calls <= 3, "the next change, or a session timeout, has it computed again"
        vetoing.before = other.before = lambda group: None
        await world.add("d", 1)
        await world.settled()
        assert (await world.describe()).assignment_epoch > before.assignment_epoch
        assert vetoing.calls + other.calls > calls


@pytest.mark.parametrize("after_failures", [False, True], ids=["listed by no worker", "after three failures"])
async def test_error_of_a_server_side_assignor_keeps_the_target(
    tmp_path: Path, after_failures: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A veto there, too: it is no failure in the log, and its reason is in the description."""
    assignor, failing = Spread(), Spread()
    group = settings(server_assignor="spread", server_assignors={"spread": as_server_assignor(assignor)})
    failing.before = BAD["raises"]
    listed = [failing] if after_failures else []
    async with World(tmp_path, group=group) as world:
        await world.add("c", 3)
        world.start("a", assignors=listed)
        await world.settled()
        before = await world.describe()
        assignor.before = lambda group: ConnectAssignment(error=5, message="will not")
        calls = assignor.calls
        caplog.clear()
        world.start("b", assignors=listed)
        await world.until(lambda: assignor.calls > calls)
        await asyncio.sleep(5)
        kept = await world.describe()
        assert kept.assignment_epoch == before.assignment_epoch
        assert kept.assignor_error == "the target assignment is kept: server-side assignor 'spread': will not"
        warned = f"group {kept.group_id}: epoch {kept.group_epoch}: {kept.assignor_error}"
        lines = [record for record in caplog.records if "will not" in record.getMessage()]
        assert [(record.levelno, record.getMessage()) for record in lines] == [(logging.WARNING, warned)]
        assert assignor.calls - calls <= 2, "the next change, or a session timeout, has it computed again"
        calls = assignor.calls
        await world.until(lambda: assignor.calls > calls, within=30)
        assignor.before = lambda group: None
        await world.settled(within=30)
        assert "kept" not in (await world.describe()).assignor_error


async def test_assignor_that_keeps_the_target_runs_again_after_a_session_timeout(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        assignor = Spread()
        assignor.before = lambda group: ConnectAssignment(error=5, message="not yet") if assignor.calls < 3 else None
        await world.add("c", 1)
        world.start("a", assignors=[assignor])
        await world.settled(within=60)
        assert assignor.calls >= 3
        assert not (await world.describe()).assignor_error


async def test_exception_of_an_assignor_is_logged_with_file_and_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the source location; the group gets the error message only."""

    def raises(group: ConnectAssignorInput) -> None:
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


LEAK = "cannot read postgresql://user:canary-1@host, password=canary-2"
LEAKS: dict[str, Callable[[ConnectAssignorInput], Any]] = {
    "raises": lambda group: (_ for _ in ()).throw(RuntimeError(LEAK)),
    "error": lambda group: ConnectAssignment(error=5, message=LEAK),
    "message": lambda group: ConnectAssignment(
        members=[ConnectMemberAssignment(member_id="a", units=frozenset(group.units))], message=LEAK
    ),
}


@pytest.mark.parametrize("server_side", [False, True])
@pytest.mark.parametrize("leak", LEAKS)
async def test_error_of_an_assignor_is_masked_in_every_log_and_description(
    tmp_path: Path, leak: str, server_side: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assignor = Spread()
    assignor.before = LEAKS[leak]
    group = settings(server_assignor="spread", server_assignors={"spread": as_server_assignor(assignor)})
    async with World(tmp_path, group=group if server_side else settings()) as world:
        await world.add("c", 1)
        world.start("a", assignors=[] if server_side else [assignor])
        for _ in range(300):
            if "cannot read" in (described := await world.describe()).assignor_error:
                break
            await asyncio.sleep(0.1)
        logged = "".join(record.getMessage() for record in caplog.records)
    assert "cannot read postgresql://[hidden]@host, password=[hidden]" in described.assignor_error
    assert "canary" not in repr(described) + logged


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
        await world.until(lambda: any("no room" in record.getMessage() for record in caplog.records))
        [line, *_] = [record.getMessage() for record in caplog.records if "no room" in record.getMessage()]
        assert "is kept: assignor 'spread' (tests.worker.builders.Spread): no room\\nat all xxx" in line
        assert len(line) <= 550
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

        def compute_slowly(group: ConnectAssignorInput) -> None:
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


async def test_heartbeats_continue_after_the_prepare_response(tmp_path: Path) -> None:
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

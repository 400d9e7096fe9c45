"""Bugs of other members: what they did with answers, with what was under way when they were fenced, and at the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest

from connectgroup.assign.members import ConnectMemberAssignment
from connectgroup.errors import CoordinatorNotAvailable, PluginError
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.assignment import InstalledMember, PrepareResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.units import Unit, Units, show
from connectgroup.worker.loop import WorkerSettings
from tests.worker.builders import Spread, World, error, server_spread, settings


async def grants(world: World, member_id: str) -> dict[Unit, int]:
    """What the group has given a member, with owner epochs."""
    group = await world.describe()
    return {
        Unit(c.connector, unit.task): unit.owner_epoch
        for c in group.connectors
        for unit in c.units
        if unit.member_id == member_id
    }


class Told(WorkerRebalanceListener):
    """Writes down what it is told; like the stage's own listener, but it may be left out while it hangs."""

    def __init__(self, world: World, member_id: str) -> None:
        self.world, self.member_id = world, member_id

    def on_assigned(self, units: Units, epoch: int) -> None:
        self.world.note(f"{self.member_id} on_assigned {show(units)}")

    def on_revoked(self, units: Units, epoch: int) -> None:
        self.world.note(f"{self.member_id} on_revoked {show(units)}")

    def on_lost(self, units: Units, epoch: int) -> None:
        self.world.note(f"{self.member_id} on_lost {show(units)}")


# --------------------------------------------------------------------------------------------------
# KAFKA-16375


class Listens(Spread):
    """Writes down that it was told of a share."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def on_assignment(self, assignment: ConnectMemberAssignment) -> None:
        self.world.note("a on_assignment")


@pytest.mark.parametrize(
    "stage", ["stop c-2", "on_revoked c-1, c-2", "on_assignment", "on_assigned d", "start d-0", "start c-2"]
)
async def test_what_a_worker_was_at_when_it_lost_everything_is_not_finished_in_its_next_life(
    tmp_path: Path, stage: str
) -> None:
    """KAFKA-16375: a member rejoined in the middle of a reconciliation, and the old one was applied later; here it is
    dropped at whatever step it stood: what hangs and comes back hours later changes nothing of the new life.
    """
    async with World(tmp_path) as world:
        world.zombies.add("a")  # what hangs may be somewhere else by then; the sink is what stops it
        await world.add("c", 3)
        times = WorkerSettings(lose_timeout_s=1)
        assignors = [Listens(world)] if stage == "on_assignment" else []
        a = world.start("a", times=times, listeners=[Told(world, "a")], assignors=assignors)
        await world.until(lambda: stage == "start c-2" or len(a.units) == 4)
        gate = world.gate()
        world.hook[f"a {stage}"] = gate.wait
        if " d" in stage or stage == "on_assignment":
            await world.add("d", 1)
        elif stage != "start c-2":
            world.start("b")
        await world.until(lambda: gate.entered)
        a.cut()
        await world.until(lambda: a.worker.lost, within=10, step=0.01)
        del world.hook[f"a {stage}"]
        a.heal()
        await world.settled(within=30)
        assert gate.entered == 1
        told = Counter(line for line in world.journal if line.startswith("a on_"))
        owned = dict(a.worker.member.owned)
        assert owned == await grants(world, "a")

        gate.open()
        await asyncio.sleep(30)
        again = Counter(line for line in world.journal if line.startswith("a on_"))
        assert again == told, "nothing more of the old life"
        assert a.worker.member.owned == owned == await grants(world, "a")
        assert {unit: run.grant.owner_epoch for unit, run in a.runner._runs.items()} == owned
        for unit in (unit for actor in world.actors.values() for unit in actor.units if not unit.is_connector):
            assert world.count(f" start {unit}") - world.count(f" stop {unit}") == 1, unit
        assert a.worker.lost == 1


# --------------------------------------------------------------------------------------------------
# KAFKA-16198


async def test_a_worker_that_cannot_make_sense_of_what_is_new_keeps_what_it_has(tmp_path: Path) -> None:
    """KAFKA-16198: a topic whose name was not known yet was left out of the target, so the rest was taken for all of
    it; here a connector whose class is not there (yet) is one that fails, and nothing else is stopped or started for
    it.
    """
    async with World(tmp_path) as world:
        await world.add("c", 3)
        for name in "ab":
            world.start(name)
        await world.settled()
        before = Counter(world.journal)
        await world.add("x", 1, cls="not installed here")
        await world.until(lambda: any(Unit("x") in actor.units for actor in world.actors.values()))
        await asyncio.sleep(30)
        new = Counter(line for line in world.journal if line[0] != "?") - before
        assert set(new) in ({"a on_assigned x"}, {"b on_assigned x"}), "and nothing of c"
        await world.update_class("x", "scripted")
        await world.settled()
        for number in range(3):
            assert world.count(f" start c-{number}") - world.count(f" stop c-{number}") == 1
        assert world.count("on_lost") == 0


async def test_while_nobody_can_say_what_the_new_target_is_everybody_keeps_what_they_have(tmp_path: Path) -> None:
    """KAFKA-16198: "not known" is not "nothing": while each try to compute fails, no unit that runs is taken away."""
    failing = False

    def moody(question: PrepareResponse) -> tuple[InstalledMember, ...]:
        if failing:
            raise PluginError("half of the topics are not there yet")
        return server_spread(question)

    async with World(tmp_path, group=settings(server_assignors={"even": moody})) as world:
        await world.add("c", 3)
        for name in "ab":
            world.start(name)
        await world.settled()
        failing = True
        stops = world.count(" stop ")
        await world.add("d", 2)
        world.start("e")
        await asyncio.sleep(60)
        assert world.count(" stop ") == stops
        assert (await world.describe()).state == "Assigning"
        failing = False
        await world.settled(within=15)


# --------------------------------------------------------------------------------------------------
# KAFKA-19233, KAFKA-9851


@pytest.mark.parametrize("state", ["STABLE", "UNREVOKED", "UNRELEASED"])
async def test_a_worker_that_begins_anew_is_taken_back_whatever_the_group_thinks_it_is_at(
    tmp_path: Path, state: str
) -> None:
    """KAFKA-19233: a member that came back with epoch 0 was turned down for as long as the group had it at a higher
    one; here it is served at once, in each state it may have left behind.
    """
    async with World(tmp_path) as world:
        world.zombies.update("abd")
        await world.add("c", 5)
        for name in "ab":
            world.start(name, times=WorkerSettings(lose_timeout_s=0.5), listeners=[Told(world, name)])
        await world.settled()
        gate = world.gate()
        for number in range(5):
            world.hook[f"a stop c-{number}"] = gate.wait
        # Of a and of b it gets one unit each; that of a is not free yet.
        world.start("d", times=WorkerSettings(lose_timeout_s=0.5), listeners=[Told(world, "d")])
        await world.until(lambda: gate.entered and world.count("d start"))
        who = world.actors[{"STABLE": "b", "UNREVOKED": "a", "UNRELEASED": "d"}[state]]
        states = {member.member_id: member.state for member in (await world.describe()).members}
        assert states[who.worker.member_id] == state
        who.cut()
        await world.until(lambda: who.worker.lost, within=9, step=0.01)
        world.hook.clear()
        members = {member.member_id for member in (await world.describe()).members}
        assert who.worker.member_id in members, "the group has not noticed"
        who.heal()
        await world.until(lambda: who.worker.member.epoch > 0 and who.worker.member.owned, within=2 * 3 + 1)
        gate.open()
        await world.settled(within=10)
        assert who.worker.lost == 1


@pytest.mark.parametrize("noticed", [False, True])
async def test_what_a_worker_let_go_of_by_itself_is_started_again_when_it_comes_back_to_it(
    tmp_path: Path, noticed: bool
) -> None:
    """KAFKA-9851: tasks given up while the coordinator could not be reached were still listed as running, so they were
    never started again; here they start anew, under a later grant, whether or not the group had noticed.
    """
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", times=WorkerSettings(call_timeout_s=0.5, retry_max_s=0.2))
        await world.settled()
        for life in (2, 3):
            before = await grants(world, "a")
            a.cut()
            await world.until(lambda: not a.units, within=9)
            await asyncio.sleep(10 if noticed else 0)
            assert bool((await world.describe()).members) is not noticed
            a.heal()
            await world.settled(within=10)
            for number in range(3):
                unit = Unit("c", number)
                assert world.count(f"a start {unit}") == life
                assert world.count(f"a stop {unit}") == life - 1
                assert a.worker.member.owned[unit] > before[unit]


# --------------------------------------------------------------------------------------------------
# KAFKA-16251, KAFKA-16258


async def test_a_worker_that_is_fenced_says_no_word_before_everything_has_stopped(tmp_path: Path) -> None:
    """KAFKA-16251: heartbeats went out while the member was fenced. KAFKA-16258: a stale member had not let go of what
    it had. Here: stop, tell the listener, and only then the first word, which is a join that owns nothing.
    """
    async with World(tmp_path) as world:
        world.zombies.add("a")
        await world.add("c", 2)
        a = world.start("a")
        await world.settled()
        world.hook["a stop c-1"] = world.slow(5)
        world.hook["a on_lost c, c-0, c-1"] = world.slow(4)
        dead = HeartbeatRequest(group_id="workers", member_id="a", member_epoch=-1)
        await world.coordinator.handle(dead, client_host="supervisor")
        await world.until(lambda: world.count("a stop c-1"), within=5)
        sent = len(a.heartbeats.requests)
        await asyncio.sleep(8)
        assert world.count("a on_lost c, c-0, c-1") == 1
        assert len(a.heartbeats.requests) == sent
        await world.settled(within=10)
        _, first = a.heartbeats.requests[sent]
        assert isinstance(first, HeartbeatRequest)
        assert (first.member_epoch, first.owned) == (0, ())


# --------------------------------------------------------------------------------------------------
# KAFKA-20332


async def test_nothing_of_a_unit_runs_any_more_when_it_is_said_to_be_revoked(tmp_path: Path) -> None:
    """KAFKA-20332: records were still handed out for partitions that were being revoked; here a task has ended, however
    long its stop takes, before the listener hears that it is revoked and before the group does.
    """
    async with World(tmp_path) as world:
        await world.add("c", 6)
        a = world.start("a")
        await world.settled()
        revoked = frozenset(Unit("c", number) for number in (3, 4, 5))
        for unit in revoked:
            world.hook[f"a stop {unit}"] = world.slow(unit.task)
        still: list[str] = []

        def look() -> None:
            still.extend(str(unit) for unit in revoked if "a" in world._running[unit])

        world.hook["on_revoked c-3, c-4, c-5"] = look
        world.start("b")
        await world.until(lambda: world.count("a stop c-5"))
        while not world.count("a on_revoked"):
            assert revoked <= a.worker.member.owned.keys()
            assert revoked <= (await grants(world, "a")).keys()
            await asyncio.sleep(0.05)
        assert world.count("a on_revoked c-3, c-4, c-5") == 1
        assert still == []
        await world.settled()


# --------------------------------------------------------------------------------------------------
# KAFKA-20428


async def test_what_was_given_before_the_leave_and_not_taken_up_yet_does_not_outlive_it(tmp_path: Path) -> None:
    """KAFKA-20428: unsubscribing applied an assignment that was still queued; here a worker that is told to stop while
    grants wait behind a slow listener ends with nothing, says so, and starts nothing after that.
    """
    async with World(tmp_path) as world:
        await world.add("c", 1)
        a = world.start("a")
        await world.settled()
        world.hook["a on_assigned d"] = world.slow(5)
        await world.add("d", 1)
        await world.until(lambda: world.count("a on_assigned d"))
        await world.add("e", 1)
        await world.until(lambda: Unit("e") in a.worker.member.owned)
        a.worker.stop()
        await world.add("f", 1)
        assert a.task is not None
        await asyncio.wait_for(a.task, 20)
        assert (await world.describe()).members == ()
        assert not a.units
        journal = list(world.journal)
        await asyncio.sleep(60)
        assert world.journal == journal
        told = Counter(word for line in journal if "on_assigned" in line for word in line.split(" ", 2)[2].split(", "))
        back = Counter(word for line in journal if "on_revoked" in line for word in line.split(" ", 2)[2].split(", "))
        assert told == back, "each unit was announced and taken once"
        assert "f" not in told


# --------------------------------------------------------------------------------------------------
# KAFKA-16985


@pytest.mark.parametrize("how", ["as usual", "cut off", "with a stop that fails", "while it is given something"])
async def test_a_worker_that_is_interrupted_leaves_its_group_all_the_same(tmp_path: Path, how: str) -> None:
    """KAFKA-16985: a consumer closed by an interrupt sent no leave, and its partitions idled for a session timeout;
    here a ``run`` that is cancelled stops its tasks, says goodbye if anybody hears it, and does not wait long for
    that.
    """
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a")
        await world.settled()
        world.start("b")
        await world.settled()
        if how == "cut off":
            a.cut()
        elif how == "with a stop that fails":
            world.hook["a stop c-0"] = fails
        elif how == "while it is given something":
            world.hook["a on_assigned d"] = world.slow(1)
            world.hook["a stop c-0"] = world.slow(3)
            await world.add("d", 1)
            await world.until(lambda: world.count("a on_assigned d"))
        assert a.task is not None
        a.task.cancel()
        began = world.now
        with pytest.raises(asyncio.CancelledError):
            await a.task
        assert world.now - began <= 5.01
        assert not a.units
        assert world.count("a stop c-0") == 1
        if how != "cut off":
            await world.settled("b", within=2)
            assert world.now - began < 6, "and nobody waited for its session to end"
        journal = [line for line in world.journal if line.startswith("a ")]
        await asyncio.sleep(30)
        assert [line for line in world.journal if line.startswith("a ")] == journal


def fails() -> None:
    raise RuntimeError("cannot stop")


# --------------------------------------------------------------------------------------------------
# KAFKA-19813


async def test_workers_that_lost_their_coordinator_do_not_come_back_as_a_herd(tmp_path: Path) -> None:
    """KAFKA-19813: a backoff took the wrong number for its jitter, so all clients came at the same moments; here the
    first ten waits of forty workers are spread over what they may be, which doubles up to its limit.
    """
    asked: dict[str, list[float]] = {}
    async with World(tmp_path) as world:
        for number in range(40):
            actor = world.make(f"w{number}", listeners=[])
            times = asked[actor.worker.member_id] = []

            async def refuse(request: Request, times: list[float] = times) -> Response | None:
                times.append(world.now)
                return error(CoordinatorNotAvailable.code, "not today")

            actor.heartbeats.instead = refuse
            actor.task = asyncio.create_task(actor.worker.run())
        await world.until(lambda: all(len(times) > 10 for times in asked.values()), within=60)
    for attempt in range(10):
        waits = [times[attempt + 1] - times[attempt] for times in asked.values()]
        most = min(2.0, 0.05 * 2**attempt)
        assert max(waits) <= most + 1e-6
        assert 0.3 * most < mean(waits) < 0.7 * most
        assert max(waits) > 0.8 * most
        assert min(waits) < 0.2 * most
        tenths = Counter(int(wait / most * 10) for wait in waits)
        assert max(tenths.values()) <= 14, f"wait {attempt}: {tenths}"

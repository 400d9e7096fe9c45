"""Bugs of other members: handling of responses, actions in progress when they were fenced, leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from connectgroup.errors import PluginError
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.messages.assignment import InstalledMember, PrepareResponse
from connectgroup.protocol.units import Unit, Units, show
from connectgroup.worker.settings import WorkerSettings
from tests.worker.builders import World, server_spread, settings


async def grants(world: World, member_id: str) -> dict[Unit, int]:
    """The units of a member, with owner epochs, as the group describes them."""
    group = await world.describe()
    return {
        Unit(c.connector, unit.task): unit.owner_epoch
        for c in group.connectors
        for unit in c.units
        if unit.member_id == member_id
    }


class RecordingListener(WorkerRebalanceListener):
    """Records its calls, as the harness's own listener does; a hanging call can be left out."""

    def __init__(self, world: World, member_id: str) -> None:
        self.world, self.member_id = world, member_id

    def on_assigned(self, units: Units, epoch: int) -> None:
        self.world.note(f"{self.member_id} on_assigned {show(units)}")

    def on_revoked(self, units: Units, epoch: int) -> None:
        self.world.note(f"{self.member_id} on_revoked {show(units)}")

    def on_lost(self, units: Units, epoch: int) -> None:
        self.world.note(f"{self.member_id} on_lost {show(units)}")


# --------------------------------------------------------------------------------------------------
# KAFKA-16198


async def test_worker_that_cannot_read_a_new_assignment_keeps_its_units(tmp_path: Path) -> None:
    """KAFKA-16198: a topic whose name was not known yet was left out of the assignment, so the rest was taken for the
    whole; here a connector whose class is not installed (yet) fails, and no other unit is stopped or started for
    it.
    """
    async with World(tmp_path) as world:
        await world.run("a", "b", tasks=3)
        before = Counter(world.journal)
        await world.add("x", 1, cls="not installed here")
        await world.until(lambda: any(Unit("x") in actor.units for actor in world.actors.values()))
        await asyncio.sleep(30)
        new = Counter(line for line in world.journal if line[0] != "?") - before
        assert set(new) in ({"a on_assigned x"}, {"b on_assigned x"}), "no unit of c moves"
        await world.update_class("x", "scripted")
        await world.settled()
        for number in range(3):
            assert world.count(f" start c-{number}") - world.count(f" stop c-{number}") == 1
        assert world.count("on_lost") == 0


async def test_members_keep_their_units_while_no_target_can_be_computed(tmp_path: Path) -> None:
    """KAFKA-16198: "not known" is not "nothing": while computations fail, no running unit is revoked."""
    failing = False

    def flaky(prepared: PrepareResponse) -> tuple[InstalledMember, ...]:
        if failing:
            raise PluginError("some topics are unknown")
        return server_spread(prepared)

    async with World(tmp_path, group=settings(server_assignors={"even": flaky})) as world:
        await world.run("a", "b", tasks=3)
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
async def test_rejoin_at_epoch_0_is_accepted_at_any_member_epoch(tmp_path: Path, state: str) -> None:
    """KAFKA-19233: a member that rejoined with epoch 0 was rejected for as long as the group had it at a higher
    epoch; here it is accepted at once, in each state it may have had.
    """
    async with World(tmp_path) as world:
        world.zombies.update("abd")
        await world.add("c", 5)
        for name in "ab":
            world.start(name, times=WorkerSettings(lose_timeout_s=0.5), listeners=[RecordingListener(world, name)])
        await world.settled()
        gate = world.gate()
        for number in range(5):
            world.hook[f"a stop c-{number}"] = gate.wait
        # The new member gets one unit each of a and of b; that of a is not free yet.
        world.start("d", times=WorkerSettings(lose_timeout_s=0.5), listeners=[RecordingListener(world, "d")])
        await world.until(lambda: gate.entered and world.count("d start"))
        who = world.actors[{"STABLE": "b", "UNREVOKED": "a", "UNRELEASED": "d"}[state]]
        states = {member.member_id: member.state for member in (await world.describe()).members}
        assert states[who.worker.member_id] == state
        who.cut()
        await world.until(lambda: who.worker.lost, within=9, step=0.01)
        world.hook.clear()
        members = {member.member_id for member in (await world.describe()).members}
        assert who.worker.member_id in members, "the group has not removed it"
        who.heal()
        await world.until(lambda: who.worker.member.epoch > 0 and who.worker.member.owned, within=2 * 3 + 1)
        gate.open()
        await world.settled(within=10)
        assert who.worker.lost == 1


@pytest.mark.parametrize("noticed", [False, True])
async def test_unit_revoked_by_the_worker_itself_is_started_again_when_granted(tmp_path: Path, noticed: bool) -> None:
    """KAFKA-9851: tasks revoked while the coordinator could not be reached were still listed as running, so they were
    never started again; here they start again under a later grant, whether or not the session had expired.
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
# KAFKA-20332


async def test_revoked_unit_has_stopped_when_it_is_acknowledged(tmp_path: Path) -> None:
    """KAFKA-20332: records were still returned for partitions that were being revoked; here a task has ended, however
    long its stop takes, before on_revoked is called and before the revocation is acknowledged.
    """
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=6)
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


async def test_queued_assignment_is_not_applied_after_a_leave(tmp_path: Path) -> None:
    """KAFKA-20428: unsubscribing applied an assignment that was still queued; here a worker that is stopped while
    grants wait behind a slow listener ends without units, leaves, and starts nothing after that.
    """
    async with World(tmp_path) as world:
        [a] = await world.run("a", tasks=1)
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

        def units_in(call: str) -> Counter[str]:
            lines = [line for line in journal if call in line]
            return Counter(name for line in lines for name in line.split(" ", 2)[2].split(", "))

        assigned, revoked = units_in("on_assigned"), units_in("on_revoked")
        assert assigned == revoked, "each unit was assigned and revoked once"
        assert "f" not in assigned

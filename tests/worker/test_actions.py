"""Actions are performed in order; a loss of the assignment cancels queued actions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from connectgroup.listener import WorkerRebalanceListener
from connectgroup.member.actions import Assign, Grant, Lose, Revoke, TellAssignor
from connectgroup.member.settings import MemberSettings
from connectgroup.member.state_machine import Member, Phase
from connectgroup.protocol.units import Unit, Units
from connectgroup.worker.actions import Performer
from connectgroup.worker.callbacks import Callbacks

from .builders import Spread

UNIT = Unit("c", 0)


class RecordingListener(WorkerRebalanceListener):
    """Records its calls; each takes a second."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def on_assigned(self, units: Units, epoch: int) -> None:
        self.calls.append(f"assigned {sorted(unit.task for unit in units)}")
        await asyncio.sleep(1)

    async def on_revoked(self, units: Units, epoch: int) -> None:
        self.calls.append(f"revoked {sorted(unit.task for unit in units)}")
        await asyncio.sleep(1)

    async def on_lost(self, units: Units, epoch: int) -> None:
        self.calls.append(f"lost {sorted(unit.task for unit in units)}")


class CountingRunner:
    """A runner that only tracks units."""

    def __init__(self) -> None:
        self.running: set[Unit] = set()

    async def start(self, grants: Sequence[Grant]) -> None:
        self.running |= {grant.unit for grant in grants}

    async def stop(self, units: Units) -> None:
        self.running -= units


def assign(*numbers: int) -> Assign:
    return Assign(grants=tuple(Grant(unit=Unit("c", number), owner_epoch=3) for number in numbers), epoch=3)


async def test_actions_queued_before_a_loss_are_dropped() -> None:
    """KAFKA-16375: also for on_assignment; a call under way completes, but no further unit starts."""
    member = Member(MemberSettings(group_id="g", member_id="m"))
    member.owned = {Unit("c", number): 3 for number in range(4)}
    listener, runner, assignor = RecordingListener(), CountingRunner(), Spread()
    changes: list[int] = []
    performer = Performer(
        member,
        runner=runner,
        callbacks=Callbacks([listener], [assignor]),
        lose_timeout_s=5,
        report=lambda status: None,
        on_change=lambda: changes.append(len(member.owned)),
    )
    running = asyncio.create_task(performer.run())
    performer.do(TellAssignor(assignor="spread", units=frozenset(), epoch=3))
    performer.do(assign(0, 1))
    await asyncio.sleep(2)
    assert runner.running == {Unit("c", 0), Unit("c", 1)}
    performer.do(Revoke(units=frozenset({Unit("c", 1)}), epoch=3))
    performer.do(TellAssignor(assignor="spread", units=frozenset(), epoch=4))
    performer.do(assign(2, 3))
    performer.do(Revoke(units=frozenset({Unit("c", 0)}), epoch=3))
    await asyncio.sleep(0.5)
    performer.do(Lose(units=frozenset(member.owned), epoch=3, why="cut off"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not runner.running, "stopped at once"
    await asyncio.sleep(5)
    assert listener.calls == ["assigned [0, 1]", "revoked [1]", "lost [0]"], "it was not called for the others"
    assert len(assignor.assignments) == 1
    assert changes == [3, 0]
    assert performer.lost == 1

    member.owned = {Unit("c", 5): 4}
    performer.do(assign(5))
    await asyncio.sleep(2)
    assert runner.running == {Unit("c", 5)}, "later actions are performed"
    running.cancel()


class SlowToStart:
    """An embedder's runner that opens a connection before a unit counts as running."""

    def __init__(self) -> None:
        self.running: set[Unit] = set()

    async def start(self, grants: Sequence[Grant]) -> None:
        await asyncio.sleep(0.1)
        self.running |= {grant.unit for grant in grants}

    async def stop(self, units: Units) -> None:
        self.running -= units


async def test_unit_that_starts_during_a_loss_is_stopped_too() -> None:
    """KAFKA-16375: the stop came during the start, when no unit was running yet."""
    member, runner = Member(MemberSettings(group_id="g", member_id="a")), SlowToStart()
    performer = Performer(
        member,
        runner=runner,
        callbacks=Callbacks(),
        lose_timeout_s=5,
        report=lambda status: None,
        on_change=lambda: None,
    )
    running = asyncio.create_task(performer.run())
    member.owned[UNIT], member.epoch, member.phase = 5, 5, Phase.MEMBER
    performer.do(Assign(grants=(Grant(unit=UNIT, owner_epoch=5),), epoch=5))
    await asyncio.sleep(0.02)
    performer.do(member._lose("fenced"))
    await asyncio.sleep(1)
    assert member.phase is Phase.JOINING
    assert runner.running == set()
    running.cancel()

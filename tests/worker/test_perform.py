"""Actions performed in order, and what a loss does to those before it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from connectgroup.listener import WorkerRebalanceListener
from connectgroup.member.actions import Assign, Grant, Lose, Revoke, TellAssignor
from connectgroup.member.state_machine import Member, MemberSettings, Phase
from connectgroup.protocol.units import Unit, Units
from connectgroup.worker.callbacks import Callbacks
from connectgroup.worker.perform import Performer

from .builders import Spread

UNIT = Unit("c", 0)


class Told(WorkerRebalanceListener):
    """Remembers what it was told, and takes a second for it."""

    def __init__(self) -> None:
        self.words: list[str] = []

    async def on_assigned(self, units: Units, epoch: int) -> None:
        self.words.append(f"assigned {sorted(unit.task for unit in units)}")
        await asyncio.sleep(1)

    async def on_revoked(self, units: Units, epoch: int) -> None:
        self.words.append(f"revoked {sorted(unit.task for unit in units)}")
        await asyncio.sleep(1)

    async def on_lost(self, units: Units, epoch: int) -> None:
        self.words.append(f"lost {sorted(unit.task for unit in units)}")


class Hands:
    """A runner that only counts."""

    def __init__(self) -> None:
        self.running: set[Unit] = set()

    async def start(self, grants: Sequence[Grant]) -> None:
        self.running |= {grant.unit for grant in grants}

    async def stop(self, units: Units) -> None:
        self.running -= units


def given(*numbers: int) -> Assign:
    return Assign(grants=tuple(Grant(unit=Unit("c", number), owner_epoch=3) for number in numbers), epoch=3)


async def test_actions_queued_before_a_loss_are_dropped() -> None:
    """KAFKA-16375: also the assignor hears nothing more of it; what was begun is finished, but nothing starts."""
    member = Member(MemberSettings(group_id="g", member_id="m"))
    member.owned = {Unit("c", number): 3 for number in range(4)}
    listener, hands, assignor = Told(), Hands(), Spread()
    changes: list[int] = []
    performer = Performer(
        member,
        runner=hands,
        callbacks=Callbacks([listener], [assignor]),
        lose_timeout_s=5,
        report=lambda status: None,
        on_change=lambda: changes.append(len(member.owned)),
    )
    running = asyncio.create_task(performer.run())
    performer.do(TellAssignor(assignor="spread", units=frozenset(), epoch=3))
    performer.do(given(0, 1))
    await asyncio.sleep(2)
    assert hands.running == {Unit("c", 0), Unit("c", 1)}
    performer.do(Revoke(units=frozenset({Unit("c", 1)}), epoch=3))
    performer.do(TellAssignor(assignor="spread", units=frozenset(), epoch=4))
    performer.do(given(2, 3))
    performer.do(Revoke(units=frozenset({Unit("c", 0)}), epoch=3))
    await asyncio.sleep(0.5)
    performer.do(Lose(units=frozenset(member.owned), epoch=3, why="cut off"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not hands.running, "stopped at once"
    await asyncio.sleep(5)
    assert listener.words == ["assigned [0, 1]", "revoked [1]", "lost [0, 2, 3]"]
    assert len(assignor.told) == 1
    assert changes == [3, 0]
    assert performer.lost == 1

    member.owned = {Unit("c", 5): 4}
    performer.do(given(5))
    await asyncio.sleep(2)
    assert hands.running == {Unit("c", 5)}, "and it goes on"
    running.cancel()


class SlowToStart:
    """An embedder's runner that opens a connection before it counts a unit as running."""

    def __init__(self) -> None:
        self.running: set[Unit] = set()

    async def start(self, grants: Sequence[Grant]) -> None:
        await asyncio.sleep(0.1)
        self.running |= {grant.unit for grant in grants}

    async def stop(self, units: Units) -> None:
        self.running -= units


async def test_unit_that_starts_during_a_loss_is_stopped_too() -> None:
    """KAFKA-16375: the stop came before the start had ended, and found nothing."""
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

"""Losing everything means everything; a hung stop of an old grant does not hold up a new one; names stay names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.member.actions import Assign, Grant
from connectgroup.member.state_machine import Member, MemberSettings, Phase
from connectgroup.protocol.units import Unit, Units
from connectgroup.worker.perform import Performer
from connectgroup.worker.runner import RunnerSettings, TaskRunner, file_name

from .virtual_time import Gate

UNIT = Unit("c", 0)


class SlowToStart:
    """An embedder's runner that opens a connection before it counts a unit as running."""

    def __init__(self) -> None:
        self.running: set[Unit] = set()

    async def start(self, grants: Sequence[Grant]) -> None:
        await asyncio.sleep(0.1)
        self.running |= {grant.unit for grant in grants}

    async def stop(self, units: Units) -> None:
        self.running -= units


async def test_what_starts_while_everything_is_being_lost_is_stopped_too() -> None:
    """KAFKA-16375: the stop came before the start had ended, and found nothing."""
    member, runner = Member(MemberSettings(group_id="g", member_id="a")), SlowToStart()
    performer = Performer(
        member,
        runner=runner,
        assignors=[],
        listeners=[],
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


class Stuck(Connector):
    """Its tasks' first stop hangs until the test lets it go."""

    gate: ClassVar[Gate]
    stops = 0

    def task_configs(self, most: int) -> Sequence[Config]:
        return [{}]

    def task(self, config: Config, context: TaskContext) -> Task:
        return StuckTask()


class StuckTask(Task):
    def start(self) -> None:
        pass

    def stop(self) -> None:
        Stuck.stops += 1
        if Stuck.stops == 1:
            Stuck.gate.wait()


async def test_a_later_grant_is_not_held_up_by_the_hung_stop_of_an_earlier_one(tmp_path: Path) -> None:
    """Each revocation would overrun the rebalance timeout else, and a healthy worker be fenced again and again."""

    async def publish(name: str, epoch: int, configs: Sequence[Config]) -> None:
        raise AssertionError("no connector runs here")

    Stuck.gate, Stuck.stops = Gate(), 0
    runner = TaskRunner(
        "a",
        RunnerSettings(scratch=tmp_path),
        load_class=lambda name: Stuck,
        publish=publish,
        report=lambda status: None,
    )
    try:
        await runner.start([Grant(unit=UNIT, owner_epoch=5)])
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runner.stop(frozenset({UNIT})), 0.2)
        await runner.start([Grant(unit=UNIT, owner_epoch=6)])
        await asyncio.sleep(0.1)
        await asyncio.wait_for(runner.stop(frozenset({UNIT})), 30)
        assert Stuck.stops == 2
    finally:
        Stuck.gate.open()


def test_a_name_is_one_file_and_leads_nowhere_else() -> None:
    names = ["orders-0-5", "x/../../../outside-0-5", "a" * 300, "a" * 301, "..", "é", "e", ""]
    files = [file_name(name) for name in names]
    assert files[0] == names[0]
    assert len(set(files)) == len(names)
    assert all("/" not in file and file not in ("", ".", "..") and len(file) < 100 for file in files)

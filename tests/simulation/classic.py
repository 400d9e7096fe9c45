"""A run of a worker group with workers of the classic protocol: the usual faults, upgrades and downgrades (CN-18)."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, ClassVar

from connectgroup.member.settings import GroupProtocol

from .cluster import Cluster, WorkerNode
from .faults import KINDS, Kind
from .loop import SimulatedLoop
from .mixed.schedule import CLASSIC, change_protocol, draw_migration, migrate
from .schedule import FaultSchedule
from .setting import Setting
from .worker_faults import MAX_WORKERS, Arguments, any_worker

CONNECT, CHANGE = "rolling upgrade to the connect protocol", "worker changes its protocol"
CLASSIC_KINDS = frozenset({CONNECT, CLASSIC, CHANGE})


def _draw_change(schedule: Any) -> Arguments | None:
    random = schedule.random
    return any_worker(schedule, protocol=random.choice(["classic", "connect"]), back_s=random.random() * 15)


class ClassicCluster(Cluster):
    """A connect group whose workers have either protocol."""

    def __init__(self, seed: int, loop: SimulatedLoop, **named: Any) -> None:
        super().__init__(seed, loop, **named)
        random = Random(f"{seed} classic")
        first = random.choice(["classic", "classic", "connect", ""])
        self.protocols = {f"w{number}": first or random.choice([*GroupProtocol]) for number in range(MAX_WORKERS)}


class ClassicSchedule(FaultSchedule):
    """See the module."""

    kinds: ClassVar = {
        **KINDS,
        CONNECT: Kind(draw_migration("connect"), migrate, all_workers=True),
        CLASSIC: Kind(draw_migration("classic"), migrate, all_workers=True),
        CHANGE: Kind(_draw_change, change_protocol),
    }
    always = CLASSIC_KINDS
    small_changes = (*FaultSchedule.small_changes, "change", "change")

    @classmethod
    def cluster_of(
        cls, seed: int, loop: SimulatedLoop, members: int | None, tasks: int | None, setting: Setting | None
    ) -> ClassicCluster:
        return ClassicCluster(seed, loop, members=members, tasks=tasks, setting=setting)

    async def change_protocol(self, node: WorkerNode) -> None:
        """Restart a worker with the other protocol."""
        protocols = self.cluster.protocols
        was_classic = protocols.get(node.slot) == GroupProtocol.CLASSIC
        protocols[node.slot] = GroupProtocol.CONNECT if was_classic else GroupProtocol.CLASSIC
        self.restart(node)
        await asyncio.wait([node.main])
        self.again(node.slot)

"""Connectors, tasks and listeners of the harness: they record their calls in its journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.units import Unit, Units, show

if TYPE_CHECKING:
    from .builders import World


class Scripted(Connector):
    """``tasks.max`` tasks (or ``tasks``, if given) that record their starts and stops."""

    world: World

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        self.world.note(f"? construct {name}")

    @property
    def fenced(self) -> bool:
        return self.config.get("fenced") == "true"

    def task_configs(self, limit: int) -> Sequence[Config]:
        self.world.note(f"? task_configs {self.name}")
        return [{"task": str(number), "text": self.config.get("text", "")} for number in range(limit)]

    def task(self, config: Config, context: TaskContext) -> Task:
        return ScriptedTask(self.world, context)


class ScriptedTask(Task):
    """Runs from the end of ``start`` to the end of ``stop``."""

    def __init__(self, world: World, context: TaskContext) -> None:
        self.world, self.context = world, context

    def start(self) -> None:
        self.world.note(f"{self.context.member_id} start {self.context.unit}")
        self.world.began(self.context.member_id, self.context.unit)
        self.world.contexts[self.context.unit] = self.context

    def stop(self) -> None:
        try:
            self.world.note(f"{self.context.member_id} stop {self.context.unit}")
        finally:
            self.world.ended(self.context.member_id, self.context.unit)


class RecordingListener(WorkerRebalanceListener):
    """Records its calls, and checks that they never overlap."""

    def __init__(self, world: World, member_id: str) -> None:
        self.world, self.member_id = world, member_id
        self.inside: Counter[str] = Counter()
        self.held: Counter[Unit] = Counter()

    def on_assigned(self, units: Units, epoch: int) -> None:
        self._call("on_assigned", units)

    def on_revoked(self, units: Units, epoch: int) -> None:
        self._call("on_revoked", units)

    def on_lost(self, units: Units, epoch: int) -> None:
        self._call("on_lost", units)

    def _call(self, event: str, units: Units) -> None:
        if self.inside.total():
            self.world._violations.append(f"{self.member_id}: {event} while in {list(self.inside.elements())}")
        self.inside[event] += 1
        if event == "on_assigned":  # also if it raises
            self._count(units, 1)
        try:
            self.world.note(f"{self.member_id} {event} {show(units)}")
        finally:
            self.inside[event] -= 1
        if event != "on_assigned":
            self._count(units, -1)

    def _count(self, units: Units, by: int) -> None:
        for unit in units:
            self.held[unit] += by
            if self.held[unit] not in (0, 1):
                self.world._violations.append(f"{self.member_id}: {unit} is counted {self.held[unit]} times")

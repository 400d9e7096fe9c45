"""The results of the commands of one turn of a shard, before its append."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import CoordinatorNotAvailable
from ..group.kernel.effects import Effect
from ..group.kernel.timers import Timer
from ..protocol.records.connect import Record
from .command import Command


@dataclass(slots=True)
class Turn:
    """What the commands of a turn have led to.

    Attributes:
        commands: the queued commands of the turn, without the parked requests that it woke up.
        records: to append as one batch.
        timers, effects, responses: applied, performed and sent once the batch is durable.
        parked: requests that the turn parked.
        written: groups with records.
        deleted: groups that were deleted, or removed.
    """

    commands: list[Command] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    responses: list[tuple[Command, Any]] = field(default_factory=list)
    parked: list[Command] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    deleted: list[str] = field(default_factory=list)

    def discard_group(self, group_id: str) -> None:
        """Discard the results of a group and refuse its requests."""
        self.records = [record for record in self.records if record.group_id != group_id]
        self.discard_actions({group_id})
        self.written.discard(group_id)
        self.refuse_groups({group_id})

    def discard_actions(self, group_ids: set[str]) -> None:
        """Discard the timers and the effects of groups."""
        self.timers = [timer for timer in self.timers if timer.key.group_id not in group_ids]
        self.effects = [effect for effect in self.effects if effect.group_id not in group_ids]

    def refuse_groups(self, group_ids: set[str]) -> None:
        """Replace the responses of groups by a retriable error."""
        for command, _ in self.responses:
            if command.group_id in group_ids:
                command.refuse(CoordinatorNotAvailable("the group is being loaded again"))
        self.responses = [each for each in self.responses if each[0].group_id not in group_ids]

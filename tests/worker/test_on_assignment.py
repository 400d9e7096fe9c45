"""``on_assignment`` on real workers: called on every member, once per target assignment, on the assignor in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectgroup.assign.api import ConnectAssignment, ConnectAssignorInput
from connectgroup.assign.members import ConnectMemberAssignment

from .builders import GROUP, Spread, World

pytestmark = pytest.mark.asyncio


class Hinting(Spread):
    """Sends every member its own id as user data."""

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        result = super().assign(group)
        members = [
            ConnectMemberAssignment(member_id=share.member_id, units=share.units, metadata=share.member_id.encode())
            for share in result.members
        ]
        return ConnectAssignment(members=members)


class Unused(Spread):
    """Listed second, so the group does not use it."""

    name = "unused"


async def test_on_assignment_is_called_once_for_each_target_on_every_member(tmp_path: Path) -> None:
    """The assignment of a shrinks, then stays; b's grows. Both are called, with group id, epoch and instance id."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        used, unused = {"a": Hinting(), "b": Hinting()}, {"a": Unused(), "b": Unused()}
        world.start("a", assignors=[used["a"], unused["a"]], instance_id="static-a")
        await world.settled("a")
        world.start("b", assignors=[used["b"], unused["b"]])
        await world.settled()
        await world.add("d", 1)
        await world.settled()
        epoch = (await world.describe()).assignment_epoch
        for member_id, instance_id in (("a", "static-a"), ("b", None)):
            calls = used[member_id].assignments
            assert [share.epoch for share in calls] == sorted({share.epoch for share in calls}), "once for each epoch"
            assert calls[-1].epoch == epoch, "also for the target that only added a connector elsewhere"
            assert {share.group_id for share in calls} == {GROUP}
            assert {share.instance_id for share in calls} == {instance_id}
            assert {share.metadata for share in calls} == {member_id.encode()}
            assert unused[member_id].assignments == []
        assert any(len(share.units) == 2 for share in used["a"].assignments), "a was called when its assignment shrank"

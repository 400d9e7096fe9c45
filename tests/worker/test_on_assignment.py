"""``on_assignment`` on real workers: every member, once for each target assignment, the assignor that was used."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectgroup.assign.api import ConnectAssignment, ConnectGroup
from connectgroup.assign.members import ConnectMemberAssignment

from .builders import GROUP, Spread, World

pytestmark = pytest.mark.asyncio


class Hinting(Spread):
    """Tells every member its own name."""

    def assign(self, group: ConnectGroup) -> ConnectAssignment:
        answer = super().assign(group)
        members = [
            ConnectMemberAssignment(member_id=share.member_id, units=share.units, metadata=share.member_id.encode())
            for share in answer.members
        ]
        return ConnectAssignment(members=members)


class Unused(Spread):
    """Listed second, so the group does not use it."""

    name = "unused"


async def test_on_assignment_is_called_once_for_each_target_on_every_member(tmp_path: Path) -> None:
    """A's share shrinks, then stays; B's grows. Both hear, with group id, epoch and instance id."""
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
            heard = used[member_id].told
            assert [share.epoch for share in heard] == sorted({share.epoch for share in heard}), "once for each epoch"
            assert heard[-1].epoch == epoch, "also of the target that only added a connector elsewhere"
            assert {share.group_id for share in heard} == {GROUP}
            assert {share.instance_id for share in heard} == {instance_id}
            assert {share.metadata for share in heard} == {member_id.encode()}
            assert unused[member_id].told == []
        assert any(len(share.units) == 2 for share in used["a"].told), "a heard that its share shrank"

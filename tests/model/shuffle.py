"""A server-side assignor that distributes units at random, fails, is invalid, or delays units."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from connectgroup.errors import PluginError
from connectgroup.group.connect.settings import ServerAssignment
from connectgroup.protocol.messages.assignment import InstalledMember, PrepareResponse
from connectgroup.protocol.messages.common import grouped, units_of
from connectgroup.protocol.units import Unit


@dataclass(kw_only=True)
class Shuffle:
    """An assignor that distributes units at random, sometimes fails, and is not always valid."""

    random: Random

    def __call__(self, assignor_input: PrepareResponse) -> ServerAssignment:
        draw = self.random.random()
        if draw < 0.1:
            raise PluginError("assignor shuffle: random failure")
        names = [member.member_id for member in assignor_input.members]
        keep = {unit: name for name, share in zip(names, assignor_input.shares(), strict=True) for unit in share}
        units = assignor_input.all_units()
        shares: dict[str, set[Unit]] = {name: set() for name in names}
        for unit in units:
            stays = self.random.random() < 0.6
            shares[keep.get(unit) or self.random.choice(names) if stays else self.random.choice(names)].add(unit)
        if draw < 0.15 and units:
            shares[names[0]].discard(units[0])
        versions = {member.member_id: member.assignor.version for member in assignor_input.members}
        if draw > 0.95:
            versions[names[-1]] += 2
        left_out: set[Unit] = set()
        if 0.2 < draw < 0.35:
            before = [units_of(each.units) for each in assignor_input.delayed if not each.member_id]
            left_out = shares[names[0]].union(*before)
        return ServerAssignment(
            members=tuple(
                InstalledMember(
                    member_id=name,
                    units=grouped(share - left_out),
                    version=versions[name],
                    metadata=bytes([len(share)]),
                )
                for name, share in shares.items()
            ),
            delayed=grouped(left_out),
            delay_ms=(500, 2_000, 4_000_000)[int(draw * 1000) % 3] if left_out else 0,
        )

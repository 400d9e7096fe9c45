"""The state that records make: ``state.Group.apply`` and what is derived in it."""

from __future__ import annotations

from .mutant import Mutant

STATE_FILE = "connectgroup/group/state.py"

FENCING = "tests/group/test_fencing.py"
REBALANCE = "tests/group/test_rebalance.py"
CHANGES = "tests/group/test_connectors.py"
REPLAY = "tests/group/test_replay.py"
PARKED = "tests/coordinator/test_small_print.py"

STATE: tuple[Mutant, ...] = (
    Mutant(
        name="what a member is still stopping counts as held by nobody (S1)",
        file=STATE_FILE,
        old="        return {**self.pending, **self.assigned}\n",
        new="        return {**self.assigned}\n",
        tests=REBALANCE,
    ),
    Mutant(
        name="what a removed member held is never free again (L3)",
        file=STATE_FILE,
        old="                if gone:\n                    self._rehold(key.name, gone, NOTHING, self.clock_ms)\n",
        new="",
        tests=REBALANCE,
    ),
    Mutant(
        name="in a compacted log the former owner's claim stands over the new one's (KAFKA-19862)",
        file=STATE_FILE,
        old="            if holder is None or holder[0] == member_id or holder[1] < epoch:\n",
        new="            if holder is None or holder[0] == member_id:\n",
        tests=f"{FENCING} {REPLAY}",
    ),
    Mutant(
        name="in a compacted log the claim read last stands, whichever is newer",
        file=STATE_FILE,
        old="            if holder is None or holder[0] == member_id or holder[1] < epoch:\n",
        new="            if True:\n",
        tests=f"{FENCING} {REPLAY}",
    ),
    Mutant(
        name="a former owner that lets go takes the unit from its new owner",
        file=STATE_FILE,
        old='if unit not in after_held and self.holders.get(unit, ("", 0))[0] == member_id:',
        new="if unit not in after_held and unit in self.holders:",
        tests=f"{FENCING} {REPLAY}",
    ),
    Mutant(
        name="whoever waits for a unit is not told when it is free",
        file=STATE_FILE,
        old="                    self.news.add(waiting)\n",
        new="                    pass\n",
        tests=PARKED,
    ),
    Mutant(
        name="nobody is told of a new target",
        file=STATE_FILE,
        old="                self.news.update(self.members)\n",
        new="",
        tests="tests/coordinator/test_serving.py",
    ),
    Mutant(
        name="the member chosen to compute is not told",
        file=STATE_FILE,
        old="                    self.news.add(record.member_id)\n",
        new="                    pass\n",
        tests=PARKED,
    ),
    Mutant(
        name="the holder of a unit that is switched off is not told",
        file=STATE_FILE,
        old="        self.news.update(self.holders[unit][0] for unit in changed if unit in self.holders)\n",
        new="        self.news.update(self.holders[unit][0] for unit in changed if unit not in before)\n",
        tests=PARKED,
    ),
    Mutant(
        name="a parked heartbeat of a member that is removed is not told so",
        file=STATE_FILE,
        old="                self.behind.discard(key.name)\n                self.news.add(key.name)\n",
        new="                self.behind.discard(key.name)\n",
        tests=PARKED,
    ),
    Mutant(
        name="a member that has its units under an earlier epoch counts as there",
        file=STATE_FILE,
        old="            current.epoch == self.target_epoch\n            and not current.pending\n",
        new="            not current.pending\n",
        tests=REBALANCE,
    ),
    Mutant(
        name="a member whose share has grown since counts as there",
        file=STATE_FILE,
        old="            and current.assigned.keys() == self.target(member_id).units\n",
        new="",
        tests="tests/group/test_connectors.py",
    ),
    Mutant(
        name="a tombstone of an unknown rebalance is an error (KAFKA-17306)",
        file=STATE_FILE,
        old="self.rebalances.pop(int(key.name), None)",
        new="self.rebalances.pop(int(key.name))",
        tests=FENCING,
    ),
    Mutant(
        name="a tombstone of an unknown connector is an error (KAFKA-17306)",
        file=STATE_FILE,
        old="old = self.connectors.pop(name, None)",
        new="old = self.connectors.pop(name) if connector is None else self.connectors.pop(name, None)",
        tests=FENCING,
    ),
    Mutant(
        name="a unit of a deleted connector still counts as one to be run",
        file=STATE_FILE,
        old="                del self.runnable[unit]\n",
        new="                pass\n",
        tests=CHANGES,
    ),
    Mutant(
        name="a paused connector's tasks run",
        file=STATE_FILE,
        old="    if connector.wanted_state == WantedState.RUNNING:\n",
        new="    if connector.wanted_state != WantedState.STOPPED:\n",
        tests=CHANGES,
    ),
)

"""Moving by rounds, draining, the end of a group, and the group in words: ``assignment``, ``delete``, ``describe``."""

from __future__ import annotations

from .mutant import Mutant

ASSIGNMENT = "connectgroup/group/assignment.py"
DELETE = "connectgroup/group/delete.py"
DESCRIBE = "connectgroup/group/describe.py"
DRAFT = "connectgroup/group/draft.py"
HEARTBEAT = "connectgroup/group/heartbeat.py"
RUNTIME = "connectgroup/coordinator/runtime.py"
LOOP = "connectgroup/worker/loop.py"

ROUNDS = "tests/group/test_moves.py"
STATIC_TESTS = "tests/group/test_static.py"
RETURNING = "tests/group/test_returning.py"
SMALL_PRINT = "tests/group/test_small_print.py"
DELETE_TESTS = "tests/group/test_delete.py"
SERVED = "tests/coordinator/test_delay_and_delete.py"
WHOLE = "tests/worker/test_static_and_drain.py"

ENDING: tuple[Mutant, ...] = (
    # ---------------------------------------------------------------------------------------------- rounds, draining
    Mutant(
        name="all moves are made in one round",
        file=ASSIGNMENT,
        old="    for unit, member_id, holder in sorted(moves)[most_moves:]:\n",
        new="    for unit, member_id, holder in sorted(moves)[len(moves) :]:\n",
        tests=ROUNDS,
    ),
    Mutant(
        name="moves left for the next round are forgotten",
        file=ASSIGNMENT,
        old="    return max(0, len(moves) - most_moves)\n",
        new="    return 0\n",
        tests=ROUNDS,
    ),
    Mutant(
        name="the next round begins before the last has ended",
        file=ASSIGNMENT,
        old="    if group.members and not group.behind and group.epoch",
        new="    if group.members and group.epoch",
        tests=ROUNDS,
    ),
    Mutant(
        name="a draining member is given work",
        file=ASSIGNMENT,
        old="    return others if any(not draft.current(member.member_id).away for member in others) else members\n",
        new="    return members\n",
        tests=ROUNDS,
    ),
    Mutant(
        name="where all members are draining nobody may have anything",
        file=ASSIGNMENT,
        old="    return others if any(not draft.current(member.member_id).away for member in others) else members\n",
        new="    return others\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a member that begins to drain asks for no rebalance",
        file=HEARTBEAT,
        old="    elif (before.assignors, before.server_assignor, before.draining) != (\n",
        new="    elif (before.assignors, before.server_assignor, member.draining) != (\n",
        tests=ROUNDS,
    ),
    Mutant(
        name="a heartbeat that does not speak of draining ends it",
        file=HEARTBEAT,
        old="    if request.rebalance_timeout_ms != -1 and request.owned is not None:\n",
        new="    if True:\n",
        tests=ROUNDS,
    ),
    Mutant(
        name="a drained worker does not end when it is empty",
        file=LOOP,
        old="        self._drained = None\n        if not self.member.owned:\n",
        new="        self._drained = None\n        if self.member.owned:\n",
        tests=WHOLE,
    ),
    Mutant(
        name="the work of a draining member is not asked for when somebody comes who can take it",
        file=ASSIGNMENT,
        old="        elif leaving := _can_leave(draft):\n",
        new="        elif (leaving := _can_leave(draft)) and not leaving:\n",
        tests=f"{ROUNDS} {RETURNING}",
    ),
    # ---------------------------------------------------------------------------------------------- the end of a group
    Mutant(
        name="a group with members is deleted (KAFKA-19163)",
        file=DELETE,
        old="    if group.members:\n",
        new="    if not group.exists:\n",
        tests=DELETE_TESTS,
    ),
    Mutant(
        name="a deleted group leaves its connectors behind",
        file=DELETE,
        old="        (Kind.CONNECTOR, group.connectors),\n",
        new="",
        tests=DELETE_TESTS,
    ),
    Mutant(
        name="a deleted group leaves what it held back behind",
        file=DELETE,
        old="        (Kind.DELAY, group.delays),\n",
        new="",
        tests=DELETE_TESTS,
    ),
    Mutant(
        name="a deleted group forgets when it was made",
        file=DELETE,
        old="epoch=0, created_ms=group.created_ms)",
        new="epoch=0, created_ms=0)",
        tests=DELETE_TESTS,
    ),
    Mutant(
        name="a group made again while the clock goes back is an earlier one: its tokens are refused",
        file=DRAFT,
        old="else max(self.now_ms, self.group.created_ms + 1_000)",
        new="else self.now_ms",
        tests=DELETE_TESTS,
    ),
    Mutant(
        name="a restart forgets when a deleted group was made",
        file=RUNTIME,
        old="        if group.created_ms:\n",
        new="        if group.exists:\n",
        tests=SERVED,
    ),
    Mutant(
        name="a coordinator takes one group more than it may have",
        file=RUNTIME,
        old="makes and len(self._groups) >= most and sum(",
        new="makes and len(self._groups) > most and sum(",
        tests=SERVED,
    ),
    Mutant(
        name="a deleted group leaves the states of its tasks behind",
        file=DELETE,
        old="        yield status.key\n",
        new="        yield from () and status.key\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a deleted group leaves its history behind",
        file=DELETE,
        old="        yield Key(Kind.REBALANCE, group_id, str(epoch))\n",
        new="        yield from () and str(epoch)\n",
        tests=DELETE_TESTS,
    ),
    Mutant(
        name="a deleted group leaves its target and its computation behind",
        file=DELETE,
        old="        yield Key(kind, group_id)\n",
        new="        yield from () and kind\n",
        tests=DELETE_TESTS,
    ),
    Mutant(
        name="the timers of what a deleted group held back go on",
        file=DELETE,
        old="        *(timing.cancel_delay(group.group_id, member_id) for member_id in sorted(group.delays)),\n",
        new="",
        tests=DELETE_TESTS,
    ),
    Mutant(
        name="a group that never was is deleted",
        file=DELETE,
        old="    if not group.exists:\n",
        new="    if group.members and not group.exists:\n",
        tests=DELETE_TESTS,
    ),
    # ---------------------------------------------------------------------------------------------- a group in words
    Mutant(
        name="what a former holder said of a task is shown as what its holder says",
        file=DESCRIBE,
        old="(status.member_id, status.owner_epoch) == (member_id, owner_epoch)",
        new="status.owner_epoch <= owner_epoch",
        tests="tests/group/test_connectors.py",
    ),
    Mutant(
        name="work that waits for a member that is away is shown as running",
        file=DESCRIBE,
        old="    if group.current(member_id).away:\n",
        new="    if group.current(member_id).away and not member_id:\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a task that nobody has is shown as one that shall not run",
        file=DESCRIBE,
        old='("UNASSIGNED" if wanted else "OFF")',
        new='("OFF" if wanted else "UNASSIGNED")',
        tests="tests/group/test_connectors.py",
    ),
    Mutant(
        name="a group whose target is being computed is shown as at rest",
        file=DESCRIBE,
        old="    if group.epoch > group.target_epoch:\n",
        new="    if group.epoch < group.target_epoch:\n",
        tests="tests/group/test_computing.py",
    ),
    Mutant(
        name="a group whose members are on their way is shown as at rest",
        file=DESCRIBE,
        old='"Reconciling" if group.behind else "Stable"',
        new='"Stable"',
        tests="tests/group/test_connectors.py",
    ),
    Mutant(
        name="who computed last is shown as computing still",
        file=DESCRIBE,
        old='computation.member_id if computation is not None and computing else ""',
        new='computation.member_id if computation is not None else ""',
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="units that are being stopped are not shown (KAFKA-20431)",
        file=DESCRIBE,
        old="            pending_revocation=grouped(current.pending),\n",
        new="",
        tests="tests/group/test_connectors.py",
    ),
    Mutant(
        name="a group that never was is shown as an empty one",
        file=DESCRIBE,
        old="    if not group.exists:\n",
        new="    if group.members and not group.exists:\n",
        tests="tests/coordinator/test_serving.py",
    ),
    # ---------------------------------------------------------------------------------------------- the simulator's
    Mutant(
        name="rare ways are taken where nobody simulates",
        file="connectgroup/buggify.py",
        old="    return hook is not None and hook(point)\n",
        new="    return hook is None or hook(point)\n",
        tests="tests/coordinator/test_serving.py",
    ),
)

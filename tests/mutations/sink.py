"""What makes a task exactly-once: ``spark/offsets`` and the token of a grant."""

from __future__ import annotations

from .mutant import Mutant

OFFSETS = "connectgroup/spark/offsets.py"
CONNECTOR = "connectgroup/connector.py"

TESTS = "tests/spark/test_offsets.py"
SMALL_PRINT = "tests/spark/test_small_print.py"

SINK: tuple[Mutant, ...] = (
    Mutant(
        name="a query that nobody watches goes on",
        file="connectgroup/spark/query.py",
        old="                with contextlib.suppress(Exception):\n                    self._query.stop()\n",
        new="",
        tests="tests/spark/test_tasks.py::test_a_query_that_nobody_can_watch_for_want_of_a_thread_is_ended",
    ),
    Mutant(
        name="a task's predecessor writes after it has claimed (X1)",
        file=OFFSETS,
        old="        if fence > owner.epoch:\n",
        new="        if fence < 0:\n",
        tests=TESTS,
    ),
    Mutant(
        name="a slice's former task writes after the slice has moved",
        file=OFFSETS,
        old="                raise _fenced(owner, r.slice, epoch)\n",
        new="                pass\n",
        tests=TESTS,
    ),
    Mutant(
        name="the task of an earlier layout writes",
        file=OFFSETS,
        old='        if owner.epoch <= floor:\n            raise _fenced(owner, f"layout of {tasks} tasks", highest)\n',
        new="",
        tests=TESTS,
    ),
    Mutant(
        name="a claim with a lower epoch than the task's fence is taken",
        file=OFFSETS,
        old="            if fence is not None and fence[0] > owner.epoch:\n",
        new="            if fence is not None and fence[0] < 0:\n",
        tests=TESTS,
    ),
    Mutant(
        name="a claim takes slices from an owner with a higher epoch",
        file=OFFSETS,
        old="                    raise _fenced(owner, slice_, epoch)\n",
        new="                    pass\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a task of an earlier layout claims",
        file=OFFSETS,
        old="                if owner.epoch <= floor:\n                    raise",
        new="                if owner.epoch < 0:\n                    raise",
        tests=TESTS,
    ),
    Mutant(
        name="a layout that came before claims over the one that followed it",
        file=OFFSETS,
        old="            elif owner.epoch <= highest:\n",
        new="            elif owner.epoch < 0:\n",
        tests=TESTS,
    ),
    Mutant(
        name="a claim does not raise the fences of the slices it takes",
        file=OFFSETS,
        old="[(owner.epoch, owner.connector, slice_, owner.epoch) for slice_ in positions],",
        new="[],",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a claim fences the slices of its neighbours",
        file=OFFSETS,
        old="                if not is_mine(slice_):\n                    continue\n",
        new="",
        tests=TESTS,
    ),
    Mutant(
        name="a task writes under an epoch it has not claimed",
        file=OFFSETS,
        old="        if fence < owner.epoch:\n",
        new="        if fence < 0:\n",
        tests=TESTS,
    ),
    Mutant(
        name="a gap between a slice's position and a batch is passed over (X8)",
        file=OFFSETS,
        old="            at_start += position == r.start\n",
        new="            at_start += position <= r.start\n",
        tests=TESTS,
    ),
    Mutant(
        name="a batch that overlaps what is in is written again (X2)",
        file=OFFSETS,
        old="            at_start += position == r.start\n",
        new="            at_start += position >= r.start\n",
        tests=TESTS,
    ),
    Mutant(
        name="a batch of which one slice is in counts as in (X8)",
        file=OFFSETS,
        old="        if at_end == len(ranges):\n",
        new="        if at_end:\n",
        tests=TESTS,
    ),
    Mutant(
        name="a batch of which one slice is in is written again (X2)",
        file=OFFSETS,
        old="        if at_start == len(ranges):\n",
        new="        if at_start:\n",
        tests=TESTS,
    ),
    Mutant(
        name="a batch replayed after a crash is an error and not a no-op (paimon#9667)",
        file=OFFSETS,
        old="        if at_end == len(ranges):\n            return True\n",
        new="",
        tests=TESTS,
    ),
    Mutant(
        name="a batch that is in is written again (paimon#9667)",
        file=OFFSETS,
        old="            if self._is_in_already(connection, owner, ranges):\n                return False\n",
        new="            self._is_in_already(connection, owner, ranges)\n",
        tests=TESTS,
    ),
    Mutant(
        name="a write that fails leaves half of itself behind (X4)",
        file=OFFSETS,
        old='                    self._connection.execute("ROLLBACK")\n',
        new='                    self._connection.execute("COMMIT")\n',
        tests=TESTS,
    ),
    Mutant(
        name="positions are read before the write lock is taken",
        file=OFFSETS,
        old='self._connection.execute("BEGIN IMMEDIATE")',
        new='self._connection.execute("BEGIN")',
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a batch of rows may be lost with the machine: synchronous=NORMAL",
        file=OFFSETS,
        old='self._connection.execute("PRAGMA synchronous = FULL")',
        new='self._connection.execute("PRAGMA synchronous = NORMAL")',
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a connector's name may read another source with the positions of the first (X7)",
        file=OFFSETS,
        old="            if source != owner.source:\n",
        new="            if not source:\n",
        tests=TESTS,
    ),
    Mutant(
        name="a token leaves out the group's time of making",
        file=CONNECTOR,
        old="return ((self.incarnation // 1000) << 32) | self.owner_epoch",
        new="return self.owner_epoch",
        tests=TESTS,
    ),
)

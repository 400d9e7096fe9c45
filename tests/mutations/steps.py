"""One step of a member towards its target, and the view it is decided on: ``reconcile``, ``draft``."""

from __future__ import annotations

from .mutant import Mutant

RECONCILE = "connectgroup/group/reconcile.py"
DRAFT = "connectgroup/group/draft.py"

STEPS_TESTS = "tests/group/test_reconcile.py"
FENCING = "tests/group/test_fencing.py"
REBALANCE = "tests/group/test_rebalance.py"
CONNECTORS = "tests/group/test_connectors.py"
TOKENS = "tests/group/test_tokens.py"

STEPS: tuple[Mutant, ...] = (
    # ---------------------------------------------------------------------------------------------- one step
    Mutant(
        name="a heartbeat that says nothing of what it owns acknowledges a revocation",
        file=RECONCILE,
        old="if owned is None or owned & current.pending.keys():",
        new="if owned is not None and owned & current.pending.keys():",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a report in which a unit being stopped is still there acknowledges its revocation",
        file=RECONCILE,
        old="if owned is None or owned & current.pending.keys():",
        new="if owned is None:",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a revocation is skipped where the member says nothing of what it owns (KAFKA-10763)",
        file=RECONCILE,
        old="if revoke and (owned is None or owned & revoke.keys()):",
        new="if revoke and owned is not None and owned & revoke.keys():",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a revocation is skipped where the member says that it runs the unit",
        file=RECONCILE,
        old="if revoke and (owned is None or owned & revoke.keys()):",
        new="if revoke and owned is None:",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="the epoch of a member rises while it has something to stop (S7)",
        file=RECONCILE,
        old="return replace(current, state=MemberState.UNREVOKED,",
        new="return replace(current, epoch=target_epoch, state=MemberState.UNREVOKED,",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="what a member is told to stop is not remembered as being stopped",
        file=RECONCILE,
        old="assigned=keep, pending=revoke)",
        new="assigned=keep, pending={})",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a unit is given while somebody else holds it (S1)",
        file=RECONCILE,
        old="for unit in gain if holder(unit) in (None, member_id)}",
        new="for unit in gain}",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a member waits for a unit that it holds itself",
        file=RECONCILE,
        old="for unit in gain if holder(unit) in (None, member_id)}",
        new="for unit in gain if holder(unit) is None}",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a new grant carries the epoch the member had before (S6)",
        file=RECONCILE,
        old="free = {unit: target_epoch for unit in gain",
        new="free = {unit: current.epoch for unit in gain",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a unit that stays gets a new owner epoch, which its task does not know",
        file=RECONCILE,
        old="assigned={**keep, **free}",
        new="assigned={**dict.fromkeys(keep, target_epoch), **free}",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a grant older than its unit's configuration is kept",
        file=RECONCILE,
        old="if unit in target and epoch >= since_epoch.get(unit, 0)",
        new="if unit in target",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a grant as old as its unit's configuration is taken back",
        file=RECONCILE,
        old="epoch >= since_epoch.get(unit, 0)",
        new="epoch > since_epoch.get(unit, 0)",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a unit that left the target is kept",
        file=RECONCILE,
        old="if unit in target and epoch >= since_epoch.get(unit, 0)",
        new="if epoch >= since_epoch.get(unit, 0)",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a member that waits for a unit counts as done",
        file=RECONCILE,
        old="state = MemberState.STABLE if len(free) == len(gain) else MemberState.UNRELEASED",
        new="state = MemberState.STABLE",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a member that keeps all it has is not moved to the target's epoch",
        file=RECONCILE,
        old="and (state, target_epoch) == (current.state, current.epoch):",
        new="and state == current.state:",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a wait that goes on is written down with each heartbeat",
        file=RECONCILE,
        old="if not free and not revoke and not current.pending and",
        new="if free and not revoke and not current.pending and",
        tests=STEPS_TESTS,
    ),
    Mutant(
        name="a member in a state of newer software that still runs something is not fenced",
        file=RECONCILE,
        old="            if owned is None or owned:\n",
        new="            if owned is None:\n",
        tests=STEPS_TESTS,
    ),
    # ---------------------------------------------------------------------------------------------- a step's view
    Mutant(
        name="a unit that is gone, or newer than the target, is handed out (S10)",
        file=DRAFT,
        old="if runnable.get(unit, newest + 1) <= newest",
        new="if runnable.get(unit, newest + 1) <= newest + 1",
        tests=CONNECTORS,
    ),
    Mutant(
        name="two causes of one step cost two epochs (L2)",
        file=DRAFT,
        old="        if not self._bumped:\n",
        new="        if True:\n",
        tests=f"{CONNECTORS} {TOKENS}",
    ),
    Mutant(
        name="a change of the group does not raise its epoch (S4)",
        file=DRAFT,
        old="epoch=self.epoch + 1, created_ms",
        new="epoch=self.epoch or 1, created_ms",
        tests=FENCING,
    ),
    Mutant(
        name="a group's time of making moves with each change",
        file=DRAFT,
        old="created_ms = self.group.created_ms if self.group.exists else max(",
        new="created_ms = max(",
        tests=TOKENS,
    ),
    Mutant(
        name="the short cut of a settled member is taken by one that is behind",
        file=DRAFT,
        old="            and member_id not in self.group.behind\n",
        new="",
        tests=REBALANCE,
    ),
    Mutant(
        name="the short cut of a settled member is taken by one that has joined again in this step",
        file=DRAFT,
        old="            and member_id not in self._currents\n",
        new="",
        tests="tests/group/test_replay.py",
    ),
    Mutant(
        name="the short cut of a settled member is taken while the target is out of date",
        file=DRAFT,
        old="            self.epoch == self.target_epoch == self.group.target_epoch\n",
        new="            self.target_epoch == self.group.target_epoch\n",
        tests=CONNECTORS,
    ),
)
